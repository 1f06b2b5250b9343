//! Further copies of data blocks: written with the stripe, lost, rebuilt, dropped, and created again.

use crate::{
    commit_at,
    common::{garbage_of, mark_corrupt, open, prepare},
    leftovers_at, new_put,
};
use weft_meta::*;
use weft_types::{
    Ack, BlockId, BlockState, DiskNumber, Epoch, GarbageReason, Home, NodeId, Span, StripeId, StripeLayout, StripeRecord,
    UploadId,
};

/// Turns a database of schema 23 into one of schema 21, in which jobs have no estimates.
macro_rules! back_to_schema_21 {
    () => {
        "
    ALTER TABLE jobs DROP COLUMN moved_bytes;
    ALTER TABLE jobs DROP COLUMN quarter_made_ms;
    ALTER TABLE jobs DROP COLUMN quarter_remaining_ms;
    ALTER TABLE jobs DROP COLUMN half_made_ms;
    ALTER TABLE jobs DROP COLUMN half_remaining_ms;
    UPDATE schema_version SET version = 21;"
    };
}
pub(crate) const BACK_TO_SCHEMA_21: &str = back_to_schema_21!();

/// Turns a database of schema 23 into one of schema 11, in which a node is up or down, and nothing says since when.
macro_rules! back_to_schema_11 {
    () => {
        concat!(
            back_to_schema_21!(),
            "
    ALTER TABLE nodes ADD COLUMN up INTEGER NOT NULL DEFAULT 1;
    UPDATE nodes SET up = state = 'up';
    ALTER TABLE nodes DROP COLUMN state;
    ALTER TABLE nodes DROP COLUMN since_ms;
    DROP INDEX disks_moved;
    ALTER TABLE disks DROP COLUMN moved_to;
    DROP TABLE stripe_terms;
    ALTER TABLE objects DROP COLUMN append;
    ALTER TABLE objects DROP COLUMN append_until_ms;
    ALTER TABLE objects DROP COLUMN append_ended;
    ALTER TABLE policies DROP COLUMN updates;
    ALTER TABLE objects DROP COLUMN updates;
    ALTER TABLE uploads DROP COLUMN updates;
    DROP TABLE scrubs;
    ALTER TABLE nodes DROP COLUMN draining;
    ALTER TABLE disks DROP COLUMN draining;
    ALTER TABLE nodes DROP COLUMN came_back;
    ALTER TABLE cluster DROP COLUMN auto_repair;
    ALTER TABLE cluster DROP COLUMN repair_limit;
    DROP TABLE removed_nodes;
    UPDATE schema_version SET version = 11;"
        )
    };
}
pub(crate) const BACK_TO_SCHEMA_11: &str = back_to_schema_11!();

/// Turns a database of schema 23 into one of schema 10, in which a put's key is a number of 64 bits: here -2.
pub(crate) const BACK_TO_SCHEMA_10: &str = concat!(
    back_to_schema_11!(),
    "
    ALTER TABLE uploads DROP COLUMN put_key;
    ALTER TABLE uploads ADD COLUMN put_key INTEGER NOT NULL DEFAULT 0;
    UPDATE uploads SET put_key = -2;
    UPDATE schema_version SET version = 10;"
);

/// Turns a database of schema 23 into one of schema 9, which has no reasons for garbage.
pub(crate) const BACK_TO_SCHEMA_9: &str = concat!(
    back_to_schema_11!(),
    "
    ALTER TABLE uploads DROP COLUMN put_key;
    ALTER TABLE uploads ADD COLUMN put_key INTEGER NOT NULL DEFAULT 0;
    DROP INDEX garbage_by_time;
    ALTER TABLE garbage DROP COLUMN reason;
    ALTER TABLE garbage DROP COLUMN bytes;
    CREATE INDEX garbage_by_time ON garbage (node, not_before_ms);
    UPDATE schema_version SET version = 9;"
);

/// Turns a database of schema 9 into one of schema 8, which has one count of updates for a stripe, and no keys.
pub(crate) const BACK_TO_SCHEMA_8: &str = "
    ALTER TABLE uploads DROP COLUMN put_key;
    ALTER TABLE stripes DROP COLUMN counts;
    ALTER TABLE stripes RENAME COLUMN term TO seq;
    UPDATE schema_version SET version = 8;";

