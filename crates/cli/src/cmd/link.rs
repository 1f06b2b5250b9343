//! `weft link`: the bandwidth of links between nodes.

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal as _,
};
use weft_cli::{
    exit::Exit,
    names::with_names,
    output::Output,
    session::Session,
    table::{columns, table},
    target,
};
use weft_client::api;
use weft_types::{Error, NodeId, Result};

/// Show and measure the links between nodes
#[derive(Debug, Args)]
pub(super) struct Link {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(Ls),
    Probe(Probe),
}

/// Show the measured bandwidth between nodes
///
/// The coordinator measures idle links periodically (its setting link_probe_interval_ms); `weft link probe` measures them at once.
/// Repairs avoid slow links. If all links out of a rack, or into it, are slower than the other links of their nodes, the rack's
/// nodes are assumed to share one line, and plans send little over it. Measurements are kept in memory: after a restart, the
/// coordinator treats all links alike until it has measured them again.
///
/// This table does not show slow disks and processors. If plans have waited much longer for a node than for others, the node becomes a
/// helper in the next five minutes only if no other node can replace it.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft link ls

EXIT CODES
  0 done   3 no cluster   4 no coordinator")]
struct Ls {}

/// Measure links now
///
/// Sends about 2 MiB over each link, for half a second at most: real bytes, over the connections that repairs use. A node takes part
/// in one measurement at a time.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft link probe
  weft link probe --from node-03 --to node-05 --to node-06

EXIT CODES
  0 done   1 some links could not be measured   2 no link, or too many   3 no such node, or no cluster   4 a node is down, or no \
  coordinator")]
struct Probe {
    /// Measure only links on which this node sends (name or number); can be repeated
    #[arg(long, value_name = "NODE")]
    from: Vec<String>,
    /// Measure only links on which this node receives (name or number); can be repeated
    #[arg(long, value_name = "NODE")]
    to: Vec<String>,
}

/// The known links.
#[derive(Debug, Default, Serialize)]
struct Report {
    links: Vec<Figure>,
    /// Overhead of one slice, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    slice_overhead_s: Option<f64>,
    /// Racks whose nodes share one line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    racks: Vec<RackLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Failed>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Figure {
    from: String,
    from_name: String,
    to: String,
    to_name: String,
    bytes_per_s: f64,
    age_ms: u64,
}

/// Bandwidth of a rack's line; none: no shared line was detected.
#[derive(Debug, Serialize)]
struct RackLine {
    rack: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    up_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    down_bytes_per_s: Option<f64>,
}

/// A link that could not be measured.
#[derive(Debug, Serialize)]
struct Failed {
    from: String,
    to: String,
    error: String,
}

/// Most nodes in a matrix; larger clusters get a list.
const MATRIX_NODES_MAX: usize = 12;

impl Link {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match self.command {
            Command::Ls(Ls {}) => {
                let (known, nodes) = Session::with(options, async |session| {
                    let known = session.client.links().await?;
                    Ok((known, session.client.status().await?.nodes))
                })?;
                let links = known.links.iter().map(|link| Figure::new(link, &nodes)).collect();
                let (slice_overhead_s, warnings) = (known.slice_overhead_s, known.warnings);
                let line = |it: api::RackLine| RackLine {
                    rack: it.rack,
                    up_bytes_per_s: it.up_bytes_per_s,
                    down_bytes_per_s: it.down_bytes_per_s,
                };
                let racks = known.racks.into_iter().map(line).collect();
                let report = Report { links, slice_overhead_s, racks, failed: Vec::new(), warnings };
                output.result_with(&report, &report.warnings, text).map(|()| Exit::Ok)
            }
            Command::Probe(asked) => {
                let report = Session::with(options, async |session| asked.probe(session, output).await)?;
                output.result(&report, text)?;
                report.failure().map_or(Ok(Exit::Ok), Err)
            }
        }
    }
}

