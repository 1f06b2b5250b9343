use super::*;
use crate::{
    Time,
    findings::{Finding, Verdict},
    fixtures::{BLOCK_LEN, home, stripe, view},
};
use std::{collections::BTreeSet, time::Duration};
use weft_types::{
    BlockId, BlockState, Error, NodeId, Owner, Reaction, ScrubPlace, ScrubRecord, ScrubTally, StripeId, StripeRecord, UploadId,
    WrongBlock,
};

fn block(index: u8) -> BlockId {
    BlockId { stripe: stripe().id, index, copy: 0, generation: 1 }
}

fn wrong() -> Verdict {
    Verdict::Wrong(Finding::Lost(BlockState::Missing), "it is gone".into())
}

/// All rows of the parity check, or a combination of them, of all blocks but these.
fn sum_of(left_out: &[u8], full: bool) -> Action {
    Action::Sum { left_out: left_out.to_vec(), full }
}

/// It is zero, and these blocks were read.
fn zero(read: &[u8]) -> Event {
    Event::Summed(Summed::Zero(read.iter().map(|index| block(*index)).collect::<BTreeSet<_>>()))
}

const ALL: [u8; 6] = [0, 1, 2, 3, 4, 5];

/// A check of a stripe with these nodes down.
struct Checked {
    check: StripeCheck,
    view: View,
}

impl Checked {
    fn of(stripe: StripeRecord, down: &[u32]) -> Self {
        Self { check: StripeCheck::new("b/k".into(), stripe, true), view: view(6, down) }
    }

    fn on(&mut self, event: Event) -> Action {
        self.check.on(event, &self.view)
    }

    /// Begins, and answers that all blocks are right but these.
    fn looked(&mut self, but: &[(u8, Verdict)]) -> Action {
        let Action::Look(blocks) = self.on(Event::Begin) else { panic!("nothing to look at") };
        let verdict = |index: u8| but.iter().find(|(at, _)| *at == index).map_or(Verdict::Right, |(_, verdict)| verdict.clone());
        self.on(Event::Seen(blocks.iter().map(|(block, _)| (*block, verdict(block.index))).collect()))
    }

    /// Answers all reads with this verdict for each block, up to another action.
    fn read_all(&mut self, mut action: Action, verdict: impl Fn(u8) -> Verdict) -> (Vec<u8>, Action) {
        let mut read = Vec::new();
        while let Action::Read(block, _) = action {
            read.push(block.index);
            action = self.on(Event::Seen(vec![(block, verdict(block.index))]));
        }
        (read, action)
    }
}

fn ended(action: Action) -> Outcome {
    match action {
        Action::End(outcome) => outcome,
        action => panic!("not over: {action:?}"),
    }
}

fn found(outcome: &Outcome) -> Vec<Option<u8>> {
    outcome.wrong.iter().map(|wrong| wrong.block.map(|(block, _)| block.index)).collect()
}

#[test]
fn a_stripe_whose_sum_is_zero_is_right_and_further_copies_are_read() {
    let mut checked = Checked::of(stripe(), &[]);
    assert_eq!(checked.looked(&[]), sum_of(&[], false));
    let outcome = ended(checked.on(zero(&ALL)));
    assert_eq!(outcome, Outcome { object: "b/k".into(), blocks: 6, bytes: 6 * BLOCK_LEN, ..Outcome::default() });

    let mut copied = stripe();
    let copy = weft_types::PlacedBlock { copy: 1, home: home(5), ..copied.blocks[&0] };
    copied.copies.push((0, copy));
    let mut checked = Checked::of(copied, &[]);
    assert_eq!(checked.looked(&[]), sum_of(&[], false));
    let action = checked.on(zero(&ALL));
    assert_eq!(action, Action::Read(BlockId { copy: 1, ..block(0) }, home(5)));
    let (read, action) = checked.read_all(action, |_| Verdict::Right);
    assert_eq!((read, ended(action).blocks), (vec![0], 7));
}

