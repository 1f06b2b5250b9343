//! Records inside messages of the control plane.

use serde::{Serialize, de::DeserializeOwned};
use weft_types::{Error, Result};

/// A record of ours as bytes.
pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // Numbers and strings always encode.
    postcard::to_allocvec(record).unwrap_or_default()
}

/// The record that bytes hold, all of them.
pub(crate) fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((record, [])) => Ok(record),
        _ => Err(Error::invalid(format!("{} bytes that are not a {what}", bytes.len()))),
    }
}
