//! Which of the waiting repairs starts next.
//!
//! A repair in slices holds all its links at once, each for a share of its time: a chain all of them for the whole time; a
//! repair around a hub the hub's downlink for the whole time, and each helper's uplink for a part of it. A repair starts
//! while every link that it needs has room for its share.
//!
//! Much more than a whole link is given out. A repair runs at the pace of the fullest of its links, so that each other one
//! is full only if further repairs use the rest. With fair links, all repairs together take the least time; but each takes
//! memory at its nodes, and a link that many share makes each look slow. A hub is full with its own helpers, so fewer of
//! these suffice. Each helper is a stream of its own, and too many streams starve each other: TCP gives some of them nothing
//! for seconds, until they are given up.
//!
//! Where a person says how many run at a time, that number is the most, and only the streams of a link limit it further: the
//! shares of [`Starting::InOrder`] are those of streams.
//!
//! Often more repairs fit than may run at a time. Those that start must then fill all links evenly: if the repairs of a few
//! destinations came first, the others would wait idly for their turn. So the one starts whose links have most left to
//! start and least that runs, each counted by the time that the repair needs of it: what is left falls evenly.

use super::select::Starting;
use std::{collections::BTreeMap, sync::Arc};
use weft_types::NodeId;

/// A whole link.
const WHOLE: u64 = 1_000;

/// How many whole links the running repairs may take of one link.
const SHARES_MAX: u64 = 32 * WHOLE;

/// A repair that needs its busiest link this much longer than another one takes so many shares of the former.
const UNEVEN_MAX: u64 = 2;

/// The most streams that the running repairs of a job may have on one link. A queue of 100 ms at 100 Mbit/s holds about ten packets for each of so many.
pub const STREAMS_MAX: u64 = 64;

/// The most repairs that run at a time without an assignment: their links are not known.
const UNKNOWN_MAX: usize = 16;

/// What has an uplink and a downlink.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A node.
    Node(NodeId),
    /// A rack.
    Rack(Arc<str>),
}

/// The time that a repair needs of the links of a node or of a rack, and of the node's disks, in any unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Whose links they are.
    pub at: Place,
    /// The time of its uplink.
    pub up: u64,
    /// The time of its downlink.
    pub down: u64,
    /// The time of its disks, if they are limited; otherwise 0.
    pub disk: u64,
}

/// A repair that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A link or the disks of a node, by number: of each place first the uplink, then the downlink, then the disks.
type Link = usize;
const LINES: usize = 3;

const fn is_disk(link: Link) -> bool {
    link % LINES == 2
}

/// What a repair needs of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Use {
    link: Link,
    time: u64,
    /// The share of the link that it takes while it runs.
    share: u64,
}

#[derive(Debug)]
struct Waiting<T, U> {
    what: T,
    /// More urgent ones first, then those of earlier batches and rounds.
    rank: (U, u64, u32),
    uses: Vec<Use>,
}

/// The waiting and the running repairs. `U` says how urgent one is: the lowest first.
#[derive(Debug)]
pub struct Admission<T, U> {
    starting: Starting,
    batch: u64,
    last: u64,
    links: BTreeMap<Place, Link>,
    /// By link: the share that is given out, the time of the repairs that wait less that of those that run, and what has been
    /// carried.
    taken: Vec<u64>,
    due: Vec<i64>,
    carried: Vec<u64>,
    waiting: Vec<Waiting<T, U>>,
    running: BTreeMap<Ticket, Vec<Use>>,
}

impl<T, U: Ord + Copy> Admission<T, U> {
    /// Without any repair.
    pub fn new(starting: Starting) -> Self {
        Self {
            starting,
            batch: 0,
            last: 0,
            links: BTreeMap::new(),
            taken: Vec::new(),
            due: Vec::new(),
            carried: Vec::new(),
            waiting: Vec::new(),
            running: BTreeMap::new(),
        }
    }

