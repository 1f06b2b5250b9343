//! Disks that are moved to another node, and their blocks, which follow.

use crate::{
    commit_at,
    common::{garbage_of, node_of, open},
    copies::{BACK_TO_SCHEMA_21, begun, end, fresh, put},
    new_put,
};
use weft_meta::*;
use weft_types::{BlockId, BlockState, DiskNumber, Epoch, Home, NodeId, NodeRecord, NodeState, Span, StripeRecord};

fn home(node: u32) -> Home {
    Home { node: NodeId(node), disk: DiskNumber(node) }
}

/// A node of these numbers that takes the disk of another one over, beside its own.
pub(crate) fn taking(node: u32, disk: u32, from: Home) -> NewNode {
    let own = node_of(node);
    let moved = NewDisk { path: "/moved".into(), taken_from: Some(from), ..node_of(disk).disks.remove(0) };
    NewNode { disks: own.disks.into_iter().chain([moved]).collect(), ..own }
}

async fn take_down(meta: &SqliteMeta, epoch: Epoch, node: u32) {
    meta.set_node_state(epoch, NodeId(node), NodeState::Down, 1).await.unwrap();
}

async fn register(meta: &SqliteMeta, epoch: Epoch, node: NewNode) -> NodeRecord {
    meta.register_node(epoch, node, 9).await.unwrap()
}

pub(crate) async fn follow(meta: &SqliteMeta, epoch: Epoch, from: u32) -> FollowedBlocks {
    meta.follow_disk(epoch, step(home(from))).await.unwrap()
}

fn step(from: Home) -> FollowDisk {
    FollowDisk { from, after: None, limit: 100, unchecked: false, only: None }
}

/// The nodes of a stripe's blocks: index, copy, node, disk.
fn homes(stripe: &StripeRecord) -> Vec<(u8, u8, u32, u32)> {
    stripe.all().map(|(index, placed)| (index, placed.copy, placed.home.node.0, placed.home.disk.0)).collect()
}

async fn node(meta: &SqliteMeta, id: u32) -> NodeRecord {
    meta.nodes().await.unwrap().into_iter().find(|node| node.id.0 == id).unwrap()
}

#[tokio::test]
async fn a_disk_gets_a_new_number_at_its_new_node_and_its_blocks_follow_as_they_are() {
    let (dir, meta, epoch) = fresh().await;
    let stripe = put(&meta, epoch).await;
    let corrupt = BlockId { stripe: stripe.id, index: 0, copy: 0, generation: 1 };
    meta.mark_found(epoch, corrupt, Bad::Corrupt(vec![Span::new(0, 4096)]), None).await.unwrap();
    let before = meta.stripe(stripe.id).await.unwrap();
    // Its node is up and has it.
    let refused = meta.register_node(epoch, taking(7, 1, home(1)), 9).await.unwrap_err();
    assert!(
        matches!(&refused, MetaError::Conflict(why) if why.contains("n1 has come back and has the disk disk-1")),
        "{refused}"
    );
    take_down(&meta, epoch, 1).await;
    let wrong = meta.register_node(epoch, taking(7, 1, home(2)), 9).await.unwrap_err();
    assert!(matches!(&wrong, MetaError::Conflict(why) if why.contains("is the disk disk-1 of node-1 by now")), "{wrong}");

    let taken = register(&meta, epoch, taking(7, 1, home(1))).await;
    let disks: Vec<(u32, &str)> = taken.disks.iter().map(|disk| (disk.number.0, &*disk.id)).collect();
    assert_eq!((disks, taken.came_back), (vec![(7, "disk-7"), (8, "disk-1")], false));
    let to = Home { node: NodeId(7), disk: DiskNumber(8) };
    let old = node(&meta, 1).await.disks.remove(0);
    assert_eq!((&*old.id, old.failed, old.moved_to), ("disk-1/1", false, Some(to)), "nothing is rebuilt for now");
    // No block is served by a node that the metadata does not name: they follow one by one, and this is known to the next coordinator.
    assert_eq!(meta.stripe(stripe.id).await.unwrap(), before);
    drop(meta);
    let meta = open(&dir.path().join("metadata.sqlite"));
    let followed = follow(&meta, epoch, 1).await;
    assert_eq!((followed.moved, followed.stayed, followed.complete), (vec![stripe.id], 0, true));
    let mut expected = before;
    expected.find_mut(0, 0).unwrap().home = to;
    assert_eq!(meta.stripe(stripe.id).await.unwrap(), expected, "with its generation, its state and its corrupt bytes");
    assert_eq!(meta.blocks_on(to, None, 9).await.unwrap().items, [corrupt]);
    assert_eq!((node(&meta, 1).await.disks, node(&meta, 7).await.came_back), (vec![], true), "it is to be checked");
    assert!(matches!(meta.follow_disk(epoch, step(home(1))).await, Err(MetaError::NotFound(_))));

    // If the old node comes back with the disk, the disk is another node's.
    let back = meta.register_node(epoch, node_of(1), 9).await.unwrap_err();
    assert!(matches!(&back, MetaError::Refused(why) if why.contains("disk-1 of node-7 (n7)")), "{back}");
    let stale = meta.follow_disk(Epoch(epoch.0 + 1), step(home(1))).await;
    assert!(matches!(stale, Err(MetaError::StaleLeader { .. })));
}

