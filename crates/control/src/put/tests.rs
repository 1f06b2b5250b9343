//! Ends of stripes, with a shell that answers as the test says.

use super::*;
use crate::{
    fixtures::{BLOCK_LEN, home, stripe, view},
    options::WriteOptions,
    rebuild::RebuiltBlock,
    run::{Blame, End, Stored, TaskEvent},
};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use weft_types::{AutoSize, Owner, Party, PlacedBlock, Reaction, RebuildReserve, StripeRecord, UploadId};

const BLOCKS: u8 = 6;

pub(super) fn request() -> Request {
    Request {
        upload: UploadId(3),
        code: weft_codes::parse("rs(4,2)").unwrap(),
        object: ObjectName { bucket: "b".into(), key: "k".into() },
        failure_domain: FailureDomain::Node,
        replicas: 1,
        missing_max: 0,
        kept_free: None,
        repair: RepairOptions::new("conventional".into(), AutoSize::bytes(16 << 10)),
        resumes_max: 3,
        disk_reserve_bytes: 0,
        rebuild_reserve: RebuildReserve::Off,
        long_wait_ms: 2_500,
    }
}

/// A stripe whose blocks are on their way to nodes 1 to 6.
fn new_stripe() -> StripeRecord {
    let mut stripe = StripeRecord { owner: Owner::Upload(UploadId(3)), ended: false, checksums: Vec::new(), ..stripe() };
    stripe.blocks.values_mut().for_each(|placed| placed.state = BlockState::Missing);
    stripe
}

/// The stripe as its writer has sent it by `scheme`.
pub(super) fn sent(scheme: &str) -> SentStripe {
    let mut sent = SentStripe::new(new_stripe(), WriteOptions::new(scheme.into(), 16 << 10, false).unwrap());
    sent.take_checksums((0..u32::from(BLOCKS)).map(|index| (index, vec![10 + index])));
    sent
}

/// A report in which some receivers stored their blocks and the others are gone.
fn report(sent: &SentStripe, is_stored: impl Fn(u8) -> bool) -> Report {
    let homes: Vec<(BlockId, Home)> = sent.brings().collect();
    let mut report = Report::new(homes.iter().map(|(_, home)| home.node));
    for (block, home) in homes {
        if is_stored(block.index) {
            let receipt = Stored { len: BLOCK_LEN, checksums: vec![10 + u32::from(block.index)] };
            let (stored, traffic, stages) = (vec![(block, receipt)], TaskTraffic::default(), Vec::new());
            report.take(home.node, TaskEvent::Done { stored, traffic, stages });
        } else {
            report.broken(home.node, Error::replan("reset"));
        }
    }
    report
}

/// A stripe's end, and the state of the shell.
struct Played {
    machine: StripeEnd,
    view: View,
    rng: StdRng,
    missing_max: usize,
    generation: u32,
    asked: Option<Action>,
    suspects: BTreeSet<NodeId>,
    said: Vec<String>,
    /// The home and generation of each block that was stored or rebuilt.
    there: BTreeMap<(u8, u8), (u32, Home)>,
    /// The last allocation for each block that is sent again.
    allocated: BTreeMap<u8, (BlockId, Home)>,
    committed: Option<Vec<(u32, Home, BlockState)>>,
    ended: Option<Result<Ended>>,
}

impl Played {
    /// After these receivers have stored their blocks.
    fn new(request: Request, sent: SentStripe, view: View, is_stored: impl Fn(u8) -> bool) -> Self {
        let report = report(&sent, is_stored);
        Self::told(request, sent, view, report, false)
    }

