//! ctrl-C and SIGTERM: noticed from the first moment, so that what is under way is given up in order and nothing of it stays.

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
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Within a runtime; before anything is made that a signal must not leave behind.
    pub(crate) fn register() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|error| Error::fatal(format!("cannot wait for signals: {error}")));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for one.
    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits for one, which breaks off this command: the error with which it ends.
    pub(crate) async fn broken_off(&mut self) -> Error {
        self.received().await;
        BROKEN_OFF.store(true, Relaxed);
        error()
    }
}

/// Whether this command was broken off.
pub(crate) fn is_broken_off() -> bool {
    BROKEN_OFF.load(Relaxed)
}

/// Fails once the command was broken off: work on files asks between two pieces.
pub(crate) fn check() -> Result<()> {
    if is_broken_off() { Err(error()) } else { Ok(()) }
}

fn error() -> Error {
    Error::retry("interrupted")
}

/// Sees to it, as long as it is there, that a signal makes [`check`] fail; a second one ends the process at once.
pub(crate) struct Watch {
    _runtime: Runtime,
}

impl Watch {
    /// Begins to.
    pub(crate) fn begin() -> Result<Self> {
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
