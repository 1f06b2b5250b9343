//! Processes that outlive the command that started them: spawned, found again, and stopped without ever hitting a stranger.

use crate::offline::io_error;
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use weft_types::{Error, Result};

/// A process, so described that no other process can be taken for it: numbers are used again, but not with the same start
/// in the same boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: u32,
    /// When it started, in the kernel's ticks since boot.
    started_ticks: u64,
    /// The boot.
    boot: String,
}

/// What to do to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ask it to end.
    Term,
    /// End it.
    Kill,
}

/// Starts this same binary with `args`, in a process group of its own, so that a ctrl-C here is not one there.
/// What it prints goes to the end of `log`.
pub(crate) fn spawn(args: &[&str], log: &Path) -> Result<(Child, Process)> {
    let binary = std::env::current_exe().map_err(|error| Error::fatal(format!("cannot find this binary: {error}")))?;
    let log_file = File::options().create(true).append(true).open(log).map_err(|error| io_error(log, "open", &error))?;
    let also = log_file.try_clone().map_err(|error| io_error(log, "open", &error))?;
    let mut command = Command::new(&binary);
    command.args(args).stdin(Stdio::null()).stdout(log_file).stderr(also).process_group(0);
    let child = command.spawn().map_err(|error| io_error(&binary, "start", &error))?;
    let process =
        Process::of(child.id()).ok_or_else(|| Error::fatal(format!("a process ended at once; see {}", log.display())))?;
    Ok((child, process))
}

impl Process {
    /// The process that has this number now; none, if there is none or it has ended and nobody has fetched its exit code.
    fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let (state, started_ticks) = parse_stat(&stat)?;
        (!matches!(state, 'Z' | 'X')).then_some(Self { pid, started_ticks, boot })
    }

    /// Whether it runs still.
    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Sends it a signal, if it is alive still.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        // The shell's own `kill` is everywhere; ours would be unsafe code.
        let name = if signal == Signal::Term { "TERM" } else { "KILL" };
        let ended = Command::new("/bin/sh")
            .args(["-c", "kill -s \"$1\" \"$2\"", "sh", name, &self.pid.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match ended {
            Ok(status) if status.success() || !self.is_alive() => Ok(()),
            _ => Err(Error::fatal(format!("process {} cannot be stopped: is it somebody else's?", self.pid))),
        }
    }
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

/// A file that says which process is in charge of something.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
}

impl PidFile {
    /// At this path.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The process, if it is alive.
    pub(crate) fn alive(&self) -> Result<Option<Process>> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(&self.path, "read", &error)),
        };
        // A file that was cut short by a crash names nobody.
        Ok(toml::from_str::<Process>(&text).ok().filter(Process::is_alive))
    }

    /// Names the process.
    pub(crate) fn write(&self, process: &Process) -> Result<()> {
        let text = toml::to_string(process).map_err(Error::fatal)?;
        std::fs::write(&self.path, text).map_err(|error| io_error(&self.path, "write", &error))
    }

    /// Names nobody.
    pub(crate) fn remove(&self) -> Result<()> {
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
    fn a_pid_file_names_only_who_is_alive() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = PidFile::new(dir.path().join("pid"));
        assert_eq!(file.alive().unwrap(), None);
        std::fs::write(dir.path().join("pid"), "pid = 1").unwrap();
        assert_eq!(file.alive().unwrap(), None);
        let own = Process::of(std::process::id()).unwrap();
        file.write(&own).unwrap();
        assert_eq!(file.alive().unwrap(), Some(own));
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.alive().unwrap(), None);
    }
}
