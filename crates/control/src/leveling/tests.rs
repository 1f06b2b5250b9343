//! Stripes on random nodes, of which some are new.

use super::*;
use crate::{
    busiest::{Busiest, Carrier, busiest},
    fixtures::{BLOCK_LEN, home, stripe, view},
    limit::Bounds,
    schedule::{Admission, STREAMS_MAX, Starting},
};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng, seq::index};

/// Stripes of six blocks on random nodes of the first `nodes`.
fn stripes(count: u64, nodes: u32, seed: u64) -> Vec<StripeRecord> {
    let mut rng = StdRng::seed_from_u64(seed);
    let one = |id| {
        let mut it = stripe();
        it.id = StripeId(id);
        let chosen = index::sample(&mut rng, nodes as usize, 6);
        it.blocks.values_mut().zip(chosen.iter()).for_each(|(placed, node)| placed.home = home(node as u32 + 1));
        it
    };
    (1..=count).map(one).collect()
}

fn stored(stripes: &[StripeRecord]) -> Stored {
    let mut stored = Stored::default();
    stripes.iter().for_each(|stripe| stored.add(stripe));
    stored
}

fn planned(stripes: &[StripeRecord], view: &View) -> Leveling {
    let mut leveling = Leveling::new(&stored(stripes), Tolerances::from([((4, 2), 2)]), view);
    stripes.iter().for_each(|stripe| leveling.stripe(stripe, view));
    leveling
}

/// Carries the moves out.
fn moved(stripes: &mut [StripeRecord], moves: &[Moves]) {
    for moves in moves {
        let stripe = stripes.iter_mut().find(|stripe| stripe.id == moves.stripe).unwrap();
        for it in &moves.blocks {
            let placed = stripe.find_mut(it.index, it.copy).unwrap();
            assert_eq!(placed.home, it.from);
            placed.home = it.to;
        }
        let nodes: BTreeSet<NodeId> = stripe.all().map(|(_, placed)| placed.home.node).collect();
        assert_eq!(nodes.len(), stripe.all().count(), "no two blocks of a stripe on one node");
    }
}

#[test]
fn moves_from_one_disk_wait_for_the_streams_of_its_link() {
    let it = |index, from, to, bytes| Move { index, copy: 0, bytes, from: home(from), to: home(to) };
    let of = |at: u32| {
        let blocks = vec![it(0, 1, 100 + at, BLOCK_LEN), it(1, 200 + at, 300 + at, 1)];
        Moves { stripe: StripeId(at.into()), number: 0, blocks }
    };
    let mut admission = Admission::new(Starting::InOrder);
    admission.add((0..100).map(|at| (at, ((), 0), of(at).lines())));
    let started = std::iter::from_fn(|| admission.start()).count() as u64;
    assert_eq!(started, STREAMS_MAX, "whatever the lengths of the blocks");
}

#[test]
fn stripes_no_longer_matter_once_all_moves_are_found() {
    let view = view(16, &[]);
    // A part of a block is left of what each disk should have, another one each time.
    for count in 2_000..2_004 {
        let all = stripes(count, 13, 1);
        let mut leveling = Leveling::new(&stored(&all), Tolerances::from([((4, 2), 2)]), &view);
        let looked_at = all.iter().take_while(|stripe| {
            leveling.stripe(stripe, &view);
            !leveling.is_over()
        });
        let looked_at = looked_at.count();
        assert!(looked_at < all.len() / 2, "{looked_at} of {count}");
        assert_eq!(leveling.into_moves(), planned(&all, &view).into_moves(), "and the moves are the same");
    }
}

fn deviation(stripes: &[StripeRecord], view: &View) -> f64 {
    let levels = stored(stripes).levels(view);
    let of = |level: &Level| level.bytes.abs_diff(level.target_bytes) as f64 / level.target_bytes as f64;
    levels.iter().map(of).fold(0.0, f64::max)
}

