//! The interface between an agent and one of its disks.

use std::sync::Arc;
use weft_types::{BlockId, BlockMeta, Error, PAGE_LEN, Reaction, Result, Seq, Span};

/// One disk of blocks.
///
/// A block is complete or absent: it appears when [`BlockWriter::finish`] returns, and not before. After `finish` has
/// returned, the block survives a loss of power.
pub trait BlockStore: Send + Sync {
    /// Starts to write a block. Fails with [`Reaction::InvalidInput`] if the block already exists, and with
    /// [`Reaction::Retry`] while another caller writes or removes it.
    fn create(&self, meta: &BlockMeta) -> Result<Box<dyn BlockWriter>>;

    /// Opens a block for reading. The reader keeps working if the block is removed.
    fn open(&self, id: BlockId) -> Result<Arc<dyn BlockReader>>;

    /// Overwrites pages of a block in place, and makes payload and sidecar durable before it returns. See [`Patch`]. Fails with
    /// [`Reaction::Retry`] while another caller patches, writes or removes the block, and with [`Reaction::InvalidInput`] if the
    /// patch does not fit the block, or the store does not update blocks in place.
    ///
    /// After any other error, and after a crash, the pages of the patch may fail their checksums. The same patch mends them. Readers that
    /// were opened before must then be opened again.
    fn patch(&self, patch: &Patch<'_>) -> Result<Receipt> {
        Err(Error::invalid("this store does not update blocks in place").block(patch.id))
    }

    /// Removes a block. Returns whether it existed. After this has returned, a crash cannot bring the block back.
    fn remove(&self, id: BlockId) -> Result<bool>;

    /// Lists at most `blocks_max` blocks after `after`, in a fixed order of the store's own. A result with fewer than
    /// `blocks_max` blocks is the last.
    fn list_after(&self, after: Option<BlockId>, blocks_max: usize) -> Result<Vec<BlockId>>;

    /// Takes a block out of service without deleting its bytes, and stores the reason beside it for an operator. With
    /// `since_ms`, the time in milliseconds since 1970, the block may be deleted later; otherwise only an operator
    /// deletes it.
    fn quarantine(&self, id: BlockId, reason: &str, since_ms: Option<u64>) -> Result<()>;

    /// The size of the quarantine.
    fn quarantined(&self) -> Quarantined;

    /// The entries of the quarantine, the oldest first, followed by those that only an operator deletes.
    fn quarantine_places(&self) -> Result<Vec<QuarantinePlace>>;

    /// Deletes one entry of the quarantine. Succeeds if it does not exist.
    fn delete_quarantined(&self, place: &str) -> Result<()>;

    /// The size of the disk.
    fn capacity(&self) -> Result<Capacity>;

    /// Why the disk refuses writes, if it has failed. Reads are still attempted.
    fn failed(&self) -> Option<String> {
        None
    }

    /// The number of fsync and syncfs calls since the disk was opened; 0 if the store makes none.
    fn fsyncs(&self) -> u64 {
        0
    }

    /// What updates in place have written since the disk was opened; zeros if the store does not count it.
    fn in_place(&self) -> InPlaceCounts {
        InPlaceCounts::default()
    }

    /// Lets go of what the page cache has of a block's sidecar, so that the next [`open`](Self::open) shows what is on the disk. It may not
    /// succeed for all of it. While a block that is patched has open readers, memory counts, and not the disk.
    fn forget_cached_sidecar(&self, _id: BlockId) {}

    /// The errors of the device since the disk was opened. A full disk is none, nor are bytes that were read and fail their checksums.
    fn errors(&self) -> DeviceErrors {
        DeviceErrors::default()
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

    /// The CRC32C of each MiB of a block, as recorded when the block was written.
    fn unit_checksums(&self, id: BlockId) -> Result<Vec<u32>> {
        Ok(self.open(id)?.units().to_vec())
    }
}

/// A block that is being written. Dropping it before `finish` removes everything that was written.
pub trait BlockWriter: Send {
    /// Writes bytes of the block, in any order and in runs of any length. Each byte must be written once: a second
    /// write is refused. Beyond the end of the block only zeros are accepted, and they are not stored.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// The byte ranges that are still missing.
    fn missing(&self) -> Vec<Span>;

