//! Paths: errors of the operating system, and canonical paths.

use std::{
    fs::File,
    io::{Error as IoError, ErrorKind},
    os::fd::AsFd,
    path::{Path, PathBuf},
};
use weft_types::{Cause, Error, Result};

/// An error of the operating system with its path; the kind of error decides the reaction.
pub fn io_error(path: &Path, what: &str, error: &IoError) -> Error {
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => Error::not_found(format!("cannot {what} {path}: it does not exist")),
        ErrorKind::AlreadyExists => Error::invalid(format!("cannot {what} {path}: a file of this name exists")),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::unavailable(format!("cannot {what} {path}: {error}")).cause(Cause::NoSpace)
        }
        ErrorKind::PermissionDenied | ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::InvalidInput => {
            Error::invalid(format!("cannot {what} {path}: {error}"))
        }
        _ => Error::fatal(format!("cannot {what} {path}: {error}")),
    }
}

/// The canonical path of a directory; if it does not exist, its absolute path.
pub fn real_path(dir: &Path) -> Result<PathBuf> {
    match std::fs::canonicalize(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => std::path::absolute(dir),
        found => found,
    }
    .map_err(|error| io_error(dir, "find", &error))
}

/// Standard input or output as an unbuffered file.
pub fn standard(end: impl AsFd) -> Result<File> {
    let owned = end.as_fd().try_clone_to_owned();
    owned.map(File::from).map_err(|error| Error::fatal(format!("cannot use standard input or output: {error}")))
}