#[tokio::test]
async fn a_node_gets_no_second_block_of_a_stripe_and_what_stays_is_rebuilt_and_is_garbage_where_the_disk_is() {
    let (_dir, meta, epoch) = fresh().await;
    let stripe = put(&meta, epoch).await;
    // Node 5 has a copy of block 1, and node 1 registered without its disk.
    register(&meta, epoch, NewNode { disks: vec![], ..node_of(1) }).await;
    register(&meta, epoch, taking(5, 1, home(1))).await;
    let followed = follow(&meta, epoch, 1).await;
    assert_eq!((followed.moved.len(), followed.stayed, followed.complete), (0, 1, false));
    assert!(!node(&meta, 5).await.came_back, "nothing is to be checked");
    assert!(node(&meta, 1).await.disks[0].failed, "what could not follow is rebuilt");
    assert_eq!(meta.stripe(stripe.id).await.unwrap(), stripe);
    // Neither place can be forgotten now, and the old one takes no block.
    take_down(&meta, epoch, 5).await;
    let departing = meta.remove_node(epoch, NodeId(5), 9, 9).await.unwrap_err();
    assert!(
        matches!(&departing, MetaError::Conflict(why) if why.contains("blocks of a disk that was moved to n5")),
        "{departing}"
    );
    let to = Home { node: NodeId(5), disk: DiskNumber(8) };
    meta.set_disk_failed(epoch, to.disk, true).await.unwrap();
    let departing = meta.forget_disk(epoch, to, 9).await.unwrap_err();
    assert!(
        matches!(&departing, MetaError::Conflict(why) if why.contains("blocks of a disk that was moved to n5")),
        "{departing}"
    );
    let repair = |index, home| NewRepair { stripe: stripe.id, index, copy: 0, home, upload: None, term: None, expires_ms: 5 };
    let closed = meta.allocate_repair(epoch, repair(0, home(1))).await.unwrap_err();
    assert!(matches!(&closed, MetaError::Closed { message, .. } if message.contains("was moved to another node")), "{closed}");

    let rebuilt = meta.allocate_repair(epoch, repair(0, home(6))).await.unwrap();
    meta.commit_repair(epoch, rebuilt, 1, vec![1], 3).await.unwrap();
    let garbage = garbage_of(&meta, NodeId(5), 9).await;
    assert_eq!(garbage.iter().map(|it| (it.block.index, it.block.generation, it.home)).collect::<Vec<_>>(), [(0, 1, to)]);
    assert!(follow(&meta, epoch, 1).await.complete, "nothing is left there");
}

#[tokio::test]
async fn garbage_goes_first_and_a_block_on_its_way_to_the_new_node_holds_back_another_one_of_its_stripe() {
    let (_dir, meta, epoch) = fresh().await;
    let old = put(&meta, epoch).await;
    meta.remove_object(epoch, &new_put().name, 1).await.unwrap();
    let stripe = put(&meta, epoch).await;
    let (upload, late) = begun(&meta, epoch, 1, 0).await;
    let repair = NewRepair { stripe: stripe.id, index: 2, copy: 0, home: home(7), upload: None, term: None, expires_ms: 5 };
    let coming = meta.allocate_repair(epoch, repair).await.unwrap();
    take_down(&meta, epoch, 1).await;
    register(&meta, epoch, taking(7, 1, home(1))).await;
    let first = meta.follow_disk(epoch, FollowDisk { limit: 1, ..step(home(1)) }).await.unwrap();
    assert_eq!(first, FollowedBlocks { more: true, ..FollowedBlocks::default() });
    let garbage = garbage_of(&meta, NodeId(7), 9).await;
    assert_eq!((garbage.len(), garbage[0].block.stripe, garbage[0].home.disk), (1, old.id, DiskNumber(8)));
    assert!(garbage_of(&meta, NodeId(1), 9).await.is_empty());
    let held_back = follow(&meta, epoch, 1).await;
    assert_eq!((held_back.moved.len(), held_back.stayed, held_back.complete), (0, 1, false));
    meta.abort_repair(epoch, coming, 1).await.unwrap();
    let followed = follow(&meta, epoch, 1).await;
    // The put that has not ended keeps the place.
    assert_eq!((followed.moved, followed.complete), (vec![stripe.id], false));
    end(&meta, epoch, upload, &late, &[]).await.unwrap();
    meta.commit_put(epoch, upload, commit_at(2 << 20, 1)).await.unwrap();
    let followed = follow(&meta, epoch, 1).await;
    assert_eq!((followed.moved, followed.complete), (vec![late.id], true), "what it replaced is garbage where it is now");
}

