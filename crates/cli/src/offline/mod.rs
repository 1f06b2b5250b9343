//! Encoding, repairing and decoding plain files, without a cluster.
//!
//! `DIR/block-000`, `DIR/block-001`, … are the raw bytes of the blocks; `DIR/manifest.json` says what they are. Whatever is read is
//! checked against recorded checksums first, whatever is written is checked before it takes its name.

mod blocks;
mod encode;
mod files;
mod manifest;
mod plans;
mod stored;

pub(crate) use blocks::Health;
pub(crate) use encode::{Encoded, Sizes, encode, explain_encode};
pub(crate) use plans::{Proved, prove};
pub(crate) use stored::{Decoded, Repaired, Stored, Verified};

use crate::interrupt;
use files::Named;
use sha2::{Digest as _, Sha256};
use std::{
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};
use weft_types::{Error, Result};

/// What the operating system said, with the path, sorted by what can be done about it.
pub(crate) fn io_error(path: &Path, what: &str, error: &std::io::Error) -> Error {
    use std::io::ErrorKind;
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => Error::not_found(format!("cannot {what} {path}: it does not exist")),
        ErrorKind::PermissionDenied | ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::InvalidInput => {
            Error::invalid(format!("cannot {what} {path}: {error}"))
        }
        _ => Error::fatal(format!("cannot {what} {path}: {error}")),
    }
}

/// The SHA-256 of some bytes of a file, in hex.
pub(crate) fn file_sha256(path: &Path, range: Range<u64>) -> Result<String> {
    sha256_of(&Named::open(path)?, range)
}

fn sha256_of(named: &Named, range: Range<u64>) -> Result<String> {
    let (mut hash, mut buffer, mut at) = (Sha256::new(), vec![0; 1 << 20], range.start);
    while at < range.end {
        interrupt::check()?;
        let piece = &mut buffer[..(range.end - at).min(1 << 20) as usize];
        named.file.read_exact_at(piece, at).map_err(|error| io_error(&named.path, "read", &error))?;
        hash.update(&*piece);
        at += piece.len() as u64;
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn temporary_beside(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.weft-{}.tmp", std::process::id()))
}
