//! Schedules of whole jobs on random stripes.

use super::{super::Admission, super::STRIPES_PER_NODE, super::Starting, *};
use crate::fixtures::view;
use rand::{SeedableRng, rngs::StdRng, seq::index};
use std::time::Duration;
use weft_codes::{Ask, SubBlock};

const BLOCK_LEN: u64 = 1 << 20;

/// Blocks of a code on random nodes of `nodes`, lost with node 1.
fn lost(spec: &str, nodes: u32, count: usize, seed: u64) -> Vec<Open> {
    let code = weft_codes::parse(spec).unwrap();
    let (n, mut rng) = (code.n(), StdRng::seed_from_u64(seed));
    let open = |_| {
        let homes: Vec<u32> = index::sample(&mut rng, nodes as usize - 1, n).iter().map(|node| node as u32 + 2).collect();
        let lost = (homes[0] as usize + homes[1] as usize) % n;
        let others = (0..n).filter(|at| *at != lost);
        let available: Vec<(u8, NodeId)> = others.map(|at| (at as u8, NodeId(homes[at]))).collect();
        Open {
            code: SharedCode::clone(&code),
            lost: vec![lost as u8],
            block_len: BLOCK_LEN,
            held: available.iter().map(|(_, node)| *node).collect(),
            available,
            copies: Vec::new(),
            never: BTreeSet::from([NodeId(1)]),
            rack_max: None,
            named: false,
            in_blocks: false,
            reserve_bytes: 0,
        }
    };
    (0..count).map(open).collect()
}

/// All batches of a job.
fn schedule(scheduler: &mut Scheduler, open: &[Open], view: &View, network: &Network) -> Vec<Option<Scheduled>> {
    let patterns = Patterns::new(1 << 20);
    let (cluster, mut rng) = (Cluster { view, network, patterns: &patterns }, StdRng::seed_from_u64(9));
    let batch = BLOCKS_PER_NODE * view.up_count();
    open.chunks(batch).flat_map(|batch| scheduler.batch(batch, &cluster, &mut rng)).collect()
}

/// Likewise, after the first batch of half its size stripe by stripe, as places become free.
fn schedule_as_places_become_free(
    scheduler: &mut Scheduler,
    open: &[Open],
    view: &View,
    network: &Network,
) -> Vec<Option<Scheduled>> {
    let (first, rest) = open.split_at(BLOCKS_PER_NODE * view.up_count() / 2);
    let first = schedule(scheduler, first, view, network);
    first.into_iter().chain(rest.chunks(1).flat_map(|one| schedule(scheduler, one, view, network))).collect()
}

/// Likewise, batch by batch as a job reads its stripes. `view`: the nodes, by the number of stripes that are scheduled.
fn schedule_to_the_end(
    scheduler: &mut Scheduler,
    open: &[Open],
    view: impl Fn(usize) -> View,
    network: &Network,
) -> Vec<Option<Scheduled>> {
    let (patterns, mut rng) = (Patterns::new(1 << 20), StdRng::seed_from_u64(9));
    let mut scheduled = Vec::with_capacity(open.len());
    while scheduled.len() < open.len() {
        let view = view(scheduled.len());
        let size = BLOCKS_PER_NODE * view.up_count();
        let left = &open[scheduled.len()..];
        let count = batch_len(left.len().min(known_max(size)), size);
        let cluster = Cluster { view: &view, network, patterns: &patterns };
        scheduled.extend(scheduler.batch(&left[..count], &cluster, &mut rng));
    }
    scheduled
}

fn summary(scheduler: &Scheduler, view: &View, network: &Network) -> Summary {
    let patterns = Patterns::new(1 << 20);
    scheduler.summary(scheduler.carried().clone(), &Cluster { view, network, patterns: &patterns })
}

fn scheduler(select: HelperSelect, scheme: &str) -> Scheduler {
    Scheduler::new(select, Prefer::Whole, scheme).summarized()
}

/// No node takes part twice; helpers hold blocks of the stripe, and the home holds none.
fn check(open: &[Open], scheduled: &[Option<Scheduled>], view: &View) {
    for (open, scheduled) in open.iter().zip(scheduled) {
        let scheduled = scheduled.as_ref().unwrap();
        let distinct: BTreeSet<NodeId> = scheduled.helpers.iter().copied().chain(scheduled.homes.iter().copied()).collect();
        assert_eq!(scheduled.homes.len(), open.lost.len());
        assert_eq!(distinct.len(), scheduled.helpers.len() + open.lost.len(), "{scheduled:?}");
        assert!(scheduled.helpers.iter().all(|node| open.available.iter().any(|(_, holder)| holder == node)));
        for home in &scheduled.homes {
            assert!(!open.held.contains(home) && !open.never.contains(home));
            assert!(view.node(*home).unwrap().up);
        }
        let of_nodes = scheduled.lines.iter().filter(|line| matches!(line.at, Place::Node(_))).map(|line| line.at.clone());
        assert_eq!(of_nodes.collect::<BTreeSet<_>>(), distinct.into_iter().map(Place::Node).collect());
    }
}

