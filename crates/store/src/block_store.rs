//! What a disk does for an agent.

use std::sync::Arc;
use weft_types::{BlockId, BlockMeta, PAGE_LEN, Reaction, Result, Span};

/// One disk full of blocks.
///
/// A block is there wholly or not at all: it appears when [`BlockWriter::finish`] returns, and not before. Once `finish` has
/// returned, it survives the loss of power.
pub trait BlockStore: Send + Sync {
    /// Begins to write a block. Refused with [`Reaction::InvalidInput`] when the block is there already, and with
    /// [`Reaction::Retry`] while somebody else writes or removes it.
    fn create(&self, meta: &BlockMeta) -> Result<Box<dyn BlockWriter>>;

    /// Opens a block for reading. A reader keeps working when the block is removed meanwhile.
    fn open(&self, id: BlockId) -> Result<Arc<dyn BlockReader>>;

    /// Removes a block. Returns whether it was there. Once this has returned, the block does not come back.
    fn remove(&self, id: BlockId) -> Result<bool>;

    /// At most `blocks_max` blocks, in an order of the store's own that does not change, beginning behind `after`.
    /// An answer with fewer than `blocks_max` blocks is the last.
    fn list_after(&self, after: Option<BlockId>, blocks_max: usize) -> Result<Vec<BlockId>>;

    /// Takes a block out of service without deleting a byte of it, with the reason beside it, for a person to look at. With
    /// `since_ms`, the time in milliseconds since 1970, it may be deleted some time later; otherwise only a person does.
    fn quarantine(&self, id: BlockId, reason: &str, since_ms: Option<u64>) -> Result<()>;

    /// What lies in quarantine.
    fn quarantined(&self) -> Quarantined;

    /// The places in quarantine, the oldest first, behind them those that only a person deletes.
    fn quarantine_places(&self) -> Result<Vec<QuarantinePlace>>;

    /// Deletes a place in quarantine with all that is in it. It is no error if it is not there.
    fn delete_quarantined(&self, place: &str) -> Result<()>;

    /// How large the disk is.
    fn capacity(&self) -> Result<Capacity>;

    /// Why the disk takes no more writes, once it has failed. What can still be read can be read.
    fn failed(&self) -> Option<String> {
        None
    }

    /// How often something was made durable (fsync, syncfs) since the disk was opened; 0 where there is no such call.
    fn fsyncs(&self) -> u64 {
        0
    }

    /// All blocks, in ascending order.
    fn list(&self) -> Result<Vec<BlockId>> {
        const BLOCKS_A_CALL: usize = 4096;
        let mut all = Vec::new();
        loop {
            let some = self.list_after(all.last().copied(), BLOCKS_A_CALL)?;
            let last = some.len() < BLOCKS_A_CALL;
            all.extend(some);
            if last {
                all.sort_unstable();
                return Ok(all);
            }
        }
    }

    /// The CRC32C of each MiB of a block, as recorded when it was written.
    fn unit_checksums(&self, id: BlockId) -> Result<Vec<u32>> {
        Ok(self.open(id)?.units().to_vec())
    }
}

/// A block that is being written. Dropped unfinished, it leaves nothing behind.
pub trait BlockWriter: Send {
    /// Takes bytes of the block, in any order and in runs of any length, each byte once: a byte that comes twice is
    /// refused. Beyond the end of the block only zeros are taken, and are not stored.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// The byte ranges that have not come yet.
    fn missing(&self) -> Vec<Span>;

    /// Makes the block durable and lets it be seen. Refused with [`Reaction::Replan`] while bytes are missing, and with
    /// [`Reaction::Corrupt`] when `expected_units` are given and are not the CRC32C of each MiB of what came.
    fn finish(self: Box<Self>, expected_checksums: Option<&[u32]>) -> Result<Receipt>;
}

/// A block that can be read.
pub trait BlockReader: Send + Sync {
    /// What the sidecar says of it.
    fn meta(&self) -> &BlockMeta;

    /// The CRC32C of each MiB, as recorded when it was written.
    fn units(&self) -> &[u32];

    /// The CRC32C of each page of 4 KiB; the last one may be shorter. Joined, those of a MiB are its checksum.
    fn pages(&self) -> &[u32];

    /// Fills `buf` with the bytes from `offset` on, each page checked against its checksum; zeros beyond the end of the block.
    /// Returns the CRC32C of `buf`, as the checksums of the pages make it: if the bytes are changed in memory later, it shows.
    /// When a page is not what it was, this is [`Reaction::Corrupt`], and what is in `buf` is not to be used.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<u32>;

    /// As [`read_at`](Self::read_at), if that waits for no disk: it may be called on threads that must not block. `None`: it would wait,
    /// or it fails, and `read_at` says why; what is in `buf` is not to be used.
    fn read_cached(&self, _offset: u64, _buf: &mut [u8]) -> Option<u32> {
        None
    }
}

/// How large a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// All of it.
    pub total_bytes: u64,
    /// What can still be written.
    pub free_bytes: u64,
}

/// What lies in quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quarantined {
    /// Blocks.
    pub blocks: u64,
    /// Their payloads.
    pub bytes: u64,
}

/// A place in quarantine, with one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantinePlace {
    /// Its name.
    pub name: String,
    /// Since when the block is there, milliseconds since 1970; none: only a person deletes it.
    pub since_ms: Option<u64>,
    /// Its payload; 0 if that is gone already.
    pub bytes: u64,
}

/// What has been stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Bytes of the payload.
    pub len: u64,
    /// CRC32C of each MiB of it.
    pub units: Vec<u32>,
}

/// Reads all of a block and returns the byte ranges that are corrupt, in whole pages: the scrub of one block.
pub fn verify(block: &dyn BlockReader) -> Result<Vec<Span>> {
    const STEP: u64 = 256 * PAGE_LEN;
    let len = block.meta().len();
    let mut corrupt = Vec::new();
    let mut buf = vec![0; STEP.min(len) as usize];
    let mut check = |span: Span| match block.read_at(span.start, &mut buf[..span.len() as usize]) {
        Err(error) if error.reaction == Reaction::Corrupt => Ok(false),
        other => other.map(|_| true),
    };
    for step in pieces(Span::new(0, len), STEP) {
        if !check(step)? {
            for page in pieces(step, PAGE_LEN) {
                if !check(page)? {
                    corrupt.push(page);
                }
            }
        }
    }
    Ok(Span::normalize(corrupt))
}

fn pieces(span: Span, len: u64) -> impl Iterator<Item = Span> {
    (span.start..span.end).step_by(len as usize).map(move |start| Span::new(start, (start + len).min(span.end)))
}
