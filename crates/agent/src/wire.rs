//! Records inside messages of the control plane.

use serde::{Serialize, de::DeserializeOwned};
use weft_types::{Error, Result};

/// Encodes a record.
pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // Numbers and strings always encode.
    postcard::to_allocvec(record).unwrap_or_default()
}

/// Decodes a record from all of `bytes`.
pub(crate) fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((record, [])) => Ok(record),
        _ => Err(Error::invalid(format!("the {what} is not valid ({} bytes)", bytes.len()))),
    }
}
