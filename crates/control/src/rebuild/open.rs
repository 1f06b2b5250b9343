//! What a schedule may choose for a rebuild.

use super::Request;
use crate::{
    known::Known,
    planning::{self, Readable},
    schedule::Open,
    view::{Standing, View},
};
use std::collections::BTreeSet;
use weft_types::{AutoSize, FailureDomain, NodeId, StripeRecord};

impl Request {
    /// What is open: which blocks can help, and which nodes can get the lost ones. `None` if there is nothing to schedule: for
    /// blocks of which there are copies, for several copies of one, and for those that their nodes keep in part.
    pub fn open(&self, view: &View, known: &Known) -> Option<Open> {
        let lost: BTreeSet<u8> = self.lost.iter().map(|lost| lost.index).collect();
        if lost.is_empty() || lost.len() < self.lost.len() || self.homes_that_keep(view).iter().any(Option::is_some) {
            return None;
        }
        let stripe = self.serving(view, &BTreeSet::new());
        let Readable { good, suspect, .. } = planning::readable(&stripe, view);
        let trusted = good.len();
        let mut nodes = BTreeSet::new();
        let mut available: Vec<(u8, NodeId)> = Vec::with_capacity(good.len());
        for (at, index) in good.into_iter().chain(suspect).enumerate().filter(|(_, index)| self.is_usable(&stripe, *index)) {
            // Doubtful blocks and nodes help only if there is no alternative.
            if at >= trusted && self.suffice(&stripe, &available.iter().map(|(index, _)| *index).collect::<Vec<_>>()) {
                break;
            }
            let node = stripe.home_of(index)?.node;
            if stripe.corrupt_bytes(index).is_empty() && !self.avoid.contains(&node) && nodes.insert(node) {
                available.push((index, node));
            }
        }
        available.sort_unstable();
        if self.purpose.is_put() || available.iter().any(|(index, _)| lost.contains(index)) {
            return None;
        }
        let block_len = lost.iter().map(|index| stripe.layout.block_len((*index).into())).max()?;
        let is_by_rack = self.unit_of_placement() == FailureDomain::Rack;
        Some(Open {
            code: known.shortened(&self.code, stripe.dimension()),
            lost: self.lost.iter().map(|lost| lost.index).collect(),
            block_len,
            available,
            copies: self.copies(&stripe, view),
            held: self.kept().map(|(_, node)| node).collect(),
            never: self.avoid.iter().copied().chain(self.lost_nodes()).chain(self.not_asked(view)).collect(),
            rack_max: is_by_rack.then(|| self.code.tolerance()),
            in_blocks: matches!(self.options.slice_len, AutoSize::Bytes(slice) if slice.0 >= block_len),
            named: self.to.is_named(),
            reserve_bytes: self.disk_reserve_bytes,
        })
    }
}

impl Request {
    /// The blocks to move that can be copied from where they are, and their nodes; none unless all can.
    fn copies(&self, stripe: &StripeRecord, view: &View) -> Vec<(u8, NodeId)> {
        let is_good = |index: &u8| self.needed.moves() && view.standing(stripe, *index) == Standing::Good;
        let node = |index: u8| Some((index, stripe.home_of(index)?.node));
        let copies = self.lost.iter().map(|lost| lost.index).filter(is_good).filter_map(node).collect::<Vec<_>>();
        if copies.len() == self.lost.len() { copies } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::request, *};
    use crate::{
        fixtures::view,
        helpers::LastUsed,
        planning::Planned,
        rebuild::{BlocksGiven, Destination, Rebuild, World},
        schedule::Scheduled,
    };
    use rand::{SeedableRng, rngs::StdRng};
    use std::time::Duration;
    use weft_plan::{Class, Network, ProofKey};
    use weft_schemes::Run;
    use weft_types::{HelperSelect, Party, PlanId};

    fn known() -> Known {
        Known::new(ProofKey::PUBLIC)
    }

    /// The rebuild of block 0 in a job, by a schedule with a chain over these nodes to `home`.
    fn scheduled(helpers: &[u32], home: u32, to: &[u32]) -> Request {
        let helpers = helpers.iter().copied().map(NodeId).collect();
        let (lines, round) = (Vec::new(), 0);
        let scheduled = Scheduled { scheme: "pipeline".into(), helpers, homes: vec![NodeId(home)], lines, round };
        let mut request = request(&[0]);
        request.options.scheme.clone_from(&scheduled.scheme);
        let to = Destination::Among(to.iter().copied().map(NodeId).collect());
        Request { helpers: Some(HelperSelect::Boost), scheduled: Some(scheduled), to, ..request }
    }

