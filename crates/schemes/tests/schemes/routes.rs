//! Routes of repairs on networks with different links: the helpers, their order, the number of paths, and the time.

use crate::world::{World, block, holder, node, spare};
use weft_plan::{ChosenPath, Considered, Job, Network, Plan, Source, WantKind, predict};
use weft_schemes::{AUTO, Kind, Paths, Select, by_name};
use weft_types::{Party, Span};

const BLOCK_LEN: u64 = 1 << 12;

/// These blocks of a stripe are lost, and each is stored on a spare node.
fn lost(world: &World, lost: &[u8]) -> (Job, Vec<(Party, weft_types::BlockId)>) {
    let wants = lost.iter().map(|index| world.want(WantKind::Store, spare(*index), *index)).collect();
    let stores = lost.iter().map(|index| (spare(*index), block(*index, 2))).collect();
    (Job { holds: world.holds_without(lost), wants, ..Job::default() }, stores)
}

/// The chosen and verified plan, and the considered alternatives.
fn choose(world: &World, indexes: &[u8], slice_len: u64, scheme: &str) -> (Plan, Vec<Considered>) {
    let (job, stores) = lost(world, indexes);
    let (plan, considered) = weft_schemes::choose(&world.request(&job, &stores, &[], slice_len), scheme).unwrap();
    world.prove(&plan, &job);
    assert_eq!(considered[0].seconds, predict(&plan, &world.network).unwrap());
    (plan, considered)
}

/// The parties that read blocks, lane by lane, in the order of each chain.
fn chains(plan: &Plan) -> Vec<Vec<Party>> {
    let reads = |stage: &&weft_plan::Stage| stage.sources.iter().any(|source| matches!(source, Source::Block { .. }));
    let party = |stage: &weft_plan::Stage| plan.binding.parties[usize::from(stage.vertex)];
    plan.shape.lanes.iter().map(|lane| lane.stages.iter().filter(reads).map(party).collect()).collect()
}

#[test]
fn a_straggler_is_left_out_or_placed_where_it_does_least_harm() {
    let mut world = World::whole("rs(4,2)", BLOCK_LEN);
    world.network.up_bytes_per_s.insert(holder(2), BLOCK_LEN as f64 / 100.0);
    for scheme in ["conventional", "ppr", "pipeline", "cyclic"] {
        let (plan, considered) = choose(&world, &[0], 64, scheme);
        assert!(chains(&plan).iter().flatten().all(|party| *party != holder(2)), "{scheme}");
        assert!(considered[0].seconds < 5.0, "{scheme}: {} s", considered[0].seconds);
    }
    world.select = Select::AsPreferred;
    let (_, considered) = choose(&world, &[0], 64, "pipeline");
    assert!(considered[0].seconds > 100.0, "the preferred straggler is not used");
    assert_eq!(considered[0].paths[0].exact, None);
    world.select = Select::Ordered;
    let (plan, considered) = choose(&world, &[0], 64, "pipeline");
    assert!(chains(&plan)[0].contains(&holder(2)) && considered[0].seconds > 100.0, "not the first four");
}

#[test]
fn slow_pairs_are_avoided_and_the_search_is_reported() {
    let mut world = World::whole("rs(4,2)", BLOCK_LEN);
    let rate = BLOCK_LEN as f64;
    // In the order of the holds, all links but one are slow; in reverse order, all are fast.
    for at in 1u32..=6 {
        world.network.pair_bytes_per_s.insert((node(at), node(at + 1)), rate / 8.0);
    }
    let (plan, considered) = choose(&world, &[0], 64, "pipeline");
    let ChosenPath { parties, bottleneck, bytes_per_s, exact } = &considered[0].paths[0];
    assert_eq!((*exact, *bytes_per_s), (Some(true), rate), "{parties:?}, {bottleneck:?}");
    assert_eq!((parties.len(), parties[4]), (5, spare(0)));
    assert_eq!(chains(&plan)[0], parties[..4]);
    assert!((considered[0].seconds - (1.0 + 3.0 / 64.0)).abs() < 1e-9);

    world.select = Select::AsPreferred;
    let (_, considered) = choose(&world, &[0], 64, "pipeline");
    assert_eq!((considered[0].paths[0].bytes_per_s, considered[0].paths[0].exact), (rate / 8.0, None));
    world.select = Select::Random { seed: 5 };
    let drawn = |world: &World| chains(&choose(world, &[0], 64, "pipeline").0);
    assert_eq!(drawn(&world), drawn(&world), "the same seed gives another selection");
    let first = drawn(&world);
    assert!((6..20).any(|seed| {
        world.select = Select::Random { seed };
        drawn(&world) != first
    }));
}

