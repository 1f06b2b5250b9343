//! Compares weft's kernel with ISA-L, interleaved in one run and checked byte by byte, beside memory copies and the limits of
//! the machine's memory.
//!
//! Machines differ, and this one may be busy, so the ratio to ISA-L counts. Every figure is the median over rounds in
//! which all contestants take turns.

// This program measures real time.
#![allow(clippy::disallowed_methods)]

mod arena;
mod codes;
mod contestants;
mod report;
mod subject;

use arena::{Arena, Stripe};
use codes::CodeRow;
use contestants::{Contestant, Encoder, Job};
use report::{Machine, Report, Row};
use std::{env, error::Error, hint::black_box, time::Instant};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Bytes of a block.
const BLOCK_LENS: [usize; 4] = [4 * KIB, 32 * KIB, 64 * KIB, MIB];
/// The memory that cold runs rotate through: far more than any cache holds.
const COLD_BYTES: usize = 1200 * MIB;
/// The data that one contestant processes in a turn: so little that the scheduler seldom interrupts it.
const TURN_BYTES: usize = 8 * MIB;
const ROUNDS_DEFAULT: usize = 101;
/// Fewer than for jobs, because there are many codes.
const CODES_ROUNDS_DEFAULT: usize = 31;

const HELP: &str = "usage: weft-compare [--json] [--rounds N] [--only TEXT]

Encodes rs(10,4), rs(6,3), rs(12,4) and computes a repair hop (out = in ^ c*local) with weft's kernel and with ISA-L, beside
memcpy and plain reading, on warm and on cold buffers. GiB/s are of data (sources) read.
Then every code's encoding, decoding and repair (jobs: codes SPEC), beside rs(10,4), copies and XORs.

  --json       the same as JSON
  --rounds N   rounds to take the median of (101; for codes 31)
  --only TEXT  only jobs whose name contains TEXT";

struct Options {
    json: bool,
    rounds: Option<usize>,
    only: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(options) = options()? else {
        println!("{HELP}");
        return Ok(());
    };
    let jobs: Vec<Job> = Job::all().into_iter().filter(|job| job.name.contains(&options.only)).collect();
    let rounds = options.rounds.unwrap_or(ROUNDS_DEFAULT);
    let codes_rounds = options.rounds.unwrap_or(CODES_ROUNDS_DEFAULT);
    let rows = measure_jobs(jobs, rounds)?;
    let codes = measure_codes(&options.only, codes_rounds)?;
    let report = Report { machine: Machine::here(), isal: env!("ISAL_VERSION"), rounds, rows, codes_rounds, codes };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?)
    } else {
        print!("{report}")
    }
    Ok(())
}

fn measure_jobs(jobs: Vec<Job>, rounds: usize) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = Vec::new();
    if jobs.is_empty() {
        return Ok(rows);
    }
    let mut arena = Arena::new(COLD_BYTES);
    for job in jobs {
        let encoder = Encoder::new(job);
        for block_len in BLOCK_LENS {
            for warm in [true, false] {
                eprintln!("{} {} KiB {}", encoder.job.name, block_len / KIB, if warm { "warm" } else { "cold" });
                let stripes_max = if warm { 1 } else { usize::MAX };
                let mut stripes = arena.stripes(encoder.job.k(), encoder.job.m(), block_len, stripes_max);
                encoder.check(&mut stripes[0])?;
                rows.push(measure(&encoder, &mut stripes, block_len, warm, rounds));
            }
        }
    }
    Ok(rows)
}

fn measure_codes(only: &str, rounds: usize) -> Result<Vec<CodeRow>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for spec in codes::specs().filter(|spec| format!("codes {spec}").contains(only)) {
        for cell_len in codes::cell_lens(spec)? {
            eprintln!("{spec}, cells of {} KiB", cell_len / KIB);
            rows.push(codes::measure(spec, cell_len, rounds)?);
        }
    }
    Ok(rows)
}

fn options() -> Result<Option<Options>, String> {
    let mut options = Options { json: false, rounds: None, only: String::new() };
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" => options.json = true,
            "--rounds" => {
                let rounds = words.next().and_then(|rounds| rounds.parse().ok()).filter(|rounds| (1..=1000).contains(rounds));
                options.rounds = Some(rounds.ok_or("--rounds wants a number from 1 to 1000")?);
            }
            "--only" => options.only = words.next().ok_or("--only wants a text")?,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown option {other}; --help lists them")),
        }
    }
    Ok(Some(options))
}

/// One row of the table: all contestants take turns, round by round.
fn measure(encoder: &Encoder, stripes: &mut [Stripe<'_>], block_len: usize, warm: bool, rounds: usize) -> Row {
    let data_len = encoder.job.k() * block_len;
    let repeats = (TURN_BYTES / data_len).max(1);
    let mut seconds = [const { Vec::new() }; Contestant::ALL.len()];
    // Each turn continues where the previous one ended, so a stripe is used again only after all others.
    let mut next = 0;
    for _ in 0..rounds {
        for (contestant, seconds) in Contestant::ALL.into_iter().zip(&mut seconds) {
            if warm {
                encoder.run(contestant, &mut stripes[0]);
            }
            let start = Instant::now();
            for _ in 0..repeats {
                encoder.run(contestant, black_box(&mut stripes[next]));
                next = (next + 1) % stripes.len();
            }
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    let data_gib = (repeats * data_len) as f64 / (1u64 << 30) as f64;
    Row::new(&encoder.job.name, block_len, warm, seconds.map(|seconds| data_gib / median(seconds)))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
