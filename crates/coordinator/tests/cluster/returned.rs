//! Nodes that come back after they were lost: their blocks are checked, disk by disk, and what is right is kept.

use crate::{
    healing::healing,
    world::{World, data},
};
use std::path::PathBuf;
use weft_store::Sidecar;

impl World {
    /// How many blocks were checked of the only node that is being checked, and how many of these are bad; `None` if none is.
    async fn checked(&self) -> Option<(u64, u64)> {
        let mut returned = self.told().await.returned;
        assert!(returned.len() <= 1, "{returned:?}");
        returned.pop().map(|it| (it.checked, it.bad))
    }

    /// The files of blocks on one of a node's disks.
    fn files_on(&self, node: u32, disk: usize) -> Vec<PathBuf> {
        let dir = &self.disk_dirs(node)[disk];
        self.block_files(node).into_iter().filter(|file| file.starts_with(dir)).collect()
    }

    async fn until_lost(&self, node: u32) {
        self.until("it is lost", async |world| world.state(node).await == "lost").await;
    }

    /// How many blocks are not ok.
    async fn marked(&self, keys: &[(String, Vec<u8>)]) -> usize {
        let mut marked = 0;
        for (key, _) in keys {
            marked += self.not_ok(key).await.len();
        }
        marked
    }
}

