//! Copies of data blocks that are put together with them: where they go, and which of them came there.

use super::homes;
use crate::shared::Shared;
use std::collections::BTreeSet;
use weft_codes::SharedCode;
use weft_control::{
    options::WriteOptions,
    placement::{self, Ask, Placed},
    view::View,
};
use weft_meta::NewUpload;
use weft_types::{FailureDomain, Home, NodeId, Result, StripeLayout};

/// Homes for the blocks of a stripe, by index, and then for further copies of its data, by copy and index.
///
/// Where the blocks go is decided first, so that what is left when the copies are dropped is placed as if there had been none.
pub(super) fn choose(
    shared: &Shared,
    new: &NewUpload,
    code: &SharedCode,
    stripe: &StripeLayout,
    options: &WriteOptions,
    avoid: &BTreeSet<NodeId>,
) -> Result<Placed> {
    let count = placement::nodes_needed(code.k(), code.n(), new.replicas);
    if count == code.n() {
        return homes::choose(shared, new, code, stripe, options, avoid);
    }
    let all = Ask {
        code: &placement::described(&new.code, new.replicas),
        count,
        tolerance: code.tolerance(),
        // Who loses a rack loses its copies, and no data for that.
        failure_domain: FailureDomain::Node,
        held: &[],
        avoid,
        named: false,
        load: &placement::NOTHING,
        bytes: stripe.block_len(0).saturating_add(shared.config.disk_reserve.0),
    };
    let view = shared.members.view();
    let place = |ask: &Ask<'_>| {
        let found = placement::place(&view, ask, &mut *shared.rng());
        found.map_err(|error| view.lacking_nodes(error).object(&new.name))
    };
    // Who has too few nodes is told at once how many it takes with all copies.
    place(&all)?;
    let mut placed = homes::choose(shared, new, code, stripe, options, avoid)?;
    let held: Vec<NodeId> = placed.homes.iter().map(|home| home.node).collect();
    let found = place(&Ask { count: count - held.len(), held: &held, ..all })?.homes;
    let of_data = placed.homes[..code.k()].to_vec();
    placed.homes.extend(apart(&view, &of_data, found));
    Ok(placed)
}

/// The homes of copies, by copy and index: where there is a choice, in another rack than other copies of their block.
fn apart(view: &View, of_data: &[Home], mut found: Vec<Home>) -> Vec<Home> {
    let rack = |home: &Home| view.node(home.node).map(|node| node.rack.as_str());
    let mut copies: Vec<Home> = Vec::with_capacity(found.len());
    for at in 0..found.len() {
        let index = at % of_data.len();
        let others = of_data[index..].iter().take(1).chain(copies[index.min(at)..].iter().step_by(of_data.len()));
        let racks: BTreeSet<_> = others.map(rack).collect();
        let other = found.iter().position(|home| !racks.contains(&rack(home)));
        copies.push(found.remove(other.unwrap_or(0)));
    }
    copies
}

/// By index and copy, what homes are of that [`choose`] has found.
pub(super) fn named(homes: &[Home], k: usize, n: usize) -> impl Iterator<Item = ((u8, u8), &Home)> {
    let name = move |at: usize| match at.checked_sub(n) {
        None => (at as u8, 0),
        Some(beyond) => ((beyond % k) as u8, (1 + beyond / k) as u8),
    };
    homes.iter().enumerate().map(move |(at, home)| (name(at), home))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weft_control::view::NodeView;
    use weft_types::DiskNumber;

    fn home(node: u32) -> Home {
        Home { node: NodeId(node), disk: DiskNumber(node) }
    }

    #[test]
    fn copies_stand_in_other_racks_where_there_is_a_choice() {
        let node = |id: u32| NodeView {
            id: NodeId(id),
            name: String::new(),
            rack: format!("r{}", id % 3),
            up: true,
            suspect_for: Duration::ZERO,
            disks: Vec::new(),
        };
        let view = View { nodes: (1..=20).map(|id| (NodeId(id), node(id))).collect(), ..View::default() };
        // Data in racks 1, 2; of what was found, the first ones are in the same racks.
        let found = [4, 5, 3, 9].map(home).to_vec();
        let chosen: Vec<u32> = apart(&view, &[home(1), home(2)], found).iter().map(|home| home.node.0).collect();
        assert_eq!(chosen, [5, 4, 3, 9], "every copy of a block in a rack of its own");
        let all_alike = [4, 7, 10].map(home).to_vec();
        let chosen: Vec<u32> = apart(&view, &[home(1)], all_alike).iter().map(|home| home.node.0).collect();
        assert_eq!(chosen, [4, 7, 10], "where there is none, as they were found");
    }

    #[test]
    fn homes_are_named_by_index_and_then_by_copy() {
        let homes: Vec<Home> = (1..=7).map(home).collect();
        let names: Vec<(u8, u8)> = named(&homes, 2, 3).map(|(name, _)| name).collect();
        assert_eq!(names, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
    }
}
