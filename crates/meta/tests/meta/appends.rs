//! Appends: which one ends, and which stripes grow.

use crate::{
    commit_at,
    common::{open, prepare},
    new_put,
};
use weft_meta::*;
use weft_types::{
    Ack, BlockId, BlockState, DiskNumber, Epoch, Home, NodeId, ObjectName, StripeId, StripeLayout, StripeRecord, UpdatesInPlace,
    UploadId, crc32c,
};

const SIZE: u64 = 1500 << 10;
/// Both data blocks have bytes, so the whole stripe has room.
const HOLDS: u64 = 2 << 20;

struct World {
    _dir: tempfile::TempDir,
    meta: SqliteMeta,
    epoch: Epoch,
    version: UploadId,
    stripe: StripeId,
}

fn name() -> ObjectName {
    ObjectName { bucket: "b".into(), key: "k".into() }
}

/// The bytes of a block of the put.
fn content(index: u8, len: u64) -> Vec<u8> {
    vec![index + 1; len as usize]
}

impl World {
    /// An object of one stripe of rs(2,1) with a shorter second block.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let meta = open(&dir.path().join("metadata.sqlite"));
        let epoch = prepare(&meta).await;
        let (version, stripe) = put(&meta, epoch, None).await;
        Self { _dir: dir, meta, epoch, version, stripe }
    }

    fn asked(&self, append: u64) -> BeginAppend {
        BeginAppend { name: name(), append, at: None, renews: false, now_ms: 100, until_ms: 200 }
    }

    async fn begin(&self, asked: BeginAppend) -> BegunAppend {
        self.meta.begin_append(self.epoch, asked).await.unwrap()
    }

    async fn fences(&self, asked: BeginAppend) -> bool {
        match self.begin(asked).await {
            BegunAppend::Begun { fences, .. } => fences,
            other => panic!("it did not begin: {other:?}"),
        }
    }

    async fn end(&self, append: u64, from: u64, to: u64) -> Result<ObjectRecord> {
        let end = EndAppend { name: name(), version: self.version, append, from, to };
        self.meta.end_append(self.epoch, end).await
    }

    async fn record(&self) -> StripeRecord {
        self.meta.stripe(self.stripe).await.unwrap()
    }

    async fn size(&self) -> u64 {
        let size = self.meta.object(&name()).await.unwrap().size;
        assert_eq!(self.meta.totals().await.unwrap().data_bytes, size, "the totals are wrong");
        size
    }

    fn blocks(&self) -> Vec<BlockId> {
        (0..3).map(|index| BlockId { stripe: self.stripe, index, copy: 0, generation: 1 }).collect()
    }

    async fn open(&self, grows_to: Option<u64>) -> Result<TermRecord> {
        let before = self.meta.stripe_term(self.stripe).await.unwrap().map(|found| found.term);
        let (stripe, members) = (self.stripe, self.blocks());
        let open = OpenStripe { stripe, before, members, now_ms: 5, garbage_not_before_ms: 1, grows_to };
        self.meta.open_stripe(self.epoch, open).await
    }
}

async fn put(meta: &SqliteMeta, epoch: Epoch, replaces: Option<UploadId>) -> (UploadId, StripeId) {
    let new = NewUpload { ack: Ack { missing_max: 0 }, replaces, ..new_put() };
    let layout = StripeLayout { layout: new.layout, k: 2, m: 1, data_len: SIZE };
    let homes: Vec<Home> = (1..=3).map(|node| Home { node: NodeId(node), disk: DiskNumber(node) }).collect();
    let stripe = NewStripe { number: 0, layout, homes: homes.clone() };
    let (upload, stripes) = meta.begin_put(epoch, new, vec![stripe]).await.unwrap();
    let blocks = homes.iter().map(|home| (1, *home, BlockState::Ok)).collect();
    let checksums = (0..3).map(|index| vec![crc32c(&content(index, layout.block_len(index.into())))]).collect();
    let end = EndStripe { upload: upload.id, stripe: stripes[0].id, blocks, checksums, garbage_not_before_ms: 1 };
    meta.end_stripe(epoch, end, replaces.is_none().then(|| commit_at(SIZE, 5))).await.unwrap();
    (upload.id, stripes[0].id)
}

