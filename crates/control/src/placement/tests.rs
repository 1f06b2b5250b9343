use super::*;
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use std::time::Duration;
use weft_types::DiskNumber;

const BLOCK: u64 = 1 << 20;

fn node(id: u32, rack: &str) -> NodeView {
    let disk = |which| DiskView {
        number: DiskNumber(id * 10 + which),
        id: format!("disk-{id}-{which}").into(),
        path: "/d".into(),
        total_bytes: 100 * BLOCK,
        free_bytes: 50 * BLOCK,
        file_system: 0,
        failed: false,
        draining: false,
        blocks: 0,
        bytes_per_s: 0,
    };
    NodeView {
        id: NodeId(id),
        name: format!("node-{id}").into(),
        rack: rack.into(),
        up: true,
        lost: false,
        suspect_for: Duration::ZERO,
        disks: vec![disk(1), disk(2)],
    }
}

fn view(racks: &[usize]) -> View {
    let names = racks.iter().enumerate().flat_map(|(rack, nodes)| (0..*nodes).map(move |_| format!("r{rack}")));
    View { nodes: (1..).zip(names).map(|(id, rack)| (NodeId(id), node(id, &rack))).collect(), ..View::default() }
}

fn ask<'a>(count: usize, tolerance: usize, held: &'a [NodeId], avoid: &'a BTreeSet<NodeId>) -> Ask<'a> {
    let failure_domain = FailureDomain::Rack;
    let (bytes, kept) = (BLOCK, Share::NONE);
    Ask { code: "rs(k,m)", count, tolerance, failure_domain, held, avoid, named: false, bytes, kept, load: &NOTHING }
}

fn per_rack(view: &View, nodes: impl Iterator<Item = NodeId>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in nodes {
        *counts.entry(view.nodes[&node].rack.to_string()).or_default() += 1;
    }
    counts
}

proptest! {
    #[test]
    fn a_node_gets_one_block_and_a_rack_as_few_as_possible(
        racks in prop::collection::vec(1usize..8, 1..7),
        tolerance in 1usize..5,
        count in 1usize..20,
        held in prop::collection::btree_set(1u32..10, 0..4),
        seed: u64,
    ) {
        let view = view(&racks);
        let held: Vec<NodeId> = held.into_iter().map(NodeId).filter(|id| view.nodes.contains_key(id)).collect();
        let avoid = BTreeSet::new();
        let ask = ask(count, tolerance, &held, &avoid);
        let total: usize = racks.iter().sum();
        let placed = place(&view, &ask, &mut StdRng::seed_from_u64(seed));
        prop_assert_eq!(placed.is_ok(), count + held.len() <= total);
        let Ok(placed) = placed else { return Ok(()) };

        let nodes: BTreeSet<NodeId> = placed.homes.iter().map(|home| home.node).collect();
        prop_assert_eq!(nodes.len(), count, "one block per node");
        prop_assert!(held.iter().all(|id| !nodes.contains(id)));
        let fullest = per_rack(&view, nodes.iter().chain(&held).copied()).into_values().max().unwrap_or(0);
        // Held blocks are given; the best spread of the others fills the racks evenly up to a level.
        let before = per_rack(&view, held.iter().copied());
        let before: Vec<usize> = (0..racks.len()).map(|rack| before.get(&format!("r{rack}")).copied().unwrap_or(0)).collect();
        let fits = |level: usize| {
            let room = |rack: usize| level.min(racks[rack]).saturating_sub(before[rack]);
            (0..racks.len()).map(room).sum::<usize>() >= count
        };
        let least = (1..).find(|level| fits(*level)).unwrap().max(before.iter().copied().max().unwrap_or(0));
        prop_assert_eq!(fullest, least);
        prop_assert_eq!(placed.warnings.is_empty(), fullest <= tolerance);
    }

    #[test]
    fn the_same_seed_gives_the_same_homes(seed: u64) {
        let (view, avoid) = (view(&[4, 4, 4]), BTreeSet::new());
        let homes = |seed| place(&view, &ask(6, 2, &[], &avoid), &mut StdRng::seed_from_u64(seed)).unwrap().homes;
        prop_assert_eq!(homes(seed), homes(seed));
    }
}

#[test]
fn an_error_about_too_few_nodes_states_the_numbers() {
    let (mut view, avoid) = (view(&[3, 3]), BTreeSet::new());
    view.nodes.get_mut(&NodeId(1)).unwrap().up = false;
    let error = place(&view, &ask(6, 2, &[], &avoid), &mut StdRng::seed_from_u64(1)).unwrap_err();
    assert_eq!(error.reaction, weft_types::Reaction::Unavailable);
    assert!(error.message.contains("6 different nodes") && error.message.contains("5 of 6 nodes are up"), "{error}");
}

#[test]
fn full_failed_and_suspect_are_avoided() {
    let (mut view, avoid) = (view(&[4]), BTreeSet::from([NodeId(4)]));
    view.nodes.get_mut(&NodeId(1)).unwrap().disks[0].failed = true;
    view.nodes.get_mut(&NodeId(1)).unwrap().disks[1].free_bytes = BLOCK - 1;
    view.nodes.get_mut(&NodeId(2)).unwrap().disks[0].free_bytes = BLOCK;
    view.nodes.get_mut(&NodeId(3)).unwrap().suspect_for = Duration::from_secs(9);
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(seed);
        let homes = place(&view, &ask(1, 1, &[], &avoid), &mut rng).unwrap().homes;
        assert_eq!(homes, [Home { node: NodeId(2), disk: DiskNumber(22) }], "the disk with the most space left");
        // If two nodes are needed, the suspect one is better than none.
        assert_eq!(place(&view, &ask(2, 1, &[], &avoid), &mut rng).unwrap().homes.len(), 2);
        let error = place(&view, &ask(3, 1, &[], &avoid), &mut rng).unwrap_err();
        assert!(error.message.contains("only 2 of the 4"), "{error}");
    }
}

