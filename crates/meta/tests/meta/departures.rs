//! The removal of nodes and disks that are gone for good.

use crate::{
    common::{garbage_of, node_of, open},
    copies::{BACK_TO_SCHEMA_10, begun, end, fresh, put},
    leftovers_at, new_put,
};
use weft_meta::*;
use weft_types::{
    BlockId, DiskNumber, Epoch, Held, HelperSelect, Home, JobState, JobWork, NodeId, NodeRepair, NodeState, Prefer, StripeLayout,
};

const NOBODY: NodeId = NodeId(7);
const ALL: u32 = 1_000;

fn home(node: u32) -> Home {
    Home { node: NodeId(node), disk: DiskNumber(node) }
}

async fn take_down(meta: &SqliteMeta, epoch: Epoch, node: u32) {
    meta.set_node_state(epoch, NodeId(node), NodeState::Down, 1).await.unwrap();
}

/// Without the nodes that it holds back, a removal is complete in one step.
async fn remove(meta: &SqliteMeta, epoch: Epoch, node: NodeId) -> Result<Departure> {
    meta.remove_node(epoch, node, 9, ALL).await
}

/// The node or its disk takes no block any more.
fn closed<T: std::fmt::Debug>(result: Result<T>, id: u32, says: &str) {
    let is_so =
        |error: &MetaError| matches!(error, MetaError::Closed { node, message } if *node == NodeId(id) && message.contains(says));
    assert!(result.as_ref().is_err_and(is_so), "not '{says}': {result:?}");
}

fn conflict<T: std::fmt::Debug>(result: Result<T>, says: &str) {
    assert!(matches!(&result, Err(MetaError::Conflict(message)) if message.contains(says)), "not '{says}': {result:?}");
}

async fn node_ids(meta: &SqliteMeta) -> Vec<u32> {
    meta.nodes().await.unwrap().iter().map(|node| node.id.0).collect()
}

#[tokio::test]
async fn a_node_is_removed_only_if_nothing_holds_it() {
    let (_dir, meta, epoch) = fresh().await;
    let stripe = put(&meta, epoch).await;
    conflict(remove(&meta, epoch, NodeId(1)).await, "n1 has come back");
    take_down(&meta, epoch, 1).await;
    assert_eq!(meta.held(NodeId(1), None).await.unwrap(), Held { blocks: 1, allocations: 0 });
    assert_eq!(meta.held(NodeId(1), Some(DiskNumber(2))).await.unwrap(), Held::default(), "another node's disk");
    conflict(remove(&meta, epoch, NodeId(1)).await, "n1 got blocks in the meantime: 1");
    // A block that is lost holds it too: until it is rebuilt, the metadata says where it was.
    let block = BlockId { stripe: stripe.id, index: 0, copy: 0, generation: 1 };
    meta.mark_block(epoch, block, weft_types::BlockState::Missing).await.unwrap();
    conflict(remove(&meta, epoch, NodeId(1)).await, "n1 got blocks");

    let rebuild = NewRepair { stripe: stripe.id, index: 0, copy: 0, home: home(6), upload: None, term: None, expires_ms: 5 };
    take_down(&meta, epoch, 6).await;
    let rebuilt = meta.allocate_repair(epoch, rebuild).await.unwrap();
    conflict(remove(&meta, epoch, NodeId(6)).await, "and 1 on their way");
    meta.commit_repair(epoch, rebuilt, 1, vec![1], 1).await.unwrap();
    conflict(remove(&meta, epoch, NodeId(6)).await, "n6 got blocks");

    let repair = |node: u32, to: u32| {
        let select = HelperSelect::Lru;
        let (node, to, scheme) = (NodeId(node), vec![NodeId(to)], "auto".to_owned());
        JobWork::RepairNode(NodeRepair {
            node,
            select,
            prefer: Prefer::default(),
            to,
            scheme,
            concurrency: 1,
            slice_len: 0,
            force: false,
        })
    };
    take_down(&meta, epoch, 7).await;
    for (node, to) in [(1, 2), (2, 1)] {
        let job = meta.create_job(epoch, repair(node, to), 1).await.unwrap();
        conflict(remove(&meta, epoch, NodeId(1)).await, &format!("job {}", job.id));
        meta.set_job_state(epoch, job.id, JobState::Paused, None, 2).await.unwrap();
        conflict(remove(&meta, epoch, NodeId(1)).await, &format!("job {}", job.id));
        meta.set_job_state(epoch, job.id, JobState::Cancelled, None, 3).await.unwrap();
    }
    assert_eq!(meta.garbage_totals().await.unwrap().len(), 1, "the lost block");
    let stale = Epoch(epoch.0 + 1);
    assert!(matches!(remove(&meta, stale, NodeId(1)).await, Err(MetaError::StaleLeader { .. })));
    assert_eq!(remove(&meta, epoch, NodeId(1)).await.unwrap(), Departure { garbage_blocks: 1, complete: true });
    assert_eq!((node_ids(&meta).await, meta.garbage_totals().await.unwrap()), (vec![2, 3, 4, 5, 6, 7], vec![]));
    assert!(matches!(remove(&meta, epoch, NodeId(1)).await, Err(MetaError::NotFound(_))));
}

