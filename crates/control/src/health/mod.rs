//! The health of a cluster: which stripes have lost blocks, how many further losses they survive, and what that means for the whole.
//!
//! ```text
//!   view ──► survey: which stripes to look at ──► condition of a stripe ──► tally ──► verdict
//!               ▲                                        ▲
//!            pages of the metadata              further losses, by rank
//! ```
//! A stripe counts with all blocks that cannot be read now, whether they are lost for good or their node is down. Nothing is scanned
//! to answer a question: the tally follows the changes.

mod condition;
mod further;
mod room;
mod survey;
mod tally;
#[cfg(test)]
mod tests;
mod verdict;

pub use condition::{BadBlocks, Condition};
pub use further::FurtherLosses;
pub use room::fits_bytes;
pub use survey::{Step, Survey};
pub use tally::{Bearing, Counts, Tally};
pub use verdict::{DownNode, FailedDisk, Level, Signs, Verdict};
