//! Plans on disk and on the wire, and how they are printed.

use crate::common::{CLIENT, TestCode, World, direct_job, node, scrub_job, update_job};
use proptest::prelude::*;
use weft_plan::{
    Binding, Job, Network, Plan, Source, Takes, Task, WantKind, cell_bytes, cost, cut, eval, explain, from_json, predict, to_dot,
    to_json, verify,
};
use weft_types::{Layout, Seq, Span};

/// Plans of all shapes, with their jobs.
fn plans(world: &World) -> Vec<(Plan, Job)> {
    let code = &world.code;
    let helpers: Vec<u8> = (1..=code.k as u8).collect();
    let target = (WantKind::Store, node(90), 0);
    let job = world.repair_job(&[0], &[target]);
    let mut plans = Vec::new();
    for shape in 0..6 {
        let mut build = world.build();
        let span = world.span();
        let job = match shape {
            0 => {
                build.chain(span, 0, 1, &helpers, &[target]);
                job.clone()
            }
            1 => {
                build.star(span, &helpers, target);
                job.clone()
            }
            2 => {
                build.tree(span, &helpers, target);
                job.clone()
            }
            3 => {
                build.update(span, 0);
                update_job(world, span, 0)
            }
            4 => {
                build.direct(span);
                direct_job(world)
            }
            _ => {
                build.scrub(span, CLIENT);
                scrub_job(world, CLIENT)
            }
        };
        plans.push((build.plan(), job));
    }
    let mut build = world.build();
    for first in 0..2 {
        build.chain(world.span(), first, 2, &helpers, &[target]);
    }
    plans.push((build.plan(), job));
    plans
}

fn world(k: usize, m: usize, alpha: usize) -> World {
    let code = if alpha == 1 { TestCode::rs(k, m) } else { TestCode::vector(k, m, alpha) };
    World::new(code, 2, 8, 5, 3)
}

#[test]
fn plans_of_the_first_format_are_read() {
    for (plan, job) in plans(&world(4, 2, 1)) {
        let text = to_json(&plan, &job, &[]).unwrap();
        let mut saved: serde_json::Value = serde_json::from_str(&text).unwrap();
        saved["weft_plan"] = 1.into();
        // That format had each lane's positions in the lane.
        let spans = saved["plan"]["binding"].as_object_mut().unwrap().remove("spans").unwrap();
        let lanes = saved["plan"]["shape"]["lanes"].as_array_mut().unwrap();
        lanes.iter_mut().zip(spans.as_array().unwrap()).for_each(|(lane, span)| lane["span"] = span.clone());
        let read = from_json(&saved.to_string()).unwrap();
        assert_eq!((read.plan, read.job), (plan, job));
    }
}

#[test]
fn a_task_has_the_precedence_of_its_plan() {
    let (plan, _) = plans(&world(4, 2, 1)).remove(0);
    let plan = Plan { priority: 7, ..plan };
    assert_eq!(cut(&plan, 0).precedence(), plan.precedence());
    assert_eq!(cut(&plan, 0).priority, 7);
}

