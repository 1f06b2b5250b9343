//! The life of a plan at its agents: what they tell, when it stalls, and who is to blame when it fails.

mod blame;
mod report;
mod stall;

pub use blame::{Blame, culprit};
pub use report::{End, NodeReport, Report, Stored, TaskEvent, bad_state};
pub use stall::{Flow, StallPolicy};
