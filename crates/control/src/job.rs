//! An operator's job. It works while it is running, waits while it is paused, survives an outage of the metadata,
//! repeats what failed for as long as that helps, and records its progress and its end.
//!
//! Events go in, actions come out ([`Job::on`]). The next event answers the last action; operators' requests may arrive at any time. The
//! job does not know what its kind does in a pass: see [`crate::node_repair`] and [`crate::conversion`].
//!
//! ```text
//!   Begin ─► Count ─► Write ─► Pass ─► Count … until nothing is left, or nothing helps ─► Write the end ─► End
//!     ▲                         └─ paused ─► Write ─► wait for a request ─┐
//!     └───────────────────────────────────────────────────────────────────┘
//! ```
//! At the end the metadata decides whether anything is left, and not the reports of the attempts.

mod pass;

pub use pass::Pass;

use crate::{
    Time,
    eta::{Estimate, Work},
    retries::Pause,
};
use std::{mem, time::Duration};
use weft_types::{Amount, Error, Estimated, JobProgress, JobState, LEFT_BLOCKS_MAX, LeftBlock, Reaction, Result};

/// The first pause after the metadata could not be read or written; each next pause is twice as long, up to a limit.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// The longest estimate that is kept: a century.
const REMAINING_MS_MAX: u64 = 100 * 365 * 86_400_000;

/// The most sent bytes that are counted: what the metadata can record. Agents report the bytes, so a broken one may report any number; a
/// number that cannot be recorded would keep the job from ever ending.
const MOVED_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// How many passes try what failed, if other items succeed or the cause may have passed.
const PASSES_MAX: u32 = 3;

/// The current work of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Items that can be done now.
    pub to_do: Amount,
    /// These and the items that cannot be done at the moment; all others are done.
    pub there: Amount,
}

/// How a pass over all items ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// All items were tried.
    All,
    /// An operator paused or cancelled the job; no item is running.
    Stopped,
}

/// Whether items that failed may succeed in another pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Again {
    /// They will not.
    InVain,
    /// They may.
    Perhaps,
    /// Some of them were only postponed in favour of others.
    MadeWay,
}

impl Again {
    /// Of a pass that has skipped items because they had changed, and has done so many others. If it has done no more than it has skipped, the
    /// next pass is a further attempt: otherwise a job would go on for as long as its items change.
    #[must_use]
    pub fn after_skips(self, skipped: u64, done: u64) -> Self {
        if skipped < done { self } else { self.min(Self::Perhaps) }
    }
}

/// The result of writing to the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is written.
    Taken,
    /// The job's end was refused: the job is in this state, which the end cannot follow.
    Refused(JobState),
}

/// An event.
#[derive(Debug)]
pub enum Event {
    /// A coordinator starts or resumes the job.
    TakenUp,
    /// The requested state changed. Requests arrive in the order in which they were written; also answers
    /// [`Action::WaitToBeTold`].
    Asked(JobState),
    /// Answers [`Action::Begin`].
    Begun(Result<()>),
    /// Answers [`Action::Count`].
    Counted(Result<Counted>),
    /// Answers [`Action::Pass`]. [`Job::done`] and [`Job::left`] have reported the items.
    Passed(Result<(Passed, Again)>),
    /// Answers [`Action::Write`] and [`Action::WriteEnd`].
    Written(Result<Written>),
    /// Answers [`Action::Wait`].
    Woken,
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Log a warning.
    Warn(String),
    /// Log an error.
    Error(String),
    /// Prepare the work when a coordinator starts or resumes the job; [`Event::Begun`] answers.
    Begin,
    /// Count the work; [`Event::Counted`] answers.
    Count,
    /// Try all items once; [`Event::Passed`] answers.
    Pass,
    /// Record the progress; [`Event::Written`] answers.
    Write(JobProgress),
    /// Record this end of the job; [`Event::Written`] answers.
    WriteEnd(JobState, JobProgress),
    /// Wait for this time; [`Event::Woken`] answers.
    Wait(Duration),
    /// Wait for the next [`Event::Asked`].
    WaitToBeTold,
    /// Stop working on the job: it has ended or no longer exists.
    End,
}