/// Turns a database of schema 8 into one of schema 5, which knows neither conversions nor copies.
pub(crate) const BACK_TO_SCHEMA_5: &str = "
    DROP INDEX objects_converted;
    ALTER TABLE uploads DROP COLUMN replaces;
    ALTER TABLE objects DROP COLUMN written;
    ALTER TABLE policies DROP COLUMN replicas;
    ALTER TABLE uploads DROP COLUMN replicas;
    ALTER TABLE block_at DROP COLUMN copy;
    CREATE TABLE old_allocations (stripe INTEGER NOT NULL, idx INTEGER NOT NULL, generation INTEGER NOT NULL, node INTEGER NOT NULL,
        disk INTEGER NOT NULL, upload INTEGER REFERENCES uploads (id), epoch INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
        PRIMARY KEY (stripe, idx, generation)) STRICT, WITHOUT ROWID;
    INSERT INTO old_allocations SELECT stripe, idx, generation, node, disk, upload, epoch, expires_ms FROM allocations;
    DROP TABLE allocations;
    ALTER TABLE old_allocations RENAME TO allocations;
    CREATE INDEX allocations_of_upload ON allocations (upload);
    CREATE TABLE old_garbage (node INTEGER NOT NULL, stripe INTEGER NOT NULL, idx INTEGER NOT NULL, generation INTEGER NOT NULL,
        disk INTEGER NOT NULL, not_before_ms INTEGER NOT NULL, PRIMARY KEY (node, stripe, idx, generation)) STRICT, WITHOUT ROWID;
    INSERT INTO old_garbage SELECT node, stripe, idx, generation, disk, not_before_ms FROM garbage;
    DROP TABLE garbage;
    ALTER TABLE old_garbage RENAME TO garbage;
    CREATE INDEX garbage_by_time ON garbage (node, not_before_ms);
    CREATE TABLE old_corrupt (stripe INTEGER NOT NULL, idx INTEGER NOT NULL, first INTEGER NOT NULL, behind INTEGER NOT NULL,
        PRIMARY KEY (stripe, idx, first)) STRICT, WITHOUT ROWID;
    INSERT INTO old_corrupt SELECT stripe, idx, first, behind FROM corrupt_bytes;
    DROP TABLE corrupt_bytes;
    ALTER TABLE old_corrupt RENAME TO corrupt_bytes;
    UPDATE schema_version SET version = 5;";

fn home(node: u32) -> Home {
    Home { node: NodeId(node), disk: DiskNumber(node) }
}

fn checksums() -> Vec<Vec<u32>> {
    vec![vec![1], vec![2], vec![3]]
}

/// A stripe of rs(2,1), its blocks on nodes 1 to 3 and, with a second copy, on 4 and 5.
pub(crate) async fn begun(meta: &SqliteMeta, epoch: Epoch, replicas: u8, missing_max: u32) -> (UploadId, StripeRecord) {
    let new = NewUpload { ack: Ack { missing_max }, replicas, ..new_put() };
    let layout = StripeLayout { layout: new.layout, k: 2, m: 1, data_len: 2 << 20 };
    let upload = meta.begin_put(epoch, new, vec![]).await.unwrap().0.id;
    let homes = (1..=1 + 2 * u32::from(replicas)).map(home).collect();
    let stripe = meta
        .allocate_stripes(epoch, upload, vec![NewStripe { number: 0, layout, homes }], leftovers_at(1))
        .await
        .unwrap()
        .remove(0);
    (upload, stripe)
}

/// Ends the stripe; these are missing, by index and copy.
pub(crate) async fn end(
    meta: &SqliteMeta,
    epoch: Epoch,
    upload: UploadId,
    stripe: &StripeRecord,
    missing: &[(u8, u8)],
) -> Result<StripeRecord> {
    let state = |at| if missing.contains(&at) { BlockState::Missing } else { BlockState::Ok };
    let blocks = stripe.all().map(|(index, placed)| (1, placed.home, state((index, placed.copy)))).collect();
    let end = EndStripe { upload, stripe: stripe.id, blocks, checksums: checksums(), garbage_not_before_ms: 1 };
    meta.end_stripe(epoch, end, None).await.map(|(stripe, _)| stripe)
}

