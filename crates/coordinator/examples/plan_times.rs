//! Measures how long planning a stripe takes: `cargo run --release -p weft-coordinator --example plan_times`.
//!
//! Each run draws other nodes for the stripe and (except in one case) another preference of helpers; the lost block and
//! the scheme are the same. The first column includes verification, as the coordinator's state machines need it. The
//! second adds what follows before agents are called: each party's task, its hash, and a token for each link.

// This program measures real time.
#![allow(clippy::disallowed_methods)]

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};
use weft_codes::SharedCode;
use weft_control::{
    known::Known,
    options::RepairOptions,
    planning::{self, Planned, Range, Target, Way, Writing},
};
use weft_plan::{Class, Network, ProofKey};
use weft_proto::{LinkKey, LinkRights, encode_task, token::task_hash};
use weft_schemes::{Run, Select};
use weft_types::{
    AutoSize, BlockId, BlockState, DiskNumber, Error, Home, Layout, NodeId, Owner, Party, PlacedBlock, PlanId, Result, Seq, Span,
    StripeId, StripeLayout, StripeRecord, UploadId,
};

const READER: Party = Party::Client(7);
const RUNS: usize = 60;

/// A stripe of 1 MiB blocks on random nodes.
fn stripe(code: &SharedCode, random: &mut StdRng) -> Result<StripeRecord> {
    let mut nodes: Vec<u32> = (1..=40).collect();
    nodes.shuffle(random);
    let layout = Layout::new(1 << 20, 1 << 20, code.alpha() as u32)?;
    let layout = StripeLayout { layout, k: code.k() as u32, m: code.m() as u32, data_len: (code.k() as u64) << 20 };
    let place = |node: &u32| {
        let home = Home { node: NodeId(*node), disk: DiskNumber(*node) };
        PlacedBlock { generation: 1, generation_high_water: 1, home, state: BlockState::Ok, copy: 0 }
    };
    Ok(StripeRecord {
        id: StripeId(u64::from(nodes[0])),
        owner: Owner::Object(UploadId(3)),
        number: 0,
        ended: true,
        seq: Seq::default(),
        layout,
        blocks: (0..=u8::MAX).zip(nodes[..code.n()].iter().map(place)).collect(),
        copies: Vec::new(),
        checksums: Vec::new(),
        kept: Default::default(),
        corrupt: Default::default(),
        incomplete: false,
    })
}

/// What is planned: the rebuild of block 0, or a new stripe.
#[derive(Debug, Clone, Copy)]
enum What {
    Read,
    DegradedRead,
    Rebuild,
    /// With the same preference of helpers in each run.
    RebuildAgain,
    Write,
}

fn plan(
    what: What,
    scheme: &str,
    code: &SharedCode,
    stripe: &StripeRecord,
    random: &mut StdRng,
    (network, known): (&Network, &Known),
) -> Result<Planned> {
    let mut helpers: Vec<u8> = (1..code.n() as u8).collect();
    if !matches!(what, What::RebuildAgain) {
        helpers.shuffle(random);
    }
    // For a code that needs any k blocks, always the same ones.
    helpers.sort_by_key(|index| usize::from(*index) > code.k());
    let party = |index: &u8| stripe.home_of(*index).map(|home| Party::Node(home.node));
    let prefer: Vec<Party> = helpers.iter().filter_map(party).collect();
    let options = RepairOptions { select: Select::AsPreferred, ..RepairOptions::new(scheme.into(), AutoSize::bytes(64 << 10)) };
    let way = Way { options: &options, network, prefer: &prefer, known };
    let run = Run::new(PlanId(1), 1, Class::Repair, (64 << 10) / u64::from(stripe.layout.layout.alpha).min(16));
    let all = [Range { index: 0, bytes: Span::new(0, 1 << 20) }];
    match what {
        What::Read => planning::read(code, stripe, &[0, 1, 2], &all, READER, &way, run),
        What::DegradedRead => planning::read(code, stripe, &helpers, &all, READER, &way, run),
        What::Rebuild | What::RebuildAgain => {
            let block = BlockId { stripe: stripe.id, index: 0, copy: 0, generation: 2 };
            let target = Target { node: NodeId(99), block, missing: vec![stripe.layout.coded_span()] };
            planning::rebuild(code, stripe, &helpers, &[target], &way, run)
        }
        What::Write => {
            let id = |index: u8| BlockId { stripe: stripe.id, index, copy: 0, generation: 1 };
            let home = |index: u8| party(&index).map(|party| (party, id(index)));
            let stores: Vec<(Party, BlockId)> = (0..code.n() as u8).filter_map(home).collect();
            planning::write(
                code,
                &stripe.layout,
                &Writing { writer: READER, seq: &Seq::FIRST, stores: &stores, whole: true, scheme, network, known },
                run,
            )
        }
    }
}

/// Each party's task, its hash, and a token for each link.
fn sign(planned: &Planned, key: &LinkKey) -> Result<()> {
    let plan = &planned.plan;
    for vertex in (0..=u16::MAX).take(plan.binding.parties.len()) {
        let task = weft_plan::cut(plan, vertex);
        let bytes = encode_task(&task)?;
        let task_hash = task_hash(&bytes);
        for link in task.links.iter().filter(|link| !link.sends) {
            let rights = LinkRights { epoch: 1, plan: plan.id, link: link.id(), from: link.peer, to: task.party, task_hash };
            black_box(key.issue(&rights));
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let (network, key, known) = (Network::uniform(1e9), LinkKey::new([7; 32]), Known::new(ProofKey::PUBLIC));
    println!("median of {RUNS} (and of the slowest tenth)     plan and proof         with tasks, hashes, tokens");
    let cases = [
        ("rs(10,4)", What::Read, "conventional"),
        ("rs(10,4)", What::DegradedRead, "conventional"),
        ("rs(10,4)", What::Rebuild, "conventional"),
        ("rs(10,4)", What::RebuildAgain, "pipeline"),
        ("rs(10,4)", What::Rebuild, "pipeline"),
        ("rs(10,4)", What::Rebuild, "auto"),
        ("rs(10,4)", What::Write, "direct"),
        ("clay(10,4)", What::Read, "conventional"),
        ("clay(10,4)", What::Rebuild, "conventional"),
        ("clay(10,4)", What::Write, "direct"),
        ("clay(16,4)", What::DegradedRead, "conventional"),
        ("clay(16,4)", What::Rebuild, "conventional"),
        ("clay(16,4)", What::Write, "direct"),
    ];
    for (spec, what, scheme) in cases {
        let (code, mut random) = (weft_codes::parse(spec).map_err(Error::invalid)?, StdRng::seed_from_u64(1));
        let mut times: [Vec<Duration>; 2] = Default::default();
        for _ in 0..RUNS + 4 {
            let stripe = stripe(&code, &mut random)?;
            let begun = Instant::now();
            let planned = plan(what, scheme, &code, &stripe, &mut random, (&network, &known))?;
            let is_planned = begun.elapsed();
            sign(&planned, &key)?;
            times[0].push(is_planned);
            times[1].push(begun.elapsed());
        }
        let of = |times: &mut Vec<Duration>| {
            // The first runs start with empty caches.
            times.drain(..4);
            times.sort_unstable();
            format!("{:>9.1?} ({:>9.1?})", times[times.len() / 2], times[times.len() * 19 / 20])
        };
        let [planned, signed] = &mut times;
        println!("{spec:<11} {:<13} {scheme:<13} {:>28} {:>28}", format!("{what:?}"), of(planned), of(signed));
    }
    println!("{:?}, {:?}", known.patterns(), known.proofs());
    Ok(())
}