    /// Adds a batch of repairs: each with its urgency and its round, the lowest first, and the links that it needs; none if
    /// they are not known.
    pub fn add(&mut self, batch: impl IntoIterator<Item = (T, (U, u32), Vec<Line>)>) {
        self.batch += 1;
        for (what, (urgency, round), lines) in batch {
            let mut needs = Vec::with_capacity(LINES * lines.len());
            for line in lines {
                let link = self.link(line.at);
                let all = [(link, line.up), (link + 1, line.down), (link + 2, line.disk)];
                needs.extend(all.into_iter().filter(|(_, time)| *time > 0));
            }
            needs.iter().for_each(|(link, time)| self.due[*link] += *time as i64);
            self.waiting.push(Waiting { what, rank: (urgency, self.batch, round), uses: uses(&needs, self.starting) });
        }
        // Stable: within a batch in the given order.
        self.waiting.sort_by_key(|waiting| waiting.rank);
    }

    /// Sets the urgency of all that wait: it changes while they do.
    pub fn urge(&mut self, urgency: impl Fn(&T) -> U) {
        self.waiting.iter_mut().for_each(|waiting| waiting.rank.0 = urgency(&waiting.what));
        self.waiting.sort_by_key(|waiting| waiting.rank);
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The repair that starts now, if one can. [`Self::ended`] takes its ticket back.
    pub fn start(&mut self) -> Option<(Ticket, T)> {
        let at = match self.starting {
            Starting::OneByOne => (!self.waiting.is_empty() && self.running.is_empty()).then_some(0),
            Starting::InOrder | Starting::ByShares | Starting::Polling => self.fitting(),
        }?;
        let Waiting { what, uses, .. } = self.waiting.remove(at);
        for Use { link, time, share } in &uses {
            self.taken[*link] += share;
            self.due[*link] -= 2 * *time as i64;
        }
        self.last += 1;
        let ticket = Ticket(self.last);
        self.running.insert(ticket, uses);
        Some((ticket, what))
    }

    /// A repair has ended.
    pub fn ended(&mut self, ticket: Ticket) {
        for Use { link, time, share } in self.running.remove(&ticket).into_iter().flatten() {
            self.taken[link] = self.taken[link].saturating_sub(share);
            self.due[link] += time as i64;
            self.carried[link] += time;
        }
    }

    /// Of the most urgent and oldest ones that fit, the one whose links are most due (or have carried least, or the first one). One
    /// that does not fit keeps its links free of less urgent ones, so that it is not passed over for ever.
    fn fitting(&self) -> Option<usize> {
        let mut is_kept_free = vec![false; self.taken.len()];
        let has_unknown = self.running.values().filter(|uses| uses.is_empty()).count() < UNKNOWN_MAX;
        let mut at = 0;
        for of_rank in self.waiting.chunk_by(|one, next| one.rank == next.rank) {
            let mut best: Option<(i128, usize)> = None;
            for (at, Waiting { uses, .. }) in (at..).zip(of_rank) {
                // What a repair takes no share of can be full or kept free.
                let has_room = |of: &Use| self.taken[of.link] + of.share <= SHARES_MAX && !is_kept_free[of.link];
                let fits = |of: &Use| of.share == 0 || has_room(of);
                let score = self.score(uses);
                let is_better = best.is_none_or(|(most, _)| score > most);
                if is_better && uses.iter().all(fits) && (has_unknown || !uses.is_empty()) {
                    best = Some((score, at));
                }
            }
            if best.is_some() {
                return best.map(|(_, at)| at);
            }
            let taken = of_rank.iter().flat_map(|waiting| &waiting.uses).filter(|of| of.share > 0);
            taken.for_each(|of| is_kept_free[of.link] = true);
            at += of_rank.len();
        }
        None
    }

    fn score(&self, uses: &[Use]) -> i128 {
        match self.starting {
            Starting::Polling => -i128::from(uses.iter().map(|of| self.carried[of.link]).min().unwrap_or(0)),
            Starting::InOrder => 0,
            Starting::ByShares | Starting::OneByOne => {
                uses.iter().map(|of| i128::from(of.time) * i128::from(self.due[of.link])).sum()
            }
        }
    }

    fn link(&mut self, at: Place) -> Link {
        let next = self.taken.len();
        let link = *self.links.entry(at).or_insert(next);
        if link == next {
            self.taken.extend([0; LINES]);
            self.due.extend([0; LINES]);
            self.carried.extend([0; LINES]);
        }
        link
    }
}

/// With the share of each link, and of disks, that a repair takes while it runs.
fn uses(needs: &[(Link, u64)], starting: Starting) -> Vec<Use> {
    let longest = needs.iter().map(|(_, time)| *time).max().unwrap_or(1).max(1);
    let of_links = || needs.iter().filter(|(link, _)| !is_disk(*link)).map(|(_, time)| *time);
    let (longest_link, shortest) = (of_links().max().unwrap_or(1).max(1), of_links().min().unwrap_or(1).max(1));
    // As many streams as the shortest link carries, each of which has one. Disks have none.
    let streams = longest_link / shortest;
    let of_streams = (streams.saturating_mul(SHARES_MAX) / STREAMS_MAX).min(SHARES_MAX);
    let of_time = if starting == Starting::InOrder { 0 } else { (WHOLE * streams.min(UNEVEN_MAX)).min(SHARES_MAX) };
    let part = |time: u64, whole: u64, longest: u64| (u128::from(time) * u128::from(whole)).div_ceil(u128::from(longest)) as u64;
    let share = |link: Link, time: u64| match (part(time, of_time, longest), is_disk(link)) {
        (share, true) => share,
        (share, false) => share.max(part(time, of_streams, longest_link)),
    };
    needs.iter().map(|(link, time)| Use { link: *link, time: *time, share: share(*link, *time) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Urgency;
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::index};
    use std::collections::BTreeSet;

    /// A repair, as it is added.
    type Given = (u32, (usize, u32), Vec<Line>);

    const fn line(node: u32, up: u64, down: u64) -> Line {
        Line { at: Place::Node(NodeId(node)), up, down, disk: 0 }
    }

    /// A chain over these nodes.
    fn chain(nodes: &[u32]) -> Vec<Line> {
        let last = nodes.len() - 1;
        let place = |(at, node): (usize, &u32)| line(*node, u64::from(at < last), u64::from(at > 0));
        nodes.iter().enumerate().map(place).collect()
    }

    #[test]
    fn a_repair_starts_while_all_its_disks_have_a_share_left() {
        // Disks that need four times as long as the links: a repair takes a whole share of them, and half of one of each link.
        let of = |nodes: &[u32]| -> Vec<Line> { chain(nodes).into_iter().map(|line| Line { disk: 4, ..line }).collect() };
        let mut admission = Admission::new(Starting::ByShares);
        let all = SHARES_MAX / WHOLE;
        admission.add((0..all + 1).map(|at| (at, (0, 0), of(&[1, 2, 3]))).chain([(90, (0, 0), of(&[4, 5]))]));
        let mut started: Vec<(Ticket, u64)> = std::iter::from_fn(|| admission.start()).collect();
        assert_eq!(started.iter().map(|(_, what)| *what).collect::<BTreeSet<_>>(), (0..all).chain([90]).collect());
        admission.ended(started.remove(0).0);
        assert_eq!(admission.start().map(|(_, what)| what), Some(all), "a share is free again");
        // Where a person says how many run at a time, only the streams of links limit it.
        let mut admission = Admission::new(Starting::InOrder);
        admission.add((0..2 * STREAMS_MAX).map(|at| (at, (0, 0), of(&[1, 2, 3]))));
        assert_eq!(std::iter::from_fn(|| admission.start()).count() as u64, STREAMS_MAX);
        // Those that wait keep the disks of node 3 as little as their own.
        let other = vec![Line { disk: 4, ..line(3, 1, 0) }, line(4, 0, 1)];
        admission.add([(99, (1, 0), other)]);
        assert_eq!(admission.start().map(|(_, what)| what), Some(99));
    }

    #[test]
    fn a_chain_starts_while_all_its_links_have_a_share_left() {
        let mut admission = Admission::new(Starting::ByShares);
        let all = SHARES_MAX / WHOLE;
        admission.add((0..all + 1).map(|at| (at, (0, 0), chain(&[1, 2, 3]))).chain([(90, (0, 0), chain(&[4, 5]))]));
        let mut started: Vec<(Ticket, u64)> = std::iter::from_fn(|| admission.start()).collect();
        let all_started: BTreeSet<u64> = started.iter().map(|(_, what)| *what).collect();
        assert_eq!(all_started, (0..all).chain([90]).collect());
        admission.ended(started.remove(0).0);
        assert_eq!(admission.start().map(|(_, what)| what), Some(all), "a share is free again");
        assert_eq!((admission.start(), admission.waiting()), (None, 0));
    }

    #[test]
    fn around_a_hub_helpers_give_only_a_part_of_their_uplinks() {
        let mut admission = Admission::new(Starting::ByShares);
        // Four helpers and a hub of its own for each repair.
        let hub = |at: u32| [vec![line(100 + at, 0, 4)], (1..=4).map(|node| line(node, 1, 0)).collect()].concat();
        admission.add((0..90).map(|at| (at, (0, 0), hub(at))));
        let started = std::iter::from_fn(|| admission.start()).count() as u64;
        assert_eq!(started, SHARES_MAX * 4 / (UNEVEN_MAX * WHOLE));
    }

    #[test]
    fn repairs_around_one_hub_have_no_more_streams_than_its_link_carries() {
        for (helpers, started) in [(2, 16), (6, 10), (10, 6), (20, 3), (200, 1)] {
            let mut admission = Admission::new(Starting::ByShares);
            let hub = |at: u32| -> Vec<Line> {
                let of_helpers = (0..helpers).map(|helper| line(1_000 * (at + 1) + helper, 1, 0));
                of_helpers.chain([line(1, 0, u64::from(helpers))]).collect()
            };
            admission.add((0..40).map(|at| (at, (0, 0), hub(at))));
            let count = std::iter::from_fn(|| admission.start()).count();
            assert_eq!(count, started, "{helpers} helpers");
        }
    }

    #[test]
    fn a_number_that_a_person_sets_is_limited_by_the_streams_of_a_link() {
        let started = |repair: &dyn Fn(u32) -> Vec<Line>| {
            let mut admission = Admission::new(Starting::InOrder);
            admission.add((0..100).map(|at| (at, (0, 0), repair(at))));
            let mut started: Vec<(Ticket, u32)> = std::iter::from_fn(|| admission.start()).collect();
            let count = started.len();
            admission.ended(started.remove(0).0);
            assert!(count == 100 || admission.start().is_some(), "its streams are free again");
            count
        };
        let hub = |helpers: u32, hub: u32, at: u32| {
            let of_helpers = (0..helpers).map(|helper| line(1_000 * (at + 1) + helper, 1, 0));
            of_helpers.chain([line(hub, 0, u64::from(helpers))]).collect::<Vec<_>>()
        };
        for (helpers, most) in [(1, 64), (2, 32), (9, 7), (10, 6), (64, 1), (200, 1)] {
            assert_eq!(started(&|at| hub(helpers, 1, at)), most, "{helpers} helpers send to one node");
        }
        assert_eq!(started(&|at| hub(10, at % 16, at)), 96, "six around each of 16 nodes");
        assert_eq!(started(&|_| chain(&[1, 2, 3])), 64, "chains have one stream on each link");
        assert_eq!(started(&|at| hub(10, at, at)), 100, "no link is full");
        assert_eq!(started(&|_| Vec::new()), UNKNOWN_MAX, "their links are not known");
    }

    #[test]
    fn the_links_with_most_left_to_carry_go_first_but_urgent_repairs_and_older_batches_before() {
        let order = |starting, batches: &[&[Given]]| {
            let mut admission = Admission::new(starting);
            batches.iter().for_each(|batch| admission.add(batch.iter().cloned()));
            let one_by_one = std::iter::from_fn(|| {
                let (ticket, what) = admission.start()?;
                admission.ended(ticket);
                Some(what)
            });
            one_by_one.collect::<Vec<u32>>()
        };
        let few = (1, (0, 0), chain(&[1, 2]));
        let many: Vec<_> = (10..13).map(|at| (at, (0, 0), chain(&[3, 4]))).collect();
        let first = [vec![few.clone()], many.clone()].concat();
        assert_eq!(order(Starting::ByShares, &[&first]), [10, 11, 1, 12]);
        assert_eq!(order(Starting::InOrder, &[&first]), [1, 10, 11, 12]);
        assert_eq!(order(Starting::Polling, &[&first]), [1, 10, 11, 12]);
        assert_eq!(order(Starting::ByShares, &[&[few], &many]), [1, 10, 11, 12], "the first batch first");
        assert_eq!(order(Starting::ByShares, &[&many, &[(7, (0, 0), chain(&[1, 2]))]]), [10, 11, 12, 7]);
        let urgent =
            [(1, (2, 0), chain(&[1, 2])), (2, (0, 1), chain(&[3, 4])), (3, (1, 0), chain(&[1, 2])), (4, (0, 0), chain(&[3, 4]))];
        assert_eq!(order(Starting::ByShares, &[&urgent]), [4, 2, 3, 1]);
        let mut admission = Admission::new(Starting::ByShares);
        admission.add(urgent);
        admission.urge(|what| usize::from(*what != 1));
        assert_eq!(admission.start().map(|(_, what)| what), Some(1), "it has become urgent while it waited");
    }

    #[test]
    fn what_is_read_most_starts_before_others_of_the_same_slack_but_not_before_urgent_ones() {
        let mut admission = Admission::new(Starting::ByShares);
        let of = |what: u32, further, reads| (what, (Urgency::of(Some(further), reads), 0), chain(&[1, 2]));
        admission.add([of(1, 1, 0), of(2, 1, 9), of(3, 0, 0), of(4, 2, 99)]);
        admission.add([of(5, 1, 900)]);
        assert_eq!(admission.start().map(|(_, what)| what), Some(3));
        assert_eq!(admission.start().map(|(_, what)| what), Some(5), "of a later batch");
        admission.urge(|what| Urgency::of(Some(if *what == 4 { 2 } else { 1 }), if *what == 1 { 99 } else { 9 }));
        let rest: Vec<u32> = std::iter::from_fn(|| admission.start()).map(|(_, what)| what).collect();
        assert_eq!(rest, [1, 2, 4], "it was read while it waited");
    }

    #[test]
    fn a_repair_that_does_not_fit_is_not_passed_over_for_ever() {
        let mut admission = Admission::new(Starting::ByShares);
        let whole = SHARES_MAX / WHOLE;
        admission.add((0..whole).map(|at| (at, (0, 0), chain(&[1, 2]))));
        let mut running: Vec<Ticket> = (0..whole).map(|_| admission.start().unwrap().0).collect();
        admission.add([(50, (0, 0), chain(&[1, 2, 3, 4]))]);
        admission.add([(60, (0, 0), chain(&[3, 4])), (61, (0, 0), chain(&[5, 6]))]);
        assert_eq!(admission.start().map(|(_, what)| what), Some(61), "only this one leaves the links of the older one free");
        admission.ended(running.remove(0));
        assert_eq!([admission.start(), admission.start()].map(|it| it.map(|(_, what)| what)), [Some(50), Some(60)]);
    }

    #[test]
    fn one_by_one_and_those_without_known_links() {
        let mut admission = Admission::new(Starting::OneByOne);
        admission.add((0..2).map(|at| (at, (0, 0), Vec::new())));
        let (ticket, _) = admission.start().unwrap();
        assert_eq!(admission.start(), None);
        admission.ended(ticket);
        assert!(admission.start().is_some());
        let mut admission = Admission::new(Starting::ByShares);
        admission.add((0..2 * UNKNOWN_MAX).map(|at| (at, (0, 0), Vec::new())));
        assert_eq!(std::iter::from_fn(|| admission.start()).count(), UNKNOWN_MAX);
    }

    /// Under any order of ends: no link is over its share, each repair starts once, and none is forgotten.
    #[test]
    fn no_link_is_over_its_share_and_every_repair_starts_once() {
        for seed in 0..20 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut admission = Admission::new(if seed % 2 == 0 { Starting::ByShares } else { Starting::Polling });
            let (mut running, mut seen, mut given) = (Vec::new(), BTreeSet::new(), 0);
            while seen.len() < 200 || !running.is_empty() {
                if given < 200 && admission.waiting() < 20 {
                    let batch = (given..given + 40).map(|what| {
                        let nodes: Vec<u32> = index::sample(&mut rng, 12, 5).iter().map(|node| node as u32).collect();
                        (what, (rng.random_range(0..3), 0), chain(&nodes))
                    });
                    let batch: Vec<_> = batch.collect();
                    admission.add(batch);
                    given += 40;
                }
                while let Some((ticket, what)) = admission.start() {
                    assert!(seen.insert(what));
                    running.push(ticket);
                }
                assert!(admission.taken.iter().all(|taken| *taken <= SHARES_MAX));
                assert!(!running.is_empty(), "seed {seed}: nothing runs, and {} wait", admission.waiting());
                admission.ended(running.swap_remove(rng.random_range(0..running.len())));
            }
            assert!(admission.taken.iter().all(|of| *of == 0) && admission.due.iter().all(|of| *of == 0));
        }
    }
}