pub(crate) async fn put(meta: &SqliteMeta, epoch: Epoch) -> StripeRecord {
    let (upload, stripe) = begun(meta, epoch, 2, 0).await;
    end(meta, epoch, upload, &stripe, &[]).await.unwrap();
    meta.commit_put(epoch, upload, commit_at(2 << 20, 1)).await.unwrap();
    meta.stripe(stripe.id).await.unwrap()
}

fn block(stripe: StripeId, index: u8, copy: u8, generation: u32) -> BlockId {
    BlockId { stripe, index, copy, generation }
}

pub(crate) async fn fresh() -> (tempfile::TempDir, SqliteMeta, Epoch) {
    let dir = tempfile::tempdir().unwrap();
    let meta = open(&dir.path().join("metadata.sqlite"));
    let epoch = prepare(&meta).await;
    (dir, meta, epoch)
}

#[tokio::test]
async fn a_put_with_copies_is_whole_or_says_what_is_missing() {
    let (_dir, meta, epoch) = fresh().await;
    let (upload, stripe) = begun(&meta, epoch, 2, 0).await;
    let copies: Vec<(u8, u8, u32)> = stripe.copies.iter().map(|(index, it)| (*index, it.copy, it.home.node.0)).collect();
    assert_eq!(copies, [(0, 1, 4), (1, 1, 5)]);
    assert_eq!(meta.allocations().await.unwrap().len(), 5);
    let refused = end(&meta, epoch, upload, &stripe, &[(1, 1)]).await.unwrap_err();
    assert!(refused.to_string().contains("1 blocks of stripe"), "a copy is missing although none may be: {refused}");
    end(&meta, epoch, upload, &stripe, &[]).await.unwrap();
    assert_eq!(meta.blocks_on(home(5), None, 9).await.unwrap().items, [block(stripe.id, 1, 1, 1)]);
    assert_eq!(meta.stripes_on(home(4), None, 9).await.unwrap().items.len(), 1);

    // Where a block may be missing, one of its copies suffices.
    let (upload, stripe) = begun(&meta, epoch, 2, 1).await;
    assert!(end(&meta, epoch, upload, &stripe, &[(0, 0), (0, 1), (2, 0)]).await.is_err());
    let ended = end(&meta, epoch, upload, &stripe, &[(0, 0), (1, 1), (2, 0)]).await.unwrap();
    let missing = ended.all().filter(|(_, it)| it.state == BlockState::Missing).map(|(index, it)| (index, it.copy));
    assert_eq!(missing.collect::<Vec<_>>(), [(0, 0), (2, 0), (1, 1)]);

    let few = NewStripe { number: 1, layout: stripe.layout, homes: (1..=4).map(home).collect() };
    assert!(
        meta.allocate_stripes(epoch, upload, vec![few], leftovers_at(1)).await.unwrap_err().to_string().contains("has 5 blocks")
    );
}

#[tokio::test]
async fn a_copy_is_lost_and_rebuilt_like_any_block() {
    let (_dir, meta, epoch) = fresh().await;
    let id = put(&meta, epoch).await.id;
    assert!(meta.mark_block(epoch, block(id, 1, 1, 1), BlockState::Missing).await.unwrap());
    assert!(!meta.mark_block(epoch, block(id, 1, 2, 1), BlockState::Missing).await.unwrap(), "there is no such copy");
    assert!(mark_corrupt(&meta, epoch, block(id, 0, 1, 1), vec![Span::new(0, 4096)]).await.unwrap());
    let stripe = meta.stripe(id).await.unwrap();
    assert_eq!((stripe.blocks[&1].state, stripe.find(1, 1).unwrap().state), (BlockState::Ok, BlockState::Missing));
    assert_eq!((stripe.corrupt_bytes(0), stripe.corrupt_of(0, 1)), (&[][..], &[Span::new(0, 4096)][..]));

    let new =
        |index, copy, node| NewRepair { stripe: id, index, copy, home: home(node), upload: None, term: None, expires_ms: 1000 };
    let conflict = meta.allocate_repair(epoch, new(1, 1, 4)).await.unwrap_err();
    assert!(conflict.to_string().contains("n4, which has block 0 of it"), "a node takes one block or copy: {conflict}");
    let rebuilt = meta.allocate_repair(epoch, new(1, 1, 6)).await.unwrap();
    assert_eq!(rebuilt, block(id, 1, 1, 2));
    assert!(meta.allocate_repair(epoch, new(0, 0, 6)).await.unwrap_err().to_string().contains("on its way"));
    // The same generation of another copy is another block.
    assert_eq!(meta.orphans(NodeId(6), vec![rebuilt, block(id, 1, 0, 2)]).await.unwrap(), [block(id, 1, 0, 2)]);
    let stripe = meta.commit_repair(epoch, rebuilt, 1, vec![2], 1).await.unwrap();
    assert_eq!(stripe.find(1, 1).unwrap().home, home(6));
    let garbage: Vec<BlockId> = garbage_of(&meta, NodeId(5), 9).await.into_iter().map(|it| it.block).collect();
    assert_eq!(garbage, [block(id, 1, 1, 1)]);
}

