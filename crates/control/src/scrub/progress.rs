//! How far a scrub is: what the next coordinator continues with, and what has been found.

use super::{End, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{SCRUB_AGAIN_MAX, SCRUB_WRONG_MAX, ScrubPass, ScrubPlace, ScrubRecord, StripeId};

/// A stripe that is being checked.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// How far a scrub is. Stripes begin in order and end in any; the place is behind the last one before which all have ended. Those behind the
/// place are not counted yet: the next coordinator checks them again.
#[derive(Debug, Default)]
pub struct Progress {
    record: ScrubRecord,
    /// Stripes that are being checked or that ended before an earlier one: where each is, and how it ended.
    begun: BTreeMap<u64, (ScrubPlace, Option<(StripeId, Outcome)>)>,
    next: u64,
}

impl Progress {
    /// Continues what is recorded.
    pub fn new(record: ScrubRecord) -> Self {
        Self { record, begun: BTreeMap::new(), next: 0 }
    }

    /// What is to be recorded: whatever is not in it is checked again by the next coordinator.
    pub fn record(&self) -> &ScrubRecord {
        &self.record
    }

    /// The check of the next stripe begins. `place`: where a scrub continues behind it.
    pub fn begin(&mut self, place: ScrubPlace) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.begun.insert(ticket, (place, None));
        Ticket(ticket)
    }

    /// The check of a stripe has ended. Returns how many new findings there are: these are to be recorded soon, because the next check of the
    /// stripe would not call them new.
    pub fn ended(&mut self, ticket: &Ticket, stripe: StripeId, outcome: &Outcome) -> usize {
        let found = self.found(outcome);
        if let Some((_, ended)) = self.begun.get_mut(&ticket.0) {
            *ended = Some((stripe, outcome.clone()));
        }
        while let Some(first) = self.begun.first_entry().filter(|first| first.get().1.is_some()) {
            let (place, ended) = first.remove();
            self.record.place = place;
            ended.iter().for_each(|(stripe, outcome)| self.count(*stripe, outcome));
        }
        found
    }

    /// The check of a stripe that could not be checked before has ended. Returns how many new findings there are.
    pub fn repeated(&mut self, stripe: StripeId, outcome: &Outcome) -> usize {
        self.count(stripe, outcome);
        self.found(outcome)
    }

    /// Whether stripes are being checked for the first time.
    pub fn is_under_way(&self) -> bool {
        !self.begun.is_empty()
    }

    fn found(&mut self, outcome: &Outcome) -> usize {
        let ScrubRecord { tally, wrong, .. } = &mut self.record;
        let known: BTreeSet<_> = wrong.iter().map(|it| (it.object.clone(), it.stripe, it.block)).collect();
        let mut found = 0;
        for it in outcome.wrong.iter().filter(|it| !known.contains(&(it.object.clone(), it.stripe, it.block))) {
            found += 1;
            match it.block {
                Some(_) => tally.wrong_blocks += 1,
                None => tally.inconsistent_stripes += 1,
            }
            if wrong.len() < SCRUB_WRONG_MAX {
                wrong.push(it.clone());
            }
        }
        found
    }

    fn count(&mut self, stripe: StripeId, outcome: &Outcome) {
        let ScrubRecord { tally, again, .. } = &mut self.record;
        match &outcome.end {
            End::Again(_) if again.contains(&stripe) => {}
            End::Again(_) if again.len() < SCRUB_AGAIN_MAX => again.push(stripe),
            End::Again(_) => tally.skipped_stripes += 1,
            End::Checked | End::Gone => again.retain(|it| *it != stripe),
        }
        if outcome.end == End::Checked {
            tally.stripes += 1;
            tally.blocks += outcome.blocks;
            tally.bytes = tally.bytes.saturating_add(outcome.bytes);
            tally.lacking_blocks += outcome.lacking;
            tally.away_blocks += outcome.away;
        }
    }

    /// When the next pass begins, milliseconds since 1970; `None` while one runs. At once if the clock was set back to before the last one.
    pub fn next_pass_ms(&self, period_ms: u64, now_ms: u64) -> Option<u64> {
        let last = self.record.last.as_ref().filter(|last| last.began_ms <= now_ms);
        let next_ms = last.map_or(0, |last| last.began_ms.saturating_add(period_ms));
        (self.record.began_ms == 0).then_some(next_ms)
    }

    /// A pass begins.
    pub fn begin_pass(&mut self, now_ms: u64) {
        self.record = ScrubRecord { began_ms: now_ms.max(1), last: self.record.last.take(), ..ScrubRecord::default() };
    }

    /// Whether the pass is over, once all stripes have had their turn: those that cannot be checked are tried until the period ends. A pass that
    /// began in the future, by a clock that was set back since, is late.
    pub fn may_end(&self, period_ms: u64, now_ms: u64) -> bool {
        let began_ms = self.record.began_ms;
        let is_late = now_ms < began_ms || now_ms >= began_ms.saturating_add(period_ms);
        began_ms > 0 && !self.is_under_way() && (self.record.again.is_empty() || is_late)
    }

    /// The pass ends.
    pub fn end_pass(&mut self, now_ms: u64) {
        let ScrubRecord { began_ms, mut tally, wrong, again, .. } = std::mem::take(&mut self.record);
        tally.skipped_stripes = tally.skipped_stripes.saturating_add(again.len() as u64);
        let last = ScrubPass { began_ms, ended_ms: now_ms, tally, wrong };
        self.record.last = Some(last);
    }
}
