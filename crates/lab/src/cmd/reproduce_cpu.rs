//! `weft reproduce cpu`: experiments of the paper on updates in place. Its figures are measured; two are also predicted, and a table is computed.

use super::reproduce::What;
use crate::reproduce::{
    Figure, cpu,
    cpu_figures::PAPER,
    cpu_table::{self, TABLE_3},
    page::write_page,
};
use clap::Args;
use serde_json::Value;
use weft_cli::{
    exit::Exit,
    interrupt::{self, Watch},
    output::{Output, print},
    target,
};
use weft_types::{Error, Result};

/// Updates in place: figures and a table of "CPU: Cross-Rack-Aware Pipelining Update for Erasure-Coded Storage"
///
/// 5: regions. 6: no slices. 7: ways to select the path. 8: slice size. 9: number of parity racks. 10: size of the update. 11: several data blocks of a
/// stripe at once. 12: several stripes at once. 5+7: both, predicted from plans. Table 3: the tabu search for paths. The last two send nothing and
/// need no root. The others need a disk: they are measured below TMPDIR.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft reproduce cpu --figure 9
  sudo weft reproduce cpu --all --out figures
  sudo weft reproduce cpu --figure 5,7,10 --quick --json
  weft reproduce cpu --figure 5+7 --table 3

EXIT CODES
  0 done   1 failed   2 invalid settings   5 a byte came back wrong   \
  4 no root, no `ip`, no `tc`, or the machine cannot carry these links   130 interrupted; nothing is left behind")]
#[command(mut_arg("figure", |arg| arg.required_unless_present_any(["all", "table"])))]
pub(super) struct Cpu {
    #[command(flatten)]
    what: What,
    /// The table to compute
    #[arg(long, value_name = "TABLE", value_parser = ["3"], conflicts_with = "all")]
    table: Option<String>,
}

/// Searches with --quick.
const QUICK_SEARCHES: usize = 20;
const ITERATIONS: u32 = 100;
/// The prediction, also by the name of its files.
const PREDICTED: [&str; 2] = [cpu::FIGURES, "regions"];

/// One of its experiments.
#[derive(Debug, Clone, Copy)]
enum Part {
    Measured(&'static Figure),
    Predicted,
    Table,
}

impl Cpu {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let parts = self.parts()?;
        for part in &parts {
            if let Part::Measured(figure) = part {
                self.what.check(figure, output)?;
            }
        }
        let _watch = Watch::begin()?;
        let mut reports = Vec::new();
        for part in parts {
            interrupt::check()?;
            let (report, text) = self.part(part, options, output)?;
            if !output.json {
                print(&format!("{text}\n"))?;
            }
            reports.push(report);
        }
        if output.json {
            output.result(&reports, |_| String::new())?;
        }
        Ok(Exit::Ok)
    }

    fn parts(&self) -> Result<Vec<Part>> {
        let (what, all) = (&self.what, PAPER.figures.iter().map(Part::Measured));
        if what.all {
            return Ok(all.chain([Part::Predicted, Part::Table]).collect());
        }
        let named = |name: &String| match name.as_str() {
            TABLE_3 => Ok(Part::Table),
            name if PREDICTED.contains(&name) => Ok(Part::Predicted),
            name => what.named(&PAPER, name).map(Part::Measured),
        };
        let parts: Result<Vec<Part>> = what.figure.iter().map(named).collect();
        Ok(parts?.into_iter().chain(self.table.iter().map(|_| Part::Table)).collect())
    }

    fn part(&self, part: Part, options: &target::Options, output: Output) -> Result<(Value, String)> {
        let What { out, redraw, quick, runs, seed, .. } = &self.what;
        let done = match part {
            Part::Measured(figure) => {
                let (report, text) = self.what.figure(&PAPER, figure, options, output)?;
                (serde_json::to_value(&report).map_err(Error::fatal)?, text)
            }
            Part::Predicted => {
                // It is computed again in less time than it is read.
                let report = cpu::run(cpu::Asked { seed: *seed })?;
                out.as_ref().map(|out| cpu::write(&report, out)).transpose()?;
                (serde_json::to_value(&report).map_err(Error::fatal)?, cpu::text(&report))
            }
            Part::Table => {
                let report = match out.as_ref().filter(|_| *redraw) {
                    Some(out) => {
                        let none = || Error::not_found(format!("{} has no results of {TABLE_3}", out.display()));
                        cpu_table::read(out)?.ok_or_else(none)?
                    }
                    None => {
                        let usual = if *quick { QUICK_SEARCHES } else { cpu_table::RUNS };
                        let runs = runs.unwrap_or(usual);
                        if runs == 0 {
                            return Err(Error::invalid("--runs must be at least 1"));
                        }
                        let told = |done: usize, all: usize| {
                            if !output.json && done.is_multiple_of(11) {
                                eprintln!("{done} of {all} nodes");
                            }
                        };
                        cpu_table::run(cpu_table::Asked { runs, iterations: ITERATIONS, seed: *seed }, told)?
                    }
                };
                out.as_ref().map(|out| cpu_table::write(&report, out)).transpose()?;
                (serde_json::to_value(&report).map_err(Error::fatal)?, cpu_table::text(&report))
            }
        };
        if let Some(out) = out {
            write_page(out)?;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        cpu: Cpu,
    }

    #[test]
    fn figures_and_the_table_are_named_as_in_the_paper() {
        let parts = |args: &[&str]| {
            let line =
                Line::try_parse_from(std::iter::once("cpu").chain(args.iter().copied())).map_err(|error| error.to_string())?;
            let name = |part: &Part| match part {
                Part::Measured(figure) => figure.name,
                Part::Predicted => "predicted",
                Part::Table => "table",
            };
            let parts = line.cpu.parts().map_err(|error| error.message)?;
            Ok::<_, String>(parts.iter().map(name).collect::<Vec<_>>())
        };
        assert_eq!(parts(&["--all"]).unwrap(), ["5", "6", "7", "8", "9", "10", "11", "12", "predicted", "table"]);
        assert_eq!(parts(&["--figure", "9,5+7", "--table", "3"]).unwrap(), ["9", "predicted", "table"]);
        assert_eq!(parts(&["--table", "3"]).unwrap(), ["table"]);
        assert_eq!(parts(&["--figure", "regions,table3"]).unwrap(), ["predicted", "table"], "by the names of their files");
        assert!(parts(&["--figure", "13"]).unwrap_err().contains("choose from: 5, 6"));
        for wrong in [&[][..], &["--table", "2"], &["--all", "--table", "3"], &["--all", "--figure", "9"]] {
            assert!(parts(wrong).is_err(), "{wrong:?}");
        }
    }
}
