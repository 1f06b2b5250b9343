//! What plans cost and how long they take: the closed forms of the literature, with a block over one link as the unit of time.

use crate::common::{CLIENT, TestCode, World, node};
use weft_plan::{Busy, Moved, Network, Plan, WantKind, cost, moved, predict};

/// The time in seconds if one block over one link takes one second.
fn time(world: &World, plan: &Plan) -> f64 {
    predict(plan, &Network::uniform(world.layout.block_len as f64)).unwrap()
}

fn near(is: f64, expected: f64, what: &str) {
    assert!((is - expected).abs() < 1e-6 * expected, "{what}: {is}, expected {expected}");
}

/// A world whose block has `slices` slices.
fn world(k: usize, slices: u64) -> World {
    World::new(TestCode::rs(k, 2), 1, slices * 4, 4, 1)
}

const TARGET: (WantKind, weft_types::Party, u8) = (WantKind::Output, CLIENT, 0);

fn helpers(k: usize) -> Vec<u8> {
    (1..=k as u8).collect()
}

#[test]
fn conventional_repair_takes_k_blocks_over_one_link() {
    for (k, slices) in [(1, 1), (4, 1), (4, 16), (10, 64)] {
        let world = world(k, slices);
        let mut build = world.build();
        build.star(world.span(), &helpers(k), TARGET);
        let plan = build.plan();
        near(time(&world, &plan), k as f64, "conventional");
        let cost = cost(&plan).unwrap();
        let block = world.layout.block_len;
        assert_eq!((cost.hops, cost.of(CLIENT).unwrap().down_bytes, cost.read_bytes()), (1, k as u64 * block, k as u64 * block));
    }
}

#[test]
fn a_party_that_sends_in_turn_sends_the_next_slice_when_the_last_has_arrived() {
    let world = world(3, 6);
    let mut build = world.build();
    build.direct(world.span());
    let mut plan = build.plan();
    plan.shape.lanes[0].links.iter_mut().zip(0..).for_each(|(link, rank)| link.rank = rank);
    // Five blocks over pairs that take 1, 2, … 5 s each; the writer's own line is much faster.
    let block = world.layout.block_len as f64;
    let pair = |index: u8| ((CLIENT, world.at(index)), block / f64::from(index + 1));
    let network = Network { pair_bytes_per_s: (0..5).map(pair).collect(), ..Network::uniform(1e6 * block) };
    near(predict(&plan, &network).unwrap(), 5.0, "together");
    plan.shape.in_turn = true;
    assert!((predict(&plan, &network).unwrap() - 15.0).abs() < 1e-3, "in turn: {}", predict(&plan, &network).unwrap());
    // Parties of one machine have a turn each.
    let mut hosts = network.clone();
    hosts.hosts.extend([CLIENT, world.at(0), world.at(1)].map(|party| (party, "a".to_owned())));
    assert!(predict(&plan, &hosts).unwrap() <= 12.001);
}

#[test]
fn partial_sums_in_a_tree_take_its_rounds() {
    for k in 1..=12 {
        let world = world(k, 1);
        let mut build = world.build();
        build.tree(world.span(), &helpers(k), TARGET);
        let plan = build.plan();
        let rounds = (k as f64 + 1.0).log2().ceil();
        near(time(&world, &plan), rounds, "tree");
        assert_eq!(f64::from(cost(&plan).unwrap().hops), rounds);
    }
}

#[test]
fn a_chain_takes_one_block_and_a_slice_for_each_further_hop() {
    for (k, slices) in [(1, 1), (4, 6), (10, 64), (10, 2048), (6, 30_000), (3, 200_000)] {
        let world = world(k, slices.min(64));
        let mut build = world.build();
        build.chain(world.span(), 0, 1, &helpers(k), &[TARGET]);
        let mut plan = build.plan();
        // This test needs no bytes, so blocks can be long.
        plan.binding.layout = weft_types::Layout::new(slices * 4, slices * 4, 1).unwrap();
        plan.binding.spans[0].end = slices * 4;
        let seconds = predict(&plan, &Network::uniform((slices * 4) as f64)).unwrap();
        near(seconds, 1.0 + (k as f64 - 1.0) / slices as f64, &format!("chain of {k}, {slices} slices"));
        let cost = cost(&plan).unwrap();
        assert_eq!(cost.hops as usize, k);
        // Shorter blocks are read to their end; every link carries one block.
        assert!(cost.parties.iter().all(|share| share.up_bytes <= slices * 4 && share.down_bytes <= slices * 4));
        assert_eq!(cost.moved_bytes(), k as u64 * slices * 4);
    }
}

#[test]
fn a_direct_write_takes_n_blocks_and_a_plain_read_one() {
    let world = world(4, 8);
    let mut build = world.build();
    build.direct(world.span());
    let plan = build.plan();
    near(time(&world, &plan), 6.0, "direct");
    let share = *cost(&plan).unwrap().of(CLIENT).unwrap();
    assert_eq!((share.up_bytes, share.down_bytes, share.read_bytes), (6 * world.layout.block_len, 0, 0));
    // The data rows of the generator only copy.
    assert_eq!(share.products, 8 * world.layout.block_len);
    let mut build = world.build();
    build.chain(world.span(), 0, 1, &[3], &[(WantKind::Output, CLIENT, 3)]);
    near(time(&world, &build.plan()), 1.0, "plain read");
}

