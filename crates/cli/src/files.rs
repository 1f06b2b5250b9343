//! Paths: errors of the operating system, and canonical paths.

use std::{
    fs::File,
    io::ErrorKind,
    os::fd::AsFd,
    path::{Path, PathBuf},
};
pub use weft_client::io_error;
use weft_types::{Error, Result};

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
