//! Wrong plans are refused, and the message names the wrong stage if it can be determined.

use crate::common::{CLIENT, TestCode, World, direct_job, identity, node, scrub_job, sink, sparse, update_job};
use proptest::prelude::*;
use weft_gf::{Factored, Matrix, SparseMatrix};
use weft_plan::{
    Change, CodeView, Counts, Hold, Input, Job, Plan, ProofKey, Proofs, Refusal, Rule, Sink, Source, Stage, Want, WantKind,
    check_for_agents, eval, verify,
};
use weft_types::{Layout, Seq, Span};

pub(crate) fn world() -> World {
    World::new(TestCode::rs(6, 3), 3, 13, 5, 7)
}

pub(crate) const R: weft_types::Party = weft_types::Party::Node(weft_types::NodeId(90));

pub(crate) fn chain(world: &World, kind: WantKind) -> (Plan, Job) {
    let mut build = world.build();
    build.chain(world.span(), 0, 1, &[0, 1, 3, 4, 5, 6], &[(kind, R, 2)]);
    (build.plan(), world.repair_job(&[2], &[(kind, R, 2)]))
}

#[track_caller]
pub(crate) fn refused(world: &World, plan: &Plan, job: &Job, rule: Rule, says: &str) -> Refusal {
    let refusal = verify(plan, world.code.view(), job).expect_err("it must be refused");
    assert_eq!(refusal.rule, rule, "{refusal}");
    assert!(refusal.to_string().contains(says), "{refusal}");
    refusal
}

#[track_caller]
pub(crate) fn accepted(world: &World, plan: &Plan, job: &Job) {
    verify(plan, world.code.view(), job).unwrap_or_else(|refusal| panic!("{refusal}"));
}

/// Changes a coefficient of the matrix of temporaries and results.
pub(crate) fn set(matrix: &mut Factored, row: usize, col: usize, xor: u8) {
    let mut dense = matrix.steps().to_dense();
    dense.set(row, col, dense.get(row, col) ^ xor);
    *matrix = Factored::new(matrix.temporaries(), sparse(&dense)).unwrap_or_else(|| matrix.clone());
}

#[test]
fn a_wrong_coefficient_names_its_stage() {
    let world = world();
    let (plan, job) = chain(&world, WantKind::Store);
    accepted(&world, &plan, &job);
    let mut wrong = plan.clone();
    set(&mut wrong.shape.lanes[0].stages[3].matrix, 0, 1, 5);
    refused(&world, &wrong, &job, Rule::Algebra, "lane 0 stage 3 (n5): a coefficient of this stage is wrong");
    // The data from the link is scaled: the sender could be wrong instead.
    let mut wrong = plan.clone();
    set(&mut wrong.shape.lanes[0].stages[3].matrix, 0, 0, 5);
    refused(&world, &wrong, &job, Rule::Algebra, "lane 0 stage 2 (n4) or lane 0 stage 3 (n5): a coefficient of one of");
    // Two wrong coefficients cannot be attributed to one stage.
    set(&mut wrong.shape.lanes[0].stages[1].matrix, 0, 1, 9);
    let refusal = refused(&world, &wrong, &job, Rule::Algebra, "the data stored as block 2, at lane 0 stage 6 (n90), is wrong");
    assert_eq!(refusal.places, []);
}

#[test]
fn a_wrong_update_names_its_stage() {
    let world = world();
    let span = Span::new(4, 30);
    let mut build = world.build();
    build.update(span, 2);
    let (plan, job) = (build.plan(), update_job(&world, span, 2));
    accepted(&world, &plan, &job);
    let mut wrong = plan.clone();
    set(&mut wrong.shape.lanes[0].stages[3].matrix, 0, 0, 1);
    refused(&world, &wrong, &job, Rule::Algebra, "lane 0 stage 3 (n8): the data patched into block 7 is wrong");
}

