//! Wrong bindings and jobs are refused, in any order and in any number of pieces.

use crate::common::{CLIENT, TestCode, World, direct_job, node, update_job};
use crate::wrong::{accepted, chain, refused};
use weft_plan::{Hold, Job, Network, Plan, Refusal, Rule, Source, WantKind, moved};
use weft_types::{Span, StripeId};

fn world() -> World {
    World::new(TestCode::rs(6, 3), 3, 13, 5, 7)
}

/// A lost block of three sub-blocks, over a chain.
fn vector() -> (World, Plan, Job) {
    let world = World::new(TestCode::vector(2, 2, 3), 2, 8, 3, 1);
    let target = (WantKind::Output, CLIENT, 0);
    let mut build = world.build();
    build.chain(world.span(), 0, 1, &[1, 2], &[target]);
    let (plan, job) = (build.plan(), world.repair_job(&[0], &[target]));
    (world, plan, job)
}

#[test]
fn bound_blocks_are_of_one_stripe_and_each_is_bound_once() {
    let world = world();
    let (plan, job) = chain(&world, WantKind::Store);
    let says = |change: &dyn Fn(&mut Plan), text: &str| {
        let mut wrong = plan.clone();
        change(&mut wrong);
        refused(&world, &wrong, &job, Rule::Binding, text);
    };
    says(&|plan| plan.binding.blocks.push(plan.binding.blocks[1].clone()), "vertex 1 has two blocks of index 1");
    says(&|plan| plan.binding.stores.push(plan.binding.stores[0].clone()), "vertex 6 has two blocks of index 2");
    says(&|plan| plan.binding.blocks[3].id.stripe = StripeId(8), "its blocks belong to several stripes");
    says(&|plan| plan.binding.stores[0].id.stripe = StripeId(8), "its blocks belong to several stripes");
    says(&|plan| plan.binding.blocks[3].vertex = 60, "is bound to vertex 60, which has no party");
    says(&|plan| plan.binding.parties[4] = plan.binding.parties[1], "two vertices are n2");
    let again = |plan: &mut Plan| {
        plan.binding.stores.push(plan.binding.stores[0].clone());
        plan.binding.stores[1].vertex = 0;
    };
    says(&again, "block s7-b002-c0-g2 would be stored at two places");
}

#[test]
fn the_newest_generation_counts_at_any_party() {
    let world = world();
    let (plan, job) = chain(&world, WantKind::Store);
    let with = |generations: &[u32]| {
        let held = |generation: &u32| Hold { party: node(50 + generation), block: world.id(2, *generation), span: world.span() };
        Job { holds: generations.iter().map(held).chain(job.holds.clone()).collect(), ..job.clone() }
    };
    accepted(&world, &plan, &with(&[1, 0]));
    refused(&world, &plan, &with(&[1, 3, 0]), Rule::Binding, "generation 3 already exists");
    refused(&world, &plan, &with(&[0, 2]), Rule::Binding, "generation 2 already exists");
    let mut other = with(&[3]);
    other.holds[0].block.copy = 1;
    accepted(&world, &plan, &other);
}

#[test]
fn a_block_may_be_held_in_pieces() {
    let world = world();
    let (plan, job) = chain(&world, WantKind::Store);
    let held = |spans: &[(u64, u64)]| {
        let piece = |(start, end): &(u64, u64)| Hold { span: Span::new(*start, *end), ..job.holds[0].clone() };
        Job { holds: spans.iter().map(piece).chain(job.holds[1..].iter().cloned()).collect(), ..job.clone() }
    };
    accepted(&world, &plan, &held(&[(20, 39), (0, 12), (7, 7), (10, 25)]));
    accepted(&world, &plan, &held(&[(0, 39), (3, 4)]));
    refused(&world, &plan, &held(&[(13, 39), (0, 12)]), Rule::Holds, "n1 does not hold all of positions 10..15");
    refused(&world, &plan, &held(&[(0, 38), (3, 4)]), Rule::Holds, "n1 does not hold all of positions 35..39");
    refused(&world, &plan, &held(&[(7, 7)]), Rule::Holds, "n1 does not hold all of positions 0..5");
}

