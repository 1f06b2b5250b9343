//! What the journal contains for a block: as it is appended, and as a restart finds it.

use crate::record::Stored;
use std::collections::BTreeMap;
use weft_store::{Position, Reservation};
use weft_types::Span;
use weft_update::{Batch, Entry, UpdateId};

/// An entry that the journal contains.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) position: Position,
    pub(crate) entry: Entry,
    /// The after-images of [`Entry::Images`]; `None` if the journal does not contain all of them.
    pub(crate) parts: Option<Vec<Position>>,
    /// Another entry that contains all of this one that is still needed, and makes it needless once it is durable.
    pub(crate) replaced_by: Option<Position>,
}

impl Kept {
    /// All its records. If a crash undoes the release of some of them only, nothing is missed: the sidecar names the batch.
    pub(crate) fn positions(&self) -> impl Iterator<Item = Position> + '_ {
        [self.position].into_iter().chain(self.parts.iter().flatten().copied())
    }
}

/// A held record.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) position: Position,
    /// The bytes of each data block that its deltas change.
    pub(crate) pieces: Vec<(u8, Span)>,
    /// Room for after-images; given back by being dropped.
    pub(crate) room: Option<Reservation>,
}

/// What the journal contains for a block.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) entries: Vec<Kept>,
    pub(crate) held: BTreeMap<UpdateId, Held>,
    /// After-images since the last entry of any.
    pub(crate) parts: Vec<Position>,
    /// After-images without their entry.
    pub(crate) orphans: Vec<Position>,
}

impl Replayed {
    pub(crate) fn add(&mut self, position: Position, stored: Stored) {
        let (entry, deltas) = match stored {
            Stored::Entry(entry, deltas) => (entry, deltas),
            Stored::Images(batch, records) => return self.add_images(position, batch, records as usize),
            Stored::Pages(_) => return self.parts.push(position),
        };
        if let (Entry::Held { record, .. }, Some(deltas)) = (&entry, deltas) {
            let pieces = deltas.pieces.iter().map(|(stream, piece)| (*stream, piece.span())).collect();
            self.held.insert(record.id, Held { position, pieces, room: None });
        }
        self.entries.push(Kept { position, entry, parts: Some(Vec::new()), replaced_by: None });
    }

    /// Its after-images are those just before it. Earlier ones without an entry are of a batch whose entry a crash has lost, or whose
    /// release it has undone: they must not be copied.
    fn add_images(&mut self, position: Position, batch: Batch, records: usize) {
        let parts = self.parts.len().checked_sub(records).map(|first| self.parts.split_off(first));
        self.orphans.append(&mut self.parts);
        self.entries.push(Kept { position, entry: Entry::Images(batch), parts, replaced_by: None });
    }

    /// All positions.
    pub(crate) fn positions(&self) -> Vec<Position> {
        self.entries.iter().flat_map(Kept::positions).chain(self.parts.iter().chain(&self.orphans).copied()).collect()
    }

    /// Whether it begins as a block's journal does.
    pub(crate) fn is_opened(&self) -> bool {
        self.entries.iter().any(|kept| matches!(kept.entry, Entry::Opened { .. }))
    }
}