#[test]
fn positions_must_come_out_once() {
    let world = world();
    let (plan, job) = chain(&world, WantKind::Store);
    let mut wrong = plan.clone();
    wrong.binding.spans[0].end = 20;
    refused(&world, &wrong, &job, Rule::Tiling, "is not produced for positions 20..39");
    wrong.shape.lanes.push(plan.shape.lanes[0].clone());
    wrong.binding.spans.push(plan.binding.spans[0]);
    wrong.binding.spans[1].start = 15;
    refused(
        &world,
        &wrong,
        &job,
        Rule::Tiling,
        "lane 1 stage 6 (n90): block 2 (sub-block 0) to be stored at n90 is produced twice",
    );
    wrong.binding.spans[1].start = 20;
    accepted(&world, &wrong, &job);
    let mut less = job.clone();
    less.wants[0].span.end = 38;
    refused(&world, &wrong, &less, Rule::Tiling, "is produced for positions 38..39, which the job does not require");
    less.wants.clear();
    refused(&world, &wrong, &less, Rule::Tiling, "which the job does not require");
    let mut cyclic = plan.clone();
    cyclic.shape.lanes = (0..3).map(|first| weft_plan::Lane { first, step: 3, ..plan.shape.lanes[0].clone() }).collect();
    cyclic.binding.spans = vec![plan.binding.spans[0]; 3];
    accepted(&world, &cyclic, &job);
    cyclic.shape.lanes[1].first = 4;
    refused(&world, &cyclic, &job, Rule::Tiling, "is not produced for positions 5..10");
    cyclic.shape.lanes[1].first = 2;
    refused(&world, &cyclic, &job, Rule::Tiling, "is produced twice for positions 10..15");
    cyclic.shape.lanes[1].first = 100;
    refused(&world, &cyclic, &job, Rule::Lane, "lane 1: no slice");
    cyclic.shape.lanes.remove(1);
    cyclic.binding.spans.remove(1);
    refused(&world, &cyclic, &job, Rule::Tiling, "is not produced for positions 5..10");
    let mut empty = plan;
    empty.shape.lanes[0].stages.clear();
    empty.shape.lanes[0].links.clear();
    refused(&world, &empty, &job, Rule::Lane, "no stage");
}

#[test]
fn a_party_must_hold_what_it_reads() {
    let world = world();
    let (plan, job) = chain(&world, WantKind::Store);
    let mut lacks = job.clone();
    lacks.holds.remove(0);
    refused(&world, &plan, &lacks, Rule::Holds, "lane 0 stage 0 (n1): n1 does not hold block 0");
    let mut stale = job.clone();
    stale.holds[0].block.generation = 2;
    refused(&world, &plan, &stale, Rule::Holds, "n1 holds s7-b000-c0-g2, not s7-b000-c0-g1");
    // A hole in a helper: one lane is refused, two lanes around it are not.
    let mut hole = job.clone();
    hole.holds[0].span.end = 20;
    refused(&world, &plan, &hole, Rule::Holds, "n1 does not hold all of positions 20..25 of s7-b000-c0-g1");
    let target = (WantKind::Store, R, 2);
    let mut build = world.build();
    build.chain(Span::new(0, 20), 0, 1, &[0, 1, 3, 4, 5, 6], &[target]);
    build.chain(Span::new(20, 39), 0, 1, &[1, 3, 4, 5, 6, 7], &[target]);
    let around = build.plan();
    accepted(&world, &around, &hole);
    hole.holds.push(Hold { span: Span::new(20, 39), ..hole.holds[0].clone() });
    accepted(&world, &plan, &hole);
    let mut unbound = plan.clone();
    unbound.binding.blocks.remove(3);
    refused(&world, &unbound, &job, Rule::Binding, "stage 3 (n5): block 4 is read, but not bound");
    let mut elsewhere = plan.clone();
    elsewhere.binding.parties.swap(0, 1);
    refused(&world, &elsewhere, &job, Rule::Holds, "n2 does not hold block 0");
}

#[test]
fn stored_blocks_are_new() {
    let world = world();
    let (plan, job) = chain(&world, WantKind::Store);
    let mut old = plan.clone();
    old.binding.stores[0].id.generation = 0;
    refused(&world, &old, &job, Rule::Binding, "generation 0 already exists");
    let mut long = plan.clone();
    long.binding.stores[0].len = 40;
    refused(&world, &long, &job, Rule::Binding, "has 40 bytes, the layout only 39");
    // An existing block may be moved, under a new generation.
    let mut build = world.build();
    let mut lane = build.lane(world.span(), 0, 1);
    let link = lane.link(1);
    let block = Source::Block { index: 2, sub_blocks: vec![0] };
    build.stage(&mut lane, world.at(2), vec![block], &identity(1), vec![Sink::Link(link)]);
    build.stage(&mut lane, R, vec![Source::Link(link)], &identity(1), vec![sink(WantKind::Store, 2, vec![0])]);
    build.lanes.push((lane.span, lane.lane));
    let mut plan = build.plan();
    let job = world.repair_job(&[], &[(WantKind::Store, R, 2)]);
    accepted(&world, &plan, &job);
    plan.binding.stores[0].id.generation = 1;
    refused(&world, &plan, &job, Rule::Binding, "generation 1 already exists");
}

