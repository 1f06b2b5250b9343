//! The cluster heals itself: it rebuilds lost blocks without a command, once each, and reports what it does.

use crate::world::{World, data};
use std::{sync::atomic::Ordering, time::Duration};
use tokio::time::Instant;
use weft_client::{PutOptions, RepairNodeOptions, api};
use weft_types::NodeId;

/// The grace of these tests.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(5);

/// A cluster that heals itself.
pub(crate) async fn healing(nodes: u32, racks: u32) -> World {
    World::with(nodes, racks, |config| {
        (config.auto_repair, config.default_code) = (true, "rs(4,2)".into());
        config.lost_after_ms = LOST_AFTER.as_millis() as u64;
    })
    .await
}

impl World {
    pub(crate) async fn health(&self) -> api::HealthReply {
        self.client.health().await.unwrap()
    }

    pub(crate) async fn told(&self) -> api::Healing {
        self.health().await.healing.unwrap()
    }

    pub(crate) async fn until_healthy(&self) {
        self.until("the cluster is healthy", async |world| world.health().await.level == "healthy").await;
    }

    pub(crate) async fn until_down(&self, node: u32) {
        self.until("the node is down", async |world| !world.up().await.contains(&node)).await;
    }

    pub(crate) async fn state(&self, node: u32) -> String {
        let status = self.client.status().await.unwrap();
        status.nodes.into_iter().find(|it| it.id == node).unwrap().state
    }

    /// The highest generation of an object's blocks.
    pub(crate) async fn generation(&self, key: &str) -> u32 {
        let stripes = self.stat(key).await.stripes;
        stripes.iter().flat_map(|stripe| &stripe.blocks).map(|block| block.generation).max().unwrap()
    }

