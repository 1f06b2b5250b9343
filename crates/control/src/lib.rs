//! The decisions of a cluster: pure functions and state machines over plain values.
//!
//! Nothing here waits, opens a socket, queries a database or reads a clock: time and random numbers are passed in. The
//! coordinator is the shell that carries out the decisions.
//!
//! | module | decides |
//! | --- | --- |
//! | [`members`], [`view`] | which nodes are up and suspect; which nodes and blocks are usable at one moment |
//! | [`departures`] | whether a node or disk that is gone for good can be forgotten |
//! | [`drain`] | whether the blocks of a node or disk that is taken out of service have other homes |
//! | [`disk_health`] | which disks are slow or failing although they work; which of them are drained without a person |
//! | [`placement`], [`assignment`], [`capacity`] | where new blocks go; which node gets which; what space conversions leave free |
//! | [`reserve`] | what space puts leave free, so that the largest node can be rebuilt |
//! | [`crowding`] | which stripes have too many blocks in a rack, and which of them move to others |
//! | [`cool`] | which copies are dropped when data has cooled down |
//! | [`rebuild`], [`helpers`] | the rebuild of a stripe's blocks, from their homes to their commit; which nodes help |
//! | [`job`] | when an operator's job works, retries and waits, and how it ended |
//! | [`eta`] | how long work still takes |
//! | [`node_repair`], [`conversion`] | the work of one kind of job: what is wanted, which node does it, what is left out |
//! | [`read`] | what a read returns, and when it needs another plan |
//! | [`recovery`], [`retries`] | whether the rest of a stripe suffices; when a failed operation is repeated |
//! | [`put`] | a stripe of a put: where it goes, what is rebuilt, resent or recorded at its end, and which blocks come later |
//! | [`options`], [`planning`] | the choices of requests; from a stripe to a verified plan |
//! | [`leveling`] | which blocks move from fuller disks to emptier ones |
//! | [`limit`] | the rate of repairs at each line, by the operator's limit; which nodes must hear of it |
//! | [`moved`] | whether a node may take over a disk that another one had, and how its blocks follow |
//! | [`links`], [`in_flight`] | the capacity of links; what running plans still have to move |
//! | [`busiest`] | which link needs longest for what it has to carry |
//! | [`stragglers`], [`disputes`] | which nodes are slow; which are at fault when nodes blame each other |
//! | [`findings`], [`orphans`] | what is recorded of blocks that their nodes report as bad; when a node's blocks are compared |
//! | [`healer`] | which silent nodes are lost; which stripes are rebuilt without a person, and in which order |
//! | [`health`] | whether the cluster is healthy, and why not; how many further losses each stripe survives |
//! | [`walk`] | which page of the metadata is read next |
//! | [`schedule`] | the repair of many blocks at once: which node takes which place in which repair |
//! | [`scrub`] | which stripe is checked when, and what is wrong with it |
//! | [`updates`] | which blocks take part in updates in place, what a seal decides, and what is handed on when a stripe is opened again |
//! | [`run`] | what the agents of a plan have reported, when it stalls, and which node is to blame |

pub mod assignment;
pub mod busiest;
pub mod capacity;
pub mod conversion;
pub mod cool;
pub mod crowding;
pub mod departures;
pub mod disk_health;
pub mod disputes;
pub mod drain;
pub mod eta;
pub mod findings;
#[cfg(test)]
mod fixtures;
pub mod garbage;
pub mod healer;
pub mod health;
pub mod helpers;
pub mod in_flight;
pub mod job;
pub mod known;
pub mod leveling;
pub mod limit;
pub mod links;
pub mod members;
pub mod moved;
pub mod node_repair;
pub mod options;
pub mod orphans;
pub mod placement;
pub mod planning;
pub mod pressure;
pub mod put;
pub mod read;
pub mod rebuild;
pub mod recovery;
pub mod reserve;
pub mod retries;
pub mod run;
pub mod schedule;
pub mod scrub;
pub mod stragglers;
mod time;
pub mod updates;
pub mod view;
pub mod walk;

pub use time::Time;