#[test]
fn outputs_are_compared_with_every_want() {
    let (world, plan, job) = vector();
    let wanting = |wants: &[(&[u16], u64, u64)]| {
        let want = |(sub_blocks, start, end): &(&[u16], u64, u64)| weft_plan::Want {
            sub_blocks: sub_blocks.to_vec(),
            span: Span::new(*start, *end),
            ..job.wants[0].clone()
        };
        Job { wants: wants.iter().map(want).collect(), ..job.clone() }
    };
    for right in [
        &[(&[0, 1, 2][..], 0, 16)][..],
        &[(&[2, 0, 1], 0, 16)],
        &[(&[0, 1, 2], 5, 16), (&[0, 1, 2], 0, 5)],
        &[(&[0, 1, 2], 0, 16), (&[], 3, 4)],
        &[(&[1], 0, 16), (&[0, 2], 0, 16)],
    ] {
        accepted(&world, &plan, &wanting(right));
    }
    let wrong = |wants: &[(&[u16], u64, u64)], text: &str| {
        refused(&world, &plan, &wanting(wants), Rule::Tiling, text);
    };
    wrong(&[(&[0, 1, 2], 0, 15)], "positions 15..16, which the job does not require");
    wrong(&[(&[0, 1, 2], 1, 16)], "positions 0..1, which the job does not require");
    wrong(&[(&[0, 1], 0, 16)], "block 0 (sub-block 2) to be delivered to ");
    wrong(&[(&[0, 1, 2], 0, 5), (&[0, 1, 2], 6, 16)], "positions 5..6, which the job does not require");
    wrong(&[(&[0, 1, 2, 3], 0, 16)], "block 0 (sub-block 3) to be delivered to ");
    wrong(&[], "which the job does not require");
    let mut lane = plan.clone();
    lane.shape.lanes.extend(plan.shape.lanes.clone());
    lane.binding.spans.extend(plan.binding.spans.clone());
    refused(&world, &lane, &job, Rule::Tiling, "is produced twice for positions 0..3");
    let mut half = plan;
    half.shape.lanes[0].step = 2;
    refused(&world, &half, &job, Rule::Tiling, "is not produced for positions 3..6");
}

#[test]
fn every_sub_block_of_a_change_is_checked() {
    let world = World::new(TestCode::vector(2, 2, 2), 2, 8, 3, 1);
    let mut build = world.build();
    build.direct(world.span());
    let (plan, job) = (build.plan(), direct_job(&world));
    accepted(&world, &plan, &job);
    for at in 0..job.changed.len() {
        let mut partly = job.clone();
        partly.changed[at].span.end = 9;
        let says = format!("only positions 0..9 of block {} change", partly.changed[at].index);
        refused(&world, &plan, &partly, Rule::Straddles, &says);
        let mut twice = job.clone();
        twice.changed.push(job.changed[at].clone());
        accepted(&world, &plan, &twice);
    }
}

#[test]
fn a_partly_held_block_counts_as_lost_at_its_holes() {
    let world = world();
    let mut build = world.build();
    build.update(world.span(), 2);
    let (plan, mut job) = (build.plan(), update_job(&world, world.span(), 2));
    [0, 1, 3].into_iter().for_each(|index: usize| job.holds[index].span.end = 20);
    accepted(&world, &plan, &job);
    job.holds[4].span = Span::new(19, 39);
    accepted(&world, &plan, &job);
    job.holds[4].span = Span::new(0, 25);
    refused(&world, &plan, &job, Rule::Tolerance, "4 blocks would be lost from position 25; rs(6,3) tolerates 3");
}

#[test]
fn a_port_names_no_sub_block_twice() {
    let (world, plan, job) = vector();
    for (sub_blocks, says) in [(vec![0, 2, 0], "none twice"), (vec![1, 1, 2], "none twice"), (vec![0, 1, 3], "do not exist")] {
        let mut wrong = plan.clone();
        wrong.shape.lanes[0].stages[0].sources[0] = Source::Block { index: 1, sub_blocks };
        refused(&world, &wrong, &job, Rule::Shape, says);
    }
}

#[test]
fn traffic_is_computed_only_for_links_with_both_ends() {
    let world = world();
    let (plan, _) = chain(&world, WantKind::Store);
    let network = Network::uniform(1e9);
    let rule = |plan: &Plan| moved(plan, &network).map(|lines| lines.len()).map_err(|refusal: Refusal| refusal.rule);
    assert_eq!(rule(&plan), Ok(7));
    let mut wrong = plan.clone();
    wrong.shape.lanes[0].links[0].from = 70;
    assert_eq!(rule(&wrong), Err(Rule::Links));
    let mut wrong = plan.clone();
    wrong.shape.lanes[0].stages[0].vertex = 60;
    assert_eq!(rule(&wrong), Err(Rule::Links));
    assert_eq!(rule(&plan), Ok(7), "plans share their lists until one is changed");
}
