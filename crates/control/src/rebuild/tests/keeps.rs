//! Blocks that were left out of updates in place, whose nodes keep what is right.

use super::*;
use crate::view::DiskView;
use weft_types::{DiskNumber, Layout, StripeLayout};

const MIB: u64 = 1 << 20;

/// Of block 0 of four MiB, the second one was changed by updates.
fn left_out(known: [Option<u32>; 4]) -> Request {
    let mut stripe = stripe();
    stripe.layout = StripeLayout { layout: Layout::new(4 * MIB, 4096, 1).unwrap(), k: 4, m: 2, data_len: 16 * MIB };
    stripe.checksums = (0..6).map(|index| vec![10 + index; 4]).collect();
    stripe.checksums[0].clear();
    stripe.kept = [(0, known.to_vec())].into();
    stripe.blocks.get_mut(&0).unwrap().state = BlockState::Missing;
    Request { lost: vec![Lost::of(&stripe, 0, 0)], stripe, ..request(&[]) }
}

const KNOWN: [Option<u32>; 4] = [Some(1), None, Some(3), Some(4)];

/// A rebuild that has asked a node to keep the block.
fn keeping(known: [Option<u32>; 4], nodes: u32) -> (Played, BlockId) {
    let mut played = Played::new(left_out(known), view(nodes, &[]));
    assert_eq!(played.well(), "allocate");
    let Some(Action::Keep { block, units }) = played.asked.take() else { panic!("its node is asked: {:?}", played.asked) };
    assert_eq!((units, home_of(&played)), (known.to_vec(), NodeId(1)));
    (played, block)
}

fn home_of(played: &Played) -> NodeId {
    played.machine.arriving()[0].home.node
}

/// A plan runs, after which the home has stored these bytes.
fn run(played: &mut Played, block: BlockId, checksums: [u32; 4]) {
    assert_eq!(played.well(), "plan");
    let Some(Action::Run(planned)) = played.asked.take() else { panic!("a plan runs") };
    let mut report = played.report(&planned);
    for node in report.nodes.keys().copied().collect::<Vec<_>>() {
        let receipt = (block, Stored { len: 4 * MIB, checksums: checksums.to_vec() });
        let stored = if node == home_of(played) { vec![receipt] } else { Vec::new() };
        report.take(node, TaskEvent::Done { stored, traffic: TaskTraffic::default(), stages: Vec::new() });
    }
    played.receipts.insert(block);
    played.on(Event::Ran(Ok(report)));
}

#[test]
fn a_plan_brings_what_updates_have_changed() {
    let (mut played, block) = keeping(KNOWN, 9);
    let arrived = vec![Span::new(0, MIB), Span::new(2 * MIB, 4 * MIB)];
    played.on(Event::Kept(Ok(Kept { arrived, checksums: None })));
    assert_eq!(played.machine.arriving()[0].missing, [Span::new(MIB, 2 * MIB)]);
    run(&mut played, block, [1, 2, 3, 4]);
    assert_eq!(steps(&mut played), ["commit"]);
}

#[test]
fn a_block_without_changes_needs_no_plan() {
    let (mut played, block) = keeping([Some(1), Some(2), Some(3), Some(4)], 9);
    played.receipts.insert(block);
    played.on(Event::Kept(Ok(Kept { arrived: Vec::new(), checksums: Some(vec![1, 2, 3, 4]) })));
    assert_eq!(steps(&mut played), ["commit"]);
}

#[test]
fn what_differs_from_what_is_known_is_not_committed() {
    let (mut played, block) = keeping(KNOWN, 9);
    played.on(Event::Kept(Ok(Kept::default())));
    assert_eq!(played.machine.arriving()[0].missing, [Span::new(0, 4 * MIB)], "its node has nothing of it");
    run(&mut played, block, [1, 2, 3, 5]);
    assert!(matches!(played.asked, Some(Action::LookUp)), "{:?}", played.asked);
}

#[test]
fn what_is_known_is_forgotten_if_all_helpers_and_homes_agree_on_other_bytes() {
    let mut played = Played::new(left_out(KNOWN), view(9, &[]));
    played.with_wrong_results(|_, _| true);
    assert_eq!((played.forgotten, played.suspects), (vec![0_u8], vec![]));
    assert_eq!(played.ended.unwrap().unwrap_err().reaction, Reaction::Corrupt);
    // Without node 2, the result is another one, and wrong, too.
    let mut played = Played::new(left_out(KNOWN), view(9, &[]));
    played.with_wrong_results(|helpers, _| helpers.contains(&NodeId(2)));
    assert!(played.forgotten.is_empty());
}

#[test]
fn a_node_that_does_not_answer_is_replaced_and_nothing_is_kept() {
    let unknown = || Event::Kept(Err(Error::retry("no answer in time")));
    let wrong = || Event::Kept(Ok(Kept { arrived: Vec::new(), checksums: Some(vec![9; 4]) }));
    for (nodes, kept) in [(9, unknown()), (6, unknown()), (9, wrong())] {
        let (mut played, first) = keeping(KNOWN, nodes);
        played.on(kept);
        assert_eq!([played.well(), played.well()], ["release", "allocate"]);
        assert!(matches!(played.asked, Some(Action::Plan(_))), "{:?}", played.asked);
        let new = &played.machine.arriving()[0];
        assert_eq!((new.missing.as_slice(), new.block.generation), (&[Span::new(0, 4 * MIB)][..], first.generation + 1));
        assert_eq!(home_of(&played) == NodeId(1), nodes == 6, "only if there is no other");
        assert!(played.said[0].contains("did not keep what is right"), "{:?}", played.said);
    }
}

#[test]
fn a_block_goes_to_its_own_node_only_if_much_of_it_may_be_there() {
    let homes = |known, view: &View| left_out(known).homes_that_keep(view)[0].map(|home| home.node);
    let mut view = view(9, &[]);
    assert_eq!(homes(KNOWN, &view), Some(NodeId(1)));
    assert_eq!(homes([None, Some(2), None, None], &view), Some(NodeId(1)));
    assert_eq!(homes([None; 4], &view), None);
    let disks = &mut view.nodes.get_mut(&NodeId(1)).unwrap().disks;
    let other = DiskView { number: DiskNumber(99), ..disks[0].clone() };
    disks.push(other);
    disks[0].failed = true;
    assert_eq!(homes(KNOWN, &view), None, "its disk has failed");
    view.nodes.get_mut(&NodeId(1)).unwrap().disks.remove(0);
    assert_eq!(homes(KNOWN, &view), None, "its disk is gone");
}

#[test]
fn a_block_goes_elsewhere_while_its_node_is_away() {
    let known = Known::new(ProofKey::PUBLIC);
    let mut played = Played::new(left_out(KNOWN), view(9, &[1]));
    assert_eq!(played.well(), "allocate");
    assert!(matches!(played.asked, Some(Action::Plan(_))) && home_of(&played) != NodeId(1));
    let silent = Request { silent: [NodeId(1)].into(), ..left_out(KNOWN) };
    let mut played = Played::new(silent, view(9, &[]));
    assert_eq!(played.well(), "allocate");
    assert_ne!(home_of(&played), NodeId(1), "it did not answer a moment ago");
    // There is nothing to schedule once it is back.
    assert!(left_out(KNOWN).open(&view(9, &[1]), &known).is_some());
    assert!(left_out(KNOWN).open(&view(9, &[]), &known).is_none());
}
