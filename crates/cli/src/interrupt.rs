//! ctrl-C, SIGTERM and SIGHUP: caught from the start, so unfinished work is undone in order and leaves nothing.

use crate::exit::Exit;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};
use weft_types::{Error, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The signals that end a command. After [registration](Self::register), they do not kill the process.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal has closed. None: the process ignores that (`nohup`).
    hangup: Option<Signal>,
}

impl Signals {
    /// Must be called within a runtime, before anything is created that a signal must not leave behind.
    pub fn register() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|error| Error::fatal(format!("cannot wait for signals: {error}")));
        let hangup = (!is_hangup_ignored()).then(|| listen(SignalKind::hangup())).transpose()?;
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())?, hangup })
    }

    /// Waits for a signal; returns its name.
    pub async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            Some(_) = async { self.hangup.as_mut()?.recv().await } => "SIGHUP",
        }
    }

    /// Waits for a signal that interrupts this command; returns the error with which it ends.
    pub(crate) async fn interrupted(&mut self) -> Error {
        self.received().await;
        INTERRUPTED.store(true, Relaxed);
        error()
    }
}

/// Whether this process was started with SIGHUP ignored, as `nohup` does.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (SignalKind::hangup().as_raw_value() - 1) != 0
}

/// Whether this command was interrupted.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// Fails if the command was interrupted: work on files calls it between two pieces.
pub fn check() -> Result<()> {
    if is_interrupted() { Err(error()) } else { Ok(()) }
}

fn error() -> Error {
    Error::retry("interrupted")
}

/// While it exists, a signal makes [`check`] fail, and a second signal ends the process at once.
pub struct Watch {
    _runtime: Runtime,
}

impl Watch {
    /// Starts to watch.
    pub fn begin() -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| Error::fatal(format!("cannot start: {error}")))?;
        let mut signals = {
            let _within = runtime.enter();
            Signals::register()?
        };
        runtime.spawn(async move {
            signals.interrupted().await;
            signals.received().await;
            std::process::exit(Exit::Interrupted as i32);
        });
        Ok(Self { _runtime: runtime })
    }
}
