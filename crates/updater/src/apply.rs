//! Applying updates to a block's pages: after-images into the journal, then into the store.

use crate::{
    content::add,
    disk::Disk,
    fault::{Rule, dropped},
    open::Open,
    piece::Piece,
    record::{PageImage, Stored, UnitChanges},
    shape::pages_of,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_store::{Image, Patch, Position};
use weft_types::{CHECKSUM_UNIT_LEN, Error, PAGE_LEN, PAGES_PER_UNIT, Result, Seq, Span, crc32c, crc32c_joined};
use weft_update::{Batch, Delta, Entry};

/// Deltas that were read from the journal: a long one changes many units.
#[derive(Default)]
struct Loaded {
    deltas: BTreeMap<Delta, (Arc<Piece>, UnitChanges)>,
    bytes: usize,
}

/// The most bytes of them; one delta at least.
const LOADED_BYTES_MAX: usize = 32 << 20;

impl Loaded {
    fn get(
        &mut self,
        delta: &Delta,
        load: impl FnOnce() -> Result<(Arc<Piece>, UnitChanges)>,
    ) -> Result<&(Arc<Piece>, UnitChanges)> {
        if !self.deltas.contains_key(delta) {
            let loaded = load()?;
            let bytes = loaded.0.bytes.len();
            if self.bytes + bytes > LOADED_BYTES_MAX {
                *self = Self::default();
            }
            self.bytes += bytes;
            self.deltas.insert(*delta, loaded);
        }
        self.deltas.get(delta).ok_or_else(|| Error::fatal("a delta that was read is gone"))
    }
}

impl Open {
    /// Journals the after-images of a batch, in records of one unit or less. All deltas of a page are added in one pass.
    pub(crate) fn journal_images(&mut self, batch: &Batch, disk: &mut Disk) -> Result<Vec<Position>> {
        let by_unit = self.deltas_by_unit(batch)?;
        // The room of these updates: no other append takes it in between.
        for delta in deltas_of(batch) {
            if let Some(held) = self.held.get_mut(&delta.id) {
                held.room = None;
            }
        }
        let (mut positions, mut loaded) = (Vec::new(), Loaded::default());
        for (unit, deltas) in by_unit {
            if let Err(error) = self.journal_unit((unit, &deltas, &mut loaded), batch, &mut positions, disk) {
                // All of them are journalled again, or none is needed.
                disk.journal.release(&positions);
                return Err(error);
            }
        }
        Ok(positions)
    }

    fn journal_unit(
        &mut self,
        (unit, deltas, loaded): (u64, &[Delta], &mut Loaded),
        batch: &Batch,
        positions: &mut Vec<Position>,
        disk: &mut Disk,
    ) -> Result<()> {
        let pages = self.images_of(unit, deltas, loaded, disk)?;
        if dropped(Rule::ImagesFirst) {
            return self.patch(&pages, batch, disk);
        }
        for pages in pages.chunks(disk.pages_of_record()) {
            positions.push(disk.append(self.id, &Stored::Pages(pages.to_vec()), None)?);
        }
        Ok(())
    }

    /// The deltas of a batch that change each unit.
    fn deltas_by_unit(&self, batch: &Batch) -> Result<BTreeMap<u64, Vec<Delta>>> {
        let mut by_unit: BTreeMap<u64, Vec<Delta>> = BTreeMap::new();
        for delta in deltas_of(batch) {
            let units = pages_of(&self.touched_by(&delta)?).into_iter().map(|page| page / PAGES_PER_UNIT as u64);
            units.collect::<BTreeSet<u64>>().into_iter().for_each(|unit| by_unit.entry(unit).or_default().push(delta));
        }
        Ok(by_unit)
    }

    fn touched_by(&self, delta: &Delta) -> Result<Vec<Span>> {
        let missing =
            || Error::corrupt(format!("the journal does not contain the delta of update {}", delta.number)).block(self.id);
        let held = self.held.get(&delta.id).ok_or_else(missing)?;
        let (_, bytes) = held.pieces.iter().find(|(stream, _)| *stream == delta.stream).ok_or_else(missing)?;
        Ok(self.shape.touched(delta.stream, *bytes))
    }

    /// The pages of a unit after these deltas, checked against the CRC32C that the records say it has then.
    fn images_of(&self, unit: u64, deltas: &[Delta], loaded: &mut Loaded, disk: &Disk) -> Result<Vec<PageImage>> {
        let range = Span::new(unit * CHECKSUM_UNIT_LEN, ((unit + 1) * CHECKSUM_UNIT_LEN).min(self.shape.len()));
        let mut numbers = BTreeSet::new();
        for delta in deltas {
            let within = self.touched_by(delta)?.into_iter().map(|span| span.intersect(range)).collect::<Vec<_>>();
            numbers.extend(pages_of(&within));
        }
        let mut pages: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for number in numbers {
            let mut bytes = vec![0; ((number + 1) * PAGE_LEN).min(range.end).saturating_sub(number * PAGE_LEN) as usize];
            self.reader.read_at(number * PAGE_LEN, &mut bytes)?;
            pages.insert(number, bytes);
        }
        let mut expected = self.reader.units().get(unit as usize).copied().unwrap_or(0);
        for delta in deltas {
            let (piece, unit_changes) = loaded.get(delta, || self.delta(delta, disk))?;
            self.shape.changes(delta.stream, piece, range, |offset, change| add_to_pages(&mut pages, offset, change));
            expected ^= unit_changes.get(&(delta.stream, unit as u32)).copied().unwrap_or(0);
        }
        let image = |(number, bytes): (u64, Vec<u8>)| PageImage { number, crc: crc32c(&bytes), bytes };
        let images: Vec<PageImage> = pages.into_iter().map(image).collect();
        let content = self.unit_crc(range, &images);
        if content != expected {
            let what =
                format!("unit {unit} has the checksum {content:08x} after its updates, and not {expected:08x} as they say");
            return Err(Error::corrupt(what).block(self.id));
        }
        Ok(images)
    }

    /// The CRC32C of a unit with these pages in place of the stored ones.
    fn unit_crc(&self, range: Span, images: &[PageImage]) -> u32 {
        let mut images = images.iter().peekable();
        let first = range.start / PAGE_LEN;
        (first..range.end.div_ceil(PAGE_LEN)).fold(0, |unit, number| {
            let stored = self.reader.pages().get(number as usize).copied().unwrap_or(0);
            let crc = images.next_if(|image| image.number == number).map_or(stored, |image| image.crc);
            crc32c_joined(unit, crc, ((number + 1) * PAGE_LEN).min(range.end) - number * PAGE_LEN)
        })
    }

    /// Copies the after-images of a batch from the journal to the store, all in one patch: of two, a crash in the second would leave a
    /// sidecar that refuses the first.
    pub(crate) fn write(&mut self, batch: &Batch, disk: &mut Disk) -> Result<()> {
        let is_this = |kept: &&crate::replay::Kept| matches!(&kept.entry, Entry::Images(other) if other == batch);
        let missing = || Error::corrupt("the journal does not contain the after-images of a batch").block(self.id);
        let parts = self.entries.iter().rev().find(is_this).and_then(|kept| kept.parts.clone()).ok_or_else(missing)?;
        let mut all = Vec::new();
        for position in parts {
            let Stored::Pages(pages) = disk.read(position)? else {
                return Err(Error::corrupt("the journal has another record in place of after-images").block(self.id));
            };
            if dropped(Rule::OnePatch) && !all.is_empty() {
                self.patch_with(&all, self.reader.meta().seq.clone(), disk)?;
                all.clear();
            }
            all.extend(pages);
        }
        if dropped(Rule::RedoCopies) && self.is_restarting {
            all.clear();
            for (unit, deltas) in self.deltas_by_unit(batch)? {
                all.extend(self.images_of(unit, &deltas, &mut Loaded::default(), disk)?);
            }
        }
        self.patch(&all, batch, disk)
    }

    fn patch(&mut self, pages: &[PageImage], batch: &Batch, disk: &Disk) -> Result<()> {
        let seq = &self.reader.meta().seq;
        // The counts of other streams are those of the term's beginning. The term is raised when the block is settled.
        let before = |stream: u8| seq.counts().get(usize::from(stream)).copied().unwrap_or(0);
        let count = |stream| batch.applied.get(&stream).copied().unwrap_or_else(|| before(stream));
        let counts = (0..self.shape.dependence.k).map(count).collect();
        self.patch_with(pages, Seq::new(seq.term(), counts), disk)
    }

    fn patch_with(&mut self, pages: &[PageImage], seq: Seq, disk: &Disk) -> Result<()> {
        let runs = runs_of(pages);
        let images: Vec<Image<'_>> = runs.iter().map(|(offset, bytes)| Image { offset: *offset, bytes }).collect();
        let data_len = self.reader.meta().stripe.data_len;
        disk.store.patch(&Patch { id: self.id, images: &images, seq, data_len })?;
        self.reader = disk.store.open(self.id)?;
        Ok(())
    }
}

/// Pages that follow one another are written at once.
fn runs_of(pages: &[PageImage]) -> Vec<(u64, Vec<u8>)> {
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for page in pages {
        let offset = page.number * PAGE_LEN;
        match runs.last_mut() {
            Some((start, bytes)) if *start + bytes.len() as u64 == offset => bytes.extend_from_slice(&page.bytes),
            _ => runs.push((offset, page.bytes.clone())),
        }
    }
    runs
}

/// The deltas of a batch, each once.
fn deltas_of(batch: &Batch) -> BTreeSet<Delta> {
    batch.merged.iter().flat_map(|(_, deltas)| deltas.iter().copied()).collect()
}

/// Adds a change to those pages that are there.
fn add_to_pages(pages: &mut BTreeMap<u64, Vec<u8>>, mut offset: u64, mut change: &[u8]) {
    while !change.is_empty() {
        let (number, within) = (offset / PAGE_LEN, (offset % PAGE_LEN) as usize);
        let (part, rest) = change.split_at(change.len().min(PAGE_LEN as usize - within));
        if let Some(page) = pages.get_mut(&number).and_then(|page| page.get_mut(within..within + part.len())) {
            add(page, part);
        }
        (offset, change) = (offset + part.len() as u64, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_update::{Session, UpdateId};

    #[test]
    fn a_delta_is_read_once_for_all_units_that_it_changes() {
        let delta = |number: u64| {
            let id = UpdateId { session: Session { number: 1, ends_at_ms: 9 }, counter: number, lead: 0 };
            Delta { stream: 0, number, id }
        };
        let (mut loaded, mut loads) = (Loaded::default(), 0);
        let mut get = |number: u64, len: usize| {
            let load = || {
                loads += 1;
                Ok((Arc::new(Piece { start: number, bytes: vec![1; len].into() }), UnitChanges::new()))
            };
            assert_eq!(loaded.get(&delta(number), load).unwrap().0.start, number);
            (loads, loaded.bytes)
        };
        assert_eq!([get(1, 10), get(2, 20), get(1, 10), get(2, 20)], [(1, 10), (2, 30), (2, 30), (2, 30)]);
        assert_eq!(get(3, LOADED_BYTES_MAX), (3, LOADED_BYTES_MAX), "memory is bounded");
        assert_eq!(get(1, 10), (4, 10));
    }
}
