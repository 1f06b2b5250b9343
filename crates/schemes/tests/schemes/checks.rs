//! Checks: consistent stripes pass, a single wrong block is found and named, and a routine check sends one block length over each link.

use crate::world::{World, holder, spare};
use proptest::prelude::*;
use rand::Rng;
use weft_plan::{Job, Plan, Want, WantKind, cost, eval, verify};
use weft_schemes::{Kind, Patterns, Request, check_rows, code_view, plan, simplest};
use weft_types::{Party, Reaction, Span};

/// Codes of all families, whole and shortened.
const CODES: [(&str, usize); 14] = [
    ("rs(4,2)", 4),
    ("rs(6,3)", 6),
    ("rs(6,3)", 2),
    ("rs(3,5)", 3),
    ("xor(4)", 3),
    ("replication(4)", 1),
    ("lrc(4,2,2)", 4),
    ("lrc(4,2,2)", 3),
    ("rotated-rs(4,3)", 4),
    ("hitchhiker-xor(5,3)", 5),
    ("butterfly(4)", 4),
    ("msr(4,4,d=6)", 3),
    ("clay(4,3)", 4),
    ("hsrc(7,3)", 3),
];

/// A check of the blocks but for `without`, by the last of their holders, as its plan and its job.
fn check(world: &World, without: &[u8], is_routine: bool, seed: u64) -> weft_types::Result<(Plan, Job)> {
    let held: Vec<u8> = world.code.stored().into_iter().filter(|index| !without.contains(index)).collect();
    let checker = held.last().map_or(spare(0), |index| holder(*index));
    let rows = if is_routine { world.code.alpha() } else { check_rows(world.code.as_ref(), &held).max(1) };
    let sub_blocks = (0..rows as u16).collect();
    let want = Want { kind: WantKind::Check, party: checker, index: 0, sub_blocks, span: world.whole_span() };
    let zeros = (0..world.n()).filter(|index| !world.code.stored().contains(index));
    let holds = world.holds_without(&without.iter().copied().chain(zeros).collect::<Vec<_>>());
    let job = Job { holds, wants: vec![want], ..Job::default() };
    let request = Request { seed, ..world.request(&job, &[], &[], 3) };
    let plan = plan(&request, simplest(Kind::Check)?)?;
    let patterns = Patterns::new(1 << 20);
    for _ in 0..2 {
        let known = Request { patterns: Some(&patterns), ..request };
        assert_eq!(weft_schemes::plan(&known, simplest(Kind::Check)?).as_ref(), Ok(&plan), "the cache changed the plan");
    }
    assert_eq!(patterns.counts().hits, 1);
    Ok((plan, job))
}

/// Whether the sums are zero; the plan must be proved.
fn passes(world: &World, (plan, job): &(Plan, Job)) -> bool {
    let spec = world.code.spec();
    verify(plan, code_view(world.code.as_ref(), &spec), job).unwrap_or_else(|refusal| panic!("{spec}: {refusal}\n{plan:?}"));
    eval(plan, &mut world.memory(job)).map_err(|error| assert_eq!(error.reaction, Reaction::Corrupt, "{error}")).is_ok()
}

/// Changes a byte of a block. `None` if the block is empty.
fn spoil(world: &mut World, index: u8) -> Option<usize> {
    let len = world.stripe.block_len(index.into()) as usize;
    let at = (len > 0).then(|| world.random.random_range(0..len))?;
    world.blocks[usize::from(index)][at] ^= world.random.random_range(1..=255u8);
    Some(at)
}

/// Some blocks that may be absent while a single wrong one among the others is still found.
fn absent(world: &mut World) -> Vec<u8> {
    let stored = world.code.stored();
    let most = world.code.tolerance() - 1;
    let count = world.random.random_range(0..=most);
    world.shuffled(stored)[..count].to_vec()
}