/// The state machine of a job.
#[derive(Debug)]
pub struct Job {
    /// The requested state.
    asked: JobState,
    /// Whether that request arrived after the last write began.
    asked_since: bool,
    progress: JobProgress,
    /// The reason if items are left that no attempt reported.
    left_unsaid: &'static str,
    /// Whether this coordinator has counted the remaining work.
    counted: bool,
    tries: Tries,
    /// The next pause, if the next attempt fails too.
    pause: Pause,
    /// The estimate of the remaining time, and since when: the job was taken up or resumed.
    eta: Option<(Estimate, Time)>,
    state: State,
}

#[derive(Debug)]
enum State {
    Untouched,
    Beginning,
    Counting,
    /// Writes the counted work.
    Saving(Amount),
    /// The number of items done before the pass.
    Passing(u64),
    Pausing,
    /// Writes the progress and, if set, the end, and repeats that until it succeeds.
    Writing(Option<JobState>, Pause),
    WritingAgain(Option<JobState>, Pause),
    Idle,
    Ended,
}

impl Job {
    /// A job as recorded. `left_unsaid`: the reason if items are left that no attempt reported.
    pub fn new(asked: JobState, progress: JobProgress, left_unsaid: &'static str) -> Self {
        let (tries, pause, state) = (Tries::default(), first_pause(), State::Untouched);
        let mut job = Self { asked, asked_since: false, progress, left_unsaid, counted: false, tries, pause, eta: None, state };
        if !asked.has_ended() {
            job.forget_estimates();
        }
        job
    }

    /// The progress.
    pub fn progress(&self) -> &JobProgress {
        &self.progress
    }

    /// Counts an item of this many bytes as done.
    pub fn done(&mut self, bytes: u64) {
        self.progress.done.add(bytes);
    }

    /// Counts an item as failed, with its name and the reason. Returns whether another attempt may succeed.
    pub fn left(&mut self, bytes: u64, error: Error, name: impl FnOnce(String) -> LeftBlock) -> Again {
        let progress = &mut self.progress;
        progress.left.add(bytes);
        progress.last_error = error.to_string();
        let reaction = error.reaction;
        if progress.left_blocks.len() < LEFT_BLOCKS_MAX {
            progress.left_blocks.push(name(Error { object: None, ..error }.to_string()));
        }
        if matches!(reaction, Reaction::Retry | Reaction::Replan) { Again::Perhaps } else { Again::InVain }
    }

    /// Counts bytes that a plan has sent over links.
    pub fn moved(&mut self, bytes: u64) {
        self.progress.moved_bytes = self.progress.moved_bytes.saturating_add(bytes).min(MOVED_BYTES_MAX);
    }

    /// Records how far the job is, when a pass begins and after each item. `begun_bytes`: of items that are not finished.
    pub fn observe(&mut self, begun_bytes: u64, now: Time) {
        let done = self.work(begun_bytes);
        let (estimate, begun) = self.eta.get_or_insert_with(|| (Estimate::new(done), now));
        estimate.observe(done, now.since(*begun).as_secs_f64());
    }