#[test]
fn no_party_gets_two_blocks() {
    let world = world();
    let mut build = world.build();
    let target = (WantKind::Store, world.at(8), 2);
    build.chain(world.span(), 0, 1, &[0, 1, 3, 4, 5, 6], &[target]);
    let job = world.repair_job(&[2], &[target]);
    refused(&world, &build.plan(), &job, Rule::Placement, "n9 would hold blocks {2, 8}");
}

#[test]
fn links_and_shapes_must_fit() {
    let world = world();
    let (plan, job) = chain(&world, WantKind::Store);
    let change = |change: &dyn Fn(&mut weft_plan::Lane)| {
        let mut wrong = plan.clone();
        change(&mut wrong.shape.lanes[0]);
        wrong
    };
    let says = |wrong: Plan, rule, text: &str| {
        refused(&world, &wrong, &job, rule, text);
    };
    says(change(&|lane| lane.links[2].width = 2), Rule::Shape, "stage 2 (n4): the matrix is 1×2, but");
    says(change(&|lane| lane.links[2].width = 0), Rule::Shape, "link 2 carries 0 sub-blocks");
    says(change(&|lane| lane.links[0].to = 2), Rule::Links, "stage 1 (n2): link 0 is received, but does not end there");
    says(change(&|lane| lane.links[0].from = 70), Rule::Links, "link 0 begins or ends at a stage that does not exist");
    says(change(&|lane| lane.links[0].to = 0), Rule::Links, "link 0 goes from a party to itself");
    says(
        change(&|lane| lane.stages[1].sources[0] = Source::Link(9)),
        Rule::Links,
        "stage 1 (n2): link 9 is received, but does not exist",
    );
    says(change(&|lane| lane.stages[6].sources.clear()), Rule::Links, "stage 6 (n90): link 5 is received 0 times");
    says(change(&|lane| lane.stages[0].sinks.push(Sink::Link(0))), Rule::Links, "stage 0 (n1): link 0 is sent 2 times");
    says(change(&|lane| lane.stages[2].vertex = 60), Rule::Binding, "vertex 60 has no party");
    says(change(&|lane| lane.window = 0), Rule::Lane, "a window of 0 slices");
    let subs = |sub_blocks: Vec<u16>| {
        change(&|lane| lane.stages[0].sources[0] = Source::Block { index: 0, sub_blocks: sub_blocks.clone() })
    };
    says(subs(vec![1]), Rule::Shape, "sub-blocks [1] of block 0 do not exist in rs(6,3)");
    says(subs(vec![]), Rule::Shape, "stage 0 (n1): the stage has no source");
    let mut two = plan.clone();
    two.binding.parties[1] = two.binding.parties[0];
    says(two, Rule::Binding, "two vertices are n1");
    let mut other = plan.clone();
    other.shape.code = "rs(6,4)".into();
    says(other, Rule::Binding, "it is for the code rs(6,4), not rs(6,3)");
    let mut layout = plan.clone();
    layout.binding.layout.cell_len = 10;
    says(layout, Rule::Binding, "does not divide");
    let mut still = plan.clone();
    still.binding.slice_len = 0;
    says(still, Rule::Binding, "slices have no position");
    let mut updated = plan.clone();
    updated.binding.seq = Seq::new(3, vec![0, 1]);
    says(updated, Rule::Binding, "it counts the updates of 2 data blocks, but rs(6,3) has 6");
    // Two stages that wait for each other.
    let mut cycle = plan.clone();
    let lane = &mut cycle.shape.lanes[0];
    lane.links =
        vec![weft_plan::Link { from: 0, to: 1, width: 1, rank: 0 }, weft_plan::Link { from: 1, to: 0, width: 1, rank: 0 }].into();
    let stage = |vertex, link: u16| Stage {
        vertex,
        sources: vec![Source::Link(1 - link)],
        matrix: SparseMatrix::identity(1).into(),
        sinks: vec![Sink::Link(link)],
    };
    lane.stages = vec![stage(0, 0), stage(1, 1)].into();
    says(cycle, Rule::Cycle, "lane 0: its links form a cycle");
}

