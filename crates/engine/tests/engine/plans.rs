//! Whole plans with all parties in one process, compared with a slow evaluation of the same plan that does not use
//! slices.

use crate::memory::{Faults, Memory, Rows, Written};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::{BTreeMap, BTreeSet};
use weft_gf::{Factored, FactoredBuilder, SparseMatrix, field::mul};
use weft_plan::{Binding, Class, Lane, Link, Plan, Shape, Sink, Source, Stage, link_id};
use weft_types::{Layout, Party, PlanId, Reaction, Seq, Span};

const SUB_BLOCKS: u16 = 3;
const POSITIONS: u64 = 240;

fn node(number: usize) -> Party {
    Party::Node(weft_types::NodeId(number as u32 + 1))
}

/// A plan of random lanes. Every stage reads its party's block, receives from some earlier stages, sends to later ones
/// by random sparse matrices, and stores the block that its lane and party number.
fn random_plan(random: &mut StdRng) -> Plan {
    let vertices = random.random_range(2..7u16);
    let lanes = random.random_range(1..4u32);
    let span = Span::new(random.random_range(0..40), random.random_range(41..POSITIONS));
    let lanes = (0..lanes).map(|number| random_lane(random, vertices, number, lanes)).collect::<Vec<_>>();
    let spans = vec![span; lanes.len()];
    Plan {
        shape: Shape { code: "none".into(), lanes, in_turn: false },
        binding: Binding {
            parties: (0..usize::from(vertices)).map(node).collect(),
            spans,
            blocks: Vec::new(),
            stores: Vec::new(),
            layout: Layout::new(POSITIONS * u64::from(SUB_BLOCKS), 12 * u64::from(SUB_BLOCKS), u32::from(SUB_BLOCKS)).unwrap(),
            seq: Seq::default(),
            slice_len: random.random_range(1..64),
        },
        id: PlanId(1),
        epoch: 1,
        class: Class::Foreground,
        priority: 0,
    }
}

fn random_lane(random: &mut StdRng, vertices: u16, number: u32, step: u32) -> Lane {
    let stages = usize::from(vertices);
    let mut links = Vec::new();
    for from in 0..stages {
        for to in from + 1..stages {
            if to == from + 1 || random.random_bool(0.3) {
                links.push(Link { from: from as u16, to: to as u16, width: random.random_range(1..4), rank: 0 });
            }
        }
    }
    let stage = |at: usize, random: &mut StdRng| {
        let mut sub_blocks: Vec<u16> = (0..SUB_BLOCKS).collect();
        sub_blocks.truncate(random.random_range(1..=usize::from(SUB_BLOCKS)));
        let mut sources = vec![Source::Block { index: at as u8, sub_blocks: sub_blocks.clone() }];
        let mut sinks = Vec::new();
        let (mut cols, mut rows) = (sub_blocks.len(), 0);
        for (id, link) in links.iter().enumerate() {
            if usize::from(link.to) == at {
                sources.push(Source::Link(id as u16));
                cols += link.width as usize;
            }
            if usize::from(link.from) == at {
                sinks.push(Sink::Link(id as u16));
                rows += link.width as usize;
            }
        }
        if at + 1 == stages || random.random_bool(0.5) {
            sinks.push(Sink::Store { index: (number * 16) as u8 + at as u8, sub_blocks: sub_blocks.clone() });
            rows += sub_blocks.len();
        }
        Stage { vertex: at as u16, sources, matrix: random_matrix(random, rows, cols), sinks }
    };
    let stages = (0..stages).map(|at| stage(at, random)).collect();
    Lane { first: number, step, window: random.random_range(1..4), stages, links: links.into() }
}