impl Probe {
    async fn probe(&self, session: &Session, output: Output) -> Result<Report> {
        let nodes = session.client.status().await?.nodes;
        let named = |said: &[String]| said.iter().map(|said| node(said, &nodes)).collect::<Result<Vec<_>>>();
        let mut probe = session.client.probe_links(&named(&self.from)?, &named(&self.to)?).await?;
        let bar = if output.json || !std::io::stderr().is_terminal() { ProgressBar::hidden() } else { ProgressBar::new(0) };
        let mut report = Report::default();
        while let Some(event) = probe.next().await? {
            bar.set_length(event.total.into());
            if let Some(link) = event.link {
                report.links.push(Figure::new(&link, &nodes));
            } else if event.error.is_empty() {
                continue;
            } else {
                let error = weft_proto::status::decode_error(&event.error)
                    .unwrap_or_else(|| Error::fatal("the coordinator sent an unknown message"));
                let (from, to) = (NodeId(event.from).to_string(), NodeId(event.to).to_string());
                report.failed.push(Failed { from, to, error: with_names(&error.to_string(), &nodes) });
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        report.links.sort_by(|a, b| (&a.from_name, &a.to_name).cmp(&(&b.from_name, &b.to_name)));
        Ok(report)
    }
}

/// The named node.
fn node(said: &str, nodes: &[api::Node]) -> Result<NodeId> {
    let is_it = |node: &&api::Node| node.name == said || NodeId(node.id).to_string() == said;
    let found = nodes.iter().find(is_it).map(|node| NodeId(node.id));
    found.ok_or_else(|| Error::not_found(format!("there is no node '{said}': `weft node ls` lists all nodes")))
}

impl Figure {
    fn new(it: &api::LinkFigure, nodes: &[api::Node]) -> Self {
        let name = |id: u32| {
            let node = nodes.iter().find(|node| node.id == id);
            node.map_or_else(|| NodeId(id).to_string(), |node| node.name.clone())
        };
        let (from, to) = (NodeId(it.from).to_string(), NodeId(it.to).to_string());
        let (from_name, to_name) = (name(it.from), name(it.to));
        Self { from, from_name, to, to_name, bytes_per_s: it.bytes_per_s, age_ms: it.age_ms }
    }
}

impl Report {
    fn failure(&self) -> Option<Error> {
        let first = self.failed.first()?;
        let (failed, all) = (self.failed.len(), self.failed.len() + self.links.len());
        Some(Error::fatal(format!("could not measure {failed} of {all} links; the first error: {}", first.error)))
    }
}

fn text(it: &Report) -> String {
    let Some(oldest_ms) = it.links.iter().map(|link| link.age_ms).max() else {
        return "no link has been measured yet: measure them now with `weft link probe`".to_owned();
    };
    let names: BTreeSet<&str> = it.links.iter().flat_map(|link| [link.from_name.as_str(), &link.to_name]).collect();
    let fits = names.len() <= MATRIX_NODES_MAX && it.links.len() > names.len();
    let mut text = if fits { matrix(&it.links, &names) } else { list(&it.links) };
    text += &format!("\n\nMbit/s{}; ", if fits { ", from row to column" } else { "" });
    text += &format!("the oldest measurement is {} old", age(oldest_ms));
    if let Some(seconds) = it.slice_overhead_s {
        text += &format!("; overhead per slice {:.0} µs", seconds * 1e6);
    }
    for RackLine { rack, up_bytes_per_s, down_bytes_per_s } in &it.racks {
        let parts = [("out", up_bytes_per_s), ("in", down_bytes_per_s)];
        let parts = parts.into_iter().filter_map(|(way, rate)| Some(format!("{} {way}", mbit((*rate)?))));
        text += &format!("\nthe nodes of {rack} share a line: {}", parts.collect::<Vec<_>>().join(", "));
    }
    text
}

fn matrix(links: &[Figure], names: &BTreeSet<&str>) -> String {
    let rates: BTreeMap<(&str, &str), f64> =
        links.iter().map(|link| ((link.from_name.as_str(), link.to_name.as_str()), link.bytes_per_s)).collect();
    let cell = |from: &str, to: &str| rates.get(&(from, to)).map_or_else(|| "-".to_owned(), |rate| mbit(*rate));
    let row = |from: &str| -> Vec<String> {
        let cells = names.iter().map(|to| if *to == from { String::new() } else { cell(from, to) });
        std::iter::once(from.to_owned()).chain(cells).collect()
    };
    let right: Vec<usize> = (1..=names.len()).collect();
    columns(std::iter::once("").chain(names.iter().copied()), &right, names.iter().map(|from| row(from)))
}

fn list(links: &[Figure]) -> String {
    let row = |it: &Figure| [it.from_name.clone(), it.to_name.clone(), mbit(it.bytes_per_s), age(it.age_ms)];
    table(["from", "to", "Mbit/s", "age"], &[2, 3], links.iter().map(row))
}

/// Three digits: measurements are no more precise.
fn mbit(bytes_per_s: f64) -> String {
    let mbit = bytes_per_s * 8e-6;
    if mbit < 10.0 {
        format!("{mbit:.2}")
    } else if mbit < 100.0 {
        format!("{mbit:.1}")
    } else {
        format!("{mbit:.0}")
    }
}

fn age(age_ms: u64) -> String {
    match age_ms / 1000 {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(from: &str, to: &str, bytes_per_s: f64, age_ms: u64) -> Figure {
        let (from, to) = (from.to_owned(), to.to_owned());
        Figure { from_name: from.clone(), to_name: to.clone(), from, to, bytes_per_s, age_ms }
    }

    #[test]
    fn few_nodes_are_shown_as_a_matrix_and_few_links_as_a_list() {
        let mut report = Report { slice_overhead_s: Some(21.4e-6), ..Report::default() };
        assert!(text(&report).contains("weft link probe"));
        report.links = vec![figure("a", "b", 125e3, 1_000), figure("b", "a", 25e6, 130_000)];
        assert_eq!(
            text(&report),
            "from  to  Mbit/s    age\na     b     1.00    1 s\nb     a      200  2 min\n\n\
             Mbit/s; the oldest measurement is 2 min old; overhead per slice 21 µs"
        );
        report.links.extend([figure("a", "c", 1.25e9, 0), figure("c", "a", 2.5e6, 0)]);
        assert_eq!(
            text(&report).lines().collect::<Vec<_>>()[..4],
            ["      a     b      c", "a        1.00  10000", "b   200            -", "c  20.0     -"]
        );
    }
}
