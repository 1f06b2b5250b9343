//! The update protocol: overwriting part of an erasure-coded stripe in place, on all its blocks or on none.
//!
//! The node of a data block orders the updates of that block. To update it, the node journals the delta and sends it to all blocks that depend
//! on it; each journals it and answers. An update is committed once it is durable at all of them: there is no record of the commit, and no
//! call to the coordinator. Only if a block stays away, the coordinator *seals* the stripe's term: the same rule decides what is undecided.
//!
//! Everything here is a state machine: events go in, actions come out. There is no clock, no socket and no disk, and no payload, only
//! ranges and CRCs. `weft-updater` adds the payload, agents and coordinator the rest.
//!
//! [`Block`] is one block at its node; it consists of a [`Participant`] and, for a data block, of a [`Leader`]. [`Seal`] is the coordinator's side.

mod block;
mod bounds;
#[cfg(test)]
mod fixtures;
mod leader;
mod locks;
mod memory;
mod mutation;
mod participant;
mod rounds;
mod rule;
pub mod seal;
mod types;

#[cfg(test)]
mod tests;

pub use block::{Action, Block, Config, Event, NotRun, Request, Told, Write};
pub use leader::Leader;
pub use memory::{OUTCOMES_KEPT_MS, OUTCOMES_MAX};
pub use participant::{NotServed, Participant, ReadAt};
pub use rounds::{Rounds, RoundsEnd};
pub use rule::decide;
pub use seal::{Seal, StripeTerm};
pub use types::{
    Batch, Claim, Crcs, Delta, Dependence, Entry, Incarnation, Known, Message, Outcome, Part, Peer, Record, Report, Sealed,
    Session, Stamp, UpdateId, Vector, Version,
};