#[tokio::test]
async fn one_append_is_under_way_and_only_the_last_one_ends() {
    let world = World::new().await;
    let meta = &world.meta;
    assert_eq!(meta.append_of(world.version).await, Ok(0));
    assert!(!world.fences(world.asked(1)).await, "nothing was written behind the end");
    assert_eq!(meta.append_of(world.version).await, Ok(1));
    // Another one waits until it ends or its time is over; a repeated request begins it again, and a renewal does not fence it.
    assert_eq!(world.begin(world.asked(2)).await, BegunAppend::Busy { until_ms: 200 });
    assert!(world.fences(world.asked(1)).await);
    world.begin(BeginAppend { renews: true, until_ms: 300, ..world.asked(1) }).await;
    let renewed = BeginAppend { now_ms: 250, until_ms: 350, ..world.asked(2) };
    assert_eq!(world.begin(renewed).await, BegunAppend::Busy { until_ms: 300 });
    let late = |append| BeginAppend { now_ms: 300, until_ms: 400, ..world.asked(append) };
    assert!(world.fences(late(2)).await, "the first one's updates may still come");
    assert_eq!(world.begin(BeginAppend { renews: true, ..late(1) }).await, BegunAppend::Lost);

    // The object holds no bytes behind its end before its stripe has grown.
    let refused = world.end(2, SIZE, SIZE + 1).await.unwrap_err();
    assert!(matches!(&refused, MetaError::Refused(why) if why.contains("hold")), "{refused}");
    let opened = world.open(Some(HOLDS)).await.unwrap();
    meta.mark_open(world.epoch, world.stripe, opened.term.term).await.unwrap();
    for (append, from, said) in [(1, SIZE, "another append"), (2, SIZE - 1, "another size")] {
        let error = world.end(append, from, SIZE + 10).await.unwrap_err();
        assert!(matches!(&error, MetaError::Conflict(why) if why.contains(said)), "{said}: {error}");
    }
    assert_eq!(world.size().await, SIZE);
    for _ in 0..2 {
        assert_eq!(world.end(2, SIZE, SIZE + 10).await.unwrap().size, SIZE + 10, "a repeated request");
        assert_eq!(world.size().await, SIZE + 10);
    }
    // It has ended, so there is nothing to fence, and it does not go on.
    assert_eq!(world.begin(BeginAppend { renews: true, ..late(2) }).await, BegunAppend::Lost);
    let at = |at| BeginAppend { at: Some(at), ..world.asked(3) };
    assert!(matches!(world.begin(at(SIZE)).await, BegunAppend::Moved(object) if object.size == SIZE + 10));
    assert!(!world.fences(at(SIZE + 10)).await);
    assert!(world.end(2, SIZE + 10, SIZE + 20).await.is_err());
    // Given up: the next one begins at once, and fences it.
    meta.give_up_append(world.epoch, name(), 2).await.unwrap();
    assert!(matches!(world.begin(world.asked(4)).await, BegunAppend::Busy { .. }), "another one was given up");
    meta.give_up_append(world.epoch, name(), 3).await.unwrap();
    assert_eq!(world.begin(BeginAppend { renews: true, ..world.asked(3) }).await, BegunAppend::Lost, "it was given up");
    assert!(world.fences(world.asked(4)).await);
    assert!(matches!(meta.begin_append(world.epoch, world.asked(0)).await, Err(MetaError::Refused(_))));
}

#[tokio::test]
async fn the_end_of_an_append_succeeds_again_when_another_one_has_begun() {
    let world = World::new().await;
    world.begin(world.asked(7)).await;
    let opened = world.open(Some(HOLDS)).await.unwrap();
    world.meta.mark_open(world.epoch, world.stripe, opened.term.term).await.unwrap();
    world.end(7, SIZE, SIZE + 10).await.unwrap();
    assert_eq!(world.begin(world.asked(7)).await, BegunAppend::Lost, "one that has ended does not begin again");
    world.begin(world.asked(8)).await;
    assert_eq!(world.end(7, SIZE, SIZE + 10).await.unwrap().size, SIZE + 10, "an answer was lost");
    assert!(matches!(world.end(7, SIZE + 10, SIZE + 20).await, Err(MetaError::Conflict(_))), "it ends twice");
    assert_eq!(world.end(8, SIZE + 10, SIZE + 20).await.unwrap().size, SIZE + 20);
    assert!(matches!(world.end(7, SIZE, SIZE + 10).await, Err(MetaError::Conflict(_))), "nothing tells that it has ended");
    assert_eq!(world.size().await, SIZE + 20);
}

#[tokio::test]
async fn a_hold_from_before_the_clock_was_set_back_is_over() {
    let world = World::new().await;
    world.begin(BeginAppend { now_ms: 900_000, until_ms: 900_100, ..world.asked(1) }).await;
    assert!(world.fences(world.asked(2)).await, "the first one's updates may still come");
    assert_eq!(world.begin(world.asked(3)).await, BegunAppend::Busy { until_ms: 200 });
    // It was renewed while this request waited.
    let late = BeginAppend { now_ms: 90, until_ms: 190, ..world.asked(3) };
    assert_eq!(world.begin(late).await, BegunAppend::Busy { until_ms: 200 });
}

