//! How fast nodes give what they read, as the stages of plans have found it: whose disk or processor is slow is a straggler for a
//! chain just as who has a slow link (ECPipe, §4.2, of weights that nodes have).

use crate::supervise::{End, NodeReport};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_types::NodeId;

/// A task that read less says nothing of the node.
const READ_BYTES_MIN: u64 = 1 << 20;
/// Whose own disk and processor took less time of a task than this has held up nobody.
const HELD_UP_MIN: Duration = Duration::from_millis(100);
/// A straggler is not chosen where others can, and nothing more is found of it: after this time it may show whether it still is one.
const KNOWN_FOR: Duration = Duration::from_secs(300);
/// A straggler is who does less than this part of what the others do: nodes that are alike have a little more to do now and then.
const STRAGGLES: f64 = 0.5;

/// What nodes did of late.
#[derive(Debug, Default)]
pub(crate) struct Paces(Mutex<BTreeMap<NodeId, Pace>>);

#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Infinite of who has held up nobody.
    bytes_per_s: f64,
    at: Instant,
}

impl Paces {
    /// Learns from a task that came to its end. Stages run side by side: the slowest of them has waited for its disk for as long as all
    /// of what was read took.
    pub(crate) fn note(&self, node: NodeId, told: &NodeReport) {
        let read = told.traffic.read_bytes;
        if told.end != Some(End::Done) || read < READ_BYTES_MIN {
            return;
        }
        let own_us = told.stages.iter().map(|stage| stage.read_us.saturating_add(stage.combine_us)).max().unwrap_or(0);
        let own = Duration::from_micros(own_us);
        let bytes_per_s = if own < HELD_UP_MIN { f64::INFINITY } else { read as f64 / own.as_secs_f64() };
        self.lock().insert(node, Pace { bytes_per_s, at: Instant::now() });
    }

    /// Whoever comes back may have another disk.
    pub(crate) fn forget(&self, node: NodeId) {
        self.lock().remove(&node);
    }

    /// The stragglers of late, and what they give, bytes a second.
    pub(crate) fn stragglers(&self, now: Instant) -> BTreeMap<NodeId, f64> {
        let paces = self.lock();
        let fresh = paces.iter().filter(|(_, pace)| now.saturating_duration_since(pace.at) <= KNOWN_FOR);
        stragglers(fresh.map(|(node, pace)| (*node, pace.bytes_per_s)).collect())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Pace>> {
        // Nobody leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those that do much less than most of the others.
pub(crate) fn stragglers(rates: BTreeMap<NodeId, f64>) -> BTreeMap<NodeId, f64> {
    let mut sorted: Vec<f64> = rates.values().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let Some(median) = sorted.get(sorted.len() / 2).copied() else { return BTreeMap::new() };
    rates.into_iter().filter(|(_, rate)| *rate < STRAGGLES * median).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::v1::{StageTimes, TaskTraffic};

    fn told(read_bytes: u64, read_ms: &[u64], end: End) -> NodeReport {
        let traffic = TaskTraffic { read_bytes, ..TaskTraffic::default() };
        let stage = |read_ms: &u64| StageTimes { read_us: read_ms * 1000, wait_us: 1 << 30, ..StageTimes::default() };
        NodeReport { end: Some(end), traffic, stages: read_ms.iter().map(stage).collect(), ..NodeReport::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_waited_for_much_longer_than_others_is_a_straggler_for_a_while() {
        const MIB: u64 = 1 << 20;
        let paces = Paces::default();
        let found = || paces.stragglers(Instant::now());
        assert_eq!(found(), BTreeMap::new());
        for (node, read_ms) in [(1, 10), (2, 500), (3, 20), (4, 99)] {
            // Two lanes that wait for one disk.
            paces.note(NodeId(node), &told(8 * MIB, &[read_ms / 2, read_ms], End::Done));
        }
        let slow = BTreeMap::from([(NodeId(2), 16.0 * MIB as f64)]);
        assert_eq!(found(), slow);
        // What says nothing changes nothing.
        paces.note(NodeId(2), &told(MIB - 1, &[0], End::Done));
        paces.note(NodeId(3), &told(8 * MIB, &[5000], End::GivenUp));
        assert_eq!(found(), slow);
        tokio::time::advance(KNOWN_FOR).await;
        assert_eq!(found(), slow);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(found(), BTreeMap::new());
        paces.note(NodeId(2), &told(8 * MIB, &[500], End::Done));
        assert_eq!(found(), BTreeMap::new(), "where all that is known is slow, nobody is slower than the others");
        [1, 3].into_iter().for_each(|node| paces.note(NodeId(node), &told(8 * MIB, &[600], End::Done)));
        assert_eq!(found(), BTreeMap::new(), "nor where all are as slow");
        [1, 3].into_iter().for_each(|node| paces.note(NodeId(node), &told(8 * MIB, &[6], End::Done)));
        assert_eq!(found(), slow);
        paces.note(NodeId(2), &told(8 * MIB, &[6], End::Done));
        assert_eq!(found(), BTreeMap::new(), "it is as fast again");
    }
}
