//! Right plans are accepted, and give the right bytes.

use crate::common::{CLIENT, TestCode, World, direct_job, node, scrub_job, update_job};
use proptest::prelude::*;
use weft_plan::{Plan, Slices, WantKind, eval, verify};
use weft_types::Span;

fn accept(world: &World, plan: &Plan, job: &weft_plan::Job) {
    if let Err(refusal) = verify(plan, world.code.view(), job) {
        panic!("{}: {refusal}", world.code.spec);
    }
}

fn code() -> impl Strategy<Value = TestCode> {
    prop_oneof![
        (1usize..=8, 1usize..=4).prop_map(|(k, m)| TestCode::rs(k, m)),
        (1usize..=4, 1usize..=3, 2usize..=4).prop_map(|(k, m, alpha)| TestCode::vector(k, m, alpha)),
    ]
}

fn world() -> impl Strategy<Value = World> {
    (code(), 1u64..=3, 1u64..=13, 1u64..=50, any::<u64>())
        .prop_map(|(code, cells, sub_len, slice_len, seed)| World::new(code, cells, sub_len, slice_len, seed))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_lost_block_is_rebuilt(world in world(), lost in 0usize..12, shape in 0..4, rotate in 0usize..12) {
        let lost = (lost % world.code.n) as u8;
        let mut helpers: Vec<u8> = (0..world.code.n as u8).filter(|index| *index != lost).collect();
        let by = rotate % helpers.len();
        helpers.rotate_left(by);
        helpers.truncate(world.code.k);
        let target = (if shape % 2 == 0 { WantKind::Store } else { WantKind::Output }, node(90), lost);
        let job = world.repair_job(&[lost], &[target]);
        let mut build = world.build();
        match shape {
            0 => build.chain(world.span(), 0, 1, &helpers, &[target]),
            1 => build.star(world.span(), &helpers, target),
            2 => build.tree(world.span(), &helpers, target),
            _ => {
                for lane in 0..3 {
                    helpers.rotate_left(1);
                    build.chain(world.span(), lane, 3, &helpers, &[target]);
                }
                let slice_len = world.slice_len;
                build.lanes.retain(|(span, lane)| Slices::new(*span, lane.first, lane.step, slice_len).next().is_some());
            }
        }
        let plan = build.plan();
        accept(&world, &plan, &job);
        let mut memory = world.memory(&job);
        eval(&plan, &mut memory).unwrap();
        prop_assert_eq!(&memory.out[&(target.0, target.1, lost)], &world.blocks[usize::from(lost)]);
    }

    #[test]
    fn several_lost_blocks_are_rebuilt_over_one_chain(world in world(), first in 0usize..12, second in 0usize..12) {
        let (a, b) = ((first % world.code.n) as u8, (second % world.code.n) as u8);
        prop_assume!(a != b && world.code.tolerance >= 2);
        let helpers: Vec<u8> = (0..world.code.n as u8).filter(|index| ![a, b].contains(index)).take(world.code.k).collect();
        let targets = [(WantKind::Store, node(90), a), (WantKind::Store, node(91), b)];
        let job = world.repair_job(&[a, b], &targets);
        let mut build = world.build();
        build.chain(world.span(), 0, 1, &helpers, &targets);
        let plan = build.plan();
        accept(&world, &plan, &job);
        let mut memory = world.memory(&job);
        eval(&plan, &mut memory).unwrap();
        for (kind, party, index) in targets {
            prop_assert_eq!(&memory.out[&(kind, party, index)], &world.blocks[usize::from(index)]);
        }
    }

    #[test]
    fn writes_and_scrubs(world in world(), flip in any::<proptest::sample::Index>()) {
        let mut build = world.build();
        build.direct(world.span());
        let (plan, job) = (build.plan(), direct_job(&world));
        accept(&world, &plan, &job);
        let mut memory = world.memory(&job);
        memory.inputs = (0..world.code.k).map(|i| ((CLIENT, i as u8, false), world.data[i].clone())).collect();
        eval(&plan, &mut memory).unwrap();
        for index in 0..world.code.n as u8 {
            let stored = &memory.out[&(WantKind::Store, world.at(index), index)];
            prop_assert_eq!(stored, &world.blocks[usize::from(index)]);
        }
        let mut build = world.build();
        build.scrub(world.span(), node(90));
        let (plan, job) = (build.plan(), scrub_job(&world, node(90)));
        accept(&world, &plan, &job);
        let mut memory = world.memory(&job);
        eval(&plan, &mut memory).unwrap();
        let len = world.layout.block_len as usize;
        let at = flip.index(len * world.code.n);
        memory.blocks.values_mut().nth(at / len).unwrap()[at % len] ^= 0x40;
        prop_assert_eq!(eval(&plan, &mut memory).unwrap_err().reaction, weft_types::Reaction::Corrupt);
    }

    #[test]
    fn updates_keep_the_stripe_consistent(world in world(), index in 0usize..8, from in 0u64..40, len in 1u64..40, seed in any::<u8>()) {
        let index = index % world.code.k;
        let span = Span::new(from, from + len).intersect(world.span());
        prop_assume!(!span.is_empty());
        let mut build = world.build();
        build.update(span, index as u8);
        let (plan, job) = (build.plan(), update_job(&world, span, index as u8));
        accept(&world, &plan, &job);
        let mut data = world.data.clone();
        for extent in world.layout.extents(0, span) {
            for byte in &mut data[index][extent.offset as usize..(extent.offset + extent.len) as usize] {
                *byte = byte.wrapping_mul(3) ^ seed;
            }
        }
        let mut memory = world.memory(&job);
        memory.inputs.insert((CLIENT, index as u8, false), data[index].clone());
        eval(&plan, &mut memory).unwrap();
        let mut blocks = world.blocks.clone();
        for ((_, _, index), patch) in &memory.out {
            blocks[usize::from(*index)].iter_mut().zip(patch).for_each(|(byte, delta)| *byte ^= delta);
        }
        prop_assert_eq!(blocks, world.encode(&data));
    }
}

#[test]
fn short_blocks_read_as_zeros_and_are_stored_short() {
    let mut world = World::new(TestCode::rs(3, 2), 4, 8, 5, 1);
    let lens = [32usize, 20, 8, 32, 32];
    for (index, len) in lens.iter().enumerate().take(3) {
        world.data[index][*len..].fill(0);
    }
    world.blocks = world.encode(&world.data);
    let job = world.repair_job(&[1], &[(WantKind::Store, node(90), 1)]);
    let mut build = world.build();
    build.chain(world.span(), 0, 1, &[0, 2, 4], &[(WantKind::Store, node(90), 1)]);
    let mut plan = build.plan();
    for block in plan.binding.blocks.iter_mut().chain(&mut plan.binding.stores) {
        block.len = lens[usize::from(block.id.index)] as u64;
    }
    accept(&world, &plan, &job);
    let mut memory = world.memory(&job);
    memory.blocks.iter_mut().for_each(|((_, id), bytes)| bytes.truncate(lens[usize::from(id.index)]));
    eval(&plan, &mut memory).unwrap();
    assert_eq!(memory.out[&(WantKind::Store, node(90), 1)], world.blocks[1][..20]);
    plan.binding.stores[0].len = 19;
    let error = eval(&plan, &mut memory).unwrap_err();
    assert!(error.to_string().contains("not zero beyond its 19 bytes"), "{error}");
}
