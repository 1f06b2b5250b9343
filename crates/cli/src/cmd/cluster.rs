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
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::Instant;
use weft_types::{Error, Reaction, Result};

/// A cluster has this long to come up.
const UP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// While agents are started one after another, which is done for so many of them.
const POLL_IN_ORDER: Duration = Duration::from_millis(5);
const IN_ORDER_MAX: usize = 64;

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
  0 every node is up   1 something did not start; the message says what its log says   2 sizes that make no sense, or DIR holds \
  something else   130 broken off: what has started goes on, and the next `up` with it; `weft cluster down` ends it")]
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
                let dir = directory(down.dir, options)?;
                let cluster = LocalCluster::open(&dir)?;
                let _lock = LocalCluster::lock(&dir)?;
                let stopped = Stopped { dir: cluster.dir().to_owned(), stopped: cluster.stop()? };
                let text = |it: &Stopped| match it.stopped {
                    0 => "nothing of it ran".to_owned(),
                    1 => "stopped 1 process".to_owned(),
                    more => format!("stopped {more} processes"),
                };
                output.result(&stopped, text).map(|()| Exit::Ok)
            }
        }
    }
}

impl Up {
    fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let dir = directory(self.dir.clone(), options)?;
        if !LocalCluster::is_in(&dir) {
            LocalCluster::check_free(&dir, self.size(&dir, options)?)?;
        }
        let _lock = LocalCluster::lock(&dir)?;
        let cluster = match LocalCluster::is_in(&dir) {
            true => LocalCluster::open(&dir)?,
            false => LocalCluster::make(&dir, self.size(&dir, options)?, seed()?, |_| {})?,
        };
        self.check(&cluster, options)?;
        // As JSON the report says so.
        if cluster.file()?.insecure && !output.json {
            eprintln!("weft: insecure: connections are neither encrypted nor authenticated, as --insecure says");
        }
        let report = session::run(async {
            let session = bring_up(&cluster).await?;
            if cluster.is_new() {
                make_bucket(&session).await?;
                cluster.was_up()?;
            }
            session.client.status().await
        })?;
        let report = Report::from(report);
        output.result(&report, |it| format!("{}\n{}", status::summary(it), found_by(&cluster))).map(|()| Exit::Ok)
    }

    fn size(&self, dir: &Path, options: &target::Options) -> Result<Size> {
        let nodes = self.nodes.ok_or_else(|| {
            Error::invalid(format!("there is no cluster in {} yet: --nodes says how many agents it shall have", dir.display()))
        })?;
        Ok(Size {
            nodes,
            racks: self.racks.unwrap_or(1),
            disks_per_node: self.disks_per_node.unwrap_or(1),
            insecure: options.insecure,
        })
    }

    /// A cluster that is there stays as it is: what is asked for must be what there is.
    fn check(&self, cluster: &LocalCluster, options: &target::Options) -> Result<()> {
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
        Ok(())
    }
}

/// Makes the bucket of keys that are named without one, if it is not there yet.
pub(super) async fn make_bucket(session: &Session) -> Result<()> {
    let Some(bucket) = &session.bucket else { return Ok(()) };
    if session.client.buckets().await?.iter().any(|there| there.name == *bucket) {
        return Ok(());
    }
    session.client.create_bucket(bucket, "").await.map(drop)
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
    let mut known = 0;
    loop {
        // Numbers are given in the order in which agents come for the first time: node-01 shall be n1.
        let in_order = cluster.is_new() && known < cluster.nodes().len().min(IN_ORDER_MAX);
        start_missing(cluster, &mut started, if in_order { known + 1 } else { usize::MAX })?;
        let mut why = None;
        if session.is_none() {
            session = keep(Session::open(cluster.file()?.target()?).await, &mut why)?;
        }
        let missing = match &session {
            Some(session) => {
                // While it is starting again, a coordinator that was there a moment ago may be gone: that is no answer yet.
                let status = keep(session.client.status().await, &mut why)?;
                let nodes = status.map(|status| status.nodes).unwrap_or_default();
                known = nodes.len();
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
            let (log, missing) = (cluster.dir().join("log"), missing.join(", "));
            let why = why.map_or_else(String::new, |error: Error| format!(": {error}"));
            return Err(Error::retry(format!("not up after {UP_TIMEOUT:?}: {missing}{why} (see {})", log.display())));
        }
        tokio::time::sleep(if in_order { POLL_IN_ORDER } else { POLL }).await;
    }
}

/// What somebody may answer later is remembered as the reason why it is not up yet; what cannot get better by waiting ends that.
fn keep<T>(answer: Result<T>, why: &mut Option<Error>) -> Result<Option<T>> {
    match answer {
        Err(error) if error.reaction == Reaction::InvalidInput => Err(error),
        Err(error) => {
            *why = Some(error);
            Ok(None)
        }
        Ok(answer) => Ok(Some(answer)),
    }
}

/// Starts what does not run, of the agents only the first so many, each once: what was killed a moment ago may seem to run at
/// first, and what ends by itself after it was started has said why.
fn start_missing(cluster: &LocalCluster, started: &mut BTreeSet<String>, agents: usize) -> Result<()> {
    let processes = cluster.processes()?.into_iter().take(agents.saturating_add(1));
    let missing = processes.filter(|(_, process)| process.is_none()).map(|(name, _)| name);
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
    format!("commands find it by: export WEFT_CLUSTER={}", quoted(&dir.display().to_string()))
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+,:@%".contains(letter);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_a_quoted_word_as_it_is() {
        for word in ["/tmp/weft-1", "/tmp/a b", "/tmp/it's $HOME", "/tmp/ä;b"] {
            let script = format!("printf %s {}", quoted(word));
            let said = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), word);
        }
    }

    #[test]
    fn what_waiting_cannot_mend_is_told_at_once() {
        let mut why = None;
        assert_eq!(keep(Ok(1), &mut why), Ok(Some(1)));
        assert_eq!(keep::<()>(Err(Error::unavailable("later")), &mut why), Ok(None));
        assert_eq!(why.unwrap().message, "later");
        assert!(keep::<()>(Err(Error::invalid("never")), &mut None).is_err());
    }
}
