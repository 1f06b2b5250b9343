//! Keeps the outcomes of updates short in the journal. They are kept for ten minutes, and each record takes a sector of the ring at least,
//! so many records with few outcomes each are replaced by one with all of them.

use crate::{disk::Disk, open::Open, record::Stored, replay::Kept};
use weft_types::Result;
use weft_update::{Entry, Known};

/// So many records with few outcomes are replaced by one.
const FEW_RECORDS: usize = 16;
/// Fewer outcomes than these are few. So an outcome is written three times at most: alone, with 15 others, with 255 others.
const FEW_OUTCOMES: usize = Known::MAX / FEW_RECORDS * 2;

impl Open {
    /// Replaces records with few outcomes, if there are many.
    pub(crate) fn join_outcomes(&mut self, disk: &mut Disk) -> Result<()> {
        if self.backlog.has_entries() {
            return Ok(());
        }
        loop {
            let (mut few, mut all) = (Vec::new(), Vec::new());
            for (at, kept) in self.entries.iter().enumerate().filter(|(_, kept)| kept.replaced_by.is_none()) {
                let Entry::Known(known) = &kept.entry else { continue };
                if known.len() < FEW_OUTCOMES && all.len() + known.len() <= Known::MAX {
                    few.push(at);
                    all.extend(known.iter().filter(|known| self.machine.participant().remembers(known.id)).copied());
                }
            }
            if few.len() < FEW_RECORDS {
                return Ok(());
            }
            let entry = Entry::Known(all);
            let position = disk.append(self.id, &Stored::Entry(entry.clone(), None), None)?;
            for at in few {
                self.entries[at].replaced_by = Some(position);
            }
            self.entries.push(Kept { position, entry, parts: Some(Vec::new()), replaced_by: None });
            self.is_stale = true;
        }
    }
}
