//! The rebuild of blocks of one stripe: homes are chosen and allocated, a plan brings the blocks, and after a failure the next plan
//! brings what is still missing, around the nodes that failed. The blocks of a repair are committed at the end; a put commits its own.
//!
//! Events go in, actions come out ([`Rebuild::on`]). At most the last action of an event asks for an answer, which is the next event.
//!
//! ```text
//! Begin ──► Allocate ──► Plan ──► Run ──all durable──► Commit ──► End
//!              ▲  │                │
//!              │  └──conflict──┐   └──failed──► LookUp
//!              │               ▼                  │
//!              └──────── another home ◄───────────┘
//! ```
//! A repair leaves out blocks that have no home, and fails if all have none. A put's rebuild fails if one has none; it looks up and
//! commits nothing.

mod arriving;
mod avoided;
mod homes;
mod machine;
mod object;
mod reading;

pub use arriving::{Arriving, Lost, RebuiltBlock, lost_blocks, moved_bytes};
pub use homes::{BlocksGiven, Destination};
pub use machine::Rebuild;
pub use object::{lacking_copies, leaves_others, named_block};
pub use reading::PlanRequest;

use crate::{helpers::LastUsed, options::RepairOptions, planning::Planned, run::Report, view::View};
use rand::RngCore;
use std::collections::BTreeSet;
use weft_codes::SharedCode;
use weft_types::{BlockId, FailureDomain, HelperSelect, Home, NodeId, ObjectName, Result, StripeRecord, TaskTraffic, UploadId};

/// What is to be rebuilt.
#[derive(Debug, Clone)]
pub struct Request {
    /// The stripe's code.
    pub code: SharedCode,
    /// The stripe's object, for messages.
    pub object: ObjectName,
    /// The stripe as it is known.
    pub stripe: StripeRecord,
    /// The blocks.
    pub lost: Vec<Lost>,
    /// How they are brought back.
    pub options: RepairOptions,
    /// How helpers are selected. None: the nodes next to the requestor help.
    pub helpers: Option<HelperSelect>,
    /// Where the blocks go.
    pub to: Destination,
    /// What must not hold more blocks of the stripe than the code tolerates to lose.
    pub failure_domain: FailureDomain,
    /// What the rebuild is for.
    pub purpose: Purpose,
    /// Nodes that get no block, and help only where there is no other way.
    pub avoid: BTreeSet<NodeId>,
    /// So many plans may follow the first.
    pub resumes_max: u32,
    /// Bytes that a disk keeps free.
    pub disk_reserve_bytes: u64,
}

/// What a rebuild is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A repair: each block becomes the stripe's own by a commit, and some may be left.
    Repair,
    /// A put that has not ended its stripe: it needs all blocks, and commits them itself. Nothing else changes the stripe meanwhile.
    Put(UploadId),
}

impl Purpose {
    /// Whether a put asks.
    pub const fn is_put(self) -> bool {
        matches!(self, Self::Put(_))
    }
}

/// What came of a rebuild.
#[derive(Debug, Clone, Default)]
pub struct Rebuilt {
    /// The blocks, durable; those of a repair are the stripe's own now.
    pub blocks: Vec<RebuiltBlock>,
    /// Blocks, by index and copy, that were not rebuilt, and why.
    pub left: Vec<((u8, u8), String)>,
    /// What there is to say of the racks.
    pub warnings: Vec<String>,
    /// What the plans moved.
    pub traffic: TaskTraffic,
    /// How many plans followed the first.
    pub resumed: u32,
}

/// What a rebuild sees when an event comes in, and what it shares with the other rebuilds of its job.
pub struct World<'a> {
    /// The nodes.
    pub view: &'a View,
    /// Which helpers were selected when.
    pub used: &'a mut LastUsed,
    /// What each node has been given.
    pub given: &'a mut BlocksGiven,
    /// For what is left to chance.
    pub rng: &'a mut dyn RngCore,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The rebuild begins.
    Begin,
    /// Answers [`Action::Allocate`]; [`Reaction::Replan`](weft_types::Reaction::Replan): the node is taken, or the stripe was changed meanwhile.
    Allocated(Result<BlockId>),
    /// Answers [`Action::Release`].
    Released,
    /// Answers [`Action::Plan`].
    Planned(Result<Box<Planned>>),
    /// Answers [`Action::Run`]: what the agents told, or why the plan did not run.
    Ran(Result<Report>),
    /// Answers [`Action::LookUp`]; none: the stripe cannot be looked up.
    LookedUp(Option<StripeRecord>),
    /// Answers [`Action::Commit`].
    Committed(Result<()>),
}

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    /// Log a warning.
    Warn(String),
    /// Say that the rebuild goes on around a failure, and how.
    Resumed(String),
    /// Avoid a node for a while.
    Suspect(NodeId),
    /// Allocate a new generation of a block; [`Event::Allocated`] answers.
    Allocate {
        /// The block's index.
        index: u8,
        /// Which copy of it.
        copy: u8,
        /// Where it goes.
        home: Home,
    },
    /// Give up an allocation; [`Event::Released`] answers.
    Release {
        /// What was allocated.
        block: BlockId,
        /// A task may still be writing it.
        may_be_written: bool,
    },
    /// Make a plan; [`Event::Planned`] answers.
    Plan(Box<PlanRequest>),
    /// Run it; [`Event::Ran`] answers.
    Run(Box<Planned>),
    /// Look up the stripe as it is now; [`Event::LookedUp`] answers.
    LookUp,
    /// Put a block in the place of the stripe's generation `old`; [`Event::Committed`] answers.
    Commit {
        /// The new block.
        new: RebuiltBlock,
        /// The generation that it replaces; 0: there is none.
        old: u32,
    },
    /// The rebuild has ended. Nothing is allocated that is not in the result or committed.
    End(Result<Rebuilt>),
}

#[cfg(test)]
mod tests;
