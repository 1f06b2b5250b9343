//! `weft reproduce`: runs experiments of papers on a testbed of this machine.

use super::reproduce_cpu::Cpu;
use crate::{
    bench::{
        check::{too_busy, warnings},
        in_place::journal_bytes,
        place::{Own, in_testbed_as},
    },
    reproduce::{
        Figure, Paper, Report, SEED, Scale, ecpipe, mist,
        page::write_page,
        repairboost::{self, Asked},
        report::{labelled, read, text, write},
        run::{self, settings},
    },
    testbed::LinkRate,
};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use weft_cli::{
    exit::Exit,
    interrupt::{self, Watch},
    local::DaemonSettings,
    output::{Output, print},
    target,
};
use weft_types::{ByteSize, Error, Result};

/// Run experiments of papers, and compare our results with theirs
///
/// Each figure is measured on a temporary testbed (see `weft testbed`). Experiments are scaled to one machine, with slower links and
/// smaller blocks; the result says so.
#[derive(Debug, Args)]
pub(super) struct Reproduce {
    #[command(subcommand)]
    paper: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ecpipe(Ecpipe),
    Mist(Mist),
    Repairboost(Repairboost),
    Cpu(Cpu),
}

/// Repair pipelining: figures 6 and 7 of "Repair Pipelining for Erasure-Coded Storage" (USENIX ATC 2017)
///
/// 6a: slice size. 6b: block size. 6c: parameters of the code. 6d: codes that read less to repair. 6e: recovery of a whole node. 6f:
/// little bandwidth to the requestor. 7: several regions.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft reproduce ecpipe --figure 6a
  sudo weft reproduce ecpipe --all --out figures
  sudo weft reproduce ecpipe --figure 6b,6f --quick --json
  weft reproduce ecpipe --all --redraw --out figures

EXIT CODES
  0 done   1 failed   2 invalid settings   \
  4 no root, no `ip`, no `tc`, or the machine cannot carry these links   130 interrupted; nothing is left behind")]
struct Ecpipe {
    #[command(flatten)]
    what: What,
}

/// Dissemination of new data: figures of "Mist: Efficient Dissemination of Erasure-Coded Data in Data Centers"
///
/// 9: number of nodes that get a block. 10: size of the data. 11: time of each part. 12: slice size. 13: traffic over all links. 14:
/// copies beside coded blocks. 15: several writers at once. 16: nodes that compute slowly.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft reproduce mist --figure 9
  sudo weft reproduce mist --all --out figures
  sudo weft reproduce mist --figure 13,15 --quick --json
  weft reproduce mist --all --redraw --out figures

EXIT CODES
  0 done   1 failed   2 invalid settings   \
  4 no root, no `ip`, no `tc`, or the machine cannot carry these links   130 interrupted; nothing is left behind")]
struct Mist {
    #[command(flatten)]
    what: What,
}

/// Repair of a whole node: a table of "Boosting Full-Node Repair in Erasure-Coded Storage" (USENIX ATC 2021)
///
/// table1: how unevenly links are loaded if helpers and destinations are chosen stripe by stripe, and if they are
/// balanced. It is computed from plans: nothing is sent, and it needs no root.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft reproduce repairboost --figure table1
  weft reproduce repairboost --all --out figures
  weft reproduce repairboost --figure table1 --sets 20 --json

EXIT CODES
  0 done   1 failed   2 invalid settings   130 interrupted; nothing is left behind")]
struct Repairboost {
    /// What to compute
    #[arg(long, value_name = "FIGURE", value_parser = [repairboost::TABLE_1], required_unless_present = "all")]
    figure: Option<String>,
    /// Compute all
    #[arg(long, conflicts_with = "figure")]
    all: bool,
    /// Write the results (JSON) and a page of all figures in it (reproduce.md) to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Compute nothing: write the page again from the results in DIR
    #[arg(long, requires = "out", conflicts_with_all = ["quick", "sets", "seed"])]
    redraw: bool,
    /// Compute 20 sets: to check that it works, not to cite
    #[arg(long, conflicts_with = "sets")]
    quick: bool,
    /// Sets of five runs
    #[arg(long, value_name = "N", default_value_t = repairboost::SETS as u32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sets: u32,
    /// Seed of all random choices
    #[arg(long, default_value_t = SEED)]
    seed: u64,
}

/// What is run, and how.
#[derive(Debug, Args)]
pub(super) struct What {
    /// Figures to measure
    #[arg(long, value_name = "FIGURE", value_delimiter = ',', required_unless_present = "all")]
    pub(super) figure: Vec<String>,
    /// Measure all figures
    #[arg(long, conflicts_with = "figure")]
    pub(super) all: bool,
    /// Write tables (CSV, JSON), charts (SVG, PNG) and a page of all figures in it (reproduce.md) to this directory
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Measure nothing: write tables, charts and page again from the results in DIR (the JSON files); needs no root
    #[arg(long, requires = "out", conflicts_with_all = ["quick", "runs", "block_size"])]
    pub(super) redraw: bool,
    /// Use small sizes and two runs: to check that it works, not to cite
    #[arg(long)]
    pub(super) quick: bool,
    /// Number of measured runs of each point [default: the figure's]
    #[arg(long, value_name = "N")]
    pub(super) runs: Option<usize>,
    /// Bytes of the largest block, or of the largest object for figures of writes [default: the figure's]
    #[arg(long, visible_alias = "size", value_name = "SIZE")]
    block_size: Option<ByteSize>,
    /// Rate that each node sends and receives [default: the figure's]
    #[arg(long, value_name = "RATE")]
    link: Option<LinkRate>,
    /// Seed of the data and of all random choices
    #[arg(long, default_value_t = SEED)]
    pub(super) seed: u64,
}

