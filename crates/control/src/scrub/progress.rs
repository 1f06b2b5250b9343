//! How far a scrub is: what the next coordinator continues with, and what has been found.

use super::{End, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{SCRUB_AGAIN_MAX, SCRUB_WRONG_MAX, ScrubPass, ScrubPlace, ScrubRecord, StripeId, WrongBlock};

/// The most stripes that are being checked or have ended behind one that is being checked.
const AHEAD_MAX: usize = 256;

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
    /// The findings that were recorded before, and how many stripes have been counted since.
    recorded: usize,
    counted: usize,
}

impl Progress {
    /// Continues what is recorded.
    pub fn new(record: ScrubRecord) -> Self {
        let recorded = record.wrong.len();
        Self { record, begun: BTreeMap::new(), next: 0, recorded, counted: 0 }
    }

    /// What is to be recorded: whatever is not in it is checked again by the next coordinator.
    pub fn record(&self) -> &ScrubRecord {
        &self.record
    }

    /// Whether the check of another stripe may begin: not if too many have ended behind one whose check takes long.
    pub fn may_begin(&self) -> bool {
        self.begun.len() < AHEAD_MAX
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
        let found = self.found(outcome, true);
        if let Some((_, ended)) = self.begun.get_mut(&ticket.0) {
            *ended = Some((stripe, outcome.clone()));
        }
        let before = self.begun.len();
        while let Some(first) = self.begun.first_entry().filter(|first| first.get().1.is_some()) {
            let (place, ended) = first.remove();
            self.record.place = place;
            ended.iter().for_each(|(stripe, outcome)| self.count(*stripe, outcome));
        }
        self.counted += before - self.begun.len();
        self.forget_findings();
        found
    }

    /// Forgets findings beyond those that are listed, but not those of stripes behind the place: the next coordinator checks these again, and
    /// must not count them again. It does not know which these are, but all of them are among the first stripes that it checks.
    fn forget_findings(&mut self) {
        if self.counted >= 2 * AHEAD_MAX {
            self.recorded = 0;
        }
        let listed = self.recorded.max(SCRUB_WRONG_MAX);
        if self.record.wrong.len() <= listed {
            return;
        }
        let ended = self.begun.values().filter_map(|(_, ended)| ended.as_ref());
        let behind: BTreeSet<(&str, u64)> = ended.map(|(_, outcome)| (&*outcome.object, outcome.number)).collect();
        let mut at = 0;
        self.record.wrong.retain(|it| {
            at += 1;
            at <= listed || behind.contains(&(&*it.object, it.stripe))
        });
    }

    /// The check of a stripe that could not be checked before has ended. Returns how many new findings there are.
    pub fn repeated(&mut self, stripe: StripeId, outcome: &Outcome) -> usize {
        self.count(stripe, outcome);
        self.found(outcome, false)
    }

    /// Whether stripes are being checked for the first time.
    pub fn is_under_way(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Counts what was not found before. Of a stripe that is behind the place, each finding is kept, if only without the reason.
    fn found(&mut self, outcome: &Outcome, is_behind: bool) -> usize {
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
            } else if is_behind {
                wrong.push(WrongBlock { why: String::new(), ..it.clone() });
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
        (self.recorded, self.counted) = (0, 0);
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
        let ScrubRecord { began_ms, mut tally, mut wrong, again, .. } = std::mem::take(&mut self.record);
        wrong.truncate(SCRUB_WRONG_MAX);
        tally.skipped_stripes = tally.skipped_stripes.saturating_add(again.len() as u64);
        let last = ScrubPass { began_ms, ended_ms: now_ms, tally, wrong };
        self.record.last = Some(last);
    }
}