#[test]
fn the_slowest_line_decides() {
    let world = world(4, 64);
    let mut build = world.build();
    build.chain(world.span(), 0, 1, &[1, 2, 3, 4], &[TARGET]);
    let plan = build.plan();
    let block = world.layout.block_len as f64;
    let mut network = Network::uniform(block);
    network.up_bytes_per_s.insert(world.at(3), block / 2.0);
    near(predict(&plan, &network).unwrap(), 2.0 + 3.0 / 64.0, "a slow uplink");
    let mut network = Network::uniform(block);
    network.pair_bytes_per_s.insert((world.at(3), world.at(4)), block / 4.0);
    near(predict(&plan, &network).unwrap(), 4.0 + 3.0 / 64.0, "a slow pair");
    let mut network = Network::uniform(block);
    network.slice_overhead_s = 1.0 / 64.0;
    near(predict(&plan, &network).unwrap(), 2.0 * (1.0 + 3.0 / 64.0), "overhead as long as a slice");
    network.down_bytes_per_s.insert(CLIENT, 0.0);
    assert_eq!(predict(&plan, &network), Ok(f64::INFINITY));
    // Together, many slow senders fill one fast receiver's line.
    let mut build = world.build();
    build.star(world.span(), &[1, 2, 3, 4], TARGET);
    let mut network = Network::uniform(block);
    network.down_bytes_per_s.insert(CLIENT, block * 4.0);
    assert!(predict(&build.plan(), &network).unwrap() < 1.05);
}

#[test]
fn reads_of_short_blocks_cost_only_their_bytes() {
    let world = World::new(TestCode::vector(3, 2, 2), 3, 8, 5, 1);
    let mut build = world.build();
    build.star(world.span(), &[0, 2, 3], (WantKind::Store, node(90), 1));
    let mut plan = build.plan();
    let lens = [48, 37, 21];
    for (block, len) in plan.binding.blocks.iter_mut().zip(lens) {
        block.len = len;
    }
    plan.binding.stores[0].len = 16;
    let cost = cost(&plan).unwrap();
    let read: Vec<u64> = (0..5).filter_map(|index| cost.of(world.at(index))).map(|share| share.read_bytes).collect();
    assert_eq!((read, cost.written_bytes()), (lens.to_vec(), 16));
}

#[test]
fn lines_are_shared_on_a_machine_and_with_other_transfers() {
    let (world, slices) = (world(3, 64), 64);
    let mut build = world.build();
    build.chain(world.span(), 0, 1, &helpers(3), &[TARGET]);
    let plan = build.plan();
    let block_len = world.layout.block_len as f64;
    let fill = 2.0 / slices as f64;
    let seconds = |change: &dyn Fn(&mut Network)| {
        let mut network = Network::uniform(block_len);
        change(&mut network);
        predict(&plan, &network).unwrap()
    };
    near(seconds(&|_| {}), 1.0 + fill, "alone");
    let target = TARGET.1;
    let one = Moved { up_bytes: 0.0, down_bytes: block_len };
    let waited_for = |moved| Busy { waited_for: moved, ..Busy::default() };
    near(seconds(&|network| network.busy = [(target, waited_for(one))].into()), 2.0, "another block arrives there");
    let many = Moved { up_bytes: 0.0, down_bytes: 100.0 * block_len };
    near(seconds(&|network| network.busy = [(target, waited_for(many))].into()), 101.0, "all of it comes first");
    let background = Busy { background: vec![many, Moved { down_bytes: block_len / 2.0, ..many }], ..Busy::default() };
    near(seconds(&|network| network.busy = [(target, background.clone())].into()), 2.5, "long background work has its share");
    let up = Moved { up_bytes: 5.0 * block_len, down_bytes: 0.0 };
    near(seconds(&|network| network.busy = [(target, waited_for(up))].into()), 1.0 + fill, "what it sends delays nothing");
    // The chain's first two nodes share a machine: their link uses no line, and the second node sends over the first one's line.
    let lane = &plan.shape.lanes[0];
    let party = |stage: u16| plan.binding.parties[usize::from(lane.stages[usize::from(stage)].vertex)];
    let is_first = |link: &&weft_plan::Link| lane.links.iter().all(|other| other.to != link.from);
    let (first, second) = lane.links.iter().find(is_first).map(|link| (party(link.from), party(link.to))).unwrap();
    let together = |network: &mut Network| {
        network.hosts = [first, second].map(|party| (party, "here".to_owned())).into();
    };
    let local = seconds(&together);
    assert!(local < 1.0 + fill, "{local}");
    let busy = |network: &mut Network| {
        together(network);
        network.busy.insert(network.line_of(second), waited_for(Moved { up_bytes: block_len, down_bytes: 0.0 }));
    };
    near(seconds(&busy), 2.0, "the other node on the machine is sending");
    let lines = moved(&plan, &{
        let mut network = Network::uniform(block_len);
        together(&mut network);
        network
    })
    .unwrap();
    assert_eq!(lines.values().map(|moved| moved.up_bytes).sum::<f64>(), 2.0 * block_len, "two of three links use a line");
}
