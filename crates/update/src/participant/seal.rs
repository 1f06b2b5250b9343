//! A participant in a seal, and at the beginning of a term.

use super::{Kept, Participant};
use crate::{
    mutation::{Rule, dropped},
    types::{Claim, Entry, Known, Message, Outcome, Peer, Sealed, Session, UpdateId},
};

impl Participant {
    /// The entries with which the journal of a block begins that is opened for updates.
    pub(crate) fn opening(sealed: &Sealed, now_ms: u64) -> Vec<Entry> {
        let known = |(id, outcome): (&UpdateId, &Outcome)| Known { id: *id, outcome: *outcome, at_ms: now_ms };
        let known: Vec<Known> = sealed.outcomes.iter().map(known).collect();
        let floor = |(session, counter): (&Session, &u64)| Entry::Floor { session: *session, counter: *counter };
        let decided = |(stream, number): (&u8, &u64)| Entry::Watermark { stream: *stream, term: sealed.term, number: *number };
        let known = known.chunks(Known::MAX).map(|some| Entry::Known(some.to_vec()));
        let facts = known.chain(sealed.floors.iter().map(floor));
        let opened = Entry::Opened { term: sealed.term, members: sealed.members.clone() };
        facts.chain(sealed.vector.iter().map(decided)).chain([opened]).collect()
    }

    /// A seal: lower terms are not obeyed any more. `given`: the highest number that this node gave in its stream, also to updates that no
    /// record names. Otherwise it would go on above the vector of the seal, and the blocks would not agree on the stripe's counts.
    pub(crate) fn seal(&mut self, term: u64, given: u64) {
        if term < self.term || self.opened >= term || self.is_fenced {
            return;
        }
        self.write_watermarks();
        if term > self.term {
            self.term = term;
            self.append(Entry::Term(term));
        }
        let mut report = self.report();
        if given > 0 && !dropped(Rule::SealHearsNumbers) {
            let highest = report.numbers.entry(self.config.me.index).or_default();
            *highest = given.max(*highest);
        }
        let message = Message::SealReported { term, report };
        self.answer(Peer::Coordinator, message);
    }

    /// What a seal has decided. Returns whether the block learns it now.
    pub(crate) fn sealed(&mut self, sealed: &Sealed, now_ms: u64) -> bool {
        let is_member = sealed.members.contains(&self.config.me);
        let is_admitted = !self.members.is_empty();
        if sealed.term > self.opened && !self.is_fenced && !is_member && is_admitted {
            self.is_fenced = true;
            self.append(Entry::Fenced);
        }
        if !is_admitted && is_member && sealed.term >= self.term {
            self.term = sealed.term;
            self.joining = Some(sealed.vector.clone());
            self.append(Entry::Joining(sealed.vector.clone()));
        }
        if sealed.term != self.term || self.is_fenced {
            return false;
        }
        let is_new = self.opened < sealed.term;
        if is_new {
            self.learn_outcomes(sealed, now_ms);
            for (stream, number) in &sealed.vector {
                self.raise_watermark(*stream, sealed.term, *number);
            }
            self.write_watermarks();
            (self.opened, self.members) = (sealed.term, sealed.members.clone());
            self.append(Entry::Opened { term: sealed.term, members: sealed.members.clone() });
        }
        self.answer(Peer::Coordinator, Message::SealKnown { term: sealed.term });
        is_new
    }

    /// Refusals are journalled before the entry of the seal: after it, what is still held is committed.
    fn learn_outcomes(&mut self, sealed: &Sealed, now_ms: u64) {
        let undecided = |kept: &&mut Kept| matches!(kept.claim, Claim::Held(_)) && kept.record.term < sealed.term;
        let mut refused = Vec::new();
        for kept in self.records.values_mut().filter(undecided) {
            if sealed.outcomes.get(&kept.record.id) == Some(&Outcome::Committed) {
                kept.claim = Claim::Committed;
            } else {
                kept.claim = Claim::Refused;
                refused.push(kept.record.clone());
            }
        }
        for record in refused {
            self.append(Entry::Refused(record));
        }
        self.learn(&sealed.outcomes, &sealed.floors, now_ms);
    }
}
