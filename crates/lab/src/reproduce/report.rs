//! Our numbers beside the paper's, for a person and as files: `ecpipe-6a.csv`, `.json`, `.svg`, `.png`. [`page`](super::page) is a page of
//! all figures that have files.

use super::{Asked, At, Claim, Disks, Figure, How, Paper, Point, Report, SEED, Value, chart, find};
use crate::bench::{self, Outcome};
use serde::{Serialize, de::DeserializeOwned};
use std::{fs, io::ErrorKind, path::Path};
use weft_cli::{
    files::io_error,
    table::{columns, table},
};
use weft_types::{Error, Result};

/// Our number for a scheme that the results do not have yet.
const NOT_MEASURED: &str = "not measured";

/// A claim with our number.
pub(super) struct Beside {
    pub(super) text: &'static str,
    pub(super) paper: &'static str,
    pub(super) ours: String,
    /// The number that the links alone would give.
    pub(super) links: String,
}

/// A whole figure for a person.
pub(crate) fn text(paper: &Paper, figure: &Figure, report: &Report) -> String {
    let asked = &report.settings;
    let rows = beside(figure, report).into_iter().map(|it| [it.text.to_owned(), it.paper.to_owned(), it.ours, it.links]);
    let claims = table(["", "paper", "here", "link bound"], &[1, 2, 3], rows);
    let warnings: String = report.warnings.iter().map(|warning| format!("\nwarning: {warning}")).collect();
    let (name, title, scale, machine) = (figure.name, figure.title, scale(paper, report), &report.machine);
    let results = bench::results(&labelled(&report.results), &base_label(figure));
    let rates = if figure.value == Value::Rate { format!("\n\n{}", rates(figure, report)) } else { String::new() };
    let (paper, command) = (&asked.paper, command(paper, figure, report));
    format!("figure {name} of {paper}: {title}\n{scale}\n{command}\n\n{results}{rates}\n\n{claims}\n\n{machine}{warnings}")
}

/// The command that measures it again in the same way.
pub(super) fn command(paper: &Paper, figure: &Figure, report: &Report) -> String {
    let Asked { quick, runs, block_size, seed, link, testbed, .. } = &report.settings;
    let (usual_len, usual_runs) = figure.usual(*quick);
    // If racks have links of their own, the figure sets all rates. Older results record the rates only in their testbed.
    let link = link.or(testbed.link).filter(|link| link.to_string() != figure.link);
    let mut command = format!("sudo weft reproduce {} --figure {}", paper.name, figure.name);
    let options = [
        quick.then(|| " --quick".to_owned()),
        (*runs != usual_runs).then(|| format!(" --runs {runs}")),
        (block_size.0 != usual_len).then(|| format!(" --block-size {block_size}")),
        link.map(|link| format!(" --link {link}")),
        (*seed != SEED).then(|| format!(" --seed {seed}")),
        testbed.insecure.then(|| " --insecure".to_owned()),
    ];
    command.extend(options.into_iter().flatten());
    command
}

/// Rebuild rates, one row per place.
fn rates(figure: &Figure, report: &Report) -> String {
    let points = &report.results;
    let rate = |scheme: &str, x: &str| find(points, scheme, Some(x)).and_then(|point| point.rate_mib_s);
    let row = |x: String| -> Vec<String> {
        let rate = |scheme: &&str| rate(scheme, &x).map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
        let rates: Vec<String> = figure.schemes.iter().map(rate).collect();
        std::iter::once(x.clone()).chain(rates).collect()
    };
    let heading: Vec<&str> = std::iter::once(figure.x).chain(figure.schemes.iter().copied()).collect();
    let numbers: Vec<usize> = (1..heading.len()).collect();
    format!("rebuilt, MiB per second\n{}", columns(heading, &numbers, figure.places(points).into_iter().map(row)))
}

/// Outcomes, each named with its place.
pub(crate) fn labelled(points: &[Point]) -> Vec<Outcome> {
    let label = |point: &Point| match &point.x {
        Some(x) => format!("{x}  {}", point.outcome.scheme),
        None => point.outcome.scheme.clone(),
    };
    points.iter().map(|point| Outcome { scheme: label(point), ..point.outcome.clone() }).collect()
}

