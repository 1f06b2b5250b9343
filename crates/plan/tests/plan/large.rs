//! Large plans are verified in bounded time, whether they are right or malicious.

use crate::common::{self, CLIENT, TestCode, World, identity, sink};
use weft_plan::{Network, Plan, Rule, Sink, Source, WantKind, cost, explain, predict, verify};
use weft_types::{Layout, Span};

/// A chain over a TiB in slices of one page, in lanes that take turns.
#[test]
fn a_tebibyte_in_pages_is_proved_at_once() {
    let mut world = World::new(TestCode::rs(10, 4), 1, 64, 4, 1);
    world.layout = Layout::new(1 << 40, 1 << 40, 1).unwrap();
    world.slice_len = 4096;
    let helpers: Vec<u8> = (1..=10).collect();
    let target = (WantKind::Output, CLIENT, 0);
    let mut build = world.build();
    for first in 0..9 {
        build.chain(world.span(), first, 9, &helpers, &[target]);
    }
    let (plan, job) = (build.plan(), world.repair_job(&[0], &[target]));
    verify(&plan, world.code.view(), &job).unwrap();
    assert_eq!(cost(&plan).unwrap().moved_bytes(), 10 << 40);
    let seconds = predict(&plan, &Network::uniform((1u64 << 40) as f64)).unwrap();
    assert!((1.0..1.2).contains(&seconds), "{seconds}");
    assert!(explain(&plan, None).unwrap().lines().count() < 200);
    // With one lane less, only a walk over 200 million slices could decide.
    let mut less = plan;
    less.shape.lanes.pop();
    less.binding.spans.pop();
    assert_eq!(verify(&less, world.code.view(), &job).unwrap_err().rule, Rule::Limits);
}

/// Dense matrices over 64 sub-blocks, between many parties.
#[test]
fn many_sub_blocks_are_proved() {
    let world = World::new(TestCode::vector(3, 1, 60), 1, 4, 4, 1);
    let helpers: Vec<u8> = (1..=3).collect();
    let target = (WantKind::Store, common::node(90), 0);
    let mut build = world.build();
    build.chain(world.span(), 0, 1, &helpers, &[target]);
    let (mut plan, job) = (build.plan(), world.repair_job(&[0], &[target]));
    verify(&plan, world.code.view(), &job).unwrap();
    let stage = &mut plan.shape.lanes[0].stages[1];
    let steps = stage.matrix.steps();
    let terms = steps.terms().iter().map(|(r, c, v)| (*r as usize, *c as usize, *v)).chain([(7, 70, 1)]);
    let spoiled = weft_gf::SparseMatrix::new(steps.rows(), steps.cols(), terms).unwrap();
    stage.matrix = weft_gf::Factored::new(stage.matrix.temporaries(), spoiled).unwrap();
    let refusal = verify(&plan, world.code.view(), &job).unwrap_err();
    assert!(refusal.to_string().starts_with("lane 0 stage 1 (n3): a coefficient of this stage is wrong"), "{refusal}");
}

/// Too many lanes and stages, and widths that are too large.
#[test]
fn plans_that_are_too_large_are_refused_at_once() {
    let world = World::new(TestCode::rs(4, 2), 1, 64, 4, 1);
    let target = (WantKind::Output, CLIENT, 0);
    let job = world.repair_job(&[0], &[target]);
    let plan = |lanes: usize| {
        let mut build = world.build();
        build.chain(world.span(), 0, 1, &[1, 2, 3, 4], &[target]);
        let lane = build.lanes[0].clone();
        build.lanes = vec![lane; lanes];
        build.plan()
    };
    let says = |plan: &Plan, text: &str| {
        let refusal = verify(plan, world.code.view(), &job).unwrap_err();
        assert!(refusal.to_string().contains(text), "{refusal}");
    };
    says(&plan(4097), "4097 lanes; at most 4096");
    says(&plan(4096), "is produced twice");
    let mut wide = plan(1);
    wide.shape.lanes[0].links[0].width = u32::MAX;
    says(&wide, "sub-blocks on its ports and links, and temporaries; at most");
    let mut wide = plan(1);
    wide.shape.lanes[0].stages[4].sinks = vec![Sink::Check { width: u32::MAX }];
    says(&wide, "sub-blocks on its ports and links, and temporaries; at most");
    // A small file that would cost hours of multiplication: a link of the maximum width between stages that do nothing.
    let mut build = world.build();
    let mut lane = build.lane(Span::new(0, 64), 0, 1);
    let width = 60_000;
    let (a, b) = (lane.link(width), lane.link(1));
    let block = |index| Source::Block { index, sub_blocks: vec![0] };
    let ones = weft_gf::Matrix::from_fn(width, 1, |_, _| 1);
    build.stage(&mut lane, world.at(1), vec![block(1)], &ones, vec![Sink::Link(a)]);
    build.stage(&mut lane, world.at(2), vec![Source::Link(a)], &ones.transpose(), vec![Sink::Link(b)]);
    build.stage(&mut lane, CLIENT, vec![Source::Link(b)], &identity(1), vec![sink(WantKind::Output, 0, vec![0])]);
    build.lanes.push((lane.span, lane.lane));
    says(&build.plan(), "the data delivered as block 0");
    // A small file whose wrong stage would take hundreds of gigabytes to find: many wide links, and one wrong coefficient.
    let mut build = world.build();
    let mut lane = build.lane(Span::new(0, 64), 0, 1);
    let width = 65_535;
    let wide = |rows: usize, cols: usize, value: u8| weft_gf::SparseMatrix::new(rows, cols, [(0, 0, value)]).unwrap();
    let ins: Vec<u16> = (0..8).map(|_| lane.link(width)).collect();
    let outs: Vec<u16> = (0..7).map(|_| lane.link(width)).collect();
    let links = |links: &[u16]| {
        (links.iter().map(|link| Source::Link(*link)).collect(), links.iter().map(|link| Sink::Link(*link)).collect())
    };
    let (of_ins, to_ins): (Vec<Source>, Vec<Sink>) = links(&ins);
    let (of_outs, to_outs): (Vec<Source>, Vec<Sink>) = links(&outs);
    build.factored_stage(&mut lane, world.at(1), vec![block(1)], wide(8 * width, 1, 1), to_ins);
    build.factored_stage(&mut lane, world.at(2), of_ins, wide(7 * width, 8 * width, 1), to_outs);
    build.factored_stage(&mut lane, CLIENT, of_outs, wide(1, 7 * width, 7), vec![sink(WantKind::Output, 0, vec![0])]);
    build.lanes.push((lane.span, lane.lane));
    says(&build.plan(), "the data delivered as block 0");
}
