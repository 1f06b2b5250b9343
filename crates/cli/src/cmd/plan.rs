//! `weft plan`: shows and verifies saved plans, and plans updates.

use super::{explain, plan_update::Update};
use crate::offline;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use weft_cli::{
    exit::Exit,
    files::io_error,
    output::{Output, print},
};
use weft_plan::{JSON_BYTES_MAX, Refusal, Saved};
use weft_types::{ByteSize, Error, Result};

/// Show a saved plan, verify it, or plan an update
#[derive(Debug, Args)]
pub(super) struct Plan {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(Show),
    Verify(Verify),
    Update(Update),
}

/// Show a plan's transfers, its cost and its predicted time
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft repair object photos/cat.jpg --block 3 --explain --json > plan.json
  weft plan show plan.json
  weft plan show plan.json --dot | dot -Tsvg > plan.svg

EXIT CODES
  0 done   2 not a saved plan, or a plan that cannot run   3 no FILE")]
struct Show {
    /// Saved plan; `-` reads stdin
    file: PathBuf,
    /// Print a graph in Graphviz' language
    #[arg(long, conflicts_with = "json")]
    dot: bool,
    /// Predict the time for links of this many bytes per second [default: 125 MB, 1 Gbit/s]
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<ByteSize>,
}

/// Prove by algebra that a saved plan does its job
///
/// Pushes the generator matrix of the plan's code through the plan's stages, and compares what reaches each sink with what the code
/// requires there.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft plan verify plan.json && echo right

EXIT CODES
  0 proved   2 not a saved plan   3 no FILE   5 refused: the message names the wrong stage or sink")]
struct Verify {
    /// Saved plan; `-` reads stdin
    file: PathBuf,
}

impl Plan {
    pub(super) fn run(self, output: Output) -> Result<Exit> {
        match self.command {
            Command::Show(show) => show.run(output),
            Command::Verify(verify) => verify.run(output),
            Command::Update(update) => update.run(output),
        }
    }
}

impl Show {
    fn run(self, output: Output) -> Result<Exit> {
        let bytes_per_s = self.bandwidth.map_or(explain::LINK_BYTES_PER_S, |rate| rate.0 as f64);
        for Saved { plan, job, considered, .. } in read(&self.file)? {
            if self.dot {
                print(&weft_plan::to_dot(&plan)?)?;
            } else {
                explain::show(&plan, &job, &considered, bytes_per_s, output)?;
            }
        }
        Ok(Exit::Ok)
    }
}

impl Verify {
    fn run(self, output: Output) -> Result<Exit> {
        let plans = read(&self.file)?;
        let count = plans.len();
        let mut refused = None;
        for (number, Saved { plan, job, .. }) in plans.iter().enumerate() {
            let code = weft_codes::parse_of_plan(&plan.shape.code).map_err(Error::invalid)?;
            if let Err(refusal) = offline::prove(plan, &code, job) {
                refused = Some((number, refusal));
                break;
            }
        }
        let verdict = Verdict::new(count, refused.as_ref());
        match refused {
            Some((number, refusal)) if !output.json => {
                let which = if count == 1 { "the plan".to_owned() } else { format!("plan {} of {count}", number + 1) };
                Err(Error::corrupt(format!("{which} is refused: {refusal}")))
            }
            refused => {
                let right = if count == 1 { "proved".to_owned() } else { format!("{count} plans proved") };
                output.result(&verdict, |_| format!("{right}: every sink gets what the job requires"))?;
                Ok(if refused.is_none() { Exit::Ok } else { Exit::Corrupt })
            }
        }
    }
}

/// Whether plans are proved, and if not, why.
#[derive(Debug, Serialize)]
struct Verdict {
    verified: bool,
    plans: usize,
    /// The number of the refused plan, from 0.
    plan: Option<usize>,
    rule: Option<String>,
    refusal: Option<String>,
    places: Vec<Where>,
}

/// Where a plan is wrong.
#[derive(Debug, Serialize)]
struct Where {
    lane: usize,
    stage: Option<usize>,
    party: Option<String>,
}

impl Verdict {
    fn new(plans: usize, refused: Option<&(usize, Refusal)>) -> Self {
        let refusal = refused.map(|(_, refusal)| refusal);
        let place = |place: &weft_plan::Place| Where {
            lane: place.lane,
            stage: place.stage,
            party: place.party.map(|party| party.to_string()),
        };
        Self {
            verified: refused.is_none(),
            plans,
            plan: refused.map(|(number, _)| *number),
            rule: refusal.map(|refusal| format!("{:?}", refusal.rule).to_lowercase()),
            refusal: refusal.map(ToString::to_string),
            places: refusal.iter().flat_map(|refusal| refusal.places.iter().map(place)).collect(),
        }
    }
}

fn read(path: &Path) -> Result<Vec<Saved>> {
    let text =
        if path == Path::new("-") { read_bounded(std::io::stdin()) } else { std::fs::File::open(path).and_then(read_bounded) };
    let text = text.map_err(|error| io_error(path, "read", &error))?;
    let text = String::from_utf8(text)
        .map_err(|_| Error::invalid(format!("{}: not a saved plan: the file is not text", path.display())))?;
    explain::read_saved(&text).map_err(|error| Error::new(error.reaction, format!("{}: {}", path.display(), error.message)))
}

/// The parser refuses longer files; this limit only stops reading them.
fn read_bounded(from: impl std::io::Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(from, JSON_BYTES_MAX as u64 + 1), &mut bytes)?;
    Ok(bytes)
}
