//! Experiments of papers, run on a testbed: what each figure measures, and what the paper says about it, as data.
//!
//! Each paper with measured figures has a file here ([`ecpipe`], [`mist`]) with its figures; [`run`] measures a figure, [`report`] compares our numbers with the
//! paper's and writes the files, [`chart`] draws, and [`page`] writes the page of all figures.
//! [`repairboost`] computes a table. Of the paper on updates, [`cpu_figures`] has the measured figures, which [`run_updates`] runs; [`cpu`] predicts
//! times, and [`cpu_table`] computes a table.

mod burst;
pub(crate) mod chart;
pub(crate) mod cpu;
pub(crate) mod cpu_figures;
pub(crate) mod cpu_table;
pub(crate) mod ecpipe;
pub(crate) mod mist;
pub(crate) mod page;
pub(crate) mod repairboost;
pub(crate) mod report;
pub(crate) mod run;
mod run_updates;
mod tables;

use crate::{
    bench::{self, Outcome, repair::Case},
    testbed::{LinkRate, Matrix, Settings},
};
use serde::{Deserialize, Serialize};
use weft_types::{ByteSize, Result};

/// The measured results of a figure, in the form of `weft bench`.
pub(crate) type Report = bench::Report<Asked, Point>;

/// The papers whose figures are all in the docs, in the order of the page.
pub(crate) const PAPERS: [&Paper; 2] = [&ecpipe::PAPER, &mist::PAPER];

/// A paper with experiments.
#[derive(Debug)]
pub(crate) struct Paper {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Its title and authors.
    pub(crate) title: &'static str,
    /// What its times measure: `repair time`.
    pub(crate) time: &'static str,
    /// What is scaled: `blocks`.
    pub(crate) sizes: &'static str,
    /// The rates of its links, or their place.
    pub(crate) links: &'static str,
    pub(crate) figures: &'static [Figure],
}

/// A figure: what is run, and what the paper's text says about the result.
#[derive(Debug)]
pub(crate) struct Figure {
    /// The paper's number: `6a`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What is measured, and where the setting differs from the paper's.
    pub(crate) about: &'static str,
    /// Why our results differ from the paper's, where they do.
    pub(crate) differs: &'static str,
    /// The label of the horizontal axis, with its unit.
    pub(crate) x: &'static str,
    pub(crate) value: Value,
    pub(crate) mark: Mark,
    /// In the order of the legend and the table.
    pub(crate) schemes: &'static [&'static str],
    pub(crate) base: Base,
    /// Default rate of the links.
    pub(crate) link: &'static str,
    /// Default size of the largest block, or for writes, of the largest object.
    pub(crate) block_len: u64,
    /// Default number of runs of each point.
    pub(crate) runs: usize,
    pub(crate) nodes: u32,
    pub(crate) racks: u32,
    /// Nodes with a slow disk or processor: `node-01:coding=20MiB`.
    pub(crate) slow: &'static [&'static str],
    pub(crate) setups: fn(Scale) -> Result<Vec<Setup>>,
    pub(crate) claims: &'static [Claim],
    /// Of all points, in the page.
    pub(crate) tables: &'static [Table],
}

/// A table with a row for each of these schemes and a column for each place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Table {
    /// Time relative to the link bound.
    OverBound(&'static [&'static str]),
    /// Blocks over the busiest link, by the link bound of equal links.
    BusiestLink(&'static [&'static str]),
    /// Levels, blocks moved and full uplinks of mist's plans.
    Topologies(&'static [&'static str]),
}

/// The quantity on the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// The median of the runs, in seconds.
    Seconds,
    /// The same, relative to the base.
    Ratio,
    /// MiB rebuilt per second.
    Rate,
    /// MiB sent over all links.
    Moved,
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Lines,
    /// On a logarithmic axis.
    LogLines,
    Bars,
}

/// The baseline: a scheme, at the same place of the axis or always at the named one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Base {
    pub(crate) scheme: &'static str,
    pub(crate) x: Option<&'static str>,
}

/// A statement of the paper's text: `of` took that much less (or more) time than `than`.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) text: &'static str,
    /// The paper's number, with its unit.
    pub(crate) paper: &'static str,
    pub(crate) of: &'static str,
    pub(crate) than: &'static str,
    pub(crate) at: At,
    pub(crate) how: How,
}

/// Where on the axis a claim holds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum At {
    /// At this place.
    X(&'static str),
    /// At the smallest (or first) place.
    First,
    /// At the largest (or last) place.
    Last,
    /// At the place where it is largest.
    Most,
    /// The range over all places.
    All,
    /// The range over these places.
    Range(&'static [&'static str]),
}

/// The quantity of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Percent less time.
    Less,
    /// Percent more time.
    More,
    /// Times as fast.
    Times,
    /// Percent faster.
    Faster,
    /// Time relative to the base.
    Ratio,
    /// Blocks that helpers sent.
    Blocks,
    /// Time relative to the link bound.
    OverBound,
    /// Bytes sent relative to the base.
    Traffic,
    /// Percent fewer bytes sent.
    LessTraffic,
    /// Seconds less.
    Saves,
}

/// The scale of an experiment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) link: LinkRate,
    /// The largest block.
    pub(crate) block_len: u64,
    /// Just enough to show that it works.
    pub(crate) quick: bool,
}

/// One object, or one per writer, on links of one kind, and its measurements.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) code: String,
    pub(crate) block_len: u64,
    pub(crate) links: Links,
    /// Places on the axis with their cases; None: the same at all places. The first one is also the warm-up.
    pub(crate) cases: Vec<(Option<String>, Case)>,
}