    fn told(request: Request, sent: SentStripe, view: View, report: Report, early: bool) -> Self {
        let stored = |(block, home): (BlockId, Home)| {
            report.stored(block, home.node).map(|_| ((block.index, block.copy), (block.generation, home)))
        };
        let mut there: BTreeMap<_, _> = sent.brings().filter_map(stored).collect();
        let earlier = |(index, placed): (u8, &PlacedBlock)| ((index, placed.copy), (placed.generation, placed.home));
        let stays = |(index, _): &(u8, &PlacedBlock)| !sent.blocks().contains(index) && !sent.missing.contains_key(index);
        there.extend(sent.stripe.all().filter(stays).map(earlier));
        let mut it = Self {
            missing_max: request.missing_max as usize,
            machine: StripeEnd::new(request, sent).with_put(Some(9)),
            view,
            rng: StdRng::seed_from_u64(1),
            generation: 1,
            asked: None,
            suspects: BTreeSet::new(),
            said: Vec::new(),
            there,
            allocated: BTreeMap::new(),
            committed: None,
            ended: None,
        };
        it.on(Event::Begin { report, early, complaints: BTreeSet::new() });
        it
    }

    fn on(&mut self, event: Event) {
        for action in self.machine.on(event, &mut World { view: &self.view, rng: &mut self.rng }) {
            assert!(
                self.asked.is_none() && self.ended.is_none(),
                "only the last action asks for an answer: {:?}, {action:?}",
                self.asked
            );
            match action {
                Action::Warn(said) => self.said.push(said),
                Action::Suspect(node) => drop(self.suspects.insert(node)),
                Action::StoredWrong(block, node) => self.said.push(format!("{node} stored {block} wrong")),
                Action::HeldUp => self.said.push("held up".into()),
                Action::Simplest(error) => self.said.push(error.message),
                Action::End(ended) => self.ended = Some(ended),
                asks => self.asked = Some(asks),
            }
        }
    }

    /// Answers the pending action with success; returns its name.
    fn well(&mut self) -> &'static str {
        let (what, event) = match self.asked.take().expect("an action is pending") {
            Action::Rebuild(request) => ("rebuild", Event::Rebuilt(Ok(self.rebuilt(&request)))),
            Action::Allocate { index, copy, home } => ("allocate", self.allocated(index, copy, home)),
            Action::Send(sent) => {
                let homes: BTreeSet<NodeId> = sent.brings().map(|(_, home)| home.node).collect();
                assert_eq!(homes.len(), sent.blocks().len(), "a node gets one block");
                for (block, home) in sent.brings() {
                    assert_eq!(self.allocated.get(&block.index), Some(&(block, home)), "it goes where it is allocated");
                }
                ("send", Event::Started(Ok(())))
            }
            Action::Commit { blocks, checksums, .. } => ("commit", self.committed(blocks, &checksums)),
            other => panic!("{other:?} needs no answer"),
        };
        self.on(event);
        what
    }

    fn rebuilt(&mut self, request: &rebuild::Request) -> Rebuilt {
        assert_eq!(request.purpose, rebuild::Purpose::Put(UploadId(3)));
        let readable = request.stripe.blocks.values().filter(|placed| placed.state == BlockState::Ok).count();
        assert!(readable >= 4, "the stored blocks suffice");
        let new = |lost: &rebuild::Lost| {
            self.generation += 1;
            let block = BlockId { stripe: request.stripe.id, index: lost.index, copy: lost.copy, generation: self.generation };
            let home = home(7 + u32::from(lost.index));
            self.there.insert((lost.index, lost.copy), (block.generation, home));
            RebuiltBlock { block, home, checksums: lost.checksums.clone().expect("its checksums are known") }
        };
        Rebuilt { blocks: request.lost.iter().map(new).collect(), ..Rebuilt::default() }
    }

    fn allocated(&mut self, index: u8, copy: u8, home: Home) -> Event {
        self.generation += 1;
        assert!(!self.there.contains_key(&(index, copy)), "block {index} exists already");
        assert!(self.there.values().all(|(_, other)| other.node != home.node), "{home:?} has another block");
        let block = BlockId { stripe: new_stripe().id, index, copy, generation: self.generation };
        self.allocated.insert(index, (block, home));
        Event::Allocated(Ok(block))
    }

    fn committed(&mut self, blocks: Vec<(u32, Home, BlockState)>, checksums: &[Vec<u32>]) -> Event {
        assert_eq!(checksums.len(), usize::from(BLOCKS));
        for (index, (generation, home, state)) in (0..BLOCKS).zip(&blocks) {
            let is_there = self.there.iter().any(|(block, at)| block.0 == index && *at == (*generation, *home));
            assert_eq!(is_there, *state == BlockState::Ok, "block {index} at {home:?}");
        }
        let missing = blocks.iter().filter(|(.., state)| *state != BlockState::Ok).count();
        assert!(missing <= self.missing_max, "{missing} blocks are missing");
        assert!(self.committed.replace(blocks).is_none(), "a stripe is committed once");
        Event::Committed(Ok(()))
    }
}

