//! Rebuilds with a shell that answers as the test says: planning is real; agents and metadata are simulated.

mod keeps;
mod moves;

use super::{machine::HOMES_MAX, *};
use crate::{
    fixtures::{BLOCK_LEN, stripe, view},
    known::Known,
    run::{Blame, End, NodeReport, Stored, TaskEvent},
};
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use weft_plan::{Class, Network, Precedence, ProofKey};
use weft_schemes::{Kind, Run, simplest};
use weft_types::{AutoSize, BlockState, Error, Party, PlacedBlock, PlanId, Reaction, Span, StripeId, UploadId};

pub(super) fn request(lost: &[u8]) -> Request {
    let stripe = stripe();
    Request {
        code: weft_codes::parse("rs(4,2)").unwrap(),
        object: ObjectName { bucket: "b".into(), key: "k".into() },
        lost: lost.iter().map(|index| Lost::of(&stripe, *index, 0)).collect(),
        stripe,
        options: RepairOptions::new("conventional".into(), AutoSize::bytes(16 << 10)),
        helpers: None,
        scheduled: None,
        to: Destination::Anywhere,
        failure_domain: FailureDomain::Node,
        purpose: Purpose::Repair,
        avoid: BTreeSet::new(),
        silent: BTreeSet::new(),
        resumes_max: 8,
        disk_reserve_bytes: 0,
        kept: Share::NONE,
        needed: Needed::Always,
        answers: Answers::default(),
    }
}

/// A rebuild, and the state of the shell.
struct Played {
    machine: Rebuild,
    view: View,
    used: LastUsed,
    given: BlocksGiven,
    rng: StdRng,
    generation: u32,
    allocated: BTreeMap<BlockId, Home>,
    committed: BTreeSet<BlockId>,
    /// Receipts from the blocks' own homes, with the right checksums.
    receipts: BTreeSet<BlockId>,
    /// Blocks that a task may be writing.
    written: BTreeSet<BlockId>,
    /// The pending action.
    asked: Option<Action>,
    said: Vec<String>,
    suspects: Vec<NodeId>,
    /// The blocks of which what was known is forgotten.
    forgotten: Vec<u8>,
    ended: Option<Result<Rebuilt>>,
}

impl Played {
    fn new(request: Request, view: View) -> Self {
        let mut it = Self {
            machine: Rebuild::new(request),
            view,
            used: LastUsed::default(),
            given: BlocksGiven::new(),
            rng: StdRng::seed_from_u64(1),
            generation: 1,
            allocated: BTreeMap::new(),
            committed: BTreeSet::new(),
            receipts: BTreeSet::new(),
            written: BTreeSet::new(),
            asked: None,
            said: Vec::new(),
            suspects: Vec::new(),
            forgotten: Vec::new(),
            ended: None,
        };
        it.on(Event::Begin);
        it
    }

    fn on(&mut self, event: Event) {
        let mut world = World { view: &self.view, used: &mut self.used, given: &mut self.given, rng: &mut self.rng };
        for action in self.machine.on(event, &mut world) {
            assert!(
                self.asked.is_none() && self.ended.is_none(),
                "only the last action asks for an answer: {:?}, {action:?}",
                self.asked
            );
            match action {
                Action::Warn(said) | Action::Resumed(said) => self.said.push(said),
                Action::Suspect(node) => self.suspects.push(node),
                Action::ForgetKept { index } => self.forgotten.push(index),
                Action::End(result) => self.ended = Some(result),
                asks => self.asked = Some(asks),
            }
        }
        if let Some(Action::Run(_)) = self.asked {
            self.written.extend(self.machine.arriving().iter().map(|new| new.block));
        }
    }