#[test]
fn every_way_to_select_gives_a_valid_schedule_and_the_same_one_again() {
    let (view, network) = (view(16, &[1]), Network::uniform(1e8));
    let open = lost("rs(6,3)", 16, 150, 1);
    let mut busiest = BTreeMap::new();
    for select in HelperSelect::ALL {
        for scheme in ["conventional", "ppr", "pipeline", "cyclic", AUTO] {
            let (mut first, mut second) = (scheduler(select, scheme), scheduler(select, scheme));
            let scheduled = schedule(&mut first, &open, &view, &network);
            assert_eq!(scheduled, schedule(&mut second, &open, &view, &network), "the same input, the same schedule");
            let summed = summary(&first, &view, &network);
            assert_eq!(summed, summary(&second, &view, &network));
            assert!(summed.bound > 0);
            if Assigning::of(select) == Assigning::Alone {
                assert!(scheduled.iter().all(Option::is_none));
                continue;
            }
            check(&open, &scheduled, &view);
            busiest.insert((select.name(), scheme), summed.busiest as f64 / summed.bound as f64);
        }
    }
    for ((select, scheme), ratio) in &busiest {
        match Assigning::of(HelperSelect::ALL.into_iter().find(|it| it.name() == *select).unwrap()) {
            // In batches, so a little above what one assignment of all blocks reaches.
            Assigning::Balanced => assert!(*ratio <= 1.08, "{select} {scheme}: {ratio}"),
            _ => assert!(*ratio > 1.15 && *ratio > busiest[&("boost", *scheme)], "{select} {scheme}: {ratio}"),
        }
    }
}

/// With one node for all blocks, the number of repairs that find their nodes alone is limited by its link, too.
#[test]
fn repairs_that_find_their_nodes_alone_wait_for_the_links_that_they_probably_take() {
    let (view, network, patterns) = (view(16, &[1]), Network::uniform(1e8), Patterns::new(1 << 20));
    let (cluster, mut rng) = (Cluster { view: &view, network: &network, patterns: &patterns }, StdRng::seed_from_u64(9));
    let mut started = |select, open: &[Open]| {
        let mut scheduler = Scheduler::new(select, Prefer::Whole, "conventional");
        let lines = scheduler.likely_lines(open, &cluster, &mut rng);
        let mut admission = Admission::new(Starting::of(select));
        admission.add(lines.into_iter().enumerate().map(|(at, lines)| (at, (0, 0), lines)));
        std::iter::from_fn(|| admission.start()).count()
    };
    let all = lost("rs(10,4)", 16, 100, 3);
    // Two nodes of the cluster hold no block of a stripe with 13 blocks that are left: the first one of them is the target.
    let to_one = |mut open: Open| {
        let free = (2..=16).map(NodeId).find(|node| !open.held.contains(node)).unwrap();
        open.never.extend((2..=16).map(NodeId).filter(|node| *node != free));
        (free, open)
    };
    let mut to_one: Vec<(NodeId, Open)> = all.iter().cloned().map(to_one).collect();
    let target = to_one[0].0;
    to_one.retain(|(free, _)| *free == target);
    let to_one: Vec<Open> = to_one.into_iter().map(|(_, open)| open).collect();
    assert!(to_one.len() > 6);
    for select in [HelperSelect::Lru, HelperSelect::Index] {
        assert_eq!(started(select, &to_one), 6, "ten helpers each send to {target}");
        let spread = started(select, &all);
        assert!((48..96).contains(&spread), "{select:?}: {spread} over 15 nodes, at most six around each");
    }
    let mut scheduler = Scheduler::new(HelperSelect::Random, Prefer::Whole, "conventional");
    assert!(scheduler.likely_lines(&all, &cluster, &mut rng).iter().all(Vec::is_empty), "these are scheduled");
}

