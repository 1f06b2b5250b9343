//! Nodes and disks that are gone for good are forgotten once nothing needs them.

use crate::world::{World, data};
use std::time::Duration;
use weft_client::{JobChange, RepairNodeOptions, api::DepartureReply};
use weft_types::{Error, NodeId, Reaction, Result};

impl World {
    async fn remove(&self, node: u32) -> Result<DepartureReply> {
        self.client.remove_node(NodeId(node)).await
    }

    async fn node_ids(&self) -> Vec<u32> {
        self.client.status().await.unwrap().nodes.iter().map(|node| node.id).collect()
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T>, reaction: Reaction, says: &str) {
    let error: Error = result.unwrap_err();
    assert!(error.reaction == reaction && error.message.contains(says), "not '{says}': {error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_is_removed_once_its_blocks_are_rebuilt_and_cannot_come_back() {
    let mut world = World::new(7, 7).await;
    let bytes = data(3 << 20, 1);
    world.put("k", &bytes).await.unwrap();
    let lost = world.holder("k", 0).await;
    let held = world.block_files(lost).len();
    refused(world.remove(lost).await, Reaction::InvalidInput, "is up: only a node that is gone for good");
    refused(world.remove(99).await, Reaction::NotFound, "there is no node n99");
    world.kill(lost);
    world.until_down(lost).await;
    let blocks = format!("holds {held} block");
    refused(world.remove(lost).await, Reaction::InvalidInput, &blocks);
    let job = world.client.repair_node(NodeId(lost), &RepairNodeOptions::default()).await.unwrap().id;
    world.client.change_job(job, JobChange::Pause).await.unwrap();
    refused(world.remove(lost).await, Reaction::InvalidInput, "which is paused");
    world.client.change_job(job, JobChange::Resume).await.unwrap();
    assert_eq!(world.ended(job).await.state, "done");
    // Its blocks on the lost node are garbage that no sweep can remove.
    let garbage = format!("garbage WHERE node = {lost}");
    assert_eq!(world.rows(&garbage), held as u64);

    // Also by the next coordinator, which waits for the nodes first.
    world.restart_coordinator().await;
    let removed = world.remove(lost).await.unwrap();
    let name = format!("node-{lost:02}");
    assert_eq!((removed.name, removed.disks.len(), removed.garbage_blocks), (name.clone(), 2, held as u64));
    let rest: Vec<u32> = (1..=7).filter(|node| *node != lost).collect();
    assert_eq!((world.node_ids().await, world.rows(&garbage)), (rest.clone(), 0));
    let status = world.client.status().await.unwrap();
    assert!(!status.warnings.iter().any(|warning| warning.contains("down")), "{:?}", status.warnings);
    assert_eq!(world.client.health().await.unwrap().down_nodes, []);
    refused(world.remove(lost).await, Reaction::NotFound, "there is no node");
    assert!(world.get("k", "").await.unwrap().0 == bytes);

    // Its agent is refused, by the next coordinator too.
    world.start_agent(lost).await;
    world.restart_coordinator().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!((world.node_ids().await, world.up().await), (rest.clone(), rest.clone()));
    // A heartbeat of an earlier registration is answered so that its agent registers, and hears why it is refused.
    let mut member = world.bare_member().await;
    let heartbeat = weft_proto::v1::HeartbeatRequest { node: lost, epoch: status.epoch + 1, ..Default::default() };
    let answer = member.heartbeat(heartbeat).await.unwrap_err();
    assert_eq!(weft_proto::from_status(&answer).reaction, Reaction::NotFound, "{answer}");

    // With an empty state directory it is a new node of the same name, and what is on its disks is unexpected.
    world.kill(lost);
    std::fs::remove_dir_all(world.node_dir(lost).join("state")).unwrap();
    world.start_agent(lost).await;
    world.until("it is a new node", async |world| world.up().await.contains(&8)).await;
    let new = world.client.status().await.unwrap().nodes.pop().unwrap();
    assert_eq!((new.name, new.disks.len(), new.blocks), (name, 2, 0));
    world.put("k", &data(3 << 20, 2)).await.unwrap();
    assert_eq!(world.not_ok("k").await, []);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_disk_is_forgotten_once_its_blocks_are_rebuilt() {
    let mut world = World::new(7, 7).await;
    for key in 0..4 {
        world.put(&format!("k{key}"), &data(1 << 20, key)).await.unwrap();
    }
    let node = world.holder("k0", 0).await;
    let disks = |status: weft_client::api::StatusReply| status.nodes.into_iter().find(|it| it.id == node).unwrap().disks;
    let disks_now = async |world: &World| disks(world.client.status().await.unwrap());
    let before = disks_now(&world).await;
    let old = before.iter().find(|disk| disk.blocks > 0).unwrap().clone();
    let forget = async |world: &World, disk: &str| world.client.forget_disk(NodeId(node), disk).await;
    refused(forget(&world, &old.id).await, Reaction::InvalidInput, "is in use and its agent still lists it");
    refused(forget(&world, "nothing").await, Reaction::NotFound, "has no disk 'nothing'");

    world.kill(node);
    world.until_down(node).await;
    refused(forget(&world, &old.id).await, Reaction::Unavailable, "is down, so it is not known");
    world.unlisted.push(old.path.clone().into());
    world.start_agent(node).await;
    let state = |disk: &weft_client::api::Disk| (disk.id == old.id, disk.failed, disk.gone);
    let states = async |world: &World| disks_now(world).await.iter().map(state).collect::<std::collections::BTreeSet<_>>();
    let replaced = [(true, true, true), (false, false, false)].into();
    world.until("the disk is gone", async |world| states(world).await == replaced).await;
    refused(forget(&world, &old.id).await, Reaction::InvalidInput, "that no other node has yet");
    let job = world.client.repair_node(NodeId(node), &RepairNodeOptions::default()).await.unwrap().id;
    assert_eq!(world.ended(job).await.state, "done");
    let hint = format!("`weft node disk forget node-{node:02} {}`", old.id);
    let warnings = world.client.status().await.unwrap().warnings;
    assert!(warnings.iter().any(|warning| warning.contains(&hint)), "{warnings:?}");

    let forgotten = forget(&world, &old.id).await.unwrap();
    assert_eq!((forgotten.disks[0].path.as_str(), forgotten.disks.len()), (old.path.as_str(), 1));
    assert_eq!(states(&world).await, [(false, false, false)].into());
    assert_eq!(world.rows("garbage"), 0);
    assert!(!world.client.status().await.unwrap().warnings.iter().any(|warning| warning.contains("failed")));
    world.restart_coordinator().await;
    world.until("all nodes are back", async |world| world.up().await.len() == 7).await;
    assert_eq!(states(&world).await, [(false, false, false)].into());
    // If it comes back, it is a new disk without blocks.
    world.unlisted.clear();
    world.restart_agents().await;
    assert_eq!(states(&world).await, [(false, false, false), (true, false, false)].into());
    assert_eq!(disks_now(&world).await.iter().find(|disk| disk.id == old.id).unwrap().blocks, 0);
    for key in 0..4 {
        assert_eq!(world.not_ok(&format!("k{key}")).await, []);
    }
}

/// The disks of a node, by path.
async fn disks_of(world: &World, node: u32) -> Vec<weft_client::api::Disk> {
    world.client.status().await.unwrap().nodes.into_iter().find(|it| it.id == node).unwrap().disks
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_replaced_is_forgotten_when_it_is_empty_and_gone() {
    let mut world = World::new(7, 7).await;
    for key in 0..4 {
        world.put(&format!("k{key}"), &data(1 << 20, key)).await.unwrap();
    }
    let node = world.holder("k0", 0).await;
    let old = disks_of(&world, node).await.into_iter().find(|disk| disk.blocks > 0).unwrap();
    let retire = async |world: &World| world.client.retire_disk(NodeId(node), &old.id, false).await;
    let now = async |world: &World| {
        let reply = world.client.drain(NodeId(node), &old.id, None, false).await?;
        let left = reply.draining.unwrap();
        Ok::<_, Error>((left.blocks + left.allocations == 0, reply.on && left.retired, left.failed, left.listed))
    };
    let begun = retire(&world).await.unwrap();
    assert!(begun.on && begun.draining.as_ref().unwrap().retired, "{begun:?}");
    // It can be ended, and is then not forgotten whatever happens.
    world.client.drain(NodeId(node), &old.id, Some(false), false).await.unwrap();
    assert!(!now(&world).await.unwrap().1);
    // A drain becomes one for good, also under the next coordinator.
    world.client.drain(NodeId(node), &old.id, Some(true), false).await.unwrap();
    retire(&world).await.unwrap();
    world.restart_coordinator().await;
    world.until("all nodes are back", async |world| world.up().await.len() == 7).await;
    world.until("the disk is empty", async |world| now(world).await == Ok((true, true, false, true))).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(disks_of(&world, node).await.len(), 2, "its agent lists it");

    world.kill(node);
    world.until_down(node).await;
    refused(retire(&world).await, Reaction::Unavailable, "is down, so");
    world.unlisted.push(old.path.clone().into());
    world.start_agent(node).await;
    world
        .until("the disk is forgotten", async |world| world.up().await.len() == 7 && disks_of(world, node).await.len() == 1)
        .await;
    refused(now(&world).await, Reaction::NotFound, "has no disk");
    assert_eq!(world.rows(&format!("garbage WHERE node = {node}")), 0);
    for key in 0..4 {
        assert_eq!(world.not_ok(&format!("k{key}")).await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_gone_is_forgotten_when_its_blocks_are_rebuilt() {
    let mut world = World::new(7, 7).await;
    for key in 0..4 {
        world.put(&format!("k{key}"), &data(1 << 20, key)).await.unwrap();
    }
    let node = world.holder("k0", 0).await;
    let old = disks_of(&world, node).await.into_iter().find(|disk| disk.blocks > 0).unwrap();
    world.kill(node);
    world.until_down(node).await;
    world.unlisted.push(old.path.clone().into());
    world.start_agent(node).await;
    world.until("its node is back", async |world| world.up().await.contains(&node)).await;
    let left = world.client.retire_disk(NodeId(node), &old.id, false).await.unwrap().draining.unwrap();
    assert!(left.blocks > 0 && left.failed && left.retired && !left.listed, "{left:?}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(disks_of(&world, node).await.len(), 2, "its blocks are needed");
    let job = world.client.repair_node(NodeId(node), &RepairNodeOptions::default()).await.unwrap().id;
    assert_eq!(world.ended(job).await.state, "done");
    world.until("the disk is forgotten", async |world| disks_of(world, node).await.len() == 1).await;
    for key in 0..4 {
        assert_eq!(world.not_ok(&format!("k{key}")).await, []);
    }
}

/// A node that has come back is not removed, whatever was known when the removal was requested.
#[tokio::test(start_paused = true)]
async fn a_node_that_returns_during_its_removal_stays_or_is_refused() {
    let mut world = World::new(3, 3).await;
    for _ in 0..4 {
        world.kill(3);
        world.until_down(3).await;
        world.start_agent(3).await;
        let mut ids = world.node_ids().await;
        let removed = world.remove(3).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        if removed.is_ok() {
            ids.pop();
            assert_eq!((world.node_ids().await, world.up().await), (ids.clone(), ids), "it came back");
            return;
        }
        refused(removed, Reaction::InvalidInput, "is up");
        assert_eq!((world.node_ids().await, world.up().await), (ids.clone(), ids));
    }
}
