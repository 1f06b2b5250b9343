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
    up::{bring_up, make_first_bucket},
};
use weft_types::{Error, Result};

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
            make_first_bucket(&cluster, &session).await?;
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

pub(super) fn directory(said: Option<PathBuf>, options: &target::Options) -> Result<PathBuf> {
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
}
