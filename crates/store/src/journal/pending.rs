//! Records of the ring that are not durable.

use super::ahead::Ahead;
use super::frames::SharedBytes;

/// A record, as its frame.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) position: u64,
    /// The beginning of the frame, up to what is shared.
    pub(super) bytes: Vec<u8>,
    /// Where the payload begins in it.
    pub(super) payload_at: usize,
    /// The rest of the payload.
    pub(super) shared: Vec<SharedBytes>,
}

impl Record {
    pub(super) fn shared_len(&self) -> usize {
        self.shared.iter().map(|bytes| (**bytes).as_ref().len()).sum()
    }

    /// The bytes of its frame.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.shared_len()
    }

    /// The parts of its frame.
    pub(super) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        [&self.bytes[..]].into_iter().chain(self.shared.iter().map(|bytes| (**bytes).as_ref()))
    }
}

/// Records that are not durable.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// In the order of their positions.
    pub(super) records: Vec<Record>,
    /// The bytes of their frames.
    pub(super) len: usize,
    /// The shared bytes of the record at this position are written already.
    pub(super) ahead: Option<(u64, Ahead)>,
}

impl Pending {
    pub(super) fn push(&mut self, record: Record) {
        self.len += record.len();
        self.records.push(record);
    }

    pub(super) fn get(&self, position: u64) -> Option<&Record> {
        let number = self.records.binary_search_by_key(&position, |record| record.position).ok()?;
        self.records.get(number)
    }

    /// The payload of one of them.
    pub(super) fn payload(&self, position: u64) -> Option<Vec<u8>> {
        let record = self.get(position)?;
        let mut payload = record.bytes.get(record.payload_at..)?.to_vec();
        record.shared.iter().for_each(|bytes| payload.extend_from_slice((**bytes).as_ref()));
        Some(payload)
    }
}
