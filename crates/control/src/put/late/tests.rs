//! Stripes that end early, with a shell that answers when the test says so.

use super::*;
use crate::{
    fixtures::{BLOCK_LEN, home, view},
    put::tests::{request, sent},
    run::{Stored, TaskEvent},
};
use proptest::prelude::*;
use weft_types::{Error, PlacedBlock, TaskTraffic};

const BLOCKS: u8 = 6;

/// A stripe, its plan, and the state of the shell.
struct Played {
    machine: LateStripe,
    view: View,
    sent: SentStripe,
    report: Report,
    places: LatePlans<()>,
    /// The action that has no answer yet.
    asked: Option<Action>,
    /// Blocks that were recorded.
    marked: Vec<BlockId>,
    suspects: Vec<u32>,
    warned: Vec<String>,
    /// How the stripe was ended: early, or with its plan.
    early: Option<bool>,
    is_over: bool,
}

impl Played {
    /// A stripe of which `missing_max` blocks may be missing, with a copy of block 0 on node 7.
    fn new(missing_max: u32) -> Self {
        let mut sent = sent("direct");
        let copy = PlacedBlock { copy: 1, home: home(7), ..sent.stripe.blocks[&0] };
        sent.stripe.copies.push((0, copy));
        let report = Report::new(sent.brings().map(|(_, home)| home.node));
        let machine = LateStripe::new(Request { missing_max, ..request() }, Box::new(sent.clone()), BTreeSet::from([NodeId(6)]));
        Self {
            machine,
            view: view(7, &[]),
            sent,
            report,
            places: LatePlans::default(),
            asked: None,
            marked: Vec::new(),
            suspects: Vec::new(),
            warned: Vec::new(),
            early: None,
            is_over: false,
        }
    }

    /// A node has finished its task: it stored its block, with these checksums.
    fn stores(&mut self, node: u32, checksum: u32) {
        let (block, _) = self.sent.brings().find(|(_, home)| home.node.0 == node).unwrap();
        let stored = vec![(block, Stored { len: BLOCK_LEN, checksums: vec![checksum] })];
        let done = TaskEvent::Done { stored, traffic: TaskTraffic::default(), stages: Vec::new() };
        self.report.take(NodeId(node), done);
    }

    /// These nodes have stored what was sent.
    fn come(&mut self, nodes: impl IntoIterator<Item = u32>) {
        for node in nodes {
            self.stores(node, 10 + (node - 1) % 6);
        }
        self.on(Event::Told);
    }

    fn on(&mut self, event: Event) {
        let actions = self.machine.on(event, &World { view: &self.view, report: &self.report });
        for action in actions {
            assert!(
                self.asked.is_none() && !self.is_over,
                "only the last action asks for an answer: {:?}, {action:?}",
                self.asked
            );
            match action {
                Action::EndStripe { early, sent } => {
                    assert!(self.early.is_none() && (!early || self.places.has_stripe(sent.stripe.id)));
                    self.early = Some(early);
                    if early {
                        let after = sent.after(&self.report, &self.view);
                        assert!(after.is_enough(&self.machine.request));
                        self.asked = Some(Action::EndStripe { sent, early });
                    }
                }
                Action::Mark(block) => {
                    assert_eq!(self.early, Some(true));
                    assert!(!self.marked.contains(&block), "{block} was recorded twice");
                    let (_, home) = self.sent.brings().find(|(brought, _)| *brought == block).unwrap();
                    let receipt = self.report.stored(block, home.node).unwrap();
                    assert_eq!(receipt.checksums, [10 + u32::from(block.index)], "{block} has a receipt of its own home");
                    self.asked = Some(Action::Mark(block));
                }
                Action::Enter => self.asked = Some(Action::Enter),
                Action::Suspect(node) => self.suspects.push(node.0),
                Action::Warn(_, reason) => self.warned.push(reason),
                Action::End => {
                    self.places.leave(self.sent.stripe.id);
                    self.is_over = true;
                }
            }
        }
    }

