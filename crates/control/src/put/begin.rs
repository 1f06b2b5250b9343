//! Starts a stripe of a put: chooses homes, allocates blocks, starts the plan. If a node cannot take part, it chooses
//! other homes.

use super::{Request, SentStripe, homes::Site};
use crate::{
    options::WriteOptions,
    placement::Placed,
    view::{DiskView, View},
};
use std::collections::BTreeSet;
use weft_types::{Cause, Error, Home, NodeId, Party, Reaction, Result, StripeLayout, StripeRecord};

/// An event.
#[derive(Debug)]
pub enum Event {
    /// The stripe starts.
    Begin,
    /// Answers [`Action::Allocate`].
    Allocated(Result<Box<StripeRecord>>),
    /// Answers [`Action::Send`]: all agents run their tasks, or why not.
    Started(Result<()>),
}

/// An action. At most the last action of an event needs an answer, which is the next event.
#[derive(Debug)]
pub enum Action {
    /// Log a warning.
    Warn(String),
    /// Send this put's stripes by the simplest scheme from now on: a node has too little memory for another.
    Simplest(Error),
    /// Allocate the blocks of the stripe and of those allocated with it; [`Event::Allocated`] answers.
    Allocate(Vec<Placed>),
    /// Make and start the plan with which the writer sends the stripe; [`Event::Started`] answers.
    Send(Box<SentStripe>),
    /// The last plan runs, or the stripe failed.
    End(Result<()>),
}

/// The state machine of a stripe that starts.
#[derive(Debug)]
pub struct StripeBegin {
    request: Request,
    layout: StripeLayout,
    /// The following stripes that are allocated with it.
    following: Vec<StripeLayout>,
    options: WriteOptions,
    /// Set if it was allocated with an earlier stripe.
    ahead: Option<StripeRecord>,
    /// Nodes that could not take part.
    avoid: BTreeSet<NodeId>,
    /// Whether a disk of these nodes was full.
    disk_was_full: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Allocating,
    Starting,
    Ended,
}

impl StripeBegin {
    /// A stripe of this layout.
    pub fn new(request: Request, layout: StripeLayout, options: WriteOptions) -> Self {
        let (ahead, following, avoid) = (None, Vec::new(), BTreeSet::new());
        Self { request, layout, following, options, ahead, avoid, disk_was_full: false, state: State::Begin }
    }

    /// Uses an earlier allocation: the stripe is sent to these homes if their nodes are still good.
    #[must_use]
    pub fn allocated(self, ahead: Option<StripeRecord>) -> Self {
        Self { ahead, ..self }
    }

    /// Allocates following stripes with this one ([`Ahead::following`](super::Ahead::following)).
    #[must_use]
    pub fn with_following(self, following: Vec<StripeLayout>) -> Self {
        Self { following, ..self }
    }

    /// The stripe's layout.
    pub fn layout(&self) -> StripeLayout {
        self.layout
    }

    /// Whether this event usually leads to a choice of homes, which takes long in large clusters.
    pub fn places(&self, event: &Event) -> bool {
        match event {
            Event::Begin => self.ahead.is_none(),
            Event::Allocated(allocated) => allocated.is_err(),
            Event::Started(started) => started.is_err(),
        }
    }

    /// Handles an event and returns the next actions. An event that answers no action is ignored.
    pub fn on(&mut self, event: Event, site: &mut Site<'_>) -> Vec<Action> {
        match (self.state, event) {
            (State::Begin, Event::Begin) => self.begin(site),
            (State::Allocating, Event::Allocated(Ok(stripe))) => self.send(*stripe),
            (State::Starting, Event::Started(Ok(()))) => self.end(Ok(())),
            (State::Allocating, Event::Allocated(Err(error))) | (State::Starting, Event::Started(Err(error))) => {
                self.failed(error, site)
            }
            _ => Vec::new(),
        }
    }

    fn begin(&mut self, site: &mut Site<'_>) -> Vec<Action> {
        match self.ahead.take() {
            Some(stripe) if stripe.layout == self.layout && self.is_free(&stripe, site.view) => self.send(stripe),
            _ => self.place(Vec::new(), site),
        }
    }