#[test]
fn helpers_that_the_code_requires_are_ordered() {
    let mut world = World::whole("lrc(6,2,2)", BLOCK_LEN);
    let (plan, _) = choose(&world, &[0], 64, "pipeline");
    let local = chains(&plan)[0].clone();
    assert_eq!(local.len(), 3, "the local group");
    world.network.pair_bytes_per_s.insert((local[0], local[1]), 1.0);
    let (plan, considered) = choose(&world, &[0], 64, "pipeline");
    let mut helpers = chains(&plan)[0].clone();
    assert_ne!(helpers, local, "another order");
    helpers.sort_unstable();
    assert_eq!(helpers, local, "other helpers were chosen");
    assert_eq!(considered[0].paths[0].bytes_per_s, BLOCK_LEN as f64);
}

#[test]
fn the_cyclic_version_takes_as_long_as_the_paper_says() {
    for (k, slices) in [
        (1, 4),
        (2, 5),
        (3, 7),
        (4, 6),
        (6, 12),
        (6, 13),
        (6, 14),
        (10, 64),
        (10, 63),
        (12, 2048),
        (12, 2047),
        (4, 1),
        (6, 3),
        (10, 2),
    ] {
        let world = World::whole(&format!("rs({k},2)"), slices * 8);
        let (plan, considered) = choose(&world, &[1], 8, "cyclic");
        let (k, s) = (k as f64, slices as f64);
        let expected = 1.0 + (k - 1.0) / s;
        assert!((considered[0].seconds - expected).abs() < 1e-9, "{}, not {expected}: k {k}, s {s}", considered[0].seconds);
        assert_eq!(plan.shape.lanes.len(), (slices as usize).min((k as usize).saturating_sub(1).max(1)));
    }
}

#[test]
fn cyclic_is_chosen_if_links_to_the_requestor_are_slow() {
    let mut world = World::whole("rs(6,3)", BLOCK_LEN);
    for at in 1..10 {
        world.network.pair_bytes_per_s.insert((node(at), spare(0)), BLOCK_LEN as f64 / 10.0);
    }
    let (plan, considered) = choose(&world, &[0], 16, AUTO);
    assert_eq!((considered[0].scheme.as_str(), plan.shape.lanes.len()), ("cyclic", 5));
    let pipeline = considered.iter().find(|other| other.scheme == "pipeline").unwrap().seconds;
    assert!((considered[0].seconds, pipeline) < (2.2, 10.0) && pipeline / considered[0].seconds > 4.0, "{considered:?}");
    // With equal links, one chain is as fast, and simpler.
    world.network = Network::uniform(BLOCK_LEN as f64);
    assert_eq!(choose(&world, &[0], 16, AUTO).1[0].scheme, "pipeline");
}

#[test]
fn in_cyclic_the_node_with_the_slowest_link_does_not_deliver() {
    let mut world = World::whole("rs(4,1)", BLOCK_LEN);
    world.network.pair_bytes_per_s.insert((holder(3), spare(0)), 1.0);
    let (plan, considered) = choose(&world, &[0], 64, "cyclic");
    assert!(considered[0].seconds < 1.2, "{}", considered[0].seconds);
    assert!(chains(&plan).iter().all(|chain| chain.last() != Some(&holder(3))));
}

#[test]
fn a_slow_link_to_the_requestor_does_not_matter_for_a_node_that_does_not_deliver() {
    let (mut world, rate) = (World::whole("rs(4,1)", BLOCK_LEN), BLOCK_LEN as f64);
    // All remaining nodes must help. One order is fast.
    let all = [1, 2, 3, 4].map(holder);
    let ring = [1, 3, 2, 4, 1].map(holder);
    for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (*from, *to))) {
        world.network.pair_bytes_per_s.insert((from, to), rate / 9.0);
    }
    world.network.pair_bytes_per_s.extend(ring.windows(2).map(|pair| ((pair[0], pair[1]), rate)));
    world.network.pair_bytes_per_s.insert((holder(2), spare(0)), rate / 100.0);
    let (_, considered) = choose(&world, &[0], 64, "cyclic");
    let ChosenPath { bottleneck, bytes_per_s, exact, .. } = &considered[0].paths[0];
    assert!(considered[0].seconds < 1.2, "{}", considered[0].seconds);
    assert_eq!((*bytes_per_s, *exact), (rate, Some(true)), "{bottleneck:?}: an unused link was reported");
}