#[test]
fn a_party_that_sends_in_turn_has_an_order_for_its_links() {
    let world = world();
    let mut build = world.build();
    build.direct(world.span());
    let (mut plan, job) = (build.plan(), direct_job(&world));
    accepted(&world, &plan, &job);
    plan.shape.in_turn = true;
    let says = "lane 0 stage 0 (client): links 0 and 1 have the same turn";
    refused(&world, &plan, &job, Rule::Turns, says);
    plan.shape.lanes[0].links.iter_mut().zip(0..).for_each(|(link, rank)| link.rank = rank);
    accepted(&world, &plan, &job);
    // Tasks would not say so.
    assert_eq!(check_for_agents(&plan).unwrap_err().rule, Rule::Turns);
    plan.shape.in_turn = false;
    assert_eq!(check_for_agents(&plan), Ok(()));
    // Links of several parties need no order among them.
    let (mut chain, job) = chain(&world, WantKind::Store);
    chain.shape.in_turn = true;
    accepted(&world, &chain, &job);
}

#[test]
fn a_stripe_is_never_mixed() {
    let world = world();
    let span = world.span();
    let mut build = world.build();
    build.update(span, 2);
    let (plan, job) = (build.plan(), update_job(&world, span, 2));
    // The plan, and then the job too, omits the last parity.
    let mut short = plan.clone();
    let lane = &mut short.shape.lanes[0];
    lane.stages.pop();
    lane.links.pop();
    let last = lane.stages.last_mut().unwrap();
    last.sinks.pop();
    last.matrix = last.matrix.select_rows(&[0]);
    refused(&world, &short, &job, Rule::Tiling, "block 8 (sub-block 0) to be patched at n9 is not produced");
    let mut forgot = job.clone();
    forgot.wants.pop();
    refused(&world, &short, &forgot, Rule::Mixed, "block 8 at n9 would keep its old value for positions 0..39");
    // The old value counts only where a node holds it.
    forgot.holds.last_mut().unwrap().span = Span::new(7, 7);
    accepted(&world, &short, &forgot);
    // More blocks lack the new data than may be lost.
    forgot.holds.retain(|hold| ![0, 1, 3].contains(&hold.block.index));
    refused(&world, &short, &forgot, Rule::Tolerance, "4 blocks would be lost from position 0; rs(6,3) tolerates 3");
    // A change that ends within a lane.
    let mut partly = job.clone();
    partly.changed[0].span.end = 20;
    refused(&world, &plan, &partly, Rule::Straddles, "lane 0: only positions 0..20 of block 2 change");
    // Where nothing changes, the delta is zero, and so is the patch.
    partly.changed.clear();
    accepted(&world, &plan, &partly);
    // A block is stored from the old data only, while the stripe changes.
    let mut build = world.build();
    let mut lane = build.lane(span, 0, 1);
    let block = Source::Block { index: 2, sub_blocks: vec![0] };
    build.stage(&mut lane, world.at(2), vec![block], &identity(1), vec![sink(WantKind::Store, 2, vec![0])]);
    build.lanes.push((lane.span, lane.lane));
    let mut job = job;
    job.wants = vec![world.want(WantKind::Store, world.at(2), 2, span)];
    job.holds.truncate(6);
    refused(&world, &build.plan(), &job, Rule::Algebra, "the data stored as block 2");
}

