//! The records of the journal: what a block's entries look like on the disk. `docs/formats.md` describes the format.
//!
//! A record is a version, a head in postcard, and raw bytes: the deltas of an update, or after-images. The encoded structures are
//! private to this file, so the types of the protocol can change while existing journals stay readable. After-images are records of their
//! own, one for each unit (1 MiB) that changes, and stand before the entry that names them: if a crash has left the entry, it has left them.

use crate::piece::{Piece, Pieces};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_store::{RECORD_BYTES_MAX, SharedBytes};
use weft_types::{BlockId, Error, PAGE_LEN, Result, Span, StripeId, crc32c};
use weft_update::{Batch, Delta, Entry, Incarnation, Known, Outcome, Part, Record, Session, UpdateId, Vector};

/// The newest version.
const VERSION: u8 = 1;

/// The deltas of a held record for one block, and what follows from them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Deltas {
    /// The hash of the generator from which the coefficients follow, with the block's index.
    pub(crate) generator_hash: u64,
    /// By stream.
    pub(crate) pieces: Pieces,
    pub(crate) unit_changes: UnitChanges,
}

/// What each delta adds to the CRC32C of the units of the block, by stream and unit.
pub(crate) type UnitChanges = BTreeMap<(u8, u32), u32>;

/// What a page contains after a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageImage {
    /// The page's number in the block.
    pub(crate) number: u64,
    /// Its CRC32C.
    pub(crate) crc: u32,
    /// Its bytes: a whole page, or less at the end of the block.
    pub(crate) bytes: Vec<u8>,
}

/// A record of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stored {
    /// An entry of the protocol; with the deltas if it is [`Entry::Held`].
    Entry(Entry, Option<Deltas>),
    /// [`Entry::Images`], and how many of the records of the same block just before it contain its after-images.
    Images(Batch, u32),
    /// After-images.
    Pages(Vec<PageImage>),
}

impl Stored {
    /// The record's bytes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let (mut bytes, deltas) = self.encode_shared()?;
        deltas.iter().for_each(|delta| bytes.extend_from_slice((**delta).as_ref()));
        Ok(bytes)
    }

    /// The record's bytes without its deltas, which follow them, and these.
    pub(crate) fn encode_shared(&self) -> Result<(Vec<u8>, Vec<SharedBytes>)> {
        let (head, raw, shared): (Head, Vec<&[u8]>, Vec<SharedBytes>) = match self {
            Self::Entry(entry, deltas) => {
                let pieces = deltas.iter().flat_map(|deltas| deltas.pieces.values());
                let shared = pieces.map(|piece| Arc::clone(piece) as SharedBytes).collect();
                (Head::of(entry, deltas.as_ref()), Vec::new(), shared)
            }
            Self::Images(batch, records) => (Head::Images(to_batch(batch, *records)), Vec::new(), Vec::new()),
            Self::Pages(pages) => {
                let head = pages.iter().map(|page| (page.number, page.bytes.len() as u32, page.crc)).collect();
                (Head::Pages(head), pages.iter().map(|page| page.bytes.as_slice()).collect(), Vec::new())
            }
        };
        let fail = |error: postcard::Error| Error::fatal(format!("cannot encode a record of the journal: {error}"));
        let mut bytes = postcard::to_extend(&head, vec![VERSION]).map_err(fail)?;
        raw.into_iter().for_each(|raw| bytes.extend_from_slice(raw));
        let len = bytes.len() + shared.iter().map(|bytes| (**bytes).as_ref().len()).sum::<usize>();
        if len > RECORD_BYTES_MAX {
            return Err(Error::invalid(format!("a record of {len} bytes is too large for the journal")));
        }
        Ok((bytes, shared))
    }

    /// Decodes a record of this version. Accepts any bytes and never panics.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::corrupt("a record of the journal is invalid");
        let (version, rest) = bytes.split_first().ok_or_else(wrong)?;
        if *version != VERSION {
            return Err(Error::fatal(format!(
                "a record of the journal has version {version}, but this program reads version {VERSION}: use a newer weft"
            )));
        }
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(wrong());
        }
        let (head, raw) = postcard::take_from_bytes::<Head>(rest).map_err(|_| wrong())?;
        head.read(raw).ok_or_else(wrong)
    }
}

