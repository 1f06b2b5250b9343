//! The limit on all classes below foreground: from what an operator has set to the rate of each line, which nodes must hear of it, and how
//! long work takes at it.

use crate::{
    Time,
    links::{Figure, Pair},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_types::{CLASS_RATE_MIN, NodeId, RepairLimit};

/// The rate of a link while none was measured, bytes a second: 1 Gbit/s, which is familiar. Which of two plans is faster on equal links does
/// not depend on it.
pub const UNMEASURED_BYTES_PER_S: f64 = 125e6;
/// The highest rate, bytes a second. It is beyond all lines, and buckets can compute with it for years.
const RATE_MAX: u64 = 1 << 40;
/// What a deadline's rate leaves for the end of the work, when fewer lines are busy, and for lines that are busier than most.
const HEADROOM: f64 = 1.25;
/// A rate that differs by less than this part is not told again.
const NEWS: f64 = 0.05;
/// The slices of lower classes that may wait for a line, bytes: those of several hundred links.
const WAITING_BYTES: u64 = 64 << 20;
/// A node whose tasks have waited for the limit less than this between two heartbeats is not held back.
const HELD_BACK_MIN_MS: u64 = 100;
/// How long a wait counts at least, and for how many heartbeats: the last one of a node may be late.
const HELD_BACK_FOR: Duration = Duration::from_secs(5);
const HELD_BACK_HEARTBEATS: u32 = 2;

/// The measured rates of a node's lines, bytes a second; `None`: not measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Measured {
    /// What it sends.
    pub up: Option<f64>,
    /// What it receives.
    pub down: Option<f64>,
    /// What the slowest of its disks reads and writes: all have the same limit.
    pub disk: Option<f64>,
}

/// The limits of a node's lines, bytes a second; `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Of its uplink.
    pub up: Option<u64>,
    /// Of its downlink.
    pub down: Option<u64>,
    /// Of each of its disks.
    pub disk: Option<u64>,
    /// How much longer links of tasks may stand still than without a limit.
    pub extra_stall: Duration,
}

/// The rates of nodes' links: the best of each node's last measurements, of any age, because busy links are not measured again.
pub fn measured(figures: &BTreeMap<Pair, Figure>) -> BTreeMap<NodeId, Measured> {
    let mut all: BTreeMap<NodeId, Measured> = BTreeMap::new();
    for ((from, to), figure) in figures {
        let best = |known: &mut Option<f64>| *known = Some(known.map_or(figure.bytes_per_s, |rate| rate.max(figure.bytes_per_s)));
        best(&mut all.entry(*from).or_default().up);
        best(&mut all.entry(*to).or_default().down);
    }
    all
}

/// The rate that stands for a link that was not measured: the median of those that were.
pub fn usual(measured: &BTreeMap<NodeId, Measured>) -> f64 {
    let mut known: Vec<f64> = measured.values().flat_map(|of| [of.up, of.down]).flatten().collect();
    known.sort_by(f64::total_cmp);
    known.get(known.len() / 2).copied().unwrap_or(UNMEASURED_BYTES_PER_S)
}

/// The limits of a node's lines. No rate is lower than [`CLASS_RATE_MIN`]. A share does not limit disks that were not measured: the usual rate
/// of links says nothing of them. `busiest_bytes`: what the busiest line still has to carry.
pub fn bounds(limit: RepairLimit, now_ms: u64, busiest_bytes: u64, of: Measured, usual: f64) -> Bounds {
    let same = |rate: u64| Bounds { up: Some(rate), down: Some(rate), disk: Some(rate), ..Bounds::default() };
    match limit {
        RepairLimit::None => Bounds::default(),
        RepairLimit::Rate(rate) => same(rate.0.clamp(CLASS_RATE_MIN.0, RATE_MAX)),
        RepairLimit::Percent(percent) => {
            let share = |rate: f64| at_least(rate * f64::from(percent) / 100.0);
            let of_link = |rate: Option<f64>| Some(share(rate.unwrap_or(usual)));
            Bounds { up: of_link(of.up), down: of_link(of.down), disk: of.disk.map(share), ..Bounds::default() }
        }
        RepairLimit::Until(at_ms) => deadline_rate(busiest_bytes, at_ms, now_ms).map(same).unwrap_or_default(),
    }
}

