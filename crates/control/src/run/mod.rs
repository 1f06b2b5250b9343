//! The life of a plan at its agents: how it is opened, what they report, when it stalls, when it is given up, and which
//! node is to blame.

mod activity;
mod blame;
mod execution;
mod levels;
pub mod opening;
mod report;
mod stall;

pub use activity::{Activity, Ends, Seen, Way};
pub use execution::{Action, Around, Event, Execution, OnFailure, Share};
pub use levels::Levels;
pub use opening::Opening;
pub use report::{Blame, End, NodeReport, Report, Stored, TaskEvent, bad_state};
pub use stall::{StallPolicy, stall_after};
