//! The rows of a slice, as stages and links pass them on.

use crate::crc32c;
use bytes::Bytes;
use std::{
    fmt,
    ops::Deref,
    sync::{Arc, OnceLock},
};

/// The rows of a slice. Their checksum is computed at most once for all clones, and not at all if it was computed when
/// the bytes were read or received.
///
/// ```
/// # use weft_types::{Rows, crc32c};
/// let rows = Rows::from(b"row1row2".to_vec());
/// assert_eq!(rows.checksum(), crc32c(&rows));
/// ```
#[derive(Clone)]
pub struct Rows {
    bytes: Bytes,
    checksum: Arc<OnceLock<u32>>,
}

impl Rows {
    /// Rows with a known CRC32C. If it belongs to other bytes, the receiver of the next link detects it.
    pub fn summed(bytes: Bytes, checksum: u32) -> Self {
        Self { bytes, checksum: Arc::new(OnceLock::from(checksum)) }
    }

    /// Their CRC32C.
    pub fn checksum(&self) -> u32 {
        *self.checksum.get_or_init(|| crc32c(&self.bytes))
    }

    /// Their bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl From<Bytes> for Rows {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, checksum: Arc::default() }
    }
}

impl From<Vec<u8>> for Rows {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows({} bytes)", self.bytes.len())
    }
}

impl AsRef<[u8]> for Rows {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Compares the bytes.
impl<T: AsRef<[u8]>> PartialEq<T> for Rows {
    fn eq(&self, other: &T) -> bool {
        self.bytes == other.as_ref()
    }
}

impl Deref for Rows {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
