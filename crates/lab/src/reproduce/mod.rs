//! Experiments of papers, run again on a testbed: what each figure measures and what the paper says of it, as data.
//!
//! A paper is a file here ([`ecpipe`], [`mist`]), which lists its figures; [`run`] measures one, [`report`] puts our numbers beside the
//! paper's and writes the files, [`chart`] draws.

pub(crate) mod chart;
pub(crate) mod ecpipe;
pub(crate) mod mist;
pub(crate) mod report;
pub(crate) mod run;

use crate::{
    bench::{self, Outcome, repair::Case},
    testbed::{LinkRate, Matrix, Settings},
};
use serde::{Deserialize, Serialize};
use weft_types::{ByteSize, Result};

/// What was measured of a figure: the form of `weft bench`.
pub(crate) type Report = bench::Report<Asked, Point>;

/// A paper whose experiments can be run.
#[derive(Debug)]
pub(crate) struct Paper {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    /// Whose it is.
    pub(crate) title: &'static str,
    /// What its times are of: `repair time`.
    pub(crate) time: &'static str,
    /// Of what the sizes are that are scaled: `blocks`.
    pub(crate) sizes: &'static str,
    /// What its own links carried, or where they were.
    pub(crate) links: &'static str,
    pub(crate) figures: &'static [Figure],
}

/// A figure: what is run, and what the paper's text says came of it.
#[derive(Debug)]
pub(crate) struct Figure {
    /// As the paper counts: `6a`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What is measured, and in what it is not what the paper did.
    pub(crate) about: &'static str,
    /// Why ours is not theirs where it is not.
    pub(crate) differs: &'static str,
    /// What the horizontal axis says, with its unit.
    pub(crate) x: &'static str,
    pub(crate) value: Value,
    pub(crate) mark: Mark,
    /// In the order of legend and table.
    pub(crate) schemes: &'static [&'static str],
    pub(crate) base: Base,
    /// What links carry, unless told otherwise.
    pub(crate) link: &'static str,
    /// The largest block, or where new data is written, the largest object; unless told otherwise.
    pub(crate) block_len: u64,
    /// How often each point is measured, unless told otherwise.
    pub(crate) runs: usize,
    pub(crate) nodes: u32,
    pub(crate) racks: u32,
    /// Nodes whose disk or processor is slow: `node-01:coding=20MiB`.
    pub(crate) slow: &'static [&'static str],
    pub(crate) setups: fn(Scale) -> Result<Vec<Setup>>,
    pub(crate) claims: &'static [Claim],
}

/// What the vertical axis shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// The median of the runs, in seconds.
    Seconds,
    /// The same to that of the base.
    Ratio,
    /// MiB rebuilt in a second.
    Rate,
    /// MiB that went over all links.
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

/// What points are put beside: a scheme, at the same place of the axis or always at the one named.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Base {
    pub(crate) scheme: &'static str,
    pub(crate) x: Option<&'static str>,
}

/// A statement of the paper's text: `of` took so much less (or more) than `than`.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) text: &'static str,
    /// What the paper says, with its unit.
    pub(crate) paper: &'static str,
    pub(crate) of: &'static str,
    pub(crate) than: &'static str,
    pub(crate) at: At,
    pub(crate) how: How,
}

/// Where on the axis a claim holds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum At {
    /// There.
    X(&'static str),
    /// At the smallest (or first) one.
    First,
    /// Where it is largest.
    Most,
    /// From the least to the most of these.
    Range(&'static [&'static str]),
}

/// What a claim is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// So many percent less time.
    Less,
    /// So many percent more time.
    More,
    /// So many times as fast.
    Times,
    /// So many percent faster.
    Faster,
    /// Time to the base's.
    Ratio,
    /// Blocks that helpers sent.
    Blocks,
    /// Time to the least that the links allow.
    OverBound,
    /// Bytes sent to the base's.
    Traffic,
    /// So many percent less bytes sent.
    LessTraffic,
}

/// The size in which an experiment is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) link: LinkRate,
    /// The largest block.
    pub(crate) block_len: u64,
    /// Only as much as shows that it works.
    pub(crate) quick: bool,
}

/// One object, or one for each writer, on links of one kind, and what is measured with it.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) code: String,
    pub(crate) block_len: u64,
    pub(crate) links: Links,
    /// Where on the axis, and what; no place: the same everywhere on the axis. The first one also warms up.
    pub(crate) cases: Vec<(Option<String>, Case)>,
}

/// What the links carry, and where the requestor stands.
#[derive(Debug, Clone)]
pub(crate) enum Links {
    /// All the same.
    Even,
    /// All the same, and from every helper to the requestor so much.
    Edge(LinkRate),
    /// Between places, among which the nodes are dealt out; the requestor is at the one of that number.
    Places(Matrix, usize),
    /// All the same; all blocks of a node are rebuilt, and go to several requestors.
    Node(Recovery),
    /// All the same, also that of whoever stands outside; new data is written.
    Written(Writing),
}

/// Writing new data, an object of one stripe a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writing {
    /// Bytes of each object.
    pub(crate) size: u64,
    /// On a node each, all at once; 0: one, outside of the nodes.
    pub(crate) writers: u32,
    /// Copies of each data block, with the coded one.
    pub(crate) replicas: u32,
    pub(crate) shows: Shows,
}

/// What is shown of puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// The median, at one place of the axis.
    Median,
    /// Also what everybody's part of it takes: the writer's, and on each level that of the busiest node.
    Parts,
    /// How they are spread: the axis is the share of them that takes no longer.
    Spread,
}

/// The recovery of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// Nodes that hold blocks; the others are requestors.
    pub(crate) holders: u32,
    /// How many of them get blocks.
    pub(crate) requestors: usize,
    /// Blocks that the lost node had.
    pub(crate) lost: usize,
}

/// One point: an outcome at a place of the axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// The place as its label; none: the same everywhere.
    pub(crate) x: Option<String>,
    /// MiB that were rebuilt in a second, where a node's blocks were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate_mib_s: Option<f64>,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) paper: String,
    pub(crate) figure: String,
    /// The largest block.
    pub(crate) block_size: ByteSize,
    pub(crate) runs: usize,
    /// Small and few: nothing that is worth citing.
    pub(crate) quick: bool,
    #[serde(default = "seed")]
    pub(crate) seed: u64,
    /// What the figure's links carried, where that was told otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<LinkRate>,
    /// As it was at the start.
    pub(crate) testbed: Settings,
}

/// The data, and all else that is left to chance, where nobody says otherwise.
pub(crate) const SEED: u64 = 1;
/// With --quick, blocks are smaller by this.
const QUICK_PART: u64 = 8;
const QUICK_RUNS: usize = 2;

/// What was measured before seeds were written down had the usual one.
fn seed() -> u64 {
    SEED
}

impl Paper {
    /// Its figure of that name.
    pub(crate) fn figure(&self, name: &str) -> Option<&'static Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

impl Figure {
    /// What files about it are called, without an ending: `ecpipe-6a`.
    pub(crate) fn stem(&self, paper: &Paper) -> String {
        format!("{}-{}", paper.name, self.name)
    }

    /// The largest block, and how often each point is measured, unless told otherwise.
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

    /// Puts points in the order of the legend, each beside its base.
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

/// What a scheme took at a place of the axis; what is the same everywhere is so there too.
pub(crate) fn find<'a>(points: &'a [Point], scheme: &str, x: Option<&str>) -> Option<&'a Point> {
    let mut of_scheme = points.iter().filter(|point| point.outcome.scheme == scheme);
    of_scheme.find(|point| point.x.is_none() || point.x.as_deref() == x)
}
