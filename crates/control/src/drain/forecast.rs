//! What a drain would do, by the schedule of its blocks.

use crate::{
    limit::Bounds,
    schedule::{Load, Place, Scheduled},
};
use std::collections::BTreeMap;
use weft_plan::Network;
use weft_types::{Amount, NodeId, Party};

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
    /// What each node sends and receives for that; and each rack, if a rack's links are limited.
    pub loads: BTreeMap<Place, Load>,
}

/// The busiest link.
#[derive(Debug, Clone, PartialEq)]
pub struct Busiest {
    /// Of what.
    pub at: Place,
    /// Whether it is the uplink.
    pub sends: bool,
    /// What it carries.
    pub bytes: u64,
    /// How long it needs for that.
    pub seconds: f64,
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
        });
    }

    /// The link that needs longest for its share: the whole takes at least that long. `bounds`: the limit on a node's lines.
    pub fn busiest(&self, network: &Network, bounds: impl Fn(NodeId) -> Bounds) -> Option<Busiest> {
        let rates = |at: &Place| match at {
            Place::Node(node) => {
                let party = Party::Node(*node);
                bounds(*node).hold(network.up(party), network.down(party))
            }
            Place::Rack(rack) => {
                let rate = |rates: &BTreeMap<String, f64>| rates.get(&**rack).copied().unwrap_or(f64::INFINITY);
                (rate(&network.rack_up_bytes_per_s), rate(&network.rack_down_bytes_per_s))
            }
        };
        let links = self.loads.iter().flat_map(|(at, load)| {
            let (up, down) = rates(at);
            let link = |sends, bytes: u64, rate: f64| Busiest { at: at.clone(), sends, bytes, seconds: bytes as f64 / rate };
            [link(true, load.up, up), link(false, load.down, down)]
        });
        links.filter(|link| link.bytes > 0).max_by(|one, other| one.seconds.total_cmp(&other.seconds))
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

    #[test]
    fn the_busiest_link_is_the_one_that_needs_longest_at_its_rate_and_under_the_limit() {
        let load = |up, down| Load { up, down };
        let loads = [(Place::Node(NodeId(1)), load(1_000, 0)), (Place::Node(NodeId(2)), load(0, 600))].into();
        let mut forecast = Forecast { loads, ..Forecast::default() };
        let mut network = Network::uniform(100.0);
        let at = |found: Option<Busiest>| found.map(|it| (it.at, it.sends, it.bytes, it.seconds)).unwrap();
        let free = |_| Bounds::default();
        assert_eq!(at(forecast.busiest(&network, free)), (Place::Node(NodeId(1)), true, 1_000, 10.0));
        network.down_bytes_per_s.insert(Party::Node(NodeId(2)), 20.0);
        assert_eq!(at(forecast.busiest(&network, free)), (Place::Node(NodeId(2)), false, 600, 30.0));
        let limit = |node: NodeId| Bounds { up: (node == NodeId(1)).then_some(5), ..Bounds::default() };
        assert_eq!(at(forecast.busiest(&network, limit)), (Place::Node(NodeId(1)), true, 1_000, 200.0));
        let high = |_| Bounds { up: Some(1_000), down: Some(1_000), ..Bounds::default() };
        assert_eq!(at(forecast.busiest(&network, high)).3, 30.0, "a link is no faster than it is");
        forecast.loads.insert(Place::Rack("r".into()), load(9_000, 0));
        assert!(!at(forecast.busiest(&network, free)).1, "the link of the rack is not limited");
        network.rack_up_bytes_per_s.insert("r".into(), 100.0);
        assert_eq!(at(forecast.busiest(&network, free)).0, Place::Rack("r".into()));
        assert_eq!(Forecast::default().busiest(&network, free), None);
    }
}
