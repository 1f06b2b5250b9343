//! Conversions: one version of an object replaces another, or is dropped.

use crate::{
    commit_at,
    common::{open, prepare},
    copies::{BACK_TO_SCHEMA_8, BACK_TO_SCHEMA_9},
    leftovers_at, new_put,
};
use weft_meta::*;
use weft_types::{BlockState, Conversion, Epoch, Home, JobId, JobState, JobWork, Layout, ObjectName, StripeLayout, UploadId};

const LAYOUT: Layout = Layout { block_len: 1 << 20, cell_len: 1 << 20, alpha: 1 };

struct World {
    dir: tempfile::TempDir,
    meta: SqliteMeta,
    epoch: Epoch,
    homes: Vec<Home>,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let meta = open(&dir.path().join("metadata.sqlite"));
        let epoch = prepare(&meta).await;
        let nodes = meta.nodes().await.unwrap();
        let homes = nodes[..3].iter().map(|node| Home { node: node.id, disk: node.disks[0].number }).collect();
        Self { dir, meta, epoch, homes }
    }

    fn name(&self) -> ObjectName {
        ObjectName { bucket: "b".into(), key: "k".into() }
    }

    /// A put or conversion whose blocks are all durable.
    async fn written(&self, code: &str, replaces: Option<UploadId>) -> UploadId {
        self.written_bytes(2 << 20, code, replaces).await
    }

    async fn written_bytes(&self, data_len: u64, code: &str, replaces: Option<UploadId>) -> UploadId {
        let new = NewUpload { code: code.into(), layout: LAYOUT, replaces, ..new_put() };
        let upload = self.meta.begin_put(self.epoch, new, vec![]).await.unwrap().0.id;
        assert_eq!(self.meta.upload(upload).await.unwrap().new.replaces, replaces);
        let layout = StripeLayout { layout: LAYOUT, k: 2, m: 1, data_len };
        let homes = &self.homes[..layout.blocks().count()];
        let stripe = NewStripe { number: 0, layout, homes: homes.to_vec() };
        let stripe = self.meta.allocate_stripes(self.epoch, upload, vec![stripe], leftovers_at(1)).await.unwrap().remove(0).id;
        let blocks = homes.iter().map(|home| (1, *home, BlockState::Ok)).collect();
        let end = EndStripe { upload, stripe, blocks, checksums: vec![vec![1, 2]; 3], garbage_not_before_ms: 1 };
        self.meta.end_stripe(self.epoch, end, None).await.unwrap();
        upload
    }

    async fn commit(&self, upload: UploadId, now_ms: u64) -> Result<ObjectRecord> {
        self.meta.commit_put(self.epoch, upload, commit_at(2 << 20, now_ms)).await
    }

    async fn conflicts(&self, upload: UploadId) {
        let before = self.meta.object(&self.name()).await;
        let error = self.commit(upload, 900).await.unwrap_err();
        assert!(matches!(&error, MetaError::Conflict(said) if said.contains("while it was converted")), "{error}");
        assert_eq!(self.meta.object(&self.name()).await, before, "the object was changed");
        self.meta.abort_put(self.epoch, upload, leftovers_at(900)).await.unwrap();
    }

    /// The number of blocks on all disks, and the number of garbage blocks.
    async fn blocks(&self) -> (u64, u64) {
        let on_disks = self.meta.blocks_per_disk().await.unwrap().iter().map(|(_, count)| count).sum();
        (on_disks, self.meta.garbage_per_disk().await.unwrap().iter().map(|(_, amount)| amount.blocks).sum())
    }
}