#[test]
fn without_all_blocks_those_that_are_there_are_read_and_a_down_node_is_no_finding() {
    let mut checked = Checked::of(stripe(), &[2]);
    assert_eq!(checked.looked(&[]), sum_of(&[1], false));
    let action = checked.on(zero(&[0, 2, 3]));
    let (read, action) = checked.read_all(action, |_| Verdict::Right);
    let outcome = ended(action);
    assert_eq!(
        (read, outcome.blocks, outcome.away, &outcome.end),
        (vec![4, 5], 5, 1, &End::Checked),
        "what the sum has not read"
    );
    assert_eq!(found(&outcome), []);

    let mut lacks = stripe();
    lacks.blocks.get_mut(&3).unwrap().state = BlockState::Missing;
    let mut checked = Checked::of(lacks, &[]);
    assert_eq!(checked.looked(&[]), sum_of(&[3], false));
    let action = checked.on(Event::Summed(Summed::Unable));
    let (read, action) = checked.read_all(action, |_| Verdict::Right);
    let outcome = ended(action);
    assert_eq!((read, outcome.away, outcome.lacking), (vec![0, 1, 2, 4, 5], 0, 1));
    assert_eq!(found(&outcome), [], "it was known before");

    let mut all_down = Checked::of(stripe(), &[1, 2, 3, 4, 5, 6]);
    assert_eq!(ended(all_down.on(Event::Begin)), Outcome { object: "b/k".into(), away: 6, ..Outcome::default() });
    // A code without parity has no sum.
    let mut plain = Checked { check: StripeCheck::new("b/k".into(), stripe(), false), view: view(6, &[]) };
    assert!(matches!(plain.looked(&[]), Action::Read(..)));
}

#[test]
fn what_is_wrong_is_named_and_the_rest_is_read() {
    let mut checked = Checked::of(stripe(), &[]);
    assert_eq!(checked.looked(&[(1, wrong())]), sum_of(&[1], false));
    let action = checked.on(Event::Summed(Summed::Unable));
    let (read, action) = checked.read_all(action, |index| if index == 4 { wrong() } else { Verdict::Right });
    let outcome = ended(action);
    assert_eq!((read, found(&outcome), outcome.blocks), (vec![0, 2, 3, 4, 5], vec![Some(1), Some(4)], 4));
    let first = WrongBlock { object: "b/k".into(), stripe: 0, block: Some((block(1), NodeId(2))), why: "it is gone".into() };
    assert_eq!((&outcome.wrong[0], &outcome.end), (&first, &End::Checked));
}

#[test]
fn what_cannot_be_said_now_is_asked_again_and_is_no_finding() {
    for verdict in [Verdict::Unknown("busy".into()), Verdict::Obsolete] {
        let mut checked = Checked::of(stripe(), &[]);
        assert_eq!(checked.looked(&[(1, verdict.clone())]), sum_of(&[1], false));
        let action = checked.on(Event::Summed(Summed::Unable));
        let (read, action) = checked.read_all(action, |_| Verdict::Right);
        let outcome = ended(action);
        assert!(read.len() == 5 && outcome.wrong.is_empty(), "{outcome:?}");
        assert!(matches!(outcome.end, End::Again(Error { reaction: Reaction::Retry, .. })), "{outcome:?}");
    }
    let mut coming = stripe();
    coming.incomplete = true;
    assert!(matches!(ended(Checked::of(coming, &[]).on(Event::Begin)).end, End::Again(_)));
    let put = StripeRecord { owner: Owner::Upload(UploadId(3)), ..stripe() };
    assert_eq!(ended(Checked::of(put, &[]).on(Event::Begin)).end, End::Gone);
}