/// The head of a record.
#[derive(Serialize, Deserialize)]
enum Head {
    Opened {
        term: u64,
        members: Vec<StoredBlock>,
    },
    Term(u64),
    Fence {
        stream: u8,
        incarnation: StoredLife,
    },
    Held(StoredHeld),
    Refused(StoredRecord),
    Watermark {
        stream: u8,
        term: u64,
        number: u64,
    },
    Images(StoredBatch),
    Known(Vec<StoredOutcomes>),
    Floor {
        session: (u64, u64),
        counter: u64,
    },
    Fenced,
    Joining(StoredVector),
    Rebuilt(StoredVector),
    /// Number, length and CRC32C of each page.
    Pages(Vec<(u64, u32, u32)>),
}

/// Stripe, index, copy, generation.
type StoredBlock = (u64, u8, u8, u32);
/// Number and end of the session, counter, lead block.
type StoredId = (u64, u64, u64, u8);
/// Generation, term, starts.
type StoredLife = (u32, u64, u32);
/// Number of each stream.
type StoredVector = Vec<(u8, u64)>;

/// Outcomes of updates of one session. There may be millions, so they are short.
#[derive(Serialize, Deserialize)]
struct StoredOutcomes {
    session: (u64, u64),
    /// The earliest time.
    at_ms: u64,
    /// Counter, lead block, whether it is committed, time since the earliest one.
    updates: Vec<(u64, u8, bool, u64)>,
}

#[derive(Serialize, Deserialize)]
struct StoredRecord {
    id: StoredId,
    term: u64,
    participants: Vec<StoredBlock>,
    parts: Vec<StoredPart>,
}

#[derive(Serialize, Deserialize)]
struct StoredPart {
    stream: u8,
    number: u64,
    incarnation: StoredLife,
    positions: (u64, u64),
}

#[derive(Serialize, Deserialize)]
struct StoredHeld {
    record: StoredRecord,
    /// Stream and CRC32C.
    crcs: Vec<(u8, u32)>,
    generator_hash: u64,
    /// Stream, offset in the data block, length.
    deltas: Vec<(u8, u64, u32)>,
    /// Stream, unit and change.
    unit_changes: Vec<(u8, u32, u32)>,
}

#[derive(Serialize, Deserialize)]
struct StoredBatch {
    applied: StoredVector,
    /// Stream, number and update.
    deltas: Vec<(u8, u64, StoredId)>,
    /// Positions, and places in `deltas`.
    merged: Vec<((u64, u64), Vec<u32>)>,
    /// The records just before this one that contain the after-images.
    records: u32,
}

impl Head {
    fn of(entry: &Entry, deltas: Option<&Deltas>) -> Self {
        match entry {
            Entry::Opened { term, members } => Self::Opened { term: *term, members: members.iter().map(to_block).collect() },
            Entry::Term(term) => Self::Term(*term),
            Entry::Fence { stream, incarnation } => Self::Fence { stream: *stream, incarnation: to_incarnation(*incarnation) },
            Entry::Held { record, crcs } => {
                let pieces = deltas.iter().flat_map(|deltas| &deltas.pieces);
                let unit_changes = deltas.iter().flat_map(|deltas| &deltas.unit_changes);
                Self::Held(StoredHeld {
                    record: to_record(record),
                    crcs: crcs.iter().map(|(stream, crc)| (*stream, *crc)).collect(),
                    generator_hash: deltas.map_or(0, |deltas| deltas.generator_hash),
                    deltas: pieces.map(|(stream, piece)| (*stream, piece.start, piece.bytes.len() as u32)).collect(),
                    unit_changes: unit_changes.map(|((stream, unit), crc)| (*stream, *unit, *crc)).collect(),
                })
            }
            Entry::Refused(record) => Self::Refused(to_record(record)),
            Entry::Watermark { stream, term, number } => Self::Watermark { stream: *stream, term: *term, number: *number },
            Entry::Images(batch) => Self::Images(to_batch(batch, 0)),
            Entry::Known(known) => Self::Known(to_outcomes(known)),
            Entry::Floor { session, counter } => Self::Floor { session: (session.number, session.ends_at_ms), counter: *counter },
            Entry::Fenced => Self::Fenced,
            Entry::Joining(vector) => Self::Joining(to_vector(vector)),
            Entry::Rebuilt(vector) => Self::Rebuilt(to_vector(vector)),
        }
    }

