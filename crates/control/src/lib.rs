//! What is decided, apart from what is done: pure functions and state over plain values.
//!
//! Nothing here waits, opens a socket, asks a database or looks at a clock: time and random numbers are passed in. The coordinator is
//! the shell that does what is decided here.
//!
//! | module | what it decides |
//! | --- | --- |
//! | [`members`], [`view`] | which nodes are up and suspect; which nodes and blocks can be used at one moment |
//! | [`placement`], [`assignment`], [`capacity`] | where new blocks go; which node gets which; what conversions leave free |
//! | [`cool`] | which copies are dropped when the data have cooled down |
//! | [`rebuild`], [`helpers`] | the rebuild of a stripe's blocks, from their homes to their commit; which nodes help |
//! | [`job`] | a job of an operator: when it works, tries again, waits, and how it ended |
//! | [`node_repair`], [`conversion`] | what a job of one kind does of that: what is wanted, who does it, what is left |
//! | [`read`] | what a read brings, and when it needs another plan |
//! | [`recovery`], [`retries`] | whether what is left of a stripe is enough; when what failed is tried again |
//! | [`put`] | a stripe of a put: where it goes, what is rebuilt, sent again or written down at its end, and what comes later |
//! | [`options`], [`planning`] | what requests choose; from a stripe to a proved plan |
//! | [`links`], [`in_flight`] | what links carry; what plans under way still have to move |
//! | [`stragglers`], [`disputes`] | which nodes are slow; which are at fault where nodes complain of each other |
//! | [`findings`], [`orphans`] | what is written down of blocks that their nodes say are bad; when a node's blocks are compared |
//! | [`garbage`] | when nodes are asked to remove what nobody needs, and how often a person is told that it is still there |
//! | [`walk`] | which page of the metadata is looked up next |
//! | [`run`] | what the agents of a plan have told, when it stalls, and who is to blame |

pub mod assignment;
pub mod capacity;
pub mod conversion;
pub mod cool;
pub mod disputes;
pub mod findings;
#[cfg(test)]
mod fixtures;
pub mod garbage;
pub mod helpers;
pub mod in_flight;
pub mod job;
pub mod known;
pub mod links;
pub mod members;
pub mod node_repair;
pub mod options;
pub mod orphans;
pub mod placement;
pub mod planning;
pub mod put;
pub mod read;
pub mod rebuild;
pub mod recovery;
pub mod retries;
pub mod run;
pub mod stragglers;
mod time;
pub mod view;
pub mod walk;

pub use time::Time;
