//! Processes that outlive the command that started them: spawned, found again, and stopped without ever signalling another process.

use crate::{beside, files::io_error};
use rustix::{
    io::Errno,
    process::{self, Pid, PidfdFlags, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsStr,
    fs::{File, TryLockError},
    io::Write as _,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tokio::time::Instant;
use weft_types::{Error, Result};

/// A started process must write its pid file within this time.
const START_MAX: Duration = Duration::from_secs(20);
/// The option that names the pid file; it identifies a process by its command line.
const PID_FILE: &str = "--pid-file";
const START_POLL: Duration = Duration::from_millis(2);
const END_POLL: Duration = Duration::from_millis(20);
/// Processes have this long to end after SIGTERM; then they are killed.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// The system must remove a killed process within this time, unless a disk or a mount hangs.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// How often, and at which interval, to try to lock a locked file.
const LOCK_TRIES_MAX: u32 = 50;
const LOCK_POLL: Duration = Duration::from_millis(20);

/// A process, identified so that it cannot be confused with another one: process ids are reused, but not with the same start time in
/// the same boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The process id.
    pub(crate) pid: u32,
    /// Its start time, in kernel ticks since boot.
    started_ticks: u64,
    /// The id of the boot.
    boot: String,
}

/// Linux reports CPU time in hundredths of a second on every machine.
const TICKS_PER_S: f64 = 100.0;

/// A signal for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: end in order.
    Term,
    /// SIGKILL: end at once, like a power cut.
    Kill,
    /// SIGSTOP: pause; the connections stay open.
    Stop,
    /// SIGCONT: continue.
    Continue,
}

/// Starts `weft` with `args` in its own process group, so a ctrl-C of this command does not reach it. Its output is appended to
/// `log`. On return, `pid_file` names the process, or the process has ended: a process writes its pid file before it does anything
/// else, so it never runs without being found again. With a `namespace`, it runs in that network namespace.
pub(super) fn spawn<S: AsRef<OsStr>>(args: &[S], namespace: Option<&str>, log: &Path, pid_file: &PidFile) -> Result<()> {
    let binary = beside::weft()?;
    let log_file = File::options().create(true).append(true).open(log).map_err(|error| io_error(log, "open", &error))?;
    let also = log_file.try_clone().map_err(|error| io_error(log, "open", &error))?;
    let mut command = match namespace {
        // `exec` keeps the process id.
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(&binary);
            command
        }
        None => Command::new(&binary),
    };
    command.args(args).arg(PID_FILE).arg(&pid_file.path);
    command.stdin(Stdio::null()).stdout(log_file).stderr(also).process_group(0);
    let mut child = command.spawn().map_err(|error| io_error(&binary, "start", &error))?;
    let until = Instant::now() + START_MAX;
    while Instant::now() < until {
        let has_ended = child.try_wait().map_err(|error| io_error(&binary, "start", &error))?.is_some();
        if has_ended || pid_file.read().is_some_and(|process| process.pid == child.id() && process.is_alive()) {
            return Ok(());
        }
        std::thread::sleep(START_POLL);
    }
    let _killed = child.kill().and_then(|()| child.wait());
    Err(Error::fatal(format!("a process did not write its pid file within {START_MAX:?}; see {}", log.display())))
}

impl Process {
    /// The running process with this id; None if there is none, or if it has ended and is a zombie.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let (state, started_ticks) = parse_stat(&stat)?;
        (!matches!(state, 'Z' | 'X')).then_some(Self { pid, started_ticks, boot })
    }

    /// Whether it is still running.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Whether `LocalCluster::start` started it with a pid file below `dir`.
    pub fn is_daemon_of(&self, dir: &Path) -> bool {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0).skip_while(|word| *word != PID_FILE.as_bytes());
        words.nth(1).is_some_and(|file| Path::new(OsStr::from_bytes(file)).starts_with(dir))
    }

    /// Its CPU time so far, user and system, in seconds, to a hundredth; None if it has ended.
    pub fn cpu_seconds(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let ((_, started_ticks), cpu_ticks) = (parse_stat(&stat)?, parse_cpu_ticks(&stat)?);
        (started_ticks == self.started_ticks).then_some(cpu_ticks as f64 / TICKS_PER_S)
    }

    /// Waits until it has ended; false if it has not within the limit.
    fn ends_by(&self, deadline: Instant) -> bool {
        while self.is_alive() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(END_POLL);
        }
        true
    }

    /// Sends it a signal if it is still alive.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let failed = |error: Errno| Error::fatal(format!("process {} cannot be signalled: {error}", self.pid));
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        // The descriptor refers to the process that has this pid now, so the process checked below is the one that gets the signal, even
        // if the pid is reused.
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(()),
            opened => opened.map_err(failed)?,
        };
        if !self.is_alive() {
            return Ok(());
        }
        let signal = match signal {
            Signal::Term => process::Signal::TERM,
            Signal::Kill => process::Signal::KILL,
            Signal::Stop => process::Signal::STOP,
            Signal::Continue => process::Signal::CONT,
        };
        match pidfd_send_signal(process, signal) {
            Err(Errno::SRCH) => Ok(()),
            sent => sent.map_err(failed),
        }
    }
}

