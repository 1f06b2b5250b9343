//! Where a benchmark runs: in the testbed or cluster that is named, or in a testbed of its own that is gone afterwards.

use crate::testbed::{Settings, Testbed, scratch};
use std::path::{Path, PathBuf};
use weft_cli::{
    interrupt,
    local::{DaemonSettings, LocalCluster},
    seed::seed,
    session::{self, Session},
    target,
    up::bring_up,
};
use weft_coordinator::CoordinatorConfig;
use weft_types::Result;

/// Does `work` in the testbed or cluster that the options name, or in one of its own.
pub(crate) fn in_testbed<T>(
    options: &target::Options,
    settings: Settings,
    work: impl AsyncFnOnce(&Session, Option<&mut Testbed>) -> Result<T>,
) -> Result<T> {
    in_testbed_with(options, settings, |_| {}, work)
}

/// The same; the coordinator of a testbed of its own is as `adjust` has it.
pub(crate) fn in_testbed_with<T>(
    options: &target::Options,
    settings: Settings,
    adjust: fn(&mut CoordinatorConfig),
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
    let scratch = Scratch { dir: scratch::make()? };
    let _lock = LocalCluster::lock(&scratch.dir)?;
    let (mut testbed, cluster) = Testbed::make(&scratch.dir, settings, seed()?, |it| {
        if let DaemonSettings::Coordinator(config) = it {
            // An experiment should not have to wait for a dead node to be noticed.
            (config.heartbeat_interval_ms, config.down_after_ms) = (500, 2500);
            adjust(config);
        }
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

/// A testbed's directory that is gone when this is, with the testbed.
struct Scratch {
    dir: PathBuf,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = Testbed::down(&self.dir) {
            eprintln!("weft: {error}; `weft testbed down --dir {}` tries again", self.dir.display());
        }
    }
}
