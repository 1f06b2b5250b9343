//! Moves of blocks that are not lost: what they give way to, and when they end.

use super::*;
use crate::health::{BadBlocks, Condition, FurtherLosses};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use weft_codes::{Code, SharedCode};
use weft_gf::SparseMatrix;

#[test]
fn a_move_gives_way_when_its_stripe_loses_a_block() {
    let mut played = Played::new(Request { needed: Needed::ToSpread, ..request(&[0]) }, view(9, &[]));
    assert_eq!([played.well(), played.well()], ["allocate", "plan"]);
    played.view = view(9, &[6]);
    assert!(matches!(played.asked.take(), Some(Action::Run(_))) && played.machine.request().is_needless(&played.view));
    played.on(Event::Ran(Err(Error::unavailable("block 5 is lost"))));
    assert_eq!(played.well(), "release");
    assert!(played.ended.take().unwrap().unwrap().blocks.is_empty() && played.allocated.is_empty());
    // Nothing begins.
    let mut late = Played::new(Request { needed: Needed::ToSpread, ..request(&[0]) }, view(9, &[6]));
    assert!(late.asked.is_none() && late.ended.take().unwrap().unwrap().blocks.is_empty());
}

#[test]
fn a_move_ends_when_its_block_need_not_leave_any_more() {
    let mut drained = view(9, &[]);
    drained.nodes.get_mut(&NodeId(1)).unwrap().disks[0].draining = true;
    let mut played = Played::new(Request { needed: Needed::WhileLeaving, ..request(&[0]) }, drained.clone());
    assert_eq!([played.well(), played.well()], ["allocate", "plan"]);
    assert!(!played.machine.request().is_needless(&played.view));
    drained.nodes.get_mut(&NodeId(6)).unwrap().up = false;
    assert!(played.machine.request().is_needless(&drained), "another one is lost");
    played.view = view(9, &[]);
    assert!(matches!(played.asked.take(), Some(Action::Run(_))) && played.machine.request().is_needless(&played.view));
    played.on(Event::Ran(Err(Error::unavailable("it is no longer needed"))));
    assert_eq!(played.well(), "release");
    assert!(played.ended.take().unwrap().unwrap().blocks.is_empty() && played.allocated.is_empty());
}

#[test]
fn what_is_left_of_a_stripe_that_cannot_be_rebuilt_may_leave() {
    let mut drained = view(9, &[3, 4, 5]);
    drained.nodes.get_mut(&NodeId(1)).unwrap().disks[0].draining = true;
    [3, 4, 5].iter().for_each(|node| drained.nodes.get_mut(&NodeId(*node)).unwrap().lost = true);
    let copy = || {
        let mut request = Request { needed: Needed::WhileLeaving, ..request(&[0]) };
        simplest(Kind::Move).unwrap().name().clone_into(&mut request.options.scheme);
        request
    };
    assert_eq!(steps(&mut Played::new(copy(), drained.clone())), ["allocate", "plan", "run", "commit"]);
    // One of them comes back: the others can be rebuilt, and come first.
    let mut played = Played::new(copy(), drained.clone());
    assert_eq!([played.well(), played.well()], ["allocate", "plan"]);
    drained.nodes.get_mut(&NodeId(3)).unwrap().up = true;
    assert!(!played.machine.request().is_needless(&played.view) && played.machine.request().gives_way(&drained));
}

/// A code, and how often its matrix was looked at.
#[derive(Debug)]
struct Looked(SharedCode, AtomicUsize);

impl Code for Looked {
    fn spec(&self) -> String {
        self.0.spec()
    }

    fn k(&self) -> usize {
        self.0.k()
    }

    fn m(&self) -> usize {
        self.0.m()
    }

    fn alpha(&self) -> usize {
        self.0.alpha()
    }

    fn generator(&self) -> &SparseMatrix {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.generator()
    }

    fn tolerance(&self) -> usize {
        self.0.tolerance()
    }
}

#[test]
fn whether_a_stripe_can_be_read_is_computed_once_for_each_set_of_lost_blocks() {
    let code = Arc::new(Looked(weft_codes::parse("lrc(4,2,2)").unwrap(), AtomicUsize::new(0)));
    let mut request = Request { needed: Needed::WhileLeaving, code: Arc::clone(&code) as SharedCode, ..request(&[0]) };
    request.stripe.layout.m = 4;
    for id in [7, 8] {
        let placed = weft_types::PlacedBlock { home: crate::fixtures::home(id), ..request.stripe.blocks[&5] };
        request.stripe.blocks.insert(id as u8 - 1, placed);
    }
    // Four blocks are left, and they do not suffice: block 0 may leave.
    let mut lost = view(9, &[2, 5, 7, 8]);
    lost.nodes.values_mut().for_each(|node| node.lost = !node.up);
    lost.nodes.get_mut(&NodeId(1)).unwrap().disks[0].draining = true;
    let further = Condition::of(
        &request.stripe,
        BadBlocks::of(&request.stripe, &lost),
        &request.code,
        &lost,
        &mut FurtherLosses::default(),
    );
    let looks = || code.1.load(Ordering::Relaxed);
    let before = looks();
    let first = request.gives_way(&lost);
    assert!(looks() > before, "it takes a look");
    let (after, clone) = (looks(), request.clone());
    for _ in 0..9 {
        assert_eq!((request.gives_way(&lost), clone.gives_way(&lost), first), (first, first, !further.only_moves()));
    }
    assert_eq!(looks(), after);
    // Another set of lost blocks is another question.
    lost.nodes.get_mut(&NodeId(8)).unwrap().up = true;
    assert!(request.gives_way(&lost) && looks() > after);
}

#[test]
fn a_rebuild_ends_when_the_disk_of_its_block_is_in_another_node() {
    let mut played = Played::new(Request { needed: Needed::WhileLost, ..request(&[0]) }, view(9, &[1]));
    assert_eq!([played.well(), played.well()], ["allocate", "plan"]);
    let (mut now, view) = (played.machine.request().stripe.clone(), played.view.clone());
    assert!(!played.machine.request().came_back_elsewhere(&now, &view), "it is still lost");
    now.find_mut(0, 0).unwrap().home = crate::fixtures::home(8);
    assert!(played.machine.request().came_back_elsewhere(&now, &view) && !played.machine.request().is_needless(&view));
    let mut other = now.clone();
    other.find_mut(0, 0).unwrap().generation = 2;
    assert!(!played.machine.request().came_back_elsewhere(&other, &view), "another block");
    assert!(matches!(played.asked.take(), Some(Action::Run(_))));
    played.machine.refresh(&now);
    played.on(Event::Ran(Err(Error::unavailable("its blocks came back"))));
    assert_eq!(played.well(), "release");
    let rebuilt = played.ended.take().unwrap().unwrap();
    assert_eq!((rebuilt.blocks.len(), rebuilt.left.len(), played.allocated.len()), (0, 0, 0));
}
