//! A copy of a database that may be in use by another process.

use super::{cluster, connect};
use crate::{ClusterRecord, MetaError, Result, Totals};
use rusqlite::{
    Connection,
    backup::{Backup, StepResult},
};
use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::Path,
    time::Duration,
};

/// How often, and at which interval, to try a busy database.
const TRIES_MAX: u32 = 50;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Copies the metadata in `from` to the new file `to`. The copy is the complete state at one moment; it is checked and durable when this
/// returns. Another process may use the database at the same time and does not wait. Returns a summary of the copy.
pub fn backup(from: &Path, to: &Path) -> Result<(ClusterRecord, Totals)> {
    let failed = |path: &Path, error: io::Error| MetaError::Storage(format!("{}: {error}", path.display()));
    if !from.is_file() {
        return Err(MetaError::NotFound(format!("there is no metadata in {}", from.display())));
    }
    let exists =
        |to: &Path| MetaError::Refused(format!("{} already exists, or is not a file name: choose a new file name", to.display()));
    let (Some(name), false) = (to.file_name(), fs::symlink_metadata(to).is_ok()) else { return Err(exists(to)) };
    let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !dir.is_dir() {
        return Err(MetaError::NotFound(format!("cannot create {}: there is no directory {}", to.display(), dir.display())));
    }
    // A random name, so that no other process has made the file. Dropping it removes the file.
    let mut prefix = OsString::from(".");
    prefix.push(name);
    let unfinished =
        tempfile::Builder::new().prefix(&prefix).suffix(".new").tempfile_in(dir).map_err(|error| failed(dir, error))?;
    let copied = copy(from, unfinished.path())?;
    unfinished.as_file().sync_all().map_err(|error| failed(to, error))?;
    unfinished.persist_noclobber(to).map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => exists(to),
        _ => failed(to, error.error),
    })?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| failed(dir, error))?;
    Ok(copied)
}

fn copy(from: &Path, to: &Path) -> Result<(ClusterRecord, Totals)> {
    let source = connect(from)?;
    source.pragma_update(None, "query_only", true)?;
    let mut copy = connect(to)?;
    // The caller syncs the whole copy at the end.
    copy.pragma_update(None, "synchronous", "OFF")?;
    copy_pages(&source, &mut copy)?;
    // The copy is a single file, without a write-ahead log.
    copy.pragma_update(None, "journal_mode", "DELETE")?;
    let found: String = copy.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if found != "ok" {
        return Err(MetaError::Storage(format!("{} is damaged: {found}", from.display())));
    }
    let tx = copy.transaction()?;
    Ok((cluster::get(&tx)?, cluster::totals(&tx)?))
}

/// Copies in one step: a copy in several steps restarts whenever the database changes.
fn copy_pages(source: &Connection, copy: &mut Connection) -> Result<()> {
    let backup = Backup::new(source, copy)?;
    for _ in 0..TRIES_MAX {
        match backup.step(-1)? {
            StepResult::Done => return Ok(()),
            // Another process is opening or closing it.
            _ => std::thread::sleep(TRY_AGAIN_AFTER),
        }
    }
    Err(MetaError::Busy("another process has locked it".into()))
}
