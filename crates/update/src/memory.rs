//! The outcomes of trimmed records, kept for a while so that a repeated request gets the same answer.
//!
//! When an outcome is forgotten, the session's floor rises to its counter. Ids up to the floor whose outcome is unknown have expired, and never
//! run. Floors are kept until the session's lease has ended, and as long again as outcomes are kept: the clocks of nodes differ.

use crate::{
    mutation::{Rule, dropped},
    types::{Outcome, Session, UpdateId},
};
use std::collections::BTreeMap;

/// How long outcomes are kept.
pub const OUTCOMES_KEPT_MS: u64 = 600_000;
/// The most outcomes that a block remembers, and with which a stripe is opened again: with more, a block would forget some of them at once.
pub const OUTCOMES_MAX: usize = 1024;

/// The remembered outcomes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Memory {
    outcomes: BTreeMap<UpdateId, (Outcome, u64)>,
    floors: BTreeMap<Session, u64>,
}

impl Memory {
    /// How many outcomes it remembers.
    pub(crate) fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// The outcome of an update, if it is still known.
    pub(crate) fn outcome(&self, id: UpdateId) -> Option<Outcome> {
        self.outcomes.get(&id).map(|(outcome, _)| *outcome)
    }

    /// Whether an update must never run (again).
    pub(crate) fn is_expired(&self, id: UpdateId, now_ms: u64) -> bool {
        let is_below = self.floors.get(&id.session).is_some_and(|floor| id.counter <= *floor);
        (is_below && !dropped(Rule::Expired)) || id.session.ends_at_ms <= now_ms
    }

    /// Remembers an outcome.
    pub(crate) fn learn(&mut self, id: UpdateId, outcome: Outcome, at_ms: u64) {
        self.outcomes.entry(id).or_insert((outcome, at_ms));
    }

    /// Raises the floor of a session. Returns whether it was lower.
    pub(crate) fn raise(&mut self, session: Session, counter: u64) -> bool {
        let floor = self.floors.entry(session).or_default();
        let is_higher = counter > *floor;
        *floor = counter.max(*floor);
        is_higher
    }

    /// Forgets old outcomes, those above the bound `outcomes_max`, and sessions that have ended. Returns the floors that this raised.
    pub(crate) fn expire(&mut self, outcomes_max: usize, now_ms: u64) -> Vec<(Session, u64)> {
        let mut by_age: Vec<(u64, UpdateId)> = self.outcomes.iter().map(|(id, (_, at_ms))| (*at_ms, *id)).collect();
        by_age.sort_unstable();
        let too_many = by_age.len().saturating_sub(outcomes_max);
        let is_old = |at_ms: u64| now_ms.saturating_sub(at_ms) >= OUTCOMES_KEPT_MS;
        let forgotten = by_age.into_iter().enumerate().filter(|(at, (at_ms, _))| *at < too_many || is_old(*at_ms));
        let forgotten: Vec<UpdateId> = forgotten.map(|(_, (_, id))| id).collect();
        for id in &forgotten {
            self.outcomes.remove(id);
        }
        let mut raised: BTreeMap<Session, u64> = BTreeMap::new();
        for id in forgotten {
            if self.raise(id.session, id.counter) {
                raised.insert(id.session, id.counter);
            }
        }
        let is_over = |session: &Session| session.ends_at_ms.saturating_add(OUTCOMES_KEPT_MS) <= now_ms;
        self.floors.retain(|session, _| !is_over(session));
        self.outcomes.retain(|id, _| !is_over(&id.session));
        raised.into_iter().collect()
    }

    /// All outcomes.
    pub(crate) fn outcomes(&self) -> BTreeMap<UpdateId, Outcome> {
        self.outcomes.iter().map(|(id, (outcome, _))| (*id, *outcome)).collect()
    }

    /// All floors.
    pub(crate) fn floors(&self) -> &BTreeMap<Session, u64> {
        &self.floors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Session = Session { number: 1, ends_at_ms: 10 * OUTCOMES_KEPT_MS };

    fn id(counter: u64) -> UpdateId {
        UpdateId { session: SESSION, counter, lead: 0 }
    }

    #[test]
    fn a_forgotten_id_has_expired_and_so_have_lower_ones() {
        let mut memory = Memory::default();
        memory.learn(id(5), Outcome::Committed, 0);
        memory.learn(id(7), Outcome::Aborted, 1);
        assert!(memory.expire(9, OUTCOMES_KEPT_MS - 1).is_empty(), "an outcome was forgotten too early");
        assert_eq!(memory.expire(9, OUTCOMES_KEPT_MS), [(SESSION, 5)]);
        assert_eq!((memory.outcome(id(5)), memory.outcome(id(7))), (None, Some(Outcome::Aborted)));
        assert!(memory.is_expired(id(5), 0) && memory.is_expired(id(3), 0) && !memory.is_expired(id(8), 0));
    }

    #[test]
    fn the_oldest_outcomes_go_first_if_there_are_too_many() {
        let mut memory = Memory::default();
        for counter in 1..=4 {
            memory.learn(id(counter), Outcome::Committed, counter);
        }
        assert_eq!(memory.expire(2, 5), [(SESSION, 2)], "a session has one floor");
        assert_eq!(memory.outcomes().len(), 2);
    }

    #[test]
    fn nothing_is_kept_for_a_session_that_has_ended_and_it_cannot_write() {
        let mut memory = Memory::default();
        memory.learn(id(1), Outcome::Committed, 0);
        memory.raise(SESSION, 1);
        memory.expire(9, SESSION.ends_at_ms);
        assert!(memory.is_expired(id(1), 0), "another node's clock may be behind");
        memory.expire(9, SESSION.ends_at_ms + OUTCOMES_KEPT_MS);
        assert_eq!(memory, Memory::default());
        assert!(memory.is_expired(id(9), SESSION.ends_at_ms));
    }
}