/// The same stripes after node 2 was lost, too.
fn lost_again(open: Vec<Open>) -> Vec<Open> {
    let second = |mut open: Open| {
        if let Some(at) = open.available.iter().position(|(_, node)| *node == NodeId(2)) {
            open.lost.push(open.available.remove(at).0);
            open.held.retain(|node| *node != NodeId(2));
        }
        open.never.insert(NodeId(2));
        open
    };
    open.into_iter().map(second).collect()
}

#[test]
fn several_lost_blocks_of_a_stripe_are_scheduled_together() {
    let (view, network) = (view(16, &[1, 2]), Network::uniform(1e8));
    for spec in ["rs(6,3)", "rs(10,4)", "lrc(6,2,2)"] {
        for scheme in ["conventional", "pipeline", AUTO] {
            let open = lost_again(lost(spec, 16, 150, 11));
            let twice = open.iter().filter(|open| open.lost.len() == 2).count();
            assert!(twice > 50 && twice < 150, "{twice}");
            let mut scheduler = scheduler(HelperSelect::Boost, scheme);
            let scheduled = schedule(&mut scheduler, &open, &view, &network);
            check(&open, &scheduled, &view);
            let summed = summary(&scheduler, &view, &network);
            let ratio = summed.busiest as f64 / summed.bound as f64;
            assert!((1.0..=1.1).contains(&ratio), "{spec} {scheme}: {ratio}");
        }
    }
}

/// A chain carries one sum for each lost block, and a hub receives each helper's block once.
#[test]
fn an_open_scheme_rebuilds_several_lost_blocks_of_a_stripe_in_the_least_time_of_all_links() {
    let (view, network) = (view(16, &[1, 2]), Network::uniform(1e8));
    let open = lost_again(lost("rs(6,3)", 16, 112, 11));
    let of = |scheme: &str| {
        let mut scheduler = scheduler(HelperSelect::Boost, scheme);
        check(&open, &schedule(&mut scheduler, &open, &view, &network), &view);
        summary(&scheduler, &view, &network).busiest as f64
    };
    let (chains, hubs, chosen) = (of("pipeline"), of("conventional"), of(AUTO));
    assert!(hubs < 0.8 * chains, "{hubs} {chains}");
    assert!(chosen <= hubs * 1.05, "{chosen} {hubs}");
}

#[test]
fn batches_are_balanced_together() {
    let (view, network) = (view(16, &[1]), Network::uniform(1e8));
    for spec in ["rs(6,3)", "rs(10,4)", "lrc(6,2,2)", "butterfly(4)", "clay(5,3,d=6)"] {
        let mut scheduler = scheduler(HelperSelect::Boost, "conventional");
        let open = lost(spec, 16, 300, 3);
        check(&open, &schedule(&mut scheduler, &open, &view, &network), &view);
        let Summary { busiest, bound, .. } = summary(&scheduler, &view, &network);
        let ratio = busiest as f64 / bound as f64;
        assert!(ratio <= 1.05, "{spec}: {busiest} / {bound} = {ratio:.3}");
    }
}

/// The sum over all batches: of one, of 60 and 35, of three, and of five.
#[test]
fn all_batches_together_are_as_even_as_one_balance_of_the_whole_job() {
    let (view, network) = (view(16, &[1]), Network::uniform(1e8));
    for spec in ["rs(6,3)", "rs(10,4)", "lrc(6,2,2)", "butterfly(4)"] {
        for scheme in ["conventional", "ppr", "pipeline"] {
            for (seed, count) in [(22, 64), (23, 64), (24, 95), (25, 155), (26, 305)] {
                let (mut first, mut second) = (scheduler(HelperSelect::Boost, scheme), scheduler(HelperSelect::Boost, scheme));
                let open = lost(spec, 16, count, seed);
                let scheduled = schedule_to_the_end(&mut first, &open, |_| view.clone(), &network);
                check(&open, &scheduled, &view);
                let again = schedule_to_the_end(&mut second, &open, |_| view.clone(), &network);
                assert_eq!(scheduled, again, "the same input, the same schedule");
                let Summary { busiest, bound, .. } = summary(&first, &view, &network);
                let ratio = busiest as f64 / bound as f64;
                println!("{spec} {scheme} {count}: {busiest} / {bound} = {ratio:.3}");
                assert!((1.0..=1.05).contains(&ratio), "{spec} {scheme} {count} seed {seed}: {ratio:.3}");
            }
        }
    }
}

