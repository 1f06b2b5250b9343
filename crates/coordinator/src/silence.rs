//! The file that tells the next coordinator how long nodes have been silent ([`weft_control::healer::Silence`]). It is a hint, so it is not
//! synced.

use crate::{compute::compute, shared::Shared};
use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};
use weft_control::healer::{Recorder, SILENCE_BYTES_MAX, Silence};

/// The file, in the coordinator's directory.
const FILE: &str = "silent-nodes";

/// Writes the file.
#[derive(Debug, Default)]
pub(crate) struct SilenceFile {
    recorder: Recorder,
    has_failed: bool,
}

impl SilenceFile {
    /// To be called now and then.
    pub(crate) fn look(&mut self, shared: &Shared) {
        let lost_after = Duration::from_millis(shared.config.lost_after_ms);
        let record = self.recorder.look(&shared.members.statuses(), shared.started.now(), shared.now_ms(), lost_after);
        let Some(record) = record else { return };
        let path = shared.config.dir.join(FILE);
        match compute(|| write(&path, &record)) {
            Ok(()) => self.has_failed = false,
            Err(error) if self.has_failed => tracing::debug!(path = %path.display(), %error, "cannot write"),
            Err(error) => {
                self.has_failed = true;
                tracing::warn!(path = %path.display(), %error, "cannot record how long nodes have been silent: after a restart, the clock counts");
            }
        }
    }
}

/// What the last coordinator recorded, if anything.
pub(crate) fn read(dir: &Path) -> Option<Silence> {
    let mut text = String::new();
    let file = fs::File::open(dir.join(FILE)).ok()?;
    file.take(SILENCE_BYTES_MAX as u64).read_to_string(&mut text).ok()?;
    Silence::parse(&text)
}

fn write(path: &Path, record: &str) -> io::Result<()> {
    let temporary: PathBuf = path.with_extension("new");
    fs::write(&temporary, record)?;
    fs::rename(&temporary, path)
}
