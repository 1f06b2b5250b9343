//! Records of the ring that are not durable.

use super::frames;

/// Records that are not durable.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Their frames.
    pub(super) stream: Vec<u8>,
    /// The position of each, and where its frame begins.
    pub(super) records: Vec<(u64, u32)>,
}

impl Pending {
    /// The payload of one of them.
    pub(super) fn payload(&self, position: u64) -> Option<Vec<u8>> {
        let number = self.records.binary_search_by_key(&position, |(position, _)| *position).ok()?;
        let (_, start) = self.records.get(number)?;
        let frame = frames::read(self.stream.get(*start as usize..)?).ok()??;
        Some(frame.payload.to_vec())
    }
}
