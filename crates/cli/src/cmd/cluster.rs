//! `weft cluster`: a real cluster of processes on this machine.

use super::{
    daemon::seed,
    status::{self, Report},
};
use crate::{
    exit::Exit,
    local::{COORDINATOR, LocalCluster, Size},
    output::Output,
    session::{self, Session},
    target::{self, DEFAULT_DIR, FILE_NAME},
};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::{collections::BTreeSet, path::PathBuf, time::Duration};
use tokio::time::Instant;
use weft_types::{Error, Result};

/// A cluster has this long to come up.
const UP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Start, look at and stop a cluster of processes on this machine
#[derive(Debug, Args)]
pub(super) struct Cluster {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(Up),
    Status(Status),
    Down(Down),
}

/// Start a cluster: one coordinator and N agents, each a process of its own
///
/// The first time it makes DIR with certificates, settings, disks and DIR/weft.toml, which tells other commands where the cluster
/// is. Later it starts what does not run; everything that was stored is still there.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft cluster up --dir weft-cluster --nodes 16 --racks 4
  weft bucket create photos && weft put cat.jpg photos/cat.jpg

EXIT CODES
  0 every node is up   1 something did not start; the message says what its log says   2 sizes that make no sense, or DIR holds
  something else")]
struct Up {
    /// Where the cluster lives; also WEFT_CLUSTER
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How many agents; needed the first time
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// How many racks they stand in
    #[arg(long, value_name = "R")]
    racks: Option<u32>,
    /// How many disks each agent has
    #[arg(long, value_name = "X")]
    disks_per_node: Option<u32>,
}

/// Who is there, and how much is stored
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft cluster status

EXIT CODES
  0 every node is up   3 no cluster   4 the coordinator, or a node, is down")]
struct Status {
    /// Where the cluster lives; also --cluster or WEFT_CLUSTER
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Stop the cluster's processes; what is stored stays
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft cluster down --dir weft-cluster

EXIT CODES
  0 nothing of it runs any more   1 a process did not end   3 no cluster in DIR")]
struct Down {
    /// Where the cluster lives; also WEFT_CLUSTER
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Stopped {
    dir: PathBuf,
    stopped: usize,
}

impl Cluster {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match self.command {
            Command::Up(up) => up.run(options, output),
            Command::Status(status) => status.run(options, output),
            Command::Down(down) => {
                let cluster = LocalCluster::open(&directory(down.dir, options)?)?;
                let _lock = cluster.lock()?;
                let stopped = Stopped { dir: cluster.dir().to_owned(), stopped: cluster.stop()? };
                output.result(&stopped, |it| format!("stopped {} processes", it.stopped)).map(|()| Exit::Ok)
            }
        }
    }
}

impl Up {
    fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let dir = directory(self.dir.clone(), options)?;
        let is_new = !dir.join(FILE_NAME).is_file();
        let cluster = if is_new { self.make(&dir, options)? } else { self.check(LocalCluster::open(&dir)?, options)? };
        let _lock = cluster.lock()?;
        if cluster.file()?.insecure {
            eprintln!("weft: insecure: connections are neither encrypted nor authenticated, as --insecure says");
        }
        let report = session::run(async {
            let session = bring_up(&cluster).await?;
            if let (true, Some(bucket)) = (is_new, &session.bucket) {
                session.client.create_bucket(bucket, "").await?;
            }
            session.client.status().await
        })?;
        let report = Report::from(report);
        output.result(&report, |it| format!("{}\n{}", status::summary(it), found_by(&cluster))).map(|()| Exit::Ok)
    }

    fn make(&self, dir: &std::path::Path, options: &target::Options) -> Result<LocalCluster> {
        let nodes = self.nodes.ok_or_else(|| {
            Error::invalid(format!("there is no cluster in {} yet: --nodes says how many agents it shall have", dir.display()))
        })?;
        let size = Size {
            nodes,
            racks: self.racks.unwrap_or(1),
            disks_per_node: self.disks_per_node.unwrap_or(1),
            insecure: options.insecure,
        };
        LocalCluster::make(dir, size, seed()?, |_| {})
    }

