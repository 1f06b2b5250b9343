//! Reads of a data block at its own node.

use super::{Block, Config};
use crate::{
    leader::Leader,
    mutation::{Rule, dropped},
    participant::NotServed,
    types::{Message, Peer},
};
use std::{collections::BTreeSet, ops::RangeBounds};
use weft_types::{BlockId, Span};

impl Block {
    /// While its lease lasts, no seal has gone on without this node. Else it asks those of whom one at least takes part in any seal that
    /// does: without all parities that depend on this block and its other copies, nobody could rebuild it.
    pub(super) fn read(&mut self, read: u64, span: Span, has_lease: bool) {
        if has_lease || dropped(Rule::ConfirmTerm) {
            return self.serve(read, span);
        }
        if !self.leader.as_ref().is_some_and(Leader::is_active) {
            return self.serve(read, span);
        }
        // What is not decided yet needs no question. It is looked at again when the others have confirmed.
        if let Some(leader) = &self.leader
            && let Err(why) = self.participant.read_last(span, |id| leader.is_pending(id))
        {
            return self.participant.serve(read, Err(why));
        }
        let Config { me, dependence, .. } = &self.participant.config;
        let is_asked = |block: &&BlockId| *block != me && dependence.of(block.index, me.index);
        let asked: BTreeSet<BlockId> = self.participant.members.iter().filter(is_asked).copied().collect();
        if asked.is_empty() || self.reads.len() >= self.participant.config.reads_max {
            return self.participant.serve(read, Err(NotServed::Busy));
        }
        self.reads.insert(read, (span, asked));
        self.ask_to_confirm(read..=read);
    }

    /// Asks those who have not confirmed the term.
    pub(super) fn ask_to_confirm(&mut self, reads: impl RangeBounds<u64>) {
        let Some(incarnation) = self.leader.as_ref().map(Leader::incarnation) else { return };
        for (read, (_, missing)) in self.reads.range(reads) {
            for block in missing {
                self.participant.send(Peer::Block(*block), Message::Confirm { incarnation, read: *read });
            }
        }
    }

    /// The term has ended for the reads that wait for it.
    pub(super) fn end_reads(&mut self) {
        let why = if self.participant.is_fenced() { NotServed::Fenced } else { NotServed::Unknown };
        for read in std::mem::take(&mut self.reads).into_keys() {
            self.participant.serve(read, Err(why));
        }
    }

    pub(super) fn confirmed(&mut self, from: BlockId, read: u64, term: u64) {
        let Some((span, missing)) = self.reads.get_mut(&read) else { return };
        missing.remove(&from);
        let (span, is_complete) = (*span, missing.is_empty());
        if term != self.participant.term {
            self.reads.remove(&read);
            self.participant.serve(read, Err(NotServed::Unknown));
        } else if is_complete {
            self.reads.remove(&read);
            self.serve(read, span);
        }
    }

    fn serve(&mut self, read: u64, span: Span) {
        let Some(leader) = &self.leader else { return self.participant.serve(read, Err(NotServed::Unknown)) };
        let result = match leader.is_active() || dropped(Rule::KnownBeforeUse) {
            true => self.participant.read_last(span, |id| leader.is_pending(id)),
            false if self.participant.is_fenced() => Err(NotServed::Fenced),
            // It does not know what its earlier lives have acknowledged.
            false => Err(NotServed::Unknown),
        };
        self.participant.serve(read, result);
    }
}