#[test]
fn a_sum_that_is_not_zero_leads_to_the_wrong_block_or_is_added_up_again() {
    let not_zero = || Event::Summed(Summed::NotZero("row 0 is not zero".into()));
    // The content names it.
    let mut checked = Checked::of(stripe(), &[]);
    checked.looked(&[]);
    let action = checked.on(not_zero());
    let (read, action) = checked.read_all(action, |index| if index == 2 { wrong() } else { Verdict::Right });
    assert_eq!((read.len(), found(&ended(action))), (6, vec![Some(2)]));
    // The bytes were wrong only on their way.
    let mut checked = Checked::of(stripe(), &[]);
    checked.looked(&[]);
    let action = checked.on(not_zero());
    let (_, action) = checked.read_all(action, |_| Verdict::Right);
    assert_eq!(action, sum_of(&[], true));
    assert_eq!(found(&ended(checked.on(zero(&ALL)))), []);
    // The full check cannot be planned: the check reports the result of the routine one.
    let mut checked = Checked::of(stripe(), &[]);
    checked.looked(&[]);
    let action = checked.on(not_zero());
    checked.read_all(action, |_| Verdict::Right);
    let outcome = ended(checked.on(Event::Summed(Summed::Unable)));
    assert!(found(&outcome) == [None] && outcome.wrong[0].why.contains("row 0 is not zero"), "{outcome:?}");
    // All blocks match their checksums, and still contradict each other: none is guessed.
    let mut checked = Checked::of(stripe(), &[]);
    checked.looked(&[]);
    let action = checked.on(not_zero());
    let (_, action) = checked.read_all(action, |_| Verdict::Right);
    assert_eq!(action, sum_of(&[], true));
    for (agree_without, says) in
        [(vec![4], "without block 4 (s7-b004-c0-g1 on n5)"), (vec![1, 2], "not known which"), (vec![], "not known")]
    {
        let mut checked = Checked::of(stripe(), &[]);
        checked.looked(&[]);
        let action = checked.on(not_zero());
        checked.read_all(action, |_| Verdict::Right);
        let mut action = checked.on(not_zero());
        for index in ALL {
            assert_eq!(action, sum_of(&[index], true));
            action = if agree_without.contains(&index) { checked.on(zero(&[])) } else { checked.on(not_zero()) };
        }
        let outcome = ended(action);
        assert_eq!((found(&outcome), &outcome.end, outcome.blocks), (vec![None], &End::Checked, 6));
        let why = &outcome.wrong[0].why;
        assert!(["row 0 is not zero", says, "store it again"].iter().all(|part| why.contains(part)), "{why}");
    }
    // One parity block more than the code needs cannot tell which one it is.
    let unable = checked.on(not_zero());
    assert_eq!(unable, sum_of(&[0], true));
    let outcome = ended(checked.on(Event::Summed(Summed::Unable)));
    assert!(outcome.wrong[0].why.contains("not known which"), "{outcome:?}");
    // A block that cannot be read decides nothing.
    let mut checked = Checked::of(stripe(), &[]);
    checked.looked(&[]);
    let action = checked.on(not_zero());
    let unknown = |index| if index == 5 { Verdict::Unknown("busy".into()) } else { Verdict::Right };
    let (_, action) = checked.read_all(action, unknown);
    let outcome = ended(action);
    assert!(outcome.wrong.is_empty() && matches!(outcome.end, End::Again(_)), "{outcome:?}");
}

#[test]
fn a_sum_that_fails_tells_bad_blocks_by_what_was_recorded() {
    let says = |now: Option<StripeRecord>, said: &[u8], why: Error| {
        let said = said.iter().map(|index| (block(*index), why.clone())).collect();
        Event::Summed(Summed::Failed { error: Error::replan("a node failed"), now: now.map(Box::new), said })
    };
    let failed = |now: Option<StripeRecord>, said: &[u8]| says(now, said, Error::corrupt("page 3"));
    let begun = || {
        let mut checked = Checked::of(stripe(), &[]);
        checked.looked(&[]);
        checked
    };
    // One block is known to be corrupt now: the others are read.
    let mut now = stripe();
    now.blocks.get_mut(&3).unwrap().state = BlockState::Corrupt;
    let mut checked = begun();
    let action = checked.on(failed(Some(now), &[3]));
    let (read, action) = checked.read_all(action, |_| Verdict::Right);
    let outcome = ended(action);
    assert_eq!((read, found(&outcome), &*outcome.wrong[0].why), (vec![0, 1, 2, 4, 5], vec![Some(3)], "page 3"));
    // The others' tasks took longer to end than its rebuild.
    let mut moved = stripe();
    moved.blocks.get_mut(&3).unwrap().generation = 2;
    let mut checked = begun();
    let action = checked.on(failed(Some(moved.clone()), &[3]));
    let (read, action) = checked.read_all(action, |_| Verdict::Right);
    assert_eq!((read, found(&ended(action))), (vec![0, 1, 2, 4, 5], vec![Some(3)]));
    // It was moved meanwhile, or a node says so and nothing was recorded: no finding.
    for event in [says(Some(moved), &[3], Error::not_found("it is gone")), failed(Some(stripe()), &[3])] {
        let outcome = ended(begun().on(event));
        assert!(outcome.wrong.is_empty() && matches!(outcome.end, End::Again(_)), "{outcome:?}");
    }
    assert_eq!(ended(begun().on(failed(None, &[]))), Outcome { object: "b/k".into(), end: End::Gone, ..Outcome::default() });
}

