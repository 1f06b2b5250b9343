//! The journal of one disk: the records of updates in place, shared by all blocks of the disk.

mod ahead;
mod batch;
mod frames;
mod index;
mod pending;
mod recovery;
mod ring;
mod ring_file;
mod sectors;

pub use ahead::Ahead;
pub use frames::{Payload, SharedBytes};
pub use ring::RingJournal;
pub(crate) use ring_file::InUse;
pub use ring_file::{NewJournal, RING_BYTES, RING_BYTES_MAX, RING_BYTES_MIN};

use std::fmt;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use weft_types::{BlockId, Result};

/// The largest payload of one record, in bytes.
pub const RECORD_BYTES_MAX: usize = 22 << 20;

/// The place of a record in the order of all appends to a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(pub(crate) u64);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The end of a record's payload.
#[derive(Debug, Default)]
pub struct Tail {
    /// Its bytes, in this order.
    pub shared: Vec<SharedBytes>,
    /// All of these bytes, if they were written while they arrived.
    pub ahead: Option<Ahead>,
}

/// Called for a record: with its position, its block and its payload.
pub type Visit<'a> = dyn FnMut(Position, BlockId, &[u8]) -> Result<()> + 'a;

/// The journal of one disk.
///
/// A record belongs to a block and has a [`Position`]. Positions rise in the order of the appends and stay with their records
/// over restarts, so the payloads of records need not be kept in memory: [`Journal::read`] gives them back.
///
/// # What survives
///
/// - A record is durable once [`Journal::sync`] has returned for its position or a later one.
/// - A crash loses at most records that were never durable, from the end: if a record survives, so do all before it that are
///   not released.
/// - Damage to anything that may have been durable is reported as [`Reaction::Corrupt`](weft_types::Reaction) when the journal
///   is opened, and it does not open. It is never taken for the journal's end. The blocks that are updated in place on this
///   disk are then lost: it is not known what they have promised.
/// - A release is not synced, unless [`Journal::sync_releases`] does it. A crash may undo the last releases, always the latest ones first,
///   and of one call those of the later records: what is replayed is what was not released at some earlier moment, and everything that was
///   appended since. For the state machines of `weft-update` this is as good. `Block::needs` says which entries lead to the state of that
///   moment, and the later ones lead to the state of today. (A looser rule would not do: if a held record came back without the entries
///   that told its end, and these were released later, a watermark would make it committed.)
///
/// # Room
///
/// The journal is a ring of fixed size. Room is reserved before work is accepted ([`Journal::reserve`]), so that what has begun can
/// be ended. From 90 % on, reservations are refused as [`Reaction::Retry`](weft_types::Reaction).
///
/// All calls block.
pub trait Journal: Send + Sync {
    /// Reserves room for this many records with payloads of `bytes` in total. Fails with
    /// [`Reaction::Retry`](weft_types::Reaction) if the journal is, or would be, more than 90 % full.
    fn reserve(&self, records: u64, bytes: u64) -> Result<Reservation>;

    /// Appends a record; it is not durable yet. The order of the appends is that of the positions. Without a reservation,
    /// or with one that is used up, it fails with [`Reaction::Retry`](weft_types::Reaction) if only reserved room is left.
    /// Fails with [`Reaction::InvalidInput`](weft_types::Reaction) if the payload is longer than
    /// [`record_bytes_max`](Self::record_bytes_max): [`RECORD_BYTES_MAX`] or 1/64 of the ring.
    fn append(&self, block: BlockId, bytes: &[u8], room: Option<&mut Reservation>) -> Result<Position> {
        self.append_shared(block, bytes, Tail::default(), room)
    }

    /// The same for a record whose payload ends with shared bytes, which are not copied.
    fn append_shared(&self, block: BlockId, bytes: &[u8], tail: Tail, room: Option<&mut Reservation>) -> Result<Position>;