#[tokio::test]
async fn one_block_follows_out_of_its_turn_and_no_walk_ends() {
    let (_dir, meta, epoch) = fresh().await;
    let stripe = put(&meta, epoch).await;
    take_down(&meta, epoch, 1).await;
    register(&meta, epoch, taking(7, 1, home(1))).await;
    let block = |index| BlockId { stripe: stripe.id, index, copy: 0, generation: 1 };
    let only = |index| FollowDisk { limit: 1, only: Some(block(index)), ..step(home(1)) };
    let other = meta.follow_disk(epoch, only(1)).await.unwrap();
    assert_eq!((other.moved.len(), other.stayed), (0, 1), "it is not on that disk");
    let followed = meta.follow_disk(epoch, only(0)).await.unwrap();
    assert_eq!((followed.moved, followed.complete), (vec![stripe.id], false));
    assert_eq!(homes(&meta.stripe(stripe.id).await.unwrap())[0], (0, 0, 7, 8));
    let old = node(&meta, 1).await.disks.remove(0);
    assert!(!old.failed && old.moved_to.is_some() && !node(&meta, 7).await.came_back, "the walk goes on");
    assert_eq!(meta.follow_disk(epoch, only(0)).await.unwrap().stayed, 1, "it is there already");
    assert!(follow(&meta, epoch, 1).await.complete);
}

#[tokio::test]
async fn a_missing_block_stays_and_a_disk_that_moves_on_takes_along_what_was_left() {
    let (_dir, meta, epoch) = fresh().await;
    let stripe = put(&meta, epoch).await;
    take_down(&meta, epoch, 1).await;
    register(&meta, epoch, taking(5, 1, home(1))).await;
    assert_eq!(follow(&meta, epoch, 1).await.stayed, 1);
    // The operator moves it to a node without a block of the stripe.
    take_down(&meta, epoch, 5).await;
    let there = Home { node: NodeId(5), disk: DiskNumber(8) };
    register(&meta, epoch, taking(7, 1, there)).await;
    let to = Home { node: NodeId(7), disk: DiskNumber(9) };
    assert_eq!(node(&meta, 1).await.disks[0].moved_to, Some(to));
    assert!(meta.follow_disk(epoch, step(there)).await.unwrap().complete, "nothing had followed it to there");
    assert!(follow(&meta, epoch, 1).await.complete);
    assert_eq!(homes(&meta.stripe(stripe.id).await.unwrap())[0], (0, 0, 7, 9));

    // Back to where it was at first; a missing block is lost anyway.
    let missing = BlockId { stripe: stripe.id, index: 0, copy: 0, generation: 1 };
    meta.mark_block(epoch, missing, BlockState::Missing).await.unwrap();
    take_down(&meta, epoch, 7).await;
    let back = NewNode { disks: taking(1, 1, to).disks.split_off(1), ..node_of(1) };
    register(&meta, epoch, back).await;
    let followed = meta.follow_disk(epoch, FollowDisk { unchecked: true, ..step(to) }).await.unwrap();
    assert_eq!(
        (followed.stayed, followed.complete, node(&meta, 1).await.came_back),
        (1, false, true),
        "what moved before is marked"
    );
    meta.remove_object(epoch, &new_put().name, 1).await.unwrap();
    assert!(meta.follow_disk(epoch, step(to)).await.unwrap().complete);
    assert_eq!(garbage_of(&meta, NodeId(1), 9).await.len(), 1);
}

#[tokio::test]
async fn a_database_of_schema_19_has_moved_no_disk() {
    let (dir, meta, epoch) = fresh().await;
    let before = meta.nodes().await.unwrap();
    drop(meta);
    let path = dir.path().join("metadata.sqlite");
    let sql = "ALTER TABLE objects DROP COLUMN append; ALTER TABLE objects DROP COLUMN append_until_ms; ALTER TABLE objects DROP COLUMN append_ended;
        ALTER TABLE policies DROP COLUMN updates; ALTER TABLE stripe_terms DROP COLUMN grows_to;
        DROP INDEX disks_moved; ALTER TABLE disks DROP COLUMN moved_to; UPDATE schema_version SET version = 19";
    rusqlite::Connection::open(&path).unwrap().execute_batch(&format!("{BACK_TO_SCHEMA_21}{sql}")).unwrap();
    let meta = open(&path);
    assert_eq!(meta.nodes().await.unwrap(), before);
    take_down(&meta, epoch, 1).await;
    register(&meta, epoch, taking(7, 1, home(1))).await;
    assert!(follow(&meta, epoch, 1).await.complete);
}