    /// Answers the pending action with success; returns its name.
    fn well(&mut self) -> &'static str {
        let (what, event) = match self.asked.take().expect("an action is pending") {
            Action::Allocate { index, copy, home } => ("allocate", self.allocated(index, copy, home)),
            Action::Keep { .. } => ("keep", Event::Kept(Ok(Kept::default()))),
            Action::Release { block, may_be_written } => ("release", self.released(block, may_be_written)),
            Action::Plan(ask) => ("plan", self.planned(&ask)),
            Action::Run(planned) => ("run", Event::Ran(Ok(self.all_done(&planned)))),
            Action::LookUp => ("look up", Event::LookedUp(Some(self.machine.request().stripe.clone()))),
            Action::Commit { new, .. } => ("commit", self.committed(new.block)),
            other => panic!("{other:?} needs no answer"),
        };
        self.on(event);
        what
    }

    fn allocated(&mut self, index: u8, copy: u8, home: Home) -> Event {
        self.generation += 1;
        let block = BlockId { stripe: StripeId(7), index, copy, generation: self.generation };
        let same = self.allocated.keys().find(|other| (other.index, other.copy) == (index, copy));
        assert_eq!(same, None, "a block has one home at a time");
        assert!(self.allocated.values().all(|other| other.node != home.node), "a node gets one block");
        // As in the metadata: only a block's own node may get it back.
        let stripe = &self.machine.request().stripe;
        let other = stripe.all().find(|(other, placed)| *other != index && placed.home.node == home.node);
        assert_eq!(other.map(|(index, _)| index), None, "{home:?} has or had another block of the stripe");
        self.allocated.insert(block, home);
        Event::Allocated(Ok(block))
    }

    fn released(&mut self, block: BlockId, may_be_written: bool) -> Event {
        let is_written = self.written.contains(&block) && !self.receipts.contains(&block);
        assert!(may_be_written || !is_written, "a task may still write {block}");
        assert!(self.allocated.remove(&block).is_some(), "{block} is not allocated");
        Event::Released
    }

    fn planned(&self, ask: &PlanRequest) -> Event {
        let run = |slice_len| Run::new(PlanId(1), 1, ask.precedence(), slice_len);
        Event::Planned(ask.plan(&self.view, &Network::uniform(1e9), &Known::new(ProofKey::PUBLIC), run).map(Box::new))
    }

    fn committed(&mut self, block: BlockId) -> Event {
        assert!(self.receipts.contains(&block), "{block} is committed without a receipt from its home");
        assert!(self.allocated.contains_key(&block) && self.committed.insert(block));
        Event::Committed(Ok(()))
    }

    fn report(&self, planned: &Planned) -> Report {
        let node = |party: &Party| if let Party::Node(node) = party { Some(*node) } else { None };
        Report::new(planned.plan.binding.parties.iter().filter_map(node))
    }

    /// Every node has finished its task.
    fn all_done(&mut self, planned: &Planned) -> Report {
        let mut report = self.report(planned);
        for node in report.nodes.keys().copied().collect::<Vec<_>>() {
            self.done(&mut report, node);
        }
        report
    }

    /// A node has finished its task: it stored its blocks.
    fn done(&mut self, report: &mut Report, node: NodeId) {
        let stored = |new: &&Arriving| new.durable.is_none() && new.home.node == node;
        let receipt = |new: &Arriving| (new.block, Stored { len: BLOCK_LEN, checksums: vec![10 + u32::from(new.block.index)] });
        let stored: Vec<_> = self.machine.arriving().iter().filter(stored).map(receipt).collect();
        self.receipts.extend(stored.iter().map(|(block, _)| *block));
        report.take(node, TaskEvent::Done { stored, traffic: TaskTraffic::default(), stages: Vec::new() });
    }

    fn check_end(&self) {
        let Self { allocated, committed, .. } = self;
        let purpose = self.machine.request().purpose;
        let kept: BTreeSet<BlockId> = match self.ended.as_ref().expect("the rebuild has ended") {
            Err(_) => BTreeSet::new(),
            Ok(rebuilt) => rebuilt.blocks.iter().map(|new| new.block).collect(),
        };
        assert_eq!(allocated.keys().copied().collect::<BTreeSet<_>>(), kept, "an allocation outside the result was not released");
        assert_eq!(*committed, if purpose == Purpose::Repair { kept.clone() } else { BTreeSet::new() });
        let Some(Ok(rebuilt)) = &self.ended else { return };
        let told = kept.iter().map(|block| (block.index, block.copy)).chain(rebuilt.left.iter().map(|(block, _)| *block));
        let asked: Vec<_> = self.machine.request().lost.iter().map(|lost| (lost.index, lost.copy)).collect();
        let mut told: Vec<_> = told.collect();
        told.sort_unstable();
        assert_eq!(told, asked, "each block is rebuilt or left out, once");
        assert!(!kept.is_empty());
    }
}

fn steps(played: &mut Played) -> Vec<&'static str> {
    let mut steps = Vec::new();
    while played.ended.is_none() {
        steps.push(played.well());
    }
    played.check_end();
    steps
}

#[test]
fn a_repair_allocates_plans_runs_and_commits() {
    let mut played = Played::new(request(&[0, 5]), view(10, &[1, 6]));
    assert_eq!(steps(&mut played), ["allocate", "allocate", "plan", "run", "commit", "commit"]);
    assert_eq!((played.said.as_slice(), played.suspects.as_slice()), (&[] as &[String], &[] as &[NodeId]));
}

#[test]
fn a_puts_rebuild_commits_and_looks_up_nothing() {
    let mut played = Played::new(Request { purpose: Purpose::Put(UploadId(3)), ..request(&[0]) }, view(10, &[1]));
    assert_eq!([played.well(), played.well()], ["allocate", "plan"]);
    let Some(Action::Run(planned)) = played.asked.take() else { panic!("a plan runs") };
    assert_eq!(planned.plan.class, Class::Foreground);
    let mut report = played.report(&planned);
    let helper = NodeId(2);
    report.broken(helper, Error::replan("reset"));
    report.give_up_rest();
    report.blame = Some(Blame { node: helper, accuser: None });
    played.on(Event::Ran(Ok(report)));
    assert_eq!(steps(&mut played), ["release", "allocate", "plan", "run"], "its home gave no answer either");
}

