//! Chooses the nodes for the blocks of a new stripe and the further copies of its data (*Mist*, §3.3), and which node
//! gets which block.

use super::{Request, begin::not_again};
use crate::{
    assignment,
    capacity::Wanted,
    options::{Assignment, WriteOptions},
    placement::{self, Ask, Placed},
    reserve::{self, Share},
    view::{NodeView, View},
};
use rand::{Rng, RngCore};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};
use weft_plan::Network;
use weft_types::{Error, FailureDomain, Home, NodeId, Party, Result, StripeLayout, StripeRecord};

/// The state of the cluster for a placement.
pub struct Site<'a> {
    /// The nodes.
    pub view: &'a View,
    /// A node's coding rate, bytes a second; 0 if unknown.
    pub coding_bytes_per_s: &'a dyn Fn(NodeId) -> f64,
    /// The network around a writer, including running transfers.
    pub network: &'a dyn Fn(Party) -> Network,
    /// Random numbers.
    pub rng: &'a mut dyn RngCore,
}

impl Request {
    /// Homes for stripes that are allocated together, in this order: for the first, and for as many others as there is
    /// room for. Nodes with fewer of their blocks come first.
    pub fn homes_of(
        &self,
        stripes: &[StripeLayout],
        options: &WriteOptions,
        avoid: &BTreeSet<NodeId>,
        site: &mut Site<'_>,
    ) -> Result<Vec<Placed>> {
        let (mut all, mut given): (Vec<Placed>, BTreeMap<NodeId, u64>) = Default::default();
        let mut view = Cow::Borrowed(site.view);
        for (at, stripe) in stripes.iter().enumerate() {
            let Site { coding_bytes_per_s, network, .. } = *site;
            let mut here = Site { view: &view, coding_bytes_per_s, network, rng: &mut *site.rng };
            match self.homes(stripe, options, avoid, &given, &mut here) {
                Ok(placed) => {
                    placed.homes.iter().for_each(|home| *given.entry(home.node).or_default() += 1);
                    if at + 1 < stripes.len() {
                        view.to_mut().take_space(&placed.homes, stripe.block_len(0));
                    }
                    all.push(placed);
                }
                Err(error) if all.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(all)
    }

    /// Homes for the blocks of a stripe, by index, and then for further copies of its data, by copy and index
    /// ([`named`]).
    ///
    /// The blocks are placed first, so that their placement is as good as without copies when the copies are dropped.
    fn homes(
        &self,
        stripe: &StripeLayout,
        options: &WriteOptions,
        avoid: &BTreeSet<NodeId>,
        load: &BTreeMap<NodeId, u64>,
        site: &mut Site<'_>,
    ) -> Result<Placed> {
        let avoid = &(avoid | &self.without_room(stripe, avoid, site)?);
        let spec = self.code.spec();
        let bytes = stripe.block_len(0).saturating_add(self.disk_reserve_bytes);
        let (tolerance, failure_domain) = (self.code.tolerance(), self.failure_domain);
        let (data, count) = (stripe.data_blocks() as usize, stripe.blocks().count());
        let kept = reserve::share(self.rebuild_reserve, site.view, self.code.n());
        let blocks = Ask { code: &spec, count, tolerance, failure_domain, held: &[], avoid, named: false, load, bytes, kept };
        let all = placement::nodes_needed(data, count, self.replicas);
        let described = placement::described(&spec, self.replicas);
        // Copies may share racks: the loss of a rack then loses copies, but no data.
        let copies = Ask { code: &described, count: all, failure_domain: FailureDomain::Node, ..blocks.clone() };
        if all > count {
            // If there are too few nodes, the error states how many are needed with all copies.
            self.place(&copies, site)?;
        }
        let mut placed = self.place(&blocks, site)?;
        // A short stripe is sent directly to its nodes: no node does more than another.
        match options.assignment {
            Assignment::BySpeed if data == self.code.k() => {
                placed.homes = self.in_order(stripe, options, &placed.homes, site)?;
            }
            Assignment::ByName => {
                let name = |home: &Home| site.view.nodes.get(&home.node).map(|node| node.name.clone());
                placed.homes.sort_by_cached_key(name);
            }
            Assignment::BySpeed | Assignment::AtRandom => {}
        }
        if all > count {
            let held: Vec<NodeId> = placed.homes.iter().map(|home| home.node).collect();
            let found = self.place(&Ask { count: all - held.len(), held: &held, ..copies }, site)?.homes;
            let of_data: Vec<Home> = placed.homes.iter().copied().take(data).collect();
            placed.homes.extend(apart(site.view, &of_data, found));
        }
        Ok(placed)
    }

    /// Whether another node could take a block of a stripe whose receivers delay it. Only nodes that are not suspect
    /// count.
    pub fn has_spare(&self, stripe: &StripeRecord, view: &View, mut rng: &mut dyn RngCore) -> bool {
        let homes: BTreeSet<NodeId> = stripe.all().map(|(_, placed)| placed.home.node).collect();
        let is_trusted = |node: &NodeView| node.up && !node.is_suspect() && !homes.contains(&node.id);
        let ask = Ask {
            code: &self.code.spec(),
            count: 1,
            tolerance: self.code.tolerance(),
            failure_domain: self.failure_domain,
            held: &[],
            avoid: &homes,
            named: false,
            load: &placement::NOTHING,
            bytes: stripe.layout.block_len(0).saturating_add(self.disk_reserve_bytes),
            kept: Share::NONE,
        };
        view.nodes.values().any(is_trusted) && placement::place(view, &ask, &mut rng).is_ok()
    }

    /// For a conversion: the nodes that must keep their free space.
    fn without_room(&self, stripe: &StripeLayout, avoid: &BTreeSet<NodeId>, site: &Site<'_>) -> Result<BTreeSet<NodeId>> {
        let Some(kept_free) = self.kept_free else { return Ok(BTreeSet::new()) };
        let wanted = Wanted { avoid, ..Wanted::stripe(&self.code, self.replicas, self.failure_domain, stripe) };
        // If the unreachable nodes have the space, the wait is not for space.
        let unasked = |error: Error| if avoid.is_empty() { error } else { not_again(error) };
        kept_free.without_room(site.view, &wanted).map_err(unasked)
    }

    fn place(&self, ask: &Ask<'_>, site: &mut Site<'_>) -> Result<Placed> {
        let placed = placement::place(site.view, ask, &mut site.rng);
        placed.map_err(|error| site.view.lacking_nodes(error).object(&self.object))
    }

    /// The same homes in another order: where the scheme makes some nodes do more, those are faster and less busy.
    fn in_order(&self, stripe: &StripeLayout, options: &WriteOptions, homes: &[Home], site: &mut Site<'_>) -> Result<Vec<Home>> {
        let writer = Party::Client(site.rng.random());
        let speed = |home: &Home| (Party::Node(home.node), (site.coding_bytes_per_s)(home.node));
        let speeds: Vec<(Party, f64)> = homes.iter().map(speed).collect();
        let network = (site.network)(writer);
        let assigned = assignment::assigned(&self.code, &options.scheme, stripe.block_len(0), writer, &speeds, network)?;
        let ordered: Vec<Home> = assigned.into_iter().filter_map(|at| homes.get(at).copied()).collect();
        match ordered.len() == homes.len() {
            true => Ok(ordered),
            false => Err(Error::fatal("internal error: an assignment leaves out homes").object(&self.object)),
        }
    }
}

/// The homes of copies, by copy and index: where possible, in another rack than other copies of the block.
fn apart(view: &View, of_data: &[Home], mut found: Vec<Home>) -> Vec<Home> {
    let rack = |home: &Home| view.node(home.node).map(|node| &*node.rack);
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

/// The index and copy for each of these homes, as [`Request::homes_of`] returned them.
pub fn named<'a>(homes: &'a [Home], stripe: &StripeLayout) -> impl Iterator<Item = ((u8, u8), &'a Home)> {
    let data = u8::try_from(stripe.data_blocks()).unwrap_or(u8::MAX);
    let copies = (1..=u8::MAX).flat_map(move |copy| (0..data).map(move |index| (index, copy)));
    stripe.blocks().map(|index| (index, 0)).chain(copies).zip(homes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures, put::tests::request};
    use rand::{SeedableRng, rngs::StdRng};
    use std::time::Duration;
    use weft_types::{Cause, DiskNumber, Layout, RebuildReserve};

    fn home(node: u32) -> Home {
        Home { node: NodeId(node), disk: DiskNumber(node) }
    }

    #[test]
    fn copies_are_in_different_racks_if_possible() {
        let node = |id: u32| NodeView {
            id: NodeId(id),
            name: "".into(),
            rack: format!("r{}", id % 3).into(),
            up: true,
            lost: false,
            suspect_for: Duration::ZERO,
            disks: Vec::new(),
        };
        let view = View { nodes: (1..=20).map(|id| (NodeId(id), node(id))).collect(), ..View::default() };
        // The data is in racks 1 and 2; the first homes found are in the same racks.
        let found = [4, 5, 3, 9].map(home).to_vec();
        let chosen: Vec<u32> = apart(&view, &[home(1), home(2)], found).iter().map(|home| home.node.0).collect();
        assert_eq!(chosen, [5, 4, 3, 9], "each copy of a block is in a rack of its own");
        let all_alike = [4, 7, 10].map(home).to_vec();
        let chosen: Vec<u32> = apart(&view, &[home(1)], all_alike).iter().map(|home| home.node.0).collect();
        assert_eq!(chosen, [4, 7, 10], "without a choice, in the given order");
    }

    #[test]
    fn only_a_node_that_is_good_and_holds_nothing_of_the_stripe_is_a_spare() {
        let stripe = fixtures::stripe();
        let bytes = fixtures::BLOCK_LEN;
        let has_spare = |view: &View, reserve| {
            let request = Request { disk_reserve_bytes: reserve, ..request() };
            request.has_spare(&stripe, view, &mut StdRng::seed_from_u64(1))
        };
        assert!(!has_spare(&fixtures::view(6, &[]), 0), "all of them have a block");
        let mut seventh = fixtures::view(7, &[]);
        assert!(has_spare(&seventh, 0) && !has_spare(&fixtures::view(7, &[7]), 0));
        let disk = &mut seventh.nodes.get_mut(&NodeId(7)).unwrap().disks[0];
        disk.free_bytes = bytes + 10;
        assert!(has_spare(&seventh, 10) && !has_spare(&seventh, 11), "it lacks space");
        seventh.nodes.get_mut(&NodeId(7)).unwrap().suspect_for = Duration::from_secs(1);
        assert!(!has_spare(&seventh, 0));
    }

    #[test]
    fn a_new_stripe_leaves_room_to_rebuild_the_largest_node_and_one_that_has_begun_may_use_it() {
        let mut view = fixtures::view(8, &[]);
        let stripe = StripeLayout { layout: Layout::new(8192, 8192, 1).unwrap(), k: 4, m: 2, data_len: 4 * 8192 };
        let homes = |view: &View, reserve: RebuildReserve| {
            let request = Request { rebuild_reserve: reserve, ..request() };
            let options = WriteOptions::new("direct".to_owned(), 4096, true).unwrap();
            let (network, mut rng) = (|_: Party| Network::uniform(1e8), StdRng::seed_from_u64(1));
            let mut site = Site { view, coding_bytes_per_s: &|_| 0.0, network: &network, rng: &mut rng };
            request.homes_of(&[stripe], &options, &BTreeSet::new(), &mut site).map(|placed| placed[0].homes.len())
        };
        // An eighth of each disk of 1 TiB.
        let fill = |view: &mut View, free| view.nodes.values_mut().for_each(|node| node.disks[0].free_bytes = free);
        fill(&mut view, (1 << 37) + 8192);
        assert_eq!(homes(&view, RebuildReserve::Auto), Ok(6));
        fill(&mut view, (1 << 37) + 8191);
        let error = homes(&view, RebuildReserve::Auto).unwrap_err();
        assert!(error.cause == Some(Cause::NoSpace) && error.message.contains("12.5 %"), "{error}");
        assert_eq!(homes(&view, RebuildReserve::Off), Ok(6));
        assert!(homes(&view, RebuildReserve::Percent(13)).is_err() && homes(&view, RebuildReserve::Percent(12)).is_ok());
        let request = Request { rebuild_reserve: RebuildReserve::Auto, ..request() };
        assert!(request.has_spare(&fixtures::stripe(), &view, &mut StdRng::seed_from_u64(1)));
    }

    #[test]
    fn by_name_the_last_nodes_get_the_last_blocks() {
        let mut view = fixtures::view(6, &[]);
        for (id, node) in &mut view.nodes {
            // The names are in the opposite order of the numbers.
            node.name = format!("node-{}", 9 - id.0).into();
        }
        let stripe = StripeLayout { layout: Layout::new(8192, 8192, 1).unwrap(), k: 4, m: 2, data_len: 4 * 8192 };
        let nodes = |assignment| {
            let mut options = WriteOptions::new("mist".to_owned(), 4096, true).unwrap();
            options.assignment = assignment;
            let network = |_: Party| Network::uniform(1e8);
            let coding = |node: NodeId| if node.0 < 5 { 1e9 } else { 1e6 };
            (0..8)
                .map(|seed| {
                    let mut rng = StdRng::seed_from_u64(seed);
                    let mut site = Site { view: &view, coding_bytes_per_s: &coding, network: &network, rng: &mut rng };
                    let placed = request().homes_of(&[stripe], &options, &BTreeSet::new(), &mut site).unwrap();
                    placed[0].homes.iter().map(|home| home.node.0).collect::<Vec<u32>>()
                })
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(nodes(Assignment::ByName), BTreeSet::from([vec![6, 5, 4, 3, 2, 1]]));
        assert!(nodes(Assignment::AtRandom).len() > 1);
        // Parities need the most work, and the last two nodes are slow.
        let by_speed = nodes(Assignment::BySpeed);
        assert!(by_speed.iter().flat_map(|order| &order[4..]).all(|node| *node < 5), "{by_speed:?}");
    }

    #[test]
    fn homes_are_named_by_index_and_then_by_copy() {
        let homes: Vec<Home> = (1..=7).map(home).collect();
        let layout = Layout::new(8192, 4096, 1).unwrap();
        let named = |data_len| {
            let stripe = StripeLayout { layout, k: 2, m: 1, data_len };
            named(&homes, &stripe).map(|(name, _)| name).collect::<Vec<(u8, u8)>>()
        };
        assert_eq!(named(16384), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
        assert_eq!(named(4096)[..3], [(0, 0), (2, 0), (0, 1)], "block 1 has no bytes");
    }
}
