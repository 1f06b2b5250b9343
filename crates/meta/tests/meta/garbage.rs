//! The reasons for garbage, and its amount.

use crate::{
    commit_at,
    common::{garbage_of, open},
    copies::{BACK_TO_SCHEMA_9, begun, end, fresh, put},
    leftovers_at,
};
use std::collections::BTreeSet;
use weft_meta::*;
use weft_types::{BlockId, DiskNumber, Epoch, GarbageReason, Home, NodeId, ObjectName};

fn name() -> ObjectName {
    ObjectName { bucket: "b".into(), key: "k".into() }
}

/// The reasons and known lengths of all blocks that nodes may remove.
async fn reasons(meta: &SqliteMeta) -> BTreeSet<(GarbageReason, Option<u64>)> {
    let mut all = BTreeSet::new();
    for node in 1..=7 {
        all.extend(garbage_of(meta, NodeId(node), 9).await.into_iter().map(|it| (it.reason, it.bytes)));
    }
    all
}

async fn forget_all(meta: &SqliteMeta, epoch: Epoch) {
    for node in (1..=7).map(NodeId) {
        let blocks: Vec<BlockId> = garbage_of(meta, node, 9).await.into_iter().map(|it| it.block).collect();
        meta.forget_garbage(epoch, node, blocks).await.unwrap();
    }
}

#[tokio::test]
async fn each_block_says_why_it_is_garbage() {
    const MIB: Option<u64> = Some(1 << 20);
    let (_dir, meta, epoch) = fresh().await;
    let first = put(&meta, epoch).await;
    assert_eq!(reasons(&meta).await, BTreeSet::new());
    // A repair that is given up, and one that is committed.
    let home = |node| Home { node: NodeId(node), disk: DiskNumber(node) };
    let repair =
        |node| NewRepair { stripe: first.id, index: 2, copy: 0, home: home(node), upload: None, term: None, expires_ms: 5 };
    let given_up = meta.allocate_repair(epoch, repair(6)).await.unwrap();
    meta.abort_repair(epoch, given_up, 1).await.unwrap();
    assert_eq!(reasons(&meta).await, [(GarbageReason::GivenUp, None)].into());
    forget_all(&meta, epoch).await;
    let rebuilt = meta.allocate_repair(epoch, repair(7)).await.unwrap();
    meta.commit_repair(epoch, rebuilt, 1, vec![3], 1).await.unwrap();
    assert_eq!(reasons(&meta).await, [(GarbageReason::Repaired, MIB)].into());
    forget_all(&meta, epoch).await;

    let stripe = meta.stripe(first.id).await.unwrap();
    let keep = stripe.firsts().map(|(index, placed)| stripe.id_of(index, placed)).collect();
    meta.drop_copies(epoch, first.id, keep, 1).await.unwrap();
    assert_eq!(reasons(&meta).await, [(GarbageReason::Removed, MIB)].into());
    forget_all(&meta, epoch).await;
    put(&meta, epoch).await;
    assert_eq!(reasons(&meta).await, [(GarbageReason::Replaced, MIB)].into());
    forget_all(&meta, epoch).await;
    // If a put is given up, the lengths of its complete blocks are known.
    let (upload, stripe) = begun(&meta, epoch, 1, 0).await;
    end(&meta, epoch, upload, &stripe, &[]).await.unwrap();
    meta.abort_put(epoch, upload, leftovers_at(1)).await.unwrap();
    assert_eq!(reasons(&meta).await, [(GarbageReason::GivenUp, MIB)].into());
    forget_all(&meta, epoch).await;
    meta.remove_object(epoch, &name(), 1).await.unwrap();
    assert_eq!(reasons(&meta).await, [(GarbageReason::Removed, MIB)].into());
}

