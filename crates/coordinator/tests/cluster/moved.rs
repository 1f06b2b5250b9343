//! Disks that are moved from one node to another keep their blocks.

use crate::{
    healing::healing,
    world::{World, data},
};
use std::path::{Path, PathBuf};
use weft_client::{RepairNodeOptions, api};
use weft_types::NodeId;

type Objects = Vec<(String, Vec<u8>)>;

/// Objects of these nodes. Then node `nodes + 1` joins, without blocks.
async fn filled(mut world: World, nodes: u32) -> (World, Objects) {
    let objects: Objects = (0..4).map(|key| (format!("k{key}"), data(3 << 20, 40 + key))).collect();
    for (key, bytes) in &objects {
        world.put(key, bytes).await.unwrap();
    }
    world.start_agent(nodes + 1).await;
    world.until("the new node is up", async |world| world.up().await.contains(&(nodes + 1))).await;
    (world, objects)
}

impl World {
    async fn node(&self, node: u32) -> api::Node {
        self.client.status().await.unwrap().nodes.into_iter().find(|it| it.id == node).unwrap()
    }

    /// The reasons why a node keeps disks aside.
    async fn aside(&self, node: u32) -> Vec<String> {
        self.node(node).await.aside.into_iter().map(|disk| disk.why).collect()
    }

    /// Starts an agent again that also lists these disks.
    async fn restart_with(&mut self, node: u32, disks: &[PathBuf]) {
        self.added.extend(disks.iter().map(|disk| (node, disk.clone())));
        self.kill(node);
        self.start_agent(node).await;
    }

    async fn until_moved(&self, objects: &Objects) {
        let all_ok = async |world: &World| {
            for (key, _) in objects {
                if !world.not_ok(key).await.is_empty() {
                    return false;
                }
            }
            world.rows("disks WHERE moved_to IS NOT NULL") == 0
        };
        self.until("all blocks have followed", all_ok).await;
    }