#[test]
fn plans_and_tasks_read_back() {
    for world in [world(4, 2, 1), world(3, 2, 3)] {
        for (plan, job) in plans(&world) {
            let text = to_json(&plan, &job, &[]).unwrap();
            let saved = from_json(&text).unwrap();
            assert_eq!((&saved.plan, &saved.job, saved.cost), (&plan, &job, cost(&plan).ok()), "{text}");
            assert!(text.starts_with("{\n  \"weft_plan\": 2,\n  \"plan\": "), "{text}");
            // Older files have a deadline, which was never set.
            let older = text.replacen("\"plan\": {", "\"plan\": {\"deadline_ms\": null, ", 1);
            assert!(older.contains("deadline_ms"), "{text}");
            assert_eq!(from_json(&older).unwrap().plan, plan);
            // They also have one number for all updates.
            let with_count = |count: u64| {
                let mut older: serde_json::Value = serde_json::from_str(&text).unwrap();
                older["plan"]["binding"]["seq"] = count.into();
                from_json(&older.to_string())
            };
            assert_eq!(with_count(0).unwrap().plan, plan);
            assert!(with_count(1).unwrap_err().to_string().contains("a plan with 1 updates does not say which"));
            let updated = Plan { binding: Binding { seq: Seq::new(3, vec![0, 7]), ..plan.binding.clone() }, ..plan.clone() };
            assert_eq!(from_json(&to_json(&updated, &job, &[]).unwrap()).unwrap().plan, updated);
            // They have no priority.
            let older = text.replacen(",\n    \"priority\": 0", "", 1);
            assert!(!older.contains("priority"), "{text}");
            assert_eq!(from_json(&older).unwrap().plan, plan);
            let long = text.lines().filter(|line| line.chars().count() > 125).count();
            assert_eq!(long, 0, "{text}");
            let bytes = postcard::to_stdvec(&plan).unwrap();
            assert_eq!(postcard::from_bytes::<Plan>(&bytes).unwrap(), plan);
            assert_eq!(postcard::from_bytes::<Job>(&postcard::to_stdvec(&job).unwrap()).unwrap(), job);
            for vertex in 0..plan.binding.parties.len() as u16 {
                let task = cut(&plan, vertex);
                assert_eq!(postcard::from_bytes::<Task>(&postcard::to_stdvec(&task).unwrap()).unwrap(), task);
            }
        }
    }
}

#[test]
fn other_versions_and_other_files_are_refused() {
    let (plan, job) = plans(&world(4, 2, 1)).remove(0);
    let text = to_json(&plan, &job, &[]).unwrap();
    let newer = text.replace("\"weft_plan\": 2", "\"weft_plan\": 3");
    assert_eq!(from_json(&newer).unwrap_err().to_string(), "the plan has format 3, but this weft reads formats up to 2");
    for wrong in [
        "",
        "{}",
        "[]",
        "{\"weft_plan\": 1}",
        "{\"weft_plan\": 2}",
        "{\"weft_plan\": -1}",
        &text[..text.len() / 2],
        &"[".repeat(100_000),
    ] {
        assert!(from_json(wrong).unwrap_err().to_string().starts_with("not a saved plan: "), "{wrong}");
    }
    assert!(from_json(&" ".repeat(weft_plan::JSON_BYTES_MAX + 1)).unwrap_err().to_string().contains("bytes are read"));
}

#[test]
fn a_chain_explains_itself() {
    let world = World::new(TestCode::rs(2, 1), 1, 64 << 10, 4 << 10, 1);
    let mut build = world.build();
    build.chain(world.span(), 0, 1, &[1, 2], &[(WantKind::Output, CLIENT, 0)]);
    let plan = build.plan();
    let text = explain(&plan, Some(&Takes::on_links_of(64.0 * 1024.0, &plan).unwrap())).unwrap();
    let expected = "\
Plan 0000000100000001 (repair) of stripe s7, rs(2,1)
Blocks of 64.0 KiB, sent in slices of 4.0 KiB

Lane 0: positions 0..65536, 16 slices
  n2     reads block 1, multiplies
  n2     ──64.0 KiB at 60.2 KiB/s──▶ n3
  n3     reads block 2, adds it to the sum
  n3     ──64.0 KiB at 60.2 KiB/s──▶ client
  client takes delivery of block 0

             reads   receives      sends  writes
  n2      64.0 KiB          –   64.0 KiB       –
  n3      64.0 KiB   64.0 KiB   64.0 KiB       –
  client         –   64.0 KiB          –       –
  in all  128.0 KiB  128.0 KiB  128.0 KiB       –

2 hops; should take 1.06 s on links of 64.0 KiB/s: 1.06 times as long as sending one block.
";
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(squeeze(&text), squeeze(expected), "{text}");
    let columns: Vec<usize> = text.lines().filter(|line| line.contains('–')).map(|line| line.chars().count()).collect();
    assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "the table is not aligned:\n{text}");

    // A given prediction is printed as it is.
    let takes = Takes { seconds: 32.0, on: "the links as they are known".into(), one_block_s: None };
    let text = explain(&plan, Some(&takes)).unwrap();
    assert!(text.ends_with("2 hops; should take 32.00 s on the links as they are known.\n"), "{text}");
    assert!(text.contains("──64.0 KiB at 2.0 KiB/s──▶ client"), "{text}");
}

