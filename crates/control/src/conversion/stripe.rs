//! An agent writes each stripe of a conversion: the one with the most of its data or, if that fails, another one. An agent that is busy or
//! down has not failed: the stripe waits for it without a limit, and the job reports the wait.
//!
//! Events go in, actions come out ([`StripeWrite::on`]); the next event answers the last action.

use super::{
    PAUSE_FIRST, PAUSE_LAST, may_help, same,
    writers::{Writers, near},
};
use crate::{retries::Pause, view::View};
use rand::RngCore;
use std::{collections::BTreeSet, mem, time::Duration};
use weft_types::{Error, NodeId, ObjectName, Party, Reaction, Result, Seq, Span, StripeId, StripeRecord};

/// A stripe to write, and its sources.
#[derive(Debug)]
pub struct Request {
    /// The object.
    pub object: ObjectName,
    /// The new stripe's number.
    pub number: u64,
    /// The object's bytes that it contains.
    pub data: Span,
    /// The stripes that contain them now.
    pub old: Vec<StripeRecord>,
    /// How many times agents may fail.
    pub failures_max: u32,
}

/// The state of the cluster when an event arrives.
pub struct World<'a> {
    /// The nodes.
    pub view: &'a View,
    /// How many stripes each node is writing.
    pub writers: &'a Writers,
    /// Random numbers.
    pub rng: &'a mut dyn RngCore,
}

/// The result of a delegation.
#[derive(Debug)]
pub struct Tried {
    /// The agent's answer, or that it gave none.
    pub told: Result<()>,
    /// Whether it has read any of the data.
    pub has_read: bool,
    /// The new stripe from the metadata, if it has ended. It is looked up in any case: a failed agent's answer may have
    /// been lost, and no agent's answer is trusted.
    pub ended: Result<Option<StripeRecord>>,
    /// The updates in place that the old stripes contain now, if it has ended. They may have been looked up before others.
    pub updated: Vec<(StripeId, Seq)>,
}

/// An event.
#[derive(Debug)]
pub enum Event {
    /// The stripe has its turn.
    Begin,
    /// Answers [`Action::WaitForRoom`]: there is space, or why the stripe must not wait for it.
    HasRoom(Result<()>),
    /// Answers [`Action::Delegate`].
    Tried(Box<Tried>),
    /// Answers [`Action::Wait`].
    Woken,
}

/// An action.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Wait for space and for the stripe's turn; [`Event::HasRoom`] answers.
    WaitForRoom,
    /// Delegate the stripe to a node; [`Event::Tried`] answers.
    Delegate(NodeId),
    /// Avoid a node for a while.
    Suspect(NodeId),
    /// Log that a node did not write it and another node is tried.
    Another {
        /// The node.
        node: NodeId,
        /// Why it did not.
        error: Error,
        /// False if the same was logged before, so that a stripe that waits for days does not repeat it.
        is_news: bool,
    },
    /// Report what it waits for, until the wait ends.
    Tell(String),
    /// Wait for this time; [`Event::Woken`] answers.
    Wait(Duration),
    /// A node has written the stripe, or why it is left out.
    End(Result<NodeId>),
}

/// The state machine of one stripe.
#[derive(Debug)]
pub struct StripeWrite {
    request: Request,
    /// Nodes that were tried in this round.
    tried: BTreeSet<NodeId>,
    is_first_round: bool,
    failures: u32,
    pause: Pause,
    state: State,
}

#[derive(Debug)]
enum State {
    Begin,
    /// Waits for space.
    Waiting,
    Delegated(NodeId),
    Pausing,
    Ended,
}

impl StripeWrite {
    /// For this request.
    pub fn new(request: Request) -> Self {
        let (tried, pause, state) = (BTreeSet::new(), Pause::new(PAUSE_FIRST, PAUSE_LAST), State::Begin);
        Self { request, tried, is_first_round: true, failures: 0, pause, state }
    }