    /// Answers the pending action, with success or failure.
    fn answer(&mut self, good: bool) {
        let event = match self.asked.take() {
            None => return,
            Some(Action::Enter) => Event::Entered(good && self.places.enter(self.sent.stripe.id, self.sent_by(), ())),
            Some(Action::Mark(block)) if good => {
                self.marked.push(block);
                Event::Marked(Ok(()))
            }
            Some(Action::Mark(_)) => Event::Marked(Err(Error::unavailable("the disk is full"))),
            Some(_) => Event::StripeEnded(good),
        };
        self.on(event);
    }

    fn sent_by(&self) -> UploadId {
        self.machine.request.upload
    }

    /// A stripe that has ended without block 5, on node 6, and without the copy on node 7.
    fn ended_early() -> Self {
        let mut played = Self::new(1);
        played.come(1..=4);
        assert!(played.asked.is_none(), "two are missing, but only one may be");
        played.come([5]);
        played.answer(true);
        assert_eq!((played.early, played.places.has_stripe(played.sent.stripe.id)), (Some(true), true));
        played.answer(true);
        assert!(played.asked.is_none() && played.marked.is_empty());
        played
    }

    fn marked(&self) -> Vec<(u8, u8)> {
        self.marked.iter().map(|block| (block.index, block.copy)).collect()
    }
}

#[test]
fn a_put_that_waits_for_all_blocks_ends_with_its_plan() {
    let mut played = Played::new(0);
    played.come(1..=7);
    assert!(played.asked.is_none() && !played.is_over);
    played.on(Event::PlanEnded);
    assert_eq!((played.early, played.is_over), (Some(false), true));
}

#[test]
fn blocks_that_arrive_after_the_end_are_recorded_on_arrival() {
    let mut played = Played::ended_early();
    played.on(Event::Told);
    assert!(played.asked.is_none(), "nothing new");
    played.come([7]);
    played.answer(true);
    assert_eq!(played.marked(), [(0, 1)]);
    played.come([6]);
    // Another report arrives while the block is being recorded.
    played.on(Event::Told);
    played.answer(true);
    assert_eq!(played.marked(), [(0, 1), (5, 0)]);
    assert!(played.asked.is_none());
    played.on(Event::PlanEnded);
    assert!(played.is_over && played.warned.is_empty() && played.suspects.is_empty());
    assert!(!played.places.has_stripe(played.sent.stripe.id));
}

#[test]
fn blocks_that_do_not_arrive_are_reported() {
    let mut played = Played::ended_early();
    played.report.broken(NodeId(6), Error::replan("reset"));
    played.stores(7, 99);
    played.on(Event::PlanEnded);
    assert_eq!(played.suspects, [6], "the writer blamed it");
    assert!(played.is_over && played.marked.is_empty());
    assert!(
        played.warned.len() == 2
            && played.warned[0].contains("block 5")
            && played.warned[1].contains("other bytes than were sent")
    );
}

#[test]
fn a_failed_record_is_retried_with_the_next_report() {
    let mut played = Played::ended_early();
    played.come([6]);
    played.answer(false);
    assert!(played.asked.is_none());
    played.come([7]);
    played.answer(false);
    played.answer(true);
    assert_eq!(played.marked(), [(0, 1)]);
    played.on(Event::PlanEnded);
    played.answer(false);
    assert!(played.is_over && played.warned.len() == 1, "{:?}", played.warned);
    assert!(played.warned[0].contains("the disk is full"), "{:?}", played.warned);
}