#[test]
fn what_is_kept_free_is_not_used_and_the_error_says_why() {
    let (mut view, avoid) = (view(&[3]), BTreeSet::new());
    // Of 100 blocks, 24 are kept.
    let kept = crate::reserve::share(weft_types::RebuildReserve::Percent(24), &view, 3);
    view.nodes.values_mut().flat_map(|node| &mut node.disks).for_each(|disk| disk.free_bytes = 25 * BLOCK);
    let mut rng = StdRng::seed_from_u64(1);
    let ask = Ask { kept, ..ask(3, 2, &[], &avoid) };
    assert_eq!(place(&view, &ask, &mut rng).unwrap().homes.len(), 3, "to the byte");
    let node = view.nodes.get_mut(&NodeId(2)).unwrap();
    node.disks.iter_mut().for_each(|disk| disk.free_bytes -= 1);
    let error = place(&view, &ask, &mut rng).unwrap_err();
    assert_eq!(error.cause, Some(Cause::NoSpace));
    for part in [
        "only 2 of the 3",
        "24.0 % that puts leave free to rebuild the largest node (node-2:/d has",
        "remove objects, or set a smaller rebuild_reserve",
    ] {
        assert!(error.message.contains(part), "{part}: {error}");
    }
    assert_eq!(place(&view, &Ask { kept: Share::NONE, ..ask.clone() }, &mut rng).unwrap().homes.len(), 3, "repair may use it");
    view.nodes.get_mut(&NodeId(2)).unwrap().disks.iter_mut().for_each(|disk| disk.free_bytes = 0);
    let error = place(&view, &ask, &mut rng).unwrap_err();
    assert!(error.cause == Some(Cause::NoSpace) && !error.message.contains("rebuild_reserve"), "the disk is just full: {error}");
}

#[test]
fn nodes_fill_up_evenly() {
    let (mut view, avoid) = (view(&[5, 5]), BTreeSet::new());
    let mut rng = StdRng::seed_from_u64(7);
    for _ in 0..50 {
        for home in place(&view, &ask(4, 2, &[], &avoid), &mut rng).unwrap().homes {
            let node = view.nodes.get_mut(&home.node).unwrap();
            node.disks.iter_mut().find(|disk| disk.number == home.disk).unwrap().blocks += 1;
        }
    }
    let blocks = |node: &NodeView| node.disks.iter().map(|disk| disk.blocks).sum::<u64>();
    assert!(view.nodes.values().all(|node| blocks(node) == 20), "200 blocks on 10 nodes");
}

#[test]
fn nodes_with_fewer_blocks_of_the_batch_come_first() {
    let (mut view, avoid) = (view(&[3, 3]), BTreeSet::from([NodeId(6)]));
    // However full they are with other data.
    view.nodes.get_mut(&NodeId(1)).unwrap().disks[0].blocks = 1000;
    let (mut rng, mut load) = (StdRng::seed_from_u64(5), BTreeMap::new());
    for _ in 0..31 {
        let placed = place(&view, &Ask { load: &load, ..ask(1, 2, &[], &avoid) }, &mut rng).unwrap();
        *load.entry(placed.homes[0].node).or_insert(0) += 1;
    }
    let given: Vec<u64> = load.values().copied().collect();
    assert_eq!((given.len(), given.iter().min(), given.iter().max()), (5, Some(&6), Some(&7)));
}

#[test]
fn nodes_that_were_named_get_their_share_also_if_they_are_suspect() {
    let (mut view, avoid) = (view(&[4, 4]), (1..=6).map(NodeId).collect());
    view.nodes.get_mut(&NodeId(7)).unwrap().suspect_for = Duration::from_secs(9);
    let given = |named: bool| {
        let (mut rng, mut load) = (StdRng::seed_from_u64(3), BTreeMap::new());
        for _ in 0..16 {
            let placed = place(&view, &Ask { named, load: &load, ..ask(1, 2, &[], &avoid) }, &mut rng).unwrap();
            *load.entry(placed.homes[0].node).or_insert(0) += 1;
        }
        load
    };
    assert_eq!(given(true), BTreeMap::from([(NodeId(7), 8), (NodeId(8), 8)]));
    assert_eq!(given(false), BTreeMap::from([(NodeId(8), 16)]), "without named nodes, a trusted node is chosen");
}

#[test]
fn the_failure_domain_node_ignores_racks() {
    let (view, avoid) = (view(&[6]), BTreeSet::new());
    let mut rng = StdRng::seed_from_u64(1);
    let ask = ask(6, 2, &[], &avoid);
    assert!(place(&view, &ask, &mut rng).unwrap().warnings[0].contains("rack r0 gets 6 blocks"));
    let ask = Ask { failure_domain: FailureDomain::Node, ..ask };
    assert_eq!(place(&view, &ask, &mut rng).unwrap().warnings, Vec::<String>::new());
}