    /// Whether all nodes of a stripe can be expected to take their blocks. Their space was counted when they were
    /// allocated.
    fn is_free(&self, stripe: &StripeRecord, view: &View) -> bool {
        let has_room = |disk: &DiskView| disk.takes_blocks() && disk.free_bytes >= self.request.disk_reserve_bytes;
        let takes = |home: Home| {
            let node = view.node(home.node).filter(|node| node.up && !node.is_suspect());
            node.is_some_and(|node| node.disks.iter().any(|disk| disk.number == home.disk && has_room(disk)))
        };
        stripe.all().all(|(_, placed)| takes(placed.home))
    }

    fn place(&mut self, mut actions: Vec<Action>, site: &mut Site<'_>) -> Vec<Action> {
        // If the stripe gets other homes later, the stripes allocated with it keep theirs.
        let layouts: Vec<StripeLayout> = std::iter::once(self.layout).chain(self.following.drain(..)).collect();
        match self.request.homes_of(&layouts, &self.options, &self.avoid, site) {
            Ok(placed) => {
                self.state = State::Allocating;
                actions.push(Action::Allocate(placed));
            }
            Err(error) => actions.extend(self.end(Err(error.for_lack_of_space(self.disk_was_full)))),
        }
        actions
    }

    fn send(&mut self, stripe: StripeRecord) -> Vec<Action> {
        self.state = State::Starting;
        vec![Action::Send(Box::new(SentStripe::new(stripe, self.options.clone())))]
    }

    fn failed(&mut self, error: Error, site: &mut Site<'_>) -> Vec<Action> {
        match (error.reaction, error.party) {
            // A receiver that computes its block from many others needs more memory than some node has.
            (Reaction::InvalidInput, _) if self.options.is_left_open() && self.state == State::Starting => {
                self.options = self.options.clone().by_the_simplest();
                self.place(vec![Action::Simplest(error)], site)
            }
            // A node could not be reached: the stripe goes to other nodes, as a new stripe.
            (Reaction::Replan, Some(Party::Node(node))) if self.avoid.len() < self.request.resumes_max as usize => {
                self.avoid.insert(node);
                self.disk_was_full |= error.cause == Some(Cause::NoSpace);
                self.place(vec![Action::Warn(format!("choosing other nodes for a stripe: {error}"))], site)
            }
            _ => self.end(Err(error)),
        }
    }

    fn end(&mut self, result: Result<()>) -> Vec<Action> {
        self.state = State::Ended;
        vec![Action::End(result)]
    }
}

