//! Which of the waiting repairs starts next.
//!
//! A repair in slices holds all its links at once, each for a share of its time: a chain all of them for the whole time; a
//! repair around a hub the hub's downlink for the whole time, and each helper's uplink for a part of it. A repair starts
//! while every link that it needs has room for its share.
//!
//! Much more than a whole link is given out. A repair runs at the pace of the fullest of its links, so that each other one
//! is full only if further repairs use the rest. With fair links, all repairs together take the least time; but each takes
//! memory at its nodes, and a link that many share makes each look slow. A hub is full with its own helpers, so fewer of
//! these suffice.

use super::Starting;
use std::collections::{BTreeMap, BTreeSet};
use weft_types::NodeId;

/// A whole link.
const WHOLE: u64 = 1_000;

/// How many whole links the running repairs may take of one link.
const SHARES_MAX: u64 = 32 * WHOLE;

/// A repair that needs its busiest link this much longer than another one takes so many shares of the former.
const UNEVEN_MAX: u64 = 2;

/// The most repairs that run at a time without an assignment: their links are not known.
const UNKNOWN_MAX: usize = 16;

/// The time that a repair needs of a node's links, in any unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// The node.
    pub node: NodeId,
    /// The time of its uplink.
    pub up: u64,
    /// The time of its downlink.
    pub down: u64,
}

/// A repair that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A link by its number: those of uplinks are even.
type Link = usize;

#[derive(Debug)]
struct Waiting<T> {
    what: T,
    /// More urgent ones first, then those of earlier batches and rounds.
    rank: (usize, u64, u32),
    /// The time that it needs of each link.
    lines: Vec<(Link, u64)>,
}

/// The waiting and the running repairs.
#[derive(Debug)]
pub struct Admission<T> {
    starting: Starting,
    batch: u64,
    last: u64,
    links: BTreeMap<NodeId, Link>,
    /// By link: the share that is given out, the time that is still to be carried, and what has been carried.
    taken: Vec<u64>,
    left: Vec<u64>,
    carried: Vec<u64>,
    waiting: Vec<Waiting<T>>,
    running: BTreeMap<Ticket, Vec<(Link, u64)>>,
}

impl<T> Admission<T> {
    /// Without any repair.
    pub fn new(starting: Starting) -> Self {
        Self {
            starting,
            batch: 0,
            last: 0,
            links: BTreeMap::new(),
            taken: Vec::new(),
            left: Vec::new(),
            carried: Vec::new(),
            waiting: Vec::new(),
            running: BTreeMap::new(),
        }
    }

    /// Adds a batch of repairs: each with its urgency and its round, the lowest first, and the links that it needs; none if
    /// they are not known.
    pub fn add(&mut self, batch: impl IntoIterator<Item = (T, (usize, u32), Vec<Line>)>) {
        self.batch += 1;
        for (what, (urgency, round), lines) in batch {
            let mut needs = Vec::with_capacity(2 * lines.len());
            for line in lines {
                let link = self.link(line.node);
                needs.extend([(link, line.up), (link + 1, line.down)].into_iter().filter(|(_, time)| *time > 0));
            }
            needs.iter().for_each(|(link, time)| self.left[*link] += time);
            self.waiting.push(Waiting { what, rank: (urgency, self.batch, round), lines: needs });
        }
        // Stable: within a batch in the given order.
        self.waiting.sort_by_key(|waiting| waiting.rank);
    }