/// Not any six of the blocks that are left rebuild a global parity: a whole local group has only three independent ones.
#[test]
fn a_global_parity_is_rebuilt_by_exactly_the_scheduled_helpers() {
    let (view, network) = (view(16, &[1]), Network::uniform(1e8));
    for scheme in ["conventional", "ppr", "pipeline"] {
        let open = lost("lrc(6,2,2)", 16, 200, 31);
        let mut scheduler = scheduler(HelperSelect::Boost, scheme);
        let scheduled = schedule_to_the_end(&mut scheduler, &open, |_| view.clone(), &network);
        check(&open, &scheduled, &view);
        let mut globals = 0;
        for (open, scheduled) in open.iter().zip(scheduled.iter().flatten()).filter(|(open, _)| open.lost[0] >= 8) {
            let is_helper = |(_, node): &(u8, NodeId)| scheduled.helpers.contains(node);
            let mut helpers: Vec<(u8, NodeId)> = open.available.iter().copied().filter(is_helper).collect();
            let others = open.available.iter().copied().filter(|it| !is_helper(it));
            helpers.sort_by_key(|(_, node)| scheduled.helpers.iter().position(|helper| helper == node));
            let helpers: Vec<u8> = helpers.into_iter().map(|(index, _)| index).collect();
            let available = helpers.iter().copied().chain(others.map(|(index, _)| index)).collect();
            let wanted = vec![SubBlock { index: open.lost[0], sub_block: 0 }];
            let recipes = open.code.recipes(&Ask { wanted, available, read_anyway: Vec::new() }).unwrap();
            let helping: Vec<u8> = recipes[0].helpers.iter().map(|helper| helper.index).collect();
            assert_eq!(helping, helpers, "{scheme}: {:?}", open.lost);
            globals += 1;
        }
        assert!(globals > 20, "{globals}");
    }
}

#[test]
fn a_later_batch_avoids_a_node_that_became_suspect_or_slow() {
    let (all, network) = (view(16, &[1]), Network::uniform(1e8));
    let (suspect, mut slow) = (NodeId(7), Network::uniform(1e8));
    slow.up_bytes_per_s.insert(Party::Node(suspect), 1e7);
    slow.down_bytes_per_s.insert(Party::Node(suspect), 1e7);
    let open = lost("rs(6,3)", 16, 120, 27);
    let of = |view: &dyn Fn(usize) -> View| {
        schedule_to_the_end(&mut scheduler(HelperSelect::Boost, "pipeline"), &open, view, &network)
    };
    let as_planned = of(&|_| all.clone());
    let changed = of(&|scheduled| {
        let mut view = all.clone();
        if scheduled > 0 {
            view.nodes.get_mut(&suspect).unwrap().suspect_for = Duration::from_secs(9);
        }
        view
    });
    let homes = |scheduled: &[Option<Scheduled>]| scheduled.iter().flatten().filter(|it| it.homes == [suspect]).count();
    assert_eq!(as_planned[..60], changed[..60]);
    assert!(homes(&as_planned[60..]) > 0, "{}", homes(&as_planned[60..]));
    assert_eq!(homes(&changed[60..]), 0);
    // Its links become slow after the first batch.
    let patterns = Patterns::new(1 << 20);
    let second = |then: &Network| {
        let (mut scheduler, mut rng) = (scheduler(HelperSelect::Boost, "pipeline"), StdRng::seed_from_u64(9));
        let cluster = Cluster { view: &all, network: &network, patterns: &patterns };
        let sent = |scheduler: &Scheduler| scheduler.carried()[&Place::Node(suspect)].up;
        scheduler.batch(&open[..60], &cluster, &mut rng);
        let before = sent(&scheduler);
        scheduler.batch(&open[60..], &Cluster { network: then, ..cluster }, &mut rng);
        sent(&scheduler) - before
    };
    assert!(second(&slow) * 2 < second(&network), "{} of {}", second(&slow), second(&network));
}

#[test]
fn an_open_scheme_minimises_the_whole_job() {
    let (view, network) = (view(20, &[1]), Network::uniform(1e8));
    let schemes = |spec: &str, count: usize, prefer: Prefer| -> BTreeSet<String> {
        let mut scheduler = Scheduler::new(HelperSelect::Boost, prefer, AUTO);
        let open = lost(spec, 20, count, 5);
        schedule(&mut scheduler, &open, &view, &network).into_iter().map(|it| it.unwrap().scheme).collect()
    };
    let only = |name: &str| BTreeSet::from([name.to_owned()]);
    // A chain moves four blocks, the code's own recipe five halves.
    assert_eq!(schemes("butterfly(4)", 76, Prefer::Whole), only("conventional"));
    assert_eq!(schemes("butterfly(4)", 100, Prefer::Traffic), only("conventional"));
    assert!(!schemes("butterfly(4)", 100, Prefer::Time).contains("conventional"));
    // One block alone: a chain carries one block on each link.
    assert!(!schemes("butterfly(4)", 1, Prefer::Whole).contains("conventional"));
    // All schemes move the same: that with the lightest vertices is taken.
    assert!(!schemes("rs(6,3)", 100, Prefer::Whole).contains("conventional"));
}