    /// Handles an event and returns the next actions. An event that answers no action is ignored.
    pub fn on(&mut self, event: Event, world: &mut World<'_>) -> Vec<Action> {
        match (mem::replace(&mut self.state, State::Ended), event) {
            (State::Begin, Event::Begin) | (State::Pausing, Event::Woken) => self.wait_for_room(),
            (State::Waiting, Event::HasRoom(Ok(()))) => self.choose(world),
            (State::Waiting, Event::HasRoom(Err(error))) => vec![Action::End(Err(error))],
            (State::Delegated(node), Event::Tried(tried)) => self.tried(node, *tried, world.view),
            (state, _) => {
                self.state = state;
                Vec::new()
            }
        }
    }

    fn wait_for_room(&mut self) -> Vec<Action> {
        self.state = State::Waiting;
        vec![Action::WaitForRoom]
    }

    fn wait(&mut self) -> Action {
        self.state = State::Pausing;
        Action::Wait(self.pause.again())
    }

    fn choose(&mut self, World { view, writers, rng }: &mut World<'_>) -> Vec<Action> {
        if view.up_count() == 0 {
            return vec![Action::End(Err(Error::retry("no node that could write the stripe is up")))];
        }
        let near = near(&self.request.old, self.request.data, view);
        match writers.choose(&near, &self.tried, view, *rng) {
            Some(node) => {
                self.state = State::Delegated(node);
                vec![Action::Delegate(node)]
            }
            // All other nodes were tried or are fully busy.
            None => {
                self.tried.clear();
                self.is_first_round = false;
                vec![self.wait()]
            }
        }
    }

    fn tried(&mut self, node: NodeId, Tried { told, has_read, ended, updated }: Tried, view: &View) -> Vec<Action> {
        match ended {
            Err(error) => return vec![Action::End(Err(error))],
            Ok(Some(new)) => return self.ended(node, &new, &updated),
            Ok(None) => {}
        }
        let error = told.err().unwrap_or_else(|| Error::replan("the agent reported that the stripe has ended, but it has not"));
        let has_failed = error.reaction != Reaction::Retry;
        self.failures += u32::from(has_failed);
        if !may_help(&error) || self.failures > self.request.failures_max {
            return vec![Action::End(Err(error))];
        }
        self.tried.insert(node);
        let mut actions = vec![Action::Another { node, error: error.clone(), is_news: has_failed || self.is_first_round }];
        if !has_failed {
            let (node, Request { number, object, .. }) = (view.name(node), &self.request);
            let why = Error { object: None, ..error };
            actions.push(Action::Tell(format!("{node} to write stripe {number} of {object}: {why}")));
        }
        // An agent that refused at once has cost nothing; another agent would have to read everything again.
        if !has_failed && has_read {
            actions.push(self.wait());
        } else {
            actions.extend(self.wait_for_room());
        }
        actions
    }