#[test]
fn lost_blocks_take_precedence_over_moves_and_copies() {
    let copy = |index, copy| Lost { copy, ..Lost::of(&stripe(), index, 0) };
    let table = [
        ("its node is down", vec![copy(0, 0)], &[1][..], Precedence::REBUILD),
        ("it is good", vec![copy(0, 0)], &[], Precedence::MOVE),
        ("there was no such copy", vec![copy(0, 1)], &[], Precedence::MOVE),
        ("one of two is lost", vec![copy(0, 0), copy(5, 0)], &[6], Precedence::REBUILD),
    ];
    for (why, lost, down, expected) in table {
        let scheme = RepairOptions::new(weft_schemes::AUTO.into(), AutoSize::bytes(16 << 10));
        let mut played = Played::new(Request { lost, options: scheme, ..request(&[]) }, view(10, down));
        let planned = loop {
            match played.asked.as_ref() {
                Some(Action::Run(planned)) => break planned,
                _ => played.well(),
            };
        };
        assert_eq!(planned.plan.precedence(), expected, "{why}");
    }
}

#[test]
fn a_taken_home_is_replaced_and_a_block_without_a_home_is_left_out() {
    let taken = || Event::Allocated(Err(Error::replan("another block of the stripe goes there")));
    let mut played = Played::new(request(&[0]), view(10, &[1]));
    let mut homes = BTreeSet::new();
    for _ in 0..HOMES_MAX - 1 {
        let Some(Action::Allocate { home, .. }) = played.asked.take() else { panic!("an allocation is expected") };
        assert!(homes.insert(home.node), "each home is tried once");
        played.on(taken());
    }
    assert_eq!(steps(&mut played), ["allocate", "plan", "run", "commit"]);

    let mut played = Played::new(request(&[0, 1]), view(10, &[1, 2]));
    for _ in 0..HOMES_MAX {
        played.asked = None;
        played.on(taken());
    }
    assert_eq!(steps(&mut played), ["allocate", "plan", "run", "commit"]);
    assert_eq!(played.ended.unwrap().unwrap().left.len(), 1);
}

#[test]
fn an_unreachable_helper_is_left_out_of_the_next_plan() {
    let mut played = Played::new(request(&[0]), view(10, &[1]));
    assert_eq!([played.well(), played.well()], ["allocate", "plan"]);
    let Some(Action::Run(planned)) = played.asked.take() else { panic!("a plan runs") };
    let home = played.machine.arriving()[0].home.node;
    let helper = played.report(&planned).nodes.into_keys().find(|node| *node != home).unwrap();
    played.on(Event::Ran(Err(Error::replan("no answer in time").party(Party::Node(helper)))));
    assert_eq!([played.well(), played.well()], ["look up", "plan"]);
    let Some(Action::Run(planned)) = &played.asked else { panic!("a plan runs") };
    assert!(!played.report(planned).nodes.contains_key(&helper));
    assert!(played.said[0].contains("no answer in time; resuming with the 65536 missing positions"), "{:?}", played.said);
    assert_eq!(steps(&mut played), ["run", "commit"]);
}

#[test]
fn a_failed_home_is_replaced_and_arrived_blocks_are_not_sent_again() {
    let mut played = Played::new(request(&[0, 5]), view(10, &[1, 6]));
    assert_eq!([played.well(), played.well(), played.well()], ["allocate", "allocate", "plan"]);
    let Some(Action::Run(planned)) = played.asked.take() else { panic!("a plan runs") };
    let arriving: Vec<(BlockId, NodeId)> = played.machine.arriving().iter().map(|new| (new.block, new.home.node)).collect();
    let mut report = played.report(&planned);
    played.done(&mut report, arriving[1].1);
    report.broken(arriving[0].1, Error::replan("the node is gone"));
    report.give_up_rest();
    report.blame = Some(Blame { node: arriving[0].1, accuser: None });
    played.on(Event::Ran(Ok(report)));
    assert_eq!([played.well(), played.well(), played.well()], ["look up", "release", "allocate"]);
    let Some(Action::Plan(ask)) = &played.asked else { panic!("a plan is made") };
    let Event::Planned(Ok(planned)) = played.planned(ask) else { panic!("a plan can be made") };
    let stores: Vec<u8> = planned.job.wants.iter().map(|want| want.index).collect();
    assert_eq!(stores, [0], "block 5 is durable");
    assert_ne!(played.machine.arriving()[0].home.node, arriving[0].1);
    assert_eq!(steps(&mut played), ["plan", "run", "commit", "commit"]);
}

