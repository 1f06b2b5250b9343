//! Schemes: from a job to a plan, one file a scheme. A scheme decides who sends what to whom; it moves no byte, and it never says
//! itself what is wanted: the job does, so that the plan can be verified against it.
//!
//! [`plan_repair`] answers "these blocks are lost (or just wanted), over there they are needed" and [`plan_write`] "this data is
//! new". Both cut the job's positions into regions in which the same blocks are wanted by the same parties and held by the same
//! parties; a scheme then makes the lanes of one region. So a corrupt page, a repair that goes on where another one broke off,
//! and a degraded read of a range need nothing from a scheme.
//!
//! To add a scheme: write its file, and add it to the list in its folder's `mod.rs`.

mod considered;
pub mod disseminate;
mod lane;
pub mod path;
mod read;
mod region;
pub mod repair;
mod request;
mod select;
mod slice_size;

pub use disseminate::plan_write;
pub use lane::{LaneBuilder, Requestor};
pub use repair::plan_repair;
pub use request::{Request, Run, code_view};
pub use select::{Paths, Select};
pub use slice_size::{best_slice, slice_size};