/// Some rows are plain copies, some equal other rows, some are zero, some are sums.
fn random_matrix(random: &mut StdRng, rows: usize, cols: usize) -> Factored {
    let mut terms = Vec::new();
    for row in 0..rows {
        match random.random_range(0..4) {
            0 => terms.push((row, random.random_range(0..cols), 1)),
            1 => terms.push((row, row % cols, 1)),
            2 => terms.extend((0..cols).map(|col| (row, col, (col * 7 + 3) as u8))),
            _ => terms.extend((0..cols).map(|col| (row, col, if random.random_bool(0.5) { random.random() } else { 0 }))),
        }
    }
    let matrix = SparseMatrix::new(rows, cols, terms).unwrap();
    if random.random_bool(0.5) {
        return matrix.into();
    }
    // The same sums as temporaries, and results that copy them, add them, or add a source.
    let mut builder = FactoredBuilder::new(cols);
    let sums: Vec<usize> =
        (0..rows).map(|row| builder.temporary(matrix.row(row).iter().map(|(_, col, c)| (*col as usize, *c)).collect())).collect();
    let result = |row: usize| match random.random_range(0..3) {
        0 => vec![(sums[row], 1)],
        1 => vec![(sums[row], 1), (sums[rows - 1], 5)],
        _ => vec![(sums[row], 9), (random.random_range(0..cols), 1)],
    };
    let results: Vec<Vec<(usize, u8)>> = (0..rows).map(result).collect();
    builder.finish(&results).unwrap()
}

fn random_blocks(random: &mut StdRng, plan: &Plan) -> BTreeMap<(Party, u8), Rows> {
    let row = |random: &mut StdRng| (0..POSITIONS).map(|_| random.random()).collect();
    let block = |at: usize, random: &mut StdRng| ((node(at), at as u8), (0..SUB_BLOCKS).map(|_| row(random)).collect());
    (0..plan.binding.parties.len()).map(|at| block(at, random)).collect()
}

/// What the plan must write: every lane over all its positions at once, one product at a time.
fn evaluate(plan: &Plan, blocks: &BTreeMap<(Party, u8), Rows>) -> Written {
    let mut written = Written::new();
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        let mut wires: BTreeMap<u16, Rows> = BTreeMap::new();
        for stage in &lane.stages {
            let party = plan.binding.parties[usize::from(stage.vertex)];
            let mut inputs: Rows = Vec::new();
            for source in &stage.sources {
                match source {
                    Source::Block { index, sub_blocks } | Source::Input { index, sub_blocks, .. } => {
                        inputs.extend(sub_blocks.iter().map(|sub| blocks[&(party, *index)][usize::from(*sub)].clone()));
                    }
                    Source::Link(link) => inputs.extend(wires[link].clone()),
                }
            }
            let flat = stage.matrix.flatten(usize::MAX).unwrap();
            let mut outputs = (0..flat.rows()).map(|row| {
                let mut sum = vec![0; POSITIONS as usize];
                for (_, col, coefficient) in flat.row(row) {
                    sum.iter_mut().zip(&inputs[*col as usize]).for_each(|(d, s)| *d ^= mul(*coefficient, *s));
                }
                sum
            });
            for sink in &stage.sinks {
                let rows: Rows = outputs.by_ref().take(lane.sink_width(sink)).collect();
                match sink {
                    Sink::Link(link) => drop(wires.insert(*link, rows)),
                    Sink::Store { index, sub_blocks } | Sink::Output { index, sub_blocks } => {
                        for (row, sub_block) in rows.iter().zip(sub_blocks) {
                            let positions = plan.slices(number).flat_map(|slice| slice.start..slice.end);
                            let bytes = positions.map(|position| (position, row[position as usize])).collect();
                            written.insert((party, *index, *sub_block), bytes);
                        }
                    }
                    Sink::Patch { .. } | Sink::Check { .. } => {}
                }
            }
        }
    }
    written.retain(|_, positions| !positions.is_empty());
    written
}

#[test]
fn every_plan_writes_what_its_matrices_compute() {
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let plan = random_plan(&mut random);
        let blocks = random_blocks(&mut random, &plan);
        let run = Memory::new(&plan, blocks.clone(), Faults::default(), seed).run(&plan);
        for (party, outcome) in &run.outcomes {
            assert_eq!(outcome.errors, [], "seed {seed}, {party}");
            assert!(outcome.stages.iter().all(|stage| stage.finished), "seed {seed}, {party}");
        }
        assert_eq!(run.written, evaluate(&plan, &blocks), "seed {seed}");
    }
}

