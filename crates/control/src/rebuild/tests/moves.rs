//! Moves of blocks that are not lost: what they give way to, and when they end.

use super::*;

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
