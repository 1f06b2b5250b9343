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
mod repair;
mod rounds;
mod select;
mod speeds;

pub use admission::{Admission, Line, Place, STREAMS_MAX, Ticket};
pub use balance::{algorithm_1, balance, lower_bound};
pub use job::{BLOCKS_PER_NODE, Cluster, Open, Scheduled, Scheduler, Summary, batch_len, known_max};
pub use parts::{Parts, parts};
pub use repair::{Assignment, Candidates, Edge, Load, Part, Repair, imbalance, loads};
pub use rounds::{Transfer, rounds};
pub use select::{Assigning, Starting};
pub use speeds::{Racks, Speeds};

/// The most stripes for each node that a schedule rebuilds at a time.
pub const STRIPES_PER_NODE: usize = 4;