/// The stages of a lane that depend on `stage`, directly or indirectly.
fn downstream(lane: &Lane, stage: u16) -> BTreeSet<u16> {
    let mut reached = BTreeSet::from([stage]);
    for (at, _) in lane.stages.iter().enumerate() {
        // Links go from lower to higher numbers here, so one pass in that order is enough.
        let fed = lane.links.iter().any(|link| usize::from(link.to) == at && reached.contains(&link.from));
        if fed {
            reached.insert(at as u16);
        }
    }
    reached
}

#[test]
fn a_broken_link_stops_only_the_stages_that_depend_on_it() {
    let mut broken = 0;
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let plan = random_plan(&mut random);
        let blocks = random_blocks(&mut random, &plan);
        let number = random.random_range(0..plan.shape.lanes.len());
        let lane = &plan.shape.lanes[number];
        let slices = plan.slices(number).count() as u32;
        if slices == 0 {
            continue;
        }
        let link = random.random_range(0..lane.links.len());
        let id = link_id(number as u16, link as u16);
        let mut faults = Faults::default();
        if random.random_bool(0.2) {
            faults.unopened.insert(id);
        } else {
            faults.links.insert(id, random.random_range(0..slices));
        }
        let run = Memory::new(&plan, blocks.clone(), faults, seed).run(&plan);
        broken += 1;

        let expected = evaluate(&plan, &blocks);
        let stopped = downstream(lane, lane.links[link].to);
        for (key, positions) in &expected {
            let came = run.written.get(key).cloned().unwrap_or_default();
            assert!(came.iter().all(|(position, byte)| positions.get(position) == Some(byte)), "seed {seed}: wrong bytes");
            let (party, index) = (key.0, key.1);
            let at = u16::from(index % 16);
            if usize::from(index / 16) == number && stopped.contains(&at) {
                assert!(!run.finished.contains(&(party, index)), "seed {seed}: a store without all its bytes was finished");
            } else {
                assert_eq!(&came, positions, "seed {seed}: a store that does not depend on the link is incomplete");
                assert!(run.finished.contains(&(party, index)), "seed {seed}");
            }
        }
        let sender = &run.outcomes[&node(usize::from(lane.links[link].from))].errors[0];
        assert_eq!((sender.link, sender.reaction), (Some(id), Reaction::Replan), "seed {seed}");
        assert_eq!(sender.party, Some(node(usize::from(lane.links[link].to))), "seed {seed}: the error does not name the peer");
    }
    assert!(broken > 200);
}

/// A writer that sends one block, times 1, 2, …, to each of `receivers`, which store it.
fn fan_out(receivers: usize) -> (Plan, BTreeMap<(Party, u8), Rows>) {
    let mut random = StdRng::seed_from_u64(1);
    let mut plan = random_plan(&mut random);
    let link = |to: usize| Link { from: 0, to: to as u16 + 1, width: 1, rank: 0 };
    let block = |index| Source::Block { index, sub_blocks: vec![0] };
    let writer = Stage {
        vertex: 0,
        sources: vec![block(0)],
        matrix: SparseMatrix::new(receivers, 1, (0..receivers).map(|row| (row, 0, row as u8 + 1))).unwrap().into(),
        sinks: (0..receivers).map(|link| Sink::Link(link as u16)).collect(),
    };
    let receiver = |at: usize| Stage {
        vertex: at as u16 + 1,
        sources: vec![Source::Link(at as u16)],
        matrix: SparseMatrix::identity(1).into(),
        sinks: vec![Sink::Store { index: at as u8 + 1, sub_blocks: vec![0] }],
    };
    let stages = std::iter::once(writer).chain((0..receivers).map(receiver)).collect();
    let links = (0..receivers).map(link).collect();
    plan.shape.lanes = vec![Lane { first: 0, step: 1, window: 2, stages, links }];
    plan.binding.spans = vec![Span::new(0, POSITIONS)];
    plan.binding.parties = (0..=receivers).map(node).collect();
    plan.binding.slice_len = 32;
    let blocks = random_blocks(&mut random, &plan);
    (plan, blocks)
}

