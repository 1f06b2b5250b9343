//! What is packed into the rows of stripes and jobs. Each blob begins with its version, and every version stays readable.

use crate::{JobWork, LeftBlock, MetaError, PlacedBlock, Result};
use serde::{Serialize, de::DeserializeOwned};
use weft_types::StripeLayout;

/// Version 1 is postcard of the value.
const VERSION: u8 = 1;

/// Packs a stripe's layout.
pub(crate) fn pack_layout(layout: &StripeLayout) -> Result<Vec<u8>> {
    pack(layout)
}

/// The inverse of [`pack_layout`].
pub(crate) fn unpack_layout(blob: &[u8]) -> Result<StripeLayout> {
    unpack("a stripe's layout", blob)
}

/// Packs where a stripe's blocks are.
pub(crate) fn pack_placement(blocks: &[PlacedBlock]) -> Result<Vec<u8>> {
    pack(blocks)
}

/// The inverse of [`pack_placement`].
pub(crate) fn unpack_placement(blob: &[u8]) -> Result<Vec<PlacedBlock>> {
    unpack("a stripe's placement", blob)
}

/// Packs checksums. They look random, so they are kept as four bytes each: a variable-length number would take five.
pub(crate) fn pack_units(units: &[Vec<u32>]) -> Result<Vec<u8>> {
    let fixed: Vec<Vec<[u8; 4]>> = units.iter().map(|block| block.iter().map(|unit| unit.to_le_bytes()).collect()).collect();
    pack(&fixed)
}

/// The inverse of [`pack_units`].
pub(crate) fn unpack_units(blob: &[u8]) -> Result<Vec<Vec<u32>>> {
    let fixed: Vec<Vec<[u8; 4]>> = unpack("a stripe's checksums", blob)?;
    Ok(fixed.into_iter().map(|block| block.into_iter().map(u32::from_le_bytes).collect()).collect())
}

/// Packs what a job does.
pub(crate) fn pack_work(work: &JobWork) -> Result<Vec<u8>> {
    pack(work)
}

/// The inverse of [`pack_work`].
pub(crate) fn unpack_work(blob: &[u8]) -> Result<JobWork> {
    unpack("what a job does", blob)
}

/// Packs what a job has left.
pub(crate) fn pack_left(blocks: &[LeftBlock]) -> Result<Vec<u8>> {
    pack(blocks)
}

/// The inverse of [`pack_left`].
pub(crate) fn unpack_left(blob: &[u8]) -> Result<Vec<LeftBlock>> {
    unpack("what a job has left", blob)
}

fn pack<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    postcard::to_extend(value, vec![VERSION]).map_err(|error| MetaError::Storage(format!("a record cannot be packed: {error}")))
}

fn unpack<T: DeserializeOwned>(what: &str, blob: &[u8]) -> Result<T> {
    match blob.split_first() {
        Some((&VERSION, packed)) => {
            postcard::from_bytes(packed).map_err(|error| MetaError::Storage(format!("{what} cannot be read: {error}")))
        }
        Some((version, _)) => {
            Err(MetaError::Storage(format!("{what} is of version {version}; this weft knows version {VERSION}")))
        }
        None => Err(MetaError::Storage(format!("{what} is empty"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_other_versions_are_named() {
        let units = vec![vec![0, 1, u32::MAX], vec![], vec![7]];
        let blob = pack_units(&units).unwrap();
        assert_eq!(blob.len(), 1 + 1 + 3 + 4 * 4, "a version, a count, three counts, four checksums");
        assert_eq!(unpack_units(&blob).unwrap(), units);

        let mut other = blob.clone();
        other[0] = 9;
        assert!(unpack_units(&other).unwrap_err().to_string().contains("version 9"));
        assert!(unpack_units(&blob[..blob.len() - 1]).is_err());
        assert!(unpack_units(&[]).is_err());
    }
}
