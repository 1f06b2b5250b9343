use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use weft_plan::{Class, ProofKey};
use weft_types::{BlockState, DiskNumber, Home, Layout, Owner, PlacedBlock, PlanId, Seq, StripeId, StripeLayout, UploadId};

const BLOCK_LEN: u64 = 4 << 20;

fn place(node: u32, copy: u8) -> PlacedBlock {
    let home = Home { node: NodeId(node), disk: DiskNumber(node) };
    PlacedBlock { generation: 1, generation_high_water: 1, home, state: BlockState::Ok, copy }
}

/// A full stripe: block 0 on node 1, and so on; then the copies of block 0.
fn stripe(code: &SharedCode, id: u64, copies: u8) -> StripeRecord {
    let (k, n, alpha) = (code.k() as u32, code.n() as u32, code.alpha() as u32);
    let layout = Layout::new(BLOCK_LEN, u64::from(alpha) * 4096, alpha).unwrap();
    StripeRecord {
        id: StripeId(id),
        owner: Owner::Object(UploadId(3)),
        number: 0,
        ended: true,
        seq: Seq::default(),
        layout: StripeLayout { layout, k, m: n - k, data_len: u64::from(k) * BLOCK_LEN },
        blocks: (0..=u8::MAX).zip((1..=n).map(|node| place(node, 0))).collect(),
        copies: (1..=copies).map(|copy| (0, place(n + u32::from(copy), copy))).collect(),
        checksums: Vec::new(),
        kept: Default::default(),
        corrupt: Default::default(),
        incomplete: false,
    }
}

fn members(stripe: &StripeRecord) -> Vec<BlockId> {
    stripe.all().map(|(index, placed)| stripe.id_of(index, placed)).collect()
}

fn known() -> Known {
    Known::new(ProofKey::PUBLIC)
}

fn way(scheme: &str) -> UpdateWay {
    UpdateWay::parse(scheme, "", 0, 0).unwrap()
}

/// The routes of these members' updates.
fn routes(
    code: &SharedCode,
    (stripe, members): (&StripeRecord, &[BlockId]),
    way: &UpdateWay,
    network: &Network,
    known: &Known,
) -> Vec<UpdateRoute> {
    let run = Run::new(PlanId(1), 1, Class::Foreground, 4096);
    let updating = Updating { stripe, members, way, network, known, run };
    let failed = |index: u8, error: &Error| panic!("block {index}: {error}");
    updating.known_routes(code).unwrap_or_else(|| updating.routes(code, || false, failed))
}

fn code(spec: &str) -> SharedCode {
    weft_codes::parse(spec).unwrap()
}

/// One Gbit/s for all; every third node is in one rack.
fn network() -> Network {
    let racks = (1..30).map(|node| (Party::Node(NodeId(node)), format!("r{}", node % 3))).collect();
    Network { racks, ..Network::uniform(125e6) }
}