#[tokio::test]
async fn what_schema_9_called_garbage_is_unexpected_until_a_person_releases_it() {
    let (dir, meta, epoch) = fresh().await;
    put(&meta, epoch).await;
    meta.remove_object(epoch, &name(), 4).await.unwrap();
    drop(meta);
    let path = dir.path().join("metadata.sqlite");
    rusqlite::Connection::open(&path).unwrap().execute_batch(BACK_TO_SCHEMA_9).unwrap();

    let meta = open(&path);
    assert_eq!(reasons(&meta).await, [(GarbageReason::Unexpected, None)].into());
    let totals = meta.garbage_totals().await.unwrap();
    assert_eq!(totals.len(), 5);
    let home = Home { node: NodeId(1), disk: DiskNumber(1) };
    let (reason, blocks, bytes) = (GarbageReason::Unexpected, 1, 0);
    assert_eq!(totals[0], GarbageTotal { home, reason, blocks, bytes, unmeasured_blocks: 1, first_ms: 4, last_ms: 4 });
    // Blocks that are removed from now on have their own reason.
    let (upload, stripe) = begun(&meta, epoch, 1, 0).await;
    end(&meta, epoch, upload, &stripe, &[]).await.unwrap();
    meta.commit_put(epoch, upload, commit_at(2 << 20, 4)).await.unwrap();
    meta.remove_object(epoch, &name(), 4).await.unwrap();
    let of = async |node, reason| meta.garbage(NodeId(node), reason, 4, None, 9).await.unwrap().items.len();
    assert_eq!((of(1, GarbageReason::Removed).await, of(1, GarbageReason::Unexpected).await), (1, 1));
    assert_eq!(
        meta.garbage(NodeId(1), GarbageReason::Removed, 3, None, 9).await.unwrap().items,
        [],
        "its grace period has not ended"
    );
    assert_eq!(meta.release_garbage(epoch, NodeId(1)).await.unwrap(), 1);
    assert_eq!((of(1, GarbageReason::Removed).await, of(1, GarbageReason::Unexpected).await), (2, 0));
    assert_eq!(of(2, GarbageReason::Unexpected).await, 1, "the garbage of another node was released");
    assert_eq!(meta.release_garbage(epoch, NodeId(1)).await.unwrap(), 0);
}

#[tokio::test]
async fn allocations_from_before_the_start_become_unexpected_garbage() {
    let (dir, meta, epoch) = fresh().await;
    let first = put(&meta, epoch).await;
    let (ended, stripe) = begun(&meta, epoch, 1, 0).await;
    end(&meta, epoch, ended, &stripe, &[]).await.unwrap();
    let (running, _) = begun(&meta, epoch, 1, 0).await;
    let home = |node| Home { node: NodeId(node), disk: DiskNumber(node) };
    let repair =
        |node| NewRepair { stripe: first.id, index: 2, copy: 0, home: home(node), upload: None, term: None, expires_ms: 5 };
    let expiring = meta.allocate_repair(epoch, repair(6)).await.unwrap();
    let aborted = meta.allocate_repair(epoch, repair(6)).await.unwrap();
    drop(meta);

    // The coordinator has restarted, perhaps on an old copy: it cannot tell.
    let meta = open(&dir.path().join("metadata.sqlite"));
    let epoch = meta.become_leader().await.unwrap();
    meta.abort_repair(epoch, aborted, 1).await.unwrap();
    assert_eq!(reasons(&meta).await, [(GarbageReason::Unexpected, None)].into());
    assert_eq!(meta.expire_repairs(epoch, 1).await.unwrap(), 1);
    assert!(garbage_of(&meta, NodeId(6), 9).await.iter().any(|it| it.block == expiring && !it.reason.is_meant()));
    forget_all(&meta, epoch).await;
    meta.abort_put(epoch, running, leftovers_at(1)).await.unwrap();
    assert_eq!(reasons(&meta).await, [(GarbageReason::Unexpected, None)].into());
    forget_all(&meta, epoch).await;
    meta.abort_put(epoch, ended, leftovers_at(1)).await.unwrap();
    assert_eq!(reasons(&meta).await, [(GarbageReason::Unexpected, Some(1 << 20))].into());
    forget_all(&meta, epoch).await;
    // Allocations of this process are in no other metadata.
    let (upload, stripe) = begun(&meta, epoch, 1, 0).await;
    end(&meta, epoch, upload, &stripe, &[]).await.unwrap();
    meta.abort_put(epoch, upload, leftovers_at(1)).await.unwrap();
    let own = meta.allocate_repair(epoch, repair(6)).await.unwrap();
    meta.abort_repair(epoch, own, 1).await.unwrap();
    let given_up = [(GarbageReason::GivenUp, None), (GarbageReason::GivenUp, Some(1 << 20))];
    assert_eq!(reasons(&meta).await, given_up.into());
}