#[test]
fn plans_of_whole_blocks_start_in_the_order_of_rounds() {
    let (view, network) = (view(16, &[1]), Network::uniform(1e8));
    for scheme in ["conventional", "ppr", "pipeline"] {
        let open: Vec<Open> = lost("rs(6,3)", 16, 60, 4).into_iter().map(|open| Open { in_blocks: true, ..open }).collect();
        let scheduled = schedule(&mut scheduler(HelperSelect::Boost, scheme), &open, &view, &network);
        check(&open, &scheduled, &view);
        let rounds: BTreeSet<u32> = scheduled.iter().flatten().map(|it| it.round).collect();
        assert!(rounds.contains(&0) && rounds.len() > 1, "{scheme}: {rounds:?}");
        // In the first round, at most one repair for each node that sends.
        assert!(scheduled.iter().flatten().filter(|it| it.round == 0).count() <= 15);
    }
}

#[test]
fn slow_links_carry_less() {
    let view = view(16, &[1]);
    let mut network = Network::uniform(1e8);
    network.up_bytes_per_s.insert(Party::Node(NodeId(5)), 2e7);
    network.down_bytes_per_s.insert(Party::Node(NodeId(5)), 2e7);
    for scheme in ["conventional", "pipeline"] {
        let mut scheduler = scheduler(HelperSelect::Boost, scheme);
        let open = lost("rs(6,3)", 16, 200, 6);
        check(&open, &schedule(&mut scheduler, &open, &view, &network), &view);
        let Summary { loads, busiest, bound } = summary(&scheduler, &view, &network);
        let mean = loads.values().map(|load| load.up).sum::<u64>() / 15;
        let slow = loads[&Place::Node(NodeId(5))];
        assert!(slow.up * 2 < mean, "{scheme}: {slow:?} of {mean}");
        assert!(busiest as f64 <= 1.1 * bound as f64, "{scheme}: {busiest} / {bound}");
    }
}

/// With disks of this rate at nodes 2 to 16, and a quarter of it at node 5.
fn with_disks(mut network: Network, bytes_per_s: f64) -> Network {
    for node in 2..=16 {
        let rate = if node == 5 { bytes_per_s / 4.0 } else { bytes_per_s };
        network.disk_bytes_per_s.insert(Party::Node(NodeId(node)), rate);
    }
    network
}

#[test]
fn slow_disks_carry_less_where_disks_are_slower_than_links() {
    let view = view(16, &[1]);
    let run = |scheme: &str, network: &Network| {
        let mut scheduler = scheduler(HelperSelect::Boost, scheme);
        let open = lost("rs(6,3)", 16, 200, 6);
        let scheduled = schedule(&mut scheduler, &open, &view, network);
        check(&open, &scheduled, &view);
        (summary(&scheduler, &view, network), scheduled)
    };
    for scheme in ["conventional", "ppr", "pipeline"] {
        // Links of 10 Gbit/s.
        let (Summary { loads, busiest, bound }, scheduled) = run(scheme, &with_disks(Network::uniform(1.25e9), 2e8));
        let all: u64 = loads.values().map(|load| load.disk).sum();
        assert_eq!(all, 200 * 7 * BLOCK_LEN, "{scheme}: six blocks are read and one is written, whatever is passed on");
        let slow = loads[&Place::Node(NodeId(5))];
        assert!(slow.disk * 3 < all / 15, "{scheme}: {slow:?} of {all}");
        assert!(busiest as f64 <= 1.1 * bound as f64, "{scheme}: {busiest} / {bound}");
        // All disks together, in bytes of a link: each of 14 carries 0.16 as many.
        assert!(bound as f64 >= all as f64 / (14.25 * 0.16), "{scheme}: {bound}");
        assert!(scheduled.iter().flatten().flat_map(|it| &it.lines).all(|line| line.disk > 0));
        // Disks that are much faster than links change nothing.
        let (fast, _) = run(scheme, &with_disks(Network::uniform(1e8), 1e12));
        let (unknown, _) = run(scheme, &Network::uniform(1e8));
        let ratio = fast.busiest as f64 / unknown.busiest as f64;
        assert!((0.95..=1.05).contains(&ratio), "{scheme}: {ratio}");
        let shown: u64 = unknown.loads.values().map(|load| load.disk).sum();
        assert_eq!((shown, unknown.bound), (all, fast.bound), "{scheme}: what unknown disks carry is shown, and does not count");
    }
}

