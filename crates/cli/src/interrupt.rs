//! ctrl-C, SIGTERM and SIGHUP: noticed from the first moment, so that what is under way is given up in order and nothing of it stays.

use crate::exit::Exit;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};
use weft_types::{Error, Result};

static BROKEN_OFF: AtomicBool = AtomicBool::new(false);

/// The signals by which a person ends something. Once they are [registered](Self::register), they end nothing by themselves.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Its terminal is gone; none: that was to be nothing to it (`nohup`).
    hangup: Option<Signal>,
}

impl Signals {
    /// Within a runtime; before anything is made that a signal must not leave behind.
    pub fn register() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|error| Error::fatal(format!("cannot wait for signals: {error}")));
        let hangup = (!is_hangup_ignored()).then(|| listen(SignalKind::hangup())).transpose()?;
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())?, hangup })
    }

    /// Waits for one.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            Some(_) = async { self.hangup.as_mut()?.recv().await } => {}
        }
    }

    /// Waits for one, which breaks off this command: the error with which it ends.
    pub(crate) async fn broken_off(&mut self) -> Error {
        self.received().await;
        BROKEN_OFF.store(true, Relaxed);
        error()
    }
}

/// Whether whoever started this process has it ignore SIGHUP, as `nohup` does.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (SignalKind::hangup().as_raw_value() - 1) != 0
}

/// Whether this command was broken off.
pub fn is_broken_off() -> bool {
    BROKEN_OFF.load(Relaxed)
}

/// Fails once the command was broken off: work on files asks between two pieces.
pub fn check() -> Result<()> {
    if is_broken_off() { Err(error()) } else { Ok(()) }
}

fn error() -> Error {
    Error::retry("interrupted")
}

/// Sees to it, as long as it is there, that a signal makes [`check`] fail; a second one ends the process at once.
pub struct Watch {
    _runtime: Runtime,
}

impl Watch {
    /// Begins to.
    pub fn begin() -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| Error::fatal(format!("cannot start: {error}")))?;
        let mut signals = {
            let _within = runtime.enter();
            Signals::register()?
        };
        runtime.spawn(async move {
            signals.broken_off().await;
            signals.received().await;
            std::process::exit(Exit::Interrupted as i32);
        });
        Ok(Self { _runtime: runtime })
    }
}