/// Six nodes, all of which have blocks of each of these objects.
async fn filled() -> (World, Vec<(String, Vec<u8>)>) {
    let world = healing(6, 6).await;
    let objects: Vec<(String, Vec<u8>)> = (0..6).map(|key| (format!("k{key}"), data(4 << 20, 80 + key))).collect();
    for (key, bytes) in &objects {
        world.put(key, bytes).await.unwrap();
    }
    world.until_healthy().await;
    (world, objects)
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_does_not_read_delays_no_other_and_is_asked_again_when_it_does() {
    let (mut world, objects) = filled().await;
    let (slow, other) = (1, 2);
    let (a, b) = (world.files_on(slow, 0), world.files_on(slow, 1));
    assert!(a.len() > 1 && b.len() > 1, "{a:?} {b:?}");
    for node in [slow, other] {
        world.kill(node);
        world.until_lost(node).await;
    }
    // What is bad is recorded, and not replaced for now.
    world.client.set_auto_repair(false).await.unwrap();
    let gone = world.files_on(other, 0).pop().unwrap();
    for file in [&a[0], &b[0], &gone] {
        std::fs::remove_file(file).unwrap();
    }
    world.unreadable.lock().unwrap().insert(world.disk_dirs(slow)[0].clone());
    for node in [slow, other] {
        world.start_agent(node).await;
    }
    world.until("both are back", async |world| world.up().await.len() == 6).await;
    // The absent block of the disk that does not read is known to be absent.
    let others = async |world: &World| world.told().await.returned.iter().map(|it| it.node).eq([slow]);
    world.until("the other node has been checked", others).await;
    let readable = (b.len() as u64, 1);
    world.until("the other disk has been checked", async |world| world.checked().await == Some(readable)).await;
    assert_eq!(world.marked(&objects).await, 2);

    world.unreadable.lock().unwrap().clear();
    world.until("all is checked", async |world| world.checked().await.is_none()).await;
    assert_eq!(world.marked(&objects).await, 3);
    world.client.set_auto_repair(true).await.unwrap();
    world.until_healthy().await;
    for (key, bytes) in &objects {
        world.assert_whole(key, bytes).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_lost_its_last_blocks_is_believed_for_the_sake_of_the_others() {
    let (mut world, mut objects) = filled().await;
    for key in 0..90 {
        let bytes = data(256 << 10, 100 + key);
        world.put(&format!("s{key}"), &bytes).await.unwrap();
        objects.push((format!("s{key}"), bytes));
    }
    let (node, dir) = (4, world.disk_dirs(4)[0].clone());
    let mut files = Vec::new();
    for (key, _) in &objects {
        for stripe in world.stat(key).await.stripes {
            for block in stripe.blocks.iter().filter(|block| block.node == node) {
                files.push((stripe.id, world.block_file(node, stripe.id, (block.index as u8, 0), block.generation)));
            }
        }
    }
    files.retain(|(_, file)| file.starts_with(&dir));
    files.sort();
    world.kill(node);
    world.until_lost(node).await;
    world.client.set_auto_repair(false).await.unwrap();
    // In order, so that one answer has only blocks that are gone.
    let gone = files.split_off(20);
    assert!(gone.len() >= 20, "{}", gone.len());
    gone.iter().for_each(|(_, file)| std::fs::remove_file(file).unwrap());
    world.start_agent(node).await;
    world.until("it is being checked", async |world| world.checked().await.is_some()).await;
    world.until("all is checked", async |world| world.checked().await.is_none()).await;
    assert_eq!(world.marked(&objects).await, gone.len());
    let bad = async |world: &World| world.health().await.bad_blocks.unwrap_or_default().missing == gone.len() as u64;
    world.until("all of them are in the tally", bad).await;
    world.client.set_auto_repair(true).await.unwrap();
    world.until_healthy().await;
    for (key, bytes) in &objects {
        world.assert_whole(key, bytes).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_there_again_later_is_checked_then() {
    let (mut world, objects) = filled().await;
    let node = 3;
    world.kill(node);
    world.until_lost(node).await;
    world.client.set_auto_repair(false).await.unwrap();
    let absent = world.disk_dirs(node)[1].clone();
    let (there, gone) = (world.files_on(node, 0).len() as u64, world.files_on(node, 1).pop().unwrap());
    world.unlisted.push(absent);
    world.start_agent(node).await;
    world.until("it is being checked", async |world| world.checked().await.is_some()).await;
    world.until("nothing more can be checked", async |world| world.checked().await.is_none()).await;
    std::fs::remove_file(gone).unwrap();
    world.unlisted.clear();
    world.kill(node);
    world.until_down(node).await;
    world.start_agent(node).await;
    let again = async |world: &World| world.checked().await.is_some_and(|(checked, _)| checked >= there);
    world.until("it goes on where it was", again).await;
    world.until("all is checked", async |world| world.checked().await.is_none()).await;
    assert_eq!(world.marked(&objects).await, 1);
    world.client.set_auto_repair(true).await.unwrap();
    world.until_healthy().await;
    for (key, bytes) in &objects {
        world.assert_whole(key, bytes).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_returns_is_checked_and_rebuilds_of_its_right_blocks_are_dropped() {
    let mut world = healing(8, 8).await;
    let objects: Vec<(String, Vec<u8>)> = (0..8).map(|key| (format!("k{key}"), data(4 << 20, 60 + key))).collect();
    for (key, bytes) in &objects {
        world.put(key, bytes).await.unwrap();
    }
    world.slow_down_agents().await;
    world.until_healthy().await;
    let node = world.holder("k0", 0).await;
    world.kill(node);
    world.until("some are being rebuilt", async |world| world.told().await.stripes_under_way > 0).await;
    // One of its blocks is gone, and another is not what was written.
    let mut held = Vec::new();
    for (key, _) in &objects {
        let stripes = world.stat(key).await.stripes;
        let on_node = stripes.iter().flat_map(|stripe| stripe.blocks.iter().map(move |block| (stripe.id, block)));
        held.extend(on_node.filter(|(_, block)| block.node == node).map(|(id, block)| (id, block.index as u8, block.generation)));
    }
    let (before, under_way) = (world.told().await.done.unwrap().blocks, world.told().await.stripes_under_way);
    let [gone, wrong] = [held.len() - 1, held.len() - 2].map(|at| {
        let (stripe, index, generation) = held[at];
        world.block_file(node, stripe, (index, 0), generation)
    });
    std::fs::remove_file(&gone).unwrap();
    let honest = Sidecar::decode(&std::fs::read(wrong.with_extension("meta")).unwrap()).unwrap();
    let pages = vec![7; honest.pages().len()];
    std::fs::write(wrong.with_extension("meta"), Sidecar::new(honest.meta().clone(), pages).unwrap().encode().unwrap()).unwrap();

    world.start_agent(node).await;
    world.until("it is being checked", async |world| !world.told().await.returned.is_empty()).await;
    world.until("it has been checked", async |world| world.told().await.returned.is_empty()).await;
    for (key, _) in &objects {
        world.until("what it lacks is rebuilt", async |world| world.not_ok(key).await.is_empty()).await;
    }
    world.until_healthy().await;
    let mut rebuilt = 0;
    for (key, bytes) in &objects {
        world.assert_whole(key, bytes).await;
        for block in world.stat(key).await.stripes.into_iter().flat_map(|stripe| stripe.blocks) {
            // A dropped rebuild has used a generation.
            assert!(block.generation <= 3, "{key}: {block:?}");
            rebuilt += u64::from(block.generation > 1);
        }
    }
    assert!(
        (before + 2..before + 2 + u64::from(under_way)).contains(&rebuilt),
        "{before} before it came back, {under_way} under way then, and in the end {rebuilt} with the two bad ones"
    );
    world.until("what is not needed is gone", async |world| world.allocations() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn the_next_coordinator_checks_a_node_that_came_back() {
    let mut world = healing(6, 6).await;
    let bytes = data(3 << 20, 70);
    world.put("k", &bytes).await.unwrap();
    world.until_healthy().await;
    let node = world.holder("k", 2).await;
    world.kill(node);
    world.until("it is lost", async |world| world.state(node).await == "lost").await;
    std::fs::remove_file(world.payload("k", 2).await).unwrap();
    world.start_agent(node).await;
    world.until("it is up", async |world| world.up().await.contains(&node)).await;
    world.restart_coordinator().await;
    world.start_agent(7).await;
    world.until("the loss is found", async |world| world.generation("k").await == 2).await;
    world.until_healthy().await;
    world.assert_whole("k", &bytes).await;
    assert!(world.told().await.returned.is_empty());
    // A short restart is no reason for a check.
    let node = world.holder("k", 1).await;
    world.kill(node);
    world.until_down(node).await;
    world.start_agent(node).await;
    world.until("it is up", async |world| world.up().await.contains(&node)).await;
    assert!(world.told().await.returned.is_empty());
}