#[test]
fn a_named_home_is_not_replaced() {
    let to = Destination::Nodes(vec![NodeId(9)]);
    let mut played = Played::new(Request { to: to.clone(), ..request(&[0]) }, view(10, &[1]));
    assert_eq!([played.well(), played.well()], ["allocate", "plan"]);
    played.asked = None;
    played.on(Event::Ran(Err(Error::replan("no answer in time").party(Party::Node(NodeId(9))))));
    assert_eq!(steps(&mut played), ["look up", "release"]);
    let error = played.ended.unwrap().unwrap_err();
    assert!(error.message.contains("node-9 failed, which was to store the block"), "{error}");
    let mut down = Played::new(Request { to, ..request(&[0]) }, view(10, &[1, 9]));
    assert!(down.asked.is_none() && down.ended.take().unwrap().unwrap_err().message.contains("node-9 is down"));
}

impl Played {
    /// Plays to the end. Of plans for which `is_wrong` holds, given helpers and homes, the homes store other bytes than were lost. Returns
    /// how many plans ran.
    fn with_wrong_results(&mut self, is_wrong: impl Fn(&BTreeSet<NodeId>, &BTreeSet<NodeId>) -> bool) -> usize {
        let mut plans = 0;
        while self.ended.is_none() {
            let Some(Action::Run(planned)) = &self.asked else {
                self.well();
                continue;
            };
            plans += 1;
            let mut report = self.report(planned);
            let arriving: Vec<Arriving> = self.machine.arriving().iter().filter(|new| new.durable.is_none()).cloned().collect();
            let homes: BTreeSet<NodeId> = arriving.iter().map(|new| new.home.node).collect();
            let helpers = report.nodes.keys().copied().filter(|node| !homes.contains(node)).collect();
            if !is_wrong(&helpers, &homes) {
                self.well();
                continue;
            }
            for new in arriving {
                let stored = vec![(new.block, Stored { len: BLOCK_LEN, checksums: vec![99] })];
                report.take(new.home.node, TaskEvent::Done { stored, traffic: TaskTraffic::default(), stages: Vec::new() });
            }
            self.asked = None;
            self.on(Event::Ran(Ok(report)));
        }
        self.check_end();
        plans
    }
}

#[test]
fn a_block_that_its_new_home_corrupts_goes_to_another() {
    let mut played = Played::new(request(&[0]), view(10, &[1]));
    let Some(Action::Allocate { home, .. }) = &played.asked else { panic!("an allocation is expected") };
    let first = home.node;
    assert_eq!(played.with_wrong_results(|_, homes| homes.contains(&first)), 2);
    let rebuilt = played.ended.unwrap().unwrap();
    assert_ne!(rebuilt.blocks[0].home.node, first);
    assert!(played.suspects.contains(&first) && played.said.iter().any(|said| said.contains("one of which changes bytes")));
    assert!(rebuilt.left.is_empty() && rebuilt.resumed == 1);
}

#[test]
fn helpers_are_left_out_in_turn_until_the_rebuilt_block_is_right() {
    for lies in 2..=6 {
        let mut played = Played::new(request(&[0]), view(10, &[1]));
        let plans = played.with_wrong_results(|helpers, _| helpers.contains(&NodeId(lies)));
        assert!(played.ended.unwrap().unwrap().left.is_empty(), "node {lies}");
        assert!(plans <= 5, "{plans} plans with node {lies}");
        assert!(plans == 1 || played.suspects.contains(&NodeId(lies)), "{:?} with node {lies}", played.suspects);
        assert!(played.suspects.len() <= 2, "{:?}", played.suspects);
    }
    // Bounded otherwise, but each of the helpers has its turn.
    let mut played = Played::new(Request { resumes_max: 1, ..request(&[0]) }, view(10, &[1]));
    played.with_wrong_results(|helpers, _| helpers.contains(&NodeId(5)));
    assert!(played.ended.unwrap().is_ok());
}

#[test]
fn a_named_home_keeps_its_block_and_helpers_are_left_out() {
    let to = Destination::Nodes(vec![NodeId(9)]);
    let mut played = Played::new(Request { to, ..request(&[0]) }, view(10, &[1]));
    played.with_wrong_results(|helpers, _| helpers.contains(&NodeId(3)));
    assert_eq!(played.ended.unwrap().unwrap().blocks[0].home.node, NodeId(9));
}

