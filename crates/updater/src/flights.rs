//! The bytes of updates that are under way here: new bytes until the range is locked, then deltas until all participants hold them.

use crate::{
    disk::Disk,
    piece::{Piece, Pieces, bytes_of},
};
use std::{collections::BTreeMap, sync::Arc};
use weft_store::Reservation;
use weft_types::{BlockId, Error, Result};
use weft_update::{Message, Peer, UpdateId};

/// An update that this node leads (its number there is 0), or that waits here for a lock of this block: then its number at its leader tells
/// apart the requests of one id.
pub(crate) type FlightKey = (UpdateId, u64);

/// The update whose bytes go with a message of its leader.
pub(crate) fn key_of(message: &Message) -> Option<FlightKey> {
    match message {
        Message::Prepare { record, .. } => Some((record.id, 0)),
        Message::Lock { id, .. } => Some((*id, 0)),
        _ => None,
    }
}

/// The bytes of an update.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// By stream, as the client sent them.
    pub(crate) new: Pieces,
    /// As far as they are computed.
    pub(crate) deltas: Pieces,
    /// Room for its record here.
    pub(crate) room: Option<Reservation>,
    /// By receiver: when many bytes were sent last to it, and how many.
    sent: BTreeMap<BlockId, (u64, u64)>,
    /// What it takes of the bytes in memory.
    counted: u64,
}

/// Up to so many bytes are sent again with every reminder.
const SMALL_BYTES: u64 = 64 << 10;
/// How long larger ones have to arrive and to be answered, beside the time for their bytes.
const ARRIVES_MS: u64 = 1000;
/// The rate that is granted to all that is sent at the same time: one link may carry it, to one receiver after another.
const BYTES_PER_SECOND: u64 = 2 << 20;

impl Flight {
    fn bytes(&self) -> u64 {
        bytes_of(&self.new) + bytes_of(&self.deltas)
    }

    /// Until when what was sent to a block may still be on its way.
    fn arrives_ms(&self, to: BlockId) -> u64 {
        let Some((sent_ms, _)) = self.sent.get(&to) else { return 0 };
        let bytes: u64 = self.sent.values().filter(|(at_ms, _)| at_ms == sent_ms).map(|(_, bytes)| bytes).sum();
        sent_ms.saturating_add(ARRIVES_MS + bytes * 1000 / BYTES_PER_SECOND)
    }
}

/// The updates under way at a block.
#[derive(Debug, Default)]
pub(crate) struct Flights(BTreeMap<FlightKey, Flight>);

impl Flights {
    pub(crate) fn get(&self, key: FlightKey) -> Option<&Flight> {
        self.0.get(&key)
    }

    /// Takes the room for an update's record.
    pub(crate) fn take_room(&mut self, key: FlightKey) -> Option<Reservation> {
        self.0.get_mut(&key).and_then(|flight| flight.room.take())
    }

    /// Fails with [`Reaction::Retry`](weft_types::Reaction) if there would be too many bytes in memory. Deltas count from the beginning.
    pub(crate) fn insert(&mut self, key: FlightKey, new: Pieces, room: Option<Reservation>, disk: &mut Disk) -> Result<()> {
        if self.0.contains_key(&key) {
            return Ok(());
        }
        let bytes = 2 * bytes_of(&new);
        if disk.inflight_bytes + bytes > disk.limits.inflight_bytes_max {
            return Err(Error::retry("too many bytes of updates are under way"));
        }
        disk.inflight_bytes += bytes;
        self.0.insert(key, Flight { new, deltas: Pieces::new(), room, sent: BTreeMap::new(), counted: bytes });
        Ok(())
    }

    /// A message is sent with so many bytes.
    pub(crate) fn sent(&mut self, to: Peer, message: &Message, bytes: u64, now_ms: u64) {
        let (Some(flight), Peer::Block(to)) = (key_of(message).and_then(|key| self.0.get_mut(&key)), to) else { return };
        if bytes > SMALL_BYTES {
            flight.sent.insert(to, (now_ms, bytes));
        } else {
            flight.sent.remove(&to);
        }
    }

    /// What was sent last of an update to a block is not on its way.
    pub(crate) fn not_sent(&mut self, key: FlightKey, to: BlockId) {
        if let Some(flight) = self.0.get_mut(&key) {
            flight.sent.remove(&to);
        }
    }

    /// Whether many bytes of an update were sent to a block a short time ago.
    pub(crate) fn may_be_arriving(&self, key: Option<FlightKey>, to: Peer, now_ms: u64) -> bool {
        let (Some(flight), Peer::Block(to)) = (key.and_then(|key| self.0.get(&key)), to) else { return false };
        now_ms < flight.arrives_ms(to)
    }

    /// A delta is known.
    pub(crate) fn add_delta(&mut self, key: FlightKey, stream: u8, delta: Arc<Piece>, disk: &mut Disk) {
        if let Some(flight) = self.0.get_mut(&key) {
            flight.deltas.insert(stream, delta);
            // As a rule, it is as long as the new bytes, and was counted with them.
            let more = flight.bytes().saturating_sub(flight.counted);
            flight.counted += more;
            disk.inflight_bytes += more;
        }
    }

    /// Forgets all that is not under way any more.
    pub(crate) fn retain(&mut self, is_under_way: impl Fn(FlightKey) -> bool, disk: &mut Disk) {
        self.0.retain(|key, flight| {
            let is_kept = is_under_way(*key);
            if !is_kept {
                disk.inflight_bytes = disk.inflight_bytes.saturating_sub(flight.counted);
            }
            is_kept
        });
    }
}
