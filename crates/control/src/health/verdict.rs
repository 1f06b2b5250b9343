//! Whether the cluster is healthy, and why not.

use super::Counts;
use crate::reserve::Share;
use std::time::Duration;
use weft_types::counted;

/// The most slow or failing disks that get a reason of their own.
const AILING_MAX: usize = 3;
/// The most names that one reason lists.
const NAMES_MAX: usize = 8;

/// The health of a cluster, best level first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All stripes are complete and all nodes are up.
    Healthy,
    /// All data can be read and survives another loss, but a node, disk or block needs attention, or no new data fit.
    Degraded,
    /// All data can be read, but some does not survive another loss.
    AtRisk,
    /// Some data cannot be read now.
    Unavailable,
}

impl Level {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::AtRisk => "at-risk",
            Self::Unavailable => "unavailable",
        }
    }
}

/// A node that is down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownNode {
    /// Its name.
    pub name: String,
    /// How long it has been silent.
    pub silent_for: Duration,
    /// The known number of blocks of stripes that it holds.
    pub blocks: u64,
    /// Whether it was declared lost.
    pub lost: bool,
    /// Whether it is being drained.
    pub draining: bool,
}

/// A disk that failed, or that its node no longer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedDisk {
    /// Its node's name.
    pub node: String,
    /// Its directory.
    pub path: String,
    /// Blocks of stripes that it held and that were not rebuilt elsewhere.
    pub blocks: u64,
}

/// A disk that works, and is slow or failing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AilingDisk {
    /// Its node's name.
    pub node: String,
    /// Its directory.
    pub path: String,
    /// `slow` or `failing`.
    pub trouble: String,
    /// The figures.
    pub why: String,
    /// The known number of blocks of stripes that it holds.
    pub blocks: u64,
    /// Whether it or its node is being drained.
    pub draining: bool,
}

/// A policy in which no new data fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullPolicy {
    /// Its name.
    pub name: String,
    /// Its code.
    pub code: String,
    /// How many nodes it needs.
    pub needed: usize,
    /// How many nodes are up and have a disk that can be used.
    pub up: usize,
    /// If data would fit without it: what of each disk is kept free to rebuild the largest node.
    pub kept: Share,
}

impl FullPolicy {
    /// Why no new data fit.
    pub fn why(&self) -> String {
        let Self { needed, up, kept, .. } = self;
        match (up < needed, kept.is_none()) {
            (true, _) => format!("it needs {needed} nodes, and {up} are up with a disk for new blocks"),
            (false, true) => "disks are full".to_owned(),
            (false, false) => format!(
                "disks are full up to the {kept} that is kept free to rebuild the largest node (rebuild_reserve): add nodes or disks, or \
                 remove objects"
            ),
        }
    }
}

/// The input of a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signs {
    /// The tally.
    pub counts: Counts,
    /// Whether the tally is still being brought up to date.
    pub counting: bool,
    /// The number of all nodes.
    pub nodes: usize,
    /// The nodes that are down.
    pub down: Vec<DownNode>,
    /// Failed disks.
    pub failed: Vec<FailedDisk>,
    /// Disks that work, and are slow or failing.
    pub ailing: Vec<AilingDisk>,
    /// The default policy, if no new data fit in it.
    pub full: Option<FullPolicy>,
}

/// A verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The level.
    pub level: Level,
    /// The reasons why the cluster is not healthy, the worst first.
    pub reasons: Vec<String>,
}

impl Signs {
    /// Computes the verdict. A failed, slow or failing disk, or a lost or drained node, does not count if it has no blocks.
    pub fn verdict(&self) -> Verdict {
        let signs = [self.unreadable(), self.at_risk(), self.bad_blocks(), self.down(), self.failed()];
        let found = signs.into_iter().flatten().chain(self.ailing()).chain(self.full()).chain(self.counting());
        let found: Vec<(Level, String)> = found.collect();
        Verdict {
            level: found.iter().map(|(level, _)| *level).max().unwrap_or(Level::Healthy),
            reasons: found.into_iter().map(|(_, reason)| reason).collect(),
        }
    }

