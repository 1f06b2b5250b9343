//! Conversions that wait for open stripes, for nodes that are down, for space, and for busy agents.

use crate::{
    fake_agent::FakeAgent,
    lying_disks::bytes_in,
    world::{World, data},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::atomic::Ordering,
    time::Duration,
};
use weft_agent::Limits;
use weft_client::{ConvertOptions, JobChange, PutOptions, api};
use weft_proto::from_status;
use weft_types::{ByteSize, Reaction};

/// Bytes of an object of two new stripes.
const LEN: usize = 256 << 10;

impl World {
    /// Starts to convert replicas to coded data, so slowly that the first stripe ends long before the second begins.
    async fn convert_slowly(&self, content: &[u8], bytes_per_s: u64) -> u64 {
        self.put_twice("k", content).await;
        self.create_cold(64 << 10).await;
        let options = ConvertOptions { concurrency: 1, bytes_per_s };
        let job = self.client.convert("b", "k", "cold", &options).await.unwrap().id;
        self.until("the first stripe has ended", async |world| {
            let job = world.client.job(job).await.unwrap();
            assert_eq!(job.state, "running", "{}", job.last_error);
            job.stripes_under_way == 0 && job.moving_bytes == LEN as u64 / 2
        })
        .await;
        job
    }

    /// Stores two replicas.
    async fn put_twice(&self, key: &str, content: &[u8]) {
        let (code, block_len, cell_len) = ("replication(2)".into(), LEN as u64, 64 << 10);
        let options = PutOptions { code, block_len, cell_len, ..PutOptions::default() };
        self.client.put("b", key, content, &options).await.unwrap();
    }

    /// Creates the policy to which objects are converted.
    async fn create_cold(&self, block_len: u64) {
        let (name, code) = ("cold".into(), "rs(2,1)".into());
        let policy = api::Policy { name, code, block_len, cell_len: block_len, ..api::Policy::default() };
        self.client.create_policy(policy).await.unwrap();
    }

    /// Waits until a job reports `what`; the job must not have ended.
    async fn until_told(&self, job: u64, what: &str) {
        self.until(what, async |world| {
            let job = world.client.job(job).await.unwrap();
            assert_eq!(job.state, "running", "{}", job.last_error);
            job.waits_for.iter().any(|waits| format!("waits for {waits}").contains(what))
        })
        .await;
    }

