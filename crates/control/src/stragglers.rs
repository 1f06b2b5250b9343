//! How fast nodes give what they read, as the stages of plans have found it: whose disk or processor is slow is a straggler for a
//! chain just as who has a slow link (ECPipe, §4.2, of weights that nodes have).

use crate::{
    Time,
    run::{End, NodeReport},
};
use std::{collections::BTreeMap, time::Duration};
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
pub struct Stragglers(BTreeMap<NodeId, ReadRate>);

#[derive(Debug, Clone, Copy)]
struct ReadRate {
    /// Infinite of who has held up nobody.
    bytes_per_s: f64,
    at: Time,
}

impl Stragglers {
    /// Learns from a task that came to its end. Stages run side by side: the slowest of them has waited for its disk for as long as all
    /// of what was read took.
    pub fn note(&mut self, node: NodeId, told: &NodeReport, now: Time) {
        let read = told.traffic.read_bytes;
        if told.end != Some(End::Done) || read < READ_BYTES_MIN {
            return;
        }
        let own_us = told.stages.iter().map(|stage| stage.read_us.saturating_add(stage.combine_us)).max().unwrap_or(0);
        let own = Duration::from_micros(own_us);
        let bytes_per_s = if own < HELD_UP_MIN { f64::INFINITY } else { read as f64 / own.as_secs_f64() };
        self.0.insert(node, ReadRate { bytes_per_s, at: now });
    }

    /// Whoever comes back may have another disk.
    pub fn forget(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    /// The stragglers of late, and what they give, bytes a second.
    pub fn stragglers(&self, now: Time) -> BTreeMap<NodeId, f64> {
        let fresh = self.0.iter().filter(|(_, rate)| now - rate.at <= KNOWN_FOR);
        among(fresh.map(|(node, rate)| (*node, rate.bytes_per_s)).collect())
    }
}

/// Those that do much less than most of the others.
pub fn among(rates: BTreeMap<NodeId, f64>) -> BTreeMap<NodeId, f64> {
    let mut sorted: Vec<f64> = rates.values().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let Some(median) = sorted.get(sorted.len() / 2).copied() else { return BTreeMap::new() };
    rates.into_iter().filter(|(_, rate)| *rate < STRAGGLES * median).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{StageTimes, TaskTraffic};

    fn told(read_bytes: u64, read_ms: &[u64], end: End) -> NodeReport {
        let traffic = TaskTraffic { read_bytes, ..TaskTraffic::default() };
        let stage = |read_ms: &u64| StageTimes { read_us: read_ms * 1000, wait_us: 1 << 30, ..StageTimes::default() };
        NodeReport { end: Some(end), traffic, stages: read_ms.iter().map(stage).collect(), ..NodeReport::default() }
    }

    #[test]
    fn who_is_waited_for_much_longer_than_others_is_a_straggler_for_a_while() {
        const MIB: u64 = 1 << 20;
        let (mut rates, mut now) = (Stragglers::default(), Time::default());
        assert_eq!(rates.stragglers(now), BTreeMap::new());
        let done = |rates: &mut Stragglers, nodes: &[u32], read_ms: u64, now: Time| {
            nodes.iter().for_each(|node| rates.note(NodeId(*node), &told(8 * MIB, &[read_ms / 2, read_ms], End::Done), now));
        };
        for (node, read_ms) in [(1, 10), (2, 500), (3, 20), (4, 99)] {
            // Two lanes that wait for one disk.
            done(&mut rates, &[node], read_ms, now);
        }
        let slow = BTreeMap::from([(NodeId(2), 16.0 * MIB as f64)]);
        assert_eq!(rates.stragglers(now), slow);
        // What says nothing changes nothing.
        rates.note(NodeId(2), &told(MIB - 1, &[0], End::Done), now);
        rates.note(NodeId(3), &told(8 * MIB, &[5000], End::GivenUp), now);
        assert_eq!(rates.stragglers(now), slow);
        now = now + KNOWN_FOR;
        assert_eq!(rates.stragglers(now), slow);
        now = now + Duration::from_secs(1);
        assert_eq!(rates.stragglers(now), BTreeMap::new());
        done(&mut rates, &[2], 500, now);
        assert_eq!(rates.stragglers(now), BTreeMap::new(), "where all that is known is slow, nobody is slower than the others");
        done(&mut rates, &[1, 3], 600, now);
        assert_eq!(rates.stragglers(now), BTreeMap::new(), "nor where all are as slow");
        done(&mut rates, &[1, 3], 6, now);
        assert_eq!(rates.stragglers(now), slow);
        done(&mut rates, &[2], 6, now);
        assert_eq!(rates.stragglers(now), BTreeMap::new(), "it is as fast again");
    }
}