#[test]
fn every_shape_explains_itself() {
    for world in [world(4, 2, 1), world(3, 2, 3)] {
        for (plan, _) in plans(&world) {
            let text = explain(&plan, None).unwrap();
            let dot = to_dot(&plan).unwrap();
            for (vertex, party) in plan.binding.parties.iter().enumerate() {
                let name = party.to_string();
                let lines = text.lines().filter(|line| line.split_whitespace().next() == Some(&name)).count();
                assert!(lines >= 2, "{name} is not shown:\n{text}");
                assert!(dot.contains(&format!("[label=\"{name}\\n")), "{vertex}: {dot}");
            }
            let links: usize = plan.shape.lanes.iter().map(|lane| lane.links.len()).sum();
            assert_eq!((text.matches("──▶").count(), dot.matches(" -> ").count()), (links, links), "{text}");
            assert_eq!(dot.matches('{').count(), dot.matches('}').count());
        }
    }
}

#[test]
fn a_party_gets_its_own_share() {
    let world = world(4, 2, 1);
    let (plan, _) = plans(&world).remove(6);
    let task = cut(&plan, 1);
    let helper = world.at(2);
    assert_eq!((task.party, task.lanes.len(), task.blocks.len(), task.stores.len()), (helper, 2, 1, 0));
    assert_eq!(task.blocks[0].id, world.id(2, 1));
    let ends: Vec<(u32, bool, weft_types::Party)> = task.links.iter().map(|link| (link.id(), link.sends, link.peer)).collect();
    let expected =
        [(0, false, world.at(1)), (1, true, world.at(3)), (1 << 16, false, world.at(1)), (1 << 16 | 1, true, world.at(3))];
    assert_eq!(ends, expected);
    // Each lane has three ports of one sub-block, five slices of five positions at each, and a temporary with padding.
    assert_eq!(task.memory_bytes(), 2 * (3 * 5 * 5 + 5 + 64));
    let requestor = plan.binding.parties.iter().position(|party| *party == node(90)).unwrap();
    let task = cut(&plan, requestor as u16);
    assert_eq!((task.blocks.len(), task.stores.len()), (0, 1));
}

#[test]
fn memory_has_room_for_cells_that_small_slices_are_cut_from() {
    let world = world(3, 2, 3);
    let (plan, _) = plans(&world).remove(0);
    let reads = |task: &Task| {
        let sources = task.lanes.iter().flat_map(|lane| &lane.stages).flat_map(|stage| &stage.sources);
        sources.filter(|source| matches!(source, Source::Block { sub_blocks, .. } if sub_blocks.len() > 1)).count() as u64
    };
    let tasks = (0..plan.binding.parties.len() as u16).map(|vertex| cut(&plan, vertex));
    let mut task = tasks.max_by_key(reads).unwrap();
    let stages = reads(&task);
    assert!(stages > 0, "no stage reads several sub-blocks");
    for lane in &mut task.lanes {
        (lane.span, lane.window) = (Span::new(0, 1 << 20), 1);
        for source in lane.stages.iter_mut().flat_map(|stage| &mut stage.sources) {
            if let Source::Block { sub_blocks, .. } = source {
                *sub_blocks = vec![0, 1, 2];
            }
        }
    }
    let mut bytes = |sub_len: u64, slice_len: u64| {
        task.slice_len = slice_len;
        task.layout = Layout { block_len: 3 << 30, cell_len: 3 * sub_len, alpha: 3 };
        task.memory_bytes()
    };
    // A slice of the whole sub-block, or a large part of it, is read separately; a small part is cut from the cell.
    let kib = 1 << 10;
    assert_eq!(bytes(256 * kib, 16 * kib) - bytes(16 * kib, 16 * kib), stages * 3 * 256 * kib);
    assert_eq!(bytes(256 * kib, 64 * kib), bytes(64 * kib, 64 * kib));
    assert_eq!(bytes(1 << 30, 16 * kib), bytes(16 * kib, 16 * kib), "a cell of gigabytes is not kept");
    let layout = Layout { block_len: 3 << 20, cell_len: 3 << 20, alpha: 0 };
    assert_eq!((cell_bytes(&layout, 1, 2), cell_bytes(&Layout { alpha: 3, ..layout }, 1, 1)), (0, 0));
}

