//! Processes that outlive the command that started them: spawned, found again, and stopped without ever hitting a stranger.

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

/// A process that was started has named itself within this time.
const START_MAX: Duration = Duration::from_secs(20);
/// The option by which a process learns of its file: so daemons are told from what people start.
const PID_FILE: &str = "--pid-file";
const START_POLL: Duration = Duration::from_millis(2);
const END_POLL: Duration = Duration::from_millis(20);
/// Processes that were asked to end have this long before they are made to.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// And to what was killed, the system gives an end within this time, unless a disk or a mount hangs.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// How often, and how far apart, it is tried to lock a file that is locked.
const LOCK_TRIES_MAX: u32 = 50;
const LOCK_POLL: Duration = Duration::from_millis(20);

/// A process, so described that no other process can be taken for it: numbers are used again, but not with the same start
/// in the same boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub(crate) pid: u32,
    /// When it started, in the kernel's ticks since boot.
    started_ticks: u64,
    /// The boot.
    boot: String,
}

/// Linux tells of CPU time in hundredths of a second, whatever its own ticks are.
const TICKS_PER_S: f64 = 100.0;

/// What to do to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ask it to end.
    Term,
    /// End it at once, as a power cut would.
    Kill,
    /// Hold it up, with its connections as they are.
    Stop,
    /// Let it go on.
    Continue,
}

/// Starts `weft` with `args`, in a process group of its own, so that a ctrl-C here is not one there. What it prints goes
/// to the end of `log`. When this returns, `pid_file` names the process, or it has ended: there is no moment in which it runs and
/// nobody could find it again, as it names itself before it does anything else.
/// With a `namespace`, it runs in that network.
pub(super) fn spawn<S: AsRef<OsStr>>(args: &[S], namespace: Option<&str>, log: &Path, pid_file: &PidFile) -> Result<()> {
    let binary = beside::weft()?;
    let log_file = File::options().create(true).append(true).open(log).map_err(|error| io_error(log, "open", &error))?;
    let also = log_file.try_clone().map_err(|error| io_error(log, "open", &error))?;
    let mut command = match namespace {
        // It becomes the binary: the number stays.
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
    Err(Error::fatal(format!("a process did not get to its first step within {START_MAX:?}; see {}", log.display())))
}

impl Process {
    /// The process that has this number now; none, if there is none or it has ended and nobody has fetched its exit code.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let (state, started_ticks) = parse_stat(&stat)?;
        (!matches!(state, 'Z' | 'X')).then_some(Self { pid, started_ticks, boot })
    }

    /// Whether it runs still.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Whether it was started by `LocalCluster::start`, with its number in a file below `dir`.
    pub fn is_daemon_of(&self, dir: &Path) -> bool {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0).skip_while(|word| *word != PID_FILE.as_bytes());
        words.nth(1).is_some_and(|file| Path::new(OsStr::from_bytes(file)).starts_with(dir))
    }

    /// The CPU time that it has used so far, user and system together, in seconds, to a hundredth; none: it has ended.
    pub fn cpu_seconds(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let ((_, started_ticks), cpu_ticks) = (parse_stat(&stat)?, parse_cpu_ticks(&stat)?);
        (started_ticks == self.started_ticks).then_some(cpu_ticks as f64 / TICKS_PER_S)
    }

    /// Waits until it runs no more, and tells whether it came to that.
    fn ends_by(&self, deadline: Instant) -> bool {
        while self.is_alive() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(END_POLL);
        }
        true
    }

    /// Sends it a signal, if it is alive still.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let failed = |error: Errno| Error::fatal(format!("process {} cannot be signalled: {error}", self.pid));
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        // It stands for the process that has the number now, and for no later one: so what is looked at below is what is signalled.
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

/// Asks all of them to end, and makes those that do not; whether each did.
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

/// State and start from /proc/PID/stat. The name, in brackets, can contain anything.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3, the start field 22.
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

