//! A stripe of a put. It is placed, allocated and sent ([`begin`]). When its writer has finished, blocks that were not
//! stored are rebuilt from those that were, or the writer sends data again, until the end of the stripe can be
//! recorded.
//!
//! Events go in, actions come out ([`StripeEnd::on`]). At most the last action of an event needs an answer, which is the next event.
//!
//! ```text
//!   Begin ──enough is stored──► Rebuild copies ──► Commit ──► End
//!     │  └──the rest can be rebuilt──► Rebuild ──────▲
//!     └──────too little──► Allocate ──► Send ──► End: the writer sends again
//! ```
//! A stripe that can be neither completed nor sent again is given up: its writer then sends all of it as a new stripe.
//! [`Upload`] holds the state of the put between its writer's calls.

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
use weft_types::{
    BlockId, BlockState, Error, FailureDomain, Home, NodeId, ObjectName, RebuildReserve, Result, TaskTraffic, UploadId,
};

/// What all stripes of a put have in common.
#[derive(Debug, Clone)]
pub struct Request {
    /// The put.
    pub upload: UploadId,
    /// The code.
    pub code: SharedCode,
    /// The object, for messages.
    pub object: ObjectName,
    /// The unit of placement.
    pub failure_domain: FailureDomain,
    /// Copies of each data block, including the coded one.
    pub replicas: u8,
    /// How many blocks of a stripe may come after its end.
    pub missing_max: u32,
    /// For a conversion: the space that must stay free.
    pub kept_free: Option<KeptFree>,
    /// How missing blocks are rebuilt.
    pub repair: RepairOptions,
    /// How many times data is sent again, and how many nodes may fail to take part in that.
    pub resumes_max: u32,
    /// Bytes that must stay free on a disk.
    pub disk_reserve_bytes: u64,
    /// What else stays free when homes are chosen for a stripe. What has begun may use it.
    pub rebuild_reserve: RebuildReserve,
    /// A node that waited for another for this long when its plan ended did not fail itself, milliseconds.
    pub long_wait_ms: u32,
}

/// The state of the cluster when an event arrives.
pub struct World<'a> {
    /// The nodes.
    pub view: &'a View,
    /// Random numbers.
    pub rng: &'a mut dyn RngCore,
}

/// An event.
#[derive(Debug)]
pub enum Event {
    /// The stripe's plan has ended, or enough of the stripe is stored.
    Begin {
        /// The reports of its agents.
        report: Report,
        /// Enough is stored, and the plan continues.
        early: bool,
        /// The nodes that the writer blames.
        complaints: BTreeSet<NodeId>,
    },
    /// Answers [`Action::Rebuild`].
    Rebuilt(Result<Rebuilt>),
    /// Answers [`Action::Allocate`].
    Allocated(Result<BlockId>),
    /// Answers [`Action::Send`]: all agents run their tasks, or why not.
    Started(Result<()>),
    /// Answers [`Action::Commit`].
    Committed(Result<()>),
}

/// An action.
#[derive(Debug)]
pub enum Action {
    /// Log a warning.
    Warn(String),
    /// Avoid a node for a while.
    Suspect(NodeId),
    /// Log an error: a node has stored other bytes than the writer sent.
    StoredWrong(BlockId, NodeId),
    /// Remember that a node delayed the put.
    HeldUp,
    /// Send this put's stripes by the simplest scheme from now on: a node has too little memory for another.
    Simplest(Error),
    /// Rebuild blocks, without committing them; [`Event::Rebuilt`] answers.
    Rebuild(Box<rebuild::Request>),
    /// Allocate a new generation of a block; [`Event::Allocated`] answers.
    Allocate {
        /// The block's index.
        index: u8,
        /// The copy's number.
        copy: u8,
        /// Its new home.
        home: Home,
    },
    /// Make and start the plan with which the writer sends the stripe's missing blocks to their new homes;
    /// [`Event::Started`] answers.
    Send(Box<SentStripe>),
    /// Record that the stripe has ended; [`Event::Committed`] answers.
    Commit {
        /// Its blocks and their copies, in the order of [`StripeRecord::all`](weft_types::StripeRecord::all).
        blocks: Vec<(u32, Home, BlockState)>,
        /// The CRC32C of each MiB of each block, by index.
        checksums: Vec<Vec<u32>>,
        /// The object's size, if the same transaction commits the put.
        put_bytes: Option<u64>,
    },
    /// The end.
    End(Result<Ended>),
}

/// The result.
#[derive(Debug)]
pub struct Ended {
    /// The agents' traffic for it, as far as known.
    pub traffic: TaskTraffic,
    /// Whether the last plan is to bring more. Otherwise the stripe's end is recorded.
    pub again: bool,
}

#[cfg(test)]
mod tests;