    /// The stripe has ended. Compares its checksums with those of the old blocks before these are dropped, because the
    /// agent may be wrong.
    fn ended(&self, node: NodeId, new: &StripeRecord, updated: &[(StripeId, Seq)]) -> Vec<Action> {
        let was_updated = |old: &StripeRecord| updated.iter().any(|(id, seq)| *id == old.id && *seq != old.seq);
        match same::differing(&self.request.old, new) {
            None => vec![Action::End(Ok(node))],
            // It would not be committed anyway: other stripes may have been read before.
            Some(_) if self.request.old.iter().any(was_updated) => {
                let error = Error::replan("it was updated in place during its conversion: the conversion starts again");
                vec![Action::End(Err(error))]
            }
            Some(Span { start, end }) => {
                let error =
                    Error::corrupt(format!("bytes {start}..{end} of the new stripe have a different checksum than before"));
                vec![Action::Suspect(node), Action::End(Err(error.party(Party::Node(node))))]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{stripe, view};
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::StdRng};
    use weft_types::{Layout, StripeLayout};

    const LEN: u64 = 1 << 20;

    /// A stripe of 1 MiB on nodes 1 to 3, each of which has all of it.
    fn old() -> StripeRecord {
        let layout = StripeLayout { layout: Layout::new(LEN, LEN, 1).unwrap(), k: 1, m: 2, data_len: LEN };
        let mut stripe = StripeRecord { layout, checksums: vec![vec![7]; 3], ..stripe() };
        stripe.blocks.retain(|index, _| *index < 3);
        stripe
    }

    fn request() -> Request {
        let object = ObjectName { bucket: "b".into(), key: "k".into() };
        Request { object, number: 5, data: Span::new(0, LEN), old: vec![old()], failures_max: 2 }
    }

    struct Played {
        write: StripeWrite,
        view: View,
        writers: Writers,
        rng: StdRng,
    }

    impl Played {
        fn new(view: View) -> Self {
            let (write, writers) = (StripeWrite::new(request()), Writers::new(2));
            let mut played = Self { write, view, writers, rng: StdRng::seed_from_u64(3) };
            assert_eq!(played.on(Event::Begin), [Action::WaitForRoom]);
            played
        }

        fn on(&mut self, event: Event) -> Vec<Action> {
            let Self { write, view, writers, rng } = self;
            write.on(event, &mut World { view, writers, rng })
        }

        /// The node that is asked once there is space.
        fn asked(&mut self) -> u32 {
            match self.on(Event::HasRoom(Ok(()))).as_slice() {
                [Action::Delegate(node)] => node.0,
                other => panic!("{other:?}"),
            }
        }

        /// The node did not write it.
        fn failed(&mut self, error: Error, has_read: bool) -> Vec<Action> {
            self.on(Event::Tried(Box::new(Tried { told: Err(error), has_read, ended: Ok(None), updated: Vec::new() })))
        }
    }

    fn busy() -> Error {
        Error::retry("the node is busy")
    }

    #[test]
    fn the_nearest_agent_writes_the_stripe_and_its_content_is_compared() {
        let mut played = Played::new(view(6, &[1, 2]));
        assert_eq!(played.asked(), 3);
        let tried_at = |ended, seq| {
            let told = Err(Error::replan("the answer was lost"));
            Event::Tried(Box::new(Tried { told, has_read: true, ended, updated: vec![(old().id, seq)] }))
        };
        let tried = |ended| tried_at(ended, old().seq);
        assert_eq!(played.on(tried(Ok(Some(old())))), [Action::End(Ok(NodeId(3)))]);
        assert_eq!(played.on(tried(Ok(Some(old())))), []);
        let mut played = Played::new(view(6, &[1, 2]));
        played.asked();
        let actions = played.on(tried(Ok(Some(StripeRecord { checksums: vec![vec![8]; 3], ..old() }))));
        assert_eq!(actions[0], Action::Suspect(NodeId(3)));
        assert!(matches!(&actions[1], Action::End(Err(error)) if error.reaction == Reaction::Corrupt), "{actions:?}");
        // It was looked up just before it was updated in place.
        let mut played = Played::new(view(6, &[1, 2]));
        played.asked();
        let other = Ok(Some(StripeRecord { checksums: vec![vec![8]; 3], ..old() }));
        let actions = played.on(tried_at(other, Seq::new(2, vec![1])));
        let [Action::End(Err(error))] = actions.as_slice() else { panic!("no node is to blame: {actions:?}") };
        assert!(error.reaction == Reaction::Replan && error.message.contains("updated in place"), "{error}");
        let mut played = Played::new(view(6, &[]));
        played.asked();
        assert_eq!(played.on(tried(Err(busy()))), [Action::End(Err(busy()))], "the metadata is unavailable");
    }

    #[test]
    fn busy_agents_are_tried_in_turn_and_failed_ones_a_limited_number_of_times() {
        let mut played = Played::new(view(4, &[]));
        let mut nodes = Vec::new();
        for _ in 0..4 {
            nodes.push(played.asked());
            let actions = played.failed(busy(), false);
            let [Action::Another { is_news: true, .. }, Action::Tell(what), Action::WaitForRoom] = actions.as_slice() else {
                panic!("{actions:?}")
            };
            assert!(what.ends_with("to write stripe 5 of b/k: the node is busy"), "{what}");
        }
        assert_eq!((nodes[3], nodes.iter().collect::<BTreeSet<_>>().len()), (4, 4), "the node without its data comes last");
        assert_eq!(played.on(Event::HasRoom(Ok(()))), [Action::Wait(PAUSE_FIRST)], "all were asked");
        assert_eq!(played.on(Event::Woken), [Action::WaitForRoom]);
        played.asked();
        let actions = played.failed(busy(), true);
        assert!(matches!(actions[0], Action::Another { is_news: false, .. }));
        assert_eq!(actions[2], Action::Wait(2 * PAUSE_FIRST), "another node would read all of it again");
        played.on(Event::Woken);
        for _ in 0..2 {
            played.asked();
            let actions = played.failed(Error::replan("the agent gave no answer"), true);
            assert!(matches!(actions.as_slice(), [Action::Another { is_news: true, .. }, Action::WaitForRoom]), "{actions:?}");
        }
        let Action::Delegate(_) = played.on(Event::HasRoom(Ok(()))).remove(0) else { panic!("one node is left") };
        assert_eq!(played.failed(Error::replan("again"), true), [Action::End(Err(Error::replan("again")))]);
    }

    #[test]
    fn an_error_that_no_other_agent_can_avoid_ends_the_stripe() {
        let gone = Error::not_found("there is no such put");
        let mut played = Played::new(view(4, &[]));
        played.asked();
        assert_eq!(played.failed(gone.clone(), false), [Action::End(Err(gone))]);
        let mut played = Played::new(view(4, &[1, 2, 3, 4]));
        let actions = played.on(Event::HasRoom(Ok(())));
        assert!(matches!(actions.as_slice(), [Action::End(Err(error))] if error.reaction == Reaction::Retry), "{actions:?}");
        let mut played = Played::new(view(4, &[]));
        assert_eq!(played.on(Event::HasRoom(Err(busy()))), [Action::End(Err(busy()))]);
        let mut played = Played::new(view(4, &[]));
        played.asked();
        let lied = Event::Tried(Box::new(Tried { told: Ok(()), has_read: true, ended: Ok(None), updated: Vec::new() }));
        assert!(matches!(&played.on(lied)[0], Action::Another { error, .. } if error.message.contains("but it has not")));
    }

    proptest! {
        #[test]
        fn for_any_answers_no_node_is_tried_twice_in_a_round_and_failures_end_the_stripe(
            steps in proptest::collection::vec((0..5u8, any::<bool>(), 0..16u32), 0..200),
        ) {
            let mut played = Played::new(view(4, &[]));
            let (mut asked, mut round, mut failures) = (Action::WaitForRoom, BTreeSet::new(), 0);
            for (kind, has_read, down) in steps {
                played.view.nodes.values_mut().for_each(|node| node.up = node.id.0 == 1 || down >> (node.id.0 - 1) & 1 == 0);
                let event = match &asked {
                    Action::End(_) => break,
                    Action::WaitForRoom => Event::HasRoom(Ok(())),
                    Action::Wait(pause) => {
                        prop_assert!(*pause >= PAUSE_FIRST && *pause <= PAUSE_LAST);
                        Event::Woken
                    }
                    _ => {
                        failures += u32::from(kind == 0);
                        let told = match kind {
                            0 => Err(Error::replan("the agent failed")),
                            1 => Err(Error::unavailable("too many blocks are lost")),
                            _ => Err(busy()),
                        };
                        Event::Tried(Box::new(Tried { told, has_read, ended: Ok(None), updated: Vec::new() }))
                    }
                };
                let is_answered = matches!(event, Event::HasRoom(_));
                prop_assert_eq!(played.on(Event::Begin), [], "{:?} is expected", asked);
                asked = played.on(event).pop().expect("an action, or the end");
                match &asked {
                    Action::Delegate(node) => prop_assert!(round.insert(*node), "{node} was asked twice"),
                    Action::Wait(_) if is_answered => round.clear(),
                    Action::End(ended) => prop_assert!(ended.is_err() && (failures == 3 || kind == 1)),
                    _ => {}
                }
            }
            prop_assert!(failures <= 3);
        }
    }
}
