//! A stripe of a put. It is placed, allocated and sent ([`begin`]). When its writer is done with it, blocks that were not stored are
//! rebuilt from what was, or the writer sends data again, until the stripe can be written down.
//!
//! Events go in, actions come out ([`StripeEnd::on`]). At most the last action of an event asks for an answer, which is the next event.
//!
//! ```text
//! Begin ──enough is stored──► Rebuild copies ──► Commit ──► End
//!   │  └──the rest can be made of it──► Rebuild ───▲
//!   └──────too little──► Allocate ──► Send ──► End: the writer sends again
//! ```
//! A stripe that can neither be completed nor sent again is given up: its writer then sends all of it, as a new stripe. What is known of
//! the put between the calls of its writer: [`Upload`].

mod ahead;
pub mod begin;
mod end;
mod homes;
pub mod late;
mod receipts;
mod resend;
mod sent;
pub mod upload;

pub use ahead::Ahead;
pub use begin::StripeBegin;
pub use end::StripeEnd;
pub use homes::{Site, named};
pub use late::LateStripe;
pub use sent::SentStripe;
pub use upload::Upload;

use crate::{
    capacity::KeptFree,
    options::RepairOptions,
    rebuild::{self, Rebuilt},
    run::Report,
    view::View,
};
use rand::RngCore;
use std::collections::BTreeSet;
use weft_codes::SharedCode;
use weft_types::{BlockId, BlockState, Error, FailureDomain, Home, NodeId, ObjectName, Result, TaskTraffic, UploadId};

/// What all stripes of a put have in common.
#[derive(Debug, Clone)]
pub struct Request {
    /// The put.
    pub upload: UploadId,
    /// The code.
    pub code: SharedCode,
    /// The object, for messages.
    pub object: ObjectName,
    /// What must not hold more blocks of a stripe than the code tolerates to lose.
    pub failure_domain: FailureDomain,
    /// How many copies of each data block there are, with the coded one.
    pub replicas: u8,
    /// So many blocks of a stripe may come after its end.
    pub missing_max: u32,
    /// What conversions leave free, if the put is one.
    pub kept_free: Option<KeptFree>,
    /// How missing blocks are rebuilt.
    pub repair: RepairOptions,
    /// So many times data is sent again, and so many nodes may fail to take their part in that.
    pub resumes_max: u32,
    /// Bytes that a disk keeps free.
    pub disk_reserve_bytes: u64,
    /// A node that waited for another for so long when its plan ended did not fail itself, milliseconds.
    pub long_wait_ms: u32,
}

/// What is seen when an event comes in.
pub struct World<'a> {
    /// The nodes.
    pub view: &'a View,
    /// For what is left to chance.
    pub rng: &'a mut dyn RngCore,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The plan that brought the stripe has ended, or has brought enough.
    Begin {
        /// What its agents have told.
        report: Report,
        /// It has brought enough, and goes on.
        early: bool,
        /// The nodes of which the writer complains.
        complaints: BTreeSet<NodeId>,
    },
    /// Answers [`Action::Rebuild`].
    Rebuilt(Result<Rebuilt>),
    /// Answers [`Action::Allocate`].
    Allocated(Result<BlockId>),
    /// Answers [`Action::Send`]: all agents run their part, or why not.
    Started(Result<()>),
    /// Answers [`Action::Commit`].
    Committed(Result<()>),
}

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    /// Log a warning.
    Warn(String),
    /// Avoid a node for a while.
    Suspect(NodeId),
    /// Log an error: a node has stored something else than the writer sent.
    StoredWrong(BlockId, NodeId),
    /// Remember that a node held up the put.
    HeldUp,
    /// Send this put's stripes by the simplest scheme from now on: a node has too little memory for another.
    Simplest(Error),
    /// Rebuild blocks, without committing them; [`Event::Rebuilt`] answers.
    Rebuild(Box<rebuild::Request>),
    /// Allocate a new generation of a block; [`Event::Allocated`] answers.
    Allocate {
        /// The block's index.
        index: u8,
        /// Which copy of it.
        copy: u8,
        /// Where it goes.
        home: Home,
    },
    /// Make and start the plan by which the writer sends the stripe's missing blocks to their new homes; [`Event::Started`] answers.
    Send(Box<SentStripe>),
    /// Write down that the stripe has ended; [`Event::Committed`] answers.
    Commit {
        /// Its blocks and their copies, in the order of [`StripeRecord::all`](weft_types::StripeRecord::all).
        blocks: Vec<(u32, Home, BlockState)>,
        /// CRC32C of each MiB of each block, by index.
        checksums: Vec<Vec<u32>>,
        /// The object's size, if the same transaction commits the put.
        put_bytes: Option<u64>,
    },
    /// That is all.
    End(Result<Ended>),
}

/// What came of it.
#[derive(Debug)]
pub struct Ended {
    /// What agents moved for it, as far as it is known.
    pub traffic: TaskTraffic,
    /// The plan that was started last is to bring more. Else the stripe is written down.
    pub again: bool,
}

#[cfg(test)]
mod tests;