#[test]
fn a_writer_continues_while_one_receiver_is_alive() {
    for dead in 0..=5usize {
        let (plan, blocks) = fan_out(5);
        let stores = (0..dead).map(|at| ((node(at + 1), at as u8 + 1), at as u32)).collect();
        let run = Memory::new(&plan, blocks.clone(), Faults { stores, ..Faults::default() }, 7).run(&plan);
        let expected = evaluate(&plan, &blocks);
        for at in 0..5 {
            let key = (node(at + 1), at as u8 + 1, 0);
            let whole = run.written.get(&key) == expected.get(&key);
            assert_eq!(whole, at >= dead, "receiver {at} of {dead} dead ones");
            let errors = &run.outcomes[&node(at + 1)].errors;
            assert_eq!(errors.iter().map(|e| e.reaction).collect::<Vec<_>>(), vec![Reaction::Fatal; usize::from(at < dead)]);
        }
        let writer = &run.outcomes[&node(0)];
        assert_eq!(writer.errors.len(), dead);
        assert_eq!(writer.stages[0].finished, dead < 5);
        assert!(dead == 5 || writer.stages[0].positions_done == POSITIONS);
    }
}

#[test]
fn a_block_that_cannot_be_read_breaks_all_links_of_its_stage() {
    let (plan, blocks) = fan_out(3);
    let faults = Faults { blocks: BTreeMap::from([((node(0), 0), 4)]), ..Faults::default() };
    let run = Memory::new(&plan, blocks, faults, 7).run(&plan);
    let cause = &run.outcomes[&node(0)].errors;
    assert_eq!(cause.len(), 1);
    assert_eq!((cause[0].reaction, cause[0].position, cause[0].party), (Reaction::Corrupt, Some(4 * 32), Some(node(0))));
    assert_eq!(run.outcomes[&node(0)].stages[0].positions_done, 4 * 32);
    assert_eq!(run.finished, BTreeSet::new());
    for at in 1..4 {
        let error = &run.outcomes[&node(at)].errors[0];
        assert_eq!((error.party, error.position, error.link), (Some(node(0)), Some(4 * 32), Some(at as u32 - 1)));
    }
}

#[test]
fn a_check_that_is_not_zero_names_lane_and_position() {
    for flip in [None, Some(100usize)] {
        let (mut plan, mut blocks) = fan_out(2);
        let lane = &mut plan.shape.lanes[0];
        // Receiver 0 sends twice its bytes to receiver 1, which compares them with its own: 2·b against 2·b.
        lane.links.push(Link { from: 1, to: 2, width: 1, rank: 0 });
        lane.stages[1].sources.push(Source::Block { index: 1, sub_blocks: vec![0] });
        lane.stages[1].matrix = SparseMatrix::new(1, 2, [(0, 0, 2), (0, 1, 1)]).unwrap().into();
        lane.stages[1].sinks = vec![Sink::Link(2)];
        lane.stages[2].sources.push(Source::Link(2));
        lane.stages[2].matrix = SparseMatrix::new(1, 2, [(0, 0, 1), (0, 1, 1)]).unwrap().into();
        lane.stages[2].sinks = vec![Sink::Check { width: 1 }];
        let zeros = blocks.get_mut(&(node(1), 1)).unwrap();
        zeros[0].fill(0);
        if let Some(at) = flip {
            zeros[0][at] = 1;
        }
        let run = Memory::new(&plan, blocks, Faults::default(), 3).run(&plan);
        let errors = &run.outcomes[&node(2)].errors;
        match flip {
            None => assert_eq!(run.outcomes.values().map(|outcome| outcome.errors.len()).sum::<usize>(), 0),
            Some(_) => {
                assert_eq!((errors[0].reaction, errors[0].position), (Reaction::Corrupt, Some(100)));
                assert!(errors[0].to_string().contains("position 100"), "{}", errors[0]);
            }
        }
    }
}
