//! `weft cluster`: a real cluster of processes on this machine.

use super::status::{self, Report};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use weft_cli::{
    exit::Exit,
    local::{LocalCluster, Size},
    output::Output,
    seed::seed,
    session::{self, Session},
    target::{self, DEFAULT_DIR, FILE_NAME},
    up::{bring_up, make_first_bucket, removed},
};
use weft_types::{Error, Result};

/// Start, inspect and stop a cluster of processes on this machine
#[derive(Debug, Args)]
pub(super) struct Cluster {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(Up),
    AddNode(AddNode),
    Status(Status),
    Down(Down),
}

/// Start a cluster: one coordinator and N agents, each in its own process
///
/// The first `up` creates DIR with certificates, settings, disks and DIR/weft.toml, which tells other commands where the cluster
/// is. Later runs start the processes that are not running; stored data is kept.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft cluster up --dir weft-cluster --nodes 16 --racks 4
  weft bucket create photos && weft put cat.jpg photos/cat.jpg

EXIT CODES
  0 every node is up   1 a process did not start; the message quotes its log   2 invalid sizes, or DIR holds something else   \
  130 interrupted: processes that have started keep running, and the next `up` continues; `weft cluster down` stops them")]
struct Up {
    /// Directory of the cluster; also WEFT_CLUSTER
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Number of agents; required the first time
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Number of racks [default: 1]
    #[arg(long, value_name = "R")]
    racks: Option<u32>,
    /// Number of disks per agent [default: 1]
    #[arg(long, value_name = "X")]
    disks_per_node: Option<u32>,
}

/// Add nodes to a cluster on this machine, and start them
///
/// The nodes get new blocks from then on; `weft balance` moves existing ones to them.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft cluster add-node && weft balance
  weft cluster add-node --count 3 --rack rack-5

EXIT CODES
  0 every node is up   1 a process did not start; the message quotes its log   2 too many nodes, or the cluster is a testbed   \
  3 no cluster in DIR   130 interrupted: the next `weft cluster up` starts what was added")]
struct AddNode {
    /// Directory of the cluster; also --cluster or WEFT_CLUSTER
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Number of nodes to add
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Rack of all of them [default: the racks of the cluster in turn]
    #[arg(long, value_name = "NAME")]
    rack: Option<String>,
}

/// Show which nodes are up and how much is stored; `weft status` shows whether data is at risk
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft cluster status

EXIT CODES
  0 every node is up, and no failed disk held blocks that were not rebuilt   3 no cluster   4 the coordinator or a node is down   \
  8 every node is up, but a failed disk held blocks that were not rebuilt")]