    /// The nodes of the first plan, in the order of the chain.
    fn chain(request: Request, view: &View) -> Vec<u32> {
        let (mut used, mut given, mut rng) = (LastUsed::default(), BlocksGiven::new(), StdRng::seed_from_u64(1));
        let mut world = World { view, used: &mut used, given: &mut given, rng: &mut rng };
        let (ask, _) = Rebuild::new(request).explain(&mut world).unwrap();
        let run = |slice_len| Run::new(PlanId(1), 1, Class::Repair, slice_len);
        let Planned { plan, .. } = ask.plan(view, &Network::uniform(1e9), &known(), run).unwrap();
        let lane = &plan.shape.lanes[0];
        let node = |stage: u16| match plan.binding.parties[usize::from(lane.stages[usize::from(stage)].vertex)] {
            Party::Node(node) => node.0,
            Party::Client(_) => panic!("a client takes part"),
        };
        let starts = lane.links.iter().find(|link| lane.links.iter().all(|other| other.to != link.from));
        let mut at = starts.unwrap().from;
        let mut nodes = vec![node(at)];
        while let Some(link) = lane.links.iter().find(|link| link.from == at) {
            at = link.to;
            nodes.push(node(at));
        }
        nodes
    }

    #[test]
    fn what_can_be_read_may_help_and_nodes_without_a_block_may_get_one() {
        let mut request = Request { to: Destination::Among([2, 8, 9].map(NodeId).into()), ..request(&[0]) };
        let open = request.open(&view(9, &[1, 3]), &known()).unwrap();
        assert_eq!(open.available, [(1, 2), (3, 4), (4, 5), (5, 6)].map(|(index, node)| (index, NodeId(node))));
        assert_eq!(open.held, [2, 3, 4, 5, 6].map(NodeId), "block 2 stays where it is, although its node is down");
        assert_eq!(open.never, [1, 3, 4, 5, 6, 7].map(NodeId).into());
        assert!(open.named && !open.in_blocks && open.rack_max.is_none() && open.lost == [0]);
        let mut suspect = view(9, &[1]);
        suspect.nodes.get_mut(&NodeId(4)).unwrap().suspect_for = Duration::from_secs(1);
        (request.failure_domain, request.to) = (FailureDomain::Rack, Destination::Anywhere);
        let helpers = |open: &Open| open.available.iter().map(|(index, _)| *index).collect::<Vec<_>>();
        assert_eq!(helpers(&request.open(&suspect, &known()).unwrap()), [1, 2, 4, 5]);
        request.avoid = [NodeId(5)].into();
        let open = request.open(&suspect, &known()).unwrap();
        assert_eq!(helpers(&open), [1, 2, 3, 5], "without the suspect node, too few are left");
        assert_eq!((open.rack_max, open.named), (Some(2), false));
        let two = super::super::tests::request(&[0, 1]).open(&view(9, &[1, 2]), &known()).unwrap();
        assert_eq!(two.lost, [0, 1]);
        assert_eq!(two.available.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [2, 3, 4, 5]);
    }

    #[test]
    fn a_group_that_can_rebuild_a_block_alone_needs_no_suspect_helper() {
        let code = weft_codes::parse("lrc(4,2,2)").unwrap();
        let mut request = Request { code, ..request(&[0]) };
        request.stripe.layout.m = 4;
        for id in [7, 8] {
            let placed = weft_types::PlacedBlock { home: crate::fixtures::home(id), ..request.stripe.blocks[&5] };
            request.stripe.blocks.insert(id as u8 - 1, placed);
        }
        let helpers = |trusted: &[u32]| {
            let mut view = view(12, &[1]);
            let doubtful = view.nodes.values_mut().filter(|node| !trusted.contains(&node.id.0));
            doubtful.for_each(|node| node.suspect_for = Duration::from_secs(1));
            request.open(&view, &known()).unwrap().available.iter().map(|(index, _)| *index).collect::<Vec<_>>()
        };
        assert_eq!(helpers(&[2, 5]), [1, 4], "blocks 0, 1 and 4 are a group");
        assert_eq!(helpers(&[3, 4, 6, 8]), [1, 2, 3, 5, 7], "four blocks, but they do not suffice");
    }

