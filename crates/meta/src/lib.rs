//! The cluster's metadata: nodes, disks, policies, buckets, objects, stripes, jobs, and what is under way.
//!
//! [`Meta`] is the one interface; each of its methods is one transaction. [`SqliteMeta`] keeps the metadata in one SQLite file.
//! Nothing here knows a plan, a code's algebra or a socket: a code is the text of its spec.
//!
//! Four rules hold, whatever implements the interface:
//! - **One leader.** Every change is conditional on the epoch of the leader that asks for it. [`Meta::become_leader`] begins a new
//!   epoch, and from then on whoever holds an older one gets [`MetaError::StaleLeader`] and changes nothing.
//! - **Allocated before bytes move.** A block is allocated (block, generation, node, disk) before anything is sent. What was
//!   allocated ends as a block of a stripe, or as garbage; nothing else is ever removed from a node.
//! - **Nothing is visible by halves.** [`Meta::commit_put`] makes an object visible whole and its predecessor garbage, at once.
//! - **No number twice.** Numbers of nodes, disks, stripes, uploads and jobs only grow, and so does a block's generation.

mod error;
mod jobs;
mod meta;
mod model;
mod packed;
mod sqlite;

pub use error::{MetaError, Result};
pub use jobs::ENDED_JOBS_MAX;
pub use meta::Meta;
pub use model::{
    Allocation, BucketRecord, ClusterRecord, CommitPut, EndStripe, GarbageBlock, Leftovers, NewCluster, NewDisk, NewNode,
    NewRepair, NewStripe, NewUpload, ObjectRecord, Page, PolicyRecord, Totals, UploadRecord,
};
pub use sqlite::{MetaMode, SqliteMeta, backup};