    /// A cluster that is there stays as it is: what is asked for must be what there is.
    fn check(&self, cluster: LocalCluster, options: &target::Options) -> Result<LocalCluster> {
        let there = cluster.size()?;
        let asked = [
            ("nodes", self.nodes, there.nodes),
            ("racks", self.racks, there.racks),
            ("disks a node", self.disks_per_node, there.disks_per_node),
        ];
        if let Some((what, Some(asked), there)) = asked.into_iter().find(|(_, asked, there)| asked.is_some_and(|it| it != *there))
        {
            let dir = cluster.dir().display();
            return Err(Error::invalid(format!(
                "the cluster in {dir} has {there} {what}, not {asked}; leave that out to start it as it is"
            )));
        }
        if options.insecure && !there.insecure {
            return Err(Error::invalid("this cluster was made with certificates: it cannot be started with --insecure"));
        }
        Ok(cluster)
    }
}

impl Status {
    fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let options = match self.dir {
            Some(dir) => target::Options { cluster: Some(dir.to_string_lossy().into_owned()), ..options.clone() },
            None => options.clone(),
        };
        let report = Report::from(Session::with(&options, async |session| session.client.status().await)?);
        output.result(&report, status::text)?;
        Ok(if report.all_up() { Exit::Ok } else { Exit::Unavailable })
    }
}

/// Starts whatever does not run, and waits until all nodes are up.
pub(super) async fn bring_up(cluster: &LocalCluster) -> Result<Session> {
    let until = Instant::now() + UP_TIMEOUT;
    let mut started = BTreeSet::new();
    let mut session: Option<Session> = None;
    loop {
        start_missing(cluster, &mut started)?;
        if session.is_none() {
            session = Session::open(cluster.file()?.target()?).await.ok();
        }
        let missing = match &session {
            Some(session) => {
                // While it is starting again, a coordinator that was there a moment ago may be gone: that is no answer yet.
                let nodes = session.client.status().await.map(|status| status.nodes).unwrap_or_default();
                let is_up = |name: &&String| !nodes.iter().any(|node| node.name == **name && node.state == "up");
                cluster.nodes().iter().filter(is_up).cloned().collect()
            }
            None => vec![COORDINATOR.to_owned()],
        };
        match session.take() {
            Some(session) if missing.is_empty() => return Ok(session),
            not_yet => session = not_yet,
        }
        if Instant::now() > until {
            let log = cluster.dir().join("log");
            return Err(Error::retry(format!("not up after {UP_TIMEOUT:?}: {} (see {})", missing.join(", "), log.display())));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Starts what does not run, each once: what was killed a moment ago may seem to run at first, and what ends by itself after it
/// was started has said why.
fn start_missing(cluster: &LocalCluster, started: &mut BTreeSet<String>) -> Result<()> {
    let missing = cluster.processes()?.into_iter().filter(|(_, process)| process.is_none()).map(|(name, _)| name);
    for name in missing {
        if !started.insert(name.clone()) {
            return Err(Error::fatal(cluster.ended(&name)));
        }
        if name == COORDINATOR {
            cluster.settle_port(seed()?)?;
        }
        cluster.start(&name)?;
    }
    Ok(())
}

/// How other commands find the cluster.
fn found_by(cluster: &LocalCluster) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let dir = cluster.dir();
    if *dir == here || *dir == here.join(DEFAULT_DIR) {
        return "commands find it by themselves in this directory".to_owned();
    }
    format!("commands find it by: export WEFT_CLUSTER={}", dir.display())
}

fn directory(said: Option<PathBuf>, options: &target::Options) -> Result<PathBuf> {
    let named = said.or_else(|| options.cluster.as_ref().map(PathBuf::from));
    let dir = match named {
        Some(dir) => dir,
        None if PathBuf::from(FILE_NAME).is_file() => PathBuf::from("."),
        None => PathBuf::from(DEFAULT_DIR),
    };
    // The file itself names its directory too.
    if dir.is_file() {
        let parent = dir.parent().map(PathBuf::from).unwrap_or_default();
        return Ok(if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent });
    }
    Ok(dir)
}