    /// How long the rest takes at the rate since the job was taken up or resumed; `None` if that is unknown.
    pub fn remaining(&self, begun_bytes: u64, now: Time) -> Option<Duration> {
        let (estimate, begun) = self.eta.as_ref()?;
        let JobProgress { total, left, .. } = &self.progress;
        let tried = Work { items: total.blocks.saturating_sub(left.blocks), bytes: total.bytes.saturating_sub(left.bytes) };
        let seconds = estimate.left(self.work(begun_bytes), tried, now.since(*begun).as_secs_f64())?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Keeps this estimate if it is the first one after a quarter or half of the work, so that its error is known at the end. If the job was
    /// taken up or resumed after that, none is kept.
    pub fn estimated(&mut self, remaining_ms: u64, now_ms: u64) {
        let Some((estimate, _)) = &self.eta else { return };
        let JobProgress { total, done, quarter, half, .. } = &mut self.progress;
        let total_bytes = total.bytes.max(1);
        let quarters = |bytes: u64| bytes.saturating_mul(4) / total_bytes;
        let (before, now) = (quarters(estimate.before().bytes), quarters(done.bytes));
        let kept = match now {
            1 => quarter,
            2 => half,
            _ => return,
        };
        if before < now && kept.is_none() {
            *kept = Some(Estimated { made_ms: now_ms, remaining_ms: remaining_ms.min(REMAINING_MS_MAX) });
        }
    }

    /// Drops the estimates, because an operator pauses or resumes the job: the time for which a job is paused, or has no coordinator, cannot be
    /// estimated.
    pub fn forget_estimates(&mut self) {
        (self.eta, self.progress.quarter, self.progress.half) = (None, None, None);
    }

    fn work(&self, begun_bytes: u64) -> Work {
        let done = self.progress.done;
        Work { items: done.blocks, bytes: done.bytes.saturating_add(begun_bytes) }
    }

    /// Handles an event and returns the next actions. An event that answers no action is ignored.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        match (mem::replace(&mut self.state, State::Ended), event) {
            (state, Event::Asked(asked)) => self.asked(state, asked),
            (State::Untouched, Event::TakenUp) => self.go_on(),
            (State::Pausing, Event::Woken) if self.asked == JobState::Running => self.go_on(),
            // The failed pass may have done some items.
            (State::Pausing, Event::Woken) => self.write(None, first_pause()),
            (State::Beginning, Event::Begun(Ok(()))) => self.to(State::Counting, Action::Count),
            (State::Counting, Event::Counted(Ok(counted))) => self.counted(counted),
            (State::Saving(to_do), Event::Written(Ok(_))) => self.saved(to_do),
            (State::Passing(done), Event::Passed(Ok((passed, again)))) => self.passed(passed, again, done),
            (State::Beginning, Event::Begun(Err(error)))
            | (State::Counting, Event::Counted(Err(error)))
            | (State::Saving(_), Event::Written(Err(error)))
            | (State::Passing(_), Event::Passed(Err(error))) => self.failed(&error),
            (State::Writing(end, pause), Event::Written(written)) => self.written(written, end, pause),
            (State::WritingAgain(end, pause), Event::Woken) => self.write(end, pause),
            (state, _) => {
                self.state = state;
                Vec::new()
            }
        }
    }

    fn asked(&mut self, state: State, asked: JobState) -> Vec<Action> {
        // An ended job stays ended: this request was written before.
        if !self.asked.has_ended() {
            (self.asked, self.asked_since) = (asked, true);
            // A pause and a resume may come as one request.
            self.forget_estimates();
        }
        match state {
            State::Idle => self.go_on(),
            state => {
                self.state = state;
                Vec::new()
            }
        }
    }

    /// Follows the requested state. No item is running, and the progress is written.
    fn go_on(&mut self) -> Vec<Action> {
        self.tries = Tries::default();
        match self.asked {
            JobState::Running if self.counted => self.to(State::Counting, Action::Count),
            JobState::Running => self.to(State::Beginning, Action::Begin),
            JobState::Paused => {
                self.forget_estimates();
                self.to(State::Idle, Action::WaitToBeTold)
            }
            JobState::Done | JobState::Failed | JobState::Cancelled => self.to(State::Ended, Action::End),
        }
    }

    /// The work was counted.
    fn counted(&mut self, Counted { to_do, there }: Counted) -> Vec<Action> {
        let JobProgress { total, done, left, .. } = &mut self.progress;
        if !self.counted && total.blocks > 0 {
            // An earlier coordinator may not have recorded its last items: items that are no longer there are done.
            done.blocks = done.blocks.max(total.blocks.saturating_sub(there.blocks));
            done.bytes = done.bytes.max(total.bytes.saturating_sub(there.bytes));
        }
        *total = Amount { blocks: done.blocks + to_do.blocks, bytes: done.bytes.saturating_add(to_do.bytes) };
        (*left, self.counted) = (Amount::default(), true);
        if to_do.blocks > 0 && self.tries.are_over() {
            *left = to_do;
            if self.progress.last_error.is_empty() {
                self.progress.last_error = self.left_unsaid.to_owned();
            }
            return self.write(Some(JobState::Failed), first_pause());
        }
        // Items that failed before are tried again.
        self.progress.left_blocks.clear();
        let write = Action::Write(self.progress.clone());
        self.to(State::Saving(to_do), write)
    }

    /// The counted work was written.
    fn saved(&mut self, to_do: Amount) -> Vec<Action> {
        match self.asked {
            JobState::Running if to_do.blocks == 0 => self.write(Some(JobState::Done), first_pause()),
            JobState::Running => self.to(State::Passing(self.progress.done.blocks), Action::Pass),
            _ => self.go_on(),
        }
    }

    fn passed(&mut self, passed: Passed, again: Again, done_before: u64) -> Vec<Action> {
        self.pause = first_pause();
        if passed == Passed::Stopped || self.asked != JobState::Running {
            self.forget_estimates();
            return self.write(None, first_pause());
        }
        self.tries.count(self.progress.done.blocks > done_before, again);
        self.to(State::Counting, Action::Count)
    }

    fn failed(&mut self, error: &Error) -> Vec<Action> {
        self.progress.last_error = error.to_string();
        if error.reaction == Reaction::Retry {
            self.state = State::Pausing;
            return vec![Action::Warn(format!("a job waits before it tries again: {error}")), Action::Wait(self.pause.again())];
        }
        let write = self.write(Some(JobState::Failed), first_pause());
        [Action::Error(format!("a job failed: {error}"))].into_iter().chain(write).collect()
    }

    /// Writes the progress or the end; `pause` is the pause if that fails.
    fn write(&mut self, end: Option<JobState>, pause: Pause) -> Vec<Action> {
        self.asked_since = false;
        let progress = self.progress.clone();
        let write = match end {
            Some(end) => Action::WriteEnd(end, progress),
            None => Action::Write(progress),
        };
        self.to(State::Writing(end, pause), write)
    }

    fn written(&mut self, written: Result<Written>, end: Option<JobState>, mut pause: Pause) -> Vec<Action> {
        match written {
            Ok(Written::Taken) if end.is_some() => self.to(State::Ended, Action::End),
            Ok(Written::Taken) => self.go_on(),
            // An operator changed the state since, or the end was written before and the answer was lost. A request
            // that has arrived since may be newer than the state read here; but an ended job stays ended.
            Ok(Written::Refused(now)) => {
                if now.has_ended() || !self.asked_since {
                    self.asked = now;
                }
                self.write(None, first_pause())
            }
            // A coordinator that no longer leads is stopped elsewhere.
            Err(error) if matches!(error.reaction, Reaction::Retry | Reaction::Fatal) => {
                let why = Action::Error(format!("cannot write a job's progress, trying again: {error}"));
                let wait = Action::Wait(pause.again());
                self.state = State::WritingAgain(end, pause);
                vec![why, wait]
            }
            Err(error) => {
                self.state = State::Ended;
                vec![Action::Warn(format!("a job no longer exists: {error}")), Action::End]
            }
        }
    }

    fn to(&mut self, state: State, action: Action) -> Vec<Action> {
        self.state = state;
        vec![action]
    }
}

fn first_pause() -> Pause {
    Pause::new(RETRY_FIRST, RETRY_LAST)
}

/// Consecutive passes without, or with little, success.
#[derive(Debug, Default)]
struct Tries {
    count: u32,
    in_vain: bool,
}

impl Tries {
    fn are_over(&self) -> bool {
        self.count == PASSES_MAX || self.in_vain
    }

    /// Records whether a pass did anything. Postponed items have not been tried, so as many such passes are allowed as there are items.
    fn count(&mut self, has_done: bool, again: Again) {
        self.in_vain = !has_done && again == Again::InVain;
        self.count += u32::from(!(has_done && again == Again::MadeWay));
    }
}

#[cfg(test)]
mod tests;
