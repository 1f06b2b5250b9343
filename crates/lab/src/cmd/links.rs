//! The options by which commands are told how the links of a testbed are.

use crate::testbed::{DEFAULT_LINK, Limit, LinkRate, Matrix, Settings, Slow};
use clap::Args;
use std::path::PathBuf;
use weft_cli::files::io_error;
use weft_types::{Error, Result};

/// How the links are.
#[derive(Debug, Clone, Args)]
pub(super) struct Links {
    /// What each agent sends, and what it receives; of a new testbed 200mbit unless told otherwise
    #[arg(long, value_name = "RATE")]
    link: Option<LinkRate>,
    /// Racks, among which the agents are dealt out in turn; of a new testbed one unless told otherwise
    #[arg(long, value_name = "R")]
    racks: Option<u32>,
    /// What each rack sends, and what it receives, over its uplink
    #[arg(long, value_name = "RATE")]
    rack_link: Option<LinkRate>,
    /// Rate, each way, of the link that the coordinator and the commands share; unlimited unless given
    #[arg(long, value_name = "RATE")]
    outside_link: Option<LinkRate>,
    /// What a link carries instead: node-03:*=40mbit (what it sends), *:node-03=40mbit (what it receives), node-03:node-05=40mbit; can
    /// be given several times, and all together take the place of those that were there
    #[arg(long = "limit", value_name = "FROM:TO=RATE")]
    limits: Vec<Limit>,
    /// A slow disk or processor, bytes a second: node-03:disk=50MiB, or *:coding=20MiB for all
    #[arg(long, value_name = "NODE:PART=SIZE")]
    slow: Vec<Slow>,
    /// What pairs carry, in Mbit/s: rows send, columns receive; of nodes, or of places among which the nodes are dealt out
    ///
    /// The first line is `from/to,node-01,node-02,...` or `from/to,California,Ohio,...`; then a line for each sender. With it, --link
    /// does not count; --link alone takes the place of a matrix that was there.
    #[arg(long, value_name = "FILE.csv")]
    matrix: Option<PathBuf>,
}

impl Links {
    /// As settings of a new testbed of so many nodes.
    pub(super) fn settings(&self, nodes: u32, insecure: bool) -> Result<Settings> {
        self.onto(Self::usual(nodes, insecure)?)
    }

    /// The settings where nothing is said.
    pub(super) fn usual(nodes: u32, insecure: bool) -> Result<Settings> {
        let link = Some(DEFAULT_LINK.parse().map_err(Error::invalid)?);
        let (limits, slow) = (Vec::new(), Vec::new());
        Ok(Settings { nodes, racks: 1, link, rack_link: None, outside_link: None, limits, insecure, slow, matrix: None })
    }

    /// What there is, with what is said changed.
    fn onto(&self, mut it: Settings) -> Result<Settings> {
        let Self { link, racks, rack_link, outside_link, limits, slow, matrix } = self.clone();
        it.racks = racks.unwrap_or(it.racks);
        it.rack_link = rack_link.or(it.rack_link);
        it.outside_link = outside_link.or(it.outside_link);
        if link.is_some() {
            (it.link, it.matrix) = (link, None);
        }
        if !limits.is_empty() {
            it.limits = limits;
        }
        if !slow.is_empty() {
            it.slow = slow;
        }
        let Some(path) = matrix else { return Ok(it) };
        let text = std::fs::read_to_string(&path).map_err(|error| io_error(&path, "read", &error))?;
        let matrix =
            Matrix::parse(&text).map_err(|error| Error { message: format!("{}: {}", path.display(), error.message), ..error })?;
        Ok(Settings { link: None, ..it }.with_matrix(matrix))
    }

    /// The same for a testbed that is there: only what links carry can change.
    pub(super) fn reshaped(&self, there: &Settings, base: Settings) -> Result<Settings> {
        let settings = self.onto(base)?;
        if settings.racks != there.racks || settings.slow != there.slow {
            let racks = there.racks;
            return Err(Error::invalid(format!(
                "the testbed has its {racks} racks and its slow nodes as it was made: only what links carry can change; choose \
                 another directory for another one"
            )));
        }
        settings.check().map(|()| settings)
    }
}
