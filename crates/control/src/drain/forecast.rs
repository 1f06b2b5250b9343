//! What a drain would do, by the schedule of its blocks.

use crate::schedule::{Load, Place, Scheduled};
use std::collections::BTreeMap;
use weft_types::{Amount, NodeId};

/// What a drain would do with the blocks that were looked at, or with all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forecast {
    /// The blocks that leave.
    pub leaving: Amount,
    /// Those that are copied from where they are.
    pub copied: Amount,
    /// Those that are rebuilt from the rest of their stripes.
    pub rebuilt: Amount,
    /// Those that no other node can take now.
    pub waiting: Amount,
    /// Those that no schedule covers, because a further copy of them exists: their nodes are found when their turn comes.
    pub unplanned: Amount,
    /// Stripes that lack a block, which is rebuilt first.
    pub lacking: u64,
    /// The blocks that each node gets, bytes.
    pub gets: BTreeMap<NodeId, u64>,
    /// What each node sends and receives for that, and what its disks carry; and each rack, if a rack's links are limited.
    pub loads: BTreeMap<Place, Load>,
}

impl Forecast {
    /// Counts a block that leaves. `planned`: what the schedule has for it, if it covers the block. `copy`: the name of the scheme that copies.
    pub fn add(&mut self, bytes: u64, planned: Option<Option<&Scheduled>>, copy: &str) {
        self.leaving.add(bytes);
        match planned {
            None => self.unplanned.add(bytes),
            Some(None) => self.waiting.add(bytes),
            Some(Some(scheduled)) => {
                let amount = if scheduled.scheme == copy { &mut self.copied } else { &mut self.rebuilt };
                amount.add(bytes);
                for home in &scheduled.homes {
                    let gets = self.gets.entry(*home).or_default();
                    *gets = gets.saturating_add(bytes);
                }
            }
        }
    }

    /// Estimates all from the first: so many blocks leave.
    pub fn scale(&mut self, blocks: u64) {
        let seen = self.leaving.blocks;
        if seen == 0 || blocks <= seen {
            return;
        }
        let scale =
            |of: &mut u64| *of = u64::try_from(u128::from(*of) * u128::from(blocks) / u128::from(seen)).unwrap_or(u64::MAX);
        for amount in [&mut self.leaving, &mut self.copied, &mut self.rebuilt, &mut self.waiting, &mut self.unplanned] {
            scale(&mut amount.blocks);
            scale(&mut amount.bytes);
        }
        scale(&mut self.lacking);
        self.gets.values_mut().for_each(scale);
        self.loads.values_mut().for_each(|load| {
            scale(&mut load.up);
            scale(&mut load.down);
            scale(&mut load.disk);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduled(scheme: &str, home: u32) -> Scheduled {
        Scheduled { scheme: scheme.into(), helpers: Vec::new(), homes: vec![NodeId(home)], lines: Vec::new(), round: 0 }
    }

    fn amount(blocks: u64, bytes: u64) -> Amount {
        Amount { blocks, bytes }
    }

    #[test]
    fn blocks_are_counted_by_what_the_schedule_has_for_them() {
        let mut forecast = Forecast::default();
        forecast.add(10, Some(Some(&scheduled("direct", 2))), "direct");
        forecast.add(20, Some(Some(&scheduled("pipeline", 3))), "direct");
        forecast.add(30, Some(Some(&scheduled("direct", 3))), "direct");
        forecast.add(5, Some(None), "direct");
        forecast.add(7, None, "direct");
        assert_eq!((forecast.leaving, forecast.copied, forecast.rebuilt), (amount(5, 72), amount(2, 40), amount(1, 20)));
        assert_eq!((forecast.waiting, forecast.unplanned), (amount(1, 5), amount(1, 7)));
        assert_eq!(forecast.gets, [(NodeId(2), 10), (NodeId(3), 50)].into());
        forecast.scale(5);
        assert_eq!(forecast.leaving, amount(5, 72), "all were looked at");
        forecast.scale(50);
        assert_eq!((forecast.leaving, forecast.rebuilt, forecast.gets[&NodeId(3)]), (amount(50, 720), amount(10, 200), 500));
    }
}