#[test]
fn a_node_whose_disks_were_not_measured_gets_no_more_than_others() {
    let view = view(16, &[1]);
    let mut network = with_disks(Network::uniform(1.25e9), 2e8);
    network.disk_bytes_per_s.remove(&Party::Node(NodeId(7)));
    let mut scheduler = scheduler(HelperSelect::Boost, "conventional");
    let open = lost("rs(6,3)", 16, 200, 6);
    check(&open, &schedule(&mut scheduler, &open, &view, &network), &view);
    let [new, other] = [7, 8].map(|node| scheduler.carried()[&Place::Node(NodeId(node))].disk);
    assert!(new as f64 <= 1.2 * other as f64, "{new} of {other}");
}

#[test]
fn the_disks_of_one_node_say_nothing_of_those_of_most_others() {
    let view = view(16, &[1]);
    let mut network = Network::uniform(1.25e9);
    network.disk_bytes_per_s.insert(Party::Node(NodeId(5)), 2e8);
    let mut scheduler = scheduler(HelperSelect::Boost, "conventional");
    let open = lost("rs(6,3)", 16, 200, 6);
    check(&open, &schedule(&mut scheduler, &open, &view, &network), &view);
    let [slow, other] = [5, 8].map(|node| scheduler.carried().get(&Place::Node(NodeId(node))).map_or(0, |load| load.disk));
    assert!(slow * 2 < other, "{slow} of {other}: it alone is known to be slow");
}

#[test]
fn slow_disks_carry_less_also_where_links_between_racks_are_limited() {
    let mut view = view(16, &[1]);
    let mut network = with_disks(Network::uniform(1.25e9), 2e8);
    for node in view.nodes.values_mut() {
        node.rack = format!("r{}", node.id.0 % 4).into();
    }
    for rack in 0..4 {
        network.rack_up_bytes_per_s.insert(format!("r{rack}"), 6e8);
        network.rack_down_bytes_per_s.insert(format!("r{rack}"), 6e8);
    }
    for scheme in ["conventional", "pipeline"] {
        let mut scheduler = scheduler(HelperSelect::Boost, scheme);
        let open = lost("rs(6,3)", 16, 200, 6);
        check(&open, &schedule(&mut scheduler, &open, &view, &network), &view);
        let Summary { loads, busiest, bound } = summary(&scheduler, &view, &network);
        let slow = loads[&Place::Node(NodeId(5))];
        assert!(slow.disk * 2 < 200 * 7 * BLOCK_LEN / 15, "{scheme}: {slow:?}");
        assert!(busiest as f64 <= 1.2 * bound as f64, "{scheme}: {busiest} / {bound}");
    }
}

#[test]
fn an_open_scheme_reads_less_where_disks_are_slow() {
    let view = view(16, &[1]);
    let schemes = |network: &Network| -> BTreeSet<String> {
        let mut scheduler = Scheduler::new(HelperSelect::Boost, Prefer::Whole, AUTO);
        let open = lost("butterfly(4)", 16, 8, 5);
        schedule(&mut scheduler, &open, &view, network).into_iter().map(|it| it.unwrap().scheme).collect()
    };
    // Chains load each link less, and read four blocks where the code's own recipe reads five halves.
    assert!(!schemes(&Network::uniform(1e8)).contains("conventional"));
    assert_eq!(schemes(&with_disks(Network::uniform(1e8), 1e7)), BTreeSet::from(["conventional".to_owned()]));
}

