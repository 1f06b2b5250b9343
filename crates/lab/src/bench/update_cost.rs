//! What small writes in place cost the nodes: syncs of journals and bytes on disks, as the agents count them.

use super::place::Place;
use serde::Serialize;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use weft_types::Result;

/// Counts of all nodes together, since they were started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    /// Updates that were committed.
    updates: u64,
    journal_syncs: u64,
    journal_bytes: u64,
    /// Blocks and sidecars.
    block_bytes: u64,
}

/// What the writes at one depth have cost all nodes together, until they were applied.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Cost {
    /// Updates that were committed, as their leaders count them.
    pub(crate) updates: u64,
    pub(crate) journal_syncs: u64,
    pub(crate) journal_bytes: u64,
    /// Of blocks and their sidecars.
    pub(crate) block_bytes: u64,
    /// Syncs of a journal for each update and node that takes part in it.
    pub(crate) syncs_per_update: f64,
    /// Bytes of journals, blocks and sidecars for each byte of a write.
    pub(crate) bytes_per_byte: f64,
}

/// The longest wait until what was written is applied: blocks apply it some tenths of a second after the last update.
pub(crate) const APPLIED_WITHIN: Duration = Duration::from_secs(20);
/// If nothing was written between two looks, all is applied.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long an agent may take to tell its metrics.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

impl Counts {
    /// Once all nodes have applied what was written. None if they are not on this machine, do not all tell, or still write after
    /// [`APPLIED_WITHIN`].
    pub(crate) async fn applied(place: &Place<'_>) -> Result<Option<Self>> {
        if place.local.is_none() {
            return Ok(None);
        }
        let until = Instant::now() + APPLIED_WITHIN;
        let mut last = Self::now(place).await?;
        loop {
            sleep(LOOK_AGAIN_AFTER).await;
            let now = Self::now(place).await?;
            let written = |counts: Option<Self>| counts.map(|counts| (counts.journal_bytes, counts.block_bytes));
            if written(now) == written(last) {
                return Ok(now);
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            last = now;
        }
    }

    async fn now(place: &Place<'_>) -> Result<Option<Self>> {
        let mut all = Self::default();
        for node in place.session.client.status().await?.nodes {
            let Ok(Ok(text)) = timeout(ANSWERS_WITHIN, scrape(&node.metrics_address)).await else { return Ok(None) };
            let Some(of_node) = Self::of(&text) else { return Ok(None) };
            all.updates += of_node.updates;
            all.journal_syncs += of_node.journal_syncs;
            all.journal_bytes += of_node.journal_bytes;
            all.block_bytes += of_node.block_bytes;
        }
        Ok(Some(all))
    }

    /// What an agent tells.
    fn of(text: &str) -> Option<Self> {
        Some(Self {
            updates: sum(text, "weft_agent_updates_total", "outcome=\"committed\"")?,
            journal_syncs: sum(text, "weft_agent_update_journal_syncs_total", "")?,
            journal_bytes: sum(text, "weft_agent_update_journal_written_bytes_total", "")?,
            block_bytes: sum(text, "weft_agent_update_patched_bytes_total", "")?,
        })
    }
}

impl Cost {
    /// Between two moments, in which clients wrote so many bytes by updates that each concern so many blocks.
    pub(crate) fn between(before: Counts, after: Counts, bytes: u64, blocks: usize) -> Self {
        let since = |of: fn(&Counts) -> u64| of(&after).saturating_sub(of(&before));
        let (updates, journal_syncs) = (since(|it| it.updates), since(|it| it.journal_syncs));
        let (journal_bytes, block_bytes) = (since(|it| it.journal_bytes), since(|it| it.block_bytes));
        Self {
            updates,
            journal_syncs,
            journal_bytes,
            block_bytes,
            syncs_per_update: journal_syncs as f64 / (updates as f64 * blocks as f64),
            bytes_per_byte: (journal_bytes + block_bytes) as f64 / bytes as f64,
        }
    }
}

/// The sum of a metric's series that have this label; none if there are none.
fn sum(text: &str, name: &str, label: &str) -> Option<u64> {
    let mut all = None;
    for (series, value) in text.lines().filter_map(|line| line.rsplit_once(' ')) {
        let (its_name, labels) = series.split_once('{').unwrap_or((series, ""));
        if its_name == name && labels.contains(label) {
            *all.get_or_insert(0) += value.parse::<f64>().ok()? as u64;
        }
    }
    all
}

/// What a daemon answers to a request for its metrics.
async fn scrape(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "HTTP/1.1 200 OK\r\n\r\n# TYPE weft_agent_updates counter\n\
        weft_agent_updates_total{outcome=\"committed\"} 8\nweft_agent_updates_total{outcome=\"aborted\"} 5\n\
        weft_agent_update_journal_syncs_total{disk=\"/a b\"} 3\nweft_agent_update_journal_syncs_total{disk=\"/c\"} 4\n\
        weft_agent_update_journal_written_bytes_total{disk=\"/c\"} 24576\nweft_agent_update_patched_bytes_total{disk=\"/c\"} 9216\n\
        # EOF\n";

    #[test]
    fn counts_are_those_of_all_disks_and_of_committed_updates() {
        let counts = Counts { updates: 8, journal_syncs: 7, journal_bytes: 24576, block_bytes: 9216 };
        assert_eq!(Counts::of(TEXT), Some(counts));
        assert_eq!(Counts::of(&TEXT.replace("patched", "other")), None, "an agent that does not count it");
        let cost = Cost::between(Counts::default(), counts, 8 * 1024, 1);
        assert_eq!((cost.updates, cost.syncs_per_update, cost.bytes_per_byte), (8, 7.0 / 8.0, 33792.0 / 8192.0));
        let twice = Counts { updates: 16, journal_syncs: 23, ..counts };
        let cost = Cost::between(counts, twice, 1, 2);
        assert_eq!((cost.journal_syncs, cost.syncs_per_update, cost.block_bytes), (16, 1.0, 0));
    }
}
