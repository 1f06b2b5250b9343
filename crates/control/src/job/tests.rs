use super::*;
use JobState::{Cancelled, Done, Failed, Paused, Running};
use proptest::prelude::*;
use std::collections::VecDeque;

const UNSAID: &str = "blocks arrived during the job";

fn job() -> Job {
    Job::new(Running, JobProgress::default(), UNSAID)
}

fn amount(blocks: u64) -> Amount {
    Amount { blocks, bytes: 10 * blocks }
}

fn counted(to_do: u64) -> Event {
    Event::Counted(Ok(Counted { to_do: amount(to_do), there: amount(to_do) }))
}

fn passed(passed: Passed, again: Again) -> Event {
    Event::Passed(Ok((passed, again)))
}

fn taken() -> Event {
    Event::Written(Ok(Written::Taken))
}

fn away() -> Error {
    Error::retry("the metadata is unavailable")
}

/// The last action, which asks for an answer. The content of a write is left out.
fn asks(job: &mut Job, event: Event) -> String {
    let last = job.on(event).pop();
    match last {
        None => String::new(),
        Some(Action::Write(_)) => "Write".into(),
        Some(Action::WriteEnd(end, _)) => format!("WriteEnd {end:?}"),
        Some(Action::Wait(pause)) => format!("Wait {}", pause.as_millis()),
        Some(other) => format!("{other:?}"),
    }
}

/// Plays events; returns the action that each asks for.
fn played(job: &mut Job, events: impl IntoIterator<Item = Event>) -> Vec<String> {
    events.into_iter().map(|event| asks(job, event)).collect()
}

/// A job in its first pass, with this much work.
fn passing(to_do: u64) -> Job {
    let mut job = job();
    assert_eq!(
        played(&mut job, [Event::TakenUp, Event::Begun(Ok(())), counted(to_do), taken()]),
        ["Begin", "Count", "Write", "Pass"]
    );
    job
}

#[test]
fn a_job_counts_tries_and_counts_again_until_nothing_is_left() {
    let mut job = passing(2);
    assert_eq!(job.progress().total, amount(2));
    job.done(10);
    assert_eq!(job.left(10, away(), left_block), Again::Perhaps);
    assert_eq!(played(&mut job, [passed(Passed::All, Again::Perhaps), counted(1)]), ["Count", "Write"]);
    assert_eq!((job.progress().left, job.progress().left_blocks.len()), (amount(0), 0), "it must be tried again");
    assert_eq!(asks(&mut job, taken()), "Pass");
    job.done(10);
    let rest = [passed(Passed::All, Again::InVain), counted(0), taken(), taken(), Event::Asked(Running)];
    assert_eq!(played(&mut job, rest), ["Count", "Write", "WriteEnd Done", "End", ""]);
    assert_eq!((job.progress().total, job.progress().done), (amount(2), amount(2)));
}

fn left_block(reason: String) -> LeftBlock {
    LeftBlock { object: "b/k".into(), stripe: 0, index: 1, reason }
}

#[test]
fn the_metadata_determine_what_is_left_and_the_first_items_are_named() {
    let mut job = passing(40);
    for _ in 0..40 {
        let error = Error::unavailable("too many blocks are lost").object("b/k");
        assert_eq!(job.left(10, error, left_block), Again::InVain);
    }
    assert_eq!(played(&mut job, [passed(Passed::All, Again::InVain), counted(41)]), ["Count", "WriteEnd Failed"]);
    let JobProgress { left, left_blocks, last_error, .. } = job.progress();
    assert_eq!((*left, left_blocks.len(), last_error.as_str()), (amount(41), LEFT_BLOCKS_MAX, "b/k: too many blocks are lost"));
    assert_eq!(left_blocks[0].reason, "too many blocks are lost", "the object has its own field");
    let mut job = passing(1);
    assert_eq!(played(&mut job, [passed(Passed::All, Again::InVain), counted(1)]), ["Count", "WriteEnd Failed"]);
    assert_eq!(job.progress().last_error, UNSAID);
}