/// The same error with a reaction that forbids an identical retry.
pub fn not_again(error: Error) -> Error {
    let reaction = if error.reaction == Reaction::Retry { Reaction::Replan } else { error.reaction };
    Error { reaction, ..error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        capacity::KeptFree,
        fixtures::{self, home, stripe, view},
        options::RepairOptions,
    };
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::StdRng};
    use weft_plan::Network;
    use weft_types::{AutoSize, FailureDomain, ObjectName, RebuildReserve};

    fn begin(scheme: &str, kept_free: Option<KeptFree>) -> StripeBegin {
        let request = Request {
            upload: weft_types::UploadId(3),
            code: weft_codes::parse("rs(4,2)").unwrap(),
            object: ObjectName { bucket: "b".into(), key: "k".into() },
            failure_domain: FailureDomain::Node,
            replicas: 1,
            missing_max: 0,
            kept_free,
            repair: RepairOptions::new("conventional".into(), AutoSize::bytes(16 << 10)),
            resumes_max: 2,
            disk_reserve_bytes: 0,
            rebuild_reserve: RebuildReserve::Off,
            long_wait_ms: 2_500,
        };
        StripeBegin::new(request, stripe().layout, options(scheme))
    }

    fn options(scheme: &str) -> WriteOptions {
        WriteOptions::new(scheme.into(), 16 << 10, false).unwrap()
    }

    fn on(machine: &mut StripeBegin, event: Event, view: &View) -> Vec<Action> {
        let mut rng = StdRng::seed_from_u64(1);
        let network = |_| Network::uniform(1e9);
        let (places, was_ahead) = (machine.places(&event), machine.ahead.is_some());
        let actions = machine.on(event, &mut Site { view, coding_bytes_per_s: &|_| 0.0, network: &network, rng: &mut rng });
        let allocates = matches!(actions.last(), Some(Action::Allocate(_)));
        assert!(places || was_ahead || !allocates, "homes are chosen only as predicted by `places`");
        actions
    }

    /// The stripe at the homes to allocate.
    fn allocated(actions: &mut Vec<Action>) -> Event {
        let Some(Action::Allocate(mut placed)) = actions.pop() else { panic!("an allocation is expected") };
        let mut stripe = stripe();
        stripe.blocks.values_mut().zip(placed.remove(0).homes).for_each(|(block, home)| block.home = home);
        Event::Allocated(Ok(Box::new(stripe)))
    }

    fn nodes(actions: &[Action]) -> BTreeSet<u32> {
        match actions.last() {
            Some(Action::Send(sent)) => sent.brings().map(|(_, home)| home.node.0).collect(),
            other => panic!("expected a send, got {other:?}"),
        }
    }

    fn away(node: u32) -> Event {
        Event::Started(Err(Error::replan("no answer in time").party(Party::Node(NodeId(node)))))
    }

    /// The shell's answer to any action.
    #[derive(Debug, Clone)]
    enum Answer {
        Well,
        Failed(Reaction),
        /// One of the stripe's nodes could not be reached.
        Away(usize),
        /// An answer to no action.
        Stray,
    }

    fn answers() -> impl Strategy<Value = Vec<Answer>> {
        let reaction =
            prop::sample::select(vec![Reaction::Retry, Reaction::Replan, Reaction::InvalidInput, Reaction::Unavailable]);
        let answer = prop_oneof![
            3 => Just(Answer::Well),
            1 => reaction.prop_map(Answer::Failed),
            3 => (0usize..6).prop_map(Answer::Away),
            1 => Just(Answer::Stray),
        ];
        prop::collection::vec(answer, 0..24)
    }

    proptest! {
        #[test]
        fn for_any_answers_it_ends_and_unreachable_nodes_get_nothing(
            answers in answers(),
            auto: bool,
            ahead: bool,
            nodes in 6u32..14,
        ) {
            let scheme = if auto { "auto" } else { "direct" };
            let mut machine = begin(scheme, None).allocated(ahead.then(stripe)).with_following(vec![stripe().layout]);
            let (view, mut away, mut answers) = (view(nodes, &[]), BTreeSet::new(), answers.into_iter());
            let (mut sent, mut sends, mut simplest) = (BTreeSet::new(), 0, 0);
            let mut actions = on(&mut machine, Event::Begin, &view);
            loop {
                let asking = actions.pop().expect("an action, or the end");
                for action in &actions {
                    prop_assert!(matches!(action, Action::Warn(_) | Action::Simplest(_)), "only the last action asks for an answer: {action:?}");
                    simplest += u32::from(matches!(action, Action::Simplest(_)));
                }
                if let Action::End(result) = asking {
                    prop_assert!(result.is_err() || sends > 0, "nothing was sent");
                    break;
                }
                if let Action::Send(stripe) = &asking {
                    sent = stripe.brings().map(|(_, home)| home.node.0).collect();
                    prop_assert!(sent.len() == 6 && sent.is_disjoint(&away), "{sent:?}, without {away:?}");
                    sends += 1;
                }
                let is_send = matches!(asking, Action::Send(_));
                let answer = loop {
                    match answers.next().unwrap_or(Answer::Well) {
                        Answer::Stray => {
                            let stray = if is_send { Event::Allocated(Ok(Box::new(stripe()))) } else { Event::Started(Ok(())) };
                            prop_assert!(on(&mut machine, stray, &view).is_empty());
                            prop_assert!(on(&mut machine, Event::Begin, &view).is_empty());
                        }
                        answer => break answer,
                    }
                };
                let event = match (answer, is_send) {
                    (Answer::Away(at), true) => {
                        let node = *sent.iter().nth(at).unwrap();
                        away.insert(node);
                        self::away(node)
                    }
                    (Answer::Failed(reaction), true) => Event::Started(Err(Error { reaction, ..Error::replan("no") })),
                    (Answer::Failed(reaction), false) => Event::Allocated(Err(Error { reaction, ..Error::replan("no") })),
                    (_, true) => Event::Started(Ok(())),
                    (_, false) => {
                        actions.push(asking);
                        allocated(&mut actions)
                    }
                };
                actions = on(&mut machine, event, &view);
            }
            // As many nodes may be away as resends are allowed; the scheme changes once.
            prop_assert!(sends <= 2 + 1 + u32::from(auto) && simplest <= u32::from(auto), "{sends} times, {simplest}");
            prop_assert!(on(&mut machine, Event::Started(Ok(())), &view).is_empty(), "it has ended");
        }
    }

    #[test]
    fn a_stripe_is_placed_allocated_and_sent() {
        let (mut machine, view) = (begin("direct", None), view(8, &[2]));
        let mut actions = on(&mut machine, Event::Begin, &view);
        assert!(on(&mut machine, Event::Started(Ok(())), &view).is_empty(), "nothing was started");
        let sending = on(&mut machine, allocated(&mut actions), &view);
        assert!(nodes(&sending).len() == 6 && !nodes(&sending).contains(&2));
        let ended = on(&mut machine, Event::Started(Ok(())), &view);
        assert!(matches!(ended[..], [Action::End(Ok(()))]));
        assert!(on(&mut machine, Event::Begin, &view).is_empty(), "it has ended");
    }

    #[test]
    fn unreachable_nodes_get_no_block_and_too_many_end_the_stripe() {
        let (mut machine, view) = (begin("direct", None), view(12, &[]));
        let mut actions = on(&mut machine, Event::Begin, &view);
        let mut failed = BTreeSet::new();
        for _ in 0..2 {
            let sending = on(&mut machine, allocated(&mut actions), &view);
            assert!(nodes(&sending).is_disjoint(&failed));
            let node = *nodes(&sending).first().unwrap();
            failed.insert(node);
            actions = on(&mut machine, away(node), &view);
            assert!(matches!(&actions[0], Action::Warn(warning) if warning.contains("choosing other nodes")));
        }
        let sending = on(&mut machine, allocated(&mut actions), &view);
        assert!(nodes(&sending).is_disjoint(&failed));
        let ended = on(&mut machine, away(9), &view);
        assert!(matches!(&ended[..], [Action::End(Err(error))] if error.message == "no answer in time"));
    }

    #[test]
    fn a_scheme_that_needs_too_much_memory_is_replaced_by_the_simplest_once() {
        let (mut machine, view) = (begin("auto", None), view(8, &[]));
        let too_small = || Event::Started(Err(Error::invalid("its budget is too small")));
        let mut actions = on(&mut machine, Event::Begin, &view);
        on(&mut machine, allocated(&mut actions), &view);
        let mut actions = on(&mut machine, too_small(), &view);
        let again = allocated(&mut actions);
        assert!(matches!(actions[..], [Action::Simplest(_)]));
        let sending = on(&mut machine, again, &view);
        assert!(matches!(&sending[..], [Action::Send(sent)] if sent.options.scheme == "direct"));
        assert!(matches!(on(&mut machine, too_small(), &view)[..], [Action::End(Err(_))]));
    }

    #[test]
    fn a_stripe_that_was_allocated_ahead_is_sent_at_once_unless_a_node_of_it_is_down() {
        let ahead = || begin("direct", None).allocated(Some(stripe())).with_following(vec![stripe().layout; 2]);
        let sending = on(&mut ahead(), Event::Begin, &view(12, &[]));
        assert_eq!(nodes(&sending), (1..=6).collect());
        let (mut machine, view) = (ahead(), view(12, &[3]));
        let mut actions = on(&mut machine, Event::Begin, &view);
        let Some(Action::Allocate(placed)) = actions.last() else { panic!("other homes are expected: {actions:?}") };
        let given = |stripe: usize| placed[stripe].homes.iter().map(|home| home.node.0).collect::<BTreeSet<u32>>();
        assert_eq!(placed.len(), 3, "and the following stripes get theirs");
        assert_eq!(given(0).union(&given(1)).count(), 11, "each on nodes with fewer of these blocks");
        let sending = on(&mut machine, allocated(&mut actions), &view);
        let node = *nodes(&sending).first().unwrap();
        let actions = on(&mut machine, away(node), &view);
        assert!(matches!(&actions[..], [_, Action::Allocate(placed)] if placed.len() == 1), "the others keep theirs");
    }

    #[test]
    fn stripes_allocated_together_share_the_space() {
        let (mut view, reserve) = (view(6, &[]), 1 << 20);
        let room = |blocks: u64| reserve + blocks * fixtures::BLOCK_LEN;
        view.nodes.values_mut().for_each(|node| node.disks[0].free_bytes = room(9));
        view.nodes.get_mut(&NodeId(3)).unwrap().disks[0].free_bytes = room(2) + 7;
        let request = Request { disk_reserve_bytes: reserve, ..begin("direct", None).request };
        let machine = |layouts| {
            StripeBegin::new(request.clone(), stripe().layout, options("direct")).with_following(vec![stripe().layout; layouts])
        };
        let actions = on(&mut machine(4), Event::Begin, &view);
        assert!(matches!(&actions[..], [Action::Allocate(placed)] if placed.len() == 2), "node 3 has room for two: {actions:?}");
        // Blocks that were allocated ahead are already counted; a disk that filled up since takes nothing.
        let mut left = view.clone();
        left.take_space(&(1..=6).map(home).collect::<Vec<_>>(), 2 * fixtures::BLOCK_LEN);
        let sent = on(&mut machine(0).allocated(Some(stripe())), Event::Begin, &left);
        assert!(matches!(&sent[..], [Action::Send(_)]), "{sent:?}");
        left.take_space(&[home(3)], 8);
        let ended = on(&mut machine(0).allocated(Some(stripe())), Event::Begin, &left);
        assert!(matches!(&ended[..], [Action::End(Err(error))] if error.reaction == Reaction::Unavailable), "{ended:?}");
    }

    #[test]
    fn too_few_nodes_end_it_and_a_conversion_waits_for_space_only_if_all_are_reachable() {
        let ended = on(&mut begin("direct", None), Event::Begin, &view(5, &[]));
        assert!(matches!(&ended[..], [Action::End(Err(error))] if error.message.contains('5')), "{ended:?}");
        // Nodes 7 and 8 have only the space that conversions must leave free.
        let kept_free = Some(KeptFree { reserve_bytes: 0, rebuild: RebuildReserve::Off, percent: 10 });
        let mut full = view(8, &[]);
        for id in [7, 8] {
            full.nodes.get_mut(&NodeId(id)).unwrap().disks[0].free_bytes = 1 << 20;
        }
        let mut machine = begin("direct", kept_free);
        let mut actions = on(&mut machine, Event::Begin, &full);
        let sending = on(&mut machine, allocated(&mut actions), &full);
        assert_eq!(nodes(&sending), (1..=6).collect());
        let reaction = |actions: Vec<Action>| match actions.last() {
            Some(Action::End(Err(error))) => error.reaction,
            other => panic!("expected the end, got {other:?}"),
        };
        assert_eq!(reaction(on(&mut machine, away(1), &full)), Reaction::Replan, "node 1 has space but cannot be reached");
        full.nodes.get_mut(&NodeId(6)).unwrap().disks[0].free_bytes = 1 << 20;
        assert_eq!(reaction(on(&mut begin("direct", kept_free), Event::Begin, &full)), Reaction::Retry, "space may become free");
    }
}
