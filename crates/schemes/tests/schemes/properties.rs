//! For any code, layout, failure and scheme, the plan is verified and produces the right bytes.

use crate::world::{World, block, holder, spare};
use proptest::prelude::*;
use rand::Rng;
use weft_plan::{Change, Hold, Input, Job, Want, WantKind};
use weft_schemes::{Kind, Paths, Scheme, Select, answering};
use weft_types::{BlockId, Party, Span};

const CLIENT: Party = Party::Client(9);

/// A random recoverable failure: lost blocks and holes in others, with at most m blocks missing at any position.
fn failure(world: &mut World) -> (Vec<u8>, Vec<Hold>) {
    let (n, m) = (world.n(), world.code.m());
    let all = world.shuffled((0..n).collect());
    let lost = all[..world.random.random_range(1..=m)].to_vec();
    let mut holds = world.holds_without(&lost);
    // Each position may miss m blocks, so lost blocks and overlapping holes together are at most m.
    let mut depth = vec![lost.len(); world.positions() as usize];
    for _ in 0..world.random.random_range(0..4) {
        let hole = world.random_span();
        let holed = world.random.random_range(0..holds.len());
        let (hole_at, hold) = (hole.start as usize..hole.end as usize, holds[holed].clone());
        if !hold.span.contains(hole) || depth[hole_at.clone()].iter().any(|missing| *missing >= m) {
            continue;
        }
        depth[hole_at].iter_mut().for_each(|missing| *missing += 1);
        holds.swap_remove(holed);
        holds.extend(hold.span.subtract(&[hole]).into_iter().map(|span| Hold { span, ..hold.clone() }));
    }
    (lost, holds)
}

/// Rebuilt blocks on spare nodes: whole or random sub-ranges, less what an interrupted plan has stored.
fn stores(world: &mut World, lost: &[u8]) -> (Vec<Want>, Vec<(Party, BlockId)>) {
    let some = world.random.random_range(0..=lost.len());
    let mut wants = Vec::new();
    for index in &lost[..some] {
        let span = if world.random.random() { world.whole_span() } else { world.random_span() };
        let resumed_after = if world.random.random() { world.random_span() } else { Span::new(0, 0) };
        for span in span.subtract(&[resumed_after]) {
            wants.push(Want { span, ..world.want(WantKind::Store, spare(*index), *index) });
        }
    }
    (wants, lost[..some].iter().map(|index| (spare(*index), block(*index, 2))).collect())
}

/// Some blocks, lost or not, delivered to a client and to a node that may itself hold blocks.
fn outputs(world: &mut World) -> Vec<Want> {
    let mut wants = Vec::new();
    let reader = world.random.random_range(0..world.n());
    for index in 0..world.n() {
        if world.random.random_ratio(1, 3) {
            wants.push(Want { span: world.random_span(), ..world.want(WantKind::Output, CLIENT, index) });
        }
        if world.random.random_ratio(1, 6) {
            wants.push(Want { span: world.random_span(), ..world.want(WantKind::Output, holder(reader), index) });
        }
        if world.random.random_ratio(1, 12) {
            wants.push(Want { span: world.random_span(), ..world.want(WantKind::Output, Party::Client(10), index) });
        }
    }
    // Not every reader wants all sub-blocks.
    for want in &mut wants {
        let some = world.random.random_range(1..=want.sub_blocks.len());
        want.sub_blocks.truncate(some);
    }
    wants
}

/// Puts a world's nodes in racks with links of all kinds between them, and chooses a random selection of helpers.
fn somewhere(world: &mut World, scheme: Scheme<'_>) {
    let parties: Vec<Party> = (0..world.n()).flat_map(|index| [holder(index), spare(index)]).chain([CLIENT]).collect();
    let rate = |random: &mut rand::rngs::StdRng| [0.0, 1.0, 2.0, 10.0, f64::INFINITY][random.random_range(0..5)];
    for from in &parties {
        if world.random.random() {
            world.network.up_bytes_per_s.insert(*from, rate(&mut world.random));
            world.network.racks.insert(*from, format!("r{}", world.random.random_range(0..3)));
        }
        for to in &parties {
            if world.random.random_ratio(1, 3) {
                world.network.pair_bytes_per_s.insert((*from, *to), rate(&mut world.random));
            }
        }
    }
    world.network.rack_up_bytes_per_s.insert("r1".into(), rate(&mut world.random));
    let seed = world.random.random();
    world.select = [Select::AsPreferred, Select::Ordered, Select::Best, Select::Random { seed }][world.random.random_range(0..4)];
    if scheme.has_several_paths() && matches!(world.select, Select::Ordered | Select::Best) {
        world.paths = [Paths::Count(1), Paths::Count(2), Paths::Count(5), Paths::Auto][world.random.random_range(0..4)];
    }
}

