//! The repair of many stripes at once: which node takes which place in which repair, so that no link carries more than
//! its share (RepairBoost: Lin et al., *Boosting Full-Node Repair in Erasure-Coded Storage*, USENIX ATC 2021, §3).
//!
//! The plan of one stripe's repair is the paper's repair DAG. Of it, the balance needs what each vertex sends and
//! receives, and which nodes can take its place: [`Repair`]. An [`Assignment`] says which node takes which place:
//!
//! - [`balance`]: as evenly as the placement of the blocks allows, by maximum flow;
//! - [`algorithm_1`]: the paper's greedy way;
//! - [`baseline`]: without a view of the whole, at random or the least recently used.
//!
//! [`Scheduler`] makes the schedule of a job from it, batch by batch, and [`Admission`] decides which repair starts next,
//! so that no link carries more than its share at a time.

mod admission;
mod balance;
pub mod baseline;
mod flow;
mod job;
mod parts;
mod racks;
mod rounds;
mod select;
mod speeds;

pub use admission::{Admission, Line, Place, STREAMS_MAX, Ticket};
pub use balance::{algorithm_1, balance, lower_bound};
pub use job::{BLOCKS_PER_NODE, Cluster, Open, Scheduled, Scheduler, Summary};
pub use parts::{Parts, parts};
pub use rounds::{Transfer, rounds};
pub use select::{Assigning, Starting};
pub use speeds::{Racks, Speeds};

use std::ops::{AddAssign, SubAssign};

/// The most stripes for each node that a schedule rebuilds at a time.
pub const STRIPES_PER_NODE: usize = 4;

/// Bytes that a vertex or a node sends and receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Bytes sent.
    pub up: u64,
    /// Bytes received.
    pub down: u64,
}

/// Vertices of a repair for which the same nodes can be chosen. Each gets another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The load of each vertex, in the order of the scheme: the first vertex of a chain first.
    pub vertices: Vec<Load>,
    /// The nodes to choose from.
    pub candidates: Candidates,
}

/// The nodes that can take the vertices of a part. Nodes are numbered from 0, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidates {
    /// These, ascending.
    These(Vec<u32>),
    /// All but these, ascending.
    AllBut(Vec<u32>),
}

/// The repair of one stripe's lost blocks. No node takes two of its vertices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Repair {
    /// Its parts: those of helpers, and at last the destinations.
    pub parts: Vec<Part>,
    /// What vertices send to each other.
    pub edges: Vec<Edge>,
}

/// Bytes that one vertex of a repair sends to another one. Vertices are numbered from 0, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// The bytes.
    pub bytes: u64,
}

/// The node of each vertex of a repair, part by part.
pub type Assignment = Vec<Vec<u32>>;

impl Candidates {
    /// Their numbers, ascending, in a cluster of so many nodes.
    pub fn all(&self, nodes: usize) -> impl Iterator<Item = u32> {
        let (these, but) = match self {
            Self::These(these) => (these.as_slice(), None),
            Self::AllBut(but) => (&[][..], Some(but.as_slice())),
        };
        let others = but.map(|but| (0..nodes as u32).filter(|node| but.binary_search(node).is_err()));
        these.iter().copied().chain(others.into_iter().flatten())
    }

    /// How many there are.
    pub fn count(&self, nodes: usize) -> usize {
        match self {
            Self::These(these) => these.len(),
            Self::AllBut(but) => nodes.saturating_sub(but.len()),
        }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.up += other.up;
        self.down += other.down;
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Self) {
        self.up -= other.up;
        self.down -= other.down;
    }
}

impl Load {
    /// The larger of the two directions: links carry both at once.
    pub fn busier(&self) -> u64 {
        self.up.max(self.down)
    }

    /// Only what is sent.
    pub const fn only_up(self) -> Self {
        Self { down: 0, ..self }
    }

    /// Only what is received.
    pub const fn only_down(self) -> Self {
        Self { up: 0, ..self }
    }
}

/// The load of each node under these assignments.
pub fn loads(nodes: usize, repairs: &[Repair], assignments: &[Assignment]) -> Vec<Load> {
    let mut loads = vec![Load::default(); nodes];
    for (repair, assignment) in repairs.iter().zip(assignments) {
        for (part, chosen) in repair.parts.iter().zip(assignment) {
            for (vertex, node) in part.vertices.iter().zip(chosen) {
                loads[*node as usize] += *vertex;
            }
        }
    }
    loads
}

/// The load of the busiest link, relative to the mean of all links in the same direction (§5.1, the load balancing
/// degree): 1 is perfect balance. 1, too, if nothing is moved.
pub fn imbalance(loads: &[Load]) -> f64 {
    let total: u64 = loads.iter().map(|load| load.up).sum();
    let busiest = loads.iter().map(Load::busier).max().unwrap_or(0);
    if total == 0 { 1.0 } else { busiest as f64 * loads.len() as f64 / total as f64 }
}
