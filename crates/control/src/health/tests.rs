//! Conditions of stripes, tallies after any order of events, and verdicts.

use super::*;
use crate::{
    Time,
    fixtures::{BLOCK_LEN, home, stripe, view},
    reserve,
    view::View,
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_codes::{SharedCode, parse};
use weft_types::{BlockState, Home, NodeId, PlacedBlock, Span, StripeId, StripeRecord};

const PAGE: u64 = 4096;

fn code() -> SharedCode {
    parse("rs(4,2)").unwrap()
}

/// The condition of a stripe of rs(4,2).
fn condition(stripe: &StripeRecord, view: &View) -> Option<Condition> {
    let bad = BadBlocks::of(stripe, view);
    (!bad.is_none()).then(|| Condition::of(stripe, bad, &code(), view, &mut FurtherLosses::default()))
}

/// What a stripe survives now, and with all nodes.
fn survives(stripe: &StripeRecord, view: &View) -> (Option<usize>, Option<usize>) {
    condition(stripe, view).map_or((Some(2), Some(2)), |it| (it.now, it.with_all_nodes))
}

fn mark(stripe: &mut StripeRecord, index: u8, state: BlockState) {
    stripe.find_mut(index, 0).unwrap().state = state;
}

#[test]
fn blocks_on_nodes_that_are_down_count_as_lost_only_for_now() {
    let mut stripe = stripe();
    assert_eq!(condition(&stripe, &view(6, &[])), None);
    assert_eq!(survives(&stripe, &view(6, &[1])), (Some(1), Some(2)));
    assert_eq!(survives(&stripe, &view(6, &[1, 2, 3])), (None, Some(2)));
    mark(&mut stripe, 5, BlockState::Missing);
    assert_eq!(survives(&stripe, &view(6, &[])), (Some(1), Some(1)));
    assert_eq!(survives(&stripe, &view(6, &[1])), (Some(0), Some(1)));
    assert_eq!(survives(&stripe, &view(6, &[6])), (Some(1), Some(1)), "it is lost already");
    let mut failed = view(6, &[2]);
    failed.nodes.get_mut(&NodeId(1)).unwrap().disks[0].failed = true;
    assert_eq!(survives(&stripe, &failed), (None, Some(0)));
    let blocks = condition(&stripe, &failed).unwrap().blocks;
    assert_eq!(blocks, BadBlocks { missing: 1, failed: 1, away: 1, ..BadBlocks::default() });
    stripe.incomplete = true;
    assert_eq!(condition(&stripe, &view(6, &[])).unwrap().blocks, BadBlocks { coming: 1, ..BadBlocks::default() });
    failed.nodes.get_mut(&NodeId(2)).unwrap().lost = true;
    let lost = condition(&stripe, &failed).unwrap();
    assert_eq!((lost.blocks.lost, lost.blocks.away, lost.with_all_nodes), (1, 0, Some(0)), "a lost node may still come back");
    failed.nodes.remove(&NodeId(3));
    assert_eq!(survives(&stripe, &failed), (None, None), "a disk that is not known is gone");
}

#[test]
fn corrupt_bytes_count_only_at_their_positions_and_a_copy_replaces_its_block() {
    let mut stripe = stripe();
    for (index, page) in [(0, 1), (1, 3), (2, 5)] {
        mark(&mut stripe, index, BlockState::Corrupt);
        stripe.corrupt.insert((index, 0), vec![Span::new(page * PAGE + 7, page * PAGE + 9)]);
    }
    assert_eq!(survives(&stripe, &view(6, &[])), (Some(1), Some(1)), "at different pages");
    assert_eq!(survives(&stripe, &view(6, &[4, 5])), (None, Some(1)));
    stripe.corrupt.insert((1, 0), vec![Span::new(PAGE, PAGE + 1), Span::new(5 * PAGE, BLOCK_LEN)]);
    assert_eq!(survives(&stripe, &view(6, &[])), (Some(0), Some(0)), "two at the same page");
    stripe.corrupt.remove(&(0, 0));
    stripe.corrupt.remove(&(2, 0));
    assert_eq!(survives(&stripe, &view(6, &[])), (None, None), "two as a whole, and one in part");

    let mut copied = crate::fixtures::stripe();
    copied.copies.push((0, PlacedBlock { copy: 1, home: home(7), ..copied.blocks[&0] }));
    mark(&mut copied, 0, BlockState::Missing);
    let found = condition(&copied, &view(7, &[])).unwrap();
    assert_eq!((found.now, found.blocks.missing), (Some(2), 1));
    assert_eq!(survives(&copied, &view(7, &[7])), (Some(1), Some(2)));
}

#[test]
fn a_short_stripe_survives_as_many_losses_as_its_stored_blocks_allow() {
    let mut short = stripe();
    short.layout.data_len = 100;
    short.blocks.retain(|index, _| *index == 0 || *index >= 4);
    assert_eq!(survives(&short, &view(6, &[1])), (Some(1), Some(2)));
    assert_eq!(survives(&short, &view(6, &[1, 5])), (Some(0), Some(2)));
    assert_eq!(survives(&short, &view(6, &[2, 3])), (Some(2), Some(2)), "it has no blocks there");
}

/// A cluster's metadata and nodes, and a tally that follows them as the coordinator does: a page at a time.
#[derive(Default)]
struct Followed {
    stripes: BTreeMap<StripeId, StripeRecord>,
    changed: BTreeSet<StripeId>,
    view: View,
    survey: Survey,
    tally: Tally,
    further: FurtherLosses,
}

#[derive(Debug, Clone)]
enum Event {
    Add { first: u32 },
    Remove { nth: usize },
    Mark { nth: usize, index: u8, state: BlockState },
    Move { nth: usize, index: u8, node: u32 },
    Node { node: u32, up: bool, lost: bool },
    Disk { node: u32, failed: bool },
    Look,
}

const NODES: u32 = 9;

fn events() -> impl Strategy<Value = Event> {
    let state = prop_oneof![Just(BlockState::Ok), Just(BlockState::Corrupt), Just(BlockState::Missing)];
    prop_oneof![
        2 => (1..=NODES).prop_map(|first| Event::Add { first }),
        1 => (0..9usize).prop_map(|nth| Event::Remove { nth }),
        3 => (0..9usize, 0..6u8, state).prop_map(|(nth, index, state)| Event::Mark { nth, index, state }),
        2 => (0..9usize, 0..6u8, 1..=NODES).prop_map(|(nth, index, node)| Event::Move { nth, index, node }),
        3 => (1..=NODES, any::<bool>(), any::<bool>()).prop_map(|(node, up, lost)| Event::Node { node, up, lost }),
        2 => (1..=NODES, any::<bool>()).prop_map(|(node, failed)| Event::Disk { node, failed }),
        6 => Just(Event::Look),
    ]
}

impl Followed {
    fn judged(&mut self, id: StripeId) -> Option<Condition> {
        let (stripe, view) = (self.stripes.get(&id)?, self.survey.view());
        let bad = BadBlocks::of(stripe, &view);
        (!bad.is_none()).then(|| Condition::of(stripe, bad, &code(), &view, &mut self.further))
    }

    /// One round. Returns whether there was anything to do.
    fn look(&mut self) -> bool {
        self.survey.look(self.view.clone());
        if let Some(id) = self.changed.pop_first() {
            let judged = self.judged(id);
            self.tally.set(id, judged);
            return true;
        }
        let Some(step) = self.survey.next() else { return false };
        let is_on = |stripe: &StripeRecord, at: Home| stripe.all().any(|(_, placed)| placed.home == at);
        let (after, disk) = match step {
            Step::All(after) | Step::Again(after) => (after, None),
            Step::Disk(disk, after) => (after, Some(disk)),
        };
        let follows =
            |stripe: &&StripeRecord| after.is_none_or(|after| stripe.id > after) && disk.is_none_or(|disk| is_on(stripe, disk));
        let mut page: Vec<StripeRecord> = self.stripes.values().filter(follows).take(3).cloned().collect();
        let more = page.len() > 2;
        page.truncate(2);
        for stripe in &page {
            let judged = self.judged(stripe.id);
            self.tally.set(stripe.id, judged);
        }
        self.survey.came(step, &page, more);
        true
    }

    fn happen(&mut self, event: Event) {
        let nth = |nth: usize| (!self.stripes.is_empty()).then(|| *self.stripes.keys().nth(nth % self.stripes.len()).unwrap());
        let touched = match event {
            Event::Add { first } => {
                let id = StripeId(self.stripes.keys().last().map_or(1, |last| last.0 + 1));
                let mut added = StripeRecord { id, ..stripe() };
                for (index, placed) in added.all_mut() {
                    placed.home = home((first + u32::from(index)) % NODES + 1);
                }
                self.stripes.insert(id, added);
                Some(id)
            }
            Event::Remove { nth: at } => nth(at).inspect(|id| drop(self.stripes.remove(id))),
            Event::Mark { nth: at, index, state } => nth(at).inspect(|id| mark(self.stripes.get_mut(id).unwrap(), index, state)),
            Event::Move { nth: at, index, node } => {
                nth(at).inspect(|id| self.stripes.get_mut(id).unwrap().find_mut(index, 0).unwrap().home = home(node))
            }
            Event::Node { node, up, lost } => {
                let node = self.view.nodes.get_mut(&NodeId(node)).unwrap();
                (node.up, node.lost) = (up, lost && !up);
                None
            }
            Event::Disk { node, failed } => {
                self.view.nodes.get_mut(&NodeId(node)).unwrap().disks[0].failed = failed;
                None
            }
            Event::Look => {
                self.look();
                None
            }
        };
        self.changed.extend(touched);
    }
}

proptest! {
    #[test]
    fn after_any_order_of_events_the_tally_equals_a_full_count(
        before in proptest::collection::vec(events(), 0..12),
        after in proptest::collection::vec(events(), 0..60),
    ) {
        let mut followed = Followed { view: view(NODES, &[]), ..Followed::default() };
        for event in before.into_iter().filter(|event| !matches!(event, Event::Look)) {
            followed.happen(event);
        }
        // What there is when the coordinator starts is found by the survey alone.
        followed.changed.clear();
        prop_assert!(followed.survey.is_counting());
        for event in after {
            followed.happen(event);
        }
        while followed.look() {}
        prop_assert!(!followed.survey.is_counting());

        let mut counted = Tally::default();
        for stripe in followed.stripes.values() {
            counted.set(stripe.id, condition(stripe, &followed.view));
        }
        let all = [(code().spec(), followed.stripes.len() as u64, 2)];
        prop_assert_eq!(followed.tally.counts(&all), counted.counts(&all));
        prop_assert_eq!(followed.tally.unreadable(99), counted.unreadable(99));
        let first = |tally: &Tally| tally.first(99, |_| true, |_| false);
        prop_assert_eq!(first(&followed.tally), first(&counted));
        let counts = counted.counts(&all);
        prop_assert_eq!(counts.bearings.iter().map(|it| it.stripes).sum::<u64>(), followed.stripes.len() as u64);
    }
}

/// What happens to the stripes of a tally.
#[derive(Debug, Clone)]
enum Changes {
    /// One has lost so many blocks.
    Loses(u64, usize),
    /// It is read so many times.
    IsRead(u64, u8),
    /// Minutes pass.
    Passes(u64),
}

fn changes() -> impl Strategy<Value = Changes> {
    let id = 1..40u64;
    prop_oneof![
        4 => (id.clone(), 0..4usize).prop_map(|(id, lost)| Changes::Loses(id, lost)),
        4 => (id, 1..20u8).prop_map(|(id, times)| Changes::IsRead(id, times)),
        1 => (0..25u64).prop_map(Changes::Passes),
    ]
}

proptest! {
    /// Compared with sorting all stripes.
    #[test]
    fn the_first_are_those_with_the_least_slack_then_the_most_read_then_the_oldest(
        all in proptest::collection::vec(changes(), 0..200),
        limit in 0..50usize,
    ) {
        let (mut tally, mut lost, mut minute) = (Tally::default(), BTreeMap::new(), 0);
        for change in all {
            match change {
                Changes::Loses(id, blocks) => {
                    let mut record = StripeRecord { id: StripeId(id), ..stripe() };
                    (0..blocks).for_each(|index| mark(&mut record, index as u8, BlockState::Missing));
                    tally.set(record.id, condition(&record, &view(6, &[])));
                    lost.insert(id, blocks);
                }
                Changes::IsRead(id, times) => {
                    let (before, now) = (tally.reads(StripeId(id)), Time::after(Duration::from_secs(60 * minute)));
                    (0..times).for_each(|_| tally.read(StripeId(id), now));
                    let counted = tally.reads(StripeId(id));
                    match lost.get(&id) {
                        None | Some(0) => prop_assert_eq!(counted, 0, "it has no bad blocks"),
                        Some(_) => prop_assert!(counted <= before + u32::from(times) && counted >= u32::from(times)),
                    }
                }
                Changes::Passes(minutes) => minute += minutes,
            }
            let is_out = |id: u64| id.is_multiple_of(7);
            let is_due = |it: &Condition| it.now.is_some_and(|further| further < 2);
            let found = tally.first(limit, is_due, |stripe| is_out(stripe.0));
            let mut sorted: Vec<(usize, std::cmp::Reverse<u32>, u64)> = lost
                .iter()
                .filter(|(id, lost)| (1..=2).contains(*lost) && !is_out(**id))
                .map(|(id, lost)| (2 - lost, std::cmp::Reverse(tally.reads(StripeId(*id))), *id))
                .collect();
            sorted.sort_unstable();
            let sorted: Vec<StripeId> = sorted.into_iter().take(limit).map(|(.., id)| StripeId(id)).collect();
            prop_assert_eq!(found, sorted);
        }
    }
}

#[test]
fn reads_of_more_stripes_than_are_counted_leave_the_order_right() {
    const ALL: u64 = 2 * reads::COUNTED_MAX as u64;
    let mut tally = Tally::default();
    let mut record = stripe();
    mark(&mut record, 0, BlockState::Missing);
    let lost = condition(&record, &view(6, &[])).unwrap();
    (1..=ALL).for_each(|id| tally.set(StripeId(id), Some(lost.clone())));
    for id in 1..=ALL {
        tally.read(StripeId(id), Time::default());
        if id % 100 == 0 {
            tally.read(StripeId(ALL), Time::default());
        }
    }
    let counted = (1..=ALL).filter(|id| tally.reads(StripeId(*id)) > 0).count();
    assert!(counted <= reads::COUNTED_MAX, "{counted}");
    let all = tally.first(ALL as usize, |_| true, |_| false);
    let distinct: BTreeSet<StripeId> = all.iter().copied().collect();
    assert_eq!((all[0], all.len(), distinct.len()), (StripeId(ALL), ALL as usize, ALL as usize), "none is left out");
}

#[test]
fn a_verdict_lists_the_worst_first_and_drops_repaired_problems() {
    let mut tally = Tally::default();
    let all = [("rs(4,2)".to_owned(), 10, 2)];
    let signs = |tally: &Tally| Signs { counts: tally.counts(&all), nodes: 6, ..Signs::default() };
    let set = |tally: &mut Tally, id: u64, lost: &[u8], down: &[u32]| {
        let mut record = StripeRecord { id: StripeId(id), ..stripe() };
        lost.iter().for_each(|index| mark(&mut record, *index, BlockState::Missing));
        tally.set(record.id, condition(&record, &view(6, down)));
    };
    assert_eq!(signs(&tally).verdict(), Verdict { level: Level::Healthy, reasons: Vec::new() });
    set(&mut tally, 1, &[0], &[]);
    let found = signs(&tally);
    assert_eq!(found.verdict().reasons, ["blocks of 1 stripe cannot be read: 1 missing"]);
    let bearing = |further, stripes| Bearing { code: "rs(4,2)".into(), further, stripes };
    assert_eq!(found.counts.bearings, [bearing(Some(1), 1), bearing(Some(2), 9)]);
    set(&mut tally, 2, &[0, 1], &[]);
    assert_eq!(signs(&tally).verdict().level, Level::AtRisk);
    set(&mut tally, 3, &[0, 1], &[3]);
    set(&mut tally, 4, &[0, 1, 2], &[]);
    let down = DownNode { name: "node-03".into(), silent_for: Duration::from_secs(9), blocks: 7, lost: false, draining: false };
    let verdict = Signs { down: vec![down], counting: true, ..signs(&tally) }.verdict();
    assert_eq!(verdict.level, Level::Unavailable);
    assert_eq!(
        verdict.reasons,
        [
            "2 stripes cannot be read: too many blocks of 1 are lost; the others need nodes that are down",
            "1 stripe does not survive a further loss",
            "blocks of 4 stripes cannot be read: 8 missing, 1 on nodes that are down",
            "1 of 6 nodes is down: node-03",
            "stripes are still being counted",
        ]
    );
    let rebuilt = DownNode { name: "node-04".into(), silent_for: Duration::from_secs(9), blocks: 0, lost: true, draining: false };
    let reasons = Signs { down: vec![rebuilt], ..signs(&tally) }.verdict().reasons;
    assert!(reasons.iter().all(|reason| !reason.contains("node-04")), "all its blocks were rebuilt: {reasons:?}");
    (1..=4).for_each(|id| tally.set(StripeId(id), None));
    assert_eq!(signs(&tally).verdict().level, Level::Healthy);

    let down = |name: &str, blocks| DownNode {
        name: name.into(),
        silent_for: Duration::from_secs(9),
        blocks,
        lost: false,
        draining: false,
    };
    let gone = Signs { down: vec![down("node-02", 3), down("node-04", 0)], ..signs(&tally) }.verdict();
    let hint = "node-04 holds no block: if it is gone for good, `weft node remove node-04` forgets it";
    assert_eq!(gone.reasons, [format!("2 of 6 nodes are down: node-02, node-04 ({hint})")]);

    let disk = |blocks| FailedDisk { node: "node-01".into(), path: "/srv/a".into(), blocks };
    let kept = reserve::Share::NONE;
    let full = |up, kept| Some(FullPolicy { name: "default".into(), code: "rs(4,2)".into(), needed: 6, up, kept });
    let verdict = |up| Signs { full: full(up, kept), ..signs(&tally) }.verdict();
    let kept = reserve::share(weft_types::RebuildReserve::Percent(15), &View::default(), 6);
    let reserved = Signs { full: full(6, kept), ..signs(&tally) }.verdict();
    assert!(
        reserved.reasons[0].contains("disks are full up to the 15.0 % that is kept free to rebuild the largest node"),
        "{reserved:?}"
    );
    assert_eq!(verdict(5).level, Level::Degraded);
    assert!(
        verdict(5).reasons.iter().any(|it| it.ends_with("it needs 6 nodes, and 5 are up with a disk for new blocks")),
        "{:?}",
        verdict(5)
    );
    assert!(verdict(6).reasons.iter().any(|it| it.ends_with("disks are full")), "{:?}", verdict(6));
    let replaced = Signs { failed: vec![disk(0)], ..signs(&tally) };
    assert_eq!(replaced.verdict().level, Level::Healthy, "nothing is left to do about it");
    let failed = Signs { failed: vec![disk(4)], ..signs(&tally) };
    assert_eq!(failed.verdict().reasons, ["failed disks held blocks that were not rebuilt: /srv/a of node-01"]);
}

#[test]
fn a_slow_or_failing_disk_is_told_with_what_helps_as_long_as_it_has_blocks() {
    let disk = |node: u32, blocks, draining| AilingDisk {
        node: format!("node-{node}"),
        path: "/srv/a".into(),
        trouble: "slow".into(),
        why: "it crawls".into(),
        blocks,
        draining,
    };
    let verdict = |ailing: Vec<AilingDisk>| Signs { ailing, ..Signs::default() }.verdict();
    assert_eq!(verdict(vec![disk(1, 0, true)]).level, Level::Healthy);
    let told = verdict(vec![disk(1, 5, false), disk(2, 5, true)]);
    assert_eq!(told.level, Level::Degraded);
    assert_eq!(
        told.reasons,
        [
            "/srv/a of node-1 is slow: it crawls; `weft node disk drain node-1 /srv/a` moves its blocks elsewhere",
            "/srv/a of node-2 is slow: it crawls; its blocks are being moved elsewhere"
        ]
    );
    let many = verdict((1..=5).map(|node| disk(node, 1, false)).collect()).reasons;
    assert_eq!((many.len(), many[3].as_str()), (4, "2 more disks are slow or failing: `weft node disk ls` lists all"));
}

#[test]
fn blocks_that_leave_are_no_loss() {
    let (mut stripe, mut drained) = (stripe(), view(8, &[]));
    drained.nodes.get_mut(&NodeId(1)).unwrap().disks[0].draining = true;
    let leaves = condition(&stripe, &drained).unwrap();
    assert_eq!((leaves.blocks, leaves.now), (BadBlocks { leaving: 1, ..BadBlocks::default() }, Some(2)));
    assert!(leaves.blocks.is_whole() && !leaves.blocks.is_none() && leaves.to_bring() == 1);
    mark(&mut stripe, 3, BlockState::Missing);
    let lacks = condition(&stripe, &drained).unwrap();
    assert_eq!((lacks.blocks.leaving, lacks.to_bring(), lacks.now), (1, 1, Some(1)));
    assert!(!lacks.blocks.is_whole());
    drained.nodes.get_mut(&NodeId(1)).unwrap().up = false;
    assert_eq!(condition(&stripe, &drained).unwrap().blocks.leaving, 0, "it cannot be read now");

    let mut tally = Tally::default();
    tally.set(StripeId(1), Some(leaves));
    tally.set(StripeId(2), Some(lacks));
    let counts = tally.counts(&[("rs(4,2)".into(), 3, 2)]);
    assert_eq!((counts.with_bad_blocks, counts.at_risk, counts.blocks.leaving), (1, 0, 2));
    assert_eq!((tally.lacks(StripeId(1)), tally.lacks(StripeId(2)), tally.has(StripeId(1))), (false, true, true));
    let lacking = |after, limit| tally.lacking(after, limit).into_iter().map(|(stripe, _)| stripe.0).collect::<Vec<_>>();
    assert_eq!((lacking(None, 9), lacking(None, 0), lacking(Some(StripeId(2)), 9)), (vec![2], vec![], vec![]));
    assert!(tally.urgency(StripeId(2)) < tally.urgency(StripeId(1)));
    assert_eq!(tally.first(9, |_| true, |_| false), [StripeId(2), StripeId(1)], "losses come first");
    let signs = Signs { counts: Counts { with_bad_blocks: 0, ..counts }, ..Signs::default() };
    assert_eq!(signs.verdict().level, Level::Healthy);
}

#[test]
fn a_disk_that_begins_or_ends_to_be_drained_is_looked_at() {
    let mut survey = Survey::default();
    survey.look(view(2, &[]));
    survey.came(Step::All(None), &[], false);
    assert_eq!(survey.next(), None);
    let mut drained = view(2, &[]);
    drained.nodes.get_mut(&NodeId(2)).unwrap().disks[0].draining = true;
    survey.look(drained);
    assert_eq!((survey.next(), survey.is_counting()), (Some(Step::Disk(home(2), None)), false), "nothing is lost");
    survey.came(Step::Disk(home(2), None), &[], false);
    survey.look(view(2, &[]));
    assert_eq!(survey.next(), Some(Step::Disk(home(2), None)));
    // What is lost comes first.
    let mut lost = view(3, &[]);
    lost.nodes.get_mut(&NodeId(1)).unwrap().disks[0].draining = true;
    survey.look(lost.clone());
    lost.nodes.get_mut(&NodeId(3)).unwrap().disks[0].failed = true;
    survey.look(lost);
    assert_eq!((survey.next(), survey.is_counting()), (Some(Step::Disk(home(3), None)), true));
}
