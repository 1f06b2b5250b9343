//! Scrubs: what is wrong on disks is found and rebuilt, and nothing else is called wrong.

use crate::{
    healing::healing,
    world::{World, data},
};
use std::{collections::BTreeSet, path::PathBuf, time::Duration};
use weft_client::{ConvertOptions, PutOptions, RepairNodeOptions, RepairOptions, api};
use weft_store::Sidecar;
use weft_types::{BlockId, NodeId, Reaction, StripeId};

/// The period of tests of the check in the background, milliseconds.
const PERIOD_MS: u64 = 20_000;

impl World {
    /// The payload of a block of the first stripe of an object.
    async fn file(&self, key: &str, index: u8) -> PathBuf {
        let stripe = self.stat(key).await.stripes.remove(0);
        let block = &stripe.blocks[usize::from(index)];
        self.block_file(block.node, stripe.id, (index, 0), block.generation)
    }

    /// Runs a scrub to its end.
    async fn scrubbed(&self, bucket: &str, key: &str, node: Option<NodeId>) -> api::Job {
        let job = self.client.scrub(bucket, key, node, 0).await.unwrap().id;
        self.ended(job).await
    }

    async fn scrub(&self) -> api::ScrubStatus {
        self.health().await.scrub.unwrap()
    }

    /// Waits until all is rebuilt, also what is not counted yet.
    async fn until_whole(&self, objects: &[(String, Vec<u8>)]) {
        for (key, _) in objects {
            self.until("its blocks are rebuilt", async |world| world.not_ok(key).await.is_empty()).await;
        }
        self.until_healthy().await;
        for (key, bytes) in objects {
            self.assert_whole(key, bytes).await;
        }
    }

    /// Puts whole stripes, one object each.
    async fn fill(&self, objects: u64) -> Vec<(String, Vec<u8>)> {
        let objects: Vec<(String, Vec<u8>)> = (0..objects).map(|key| (format!("k{key}"), data(1 << 20, 300 + key))).collect();
        for (key, bytes) in &objects {
            self.put(key, bytes).await.unwrap();
        }
        objects
    }
}

/// Replaces a block's payload, and the checksums on the disk to match.
fn forge(payload: &PathBuf, bytes: &[u8]) {
    let sidecar = payload.with_extension("meta");
    let honest = Sidecar::decode(&std::fs::read(&sidecar).unwrap()).unwrap();
    let forged = Sidecar::new(honest.meta().clone(), bytes.chunks(4096).map(weft_types::crc32c).collect()).unwrap();
    std::fs::write(payload, bytes).unwrap();
    std::fs::write(&sidecar, forged.encode().unwrap()).unwrap();
}

fn tally(job: &api::Job) -> api::ScrubTally {
    job.scrubbed.clone().unwrap().tally.unwrap()
}

fn found(report: &api::ScrubReport) -> BTreeSet<(String, Option<u32>)> {
    report.wrong.iter().map(|wrong| (wrong.object.clone(), wrong.index)).collect()
}

/// Damages blocks in every way, and says which.
async fn damage(world: &World) -> BTreeSet<(String, Option<u32>)> {
    let flipped = world.file("k0", 1).await;
    let mut bytes = std::fs::read(&flipped).unwrap();
    bytes[70_000] ^= 1;
    std::fs::write(&flipped, bytes).unwrap();
    let missing = world.file("k1", 5).await;
    std::fs::remove_file(missing.with_extension("meta")).unwrap();
    std::fs::remove_file(&missing).unwrap();
    // An older content, whose pages match its sidecar.
    let stale = world.file("k2", 0).await;
    forge(&stale, &data(std::fs::read(&stale).unwrap().len(), 9));
    // Two blocks of a stripe, each with the other's content.
    let [one, other] = [world.file("k3", 1).await, world.file("k3", 2).await];
    let contents = [&one, &other].map(|file| std::fs::read(file).unwrap());
    forge(&one, &contents[1]);
    forge(&other, &contents[0]);
    // Parity that was never written.
    let dead = world.file("k4", 4).await;
    forge(&dead, &vec![0; std::fs::read(&dead).unwrap().len()]);
    [("k0", 1), ("k1", 5), ("k2", 0), ("k3", 1), ("k3", 2), ("k4", 4)]
        .map(|(key, index)| (format!("b/{key}"), Some(index)))
        .into()
}