fn steps(played: &mut Played) -> Vec<&'static str> {
    let mut steps = Vec::new();
    while played.ended.is_none() {
        steps.push(played.well());
    }
    steps
}

fn error(played: Played) -> Error {
    played.ended.expect("it has ended").expect_err("it is given up")
}

#[test]
fn a_completely_stored_stripe_is_recorded() {
    let mut played = Played::new(request(), sent("direct"), view(8, &[]), |_| true);
    assert_eq!(steps(&mut played), ["commit"]);
    assert!(!played.ended.unwrap().unwrap().again && played.suspects.is_empty() && played.said.is_empty());
}

/// The commits that follow when the writer asks to commit `asked` with a stripe: the sizes in the stripe's
/// transactions, until one of these answers ends it.
fn commits(missing_max: u32, asked: Option<u64>, answers: &[Result<()>]) -> (Vec<Option<u64>>, Result<(), Reaction>) {
    let (sent, request) = (sent("direct"), Request { missing_max, ..request() });
    let (view, mut rng, report) = (view(8, &[]), StdRng::seed_from_u64(1), report(&sent, |_| true));
    let mut machine = StripeEnd::new(request, sent).with_put(asked);
    let (mut commits, mut answers) = (Vec::new(), answers.iter().cloned());
    let mut event = Event::Begin { report, early: false, complaints: BTreeSet::new() };
    loop {
        match machine.on(event, &mut World { view: &view, rng: &mut rng }).pop() {
            Some(Action::Commit { put_bytes, .. }) => commits.push(put_bytes),
            Some(Action::End(ended)) => return (commits, ended.map(drop).map_err(|error| error.reaction)),
            other => panic!("{other:?}"),
        }
        event = Event::Committed(answers.next().expect("it has ended"));
    }
}

#[test]
fn a_stripe_ends_alone_if_the_commit_of_its_put_is_refused() {
    let [refused, conflict, busy] = [Error::invalid("too short"), Error::replan("another"), Error::retry("busy")].map(Err);
    assert_eq!(commits(0, Some(9), &[Ok(())]), (vec![Some(9)], Ok(())));
    for answer in [&refused, &conflict] {
        assert_eq!(commits(0, Some(9), &[answer.clone(), Ok(())]), (vec![Some(9), None], Ok(())));
    }
    let twice = commits(0, Some(9), &[conflict, refused.clone()]);
    assert_eq!(twice, (vec![Some(9), None], Err(Reaction::InvalidInput)), "the stripe itself is refused");
    assert_eq!(commits(0, Some(9), &[busy]), (vec![Some(9)], Err(Reaction::Retry)), "the writer repeats both");
    assert_eq!(commits(0, None, &[refused]), (vec![None], Err(Reaction::InvalidInput)));
    assert_eq!(commits(1, Some(9), &[Ok(())]), (vec![None], Ok(())), "missing blocks are checked first");
}

