//! Detects that a node delays a plan, long before its links give up: which node it is, and for how long it may.

use super::{levels::Levels, report::Report};
use crate::Time;
use std::{collections::BTreeMap, time::Duration};
use weft_types::{NodeId, Party};

/// A slower slice counts as standing still.
const SLOWEST_SLICE_BYTES_PER_MS: u64 = 1 << 10;

/// A receiver of a put that waits for its own disk has this fraction of the time after which links give up.
const DISK_SHARE: u32 = 4;

/// How long a plan may stand still before it avoids the node that delays it: `stall_ms`, doubled for each earlier stall
/// (`times`), plus the time of one slice of `slice_bytes`. `None` if only its links limit it.
pub fn stall_after(stall_ms: u64, slice_bytes: u64, times: u32) -> Option<Duration> {
    let stalled_ms = stall_ms.checked_mul(1 << times.min(16))?;
    // Movement is counted slice by slice.
    let slice_ms = slice_bytes / SLOWEST_SLICE_BYTES_PER_MS;
    (stalled_ms > 0).then(|| Duration::from_millis(stalled_ms.saturating_add(slice_ms)))
}

/// How long a plan may be delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallPolicy {
    /// The limit for a node that is silent.
    pub stall_timeout: Duration,
    /// The limit for a node that reports that it waits for its own disk; not shorter.
    pub disk_timeout: Duration,
    /// Whether a silent node also counts when all others have ended, because another party waits for its end.
    pub to_the_last: bool,
    /// Whether nodes wait only for the client and not for each other: a node that the client blames is then given up
    /// alone.
    pub one_by_one: bool,
    /// How many nodes may fail without an alternative to them.
    pub failed_max: usize,
}

impl StallPolicy {
    /// For a plan in which nodes wait for each other and no party waits for the last of them.
    pub fn of_chain(stall_timeout: Duration) -> Self {
        Self { stall_timeout, disk_timeout: stall_timeout, to_the_last: false, one_by_one: false, failed_max: 0 }
    }

    /// For a put of which `missing_max` blocks of a stripe may come late. A disk may be busy with other puts, so a
    /// receiver that reports it gets longer, but less than `links_timeout`, after which the writer gives up all
    /// receivers that wait for it.
    pub fn of_put(stall_timeout: Duration, links_timeout: Duration, levels: &Levels, missing_max: u32) -> Self {
        Self {
            stall_timeout,
            disk_timeout: stall_timeout.max(links_timeout / DISK_SHARE),
            to_the_last: true,
            one_by_one: levels.are_one(),
            failed_max: missing_max as usize,
        }
    }
}

/// When each node was last heard of, and whether the plan's bytes move.
#[derive(Debug)]
pub(super) struct Flow {
    nodes: BTreeMap<NodeId, NodeFlow>,
}

/// What a node has moved, and when.
#[derive(Debug)]
struct NodeFlow {
    moved_bytes: u64,
    /// Of these, received.
    received_bytes: u64,
    /// When that last grew; `None` if it has moved nothing.
    grew_at: Option<Time>,
    heard_at: Time,
}

impl Flow {
    /// For a plan that starts now.
    pub(super) fn new(nodes: impl Iterator<Item = NodeId>, now: Time) -> Self {
        Self {
            nodes: nodes
                .map(|node| (node, NodeFlow { moved_bytes: 0, received_bytes: 0, grew_at: None, heard_at: now }))
                .collect(),
        }
    }

    /// A node has reported the bytes that it has moved since the start, and how many of these it has received. Returns whether it has
    /// received and sent any since its last report.
    pub(super) fn told(&mut self, node: NodeId, (moved_bytes, received_bytes): (u64, u64), now: Time) -> (bool, bool) {
        let Some(flow) = self.nodes.get_mut(&node) else { return (false, false) };
        let before = (flow.received_bytes, flow.moved_bytes.saturating_sub(flow.received_bytes));
        flow.heard_at = now;
        flow.received_bytes = flow.received_bytes.max(received_bytes);
        if moved_bytes > flow.moved_bytes {
            (flow.moved_bytes, flow.grew_at) = (moved_bytes, Some(now));
        }
        (flow.received_bytes > before.0, flow.moved_bytes.saturating_sub(flow.received_bytes) > before.1)
    }

    /// The bytes that a node is known to have moved.
    pub(super) fn moved_bytes(&self, node: NodeId) -> u64 {
        self.nodes.get(&node).map_or(0, |flow| flow.moved_bytes)
    }

    /// A node has finished, possibly before any progress report.
    pub(super) fn done(&mut self, node: NodeId, now: Time) {
        self.told(node, (u64::MAX, 0), now);
    }

