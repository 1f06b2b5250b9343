//! Deltas of which parts leave while the rest is computed.

use crate::{
    content::add,
    disk::Disk,
    open::Open,
    piece::{Piece, Pieces},
    updater::Updater,
};
use bytes::Bytes;
use std::{fmt, sync::Arc};
use weft_types::{BlockId, Result, Span, crc32c, crc32c_continued};
use weft_update::{ReadAt, UpdateId};

/// Takes the parts of a delta, in order, as they are computed: the data block, the range of the whole delta in it, and a part. It may begin
/// again. What it has taken counts only once the Prepare with this delta is sent.
pub type TakeParts = Box<dyn FnMut(u8, Span, Arc<Piece>) + Send>;

/// Who takes the delta of an update that is being requested.
pub(crate) struct Departing {
    block: BlockId,
    id: UpdateId,
    /// The bytes of a part.
    part_len: u64,
    take: TakeParts,
}

impl fmt::Debug for Departing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Departing").field("block", &self.block).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Open {
    /// The delta of new bytes of this block, and its CRC.
    pub(crate) fn delta_for(&self, id: UpdateId, new: &Piece, at: &ReadAt, disk: &mut Disk) -> Result<(Arc<Piece>, u32)> {
        let of_part = |span: Span, disk: &Disk| -> Result<Vec<u8>> {
            let mut bytes = self.content(span, at, disk)?.bytes;
            let from = (span.start - new.start) as usize;
            add(&mut bytes, &new.bytes[from..from + span.len() as usize]);
            Ok(bytes)
        };
        // What is not applied is read as a whole.
        let is_applied = at.added.is_empty() && at.removed.is_empty();
        let is_its = |departing: &mut Departing| is_applied && (departing.block, departing.id) == (self.id, id);
        let (whole, start_crc) = (new.span(), crc32c(&new.start.to_le_bytes()));
        let Some(mut departing) = disk.departing.take_if(is_its).filter(|it| it.part_len < whole.len()) else {
            let bytes = of_part(whole, disk)?;
            let crc = crc32c_continued(start_crc, &bytes);
            return Ok((Arc::new(Piece { start: new.start, bytes: bytes.into() }), crc));
        };
        let (mut all, mut crc) = (Vec::with_capacity(new.bytes.len()), start_crc);
        let mut start = whole.start;
        while start < whole.end {
            let part = Span::new(start, whole.end.min(start + departing.part_len));
            let bytes = Bytes::from(of_part(part, disk)?);
            crc = crc32c_continued(crc, &bytes);
            all.extend_from_slice(&bytes);
            (departing.take)(self.id.index, whole, Arc::new(Piece { start, bytes }));
            start = part.end;
        }
        Ok((Arc::new(Piece { start: whole.start, bytes: all.into() }), crc))
    }
}

impl Updater {
    /// As [`request`](Self::request), for new bytes of one data block. If its delta can be computed at once, `take` gets parts of `part_len` bytes.
    pub fn request_departing(
        &mut self,
        (block, term, id): (BlockId, u64, UpdateId),
        new: Pieces,
        (part_len, take): (u64, TakeParts),
        now_ms: u64,
    ) -> Result<()> {
        self.disk.departing = Some(Departing { block, id, part_len: part_len.max(1), take }).filter(|_| new.len() == 1);
        let requested = self.request(block, term, id, new, now_ms);
        self.disk.departing = None;
        requested
    }
}