#[test]
fn with_no_other_helpers_and_no_other_home_the_sources_of_a_wrong_block_are_named() {
    let mut played = Played::new(request(&[0, 1]), view(8, &[1, 2]));
    assert_eq!(played.with_wrong_results(|_, _| true), 2);
    let error = played.ended.unwrap().unwrap_err();
    assert!(error.reaction == Reaction::Corrupt && error.message.contains("on node-3"), "{error}");
    assert_eq!(played.suspects, [], "anyone may be at fault, or the recorded checksums");

    // All of them lie.
    let mut played = Played::new(request(&[0]), view(10, &[1]));
    assert!(played.with_wrong_results(|_, _| true) <= 6);
    assert_eq!((played.ended.unwrap().unwrap_err().reaction, played.suspects), (Reaction::Corrupt, vec![]));
}

#[test]
fn a_block_whose_recorded_checksums_are_wrong_keeps_no_other_from_being_rebuilt() {
    let mut lost = request(&[0, 1]);
    lost.lost[0].checksums = Some(vec![77]);
    let mut played = Played::new(lost, view(10, &[1, 2]));
    steps(&mut played);
    let rebuilt = played.ended.unwrap().unwrap();
    assert_eq!(rebuilt.blocks.iter().map(|new| new.block.index).collect::<Vec<_>>(), [1]);
    assert_eq!((rebuilt.left.len(), rebuilt.left[0].0, played.suspects), (1, (0, 0), vec![]));
}

#[test]
fn a_replaced_home_leaves_no_rack_with_too_many_of_the_blocks_that_still_arrive() {
    // Five blocks are in rack a, and two may be in each.
    let mut racks = view(10, &[]);
    for (node, rack) in racks.nodes.values_mut().zip(["a", "a", "a", "a", "a", "b", "c", "c", "c", "d"]) {
        node.rack = rack.into();
    }
    let crowded = Request { needed: Needed::ToSpread, failure_domain: FailureDomain::Rack, ..request(&[2, 3, 4]) };
    let options = RepairOptions::new(simplest(Kind::Move).unwrap().name().into(), AutoSize::bytes(16 << 10));
    let crowded = Request { options, ..crowded };
    let mut played = Played::new(crowded, racks);
    assert_eq!([played.well(), played.well(), played.well(), played.well()], ["allocate", "allocate", "allocate", "plan"]);
    assert!(played.machine.arriving().iter().any(|new| new.home.node == NodeId(10)));
    played.asked = None;
    played.on(Event::Ran(Err(Error::replan("it is gone").party(Party::Node(NodeId(10))))));
    steps(&mut played);
    let rebuilt = played.ended.unwrap().unwrap();
    let homes: BTreeSet<u32> = rebuilt.blocks.iter().map(|new| new.home.node.0).collect();
    assert!(homes.len() == 2 && homes.iter().all(|home| (7..=9).contains(home)), "{homes:?}");
    assert!(rebuilt.left[0].1.contains("rack c gets 3 blocks"), "{:?}", rebuilt.left);
}

#[test]
fn a_block_that_cannot_be_committed_is_released_and_left() {
    let mut played = Played::new(request(&[0, 5]), view(10, &[1, 6]));
    assert_eq!([played.well(), played.well(), played.well(), played.well()], ["allocate", "allocate", "plan", "run"]);
    let Some(Action::Commit { new, old }) = played.asked.take() else { panic!("a commit is expected") };
    assert_eq!((new.block.index, old), (0, 1));
    played.on(Event::Committed(Err(Error::replan("another repair committed first"))));
    assert!(matches!(played.asked, Some(Action::Release { may_be_written: false, .. })));
    assert_eq!(steps(&mut played), ["release", "commit"]);
    assert_eq!(played.ended.unwrap().unwrap().left, [((0, 0), "another repair committed first".to_owned())]);

    let mut played = Played::new(request(&[0]), view(10, &[1]));
    assert_eq!([played.well(), played.well(), played.well()], ["allocate", "plan", "run"]);
    played.asked = None;
    played.on(Event::Committed(Err(Error::replan("the object is gone"))));
    assert_eq!(steps(&mut played), ["release"]);
    assert_eq!(played.ended.unwrap().unwrap_err().message, "the object is gone");
}

#[test]
fn too_many_losses_fail_before_any_allocation() {
    let played = Played::new(request(&[0, 1, 2]), view(10, &[1, 2, 3]));
    let error = played.ended.unwrap().unwrap_err();
    assert!(played.asked.is_none() && error.message.contains("rs(4,2) tolerates the loss of 2"), "{error}");
    let view = View { coming_back: true, ..view(10, &[1, 2, 3]) };
    let error = Played::new(request(&[0, 1, 2]), view).ended.unwrap().unwrap_err();
    assert_eq!(error.reaction, Reaction::Retry, "nodes are still coming back");
}