    fn files(&self, nodes: u32) -> BTreeSet<(u32, PathBuf)> {
        (1..=nodes).flat_map(|node| self.block_files(node).into_iter().map(move |file| (node, file))).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_updated_while_it_is_converted_is_converted_anew() {
    let world = World::new(4, 4).await;
    let content = data(LEN, 9);
    let job = world.convert_slowly(&content, 40 << 10).await;
    let before = world.stat("k").await;
    let asked = api::OpenForUpdatesRequest { bucket: "b".into(), key: "k".into(), version: before.version, ..Default::default() };
    // Whether the agents open the blocks or not, something may have been updated that was read before.
    let _opened = world.bare_client().await.open_for_updates(asked).await;
    world
        .until("the conversion starts again", async |world| {
            world.client.job(job).await.unwrap().last_error.contains("updated in place")
        })
        .await;
    assert_eq!(world.stat("k").await.version, before.version, "what was read before the update is not committed");
    world.until("the job is done", async |world| world.client.job(job).await.unwrap().state == "done").await;
    assert!(world.get("k", "").await.unwrap().0 == content);
    assert_eq!(world.stat("k").await.code, "rs(2,1)");
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_new_blocks_are_lost_before_it_is_complete_starts_again() {
    let mut world = World::new(4, 4).await;
    let content = data(LEN, 1);
    let job = world.convert_slowly(&content, 40 << 10).await;
    let old: BTreeSet<u32> = world.stat("k").await.stripes[0].blocks.iter().map(|block| block.node).collect();
    // One of the three nodes with new blocks has no old block.
    let held = world.files(4);
    let lost = held.iter().map(|(node, _)| *node).find(|node| !old.contains(node)).unwrap();
    world.kill(lost);
    world.until("one node is down", async |world| world.up().await.len() == 3).await;
    // On simulated time: the second stripe begins three seconds after the first.
    assert_eq!(world.stat("k").await.code, "replication(2)");
    let ended = world.ended(job).await;
    assert_eq!(ended.state, "done", "{}", ended.last_error);
    assert_eq!((world.stat("k").await.code.as_str(), world.not_ok("k").await), ("rs(2,1)", vec![]));
    assert_eq!(world.get("k", "").await.unwrap().0, content);
}

/// The answer to its commit may have been lost.
#[tokio::test(start_paused = true)]
async fn a_put_that_was_converted_since_is_still_reported_as_stored() {
    let world = World::new(4, 4).await;
    let content = data(LEN, 2);
    let job = world.convert_slowly(&content, 256 << 10).await;
    let before = world.stat("k").await;
    assert_eq!(world.ended(job).await.state, "done");
    let after = world.stat("k").await;
    assert_eq!((before.code.as_str(), after.code.as_str()), ("replication(2)", "rs(2,1)"));
    let mut bare = world.bare_client().await;
    let (upload, size) = (before.version, LEN as u64);
    let stored = bare.commit_put(api::CommitPutRequest { upload, size, put_key: Vec::new() }).await.unwrap().into_inner();
    assert_eq!((stored.version, stored.written, stored.size), (after.version, before.version, size));
    let other = bare.commit_put(api::CommitPutRequest { upload, size: size + 1, put_key: Vec::new() }).await.unwrap_err();
    assert_eq!(from_status(&other).reaction, Reaction::NotFound);
}

#[tokio::test(start_paused = true)]
async fn new_blocks_on_a_node_that_only_restarts_are_not_written_again() {
    let mut world = World::with(4, 4, |config| config.conversion_restart_ms = 30_000).await;
    let content = data(LEN, 1);
    let before: BTreeSet<_> = world.files(4);
    let job = world.convert_slowly(&content, 40 << 10).await;
    let old: BTreeSet<u32> = world.stat("k").await.stripes[0].blocks.iter().map(|block| block.node).collect();
    let held = world.files(4);
    let node = held.iter().map(|(node, _)| *node).find(|node| !old.contains(node)).unwrap();
    world.kill(node);
    world.until_told(job, &format!("waits for node-{node:02}, which is down and has new blocks of b/k")).await;
    // By now all stripes have ended, and for all other purposes the node counts as down for good.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ended_stripes = world.files(4);
    world.start_agent(node).await;
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), ended.last_error.as_str()), ("done", ""));
    assert_eq!((world.stat("k").await.code.as_str(), world.not_ok("k").await), ("rs(2,1)", vec![]));
    assert_eq!(world.get("k", "").await.unwrap().0, content);
    let now = world.files(4);
    assert!(before.is_empty() && now.is_subset(&ended_stripes), "blocks were written a second time");
}

