//! Checks that would miss a wrong block are refused.

use crate::common::{TestCode, World, scrub_job, scrub_job_of};
use crate::wrong::{R, accepted, refused, set, world};
use weft_gf::Matrix;
use weft_plan::{Hold, Job, Plan, ProofKey, Proofs, Rule};
use weft_types::Span;

/// The plan and the job of these sums, if all blocks are held.
fn scrub_of(world: &World, span: Span, check: &Matrix) -> (Plan, Job) {
    let mut build = world.build();
    build.scrub_of(span, R, check);
    (build.plan(), scrub_job_of(world, R, span, check.rows()))
}

#[test]
fn a_scrub_of_fewer_rows_must_find_any_one_wrong_block() {
    let world = world();
    let check = world.code.parity_check();
    let sum = |factors: [u8; 3]| Matrix::from_fn(1, 3, |_, c| factors[c]).times(&check);
    let sums = (1..=255).map(|factor| sum([1, factor, 7]));
    let (all, some): (Vec<Matrix>, Vec<Matrix>) = sums.partition(|sum| !sum.row(0).contains(&0));
    let (plan, job) = scrub_of(&world, world.span(), &all[0]);
    accepted(&world, &plan, &job);
    refused(&world, &plan, &scrub_job(&world, R), Rule::Tiling, "row 1 of the check at n90 is not produced");
    // Block 0 takes part in it, but nothing of it is left in the sum.
    let (mut plan, job) = scrub_of(&world, world.span(), &all[0]);
    set(&mut plan.shape.lanes[0].stages[0].matrix, 0, 0, all[0].get(0, 0));
    refused(&world, &plan, &job, Rule::Algebra, "the sum checked for zero");
    let (plan, job) = scrub_of(&world, world.span(), &some[0]);
    let zero = some[0].row(0).iter().position(|factor| *factor == 0).unwrap();
    refused(&world, &plan, &job, Rule::Check, &format!("the check leaves out block {zero}, which n{} holds", zero + 1));
    let (plan, job) = scrub_of(&world, world.span(), &all[0].stack(&all[0]));
    refused(&world, &plan, &job, Rule::Check, "rows depend on each other");

    // Both sub-blocks of each block take part in a single row: errors of both can cancel out.
    let world = World::new(TestCode::vector(3, 2, 2), 2, 8, 3, 5);
    let check = world.code.parity_check();
    let (plan, job) = scrub_of(&world, world.span(), &check.select_rows(&[0, 1]));
    refused(&world, &plan, &job, Rule::Check, "the check leaves out block 4");
    let two = Matrix::from_fn(2, 4, |r, c| [[1, 2, 3, 4], [5, 7, 1, 9]][r][c]).times(&check);
    let (plan, job) = scrub_of(&world, world.span(), &two);
    accepted(&world, &plan, &job);
    let (plan, job) = scrub_of(&world, world.span(), &two.select_rows(&[0]));
    refused(&world, &plan, &job, Rule::Check, "the check does not cover all of block 0");
}

#[test]
fn a_scrub_leaves_out_only_blocks_that_are_not_held() {
    let world = world();
    let check = world.code.parity_check();
    let without = check.select_cols(&[2]).left_null().times(&check);
    assert_eq!(without.rows(), 2);
    let (plan, mut job) = scrub_of(&world, world.span(), &without);
    refused(&world, &plan, &job, Rule::Check, "the check leaves out block 2, which n3 holds");
    let hold = job.holds.remove(2);
    accepted(&world, &plan, &job);
    let proofs = Proofs::new(ProofKey::PUBLIC, 1 << 16);
    assert_eq!(proofs.verify(&plan, world.code.view(), &job), Ok(()));
    // A party that holds only a part of the block counts as a holder, too.
    job.holds.push(Hold { party: R, span: Span::new(3, 4), ..hold.clone() });
    let refusal = refused(&world, &plan, &job, Rule::Check, "the check leaves out block 2, which n90 holds");
    assert_eq!(proofs.verify(&plan, world.code.view(), &job), Err(refusal), "the proof of the shape says nothing about the job");
    // At other positions it does not matter.
    let (plan, mut job) = scrub_of(&world, Span::new(4, 20), &without);
    job.holds[2].span = Span::new(20, 39);
    job.holds.push(Hold { span: Span::new(0, 4), ..hold });
    accepted(&world, &plan, &job);
}
