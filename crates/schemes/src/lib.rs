//! Schemes: from a job to a plan, one file for each scheme. A scheme decides which party sends what to which. It moves
//! no byte, and never decides what is wanted: the job does, so that the plan can be verified against it.
//!
//! [`choose`] is the single entry point. It determines the [`Kind`] of the job, lets every scheme for such jobs (or the named one) make a
//! plan, and takes the plan predicted to be fastest. The job's positions are cut into regions in which the same parties want and hold the
//! same blocks; a scheme makes the lanes of one region. So corrupt pages, resumed repairs, and degraded reads of a range need no support
//! from a scheme.
//!
//! To add a scheme, write its file and add a line to [`SCHEMES`]; see docs/howto/add-a-scheme.md. Code outside that file never compares
//! names: it gets a scheme's properties from the registry.

pub mod check;
mod considered;
pub mod disseminate;
mod door;
mod lane;
pub mod path;
mod patterns;
mod random;
mod read;
mod region;
mod registry;
pub mod repair;
mod request;
mod select;
mod slice_size;
pub mod update;

pub use check::check_rows;
pub use door::{Kind, choose, choose_of, choose_quickly, plan};
pub use lane::{LaneBuilder, Requestor};
pub use patterns::Patterns;
pub use registry::{AUTO, Named, SCHEMES, Scheme, answering, by_name, check_name, rebuilds, simplest};
pub use request::{Request, Run, code_view};
pub use select::{Paths, Select};
pub use slice_size::{best_slice, region_of_interest, slice_size, update_slice_size};