#[test]
fn postponed_items_are_tried_while_others_complete() {
    let after = |passes: &[(bool, Again)]| {
        let mut tries = Tries::default();
        passes.iter().for_each(|(has_done, again)| tries.count(*has_done, *again));
        tries.are_over()
    };
    assert!(!after(&[]) && !after(&[(true, Again::InVain); 2]) && after(&[(true, Again::InVain); 3]));
    assert!(after(&[(false, Again::InVain)]) && !after(&[(false, Again::Perhaps)]));
    assert!(!after(&[(true, Again::MadeWay); 100]));
    assert!(after(&[(false, Again::MadeWay); 3]), "for the items that failed");
}

#[test]
fn a_pass_that_skips_no_fewer_items_than_it_does_is_a_further_attempt() {
    assert_eq!(Again::MadeWay.after_skips(1, 2), Again::MadeWay);
    assert_eq!([(2, 2), (9, 1)].map(|(skipped, done)| Again::MadeWay.after_skips(skipped, done)), [Again::Perhaps; 2]);
    assert_eq!(Again::InVain.after_skips(9, 1), Again::InVain);
}

#[test]
fn a_paused_job_writes_its_progress_and_counts_again_when_resumed() {
    let mut job = passing(3);
    job.done(10);
    assert_eq!(asks(&mut job, Event::Asked(Paused)), "", "the pass is still running");
    assert_eq!(played(&mut job, [passed(Passed::Stopped, Again::InVain), taken()]), ["Write", "WaitToBeTold"]);
    assert_eq!(played(&mut job, [Event::Woken, taken(), Event::Asked(Paused)]), ["", "", "WaitToBeTold"]);
    assert_eq!(played(&mut job, [Event::Asked(Running), counted(2)]), ["Count", "Write"]);
    assert_eq!(asks(&mut job, Event::Asked(Cancelled)), "");
    assert_eq!(asks(&mut job, taken()), "End", "nothing starts, and the progress was just written");
    let mut paused = Job::new(Paused, JobProgress::default(), UNSAID);
    assert_eq!(played(&mut paused, [Event::TakenUp, Event::Asked(Cancelled)]), ["WaitToBeTold", "End"]);
    let mut ended = Job::new(Done, JobProgress::default(), UNSAID);
    assert_eq!(asks(&mut ended, Event::TakenUp), "End");
}

#[test]
fn unrecorded_work_of_an_earlier_coordinator_counts_as_done() {
    let progress = JobProgress { total: amount(9), done: amount(2), ..JobProgress::default() };
    let mut job = Job::new(Running, progress, UNSAID);
    let there = Counted { to_do: amount(3), there: amount(4) };
    let events = [Event::TakenUp, Event::Begun(Ok(())), Event::Counted(Ok(there)), taken()];
    assert_eq!(played(&mut job, events), ["Begin", "Count", "Write", "Pass"]);
    assert_eq!((job.progress().done, job.progress().total), (amount(5), amount(8)));
    // From then on it counts its own items: items that disappear otherwise were not done by it.
    played(&mut job, [passed(Passed::All, Again::Perhaps), counted(1)]);
    assert_eq!((job.progress().done, job.progress().total), (amount(5), amount(6)));
}

#[test]
fn while_the_metadata_cannot_be_read_pauses_grow_and_the_job_starts_again() {
    let mut job = job();
    assert_eq!(asks(&mut job, Event::TakenUp), "Begin");
    let mut pauses = Vec::new();
    for _ in 0..8 {
        pauses.push(asks(&mut job, Event::Begun(Err(away()))));
        assert_eq!(asks(&mut job, Event::Woken), "Begin");
    }
    assert_eq!(pauses.join(" "), "Wait 250 Wait 500 Wait 1000 Wait 2000 Wait 4000 Wait 8000 Wait 10000 Wait 10000");
    assert_eq!(job.progress().last_error, "the metadata is unavailable");
    assert_eq!(played(&mut job, [Event::Begun(Ok(())), Event::Counted(Err(away()))]), ["Count", "Wait 10000"]);
    assert_eq!(played(&mut job, [Event::Woken, Event::Begun(Ok(())), counted(1), taken()]), ["Begin", "Count", "Write", "Pass"]);
    job.done(10);
    assert_eq!(played(&mut job, [Event::Passed(Err(away())), Event::Asked(Cancelled)]), ["Wait 10000", ""]);
    assert_eq!(played(&mut job, [Event::Woken, taken()]), ["Write", "End"], "the pass's progress is written");
}