    /// How many blocks of the objects are at a node, and the highest generation of any.
    async fn held(&self, objects: &Objects, node: u32) -> (usize, u32) {
        let (mut held, mut generation) = (0, 0);
        for (key, _) in objects {
            for block in self.stat(key).await.stripes.into_iter().flat_map(|stripe| stripe.blocks) {
                held += usize::from(block.node == node);
                generation = generation.max(block.generation);
            }
        }
        (held, generation)
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_disks_of_a_dead_node_are_served_by_another_one_without_a_rebuild() {
    let (mut world, objects) = filled(World::new(6, 6).await, 6).await;
    let (old, new) = (2, 7);
    let held = world.held(&objects, old).await;
    assert!(held.0 >= 4 && world.held(&objects, new).await.0 == 0);
    world.kill(old);
    let disks = world.disk_dirs(old);
    world.restart_with(new, &disks).await;
    // The dead node still counts as up for a moment.
    let waits =
        async |world: &World| world.aside(new).await.iter().filter(|why| why.contains("counts as down after")).count() == 2;
    world.until("the disks are kept aside", waits).await;
    assert_eq!(world.health().await.aside_disks.len(), 2);
    world.until_moved(&objects).await;
    assert_eq!((world.held(&objects, old).await.0, world.held(&objects, new).await), (0, held));
    world.assert_all_whole(&objects).await;
    let node = world.node(new).await;
    assert_eq!((node.aside, node.disks.len()), (vec![], 4));
    world.until("they have been checked", async |world| world.told().await.returned.is_empty()).await;
    assert_eq!(world.health().await.bad_blocks.unwrap_or_default(), api::BadBlocks::default());

    // The new node knows them after a restart.
    world.kill(new);
    world.until_down(new).await;
    world.start_agent(new).await;
    world.until_moved(&objects).await;
    world.assert_all_whole(&objects).await;

    // The old node comes back with a copy of a disk that is in the new node.
    let copy = world.node_dir(old).join("copy");
    copy_dir(&disks[0], &copy);
    world.unlisted.extend(disks);
    world.restart_with(old, &[copy]).await;
    let refused =
        async |world: &World| world.aside(old).await.iter().any(|why| why.contains("node-07, which is up and lists it as"));
    world.until("it is refused", refused).await;
    assert!(world.node(old).await.disks.is_empty(), "nothing is left of its disks");
    assert_eq!(world.held(&objects, new).await, held);
    world.assert_all_whole(&objects).await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_is_not_taken_over_while_its_node_is_up_and_lists_it() {
    let (mut world, objects) = filled(World::new(6, 6).await, 6).await;
    let (old, new) = (3, 7);
    let before = world.held(&objects, old).await;
    let disk = world.disk_dirs(old)[0].clone();
    let there = world.block_files(old).iter().filter(|file| file.starts_with(&disk)).count();
    assert!(there > 0);
    let copy = world.node_dir(new).join("moved");
    copy_dir(&disk, &copy);
    world.restart_with(new, &[copy]).await;
    let waits =
        async |world: &World| world.aside(new).await.iter().any(|why| why.contains("node-03, which is up and lists it as"));
    world.until("it is kept aside", waits).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!((world.held(&objects, old).await, world.held(&objects, new).await.0), (before, 0));
    let warnings = world.client.status().await.unwrap().warnings;
    assert!(
        warnings.iter().any(|warning| warning.contains("node-07 keeps the disk") && warning.contains("take it out of `disks`")),
        "{warnings:?}"
    );
    world.assert_all_whole(&objects).await;
    // An agent of an earlier version would serve it.
    let id = world.node(old).await.disks[0].id.clone();
    let request = api::RegisterRequest {
        protocol: Some(weft_proto::PROTOCOL.into()),
        name: "early".into(),
        rack: "r".into(),
        zone: "z".into(),
        data_address: "127.0.0.1:1".into(),
        control_address: "127.0.0.1:1".into(),
        disks: vec![api::Disk { id, path: "/a".into(), total_bytes: 9, ..api::Disk::default() }],
        ..api::RegisterRequest::default()
    };
    let refused = weft_proto::from_status(&world.bare_member().await.register(request).await.unwrap_err());
    assert!(refused.message.contains("this agent is too old to take it over"), "{refused}");
    // Also by the next coordinator, which does not know at first whether the node is up.
    world.restart_coordinator().await;
    world.until("all are back", async |world| world.up().await.len() == 7).await;
    world.until("it is kept aside again", waits).await;

    world.unlisted.push(disk);
    world.kill(old);
    world.start_agent(old).await;
    world.until_moved(&objects).await;
    assert_eq!(world.held(&objects, new).await.0, there);
    assert_eq!(world.held(&objects, old).await, (before.0 - there, 1));
    world.assert_all_whole(&objects).await;
}

#[tokio::test(start_paused = true)]
async fn a_leftover_copy_stays_aside_also_after_restarts_of_its_agent_and_of_the_coordinator() {
    let (mut world, objects) = filled(World::new(6, 6).await, 6).await;
    let (old, new) = (3, 7);
    let before = world.held(&objects, old).await;
    let copy = world.node_dir(new).join("moved");
    copy_dir(&world.disk_dirs(old)[0], &copy);
    world.restart_with(new, &[copy]).await;
    let state = world.node_dir(new).join("state").join("agent");
    let knows = async |_: &World| std::fs::read_to_string(&state).is_ok_and(|text| text.contains("disk aside-copy-"));
    world.until("the agent knows that it is a copy", knows).await;
    world.kill(old);
    world.restart_coordinator().await;
    world.kill(new);
    world.start_agent(new).await;
    world.until_down(old).await;
    let waits = async |world: &World| world.aside(new).await.iter().any(|why| why.contains("one of the two is a copy"));
    world.until("it is kept aside", waits).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!((world.rows("disks WHERE moved_to IS NOT NULL"), world.held(&objects, new).await.0), (0, 0));
    world.start_agent(old).await;
    world.until_moved(&objects).await;
    assert_eq!(world.held(&objects, old).await, before);
    world.assert_all_whole(&objects).await;
}

#[tokio::test(start_paused = true)]
async fn blocks_of_stripes_that_the_new_node_has_stay_lost_until_they_are_rebuilt_also_after_a_crash() {
    let mut world = World::new(8, 8).await;
    let objects: Objects = (0..6).map(|key| (format!("k{key}"), data(3 << 20, 40 + key))).collect();
    for (key, bytes) in &objects {
        world.put(key, bytes).await.unwrap();
    }
    let (old, new) = (2, 5);
    let before = world.held(&objects, old).await.0;
    world.kill(old);
    world.until_down(old).await;
    world.restart_with(new, &world.disk_dirs(old)).await;
    let walked = async |world: &World| {
        let disks = world.node(old).await.disks;
        disks.iter().all(|disk| disk.failed && disk.moved_to == "node-05") && world.node(new).await.aside.is_empty()
    };
    world.until("what can follow has followed", walked).await;
    let stayed = world.held(&objects, old).await.0;
    assert!(stayed > 0 && stayed < before, "{stayed} of {before}");
    let mut lost = 0;
    for (key, bytes) in &objects {
        lost += world.not_ok(key).await.len();
        assert!(world.get(key, "").await.unwrap().0 == *bytes, "{key}");
    }
    assert_eq!(lost, stayed, "only these");
    // The next coordinator knows it, too.
    world.restart_coordinator().await;
    world.until("all are back", async |world| world.up().await.len() == 7).await;
    assert!(world.rows("disks WHERE moved_to IS NOT NULL") > 0);
    let shown = world.node(old).await.disks;
    assert!(shown.iter().any(|disk| disk.moved_to == "node-05"), "{shown:?}");
    let job = world.client.repair_node(NodeId(old), &RepairNodeOptions::default()).await.unwrap().id;
    assert_eq!(world.ended(job).await.state, "done");
    world.until_moved(&objects).await;
    world.assert_all_whole(&objects).await;
    // Their files are garbage where the disks are now.
    world.until("the garbage is gone", async |world| world.rows("garbage") == 0).await;
    let mut blocks = 0;
    for (key, _) in &objects {
        blocks += world.stat(key).await.stripes.iter().map(|stripe| stripe.blocks.len()).sum::<usize>();
    }
    assert_eq!(world.block_count(1..=8), blocks);
}

#[tokio::test(start_paused = true)]
async fn rebuilds_of_blocks_that_come_back_with_their_disk_are_dropped() {
    let (mut world, objects) = filled(healing(6, 6).await, 6).await;
    world.slow_down_agents().await;
    world.until_healthy().await;
    let (old, new) = (4, 7);
    let held = world.held(&objects, old).await.0;
    world.kill(old);
    world.until("some are being rebuilt", async |world| world.told().await.stripes_under_way > 0).await;
    world.restart_with(new, &world.disk_dirs(old)).await;
    world.until_moved(&objects).await;
    world
        .until("nothing is under way", async |world| world.told().await.stripes_under_way == 0 && world.allocations() == 0)
        .await;
    let rebuilt = world.told().await.done.unwrap().blocks;
    assert!((rebuilt as usize) < held, "{rebuilt} of {held}");
    world.assert_all_whole(&objects).await;
}