#[test]
fn a_route_of_any_scheme_is_a_tree_that_reaches_all_blocks_that_depend_on_the_changed_one() {
    let network = network();
    for (spec, copies, absent) in
        [("rs(4,3)", 0, None), ("rs(9,3)", 2, Some(10)), ("lrc(4,2,2)", 1, None), ("clay(4,2)", 1, None)]
    {
        let code = code(spec);
        let stripe = stripe(&code, 5, copies);
        let members: Vec<BlockId> = members(&stripe).into_iter().filter(|block| Some(block.index) != absent).collect();
        for scheme in answering(Kind::Update) {
            let routes = routes(&code, (&stripe, &members), &way(scheme.name()), &network, &known());
            if scheme.name() == STRAIGHT.name() {
                assert_eq!(routes, [], "straight is no route");
                continue;
            }
            for index in 0..code.k() as u8 {
                let depends = |block: &BlockId| match (block.index == index, usize::from(block.index) < code.k()) {
                    (is_same, true) => is_same && block.copy > 0,
                    _ => {
                        let rows = usize::from(block.index) * code.alpha()..(usize::from(block.index) + 1) * code.alpha();
                        let mut columns = rows.flat_map(|row| code.generator().row(row));
                        columns.any(|(_, column, _)| *column as usize / code.alpha() == usize::from(index))
                    }
                };
                let concerned: BTreeSet<BlockId> = members.iter().copied().filter(depends).collect();
                let route = routes.iter().find(|route| route.index == index);
                if concerned.len() < 2 {
                    assert_eq!(route, None, "{spec}: only one node patches");
                    continue;
                }
                let route = route.unwrap_or_else(|| panic!("{spec} by {}: no route for block {index}", scheme.name()));
                assert_eq!((&*route.scheme, route.from_bytes), (scheme.name(), 0));
                let mut reached = BTreeSet::from([BlockId { stripe: stripe.id, index, copy: 0, generation: 1 }]);
                for (from, to) in &route.hops {
                    assert!(reached.contains(from) && reached.insert(*to), "{spec}: {route:?} is no tree");
                }
                assert_eq!(
                    reached.into_iter().filter(|block| (block.index, block.copy) != (index, 0)).collect::<BTreeSet<_>>(),
                    concerned
                );
                assert!((4096..=64 << 20).contains(&route.slice_len), "{route:?}");
            }
        }
    }
}

/// Three parities in three other regions, with the rates between some regions of the paper's Table 2, in MB/s.
#[test]
fn the_exact_path_is_the_best_of_all_orders() {
    // By sender: to California, Ohio, Tokyo, Sydney, London.
    let rates = [
        [0.0, 22.9, 11.1, 8.6, 8.7],
        [11.4, 0.0, 7.9, 6.3, 14.2],
        [10.9, 7.7, 0.0, 11.6, 5.2],
        [8.4, 6.1, 11.9, 0.0, 4.3],
        [8.8, 13.9, 5.0, 4.1, 0.0],
    ];
    let code = code("rs(1,4)");
    let stripe = stripe(&code, 5, 0);
    let mut network = Network::uniform(1e9);
    let party = |at: usize| Party::Node(NodeId(at as u32 + 1));
    for (from, sends) in rates.iter().enumerate() {
        network.racks.insert(party(from), format!("region-{from}"));
        for (to, rate) in sends.iter().enumerate().filter(|(to, _)| *to != from) {
            network.pair_bytes_per_s.insert((party(from), party(to)), rate * 1e6);
        }
    }
    let order = |path: &str| -> Vec<usize> {
        let way = UpdateWay::parse("pipeline", path, 1, 0).unwrap();
        let routes = routes(&code, (&stripe, &members(&stripe)), &way, &network, &known());
        let mut at = 0;
        for (from, to) in &routes[0].hops {
            assert_eq!(from.index, at, "a path");
            at = to.index;
        }
        routes[0].hops.iter().map(|(_, to)| usize::from(to.index)).collect()
    };
    let slowest = |order: &[usize]| {
        let path: Vec<usize> = [0].iter().chain(order).copied().collect();
        path.windows(2).map(|pair| rates[pair[0]][pair[1]]).fold(f64::INFINITY, f64::min)
    };
    let mut all: Vec<f64> = Vec::new();
    for a in 1..5 {
        for b in (1..5).filter(|b| *b != a) {
            let rest: Vec<usize> = (1..5).filter(|it| ![a, b].contains(it)).collect();
            all.extend([slowest(&[a, b, rest[0], rest[1]]), slowest(&[a, b, rest[1], rest[0]])]);
        }
    }
    let [best, worst] = [f64::max as fn(f64, f64) -> f64, f64::min].map(|of| all.iter().copied().reduce(of).unwrap());
    // Of the links with at least 7.9 MB/s, only these make a path: to London, Ohio, Tokyo, Sydney.
    assert_eq!((order("exact"), slowest(&order("exact")), best), (vec![4, 1, 2, 3], 7.9, 7.9));
    assert_eq!(slowest(&order("worst")), worst);
    for path in ["tabu", "random"] {
        assert!((worst..=best).contains(&slowest(&order(path))), "{path}");
    }
}