#[test]
fn updates_of_degraded_stripes_and_whole_overwrites_are_right() {
    let world = world();
    let span = world.span();
    // The data block is lost: its delta goes to the parities alone.
    let mut build = world.build();
    let mut lane = build.lane(span, 0, 1);
    let links: Vec<u16> = (0..3).map(|_| lane.link(1)).collect();
    let input = Source::Input { index: 2, sub_blocks: vec![0], delta: true };
    let ones = Matrix::from_fn(3, 1, |_, _| 1);
    build.stage(&mut lane, CLIENT, vec![input], &ones, links.iter().map(|link| Sink::Link(*link)).collect());
    for (parity, link) in (6..9).zip(links) {
        let coefficient = world.code.rows(&[parity]).select_cols(&[2]);
        build.stage(
            &mut lane,
            world.at(parity),
            vec![Source::Link(link)],
            &coefficient,
            vec![sink(WantKind::Patch, parity, vec![0])],
        );
    }
    build.lanes.push((lane.span, lane.lane));
    let plan = build.plan();
    let mut job = update_job(&world, span, 2);
    job.wants.remove(0);
    job.holds.retain(|hold| hold.block.index != 2);
    accepted(&world, &plan, &job);
    // If the data block exists, the same plan would leave it with its old value.
    job.holds = world.holds(&[]);
    refused(&world, &plan, &job, Rule::Mixed, "block 2 at n3 would keep its old value");

    // A whole stripe is overwritten in place: every block is a new generation.
    let mut build = world.build();
    build.direct(span);
    let plan = build.plan();
    let mut job = direct_job(&world);
    job.holds = world.holds(&[]);
    job.changed = (0..6).map(|index| Change { index, sub_block: 0, span }).collect();
    accepted(&world, &plan, &job);

    // New parities from both new and old data.
    let mut build = world.build();
    let mut lane = build.lane(span, 0, 1);
    let links: Vec<Vec<u16>> = (0..6).map(|i| (0..if i == 0 { 4 } else { 3 }).map(|_| lane.link(1)).collect()).collect();
    let fan = |links: &[u16]| links.iter().map(|link| Sink::Link(*link)).collect::<Vec<_>>();
    let ones = |rows| Matrix::from_fn(rows, 1, |_, _| 1);
    let input = Source::Input { index: 0, sub_blocks: vec![0], delta: false };
    build.stage(&mut lane, CLIENT, vec![input], &ones(4), fan(&links[0]));
    build.stage(&mut lane, world.at(0), vec![Source::Link(links[0][3])], &identity(1), vec![sink(WantKind::Store, 0, vec![0])]);
    for index in 1..6u8 {
        let block = Source::Block { index, sub_blocks: vec![0] };
        build.stage(&mut lane, world.at(index), vec![block], &ones(3), fan(&links[usize::from(index)]));
    }
    for parity in 6..9u8 {
        let sources = links.iter().map(|links| Source::Link(links[usize::from(parity) - 6])).collect();
        let row = world.code.rows(&[parity]);
        build.stage(&mut lane, world.at(parity), sources, &row, vec![sink(WantKind::Store, parity, vec![0])]);
    }
    build.lanes.push((lane.span, lane.lane));
    let stored = [0, 6, 7, 8].map(|index| world.want(WantKind::Store, world.at(index), index, span));
    let job = Job {
        holds: world.holds(&[]),
        inputs: vec![Input { party: CLIENT, index: 0 }],
        changed: vec![Change { index: 0, sub_block: 0, span }],
        wants: stored.to_vec(),
    };
    accepted(&world, &build.plan(), &job);
}

#[test]
fn requestors_may_help_and_readers_may_be_served_too() {
    let world = world();
    // The reader holds block 0 and is the end of the chain.
    let helpers = [1, 3, 4, 5, 6, 0];
    let shares = world.code.shares(&[2], &helpers);
    let mut build = world.build();
    let mut lane = build.lane(world.span(), 0, 1);
    let mut last = None;
    for (helper, share) in helpers.iter().zip(&shares) {
        let block = Source::Block { index: *helper, sub_blocks: vec![0] };
        let (sources, matrix) = match last {
            Some(link) => (vec![Source::Link(link), block], identity(1).beside(share)),
            None => (vec![block], share.clone()),
        };
        let out = if *helper == 0 { sink(WantKind::Output, 2, vec![0]) } else { Sink::Link(lane.link(1)) };
        last = if let Sink::Link(link) = out { Some(link) } else { None };
        build.stage(&mut lane, world.at(*helper), sources, &matrix, vec![out]);
    }
    build.lanes.push((lane.span, lane.lane));
    let job = world.repair_job(&[2], &[(WantKind::Output, world.at(0), 2)]);
    let plan = build.plan();
    accepted(&world, &plan, &job);
    let mut memory = world.memory(&job);
    eval(&plan, &mut memory).unwrap();
    assert_eq!(memory.out[&(WantKind::Output, world.at(0), 2)], world.blocks[2]);

    // Read repair: the stored block is also delivered.
    let (mut plan, mut job) = chain(&world, WantKind::Store);
    let lane = &mut plan.shape.lanes[0];
    plan.binding.parties.push(CLIENT);
    lane.links.push(weft_plan::Link { from: 6, to: 7, width: 1, rank: 0 });
    lane.stages[6].sinks.push(Sink::Link(6));
    lane.stages[6].matrix = sparse(&Matrix::from_fn(2, 1, |_, _| 1)).into();
    let (sources, sinks) = (vec![Source::Link(6)], vec![sink(WantKind::Output, 2, vec![0])]);
    lane.stages.push(Stage { vertex: 7, sources, matrix: SparseMatrix::identity(1).into(), sinks });
    job.wants.push(world.want(WantKind::Output, CLIENT, 2, world.span()));
    accepted(&world, &plan, &job);
    let mut memory = world.memory(&job);
    eval(&plan, &mut memory).unwrap();
    assert_eq!(memory.out[&(WantKind::Store, R, 2)], memory.out[&(WantKind::Output, CLIENT, 2)]);
}