#[test]
fn a_permanent_error_fails_a_job() {
    for event in [Event::Passed(Err(Error::fatal("the disk is full"))), Event::Passed(Err(Error::not_found("no policy")))] {
        let mut job = passing(1);
        let actions = job.on(event);
        assert!(matches!(actions.as_slice(), [Action::Error(_), Action::WriteEnd(Failed, _)]), "{actions:?}");
        assert_eq!(asks(&mut job, taken()), "End");
    }
}

#[test]
fn a_failed_write_of_the_end_is_retried_and_a_refused_one_is_not() {
    let ending = || {
        let mut job = passing(1);
        job.done(10);
        let events = [passed(Passed::All, Again::InVain), counted(0), taken()];
        assert_eq!(played(&mut job, events), ["Count", "Write", "WriteEnd Done"]);
        job
    };
    let full = || Event::Written(Err(Error::fatal("there is no space")));
    let refused = |now| Event::Written(Ok(Written::Refused(now)));
    let mut job = ending();
    let events = [full(), Event::Woken, full(), Event::Woken, taken()];
    assert_eq!(played(&mut job, events), ["Wait 250", "WriteEnd Done", "Wait 500", "WriteEnd Done", "End"]);
    // Paused since; it learns that from the metadata before the event.
    let mut job = ending();
    assert_eq!(
        played(&mut job, [refused(Paused), full(), Event::Woken, taken()]),
        ["Write", "Wait 250", "Write", "WaitToBeTold"]
    );
    assert_eq!(played(&mut job, [Event::Asked(Paused), Event::Asked(Running)]), ["WaitToBeTold", "Count"]);
    // Paused and resumed since; both events arrive before it learns of the first.
    let mut job = ending();
    let events = [Event::Asked(Paused), Event::Asked(Running), refused(Paused), taken()];
    assert_eq!(played(&mut job, events), ["", "", "Write", "Count"]);
    let mut job = ending();
    assert_eq!(played(&mut job, [refused(Cancelled), taken()]), ["Write", "End"]);
    // The answer was lost.
    let mut job = ending();
    let events = [Event::Written(Err(away())), Event::Woken, refused(Done), Event::Asked(Running), taken()];
    assert_eq!(played(&mut job, events), ["Wait 250", "WriteEnd Done", "Write", "", "End"]);
    let mut job = ending();
    assert_eq!(asks(&mut job, Event::Written(Err(Error::not_found("there is no job 7")))), "End");
}

#[test]
fn the_remaining_time_follows_the_rate_and_the_errors_of_two_estimates_are_known_at_the_end() {
    let at = |seconds| Time::after(Duration::from_secs(seconds));
    let mut job = passing(8);
    job.observe(0, at(100));
    assert_eq!(job.remaining(0, at(101)), None, "nothing is finished");
    for second in 1..=8 {
        job.done(10);
        job.moved(40);
        job.observe(0, at(100 + second));
        let left = job.remaining(0, at(100 + second)).unwrap().as_secs_f64();
        assert!((left - (8 - second) as f64).abs() < 0.01, "{left} after {second} s");
        job.estimated(1_000 * (8 - second), 1_000 * second);
    }
    assert_eq!(job.progress().moved_bytes, 320);
    let (quarter, half) = (job.progress().quarter.unwrap(), job.progress().half.unwrap());
    assert_eq!(quarter, Estimated { made_ms: 2_000, remaining_ms: 6_000 });
    assert_eq!(half, Estimated { made_ms: 4_000, remaining_ms: 4_000 });
    assert_eq!([quarter.error(8_000), half.error(6_000), half.error(9_000)], [Some(0.0), Some(1.0), Some(-0.2)]);
    assert_eq!(half.error(4_000), None, "no time was left");

    // Half of a block is on its way.
    let mut job = passing(4);
    job.observe(0, at(0));
    assert_eq!(job.remaining(5, at(1)), Some(Duration::from_secs(7)));
    // What was given up is not waited for.
    job.left(10, away(), |reason| LeftBlock { object: String::new(), stripe: 0, index: 0, reason });
    assert_eq!(job.remaining(5, at(1)), Some(Duration::from_secs(5)));
    // The time for which it is paused is no part of the rate.
    job.done(10);
    job.estimated(9_000, 7);
    assert!(job.progress().quarter.is_some());
    assert_eq!(played(&mut job, [Event::Asked(Paused), passed(Passed::Stopped, Again::InVain)]), ["", "Write"]);
    assert_eq!((job.remaining(5, at(9)), job.progress().quarter), (None, None));
}