#[test]
fn an_explained_plan_is_the_one_that_runs() {
    let (view, request) = (view(12, &[1]), Request { helpers: Some(HelperSelect::Lru), ..request(&[0]) });
    let mut played = Played::new(request.clone(), view.clone());
    assert_eq!([played.well(), played.well()], ["allocate", "plan"]);
    let Some(Action::Run(done)) = &played.asked else { panic!("a plan runs") };
    let (mut used, mut given, mut rng) = (LastUsed::default(), BlocksGiven::new(), StdRng::seed_from_u64(1));
    let mut world = World { view: &view, used: &mut used, given: &mut given, rng: &mut rng };
    let machine = Rebuild::new(request.clone());
    let (ask, warnings) = machine.explain(&mut world).unwrap();
    let Event::Planned(Ok(explained)) = played.planned(&ask) else { panic!("a plan can be made") };
    assert_eq!((&explained.plan.binding.parties, warnings), (&done.plan.binding.parties, Vec::<String>::new()));

    // The second stripe has other helpers, whether explained or run.
    machine.note_helpers(&explained, &mut world);
    let (ask, _) = Rebuild::new(request.clone()).explain(&mut world).unwrap();
    let Event::Planned(Ok(explained)) = played.planned(&ask) else { panic!("a plan can be made") };
    let mut next = Played { used: played.used.clone(), ..Played::new(request, view.clone()) };
    assert_eq!([next.well(), next.well()], ["allocate", "plan"]);
    let Some(Action::Run(next_done)) = &next.asked else { panic!("a plan runs") };
    assert_eq!(explained.plan.binding.parties, next_done.plan.binding.parties);
    assert_ne!(read_by(next_done), read_by(done), "five nodes can help, and only four are needed");
}

fn read_by(planned: &Planned) -> BTreeSet<u8> {
    planned.plan.binding.blocks.iter().map(|block| block.id.index).collect()
}

#[test]
fn the_number_of_plans_is_bounded() {
    let mut played = Played::new(Request { resumes_max: 2, ..request(&[0]) }, view(20, &[1]));
    let mut plans = 0;
    while played.ended.is_none() {
        let Some(Action::Run(_)) = &played.asked else {
            played.well();
            continue;
        };
        plans += 1;
        let home = played.machine.arriving()[0].home.node;
        played.asked = None;
        played.on(Event::Ran(Err(Error::replan("no answer in time").party(Party::Node(home)))));
    }
    played.check_end();
    let error = played.ended.unwrap().unwrap_err();
    assert!(error.reaction == Reaction::Unavailable && error.message.starts_with("gave up after 3 plans"), "{error}");
    assert_eq!(plans, 3);
}

#[test]
fn blocks_found_bad_in_the_meantime_are_avoided_by_the_next_plan() {
    let mut played = Played::new(request(&[0]), view(10, &[1]));
    assert_eq!([played.well(), played.well()], ["allocate", "plan"]);
    let Some(Action::Run(planned)) = played.asked.take() else { panic!("a plan runs") };
    let bad = *read_by(&planned).first().unwrap();
    let block = stripe().block_id(bad).unwrap();
    let error = Error::corrupt("page 3").party(Party::Node(NodeId(u32::from(bad) + 1))).block(block);
    played.on(Event::Ran(Err(Error { reaction: Reaction::Replan, ..error })));
    let mut now = stripe();
    now.blocks.get_mut(&bad).unwrap().state = BlockState::Corrupt;
    // Another repair has replaced block 5: the state of its new generation does not apply to the known one.
    now.blocks.insert(5, PlacedBlock { generation: 2, state: BlockState::Missing, ..now.blocks[&5] });
    played.asked = None;
    played.on(Event::LookedUp(Some(now)));
    assert_eq!(played.well(), "plan");
    let Some(Action::Run(planned)) = &played.asked else { panic!("a plan runs") };
    assert!(!read_by(planned).contains(&bad) && read_by(planned).contains(&5));
    assert_eq!(steps(&mut played), ["run", "commit"]);
}

#[test]
fn only_requestors_get_blocks_and_in_turn() {
    let to = Destination::Among([8, 9, 10].map(NodeId).into());
    let (mut given, mut homes) = (BlocksGiven::new(), Vec::new());
    for _ in 0..6 {
        let mut played = Played { given, ..Played::new(Request { to: to.clone(), ..request(&[0]) }, view(12, &[1])) };
        // The first event placed it without earlier load, so start again with load.
        (played.machine, played.asked) = (Rebuild::new(Request { to: to.clone(), ..request(&[0]) }), None);
        played.on(Event::Begin);
        let Some(Action::Allocate { home, .. }) = &played.asked else { panic!("an allocation is expected") };
        homes.push(home.node.0);
        steps(&mut played);
        given = played.given;
    }
    homes.sort_unstable();
    assert_eq!(homes, [8, 8, 9, 9, 10, 10]);
}

