//! What could not be done at once, because the journal or the disk is full, or the process has too many files open. It stays as it is and
//! is tried again, in order.

use crate::{
    disk::Disk,
    open::Open,
    record::{Deltas, Stored},
    replay::{Held, Kept},
};
use std::collections::VecDeque;
use weft_store::{Ahead, Reservation};
use weft_types::{Error, Reaction, Result};
use weft_update::{Batch, Entry, Event};

/// An entry that the journal does not contain yet, and all that belongs to it.
#[derive(Debug)]
struct Waiting {
    entry: Entry,
    /// Those of [`Entry::Held`].
    deltas: Option<Deltas>,
    /// They are written to the journal already.
    ahead: Option<Ahead>,
    room: Option<Reservation>,
}

/// What waits at a block.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    entries: VecDeque<Waiting>,
    /// Its after-images are durable, and its pages are not written.
    batch: Option<Batch>,
}

impl Backlog {
    /// Whether any entry is not in the journal.
    pub(crate) fn has_entries(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Whether anything waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.batch.is_none()
    }
}

/// Whether what has failed may succeed later.
pub(crate) fn is_passing(error: &Error) -> bool {
    matches!(error.reaction, Reaction::Retry | Reaction::Unavailable)
}

impl Open {
    /// Appends an entry, behind those that wait.
    pub(crate) fn append(&mut self, entry: Entry, disk: &mut Disk) -> Result<()> {
        let (deltas, ahead, room) = match &entry {
            Entry::Held { record, .. } => self.deltas_of(record).map(|(deltas, ahead, room)| (Some(deltas), ahead, room))?,
            _ => (None, None, None),
        };
        self.backlog.entries.push_back(Waiting { entry, deltas, ahead, room });
        self.append_waiting(disk)
    }

    /// Appends the entries that wait, as far as there is room.
    fn append_waiting(&mut self, disk: &mut Disk) -> Result<()> {
        while let Some(mut waiting) = self.backlog.entries.pop_front() {
            if let Err(error) = self.append_one(&mut waiting, disk) {
                self.backlog.entries.push_front(waiting);
                return if is_passing(&error) { Ok(()) } else { Err(error) };
            }
        }
        Ok(())
    }

    /// If it fails, what waits is as it was.
    fn append_one(&mut self, waiting: &mut Waiting, disk: &mut Disk) -> Result<()> {
        let (stored, parts) = match &waiting.entry {
            Entry::Images(batch) => {
                let parts = self.journal_images(batch, disk)?;
                (Stored::Images(batch.clone(), parts.len() as u32), parts)
            }
            entry => (Stored::Entry(entry.clone(), waiting.deltas.take()), Vec::new()),
        };
        let position = disk.append_ahead(self.id, &stored, waiting.ahead.take(), waiting.room.as_mut());
        let position = position.inspect_err(|_| disk.journal.release(&parts));
        if let (Err(_), Stored::Entry(_, deltas)) = (&position, &stored) {
            waiting.deltas.clone_from(deltas);
        }
        let position = position?;
        if let Stored::Entry(Entry::Held { record, .. }, Some(deltas)) = &stored {
            let pieces = deltas.pieces.iter().map(|(stream, piece)| (*stream, piece.span())).collect();
            self.held.insert(record.id, Held { position, pieces, room: waiting.room.take() });
        }
        self.entries.push(Kept { position, entry: waiting.entry.clone(), parts: Some(parts), replaced_by: None });
        self.unsynced += 1;
        Ok(())
    }

    /// Copies the after-images of a batch to the pages.
    pub(crate) fn write_batch(&mut self, batch: Batch, events: &mut VecDeque<Event>, disk: &mut Disk) -> Result<()> {
        match self.write(&batch, disk) {
            Ok(()) => events.push_back(Event::Written),
            Err(error) if is_passing(&error) => self.backlog.batch = Some(batch),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Tries again what has waited.
    pub(crate) fn retry(&mut self, disk: &mut Disk, now_ms: u64) -> Result<()> {
        self.append_waiting(disk)?;
        let mut events = VecDeque::new();
        if let Some(batch) = self.backlog.batch.take() {
            self.write_batch(batch, &mut events, disk)?;
        }
        self.run(events, Vec::new(), disk, now_ms)
    }
}