fn outcome(end: End, indexes: &[u8]) -> Outcome {
    let wrong =
        |index: &u8| WrongBlock { object: "b/k".into(), stripe: 0, block: Some((block(*index), NodeId(1))), why: "w".into() };
    Outcome { blocks: 6, bytes: 600, wrong: indexes.iter().map(wrong).collect(), end, ..Outcome::default() }
}

fn again() -> End {
    End::Again(Error::retry("busy"))
}

fn place(stripe: u64) -> ScrubPlace {
    ScrubPlace { key: String::new(), stripe }
}

#[test]
fn a_scrub_continues_behind_the_last_stripe_before_which_all_have_ended() {
    let mut progress = Progress::new(ScrubRecord::default());
    let tickets: Vec<Ticket> = (1..=3).map(|stripe| progress.begin(place(stripe))).collect();
    assert_eq!(progress.ended(&tickets[2], StripeId(3), &outcome(End::Checked, &[4])), 1);
    let record = progress.record();
    assert_eq!((record.place.stripe, record.tally.stripes), (0, 0), "the next coordinator checks it again, and then counts it");
    assert_eq!((record.tally.wrong_blocks, record.wrong.len()), (1, 1), "what was found is known, and would not be found again");
    let mut next = Progress::new(record.clone());
    let ticket = next.begin(place(3));
    assert_eq!(next.ended(&ticket, StripeId(3), &outcome(End::Checked, &[4])), 0);
    assert_eq!((next.record().tally.stripes, next.record().tally.wrong_blocks), (1, 1));
    progress.ended(&tickets[0], StripeId(1), &outcome(again(), &[]));
    assert_eq!((progress.record().place.stripe, progress.is_under_way()), (1, true));
    progress.ended(&tickets[1], StripeId(2), &outcome(End::Gone, &[]));
    assert_eq!((progress.record().place.stripe, progress.is_under_way()), (3, false));
    let tally = ScrubTally { stripes: 1, blocks: 6, bytes: 600, wrong_blocks: 1, ..ScrubTally::default() };
    assert_eq!((&progress.record().again[..], progress.record().tally), (&[StripeId(1)][..], tally));
    assert_eq!(progress.record().not_checked(), 1);
    progress.repeated(StripeId(1), &outcome(End::Checked, &[]));
    assert_eq!((progress.record().not_checked(), progress.record().tally.stripes), (0, 2));
}

#[test]
fn what_is_found_is_counted_once_and_only_so_many_are_listed() {
    let mut progress = Progress::new(ScrubRecord::default());
    assert_eq!(progress.repeated(StripeId(7), &outcome(again(), &[1])), 1);
    assert_eq!(progress.repeated(StripeId(7), &outcome(End::Checked, &[1, 2])), 1);
    assert_eq!(progress.record().tally.wrong_blocks, 2);
    for stripe in 0..SCRUB_TESTED {
        let mut found = outcome(End::Checked, &[1]);
        found.wrong[0].stripe = 100 + stripe;
        progress.repeated(StripeId(100 + stripe), &found);
        progress.repeated(StripeId(9000 + stripe), &outcome(again(), &[]));
    }
    let record = progress.record();
    assert_eq!((record.wrong.len(), record.tally.wrong_blocks), (weft_types::SCRUB_WRONG_MAX, 2 + SCRUB_TESTED));
    assert_eq!((record.again.len(), record.not_checked()), (weft_types::SCRUB_AGAIN_MAX, SCRUB_TESTED));
}

/// Outcomes of different stripes, each with one wrong block.
fn wrong_in(stripe: u64) -> Outcome {
    let mut found = outcome(End::Checked, &[1]);
    (found.object, found.number, found.wrong[0].stripe) = ("b/k".into(), stripe, stripe);
    found
}

