//! Measures a cluster of weft on this machine beside plain sockets, interleaved in one run: the CPU time of one hop of a repair
//! chain beside a relay that only copies, and puts and gets beside copying the same bytes over as many connections.
//!
//! Machines differ, and this one may be busy, so the ratios count. Every figure is the median over rounds in which all
//! contestants take turns.

// This program measures real time.
#![allow(clippy::disallowed_methods)]

mod cluster;
mod conditions;
mod copy;
mod cpu;
mod hop;
mod minio;
mod minio_server;
mod objects;
mod relay;
mod report;

use report::{Machine, Report};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    time::{Duration, Instant},
};

/// Any error ends the run.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ROUNDS_DEFAULT: usize = 3;
/// The run ends within this time, with an error if necessary.
const TIME_MAX: Duration = Duration::from_secs(270);
/// The comparison with MinIO has three contestants, waits for their background work, and takes longer.
const BESIDE_TIME_MAX: Duration = Duration::from_secs(2400);

const HELP: &str = "usage: weft-measure [--json] [--rounds N] [--only TEXT]

Starts clusters of weft on this machine and measures them beside plain sockets:
  hop      CPU time of an agent in the middle of a repair chain, beside a bare socket relay
  objects  put and healthy get of 1 GiB on 16 agents under rs(10,4), beside copying as many bytes over loopback
  minio    put and get of 1 GiB on 6 agents under rs(4,2) beside MinIO, healthy and with a node or drive
           lost; only if it is named (make bench-minio)

It needs the weft binary (target/release/weft, or WEFT_BIN) and about 20 GiB in TMPDIR, for three rounds.

  --json       the same as JSON
  --rounds N   rounds to take the median of (3)
  --only TEXT  only parts whose name contains TEXT";

struct Options {
    json: bool,
    rounds: usize,
    only: String,
}

/// The settings that every part of the run uses.
pub struct Run {
    pub weft: PathBuf,
    /// A directory for this run only, removed afterwards.
    pub dir: PathBuf,
    pub rounds: usize,
    pub deadline: Instant,
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    // This binary is also the relay and the copier that weft is compared with.
    let ended = match words.first().map(String::as_str) {
        Some(relay::COMMAND) => relay::run(&words[1..]),
        Some(copy::COMMAND) => copy::run(&words[1..]),
        _ => measure(words),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft-measure: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(words: Vec<String>) -> Result<()> {
    let Some(options) = options(words)? else {
        println!("{HELP}");
        return Ok(());
    };
    let time_max = if options.only == "minio" { BESIDE_TIME_MAX } else { TIME_MAX };
    let run = Run::new(options.rounds, time_max)?;
    let hops = if "hop".contains(&options.only) { hop::measure(&run)? } else { Vec::new() };
    let objects = if "objects".contains(&options.only) { objects::measure(&run)? } else { Vec::new() };
    // Needs MinIO, so it runs only on request.
    let (minio, conditions) = if options.only == "minio" { minio::measure(&run)? } else { Default::default() };
    let report = Report { machine: Machine::here(), rounds: options.rounds, hops, objects, minio, conditions };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}

fn options(words: Vec<String>) -> Result<Option<Options>> {
    let mut options = Options { json: false, rounds: ROUNDS_DEFAULT, only: String::new() };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" => options.json = true,
            "--rounds" => {
                let rounds = words.next().and_then(|rounds| rounds.parse().ok()).filter(|rounds| (1..=20).contains(rounds));
                options.rounds = rounds.ok_or("--rounds wants a number from 1 to 20")?;
            }
            "--only" => options.only = words.next().ok_or("--only wants a text")?,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown option {other}; --help lists them").into()),
        }
    }
    Ok(Some(options))
}

impl Run {
    fn new(rounds: usize, time_max: Duration) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let weft = env::var_os("WEFT_BIN").map_or_else(|| root.join("target/release/weft"), PathBuf::from);
        if !weft.is_file() {
            return Err(format!("there is no {}: `make build` makes it, or WEFT_BIN says where it is", weft.display()).into());
        }
        let dir = env::temp_dir().join(format!("weft-measure-{}", process::id()));
        fs::create_dir(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        Ok(Self { weft: fs::canonicalize(weft)?, dir, rounds, deadline: Instant::now() + time_max })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("weft-measure: {} is left behind: {error}", self.dir.display());
        }
    }
}

/// The median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