#[test]
fn missing_blocks_are_rebuilt_or_left_for_later_as_the_ack_rule_says() {
    let is_stored = |index| index != 2 && index != 5;
    let mut played = Played::new(request(), sent("direct"), view(12, &[]), is_stored);
    assert_eq!(steps(&mut played), ["rebuild", "commit"]);
    let committed = played.committed.unwrap();
    assert_eq!((committed[2].1, committed[5].1), (home(9), home(12)));

    let late = Request { missing_max: 2, ..request() };
    let mut played = Played::new(late.clone(), sent("direct"), view(12, &[]), is_stored);
    assert_eq!(steps(&mut played), ["commit"]);
    assert_eq!(played.committed.unwrap()[2].2, BlockState::Missing);

    let (sent, view) = (sent("direct"), view(12, &[]));
    let report = report(&sent, |index| index > 0);
    let mut early = Played::told(late, sent, view, report, true);
    assert_eq!((steps(&mut early), early.suspects.len()), (vec!["commit"], 0), "failures are handled when the plan ends");
}

#[test]
fn too_little_stored_data_is_sent_again_to_other_nodes() {
    let mut played = Played::new(request(), sent("direct"), view(12, &[]), |index| index == 1 || index == 4);
    assert_eq!(steps(&mut played), ["allocate", "allocate", "allocate", "send"]);
    assert!(played.ended.unwrap().unwrap().again);
    let again = played.machine.sent().clone();
    assert_eq!((again.blocks(), again.is_first()), (&[0, 2, 3][..], false));
    let homes: Vec<u32> = again.brings().map(|(_, home)| home.node.0).collect();
    assert!(homes.iter().all(|node| *node > 6), "failed nodes got blocks: {homes:?}");

    // The data arrives now; what is still missing is rebuilt from it.
    let mut checksums = again.clone();
    checksums.take_checksums([(5, vec![99])]);
    assert_eq!(checksums.checksums(), again.checksums(), "the writer computes checksums once");
    let mut played = Played::new(request(), again, view(12, &[]), |_| true);
    assert_eq!(steps(&mut played), ["rebuild", "commit"]);
    assert!(played.committed.unwrap().iter().all(|(_, _, state)| *state == BlockState::Ok));
}

#[test]
fn a_stripe_with_unknown_checksums_is_given_up() {
    let unknown = SentStripe::new(new_stripe(), WriteOptions::new("direct".into(), 16 << 10, false).unwrap());
    let played = Played::new(request(), unknown, view(12, &[]), |_| true);
    let suspects = played.suspects.clone();
    let error = error(played);
    assert!(error.reaction == Reaction::Replan && error.message.contains("the client did not finish sending it"), "{error}");
    assert!(suspects.is_empty(), "no node was at fault");
}

#[test]
fn an_unreachable_node_is_replaced_up_to_a_limit() {
    let mut played = Played::new(request(), sent("direct"), view(16, &[]), |index| index > 2);
    for failures in 0..=3 {
        let allocated = if failures == 0 { 3 } else { 1 };
        for _ in 0..allocated {
            assert_eq!(played.well(), "allocate");
        }
        let Some(Action::Send(sent)) = played.asked.take() else { panic!("a send is expected") };
        let node = sent.brings().next().unwrap().1.node;
        played.on(Event::Started(Err(Error::replan("no answer in time").party(Party::Node(node)))));
    }
    let error = error(played);
    assert!(error.reaction == Reaction::Replan && error.message.contains("too few blocks of stripe 0"), "{error}");
}

#[test]
fn a_scheme_that_needs_too_much_memory_is_replaced_by_the_simplest() {
    let mut played = Played::new(request(), sent("auto"), view(12, &[]), |index| index > 2);
    assert_eq!([played.well(), played.well(), played.well()], ["allocate"; 3]);
    played.asked = None;
    played.on(Event::Started(Err(Error::invalid("its budget is too small"))));
    let Some(Action::Send(sent)) = &played.asked else { panic!("a send is expected") };
    assert_eq!((sent.options.scheme.as_str(), played.said.last().unwrap().as_str()), ("direct", "its budget is too small"));
    played.asked = None;
    played.on(Event::Started(Err(Error::invalid("its budget is too small"))));
    assert!(error(played).message.contains("too few blocks"), "the simplest scheme needs too much as well");
}

