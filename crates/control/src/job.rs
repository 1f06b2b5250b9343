//! A job of an operator: it works while it is to run, waits while it is paused, goes on when the metadata cannot be reached for a while,
//! tries what was left again for as long as that helps, and writes down how far it is and how it ended.
//!
//! Events go in, actions come out ([`Job::on`]). The last action of an event asks for the next one; besides, what operators ask may come
//! at any time. What a job's kind does in a pass it does not know: see [`crate::node_repair`] and [`crate::conversion`].
//!
//! ```text
//! Begin ─► Count ─► Write ─► Pass ─► Count … until nothing is left, or nothing helps ─► Write the end ─► End
//!   ▲                         └─ it was paused ─► Write ─► wait to be told ─┐
//!   └───────────────────────────────────────────────────────────────────────┘
//! ```
//! Whether anything is left is what the metadata say at the end, not what the attempts told.

mod pass;

pub use pass::Pass;

use crate::retries::Pause;
use std::{mem, time::Duration};
use weft_types::{Amount, Error, JobProgress, JobState, LEFT_BLOCKS_MAX, LeftBlock, Reaction, Result};

/// The first pause after the metadata could not be read or written; each next one is twice as long, up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// How often what could not be done is tried, if other things could or the reason may have gone.
const PASSES_MAX: u32 = 3;

/// What there is to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// What is to be done.
    pub to_do: Amount,
    /// With what is not to be done at the moment: all else that ever was is done.
    pub there: Amount,
}

/// How a pass over all that there is to do ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// All was tried.
    All,
    /// An operator paused or cancelled the job; nothing of it is under way.
    Stopped,
}

/// Whether what was left may work the next time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Again {
    /// It will not.
    InVain,
    /// It may.
    Perhaps,
    /// Some of it only made way for others.
    MadeWay,
}

/// What became of something that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is written down.
    Taken,
    /// The job's end is not: it is in this state, and that one may not follow.
    Refused(JobState),
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The job is taken up.
    TakenUp,
    /// The job is to be in this state. It comes in the order in which it was written down; it answers [`Action::WaitToBeTold`].
    Asked(JobState),
    /// Answers [`Action::Begin`].
    Begun(Result<()>),
    /// Answers [`Action::Count`].
    Counted(Result<Counted>),
    /// Answers [`Action::Pass`]. What was done and left meanwhile was told by [`Job::done`] and [`Job::left`].
    Passed(Result<(Passed, Again)>),
    /// Answers [`Action::Write`] and [`Action::WriteEnd`].
    Written(Result<Written>),
    /// Answers [`Action::Wait`].
    Woken,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Log a warning.
    Warn(String),
    /// Log an error.
    Error(String),
    /// Do what comes before all else when a coordinator takes up the job; [`Event::Begun`] answers.
    Begin,
    /// Count what there is to do; [`Event::Counted`] answers.
    Count,
    /// Try all of it once; [`Event::Passed`] answers.
    Pass,
    /// Write down how far it is; [`Event::Written`] answers.
    Write(JobProgress),
    /// Write down that it has ended so; [`Event::Written`] answers.
    WriteEnd(JobState, JobProgress),
    /// Wait so long; [`Event::Woken`] answers.
    Wait(Duration),
    /// Wait for the next [`Event::Asked`].
    WaitToBeTold,
    /// It is not worked on any more: it has ended, or is not there.
    End,
}

/// A job at work.
#[derive(Debug)]
pub struct Job {
    /// The state that it is to be in.
    asked: JobState,
    /// That came after it began to write last.
    asked_since: bool,
    progress: JobProgress,
    /// What is said if something is left in the end of which no attempt has told.
    left_unsaid: &'static str,
    /// What is left was counted since this coordinator took up the job.
    counted: bool,
    tries: Tries,
    /// The next pause, if the next attempt fails too.
    pause: Pause,
    state: State,
}

#[derive(Debug)]
enum State {
    Untouched,
    Beginning,
    Counting,
    /// Writes what there is to do.
    Saving(Amount),
    /// So many were done before the pass.
    Passing(u64),
    Pausing,
    /// Writes how it stands, and with that perhaps its end, again and again until that works.
    Writing(Option<JobState>, Pause),
    WritingAgain(Option<JobState>, Pause),
    Idle,
    Ended,
}