#[tokio::test]
async fn copies_are_dropped_and_come_back_under_other_names() {
    let (_dir, meta, epoch) = fresh().await;
    let id = put(&meta, epoch).await.id;
    // The first copy of block 1 is gone: the second takes its place.
    meta.mark_block(epoch, block(id, 1, 0, 1), BlockState::Missing).await.unwrap();
    let keep = vec![block(id, 0, 0, 1), block(id, 1, 1, 1), block(id, 2, 0, 1)];
    let newer = keep.iter().map(|it| BlockId { generation: 2, ..*it }).collect();
    assert!(matches!(meta.drop_copies(epoch, id, newer, 1).await, Err(MetaError::Conflict(_))), "the generation is not current");
    assert!(
        matches!(meta.drop_copies(epoch, id, keep[..2].to_vec(), 1).await, Err(MetaError::Conflict(_))),
        "a block would be lost"
    );
    // A choice made before the first copy was known to be gone would drop the only good one.
    let earlier = vec![block(id, 0, 0, 1), block(id, 1, 0, 1), block(id, 2, 0, 1)];
    assert!(matches!(meta.drop_copies(epoch, id, earlier, 1).await, Err(MetaError::Conflict(_))), "a missing copy would be kept");
    // A repair of a copy that was dropped during the repair comes too late.
    let new =
        |index, copy, node| NewRepair { stripe: id, index, copy, home: home(node), upload: None, term: None, expires_ms: 1000 };
    let late = meta.allocate_repair(epoch, new(1, 0, 6)).await.unwrap();
    meta.drop_copies(epoch, id, keep.clone(), 1).await.unwrap();
    assert!(meta.commit_repair(epoch, late, 1, vec![2], 1).await.unwrap_err().to_string().contains("dropped during the repair"));
    meta.abort_repair(epoch, late, 1).await.unwrap();
    let stripe = meta.drop_copies(epoch, id, keep.clone(), 1).await.unwrap();
    assert_eq!(stripe.all().map(|(index, it)| stripe.id_of(index, it)).collect::<Vec<_>>(), keep);
    let on = async |node| garbage_of(&meta, NodeId(node), 9).await.into_iter().map(|it| it.block).collect::<Vec<_>>();
    assert_eq!((on(2).await, on(4).await), (vec![block(id, 1, 0, 1)], vec![block(id, 0, 1, 1)]));
    assert!(meta.blocks_on(home(4), None, 9).await.unwrap().items.is_empty());

    // A new copy gets a generation that no copy of the block ever had, so garbage cannot be taken for it.
    let back = meta.allocate_repair(epoch, new(0, 1, 4)).await.unwrap();
    assert_eq!(back, block(id, 0, 1, 2));
    let given_up = meta.allocate_repair(epoch, new(0, 2, 6)).await.unwrap();
    meta.abort_repair(epoch, given_up, 1).await.unwrap();
    assert!(matches!(meta.commit_repair(epoch, back, 1, vec![1], 1).await, Err(MetaError::Conflict(_))), "nothing to replace");
    let stripe = meta.commit_repair(epoch, back, 0, vec![1], 1).await.unwrap();
    let counts = stripe.all().filter(|(index, _)| *index == 0).map(|(_, it)| it.generation_high_water);
    assert_eq!(counts.collect::<Vec<_>>(), [3, 3], "one count for all copies");
    let first = meta.allocate_repair(epoch, new(1, 0, 7)).await.unwrap();
    assert_eq!(first, block(id, 1, 0, 3), "generation 2 was given up");
    let stripe = meta.commit_repair(epoch, first, 0, vec![2], 1).await.unwrap();
    assert_eq!((stripe.blocks[&1].copy, stripe.copies.len()), (0, 2));
    assert_eq!(meta.stripe(id).await.unwrap(), stripe);
}