#[test]
fn short_updates_go_straight_and_long_ones_take_the_fastest_way() {
    let code = code("rs(9,3)");
    let (stripe, known, network) = (stripe(&code, 5, 0), known(), network());
    let members = members(&stripe);
    let auto = way("auto");
    let drawn = routes(&code, (&stripe, &members), &auto, &network, &known);
    assert_eq!(drawn.iter().map(|route| route.index).collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
    let run = Run::new(PlanId(1), 1, Class::Foreground, 4096);
    for route in drawn {
        let updating = Updating { stripe: &stripe, members: &members, way: &auto, network: &network, known: &known, run };
        let weighed = |bytes| weigh_update(&code, &updating, route.index, bytes).unwrap();
        let seconds =
            |weighed: &Weighed, scheme: &str| weighed.planned.considered.iter().find(|it| it.scheme == scheme).unwrap().seconds;
        let from = route.from_bytes;
        assert!((32 << 10..1 << 20).contains(&from), "{from}");
        for (bytes, is_routed) in [(4096, false), (from / 2, false), (from, true), (1 << 20, true), (16 << 20, true)] {
            let weighed = weighed(bytes);
            let considered = &weighed.planned.considered;
            assert_eq!(considered.len(), answering(Kind::Update).count(), "all are shown");
            assert_eq!(considered[0].scheme, if is_routed { &route.scheme } else { STRAIGHT.name() }, "{bytes} bytes");
            let (straight, routed) = (seconds(&weighed, STRAIGHT.name()), seconds(&weighed, &route.scheme));
            assert_eq!(routed <= WORTH * straight, is_routed, "{bytes} bytes: {routed} s instead of {straight} s");
            assert_eq!(weighed.route.as_ref(), Some(&route));
            assert_eq!(weighed.hops == route.hops, is_routed);
        }
        let usual = weighed(UPDATE_BYTES_USUAL);
        let least = usual.planned.considered.iter().map(|it| it.seconds).fold(f64::INFINITY, f64::min);
        assert!(usual.planned.considered[0].seconds <= least, "{:?}", usual.planned.considered);
    }
}

#[test]
fn without_anything_to_gain_there_is_no_route() {
    let none = |spec: &str, scheme: &str, network: &Network| {
        let code = code(spec);
        let stripe = stripe(&code, 5, 0);
        routes(&code, (&stripe, &members(&stripe)), &way(scheme), network, &known()).is_empty()
    };
    for scheme in ["auto", "pipeline", "star"] {
        assert!(none("rs(4,1)", scheme, &network()), "{scheme}: a single node patches");
    }
    assert!(none("rs(4,3)", "auto", &Network::uniform(1e12)), "hops take longer than bytes");
    assert!(!none("rs(4,3)", "auto", &network()));

    // A node with two blocks of a stripe.
    let code = code("rs(4,3)");
    let mut stripe = stripe(&code, 5, 0);
    stripe.blocks.get_mut(&6).unwrap().home = stripe.blocks[&5].home;
    assert_eq!(routes(&code, (&stripe, &members(&stripe)), &way("tree"), &network(), &known()), []);
}

#[test]
fn stripes_on_the_same_nodes_are_planned_once_for_a_network() {
    let (code, known, mut network) = (code("rs(4,3)"), known(), network());
    let drawn = |id: u64, way: &UpdateWay, network: &Network| {
        let stripe = stripe(&code, id, 0);
        let routes = routes(&code, (&stripe, &members(&stripe)), way, network, &known);
        assert!(routes.iter().flat_map(|route| &route.hops).all(|(from, to)| from.stripe.0 == id && to.stripe.0 == id));
        routes.len()
    };
    let auto = way("auto");
    assert_eq!((drawn(5, &auto, &network), known.routes().hits), (4, 0));
    assert_eq!((drawn(6, &auto, &network), known.routes().hits), (4, 1), "the same for another stripe");
    // A link of other nodes changes nothing.
    network.pair_bytes_per_s.insert((Party::Node(NodeId(1)), Party::Node(NodeId(20))), 1e6);
    assert_eq!((drawn(5, &auto, &network), known.routes().hits), (4, 2));
    network.pair_bytes_per_s.insert((Party::Node(NodeId(1)), Party::Node(NodeId(7))), 1e6);
    assert_eq!((drawn(5, &auto, &network), known.routes().hits), (4, 2), "another rate");
    network.racks.insert(Party::Node(NodeId(7)), "far".into());
    assert_eq!((drawn(5, &auto, &network), known.routes().hits), (4, 2), "another rack");
    assert_eq!((drawn(5, &way("tree"), &network), known.routes().hits), (4, 2), "another way");
    network.pair_bytes_per_s.insert((Party::Node(NodeId(1)), Party::Node(NodeId(7))), 1.02e6);
    assert_eq!((drawn(5, &auto, &network), known.routes().hits), (4, 3), "the rate was measured again");
}

#[test]
fn what_cannot_be_planned_has_no_route_and_is_not_planned_again() {
    let (code, known, network, mut failures) = (code("rs(4,3)"), known(), network(), Vec::new());
    let (stripe, way) = (stripe(&code, 5, 0), UpdateWay { scheme: "pigeon".to_owned(), ..way("auto") });
    let (members, run) = (members(&stripe), Run::new(PlanId(1), 1, Class::Foreground, 4096));
    for _ in 0..2 {
        let updating = Updating { stripe: &stripe, members: &members, way: &way, network: &network, known: &known, run };
        let failed = |index: u8, error: &Error| failures.push((index, error.reaction));
        assert_eq!(updating.known_routes(&code).unwrap_or_else(|| updating.routes(&code, || false, failed)), []);
    }
    assert_eq!(failures, (0..4).map(|index| (index, Reaction::InvalidInput)).collect::<Vec<_>>());
}

#[test]
fn planning_ends_early_when_it_takes_too_long() {
    let (code, known, network, way) = (code("rs(4,3)"), known(), network(), way("auto"));
    let stripe = stripe(&code, 5, 0);
    let (members, run) = (members(&stripe), Run::new(PlanId(1), 1, Class::Foreground, 4096));
    let updating = Updating { stripe: &stripe, members: &members, way: &way, network: &network, known: &known, run };
    assert_eq!(updating.known_routes(&code), None);
    let asked = std::cell::Cell::new(0);
    let is_late = || asked.replace(asked.get() + 1) == 2;
    let routes = updating.routes(&code, is_late, |index, error| panic!("block {index}: {error}"));
    assert_eq!(routes.iter().map(|route| route.index).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(updating.known_routes(&code), Some(routes), "the others go straight from now on");
}

#[test]
fn rates_that_differ_a_little_are_the_same() {
    for (a, b, is_same) in [
        (104e6, 99.7e6, true),
        (104e6, 106e6, false),
        (125e6, 125e3, false),
        (1.2e-4, 1.21e-4, true),
        (0.0, 0.0, true),
        (f64::INFINITY, 1e300, false),
    ] {
        assert_eq!(rough(a) == rough(b), is_same, "{a} and {b}");
    }
}

proptest! {
    /// A node has the first byte when its sender has, and has sent to those before it.
    #[test]
    fn steps_follow_the_longest_way(count in 1usize..12, picks in prop::collection::vec(0usize..100, 12), in_turn: bool) {
        let hops: Vec<(usize, usize)> = (1..=count).map(|to| (picks[to - 1] % to, to)).collect();
        let mut arrives = vec![0; count + 1];
        for (at, (from, to)) in hops.iter().enumerate() {
            let before = hops[..at].iter().filter(|(other, _)| in_turn && other == from).count() as u32;
            arrives[*to] = arrives[*from] + before + 1;
        }
        prop_assert_eq!(steps(&hops, in_turn), arrives.into_iter().max().unwrap());
    }
}