#[test]
fn nodes_that_join_empty_take_their_share_and_no_byte_moves_in_vain() {
    let (mut all, view) = (stripes(2_000, 13, 1), view(16, &[]));
    let before = deviation(&all, &view);
    let leveling = planned(&all, &view);
    let ((blocks, bytes), least) = (leveling.amount(), leveling.least_bytes());
    assert_eq!(blocks * BLOCK_LEN, bytes);
    let network = Network::uniform(BLOCK_LEN as f64);
    let loads = leveling.loads(&network);
    assert_eq!(loads.values().map(|load| load.up).sum::<u64>(), bytes);
    assert!((14..=16).all(|node| loads[&Place::Node(NodeId(node))].up == 0), "new ones only receive");
    let seconds = busiest(&loads, &network, |_| Bounds::default()).unwrap().seconds;
    assert!((seconds - (blocks as f64 / 3.0)).abs() < 0.02 * seconds, "three downlinks: {seconds} s for {blocks} blocks");
    let half = |_| Bounds { down: Some(BLOCK_LEN / 2), up: Some(2 * BLOCK_LEN), ..Bounds::default() };
    assert_eq!(busiest(&loads, &network, half).unwrap().seconds, 2.0 * seconds);
    moved(&mut all, &leveling.into_moves());
    let after = deviation(&all, &view);
    println!("moved {:.3} x the least; deviation {before:.3} before, {after:.4} after", bytes as f64 / least as f64);
    assert!(before > 0.9 && after <= 0.02, "{before} {after}");
    assert!(bytes as f64 <= 1.05 * least as f64);
    assert!(planned(&all, &view).is_over(), "it is even");
}

#[test]
fn what_goes_where_is_summed_up_and_links_of_racks_count() {
    let view = view(16, &[]);
    let leveling = planned(&stripes(2_000, 13, 1), &view);
    let (sums, further) = leveling.sums();
    assert_eq!((further, sums.len()), (0, 39), "from each of thirteen to each of three");
    assert!(sums.is_sorted_by(|one, next| one.amount.bytes >= next.amount.bytes));
    let (blocks, bytes) = leveling.amount();
    assert_eq!(sums.iter().map(|sum| sum.amount.blocks).sum::<u64>(), blocks);
    assert_eq!(sums.iter().map(|sum| sum.amount.bytes).sum::<u64>(), bytes);
    let mut network = Network::uniform(BLOCK_LEN as f64);
    network.racks = (1..=13).map(|node| (Party::Node(NodeId(node)), "old".to_owned())).collect();
    network.racks.extend((14..=16).map(|node| (Party::Node(NodeId(node)), "new".to_owned())));
    let loads = leveling.loads(&network);
    let of = |rack: &str| loads[&Place::Rack(rack.into())];
    assert_eq!((of("old"), of("new")), (Load::of_links(bytes, 0), Load::of_links(0, bytes)));
    assert_eq!(loads.values().map(|load| load.disk).sum::<u64>(), 2 * bytes, "each is read at a disk and written at another one");
    network.rack_down_bytes_per_s.insert("new".into(), BLOCK_LEN as f64);
    let slowest = busiest(&loads, &network, |_| Bounds::default());
    let at = Place::Rack("new".into());
    assert_eq!(
        slowest,
        Some(Busiest { at, carrier: Carrier::Downlink, bytes, seconds: blocks as f64 }),
        "all blocks through one link"
    );
}

#[test]
fn of_many_sums_the_largest_are_shown() {
    let it = |from: u32, to: u32| Move { index: 0, copy: 0, bytes: (from * to).into(), from: home(from), to: home(to) };
    let moves =
        |from: u32| (21..=30).map(move |to: u32| Moves { stripe: StripeId(to.into()), number: 0, blocks: vec![it(from, to)] });
    let mut leveling = planned(&[], &view(30, &[]));
    leveling.moves = (1..=11).flat_map(moves).collect();
    let (sums, further) = leveling.sums();
    assert_eq!((sums.len(), further), (SUMS_MAX, 10));
    assert_eq!(sums[0], Sum { from: home(11), to: home(30), amount: Amount { blocks: 1, bytes: 330 } });
    assert!(sums.iter().all(|sum| sum.from != home(1)), "the smallest are left out");
}

#[test]
fn larger_disks_get_more_and_shared_ones_less() {
    let mut all = stripes(1_200, 12, 2);
    let mut uneven = view(13, &[]);
    uneven.nodes.get_mut(&NodeId(13)).unwrap().disks[0].free_bytes *= 2;
    let moves = planned(&all, &uneven).into_moves();
    moved(&mut all, &moves);
    assert!(deviation(&all, &uneven) <= 0.02);
    let bytes = |node| stored(&all).bytes[&home(node)] as f64;
    assert!((bytes(13) / bytes(1) - 2.0).abs() < 0.1, "{} {}", bytes(13), bytes(1));
    // All on one file system: each node its share of the blocks.
    let mut shared = view(9, &[]);
    shared.nodes.values_mut().for_each(|node| node.disks[0].file_system = 7);
    let mut all = stripes(600, 8, 3);
    let moves = planned(&all, &shared).into_moves();
    moved(&mut all, &moves);
    assert!(deviation(&all, &shared) <= 0.02);
    let levels = stored(&all).levels(&shared);
    assert!(levels.iter().all(|level| level.capacity_bytes == levels[0].capacity_bytes));
}

