//! Codes with very many sub-blocks are planned in little time and memory: a repair must not wait for its plan.

// This test bounds real time.
#![allow(clippy::disallowed_methods)]

mod world;

use std::{
    fs,
    time::{Duration, Instant},
};
use weft_codes::{Code, parse};
use weft_gf::Combination;
use weft_plan::{Class, Hold, Job, Memory, Want, WantKind, eval, verify};
use weft_schemes::{AUTO, Request, Run, choose, code_view};
use weft_types::{Layout, PlanId, Span, StripeLayout};
use world::{block, holder, spare};

/// Bytes of a sub-block; a block has one cell.
const SUB_LEN: u64 = 64;

fn layout(code: &dyn Code) -> Layout {
    let block_len = SUB_LEN * code.alpha() as u64;
    Layout::new(block_len, block_len, code.alpha() as u32).unwrap()
}

/// A job in which these blocks are lost, and each is wanted by a node without blocks.
fn job(code: &dyn Code, lost: &[u8]) -> Job {
    let span = Span::new(0, SUB_LEN);
    let there = (0..code.n() as u8).filter(|index| !lost.contains(index));
    let sub_blocks: Vec<u16> = (0..code.alpha() as u16).collect();
    let want =
        |index: &u8| Want { kind: WantKind::Store, party: spare(*index), index: *index, sub_blocks: sub_blocks.clone(), span };
    Job {
        holds: there.map(|index| Hold { party: holder(index), block: block(index, 1), span }).collect(),
        wants: lost.iter().map(want).collect(),
        ..Job::default()
    }
}

/// A stripe's blocks, with the code's parity.
fn blocks(code: &dyn Code) -> Vec<Vec<u8>> {
    let (block_len, data) = (layout(code).block_len as usize, code.k());
    let mut blocks = vec![vec![0; block_len]; code.n()];
    for (index, block) in blocks[..data].iter_mut().enumerate() {
        block.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 + at / 251 + index * 77) as u8);
    }
    let (data, parity) = blocks.split_at_mut(data);
    let sources: Vec<&[u8]> = data.iter().flat_map(|block| block.chunks_exact(SUB_LEN as usize)).collect();
    let mut out: Vec<&mut [u8]> = parity.iter_mut().flat_map(|block| block.chunks_exact_mut(SUB_LEN as usize)).collect();
    Combination::factored(&code.encode()).apply(&sources, &mut out);
    blocks
}

/// Goes from the spec to the verified plan of a repair by the chosen scheme, and checks its bytes. Returns the planning
/// time.
fn plan(spec: &str, lost: &[u8]) -> Duration {
    let start = Instant::now();
    let code = parse(spec).unwrap();
    let (job, layout) = (job(code.as_ref(), lost), layout(code.as_ref()));
    let stripe = StripeLayout { layout, k: code.k() as u32, m: code.m() as u32, data_len: layout.block_len * code.k() as u64 };
    let stores: Vec<_> = lost.iter().map(|index| (spare(*index), block(*index, 2))).collect();
    let run = Run::new(PlanId(1), 1, Class::Repair, SUB_LEN);
    let request = Request { stores: &stores, ..Request::new(code.as_ref(), stripe, &job, run) };
    let (plan, _) = choose(&request, AUTO).unwrap();
    let planned = start.elapsed();
    let canonical = code.spec();
    verify(&plan, code_view(code.as_ref(), &canonical), &job).unwrap_or_else(|refusal| panic!("{spec}: {refusal}"));
    let all = start.elapsed();

    let blocks = blocks(code.as_ref());
    let held = job.holds.iter().map(|hold| ((hold.party, hold.block), blocks[usize::from(hold.block.index)].clone()));
    let mut memory = Memory { blocks: held.collect(), ..Memory::default() };
    eval(&plan, &mut memory).unwrap();
    for index in lost {
        let stored = memory.out.get(&(WantKind::Store, spare(*index), *index));
        assert!(stored == Some(&blocks[usize::from(*index)]), "{spec}: block {index} differs from the lost block");
    }
    println!("{spec}, lost {lost:?}: planned {planned:?}, verified {:?}, peak {:?} KiB", all - planned, peak_kib());
    all
}

/// The peak memory of this process, if the system reports it.
fn peak_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok())
}

/// One test only, because the memory is that of the whole process. The bounds allow for unoptimised builds on busy
/// machines: a release build takes a tenth of a second, and less than one second with four lost blocks.
#[test]
fn codes_of_1024_sub_blocks_are_planned_for_in_bounded_time_and_memory() {
    for (spec, lost) in [("clay(10,4,d=13)", &[3][..]), ("butterfly(10)", &[3]), ("clay(16,4)", &[0]), ("clay(16,4)", &[19])] {
        assert!(plan(spec, lost) < Duration::from_secs(10), "{spec} without {lost:?}");
    }
    assert!(plan("clay(16,4)", &[1, 2, 4, 19]) < Duration::from_secs(20), "the most that may be lost");
    assert!(peak_kib().is_none_or(|kib| kib < 256 << 10), "{:?} KiB", peak_kib());
}
