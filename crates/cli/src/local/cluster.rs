//! The directory of a local cluster, and the cluster's processes.

use super::{
    namespaces::{COORDINATOR, Namespaces, TESTBED_FILE},
    process::{self, PidFile, Process, Signal},
};
use crate::{
    files::{io_error, real_path},
    settings,
    target::{ClusterFile, FILE_NAME},
};
use std::{
    ffi::OsStr,
    fs::{DirBuilder, File, TryLockError},
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::fs::DirBuilderExt as _,
    path::{Component, Path, PathBuf},
};
use weft_agent::AgentConfig;
use weft_coordinator::CoordinatorConfig;
use weft_types::{Error, NodeId, Result};

pub(super) const COORDINATOR_FILE: &str = "coordinator.toml";
pub(super) const AGENT_FILE: &str = "agent.toml";
pub(super) const LOCK: &str = "lock";
pub(super) const FIRST_UP: &str = "first-up";

/// A cluster on this machine.
#[derive(Debug)]
pub struct LocalCluster {
    pub(super) dir: PathBuf,
    /// The agents' names, sorted.
    pub(super) nodes: Vec<String>,
    /// The network namespaces of its processes, if it is a testbed.
    pub(super) namespaces: Option<Namespaces>,
}

impl LocalCluster {
    /// Opens the cluster in `dir`.
    pub fn open(dir: &Path) -> Result<Self> {
        if !Self::is_in(dir) {
            let dir = dir.display();
            return Err(Error::not_found(format!(
                "there is no cluster in {dir}: create one with `weft cluster up --dir {dir} --nodes 16`"
            )));
        }
        let nodes_dir = dir.join("nodes");
        let entries = std::fs::read_dir(&nodes_dir).map_err(|error| io_error(&nodes_dir, "read", &error))?;
        let mut nodes = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| io_error(&nodes_dir, "read", &error))?;
            if entry.path().join(AGENT_FILE).is_file() {
                nodes.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        nodes.sort();
        // Processes get absolute paths, so their working directory does not matter.
        let dir = std::path::absolute(dir).map_err(|error| io_error(dir, "find", &error))?;
        let is_testbed = dir.join(TESTBED_FILE).is_file();
        let namespaces = is_testbed.then(|| real_path(&dir).map(|dir| Namespaces::of(&dir))).transpose()?;
        let cluster = Self { dir, nodes, namespaces };
        cluster.check_dirs()?;
        Ok(cluster)
    }

