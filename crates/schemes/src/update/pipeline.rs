//! CPU (*Cross-rack-aware pipelining update*, §4.1): the delta goes in slices along a path of the racks with dependent
//! blocks. In each rack, one node is the gateway: it sends each slice first to the next rack, and then down a chain of
//! the other nodes of its rack. So each link between racks carries the delta once, and R racks take 1 + (R−1)/s of the
//! time of the path's slowest link, for s slices. Blocks in the writer's own rack are no hop of the path.

use super::{Home, Hop, Place, Routes, Update, UpdateScheme, Writer, chain, hops};
use crate::{
    Named,
    path::{Selector, onward},
};
use weft_types::Party;

/// The pipelined update over racks.
#[derive(Debug)]
pub struct Pipeline {
    /// How the order of the racks is chosen; `None`: as the request selects it.
    pub path: Option<Selector>,
}

impl Named for Pipeline {
    fn name(&self) -> &'static str {
        "pipeline"
    }

    fn summary(&self) -> &'static str {
        "what changed passes along a path of racks, slice by slice, and in each rack down a chain of its nodes"
    }
}

/// The homes at one place.
struct Rack<'a> {
    place: Place<'a>,
    /// The gateway first.
    homes: Vec<usize>,
}

impl UpdateScheme for Pipeline {
    fn routes(&self, update: &Update<'_>) -> Routes {
        let selector = self.path.unwrap_or_else(|| Selector::from(update.request.select));
        let mut racks = racks(update);
        for rack in &mut racks {
            let gateway = gateway(update, &rack.homes);
            rack.homes.sort_by_key(|at| *at != gateway);
        }
        // A rack in which there are only writers of what it needs is no hop.
        let is_hop = |rack: &Rack<'_>| update.writers.iter().any(|writer| crosses(update, writer, rack));
        let (path, own): (Vec<Rack<'_>>, Vec<Rack<'_>>) = racks.into_iter().partition(is_hop);
        let gateways: Vec<Party> = path.iter().map(|rack| update.homes[rack.homes[0]].party).collect();
        let route = onward(&chain::weigh(update, &gateways), selector);
        let ways = |order: &[usize]| -> Vec<Vec<Hop>> {
            let racks: Vec<&Rack<'_>> = order.iter().map(|at| &path[*at]).chain(&own).collect();
            update.writers.iter().map(|writer| way(update, writer, &racks)).collect()
        };
        let order = match selector {
            Selector::Exact => hops::improved(update, route.order, ways),
            _ => route.order,
        };
        let stops: Vec<usize> = order.iter().map(|at| path[*at].homes[0]).collect();
        Routes { hops: ways(&order), path: chain::chosen(update, &stops, selector, route.exact) }
    }
}

/// The homes that some writer's deltas must reach, by rack, in the order of preference.
fn racks<'a>(update: &'a Update<'_>) -> Vec<Rack<'a>> {
    let concerned: Vec<Vec<usize>> = update.writers.iter().map(|writer| update.concerned(writer)).collect();
    let mut racks: Vec<Rack<'a>> = Vec::new();
    for at in (0..update.homes.len()).filter(|at| concerned.iter().any(|homes| homes.contains(at))) {
        let place = update.place(update.homes[at].party);
        match racks.iter_mut().find(|rack| rack.place == place) {
            Some(rack) => rack.homes.push(at),
            None => racks.push(Rack { place, homes: vec![at] }),
        }
    }
    racks
}

/// Whether a writer's deltas must be sent to a rack from outside.
fn crosses(update: &Update<'_>, writer: &Writer, rack: &Rack<'_>) -> bool {
    update.place(writer.party) != rack.place && update.concerned(writer).iter().any(|at| rack.homes.contains(at))
}

/// Of a rack's homes, the one with the best links from and to other racks; of equal ones, the preferred.
fn gateway(update: &Update<'_>, homes: &[usize]) -> usize {
    let network = update.network();
    let outside = |party: Party| {
        let all = update.homes.iter().map(|home: &Home| home.party).chain(update.writers.iter().map(|writer| writer.party));
        all.filter(move |other| update.place(*other) != update.place(party))
    };
    let rate = |at: usize| {
        let party = update.homes[at].party;
        let into = outside(party).map(|other| network.between(other, party)).fold(0.0, f64::max);
        into.min(outside(party).map(|other| network.between(party, other)).fold(0.0, f64::max))
    };
    let better = |best: usize, at: usize| if rate(at) > rate(best) { at } else { best };
    homes.iter().copied().reduce(better).unwrap_or_default()
}

/// The way of a writer's deltas along the racks in this order. Each node sends to the next rack first.
fn way(update: &Update<'_>, writer: &Writer, racks: &[&Rack<'_>]) -> Vec<Hop> {
    let concerned = update.concerned(writer);
    let (mut path, mut within, mut last) = (Vec::new(), Vec::new(), None);
    for rack in racks {
        let mut homes = rack.homes.iter().copied().filter(|at| concerned.contains(at));
        if update.place(writer.party) == rack.place {
            within.extend(hops::chain(homes, None));
        } else if let Some(gateway) = homes.next() {
            path.push(Hop { from: last.replace(gateway), to: gateway });
            within.extend(hops::chain(homes, Some(gateway)));
        }
    }
    path.extend(within);
    path
}
