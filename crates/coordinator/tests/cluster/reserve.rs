//! Puts leave room to rebuild the largest node, and repair uses it.

use crate::world::{World, data};
use std::{sync::atomic::Ordering, time::Duration};
use weft_client::{PutOptions, api};
use weft_types::{Cause, RebuildReserve, Result};

/// A block with its sidecar.
const STORED_BYTES: u64 = 16_896;
/// Room for 40 blocks.
const DISK_BYTES: u64 = 40 * STORED_BYTES;

impl World {
    /// An object of six stripes with blocks of 16 KiB.
    async fn put_small(&self, number: u64) -> Result<api::ObjectReply> {
        let options = PutOptions { code: "rs(4,2)".into(), block_len: 16 << 10, cell_len: 4 << 10, ..PutOptions::default() };
        self.client.put("b", &format!("k{number}"), data(384 << 10, number).as_slice(), &options).await
    }
}

#[tokio::test(start_paused = true)]
async fn puts_leave_room_to_rebuild_a_node_and_repair_uses_it() {
    let mut world = World::with(8, 8, |config| {
        (config.auto_repair, config.default_code) = (true, "rs(4,2)".into());
        (config.lost_after_ms, config.rebuild_reserve) = (5_000, RebuildReserve::Auto);
    })
    .await;
    assert_eq!(world.health().await.kept_bytes, 0, "so far, all disks are on one file system");
    world.disk_bytes.store(DISK_BYTES, Ordering::Relaxed);
    world.restart_agents().await;
    world.until_healthy().await;
    // An eighth of two disks on each of eight nodes.
    assert_eq!(world.health().await.kept_bytes, 16 * (DISK_BYTES / 8));
    let mut objects = 0;
    let full = loop {
        match world.put_small(objects).await {
            Ok(_) => objects += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.cause, Some(Cause::NoSpace), "{full}");
    for part in ["12.5 % that puts leave free to rebuild the largest node", "set a smaller rebuild_reserve"] {
        assert!(full.message.contains(part), "{full}");
    }
    assert!((13..=15).contains(&objects), "{objects} objects of 36 blocks, in room for 640");

    let node = world.holder("k0", 0).await;
    let held = world.block_files(node).len();
    assert!(held > 60, "{held}");
    world.kill(node);
    world
        .until("its blocks are elsewhere", async |world| {
            let health = world.health().await;
            health.down_nodes.iter().any(|down| down.lost && down.blocks == 0) && health.stripes_with_bad_blocks == 0
        })
        .await;
    for object in 0..objects {
        world.assert_whole(&format!("k{object}"), &data(384 << 10, object)).await;
    }
    let kept = |disk_bytes: u64| 14 * (disk_bytes * 142_858 / 1_000_000);
    assert_eq!(world.health().await.kept_bytes, kept(DISK_BYTES), "a seventh of two disks on each of seven nodes");
    // Less than that is free. Only puts have to wait.
    let less = DISK_BYTES - (48 << 10);
    world.disk_bytes.store(less, Ordering::Relaxed);
    world.restart_agents().await;
    let says =
        "disks are full up to the 14.3 % that is kept free to rebuild the largest node (rebuild_reserve): add nodes or disks";
    world.until("it says so", async |world| world.health().await.reasons.iter().any(|reason| reason.contains(says))).await;
    let health = world.health().await;
    assert!(health.level == "degraded" && health.kept_bytes == kept(less) && health.free_bytes > 14 * (16 << 10), "{health:?}");
    assert!(world.put_small(objects).await.is_err());
    // More space ends it.
    world.disk_bytes.store(2 * DISK_BYTES, Ordering::Relaxed);
    world.restart_agents().await;
    world.until_healthy().await;
    world.put_small(objects).await.unwrap();
}

/// Eight nodes with two small disks each, of which puts leave nothing free.
async fn small_disks() -> World {
    let mut world = World::with(8, 8, |config| config.rebuild_reserve = RebuildReserve::Off).await;
    world.disk_bytes.store(DISK_BYTES, Ordering::Relaxed);
    world.restart_agents().await;
    world.until("all nodes are up", async |world| world.up().await.len() == 8).await;
    world
}

#[tokio::test(start_paused = true)]
async fn what_can_be_written_counts_copies() {
    let world = small_disks().await;
    world.until("all disks tell their space", async |world| world.health().await.free_bytes > 15 * DISK_BYTES).await;
    let code = "rs(2,2)";
    for (name, replicas) in [("once", 1), ("twice", 2), ("thrice", 3)] {
        let policy = api::Policy { name: name.into(), code: code.into(), replicas, ..api::Policy::default() };
        world.client.create_policy(policy).await.unwrap();
    }
    let policies = world.client.space().await.unwrap().policies;
    // A stripe has four blocks, six or eight, of which two are data.
    for (name, blocks) in [("once", 4.0), ("twice", 6.0), ("thrice", 8.0)] {
        let told = policies.iter().find(|it| it.policy == name).unwrap();
        let (fits, expected) = (told.fits_bytes as f64, (16 * DISK_BYTES) as f64 * 2.0 / blocks);
        assert!((fits / expected - 1.0).abs() < 0.02 && told.code == code, "{told:?}, and not {expected}");
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_move_before_a_put_finds_no_room() {
    let mut world = small_disks().await;
    let disks = async |world: &World| {
        let nodes = world.client.status().await.unwrap().nodes;
        nodes.into_iter().flat_map(|node| node.disks).collect::<Vec<_>>()
    };
    let mut objects = 0;
    while disks(&world).await.iter().all(|disk| disk.free_bytes >= disk.total_bytes / 10) {
        world.put_small(objects).await.unwrap();
        objects += 1;
        // Heartbeats tell what is free.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let left: u64 = disks(&world).await.iter().map(|disk| disk.free_bytes / STORED_BYTES).sum();
    for node in 9..=12 {
        world.start_agent(node).await;
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    world.until("blocks move by themselves", async |world| !world.client.jobs().await.unwrap().is_empty()).await;
    let job = world.client.jobs().await.unwrap().remove(0);
    assert_eq!((job.kind.as_str(), world.ended(job.id).await.state), ("balance", "done".to_owned()));
    world.until("what was moved is removed where it was", async |world| world.rows("garbage") == 0).await;
    // At least two blocks of each of an object's six stripes are on nodes that were there before. These had no room for so many.
    for object in objects..=objects + left / 12 {
        world.put_small(object).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn nearly_full_disks_give_blocks_to_new_nodes_before_a_person_asks() {
    let mut world = small_disks().await;
    let mut objects = 0;
    while world.put_small(objects).await.is_ok() {
        objects += 1;
    }
    assert!(objects > 10, "{objects}");
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(world.client.jobs().await.unwrap(), [], "no disk has room");
    for node in 9..=12 {
        world.start_agent(node).await;
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    world.until("blocks move by themselves", async |world| !world.client.jobs().await.unwrap().is_empty()).await;
    let jobs = world.client.jobs().await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.kind.as_str()).collect::<Vec<_>>(), ["balance"]);
    let ended = world.ended(jobs[0].id).await;
    assert_eq!(ended.state, "done", "{ended:?}");
    world.put_small(objects).await.unwrap();
    for object in 0..=objects {
        world.assert_whole(&format!("k{object}"), &data(384 << 10, object)).await;
    }
    // Once is enough.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.client.jobs().await.unwrap().len(), 1);
}