#[tokio::test]
async fn an_append_ends_in_the_version_that_it_was_written_to() {
    let world = World::new().await;
    let (meta, epoch) = (&world.meta, world.epoch);
    world.begin(world.asked(1)).await;
    let (conversion, _) = put(meta, epoch, Some(world.version)).await;
    let opened = world.open(Some(HOLDS)).await.unwrap();
    meta.mark_open(epoch, world.stripe, opened.term.term).await.unwrap();
    world.end(1, SIZE, SIZE + 1).await.unwrap();
    let error = meta.commit_put(epoch, conversion, commit_at(SIZE, 6)).await.unwrap_err();
    assert!(matches!(&error, MetaError::Conflict(why) if why.contains("starts again")), "it lacks what was appended: {error}");

    world.begin(world.asked(2)).await;
    put(meta, epoch, None).await;
    let error = world.end(2, SIZE + 1, SIZE + 2).await.unwrap_err();
    assert!(matches!(&error, MetaError::Conflict(why) if why.contains("overwritten")), "{error}");
    assert_eq!((world.size().await, meta.append_of(world.version).await), (SIZE, Ok(0)));
    meta.remove_object(epoch, &name(), 1).await.unwrap();
    assert!(matches!(world.end(2, SIZE, SIZE + 1).await, Err(MetaError::NotFound(_))));
}

#[tokio::test]
async fn a_stripe_grows_by_zeros_once_its_blocks_are_open() {
    let world = World::new().await;
    let (meta, epoch) = (&world.meta, world.epoch);
    let before = world.record().await;
    for wrong in [0, SIZE, HOLDS + 1] {
        assert!(matches!(world.open(Some(wrong)).await, Err(MetaError::Refused(_))), "{wrong}");
    }
    let opened = world.open(Some(HOLDS)).await.unwrap();
    assert_eq!((opened.grows_to, world.record().await.layout), (Some(HOLDS), before.layout));
    meta.cancel_opening(epoch, world.stripe, opened.term.term, 9).await.unwrap();
    let cancelled = meta.stripe_term(world.stripe).await.unwrap().unwrap();
    assert_eq!((cancelled.grows_to, world.record().await.layout), (None, before.layout), "no block was opened");

    let opened = world.open(Some(HOLDS)).await.unwrap();
    meta.mark_open(epoch, world.stripe, opened.term.term).await.unwrap();
    let record = world.record().await;
    assert_eq!(record.layout, StripeLayout { data_len: HOLDS, ..before.layout });
    for index in 0..3 {
        let mut bytes = content(index, before.layout.block_len(index.into()));
        bytes.resize(1 << 20, 0);
        assert_eq!(record.checksums_of(index), Some(&[crc32c(&bytes)][..]), "block {index}");
    }
    assert_eq!(meta.stripe_term(world.stripe).await.unwrap().unwrap().grows_to, None);
    meta.mark_open(epoch, world.stripe, opened.term.term).await.unwrap();
    assert_eq!((world.record().await, world.size().await), (record, SIZE), "it grew twice");
}

#[tokio::test]
async fn a_seal_ends_an_opening_in_which_blocks_have_grown() {
    let world = World::new().await;
    let opened = world.open(Some(HOLDS)).await.unwrap();
    let begun = weft_update::StripeTerm { term: opened.term.term + 1, ..opened.term.clone() };
    world.meta.save_term(world.epoch, world.stripe, opened.term, begun, 1).await.unwrap();
    assert_eq!(world.record().await.layout.data_len, HOLDS);
    assert_eq!(world.meta.stripe_term(world.stripe).await.unwrap().unwrap().grows_to, None);
}

#[tokio::test]
async fn a_policy_says_whether_objects_are_updated() {
    let world = World::new().await;
    let (_, policy) = world.meta.bucket("b").await.unwrap();
    assert_eq!((policy.updates, world.meta.updates_refused_by("b".into()).await), (UpdatesInPlace::Allowed, Ok(None)));
    let strict = PolicyRecord { name: "strict".into(), updates: UpdatesInPlace::Refused, is_default: false, ..policy };
    world.meta.create_policy(world.epoch, strict.clone()).await.unwrap();
    world.meta.create_bucket(world.epoch, "c", Some("strict"), 1).await.unwrap();
    assert_eq!(world.meta.bucket("c").await.unwrap().1, strict);
    assert_eq!(world.meta.updates_refused_by("c".into()).await, Ok(Some("strict".into())));
}