/// Random changes of data blocks. Each block is put in by its node, by another node or by a client.
fn change(world: &mut World) -> Job {
    let (k, alpha) = (world.code.k() as u8, world.code.alpha());
    let all = world.shuffled((0..world.n()).collect());
    let lost = all[..world.random.random_range(0..=world.code.tolerance())].to_vec();
    let mut holds = world.holds_without(&lost);
    let mut changed: Vec<Change> = Vec::new();
    for _ in 0..world.random.random_range(1..=3) {
        let (index, span) = (world.random.random_range(0..k), world.random_span());
        let first = world.random.random_range(0..alpha as u16);
        changed.extend((first..alpha as u16).take(2).map(|sub_block| Change { index, sub_block, span }));
        // Some blocks have a copy.
        if world.random.random_ratio(1, 4) && holds.iter().all(|hold| hold.party != spare(index)) {
            let copy = BlockId { copy: 1, ..block(index, 1) };
            holds.push(Hold { party: spare(index), block: copy, span: world.whole_span() });
        }
    }
    let mut inputs: Vec<Input> = Vec::new();
    for index in 0..k {
        let others = [holder(index), CLIENT, holder(world.random.random_range(0..world.n()))];
        let party = others[world.random.random_range(0..3)];
        inputs.push(Input { party, index });
    }
    let generator = world.code.generator();
    let mut wants: Vec<Want> = Vec::new();
    for hold in &holds {
        for sub_block in 0..alpha as u16 {
            let row = generator.row(usize::from(hold.block.index) * alpha + usize::from(sub_block));
            let reaches = |change: &&Change| {
                let column = usize::from(change.index) * alpha + usize::from(change.sub_block);
                row.iter().any(|(_, other, _)| *other as usize == column)
            };
            let spans = Span::normalize(changed.iter().filter(reaches).map(|change| change.span).collect());
            let want = |span| Want {
                kind: WantKind::Patch,
                party: hold.party,
                index: hold.block.index,
                sub_blocks: vec![sub_block],
                span,
            };
            wants.extend(spans.into_iter().map(want));
        }
    }
    // A patch of zeros, where something else changes.
    let (party, index, span) = (holds[0].party, holds[0].block.index, changed[0].span);
    if wants.iter().all(|want| want.party != party) {
        wants.push(Want { span, ..world.want(WantKind::Patch, party, index) });
    }
    Job { holds, inputs, changed, wants }
}

/// Any scheme that plans jobs of this kind.
fn nth(kind: Kind) -> impl Strategy<Value = Scheme<'static>> {
    (0..answering(kind).count()).prop_map(move |at| answering(kind).nth(at).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_recoverable_loss_is_rebuilt(seed: u64, scheme in nth(Kind::Repair)) {
        let mut world = World::random(seed);
        somewhere(&mut world, scheme);
        let (lost, holds) = failure(&mut world);
        let (mut wants, stores) = stores(&mut world, &lost);
        wants.extend(outputs(&mut world));
        let preferred = world.shuffled((0..world.n()).collect());
        let prefer: Vec<Party> = preferred[..world.random.random_range(0..=preferred.len())].iter().map(|index| holder(*index)).collect();
        let slice_len = world.random.random_range(1..=world.positions() + 1);
        let job = Job { holds, wants, ..Job::default() };
        world.repair(&job, &stores, &prefer, slice_len, scheme);
    }

    #[test]
    fn every_write_is_stored(seed: u64, scheme in nth(Kind::Write), writer_is_a_node: bool) {
        let mut world = World::random(seed);
        let writer = if writer_is_a_node { holder(world.random.random_range(0..world.n())) } else { CLIENT };
        let inputs = (0..world.code.k() as u8).map(|index| Input { party: writer, index }).collect();
        let change = |index: usize, sub_block| Change { index: index as u8, sub_block, span: world.whole_span() };
        let changed = (0..world.code.k()).flat_map(|index| world.all_sub_blocks().into_iter().map(move |s| (index, s)));
        let changed = changed.map(|(index, sub_block)| change(index, sub_block)).collect();
        let wants = (0..world.n()).map(|index| world.want(WantKind::Store, holder(index), index)).collect();
        let stores: Vec<_> = (0..world.n()).map(|index| (holder(index), block(index, 1))).collect();
        let slice_len = world.random.random_range(1..=world.positions() + 1);
        let job = Job { inputs, changed, wants, ..Job::default() };
        let plan = weft_schemes::plan(&world.request(&job, &stores, &[], slice_len), scheme).unwrap();
        world.prove(&plan, &job);
    }

    /// Any data blocks change at any positions, put in by any parties, in a stripe with lost blocks and copies.
    #[test]
    fn every_change_is_patched_into_all_blocks_that_depend_on_it(seed: u64, scheme in nth(Kind::Update), spec in prop::sample::select(vec!["", "", "lrc(6,2,2)", "clay(4,2)", "butterfly(3)", "hitchhiker-xor(4,2)"])) {
        let mut world = if spec.is_empty() { World::random(seed) } else { World::of(spec, seed) };
        somewhere(&mut world, scheme);
        let job = change(&mut world);
        let slice_len = world.random.random_range(1..=world.positions() + 1);
        let prefer = world.shuffled((0..world.n()).collect()).into_iter().map(holder).collect::<Vec<_>>();
        let request = world.request(&job, &[], &prefer, slice_len);
        let plan = weft_schemes::plan(&request, scheme).unwrap_or_else(|error| panic!("{error}\n{job:?}"));
        assert_eq!(weft_schemes::plan(&request, scheme).as_ref(), Ok(&plan), "the same request gave another plan");
        world.prove_patches(&plan, &job);
    }

    /// A write continues after a node failed: the stored blocks exist, the writer still has the data, and the missing blocks
    /// go to other nodes.
    #[test]
    fn an_interrupted_write_resumes(seed: u64, scheme in nth(Kind::Write)) {
        let mut world = World::random(seed);
        let (lost, holds) = failure(&mut world);
        let (wants, stores) = stores(&mut world, &lost);
        let inputs = (0..world.code.k() as u8).map(|index| Input { party: CLIENT, index }).collect();
        let job = Job { holds, inputs, wants, ..Job::default() };
        let plan = weft_schemes::plan(&world.request(&job, &stores, &[], 3), scheme).unwrap();
        world.prove(&plan, &job);
    }
}
