//! The rebuild of blocks of one stripe. Homes are chosen and allocated, and a plan brings the blocks. After a failure
//! the next plan brings what is still missing and avoids the failed nodes. A repair commits its blocks at the end; a
//! put commits its own.
//!
//! Events go in, actions come out ([`Rebuild::on`]). At most the last action of an event needs an answer, which is the next event.
//!
//! ```text
//!   Begin ──► Allocate ──► Plan ──► Run ──all durable──► Commit ──► End
//!                ▲  │                │
//!                │  └──conflict──┐   └──failed──► LookUp
//!                │               ▼                  │
//!                └──────── another home ◄───────────┘
//! ```
//! Before the plan, the node of a block that was left out of updates keeps what these have not changed (`machine/keep`).
//! A block that was rebuilt with wrong checksums is rebuilt again at another home, and with other helpers (`doubts`).
//!
//! A repair leaves out blocks without a home, and fails if no block has one. A put's rebuild fails if any block has
//! none; it looks up and commits nothing.

mod arriving;
mod avoided;
mod doubts;
mod homes;
mod lease;
mod machine;
mod object;
mod open;
mod reading;
mod state;

pub use arriving::{Arriving, Kept, Lost, RebuiltBlock, lost_blocks, moved_bytes};
pub use homes::{BlocksGiven, Destination};
pub use lease::{Lease, lease_len};
pub use machine::Rebuild;
pub use object::{lacking_copies, leaves_others, named_block, room_for_copies};
pub use reading::PlanRequest;

use crate::{
    health::FurtherLosses, helpers::LastUsed, options::RepairOptions, planning::Planned, reserve::Share, run::Report,
    schedule::Scheduled, view::View,
};
use rand::RngCore;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use weft_codes::SharedCode;
use weft_types::{
    BlockId, Cause, FailureDomain, HelperSelect, Home, NodeId, ObjectName, Result, StripeRecord, TaskTraffic, UploadId,
};

/// A request to rebuild blocks.
#[derive(Debug, Clone)]
pub struct Request {
    /// The stripe's code.
    pub code: SharedCode,
    /// The stripe's object, for messages.
    pub object: ObjectName,
    /// The current stripe.
    pub stripe: StripeRecord,
    /// The lost blocks.
    pub lost: Vec<Lost>,
    /// How they are rebuilt.
    pub options: RepairOptions,
    /// How helpers are selected; `None`: the nodes nearest to the requestor.
    pub helpers: Option<HelperSelect>,
    /// The nodes that a schedule chose. Others take part only where these cannot.
    pub scheduled: Option<Scheduled>,
    /// Where the blocks go.
    pub to: Destination,
    /// The unit of placement.
    pub failure_domain: FailureDomain,
    /// The purpose of the rebuild.
    pub purpose: Purpose,
    /// Nodes that get no block, and help only if there is no alternative.
    pub avoid: BTreeSet<NodeId>,
    /// Nodes that are up and did not answer a moment ago: no block goes back to them for what they still have of it.
    pub silent: BTreeSet<NodeId>,
    /// How many plans may follow the first.
    pub resumes_max: u32,
    /// Bytes that must stay free on a disk.
    pub disk_reserve_bytes: u64,
    /// What of each disk stays free besides; nothing for repairs.
    pub kept: Share,
    /// How long it is needed. When it is not any more, it ends, and drops what it has not committed.
    pub needed: Needed,
    /// What was computed for this before.
    pub answers: Answers,
}

/// How many further losses a stripe survives takes long to find out for some codes, and is asked again and again. Clones share the answers.
#[derive(Debug, Clone, Default)]
pub struct Answers(Arc<Mutex<FurtherLosses>>);

impl Answers {
    fn lock(&self) -> MutexGuard<'_, FurtherLosses> {
        // A poisoned lock is safe to use: each answer is added by one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a rebuild is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// To its end.
    Always,
    /// While its blocks are lost: those whose nodes come back are dropped.
    WhileLost,
    /// While its blocks leave the nodes or disks where they can be read, and the stripe lacks none that can be rebuilt: that one comes first.
    WhileLeaving,
    /// While the stripe lacks no block: it only spreads blocks over racks, and fails rather than put more in a rack than the code tolerates
    /// to lose.
    ToSpread,
}