    /// `None` if it is invalid, or if the raw bytes do not fit it.
    fn read(self, raw: &[u8]) -> Option<Stored> {
        let entry = match self {
            Self::Held(held) => return held.read(raw),
            Self::Pages(pages) => return read_pages(&pages, raw),
            _ if !raw.is_empty() => return None,
            Self::Images(batch) => return from_batch(batch),
            Self::Opened { term, members } => Entry::Opened { term, members: members.into_iter().map(from_block).collect() },
            Self::Term(term) => Entry::Term(term),
            Self::Fence { stream, incarnation } => Entry::Fence { stream, incarnation: from_incarnation(incarnation) },
            Self::Refused(record) => Entry::Refused(Arc::new(from_record(record)?)),
            Self::Watermark { stream, term, number } => Entry::Watermark { stream, term, number },
            Self::Known(known) => Entry::Known(from_outcomes(&known)?),
            Self::Floor { session: (number, ends_at_ms), counter } => {
                Entry::Floor { session: Session { number, ends_at_ms }, counter }
            }
            Self::Fenced => Entry::Fenced,
            Self::Joining(vector) => Entry::Joining(vector.into_iter().collect()),
            Self::Rebuilt(vector) => Entry::Rebuilt(vector.into_iter().collect()),
        };
        Some(Stored::Entry(entry, None))
    }
}

impl StoredHeld {
    fn read(self, raw: &[u8]) -> Option<Stored> {
        let record = Arc::new(from_record(self.record)?);
        let (mut pieces, mut rest) = (Pieces::new(), raw);
        for (stream, start, len) in self.deltas {
            let (bytes, behind) = rest.split_at_checked(len as usize)?;
            start.checked_add(u64::from(len))?;
            let piece = Piece { start, bytes: bytes.to_vec().into() };
            let is_new = len > 0 && record.part(stream).is_some() && pieces.insert(stream, Arc::new(piece)).is_none();
            rest = is_new.then_some(behind)?;
        }
        let unit_changes = self.unit_changes.into_iter().map(|(stream, unit, crc)| ((stream, unit), crc)).collect();
        let deltas = Deltas { generator_hash: self.generator_hash, pieces, unit_changes };
        let entry = Entry::Held { record, crcs: self.crcs.into_iter().collect() };
        rest.is_empty().then_some(Stored::Entry(entry, Some(deltas)))
    }
}

fn read_pages(pages: &[(u64, u32, u32)], mut raw: &[u8]) -> Option<Stored> {
    let mut images = Vec::new();
    for (number, len, crc) in pages {
        let (bytes, behind) = raw.split_at_checked(*len as usize)?;
        let is_page = (1..=PAGE_LEN).contains(&u64::from(*len)) && number.checked_add(1)?.checked_mul(PAGE_LEN).is_some();
        if !is_page || crc32c(bytes) != *crc {
            return None;
        }
        images.push(PageImage { number: *number, crc: *crc, bytes: bytes.to_vec() });
        raw = behind;
    }
    raw.is_empty().then_some(Stored::Pages(images))
}

fn to_block(block: &BlockId) -> StoredBlock {
    (block.stripe.0, block.index, block.copy, block.generation)
}

fn from_block((stripe, index, copy, generation): StoredBlock) -> BlockId {
    BlockId { stripe: StripeId(stripe), index, copy, generation }
}

fn to_vector(vector: &Vector) -> StoredVector {
    vector.iter().map(|(stream, number)| (*stream, *number)).collect()
}

fn to_id(id: UpdateId) -> StoredId {
    (id.session.number, id.session.ends_at_ms, id.counter, id.lead)
}

fn from_id((number, ends_at_ms, counter, lead): StoredId) -> UpdateId {
    UpdateId { session: Session { number, ends_at_ms }, counter, lead }
}

fn to_outcomes(known: &[Known]) -> Vec<StoredOutcomes> {
    let mut sessions: BTreeMap<Session, Vec<&Known>> = BTreeMap::new();
    known.iter().for_each(|known| sessions.entry(known.id.session).or_default().push(known));
    let of_session = |(session, known): (Session, Vec<&Known>)| {
        let at_ms = known.iter().map(|known| known.at_ms).min().unwrap_or(0);
        let update = |it: &&Known| (it.id.counter, it.id.lead, it.outcome == Outcome::Committed, it.at_ms - at_ms);
        let updates = known.iter().map(update).collect();
        StoredOutcomes { session: (session.number, session.ends_at_ms), at_ms, updates }
    };
    sessions.into_iter().map(of_session).collect()
}