    fn unreadable(&self) -> Option<(Level, String)> {
        let Counts { unreadable, lost, .. } = self.counts;
        let why = match (unreadable, unreadable.saturating_sub(lost)) {
            (0, _) => return None,
            (_, 0) => "too many of their blocks are lost".to_owned(),
            (all, waiting) if all == waiting => "too many of their nodes are down".to_owned(),
            _ => format!("too many blocks of {lost} are lost; the others need nodes that are down"),
        };
        Some((Level::Unavailable, format!("{} cannot be read: {why}", counted(unreadable, "stripe"))))
    }

    fn at_risk(&self) -> Option<(Level, String)> {
        let count = self.counts.at_risk;
        let verb = if count == 1 { "does" } else { "do" };
        (count > 0).then(|| (Level::AtRisk, format!("{} {verb} not survive a further loss", counted(count, "stripe"))))
    }

    fn bad_blocks(&self) -> Option<(Level, String)> {
        let blocks = self.counts.blocks;
        let by_reason = [
            (blocks.corrupt, "corrupt"),
            (blocks.missing, "missing"),
            (blocks.failed, "on failed disks"),
            (blocks.lost, "on lost nodes"),
            (blocks.away, "on nodes that are down"),
            (blocks.coming, "still on their way"),
        ];
        let parts: Vec<String> =
            by_reason.iter().filter(|(count, _)| *count > 0).map(|(count, of)| format!("{count} {of}")).collect();
        let (count, parts) = (self.counts.with_bad_blocks, parts.join(", "));
        (count > 0).then(|| (Level::Degraded, format!("blocks of {} cannot be read: {parts}", counted(count, "stripe"))))
    }

    fn down(&self) -> Option<(Level, String)> {
        // Of a node without blocks that was repaired or drained, nothing is missing.
        let down: Vec<&DownNode> = self.down.iter().filter(|node| !(node.lost || node.draining) || node.blocks > 0).collect();
        let names = names(down.iter().map(|node| node.name.clone()));
        let verb = if down.len() == 1 { "is" } else { "are" };
        let empty = down.iter().find(|node| node.blocks == 0);
        let hint = empty.map_or(String::new(), |node| {
            let name = &node.name;
            format!(" ({name} holds no block: if it is gone for good, `weft node remove {name}` forgets it)")
        });
        let reason = || format!("{} of {} nodes {verb} down: {names}{hint}", down.len(), self.nodes);
        (!down.is_empty()).then(|| (Level::Degraded, reason()))
    }

    fn failed(&self) -> Option<(Level, String)> {
        let live: Vec<&FailedDisk> = self.failed.iter().filter(|disk| disk.blocks > 0).collect();
        let names = names(live.iter().map(|disk| format!("{} of {}", disk.path, disk.node)));
        let reason = || format!("failed disks held blocks that were not rebuilt: {names}");
        (!live.is_empty()).then(|| (Level::Degraded, reason()))
    }

    fn ailing(&self) -> impl Iterator<Item = (Level, String)> {
        let live: Vec<&AilingDisk> = self.ailing.iter().filter(|disk| disk.blocks > 0).collect();
        let reason = |disk: &&AilingDisk| {
            let AilingDisk { node, path, trouble, why, draining, .. } = disk;
            let help = if *draining {
                "its blocks are being moved elsewhere".to_owned()
            } else {
                format!("`weft node disk drain {node} {path}` moves its blocks elsewhere")
            };
            format!("{path} of {node} is {trouble}: {why}; {help}")
        };
        let mut reasons: Vec<String> = live.iter().take(AILING_MAX).map(reason).collect();
        let more = live.len().saturating_sub(AILING_MAX) as u64;
        if more > 0 {
            let verb = if more == 1 { "is" } else { "are" };
            reasons.push(format!("{} {verb} slow or failing: `weft node disk ls` lists all", counted(more, "more disk")));
        }
        reasons.into_iter().map(|reason| (Level::Degraded, reason))
    }

    fn full(&self) -> Option<(Level, String)> {
        let full = self.full.as_ref()?;
        let (FullPolicy { name, code, .. }, why) = (full, full.why());
        Some((Level::Degraded, format!("no new data fit in {code}, the code of the default policy {name}: {why}")))
    }

    fn counting(&self) -> Option<(Level, String)> {
        self.counting.then(|| (Level::Degraded, "stripes are still being counted".to_owned()))
    }
}

fn names(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(NAMES_MAX);
    let mut shown: Vec<String> = all.take(NAMES_MAX).collect();
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown.join(", ")
}