#[test]
fn a_stripe_waits_for_a_place_or_for_the_end_of_its_plan() {
    for plan_ends in [false, true] {
        let mut played = Played::new(2);
        played.come(1..=4);
        played.answer(false);
        played.on(Event::Told);
        assert!(played.asked.is_none(), "there was no room");
        played.on(Event::Room);
        if plan_ends {
            // Room that becomes free now is of no use.
            played.on(Event::PlanEnded);
        }
        played.answer(true);
        assert_eq!((played.early, played.is_over), (Some(!plan_ends), plan_ends));
        assert_eq!(played.places.has_stripe(played.sent.stripe.id), !plan_ends);
    }
}

#[test]
fn a_stripe_that_could_not_be_ended_leaves_its_place() {
    let mut played = Played::new(2);
    played.come(1..=6);
    played.answer(true);
    played.answer(false);
    assert!(played.is_over && !played.places.has_stripe(played.sent.stripe.id));
}

#[test]
fn the_number_of_places_is_bounded() {
    let mut places = LatePlans::default();
    let mut enter = |stripe, upload| places.enter(StripeId(stripe), UploadId(upload), stripe);
    assert!((0..4).all(|stripe| enter(stripe, 1)) && !enter(4, 1) && enter(4, 2) && !enter(4, 3));
    assert!((5..256).all(|stripe| enter(stripe, stripe)) && !enter(256, 256));
    assert!(places.leave(StripeId(2)) && !places.leave(StripeId(2)) && places.enter(StripeId(256), UploadId(1), 256));
    assert_eq!(places.of_put(UploadId(1)).copied().collect::<Vec<_>>(), [0, 1, 3, 256]);
}

/// An event of the property test.
#[derive(Debug, Clone)]
enum Happens {
    /// A node stores what was sent, or something else.
    Stored(u32, bool),
    Answered(bool),
    /// An answer to no action.
    Stray(u8),
    Event(u8),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => (1..=7u32, prop::bool::weighted(0.9)).prop_map(|(node, good)| Happens::Stored(node, good)),
        4 => any::<bool>().prop_map(Happens::Answered),
        1 => (0..3u8).prop_map(Happens::Stray),
        1 => (0..4u8).prop_map(Happens::Event),
    ]
}

proptest! {
    /// Each block is recorded at most once, and only with a receipt from its own home (see [`Played::on`]). In any case
    /// the stripe ends and leaves its place.
    #[test]
    fn under_any_events_a_stripe_ends(missing_max in 0..=2u32, happens in prop::collection::vec(happens(), 0..40)) {
        let mut played = Played::new(missing_max);
        let mut done = BTreeSet::new();
        for happens in happens {
            match happens {
                Happens::Stored(node, good) if done.insert(node) && played.machine.plan == Plan::Runs => {
                    played.stores(node, if good { 10 + (node - 1) % 6 } else { 99 });
                    played.on(Event::Told);
                }
                Happens::Stored(..) => {}
                Happens::Answered(good) => played.answer(good),
                Happens::Stray(0) if !matches!(played.asked, Some(Action::Enter)) => played.on(Event::Entered(true)),
                Happens::Stray(1) if !matches!(played.asked, Some(Action::EndStripe { .. })) => played.on(Event::StripeEnded(true)),
                Happens::Stray(2) if !matches!(played.asked, Some(Action::Mark(_))) => played.on(Event::Marked(Ok(()))),
                Happens::Stray(_) => {}
                Happens::Event(0) => played.on(Event::Told),
                Happens::Event(1) => played.on(Event::Room),
                Happens::Event(2) => played.on(Event::PlanEnded),
                Happens::Event(_) => played.on(Event::PlanLost),
            }
        }
        let is_lost = played.machine.plan == Plan::Lost;
        played.on(Event::PlanEnded);
        for _ in 0..=BLOCKS + 3 {
            played.answer(true);
        }
        prop_assert!(played.is_over && played.asked.is_none() && !played.places.has_stripe(played.sent.stripe.id));
        prop_assert!(played.early.is_some() || is_lost);
        played.on(Event::Told);
        prop_assert!(missing_max > 0 || played.early != Some(true));
    }
}