    #[test]
    fn a_schedule_with_a_suspect_helper_is_kept_to_if_too_few_others_are_left() {
        let mut suspect = view(12, &[1, 5]);
        suspect.nodes.get_mut(&NodeId(4)).unwrap().suspect_for = Duration::from_secs(1);
        for order in [[6, 3, 4, 2], [4, 2, 6, 3]] {
            let nodes = chain(scheduled(&order, 11, &[]), &suspect);
            assert_eq!(nodes, [&order[..], &[11]].concat());
        }
        // It was trusted when it was scheduled, and others can help.
        suspect.nodes.get_mut(&NodeId(5)).unwrap().up = true;
        assert!(!chain(scheduled(&[6, 3, 4, 2], 11, &[]), &suspect).contains(&4));
    }

    #[test]
    fn a_schedule_says_who_helps_in_which_order_and_who_gets_the_block() {
        let all = view(12, &[1]);
        assert_eq!(chain(scheduled(&[6, 3, 5, 2], 11, &[]), &all), [6, 3, 5, 2, 11]);
        assert_eq!(chain(scheduled(&[2, 4, 3, 6], 8, &[8, 9]), &all), [2, 4, 3, 6, 8]);
    }

    #[test]
    fn others_take_the_places_of_nodes_that_are_gone() {
        let gone = view(12, &[1, 3, 11]);
        let nodes = chain(scheduled(&[6, 3, 5, 2], 11, &[]), &gone);
        assert_eq!(nodes.len(), 5);
        assert!(nodes.iter().all(|node| ![1, 3, 11].contains(node)), "{nodes:?}");
        // A scheduled home that holds a block of the stripe by now.
        assert!(*chain(scheduled(&[6, 3, 5, 2], 4, &[]), &view(12, &[1])).last().unwrap() > 6);
    }

    #[test]
    fn a_suspect_home_is_replaced_unless_an_operator_named_it() {
        let mut suspect = view(12, &[1]);
        suspect.nodes.get_mut(&NodeId(11)).unwrap().suspect_for = Duration::from_secs(1);
        assert_ne!(chain(scheduled(&[6, 3, 5, 2], 11, &[]), &suspect).last(), Some(&11));
        assert_eq!(chain(scheduled(&[6, 3, 5, 2], 11, &[11]), &suspect).last(), Some(&11));
    }

    #[test]
    fn a_block_on_a_suspect_node_can_be_copied() {
        let mut suspect = view(12, &[]);
        suspect.nodes.get_mut(&NodeId(1)).unwrap().suspect_for = Duration::from_secs(1);
        let mut request = Request { to: Destination::Nodes(vec![NodeId(11)]), ..request(&[0]) };
        request.options.scheme = "direct".into();
        assert_eq!(chain(request, &suspect), [1, 11]);
    }

    /// Nodes 1 and 7 are of rack a, 2, 3 and 8 of b, 4 and 5 of c, 6 of d, 9 of e. Block 0, of node 1, is lost.
    fn racks(cut_off: &[u32]) -> View {
        let mut view = view(9, cut_off);
        for (id, rack) in (1..).zip(["a", "b", "b", "c", "c", "d", "a", "b", "e"]) {
            view.nodes.get_mut(&NodeId(id)).unwrap().rack = rack.into();
        }
        view
    }

    #[test]
    fn a_rack_that_has_filled_up_since_the_schedule_gets_no_further_block() {
        let home = |home, to: &[u32]| {
            let request = Request { failure_domain: FailureDomain::Rack, ..scheduled(&[6, 3, 5, 2], home, to) };
            *chain(request, &racks(&[1])).last().unwrap()
        };
        assert_eq!(home(9, &[]), 9);
        assert_eq!(home(7, &[]), 7);
        assert_ne!(home(8, &[]), 8, "rack b has two blocks, as many as the code tolerates to lose");
        assert_eq!(home(8, &[8]), 8, "an operator named it");
        let request = Request { failure_domain: FailureDomain::Rack, ..scheduled(&[6, 3, 5, 2], 8, &[]) };
        let mut one = view(9, &[1]);
        one.nodes.values_mut().for_each(|node| node.rack = "a".into());
        assert_eq!(*chain(request, &one).last().unwrap(), 8, "with one rack there is no better home");
    }
}
