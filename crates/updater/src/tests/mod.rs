//! The crash test: real updaters, on real stores and journals, on file systems that lose what is not synced.
//!
//! `WEFT_UPDATE_CRASHES=5000` makes so many crashes for each code. A failure prints the seed; `WEFT_UPDATE_SEED=17` repeats it.

mod arriving;
mod clients;
mod code;
mod coordinator;
mod crash;
mod host;
mod large;
mod linear;
mod openings;
mod random;
mod world;

use crate::fault::{Rule, drop_rule};
use crash::run;
use weft_store::RING_BYTES_MIN;
use weft_types::Layout;
use world::{LIMITS, Setup};

/// The crashes for each code, unless more are wanted.
const CRASHES: usize = 130;
/// The most runs in which a broken rule must be found.
const RUNS_MAX: u64 = 150;
/// So many failures are reported before the test ends.
const FAILED_MAX: usize = 3;

fn rs() -> Setup {
    let layout = Layout { block_len: 12 << 10, cell_len: 4 << 10, alpha: 1 };
    Setup { code: "rs(4,2)", layout, missing: 1500, stripes: 2, limits: LIMITS, ring_bytes: RING_BYTES_MIN }
}

fn lrc() -> Setup {
    Setup { code: "lrc(4,2,2)", ..rs() }
}

fn butterfly() -> Setup {
    let layout = Layout { block_len: 16 << 10, cell_len: 8 << 10, alpha: 8 };
    Setup { code: "butterfly(4)", layout, missing: 700, ..rs() }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|number| number.parse().ok())
}

/// Runs seed after seed until there were enough crashes.
fn crash(setup: &Setup) {
    let wanted = number("WEFT_UPDATE_CRASHES").map_or(CRASHES, |crashes| crashes as usize);
    let first = number("WEFT_UPDATE_SEED");
    let (mut crashes, mut committed, mut aborted, mut served, mut unknown, mut sealed, mut versions) = (0, 0, 0, 0, 0, 0, 0);
    let (mut opened, mut settled, mut together, mut arrived) = (0, 0, 0, 0);
    let mut fill: f64 = 0.0;
    let mut failed = Vec::new();
    for seed in first.unwrap_or(0).. {
        let ended = run(setup, seed, false);
        if let Some(wrong) = &ended.wrong {
            println!(
                "{}, seed {seed}: {wrong:.3000}\nWEFT_UPDATE_SEED={seed} repeats it, WEFT_UPDATE_TRACE=1 prints what happens",
                setup.code
            );
            failed.push(seed);
        }
        crashes += ended.crashes;
        committed += ended.committed;
        aborted += ended.aborted;
        served += ended.served;
        together += ended.served_together;
        unknown += ended.unknown;
        sealed += ended.sealed;
        versions += ended.versions;
        arrived += ended.arrived;
        opened += ended.opened;
        settled += ended.settled;
        fill = fill.max(ended.fill_max);
        if first.is_some() || crashes >= wanted || failed.len() >= FAILED_MAX {
            println!(
                "{}: {} runs, {crashes} crashes, {opened} openings, {sealed} seals, {settled} stripes settled, {committed} updates committed, {arrived} deltas in parts, {aborted} aborted, {unknown} without an answer, {served} reads, {together} of several blocks, {versions} versions compared, journals up to {:.0} % full",
                setup.code,
                seed + 1,
                100.0 * fill
            );
            break;
        }
    }
    assert!(first.is_some() || arrived > 0, "no delta arrives in parts");
    assert!(failed.is_empty(), "{}: wrong with the seeds {failed:?}", setup.code);
}

#[test]
fn updates_survive_crashes_with_reed_solomon() {
    crash(&rs());
}

#[test]
fn updates_survive_crashes_with_local_parities() {
    crash(&lrc());
}

#[test]
fn updates_survive_crashes_with_sub_blocks() {
    crash(&butterfly());
}

#[test]
fn every_rule_is_needed() {
    let rules = [
        Rule::SyncFirst,
        Rule::OpenedFirst,
        Rule::ImagesFirst,
        Rule::RedoCopies,
        Rule::ReleaseWhenNeedless,
        Rule::DeltaUnderLock,
        Rule::Overlay,
        Rule::ReceivedCrcs,
        Rule::Coefficients,
        Rule::OutcomesAtOpening,
        Rule::TermAbove,
        Rule::TwoRounds,
    ];
    let mut needless = Vec::new();
    for rule in rules {
        drop_rule(Some(rule));
        let found = (0..RUNS_MAX).find_map(|seed| run(&rs(), seed, false).wrong.map(|wrong| (seed, wrong)));
        drop_rule(None);
        match found {
            Some((seed, wrong)) => println!("without {rule:?}, seed {seed}: {wrong:.200}"),
            None => needless.push(rule),
        }
    }
    assert_eq!(needless, [], "nothing wrong was found without these rules");
}

#[test]
fn a_damaged_journal_must_not_count_as_empty() {
    let found = (0..RUNS_MAX).find_map(|seed| run(&rs(), seed, true).wrong.map(|wrong| (seed, wrong)));
    println!("with an empty journal in place of a damaged one: {found:.200?}");
    assert!(found.is_some());
}
