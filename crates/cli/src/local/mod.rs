//! A real cluster of processes on this machine: its directory, and its processes.
//!
//! ```text
//! DIR/weft.toml                     where the cluster is, for clients
//! DIR/certificates/                 the authority, and a certificate for everybody
//! DIR/coordinator/coordinator.toml  settings; the metadata beside it
//! DIR/nodes/node-01/agent.toml      settings; state and disk-0, disk-1, … beside it
//! DIR/log/node-01.log               what each process printed
//! DIR/run/node-01.pid               which process it is
//! ```

mod make;
pub(crate) mod process;

pub(crate) use make::Size;

use crate::{
    offline::io_error,
    target::{ClusterFile, FILE_NAME},
};
use process::{PidFile, Process, Signal};
use std::{
    fs::{File, TryLockError},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::Instant;
use weft_types::{Error, Result};

/// The coordinator's name among the processes.
pub(crate) const COORDINATOR: &str = "coordinator";
/// Processes that were asked to end have this long before they are made to.
const STOP_GRACE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// A cluster on this machine.
#[derive(Debug)]
pub(crate) struct LocalCluster {
    dir: PathBuf,
    /// The agents' names, sorted.
    nodes: Vec<String>,
}

impl LocalCluster {
    /// The cluster in `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        if !dir.join(FILE_NAME).is_file() {
            let dir = dir.display();
            return Err(Error::not_found(format!(
                "there is no cluster in {dir}: `weft cluster up --dir {dir} --nodes 16` makes one"
            )));
        }
        let nodes_dir = dir.join("nodes");
        let entries = std::fs::read_dir(&nodes_dir).map_err(|error| io_error(&nodes_dir, "read", &error))?;
        let mut nodes = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| io_error(&nodes_dir, "read", &error))?;
            if entry.path().join("agent.toml").is_file() {
                nodes.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        nodes.sort();
        // Processes get absolute paths: what they are told must not depend on where they were started.
        let dir = std::path::absolute(dir).map_err(|error| io_error(dir, "find", &error))?;
        Ok(Self { dir, nodes })
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The agents' names.
    pub(crate) fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// What `weft.toml` says.
    pub(crate) fn file(&self) -> Result<ClusterFile> {
        ClusterFile::read(&self.dir.join(FILE_NAME))
    }

    /// Nobody else may start or stop it meanwhile.
    pub(crate) fn lock(&self) -> Result<File> {
        let path = self.dir.join("run").join("lock");
        let file = File::options().create(true).append(true).open(&path).map_err(|error| io_error(&path, "open", &error))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                Err(Error::retry(format!("another weft starts or stops the cluster in {}", self.dir.display())))
            }
            Err(TryLockError::Error(error)) => Err(io_error(&path, "lock", &error)),
        }
    }

    /// The coordinator's and all agents' processes, by name; none where nothing runs.
    pub(crate) fn processes(&self) -> Result<Vec<(String, Option<Process>)>> {
        let names = std::iter::once(COORDINATOR).chain(self.nodes.iter().map(String::as_str));
        names.map(|name| Ok((name.to_owned(), self.pid_file(name).alive()?))).collect()
    }

    /// Starts the process of that name, unless it runs.
    pub(crate) fn start(&self, name: &str) -> Result<()> {
        let pid_file = self.pid_file(name);
        if pid_file.alive()?.is_some() {
            return Ok(());
        }
        let (command, config) = match name {
            COORDINATOR => ("coordinator", self.dir.join(COORDINATOR).join("coordinator.toml")),
            _ => ("agent", self.dir.join("nodes").join(name).join("agent.toml")),
        };
        let (_child, process) = process::spawn(&[command, "--config", &config.to_string_lossy()], &self.log(name))?;
        pid_file.write(&process)
    }

    /// The last thing that a process said before it ended.
    pub(crate) fn ended(&self, name: &str) -> String {
        let log = self.log(name);
        let said = last_line(&log).unwrap_or_default();
        format!("{name} has ended: {said} (more in {})", log.display())
    }

    /// Ends all processes: agents first, then the coordinator. How many there were.
    pub(crate) fn stop(&self) -> Result<usize> {
        let (coordinator, agents): (Vec<_>, Vec<_>) = self.processes()?.into_iter().partition(|(name, _)| name == COORDINATOR);
        let mut stopped = 0;
        for group in [agents, coordinator] {
            for (name, _) in group.iter().filter(|(_, process)| process.is_none()) {
                self.pid_file(name).remove()?;
            }
            let running: Vec<(String, Process)> =
                group.into_iter().filter_map(|(name, process)| Some((name, process?))).collect();
            for (_, process) in &running {
                process.signal(Signal::Term)?;
            }
            let deadline = Instant::now() + STOP_GRACE;
            for (name, process) in &running {
                while process.is_alive() && Instant::now() < deadline {
                    std::thread::sleep(POLL);
                }
                process.signal(Signal::Kill)?;
                self.pid_file(name).remove()?;
                stopped += 1;
            }
        }
        Ok(stopped)
    }

    /// Ends one process at once, as a power cut would.
    pub(crate) fn kill(&self, name: &str) -> Result<()> {
        let process = self.pid_file(name).alive()?;
        let process = process.ok_or_else(|| Error::not_found(format!("{name} does not run")))?;
        process.signal(Signal::Kill)
    }

    fn pid_file(&self, name: &str) -> PidFile {
        PidFile::new(self.dir.join("run").join(format!("{name}.pid")))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join("log").join(format!("{name}.log"))
    }
}

/// The last line of a file, of its last 4 KiB.
fn last_line(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(4096))).ok()?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail).into_owned();
    tail.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}