/// The rates of the links, and the requestor's place.
#[derive(Debug, Clone)]
pub(crate) enum Links {
    /// All equal.
    Even,
    /// All equal, except this rate from every helper to the requestor.
    Edge(LinkRate),
    /// Between places, to which the nodes are assigned in turn; the requestor is at the place of that number.
    Places(Matrix, usize),
    /// All equal; all blocks of a node are rebuilt on several requestors.
    Node(Recovery),
    /// All equal, also the link of the outside writer; new data is written.
    Written(Writing),
    /// Parts of blocks are updated in place, each as long as the setup's blocks.
    Updated(Updating),
}

/// Updates in place, all at the same time.
#[derive(Debug, Clone)]
pub(crate) struct Updating {
    /// Data blocks of each stripe that are updated, each by a client on its node.
    pub(crate) blocks: usize,
    pub(crate) stripes: usize,
    /// Rates between places, to which the nodes are assigned in turn; the first is that of the data node. None: all links are equal, and each node is
    /// in a rack of its own.
    pub(crate) places: Option<Matrix>,
}

/// A write of new data, one object of one stripe per writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writing {
    /// Bytes of each object.
    pub(crate) size: u64,
    /// Concurrent writers, each on its own node; 0: one writer outside of the nodes.
    pub(crate) writers: u32,
    /// Copies of each data block, including the coded one.
    pub(crate) replicas: u32,
    pub(crate) shows: Shows,
}

/// What is shown of the puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// The median, at one place of the axis.
    Median,
    /// Also the time of each party: the writer, and on each level the busiest node.
    Parts,
    /// The distribution: the axis is the share of puts that take at most this time.
    Spread,
}

/// The recovery of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// Nodes that hold blocks; the others are requestors.
    pub(crate) holders: u32,
    /// How many of them get blocks.
    pub(crate) requestors: usize,
    /// Blocks that the lost node held.
    pub(crate) lost: usize,
}

/// One point: an outcome at a place of the axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// The label of the place; None: the same everywhere.
    pub(crate) x: Option<String>,
    /// MiB rebuilt per second, for recoveries of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate_mib_s: Option<f64>,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

/// The settings of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) paper: String,
    pub(crate) figure: String,
    /// The largest block.
    pub(crate) block_size: ByteSize,
    pub(crate) runs: usize,
    /// Small and few: not to be cited.
    pub(crate) quick: bool,
    #[serde(default = "seed")]
    pub(crate) seed: u64,
    /// The rate of the links, if it was not the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<LinkRate>,
    /// The disks of updates in place. Other figures do not depend on theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disks: Option<Disks>,
    /// The testbed at the start.
    pub(crate) testbed: Settings,
}

/// The disks of the nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Disks {
    pub(crate) file_system: String,
    /// The size of each journal of updates.
    pub(crate) journal: ByteSize,
    /// What each sync takes longer.
    pub(crate) sync_ms: f64,
}

/// The default seed of the data and of all random choices.
pub(crate) const SEED: u64 = 1;
/// With --quick, blocks are smaller by this factor.
const QUICK_PART: u64 = 8;
const QUICK_RUNS: usize = 2;

/// Older results without a seed used the default one.
fn seed() -> u64 {
    SEED
}

impl Paper {
    /// The figure of that name.
    pub(crate) fn figure(&self, name: &str) -> Option<&'static Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

impl Figure {
    /// The base name of its files: `ecpipe-6a`.
    pub(crate) fn stem(&self, paper: &Paper) -> String {
        format!("{}-{}", paper.name, self.name)
    }

    /// The default size of the largest block, and the default number of runs.
    pub(crate) fn usual(&self, quick: bool) -> (u64, usize) {
        if quick { (self.block_len / QUICK_PART, QUICK_RUNS.min(self.runs)) } else { (self.block_len, self.runs) }
    }

    /// The places of the axis, in the order in which they were measured.
    pub(crate) fn places(&self, points: &[Point]) -> Vec<String> {
        let mut places: Vec<String> = Vec::new();
        for x in points.iter().filter_map(|point| point.x.as_ref()) {
            if !places.contains(x) {
                places.push(x.clone());
            }
        }
        places
    }

    /// Sorts points in the order of the legend, and relates each to its base.
    pub(crate) fn arrange(&self, points: &mut [Point]) {
        let places = self.places(points);
        let place = |point: &Point| point.x.as_ref().map(|x| places.iter().position(|it| it == x));
        let scheme = |point: &Point| self.schemes.iter().position(|it| *it == point.outcome.scheme);
        points.sort_by_key(|point| (place(point), scheme(point)));
        let bases: Vec<Option<f64>> = points.iter().map(|point| self.base_of(points, point)).collect();
        for (point, base) in points.iter_mut().zip(bases) {
            point.outcome.ratio = base.map(|base| point.outcome.median_s / base);
        }
    }

    fn base_of(&self, points: &[Point], of: &Point) -> Option<f64> {
        let x = self.base.x.or(of.x.as_deref());
        find(points, self.base.scheme, x).map(|point| point.outcome.median_s)
    }
}

/// The outcome of a scheme at a place of the axis, or the one that holds everywhere.
pub(crate) fn find<'a>(points: &'a [Point], scheme: &str, x: Option<&str>) -> Option<&'a Point> {
    let mut of_scheme = points.iter().filter(|point| point.outcome.scheme == scheme);
    of_scheme.find(|point| point.x.is_none() || point.x.as_deref() == x)
}
