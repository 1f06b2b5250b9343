//! A participant's state after a restart, from its journal and its sidecar.

use super::{Applying, Kept, Participant};
use crate::{
    block::Config,
    mutation::{Rule, dropped},
    types::{Batch, Claim, Entry, Known, Vector},
};

impl Participant {
    /// From the entries of the journal, in order, and the counts of the sidecar. All of it is durable.
    pub(crate) fn restart<'a>(config: Config, entries: impl IntoIterator<Item = &'a Entry>, applied: Vector) -> Self {
        let mut it = Self::empty(config, applied.clone());
        if dropped(Rule::AppliedIsNoWatermark) {
            it.watermarks = applied;
        }
        for entry in entries {
            it.replay(entry);
        }
        it.written_watermarks = it.watermarks.clone();
        // What the pages contain was committed.
        let Config { me, dependence, .. } = it.config.clone();
        for kept in it.records.values_mut() {
            let is_applied = |part: crate::types::Part| it.applied.get(&part.stream).is_some_and(|to| part.number <= *to);
            if matches!(kept.claim, Claim::Held(_)) && kept.record.parts_of(me.index, &dependence).any(is_applied) {
                kept.claim = Claim::Committed;
            }
        }
        it.trimmed = it.streams().map(|stream| (stream, it.trimmed_through(stream))).collect();
        it.images_durable(u64::MAX);
        it
    }

    fn replay(&mut self, entry: &Entry) {
        match entry {
            Entry::Opened { term, members } => {
                (self.opened, self.members) = (*term, members.clone());
                self.term = self.term.max(*term);
                for kept in self.records.values_mut().filter(|kept| kept.record.term < *term) {
                    if matches!(kept.claim, Claim::Held(_)) {
                        kept.claim = Claim::Committed;
                    }
                }
            }
            Entry::Term(term) => self.term = self.term.max(*term),
            Entry::Fence { stream, incarnation } => {
                let least = self.least.entry(*stream).or_default();
                *least = (*least).max(*incarnation);
            }
            Entry::Held { record, crcs } => {
                self.records.insert(record.id, Kept { record: record.clone(), claim: Claim::Held(crcs.clone()) });
            }
            Entry::Refused(record) => {
                self.records.insert(record.id, Kept { record: record.clone(), claim: Claim::Refused });
            }
            Entry::Watermark { stream, term, number } => self.raise_watermark(*stream, *term, *number),
            Entry::Images(batch) => self.replay_images(batch),
            Entry::Known(all) => {
                for Known { id, outcome, at_ms } in all {
                    self.records.remove(id);
                    self.memory.learn(*id, *outcome, *at_ms);
                }
            }
            Entry::Floor { session, counter } => {
                self.memory.raise(*session, *counter);
            }
            Entry::Fenced => self.is_fenced = true,
            Entry::Joining(from) => self.joining = Some(from.clone()),
            Entry::Rebuilt(vector) => self.replay_rebuilt(vector),
        }
    }

    /// After-images that the sidecar does not name are copied again: pages may contain any part of them.
    fn replay_images(&mut self, batch: &Batch) {
        for id in batch.merged.iter().flat_map(|(_, deltas)| deltas).map(|delta| delta.id) {
            if let Some(kept) = self.records.get_mut(&id) {
                kept.claim = Claim::Committed;
            }
        }
        let is_new = batch.applied.iter().any(|(stream, to)| *to > self.applied(*stream));
        if is_new && !dropped(Rule::RedoCopies) {
            self.batch = Some(Applying { batch: batch.clone(), after: Some(1) });
        }
    }

    /// The number above which no record of a stream is trimmed, at most what the pages contain. A number that was never used here, or
    /// refused, looks like a trimmed one.
    fn trimmed_through(&self, stream: u8) -> u64 {
        let is_committed = |kept: &Kept| kept.claim == Claim::Committed;
        let is_number = |kept: &Kept, number| kept.record.part(stream).is_some_and(|part| part.number == number);
        let is_kept = |number: u64| self.records.values().any(|kept| is_committed(kept) && is_number(kept, number));
        let applied = self.applied(stream);
        (0..=applied).rev().find(|number| !is_kept(*number)).unwrap_or(0)
    }

    /// Whether a restart would miss an entry, if everything that was appended later is durable.
    pub(crate) fn needs(&self, entry: &Entry) -> bool {
        let claim = |id| self.records.get(id).map(|kept| &kept.claim);
        match entry {
            Entry::Opened { term, .. } => *term == self.opened,
            Entry::Term(term) => *term == self.term && self.term > self.opened,
            Entry::Fence { stream, incarnation } => *incarnation == self.least(*stream),
            Entry::Held { record, .. } => claim(&record.id).is_some_and(|claim| *claim != Claim::Refused),
            Entry::Refused(record) => claim(&record.id) == Some(&Claim::Refused),
            Entry::Watermark { stream, number, .. } => self.written_watermarks.get(stream) == Some(number),
            Entry::Images(batch) => self.batch.as_ref().is_some_and(|applying| applying.batch == *batch),
            Entry::Known(all) => all.iter().any(|known| self.remembers(known.id)),
            Entry::Floor { session, counter } => self.memory.floors().get(session) == Some(counter),
            Entry::Joining(from) => self.joining.as_ref() == Some(from),
            // Until the sidecar is written for the first time, nothing else says what the pages contain.
            Entry::Fenced | Entry::Rebuilt(_) => true,
        }
    }
}