/// A job with eight items in its first pass, three of which are done, and with an estimate at a quarter of the work.
fn estimating() -> Job {
    let mut job = passing(8);
    job.observe(0, Time::after(Duration::from_secs(1)));
    (0..3).for_each(|_| job.done(10));
    job.observe(0, Time::after(Duration::from_secs(4)));
    job.estimated(5_000, 3_000);
    assert!(job.progress().quarter.is_some() && remaining(&job).is_some());
    job
}

fn remaining(job: &Job) -> Option<Duration> {
    job.remaining(0, Time::after(Duration::from_secs(5)))
}

#[test]
fn a_pause_drops_the_estimates_whenever_it_comes() {
    let all = || passed(Passed::All, Again::InVain);
    let refused = || Event::Written(Ok(Written::Refused(Paused)));
    let paths: [Vec<Event>; 5] = [
        vec![Event::Asked(Paused), passed(Passed::Stopped, Again::InVain), taken()],
        // While it waits after a pass that failed.
        vec![Event::Passed(Err(away())), Event::Asked(Paused), Event::Woken, taken()],
        // While it counts, and while that is written.
        vec![all(), Event::Asked(Paused), counted(5), taken()],
        vec![all(), counted(5), Event::Asked(Paused), taken()],
        // It learns of the pause only when its end is refused.
        vec![all(), counted(0), taken(), refused(), taken()],
    ];
    for path in paths {
        let (mut job, shown) = (estimating(), format!("{path:?}"));
        assert_eq!(played(&mut job, path).pop().unwrap(), "WaitToBeTold", "{shown}");
        assert_eq!((job.progress().quarter, job.progress().half, remaining(&job)), (None, None, None), "{shown}");
    }
    // It was resumed before it learned of the pause.
    let mut job = estimating();
    played(&mut job, [all(), Event::Asked(Running)]);
    assert_eq!((job.progress().quarter, job.progress().half, remaining(&job)), (None, None, None));
}

#[test]
fn an_estimate_is_kept_only_if_the_job_was_running_before_that_part_of_its_work() {
    let at = |seconds| Time::after(Duration::from_secs(seconds));
    let mut job = estimating();
    let events =
        [Event::Asked(Paused), passed(Passed::Stopped, Again::InVain), taken(), Event::Asked(Running), counted(5), taken()];
    assert_eq!(played(&mut job, events), ["", "Write", "WaitToBeTold", "Count", "Write", "Pass"]);
    job.observe(0, at(100));
    job.estimated(5_000, 100_000);
    assert_eq!(job.progress().quarter, None, "it was resumed after a quarter");
    job.done(10);
    job.observe(0, at(101));
    job.estimated(4_000, 101_000);
    assert_eq!((job.progress().quarter, job.progress().half.map(|it| it.made_ms)), (None, Some(101_000)));

    // Another coordinator takes it up; of a job that has ended, they are kept.
    let recorded = job.progress().clone();
    assert_eq!(Job::new(Running, recorded.clone(), UNSAID).progress().half, None);
    assert_eq!(Job::new(Paused, recorded.clone(), UNSAID).progress().half, None);
    assert_eq!(Job::new(Done, recorded.clone(), UNSAID).progress(), &recorded);
}

#[test]
fn a_report_of_too_many_sent_bytes_leaves_a_number_that_can_be_recorded() {
    let mut job = passing(1);
    job.moved(1);
    job.moved(u64::MAX);
    job.moved(1);
    assert_eq!(i64::try_from(job.progress().moved_bytes), Ok(i64::MAX));
}

/// How attempts at an item end.
#[derive(Debug, Clone, Copy)]
enum Item {
    Works,
    /// Succeeds after this many attempts.
    Later(u8),
    Never(Again),
    /// Is postponed as long as others succeed.
    MakesWay,
}

