//! Puts leave room to rebuild the largest node, and repair uses it.

use crate::world::{World, data};
use std::sync::atomic::Ordering;
use weft_client::{PutOptions, api};
use weft_types::{Cause, RebuildReserve, Result};

/// Room for 40 blocks with their sidecars.
const DISK_BYTES: u64 = 675_840;

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

#[tokio::test(start_paused = true)]
async fn nearly_full_disks_give_blocks_to_new_nodes_before_a_person_asks() {
    let mut world = World::with(8, 8, |config| config.rebuild_reserve = RebuildReserve::Off).await;
    world.disk_bytes.store(DISK_BYTES, Ordering::Relaxed);
    world.restart_agents().await;
    world.until("all nodes are up", async |world| world.up().await.len() == 8).await;
    let mut objects = 0;
    while world.put_small(objects).await.is_ok() {
        objects += 1;
    }
    assert!(objects > 10, "{objects}");
    tokio::time::sleep(std::time::Duration::from_secs(40)).await;
    assert_eq!(world.client.jobs().await.unwrap(), [], "no disk has room");
    for node in 9..=12 {
        world.start_agent(node).await;
    }
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
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
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(world.client.jobs().await.unwrap().len(), 1);
}