#[test]
fn shares_of_proved_plans_are_valid() {
    for world in [world(4, 2, 1), world(3, 2, 3)] {
        for (plan, job) in plans(&world) {
            verify(&plan, world.code.view(), &job).unwrap();
            let mut ends = Vec::new();
            for vertex in 0..plan.binding.parties.len() as u16 {
                let task = cut(&plan, vertex);
                task.validate().unwrap();
                ends.extend(task.links.iter().map(|link| (link.id(), link.sends)));
            }
            ends.sort_unstable();
            ends.dedup();
            let links: usize = plan.shape.lanes.iter().map(|lane| lane.links.len()).sum();
            assert_eq!(ends.len(), 2 * links, "every link has two ends");
        }
    }
}

#[test]
fn wrong_shares_are_refused() {
    let world = world(4, 2, 1);
    let (plan, _) = plans(&world).remove(0);
    let right = cut(&plan, 1);
    let says = |spoil: &dyn Fn(&mut Task), text: &str| {
        let mut task = right.clone();
        spoil(&mut task);
        let error = task.validate().expect_err(text).to_string();
        assert!(error.starts_with("n3: ") && error.contains(text), "{error}");
    };
    says(&|task| task.slice_len = 0, "slices have no position");
    says(&|task| task.layout.cell_len = 0, "greater than zero");
    says(&|task| task.links[0].width = 0, "0 sub-blocks");
    says(&|task| task.lanes[0].stages[0].sinks.push(weft_plan::Sink::Check { width: 0 }), "a check has no rows");
    says(&|task| task.links[0].peer = task.party, "the other end n3");
    says(&|task| task.links[0].sends = true, "link 0 has the opposite direction");
    says(&|task| task.links.truncate(1), "link 1 does not exist");
    says(&|task| task.links.push(weft_plan::TaskLink { link: 7, ..task.links[0].clone() }), "link 7 of lane 0 is used 0 times");
    says(&|task| task.links.push(task.links[0].clone()), "occurs twice");
    says(&|task| task.lanes.push(task.lanes[0].clone()), "lane 0 occurs twice");
    says(&|task| task.lanes[0].span.end = 17, "positions 0..17 of a block that has 16");
    says(&|task| task.lanes[0].first = 9, "no slice");
    says(&|task| task.lanes[0].window = 5000, "a window of 5000 slices");
    says(&|task| task.lanes[0].stages.extend_from_within(..), "stage 1 occurs twice");
    says(&|task| task.lanes[0].stages[0].matrix = weft_gf::SparseMatrix::identity(2).into(), "the matrix is 2×2");
    says(&|task| task.blocks.clear(), "block 2 is read, but not named");
    // What it writes must be named, too: a patched block among those that it holds, a stored one among new ones.
    let sinks = |sink: weft_plan::Sink| {
        move |task: &mut Task| {
            let stage = &mut task.lanes[0].stages[0];
            (stage.sinks, stage.sources) = (vec![sink.clone()], vec![weft_plan::Source::Block { index: 2, sub_blocks: vec![0] }]);
            (stage.matrix, task.links) = (weft_gf::SparseMatrix::identity(1).into(), Vec::new());
        }
    };
    let patch = |index| sinks(weft_plan::Sink::Patch { index, sub_blocks: vec![0] });
    says(&patch(5), "block 5 is written, but not named");
    says(&sinks(weft_plan::Sink::Store { index: 2, sub_blocks: vec![0] }), "block 2 is written, but not named");
    let mut patches = right.clone();
    patch(2)(&mut patches);
    assert_eq!(patches.validate(), Ok(()));
    says(&|task| task.blocks[0].len = 17, "17 bytes");
    says(&|task| task.blocks.push(task.blocks[0].clone()), "another block of this index");
    says(&|task| task.stores.push(task.blocks[0].clone()), "names its generation 1 too");
}