impl Reproduce {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match self.paper {
            Command::Ecpipe(it) => it.what.run(&ecpipe::PAPER, options, output),
            Command::Mist(it) => it.what.run(&mist::PAPER, options, output),
            Command::Repairboost(it) => it.run(output),
            Command::Cpu(it) => it.run(options, output),
        }
    }
}

impl Repairboost {
    /// The sets with --quick.
    const QUICK_SETS: usize = 20;

    fn run(self, output: Output) -> Result<Exit> {
        let _watch = Watch::begin()?;
        let report = match (&self.out, self.redraw) {
            (Some(out), true) => {
                let none = || Error::not_found(format!("{} has no results of {}", out.display(), repairboost::NAME));
                repairboost::read(out)?.ok_or_else(none)?
            }
            _ => {
                let sets = if self.quick { Self::QUICK_SETS } else { self.sets as usize };
                let told = |done: usize, all: usize| {
                    if !output.json {
                        eprintln!("{done} of {all} rows");
                    }
                };
                repairboost::run(Asked { sets, seed: self.seed }, told)?
            }
        };
        if let Some(out) = &self.out {
            repairboost::write(&report, out)?;
            write_page(out)?;
        }
        output.result(&report, repairboost::text)?;
        Ok(Exit::Ok)
    }
}

impl What {
    fn run(&self, paper: &'static Paper, options: &target::Options, output: Output) -> Result<Exit> {
        let figures = self.figures(paper)?;
        for figure in &figures {
            self.check(figure, output)?;
        }
        let _watch = Watch::begin()?;
        let mut reports = Vec::new();
        for figure in figures {
            interrupt::check()?;
            let (report, text) = self.figure(paper, figure, options, output)?;
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

    /// Measures one figure, or reads it, and writes what is to be written. Returns it also for a person.
    pub(super) fn figure(
        &self,
        paper: &'static Paper,
        figure: &'static Figure,
        options: &target::Options,
        output: Output,
    ) -> Result<(Report, String)> {
        let report = match (&self.out, self.redraw) {
            (Some(out), true) => self.read(paper, figure, out)?,
            _ => self.measure(paper, figure, options, output)?,
        };
        if let Some(out) = &self.out {
            write(paper, figure, &report, out)?;
            write_page(out)?;
        }
        let text = text(paper, figure, &report);
        Ok((report, text))
    }

    /// Fails if a figure cannot be run with these options.
    pub(super) fn check(&self, figure: &Figure, output: Output) -> Result<()> {
        let options = self.options(figure, output)?;
        run::check(options)?;
        run::check_updates(figure, options)
    }

    fn figures(&self, paper: &'static Paper) -> Result<Vec<&'static Figure>> {
        if self.all {
            return Ok(paper.figures.iter().collect());
        }
        self.figure.iter().map(|name| self.named(paper, name)).collect()
    }

    /// The figure of that name.
    pub(super) fn named(&self, paper: &'static Paper, name: &str) -> Result<&'static Figure> {
        let all: Vec<&str> = paper.figures.iter().map(|figure| figure.name).collect();
        let none = || Error::invalid(format!("there is no figure '{name}' of {}; choose from: {}", paper.name, all.join(", ")));
        paper.figure(name).ok_or_else(none)
    }

    fn options(&self, figure: &Figure, output: Output) -> Result<run::Options> {
        let (block_len, runs) = figure.usual(self.quick);
        let (block_len, runs) = (self.block_size.map_or(block_len, |size| size.0), self.runs.unwrap_or(runs));
        let link = self.link.map_or_else(|| figure.link.parse().map_err(Error::invalid), Ok)?;
        let scale = Scale { link, block_len, quick: self.quick };
        Ok(run::Options { scale, runs, seed: self.seed, quiet: output.json })
    }

    fn measure(&self, paper: &Paper, figure: &Figure, options: &target::Options, output: Output) -> Result<Report> {
        let how = self.options(figure, output)?;
        // It creates its own testbeds, whatever WEFT_CLUSTER says.
        let options = &target::Options { cluster: None, ..options.clone() };
        let on_disk = run::is_of_updates(&(figure.setups)(how.scale)?);
        let adjust = |it: DaemonSettings<'_>| match it {
            DaemonSettings::Coordinator(config) => run::adjust(config),
            DaemonSettings::Agent(_, config) if on_disk => config.limits.update_journal = journal_bytes(how.scale.block_len),
            DaemonSettings::Agent(..) => {}
        };
        let (settings, own) = (settings(figure, how.scale.link, options.insecure)?, Own { on_disk, adjust: &adjust });
        in_testbed_as(options, settings, &own, async |session, testbed| {
            let testbed = testbed.ok_or_else(|| Error::fatal("figures are measured on a testbed"))?;
            let mut report = run::run(paper, figure, how, session, testbed).await?;
            let outcomes = labelled(&report.results);
            // An update takes more than its links.
            report.warnings.extend(if on_disk { too_busy(&outcomes).into_iter().collect() } else { warnings(&outcomes) });
            Ok(report)
        })
    }

    fn read(&self, paper: &Paper, figure: &Figure, dir: &Path) -> Result<Report> {
        let none = || Error::not_found(format!("{} has no {}.json", dir.display(), figure.stem(paper)));
        read(paper, figure, dir)?.ok_or_else(none)
    }
}
