//! Files and directories: what went wrong with them, and where they really are.

use std::{
    io::{Error as IoError, ErrorKind},
    path::{Path, PathBuf},
};
use weft_types::{Error, Result};

/// What the operating system said, with the path, sorted by what can be done about it.
pub fn io_error(path: &Path, what: &str, error: &IoError) -> Error {
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => Error::not_found(format!("cannot {what} {path}: it does not exist")),
        ErrorKind::PermissionDenied | ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::InvalidInput => {
            Error::invalid(format!("cannot {what} {path}: {error}"))
        }
        _ => Error::fatal(format!("cannot {what} {path}: {error}")),
    }
}

/// The one path of a directory, however it is written; one that does not exist keeps the path that was given.
pub fn real_path(dir: &Path) -> Result<PathBuf> {
    match std::fs::canonicalize(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => std::path::absolute(dir),
        found => found,
    }
    .map_err(|error| io_error(dir, "find", &error))
}
