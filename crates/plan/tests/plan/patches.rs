//! Each rule about patches: an update that breaks it alone is refused, and says so.

use crate::{
    common::{CLIENT, TestCode, World, node, update_job},
    wrong::{accepted, refused, set, world},
};
use weft_gf::SparseMatrix;
use weft_plan::{Hold, Input, Job, Plan, Rule, Sink, Source};
use weft_types::Span;

/// Block 2 changes. Stage 0 is the client, stage 1 patches block 2, the others the parities 6 to 8.
fn update(world: &World) -> (Plan, Job) {
    let mut build = world.build();
    build.update(world.span(), 2);
    (build.plan(), update_job(world, world.span(), 2))
}

/// The plan with its first parity's patch changed.
fn with_sub_blocks(plan: &Plan, sub_blocks: &[u16]) -> Plan {
    let mut plan = plan.clone();
    let stage = &mut plan.shape.lanes[0].stages[2];
    stage.sinks[0] = Sink::Patch { index: 6, sub_blocks: sub_blocks.to_vec() };
    let rows: Vec<usize> = (0..sub_blocks.len()).map(|_| 0).chain([1]).collect();
    stage.matrix = stage.matrix.select_rows(&rows);
    plan
}

#[test]
fn a_patch_names_sub_blocks_of_a_block_that_its_party_holds() {
    let world = world();
    let (plan, job) = update(&world);
    accepted(&world, &plan, &job);
    refused(&world, &with_sub_blocks(&plan, &[1]), &job, Rule::Shape, "sub-blocks [1] of block 6 do not exist");
    refused(&world, &with_sub_blocks(&plan, &[0, 0]), &job, Rule::Shape, "sub-blocks [0, 0] of block 6 are invalid");
    let mut unbound = plan.clone();
    unbound.binding.blocks.retain(|block| block.id.index != 6);
    refused(&world, &unbound, &job, Rule::Binding, "stage 2 (n7): block 6 is patched, but not bound");
    let held = |change: &dyn Fn(&mut Hold)| {
        let mut job = job.clone();
        change(&mut job.holds[6]);
        job
    };
    let newer = held(&|hold| hold.block.generation = 2);
    refused(&world, &plan, &newer, Rule::Holds, "stage 2 (n7): n7 holds s7-b006-c0-g2, not s7-b006-c0-g1");
    let copy = held(&|hold| hold.block.copy = 1);
    refused(&world, &plan, &copy, Rule::Holds, "stage 2 (n7): n7 holds");
    let elsewhere = held(&|hold| hold.party = node(70));
    refused(&world, &plan, &elsewhere, Rule::Holds, "stage 2 (n7): n7 does not hold block 6");
    let holed = held(&|hold| hold.span = Span::new(0, 30));
    refused(&world, &plan, &holed, Rule::Holds, "stage 2 (n7): n7 does not hold all of positions");
}

#[test]
fn every_wanted_patch_is_applied_once_and_no_other() {
    let world = world();
    let (plan, job) = update(&world);
    // A patch that is applied twice cancels itself.
    let mut twice = plan.clone();
    twice.shape.lanes.push(plan.shape.lanes[0].clone());
    twice.binding.spans.push(plan.binding.spans[0]);
    refused(&world, &twice, &job, Rule::Tiling, "block 2 (sub-block 0) to be patched at n3 is produced twice");
    let mut half = plan.clone();
    half.binding.spans[0].end = 20;
    refused(&world, &half, &job, Rule::Tiling, "is not produced for positions 20..39");
    let mut unwanted = job.clone();
    unwanted.wants.retain(|want| want.index != 7);
    unwanted.holds.retain(|hold| hold.block.index != 7);
    unwanted.holds.push(Hold { party: node(8), block: world.id(7, 1), span: world.span() });
    refused(
        &world,
        &plan,
        &unwanted,
        Rule::Tiling,
        "to be patched at n8 is produced for positions 0..39, which the job does not",
    );
}

#[test]
fn a_patch_carries_the_change_and_nothing_else() {
    let world = world();
    let (plan, job) = update(&world);
    let mut wrong = plan.clone();
    set(&mut wrong.shape.lanes[0].stages[4].matrix, 0, 0, 3);
    refused(&world, &wrong, &job, Rule::Algebra, "stage 4 (n9)");
    // The data node forgets to subtract the old value.
    let mut new = plan.clone();
    let stage = &mut new.shape.lanes[0].stages[1];
    stage.matrix = SparseMatrix::new(2, 2, [(0, 0, 1), (1, 0, 1)]).unwrap().into();
    refused(&world, &new, &job, Rule::Algebra, "the data patched into block 2");
    // A delta is new XOR old already.
    let mut delta = plan.clone();
    delta.shape.lanes[0].stages[0].sources[0] = Source::Input { index: 2, sub_blocks: vec![0], delta: true };
    refused(&world, &delta, &job, Rule::Algebra, "block 2");
    let stage = &mut delta.shape.lanes[0].stages[1];
    stage.sources.pop();
    stage.matrix = SparseMatrix::new(2, 1, [(0, 0, 1), (1, 0, 1)]).unwrap().into();
    accepted(&world, &delta, &job);
    // Only who has the change can put it in.
    let mut other = job.clone();
    other.inputs = vec![Input { party: node(1), index: 2 }, Input { party: CLIENT, index: 1 }];
    refused(&world, &plan, &other, Rule::Holds, "client has no new bytes of block 2");
}

#[test]
fn no_copy_and_no_sub_block_keeps_its_old_value() {
    let world = world();
    let (plan, mut job) = update(&world);
    let copy = weft_types::BlockId { copy: 1, ..world.id(2, 1) };
    job.holds.push(Hold { party: node(60), block: copy, span: world.span() });
    refused(&world, &plan, &job, Rule::Mixed, "sub-block 0 of block 2 at n60 would keep its old value");
    // Sub-blocks of parities: all of them depend on the change, and one is not patched.
    let world = World::new(TestCode::vector(3, 2, 2), 2, 5, 4, 1);
    let (mut plan, mut job) = update(&world);
    accepted(&world, &plan, &job);
    let last = &mut plan.shape.lanes[0].stages[3];
    last.sinks = vec![Sink::Patch { index: 4, sub_blocks: vec![0] }];
    last.matrix = last.matrix.select_rows(&[0]);
    refused(&world, &plan, &job, Rule::Tiling, "block 4 (sub-block 1) to be patched at n5 is not produced");
    job.wants[2].sub_blocks = vec![0];
    refused(&world, &plan, &job, Rule::Mixed, "sub-block 1 of block 4 at n5 would keep its old value");
}
