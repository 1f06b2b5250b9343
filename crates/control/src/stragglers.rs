//! How fast nodes deliver what they read, according to the stages of plans. A node with a slow disk or processor is a
//! straggler for a chain, just like one with a slow link (ECPipe, §4.2, there as link weights).

use crate::{
    Time,
    run::{End, NodeReport},
};
use std::{collections::BTreeMap, time::Duration};
use weft_types::NodeId;

/// A task that read less says nothing about the node.
const READ_BYTES_MIN: u64 = 1 << 20;
/// A node whose own disk and processor took less time of a task than this has delayed no other node.
const HELD_UP_MIN: Duration = Duration::from_millis(100);
/// A straggler is not chosen if there are others, so nothing new is learnt about it. After this time it may show
/// whether it is still slow.
const KNOWN_FOR: Duration = Duration::from_secs(300);
/// A straggler is slower than this fraction of the others' rate: equal nodes differ a little at times.
const STRAGGLES: f64 = 0.5;

/// Recent rates of nodes.
#[derive(Debug, Default)]
pub struct Stragglers(BTreeMap<NodeId, ReadRate>);

#[derive(Debug, Clone, Copy)]
struct ReadRate {
    /// In its last task and, if there was one, in the task before. Infinite for a node that has delayed no other.
    bytes_per_s: [f64; 2],
    at: Time,
}

impl ReadRate {
    /// One slow task makes no straggler: the disk may have been busy with something else for a moment.
    fn better(&self) -> f64 {
        self.bytes_per_s[0].max(self.bytes_per_s[1])
    }
}

impl Stragglers {
    /// Learns from a finished task that no other task and no rate limit has held back. Stages run in parallel: the slowest of them has waited
    /// for its disk for as long as all reads took.
    pub fn note(&mut self, node: NodeId, told: &NodeReport, now: Time) {
        let read = told.traffic.read_bytes;
        if told.end != Some(End::Done) || read < READ_BYTES_MIN || told.was_held_back {
            return;
        }
        let own_us = told.stages.iter().map(|stage| stage.read_us.saturating_add(stage.combine_us)).max().unwrap_or(0);
        let own = Duration::from_micros(own_us);
        let bytes_per_s = if own < HELD_UP_MIN { f64::INFINITY } else { read as f64 / own.as_secs_f64() };
        let before = self.0.get(&node).filter(|rate| now - rate.at <= KNOWN_FOR).map_or(bytes_per_s, |rate| rate.bytes_per_s[0]);
        self.0.insert(node, ReadRate { bytes_per_s: [bytes_per_s, before], at: now });
    }

    /// Forgets a node that returned, possibly with another disk.
    pub fn forget(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    /// The recent stragglers and their rates, bytes a second.
    pub fn stragglers(&self, now: Time) -> BTreeMap<NodeId, f64> {
        let fresh = self.0.iter().filter(|(_, rate)| now - rate.at <= KNOWN_FOR);
        among(fresh.map(|(node, rate)| (*node, rate.better())).collect())
    }
}

/// Those with a much lower rate than most of the others.
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
    fn a_node_that_others_wait_for_much_longer_is_a_straggler_for_a_while() {
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
        // A task without information changes nothing.
        rates.note(NodeId(2), &told(MIB - 1, &[0], End::Done), now);
        rates.note(NodeId(3), &told(8 * MIB, &[5000], End::GivenUp), now);
        let throttled = NodeReport { was_held_back: true, ..told(8 * MIB, &[5000], End::Done) };
        rates.note(NodeId(1), &throttled, now);
        assert_eq!(rates.stragglers(now), slow);
        now = now + KNOWN_FOR;
        assert_eq!(rates.stragglers(now), slow);
        now = now + Duration::from_secs(1);
        assert_eq!(rates.stragglers(now), BTreeMap::new());
        done(&mut rates, &[2], 500, now);
        assert_eq!(rates.stragglers(now), BTreeMap::new(), "if all known rates are slow, no node is slower than the others");
        done(&mut rates, &[1, 3], 600, now);
        assert_eq!(rates.stragglers(now), BTreeMap::new(), "nor if all are equally slow");
        done(&mut rates, &[1, 3], 6, now);
        assert_eq!(rates.stragglers(now), slow);
        done(&mut rates, &[2], 6, now);
        assert_eq!(rates.stragglers(now), BTreeMap::new(), "the node is fast again");
        done(&mut rates, &[2], 500, now);
        assert_eq!(rates.stragglers(now), BTreeMap::new(), "one slow task may be an accident");
        done(&mut rates, &[2], 500, now);
        assert_eq!(rates.stragglers(now), slow, "two in a row are none");
    }
}
