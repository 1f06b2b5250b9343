//! Where a benchmark runs: in the named testbed or cluster, or in a temporary one of its own.

use crate::testbed::{Settings, Testbed, scratch};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use weft_cli::{
    interrupt,
    local::{DaemonSettings, LocalCluster, ScratchCluster, Size},
    seed::seed,
    session::{self, Session},
    target::{self, Target},
    up::bring_up,
};
use weft_client::Client;
use weft_coordinator::CoordinatorConfig;
use weft_types::Result;

/// Runs `work` in the testbed or cluster that the options name, or in a temporary one.
pub(crate) fn in_testbed<T>(
    options: &target::Options,
    settings: Settings,
    work: impl AsyncFnOnce(&Session, Option<&mut Testbed>) -> Result<T>,
) -> Result<T> {
    in_testbed_with(options, settings, |_| {}, work)
}

/// The same; `adjust` changes the coordinator's settings of a temporary testbed.
pub(crate) fn in_testbed_with<T>(
    options: &target::Options,
    settings: Settings,
    adjust: impl Fn(&mut CoordinatorConfig),
    work: impl AsyncFnOnce(&Session, Option<&mut Testbed>) -> Result<T>,
) -> Result<T> {
    let adjust = |it: DaemonSettings<'_>| {
        if let DaemonSettings::Coordinator(config) = it {
            adjust(config);
        }
    };
    in_testbed_as(options, settings, &Own { on_disk: false, adjust: &adjust }, work)
}

/// How a temporary testbed differs from a usual one.
pub(crate) struct Own<'a> {
    /// Its disks are below TMPDIR, and not in memory.
    pub(crate) on_disk: bool,
    /// Changes the settings of its processes.
    pub(crate) adjust: &'a dyn Fn(DaemonSettings<'_>),
}

/// The same, with a temporary testbed of this kind.
pub(crate) fn in_testbed_as<T>(
    options: &target::Options,
    settings: Settings,
    own: &Own<'_>,
    work: impl AsyncFnOnce(&Session, Option<&mut Testbed>) -> Result<T>,
) -> Result<T> {
    if let Some(named) = &options.cluster {
        let mut testbed = Testbed::open(Path::new(named)).ok();
        if let Some(testbed) = &testbed {
            testbed.enter()?;
        }
        return Session::with(options, async |session| work(session, testbed.as_mut()).await);
    }
    Testbed::check_machine()?;
    let scratch = Scratch { dir: if own.on_disk { scratch::make_on_disk() } else { scratch::make() }? };
    let _lock = LocalCluster::lock(&scratch.dir)?;
    let (mut testbed, cluster) = Testbed::make(&scratch.dir, settings, seed()?, |mut it| {
        if let DaemonSettings::Coordinator(config) = &mut it {
            // Experiments must not wait long for a dead node to be noticed.
            (config.heartbeat_interval_ms, config.down_after_ms) = (500, 2500);
            // What they measure must be the only repair.
            (config.auto_repair, config.scrub_period_ms) = (false, 0);
        }
        (own.adjust)(it);
    })?;
    testbed.enter()?;
    interrupt::check()?;
    session::run(async {
        let session = bring_up(&cluster).await?;
        let done = work(&session, Some(&mut testbed)).await;
        session.client.close().await;
        done
    })
}

/// A cluster whose links are not shaped.
pub(crate) struct Place<'a> {
    pub(crate) session: &'a Session,
    /// Its directory and processes, if they are on this machine.
    pub(crate) local: Option<&'a LocalCluster>,
    /// It was created for this benchmark, so its processes may be killed.
    pub(crate) is_own: bool,
    /// The interval of its agents' heartbeats.
    pub(crate) heartbeat: Duration,
    target: &'a dyn Fn() -> Result<Target>,
}

impl Place<'_> {
    /// A further client with connections of its own.
    pub(crate) async fn client(&self) -> Result<Client> {
        Ok(Session::open((self.target)()?).await?.client)
    }
}

/// Runs `work` in the cluster that the options name, or in a temporary one of this size.
pub(crate) fn in_cluster<T>(options: &target::Options, size: Size, work: impl AsyncFnOnce(&Place<'_>) -> Result<T>) -> Result<T> {
    if let Some(named) = &options.cluster {
        if let Ok(testbed) = Testbed::open(Path::new(named)) {
            testbed.enter()?;
        }
        let (local, target) = (LocalCluster::open(Path::new(named)).ok(), || options.target());
        // A coordinator does not report the interval of its cluster: assume the default.
        let heartbeat = Duration::from_millis(CoordinatorConfig::default().heartbeat_interval_ms.into());
        return Session::with(options, async |session| {
            work(&Place { session, local: local.as_ref(), is_own: false, heartbeat, target: &target }).await
        });
    }
    let scratch = ScratchCluster::make("weft-bench", size)?;
    interrupt::check()?;
    let (cluster, heartbeat) = (scratch.cluster(), Duration::from_millis(ScratchCluster::HEARTBEAT_INTERVAL_MS.into()));
    session::run(async {
        let session = bring_up(cluster).await?;
        let target = || cluster.file()?.target();
        let done = work(&Place { session: &session, local: Some(cluster), is_own: true, heartbeat, target: &target }).await;
        session.client.close().await;
        done
    })
}

/// The directory of a temporary testbed; dropping it removes directory and testbed.
struct Scratch {
    dir: PathBuf,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = Testbed::down(&self.dir) {
            eprintln!("weft: {error}; try again with `weft testbed down --dir {}`", self.dir.display());
        }
    }
}