/// The scale of the experiment.
pub(super) fn scale(paper: &Paper, report: &Report) -> String {
    let asked = &report.settings;
    let nodes = asked.testbed.nodes;
    let links = asked.testbed.link.map(|link| format!(", links of {link} (the paper: {})", paper.links)).unwrap_or_default();
    let disks = asked.disks.as_ref().map(|Disks { file_system, journal, sync_ms }| {
        let syncs = if *sync_ms > 0.0 { format!("syncs {sync_ms} ms longer") } else { "no added time for syncs".to_owned() };
        format!("; disks on {file_system}, journals of {journal}, {syncs}")
    });
    let disks = disks.unwrap_or_default();
    let (runs, block) = (asked.runs, asked.block_size);
    let runs = if runs == 1 { "1 run".to_owned() } else { format!("medians of {runs} runs") };
    let quick = if asked.quick { "; quick: too small and too few runs to cite" } else { "" };
    format!("{nodes} nodes{links}, {} of {block} at most, {runs}{disks}{quick}", paper.sizes)
}

fn base_label(figure: &Figure) -> String {
    figure.base.x.map_or_else(|| figure.base.scheme.to_owned(), |x| format!("{} of {x}", figure.base.scheme))
}

pub(super) fn beside(figure: &Figure, report: &Report) -> Vec<Beside> {
    let is_known = |scheme: &str| scheme.is_empty() || report.results.iter().any(|point| point.outcome.scheme == scheme);
    let of = |claim: &Claim, seconds: fn(&Outcome) -> Option<f64>| {
        let none = if is_known(claim.of) && is_known(claim.than) { "-" } else { NOT_MEASURED };
        value(figure, claim, report, seconds).unwrap_or_else(|| none.to_owned())
    };
    let beside = |claim: &Claim| Beside {
        text: claim.text,
        paper: claim.paper,
        ours: of(claim, |outcome| Some(outcome.median_s)),
        links: of(claim, |outcome| outcome.bound_s),
    };
    figure.claims.iter().map(beside).collect()
}

/// Our number for a claim; None if results are missing.
fn value(figure: &Figure, claim: &Claim, report: &Report, seconds: fn(&Outcome) -> Option<f64>) -> Option<String> {
    let points = &report.results;
    let of = |scheme: &str, x: Option<&str>| find(points, scheme, x).and_then(|point| seconds(&point.outcome));
    let moved = |scheme: &str, x: Option<&str>| find(points, scheme, x).map(|point| point.outcome.bytes_moved as f64);
    let places = figure.places(points);
    let at = |x: &str| -> Option<f64> {
        let base = || of(figure.base.scheme, figure.base.x.or(Some(x)));
        Some(match claim.how {
            How::Less => 100.0 * (1.0 - of(claim.of, Some(x))? / of(claim.than, Some(x))?),
            How::More => 100.0 * (of(claim.of, Some(x))? / of(claim.than, Some(x))? - 1.0),
            How::Times => of(claim.than, Some(x))? / of(claim.of, Some(x))?,
            How::Faster => 100.0 * (of(claim.than, Some(x))? / of(claim.of, Some(x))? - 1.0),
            How::Ratio => of(claim.of, Some(x))? / base()?,
            How::Blocks => moved(claim.of, Some(x))? / report.settings.block_size.0 as f64,
            How::OverBound => of(claim.of, Some(x))? / find(points, claim.of, Some(x))?.outcome.bound_s?,
            How::Traffic => moved(claim.of, Some(x))? / moved(figure.base.scheme, figure.base.x.or(Some(x)))?,
            How::LessTraffic => 100.0 * (1.0 - moved(claim.of, Some(x))? / moved(claim.than, Some(x))?),
            How::Saves => of(claim.than, Some(x))? - of(claim.of, Some(x))?,
        })
    };
    let unit = match claim.how {
        How::Less | How::More | How::Faster | How::LessTraffic => " %",
        How::Times | How::OverBound | How::Traffic => " x",
        How::Ratio | How::Blocks => "",
        How::Saves => " s",
    };
    let digits = match claim.how {
        How::Ratio | How::OverBound => 3,
        How::Times | How::Traffic | How::Saves => 2,
        How::Less | How::More | How::Faster | How::Blocks | How::LessTraffic => 1,
    };
    let all: Option<Vec<f64>> = match claim.at {
        At::X(x) => at(x).map(|value| vec![value]),
        At::First => places.first().and_then(|x| at(x)).map(|value| vec![value]),
        At::Last => places.last().and_then(|x| at(x)).map(|value| vec![value]),
        // A scheme may be missing at some places.
        At::Most | At::All => Some(places.iter().filter_map(|x| at(x)).collect()),
        At::Range(places) => places.iter().map(|x| at(x)).collect(),
    };
    let all = all.filter(|all| !all.is_empty())?;
    let (least, most) = all.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), it| (low.min(*it), high.max(*it)));
    Some(match claim.at {
        At::Range(_) => format!("{least:.digits$}-{most:.digits$}{unit}"),
        At::All if format!("{least:.digits$}") != format!("{most:.digits$}") => {
            format!("{least:.digits$} to {most:.digits$}{unit}")
        }
        _ => format!("{most:.digits$}{unit}"),
    })
}

