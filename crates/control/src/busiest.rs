//! The link, or the disks of a node, that need longest for what they have to carry.

use crate::{
    limit::Bounds,
    schedule::{Load, Place},
};
use std::collections::BTreeMap;
use weft_plan::Network;
use weft_types::{NodeId, Party};

/// What carries bytes at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// The uplink.
    Uplink,
    /// The downlink.
    Downlink,
    /// The disks of a node, all together.
    Disks,
}

/// The busiest link, or the busiest disks.
#[derive(Debug, Clone, PartialEq)]
pub struct Busiest {
    /// Of what.
    pub at: Place,
    /// Which of its lines.
    pub carrier: Carrier,
    /// What it carries.
    pub bytes: u64,
    /// How long it needs for that.
    pub seconds: f64,
}

/// The link that needs longest for its share, or the disks of a node: the whole takes at least that long. Links of racks and disks whose rates
/// are not known do not count, unless they are limited. `bounds`: the limit on a node's lines; that of its disks is for all of them together.
pub fn busiest(loads: &BTreeMap<Place, Load>, network: &Network, bounds: impl Fn(NodeId) -> Bounds) -> Option<Busiest> {
    let rates = |at: &Place| match at {
        Place::Node(node) => {
            let party = Party::Node(*node);
            let disks = network.disk_bytes_per_s.get(&party).copied().unwrap_or(f64::INFINITY);
            bounds(*node).hold(network.up(party), network.down(party), disks)
        }
        Place::Rack(rack) => {
            let rate = |rates: &BTreeMap<String, f64>| rates.get(&**rack).copied().unwrap_or(f64::INFINITY);
            (rate(&network.rack_up_bytes_per_s), rate(&network.rack_down_bytes_per_s), f64::INFINITY)
        }
    };
    let links = loads.iter().flat_map(|(at, load)| {
        let (up, down, disks) = rates(at);
        let line = |carrier, bytes: u64, rate: f64| Busiest { at: at.clone(), carrier, bytes, seconds: bytes as f64 / rate };
        // Of equal ones the last is taken.
        [line(Carrier::Disks, load.disk, disks), line(Carrier::Uplink, load.up, up), line(Carrier::Downlink, load.down, down)]
    });
    links.filter(|link| link.bytes > 0 && link.seconds > 0.0).max_by(|one, other| one.seconds.total_cmp(&other.seconds))
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
        let load = Load::of_links;
        let mut loads: BTreeMap<Place, Load> =
            [(Place::Node(NodeId(1)), load(1_000, 0)), (Place::Node(NodeId(2)), load(0, 600))].into();
        let mut network = Network::uniform(100.0);
        let at = |found: Option<Busiest>| found.map(|it| (it.at, it.carrier, it.bytes, it.seconds)).unwrap();
        let free = |_| Bounds::default();
        assert_eq!(at(busiest(&loads, &network, free)), (Place::Node(NodeId(1)), Carrier::Uplink, 1_000, 10.0));
        network.down_bytes_per_s.insert(Party::Node(NodeId(2)), 20.0);
        assert_eq!(at(busiest(&loads, &network, free)), (Place::Node(NodeId(2)), Carrier::Downlink, 600, 30.0));
        let limit = |node: NodeId| Bounds { up: (node == NodeId(1)).then_some(5), ..Bounds::default() };
        assert_eq!(at(busiest(&loads, &network, limit)), (Place::Node(NodeId(1)), Carrier::Uplink, 1_000, 200.0));
        let high = |_| Bounds { up: Some(1_000), down: Some(1_000), ..Bounds::default() };
        assert_eq!(at(busiest(&loads, &network, high)).3, 30.0, "a link is no faster than it is");
        loads.insert(Place::Rack("r".into()), load(9_000, 0));
        assert_eq!(at(busiest(&loads, &network, free)).1, Carrier::Downlink, "the link of the rack is not limited");
        network.rack_up_bytes_per_s.insert("r".into(), 100.0);
        assert_eq!(at(busiest(&loads, &network, free)).0, Place::Rack("r".into()));
        loads.insert(Place::Node(NodeId(3)), Load { up: 0, down: 0, disk: 800 });
        assert_eq!(at(busiest(&loads, &network, free)).0, Place::Rack("r".into()), "the disks are not known");
        network.disk_bytes_per_s.insert(Party::Node(NodeId(3)), 8.0);
        assert_eq!(at(busiest(&loads, &network, free)), (Place::Node(NodeId(3)), Carrier::Disks, 800, 100.0));
        let slow = |node: NodeId| Bounds { disk: (node == NodeId(3)).then_some(4), ..Bounds::default() };
        assert_eq!(at(busiest(&loads, &network, slow)), (Place::Node(NodeId(3)), Carrier::Disks, 800, 200.0));
        network.disk_bytes_per_s.clear();
        assert_eq!(at(busiest(&loads, &network, slow)).3, 200.0, "a limit holds also where no rate is known");
        let at_disks = BTreeMap::from([(Place::Node(NodeId(4)), Load { up: 0, down: 0, disk: 9 })]);
        assert_eq!(busiest(&at_disks, &network, free), None, "disks that are not known need no known time");
        assert_eq!(most_at_a_node(&loads), 1_000, "a deadline is for what nodes carry");
        assert_eq!((busiest(&BTreeMap::new(), &network, free), most_at_a_node(&BTreeMap::new())), (None, 0));
    }
}
