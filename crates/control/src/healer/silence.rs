//! How long nodes have been silent, as one coordinator records it for the next. The time of day is no measure of that: while no coordinator
//! runs, its machine's clock may be set forward, and nodes would be lost that have just restarted; or back, and they would not be lost for
//! days.

use super::judge::settle;
use crate::{Time, members::MemberStatus};
use std::{collections::BTreeMap, fmt, time::Duration};
use weft_types::{NodeId, NodeRecord, NodeState};

/// It is recorded again after this part of the time after which a node is lost. The next coordinator cannot know more.
const RECORDS_PER_GRACE: u32 = 60;
/// The most bytes of a record.
pub const SILENCE_BYTES_MAX: usize = 1 << 20;
const HEAD: &str = "weft silent nodes 1";

/// How long each node that is down has been silent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Silence {
    /// The time of day of the record, milliseconds since 1970.
    at_ms: u64,
    nodes: BTreeMap<NodeId, Duration>,
}

impl Silence {
    /// Of these nodes, now.
    pub fn of(nodes: &[MemberStatus], at_ms: u64) -> Self {
        let down = nodes.iter().filter(|node| !node.up && node.record.state == NodeState::Down);
        Self { at_ms, nodes: down.map(|node| (node.record.id, node.state_for)).collect() }
    }

    /// Whether to replace the record `last`, which is `age` old, by this one. A node that is silent for longer than `lost_after` needs no
    /// further records.
    pub fn is_due(&self, last: &Self, age: Duration, lost_after: Duration) -> bool {
        let is_counting = last.nodes.values().any(|silent| *silent < lost_after);
        !self.nodes.keys().eq(last.nodes.keys()) || is_counting && age >= lost_after / RECORDS_PER_GRACE
    }

    /// Reads a record; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        lines.next().filter(|head| *head == HEAD)?;
        let at_ms = lines.next()?.strip_prefix("at ")?.parse().ok()?;
        let node = |line: &str| {
            let (node, silent_ms) = line.split_once(' ')?;
            Some((NodeId(node.parse().ok()?), Duration::from_millis(silent_ms.parse().ok()?)))
        };
        Some(Self { at_ms, nodes: lines.map(node).collect::<Option<_>>()? })
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}\nat {}", self.at_ms)?;
        self.nodes.iter().try_for_each(|(node, silent)| writeln!(f, "{} {}", node.0, silent.as_millis()))
    }
}

/// Sets since when nodes are down so that they have been silent for as long as the last coordinator recorded, and a bit more for the time
/// without a coordinator. Without a record, the time of day counts.
pub fn resume(nodes: &mut [NodeRecord], last: Option<&Silence>, now_ms: u64, lost_after: Duration) {
    for node in nodes {
        node.since_ms = node.since_ms.min(now_ms);
        let Some(last) = last.filter(|_| node.state == NodeState::Down) else { continue };
        let away = Duration::from_millis(now_ms.saturating_sub(last.at_ms)).min(settle(lost_after));
        // The record is of an earlier silence if it could not be written since.
        let recorded = last.nodes.get(&node.id).filter(|_| node.since_ms <= last.at_ms);
        let silent = recorded.copied().unwrap_or_default() + away;
        let since_ms = now_ms.saturating_sub(u64::try_from(silent.as_millis()).unwrap_or(u64::MAX));
        // A node that has been silent for long enough is down for as long as the clock says.
        node.since_ms = if silent >= lost_after { node.since_ms.min(since_ms) } else { since_ms };
    }
}

/// Decides when the silence of nodes is recorded.
#[derive(Debug, Default)]
pub struct Recorder {
    last: Silence,
    recorded: Time,
}

