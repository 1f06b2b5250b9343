//! The link that needs longest for what it has to carry.

use crate::{
    limit::Bounds,
    schedule::{Load, Place},
};
use std::collections::BTreeMap;
use weft_plan::Network;
use weft_types::{NodeId, Party};

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

/// The link that needs longest for its share: the whole takes at least that long. Links of racks whose rates are not known do not count.
/// `bounds`: the limit on a node's lines.
pub fn busiest(loads: &BTreeMap<Place, Load>, network: &Network, bounds: impl Fn(NodeId) -> Bounds) -> Option<Busiest> {
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
    let links = loads.iter().flat_map(|(at, load)| {
        let (up, down) = rates(at);
        let link = |sends, bytes: u64, rate: f64| Busiest { at: at.clone(), sends, bytes, seconds: bytes as f64 / rate };
        [link(true, load.up, up), link(false, load.down, down)]
    });
    links.filter(|link| link.bytes > 0).max_by(|one, other| one.seconds.total_cmp(&other.seconds))
}

/// The most bytes that a link of a node carries.
pub fn most_at_a_node(loads: &BTreeMap<Place, Load>) -> u64 {
    let of_nodes = loads.iter().filter(|(at, _)| matches!(at, Place::Node(_)));
    of_nodes.map(|(_, load)| load.up.max(load.down)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_link_is_the_one_that_needs_longest_at_its_rate_and_under_the_limit() {
        let load = |up, down| Load { up, down };
        let mut loads: BTreeMap<Place, Load> =
            [(Place::Node(NodeId(1)), load(1_000, 0)), (Place::Node(NodeId(2)), load(0, 600))].into();
        let mut network = Network::uniform(100.0);
        let at = |found: Option<Busiest>| found.map(|it| (it.at, it.sends, it.bytes, it.seconds)).unwrap();
        let free = |_| Bounds::default();
        assert_eq!(at(busiest(&loads, &network, free)), (Place::Node(NodeId(1)), true, 1_000, 10.0));
        network.down_bytes_per_s.insert(Party::Node(NodeId(2)), 20.0);
        assert_eq!(at(busiest(&loads, &network, free)), (Place::Node(NodeId(2)), false, 600, 30.0));
        let limit = |node: NodeId| Bounds { up: (node == NodeId(1)).then_some(5), ..Bounds::default() };
        assert_eq!(at(busiest(&loads, &network, limit)), (Place::Node(NodeId(1)), true, 1_000, 200.0));
        let high = |_| Bounds { up: Some(1_000), down: Some(1_000), ..Bounds::default() };
        assert_eq!(at(busiest(&loads, &network, high)).3, 30.0, "a link is no faster than it is");
        loads.insert(Place::Rack("r".into()), load(9_000, 0));
        assert!(!at(busiest(&loads, &network, free)).1, "the link of the rack is not limited");
        network.rack_up_bytes_per_s.insert("r".into(), 100.0);
        assert_eq!(at(busiest(&loads, &network, free)).0, Place::Rack("r".into()));
        assert_eq!(most_at_a_node(&loads), 1_000, "a deadline is for what nodes carry");
        assert_eq!((busiest(&BTreeMap::new(), &network, free), most_at_a_node(&BTreeMap::new())), (None, 0));
    }
}