#[tokio::test]
async fn a_removed_node_does_not_come_back_and_its_name_and_disks_are_free() {
    let (dir, meta, epoch) = fresh().await;
    take_down(&meta, epoch, 7).await;
    remove(&meta, epoch, NOBODY).await.unwrap();
    let error = meta.set_node_state(epoch, NOBODY, NodeState::Up, 1).await.unwrap_err();
    assert!(matches!(error, MetaError::NotFound(_)), "{error}");
    drop(meta);
    let meta = open(&dir.path().join("metadata.sqlite"));
    let back = NewNode { id: Some(NOBODY), ..node_of(7) };
    for back in [back.clone(), NewNode { name: "another-name".into(), ..back.clone() }] {
        let error = meta.register_node(epoch, back, 1).await.unwrap_err();
        assert!(matches!(&error, MetaError::Refused(_)) && error.to_string().contains("node-7 (n7) was removed"), "{error}");
        assert!(error.to_string().contains("move the file `agent` out of its state_dir"), "{error}");
    }
    let new = meta.register_node(epoch, node_of(7), 1).await.unwrap();
    assert_eq!((new.id, new.disks[0].number, &*new.disks[0].id), (NodeId(8), DiskNumber(8), "disk-7"), "numbers are not reused");
    assert!(meta.register_node(epoch, back, 1).await.is_err(), "not even now that a new node has the name");
}

#[tokio::test]
async fn nothing_is_allocated_on_what_was_removed_since_it_was_chosen() {
    let (_dir, meta, epoch) = fresh().await;
    let stripe = put(&meta, epoch).await;
    take_down(&meta, epoch, 7).await;
    remove(&meta, epoch, NOBODY).await.unwrap();
    let repair = NewRepair { stripe: stripe.id, index: 2, copy: 0, home: home(7), upload: None, term: None, expires_ms: 5 };
    closed(meta.allocate_repair(epoch, repair).await, 7, "n7 or its disk was removed");
    let layout = StripeLayout { layout: new_put().layout, k: 2, m: 1, data_len: 2 << 20 };
    let homes = |last: Home| vec![NewStripe { number: 0, layout, homes: vec![home(4), home(5), last] }];
    closed(meta.begin_put(epoch, new_put(), homes(home(7))).await, 7, "n7 or its disk was removed");
    // Nor on a disk of another node.
    closed(meta.begin_put(epoch, new_put(), homes(Home { node: NodeId(6), disk: DiskNumber(1) })).await, 6, "n6 or its disk");
    let upload = meta.begin_put(epoch, new_put(), homes(home(6))).await.unwrap().0.id;
    closed(meta.allocate_stripes(epoch, upload, homes(home(7)), leftovers_at(1)).await, 7, "n7 or its disk was removed");
    assert_eq!(meta.allocations().await.unwrap().len(), 3, "a refused put leaves nothing behind");
}