impl Needed {
    /// Whether it moves blocks that are not lost.
    pub const fn moves(self) -> bool {
        matches!(self, Self::WhileLeaving | Self::ToSpread)
    }
}

/// The purpose of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A repair: each block is committed to the stripe, and some may be left out.
    Repair,
    /// A put with an unfinished stripe: it needs all blocks and commits them itself. Nothing else changes the stripe at
    /// that time.
    Put(UploadId),
}

impl Purpose {
    /// Whether it is for a put.
    pub const fn is_put(self) -> bool {
        matches!(self, Self::Put(_))
    }
}

/// The result of a rebuild.
#[derive(Debug, Clone, Default)]
pub struct Rebuilt {
    /// The durable blocks; those of a repair are committed. Empty if all lost blocks came back.
    pub blocks: Vec<RebuiltBlock>,
    /// Blocks, by index and copy, that were left out, and why.
    pub left: Vec<((u8, u8), String)>,
    /// The missing resource because of which some have no home.
    pub lack: Option<Cause>,
    /// Warnings about racks.
    pub warnings: Vec<String>,
    /// The traffic of the plans.
    pub traffic: TaskTraffic,
    /// How many plans followed the first.
    pub resumed: u32,
}

/// The state of the cluster when an event arrives, and what the rebuilds of a job share.
pub struct World<'a> {
    /// The nodes.
    pub view: &'a View,
    /// When each helper was last selected.
    pub used: &'a mut LastUsed,
    /// How many blocks each node has been given.
    pub given: &'a mut BlocksGiven,
    /// Random numbers.
    pub rng: &'a mut dyn RngCore,
}

/// An event.
#[derive(Debug)]
pub enum Event {
    /// The rebuild starts.
    Begin,
    /// Answers [`Action::Allocate`]; [`Reaction::Replan`](weft_types::Reaction::Replan): the node is taken, or the
    /// stripe has changed.
    Allocated(Result<BlockId>),
    /// Answers [`Action::Keep`]. After an error, it is unknown what the new generation contains.
    Kept(Result<Kept>),
    /// Answers [`Action::Release`].
    Released,
    /// Answers [`Action::Plan`].
    Planned(Result<Box<Planned>>),
    /// Answers [`Action::Run`]: the agents' reports, or why the plan did not run.
    Ran(Result<Report>),
    /// Answers [`Action::LookUp`]; `None` if the lookup failed.
    LookedUp(Option<StripeRecord>),
    /// Answers [`Action::Commit`].
    Committed(Result<()>),
}

/// An action.
#[derive(Debug)]
pub enum Action {
    /// Log a warning.
    Warn(String),
    /// Report that the rebuild continues after a failure, and how.
    Resumed(String),
    /// Avoid a node for a while.
    Suspect(NodeId),
    /// Forget what the metadata has as known of a block that was left out of updates in place: it is wrong.
    ForgetKept {
        /// The block's index.
        index: u8,
    },
    /// Allocate a new generation of a block; [`Event::Allocated`] answers.
    Allocate {
        /// The block's index.
        index: u8,
        /// The copy's number.
        copy: u8,
        /// Its new home.
        home: Home,
    },
    /// Ask the home of an allocated block to keep what is right of an earlier generation; [`Event::Kept`] answers.
    Keep {
        /// The allocated block.
        block: BlockId,
        /// What is known of its MiBs. Only these are kept, and only as they are known.
        units: Vec<Option<u32>>,
    },
    /// Release an allocation; [`Event::Released`] answers.
    Release {
        /// The allocated block.
        block: BlockId,
        /// Whether a task may still be writing it.
        may_be_written: bool,
    },
    /// Make a plan; [`Event::Planned`] answers.
    Plan(Box<PlanRequest>),
    /// Run the plan; [`Event::Ran`] answers.
    Run(Box<Planned>),
    /// Look up the current stripe; [`Event::LookedUp`] answers.
    LookUp,
    /// Replace the stripe's generation `old` of a block by the new one; [`Event::Committed`] answers.
    Commit {
        /// The new block.
        new: RebuiltBlock,
        /// The generation that it replaces; 0 if there is none.
        old: u32,
    },
    /// The rebuild has ended. All its allocations are released, committed, or in the result.
    End(Result<Rebuilt>),
}

#[cfg(test)]
mod tests;