#[test]
fn what_is_found_behind_a_slow_check_is_counted_once_although_the_coordinator_crashes() {
    let listed = weft_types::SCRUB_WRONG_MAX as u64;
    let mut progress = Progress::new(ScrubRecord::default());
    for stripe in 100..100 + listed {
        progress.repeated(StripeId(stripe), &wrong_in(stripe));
    }
    // Stripe 1 takes long; 2 and 3 have wrong blocks.
    let tickets: Vec<Ticket> = (1..=3).map(|stripe| progress.begin(place(stripe))).collect();
    assert_eq!([2, 3].map(|at| progress.ended(&tickets[at as usize - 1], StripeId(at), &wrong_in(at))), [1, 1]);
    let mut record = progress.record().clone();
    assert_eq!((record.tally.wrong_blocks, record.tally.stripes), (listed + 2, listed));
    for new in [1, 0] {
        let mut next = Progress::new(record.clone());
        let tickets: Vec<Ticket> = (1..=4).map(|stripe| next.begin(place(stripe))).collect();
        assert_eq!([4, 3, 2].map(|at| next.ended(&tickets[at as usize - 1], StripeId(at), &wrong_in(at))), [new, 0, 0]);
        assert_eq!(next.record().tally.wrong_blocks, listed + 3);
        record = next.record().clone();
    }
    progress.ended(&tickets[0], StripeId(1), &outcome(End::Checked, &[]));
    assert_eq!(
        (progress.record().wrong.len() as u64, progress.record().tally.wrong_blocks),
        (listed, listed + 2),
        "no longer needed"
    );
    // The next coordinator forgets what it has counted, too.
    let mut next = Progress::new(record);
    for stripe in 1..1_000 {
        let ticket = next.begin(place(stripe));
        next.ended(&ticket, StripeId(stripe), &if stripe < 5 { wrong_in(stripe) } else { outcome(End::Checked, &[]) });
    }
    assert_eq!((next.record().wrong.len() as u64, next.record().tally.wrong_blocks), (listed, listed + 3 + 1));
}

#[test]
fn only_so_many_stripes_are_kept_behind_a_slow_check() {
    let mut progress = Progress::new(ScrubRecord::default());
    let slow = progress.begin(place(1));
    let mut begun = 1;
    while progress.may_begin() {
        begun += 1;
        let ticket = progress.begin(place(begun));
        progress.ended(&ticket, StripeId(begun), &outcome(End::Checked, &[]));
        assert!(begun < 1_000, "without a bound");
    }
    progress.ended(&slow, StripeId(1), &outcome(End::Checked, &[]));
    assert!(progress.may_begin() && progress.record().tally.stripes == begun);
}

/// More than are remembered of anything.
const SCRUB_TESTED: u64 = 5000;

#[test]
fn a_pass_ends_when_all_is_checked_or_the_period_is_over_and_the_next_keeps_the_period() {
    let (period, mut progress) = (1000, Progress::new(ScrubRecord::default()));
    assert_eq!(progress.next_pass_ms(period, 5000), Some(0), "at once");
    progress.begin_pass(5000);
    assert_eq!(progress.next_pass_ms(period, 5000), None);
    let ticket = progress.begin(place(1));
    assert!(!progress.may_end(period, 9000), "a stripe is being checked");
    progress.ended(&ticket, StripeId(1), &outcome(again(), &[1]));
    assert!(!progress.may_end(period, 5999) && progress.may_end(period, 6000), "it may still be checked");
    assert!(progress.may_end(period, 4999), "the clock was set back to before the pass began");
    progress.repeated(StripeId(1), &outcome(End::Checked, &[]));
    assert!(progress.may_end(period, 5100));
    progress.end_pass(5100);
    let last = progress.record().last.clone().unwrap();
    assert_eq!((last.began_ms, last.ended_ms, last.tally.wrong_blocks, last.wrong.len()), (5000, 5100, 1, 1));
    assert_eq!((progress.next_pass_ms(period, 5100), progress.record().began_ms), (Some(6000), 0));
    assert_eq!(progress.next_pass_ms(period, 4000), Some(0), "the clock was wrong when it began");
    progress.begin_pass(6000);
    assert_eq!((progress.record().place.stripe, progress.record().tally), (0, ScrubTally::default()));
    assert_eq!(progress.record().last.as_ref(), Some(&last), "until this one has ended");
}