#[test]
fn destinations_keep_the_tolerance_of_racks_and_have_room() {
    let (mut view, network) = (view(16, &[1, 9]), Network::uniform(1e8));
    for node in view.nodes.values_mut() {
        node.rack = format!("r{}", node.id.0 % 4).into();
    }
    view.nodes.get_mut(&NodeId(2)).unwrap().disks[0].free_bytes = 2 * BLOCK_LEN;
    view.nodes.get_mut(&NodeId(3)).unwrap().suspect_for = Duration::from_secs(1);
    let open: Vec<Open> = lost("rs(6,3)", 16, 200, 7)
        .into_iter()
        .map(|open| {
            // Node 9 is down: what it holds cannot help, but it still counts in its rack.
            let available = open.available.iter().copied().filter(|(_, node)| *node != NodeId(9)).collect();
            Open { rack_max: Some(3), available, ..open }
        })
        .collect();
    let scheduled = schedule(&mut scheduler(HelperSelect::Boost, "pipeline"), &open, &view, &network);
    check(&open, &scheduled, &view);
    for (open, scheduled) in open.iter().zip(scheduled.iter().flatten()) {
        let [home] = scheduled.homes[..] else { panic!("{scheduled:?}") };
        assert!(![2, 3, 9].contains(&home.0), "{home}: full, suspect or down");
        let in_rack = |rack: u32| open.held.iter().filter(|node| node.0 % 4 == rack).count();
        let fewest = (0..4).map(in_rack).min().unwrap();
        assert!(in_rack(home.0 % 4) < 3.max(fewest + 1));
    }
    // Behind its first helper, which alone receives nothing, a chain comes to each rack once, and to that of its home last.
    for scheduled in scheduled.iter().flatten() {
        let chain: Vec<u32> = scheduled.helpers[1..].iter().chain(&scheduled.homes).map(|node| node.0 % 4).collect();
        let crossed = chain.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(crossed + 1, chain.iter().collect::<BTreeSet<_>>().len(), "{chain:?}");
    }
    // Without any room the rebuild says what is missing.
    view.nodes.values_mut().for_each(|node| node.disks[0].free_bytes = 0);
    let none = schedule(&mut scheduler(HelperSelect::Boost, "pipeline"), &open, &view, &network);
    assert!(none.iter().all(Option::is_none));
}

#[test]
fn a_wide_stripe_is_scheduled_although_all_nodes_without_its_blocks_are_suspect() {
    let (mut view, network) = (view(16, &[1]), Network::uniform(1e8));
    let open = lost("rs(10,4)", 16, 64, 7);
    let is_scheduled = |view: &View| {
        let scheduled = schedule(&mut scheduler(HelperSelect::Boost, "conventional"), &open, view, &network);
        scheduled.iter().flatten().count() == open.len()
    };
    assert!(is_scheduled(&view));
    view.nodes.values_mut().for_each(|node| node.suspect_for = Duration::from_secs(1));
    assert!(is_scheduled(&view));
}

type Link = (Place, bool);

/// The time of each link that a repair needs.
fn links(lines: &[Line]) -> BTreeMap<Link, f64> {
    let both = |it: &Line| [((it.at.clone(), true), it.up as f64), ((it.at.clone(), false), it.down as f64)];
    lines.iter().flat_map(both).filter(|(_, time)| *time > 0.0).collect()
}

