//! What a rebuild waits for.

use super::{Lost, RebuiltBlock};
use crate::run::Report;
use std::collections::{BTreeSet, VecDeque};
use weft_types::{BlockId, Error, Home, NodeId, Result};

/// What it waits for.
#[derive(Debug)]
pub(super) enum State {
    Begin,
    /// For a home, after `tried - 1` others.
    Allocating {
        lost: Lost,
        home: Home,
        avoid: BTreeSet<NodeId>,
        tried: usize,
    },
    /// For what its home keeps of this block's earlier generation.
    Keeping(BlockId),
    Releasing,
    Planning,
    /// For a plan that reads these blocks.
    Running {
        reads: Vec<BlockId>,
    },
    LookingUp(Failure),
    /// For the commit of a block; the others follow.
    Committing {
        new: RebuiltBlock,
        others: VecDeque<RebuiltBlock>,
        failure: Option<Error>,
    },
    /// For the release of a block that could not be committed, or that is not needed any more; others are still to be committed.
    NotCommitted {
        others: VecDeque<RebuiltBlock>,
        failure: Option<Error>,
    },
    /// For the release of allocations.
    Ending {
        result: Result<()>,
        others: VecDeque<BlockId>,
    },
    Ended,
}

/// Why a plan failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// According to the agents' reports.
    Told(Report),
    /// A node could not take part.
    NotOpened { node: NodeId, error: Error },
    /// Rebuilt blocks are not what was lost.
    Wrong,
}