    /// Makes the block durable and visible. Fails with [`Reaction::Replan`] while bytes are missing, and with
    /// [`Reaction::Corrupt`] if `expected_checksums` are given and differ from the CRC32C of each MiB written.
    fn finish(self: Box<Self>, expected_checksums: Option<&[u32]>) -> Result<Receipt>;
}

/// What some pages of a block contain from now on, and which updates the block then contains.
///
/// The caller has journalled all of it durably. A crash in the middle leaves each page and each part of the sidecar old or new, and
/// the block's [`Seq`] old. The caller then repeats the patch, and must not read these pages before. A patch copies, so it may be
/// repeated at any time, until a later one has begun.
#[derive(Debug, Clone)]
pub struct Patch<'a> {
    /// The block.
    pub id: BlockId,
    /// Ascending and disjoint. If the block grows, they cover all that is new, and the page in which it ended.
    pub images: &'a [Image<'a>],
    /// The updates that the block contains afterwards. No count, nor the term, is lower than before. A patch with new images raises one,
    /// unless it is repeated: after a crash, only the counts tell whether it must be.
    pub seq: Seq,
    /// The bytes of the object in the stripe afterwards, from which the block's length follows. Not lower than before.
    pub data_len: u64,
}

/// What a range of a block contains after a patch.
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    /// Where it begins: a multiple of [`PAGE_LEN`].
    pub offset: u64,
    /// Whole pages; the last page of the block may be shorter.
    pub bytes: &'a [u8],
}

/// A block that can be read.
///
/// While the block is patched, [`meta`](Self::meta), [`units`](Self::units) and [`pages`](Self::pages) stay as they were when it was
/// opened. What is read is the content before or after a patch, never a mixture.
pub trait BlockReader: Send + Sync {
    /// The block's description, from its sidecar.
    fn meta(&self) -> &BlockMeta;

    /// The CRC32C of each MiB, as recorded when the block was written.
    fn units(&self) -> &[u32];

    /// The CRC32C of each page of 4 KiB; the last page may be shorter. The checksums of a MiB's pages combine to the
    /// MiB's checksum.
    fn pages(&self) -> &[u32];

    /// Whether a patch of the block was interrupted, so that the sidecar contains a part of it. Until the patch is repeated, some pages
    /// cannot be read, and [`units`](Self::units) and [`pages`](Self::pages) may have checksums of before and after it.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// How many bytes of the block there are. If these are fewer than its description says, reads of the others fail.
    fn stored_len(&self) -> Result<u64> {
        Ok(self.meta().len())
    }

    /// Fills `buf` with the bytes from `offset` on and checks each page; beyond the end of the block it fills in zeros.
    /// Returns the CRC32C of `buf`, computed from the page checksums, so that a later change of the bytes in memory is
    /// detected. Fails with [`Reaction::Corrupt`] if a page fails its checksum; `buf` then holds no valid data.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<u32>;

    /// Like [`read_at`](Self::read_at), but never waits for the disk, so threads that must not block may call it.
    /// `None` if it would wait or fails; `read_at` then gives the error, and `buf` holds no valid data.
    fn read_cached(&self, _offset: u64, _buf: &mut [u8]) -> Option<u32> {
        None
    }

    /// Lets go of these bytes in the page cache, so that the next read of them shows what is on the disk. It may not succeed for all of them.
    fn forget_cached(&self, _bytes: Span) {}
}

/// The size of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// The size of the disk, in bytes.
    pub total_bytes: u64,
    /// The bytes that can still be written.
    pub free_bytes: u64,
    /// Equal for disks on one file system of one machine; 0: unknown.
    pub file_system: u64,
}

/// The errors of a disk's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceErrors {
    /// Failed reads.
    pub reads: u64,
    /// Failed writes, syncs and removals. The first fails the disk.
    pub writes: u64,
}

/// The size of the quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quarantined {
    /// The number of blocks.
    pub blocks: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// An entry of the quarantine, with one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantinePlace {
    /// Its name.
    pub name: String,
    /// When the block was moved there, milliseconds since 1970; none: only an operator deletes it.
    pub since_ms: Option<u64>,
    /// Bytes of its payload; 0 if it is already deleted.
    pub bytes: u64,
}

/// What updates in place have written to a disk since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InPlaceCounts {
    /// Syncs of the journal: one fdatasync each.
    pub journal_syncs: u64,
    /// Bytes that were written to the journal, in whole pages.
    pub journal_bytes: u64,
    /// Bytes of payloads and sidecars that were written by patches.
    pub patched_bytes: u64,
}

/// What has been stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Bytes of the payload.
    pub len: u64,
    /// The CRC32C of each MiB of the payload.
    pub units: Vec<u32>,
}

/// Scrubs one block: reads all of it and returns the corrupt byte ranges, in whole pages.
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