/// User time and system time from /proc/PID/stat, together.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    // Fields 14 and 15; the first after the name is field 3.
    let ticks: Vec<u64> = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    (ticks.len() == 2).then(|| ticks.iter().sum())
}

/// A file that says which process is in charge of something, and on which that process holds a lock (flock) as long as it runs:
/// a copy of the file, or one that was left behind, names nobody.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
}

impl PidFile {
    /// At this path.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Names this process, until the file that is returned is closed.
    pub fn take(&self) -> Result<File> {
        let mut options = File::options();
        let mut file =
            options.create(true).truncate(false).write(true).open(&self.path).map_err(|error| self.error("open", &error))?;
        // Who looks whether it is locked holds it for a moment, and so does a process that is just ending.
        let mut tries = 0;
        while let Err(error) = file.try_lock() {
            match error {
                TryLockError::WouldBlock if tries < LOCK_TRIES_MAX => std::thread::sleep(LOCK_POLL),
                TryLockError::WouldBlock => {
                    let who = self.read().map_or_else(|| "another process".to_owned(), |other| format!("process {}", other.pid));
                    return Err(Error::invalid(format!("{who} runs already: {} is its file", self.path.display())));
                }
                TryLockError::Error(error) => return Err(self.error("lock", &error)),
            }
            tries += 1;
        }
        let own = Process::of(std::process::id()).ok_or_else(|| Error::fatal("/proc does not tell of this process"))?;
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
            // Who has just taken it has yet to write its name, and who has just ended to let go.
            if let Some(process) = self.read().filter(Process::is_alive) {
                return Ok(Some(process));
            }
            std::thread::sleep(LOCK_POLL);
        }
        Err(Error::retry(format!("{} is locked by a process that it does not name", self.path.display())))
    }

    /// The process that it names; none, if it was not written to its end.
    fn read(&self) -> Option<Process> {
        toml::from_str(&std::fs::read_to_string(&self.path).ok()?).ok()
    }

    fn error(&self, what: &str, error: &std::io::Error) -> Error {
        io_error(&self.path, what, error)
    }

    /// Names nobody.
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
    fn a_process_is_told_from_its_successor() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.is_alive());
        let earlier = Process { started_ticks: process.started_ticks - 1, ..process.clone() };
        let last_boot = Process { boot: "another".into(), ..process.clone() };
        assert!(!earlier.is_alive() && !last_boot.is_alive());
        earlier.signal(Signal::Kill).unwrap();
        last_boot.signal(Signal::Kill).unwrap();
        assert!(process.is_alive(), "a stranger was hit");
        process.signal(Signal::Kill).unwrap();
        // Not waited for yet: it is a zombie, and as good as gone.
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
    fn names_with_brackets_and_blanks_do_not_confuse() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 0 0";
        assert_eq!(parse_stat(stat), Some(('S', 987_654)));
        assert_eq!(parse_stat("42 (cut"), None);
    }

    #[test]
    fn a_pid_file_names_only_who_holds_it() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = PidFile::new(dir.path().join("pid"));
        assert_eq!(file.alive().unwrap(), None);
        std::fs::write(dir.path().join("pid"), "pid = 1").unwrap();
        assert_eq!(file.alive().unwrap(), None);
        let held = file.take().unwrap();
        let own = Process::of(std::process::id()).unwrap();
        assert_eq!(file.alive().unwrap(), Some(own.clone()));
        let second = file.take().unwrap_err();
        assert!(second.message.contains(&format!("process {} runs already", own.pid)), "{second}");
        // A copy names the same process, which has nothing to do with it.
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
    fn what_does_not_end_is_told_from_what_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(!process.ends_by(Instant::now() + Duration::from_millis(50)));
        process.signal(Signal::Kill).unwrap();
        assert!(process.ends_by(Instant::now() + Duration::from_secs(10)));
        child.wait().unwrap();
    }
}