#[test]
fn a_scrub_must_prove_something() {
    let world = world();
    let mut build = world.build();
    build.scrub(world.span(), R);
    let (plan, job) = (build.plan(), scrub_job(&world, R));
    accepted(&world, &plan, &job);
    let mut zeros = plan.clone();
    for stage in zeros.shape.lanes[0].stages.iter_mut() {
        stage.matrix = SparseMatrix::zero(stage.matrix.rows(), stage.matrix.cols()).into();
    }
    refused(&world, &zeros, &job, Rule::Check, "rows depend on each other");
    // A stage in the middle drops the sum that it receives.
    let mut drops = plan.clone();
    let stage = &mut drops.shape.lanes[0].stages[4];
    let terms = stage.matrix.steps().terms().iter().filter(|term| term.1 == 3).map(|t| (t.0 as usize, 3, t.2));
    stage.matrix = SparseMatrix::new(3, 4, terms).unwrap().into();
    refused(&world, &drops, &job, Rule::Algebra, "the sum checked for zero");
    // One row that does not include block 8.
    let mut one_row = plan.clone();
    let lane = &mut one_row.shape.lanes[0];
    lane.stages[9].matrix = SparseMatrix::new(1, 3, [(0, 0, 1)]).unwrap().into();
    lane.stages[9].sinks = vec![Sink::Check { width: 1 }];
    let mut less = job.clone();
    less.wants[0].sub_blocks = vec![0];
    refused(&world, &one_row, &less, Rule::Check, "the check does not cover all of block 7");
    refused(&world, &one_row, &job, Rule::Tiling, "row 1 of the check at n90 is not produced");
}

/// A change of a right plan, and its stage.
#[derive(Debug, Clone, Copy)]
enum Spoil {
    Coefficient(u8),
    Party,
    Sink,
    Link,
    Span,
    Generation,
}

fn spoil() -> impl Strategy<Value = Spoil> {
    prop_oneof![
        4 => (1u8..).prop_map(Spoil::Coefficient),
        1 => Just(Spoil::Party),
        1 => Just(Spoil::Sink),
        1 => Just(Spoil::Link),
        1 => Just(Spoil::Span),
        1 => Just(Spoil::Generation),
    ]
}

fn right(world: &World, shape: usize) -> (Plan, Job) {
    let code = &world.code;
    let mut build = world.build();
    let helpers: Vec<u8> = (1..=code.k as u8).collect();
    let target = (WantKind::Output, CLIENT, 0);
    match shape {
        0 => build.chain(world.span(), 0, 1, &helpers, &[target]),
        1 => build.star(world.span(), &helpers, target),
        2 => build.tree(world.span(), &helpers, target),
        3 => build.update(world.span(), 0),
        _ => build.direct(world.span()),
    }
    let job = match shape {
        0..=2 => world.repair_job(&[0], &[target]),
        3 => update_job(world, world.span(), 0),
        _ => direct_job(world),
    };
    (build.plan(), job)
}