/// "It may be pulled" counts the blocks and allocations on the disk: none may come later.
#[tokio::test]
async fn nothing_is_allocated_on_a_disk_that_is_being_replaced() {
    let (_dir, meta, epoch) = fresh().await;
    let stripe = put(&meta, epoch).await;
    let repair = NewRepair { stripe: stripe.id, index: 2, copy: 0, home: home(7), upload: None, term: None, expires_ms: 5 };
    let layout = StripeLayout { layout: new_put().layout, k: 2, m: 1, data_len: 2 << 20 };
    let homes = || vec![NewStripe { number: 0, layout, homes: vec![home(4), home(5), home(7)] }];
    meta.retire_disk(epoch, home(7)).await.unwrap();
    closed(meta.allocate_repair(epoch, repair).await, 7, "a disk of n7 is being replaced");
    closed(meta.begin_put(epoch, new_put(), homes()).await, 7, "a disk of n7 is being replaced");
    assert_eq!(meta.held(NOBODY, Some(DiskNumber(7))).await.unwrap(), Held::default());
    // A disk that is only drained may be needed, and one whose drain was ended takes blocks again.
    for on in [true, false] {
        meta.set_draining(epoch, NOBODY, Some(DiskNumber(7)), on).await.unwrap();
        let upload = meta.begin_put(epoch, new_put(), homes()).await.unwrap().0.id;
        meta.abort_put(epoch, upload, leftovers_at(1)).await.unwrap();
    }
    meta.allocate_repair(epoch, repair).await.unwrap();
}

#[tokio::test]
async fn a_failed_disk_without_blocks_is_forgotten_and_its_number_is_not_used_again() {
    let (_dir, meta, epoch) = fresh().await;
    let (upload, stripe) = begun(&meta, epoch, 1, 0).await;
    // Disk 1 is replaced by disk 8.
    let mut replaced = node_of(1);
    replaced.disks[0].id = "new".into();
    meta.register_node(epoch, replaced.clone(), 1).await.unwrap();
    conflict(meta.forget_disk(epoch, home(1), ALL).await, "and 1 on their way");
    end(&meta, epoch, upload, &stripe, &[]).await.unwrap();
    conflict(meta.forget_disk(epoch, home(1), ALL).await, "n1 got blocks");
    meta.abort_put(epoch, upload, leftovers_at(1)).await.unwrap();
    conflict(meta.forget_disk(epoch, home(2), ALL).await, "disk 2 of n2 has come back");
    let other = Home { node: NodeId(2), disk: DiskNumber(1) };
    assert!(matches!(meta.forget_disk(epoch, other, ALL).await, Err(MetaError::NotFound(_))), "it is another node's disk");

    assert_eq!(garbage_of(&meta, NodeId(1), 9).await.len(), 1);
    assert_eq!(meta.forget_disk(epoch, home(1), ALL).await.unwrap(), Departure { garbage_blocks: 1, complete: true });
    assert_eq!((garbage_of(&meta, NodeId(1), 9).await.len(), garbage_of(&meta, NodeId(2), 9).await.len()), (0, 1));
    let numbers = |record: weft_types::NodeRecord| record.disks.iter().map(|disk| disk.number.0).collect::<Vec<_>>();
    assert_eq!(numbers(meta.register_node(epoch, replaced.clone(), 1).await.unwrap()), [8]);
    replaced.disks.extend(node_of(1).disks);
    assert_eq!(numbers(meta.register_node(epoch, replaced, 1).await.unwrap()), [8, 9], "it is a new disk");
}

#[tokio::test]
async fn much_garbage_is_deleted_in_steps() {
    let (_dir, meta, epoch) = fresh().await;
    for _ in 0..5 {
        put(&meta, epoch).await;
    }
    meta.remove_object(epoch, &new_put().name, 1).await.unwrap();
    assert_eq!(garbage_of(&meta, NodeId(1), 9).await.len(), 5);
    take_down(&meta, epoch, 1).await;
    for (garbage_blocks, complete) in [(2, false), (2, false), (1, true)] {
        assert_eq!(node_ids(&meta).await.len(), 7);
        assert_eq!(meta.remove_node(epoch, NodeId(1), 9, 2).await.unwrap(), Departure { garbage_blocks, complete });
    }
    assert_eq!((node_ids(&meta).await.len(), garbage_of(&meta, NodeId(2), 9).await.len()), (6, 5));
}

#[tokio::test]
async fn a_database_of_schema_11_has_removed_no_node() {
    let (dir, meta, epoch) = fresh().await;
    drop(meta);
    let path = dir.path().join("metadata.sqlite");
    rusqlite::Connection::open(&path).unwrap().execute_batch(BACK_TO_SCHEMA_10).unwrap();
    let meta = open(&path);
    let back = NewNode { id: Some(NOBODY), ..node_of(7) };
    assert_eq!(meta.register_node(epoch, back, 1).await.unwrap().id, NOBODY);
    take_down(&meta, epoch, 7).await;
    assert!(remove(&meta, epoch, NOBODY).await.unwrap().complete);
}