#[tokio::test(start_paused = true)]
async fn one_scrub_finds_every_kind_of_damage_and_the_healer_rebuilds_it() {
    let world = healing(8, 8).await;
    let objects = world.fill(8).await;
    let damaged = damage(&world).await;
    let job = world.scrubbed("", "", None).await;
    assert_eq!((job.state.as_str(), job.kind.as_str()), ("done", "scrub"), "{}", job.last_error);
    assert_eq!((tally(&job).wrong_blocks, tally(&job).stripes, tally(&job).inconsistent_stripes), (6, 8, 0), "{job:?}");
    assert_eq!(found(&job.scrubbed.clone().unwrap()), damaged);
    let done = job.done.unwrap();
    assert_eq!((done.blocks, job.left.unwrap_or_default().blocks), (8, 0));
    world.until_whole(&objects).await;
    let again = world.scrubbed("", "", None).await;
    let checked = tally(&again);
    assert_eq!((checked.wrong_blocks, checked.lacking_blocks, checked.stripes, checked.blocks), (0, 0, 8, 8 * 6), "{again:?}");
    assert_eq!(checked.bytes, 8 * 6 * (256 << 10));
    assert!(again.moved_bytes > Some(0), "the parity checks were sent: {again:?}");
    // The blame for wrong bytes is on blocks, and on no node.
    assert!(world.told().await.silent.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_scrub_checks_what_it_is_asked_for() {
    let world = World::new(8, 8).await;
    world.fill(3).await;
    world.client.create_bucket("other", "").await.unwrap();
    let options = PutOptions { code: "rs(2,1)".into(), block_len: 64 << 10, cell_len: 64 << 10, ..PutOptions::default() };
    world.client.put("other", "x", &data(300_000, 1)[..], &options).await.unwrap();
    let stripes = async |bucket: &str, key: &str, node: Option<u32>| {
        let job = world.scrubbed(bucket, key, node.map(NodeId)).await;
        assert_eq!((job.state.as_str(), tally(&job).wrong_blocks), ("done", 0), "{}", job.last_error);
        tally(&job).stripes
    };
    assert_eq!(stripes("", "", None).await, 3 + 3);
    assert_eq!(stripes("b", "", None).await, 3);
    assert_eq!(stripes("b", "k1", None).await, 1);
    assert_eq!(stripes("other", "x", None).await, 3);
    let mut on_node = 0;
    for key in ["k0", "k1", "k2"] {
        on_node += u64::from(world.stat(key).await.stripes[0].blocks.iter().any(|block| block.node == 1));
    }
    let of_other = world.client.stat("other", "x").await.unwrap().stripes;
    on_node += of_other.iter().filter(|stripe| stripe.blocks.iter().any(|block| block.node == 1)).count() as u64;
    assert_eq!(stripes("", "", Some(1)).await, on_node);
    for (bucket, key, node, says) in
        [("no", "", None, "no"), ("b", "no", None, "there is no object no"), ("", "", Some(99), "there is no node n99")]
    {
        let error = world.client.scrub(bucket, key, node.map(NodeId), 0).await.unwrap_err();
        assert!(error.reaction == Reaction::NotFound && error.message.contains(says), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_down_and_a_disk_that_is_not_mounted_are_no_findings() {
    let mut world = World::new(8, 8).await;
    let objects = world.fill(12).await;
    let down = world.holder("k0", 1).await;
    world.kill(down);
    world.until_down(down).await;
    let job = world.scrubbed("", "", None).await;
    let left = job.left.unwrap_or_default();
    assert_eq!((job.state.as_str(), tally(&job).wrong_blocks, left.blocks), ("failed", 0, tally(&job).not_checked_stripes));
    assert!(left.blocks > 0 && job.last_error.contains("down"), "{job:?}");
    world.start_agent(down).await;
    world.until("all nodes are up", async |world| world.up().await.len() == 8).await;

    // The agent runs, and nothing is where its disk was.
    let disk =
        world.disk_dirs(down).into_iter().find(|disk| world.block_files(down).iter().any(|file| file.starts_with(disk))).unwrap();
    std::fs::rename(disk.join("blocks"), disk.join("away")).unwrap();
    let job = world.scrubbed("", "", None).await;
    assert_eq!((job.state.as_str(), tally(&job).wrong_blocks), ("failed", 0), "{job:?}");
    assert!(job.last_error.contains("is it mounted?"), "{}", job.last_error);
    for (key, _) in &objects {
        assert_eq!(world.not_ok(key).await, [], "nothing is condemned");
    }
    std::fs::remove_dir_all(disk.join("blocks")).unwrap_or_default();
    std::fs::rename(disk.join("away"), disk.join("blocks")).unwrap();
    let job = world.scrubbed("", "", None).await;
    assert_eq!((job.state.as_str(), tally(&job).stripes, tally(&job).wrong_blocks), ("done", 12, 0), "{}", job.last_error);
}

/// The recorded checksum of a block is that of other bytes, too.
#[tokio::test(start_paused = true)]
async fn blocks_that_match_what_was_recorded_and_contradict_each_other_are_reported_and_kept() {
    let world = healing(8, 8).await;
    let bytes = world.fill(1).await.remove(0).1;
    let payload = world.file("k0", 4).await;
    let other = data(std::fs::read(&payload).unwrap().len(), 77);
    forge(&payload, &other);
    let metadata = rusqlite::Connection::open(world.metadata_file()).unwrap();
    let blob: Vec<u8> = metadata.query_row("SELECT units FROM stripes", [], |row| row.get(0)).unwrap();
    let mut checksums: Vec<Vec<[u8; 4]>> = postcard::from_bytes(&blob[1..]).unwrap();
    checksums[4] = other.chunks(1 << 20).map(|unit| weft_types::crc32c(unit).to_le_bytes()).collect();
    let forged = postcard::to_extend(&checksums, vec![blob[0]]).unwrap();
    assert_eq!(metadata.execute("UPDATE stripes SET units = ?1", [forged]).unwrap(), 1);
    drop(metadata);
    let job = world.scrubbed("", "", None).await;
    let report = job.scrubbed.clone().unwrap();
    assert_eq!((job.state.as_str(), tally(&job).wrong_blocks, tally(&job).inconsistent_stripes), ("done", 0, 1), "{job:?}");
    let why = &report.wrong[0].why;
    assert!(report.wrong[0].index.is_none() && why.contains("without block 4") && why.contains("store it again"), "{why}");
    assert_eq!((world.not_ok("k0").await, payload.exists()), (vec![], true));
    assert!(world.get("k0", "").await.unwrap().0 == bytes);
}

#[tokio::test(start_paused = true)]
async fn stripes_that_are_removed_rewritten_converted_and_moved_during_a_scrub_are_no_findings() {
    let world = healing(8, 8).await;
    world.fill(16).await;
    let policy = api::Policy { name: "cold".into(), code: "rs(2,2)".into(), ..api::Policy::default() };
    world.client.create_policy(policy).await.unwrap();
    let scrubs = async {
        let mut checked = 0;
        for _ in 0..12 {
            let job = world.client.scrub("", "", None, 8).await.unwrap().id;
            let job = world.ended(job).await;
            let found = tally(&job);
            assert_eq!((found.wrong_blocks, found.inconsistent_stripes), (0, 0), "{job:?}");
            checked += found.stripes;
        }
        checked
    };
    let changes = async {
        for key in 0..4 {
            world.client.remove("b", &format!("k{key}")).await.unwrap();
            world.put(&format!("k{}", key + 4), &data(1 << 20, 900 + key)).await.unwrap();
            world.repair(&format!("k{}", key + 8), &RepairOptions { blocks: vec![2], ..RepairOptions::default() }).await.unwrap();
        }
        let options = RepairNodeOptions { force: true, ..RepairNodeOptions::default() };
        let moved = world.client.repair_node(NodeId(3), &options).await.unwrap().id;
        let converted = world.client.convert("b", "", "cold", &ConvertOptions::default()).await.unwrap().id;
        for job in [moved, converted] {
            world.ended(job).await;
        }
    };
    let (checked, ()) = tokio::join!(scrubs, changes);
    assert!(checked > 12 * 8, "{checked}");
    let job = world.scrubbed("", "", None).await;
    assert_eq!((job.state.as_str(), tally(&job).wrong_blocks), ("done", 0), "{}", job.last_error);
}

/// A cluster that checks all in the background, with healing.
async fn checking() -> World {
    World::with(8, 8, |config| {
        (config.auto_repair, config.scrub_period_ms, config.default_code) = (true, PERIOD_MS, "rs(4,2)".into());
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn all_is_checked_within_the_period_evenly_and_what_is_wrong_is_rebuilt() {
    let world = checking().await;
    let objects = world.fill(8).await;
    let damaged = damage(&world).await;
    world.until("the first pass has begun", async |world| world.scrub().await.began_ms > 0).await;
    let began_ms = world.scrub().await.began_ms;
    tokio::time::sleep(Duration::from_millis(PERIOD_MS / 3)).await;
    let now = world.scrub().await;
    let stripes = now.report.unwrap().tally.unwrap().stripes;
    assert!((1..=5).contains(&stripes), "not in one burst, but {stripes} of 8");
    world.until("the pass has ended", async |world| world.scrub().await.last_ended_ms > 0).await;
    let status = world.scrub().await;
    let (last, tally) = (status.last_report.clone().unwrap(), status.last_report.unwrap().tally.unwrap());
    assert_eq!((tally.stripes, tally.wrong_blocks, tally.not_checked_stripes), (8, 6, 0));
    assert_eq!(found(&last), damaged);
    assert!(status.last_began_ms == began_ms && status.last_ended_ms < began_ms + PERIOD_MS && !status.late, "{began_ms}");
    world.until_whole(&objects).await;
    // The next pass begins when the period is over, and finds nothing.
    tokio::time::sleep(Duration::from_millis(PERIOD_MS)).await;
    world.until("the second pass has ended", async |world| world.scrub().await.last_began_ms > began_ms).await;
    let status = world.scrub().await;
    let tally = status.last_report.unwrap().tally.unwrap();
    assert_eq!((tally.stripes, tally.blocks, tally.wrong_blocks, tally.lacking_blocks), (8, 48, 0, 0));
    let interval_ms = status.last_began_ms - began_ms;
    assert!((PERIOD_MS..PERIOD_MS + 3_000).contains(&interval_ms), "{interval_ms}");
}

#[tokio::test(start_paused = true)]
async fn the_next_coordinator_continues_the_pass_and_the_job() {
    let mut world = checking().await;
    let objects = world.fill(12).await;
    damage(&world).await;
    let checked = async |world: &World| world.scrub().await.report.map_or(0, |report| report.tally.unwrap().stripes);
    world.until("some are checked", async |world| checked(world).await >= 4).await;
    // The progress is recorded now and then.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let before = world.scrub().await;
    world.restart_coordinator().await;
    world.until("the pass is taken up", async |world| world.scrub().await.began_ms > 0).await;
    let after = world.scrub().await;
    assert_eq!(after.began_ms, before.began_ms);
    assert!(after.report.unwrap().tally.unwrap().stripes > 0);
    let job = world.client.scrub("b", "", None, 1).await.unwrap().id;
    world.restart_coordinator().await;
    let job = world.ended(job).await;
    assert_eq!((job.state.as_str(), tally(&job).stripes), ("done", 12), "{}", job.last_error);
    world.until("the pass has ended", async |world| world.scrub().await.last_ended_ms > 0).await;
    let tally = world.scrub().await.last_report.unwrap().tally.unwrap();
    assert_eq!((tally.stripes, tally.not_checked_stripes), (12, 0), "each is counted once: {tally:?}");
    world.until_whole(&objects).await;
}

/// Otherwise what has rotted below pages in the cache is seen when these are gone.
#[tokio::test(start_paused = true)]
async fn a_scrub_reads_blocks_and_sidecars_from_their_disks_and_not_from_the_page_cache() {
    let world = World::new(7, 7).await;
    world.fill(2).await;
    // Without parity, each copy is read by itself.
    let options = PutOptions { code: "replication(3)".into(), ..PutOptions::default() };
    world.client.put("b", "copies", data(256 << 10, 9).as_slice(), &options).await.unwrap();
    world.get("k0", "").await.unwrap();
    assert_eq!(*world.forgotten.lock().unwrap(), BTreeSet::new(), "reads are served from the cache");
    assert_eq!(world.scrubbed("", "", None).await.state, "done");
    let mut stored = BTreeSet::new();
    for key in ["k0", "k1", "copies"] {
        for stripe in world.stat(key).await.stripes {
            for it in stripe.blocks.iter().chain(&stripe.copies) {
                let (index, copy) = (it.index as u8, it.copy as u8);
                let id = BlockId { stripe: StripeId(stripe.id), index, copy, generation: it.generation };
                stored.extend([(id, true), (id, false)]);
            }
        }
    }
    assert_eq!(*world.forgotten.lock().unwrap(), stored);
}