#[tokio::test]
async fn a_conversion_takes_its_versions_place_at_once_and_is_no_younger() {
    let world = World::new().await;
    let put = world.commit(world.written("rs(2,1)", None).await, 100).await.unwrap();
    assert_eq!((put.written, put.created_ms), (put.version, 100));
    let upload = world.written("xor(2)", Some(put.version)).await;
    assert_eq!(world.meta.object(&world.name()).await.unwrap(), put, "it is visible before its commit");
    let converted = world.commit(upload, 200).await.unwrap();
    let expected = ObjectRecord { version: upload, code: "xor(2)".into(), ..put.clone() };
    assert_eq!((&converted, world.meta.object(&world.name()).await.unwrap()), (&expected, expected.clone()));
    assert_eq!(world.blocks().await, (3, 3), "the old blocks are garbage, and nothing else is");
    let again = world.written("rs(2,1)", Some(converted.version)).await;
    let again = world.commit(again, 300).await.unwrap();
    assert_eq!((again.written, again.created_ms), (put.version, 100));
    assert!(matches!(world.meta.object_of(put.version).await, Err(MetaError::NotFound(_))));
}

#[tokio::test]
async fn a_conversion_of_other_bytes_than_there_were_is_refused() {
    let world = World::new().await;
    let put = world.commit(world.written("rs(2,1)", None).await, 100).await.unwrap();
    let upload = world.written_bytes(4096, "xor(2)", Some(put.version)).await;
    let error = world.meta.commit_put(world.epoch, upload, commit_at(4096, 200)).await.unwrap_err();
    assert!(matches!(&error, MetaError::Refused(said) if said.contains("its conversion wrote 4096")), "{error}");
    assert_eq!(world.meta.object(&world.name()).await.unwrap(), put);
}

#[tokio::test]
async fn a_put_or_a_removal_meanwhile_wins_whenever_the_put_began() {
    let world = World::new().await;
    let first = world.commit(world.written("rs(2,1)", None).await, 100).await.unwrap();
    // A put that is committed during the conversion.
    let (early, conversion) = (world.written("rs(2,1)", None).await, world.written("xor(2)", Some(first.version)).await);
    let put = world.commit(early, 150).await.unwrap();
    world.conflicts(conversion).await;
    // A put that began before the conversion and is committed after it: it is newer than the converted version.
    let early = world.written("rs(2,1)", None).await;
    let conversion = world.commit(world.written("xor(2)", Some(put.version)).await, 200).await.unwrap();
    assert!(conversion.version > early);
    let late = world.commit(early, 250).await.unwrap();
    assert_eq!((late.version, late.written, late.code.as_str()), (early, early, "rs(2,1)"));
    // A put that is older than the converted version must not replace it.
    let old = world.written("rs(2,1)", None).await;
    let newer = world.commit(world.written("rs(2,1)", None).await, 300).await.unwrap();
    let conversion = world.commit(world.written("xor(2)", Some(newer.version)).await, 350).await.unwrap();
    let error = world.commit(old, 400).await.unwrap_err();
    assert!(matches!(&error, MetaError::Conflict(said) if said.contains("a later put")), "{error}");
    world.meta.abort_put(world.epoch, old, leftovers_at(400)).await.unwrap();
    // A removal.
    let upload = world.written("rs(2,1)", Some(conversion.version)).await;
    world.meta.remove_object(world.epoch, &world.name(), 500).await.unwrap();
    world.conflicts(upload).await;
    assert_eq!(world.blocks().await.0, 0, "blocks of it are left");
}

