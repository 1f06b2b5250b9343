//! `weft testbed`: a cluster with shaped links, each agent in its own network namespace.

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

/// Default directory of a testbed.
const DEFAULT_DIR: &str = "weft-testbed";
/// Default number of agents.
const DEFAULT_NODES: u32 = 16;

/// A cluster with shaped links on this machine: real sockets, real bandwidth limits, one command
///
/// Every agent runs in its own network namespace; its traffic is shaped with `tc`. Needs root, `ip` and `tc`.
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

/// Start a testbed, and check that its links carry their rates
///
/// Starts the processes of an existing testbed again if they are not running; options that are not given leave it unchanged.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft testbed up --nodes 16 --link 200mbit
  sudo weft testbed up --nodes 16 --racks 4 --link 400mbit --rack-link 100mbit
  sudo weft testbed up --nodes 17 --matrix america.csv
  sudo weft testbed up --nodes 8 --outside-link 200mbit

EXIT CODES
  0 up, and the links carry their rates   1 failed   2 invalid links   \
  4 no root, no `ip`, no `tc`, or the machine cannot carry this setting")]
struct Up {
    /// Directory of the testbed [default: ./weft-testbed]. A directory in memory (/dev/shm) is not slowed down by a disk
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Number of agents [default for a new testbed: 16]
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    #[command(flatten)]
    links: Links,
    /// Skip the measurement of a link
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
  the command's own exit code; 3 no testbed, or no such command")]
struct Run {
    /// Directory of the testbed [default: ./weft-testbed]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Command with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Change the link rates of a running testbed
///
/// Options that are not given leave the links unchanged.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft testbed shape --limit 'node-03:*=40mbit'
  sudo weft testbed shape --reset --link 100mbit

EXIT CODES
  0 done   1 failed   2 invalid links   3 no testbed   4 no root, no `ip`, no `tc`")]
struct Shape {
    /// Directory of the testbed [default: ./weft-testbed]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Start from the settings of a new testbed: links of 200mbit and no other limits
    #[arg(long)]
    reset: bool,
    #[command(flatten)]
    links: Links,
}

/// Stop a testbed and remove its network, even if the process that created it was killed
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft testbed down
  sudo weft testbed down --all

EXIT CODES
  0 no process of it is running   1 something could not be stopped   3 no testbed")]
struct Down {
    /// Directory of the testbed [default: ./weft-testbed]
    #[arg(long, value_name = "DIR", conflicts_with = "all")]
    dir: Option<PathBuf>,
    /// Stop all testbeds of this machine
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
    /// A direct send of one block over one link, compared with the predicted time.
    check: Option<LinkCheck>,
    /// Why the requested check was not made.
    #[serde(skip_serializing_if = "Option::is_none")]
    unchecked: Option<&'static str>,
}

/// The result of the check, or why it was not made.
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
                // A partly started testbed is useless, so stop what was started. Processes that ran before continue. Report the first
                // error.
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

    /// Existing settings, changed by the given options.
    fn again(&self, there: &Settings, insecure: bool, dir: &Path) -> Result<Settings> {
        let Settings { nodes, racks, .. } = *there;
        if self.nodes.is_some_and(|asked| asked != nodes) || insecure && !there.insecure {
            let (dir, tls) = (dir.display(), if there.insecure { "without" } else { "with" });
            return Err(Error::invalid(format!(
                "the testbed in {dir} has {nodes} nodes in {racks} racks, {tls} TLS, and that cannot change: choose another directory"
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
    lines.extend(it.unchecked.map(|why| format!("the links were not checked: {why}")));
    lines.push("use it with: weft testbed run -- COMMAND; remove it with: weft testbed down".to_owned());
    lines.join("\n")
}

impl Run {
    fn run(self) -> Result<Exit> {
        let dir = self.dir.unwrap_or_else(|| DEFAULT_DIR.into());
        let testbed = Testbed::open(&dir)?;
        testbed.enter()?;
        let dir = std::path::absolute(&dir).map_err(|error| io_error(&dir, "find", &error))?;
        let (program, args) = self.command.split_first().ok_or_else(|| Error::invalid("no command given"))?;
        // `weft` is the one beside this binary, whatever else is installed.
        let weft = (program == beside::WEFT).then(beside::weft).transpose()?;
        let mut command = Process::new(weft.as_deref().unwrap_or(Path::new(program)));
        // The command must not inherit the variable: `weft` did not hand over to it.
        command.args(args).env("WEFT_CLUSTER", &dir).env_remove(beside::HANDED_OVER_BY);
        // The command gets its own ctrl-C and sets the exit code.
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
                // Without its directory there is nothing to lock.
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
        let text = |it: &DownReport| format!("stopped {} processes; removed all namespaces", it.stopped);
        output.result(&DownReport { stopped, dirs }, text).map(|()| Exit::Ok)
    }
}