#[tokio::test]
async fn copies_stay_while_a_block_that_has_none_is_not_good() {
    let (_dir, meta, epoch) = fresh().await;
    let (upload, stripe) = begun(&meta, epoch, 2, 1).await;
    end(&meta, epoch, upload, &stripe, &[(2, 0)]).await.unwrap();
    meta.commit_put(epoch, upload, commit_at(2 << 20, 1)).await.unwrap();
    let (id, parity) = (stripe.id, block(stripe.id, 2, 0, 1));
    let keep = vec![block(id, 0, 0, 1), block(id, 1, 1, 1), parity];
    let refused = async || meta.drop_copies(epoch, id, keep.clone(), 1).await.unwrap_err().to_string();
    let (coming, says) = (refused().await, format!("block {parity} would be the only copy, but it is not good"));
    assert!(coming.contains(&says), "the block has not arrived yet: {coming}");
    assert!(meta.mark_block(epoch, parity, BlockState::Ok).await.unwrap());
    assert!(mark_corrupt(&meta, epoch, parity, vec![Span::new(0, 4096)]).await.unwrap());
    assert!(refused().await.contains(&says), "some of the block's bytes are corrupt");
    let before = meta.stripe(id).await.unwrap();
    assert_eq!((before.copies.len(), garbage_of(&meta, NodeId(4), 9).await.len()), (2, 0));
    // With no copies left, the call drops nothing and succeeds.
    let rebuilt = NewRepair { stripe: id, index: 2, copy: 0, home: home(6), upload: None, term: None, expires_ms: 1000 };
    let rebuilt = meta.allocate_repair(epoch, rebuilt).await.unwrap();
    meta.commit_repair(epoch, rebuilt, 1, vec![3], 1).await.unwrap();
    let keep = vec![keep[0], keep[1], rebuilt];
    assert!(meta.drop_copies(epoch, id, keep.clone(), 1).await.unwrap().copies.is_empty());
    meta.mark_block(epoch, rebuilt, BlockState::Missing).await.unwrap();
    assert!(meta.drop_copies(epoch, id, keep, 1).await.unwrap().copies.is_empty());
}

#[tokio::test]
async fn what_schema_5_said_has_one_copy_of_everything() {
    let (dir, meta, epoch) = fresh().await;
    let (upload, stripe) = begun(&meta, epoch, 1, 0).await;
    let stripe = end(&meta, epoch, upload, &stripe, &[]).await.unwrap();
    mark_corrupt(&meta, epoch, block(stripe.id, 0, 0, 1), vec![Span::new(0, 4096)]).await.unwrap();
    let (_, under_way) = begun(&meta, epoch, 1, 0).await;
    let (gone, _) = begun(&meta, epoch, 1, 0).await;
    meta.abort_put(epoch, gone, leftovers_at(1)).await.unwrap();
    let stripe = meta.stripe(stripe.id).await.unwrap();
    let (allocations, mut garbage) = (meta.allocations().await.unwrap(), garbage_of(&meta, NodeId(1), 9).await);
    assert_eq!((allocations.len(), garbage.len()), (3, 1));
    drop(meta);
    let path = dir.path().join("metadata.sqlite");
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch(&format!("{BACK_TO_SCHEMA_9}{BACK_TO_SCHEMA_8}{BACK_TO_SCHEMA_5}"))
        .unwrap();

    let meta = open(&path);
    assert_eq!(meta.stripe(stripe.id).await.unwrap(), stripe);
    assert_eq!(meta.stripe(under_way.id).await.unwrap(), under_way);
    garbage[0].reason = GarbageReason::Unexpected;
    assert_eq!((meta.allocations().await.unwrap(), garbage_of(&meta, NodeId(1), 9).await), (allocations, garbage));
    assert_eq!(meta.blocks_on(home(2), None, 9).await.unwrap().items, [block(stripe.id, 1, 0, 1)]);
    assert_eq!((meta.upload(upload).await.unwrap().new.replicas, meta.policies().await.unwrap()[0].replicas), (1, 1));
}
