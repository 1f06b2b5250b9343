//! Opens a plan at all its agents or at none. An agent without room refuses at once; then all agents release their tasks, and the
//! coordinator tries again a little later. So plans that cross cannot deadlock.

use rand::{Rng, RngCore};
use std::{collections::BTreeMap, time::Duration};
use weft_types::{Error, NodeId, Reaction, Result};

/// The first pause before busy agents are tried again; each next pause is twice as long, up to [`BACKOFF_LAST_MS`].
const BACKOFF_FIRST_MS: u64 = 10;
/// The longest pause.
pub const BACKOFF_LAST_MS: u64 = 1_000;

/// An event.
#[derive(Debug)]
pub enum Event {
    /// The opening starts.
    Begin,
    /// Answers [`Action::Ask`]: each agent's answer, or why there is none. [`Reaction::Retry`]: the agent is busy.
    Answered(BTreeMap<NodeId, Result<()>>),
    /// Answers [`Action::LetGo`].
    LetGo,
    /// Answers [`Action::Wait`]: the pause is over.
    Woken,
}

/// An action.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Open the tasks at all agents; [`Event::Answered`] answers.
    Ask,
    /// Cancel tasks; [`Event::LetGo`] answers.
    LetGo {
        /// Agents with an open task: wait for their answers.
        open: Vec<NodeId>,
        /// Agents that may have an open task, because they did not answer: tell them, but do not wait. A busy agent has
        /// no open task.
        unknown: Vec<NodeId>,
    },
    /// Wake the opening after this pause; [`Event::Woken`] answers.
    Wait(Duration),
    /// All agents have opened their tasks, or none has.
    End(Result<()>),
}

/// The state machine of a plan that is opened.
#[derive(Debug)]
pub struct Opening {
    attempts: u32,
    attempts_max: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Begin,
    Asking,
    /// Waits for the release of open tasks, because of this error.
    LettingGo(Error),
    Waiting,
    Ended,
}

impl Opening {
    /// With this many attempts.
    pub fn new(attempts_max: u32) -> Self {
        Self { attempts: 0, attempts_max, state: State::Begin }
    }

    /// Handles an event and returns the next action; `None` if the event answers no action.
    pub fn on(&mut self, event: Event, rng: &mut dyn RngCore) -> Option<Action> {
        match (std::mem::replace(&mut self.state, State::Ended), event) {
            (State::Begin, Event::Begin) | (State::Waiting, Event::Woken) => {
                self.state = State::Asking;
                Some(Action::Ask)
            }
            (State::Asking, Event::Answered(answers)) => Some(self.answered(&answers)),
            (State::LettingGo(error), Event::LetGo) => Some(self.let_go(error, rng)),
            (state, _) => {
                self.state = state;
                None
            }
        }
    }

    fn answered(&mut self, answers: &BTreeMap<NodeId, Result<()>>) -> Action {
        // If another plan is needed, a retry does not help.
        let errors = || answers.values().filter_map(|answer| answer.as_ref().err());
        let worst = errors().find(|error| error.reaction != Reaction::Retry).or(errors().next());
        let Some(worst) = worst else { return Action::End(Ok(())) };
        self.state = State::LettingGo(worst.clone());
        let nodes =
            |are: fn(&Result<()>) -> bool| answers.iter().filter(|(_, answer)| are(answer)).map(|(node, _)| *node).collect();
        let is_unknown = |answer: &Result<()>| answer.as_ref().is_err_and(|error| error.reaction != Reaction::Retry);
        Action::LetGo { open: nodes(Result::is_ok), unknown: nodes(is_unknown) }
    }