#[tokio::test(start_paused = true)]
async fn a_conversion_leaves_space_to_puts_and_goes_on_when_there_is_more() {
    const DISK_BYTES: u64 = 900 << 10;
    let mut world = World::with(4, 4, |config| config.conversion_free_percent = 25).await;
    // Replaced blocks stay on the disks until the bound is raised.
    world.limits = Limits { freed_bytes_per_hour: ByteSize(0), freed_percent_per_hour: 0, ..Limits::default() };
    world.disk_bytes.store(DISK_BYTES, Ordering::Relaxed);
    world.restart_agents().await;
    let contents: Vec<Vec<u8>> = (0..8).map(|seed| data(LEN, seed)).collect();
    for (number, content) in contents.iter().enumerate() {
        world.put_twice(&number.to_string(), content).await;
    }
    world.create_cold(64 << 10).await;
    let free = |world: &World| -> Vec<u64> {
        (1..=4).flat_map(|node| world.disk_dirs(node)).map(|disk| DISK_BYTES.saturating_sub(bytes_in(&disk))).collect()
    };
    let before = free(&world);
    // The conversion is slow enough for nodes to report their free space during it.
    let options = ConvertOptions { concurrency: 1, bytes_per_s: 512 << 10 };
    let job = world.client.convert("b", "", "cold", &options).await.unwrap().id;
    world.until_told(job, "waits for space: ").await;
    let waiting = world.client.job(job).await.unwrap();
    assert!(waiting.done.unwrap().blocks >= 1 && waiting.stripes_under_way == 0, "{waiting:?}");
    for (free, before) in free(&world).into_iter().zip(before) {
        // One or two blocks may be placed by the free space of the previous heartbeat. Puts may use more space.
        assert!(free == before || free >= DISK_BYTES / 4 - (128 << 10), "{free} bytes are free, and {before} were");
    }
    let put = data(LEN, 99);
    world.client.put("b", "new", put.as_slice(), &PutOptions::default()).await.unwrap();
    // Raising the bound restarts the agent.
    world.limits = Limits::default();
    world.restart_agents().await;
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), ended.last_error.as_str()), ("done", ""));
    for (number, content) in contents.iter().enumerate() {
        let key = number.to_string();
        assert_eq!((world.stat(&key).await.code.as_str(), &world.get(&key, "").await.unwrap().0), ("rs(2,1)", content));
    }
    assert_eq!(world.get("new", "").await.unwrap().0, put);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_has_to_go_elsewhere_leaves_space_to_puts_too() {
    let mut world = World::with(4, 4, |config| config.conversion_free_percent = 50).await;
    world.disk_bytes.store(32 << 20, Ordering::Relaxed);
    for disk in world.disk_dirs(4) {
        std::fs::File::create(disk.join("ballast")).unwrap().set_len(20 << 20).unwrap();
    }
    world.slow_down_agents().await;
    let content = data(8 << 20, 1);
    world.put_twice("k", &content).await;
    world.create_cold(4 << 20).await;
    let mut old: BTreeMap<u32, usize> = BTreeMap::new();
    for block in world.stat("k").await.stripes.iter().flat_map(|stripe| &stripe.blocks) {
        *old.entry(block.node).or_default() += 1;
    }
    let on_full = world.block_files(4);
    let job = world.client.convert("b", "k", "cold", &ConvertOptions::default()).await.unwrap().id;
    world.until("all three receive their blocks", async |world| world.being_written().len() == 3).await;
    // Not the node that writes the stripe, which has most of it.
    let hit = (1..=3).min_by_key(|node| old.get(node)).unwrap();
    assert!(world.being_written().values().any(|node| *node == hit));
    world.kill(hit);
    world.until_told(job, "waits for space: ").await;
    assert_eq!(world.block_files(4), on_full);
    world.start_agent(hit).await;
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), ended.last_error.as_str()), ("done", ""));
    assert!(world.get("k", "").await.unwrap().0 == content, "the object was read back changed");
}