#[test]
fn if_no_node_is_left_for_missing_data_other_missing_blocks_are_sent() {
    // Data blocks 0 and 1 have no new home. Parity 5 has one: its node works and only stored other bytes.
    let sent = sent("direct");
    let mut told = report(&sent, |index| index > 1 && index != 5);
    let node = told.nodes.get_mut(&NodeId(6)).unwrap();
    node.end = Some(End::Failed(vec![Error::replan("reset").party(Party::Node(NodeId(1)))]));
    let late = Request { missing_max: 2, ..request() };
    let mut played = Played::told(late, sent, view(6, &[]), told, false);
    assert_eq!(steps(&mut played), ["allocate", "send"]);
    assert_eq!(played.machine.sent().blocks(), [5]);
    let mut none = Played::new(request(), self::sent("direct"), view(6, &[]), |index| index > 2);
    assert!(none.asked.take().is_none() && error(none).reaction == Reaction::Replan);
}

#[test]
fn a_failed_rebuild_gives_up_the_stripe_if_sending_it_again_may_help() {
    let stored = |index| index != 2;
    let too_few = || Event::Rebuilt(Err(Error::unavailable("no node is left")));
    // Nothing else was lost, and there is no other node.
    let mut played = Played::new(request(), sent("direct"), view(6, &[]), stored);
    played.asked = None;
    played.on(too_few());
    let told = error(played);
    assert!(told.reaction == Reaction::Unavailable && told.message.ends_with("; no node is left"), "{told}");
    assert!(told.message.contains("block 2: node-3"), "the error does not say why it had to be rebuilt: {told}");
    // Either there are nodes for all of it, or a stored block is lost.
    for (nodes, down) in [(7, None), (6, Some(1))] {
        let mut played = Played::new(request(), sent("direct"), view(nodes, &[]), stored);
        down.into_iter().for_each(|id| played.view.nodes.get_mut(&NodeId(id)).unwrap().up = false);
        played.asked = None;
        played.on(too_few());
        let suspects = played.suspects.clone();
        let told = error(played);
        assert!(told.reaction == Reaction::Replan && told.message.contains("could not be rebuilt either"), "{told}");
        assert_eq!(suspects, BTreeSet::from([NodeId(3)]));
    }
}

#[test]
fn copies_are_completed_unless_blocks_may_come_later() {
    let mut with_copy = sent("direct");
    let copied = PlacedBlock { home: home(7), copy: 1, ..with_copy.stripe.blocks[&1] };
    with_copy.stripe.copies = vec![(1, copied)];
    let told = |sent: &SentStripe| {
        let mut told = report(sent, |_| true);
        told.nodes.insert(NodeId(7), crate::run::NodeReport::default());
        told.broken(NodeId(7), Error::replan("reset"));
        told
    };
    let begin = |request, with_copy: SentStripe| {
        let told = told(&with_copy);
        Played::told(request, with_copy, view(12, &[]), told, false)
    };
    let mut played = begin(request(), with_copy.clone());
    assert_eq!(steps(&mut played), ["rebuild", "commit"]);
    let mut later = begin(Request { missing_max: 1, ..request() }, with_copy.clone());
    assert_eq!(steps(&mut later), ["commit"]);
    let mut played = begin(request(), with_copy.clone());
    played.asked = None;
    played.on(Event::Rebuilt(Err(Error::unavailable("no node is left"))));
    assert_eq!(error(played).message, "no node is left", "the writer cannot help");
    let mut played = begin(request(), with_copy);
    played.view.nodes.get_mut(&NodeId(2)).unwrap().up = false;
    played.asked = None;
    played.on(Event::Rebuilt(Err(Error::unavailable("no node is left"))));
    assert_eq!(error(played).reaction, Reaction::Replan, "a stored block is gone");
}