impl Recorder {
    /// The record to write now, if any.
    pub fn look(&mut self, nodes: &[MemberStatus], now: Time, now_ms: u64, lost_after: Duration) -> Option<String> {
        let silence = Silence::of(nodes, now_ms);
        if !silence.is_due(&self.last, now.since(self.recorded), lost_after) {
            return None;
        }
        (self.last, self.recorded) = (silence, now);
        Some(self.last.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::member as node;

    const LOST_AFTER: Duration = Duration::from_secs(900);
    const NOW_MS: u64 = 1_700_000_000_000;
    const HOUR_MS: u64 = 3_600_000;

    fn down(id: u32, silent_s: u64) -> MemberStatus {
        node(id, "", Some((NodeState::Down, silent_s)))
    }

    /// How long a node counts as silent after a restart that takes `away_ms` by the clock, if it was silent for so many seconds before.
    fn resumed(recorded_s: Option<u64>, by_clock_s: u64, away_ms: i64) -> u64 {
        let now_ms = NOW_MS.saturating_add_signed(away_ms);
        let mut record = down(1, 0).record;
        record.since_ms = NOW_MS - by_clock_s * 1000;
        let last = recorded_s.map(|silent_s| Silence::of(&[down(1, silent_s)], NOW_MS));
        let last = last.map(|last| Silence::parse(&last.to_string()).unwrap());
        let mut nodes = [record];
        resume(&mut nodes, last.as_ref(), now_ms, LOST_AFTER);
        (now_ms - nodes[0].since_ms) / 1000
    }

    #[test]
    fn a_clock_that_is_set_while_no_coordinator_runs_changes_little() {
        let away = |ms: i64| resumed(Some(300), 300, ms);
        assert_eq!(away(10_000), 310, "a restart in ten seconds");
        assert_eq!(away(HOUR_MS as i64), 360, "of an hour, or a clock that is an hour ahead, a minute counts");
        assert_eq!([away(-60_000), away(-(48 * HOUR_MS as i64))], [300, 300], "set back");
        assert_eq!(resumed(Some(200), 300, 0), 200, "an earlier coordinator was away for long");
        assert_eq!(resumed(Some(900), 90_000, 10_000), 90_010, "it is down for days");
        assert_eq!(resumed(Some(900), 90_000, -(48 * HOUR_MS as i64)), 900);
        assert_eq!([resumed(None, 300, 0), resumed(None, 300, -(HOUR_MS as i64))], [300, 0], "no record");
    }

    #[test]
    fn only_nodes_that_are_down_are_recorded_and_only_while_it_matters() {
        let mut recorder = Recorder::default();
        let at = |seconds| Time::after(Duration::from_secs(seconds));
        let up = node(2, "", None);
        let mut look = |nodes: &[MemberStatus], seconds| recorder.look(nodes, at(seconds), NOW_MS + seconds * 1000, LOST_AFTER);
        assert_eq!(look(std::slice::from_ref(&up), 1), None);
        assert_eq!(look(&[down(1, 5), up.clone()], 20).unwrap(), "weft silent nodes 1\nat 1700000020000\n1 5000\n");
        assert_eq!(look(&[down(1, 19), up.clone()], 34), None);
        assert!(look(&[down(1, 20), up.clone()], 35).is_some());
        assert!(look(&[down(1, 21), down(2, 5)], 36).is_some(), "another one");
        assert!(look(&[down(1, 950), down(2, 930)], 960).is_some());
        assert_eq!(look(&[down(1, 5_000), down(2, 5_000)], 5_020), None, "nothing depends on it");
        assert!(look(&[up], 5_021).is_some());
    }

    #[test]
    fn what_is_no_record_is_ignored() {
        for text in [
            "",
            "weft silent nodes 2\nat 1\n",
            "weft silent nodes 1\n",
            "weft silent nodes 1\nat 1\n7",
            "weft silent nodes 1\nat x\n",
        ] {
            assert_eq!(Silence::parse(text), None, "{text}");
        }
        assert!(Silence::parse("weft silent nodes 1\nat 1\n").unwrap().nodes.is_empty());
    }
}