    /// What nodes of an object's blocks hold: each stripe's blocks on different nodes, all of them good.
    pub(crate) async fn assert_whole(&self, key: &str, bytes: &[u8]) {
        assert_eq!(self.not_ok(key).await, []);
        for stripe in self.stat(key).await.stripes {
            let mut nodes: Vec<u32> = stripe.blocks.iter().map(|block| block.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            assert_eq!(nodes.len(), stripe.blocks.len(), "no two blocks of a stripe on one node");
        }
        assert!(self.get(key, "").await.unwrap().0 == bytes, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_costs_nothing_and_a_node_that_stays_away_is_replaced() {
    let mut world = healing(8, 8).await;
    let bytes = data(9 << 20, 1);
    world.put("k", &bytes).await.unwrap();
    world.until_healthy().await;
    let node = world.holder("k", 0).await;
    let held = world.block_files(node).len();
    world.kill(node);
    world.until_down(node).await;
    world.until("it is waited for", async |world| !world.told().await.silent.is_empty()).await;
    let silent = world.told().await.silent.remove(0);
    assert!(silent.node == node && silent.lost_in_ms > 0 && silent.lost_in_ms <= 5_000, "{silent:?}");
    tokio::time::sleep(LOST_AFTER / 2).await;
    world.start_agent(node).await;
    world.until_healthy().await;
    assert_eq!((world.generation("k").await, world.allocations()), (1, 0), "nothing was rebuilt");

    world.kill(node);
    world.until("it is lost", async |world| world.state(node).await == "lost").await;
    world.until_healthy().await;
    world.assert_whole("k", &bytes).await;
    let health = world.health().await;
    assert!(health.down_nodes[0].lost && health.down_nodes[0].blocks == 0, "{:?}", health.down_nodes);
    assert_eq!(world.generation("k").await, 2, "each lost block was rebuilt once");

    // It comes back: what was rebuilt meanwhile is garbage on it.
    assert!(held > 0 && world.block_files(node).len() == held);
    world.start_agent(node).await;
    world.until("it is empty", async |world| world.block_files(node).is_empty()).await;
    assert_eq!(world.state(node).await, "up");
    world.until_healthy().await;
    world.assert_whole("k", &bytes).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_coordinator_does_not_reset_the_grace() {
    let mut world = World::with(8, 8, |config| {
        (config.auto_repair, config.default_code) = (true, "rs(4,2)".into());
        config.lost_after_ms = 120_000;
    })
    .await;
    let bytes = data(3 << 20, 2);
    world.put("k", &bytes).await.unwrap();
    let (node, killed) = (world.holder("k", 1).await, Instant::now());
    world.kill(node);
    world.until_down(node).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.restart_coordinator().await;
    tokio::time::sleep(Duration::from_secs(105)).await;
    world.until("it is lost", async |world| world.state(node).await == "lost").await;
    let after = killed.elapsed();
    assert!((120..125).contains(&after.as_secs()), "{after:?}");
    // The next coordinator knows that it is lost, and continues.
    world.restart_coordinator().await;
    assert_eq!(world.state(node).await, "lost");
    world.until_healthy().await;
    world.assert_whole("k", &bytes).await;
}

/// Neither is a node lost that has just restarted, nor is one that is gone waited for.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_while_no_coordinator_runs_changes_little() {
    for (days, lost_after_s) in [(-2, 240..245), (2, 180..185)] {
        let mut world = World::with(8, 8, |config| {
            (config.auto_repair, config.default_code) = (true, "rs(4,2)".into());
            config.lost_after_ms = 240_000;
        })
        .await;
        world.put("k", &data(1 << 20, 2)).await.unwrap();
        let (node, killed) = (world.holder("k", 1).await, Instant::now());
        world.kill(node);
        world.until_down(node).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        world.clock.ahead_ms.store(days * 86_400_000, Ordering::Relaxed);
        world.restart_coordinator().await;
        tokio::time::sleep(Duration::from_secs(150)).await;
        assert_eq!(world.state(node).await, "down", "{days} days");
        tokio::time::sleep(Duration::from_secs(lost_after_s.start - 1).saturating_sub(killed.elapsed())).await;
        world.until("it is lost", async |world| world.state(node).await == "lost").await;
        assert!(lost_after_s.contains(&killed.elapsed().as_secs()), "{days} days: {:?}", killed.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_power_failure_of_all_no_node_is_lost_in_the_moment_it_comes_back() {
    let mut world = healing(9, 9).await;
    let bytes = data(3 << 20, 11);
    world.put("k", &bytes).await.unwrap();
    world.until_healthy().await;
    // Two of the nodes are the last to come back. They were recorded as down, and their grace is over.
    let last = [world.holder("k", 0).await, world.holder("k", 1).await];
    (1..=9).for_each(|node| world.kill(node));
    world.until("all are down", async |world| world.up().await.is_empty()).await;
    tokio::time::sleep(3 * LOST_AFTER).await;
    world.restart_coordinator().await;
    for node in (1..=9).filter(|node| !last.contains(node)) {
        world.start_agent(node).await;
    }
    world.until("most are up", async |world| world.up().await.len() == 7).await;
    tokio::time::sleep(LOST_AFTER / 2).await;
    world.start_agent(last[0]).await;
    tokio::time::sleep(LOST_AFTER / 2).await;
    assert_eq!(world.state(last[1]).await, "down", "others have just come back");
    world.start_agent(last[1]).await;
    world.until_healthy().await;
    for node in last {
        assert_eq!(world.state(node).await, "up");
    }
    world.assert_whole("k", &bytes).await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_come_back_is_rebuilt_at_once() {
    // The default grace of a quarter of an hour is longer than this test waits.
    let mut world = World::with(9, 9, |config| (config.auto_repair, config.default_code) = (true, "rs(4,2)".into())).await;
    let bytes = data(2 << 20, 3);
    world.put("k", &bytes).await.unwrap();
    world.until_healthy().await;
    world.flip("k", 2, 4096 * 3).await;
    world.get("k", "").await.unwrap();
    world.until("the corrupt block is found and rebuilt", async |world| world.generation("k").await == 2).await;
    world.until_healthy().await;
    world.assert_whole("k", &bytes).await;

    // A node loses its disks.
    let node = world.holder("k", 0).await;
    world.kill(node);
    for disk in world.disk_dirs(node) {
        std::fs::remove_dir_all(disk).unwrap();
    }
    world.start_agent(node).await;
    world.until("it has lost them", async |world| world.health().await.failed_disks.len() == 2).await;
    world.until_healthy().await;
    world.assert_whole("k", &bytes).await;

    // With two silent nodes, the stripe would not survive a further loss.
    let nodes = [world.holder("k", 1).await, world.holder("k", 4).await];
    nodes.iter().for_each(|node| world.kill(*node));
    world
        .until("the stripe is whole again", async |world| world.up().await.len() == 7 && world.not_ok("k").await.is_empty())
        .await;
    world.assert_whole("k", &bytes).await;
    for node in nodes {
        assert_eq!(world.state(node).await, "down", "the coordinator still waits for them");
    }
}

#[tokio::test(start_paused = true)]
async fn the_blocks_of_two_lost_nodes_are_rebuilt_once_each() {
    let mut world = healing(12, 12).await;
    let all: Vec<(String, Vec<u8>)> = (0..20).map(|at| (format!("k{at}"), data(1 << 20, at))).collect();
    for (key, bytes) in &all {
        world.put(key, bytes).await.unwrap();
    }
    world.until_healthy().await;
    let lost = [world.holder("k0", 0).await, world.holder("k0", 3).await];
    let held = world.block_count(lost.into_iter());
    lost.iter().for_each(|node| world.kill(*node));
    world
        .until("both are lost", async |world| {
            let states = [world.state(lost[0]).await, world.state(lost[1]).await];
            states.iter().all(|state| state == "lost")
        })
        .await;
    world.until_healthy().await;
    let mut rebuilt = 0;
    for (key, bytes) in &all {
        world.assert_whole(key, bytes).await;
        for block in world.stat(key).await.stripes.into_iter().flat_map(|stripe| stripe.blocks) {
            assert!(block.generation <= 2 && !lost.contains(&block.node), "{key}: {block:?}");
            rebuilt += usize::from(block.generation == 2);
        }
    }
    assert_eq!((rebuilt, world.allocations()), (held, 0));
    // If the blocks of one were rebuilt before the other was lost, progress began again.
    let told = world.told().await;
    let done = told.done.map_or(0, |done| done.blocks);
    assert!(told.stripes_left == 0 && (1..=held as u64).contains(&done), "{told:?}");
}

/// Of stripes that survive the same number of losses: the one that clients read, although it is the last of them.
#[tokio::test(start_paused = true)]
async fn what_is_read_is_rebuilt_first() {
    let mut world = healing(8, 8).await;
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 64 << 10, cell_len: 64 << 10, ..PutOptions::default() };
    let (before, last) = (data(100 * (256 << 10), 20), data(256 << 10, 21));
    world.client.put("b", "before", before.as_slice(), &options).await.unwrap();
    world.client.put("b", "last", last.as_slice(), &options).await.unwrap();
    world.until_healthy().await;
    let node = world.holder("last", 0).await;
    let stripes = world.stat("before").await.stripes;
    let lost = stripes.iter().filter(|stripe| stripe.blocks.iter().any(|block| block.node == node)).count();
    // A slow repair shows the order.
    let limit = api::RepairLimit { bytes_per_s: Some(1 << 20), ..api::RepairLimit::default() };
    world.client.set_repair_limit(limit).await.unwrap();
    world.kill(node);
    world.until("its stripes are counted", async |world| world.health().await.stripes_with_bad_blocks == lost as u64 + 1).await;
    for _ in 0..3 {
        assert!(world.get("last", "").await.unwrap().0 == last);
    }
    world.until("the one that is read is whole", async |world| world.not_ok("last").await.is_empty()).await;
    let left = world.not_ok("before").await.len();
    // As many as run at a time may end together with it.
    assert!(lost > 60 && left > lost / 2, "of {lost} others, only {left} are left");
    world.client.set_repair_limit(api::RepairLimit::default()).await.unwrap();
    world.until_healthy().await;
    world.assert_whole("last", &last).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_rack_needs_a_person_unless_it_is_urgent() {
    let mut world = healing(10, 5).await;
    let (near, far) = (data(3 << 20, 4), data(1 << 20, 5));
    world.put("near", &near).await.unwrap();
    let options = PutOptions { code: "rs(2,3)".into(), block_len: 256 << 10, cell_len: 64 << 10, ..PutOptions::default() };
    world.client.put("b", "far", far.as_slice(), &options).await.unwrap();
    world.until_healthy().await;
    // Node 1 and 6 are a rack. One block of `far` is there: two further ones may be lost.
    world.kill(1);
    world.kill(6);
    world
        .until("the urgent stripes are whole", async |world| world.up().await.len() == 8 && world.not_ok("near").await.is_empty())
        .await;
    tokio::time::sleep(3 * LOST_AFTER).await;
    assert_eq!([world.state(1).await, world.state(6).await], ["down", "down"]);
    assert!(!world.not_ok("far").await.is_empty(), "it survives two further losses");
    let told = world.told().await;
    assert!(told.guard.contains("all 2 nodes of rack r1 are silent") && told.guard.contains("weft repair node"), "{told:?}");
    assert_eq!((told.silent.len(), told.stripes_left, told.silent[0].lost_in_ms), (2, 0, 0));

    for node in [1, 6] {
        let job = world.client.repair_node(NodeId(node), &RepairNodeOptions::default()).await.unwrap().id;
        assert_eq!(world.ended(job).await.state, "done");
    }
    world.until_healthy().await;
    assert_eq!([world.state(1).await, world.state(6).await], ["lost", "lost"], "nothing is left on them");
    world.until("nothing holds", async |world| world.told().await.guard.is_empty()).await;
    world.assert_whole("near", &near).await;
    world.assert_whole("far", &far).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_many_nodes_is_no_repair_storm() {
    let mut world = healing(10, 10).await;
    let bytes = data(1 << 20, 10);
    let options = PutOptions { code: "rs(2,3)".into(), block_len: 512 << 10, cell_len: 64 << 10, ..PutOptions::default() };
    world.client.put("b", "k", bytes.as_slice(), &options).await.unwrap();
    world.until_healthy().await;
    let holders: Vec<u32> = world.stat("k").await.stripes[0].blocks.iter().map(|block| block.node).collect();
    let other = (1..=10).find(|node| !holders.contains(node)).unwrap();
    let restarting = [holders[0], holders[1], other];
    restarting.iter().for_each(|node| world.kill(*node));
    world.until("many are silent", async |world| world.told().await.guard.contains("3 of 10 nodes are silent")).await;
    tokio::time::sleep(LOST_AFTER / 2).await;
    for node in restarting {
        world.start_agent(node).await;
    }
    world.until_healthy().await;
    assert_eq!((world.generation("k").await, world.allocations()), (1, 0));
    world.assert_whole("k", &bytes).await;
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_hears_few_nodes_does_nothing() {
    let world = healing(9, 9).await;
    world.put("k", &data(1 << 20, 6)).await.unwrap();
    world.until_healthy().await;
    let holders: Vec<u32> = world.stat("k").await.stripes[0].blocks.iter().map(|block| block.node).collect();
    let others: Vec<u32> = (1..=9).filter(|node| !holders.contains(node)).collect();
    others.iter().for_each(|node| world.stop(*node));
    world.until("they are down", async |world| world.up().await.len() == 6).await;
    assert!(world.told().await.stopped.is_empty());
    // The stripe survives no further loss, and there are homes for its blocks, but most nodes are silent.
    holders[..2].iter().for_each(|node| world.stop(*node));
    world.until("it stops", async |world| world.told().await.stopped.contains("hears only 4 of 9 nodes")).await;
    assert_eq!(world.health().await.level, "at-risk");
    tokio::time::sleep(2 * LOST_AFTER).await;
    for node in holders[..2].iter().chain(&others) {
        world.go_on(*node);
    }
    world.until_healthy().await;
    assert_eq!(world.generation("k").await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stripe_waits_for_a_node_and_is_rebuilt_when_one_joins() {
    let mut world = healing(6, 6).await;
    let bytes = data(3 << 20, 7);
    world.put("k", &bytes).await.unwrap();
    world.until_healthy().await;
    let node = world.holder("k", 3).await;
    world.kill(node);
    world
        .until("it waits", async |world| world.told().await.waiting.iter().any(|it| it.wait == "nodes" && it.stripes == 2))
        .await;
    let told = world.told().await;
    assert_eq!((told.stripes_left, told.stripes_under_way), (0, 0), "{told:?}");
    assert_eq!(world.health().await.level, "degraded");
    world.start_agent(7).await;
    world.until_healthy().await;
    assert!(world.told().await.waiting.is_empty());
    world.assert_whole("k", &bytes).await;
}

#[tokio::test(start_paused = true)]
async fn a_stripe_waits_for_space_and_is_rebuilt_when_there_is_some() {
    let mut world = healing(8, 8).await;
    let bytes = data(2 << 20, 8);
    world.put("k", &bytes).await.unwrap();
    world.disk_bytes.store(1, Ordering::Relaxed);
    world.restart_agents().await;
    let full = "no new data fit in rs(4,2), the code of the default policy default: disks are full";
    world.until("no new data fit", async |world| world.health().await.reasons == [full]).await;
    world.flip("k", 2, 4096 * 3).await;
    world.get("k", "").await.unwrap();
    world.until("it waits", async |world| world.told().await.waiting.iter().any(|it| it.wait == "space")).await;
    let told = world.told().await;
    assert!(told.waiting[0].why.contains("b/k"), "{told:?}");
    world.disk_bytes.store(1 << 30, Ordering::Relaxed);
    world.until_healthy().await;
    world.assert_whole("k", &bytes).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_returns_in_the_middle_keeps_its_right_blocks() {
    let mut world = healing(8, 8).await;
    let mut objects = Vec::new();
    for key in 0..6 {
        objects.push((format!("k{key}"), data(4 << 20, 20 + key)));
        world.put(&objects[key as usize].0, &objects[key as usize].1).await.unwrap();
    }
    world.slow_down_agents().await;
    world.until_healthy().await;
    let node = world.holder("k0", 0).await;
    world.kill(node);
    world.until("some are rebuilt", async |world| world.told().await.done.is_some_and(|done| done.blocks > 0)).await;
    world.start_agent(node).await;
    world.until_healthy().await;
    for (key, bytes) in &objects {
        world.assert_whole(key, bytes).await;
    }
    let generations: Vec<u32> = {
        let mut found = Vec::new();
        for (key, _) in &objects {
            let stripes = world.stat(key).await.stripes;
            found.extend(stripes.iter().flat_map(|stripe| &stripe.blocks).map(|block| block.generation));
        }
        found
    };
    assert!(generations.iter().all(|generation| *generation <= 2), "nothing is rebuilt twice");
    world.until("what is not needed is gone", async |world| world.block_count(1..=8) == generations.len()).await;
}

#[tokio::test(start_paused = true)]
async fn turned_off_it_waits_for_a_person() {
    let mut world = healing(8, 8).await;
    let bytes = data(3 << 20, 9);
    world.put("k", &bytes).await.unwrap();
    world.until_healthy().await;
    world.client.set_auto_repair(false).await.unwrap();
    let node = world.holder("k", 0).await;
    world.kill(node);
    world.until_down(node).await;
    tokio::time::sleep(2 * LOST_AFTER).await;
    let told = world.told().await;
    assert!(!told.on && told.stopped.contains("weft repair auto on"), "{told:?}");
    world.restart_coordinator().await;
    world.until("the others are back", async |world| world.up().await.len() == 7).await;
    tokio::time::sleep(LOST_AFTER).await;
    assert!(!world.told().await.on && world.generation("k").await == 1, "it stays off");
    world.client.set_auto_repair(true).await.unwrap();
    world.until_healthy().await;
    world.assert_whole("k", &bytes).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_twice_if_an_operator_repairs_the_same_node() {
    let mut world = healing(9, 9).await;
    let mut held = 0;
    for key in 0..4 {
        world.put(&format!("k{key}"), &data(4 << 20, 30 + key)).await.unwrap();
    }
    world.slow_down_agents().await;
    let node = world.holder("k0", 0).await;
    held += world.block_files(node).len() as u64;
    world.kill(node);
    world.until("it is being healed", async |world| world.told().await.stripes_under_way > 0).await;
    let job = world.client.repair_node(NodeId(node), &RepairNodeOptions::default()).await.unwrap().id;
    assert_eq!(world.ended(job).await.state, "done");
    world.until_healthy().await;
    assert!(held > 0);
    for key in 0..4 {
        let key = format!("k{key}");
        assert_eq!((world.not_ok(&key).await, world.generation(&key).await <= 2), (vec![], true), "{key}");
    }
}
