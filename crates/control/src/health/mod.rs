//! The health of a cluster: which stripes have lost blocks, how many further losses they survive, and what that means for the whole.
//!
//! ```text
//!   view ──► survey: which stripes to check ──► condition of a stripe ──► tally ──► verdict
//!               ▲                                       ▲
//!            pages of the metadata             further losses, by rank
//! ```
//! A block counts as lost if it cannot be read now, whether it is lost for good or its node is down. A query scans nothing, because the
//! tally is updated with each change.

mod condition;
mod copied;
mod further;
mod reads;
mod room;
mod survey;
mod tally;
#[cfg(test)]
mod tests;
mod urgency;
mod verdict;

pub(crate) use condition::Reach;
pub use condition::{BadBlocks, Condition};
pub use copied::Copied;
pub use further::FurtherLosses;
pub use room::fits_bytes;
pub use survey::{Step, Survey};
pub use tally::{Bearing, Counts, Tally};
pub use urgency::Urgency;
pub use verdict::{AilingDisk, DownNode, FailedDisk, FullPolicy, Level, Signs, Verdict};
