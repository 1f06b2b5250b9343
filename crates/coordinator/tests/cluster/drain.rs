//! Nodes and disks that are drained: their blocks move while they serve, and nothing is lost whatever happens meanwhile.

use crate::{
    healing::healing,
    world::{World, data},
};
use std::time::Duration;
use weft_client::{ConvertOptions, PutOptions, api};
use weft_types::{NodeId, Reaction};

impl World {
    async fn drain(&self, node: u32) {
        self.client.drain(NodeId(node), "", Some(true), false).await.unwrap();
    }

    /// What is left on a node that is being drained, and whether it is.
    async fn left(&self, node: u32) -> (u64, bool) {
        let reply = self.client.drain(NodeId(node), "", None, false).await.unwrap();
        let left = reply.draining.unwrap();
        (left.blocks + left.allocations, reply.on)
    }

    async fn until_drained(&self, node: u32) {
        self.until("the node is empty", async |world| world.left(node).await == (0, true)).await;
    }

    /// Stores objects of two stripes each.
    async fn put_objects(&self, seeds: std::ops::Range<u64>) -> Vec<(String, Vec<u8>)> {
        let mut objects = Vec::new();
        for seed in seeds {
            let (key, bytes) = (format!("k{seed}"), data(3 << 20, seed));
            self.put(&key, &bytes).await.unwrap();
            objects.push((key, bytes));
        }
        objects
    }

    pub(crate) async fn assert_all_whole(&self, objects: &[(String, Vec<u8>)]) {
        for (key, bytes) in objects {
            self.assert_whole(key, bytes).await;
        }
    }

    async fn holds(&self, node: u32, key: &str) -> bool {
        let stripes = self.stat(key).await.stripes;
        stripes.iter().flat_map(|stripe| &stripe.blocks).any(|block| block.node == node)
    }

    /// Whether a drain would warn that the five other nodes are too few for copies.
    async fn warns_of_copies(&self, node: u32) -> bool {
        let warnings = self.client.explain_drain(NodeId(node), "").await.unwrap().warnings;
        let says = "stripes and the copies of their data are on up to 6 different nodes, and without ";
        warnings.iter().any(|warning| warning.starts_with(says))
    }

    /// Moves take long from now on, or no longer.
    async fn slow_moves(&self, bytes_per_s: Option<u64>) {
        self.client.set_repair_limit(api::RepairLimit { bytes_per_s, ..api::RepairLimit::default() }).await.unwrap();
    }