    /// Begins to write bytes with which the payload of a record will end, while they arrive: little is left for the sync then. There is one
    /// such record at a time, and only while the journal has much room; otherwise `None`. Nothing is promised with it: until the record is
    /// appended, no one reads or replays any of it.
    fn begin_ahead(&self, len: usize) -> Option<Ahead>;

    /// Writes the next of these bytes. Returns false if they are not wanted: they are more than were announced, or another record was synced
    /// meanwhile. Then all of it was for nothing, and it may begin again.
    fn write_ahead(&self, ahead: &mut Ahead, bytes: &[u8]) -> Result<bool>;

    /// Returns once this record and all before it are durable. Callers that wait at the same time share one sync of the disk.
    /// A failed sync fails the journal and its disk for good.
    fn sync(&self, position: Position) -> Result<()>;

    /// The highest position that is known to be durable.
    fn durable(&self) -> Option<Position>;

    /// The payload of a record that is not released, whether it is durable or not. Fails with
    /// [`Reaction::NotFound`](weft_types::Reaction) if it is released, and with [`Reaction::Corrupt`](weft_types::Reaction) if
    /// the disk returns other bytes than were written.
    fn read(&self, position: Position) -> Result<Vec<u8>>;

    /// Frees records. Only when everything that makes a record needless is durable, it may be released. The positions of one
    /// call are released in ascending order. Those that are released already, or that never existed, are ignored.
    fn release(&self, positions: &[Position]);

    /// Returns once all releases before this call are durable, and whether any was not. Needless for most of them; but without it, releases
    /// wait for the next append, and the room that they free does, too. Fails with [`Reaction::Retry`](weft_types::Reaction) if the journal is so
    /// full that saying so could fill it.
    fn sync_releases(&self) -> Result<bool>;

    /// Makes releases durable if that frees room. Saying that a record is released takes room, too, and frees none while older records stay. Returns
    /// whether anything was written.
    fn free_room(&self) -> Result<bool>;

    /// The most bytes of a record's payload here.
    fn record_bytes_max(&self) -> usize;

    /// Calls `visit` for each record that is not released, in order, with its payload. Reads one record at a time. Ends at the
    /// first error, and returns it.
    fn replay(&self, visit: &mut Visit<'_>) -> Result<()>;

    /// How full the journal is, with what is reserved: 0 to 1.
    fn fill(&self) -> f64;

    /// Why the journal refuses appends, if it has failed.
    fn failed(&self) -> Option<String>;

    /// What it has done since it was opened.
    fn counts(&self) -> JournalCounts;
}

/// What a journal has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalCounts {
    /// Records that were appended.
    pub appends: u64,
    /// Those of them that were written while they arrived.
    pub records_ahead: u64,
    /// Batches that were synced.
    pub syncs: u64,
    /// Bytes of these batches, with what was written ahead of them.
    pub bytes_written: u64,
    /// Bytes that were written ahead in vain: another record came first, or theirs was given up. They count when their place is written again.
    pub bytes_wasted: u64,
    /// Bytes of live records that were copied from the tail to the head, because they stood in the way.
    pub bytes_copied: u64,
    /// Records that were read back, also by a replay.
    pub reads: u64,
}

/// Room in a journal. What is not used is given back when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    bytes: u64,
    reserved: Arc<AtomicU64>,
}

impl Reservation {
    /// Counts the room as reserved. The caller has checked that it is there.
    pub(crate) fn new(bytes: u64, reserved: &Arc<AtomicU64>) -> Self {
        reserved.fetch_add(bytes, Relaxed);
        Self { bytes, reserved: Arc::clone(reserved) }
    }

    /// The bytes of the ring that are left of it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes room for a record, if there is enough left.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let Some(left) = self.bytes.checked_sub(bytes) else { return false };
        self.reserved.fetch_sub(bytes, Relaxed);
        self.bytes = left;
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.bytes, Relaxed);
    }
}
