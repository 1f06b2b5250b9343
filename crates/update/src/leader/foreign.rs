//! Updates of this block that the node of a lower block leads, because they change that block too: this node locks their ranges, numbers
//! them, and computes their deltas for this block.

use super::Leader;
use crate::{
    block::Action,
    locks::Holder,
    participant::Participant,
    types::{Message, Stamp, UpdateId},
};
use weft_types::{BlockId, Span};

impl Leader {
    /// Another node leads an update of this block, too, and has numbered it.
    pub(crate) fn lock(
        &mut self,
        from: BlockId,
        stamp: &Stamp,
        (id, number): (UpdateId, u64),
        span: Span,
        participant: &Participant,
    ) {
        let Stamp { stream: lead, incarnation, .. } = *stamp;
        let is_late = number <= participant.watermark(lead) || self.withdrawn.contains(&(lead, incarnation, number));
        if !self.is_active() || !participant.obeys(stamp) || participant.outcome(id).is_some() || is_late {
            return;
        }
        let its: Option<Holder> = self.locks.holders().find(|holder| holder.id == id);
        match (its, self.locks.number(id)) {
            (Some(holder), _) if holder.lead_number > number || participant.is_undecided(id) => return,
            (Some(holder), Some(given)) if holder.lead_number == number => {
                return self.actions.push(Action::Delta { id, number: given, lead_number: number, span });
            }
            (Some(holder), _) if holder.lead_number < number => self.locks.release(id),
            _ => {}
        }
        let holder = Holder { id, lead, incarnation, lead_number: number, span };
        if participant.is_joining()
            || self.locks.lag() >= self.config.lag_max
            || !self.locks.request(holder, self.config.waiting_max)
        {
            return self.send(from, Message::Busy { id, incarnation, number });
        }
        self.go_on(participant);
    }

    /// The leader of another stream needs a lock no longer.
    pub(crate) fn unlock(&mut self, stamp: &Stamp, id: UpdateId, number: u64, participant: &Participant) {
        if !participant.obeys(stamp) || participant.is_undecided(id) {
            return;
        }
        self.withdrawn.insert((stamp.stream, stamp.incarnation, number));
        let is_its = |holder: Holder| holder.id == id && holder.lead == stamp.stream && holder.lead_number == number;
        if self.locks.holders().any(is_its) {
            self.locks.release(id);
            self.go_on(participant);
        }
    }

    /// Releases the locks of other streams' updates whose outcome is known, or whose leader has restarted before it prepared them.
    pub(crate) fn release_foreign(&mut self, participant: &Participant) {
        self.withdrawn.retain(|(stream, incarnation, number)| {
            *incarnation >= participant.least(*stream) && *number > participant.watermark(*stream)
        });
        let is_over = |holder: &Holder| {
            let is_orphan = holder.incarnation < participant.least(holder.lead) && !participant.is_undecided(holder.id);
            holder.lead != self.stream() && (is_orphan || participant.outcome(holder.id).is_some())
        };
        let over: Vec<Holder> = self.locks.holders().filter(is_over).collect();
        for holder in &over {
            self.locks.release(holder.id);
        }
        if !over.is_empty() && self.is_active() {
            self.go_on(participant);
        }
    }
}
