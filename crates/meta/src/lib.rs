//! The cluster's metadata: nodes, disks, policies, buckets, objects, stripes, jobs, and running puts and repairs.
//!
//! [`Meta`] is the only interface; each of its methods is one transaction. [`SqliteMeta`] keeps the metadata in one
//! SQLite file. This crate knows no plan, no algebra and no socket: a code is the text of its spec.
//!
//! Every implementation follows five rules:
//! - **One leader.** Every change is conditional on the epoch of the leader that makes it. [`Meta::become_leader`]
//!   begins a new epoch. From then on a holder of an older epoch gets [`MetaError::StaleLeader`] and changes nothing.
//! - **Allocation before transfer.** A block is allocated (block, generation, node, disk) before any byte of it is
//!   sent. An allocation ends as a block of a stripe or as garbage. Nodes remove nothing but garbage.
//! - **Atomic visibility.** [`Meta::commit_put`] makes a whole object visible and its predecessor garbage in one
//!   transaction.
//! - **Open or settled.** A stripe that is open for updates in place ([`UpdateMeta`]) is changed by nothing else until it is settled.
//! - **Unique numbers.** Numbers of nodes, disks, stripes, uploads and jobs only grow, and so does a block's
//!   generation.

mod appends;
mod error;
mod jobs;
mod kept;
mod meta;
mod model;
mod packed;
mod sqlite;
mod updates;

pub use appends::{AppendMeta, BeginAppend, BegunAppend, EndAppend};
pub use error::{MetaError, Result};
pub use jobs::ENDED_JOBS_MAX;
pub use meta::Meta;
pub use model::{
    Allocation, BucketRecord, ClusterRecord, CommitPut, Departure, EndStripe, FollowDisk, FollowedBlocks, GarbageBlock,
    GarbageTotal, Leftovers, Listed, Listing, NewCluster, NewDisk, NewNode, NewRepair, NewStripe, NewUpload, ObjectRecord, Page,
    PolicyRecord, Totals, UploadRecord,
};
pub use sqlite::{MetaMode, SqliteMeta, backup};
pub use updates::{AdoptStripe, Adopted, Bad, Marked, OpenStripe, SettleStripe, TermRecord, TermState, UpdateMeta};