/// Sends SIGTERM to all of them, then kills those that did not end; returns for each whether it has ended.
pub fn end<'a>(processes: impl IntoIterator<Item = &'a Process> + Clone) -> Result<Vec<bool>> {
    processes.clone().into_iter().try_for_each(|process| process.signal(Signal::Term))?;
    let deadline = Instant::now() + STOP_GRACE;
    let end = |process: &Process| {
        if !process.ends_by(deadline) {
            process.signal(Signal::Kill)?;
        }
        Ok(process.ends_by(deadline.max(Instant::now()) + KILL_GRACE))
    };
    processes.into_iter().map(end).collect()
}

/// State and start time from /proc/PID/stat. The name, in brackets, can contain any character.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3, the start time field 22.
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

/// The sum of user time and system time from /proc/PID/stat.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    // Fields 14 and 15; the first field after the name is field 3.
    let ticks: Vec<u64> = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    (ticks.len() == 2).then(|| ticks.iter().sum())
}

/// A file that names the process in charge of something. That process holds a lock (flock) on it as long as it runs, so a copy of
/// the file, or a file that was left behind, names no process.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
}

impl PidFile {
    /// The pid file at this path.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Names this process until the returned file is closed.
    pub fn take(&self) -> Result<File> {
        let mut options = File::options();
        let mut file =
            options.create(true).truncate(false).write(true).open(&self.path).map_err(|error| self.error("open", &error))?;
        // Checking the lock holds it for a moment, and so does a process that is just ending.
        let mut tries = 0;
        while let Err(error) = file.try_lock() {
            match error {
                TryLockError::WouldBlock if tries < LOCK_TRIES_MAX => std::thread::sleep(LOCK_POLL),
                TryLockError::WouldBlock => {
                    let who = self.read().map_or_else(|| "another process".to_owned(), |other| format!("process {}", other.pid));
                    return Err(Error::invalid(format!("{who} is already running with the pid file {}", self.path.display())));
                }
                TryLockError::Error(error) => return Err(self.error("lock", &error)),
            }
            tries += 1;
        }
        let own = Process::of(std::process::id()).ok_or_else(|| Error::fatal("/proc has no entry for this process"))?;
        let text = toml::to_string(&own).map_err(Error::fatal)?;
        let written = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
        written.map(|()| file).map_err(|error| self.error("write", &error))
    }

    /// The process, if it is alive.
    pub fn alive(&self) -> Result<Option<Process>> {
        for _ in 0..LOCK_TRIES_MAX {
            let file = match File::open(&self.path) {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(self.error("read", &error)),
            };
            match file.try_lock_shared() {
                Ok(()) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(self.error("lock", &error)),
                Err(TryLockError::WouldBlock) => {}
            }
            // A process that has just taken the file has yet to write its id; one that has just ended has yet to release it.
            if let Some(process) = self.read().filter(Process::is_alive) {
                return Ok(Some(process));
            }
            std::thread::sleep(LOCK_POLL);
        }
        Err(Error::retry(format!("{} is locked by a process whose id it does not contain", self.path.display())))
    }

    /// The process that the file names; None if the file was not written completely.
    fn read(&self) -> Option<Process> {
        toml::from_str(&std::fs::read_to_string(&self.path).ok()?).ok()
    }

    fn error(&self, what: &str, error: &std::io::Error) -> Error {
        io_error(&self.path, what, error)
    }

    /// Clears the file.
    pub fn remove(&self) -> Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error(&self.path, "remove", &error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_distinguished_from_its_successor() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.is_alive());
        let earlier = Process { started_ticks: process.started_ticks - 1, ..process.clone() };
        let last_boot = Process { boot: "another".into(), ..process.clone() };
        assert!(!earlier.is_alive() && !last_boot.is_alive());
        earlier.signal(Signal::Kill).unwrap();
        last_boot.signal(Signal::Kill).unwrap();
        assert!(process.is_alive(), "a signal reached another process");
        process.signal(Signal::Kill).unwrap();
        // Nothing has waited for it yet: it is a zombie, and counts as ended.
        for _ in 0..100 {
            if !process.is_alive() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(!process.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn process_names_with_brackets_and_blanks_are_parsed() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 0 0";
        assert_eq!(parse_stat(stat), Some(('S', 987_654)));
        assert_eq!(parse_stat("42 (cut"), None);
    }

    #[test]
    fn a_pid_file_refers_only_to_the_process_that_holds_it() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = PidFile::new(dir.path().join("pid"));
        assert_eq!(file.alive().unwrap(), None);
        std::fs::write(dir.path().join("pid"), "pid = 1").unwrap();
        assert_eq!(file.alive().unwrap(), None);
        let held = file.take().unwrap();
        let own = Process::of(std::process::id()).unwrap();
        assert_eq!(file.alive().unwrap(), Some(own.clone()));
        let second = file.take().unwrap_err();
        assert!(second.message.contains(&format!("process {} is already running", own.pid)), "{second}");
        // A copy names the same process, but that process does not hold a lock on it.
        let copy = PidFile::new(dir.path().join("copy"));
        std::fs::copy(dir.path().join("pid"), dir.path().join("copy")).unwrap();
        assert_eq!(copy.alive().unwrap(), None);
        drop(held);
        assert_eq!(file.alive().unwrap(), None);
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.alive().unwrap(), None);
    }

    #[test]
    fn a_process_that_does_not_end_is_reported() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(!process.ends_by(Instant::now() + Duration::from_millis(50)));
        process.signal(Signal::Kill).unwrap();
        assert!(process.ends_by(Instant::now() + Duration::from_secs(10)));
        child.wait().unwrap();
    }
}
