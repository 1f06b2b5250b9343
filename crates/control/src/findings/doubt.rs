//! Whether a disk of which no block is right is believed: it may answer no read for a while, or not be mounted.

use super::Verdict;
use crate::Time;
use std::{collections::BTreeSet, time::Duration};
use weft_types::BlockId;

/// So many blocks that are all bad are not believed, unless the disk has a block that is right.
pub const DOUBTFUL_FROM: usize = 5;
/// Fewer are believed if they are still bad after this time.
const DOUBT: Duration = Duration::from_secs(5);

/// The blocks of a disk's last answer if all were bad, and since when they are.
#[derive(Debug, Default)]
pub struct Doubt(Option<(BTreeSet<BlockId>, Time)>);

impl Doubt {
    /// Whether what the disk answers is in doubt as a whole, and nothing is concluded: none of its blocks is right.
    pub fn is_in_doubt(&mut self, verdicts: &[(BlockId, Verdict)], now: Time) -> bool {
        let is_wrong = |(block, verdict): &(BlockId, Verdict)| matches!(verdict, Verdict::Wrong(..)).then_some(*block);
        let wrong: BTreeSet<BlockId> = verdicts.iter().filter_map(is_wrong).collect();
        if wrong.is_empty() || verdicts.iter().any(|(_, verdict)| *verdict == Verdict::Right) {
            self.0 = None;
            return false;
        }
        let since = self.0.take().filter(|(blocks, _)| *blocks == wrong).map_or(now, |(_, since)| since);
        let is_believed = wrong.len() < DOUBTFUL_FROM && now.since(since) >= DOUBT;
        self.0 = Some((wrong, since));
        !is_believed
    }
}
