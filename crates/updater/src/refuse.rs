//! Answers to messages of updates for which there is no room.

use crate::{disk::Disk, open::Open, piece::Pieces, updater::Output};
use weft_types::Result;
use weft_update::{Event, Message, Peer, UpdateId};

impl Open {
    /// The journal takes no record with so many bytes: the leader must not wait for this block.
    pub(crate) fn refuse_too_long(
        &mut self,
        from: Peer,
        message: Message,
        bytes: u64,
        disk: &mut Disk,
        now_ms: u64,
    ) -> Result<()> {
        let Peer::Block(leader) = from else { return Ok(()) };
        let bytes_max = disk.limits.update_bytes_max;
        let too_long = |id: UpdateId| Output::TooLong { from: self.id, to: leader, id, bytes, bytes_max };
        match &message {
            Message::Prepare { record, .. } => {
                disk.outputs.push(too_long(record.id));
                self.on(Event::NoRoom { from, message }, disk, now_ms)
            }
            Message::Lock { id, .. } => {
                disk.outputs.push(too_long(*id));
                disk.outputs.extend(self.busy(from, &message));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The journal is full: the leader of an update that begins must not wait for this block.
    pub(crate) fn refuse(&mut self, from: Peer, message: Message, disk: &mut Disk, now_ms: u64) -> Result<()> {
        match message {
            _ if self.is_ending() => Ok(()),
            Message::Prepare { .. } => self.on(Event::NoRoom { from, message }, disk, now_ms),
            _ => {
                disk.outputs.extend(self.busy(from, &message));
                Ok(())
            }
        }
    }

    /// The answer to a request for a lock for which there is no room.
    pub(crate) fn busy(&self, to: Peer, message: &Message) -> Option<Output> {
        let Message::Lock { stamp, id, number, .. } = message else { return None };
        let message = Message::Busy { id: *id, incarnation: stamp.incarnation, number: *number };
        Some(Output::Send { from: self.id, to, message, pieces: Pieces::new() })
    }
}