#[test]
fn the_requestors_own_line_is_reported_if_it_is_the_slowest() {
    let (mut world, rate) = (World::whole("rs(4,2)", BLOCK_LEN), BLOCK_LEN as f64);
    world.network.down_bytes_per_s.insert(spare(0), rate / 2.0);
    let (_, considered) = choose(&world, &[0], 64, "cyclic");
    let ChosenPath { bottleneck, bytes_per_s, .. } = &considered[0].paths[0];
    assert_eq!((bottleneck.1, *bytes_per_s), (spare(0), rate / 2.0), "all its chains share the link");
}

#[test]
fn several_paths_are_used_only_if_they_are_faster() {
    // All pairs of nodes are slow; the line of each node carries much more.
    let mut world = World::whole("rs(3,6)", BLOCK_LEN);
    let all: Vec<Party> = (0..9).map(holder).chain([spare(0)]).collect();
    for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (*from, *to))) {
        world.network.pair_bytes_per_s.insert((from, to), BLOCK_LEN as f64 / 4.0);
    }
    world.paths = Paths::Auto;
    let (plan, considered) = choose(&world, &[0], 16, "pipeline");
    let counts: Vec<usize> = considered.iter().map(|considered| considered.paths.len()).collect();
    assert!(counts[0] > 1 && counts.contains(&1), "{counts:?}");
    let single = considered.iter().find(|considered| considered.paths.len() == 1).unwrap().seconds;
    assert!(considered[0].seconds < single / 1.8, "{} of {single}", considered[0].seconds);
    let mut helpers: Vec<Party> = chains(&plan)[..2].concat();
    helpers.sort_unstable();
    helpers.dedup();
    assert_eq!(helpers.len(), 6, "there are enough helpers, but one is in two chains");

    world.network = Network::uniform(BLOCK_LEN as f64);
    let (_, considered) = choose(&world, &[0], 16, "pipeline");
    assert_eq!(considered.len(), 1, "only the requestor's downlink counts");
    assert_eq!(considered[0].paths.len(), 1);
}

#[test]
fn a_path_gets_work_in_proportion_to_its_rate() {
    let mut world = World::whole("rs(2,2)", 400);
    world.paths = Paths::Count(2);
    // Every path needs two of three helpers. One link to the requestor is three times as fast as the others.
    for (at, rate) in [(1, 300.0), (2, 100.0), (3, 100.0)] {
        world.network.pair_bytes_per_s.insert((holder(at), spare(0)), rate);
    }
    world.network.link_bytes_per_s = 1e6;
    let (plan, considered) = choose(&world, &[0], 4, "pipeline");
    let spans = &plan.binding.spans;
    assert_eq!(*spans, [Span::new(0, 300), Span::new(300, 400)]);
    assert!((0.9..1.1).contains(&considered[0].seconds), "{} s", considered[0].seconds);
    let links = |at: usize| considered[0].paths[at].parties.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>();
    assert!(links(0).iter().all(|link| !links(1).contains(link)), "{:?}", considered[0].paths);

    // There are fewer slices than paths.
    let (plan, _) = choose(&world, &[0], 400, "pipeline");
    assert_eq!(plan.shape.lanes.len(), 1);
    world.paths = Paths::Count(2);
    let (job, stores) = lost(&world, &[0]);
    let refused = |world: &World, scheme: &str| {
        let error =
            weft_schemes::plan(&world.request(&job, &stores, &[], 4), by_name(Kind::Repair, scheme).unwrap()).unwrap_err();
        error.message
    };
    assert!(refused(&world, "ppr").contains("'ppr' supports only one path"));
    world.select = Select::AsPreferred;
    assert!(refused(&world, "pipeline").contains("'best' or 'ordered'"));
}

