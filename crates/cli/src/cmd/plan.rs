//! `weft plan`: plans that were saved, looked at and proved.

use super::explain;
use crate::{
    exit::Exit,
    offline,
    output::{Output, print},
};
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::{Path, PathBuf};
use weft_plan::{JSON_BYTES_MAX, Network, Saved};
use weft_types::{ByteSize, Error, Result};

/// Look at a saved plan, or prove it right
#[derive(Debug, Args)]
pub(super) struct Plan {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(Show),
    Verify(Verify),
}

/// Who sends what to whom, what it costs, and how long it should take
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft repair object photos/cat.jpg --block 3 --explain --json > plan.json
  weft plan show plan.json
  weft plan show plan.json --dot | dot -Tsvg > plan.svg

EXIT CODES
  0 done   2 not a saved plan, or one that could not run   3 no FILE")]
struct Show {
    /// A plan that was saved; `-` reads stdin
    file: PathBuf,
    /// As a graph in Graphviz' language
    #[arg(long, conflicts_with = "json")]
    dot: bool,
    /// Predict the time for links of this many bytes a second
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<ByteSize>,
}

/// Prove by algebra that a saved plan does what its job wants
///
/// The generator of the plan's code is pushed through its stages, and what reaches each sink is compared with what the code
/// says must be there.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft plan verify plan.json && echo right

EXIT CODES
  0 proved   2 not a saved plan   3 no FILE   5 refused: the message names the stage that is wrong, or the sink")]
struct Verify {
    /// A plan that was saved; `-` reads stdin
    file: PathBuf,
}

impl Plan {
    pub(super) fn run(self, output: Output) -> Result<Exit> {
        match self.command {
            Command::Show(show) => show.run(output),
            Command::Verify(verify) => verify.run(output),
        }
    }
}

impl Show {
    fn run(self, output: Output) -> Result<Exit> {
        let Saved { plan, job, .. } = read(&self.file)?;
        let network = self.bandwidth.map(|rate| Network::uniform(rate.0 as f64));
        if self.dot {
            return print(&weft_plan::to_dot(&plan)?).map(|()| Exit::Ok);
        }
        explain::show(&plan, &job, network.as_ref(), output)
    }
}

impl Verify {
    fn run(self, output: Output) -> Result<Exit> {
        let Saved { plan, job, .. } = read(&self.file)?;
        let code = weft_codes::parse(&plan.shape.code).map_err(Error::invalid)?;
        let refusal = offline::prove(&plan, &code, &job).err();
        let verdict = json!({
            "verified": refusal.is_none(),
            "code": code.spec(),
            "rule": refusal.as_ref().map(|refusal| format!("{:?}", refusal.rule).to_lowercase()),
            "refusal": refusal.as_ref().map(ToString::to_string),
            "places": refusal.iter().flat_map(|refusal| &refusal.places)
                .map(|place| json!({ "lane": place.lane, "stage": place.stage, "party": place.party.map(|party| party.to_string()) }))
                .collect::<Vec<_>>(),
        });
        match refusal {
            Some(refusal) if !output.json => Err(Error::corrupt(format!("the plan is refused: {refusal}"))),
            refusal => {
                let right = "proved: what reaches every sink is what the job wants";
                output.result(&verdict, |_| right.to_owned())?;
                Ok(if refusal.is_none() { Exit::Ok } else { Exit::Corrupt })
            }
        }
    }
}

fn read(path: &Path) -> Result<Saved> {
    let text =
        if path == Path::new("-") { read_bounded(std::io::stdin()) } else { std::fs::File::open(path).and_then(read_bounded) };
    let text = text.map_err(|error| offline::io_error(path, "read", &error))?;
    weft_plan::from_json(&text).map_err(|error| Error::new(error.reaction, format!("{}: {}", path.display(), error.message)))
}

/// Longer files are refused by whoever reads the text; here they are only not read to their end.
fn read_bounded(from: impl std::io::Read) -> std::io::Result<String> {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::Read::take(from, JSON_BYTES_MAX as u64 + 1), &mut text)?;
    Ok(text)
}