/// The rate at which the work of now ends at a deadline, bytes a second; `None` when it has passed.
pub fn deadline_rate(busiest_bytes: u64, at_ms: u64, now_ms: u64) -> Option<u64> {
    let left_ms = at_ms.checked_sub(now_ms).filter(|left_ms| *left_ms > 0)?;
    Some(at_least(busiest_bytes as f64 * HEADROOM * 1000.0 / left_ms as f64))
}

fn at_least(rate: f64) -> u64 {
    // Saturates.
    (rate as u64).clamp(CLASS_RATE_MIN.0, RATE_MAX)
}

impl Bounds {
    /// The lowest of them.
    pub fn lowest(&self) -> Option<u64> {
        [self.up, self.down, self.disk].into_iter().flatten().min()
    }

    /// With the limit of all disks of a node together, of which so many work, instead of that of each.
    #[must_use]
    pub fn of_all_disks(self, working: u64) -> Self {
        Self { disk: self.disk.filter(|_| working > 0).map(|rate| rate.saturating_mul(working)), ..self }
    }

    /// Rates of a node's uplink, downlink and disks, held to these limits.
    pub fn hold(&self, up: f64, down: f64, disk: f64) -> (f64, f64, f64) {
        let held = |rate: f64, bound: Option<u64>| bound.map_or(rate, |bound| rate.min(bound as f64));
        (held(up, self.up), held(down, self.down), held(disk, self.disk))
    }

    /// With the time that follows from the lowest rate of all nodes: links between a slow node and others wait at both ends.
    #[must_use]
    pub fn among(self, lowest: Option<u64>) -> Self {
        Self { extra_stall: extra_stall(lowest), ..self }
    }

    /// Whether a node that obeys `self` must hear of `wanted`.
    fn must_become(&self, wanted: &Self) -> bool {
        let differs = |known: Option<u64>, wanted: Option<u64>| match (known, wanted) {
            (Some(known), Some(wanted)) => (wanted as f64 / known as f64 - 1.0).abs() > NEWS,
            (known, wanted) => known != wanted,
        };
        let stall_ms = |of: &Self| Some(of.extra_stall.as_millis() as u64).filter(|ms| *ms > 0);
        differs(self.up, wanted.up)
            || differs(self.down, wanted.down)
            || differs(self.disk, wanted.disk)
            || differs(stall_ms(self), stall_ms(wanted))
    }
}

/// How much longer than without a limit the links of a task of a lower class may stand still, given the lowest limit: all slices of a line
/// may be before the next one of a link. The supervision of plans finds nodes that fail long before.
pub fn extra_stall(lowest: Option<u64>) -> Duration {
    lowest.map_or(Duration::ZERO, |rate| Duration::from_secs(WAITING_BYTES.div_ceil(rate.max(1))))
}

/// How much traffic work causes at a line, on average.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Blocks that are read for a rebuilt one: of the code that reads most.
    pub helpers: u64,
    /// The mean length of a block, bytes.
    pub block_bytes: u64,
    /// Lines that share the work: nodes that are up.
    pub nodes: u64,
}

impl Cost {
    /// From the codes in use, of each its data blocks, its stripes and their bytes of data.
    pub fn of(codes: &[(u64, u64, u64)], nodes: u64) -> Self {
        let used = || codes.iter().filter(|(k, stripes, _)| *k > 0 && *stripes > 0);
        let (blocks, bytes) = used().fold((0u64, 0u64), |(blocks, bytes), (k, stripes, data)| {
            (blocks.saturating_add(k.saturating_mul(*stripes)), bytes.saturating_add(*data))
        });
        let helpers = used().map(|(k, ..)| *k).max().unwrap_or(1);
        Self { helpers, block_bytes: bytes / blocks.max(1), nodes: nodes.max(1) }
    }

