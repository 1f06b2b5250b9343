//! Schemes: from a job to a plan, one file a scheme. A scheme decides who sends what to whom; it moves no byte, and it never says
//! itself what is wanted: the job does, so that the plan can be verified against it.
//!
//! [`choose`] is the one door: it sees which [`Kind`] of job it is, asks every scheme that answers such jobs (or the one that was
//! named), and takes the plan that is predicted to be the quickest. The job's positions are cut into regions in which the same blocks
//! are wanted by the same parties and held by the same parties; a scheme then makes the lanes of one region. So a corrupt page, a
//! repair that goes on where another one broke off, and a degraded read of a range need nothing from a scheme.
//!
//! To add a scheme: write its file, and add a line to [`SCHEMES`]; see docs/howto/add-a-scheme.md. Code outside of its file compares no
//! names: what it must know of a scheme it asks the registry.

pub mod check;
mod considered;
pub mod disseminate;
mod door;
mod lane;
pub mod path;
mod patterns;
mod read;
mod region;
mod registry;
pub mod repair;
mod request;
mod select;
mod slice_size;
pub mod update;

pub use door::{Kind, choose, choose_quickly, plan};
pub use lane::{LaneBuilder, Requestor};
pub use patterns::Patterns;
pub use registry::{AUTO, Named, SCHEMES, Scheme, answering, by_name, check_name, rebuilds, simplest};
pub use request::{Request, Run, code_view};
pub use select::{Paths, Select};
pub use slice_size::{best_slice, slice_size};
