//! Disks that work and are slow or failing: they are told, and drained without a person as far as the settings allow it.

use crate::world::World;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use weft_client::api;
use weft_coordinator::CoordinatorConfig;
use weft_types::{DrainFailingDisks, NodeId};

async fn world(nodes: u32, change: impl FnOnce(&mut CoordinatorConfig)) -> World {
    World::with(nodes, nodes, |config| {
        (config.auto_repair, config.default_code) = (true, "rs(4,2)".into());
        change(config);
    })
    .await
}

impl World {
    async fn assert_readable(&self, objects: &[(String, Vec<u8>)]) {
        for (key, bytes) in objects {
            assert!(self.get(key, "").await.unwrap().0 == *bytes, "{key}");
        }
    }

    async fn ailing(&self) -> Vec<api::AilingDisk> {
        self.health().await.ailing_disks
    }

    async fn disk(&self, path: &Path) -> api::Disk {
        let nodes = self.client.status().await.unwrap().nodes;
        nodes.into_iter().flat_map(|node| node.disks).find(|disk| Path::new(&disk.path) == path).unwrap()
    }
}

/// The payloads of data blocks on a disk.
fn data_blocks(world: &World, node: u32, disk: &Path) -> Vec<PathBuf> {
    let is_data = |file: &PathBuf| {
        let block: weft_types::BlockId = file.file_name().unwrap().to_str().unwrap().parse().unwrap();
        file.starts_with(disk) && block.index < 4
    };
    world.block_files(node).into_iter().filter(is_data).collect()
}

/// Flips a byte of most data blocks of the disk with the most of them. Returns its node and its directory.
fn corrupt_a_disk(world: &World, nodes: u32) -> (u32, PathBuf) {
    let disks = (1..=nodes).flat_map(|node| world.disk_dirs(node).map(|disk| (node, disk)));
    let (node, disk) = disks.max_by_key(|(node, disk)| data_blocks(world, *node, disk).len()).unwrap();
    let blocks = data_blocks(world, node, &disk);
    assert!(blocks.len() >= 10, "only {}", blocks.len());
    for file in &blocks[1..] {
        let mut payload = std::fs::read(file).unwrap();
        payload[5] ^= 1;
        std::fs::write(file, payload).unwrap();
    }
    (node, disk)
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_loses_blocks_is_told_and_drained_while_everything_can_be_read() {
    let world = world(9, |_| {}).await;
    let objects = world.put_stripes(0..12).await;
    assert_eq!(world.ailing().await, []);
    let (node, disk) = corrupt_a_disk(&world, 9);
    world.assert_readable(&objects).await;
    world.until("the status names the disk", async |world| !world.ailing().await.is_empty()).await;
    let ailing = world.ailing().await;
    let it = &ailing[0];
    assert_eq!((ailing.len(), it.node, Path::new(&it.path), it.trouble.as_str()), (1, node, &*disk, "failing"));
    assert!(it.why.contains("of its blocks were found corrupt or unreadable within a day"), "{it:?}");
    world.until("it is drained", async |world| world.disk(&disk).await.draining).await;
    world.assert_readable(&objects).await;
    world.until("it is empty", async |world| world.disk(&disk).await.blocks == 0).await;
    world.until_healthy().await;
    world.assert_readable(&objects).await;
    let listed = world.disk(&disk).await;
    assert!(listed.trouble == "failing" && !listed.failed, "{listed:?}");
    assert!(
        world.client.status().await.unwrap().nodes.iter().flat_map(|node| &node.disks).filter(|disk| disk.draining).count() == 1
    );
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_a_person_ended_does_not_begin_again_without_one() {
    let mut world = world(9, |_| {}).await;
    let objects = world.put_stripes(0..12).await;
    let (node, disk) = corrupt_a_disk(&world, 9);
    let id = world.disk(&disk).await.id;
    // Before it begins, too.
    world.client.drain(NodeId(node), &id, Some(false), false).await.unwrap();
    world.assert_readable(&objects).await;
    world.until("the status names the disk", async |world| !world.ailing().await.is_empty()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!world.disk(&disk).await.draining);
    let health = world.health().await;
    let says = format!("`weft node disk drain node-{node:02} {}` moves its blocks elsewhere", disk.display());
    assert_eq!(health.level, "degraded");
    assert!(
        health.reasons.iter().any(|reason| reason.contains("is failing: ") && reason.ends_with(&says)),
        "{:?}",
        health.reasons
    );
    // A coordinator that starts knows it, and knows of no bad blocks.
    world.restart_coordinator().await;
    world.until("the nodes are back", async |world| world.up().await.len() == 9).await;
    assert_eq!(world.ailing().await, []);
    assert_eq!(world.rows("disks WHERE draining = 2"), 1);
    world.client.drain(NodeId(node), &id, Some(true), false).await.unwrap();
    assert!(world.disk(&disk).await.draining, "a person may begin it");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_much_slower_than_the_others_is_told_and_drained_if_that_is_set() {
    let mut world = world(8, |config| (config.slow_disk_ms, config.drain_failing_disks) = (2_000, DrainFailingDisks::Slow)).await;
    // One disk a node.
    world.unlisted = (1..=8).map(|node| world.disk_dirs(node)[1].clone()).collect();
    world.disk_call_ms = (1..=8).map(|node| (node, if node == 3 { 100 } else { 2 })).collect();
    world.restart_agents().await;
    let objects = world.put_stripes(0..8).await;
    world.until("the status names the disk", async |world| !world.ailing().await.is_empty()).await;
    let ailing = world.ailing().await;
    let it = &ailing[0];
    assert_eq!((ailing.len(), it.node, it.trouble.as_str()), (1, 3, "slow"), "{it:?}");
    assert!(it.why.starts_with("it synced ") && it.why.contains(" ms each sync; usual on 7 other disks: "), "{it:?}");
    world.until("it is empty", async |world| world.ailing().await.iter().all(|it| it.draining && it.blocks == 0)).await;
    world.until_healthy().await;
    world.assert_readable(&objects).await;
}