/// Two objects are written in part, and as many stripes run at a time as one of them has left to write.
#[tokio::test(start_paused = true)]
async fn an_object_gives_up_its_new_stripes_for_another_that_waits_for_space() {
    let mut world = World::with(4, 4, |config| config.conversion_free_percent = 25).await;
    world.disk_bytes.store(1 << 30, Ordering::Relaxed);
    world.restart_agents().await;
    let contents = [1, 2].map(|seed| data(2 * LEN, seed));
    for (number, content) in contents.iter().enumerate() {
        world.put_twice(&number.to_string(), content).await;
    }
    world.create_cold(64 << 10).await;
    let options = ConvertOptions { concurrency: 2, bytes_per_s: LEN as u64 / 2 };
    let job = world.client.convert("b", "", "cold", &options).await.unwrap().id;
    world
        .until("two stripes of each have ended", async |world| {
            world.rows("uploads") == 2 && world.client.job(job).await.unwrap().moving_bytes >= 2 * LEN as u64
        })
        .await;
    world.disk_bytes.store(1, Ordering::Relaxed);
    world.until_told(job, "waits for space: ").await;
    world.until("one object gives up its space", async |world| world.rows("uploads") == 1).await;
    world.until_told(job, "waits for space: ").await;
    world.disk_bytes.store(1 << 30, Ordering::Relaxed);
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), ended.last_error.as_str(), ended.waits_for.len()), ("done", "", 0));
    for (number, content) in contents.iter().enumerate() {
        let key = number.to_string();
        assert_eq!((world.stat(&key).await.code.as_str(), &world.get(&key, "").await.unwrap().0), ("rs(2,1)", content));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stripe_that_is_too_much_for_memory_waits_for_room_on_a_disk() {
    let mut world = World::new(4, 4).await;
    // A conversion may use a quarter of an eighth of this for its stripe.
    world.limits.memory_budget = weft_types::ByteSize(32 << 20);
    world.disk_bytes.store(2300 << 10, Ordering::Relaxed);
    world.restart_agents().await;
    let content = data(2 << 20, 1);
    world.put_twice("k", &content).await;
    world.create_cold(1 << 20).await;
    let job = world.client.convert("b", "k", "cold", &ConvertOptions::default()).await.unwrap().id;
    world.until_told(job, "waits for space: the agent that writes a stripe").await;
    world.disk_bytes.store(0, Ordering::Relaxed);
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), ended.last_error.as_str()), ("done", ""));
    assert_eq!(world.get("k", "").await.unwrap().0, content);
}

#[tokio::test(start_paused = true)]
async fn a_conversion_waits_for_a_busy_agent_and_blames_no_node() {
    // A single failure would exclude a node.
    let change = |config: &mut weft_coordinator::CoordinatorConfig| (config.open_attempts_max, config.resumes_max) = (4, 0);
    let mut world = World::with(2, 2, change).await;
    let content = data(LEN, 1);
    world.put_twice("k", &content).await;
    world.create_cold(64 << 10).await;
    let busy = FakeAgent::start(&world, "busy").await;
    busy.asked().busy = true;
    let job = world.client.convert("b", "k", "cold", &ConvertOptions::default()).await.unwrap().id;
    world.until_told(job, ": busy").await;
    assert!(busy.asked().opens > 0);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(world.client.job(job).await.unwrap().state, "running");
    drop(busy);
    world.start_agent(3).await;
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), ended.last_error.as_str()), ("done", ""));
    assert_eq!(world.get("k", "").await.unwrap().0, content);
}

#[tokio::test(start_paused = true)]
async fn clients_cannot_change_the_put_of_a_conversion() {
    let world = World::new(4, 4).await;
    let content = data(LEN, 1);
    let job = world.convert_slowly(&content, 1).await;
    let before = world.stat("k").await;
    let upload = before.version + 1;
    let mut bare = world.bare_client().await;
    let put = api::PutStripeRequest { upload, number: 1, data_len: 4096, options: None, put_key: Vec::new() };
    let refused = [
        ("put", bare.put_stripe(put).await.err()),
        ("end", bare.end_stripe(api::EndStripeRequest { upload, number: 1, ..Default::default() }).await.err()),
        ("keep", bare.keep_put(api::KeepPutRequest { upload, ..Default::default() }).await.err()),
        ("commit", bare.commit_put(api::CommitPutRequest { upload, size: LEN as u64 / 2, put_key: Vec::new() }).await.err()),
        ("abort", bare.abort_put(api::AbortPutRequest { upload, put_key: Vec::new() }).await.err()),
    ];
    for (call, refused) in refused {
        let error = from_status(&refused.unwrap_or_else(|| panic!("{call} was not refused")));
        let says = error.message.contains("only the agent that the coordinator chose");
        assert!(says && error.reaction == Reaction::InvalidInput, "{call}: {error}");
    }
    assert_eq!(world.client.job(job).await.unwrap().state, "running");
    world.client.change_job(job, JobChange::Cancel).await.unwrap();
    assert_eq!(world.ended(job).await.state, "cancelled");
    assert_eq!(world.stat("k").await, before);
    assert_eq!(world.get("k", "").await.unwrap().0, content);
}