/// Numbers that often cause bugs.
const NUMBERS: [u64; 14] = [0, 1, 2, 3, 5, 255, 256, 65535, 65536, 1 << 31, 1 << 32, 1 << 40, 1 << 63, u64::MAX];

/// Changes one thing somewhere in a document.
fn mutate(value: &mut serde_json::Value, path: &mut impl Iterator<Item = usize>) {
    use serde_json::Value;
    let step = path.next().unwrap_or(0);
    match value {
        Value::Object(map) if !map.is_empty() => {
            let at = step % map.len();
            if let Some(inner) = map.values_mut().nth(at) {
                mutate(inner, path);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            let (at, what) = (step % list.len(), path.next().unwrap_or(0));
            match what % 12 {
                0 => drop(list.remove(at)),
                1 => list.push(list[at].clone()),
                2 => list.swap(at, 0),
                _ => mutate(&mut list[at], path),
            }
        }
        Value::Number(_) => *value = Value::from(NUMBERS[step % NUMBERS.len()]),
        Value::String(text) => text.push('x'),
        _ => *value = Value::from(NUMBERS[step % NUMBERS.len()]),
    }
}

#[test]
fn a_matrix_that_declares_billions_of_rows_takes_no_memory_for_them() {
    let (plan, _) = plans(&world(3, 2, 1)).swap_remove(0);
    let mut task = serde_json::to_value(cut(&plan, 0)).unwrap();
    task["lanes"][0]["stages"][0]["matrix"]["rows"] = u32::MAX.into();
    let task: Task = serde_json::from_value(task).unwrap();
    assert_eq!(task.memory_bytes(), u64::MAX);
    assert!(task.validate().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any file or message gets an answer, in bounded time and without a panic.
    #[test]
    fn no_document_causes_a_panic(
        which in 0usize..7,
        alpha in 1usize..=2,
        paths in proptest::collection::vec(proptest::collection::vec(any::<usize>(), 24), 1..4),
    ) {
        let world = world(3, 2, alpha);
        let (plan, job) = plans(&world).swap_remove(which);
        let mut memory = world.memory(&job);
        let mut document: serde_json::Value = serde_json::from_str(&to_json(&plan, &job, &[]).unwrap()).unwrap();
        let mut task = serde_json::to_value(cut(&plan, which as u16 % 3)).unwrap();
        for path in paths {
            mutate(&mut task, &mut path.iter().copied());
            mutate(&mut document, &mut path.into_iter());
        }
        if let Ok(task) = serde_json::from_value::<Task>(task) {
            let _ = task.validate();
            let _ = task.memory_bytes();
        }
        let Ok(saved) = from_json(&document.to_string()) else { return Ok(()) };
        let (plan, job) = (saved.plan, saved.job);
        let _ = cost(&plan);
        let _ = predict(&plan, &Network::uniform(1e6));
        let _ = Takes::on_links_of(1e6, &plan).and_then(|takes| explain(&plan, Some(&takes)));
        let _ = to_dot(&plan);
        let verdict = verify(&plan, world.code.view(), &job);
        if plan.binding.spans.iter().all(|span| span.len() < 1000) {
            memory.inputs = (0..3).map(|index| ((CLIENT, index as u8, false), world.data[index].clone())).collect();
            let _ = eval(&plan, &mut memory);
        }
        if verdict.is_ok() {
            for vertex in 0..plan.binding.parties.len() as u16 {
                let task = cut(&plan, vertex);
                prop_assert!(task.lanes.is_empty() || task.validate().is_ok(), "{:?}", task.validate());
            }
        }
    }
}
