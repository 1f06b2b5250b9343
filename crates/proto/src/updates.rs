//! Updates in place on the wire: one connection carries packets in both directions until it is closed.
//!
//! An agent sends its messages to another agent on a connection that it has dialled, and a client its requests and reads. Answers to a client return on
//! the same connection. docs/formats.md describes the bytes.

pub(crate) mod check;
mod client;
mod packet;
mod read;
mod route;
mod session;

pub use client::{UpdateClient, UpdateRequest};
pub use packet::{HeadMax, Packet, Part, PartRef, UpdateReader, UpdateWriter, fuzz_packets, packet_stream};
pub use read::{Found, OPEN_READ_BYTES_MAX, OPEN_READS_BYTES_MAX, OPEN_READS_MAX, OpenRead, ReadRefusal, pieces_of};
pub use route::{Hop, LoadHead, LoadId, LoadPart, Route};
pub use session::{accept, dial};

/// The most bytes of blocks that a packet carries: those of one update. An agent whose journal is too small for them refuses such updates.
pub const UPDATE_BYTES_MAX: usize = weft_types::UPDATE_BYTES_MAX as usize;