fn world(seed: u64, of: usize) -> World {
    match CODES.get(of) {
        Some((spec, dimension)) => World::shortened(spec, *dimension, seed),
        None => World::random(seed),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_routine_check_finds_any_single_wrong_block(seed: u64, of in 0..CODES.len() + 6) {
        let mut world = world(seed, of);
        let absent = absent(&mut world);
        let check = check(&world, &absent, true, seed).unwrap();
        prop_assert!(passes(&world, &check), "consistent");
        for index in world.code.stored().into_iter().filter(|index| !absent.contains(index)) {
            let right = world.blocks[usize::from(index)].clone();
            if let Some(at) = spoil(&mut world, index) {
                prop_assert!(!passes(&world, &check), "byte {at} of block {index} of {}", world.code.spec());
            }
            world.blocks[usize::from(index)] = right;
        }
    }

    #[test]
    fn the_wrong_block_is_the_one_without_which_the_others_are_consistent(seed: u64, of in 0..CODES.len() + 6) {
        let mut world = world(seed, of);
        let (tolerance, mut absent) = (world.code.tolerance(), absent(&mut world));
        absent.truncate(tolerance.saturating_sub(2));
        let held: Vec<u8> = world.code.stored().into_iter().filter(|index| !absent.contains(index)).collect();
        let wrong = held[world.random.random_range(0..held.len())];
        let is_spoiled = spoil(&mut world, wrong).is_some();
        for index in &held {
            let left_out: Vec<u8> = absent.iter().chain([index]).copied().collect();
            match check(&world, &left_out, false, 0) {
                Ok(check) => prop_assert!(tolerance < 2 || passes(&world, &check) == (!is_spoiled || *index == wrong), "{index}, not {wrong}"),
                Err(error) => {
                    // One parity block finds an error, but cannot tell where.
                    prop_assert_eq!((tolerance, error.reaction), (1, Reaction::Unavailable));
                }
            }
        }
    }
}

#[test]
fn a_routine_check_sends_one_block_over_each_link_and_a_full_one_m_blocks() {
    for (spec, dimension) in CODES {
        let mut world = World::shortened(spec, dimension, 3);
        let (held, block_len) = (world.code.stored().len() as u64, world.stripe.layout.block_len);
        let sent = |(plan, _): &(Plan, Job)| {
            let cost = cost(plan).unwrap();
            plan.binding.parties.iter().map(|party| cost.of(*party).unwrap().up_bytes).sum::<u64>()
        };
        let full = u64::try_from(check_rows(world.code.as_ref(), &world.code.stored()) / world.code.alpha()).unwrap();
        assert_eq!(full, world.code.m() as u64);
        assert_eq!(sent(&check(&world, &[], true, 1).unwrap()), (held - 1) * block_len, "{spec}");
        assert_eq!(sent(&check(&world, &[], false, 1).unwrap()), full * (held - 1) * block_len, "{spec}");
        if world.code.tolerance() > 1 {
            let absent = world.shuffled(world.code.stored())[0];
            assert_eq!(sent(&check(&world, &[absent], true, 1).unwrap()), (held - 2) * block_len, "{spec} without {absent}");
        }
    }
}

#[test]
fn a_block_with_a_hole_is_left_out_there_only() {
    let mut world = World::whole("rs(4,2)", 64);
    let (_, mut job) = check(&world, &[], true, 0).unwrap();
    let hold = job.holds.remove(2);
    job.holds.extend(hold.span.subtract(&[Span::new(10, 20)]).into_iter().map(|span| weft_plan::Hold { span, ..hold.clone() }));
    let check = plan(&Request { seed: 9, ..world.request(&job, &[], &[], 8) }, simplest(Kind::Check).unwrap()).unwrap();
    let check = (check, job);
    for (index, at, is_found) in [(2, 9, true), (2, 10, false), (2, 19, false), (2, 20, true), (1, 15, true), (5, 15, true)] {
        assert!(passes(&world, &check));
        let right = world.blocks[index][at];
        world.blocks[index][at] ^= 1;
        assert_eq!(passes(&world, &check), !is_found, "byte {at} of block {index}");
        world.blocks[index][at] = right;
    }
}

#[test]
fn a_checker_without_blocks_and_a_job_that_wants_other_rows() {
    let world = World::whole("rs(4,3)", 64);
    let (_, job) = check(&world, &[], true, 0).unwrap();
    let with = |party: Party, sub_blocks: &[u16]| {
        let job = Job { wants: vec![Want { party, sub_blocks: sub_blocks.to_vec(), ..job.wants[0].clone() }], ..job.clone() };
        let plan = plan(&world.request(&job, &[], &[], 8), simplest(Kind::Check).unwrap());
        plan.map(|plan| (plan, job))
    };
    let elsewhere = with(spare(0), &[0]).unwrap();
    assert!(passes(&world, &elsewhere));
    assert_eq!(elsewhere.0.shape.lanes[0].links.len(), 7);
    assert!(passes(&world, &with(holder(3), &[0, 1, 2]).unwrap()));
    for (rows, says) in [(&[0, 1][..], "1 rows or all 3, not 2"), (&[1], "counted from 0"), (&[0, 1, 2, 3], "not 4")] {
        let error = with(holder(6), rows).unwrap_err();
        assert!(error.reaction == Reaction::InvalidInput && error.message.contains(says), "{error}");
        assert_eq!(error.party, Some(holder(6)));
    }
}
