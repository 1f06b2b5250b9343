//! A read of several ranges of an open stripe, each at the node of its data block, as if all were read at one moment.
//!
//! ```text
//!   first round: each node serves its last version ──► next rounds: each node confirms the term, and serves again ──► two rounds are equal
//! ```
//! Between two rounds there is a moment at which all answers of the first are there, and no question of the next has been asked. If a node found
//! the same version in both, its range contained that at this moment. So the ranges contained all of it together, and an update of several of
//! them was in all or in none: a node that holds one whose outcome it does not know does not serve.
//!
//! A node that a seal has left out does not know it. Its answer of the last round counts because it asks, after that moment, those of whom one at
//! least takes part in any such seal: the seal ended later. A read of one range needs one round, confirmed, for the same reason.

use crate::types::Version;

/// The rounds of a read.
#[derive(Debug, Clone)]
pub struct Rounds {
    /// What the last round found, range by range.
    found: Vec<Version>,
    ranges: usize,
    ended: u32,
}

/// What follows from a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundsEnd {
    /// The answers of the last round, and of those before for what has not changed, are one state of the stripe.
    Done,
    /// Something has changed: ask again.
    Again,
    /// It changes faster than it can be read, or its blocks are not in one term.
    Vain,
}

/// Rounds that are tried: the ranges may be overwritten again and again.
const ROUNDS_MAX: u32 = 6;

impl Rounds {
    /// For a read of so many ranges.
    pub fn new(ranges: usize) -> Self {
        Self { found: Vec::new(), ranges, ended: 0 }
    }

    /// Whether the nodes must have the term confirmed in this round.
    pub fn must_confirm(&self) -> bool {
        self.ended > 0 || self.ranges == 1
    }

    /// The version of a range that the reader has: if it has not changed, its bytes are not needed again.
    pub fn since(&self, range: usize) -> Option<&Version> {
        self.found.get(range)
    }

    /// All nodes have answered: with these versions, range by range.
    pub fn ended(&mut self, versions: Vec<Version>) -> RoundsEnd {
        let is_first = self.ended == 0;
        let is_one_term = versions.windows(2).all(|pair| pair[0].term == pair[1].term);
        let is_same = versions == self.found;
        (self.found, self.ended) = (versions, self.ended + 1);
        match is_one_term && self.found.len() == self.ranges {
            true if self.ranges == 1 || (!is_first && is_same) => RoundsEnd::Done,
            true if self.ended < ROUNDS_MAX => RoundsEnd::Again,
            _ => RoundsEnd::Vain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(term: u64, numbers: &[u64]) -> Version {
        Version { term, trimmed: 0, numbers: numbers.to_vec() }
    }

    #[test]
    fn one_range_needs_one_round_and_several_need_two_that_are_equal() {
        let mut one = Rounds::new(1);
        assert!(one.must_confirm() && one.since(0).is_none());
        assert_eq!(one.ended(vec![version(1, &[])]), RoundsEnd::Done);

        let mut two = Rounds::new(2);
        assert!(!two.must_confirm());
        let (old, new) = (version(1, &[3]), version(1, &[3, 4]));
        assert_eq!(two.ended(vec![old.clone(), old.clone()]), RoundsEnd::Again);
        assert_eq!((two.must_confirm(), two.since(1)), (true, Some(&old)));
        assert_eq!(two.ended(vec![old.clone(), new.clone()]), RoundsEnd::Again, "one has changed");
        assert_eq!(two.ended(vec![old, new]), RoundsEnd::Done);
    }

    #[test]
    fn rounds_are_bounded_and_of_one_term() {
        let mut busy = Rounds::new(2);
        let rounds: Vec<RoundsEnd> = (0..ROUNDS_MAX.into()).map(|at| busy.ended(vec![version(1, &[at]); 2])).collect();
        assert_eq!(rounds.iter().filter(|end| **end == RoundsEnd::Again).count() as u32, ROUNDS_MAX - 1);
        assert_eq!(rounds.last(), Some(&RoundsEnd::Vain));
        let mut apart = Rounds::new(2);
        assert_eq!(apart.ended(vec![version(1, &[]), version(2, &[])]), RoundsEnd::Vain);
    }
}