    /// Bytes at each line of a rebuild of `bytes` of blocks: each is sent and received once by each helper.
    pub fn of_rebuild(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.helpers).div_ceil(self.nodes.max(1))
    }

    /// Bytes at each line of a conversion of `bytes` of data, which is read and written, at most twice as much of it.
    pub fn of_conversion(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(3).div_ceil(self.nodes.max(1))
    }
}

/// How long the busiest line takes at least.
pub fn least_time(busiest_bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::try_from_secs_f64(busiest_bytes as f64 / bytes_per_s.max(1) as f64).unwrap_or(Duration::MAX)
}

/// What each node has been told, and whether it holds tasks back there. `S` identifies a registration, `A` is a node's answer.
#[derive(Debug)]
pub struct Ledger<S, A> {
    number: u64,
    told: BTreeMap<NodeId, Told<S, A>>,
    waits: BTreeMap<NodeId, Waits>,
}

/// What a node was told last.
#[derive(Debug)]
struct Told<S, A> {
    registration: S,
    bounds: Bounds,
    answer: Result<A, Refusal>,
}

/// Why a node has not confirmed its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub why: String,
    /// Whether it would answer the same again.
    pub is_final: bool,
}

/// How long tasks of a node have waited for the limit.
#[derive(Debug, Clone, Copy)]
struct Waits {
    total_ms: u64,
    grew_at: Option<Time>,
}

impl<S, A> Default for Ledger<S, A> {
    fn default() -> Self {
        Self { number: 0, told: BTreeMap::new(), waits: BTreeMap::new() }
    }
}

impl<S: PartialEq, A> Ledger<S, A> {
    /// The number of the next message: an agent ignores one that arrives after a later one.
    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Whether a node must be told its limits now.
    pub fn is_due(&self, node: NodeId, registration: &S, wanted: &Bounds) -> bool {
        self.told.get(&node).is_none_or(|told| {
            let is_open = told.answer.as_ref().is_err_and(|refusal| !refusal.is_final);
            told.registration != *registration || is_open || told.bounds.must_become(wanted)
        })
    }

    /// A node has answered, or could not be reached.
    pub fn told(&mut self, node: NodeId, registration: S, bounds: Bounds, answer: Result<A, Refusal>) {
        self.told.insert(node, Told { registration, bounds, answer });
    }

    /// A node's answer to the limits that it must obey now; `None` before there is any.
    pub fn answer(&self, node: NodeId, registration: &S, wanted: &Bounds) -> Option<Result<&A, &Refusal>> {
        let told = self.told.get(&node).filter(|told| told.registration == *registration)?;
        (!told.bounds.must_become(wanted)).then_some(told.answer.as_ref())
    }

    /// A node reports how long its tasks have waited for the limit since its start, milliseconds.
    pub fn waited(&mut self, node: NodeId, total_ms: u64, now: Time) {
        let known = self.waits.entry(node).or_insert(Waits { total_ms, grew_at: None });
        // An agent that was restarted counts from 0.
        if total_ms.saturating_sub(known.total_ms) >= HELD_BACK_MIN_MS {
            known.grew_at = Some(now);
        }
        known.total_ms = total_ms;
    }

    /// Whether tasks have waited for the limit a moment ago. `heartbeat`: the interval of nodes' reports.
    pub fn holds_back(&self, heartbeat: Duration, now: Time) -> bool {
        let counts_for = HELD_BACK_FOR.max(heartbeat.saturating_mul(HELD_BACK_HEARTBEATS));
        self.waits.values().filter_map(|waits| waits.grew_at).any(|at| now.since(at) <= counts_for)
    }