impl Job {
    /// A job as it is written down. `left_unsaid`: what is said if something is left of which no attempt has told.
    pub fn new(asked: JobState, progress: JobProgress, left_unsaid: &'static str) -> Self {
        let (tries, pause, state) = (Tries::default(), first_pause(), State::Untouched);
        Self { asked, asked_since: false, progress, left_unsaid, counted: false, tries, pause, state }
    }

    /// How far it has come.
    pub fn progress(&self) -> &JobProgress {
        &self.progress
    }

    /// One more is done, of so many bytes.
    pub fn done(&mut self, bytes: u64) {
        self.progress.done.add(bytes);
    }

    /// One more could not be done: counts it, and names it with the reason. Tells whether that may have gone soon.
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

    /// Takes an event; what is to be done then. An event that answers nothing that was asked for is ignored.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        match (mem::replace(&mut self.state, State::Ended), event) {
            (state, Event::Asked(asked)) => self.asked(state, asked),
            (State::Untouched, Event::TakenUp) => self.go_on(),
            (State::Pausing, Event::Woken) if self.asked == JobState::Running => self.go_on(),
            // The pass that failed may have done something.
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
        // What has ended stays so: this was written before.
        if !self.asked.has_ended() {
            (self.asked, self.asked_since) = (asked, true);
        }
        match state {
            State::Idle => self.go_on(),
            state => {
                self.state = state;
                Vec::new()
            }
        }
    }

    /// Does what it is asked to. Nothing of it is under way, and how far it is, is written.
    fn go_on(&mut self) -> Vec<Action> {
        self.tries = Tries::default();
        match self.asked {
            JobState::Running if self.counted => self.to(State::Counting, Action::Count),
            JobState::Running => self.to(State::Beginning, Action::Begin),
            JobState::Paused => self.to(State::Idle, Action::WaitToBeTold),
            JobState::Done | JobState::Failed | JobState::Cancelled => self.to(State::Ended, Action::End),
        }
    }

    /// What there is to do is known.
    fn counted(&mut self, Counted { to_do, there }: Counted) -> Vec<Action> {
        let JobProgress { total, done, left, .. } = &mut self.progress;
        if !self.counted && total.blocks > 0 {
            // What an earlier coordinator did last it may not have written: what is not there any more is done.
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
        // What was left before is tried again.
        self.progress.left_blocks.clear();
        let write = Action::Write(self.progress.clone());
        self.to(State::Saving(to_do), write)
    }

    /// What there is to do is written.
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
            return self.write(None, first_pause());
        }
        self.tries.count(self.progress.done.blocks > done_before, again);
        self.to(State::Counting, Action::Count)
    }

    fn failed(&mut self, error: &Error) -> Vec<Action> {
        self.progress.last_error = error.to_string();
        if error.reaction == Reaction::Retry {
            self.state = State::Pausing;
            return vec![Action::Warn(format!("a job pauses: {error}")), Action::Wait(self.pause.again())];
        }
        let write = self.write(Some(JobState::Failed), first_pause());
        [Action::Error(format!("a job cannot go on: {error}"))].into_iter().chain(write).collect()
    }

    /// Writes how it stands, or how it ended; the next pause if that fails.
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
            // An operator changed the state meanwhile, or the end was written before and the answer was lost. A request that has come since may
            // be newer than the state that was read here; but an ended job stays ended.
            Ok(Written::Refused(now)) => {
                if now.has_ended() || !self.asked_since {
                    self.asked = now;
                }
                self.write(None, first_pause())
            }
            // A coordinator that leads no more is stopped meanwhile.
            Err(error) if matches!(error.reaction, Reaction::Retry | Reaction::Fatal) => {
                let why = Action::Error(format!("a job's progress could not be written, and is written again: {error}"));
                let wait = Action::Wait(pause.again());
                self.state = State::WritingAgain(end, pause);
                vec![why, wait]
            }
            Err(error) => {
                self.state = State::Ended;
                vec![Action::Warn(format!("a job is not there any more: {error}")), Action::End]
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

/// The passes of a job that were made in vain, or nearly so.
#[derive(Debug, Default)]
struct Tries {
    count: u32,
    in_vain: bool,
}

impl Tries {
    fn are_over(&self) -> bool {
        self.count == PASSES_MAX || self.in_vain
    }

    /// A pass has done something, or nothing. What made way for what was done has not been tried: there may be as many such passes as
    /// there is to do.
    fn count(&mut self, has_done: bool, again: Again) {
        self.in_vain = !has_done && again == Again::InVain;
        self.count += u32::from(!(has_done && again == Again::MadeWay));
    }
}

#[cfg(test)]
mod tests;