    /// Blocks that a node has by the metadata.
    fn blocks_of(&self, node: u32) -> u64 {
        self.rows(&format!("block_at WHERE node = {node}"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_drained_node_is_empty_and_can_be_removed() {
    // Lost blocks are not rebuilt without a person; a drain was asked for by one.
    let mut world = World::with(9, 9, |config| config.default_code = "rs(4,2)".into()).await;
    let mut objects = world.put_objects(0..5).await;
    let node = world.holder("k0", 0).await;
    let blocks = world.blocks_of(node);
    assert!(blocks > 1);
    world.drain(node).await;
    world.drain(node).await;
    objects.extend(world.put_objects(5..7).await);
    for key in ["k5", "k6"] {
        assert!(!world.holds(node, key).await, "it gets no new blocks");
    }
    world.until_drained(node).await;
    world.assert_all_whole(&objects).await;
    assert_eq!(world.blocks_of(node), 0);
    assert_eq!(world.told().await.done.unwrap().blocks, blocks, "each was moved once");
    let health = world.health().await;
    assert_eq!((health.level.as_str(), health.draining.len(), health.draining[0].blocks), ("healthy", 1, 0));

    world.kill(node);
    world.until_down(node).await;
    assert_eq!(world.told().await.guard, "");
    world.client.remove_node(NodeId(node)).await.unwrap();
    assert!(world.health().await.draining.is_empty());
    world.assert_all_whole(&objects).await;
    world.until("what is not needed is gone", async |world| world.allocations() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_explained_is_not_begun() {
    let mut world = World::with(9, 9, |config| config.default_code = "rs(4,2)".into()).await;
    world.put_objects(0..5).await;
    let node = world.holder("k0", 0).await;
    let blocks = world.blocks_of(node);
    let explain = async |world: &World, disk: &str| world.client.explain_drain(NodeId(node), disk).await.unwrap();
    let plan = explain(&world, "").await;
    let of = |amount: &Option<api::JobAmount>| amount.map(|it| (it.blocks, it.bytes)).unwrap();
    let (leaving, copied, rebuilt) = (of(&plan.leaving), of(&plan.copied), of(&plan.rebuilt));
    assert_eq!((leaving.0, plan.looked_at, plan.on), (blocks, blocks, false));
    assert_eq!((copied.0 + rebuilt.0, copied.1 + rebuilt.1), leaving, "each is copied or rebuilt");
    assert_eq!((of(&plan.waiting), of(&plan.unplanned), plan.lacking_stripes), ((0, 0), (0, 0), 0));
    assert!(plan.refusals.is_empty() && plan.limit.is_empty() && plan.limited.is_none(), "{plan:?}");
    let (own, others): (Vec<_>, Vec<_>) = plan.nodes.iter().partition(|it| it.node == node);
    assert_eq!(own[0].used_bytes - own[0].after_bytes, leaving.1);
    assert_eq!(others.iter().map(|it| it.after_bytes - it.used_bytes).sum::<u64>(), leaving.1);
    assert_eq!(plan.nodes.iter().map(|it| it.gets_bytes).sum::<u64>(), leaving.1);
    assert!(others.iter().all(|it| it.after_bytes - it.used_bytes == it.gets_bytes && it.receives_bytes >= it.gets_bytes));
    let sent: u64 = plan.nodes.iter().map(|it| it.sends_bytes).sum();
    let received: u64 = plan.nodes.iter().map(|it| it.receives_bytes).sum();
    assert!(sent == received && sent >= leaving.1 && own[0].sends_bytes >= copied.1, "{plan:?}");
    let busiest = plan.busiest.unwrap();
    assert!(busiest.node > 0 && busiest.bytes > 0 && busiest.seconds > 0.0, "{busiest:?}");

    // Under a limit it takes longer.
    world.slow_moves(Some(1 << 20)).await;
    let plan = explain(&world, "").await;
    let limited = plan.limited.unwrap();
    assert_eq!((plan.limit.as_str(), limited.seconds), ("1MiB/s", limited.bytes as f64 / f64::from(1 << 20)));
    // The blocks of its disks are those of the node.
    let nodes = world.client.status().await.unwrap().nodes;
    let mut of_disks = 0;
    for disk in &nodes.iter().find(|it| it.id == node).unwrap().disks {
        let plan = explain(&world, &disk.id).await;
        assert_eq!(of(&plan.leaving).0, disk.blocks);
        of_disks += disk.blocks;
    }
    assert_eq!((of_disks, world.blocks_of(node), world.left(node).await), (blocks, blocks, (blocks, false)), "nothing was begun");
    world.kill(node);
    world.until_down(node).await;
    let plan = explain(&world, "").await;
    assert!(of(&plan.leaving) == (0, 0) && plan.refusals[0].contains("is down"), "{plan:?}");
}

#[tokio::test(start_paused = true)]
async fn a_drain_outlives_the_coordinator_and_can_be_ended() {
    let mut world = World::new(8, 8).await;
    let objects = world.put_objects(0..4).await;
    let node = world.holder("k0", 0).await;
    world.slow_moves(Some(256 << 10)).await;
    world.drain(node).await;
    world.until("blocks are moved", async |world| world.allocations() > 0).await;
    world.restart_coordinator().await;
    world.until("the nodes are back", async |world| world.up().await.len() == 8).await;
    assert!(world.left(node).await.1);
    assert_eq!(
        world.client.status().await.unwrap().nodes.iter().filter(|it| it.draining).map(|it| it.id).collect::<Vec<_>>(),
        [node]
    );
    world.until("blocks are moved again", async |world| world.allocations() > 0).await;

    let ended = world.client.drain(NodeId(node), "", Some(false), false).await.unwrap();
    assert!(!ended.on && ended.draining.unwrap().blocks > 0);
    world.until("what runs is dropped", async |world| world.allocations() == 0).await;
    world.slow_moves(None).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let left = world.blocks_of(node);
    assert!(left > 0, "the others stay");
    let (more, _) = (world.put_objects(10..14).await, tokio::time::sleep(Duration::from_secs(1)).await);
    assert!(world.blocks_of(node) > left, "it gets new blocks again");
    world.assert_all_whole(&objects).await;
    world.assert_all_whole(&more).await;
}

#[tokio::test(start_paused = true)]
async fn the_node_that_is_drained_may_die() {
    let mut world = healing(8, 8).await;
    let objects = world.put_objects(0..4).await;
    let node = world.holder("k0", 0).await;
    world.slow_moves(Some(256 << 10)).await;
    world.drain(node).await;
    world.until("blocks are moved", async |world| world.allocations() > 0).await;
    world.kill(node);
    world.until_down(node).await;
    world.slow_moves(None).await;
    world.until("it is lost", async |world| world.state(node).await == "lost").await;
    world.until("its blocks are rebuilt", async |world| world.blocks_of(node) == 0).await;
    world.until_healthy().await;
    world.assert_all_whole(&objects).await;
    // It comes back empty, and still gets nothing.
    world.start_agent(node).await;
    world.until("it is back", async |world| world.up().await.contains(&node)).await;
    world.put_objects(20..22).await;
    assert_eq!(world.left(node).await, (0, true));
    world.client.drain(NodeId(node), "", Some(false), false).await.unwrap();
    world.put_objects(22..26).await;
    assert!(world.blocks_of(node) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_block_is_rebuilt_before_others_leave() {
    let mut world = healing(9, 9).await;
    let objects = world.put_objects(0..3).await;
    let (node, other) = (world.holder("k0", 0).await, world.holder("k0", 1).await);
    world.slow_moves(Some(256 << 10)).await;
    world.drain(node).await;
    world.until("blocks are moved", async |world| world.allocations() > 0).await;
    world.kill(other);
    world.slow_moves(None).await;
    world.until("it is lost", async |world| world.state(other).await == "lost").await;
    world.until("its blocks are rebuilt", async |world| world.blocks_of(other) == 0).await;
    world.until_drained(node).await;
    world.assert_all_whole(&objects).await;
    assert_eq!((world.blocks_of(node), world.blocks_of(other)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_has_no_other_home_waits_for_a_node() {
    let mut world = healing(6, 6).await;
    let objects = world.put_objects(0..2).await;
    let refused = world.client.drain(NodeId(2), "", Some(true), false).await.unwrap_err();
    assert_eq!(refused.reaction, Reaction::Unavailable);
    assert!(refused.message.contains("only 5 can keep blocks") && refused.message.contains("--force"), "{refused}");
    assert!(!world.left(2).await.1);
    let plan = world.client.explain_drain(NodeId(2), "").await.unwrap();
    assert!(plan.refusals.len() == 1 && plan.refusals[0].contains("only 5 can keep blocks"), "{plan:?}");
    assert_eq!((plan.leaving, plan.waiting.map(|it| it.blocks)), (plan.waiting, Some(4)), "none has another home");
    let forced = world.client.drain(NodeId(2), "", Some(true), true).await.unwrap();
    assert!(forced.on && forced.warnings.len() == 1, "{forced:?}");
    let waits = async |world: &World| world.told().await.waiting.iter().any(|it| it.wait == "nodes" && it.stripes == 4);
    world.until("its stripes wait", waits).await;
    world.assert_all_whole(&objects).await;
    world.start_agent(7).await;
    world.until_drained(2).await;
    assert_eq!(world.blocks_of(2), 0);
    world.assert_all_whole(&objects).await;
    let gone = world.client.drain(NodeId(99), "", Some(true), false).await.unwrap_err();
    assert_eq!(gone.reaction, Reaction::NotFound);
    world.kill(7);
    world.until_down(7).await;
    let down = world.client.drain(NodeId(7), "", Some(true), false).await.unwrap_err();
    assert!(down.message.contains("is down, so its blocks cannot be copied"), "{down}");
}

#[tokio::test(start_paused = true)]
async fn a_drain_warns_of_copies_that_only_an_object_asked_for() {
    let world = World::new(6, 6).await;
    let options =
        PutOptions { code: "rs(2,2)".into(), block_len: 512 << 10, cell_len: 64 << 10, replicas: 2, ..PutOptions::default() };
    world.client.put("b", "k", &data(1 << 20, 3)[..], &options).await.unwrap();
    // Four blocks, and a second copy of two. Without a node, five are left, which is enough for the code.
    world.until("it is counted", async |world| world.warns_of_copies(1).await).await;
    world.client.cool("b", "k").await.unwrap();
    world.until("the copies are dropped", async |world| !world.warns_of_copies(1).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_copies_what_is_left_of_an_object_that_cannot_be_read() {
    let mut world = healing(9, 9).await;
    let objects = world.put_objects(0..4).await;
    let stripe = world.stat("k0").await.stripes.remove(0);
    for block in &stripe.blocks[1..4] {
        let file = world.block_file(block.node, stripe.id, (block.index as u8, 0), block.generation);
        std::fs::remove_file(file).unwrap();
    }
    world.get("k0", "").await.unwrap_err();
    world.until("it is known", async |world| world.health().await.lost_stripes == 1).await;
    let node = stripe.blocks[0].node;
    world.drain(node).await;
    world.until_drained(node).await;
    assert_eq!(world.blocks_of(node), 0);
    world.kill(node);
    world.until_down(node).await;
    world.client.remove_node(NodeId(node)).await.unwrap();
    let states: Vec<String> = world.stat("k0").await.stripes[0].blocks.iter().map(|block| block.state.clone()).collect();
    assert_eq!(states.iter().filter(|state| *state == "ok").count(), 3, "nothing is given up: {states:?}");
    world.assert_all_whole(&objects[1..]).await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_is_drained_while_its_node_goes_on() {
    let world = World::new(7, 7).await;
    let objects = world.put_objects(0..6).await;
    let node = world.holder("k0", 0).await;
    let disks = async |world: &World| {
        let nodes = world.client.status().await.unwrap().nodes;
        nodes.into_iter().find(|it| it.id == node).unwrap().disks
    };
    let disk = disks(&world).await.into_iter().max_by_key(|disk| disk.blocks).unwrap();
    assert!(disk.blocks > 0);
    let unknown = world.client.drain(NodeId(node), "nothing", Some(true), false).await.unwrap_err();
    assert_eq!(unknown.reaction, Reaction::NotFound);
    world.client.drain(NodeId(node), &disk.id, Some(true), false).await.unwrap();
    let now = async |world: &World| disks(world).await.into_iter().find(|it| it.id == disk.id).unwrap();
    world.until("the disk is empty", async |world| now(world).await.blocks == 0).await;
    assert!(now(&world).await.draining);
    let more = world.put_objects(10..16).await;
    assert_eq!(now(&world).await.blocks, 0, "it gets no new blocks");
    assert!(disks(&world).await.iter().any(|it| it.blocks > 0), "another disk of the node does");
    world.assert_all_whole(&objects).await;
    world.assert_all_whole(&more).await;
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_removed_replaced_or_converted_meanwhile_delay_nothing() {
    let world = World::new(9, 9).await;
    let policy = api::Policy { name: "cold".into(), code: "rs(2,2)".into(), ..api::Policy::default() };
    world.client.create_policy(policy).await.unwrap();
    let objects = world.put_objects(0..6).await;
    let node = world.holder("k0", 0).await;
    world.slow_moves(Some(256 << 10)).await;
    world.drain(node).await;
    world.until("blocks are moved", async |world| world.allocations() > 0).await;
    for (key, _) in &objects[..2] {
        world.client.remove("b", key).await.unwrap();
    }
    let replaced = data(2 << 20, 77);
    world.put("k2", &replaced).await.unwrap();
    let converted = world.client.convert("b", "k3", "cold", &ConvertOptions::default()).await.unwrap().id;
    world.slow_moves(None).await;
    assert_eq!(world.ended(converted).await.state, "done");
    assert_eq!(world.stat("k3").await.code, "rs(2,2)");
    world.until_drained(node).await;
    world.assert_all_whole(&objects[3..]).await;
    world.assert_whole("k2", &replaced).await;
    world.until("what is not needed is gone", async |world| world.allocations() == 0 && world.rows("garbage") == 0).await;
}
