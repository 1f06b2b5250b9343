//! `weft testbed`: a cluster whose links are shaped, each agent in a network namespace of its own.

use super::links::Links;
use crate::{
    bench::check::LinkCheck,
    testbed::{self, Settings, Testbed},
};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    process::Command as Process,
};
use weft_cli::{
    beside,
    exit::Exit,
    files::io_error,
    interrupt,
    local::LocalCluster,
    output::Output,
    seed::seed,
    session, target,
    up::{bring_up, make_first_bucket},
};
use weft_types::{Error, Result};

/// Where a testbed is made unless told otherwise.
const DEFAULT_DIR: &str = "weft-testbed";
/// Agents, where nobody says how many.
const DEFAULT_NODES: u32 = 16;

/// A cluster with shaped links on this machine: real sockets, real bandwidth limits, one command
///
/// Every agent runs in a network namespace of its own; what it sends and receives is shaped with `tc`. It needs root, `ip` and `tc`.
#[derive(Debug, Args)]
pub(super) struct TestbedCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(Up),
    Run(Run),
    Shape(Shape),
    Down(Down),
    Ls(Ls),
}

/// Start a testbed, and check that its links carry what they should
///
/// One that is there already is started again where it does not run; options that are not given leave it as it is.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft testbed up --nodes 16 --link 200mbit
  sudo weft testbed up --nodes 16 --racks 4 --link 400mbit --rack-link 100mbit
  sudo weft testbed up --nodes 17 --matrix america.csv
  sudo weft testbed up --nodes 8 --outside-link 200mbit

EXIT CODES
  0 up, and its links are what they should be   1 failed on the way   2 links that make no sense   \
  4 no root, no `ip`, no `tc`, or the machine cannot carry this setting")]
struct Up {
    /// Where it lies; without it, ./weft-testbed. What is in memory (/dev/shm) is not held up by a disk
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Agents; of a new testbed 16 unless told otherwise
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    #[command(flatten)]
    links: Links,
    /// Do not measure a link before it is said to be up
    #[arg(long)]
    no_check: bool,
}

/// Run a command in the testbed's network, with the testbed as its cluster
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft testbed run -- weft put cat.jpg default/cat.jpg
  sudo weft testbed run -- weft repair object default/cat.jpg --block 3 --scheme cyclic
  sudo weft testbed run -- bash

EXIT CODES
  the command's; 3 no testbed, or no such command")]
struct Run {
    /// Where the testbed lies; without it, ./weft-testbed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Shape the links of a testbed anew, while it runs
///
/// Options that are not given leave what is there as it is.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft testbed shape --limit 'node-03:*=40mbit'
  sudo weft testbed shape --reset --link 100mbit

EXIT CODES
  0 done   1 failed on the way   2 links that make no sense   3 no testbed   4 no root, no `ip`, no `tc`")]
struct Shape {
    /// Where the testbed lies; without it, ./weft-testbed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// What is not said is as in a new testbed: links of 200mbit and no other limits
    #[arg(long)]
    reset: bool,
    #[command(flatten)]
    links: Links,
}

/// Stop a testbed and take its network away, also one whose maker was killed
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft testbed down
  sudo weft testbed down --all

EXIT CODES
  0 nothing of it runs   1 something could not be stopped   3 no testbed")]
struct Down {
    /// Where it lies; without it, ./weft-testbed
    #[arg(long, value_name = "DIR", conflicts_with = "all")]
    dir: Option<PathBuf>,
    /// All testbeds of this machine
    #[arg(long)]
    all: bool,
}

/// List the testbeds of this machine
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft testbed ls

EXIT CODES
  0 listed")]
struct Ls {}

#[derive(Debug, Serialize)]
struct UpReport {
    dir: PathBuf,
    settings: Settings,
    /// A direct send of one block over one link, beside what the link says.
    check: Option<LinkCheck>,
    /// Why there is no such check, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    unchecked: Option<&'static str>,
}

/// What came of measuring a link, or why it was not measured.
type Checked = Result<LinkCheck, &'static str>;

#[derive(Debug, Serialize)]
struct DownReport {
    stopped: usize,
    dirs: Vec<PathBuf>,
}

impl TestbedCommand {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match self.command {
            Command::Up(up) => up.run(options, output),
            Command::Run(run) => run.run(),
            Command::Shape(shape) => shape.run(output),
            Command::Down(down) => down.run(output),
            Command::Ls(Ls {}) => {
                let text = |dirs: &Vec<PathBuf>| match dirs.is_empty() {
                    true => "there is no testbed on this machine".to_owned(),
                    false => dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join("\n"),
                };
                output.result(&Testbed::all()?, text).map(|()| Exit::Ok)
            }
        }
    }
}

