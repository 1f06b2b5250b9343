//! The options that describe the links of a testbed.

use crate::testbed::{DEFAULT_LINK, Limit, LinkRate, Matrix, Settings, Slow};
use clap::Args;
use std::path::PathBuf;
use weft_cli::files::io_error;
use weft_types::{Error, Result};

/// The links.
#[derive(Debug, Clone, Args)]
pub(super) struct Links {
    /// Rate that each agent sends and receives [default for a new testbed: 200mbit]
    #[arg(long, value_name = "RATE")]
    link: Option<LinkRate>,
    /// Number of racks [default for a new testbed: 1]
    #[arg(long, value_name = "R")]
    racks: Option<u32>,
    /// Rate that each rack sends and receives over its uplink
    #[arg(long, value_name = "RATE")]
    rack_link: Option<LinkRate>,
    /// Rate, each way, of the link that the coordinator and the commands share [default: unlimited]
    #[arg(long, value_name = "RATE")]
    outside_link: Option<LinkRate>,
    /// Exceptions: node-03:*=40mbit (what it sends), *:node-03=40mbit (what it receives), node-03:node-05=40mbit; can be repeated; all of
    /// them together replace earlier ones
    #[arg(long = "limit", value_name = "FROM:TO=RATE")]
    limits: Vec<Limit>,
    /// A slow disk or processor, bytes per second: node-03:disk=50MiB, or *:coding=20MiB for all nodes
    #[arg(long, value_name = "NODE:PART=SIZE")]
    slow: Vec<Slow>,
    /// Rates between pairs in Mbit/s, a CSV file: rows send, columns receive; of nodes, or of places to which the nodes are assigned in turn
    ///
    /// The first line is `from/to,node-01,node-02,...` or `from/to,California,Ohio,...`; then one line per sender. --link is ignored with it; a
    /// later --link alone replaces the matrix.
    #[arg(long, value_name = "FILE.csv")]
    matrix: Option<PathBuf>,
}

impl Links {
    /// Whether no option was given.
    pub(super) fn is_usual(&self) -> bool {
        let Self { link, racks, rack_link, outside_link, limits, slow, matrix } = self;
        let rates = [link, rack_link, outside_link].into_iter().all(Option::is_none);
        rates && racks.is_none() && limits.is_empty() && slow.is_empty() && matrix.is_none()
    }

    /// The number of racks, for commands in which it is not that of the testbed.
    pub(super) fn take_racks(&mut self) -> Option<u32> {
        self.racks.take()
    }

    /// The settings of a new testbed with this many nodes.
    pub(super) fn settings(&self, nodes: u32, insecure: bool) -> Result<Settings> {
        self.onto(Self::usual(nodes, insecure)?)
    }

    /// The default settings.
    pub(super) fn usual(nodes: u32, insecure: bool) -> Result<Settings> {
        let link = Some(DEFAULT_LINK.parse().map_err(Error::invalid)?);
        let (limits, slow) = (Vec::new(), Vec::new());
        Ok(Settings { nodes, racks: 1, link, rack_link: None, outside_link: None, limits, insecure, slow, matrix: None })
    }

    /// Existing settings, changed by the given options.
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

    /// The same for an existing testbed: only the rates of links can change.
    pub(super) fn reshaped(&self, there: &Settings, base: Settings) -> Result<Settings> {
        let settings = self.onto(base)?;
        if settings.racks != there.racks || settings.slow != there.slow {
            let racks = there.racks;
            return Err(Error::invalid(format!(
                "the racks ({racks}) and the slow nodes of an existing testbed cannot change, only the rates of its links: choose \
                 another directory to create a new testbed"
            )));
        }
        settings.check().map(|()| settings)
    }
}