/// Whether a plan produces what its job wants from these bytes.
fn bytes_are_right(world: &World, plan: &Plan, job: &Job, seed: u8) -> bool {
    let mut data = world.data.clone();
    for change in &job.changed {
        for extent in world.layout.extents(u32::from(change.sub_block), change.span) {
            let range = extent.offset as usize..(extent.offset + extent.len) as usize;
            data[usize::from(change.index)][range]
                .iter_mut()
                .enumerate()
                .for_each(|(i, byte)| *byte ^= (i as u8).wrapping_mul(seed | 1) | 1);
        }
    }
    let new = world.encode(&data);
    let mut memory = world.memory(job);
    memory.inputs = (0..world.code.k).map(|index| ((CLIENT, index as u8, false), data[index].clone())).collect();
    if eval(plan, &mut memory).is_err() {
        return false;
    }
    let wanted = job.wants.iter().all(|want| {
        let Some(out) = memory.out.get(&(want.kind, want.party, want.index)) else { return false };
        let index = usize::from(want.index);
        want.sub_blocks.iter().all(|sub| {
            world.layout.extents(u32::from(*sub), want.span).all(|extent| {
                let range = extent.offset as usize..(extent.offset + extent.len) as usize;
                let old = |i: usize| if want.kind == WantKind::Patch { world.blocks[index][i] } else { 0 };
                range.clone().all(|i| out.get(i).is_some_and(|byte| byte ^ old(i) == new[index][i]))
            })
        })
    });
    wanted && memory.out.keys().all(|key| job.wants.iter().any(|want| (want.kind, want.party, want.index) == *key))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_spoiled_plan_is_refused_unless_its_bytes_are_right(
        (k, m, alpha) in (1usize..=5, 1usize..=3, 1usize..=3),
        shape in 0usize..5,
        spoil in spoil(),
        at in any::<proptest::sample::Index>(),
        place in any::<(proptest::sample::Index, proptest::sample::Index)>(),
        seed in any::<u8>(),
    ) {
        let code = if alpha == 1 { TestCode::rs(k, m) } else { TestCode::vector(k, m, alpha) };
        let world = World::new(code, 2, 8, 3, u64::from(seed));
        let (right, job) = right(&world, shape);
        accepted(&world, &right, &job);
        prop_assert!(bytes_are_right(&world, &right, &job, seed));
        let proofs = Proofs::new(ProofKey::PUBLIC, 1 << 16);
        for _ in 0..2 {
            prop_assert_eq!(proofs.verify(&right, world.code.view(), &job), Ok(()));
        }
        prop_assert_eq!(proofs.counts(), Counts { hits: 1, misses: 1 });
        let mut plan = right.clone();
        let parties = plan.binding.parties.len();
        let lane = &mut plan.shape.lanes[0];
        let stage = at.index(lane.stages.len());
        match spoil {
            Spoil::Coefficient(xor) => {
                let matrix = &mut lane.stages[stage].matrix;
                set(matrix, place.0.index(matrix.steps().rows()), place.1.index(matrix.steps().cols()), xor);
            }
            Spoil::Party => lane.stages[stage].vertex = ((usize::from(lane.stages[stage].vertex) + 1 + place.0.index(parties)) % parties) as u16,
            Spoil::Sink => {
                let sinks = &mut lane.stages[stage].sinks;
                let at = place.0.index(sinks.len());
                match &mut sinks[at] {
                    Sink::Link(link) => *link ^= 1,
                    Sink::Store { index, .. } | Sink::Patch { index, .. } | Sink::Output { index, .. } => *index ^= 1,
                    Sink::Check { width } => *width += 1,
                }
            }
            Spoil::Link => {
                let at = place.0.index(lane.links.len());
                let (stages, link) = (lane.stages.len() as u16, &mut lane.links[at]);
                match place.1.index(3) {
                    0 => link.to = (link.to + 1) % stages,
                    1 => link.from = (link.from + 1) % stages,
                    _ => link.width += 1,
                }
            }
            Spoil::Span => match place.0.index(3) {
                0 => plan.binding.spans[0].end -= 1,
                1 => plan.binding.spans[0].start += 1,
                _ => lane.step += 1,
            },
            Spoil::Generation => {
                let stores = &mut plan.binding.stores;
                let bound = if stores.is_empty() { &mut plan.binding.blocks } else { stores };
                let at = place.0.index(bound.len());
                bound[at].id.generation ^= 1 + bound[at].id.generation;
            }
        }
        prop_assert_eq!(proofs.verify(&plan, world.code.view(), &job), verify(&plan, world.code.view(), &job), "{:?}", spoil);
        match verify(&plan, world.code.view(), &job) {
            Ok(()) => prop_assert!(bytes_are_right(&world, &plan, &job, seed), "accepted, but wrong: {:?}", spoil),
            Err(refusal) => {
                if let Spoil::Coefficient(_) = spoil {
                    prop_assert_eq!(refusal.rule, Rule::Algebra);
                    prop_assert!(refusal.places.iter().any(|place| place.stage == Some(stage)), "{}: not stage {}", refusal, stage);
                    prop_assert!(refusal.to_string().contains(&format!("stage {stage} (")), "{}", refusal);
                    prop_assert!(!bytes_are_right(&world, &plan, &job, seed), "{}", refusal);
                }
            }
        }
    }
}