#[test]
fn what_is_drained_down_or_not_whole_takes_no_part() {
    let mut view = view(10, &[7]);
    view.nodes.get_mut(&NodeId(10)).unwrap().disks[0].draining = true;
    let mut all = stripes(400, 7, 4);
    all[0].incomplete = true;
    all[1].find_mut(0, 0).unwrap().state = BlockState::Corrupt;
    let leveling = planned(&all, &view);
    let lacks = |stripe: u64| all[stripe as usize - 1].all().any(|(_, placed)| placed.home.node == NodeId(7));
    assert!(leveling.moves.iter().all(|moves| !lacks(moves.stripe.0)), "what lacks a block is not moved");
    assert!(leveling.levels().iter().all(|level| ![7, 10].contains(&level.home.node.0)));
    let moves = leveling.into_moves();
    let blocks = || moves.iter().flat_map(|moves| &moves.blocks);
    assert!(!moves.is_empty() && blocks().all(|it| [8, 9].contains(&it.to.node.0) && it.from.node != NodeId(7)));
    assert!(moves.iter().all(|moves| moves.stripe.0 > 2));
}

#[test]
fn a_new_disk_of_a_node_gets_its_share() {
    let mut view = view(16, &[]);
    let disks = &mut view.nodes.get_mut(&NodeId(3)).unwrap().disks;
    disks.push(DiskView { number: weft_types::DiskNumber(30), ..disks[0].clone() });
    let mut all = stripes(800, 16, 6);
    let moves = planned(&all, &view).into_moves();
    moved(&mut all, &moves);
    assert!(deviation(&all, &view) <= 0.02, "{}", deviation(&all, &view));
    let new = Home { node: NodeId(3), disk: weft_types::DiskNumber(30) };
    assert!(moves.iter().flat_map(|moves| &moves.blocks).filter(|it| it.to == new).count() > 200);
}

#[test]
fn what_was_moved_and_is_not_removed_yet_moves_nothing_more() {
    let (mut all, mut view) = (stripes(300, 13, 8), view(16, &[]));
    for node in view.nodes.values_mut() {
        node.disks[0].free_bytes = 40 * BLOCK_LEN;
    }
    let moves = planned(&all, &view).into_moves();
    let mut after = Stored::default();
    for it in moves.iter().flat_map(|moves| &moves.blocks) {
        after.add_garbage(it.from, it.bytes);
        view.nodes.get_mut(&it.to.node).unwrap().disks[0].free_bytes -= it.bytes;
    }
    moved(&mut all, &moves);
    let again = |after: &Stored| {
        let mut leveling = Leveling::new(after, Tolerances::from([((4, 2), 2)]), &view);
        all.iter().for_each(|stripe| leveling.stripe(stripe, &view));
        leveling.amount().0
    };
    assert!(again(&stored(&all)) > 0, "the disks that have sent blocks look smaller");
    all.iter().for_each(|stripe| after.add(stripe));
    assert_eq!(again(&after), 0);
}

#[test]
fn a_stripe_on_all_nodes_cannot_move() {
    let mut all = stripes(100, 6, 5);
    for stripe in &mut all[..50] {
        stripe.layout.data_len = 1;
    }
    let mut view = view(6, &[]);
    view.nodes.get_mut(&NodeId(1)).unwrap().disks[0].free_bytes = 0;
    let leveling = planned(&all, &view);
    assert!(leveling.least_bytes() > 0 && leveling.amount() == (0, 0));
}

proptest! {
    #[test]
    fn racks_get_no_fuller_and_fills_more_even(seed in any::<u64>(), racks in 1u32..6, joined in 0u32..4) {
        let nodes = 10;
        let mut view = view(nodes + joined, &[]);
        view.nodes.values_mut().for_each(|node| node.rack = format!("r{}", node.id.0 % racks).into());
        let mut all = stripes(300, nodes, seed);
        let most = |stripe: &StripeRecord| {
            let mut in_racks: BTreeMap<u32, usize> = BTreeMap::new();
            stripe.all().for_each(|(_, placed)| *in_racks.entry(placed.home.node.0 % racks).or_default() += 1);
            in_racks.into_values().max().unwrap()
        };
        let before: Vec<usize> = all.iter().map(most).collect();
        let uneven = deviation(&all, &view);
        let leveling = planned(&all, &view);
        prop_assert!(leveling.amount().1 <= leveling.least_bytes() + BLOCK_LEN * u64::from(nodes + joined));
        moved(&mut all, &leveling.into_moves());
        for (stripe, before) in all.iter().zip(before) {
            prop_assert!(most(stripe) <= before.max(2));
        }
        prop_assert!(deviation(&all, &view) <= uneven);
    }
}
