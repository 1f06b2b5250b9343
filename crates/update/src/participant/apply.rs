//! Applying committed updates to a block's pages, and trimming their records.
//!
//! A batch: the after-images of all its pages are journalled first; when they are durable, pages are written, then the sidecar. A restart
//! in between copies the after-images again, whatever the pages contain. The sidecar's counts say which updates the pages contain.

use super::{Applying, Kept, Participant};
use crate::{
    block::Action,
    mutation::{Rule, dropped},
    types::{Batch, Claim, Delta, Entry, Known, Outcome, Part, Record, UpdateId, Vector},
};
use std::collections::BTreeMap;
use weft_types::{PAGE_LEN, Span};

impl Participant {
    /// The highest number up to which the outcomes of all updates of a stream are known here.
    pub(crate) fn frontier(&self, stream: u8) -> u64 {
        let is_unknown = |kept: &Kept| matches!(kept.claim, Claim::Held(_)) && !dropped(Rule::KnownBeforeUse);
        // Who refuses an update does not know whether another node still counts the number that it gave: after a restart, it may give it
        // again. That node's watermark says so.
        let is_void =
            |kept: &Kept| kept.claim == Claim::Refused && kept.record.lead().stream != stream && !dropped(Rule::NumberOfOwner);
        let known = self.records.values().filter(|kept| !is_void(kept));
        let numbers = known.filter_map(|kept| kept.record.part(stream).map(|part| (part.number, is_unknown(kept))));
        let numbers: BTreeMap<u64, bool> = numbers.collect();
        let mut frontier = self.watermark(stream).max(self.applied(stream));
        if let Some((first, _)) = numbers.iter().find(|(_, is_unknown)| **is_unknown) {
            frontier = frontier.min(first - 1);
        }
        while numbers.get(&(frontier + 1)) == Some(&false) {
            frontier += 1;
        }
        frontier
    }

    /// The streams on which this block's content depends.
    pub(super) fn streams(&self) -> impl Iterator<Item = u8> + use<> {
        let (dependence, index) = (self.config.dependence.clone(), self.config.me.index);
        (0..dependence.k).filter(move |stream| dependence.of(index, *stream))
    }

    /// The number up to which the pages contain the updates of a stream.
    pub(super) fn applied(&self, stream: u8) -> u64 {
        self.applied.get(&stream).copied().unwrap_or(0)
    }

    /// The parts of a record that change this block's content.
    pub(super) fn parts<'a>(&'a self, record: &'a Record) -> impl Iterator<Item = Part> + 'a {
        record.parts_of(self.config.me.index, &self.config.dependence)
    }

    /// The deltas of a record for this block's content.
    pub(super) fn deltas<'a>(&'a self, record: &'a Record) -> impl Iterator<Item = (Span, Delta)> + 'a {
        self.parts(record).map(|part| (part.span, Delta { stream: part.stream, number: part.number, id: record.id }))
    }

    /// The records that are known to be committed.
    pub(super) fn committed(&self) -> impl Iterator<Item = &Record> {
        let is_used = |kept: &&Kept| match kept.claim {
            Claim::Committed => true,
            Claim::Held(_) => dropped(Rule::KnownBeforeUse),
            Claim::Refused => false,
        };
        self.records.values().filter(is_used).map(|kept| &*kept.record)
    }

    /// Applies all that is known to be committed, in order, unless a batch is being applied.
    pub(crate) fn apply(&mut self) {
        let until: Vector = self.streams().map(|stream| (stream, self.frontier(stream))).filter(|(_, to)| *to > 0).collect();
        if self.batch.is_some() || self.is_fenced || self.has_no_content() || until == self.applied {
            return;
        }
        let is_due = |delta: &Delta| {
            delta.number > self.applied(delta.stream) && until.get(&delta.stream).is_some_and(|to| delta.number <= *to)
        };
        let deltas = self.committed().flat_map(|record| self.deltas(record)).filter(|(_, delta)| is_due(delta)).collect();
        let (until, deltas) = limit(until, deltas, self.config.batch_positions_max);
        let batch = Batch { applied: until, merged: merge(deltas) };
        self.append(Entry::Images(batch.clone()));
        self.batch = Some(Applying { batch, after: Some(self.unsynced) });
    }

    /// Pages are written once their after-images are durable.
    pub(super) fn images_durable(&mut self, entries: u64) {
        if let Some(Applying { batch, after }) = &mut self.batch
            && let Some(left) = after
        {
            *after = Some(left.saturating_sub(entries)).filter(|left| *left > 0);
            if after.is_none() {
                self.actions.push(Action::Write(batch.clone()));
            }
        }
    }

    /// Pages and sidecar of the batch are synced.
    pub(crate) fn written(&mut self) {
        if let Some(done) = self.batch.take_if(|applying| applying.after.is_none()) {
            self.applied = done.batch.applied;
        }
    }