    /// Sets the urgency of all that wait: it changes while they do.
    pub fn urge(&mut self, urgency: impl Fn(&T) -> usize) {
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
            Starting::InOrder => (!self.waiting.is_empty()).then_some(0),
            Starting::OneByOne => (!self.waiting.is_empty() && self.running.is_empty()).then_some(0),
            Starting::ByShares | Starting::Polling => self.fitting(),
        }?;
        let Waiting { what, lines, .. } = self.waiting.remove(at);
        shares(&lines).for_each(|(link, share)| self.taken[link] += share);
        self.last += 1;
        let ticket = Ticket(self.last);
        self.running.insert(ticket, lines);
        Some((ticket, what))
    }

    /// A repair has ended.
    pub fn ended(&mut self, ticket: Ticket) {
        let Some(lines) = self.running.remove(&ticket) else { return };
        shares(&lines).for_each(|(link, share)| self.taken[link] = self.taken[link].saturating_sub(share));
        for (link, time) in lines {
            self.left[link] = self.left[link].saturating_sub(time);
            self.carried[link] += time;
        }
    }

    /// Of the most urgent and oldest ones that fit, the one whose busiest link has most left to carry (or has carried
    /// least). One that does not fit keeps its links free of less urgent ones, so that it is not passed over for ever.
    fn fitting(&self) -> Option<usize> {
        let (mut kept_free, mut rank) = (BTreeSet::new(), None);
        let mut best: Option<(u64, usize)> = None;
        for (at, waiting) in self.waiting.iter().enumerate() {
            if rank != Some(waiting.rank) {
                if best.is_some() {
                    break;
                }
                let before = self.waiting[..at].iter().filter(|other| Some(other.rank) == rank);
                kept_free.extend(before.flat_map(|other| &other.lines).map(|(link, _)| *link));
                rank = Some(waiting.rank);
            }
            let score = self.score(&waiting.lines);
            let is_better = best.is_none_or(|(most, _)| score > most);
            if is_better && self.fits(&waiting.lines) && !waiting.lines.iter().any(|(link, _)| kept_free.contains(link)) {
                best = Some((score, at));
            }
        }
        best.map(|(_, at)| at)
    }

    fn score(&self, lines: &[(Link, u64)]) -> u64 {
        let links = lines.iter().map(|(link, _)| *link);
        match self.starting {
            Starting::Polling => u64::MAX - links.map(|link| self.carried[link]).min().unwrap_or(0),
            _ => links.map(|link| self.left[link]).max().unwrap_or(0),
        }
    }

    fn fits(&self, lines: &[(Link, u64)]) -> bool {
        if lines.is_empty() {
            return self.running.values().filter(|lines| lines.is_empty()).count() < UNKNOWN_MAX;
        }
        shares(lines).all(|(link, share)| self.taken[link] + share <= SHARES_MAX)
    }

    fn link(&mut self, node: NodeId) -> Link {
        let next = self.taken.len();
        let link = *self.links.entry(node).or_insert(next);
        if link == next {
            [&mut self.taken, &mut self.left, &mut self.carried].into_iter().for_each(|of| of.extend([0, 0]));
        }
        link
    }
}

/// The share of each link that a repair takes while it runs.
fn shares(lines: &[(Link, u64)]) -> impl Iterator<Item = (Link, u64)> + '_ {
    let longest = lines.iter().map(|(_, time)| *time).max().unwrap_or(1).max(1);
    let shortest = lines.iter().map(|(_, time)| *time).min().unwrap_or(1).max(1);
    let whole = u128::from(WHOLE * (longest / shortest).min(UNEVEN_MAX));
    lines.iter().map(move |(link, time)| (*link, (u128::from(*time) * whole).div_ceil(u128::from(longest)) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::index};

    /// A repair, as it is added.
    type Given = (u32, (usize, u32), Vec<Line>);

    const fn line(node: u32, up: u64, down: u64) -> Line {
        Line { node: NodeId(node), up, down }
    }

    /// A chain over these nodes.
    fn chain(nodes: &[u32]) -> Vec<Line> {
        let last = nodes.len() - 1;
        let place = |(at, node): (usize, &u32)| line(*node, u64::from(at < last), u64::from(at > 0));
        nodes.iter().enumerate().map(place).collect()
    }

    #[test]
    fn a_chain_starts_while_all_its_links_have_a_share_left() {
        let mut admission = Admission::new(Starting::ByShares);
        let all = SHARES_MAX / WHOLE;
        admission.add((0..all + 1).map(|at| (at, (0, 0), chain(&[1, 2, 3]))).chain([(90, (0, 0), chain(&[4, 5]))]));
        let mut started: Vec<(Ticket, u64)> = std::iter::from_fn(|| admission.start()).collect();
        assert_eq!(started.iter().map(|(_, what)| *what).collect::<Vec<_>>(), [(0..all).collect(), vec![90]].concat());
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
            assert!(admission.taken.iter().chain(&admission.left).all(|of| *of == 0));
        }
    }
}