/// The times at which stripes with one block each begin, if every check takes no time. Time advances in steps, as in the shell.
fn begins(lens: &[u64], (stock, limit): (u64, u64), period: Duration) -> Vec<Duration> {
    let (mut pace, mut done, mut now, mut times) = (Pace::default(), ScrubTally::default(), Time::default(), Vec::new());
    pace.begin_pass(now);
    let ms = |time: Duration| time.as_millis() as u64;
    for len in lens {
        let blocks = [(home(1), *len)];
        let left = |now: Time| {
            let stripes = lens.len() as u64;
            let bytes = left_bytes(stock, stripes, &done);
            Left::of(bytes, stripes - done.stripes, (0, ms(period)), ms(now.since(Time::default())))
        };
        while pace.at(&blocks, left(now)) > now {
            now = pace.at(&blocks, left(now)).min(now + (period / 2000).max(Duration::from_millis(1)));
        }
        times.push(now.since(Time::default()));
        pace.began(&blocks, limit, now);
        done.stripes += 1;
        done.bytes += len;
    }
    times
}

#[test]
fn stripes_begin_evenly_over_the_period() {
    let day = Duration::from_secs(86_400);
    let hours = |times: &[Duration]| -> Vec<u64> { times.iter().map(|time| (time.as_secs() + 1800) / 3600).collect() };
    // Time that has passed counts for the rest: the last one begins when its share is over, and half of the rest is gone.
    assert_eq!(hours(&begins(&[1 << 30; 2], (2 << 30, 0), 10 * day)), [72, 144]);
    let times = begins(&[1 << 30; 100], (100 << 30, 0), 10 * day);
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] < day / 8) && times[0] > day / 50, "no burst and no pause: {times:?}");
    // By their bytes; and if the stock is larger or smaller than its data tell, the pass still ends in time.
    let times = begins(&[1 << 30, 30 << 30, 1 << 30], (32 << 30, 0), 10 * day);
    assert!(times[0] < day && times[1] > 4 * day && times[2] < 9 * day, "{times:?}");
    for (len, stock) in [(3 << 20, 1000 << 20), (1 << 20, 5000 << 20)] {
        let times = begins(&vec![len; 1000], (stock, 0), day);
        assert!(*times.last().unwrap() < day, "{:?}", times.last());
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] < day / 100), "no pause");
    }
    // Small stripes first, and then all the bytes.
    let lens: Vec<u64> = [vec![10; 1000], vec![64 << 20; 100]].concat();
    let times = begins(&lens, (lens.iter().sum(), 0), day);
    assert!(times[1000] < day / 10 && *times.last().unwrap() < day, "{:?}", times[1000]);
}

#[test]
fn stripes_that_are_added_shorten_the_time_of_the_next() {
    let (mut pace, day) = (Pace::default(), Duration::from_secs(86_400));
    pace.begin_pass(Time::default());
    let (blocks, left) = ([(home(1), 1 << 20)], |stripes: u64| Left { bytes: stripes << 20, stripes, time: day });
    assert_eq!(pace.at(&blocks, left(1)), Time::after(day), "not in one burst");
    assert_eq!(pace.at(&blocks, left(100)), Time::after(day / 100));
    assert_eq!(pace.at(&blocks, Left { time: Duration::ZERO, ..left(1) }), Time::default(), "late");
    let of = |now_ms| Left::of(1, 1, (5_000_000, 1_000_000), now_ms).time.as_secs();
    assert_eq!([5_000_000, 5_400_000, 9_000_000, 1_000_000].map(of), [900, 500, 0, 900], "at last, the clock was set back");
}

#[test]
fn no_disk_reads_faster_than_its_limit() {
    let second = Duration::from_secs(1);
    // Late: without the limit, all begin at once.
    let times = begins(&[10 << 20; 5], (50 << 20, 1 << 20), second / 100);
    let seconds: Vec<u64> = times.iter().map(|time| (*time).as_secs()).collect();
    assert_eq!(seconds, [0, 10, 20, 30, 40]);
    let mut pace = Pace::default();
    let left = Left { bytes: 0, stripes: 0, time: Duration::ZERO };
    pace.began(&[(home(1), 10 << 20)], 1 << 20, Time::default());
    assert_eq!(pace.at(&[(home(1), 1)], left), Time::after(10 * second));
    assert_eq!(pace.at(&[(home(2), 1)], left), Time::default(), "another disk");
}

#[test]
fn as_many_stripes_at_the_same_time_as_nodes_allow() {
    assert_eq!([3, 9, 1000].map(|nodes| concurrency(&view(nodes, &[]))), [1, 2, 64]);
}