#[tokio::test]
async fn the_job_of_a_bucket_gives_it_the_policy_and_has_no_other_beside_it() {
    let world = World::new().await;
    let (bucket, policy) = world.meta.bucket("b").await.unwrap();
    let cold = PolicyRecord { name: "cold".into(), code: "rs(4,2)".into(), is_default: false, ..policy };
    world.meta.create_policy(world.epoch, cold).await.unwrap();
    world.meta.create_bucket(world.epoch, "c", None, 1).await.unwrap();
    let work = |bucket: &str, key: Option<&str>, policy: &str| {
        let (bucket, key, policy) = (bucket.into(), key.map(str::to_owned), policy.into());
        JobWork::Convert(Conversion { bucket, key, policy, concurrency: 2, bytes_per_s: 7 })
    };
    let carries = async |bucket: &str| world.meta.bucket(bucket).await.unwrap().0.policy;
    let begun = world.meta.create_job(world.epoch, work("b", Some("k"), "cold"), 5).await.unwrap();
    assert_eq!(
        (begun.work.kind(), carries("b").await),
        ("convert", bucket.policy.clone()),
        "converting one object must not change the bucket"
    );
    let refused = world.meta.create_job(world.epoch, work("b", None, "cold"), 5).await.unwrap_err();
    assert!(matches!(&refused, MetaError::Refused(said) if said.contains("job 1")), "{refused}");
    assert_eq!(carries("b").await, bucket.policy, "a refused job changed the bucket");
    world.meta.create_job(world.epoch, work("c", None, "cold"), 5).await.unwrap();
    world.meta.set_job_state(world.epoch, begun.id, JobState::Cancelled, None, 6).await.unwrap();
    let all = world.meta.create_job(world.epoch, work("b", None, "cold"), 7).await.unwrap();
    assert_eq!((carries("b").await, carries("c").await), ("cold".into(), "cold".into()));
    assert_eq!(world.meta.job(all.id).await.unwrap().work, work("b", None, "cold"));
    for (bucket, policy) in [("d", "cold"), ("c", "nothing")] {
        world.meta.set_job_state(world.epoch, JobId(2), JobState::Cancelled, None, 6).await.ok();
        let error = world.meta.create_job(world.epoch, work(bucket, None, policy), 8).await.unwrap_err();
        assert!(matches!(error, MetaError::NotFound(_)), "{error}");
    }
    assert_eq!(world.meta.jobs().await.unwrap().len(), 3, "a refused job was created");
}

#[tokio::test]
async fn what_a_put_wrote_is_found_by_it_until_it_is_overwritten() {
    let world = World::new().await;
    let written_by = async |put| world.meta.object_written_by(put).await.unwrap();
    let upload = world.written("rs(2,1)", None).await;
    assert_eq!(written_by(upload).await, None, "it is not committed");
    let put = world.commit(upload, 100).await.unwrap();
    assert_eq!(written_by(upload).await, Some(put.clone()));
    let first = world.commit(world.written("xor(2)", Some(put.version)).await, 200).await.unwrap();
    assert_eq!(written_by(upload).await, Some(first.clone()));
    let second = world.commit(world.written("rs(2,1)", Some(first.version)).await, 300).await.unwrap();
    assert_eq!(written_by(upload).await, Some(second.clone()));
    assert_eq!(written_by(second.version).await, None, "a conversion does not count as a put");
    world.commit(world.written("rs(2,1)", None).await, 400).await.unwrap();
    assert_eq!(written_by(upload).await, None);
}

#[tokio::test]
async fn objects_and_puts_of_version_6_are_no_conversions() {
    let world = World::new().await;
    let object = world.commit(world.written("rs(2,1)", None).await, 100).await.unwrap();
    let upload = world.written("rs(2,1)", None).await;
    let World { dir, meta, .. } = world;
    drop(meta);
    let path = dir.path().join("metadata.sqlite");
    let sql = "DROP INDEX objects_converted; ALTER TABLE uploads DROP COLUMN replaces; ALTER TABLE objects DROP COLUMN written;
        UPDATE schema_version SET version = 6";
    rusqlite::Connection::open(&path).unwrap().execute_batch(&format!("{BACK_TO_SCHEMA_9}{BACK_TO_SCHEMA_8}{sql}")).unwrap();
    let meta = open(&path);
    assert_eq!(meta.object(&object.name).await.unwrap(), object);
    assert_eq!(meta.object_written_by(object.version).await.unwrap(), Some(object));
    assert_eq!(meta.upload(upload).await.unwrap().new.replaces, None);
}
