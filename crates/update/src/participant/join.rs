//! A block that joins a stripe: rebuilt at a new home, in place of one that is lost.
//!
//! A seal admits it. From then on it takes part in all updates, so it holds all of them above the seal's vector. Its content is rebuilt meanwhile, from
//! blocks that serve one vector; what comes later is applied to that.

use super::Participant;
use crate::{
    mutation::{Rule, dropped},
    types::{Entry, Vector},
};

impl Participant {
    /// Whether the block joins the stripe, and its content is not rebuilt yet. No updates are applied before, so records fill up to `records_max`.
    pub fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// Whether it must not use its pages, because they are not rebuilt.
    pub(super) fn has_no_content(&self) -> bool {
        self.is_joining() && !dropped(Rule::JoinersWait)
    }

    /// The latest vector at which a block that joins can be rebuilt.
    pub fn rebuild_at(&self) -> Vector {
        self.streams().map(|stream| (stream, self.frontier(stream))).collect()
    }

    /// The block contains all updates up to a vector, and this is synced. Returns whether that is possible: everything above the vector must be held here,
    /// and everything up to it known.
    pub(crate) fn rebuilt(&mut self, vector: &Vector) -> bool {
        let Some(from) = self.joining.as_ref().filter(|_| self.is_open()) else { return false };
        let number = |vector: &Vector, stream: u8| vector.get(&stream).copied().unwrap_or(0);
        let is_possible = |stream: u8| {
            let at = number(vector, stream);
            number(from, stream) <= at && at <= self.frontier(stream)
        };
        if !self.streams().all(is_possible) && !dropped(Rule::RebuiltWhereKnown) {
            return false;
        }
        self.append(Entry::Rebuilt(vector.clone()));
        self.replay_rebuilt(vector);
        self.trimmed = vector.clone();
        true
    }

    pub(super) fn replay_rebuilt(&mut self, vector: &Vector) {
        self.joining = None;
        for (stream, number) in vector {
            let at = self.applied.entry(*stream).or_default();
            *at = number.max(at).to_owned();
        }
    }
}