struct Status {
    /// Directory of the cluster; also --cluster or WEFT_CLUSTER
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Stop the cluster's processes, or some of them; stored data is kept
///
/// `weft cluster up` starts them again.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft cluster down --dir weft-cluster
  weft cluster down node-03 node-04

EXIT CODES
  0 none of these processes is running   1 a process did not stop   3 no cluster in DIR, or no such node")]
struct Down {
    /// Only the agents of these nodes, or `coordinator`
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Directory of the cluster; also WEFT_CLUSTER
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
            Command::AddNode(add) => add.run(options, output),
            Command::Status(status) => status.run(options, output),
            Command::Down(down) => {
                let dir = directory(down.dir, options)?;
                let cluster = LocalCluster::open(&dir)?;
                let _lock = LocalCluster::lock(&dir)?;
                let stopped = if down.nodes.is_empty() { cluster.stop()? } else { cluster.stop_some(&down.nodes)? };
                let stopped = Stopped { dir: cluster.dir().to_owned(), stopped };
                let text = |it: &Stopped| match it.stopped {
                    0 => "no process was running".to_owned(),
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
        let report = session::run(async {
            let session = bring_up(&cluster).await?;
            make_first_bucket(&cluster, &session).await?;
            session.client.status().await
        })?;
        let removed: Vec<String> = removed(&cluster, &report)?.into_iter().map(|name| left_out(&cluster, name)).collect();
        let mut report = Report::from(report);
        report.warnings.extend(removed);
        let text = |it: &Report| format!("{}\n{}", status::summary(it), found_by(&cluster));
        output.result_with(&report, &report.warnings, text).map(|()| Exit::Ok)
    }

    fn size(&self, dir: &Path, options: &target::Options) -> Result<Size> {
        let nodes = self.nodes.ok_or_else(|| {
            Error::invalid(format!("there is no cluster in {}: pass --nodes N to create one with N agents", dir.display()))
        })?;
        Ok(Size {
            nodes,
            racks: self.racks.unwrap_or(1),
            disks_per_node: self.disks_per_node.unwrap_or(1),
            insecure: options.insecure,
        })
    }

    /// An existing cluster keeps its sizes: the requested ones must match.
    fn check(&self, cluster: &LocalCluster, options: &target::Options) -> Result<()> {
        let there = cluster.size()?;
        let asked = [
            ("nodes", self.nodes, there.nodes),
            ("racks", self.racks, there.racks),
            ("disks per node", self.disks_per_node, there.disks_per_node),
        ];
        if let Some((what, Some(asked), there)) = asked.into_iter().find(|(_, asked, there)| asked.is_some_and(|it| it != *there))
        {
            let dir = cluster.dir().display();
            return Err(Error::invalid(format!(
                "the cluster in {dir} has {there} {what}, not {asked}: omit the option to start the cluster unchanged"
            )));
        }
        if options.insecure && !there.insecure {
            return Err(Error::invalid("this cluster was created with certificates: omit --insecure"));
        }
        Ok(())
    }
}

impl AddNode {
    fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let dir = directory(self.dir, options)?;
        // The lock makes the directory: there must be a cluster first.
        LocalCluster::open(&dir)?;
        let _lock = LocalCluster::lock(&dir)?;
        let cluster = LocalCluster::open(&dir)?.add(self.count, self.rack.as_deref())?;
        let report = session::run(async { bring_up(&cluster).await?.client.status().await })?;
        let report = Report::from(report);
        output.result_with(&report, &report.warnings, status::summary).map(|()| Exit::Ok)
    }
}

impl Status {
    fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let options = match self.dir {
            Some(dir) => target::Options { cluster: Some(dir.to_string_lossy().into_owned()), ..options.clone() },
            None => options.clone(),
        };
        let report = Report::from(Session::with(&options, async |session| session.client.status().await)?);
        output.result_with(&report, &report.warnings, status::text)?;
        Ok(match (report.all_up(), report.lacks_blocks()) {
            (false, _) => Exit::Unavailable,
            (true, true) => Exit::Degraded,
            (true, false) => Exit::Ok,
        })
    }
}

/// What to do about an agent whose node was removed.
fn left_out(cluster: &LocalCluster, name: &str) -> String {
    let home = cluster.dir().join("nodes").join(name);
    format!(
        "the node of {name} was removed from the cluster and cannot come back: move {} away, or the file state/agent in it to add it as a \
         new node",
        home.display()
    )
}

/// How other commands find the cluster.
fn found_by(cluster: &LocalCluster) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let dir = cluster.dir();
    if *dir == here || *dir == here.join(DEFAULT_DIR) {
        return "commands run in this directory find the cluster".to_owned();
    }
    format!("to use the cluster: export WEFT_CLUSTER={}", quoted(&dir.display().to_string()))
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+,:@%".contains(letter);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

pub(super) fn directory(said: Option<PathBuf>, options: &target::Options) -> Result<PathBuf> {
    if let Some(address) = options.cluster.as_ref().filter(|named| said.is_none() && target::is_address(named)) {
        return Err(Error::invalid(format!(
            "this command controls processes on this machine, but {address} is an address: pass the cluster's directory with \
             --dir DIR"
        )));
    }
    let named = said.or_else(|| options.cluster.as_ref().map(PathBuf::from));
    let dir = match named {
        Some(dir) => dir,
        None if PathBuf::from(FILE_NAME).is_file() => PathBuf::from("."),
        None => PathBuf::from(DEFAULT_DIR),
    };
    // A path to the weft.toml itself names its directory.
    if dir.is_file() && dir.file_name().is_none_or(|name| name != FILE_NAME) {
        return Err(Error::invalid(format!("{} is a file: pass the directory of a cluster", dir.display())));
    }
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
    fn a_shell_reads_a_quoted_word_unchanged() {
        for word in ["/tmp/weft-1", "/tmp/a b", "/tmp/it's $HOME", "/tmp/ä;b"] {
            let script = format!("printf %s {}", quoted(word));
            let said = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), word);
        }
    }
}