#[test]
fn a_delayed_put_is_remembered() {
    let sent = sent("direct");
    let (mut told, blame) = (report(&sent, |index| index != 3), Blame { node: NodeId(4), accuser: Some(NodeId(1)) });
    (told.blame, told.held_up) = (Some(blame), Some((blame, Error::replan("it delays all others"))));
    let mut played = Played::told(request(), sent, view(12, &[]), told, false);
    assert_eq!(played.said[0], "held up");
    assert_eq!(steps(&mut played), ["rebuild", "commit"]);
}

#[test]
fn a_node_that_stored_wrong_bytes_is_reported_and_gets_no_data_again() {
    let wrong = |block| TaskEvent::Done {
        stored: vec![(block, Stored { len: BLOCK_LEN, checksums: vec![99] })],
        traffic: TaskTraffic { received_bytes: 7, ..TaskTraffic::default() },
        stages: Vec::new(),
    };
    let sent = sent("direct");
    let mut told = report(&sent, |index| index > 3);
    for (block, home) in sent.brings().filter(|(block, _)| block.index < 4) {
        told.nodes.get_mut(&home.node).unwrap().end = None;
        told.take(home.node, wrong(block));
    }
    // An early acknowledgement reports it, too.
    let mut early = report(&sent, |index| index != 5);
    let (block, home) = sent.brings().nth(5).unwrap();
    early.nodes.get_mut(&home.node).unwrap().end = None;
    early.take(home.node, wrong(block));
    let mut early = Played::told(Request { missing_max: 1, ..request() }, sent.clone(), view(12, &[]), early, false);
    early.there.remove(&(5, 0));
    assert_eq!((early.said.len(), steps(&mut early)), (1, vec!["commit"]));

    let mut played = Played::told(request(), sent, view(12, &[]), told, false);
    assert_eq!(played.said.iter().filter(|said| said.contains("wrong")).count(), 4);
    played.there.retain(|(index, _), _| *index > 3);
    assert_eq!(steps(&mut played), ["allocate", "allocate", "allocate", "allocate", "send"]);
    assert!(played.machine.sent().brings().all(|(_, home)| home.node.0 > 6));
    assert_eq!(played.ended.unwrap().unwrap().traffic.received_bytes, 28);
}

#[test]
fn a_failed_node_that_the_writer_blames_is_avoided() {
    let (sent, view) = (sent("direct"), view(12, &[]));
    let told = report(&sent, |index| index != 2);
    let mut machine = StripeEnd::new(request(), sent);
    let complaints = BTreeSet::from([3, 4].map(NodeId));
    let mut rng = StdRng::seed_from_u64(1);
    let mut world = World { view: &view, rng: &mut rng };
    let actions = machine.on(Event::Begin { report: told, early: false, complaints }, &mut world);
    let suspects = actions.iter().filter_map(|action| if let Action::Suspect(node) = action { Some(node.0) } else { None });
    assert_eq!(suspects.collect::<Vec<_>>(), [3], "node 4 has stored its block");
}

#[test]
fn data_is_sent_again_a_limited_number_of_times() {
    let mut again = sent("direct");
    for times in 0..=request().resumes_max {
        let mut played = Played::new(request(), again.clone(), view(40, &[]), |_| false);
        if times == request().resumes_max {
            assert!(played.asked.is_none() && error(played).reaction == Reaction::Replan);
            return;
        }
        assert_eq!(steps(&mut played).last(), Some(&"send"));
        again = played.machine.sent().clone();
    }
    panic!("the stripe is resent endlessly");
}

#[test]
fn a_conversion_that_sends_again_leaves_the_space_for_puts() {
    let kept_free = Some(KeptFree { reserve_bytes: 0, rebuild: RebuildReserve::Off, percent: 10 });
    let mut little = view(12, &[]);
    (7..=9).for_each(|id| little.nodes.get_mut(&NodeId(id)).unwrap().disks[0].free_bytes = 1 << 20);
    let mut played = Played::new(Request { kept_free, ..request() }, sent("direct"), little, |index| index > 2);
    steps(&mut played);
    assert!(played.machine.sent().brings().all(|(_, home)| home.node.0 > 9));
}