/// A job, the metadata, and operators.
struct Played {
    job: Job,
    state: JobState,
    written: JobProgress,
    /// Requests that were written and not delivered yet.
    untold: VecDeque<JobState>,
    /// The state that the job can know.
    known: JobState,
    items: Vec<Item>,
    asked: Option<Action>,
    is_gone: bool,
    has_failed: bool,
    passes: u32,
}

impl Played {
    fn new(items: Vec<Item>) -> Self {
        let (state, written) = (Running, JobProgress::default());
        let (job, untold, passes) = (job(), VecDeque::new(), 0);
        let (is_gone, has_failed) = (false, false);
        let mut played = Self { job, state, written, untold, known: state, items, asked: None, is_gone, has_failed, passes };
        played.on(Event::TakenUp);
        played
    }

    fn on(&mut self, event: Event) {
        let is_told = matches!(event, Event::Asked(_));
        let mut actions = self.job.on(event);
        let last = actions.pop();
        assert!(actions.iter().all(|action| matches!(action, Action::Warn(_) | Action::Error(_))), "{actions:?}");
        if is_told && self.asked != Some(Action::WaitToBeTold) {
            assert_eq!(last, None, "an action is pending");
            return;
        }
        assert!(last.is_some(), "it waits for nothing");
        assert!(last != Some(Action::Pass) || self.known == Running, "a pass while it is {:?}", self.known);
        self.asked = last;
    }

    /// An operator changes the state.
    fn change(&mut self, to: JobState) {
        if self.state.may_become(to) {
            self.state = to;
            self.untold.push_back(to);
        }
    }

    fn tell(&mut self) {
        if let Some(told) = self.untold.pop_front() {
            if !self.known.has_ended() {
                self.known = told;
            }
            self.on(Event::Asked(told));
        }
    }

    /// Tries all items, or at most `most`.
    fn pass(&mut self, most: usize) -> (Passed, Again) {
        self.passes += 1;
        let (mut again, mut kept, items) = (Again::InVain, Vec::new(), std::mem::take(&mut self.items));
        let (passed, before) = (if most < items.len() { Passed::Stopped } else { Passed::All }, self.job.progress().done.blocks);
        for (number, item) in items.into_iter().enumerate() {
            let has_done = self.job.progress().done.blocks > before;
            let left = match item {
                _ if number >= most => {
                    kept.push(item);
                    continue;
                }
                Item::MakesWay if has_done => Again::MadeWay,
                Item::Works | Item::MakesWay | Item::Later(0) => {
                    self.job.done(10);
                    continue;
                }
                Item::Never(Again::InVain) => self.job.left(10, Error::unavailable("lost"), left_block),
                Item::Later(_) | Item::Never(_) => self.job.left(10, Error::replan("a node"), left_block),
            };
            again = again.max(left);
            kept.push(if let Item::Later(times) = item { Item::Later(times - 1) } else { item });
        }
        self.items = kept;
        (passed, again)
    }

    fn write(&mut self, end: Option<JobState>, progress: JobProgress) -> Written {
        match end {
            Some(end) if !self.state.may_become(end) => {
                self.known = self.state;
                return Written::Refused(self.state);
            }
            Some(end) => self.state = end,
            None => {}
        }
        self.written = progress;
        Written::Taken
    }

    /// Answers the last action; `fate` chooses the outcome: 0 to 9 succeed.
    fn answer(&mut self, fate: u8) {
        let error = match fate {
            10..=12 => Some(away()),
            13 => Some(Error::fatal("full")),
            _ => None,
        };
        let event = match (self.asked.take(), error) {
            (asked @ (None | Some(Action::End | Action::WaitToBeTold)), _) => {
                self.asked = asked;
                return;
            }
            (Some(Action::Begin), Some(error)) => Event::Begun(Err(error)),
            (Some(Action::Begin), None) => Event::Begun(Ok(())),
            (Some(Action::Count), Some(error)) => Event::Counted(Err(error)),
            (Some(Action::Count), None) => counted(self.items.len() as u64),
            (Some(Action::Pass), Some(error)) => {
                self.pass(1);
                Event::Passed(Err(error))
            }
            (Some(Action::Pass), None) => {
                let told = self.untold.iter().any(|state| *state != Running);
                Event::Passed(Ok(self.pass(if told { usize::from(fate) } else { usize::MAX })))
            }
            (Some(Action::Write(progress)), error) => self.answer_write(None, progress, fate, error),
            (Some(Action::WriteEnd(end, progress)), error) => self.answer_write(Some(end), progress, fate, error),
            (Some(Action::Wait(pause)), _) => {
                assert!((RETRY_FIRST..=RETRY_LAST).contains(&pause));
                Event::Woken
            }
            (Some(other), _) => panic!("{other:?} needs no answer"),
        };
        self.has_failed |= match &event {
            Event::Begun(Err(error)) | Event::Counted(Err(error)) | Event::Passed(Err(error)) => {
                error.reaction == Reaction::Fatal
            }
            Event::Written(Err(error)) => error.reaction == Reaction::Fatal,
            _ => false,
        };
        self.on(event);
    }

