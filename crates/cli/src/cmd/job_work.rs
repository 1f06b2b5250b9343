//! What a job does, how much of it, and what it could not do, in printable form.

use super::{healing::duration, scrub::Scrubbed};
use serde::Serialize;
use weft_client::api;
use weft_types::{ByteSize, NodeId, counted, human_bytes};

/// What a job does, and the first items that it could not complete.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum What {
    Repair {
        node: String,
        /// The name of the node.
        name: String,
        gave_up_blocks: Vec<GaveUp>,
        select: String,
        prefer: String,
        to: Vec<String>,
        scheme: String,
        /// None: as many as the schedule starts, or the default.
        concurrency: Option<u32>,
        /// None: the coordinator's setting.
        slice_size: Option<u64>,
        force: bool,
    },
    Balance {
        gave_up_blocks: Vec<GaveUp>,
        /// None: by the number of nodes that get blocks.
        concurrency: Option<u32>,
    },
    Scrub {
        /// None: all, or those of a node.
        bucket: Option<String>,
        key: Option<String>,
        /// The name of the node, or its number; None: all.
        node: Option<String>,
        gave_up_stripes: Vec<GaveUp>,
        /// None: by the number of nodes.
        concurrency: Option<u32>,
        #[serde(flatten)]
        scrubbed: Scrubbed,
    },
    Convert {
        bucket: String,
        /// None: all objects of the bucket.
        key: Option<String>,
        policy: String,
        gave_up_objects: Vec<GaveUp>,
        concurrency: u32,
        /// None: no limit.
        bytes_per_s: Option<u64>,
    },
}

/// What could not be done.
#[derive(Debug, Serialize)]
pub(super) struct GaveUp {
    /// Empty: unknown.
    pub(super) object: String,
    pub(super) stripe: u64,
    /// None: the whole object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) block: Option<u32>,
    pub(super) reason: String,
}

/// How a job goes.
#[derive(Debug, Serialize)]
pub(super) struct Course {
    /// At the rate so far and at the limit; null: unknown, or it does not run.
    remaining_ms: Option<u64>,
    /// Bytes that its plans have sent over links; null: not counted.
    moved_bytes: Option<u64>,
    /// Stripes of the whole cluster that can be read, but survive no further loss; null: the job has ended, or they are being counted.
    stripes_at_risk: Option<u64>,
    /// How wrong its estimates were; null: it is not done, or neither estimate was kept.
    eta_error: Option<EtaError>,
}

/// The errors of two estimates of the remaining time, as parts of the time that it took; positive: it was too long. Null: after that part of the
/// work, the job was paused or its coordinator restarted, or one item went past it.
#[derive(Debug, Serialize)]
struct EtaError {
    /// When a quarter of the work was done.
    quarter: Option<f64>,
    /// When half of it was.
    half: Option<f64>,
}

impl Course {
    pub(super) fn new(job: &api::Job) -> Self {
        let [quarter, half] =
            [job.eta_error_at_quarter, job.eta_error_at_half].map(|error| error.map(|it| f64::from(it) / 1000.0));
        Self {
            remaining_ms: job.remaining_ms,
            moved_bytes: job.moved_bytes,
            stripes_at_risk: job.stripes_at_risk,
            eta_error: (quarter.is_some() || half.is_some()).then_some(EtaError { quarter, half }),
        }
    }

    /// Whether the remaining time is known.
    pub(super) fn has_remaining(&self) -> bool {
        self.remaining_ms.is_some()
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(self.remaining_ms.map(|left| format!("about {} remaining", duration(left))));
        lines.extend(self.moved_bytes.filter(|bytes| *bytes > 0).map(|bytes| format!("{} sent over links", human_bytes(bytes))));
        if let Some(count) = self.stripes_at_risk.filter(|count| *count > 0) {
            lines.push(format!("{} of the cluster would not survive a further loss", counted(count, "stripe")));
        }
        if let Some(EtaError { quarter, half }) = &self.eta_error {
            let wrong = |error: f64, when: &str| {
                let by = if error < 0.0 { "short" } else { "long" };
                format!("{:.0}% too {by} {when}", error.abs() * 100.0)
            };
            let both = [quarter.map(|it| wrong(it, "at a quarter of the work")), half.map(|it| wrong(it, "at half of it"))];
            lines.push(format!("estimates of the remaining time: {}", both.into_iter().flatten().collect::<Vec<_>>().join(", ")));
        }
        lines
    }
}

/// Blocks; for a conversion, objects; for a scrub, stripes.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Amount {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) objects: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stripes: Option<u64>,
    pub(super) bytes: u64,
}

impl Amount {
    pub(super) fn count(self) -> u64 {
        self.blocks.or(self.objects).or(self.stripes).unwrap_or(0)
    }
}

impl What {
    pub(super) fn repair(what: api::RepairNodeRequest, gave_up_blocks: Vec<GaveUp>, nodes: &[api::Node]) -> Self {
        let name = |id: u32| nodes.iter().find(|node| node.id == id).map(|node| node.name.clone());
        let known = |id: &u32| name(*id).unwrap_or_else(|| NodeId(*id).to_string());
        Self::Repair {
            node: NodeId(what.node).to_string(),
            name: name(what.node).unwrap_or_default(),
            gave_up_blocks,
            select: what.select,
            prefer: what.prefer,
            to: what.to_nodes.iter().map(known).collect(),
            scheme: what.scheme,
            concurrency: Some(what.concurrency).filter(|count| *count > 0),
            slice_size: Some(what.slice_len).filter(|len| *len > 0),
            force: what.force,
        }
    }

    pub(super) fn scrub(
        what: api::ScrubRequest,
        report: api::ScrubReport,
        gave_up_stripes: Vec<GaveUp>,
        nodes: &[api::Node],
    ) -> Self {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let name =
            |id: u32| nodes.iter().find(|node| node.id == id).map_or_else(|| NodeId(id).to_string(), |node| node.name.clone());
        Self::Scrub {
            bucket: some(what.bucket),
            key: some(what.key),
            node: Some(what.node).filter(|node| *node > 0).map(name),
            gave_up_stripes,
            concurrency: Some(what.concurrency).filter(|count| *count > 0),
            scrubbed: Scrubbed::new(report, nodes),
        }
    }

    /// A summary in one line.
    pub(super) fn how(&self) -> String {
        match self {
            Self::Repair { select, to, scheme, concurrency, slice_size, .. } => {
                let to = if to.is_empty() { "any node".to_owned() } else { to.join(", ") };
                let slices = slice_size.map_or("of the coordinator's default size".to_owned(), |len| ByteSize(len).to_string());
                let count = concurrency.map_or("as many stripes at a time as links carry".to_owned(), |count| {
                    format!("at most {count} stripes at a time")
                });
                format!("nodes by {select}, scheme {scheme}, {count}, slices {slices}, to {to}")
            }
            Self::Balance { concurrency, .. } => match concurrency {
                Some(count) => format!("at most {count} stripes at a time"),
                None => "four stripes at a time for each node that gets blocks".to_owned(),
            },
            Self::Scrub { concurrency, .. } => match concurrency {
                Some(count) => format!("at most {count} stripes at a time"),
                None => "one stripe at a time for four nodes".to_owned(),
            },
            Self::Convert { concurrency, bytes_per_s, .. } => {
                let rate = bytes_per_s.map_or("no rate limit".to_owned(), |rate| format!("at most {}/s", human_bytes(rate)));
                format!("{concurrency} stripes at a time, {rate}")
            }
        }
    }
}