impl Up {
    fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let dir = self.dir.clone().unwrap_or_else(|| DEFAULT_DIR.into());
        let there = LocalCluster::is_in(&dir).then(|| Testbed::open(&dir)).transpose()?;
        let settings = match &there {
            Some(there) => self.again(there.settings(), options.insecure, &dir)?,
            None => self.links.settings(self.nodes.unwrap_or(DEFAULT_NODES), options.insecure)?,
        };
        settings.check()?;
        let _lock = LocalCluster::lock(&dir)?;
        let _watch = interrupt::Watch::begin()?;
        let ran = there.is_some() && LocalCluster::open(&dir)?.processes()?.iter().any(|(_, it)| it.is_some());
        let up = || -> Result<UpReport> {
            let (testbed, cluster) = match there {
                Some(mut testbed) => {
                    testbed.make_network()?;
                    testbed.reshape(|it| *it = settings)?;
                    (testbed, LocalCluster::open(&dir)?)
                }
                None => Testbed::make(&dir, settings, seed()?, |_| {})?,
            };
            interrupt::check()?;
            let (check, unchecked) = match start(&testbed, &cluster, !self.no_check)? {
                Some(Ok(check)) => (Some(check), None),
                Some(Err(why)) => (None, Some(why)),
                None => (None, None),
            };
            Ok(UpReport { dir: cluster.dir().to_owned(), settings: testbed.settings().clone(), check, unchecked })
        };
        let report = match up() {
            Ok(report) => report,
            Err(error) => {
                // What is half up is of no use to anybody, but what ran before goes on; the first error counts.
                let _down = (!ran).then(|| Testbed::down(&dir));
                return Err(error);
            }
        };
        output.result(&report, text)?;
        match report.check.and_then(|check| check.error()) {
            Some(error) => Err(error),
            None => Ok(Exit::Ok),
        }
    }

    /// The settings of one that is there, with what is said changed.
    fn again(&self, there: &Settings, insecure: bool, dir: &Path) -> Result<Settings> {
        let Settings { nodes, racks, .. } = *there;
        if self.nodes.is_some_and(|asked| asked != nodes) || insecure && !there.insecure {
            let (dir, tls) = (dir.display(), if there.insecure { "without" } else { "with" });
            return Err(Error::invalid(format!(
                "the testbed in {dir} has {nodes} nodes in {racks} racks, {tls} TLS: choose another directory for another one"
            )));
        }
        self.links.reshaped(there, there.clone())
    }
}

/// Starts the processes, and measures a link.
fn start(testbed: &Testbed, cluster: &LocalCluster, check: bool) -> Result<Option<Checked>> {
    testbed.enter()?;
    session::run(async {
        let session = bring_up(cluster).await?;
        make_first_bucket(cluster, &session).await?;
        let done = match check {
            true => LinkCheck::run(&session, testbed).await.map(Some),
            false => Ok(None),
        };
        session.client.close().await;
        done
    })
}

fn text(it: &UpReport) -> String {
    let Settings { nodes, racks, .. } = it.settings;
    let mut lines =
        vec![format!("{nodes} agents in {racks} {}: {}", if racks == 1 { "rack" } else { "racks" }, it.dir.display())];
    lines.extend(it.check.as_ref().map(ToString::to_string));
    lines.extend(it.unchecked.map(|why| format!("whether links carry what they should was not measured: {why}")));
    lines.push("use it by: weft testbed run -- COMMAND; take it away by: weft testbed down".to_owned());
    lines.join("\n")
}

impl Run {
    fn run(self) -> Result<Exit> {
        let dir = self.dir.unwrap_or_else(|| DEFAULT_DIR.into());
        let testbed = Testbed::open(&dir)?;
        testbed.enter()?;
        let dir = std::path::absolute(&dir).map_err(|error| io_error(&dir, "find", &error))?;
        let (program, args) = self.command.split_first().ok_or_else(|| Error::invalid("no command is named"))?;
        // `weft` is the one beside this, whatever is installed.
        let weft = (program == beside::WEFT).then(beside::weft).transpose()?;
        let mut command = Process::new(weft.as_deref().unwrap_or(Path::new(program)));
        // Nobody has handed over to what it starts in its turn.
        command.args(args).env("WEFT_CLUSTER", &dir).env_remove(beside::HANDED_OVER_BY);
        // It gets a ctrl-C of its own, and says how it ends.
        let error = std::os::unix::process::CommandExt::exec(&mut command);
        Err(Error::not_found(format!("cannot run {program}: {error}")))
    }
}

impl Shape {
    fn run(self, output: Output) -> Result<Exit> {
        let dir = self.dir.unwrap_or_else(|| DEFAULT_DIR.into());
        let mut testbed = Testbed::open(&dir)?;
        let _lock = LocalCluster::lock(&dir)?;
        let there = testbed.settings().clone();
        let base = match self.reset {
            true => Settings { racks: there.racks, slow: there.slow.clone(), ..Links::usual(there.nodes, there.insecure)? },
            false => there.clone(),
        };
        let settings = self.links.reshaped(&there, base)?;
        testbed.reshape(|it| *it = settings)?;
        output.result(testbed.settings(), |_| "shaped".to_owned()).map(|()| Exit::Ok)
    }
}

impl Down {
    fn run(self, output: Output) -> Result<Exit> {
        let dirs = if self.all { Testbed::all()? } else { vec![self.dir.unwrap_or_else(|| DEFAULT_DIR.into())] };
        let (mut stopped, mut first) = (0, None);
        for dir in &dirs {
            let down = || -> Result<usize> {
                if !testbed::is_known(dir)? {
                    return Testbed::open(dir).map(|_| 0);
                }
                // One whose directory is gone has nothing to lock.
                let _lock = dir.is_dir().then(|| LocalCluster::lock(dir)).transpose()?;
                Testbed::down(dir)
            };
            match down() {
                Ok(count) => stopped += count,
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        if let Some(error) = first {
            return Err(error);
        }
        let text = |it: &DownReport| format!("stopped {} processes; no namespace is left", it.stopped);
        output.result(&DownReport { stopped, dirs }, text).map(|()| Exit::Ok)
    }
}