#[test]
fn a_stripe_does_not_end_early_without_enough_of_its_blocks() {
    let sent = sent("direct");
    let told = report(&sent, |index| index > 2);
    let played = Played::told(Request { missing_max: 1, ..request() }, sent, view(12, &[]), told, true);
    assert!(played.asked.is_none() && error(played).reaction == Reaction::Fatal);
}

proptest! {
    #[test]
    fn under_any_events_it_ends_and_is_recorded_at_most_once(
        stored in proptest::collection::vec(any::<bool>(), usize::from(BLOCKS)),
        answers in proptest::collection::vec((0..8u8, 1..=12u32), 0..40),
        nodes in 6..=12u32,
        missing_max in 0..=2u32,
        scheme in prop_oneof![Just("direct"), Just("auto")],
        kinds in proptest::collection::vec(0..3u8, usize::from(BLOCKS)),
    ) {
        let sent = sent(scheme);
        let mut told = report(&sent, |index| stored[usize::from(index)]);
        // Some of the failed nodes report, or stored other bytes.
        for (block, home) in sent.brings().filter(|(block, _)| !stored[usize::from(block.index)]) {
            let node = told.nodes.get_mut(&home.node).unwrap();
            match kinds[usize::from(block.index)] {
                0 => {}
                1 => node.end = Some(End::Failed(vec![Error::replan("reset").party(Party::Node(NodeId(1)))])),
                _ => {
                    let wrong = TaskEvent::Done {
                        stored: vec![(block, Stored { len: BLOCK_LEN, checksums: vec![99] })],
                        traffic: TaskTraffic::default(),
                        stages: Vec::new(),
                    };
                    node.end = None;
                    told.take(home.node, wrong);
                }
            }
        }
        let mut played = Played::told(Request { missing_max, ..request() }, sent, view(nodes, &[]), told, false);
        // A wrongly stored block does not count.
        played.there.retain(|(index, _), _| stored[usize::from(*index)]);
        for (kind, node) in answers {
            let Some(asked) = &played.asked else { break };
            let error = match kind {
                0 => Error::replan("no answer in time").party(Party::Node(NodeId(node))),
                1 => Error::unavailable("too few"),
                2 => Error::invalid("its budget is too small"),
                3 => {
                    let up = &mut played.view.nodes.get_mut(&NodeId(node.min(nodes))).unwrap().up;
                    *up = !*up;
                    continue;
                }
                4 => {
                    // An event that answers no action changes nothing.
                    let asked = played.asked.take();
                    let stray = match &asked {
                        Some(Action::Commit { .. }) => Event::Rebuilt(Ok(Rebuilt::default())),
                        _ => Event::Committed(Ok(())),
                    };
                    played.on(stray);
                    prop_assert!(played.asked.is_none() && played.ended.is_none());
                    played.asked = asked;
                    continue;
                }
                _ => {
                    played.well();
                    continue;
                }
            };
            let event = match asked {
                Action::Rebuild(_) => Event::Rebuilt(Err(error)),
                Action::Allocate { .. } => Event::Allocated(Err(error)),
                Action::Send(_) => Event::Started(Err(error)),
                Action::Commit { .. } => Event::Committed(Err(error)),
                other => panic!("{other:?} needs no answer"),
            };
            played.asked = None;
            played.on(event);
        }
        let mut rest = 0;
        while played.ended.is_none() {
            played.well();
            rest += 1;
            prop_assert!(rest < 50, "it does not end: {:?}", played.asked);
        }
        match played.ended.unwrap() {
            Ok(ended) => prop_assert_eq!(played.committed.is_some(), !ended.again),
            Err(_) => prop_assert!(played.committed.is_none()),
        }
    }
}