/// Makes a binding or a job wrong, without changing the shape.
fn misbind(plan: &mut Plan, job: &mut Job, what: usize, at: proptest::sample::Index) {
    let binding = &mut plan.binding;
    match what {
        0 => {
            let (one, last) = (at.index(binding.parties.len()), binding.parties.len() - 1);
            binding.parties.swap(one, last);
        }
        1 if !job.holds.is_empty() => {
            let at = at.index(job.holds.len());
            job.holds.remove(at);
        }
        2 => job.holds.iter_mut().rev().take(1).for_each(|hold| hold.span.end -= 1),
        3 => job.wants[0].span.end -= 1,
        4 => drop(job.wants[0].sub_blocks.pop()),
        5 => drop(job.changed.pop()),
        6 => drop(job.inputs.pop()),
        7 => drop(binding.blocks.pop()),
        8 => binding.slice_len += 1,
        9 => binding.spans[0].start += 1,
        10 => {
            binding.layout = Layout::new(binding.layout.block_len * 2, binding.layout.cell_len * 2, binding.layout.alpha).unwrap()
        }
        11 if !job.changed.is_empty() => {
            let again = job.changed[at.index(job.changed.len())].clone();
            job.changed.push(Change { sub_block: 0, index: 0, ..again });
        }
        12 if !binding.blocks.is_empty() => {
            let (at, stripe) = (at.index(binding.blocks.len()), weft_types::StripeId(99));
            binding.blocks[at].id.stripe = stripe;
        }
        _ => binding.parties[0] = node(77),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_verdict_on_a_binding_is_the_same_for_known_and_new_shapes(
        (k, m, alpha) in (1usize..=5, 1usize..=3, 1usize..=3),
        shape in 0usize..5,
        wrongs in prop::collection::vec((0usize..14, any::<proptest::sample::Index>()), 0..3),
        seed in any::<u8>(),
    ) {
        let code = if alpha == 1 { TestCode::rs(k, m) } else { TestCode::vector(k, m, alpha) };
        let world = World::new(code, 2, 8, 3, u64::from(seed));
        let (right, job) = right(&world, shape);
        let (mut plan, mut other) = (right.clone(), job.clone());
        wrongs.iter().for_each(|(what, at)| misbind(&mut plan, &mut other, *what, *at));
        let proofs = Proofs::new(ProofKey::PUBLIC, 1 << 16);
        proofs.verify(&right, world.code.view(), &job).unwrap();
        for _ in 0..2 {
            let verdict = proofs.verify(&plan, world.code.view(), &other);
            prop_assert_eq!(&verdict, &verify(&plan, world.code.view(), &other), "{:?}", wrongs);
        }
    }
}

#[test]
fn a_proof_belongs_to_one_generator_and_the_cache_is_bounded() {
    let world = world();
    let (plan, job) = chain(&world, WantKind::Store);
    let proofs = Proofs::new(ProofKey::new([1, 2, 3, 4]), 2500);
    let verify = |plan: &Plan, view| proofs.verify(plan, view, &job).map_err(|refusal| refusal.rule);
    assert_eq!((verify(&plan, world.code.view()), verify(&plan, world.code.view())), (Ok(()), Ok(())));
    assert_eq!(proofs.counts(), Counts { hits: 1, misses: 1 });
    // Another code with the same name.
    let other = TestCode::vector(world.code.k, world.code.n - world.code.k, 2).sparse;
    let rows: Vec<usize> = (0..world.code.n).map(|index| if index < world.code.k { index * 2 } else { index * 2 + 1 }).collect();
    let columns: Vec<usize> = (0..world.code.k).map(|index| index * 2).collect();
    let generator = other.select_rows(&rows).select_cols(&columns);
    assert_eq!(verify(&plan, CodeView { generator: &generator, ..world.code.view() }), Err(Rule::Algebra));
    // The cache keeps two shapes, and drops the least recently used one.
    let window = |window: u32| {
        let mut plan = plan.clone();
        plan.shape.lanes[0].window = window;
        plan
    };
    for (slices, hits) in [(1, 1), (4, 2), (2, 2), (4, 3), (1, 3)] {
        assert_eq!((verify(&window(slices), world.code.view()), proofs.counts().hits), (Ok(()), hits), "a window of {slices}");
    }
}

#[test]
fn an_invalid_job_is_refused() {
    let world = world();
    let (plan, job) = chain(&world, WantKind::Store);
    let mut wrong = job.clone();
    wrong.inputs.push(Input { party: CLIENT, index: 6 });
    refused(&world, &plan, &wrong, Rule::Job, "block 6, which is not a data block");
    let mut wrong = job.clone();
    wrong.changed.push(Change { index: 0, sub_block: 1, span: world.span() });
    refused(&world, &plan, &wrong, Rule::Job, "sub-block 1 of block 0");
    let mut wrong = job;
    wrong.wants.push(Want { kind: WantKind::Output, party: node(5), index: 9, sub_blocks: vec![0], span: world.span() });
    refused(&world, &plan, &wrong, Rule::Tiling, "block 9 (sub-block 0) to be delivered to n5 is not produced");
}
