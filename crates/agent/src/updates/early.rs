//! Loads of which a part is used before the rest is there: at their origin, slices leave while the delta is computed; at a relay, the disk
//! takes them as they come.

use super::{
    Hub,
    loads::{Announced, Cut, Load, Loads, Progress, Slice, Stage, own},
};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use weft_proto::updates::{LoadHead, LoadId, LoadPart, Route};
use weft_types::{BlockId, Span};
use weft_update::UpdateId;
use weft_updater::{Piece, Pieces, TakeParts};

/// Of longer loads, the disk takes the slices as they come.
pub(super) const EARLY_LOAD_MIN: u64 = 128 << 10;
/// The bytes that it takes at a time.
const EARLY_BYTES: usize = 128 << 10;
/// It takes no slices of this load.
const NEVER: usize = usize::MAX;
/// So many bytes of a delta are computed before they leave; one slice at least.
const DEPARTING_BYTES: u64 = 128 << 10;

impl Load {
    /// The slices that the disk is to take now.
    pub(crate) fn take_early(&self) -> Vec<Slice> {
        let is_early = self.head.parts.len() == 1 && self.head.bytes() >= EARLY_LOAD_MIN && self.slices() > 1;
        let progress = self.progress.borrow();
        let Some(slices) = progress.slices.get(self.early.load(Relaxed)..).filter(|_| is_early) else { return Vec::new() };
        let bytes: usize = slices.iter().flat_map(|slice| slice.iter()).map(|cut| cut.bytes().len()).sum();
        if bytes < EARLY_BYTES && progress.slices.len() < self.slices() {
            return Vec::new();
        }
        self.early.store(progress.slices.len(), Relaxed);
        slices.to_vec()
    }

    /// The disk cannot take its slices.
    pub(crate) fn refuse_early(&self) {
        self.early.store(NEVER, Relaxed);
    }

    /// Whether the disk has taken its slices.
    pub(crate) fn is_early(&self) -> bool {
        !matches!(self.early.load(Relaxed), 0 | NEVER)
    }

    /// At the origin: the next bytes of its only delta, whole slices or the last ones.
    pub(super) fn push(&self, piece: &Arc<Piece>) {
        self.progress.send_modify(|progress| {
            let covered = |range: &LoadPart| piece.span().contains(Span::new(range.start, range.start + range.len));
            loop {
                let ranges = self.head.slice(progress.slices.len());
                if ranges.is_empty() || !ranges.iter().all(covered) {
                    break;
                }
                progress.slices.push(ranges.into_iter().map(|range| Cut::new(range, piece)).collect());
            }
        });
    }
}

impl Loads {
    /// A delta begins to travel of which nothing is known yet but its range.
    pub(super) fn begin_empty(&self, id: LoadId, head: LoadHead) -> Option<Arc<Load>> {
        self.begin_with(id, head, Progress::default(), Announced::new())
    }

    /// The last load of an update that began [empty](Self::begin_empty), if it consists of these deltas and is complete. What is announced to blocks
    /// that it did not reach is returned with it, and must go straight.
    pub(super) fn announce(
        &self,
        (from, id): (BlockId, UpdateId),
        parts: &[LoadPart],
        announced: &Announced,
    ) -> Option<(Arc<Load>, Announced)> {
        let mut state = self.lock();
        let (_, entry) = state.entries.range_mut(own(from, id)).rev().find(|((_, at), _)| *at == from)?;
        let Stage::Here(load) = &entry.stage else { return None };
        if !entry.announced.is_empty() || !load.is_complete() || load.head.parts != parts {
            return None;
        }
        let (missed, others) = announced.clone().into_iter().partition(|(block, _)| entry.missed.contains(block));
        entry.announced = others;
        Some((Arc::clone(load), missed))
    }
}

impl Hub {
    /// Takes the parts of an update's delta and sends them over its route, if that is worth it; with the bytes of a part. They wait for their
    /// messages where they arrive.
    pub(super) fn departing(&self, (from, id): (BlockId, UpdateId), route: &Route, new: &Pieces) -> Option<(u64, TakeParts)> {
        let is_worth_it = new.len() == 1 && super::bytes_of(new) as u64 >= EARLY_LOAD_MIN;
        let route = super::carry::with_slices(route.clone(), super::bytes_of(new) as u64);
        if !is_worth_it || route.in_turn || route.check(from).is_err() {
            return None;
        }
        let slice_len = u64::from(route.slice_len);
        let part_len = (DEPARTING_BYTES / slice_len).max(1) * slice_len;
        let (hub, mut load): (_, Option<Arc<Load>>) = (self.me.clone(), None);
        let take = move |stream: u8, whole: Span, piece: Arc<Piece>| {
            let Some(hub) = hub.upgrade() else { return };
            if piece.start == whole.start {
                let parts = vec![LoadPart { stream, start: whole.start, len: whole.len() }];
                // What has left before is not used.
                hub.loads.ended(from, id);
                let (head, attempt) = (LoadHead { route: route.clone(), parts }, hub.next_attempt());
                load = hub.loads.begin_empty(LoadId { from, id, attempt }, head);
                load.iter().for_each(|load| hub.pass_on(load));
            }
            if let Some(load) = &load {
                load.push(&piece);
            }
        };
        Some((part_len, Box::new(take)))
    }
}
