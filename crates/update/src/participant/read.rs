//! What a block can serve: its pages, with the deltas of the journal added or taken out.

use super::Participant;
use crate::{
    block::Action,
    mutation::{Rule, dropped},
    types::{Claim, Delta, Vector, Version},
};
use weft_types::Span;

/// How a read of a range is served: XOR these deltas to what the pages contain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ReadAt {
    /// Committed and not yet applied.
    pub added: Vec<Delta>,
    /// Applied, and later than the vector that was asked for.
    pub removed: Vec<Delta>,
    /// Of a read of the last version: which one that is, in the range.
    pub version: Version,
}

/// Why a read is not served now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NotServed {
    /// The block does not have the version: it is not known here yet, or its deltas are trimmed.
    Stale,
    /// The outcome of an update of the range is not known here yet. The node asks for it.
    Unknown,
    /// Pages are being written.
    Busy,
    /// The block is not part of the stripe any more.
    Fenced,
    /// What the range contains is damaged on this disk. The machine never says so: its shell may.
    Unreadable,
}

impl Participant {
    /// Reads a range at a vector: exactly the committed updates up to it. Only the members of one term give numbers the same meaning, so the reader names the
    /// term, too, and the shell must not serve a read of another term than this block's.
    pub fn read_at(&self, span: Span, vector: &Vector) -> Result<ReadAt, NotServed> {
        self.require_readable()?;
        let wanted = |stream: u8| vector.get(&stream).copied().unwrap_or(0);
        for stream in self.streams() {
            let is_unknown = wanted(stream) > self.frontier(stream) && !dropped(Rule::VersionKnown);
            let is_trimmed = wanted(stream) < self.trimmed.get(&stream).copied().unwrap_or(0) && !dropped(Rule::VersionKept);
            if is_unknown || is_trimmed {
                return Err(NotServed::Stale);
            }
        }
        let mut read = ReadAt::default();
        let deltas = self.committed().flat_map(|record| self.deltas(record));
        for (_, delta) in deltas.filter(|(at, _)| !at.intersect(span).is_empty()) {
            let (is_wanted, is_applied) = (delta.number <= wanted(delta.stream), delta.number <= self.applied(delta.stream));
            match (is_wanted, is_applied) {
                (true, false) => read.added.push(delta),
                (false, true) => read.removed.push(delta),
                _ => {}
            }
        }
        Ok(read)
    }

    /// Reads a range of a data block at its own node, with everything that is committed. `is_pending`: whether this node leads an update,
    /// and has not told its client yet: the read comes before it.
    pub(crate) fn read_last(&self, span: Span, is_pending: impl Fn(crate::types::UpdateId) -> bool) -> Result<ReadAt, NotServed> {
        self.require_readable()?;
        if !self.is_open() {
            return Err(NotServed::Unknown);
        }
        let trimmed = self.trimmed.get(&self.config.me.index).copied().unwrap_or(0);
        let mut read = ReadAt { version: Version { term: self.term, trimmed, numbers: Vec::new() }, ..ReadAt::default() };
        for kept in self.records.values() {
            for (_, delta) in self.deltas(&kept.record).filter(|(at, _)| !at.intersect(span).is_empty()) {
                let is_applied = delta.number <= self.applied(delta.stream);
                match kept.claim {
                    Claim::Refused => continue,
                    Claim::Held(_) if is_applied => {}
                    Claim::Committed if is_applied => {}
                    Claim::Committed => read.added.push(delta),
                    Claim::Held(_) if dropped(Rule::KnownBeforeUse) => read.added.push(delta),
                    Claim::Held(_) if !is_pending(delta.id) => return Err(NotServed::Unknown),
                    Claim::Held(_) => continue,
                }
                read.version.numbers.push(delta.number);
            }
        }
        read.version.numbers.sort_unstable();
        Ok(read)
    }

    pub(crate) fn serve(&mut self, read: u64, result: Result<ReadAt, NotServed>) {
        self.actions.push(Action::Serve { read, result });
    }

    fn require_readable(&self) -> Result<(), NotServed> {
        if self.is_fenced {
            return Err(NotServed::Fenced);
        }
        if self.has_no_content() {
            return Err(NotServed::Stale);
        }
        if self.batch.is_some() { Err(NotServed::Busy) } else { Ok(()) }
    }
}