    /// Trims records whose outcome nobody will ask for again: those below the watermark. Committed ones must be applied.
    pub(crate) fn trim(&mut self, now_ms: u64) {
        let mut trimmed: Vec<(UpdateId, Outcome)> = Vec::new();
        for kept in self.records.values() {
            // The leader asks for records above its watermark when it restarts, and the node of another stream for the numbers in use. A copy
            // orders no stream, and does not learn the watermark of its block's.
            let is_ordered_here = |stream: u8| stream == self.config.me.index && self.config.me.copy == 0;
            let is_asked = |part: &Part| part.stream == kept.record.lead().stream || is_ordered_here(part.stream);
            let is_applied = || self.deltas(&kept.record).all(|(_, delta)| delta.number <= self.applied(delta.stream));
            let is_below =
                kept.record.parts.iter().filter(|part| is_asked(part)).all(|part| part.number <= self.watermark(part.stream));
            match kept.claim {
                Claim::Committed if is_applied() && (is_below || dropped(Rule::TrimBelowWatermark)) => {
                    trimmed.push((kept.record.id, Outcome::Committed));
                }
                Claim::Refused if is_below => trimmed.push((kept.record.id, Outcome::Aborted)),
                _ => {}
            }
        }
        if trimmed.is_empty() {
            return;
        }
        self.write_watermarks();
        let mut known = Vec::new();
        for (id, outcome) in trimmed {
            if let Some(kept) = self.records.remove(&id) {
                for part in kept.record.parts_of(self.config.me.index, &self.config.dependence) {
                    let at = self.trimmed.entry(part.stream).or_default();
                    *at = part.number.max(*at);
                }
                self.memory.learn(id, outcome, now_ms);
                known.push(Known { id, outcome, at_ms: now_ms });
            }
        }
        self.append_known(&known);
        if self.memory.len() > self.config.outcomes_max {
            self.forget(now_ms);
        }
    }
}

/// The most deltas of a batch. Its entry lists for each range the deltas there, so it may grow with the square of their number.
const DELTAS_MAX: usize = 128;

/// The first of these deltas, as many as a batch may have, and the numbers up to which they go.
fn limit(mut until: Vector, mut deltas: Vec<(Span, Delta)>, positions_max: u64) -> (Vector, Vec<(Span, Delta)>) {
    deltas.sort_unstable_by_key(|(_, delta)| (delta.number, delta.stream));
    let mut positions: u64 = 0;
    for (at, (span, delta)) in deltas.iter().enumerate() {
        positions = positions.saturating_add(span.len()).saturating_add(PAGE_LEN);
        if at > 0 && (positions > positions_max || at >= DELTAS_MAX) {
            until.entry(delta.stream).and_modify(|to| *to = (delta.number - 1).min(*to));
        }
    }
    until.retain(|_, to| *to > 0);
    deltas.retain(|(_, delta)| until.get(&delta.stream).is_some_and(|to| delta.number <= *to));
    (until, deltas)
}

/// Disjoint ranges, and the deltas that cover each.
fn merge(deltas: Vec<(Span, Delta)>) -> Vec<(Span, Vec<Delta>)> {
    let mut bounds: Vec<u64> = deltas.iter().flat_map(|(span, _)| [span.start, span.end]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let mut merged: Vec<(Span, Vec<Delta>)> = Vec::new();
    for pair in bounds.windows(2) {
        let range = Span::new(pair[0], pair[1]);
        let mut there: Vec<Delta> = deltas.iter().filter(|(span, _)| span.contains(range)).map(|(_, delta)| *delta).collect();
        there.sort_unstable();
        if !there.is_empty() {
            merged.push((range, there));
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Session;

    #[test]
    fn a_batch_has_the_first_updates_as_many_as_fit() {
        let id = UpdateId { session: Session { number: 1, ends_at_ms: 1 }, counter: 1, lead: 0 };
        let delta = |stream, number| (Span::new(0, 1000), Delta { stream, number, id });
        let deltas = vec![delta(1, 9), delta(0, 2), delta(0, 1), delta(1, 7), delta(0, 5)];
        let until = Vector::from([(0, 6), (1, 9), (2, 3)]);
        let (all, _) = limit(until.clone(), deltas.clone(), u64::MAX);
        assert_eq!(all, until);
        let (some, left) = limit(until.clone(), deltas.clone(), 3 * (PAGE_LEN + 1000));
        assert_eq!(some, [(0, 6), (1, 6), (2, 3)].into());
        assert_eq!(left, [delta(0, 1), delta(0, 2), delta(0, 5)]);
        let (one, left) = limit(until, deltas, 0);
        assert_eq!((one, left), ([(0, 1), (1, 6), (2, 3)].into(), vec![delta(0, 1)]));
    }

    #[test]
    fn deltas_of_one_range_are_merged() {
        let id = |counter| UpdateId { session: Session { number: 1, ends_at_ms: 1 }, counter, lead: 0 };
        let delta = |number| Delta { stream: 0, number, id: id(number) };
        let deltas = vec![(Span::new(0, 10), delta(1)), (Span::new(5, 15), delta(2)), (Span::new(20, 30), delta(3))];
        let merged = [
            (Span::new(0, 5), vec![delta(1)]),
            (Span::new(5, 10), vec![delta(1), delta(2)]),
            (Span::new(10, 15), vec![delta(2)]),
            (Span::new(20, 30), vec![delta(3)]),
        ];
        assert_eq!(merge(deltas), merged);
    }
}