#[test]
fn the_traffic_of_plans_adds_up() {
    let mut played = Played::new(request(&[0]), view(10, &[1]));
    assert_eq!([played.well(), played.well()], ["allocate", "plan"]);
    let moved = TaskTraffic { read_bytes: 5, ..TaskTraffic::default() };
    let Some(Action::Run(planned)) = played.asked.take() else { panic!("a plan runs") };
    let mut report = played.report(&planned);
    let helper = NodeId(u32::from(*read_by(&planned).first().unwrap()) + 1);
    let failed = |traffic| TaskEvent::Failed {
        stored: Vec::new(),
        arrived: Vec::new(),
        corrupt: Vec::new(),
        traffic,
        errors: vec![Error::fatal("its disk failed").party(Party::Node(helper))],
    };
    report.take(helper, failed(moved));
    report.give_up_rest();
    report.blame = Some(Blame { node: helper, accuser: None });
    played.on(Event::Ran(Ok(report)));
    assert_eq!(steps(&mut played).last(), Some(&"commit"));
    let rebuilt = played.ended.unwrap().unwrap();
    assert_eq!((rebuilt.traffic, rebuilt.resumed), (moved, 1));
}

/// An event of the property test; the numbers choose among the nodes.
#[derive(Debug, Clone)]
enum Fate {
    Well,
    /// The answer is an error of this kind.
    Refused(u8),
    /// A node fails in the plan in this way, and another may blame it.
    NodeFails {
        way: u8,
        node: usize,
        accuser: Option<usize>,
        held_up: bool,
    },
    /// The view changes: another node is down or up again.
    Turns(u32),
    /// An event that answers no action.
    Stray(u8),
}

fn any_fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Well),
        2 => (0..4u8).prop_map(Fate::Refused),
        4 => (0..5u8, 0..8usize, proptest::option::of(0..8usize), any::<bool>())
            .prop_map(|(way, node, accuser, held_up)| Fate::NodeFails { way, node, accuser, held_up }),
        1 => (1..=12u32).prop_map(Fate::Turns),
        1 => (0..5u8).prop_map(Fate::Stray),
    ]
}

impl Played {
    fn step(&mut self, fate: &Fate) {
        match fate {
            Fate::Well => {
                self.well();
            }
            Fate::Turns(id) => {
                let node = self.view.nodes.get_mut(&NodeId(*id)).unwrap();
                node.up = !node.up;
            }
            Fate::Stray(kind) => self.stray(*kind),
            Fate::Refused(kind) => {
                let error = match kind {
                    0 => Error::replan("not now"),
                    1 => Error::replan("no answer in time").party(Party::Node(NodeId(self.rng.random_range(1..=12)))),
                    2 => Error::unavailable("too few"),
                    _ => Error::fatal("the disk of the metadata is full"),
                };
                let event = match self.asked.as_ref().unwrap() {
                    Action::Allocate { .. } => Event::Allocated(Err(error)),
                    Action::Plan(_) => Event::Planned(Err(error)),
                    Action::Run(_) => Event::Ran(Err(error)),
                    Action::Commit { .. } => Event::Committed(Err(error)),
                    Action::LookUp => Event::LookedUp(None),
                    _ => {
                        self.well();
                        return;
                    }
                };
                self.asked = None;
                self.on(event);
            }
            Fate::NodeFails { way, node, accuser, held_up } => {
                let Some(Action::Run(planned)) = &self.asked else {
                    self.well();
                    return;
                };
                let mut report = self.report(planned);
                let nodes: Vec<NodeId> = report.nodes.keys().copied().collect();
                let node = nodes[node % nodes.len()];
                let accuser = accuser.map(|accuser| nodes[accuser % nodes.len()]).filter(|accuser| *accuser != node);
                let others: Vec<NodeId> = nodes.iter().copied().filter(|other| *other != node).collect();
                for other in others {
                    if self.rng.random_bool(0.5) {
                        self.done(&mut report, other);
                    }
                }
                self.fail(&mut report, node, *way);
                report.give_up_rest();
                let blame = Blame { node, accuser };
                report.blame = Some(blame);
                report.held_up = held_up.then(|| (blame, Error::replan("it delays all others")));
                self.asked = None;
                self.on(Event::Ran(Ok(report)));
            }
        }
    }

    fn fail(&self, report: &mut Report, node: NodeId, way: u8) {
        let new = self.machine.arriving().iter().find(|new| new.home.node == node && new.durable.is_none());
        let told: &mut NodeReport = report.nodes.get_mut(&node).unwrap();
        match way {
            0 => told.end = Some(End::GivenUp),
            1 => {
                let block = self.machine.request().stripe.all().find(|(_, placed)| placed.home.node == node);
                let block = block.and_then(|(index, _)| self.machine.request().stripe.block_id(index));
                let error = Error::corrupt("page 3").party(Party::Node(node));
                told.end = Some(End::Failed(vec![match block {
                    Some(block) => error.block(block),
                    None => error,
                }]));
            }
            2 => {
                let arrived = new.map(|new| (new.block, vec![Span::new(0, BLOCK_LEN / 2)]));
                told.arrived.extend(arrived);
                told.end = Some(End::Failed(vec![Error::replan("reset")]));
            }
            3 => {
                let stored = new.map(|new| (new.block, Stored { len: BLOCK_LEN, checksums: vec![99] }));
                told.stored.extend(stored);
                told.end = Some(End::Done);
            }
            _ => told.end = Some(End::Broken(Error::replan("it went down"))),
        }
    }