    /// Forgets nodes that no longer exist.
    pub fn keep(&mut self, nodes: &BTreeSet<NodeId>) {
        self.told.retain(|node, _| nodes.contains(node));
        self.waits.retain(|node, _| nodes.contains(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::ByteSize;

    const MIB: u64 = 1 << 20;
    const NOW: u64 = 1_700_000_000_000;

    fn same(rate: u64) -> Bounds {
        Bounds { up: Some(rate), down: Some(rate), disk: Some(rate), ..Bounds::default() }
    }

    #[test]
    fn a_rate_holds_at_every_line_and_a_share_follows_each_lines_measured_rate() {
        let measured = Measured { up: Some(100e6), down: Some(40e6), disk: None };
        let of = |limit, measured| bounds(limit, NOW, 0, measured, 60e6);
        assert_eq!(of(RepairLimit::None, measured), Bounds::default());
        assert_eq!(of(RepairLimit::Rate(ByteSize(10 * MIB)), measured), same(10 * MIB));
        let half = Bounds { up: Some(50_000_000), down: Some(20_000_000), ..Bounds::default() };
        assert_eq!(of(RepairLimit::Percent(50), measured), half);
        let with_disk = Measured { disk: Some(30e6), ..measured };
        assert_eq!(of(RepairLimit::Percent(50), with_disk), Bounds { disk: Some(15_000_000), ..half });
        let of_each = Bounds { disk: Some(15_000_000), ..half };
        let together = [4, 1, 0].map(|disks| of_each.of_all_disks(disks).lowest());
        assert_eq!(together, [Some(20_000_000), Some(15_000_000), Some(20_000_000)], "four disks are faster than the downlink");
        let down_unknown = Measured { down: None, ..measured };
        assert_eq!(of(RepairLimit::Percent(50), down_unknown), Bounds { down: Some(30_000_000), ..half }, "the usual rate");
        assert_eq!(
            of(RepairLimit::Percent(1), Measured { up: Some(1e6), down: Some(f64::INFINITY), disk: None }),
            Bounds { up: Some(CLASS_RATE_MIN.0), down: Some(RATE_MAX), ..Bounds::default() }
        );
    }

    #[test]
    fn a_deadline_becomes_a_rate_that_follows_the_work_and_ends_with_it() {
        let at_ms = NOW + 100_000;
        let rate =
            |busiest_mib: u64, now_ms| bounds(RepairLimit::Until(at_ms), now_ms, busiest_mib * MIB, Measured::default(), 1.0);
        assert_eq!(rate(80_000, NOW), same(1_000 * MIB), "a quarter more than 800 MiB/s");
        assert_eq!(rate(40_000, NOW + 50_000), same(1_000 * MIB), "half of the work in half of the time");
        assert_eq!(rate(80_000, NOW + 50_000), same(2_000 * MIB), "it was slower");
        assert_eq!(rate(0, NOW), same(CLASS_RATE_MIN.0), "no work: new work begins slowly until it is counted");
        assert_eq!(rate(80_000, at_ms), Bounds::default(), "the deadline has passed");
        assert_eq!(rate(80_000, at_ms + 1), Bounds::default());
        assert_eq!(deadline_rate(u64::MAX, at_ms, at_ms - 1), Some(RATE_MAX));
    }

    #[test]
    fn the_best_of_a_nodes_links_is_its_rate_and_the_median_stands_for_the_others() {
        let figure = |bytes_per_s| Figure { bytes_per_s, slice_overhead_s: None, at: Time::default() };
        let [a, b, c] = [NodeId(1), NodeId(2), NodeId(3)];
        let figures = [((a, b), figure(10.0)), ((a, c), figure(40.0)), ((b, a), figure(20.0))].into();
        let all = measured(&figures);
        assert_eq!(all[&a], Measured { up: Some(40.0), down: Some(20.0), disk: None });
        assert_eq!((all[&c], usual(&all)), (Measured { up: None, down: Some(40.0), disk: None }, 20.0));
        assert_eq!(usual(&BTreeMap::new()), UNMEASURED_BYTES_PER_S);
    }

    #[test]
    fn work_is_spread_over_the_nodes_and_links_may_wait_for_a_whole_line() {
        let cost = Cost::of(&[(4, 10, 40 * MIB), (10, 5, 500 * MIB), (0, 9, 9), (99, 0, 0)], 10);
        assert_eq!(cost, Cost { helpers: 10, block_bytes: 6 * MIB, nodes: 10 });
        assert_eq!((cost.of_rebuild(60 * MIB), cost.of_conversion(10 * MIB)), (60 * MIB, 3 * MIB));
        assert_eq!(Cost::of(&[], 0).of_rebuild(7), 7);
        assert_eq!(least_time(60 * MIB, 2 * MIB), Duration::from_secs(30));
        assert_eq!((extra_stall(None), extra_stall(Some(64 * MIB))), (Duration::ZERO, Duration::from_secs(1)));
        assert_eq!(extra_stall(Some(CLASS_RATE_MIN.0)), Duration::from_secs(256));
    }

    #[test]
    fn a_node_is_told_until_it_confirms_and_again_when_it_registers_or_the_rate_changes() {
        let (mut ledger, node, at) = (Ledger::<u8, &str>::default(), NodeId(1), Time::default());
        let (slow, almost, fast) = (same(100), same(104), same(106));
        assert!(ledger.is_due(node, &1, &Bounds::default()));
        let open = Refusal { why: "no answer".into(), is_final: false };
        ledger.told(node, 1, slow, Err(open.clone()));
        assert!(ledger.is_due(node, &1, &slow));
        assert_eq!(ledger.answer(node, &1, &slow), Some(Err(&open)));
        ledger.told(node, 1, slow, Ok("lines"));
        assert!(!ledger.is_due(node, &1, &slow) && !ledger.is_due(node, &1, &almost) && ledger.is_due(node, &1, &fast));
        assert_eq!((ledger.answer(node, &1, &almost), ledger.answer(node, &1, &fast)), (Some(Ok(&"lines")), None));
        assert!(ledger.is_due(node, &1, &Bounds::default()), "no limit is news, too");
        assert!(ledger.is_due(node, &1, &slow.among(Some(MIB))), "links may wait longer because another node is slow");
        assert!(ledger.is_due(node, &2, &slow) && ledger.answer(node, &2, &slow).is_none(), "it has registered again");
        ledger.told(node, 2, slow, Err(Refusal { is_final: true, ..open }));
        assert!(!ledger.is_due(node, &2, &slow) && ledger.is_due(node, &2, &fast), "an old agent");
        assert!(ledger.next_number() < ledger.next_number());
        ledger.keep(&BTreeSet::new());
        assert!(ledger.is_due(node, &2, &slow));
        assert!(!ledger.holds_back(Duration::ZERO, at));
    }

    #[test]
    fn waits_that_grow_hold_repair_back_for_a_moment() {
        let (mut ledger, at) = (Ledger::<u8, ()>::default(), |s| Time::after(Duration::from_secs(s)));
        let is_held_back = |ledger: &Ledger<u8, ()>, s| ledger.holds_back(Duration::from_secs(1), at(s));
        ledger.waited(NodeId(1), 9_000, at(1));
        assert!(!is_held_back(&ledger, 1), "nobody knows when it waited");
        ledger.waited(NodeId(1), 9_099, at(2));
        assert!(!is_held_back(&ledger, 2));
        ledger.waited(NodeId(1), 9_199, at(3));
        assert!(is_held_back(&ledger, 3) && is_held_back(&ledger, 8) && !is_held_back(&ledger, 9));
        let rare = Duration::from_secs(60);
        assert!(ledger.holds_back(rare, at(63)) && ledger.holds_back(rare, at(123)), "the next report may be late");
        assert!(!ledger.holds_back(rare, at(124)));
        ledger.waited(NodeId(1), 0, at(10));
        ledger.waited(NodeId(1), 100, at(11));
        assert!(is_held_back(&ledger, 11), "it was restarted");
    }
}
