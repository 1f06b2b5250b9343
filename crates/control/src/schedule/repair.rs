//! The repair of a stripe as the balance sees it, and what nodes carry.

use std::{
    iter::Sum,
    ops::{AddAssign, SubAssign},
};

/// Bytes that a vertex or a node sends and receives, and those that its disks carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Bytes sent.
    pub up: u64,
    /// Bytes received.
    pub down: u64,
    /// Bytes read from its disks and written to them: of a block of its own only, not what it passes on.
    pub disk: u64,
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
        self.disk += other.disk;
    }
}

impl Sum for Load {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), |mut sum, load| {
            sum += load;
            sum
        })
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Self) {
        self.up -= other.up;
        self.down -= other.down;
        self.disk -= other.disk;
    }
}

impl Load {
    /// Of links only.
    pub const fn of_links(up: u64, down: u64) -> Self {
        Self { up, down, disk: 0 }
    }

    /// The larger of the two directions: links carry both at once.
    pub fn busier(&self) -> u64 {
        self.up.max(self.down)
    }

    /// Only what is sent.
    pub const fn only_up(self) -> Self {
        Self::of_links(self.up, 0)
    }

    /// Only what is received.
    pub const fn only_down(self) -> Self {
        Self::of_links(0, self.down)
    }

    /// Only what disks carry.
    pub const fn only_disk(self) -> Self {
        Self { up: 0, down: 0, ..self }
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