    fn answer_write(&mut self, end: Option<JobState>, progress: JobProgress, fate: u8, error: Option<Error>) -> Event {
        match (fate, error) {
            (14, _) => {
                self.is_gone = true;
                Event::Written(Err(Error::not_found("there is no such job")))
            }
            (12, Some(error)) => {
                // The write succeeded, but the answer is lost.
                let known = self.known;
                self.write(end, progress);
                self.known = known;
                Event::Written(Err(error))
            }
            (_, Some(error)) => Event::Written(Err(error)),
            (_, None) => Event::Written(Ok(self.write(end, progress))),
        }
    }

    /// An event that answers no action changes nothing.
    fn stray(&mut self, kind: u8) {
        let event = match (kind, &self.asked) {
            (0, Some(Action::Begin)) | (1, Some(Action::Count)) | (2, Some(Action::Pass)) | (3, Some(Action::Wait(_))) => return,
            (4, Some(Action::Write(_) | Action::WriteEnd(..))) => return,
            (0, _) => Event::Begun(Ok(())),
            (1, _) => counted(0),
            (2, _) => passed(Passed::All, Again::InVain),
            (3, _) => Event::Woken,
            (4, _) => taken(),
            _ => Event::TakenUp,
        };
        assert_eq!(self.job.on(event), [], "{:?}", self.asked);
    }
}

fn any_item() -> impl Strategy<Value = Item> {
    prop_oneof![
        Just(Item::Works),
        (0..3u8).prop_map(Item::Later),
        Just(Item::Never(Again::InVain)),
        Just(Item::Never(Again::Perhaps)),
        Just(Item::MakesWay),
    ]
}

/// What an operator does, whether the job learns of a request, a stray event, and how the action is answered.
fn any_step() -> impl Strategy<Value = (Option<JobState>, bool, u8, u8)> {
    let asks = prop_oneof![6 => Just(None), 1 => Just(Some(Paused)), 3 => Just(Some(Running)), 1 => Just(Some(Cancelled))];
    (asks, any::<bool>(), 0..=5u8, 0..=14u8)
}

proptest! {
    #[test]
    fn under_any_events_a_job_ends_as_recorded_and_works_only_while_running(
        items in proptest::collection::vec(any_item(), 0..8),
        steps in proptest::collection::vec(any_step(), 0..60),
    ) {
        let mut played = Played::new(items);
        for (change, tell, stray, fate) in steps {
            change.into_iter().for_each(|state| played.change(state));
            if tell {
                played.tell();
            }
            played.stray(stray);
            played.answer(fate);
        }
        // With no more failures and the job running, it ends, in as few passes as help.
        played.change(Running);
        let (mut rest, passes, items) = (0, played.passes, played.items.len() as u32);
        while played.asked != Some(Action::End) {
            while !played.untold.is_empty() {
                played.tell();
            }
            played.answer(0);
            rest += 1;
            prop_assert!(rest < 100, "the job does not end: {:?}", played.asked);
        }
        prop_assert!(played.passes - passes <= PASSES_MAX + items + 1, "{} passes", played.passes - passes);
        if !played.is_gone {
            prop_assert!(played.state.has_ended());
            prop_assert_eq!(&played.written, played.job.progress());
            prop_assert_eq!(played.state == Done && !played.items.is_empty(), false, "items are left");
            prop_assert!(played.state != Failed || played.has_failed || !played.items.is_empty());
        }
    }
}