#[test]
fn paths_share_a_racks_line_and_there_are_no_more_than_there_are_links() {
    let mut world = World::whole("rs(1,3)", 600);
    // Two copies are in one rack, whose line is twice as fast as the link to the third copy.
    world.network.link_bytes_per_s = 1e6;
    world.network.racks.extend([1, 2].map(|at| (holder(at), "a".to_owned())));
    world.network.rack_up_bytes_per_s.insert("a".to_owned(), 400.0);
    world.network.pair_bytes_per_s.insert((holder(3), spare(0)), 200.0);
    world.paths = Paths::Count(3);
    let (plan, considered) = choose(&world, &[0], 4, "pipeline");
    let spans = &plan.binding.spans;
    assert_eq!(*spans, [Span::new(0, 200), Span::new(200, 400), Span::new(400, 600)], "{:?}", considered[0].paths);
    assert!(considered[0].seconds < 1.1, "{} s", considered[0].seconds);

    world.paths = Paths::Count(16);
    let (plan, considered) = choose(&world, &[0], 4, "pipeline");
    assert_eq!((plan.shape.lanes.len(), considered[0].paths.len()), (3, 3), "a node sends to the requestor twice");
}

#[test]
fn direct_copies_an_available_block_and_refuses_a_lost_one() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let direct = by_name(Kind::Repair, "direct").unwrap();
    let stores = [(spare(3), block(3, 2))];
    let mut job =
        Job { holds: world.holds_without(&[0]), wants: vec![world.want(WantKind::Store, spare(3), 3)], ..Job::default() };
    let plan = world.repair(&job, &stores, &[], 64, direct);
    assert_eq!((plan.shape.lanes.len(), plan.shape.lanes[0].links.len(), chains(&plan)), (1, 1, vec![vec![holder(3)]]));
    assert!((predict(&plan, &world.network).unwrap() - 1.0).abs() < 1e-9, "not the time of one block over one link");
    job.holds.retain(|hold| hold.block.index != 3);
    let error = weft_schemes::plan(&world.request(&job, &stores, &[], 64), direct).unwrap_err();
    assert_eq!(
        (error.reaction, error.message.contains("'direct' only copies existing blocks")),
        (weft_types::Reaction::InvalidInput, true)
    );
    let (_, considered) = weft_schemes::choose(&world.request(&job, &stores, &[], 64), AUTO).unwrap();
    assert!(considered.iter().all(|considered| considered.scheme != "direct"));
}

#[test]
fn for_several_lost_blocks_the_faster_scheme_is_chosen() {
    // One chain carries the sums of all lost blocks to one or more requestors. With as many lost blocks as helpers, no chain is needed.
    let world = World::whole("rs(6,3)", BLOCK_LEN);
    let (_, considered) = choose(&world, &[0, 4], 16, AUTO);
    assert_ne!(considered[0].scheme, "conventional", "{considered:?}");
    let (plan, _) = choose(&world, &[0, 4], 16, "pipeline");
    let widths: Vec<u32> = plan.shape.lanes[0].links.iter().map(|link| link.width).collect();
    assert_eq!(widths, [2, 2, 2, 2, 2, 1, 1], "not k−1 hops for both blocks and one to each requestor");
    let world = World::whole("rs(2,3)", BLOCK_LEN);
    let (_, considered) = choose(&world, &[0, 1, 3], 16, AUTO);
    assert_eq!(considered[0].scheme, "conventional", "{considered:?}");
    assert!(considered.iter().any(|other| other.scheme == "pipeline" && other.seconds > considered[0].seconds));
    // One requestor wants all of them.
    let world = World::whole("rs(6,3)", BLOCK_LEN);
    let wants = [0, 4].map(|index| world.want(WantKind::Store, spare(0), index)).to_vec();
    let stores = [0, 4].map(|index| (spare(0), block(index, 2)));
    let job = Job { holds: world.holds_without(&[0, 4]), wants, ..Job::default() };
    let plan = weft_schemes::plan(&world.request(&job, &stores, &[], 16), by_name(Kind::Repair, "pipeline").unwrap()).unwrap();
    assert!(plan.shape.lanes[0].links.iter().all(|link| link.width == 2));
    assert_eq!(plan.shape.lanes[0].links.len(), 6, "k hops");
}