    fn let_go(&mut self, error: Error, rng: &mut dyn RngCore) -> Action {
        self.attempts += 1;
        if error.reaction != Reaction::Retry || self.attempts >= self.attempts_max {
            return Action::End(Err(error));
        }
        self.state = State::Waiting;
        let longest = BACKOFF_FIRST_MS.saturating_mul(1 << self.attempts.min(16)).min(BACKOFF_LAST_MS);
        Action::Wait(Duration::from_millis(rng.random_range(longest / 2..=longest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::StdRng};

    fn answers(of: &[(u32, Result<()>)]) -> Event {
        Event::Answered(of.iter().map(|(id, answer)| (NodeId(*id), answer.clone())).collect())
    }

    fn on(opening: &mut Opening, event: Event) -> Action {
        opening.on(event, &mut StdRng::seed_from_u64(1)).expect("the event is an answer")
    }

    fn busy() -> Result<()> {
        Err(Error::retry("no room"))
    }

    fn let_go(open: &[u32], unknown: &[u32]) -> Action {
        let nodes = |ids: &[u32]| ids.iter().copied().map(NodeId).collect();
        Action::LetGo { open: nodes(open), unknown: nodes(unknown) }
    }

    #[test]
    fn a_plan_is_open_when_all_have_opened_it() {
        let mut opening = Opening::new(3);
        assert_eq!(on(&mut opening, Event::Begin), Action::Ask);
        assert_eq!(on(&mut opening, answers(&[(1, Ok(())), (2, Ok(()))])), Action::End(Ok(())));
    }

    #[test]
    fn while_one_agent_is_busy_all_release_and_retries_slow_down() {
        let mut opening = Opening::new(4);
        on(&mut opening, Event::Begin);
        let mut pauses = Vec::new();
        for _ in 0..3 {
            assert_eq!(on(&mut opening, answers(&[(1, Ok(())), (2, busy()), (3, Ok(()))])), let_go(&[1, 3], &[]));
            let Action::Wait(pause) = on(&mut opening, Event::LetGo) else { panic!("a pause is expected") };
            pauses.push(pause.as_millis());
            assert_eq!(on(&mut opening, Event::Woken), Action::Ask);
        }
        let within = pauses.iter().zip([10..=20, 20..=40, 40..=80]).all(|(pause, range)| range.contains(pause));
        assert!(within, "{pauses:?}");
        on(&mut opening, answers(&[(1, Ok(())), (2, busy())]));
        assert_eq!(on(&mut opening, Event::LetGo), Action::End(busy()), "the attempts are used up");
    }

    #[test]
    fn if_another_plan_is_needed_there_is_no_retry() {
        let mut opening = Opening::new(9);
        on(&mut opening, Event::Begin);
        let away = Err(Error::replan("no answer in time"));
        assert_eq!(on(&mut opening, answers(&[(1, busy()), (2, away.clone()), (3, Ok(()))])), let_go(&[3], &[2]));
        assert_eq!(on(&mut opening, Event::LetGo), Action::End(away));
    }

    proptest! {
        #[test]
        fn at_its_end_all_are_open_or_none_is(
            attempts_max in 1..6u32,
            rounds in proptest::collection::vec(proptest::collection::vec(0..3u8, 1..5), 1..10),
            strays in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let (mut opening, mut rng) = (Opening::new(attempts_max), StdRng::seed_from_u64(1));
            let (mut open, mut unknown, mut told_late): (Vec<NodeId>, usize, bool) = (Vec::new(), 0, false);
            let (mut action, mut rounds, mut strays) = (opening.on(Event::Begin, &mut rng), rounds.into_iter().cycle(), strays.into_iter());
            let nodes = 4;
            for _ in 0..40 {
                let asked = action.take().expect("an action");
                if strays.next() == Some(true) {
                    let stray = if matches!(asked, Action::Wait(_)) { Event::LetGo } else { Event::Woken };
                    prop_assert_eq!(opening.on(stray, &mut rng), None);
                }
                let event = match asked {
                    Action::Ask => {
                        let kinds = rounds.next().unwrap_or_default();
                        let answer = |at: u32| match kinds.get(at as usize) {
                            Some(1) => busy(),
                            Some(2) => Err(Error::replan("no answer in time")),
                            _ => Ok(()),
                        };
                        let answers: BTreeMap<NodeId, Result<()>> = (0..nodes).map(|at| (NodeId(at), answer(at))).collect();
                        unknown = answers.iter().filter(|(_, answer)| answer.as_ref().is_err_and(|it| it.reaction != Reaction::Retry)).count();
                        open = answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(node, _)| *node).collect();
                        Event::Answered(answers)
                    }
                    Action::LetGo { open: held, unknown: told } => {
                        prop_assert_eq!((&held, told.len()), (&open, unknown));
                        told_late = !told.is_empty();
                        open.clear();
                        Event::LetGo
                    }
                    Action::Wait(pause) => {
                        prop_assert!(!told_late, "a late message could end the next task");
                        prop_assert!(pause <= Duration::from_millis(BACKOFF_LAST_MS));
                        Event::Woken
                    }
                    Action::End(result) => {
                        prop_assert_eq!(open.len(), if result.is_ok() { nodes as usize } else { 0 });
                        return Ok(());
                    }
                };
                action = opening.on(event, &mut rng);
            }
            prop_assert!(false, "it does not end");
        }
    }
}