/// `None` if a time is impossible.
fn from_outcomes(stored: &[StoredOutcomes]) -> Option<Vec<Known>> {
    let mut known = Vec::new();
    for StoredOutcomes { session: (number, ends_at_ms), at_ms, updates } in stored {
        for (counter, lead, is_committed, later_ms) in updates {
            let session = Session { number: *number, ends_at_ms: *ends_at_ms };
            let id = UpdateId { session, counter: *counter, lead: *lead };
            let outcome = if *is_committed { Outcome::Committed } else { Outcome::Aborted };
            known.push(Known { id, outcome, at_ms: at_ms.checked_add(*later_ms)? });
        }
    }
    Some(known)
}

fn to_incarnation(incarnation: Incarnation) -> StoredLife {
    (incarnation.generation, incarnation.opened, incarnation.starts)
}

fn from_incarnation((generation, opened, starts): StoredLife) -> Incarnation {
    Incarnation { generation, opened, starts }
}

fn to_record(record: &Record) -> StoredRecord {
    let part = |part: &Part| StoredPart {
        stream: part.stream,
        number: part.number,
        incarnation: to_incarnation(part.incarnation),
        positions: (part.span.start, part.span.end),
    };
    StoredRecord {
        id: to_id(record.id),
        term: record.term,
        participants: record.participants.iter().map(to_block).collect(),
        parts: record.parts.iter().map(part).collect(),
    }
}

/// `None` without parts: the first one names the leader.
fn from_record(stored: StoredRecord) -> Option<Record> {
    let part = |part: StoredPart| Part {
        stream: part.stream,
        number: part.number,
        incarnation: from_incarnation(part.incarnation),
        span: Span::new(part.positions.0, part.positions.1),
    };
    (!stored.parts.is_empty()).then(|| Record {
        id: from_id(stored.id),
        term: stored.term,
        participants: stored.participants.into_iter().map(from_block).collect(),
        parts: stored.parts.into_iter().map(part).collect(),
    })
}

fn to_batch(batch: &Batch, records: u32) -> StoredBatch {
    let all: BTreeSet<Delta> = batch.merged.iter().flat_map(|(_, deltas)| deltas.iter().copied()).collect();
    let places: BTreeMap<Delta, u32> = all.iter().copied().zip(0..).collect();
    let merged = |(span, deltas): &(Span, Vec<Delta>)| {
        ((span.start, span.end), deltas.iter().filter_map(|delta| places.get(delta)).copied().collect())
    };
    StoredBatch {
        applied: to_vector(&batch.applied),
        deltas: all.iter().map(|delta| (delta.stream, delta.number, to_id(delta.id))).collect(),
        merged: batch.merged.iter().map(merged).collect(),
        records,
    }
}

/// `None` if it names a delta that is not there.
fn from_batch(stored: StoredBatch) -> Option<Stored> {
    let all: Vec<Delta> =
        stored.deltas.into_iter().map(|(stream, number, id)| Delta { stream, number, id: from_id(id) }).collect();
    let merged = |((start, end), places): ((u64, u64), Vec<u32>)| {
        let deltas: Option<Vec<Delta>> = places.into_iter().map(|place| all.get(place as usize).copied()).collect();
        Some((Span::new(start, end), deltas?))
    };
    let merged: Option<Vec<_>> = stored.merged.into_iter().map(merged).collect();
    let batch = Batch { applied: stored.applied.into_iter().collect(), merged: merged? };
    Some(Stored::Images(batch, stored.records))
}

/// For the fuzzer: decodes any bytes, and encodes what it has read. Returns whether they are a record.
#[doc(hidden)]
pub fn fuzz_record(bytes: &[u8]) -> bool {
    let Ok(stored) = Stored::decode(bytes) else { return false };
    let again = stored.encode().and_then(|bytes| Stored::decode(&bytes));
    // Outcomes are written by session.
    let is_same = match (&stored, again.as_ref()) {
        (Stored::Entry(Entry::Known(one), _), Ok(Stored::Entry(Entry::Known(other), _))) => {
            let sorted = |known: &[Known]| BTreeSet::from_iter(known.iter().map(|it| (it.id, it.outcome, it.at_ms)));
            one.len() == other.len() && sorted(one) == sorted(other)
        }
        (stored, again) => again == Ok(stored),
    };
    assert!(is_same, "a record changes when it is written again");
    true
}

#[cfg(test)]
mod tests;