    /// Whether `dir` holds a cluster.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(FILE_NAME).is_file()
    }

    /// Settings that point outside of the directory belong to another cluster, or would after this one is copied.
    fn check_dirs(&self) -> Result<()> {
        let mut coordinator: CoordinatorConfig = settings::parse(&self.settings(COORDINATOR))?;
        self.check_inside(COORDINATOR, settings::coordinator_paths(&mut coordinator))?;
        for name in &self.nodes {
            let mut agent: AgentConfig = settings::parse(&self.settings(name))?;
            self.check_inside(name, settings::agent_paths(&mut agent))?;
        }
        Ok(())
    }

    fn check_inside(&self, name: &str, paths: Vec<&mut PathBuf>) -> Result<()> {
        let file = self.settings(name);
        let home = file.parent().unwrap_or(&self.dir);
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        for path in paths {
            let full = lexical(&home.join(&*path));
            let is_inside =
                full.starts_with(&self.dir) || real(&full).zip(real(&self.dir)).is_some_and(|(it, dir)| it.starts_with(dir));
            if !is_inside {
                return Err(Error::invalid(format!(
                    "{} names {}, which is not in {}: if the cluster was moved or copied here, make the path relative to the file",
                    file.display(),
                    path.display(),
                    self.dir.display()
                )));
            }
        }
        Ok(())
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The agents' names.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// The number of an agent's node; `None` if it has never joined the cluster.
    pub(crate) fn node_id(&self, name: &str) -> Result<Option<NodeId>> {
        let file = self.settings(name);
        let agent: AgentConfig = settings::parse(&file)?;
        weft_agent::node_of(&file.parent().unwrap_or(&self.dir).join(agent.state_dir))
    }

    /// The contents of `weft.toml`.
    pub fn file(&self) -> Result<ClusterFile> {
        ClusterFile::read(&self.dir.join(FILE_NAME))
    }

    /// Locks `dir`, so no other process creates, starts or stops a cluster there. Creates the directory if necessary.
    pub fn lock(dir: &Path) -> Result<File> {
        let mut builder = DirBuilder::new();
        // Other users must not read stored data.
        builder.recursive(true).mode(0o700).create(dir).map_err(|error| io_error(dir, "create", &error))?;
        let path = dir.join(LOCK);
        let file = File::options().create(true).append(true).open(&path).map_err(|error| io_error(&path, "open", &error))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(Error::retry(format!(
                "another weft process is starting or stopping the cluster in {}; try again later",
                dir.display()
            ))),
            Err(TryLockError::Error(error)) => Err(io_error(&path, "lock", &error)),
        }
    }

    /// Whether the whole cluster has never been up.
    pub(crate) fn is_new(&self) -> bool {
        self.dir.join("run").join(FIRST_UP).exists()
    }

    /// Records that the whole cluster has been up.
    pub(crate) fn was_up(&self) -> Result<()> {
        let path = self.dir.join("run").join(FIRST_UP);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error(&path, "remove", &error)),
            _ => Ok(()),
        }
    }

    /// The processes of the coordinator and all agents, by name; None if a process is not running.
    pub fn processes(&self) -> Result<Vec<(String, Option<Process>)>> {
        let names = std::iter::once(COORDINATOR).chain(self.nodes.iter().map(String::as_str));
        names.map(|name| Ok((name.to_owned(), self.pid_file(name).alive()?))).collect()
    }

    /// Starts the process of that name unless it is running.
    pub fn start(&self, name: &str) -> Result<()> {
        let pid_file = self.pid_file(name);
        if pid_file.alive()?.is_some() {
            return Ok(());
        }
        let command = if name == COORDINATOR { "coordinator" } else { "agent" };
        let config = self.settings(name);
        let namespace = self.namespaces.as_ref().map(|namespaces| namespaces.of_process(name)).transpose()?;
        let args = [OsStr::new(command), OsStr::new("--config"), config.as_os_str()];
        process::spawn(&args, namespace.as_deref(), &self.log(name), &pid_file)
    }

    /// Why a process has ended: the last line of its log.
    pub(crate) fn ended(&self, name: &str) -> String {
        format!("{name} has ended: {} (more in {})", self.last_logged(name), self.log(name).display())
    }

    /// The last line of a process's log.
    pub(crate) fn last_logged(&self, name: &str) -> String {
        last_line(&self.log(name)).unwrap_or_default()
    }

    /// Stops all processes, agents first and the coordinator last. Returns their number.
    pub fn stop(&self) -> Result<usize> {
        self.stop_those(|_| true)
    }

    /// Stops the processes of these names. Returns the number of those that were running.
    pub fn stop_some(&self, names: &[String]) -> Result<usize> {
        let is_known = |name: &String| name == COORDINATOR || self.nodes.contains(name);
        if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
            let dir = self.dir.display();
            return Err(Error::not_found(format!(
                "there is no node '{unknown}' in {dir}: `weft node ls` lists the nodes; the coordinator is '{COORDINATOR}'"
            )));
        }
        self.stop_those(|name| names.iter().any(|asked| asked == name))
    }

    fn stop_those(&self, is_asked: impl Fn(&str) -> bool) -> Result<usize> {
        let asked = self.processes()?.into_iter().filter(|(name, _)| is_asked(name));
        let (coordinator, agents): (Vec<_>, Vec<_>) = asked.partition(|(name, _)| name == COORDINATOR);
        let (mut stopped, mut left) = (0, Vec::new());
        for group in [agents, coordinator] {
            for (name, _) in group.iter().filter(|(_, process)| process.is_none()) {
                self.pid_file(name).remove()?;
            }
            let running: Vec<(String, Process)> =
                group.into_iter().filter_map(|(name, process)| Some((name, process?))).collect();
            let ended = process::end(running.iter().map(|(_, process)| process))?;
            for ((name, process), ended) in running.iter().zip(ended) {
                if ended {
                    self.pid_file(name).remove()?;
                    stopped += 1;
                } else {
                    left.push(format!("{name} (process {})", process.pid));
                }
            }
        }
        if !left.is_empty() {
            return Err(Error::fatal(format!("these processes did not end after SIGKILL: {}", left.join(", "))));
        }
        Ok(stopped)
    }

    /// Sends a signal to one process.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        let process = self.pid_file(name).alive()?;
        let process = process.ok_or_else(|| Error::not_found(format!("{name} is not running")))?;
        process.signal(signal)
    }

    /// The coordinator's settings.
    pub fn coordinator_settings(&self) -> PathBuf {
        self.settings(COORDINATOR)
    }

    /// The settings of the process of that name.
    pub(super) fn settings(&self, name: &str) -> PathBuf {
        match name {
            COORDINATOR => self.dir.join(COORDINATOR).join(COORDINATOR_FILE),
            _ => self.dir.join("nodes").join(name).join(AGENT_FILE),
        }
    }

    fn pid_file(&self, name: &str) -> PidFile {
        PidFile::new(self.dir.join("run").join(format!("{name}.pid")))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join("log").join(format!("{name}.log"))
    }
}

/// A path without `.` and `..`, resolved without looking at the file system.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            _ => plain.push(component),
        }
    }
    plain
}

/// The last line of a file, from its last 4 KiB.
fn last_line(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(4096))).ok()?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail).into_owned();
    tail.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}