    /// Whether a node was silent for this long.
    pub(super) fn is_silent(&self, node: NodeId, timeout: Duration, now: Time) -> bool {
        self.nodes.get(&node).is_some_and(|flow| now - flow.heard_at >= timeout)
    }

    /// The node that delays others, and one of those, if they have not ended. It has moved nothing for `stall_timeout`,
    /// another node has waited for it for about as long, and it was silent for that long or has waited for its own disk
    /// for about `disk_timeout`. (The others' buffers may still fill for a while.) A link without any movement is still
    /// being connected, and no node is blamed for that. Nor is a node that reports that it is held back by tasks of an
    /// earlier class. Nor is one that is silent, but `is_alive`.
    pub(super) fn culprit(
        &self,
        report: &Report,
        policy: &StallPolicy,
        is_alive: impl Fn(NodeId) -> bool,
        now: Time,
    ) -> Option<(NodeId, Option<NodeId>)> {
        let StallPolicy { stall_timeout, disk_timeout, to_the_last, .. } = *policy;
        if !self.nodes.values().all(|flow| flow.grew_at.is_some()) {
            return None;
        }
        // Agents check their stages at intervals, so a wait may have begun a little earlier than reported.
        let about = |wait: Duration| (wait * 3 / 4).as_millis();
        let running = report.running();
        let waits = |id: &NodeId| report.nodes.get(id).map(|node| node.waiting.as_slice()).unwrap_or_default();
        let waits_long = |of: &NodeId, party: Party, wait: Duration| {
            waits(of).iter().any(|(on, since_ms)| *on == party && u128::from(*since_ms) >= about(wait))
        };
        let is_silent = |node: &NodeId| self.is_silent(*node, stall_timeout, now) && !is_alive(*node);
        let moves = |node: &NodeId| {
            let grew_at = self.nodes.get(node).and_then(|flow| flow.grew_at);
            grew_at.is_some_and(|grew_at| now - grew_at < stall_timeout)
        };
        let is_held_back = |node: &NodeId| report.nodes.get(node).is_some_and(|report| report.held_back) && !is_silent(node);
        let holds_up = |node: &NodeId| {
            if is_held_back(node) {
                return None;
            }
            let party = Party::Node(*node);
            let accuser =
                running.iter().find(|other| *other != node && !is_silent(other) && waits_long(other, party, stall_timeout));
            if accuser.is_none() && !(to_the_last && running.len() == 1 && is_silent(node)) {
                return None;
            }
            (!moves(node) && (is_silent(node) || waits_long(node, party, disk_timeout))).then_some((*node, accuser.copied()))
        };
        running.iter().find_map(holds_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_millis(1000);

    const START: Time = Time::after(Duration::ZERO);

    const NOBODY: fn(NodeId) -> bool = |_| false;

    fn policy() -> StallPolicy {
        StallPolicy::of_chain(STALL)
    }

    fn node(id: u32) -> NodeId {
        NodeId(id)
    }

    /// A chain 1 → 2 → 3 → 4; `waits` says which party waits for which.
    fn chain(waits: &[(u32, Party)]) -> (Flow, Report) {
        let nodes = || (1..=4).map(node);
        let (mut flow, mut report) = (Flow::new(nodes(), START), Report::new(nodes()));
        for node in nodes() {
            flow.told(node, (100, 0), START);
        }
        for (id, party) in waits {
            report.nodes.get_mut(&node(*id)).unwrap().waiting = vec![(*party, 900)];
        }
        (flow, report)
    }

    /// Advances `now`; then these nodes report.
    fn heard(flow: &mut Flow, nodes: &[u32], now: &mut Time, after: Duration) {
        *now = *now + after;
        for id in nodes {
            flow.told(node(*id), (100, 0), *now);
        }
    }

    #[test]
    fn the_stall_limit_grows_with_earlier_stalls_and_the_slice_size() {
        let after_ms =
            |stall_ms, slice_bytes, times| stall_after(stall_ms, slice_bytes, times).map(|after| after.as_millis() as u64);
        let cases = [
            ((1_000, 0, 0), Some(1_000)),
            ((1_000, 4 << 20, 0), Some(1_000 + 4_096)),
            ((1_000, 1 << 10, 3), Some(8_001)),
            ((1_000, 0, 99), Some(65_536_000)),
            ((0, 4 << 20, 1), None),
            ((u64::MAX, 0, 1), None),
        ];
        for ((stall_ms, slice_bytes, times), expected) in cases {
            assert_eq!(after_ms(stall_ms, slice_bytes, times), expected, "{stall_ms} ms, {slice_bytes} bytes, {times} times");
        }
    }

    #[test]
    fn a_silent_node_that_others_wait_for_delays_the_plan() {
        let mut now = START;
        let on = |id| Party::Node(node(id));
        let (mut flow, report) = chain(&[(1, on(2)), (3, on(2)), (4, on(3))]);
        heard(&mut flow, &[1, 3, 4], &mut now, STALL / 2);
        assert_eq!(flow.culprit(&report, &policy(), NOBODY, now), None, "too early");
        heard(&mut flow, &[1, 3, 4], &mut now, STALL / 2);
        assert_eq!(flow.culprit(&report, &policy(), NOBODY, now), Some((node(2), Some(node(1)))));
        let (mut flow, report) = chain(&[]);
        heard(&mut flow, &[1, 3, 4], &mut now, STALL * 2);
        assert_eq!(
            flow.culprit(&report, &policy(), NOBODY, now),
            None,
            "no node waits for the silent one: only the coordinator misses its reports"
        );
    }

    #[test]
    fn a_hanging_disk_is_blamed_and_a_reader_is_not() {
        let mut now = START;
        let on = |id| Party::Node(node(id));
        let (mut flow, report) = chain(&[(1, on(2)), (2, on(2)), (3, on(2)), (4, on(3))]);
        heard(&mut flow, &[1, 2, 3, 4], &mut now, STALL);
        assert_eq!(flow.culprit(&report, &policy(), NOBODY, now), Some((node(2), Some(node(1)))), "it waits for its own disk");
        assert_eq!(
            flow.culprit(&report, &StallPolicy { disk_timeout: STALL * 2, ..policy() }, NOBODY, now),
            None,
            "a disk may take longer where that is allowed"
        );
        flow.told(node(2), (101, 0), now);
        assert_eq!(flow.culprit(&report, &policy(), NOBODY, now), None, "it has moved bytes a moment ago");
        let (mut flow, report) = chain(&[(1, on(2)), (2, on(3)), (3, on(4)), (4, Party::Client(7))]);
        heard(&mut flow, &[1, 2, 3, 4], &mut now, STALL);
        assert_eq!(flow.culprit(&report, &policy(), NOBODY, now), None, "a reader may be slow");
    }

    #[test]
    fn a_node_held_back_by_its_class_is_not_blamed_until_it_is_silent() {
        let mut now = START;
        let on = |id| Party::Node(node(id));
        let (mut flow, mut report) = chain(&[(1, on(2)), (2, on(2)), (3, on(2)), (4, on(3))]);
        heard(&mut flow, &[1, 2, 3, 4], &mut now, STALL * 3);
        let blamed = Some((node(2), Some(node(1))));
        assert_eq!(flow.culprit(&report, &policy(), NOBODY, now), blamed);
        report.nodes.get_mut(&node(2)).unwrap().held_back = true;
        assert_eq!(
            flow.culprit(&report, &policy(), NOBODY, now),
            None,
            "another of its stages waits for the disk behind the same tasks"
        );
        heard(&mut flow, &[1, 3, 4], &mut now, STALL);
        assert_eq!(flow.culprit(&report, &policy(), NOBODY, now), blamed, "it is silent");
    }

    #[test]
    fn the_last_running_node_delays_a_party_that_waits_for_the_end() {
        let mut now = START;
        let (mut flow, mut report) = chain(&[]);
        for id in [1, 2, 4] {
            report.nodes.get_mut(&node(id)).unwrap().end = Some(crate::run::End::Done);
            flow.done(node(id), now);
        }
        let last = || StallPolicy { to_the_last: true, ..policy() };
        heard(&mut flow, &[], &mut now, STALL / 2);
        assert_eq!(flow.culprit(&report, &last(), NOBODY, now), None, "too early");
        heard(&mut flow, &[], &mut now, STALL / 2);
        assert_eq!(flow.culprit(&report, &last(), NOBODY, now), Some((node(3), None)));
        assert_eq!(flow.culprit(&report, &policy(), NOBODY, now), None, "no node waits");
        flow.told(node(3), (100, 0), now);
        assert_eq!(flow.culprit(&report, &last(), NOBODY, now), None, "it is alive and writes");
    }

    #[test]
    fn a_link_that_has_not_begun_is_not_blamed() {
        let mut now = START;
        let (_, report) = chain(&[(1, Party::Node(node(2)))]);
        let mut flow = Flow::new((1..=4).map(node), START);
        heard(&mut flow, &[1], &mut now, STALL * 5);
        assert_eq!(flow.culprit(&report, &policy(), NOBODY, now), None);
    }
}