/// Writes the results and the figure into `dir`.
pub(crate) fn write(paper: &Paper, figure: &Figure, report: &Report, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|error| io_error(dir, "create", &error))?;
    for (name, content) in files(paper, figure, report)? {
        let path = dir.join(name);
        fs::write(&path, content).map_err(|error| io_error(&path, "write", &error))?;
    }
    Ok(())
}

/// The files of a figure: names and contents.
fn files(paper: &Paper, figure: &Figure, report: &Report) -> Result<[(String, Vec<u8>); 4]> {
    let chart = chart::Chart::of(paper, figure, report);
    let contents = [
        ("csv", csv(&report.results).into_bytes()),
        ("json", json(report)?.into_bytes()),
        ("svg", chart.svg()?.into_bytes()),
        ("png", chart.png()?),
    ];
    Ok(contents.map(|(ending, content)| (format!("{}.{ending}", figure.stem(paper)), content)))
}

/// The results of a figure, if `dir` has them.
pub(crate) fn read(paper: &Paper, figure: &Figure, dir: &Path) -> Result<Option<Report>> {
    read_json(dir, &format!("{}.json", figure.stem(paper)))
}

/// Writes results that have no chart.
pub(super) fn write_json(report: &impl Serialize, dir: &Path, file: &str) -> Result<()> {
    fs::create_dir_all(dir).map_err(|error| io_error(dir, "create", &error))?;
    let path = dir.join(file);
    fs::write(&path, json(report)?).map_err(|error| io_error(&path, "write", &error))
}

/// The results in this file, if `dir` has it.
pub(super) fn read_json<R: DeserializeOwned>(dir: &Path, file: &str) -> Result<Option<R>> {
    let path = dir.join(file);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| io_error(&path, "read", &error))?,
    };
    serde_json::from_str(&text).map(Some).map_err(|error| Error::invalid(format!("{}: {error}", path.display())))
}

fn json(report: &impl Serialize) -> Result<String> {
    Ok(format!("{}\n", serde_json::to_string_pretty(report).map_err(Error::fatal)?))
}

/// One line per point; unknown values are empty.
fn csv(points: &[Point]) -> String {
    let mut text = "x,scheme,median_s,min_s,max_s,runs,bytes_moved,bound_s,cpu_idle,ratio,rate_mib_s\n".to_owned();
    for Point { x, rate_mib_s, outcome: it } in points {
        let number = |it: Option<f64>| it.map(|it| it.to_string()).unwrap_or_default();
        let cells = [
            quoted(x.as_deref().unwrap_or_default()),
            quoted(&it.scheme),
            it.median_s.to_string(),
            it.min_s.to_string(),
            it.max_s.to_string(),
            it.runs.to_string(),
            it.bytes_moved.to_string(),
            number(it.bound_s),
            it.cpu_idle.to_string(),
            number(it.ratio),
            number(*rate_mib_s),
        ];
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

/// Quoted as in RFC 4180.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
