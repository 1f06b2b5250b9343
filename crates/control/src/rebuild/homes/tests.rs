use super::*;
use crate::{
    fixtures::{home, view},
    rebuild::tests::request,
};

#[test]
fn a_move_to_a_named_disk_fills_no_rack_beyond_the_fullest() {
    let mut racks = view(10, &[]);
    for (node, rack) in racks.nodes.values_mut().zip(["a", "a", "b", "b", "c", "c", "a", "a", "b", "d"]) {
        node.rack = rack.into();
    }
    let homes = |needed, to: u32, view: &View| {
        let to = Destination::Homes(vec![home(to)]);
        let moves = Request { needed, to, failure_domain: FailureDomain::Rack, ..request(&[4]) };
        moves.choose_homes(view, &mut BlocksGiven::new())
    };
    assert!(homes(Needed::ToSpread, 10, &racks).unwrap().warnings.is_empty());
    let refused = homes(Needed::ToSpread, 7, &racks).unwrap_err();
    assert!(refused.message.contains("rack a gets 3 blocks") && refused.reaction == Reaction::Unavailable, "{refused}");
    assert_eq!(homes(Needed::Always, 7, &racks).unwrap().warnings.len(), 1, "what is lost goes there with a warning");
    // One rack has three already: another one may.
    racks.nodes.get_mut(&NodeId(5)).unwrap().rack = "b".into();
    assert_eq!(homes(Needed::ToSpread, 7, &racks).unwrap().warnings.len(), 1);
}