/// The share of a repair that is done in a unit of time, for each running one, if all links are shared fairly: links are
/// filled up, the fullest first.
fn rates(running: &[(BTreeMap<Link, f64>, f64)]) -> Vec<f64> {
    let mut rates = vec![0.0; running.len()];
    let mut open: BTreeSet<usize> = (0..running.len()).collect();
    let mut free: BTreeMap<Link, f64> =
        running.iter().flat_map(|(links, _)| links.keys()).map(|link| (link.clone(), 1.0)).collect();
    while !open.is_empty() {
        let mut wanted: BTreeMap<Link, f64> = BTreeMap::new();
        open.iter()
            .for_each(|at| running[*at].0.iter().for_each(|(link, time)| *wanted.entry(link.clone()).or_default() += time));
        let (full, rate) = wanted
            .iter()
            .map(|(link, wanted)| (link.clone(), (free[link] / wanted).max(1e-12)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap();
        for at in open.clone().into_iter().filter(|at| running[*at].0.contains_key(&full)) {
            open.remove(&at);
            rates[at] = rate;
            running[at].0.iter().for_each(|(link, time)| *free.get_mut(link).unwrap() -= rate * time);
        }
    }
    rates
}

/// The time of a job whose links are shared fairly, if at most so many of its repairs run at a time. The next batch comes
/// when less than half of one waits.
fn simulated(batches: Vec<Vec<Scheduled>>, at_once: usize) -> f64 {
    let half = batches.first().map_or(0, Vec::len).div_ceil(2);
    let (mut admission, mut batches) = (Admission::new(Starting::ByShares), batches.into_iter());
    let (mut tickets, mut running, mut now) = (Vec::new(), Vec::new(), 0.0);
    loop {
        while admission.waiting() < half
            && let Some(batch) = batches.next()
        {
            admission.add(batch.into_iter().map(|it| (links(&it.lines), (0, it.round), it.lines)));
        }
        while running.len() < at_once
            && let Some((ticket, links)) = admission.start()
        {
            tickets.push(ticket);
            running.push((links, 1.0));
        }
        if running.is_empty() {
            return now;
        }
        let rates = rates(&running);
        let step = running.iter().zip(&rates).map(|((_, left), rate)| left / rate).fold(f64::INFINITY, f64::min);
        now += step;
        for at in (0..running.len()).rev() {
            running[at].1 -= step * rates[at];
            if running[at].1 < 1e-9 {
                running.remove(at);
                admission.ended(tickets.remove(at));
            }
        }
    }
}

/// Repairs that start together take different links: what all links have left falls evenly.
#[test]
fn admitted_repairs_keep_the_busiest_links_full() {
    const NODES: u32 = 16;
    let (view, network) = (view(NODES, &[1]), Network::uniform(1e8));
    for spec in ["rs(6,3)", "rs(10,4)", "lrc(6,2,2)", "lrc(8,2,2)", "butterfly(4)", "clay(5,3,d=6)"] {
        for scheme in ["conventional", "ppr", "pipeline"] {
            // As a job adds its blocks, and as the healer does: twice as many as may run.
            for (seed, count, batch, most) in [(8, 100, 60, 1.25), (9, 64, 60, 1.25), (10, 100, 120, 1.1), (11, 300, 120, 1.1)] {
                let mut job = scheduler(HelperSelect::Boost, scheme);
                let patterns = Patterns::new(1 << 20);
                let (cluster, mut rng) =
                    (Cluster { view: &view, network: &network, patterns: &patterns }, StdRng::seed_from_u64(9));
                let open = lost(spec, NODES, count, seed);
                let (mut left, mut batches) = (open.as_slice(), Vec::new());
                while !left.is_empty() {
                    let count =
                        if batch == 60 { batch_len(left.len().min(known_max(batch)), batch) } else { batch.min(left.len()) };
                    let (these, others) = left.split_at(count);
                    let made = job.batch(these, &cluster, &mut rng);
                    left = others;
                    batches.push(made.into_iter().flatten().collect());
                }
                let time = simulated(batches, STRIPES_PER_NODE * 15);
                let ratio = time / summary(&job, &view, &network).bound as f64;
                println!("{spec} {scheme} {count} in batches of {batch}: {ratio:.3} of the bound");
                assert!((0.999..=most).contains(&ratio), "{spec} {scheme}: {ratio:.3}");
            }
        }
    }
}

#[test]
fn blocks_that_leave_a_node_are_partly_copied_and_partly_rebuilt() {
    let (view, network) = (view(16, &[]), Network::uniform(1e8));
    let leaving = |mut open: Open| {
        open.copies = vec![(open.lost[0], NodeId(1))];
        open
    };
    let count = 240;
    // Of each code: what the busiest link needs at least, in blocks, if x blocks are copied from a link of their own, and each other one moves
    // k blocks over the 15 other links: x = (k (count - x) + x) / 15.
    let codes = [("rs(6,3)", 6.0), ("rs(10,4)", 10.0), ("rs(4,2)", 4.0)];
    for ((spec, moved), way) in
        codes.into_iter().flat_map(|code| [schedule, schedule_as_places_become_free].map(|way| (code, way)))
    {
        let open: Vec<Open> = lost(spec, 16, count, 3).into_iter().map(leaving).collect();
        let least = moved * count as f64 / (14.0 + moved);
        let mut mixed = scheduler(HelperSelect::Boost, AUTO);
        let scheduled: Vec<Scheduled> = way(&mut mixed, &open, &view, &network).into_iter().flatten().collect();
        let copied = scheduled.iter().filter(|it| it.helpers == [NodeId(1)]).count();
        let busiest = summary(&mixed, &view, &network).busiest as f64 / BLOCK_LEN as f64;
        println!("{spec}: {copied} of {count} copied, busiest link {busiest:.1} blocks, at least {least:.1}");
        assert_eq!(scheduled.len(), count);
        assert!(busiest <= 1.1 * least, "{spec}: {busiest} of {least}");
        let is_copy = |it: &Scheduled| answering(Kind::Move).any(|scheme| scheme.name() == it.scheme);
        assert!(scheduled.iter().all(|it| is_copy(it) == (it.helpers == [NodeId(1)])), "{spec}");
    }
    // What is only moved can be copied at the least traffic.
    let open: Vec<Open> = lost("rs(6,3)", 16, 60, 3).into_iter().map(leaving).collect();
    let mut copies = Scheduler::new(HelperSelect::Boost, Prefer::Traffic, AUTO);
    assert!(schedule(&mut copies, &open, &view, &network).into_iter().flatten().all(|it| it.helpers == [NodeId(1)]));
}