    /// An event that answers no action changes nothing.
    fn stray(&mut self, kind: u8) {
        let asked = self.asked.take();
        let event = match (kind, &asked) {
            (0, _) => Event::Begin,
            (1, Some(Action::Release { .. })) | (2, Some(Action::Commit { .. })) => Event::LookedUp(None),
            (1, _) => Event::Released,
            (2, _) => Event::Committed(Ok(())),
            (3, Some(Action::LookUp)) => Event::Begin,
            (3, _) => Event::LookedUp(Some(stripe())),
            (_, Some(Action::Allocate { .. })) => Event::Begin,
            (_, _) => Event::Allocated(Err(Error::fatal("late"))),
        };
        self.on(event);
        assert!(self.asked.is_none() && self.ended.is_none());
        self.asked = asked;
    }
}

proptest! {
    #[test]
    fn under_any_events_it_ends_and_nothing_stays_allocated(
        fates in proptest::collection::vec(any_fate(), 0..60),
        lost in proptest::sample::subsequence(vec![0u8, 2, 5], 1..=2),
        nodes in 7..=12u32,
        put in any::<bool>(),
        select in proptest::option::of(Just(HelperSelect::Lru)),
    ) {
        let purpose = if put { Purpose::Put(UploadId(3)) } else { Purpose::Repair };
        let down: Vec<u32> = lost.iter().map(|index| u32::from(*index) + 1).collect();
        let mut world = view(12, &down);
        world.nodes.values_mut().filter(|node| node.id.0 > nodes).for_each(|node| node.up = false);
        let mut played = Played::new(Request { purpose, helpers: select, ..request(&lost) }, world);
        for fate in &fates {
            if played.ended.is_some() {
                break;
            }
            played.step(fate);
        }
        // Without further failures, it ends soon.
        let mut rest = 0;
        while played.ended.is_none() {
            played.well();
            rest += 1;
            prop_assert!(rest < 100, "it does not end: {:?}", played.asked);
        }
        played.check_end();
    }
}

#[test]
fn a_repair_uses_the_space_that_new_copies_leave() {
    let mut view = view(8, &[1]);
    // A quarter of each disk of 1 TiB is kept, and less is free.
    view.nodes.values_mut().for_each(|node| node.disks[0].free_bytes = 1 << 37);
    let kept = crate::reserve::share(weft_types::RebuildReserve::Percent(25), &view, 6);
    let homes = |kept| Request { kept, ..request(&[0]) }.choose_homes(&view, &mut BlocksGiven::new());
    assert!(homes(Share::NONE).unwrap().homes[0].is_some());
    assert_eq!(homes(kept).unwrap_err().cause, Some(Cause::NoSpace));
}

#[test]
fn blocks_that_came_back_are_dropped() {
    let lost = || Request { needed: Needed::WhileLost, ..request(&[0, 1]) };
    // The plan is ended because both nodes are back.
    let mut played = Played::new(lost(), view(9, &[1, 2]));
    assert_eq!([played.well(), played.well(), played.well()], ["allocate", "allocate", "plan"]);
    assert!(!played.machine.request().is_needless(&played.view));
    played.view = view(9, &[]);
    assert!(played.machine.request().is_needless(&played.view));
    assert!(matches!(played.asked.take(), Some(Action::Run(_))));
    played.on(Event::Ran(Err(Error::unavailable("its blocks came back"))));
    assert_eq!([played.well(), played.well()], ["release", "release"]);
    let rebuilt = played.ended.take().unwrap().unwrap();
    assert_eq!((rebuilt.blocks.len(), rebuilt.left.len(), played.allocated.len()), (0, 0, 0));

    // One of two is back when both have been rebuilt.
    let mut played = Played::new(lost(), view(9, &[1, 2]));
    assert_eq!([played.well(), played.well(), played.well()], ["allocate", "allocate", "plan"]);
    played.view = view(9, &[2]);
    assert_eq!([played.well(), played.well(), played.well()], ["run", "release", "commit"]);
    let rebuilt = played.ended.take().unwrap().unwrap();
    assert_eq!(rebuilt.blocks.iter().map(|new| new.block.index).collect::<Vec<_>>(), [1]);
    assert_eq!((played.allocated.len(), played.committed.len()), (1, 1));

    // Blocks that are moved or copied are not lost.
    assert!(!request(&[0, 1]).is_needless(&view(9, &[])));
}
