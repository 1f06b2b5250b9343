//! The health of a cluster follows what happens to its nodes, disks and blocks.

use crate::world::{World, data};
use weft_client::{RepairNodeOptions, RepairOptions, api};
use weft_types::NodeId;

async fn health(world: &World) -> api::HealthReply {
    world.client.health().await.unwrap()
}

/// Waits until all is counted and the cluster has this level.
async fn until_level(world: &World, level: &str) -> api::HealthReply {
    world
        .until(level, async |world| {
            let health = health(world).await;
            !health.counting && health.level == level
        })
        .await;
    health(world).await
}

/// How many stripes survive how many further losses; `None`: they cannot be read.
fn bearings(health: &api::HealthReply) -> Vec<(Option<u32>, u64)> {
    health.bearings.iter().map(|it| (it.further_losses, it.stripes)).collect()
}

/// The number of an object's stripes that have a block on a node.
async fn stripes_on(world: &World, key: &str, node: u32) -> u64 {
    let stripes = world.stat(key).await.stripes;
    stripes.iter().filter(|stripe| stripe.blocks.iter().any(|block| block.node == node)).count() as u64
}

#[tokio::test(start_paused = true)]
async fn a_cluster_is_healthy_again_when_nodes_are_back_and_blocks_are_rebuilt() {
    // The default code, rs(6,3), needs nine nodes.
    let mut world = World::new(9, 4).await;
    let empty = until_level(&world, "healthy").await;
    assert_eq!((bearings(&empty), empty.reasons.len(), empty.nodes), (vec![], 0, 9));
    world.put("big", &data(9 << 20, 1)).await.unwrap();
    world.put("small", &data(2 << 20, 2)).await.unwrap();
    world.put("small", &data(2 << 20, 3)).await.unwrap();
    let healthy = until_level(&world, "healthy").await;
    assert_eq!((healthy.objects, healthy.stripes, bearings(&healthy)), (2, 6, vec![(Some(2), 6)]));
    assert!(healthy.fits_bytes > 0 && healthy.free_bytes <= healthy.total_bytes, "{healthy:?}");

    // A node goes, and returns.
    let node = world.holder("small", 0).await;
    let on_it = stripes_on(&world, "big", node).await + 1;
    world.kill(node);
    let degraded = until_level(&world, "degraded").await;
    world.until("its blocks count", async |world| health(world).await.stripes_with_bad_blocks == on_it).await;
    assert_eq!(degraded.down_nodes[0].node, node);
    let bad = health(&world).await.bad_blocks.unwrap();
    assert_eq!((bad.on_down_nodes, bad.corrupt + bad.missing + bad.on_failed_disks), (on_it, 0));
    world.start_agent(node).await;
    until_level(&world, "healthy").await;

    // A page of a block is corrupt, and the block is repaired.
    world.client.remove("b", "big").await.unwrap();
    world.until("only one object is left", async |world| world.block_count(1..=9) == 6).await;
    world.flip("small", 1, 4096 * 3).await;
    world.get("small", "").await.unwrap();
    let degraded = until_level(&world, "degraded").await;
    assert_eq!((bearings(&degraded), degraded.bad_blocks.unwrap().corrupt), (vec![(Some(1), 1)], 1));
    // The next coordinator counts the same.
    world.restart_coordinator().await;
    world.until("all nodes are back", async |world| world.up().await.len() == 9).await;
    let counted = until_level(&world, "degraded").await;
    assert_eq!((bearings(&counted), counted.bad_blocks.unwrap().corrupt), (vec![(Some(1), 1)], 1));
    world.repair("small", &RepairOptions::default()).await.unwrap();
    until_level(&world, "healthy").await;

    // What is gone with its object is no reason any more.
    world.flip("small", 2, 4096 * 3).await;
    world.get("small", "").await.unwrap();
    until_level(&world, "degraded").await;
    world.client.remove("b", "small").await.unwrap();
    let healthy = until_level(&world, "healthy").await;
    assert_eq!((healthy.stripes, bearings(&healthy)), (0, vec![]));
}

#[tokio::test(start_paused = true)]
async fn the_blocks_of_a_replaced_disk_are_lost_until_they_are_rebuilt() {
    let mut world = World::with(8, 4, |config| config.default_code = "rs(4,2)".into()).await;
    world.put("k", &data(9 << 20, 1)).await.unwrap();
    let node = world.holder("k", 0).await;
    let on_it = stripes_on(&world, "k", node).await;
    until_level(&world, "healthy").await;
    world.kill(node);
    for disk in world.disk_dirs(node) {
        std::fs::remove_dir_all(disk).unwrap();
    }
    world.start_agent(node).await;
    world
        .until("it is up with new disks", async |world| {
            let health = health(world).await;
            health.down_nodes.is_empty() && !health.counting && health.bad_blocks.unwrap().on_failed_disks == on_it
        })
        .await;
    let lost = health(&world).await;
    assert_eq!(lost.level, "degraded");
    assert_eq!(lost.failed_disks.len(), 2);
    assert!(lost.failed_disks.iter().any(|disk| disk.node == node && disk.blocks > 0), "{:?}", lost.failed_disks);
    assert!(lost.reasons.iter().any(|reason| reason.contains("failed disks held blocks")), "{:?}", lost.reasons);

    let options = RepairNodeOptions { force: true, ..RepairNodeOptions::default() };
    world.client.repair_node(NodeId(node), &options).await.unwrap();
    let healthy = until_level(&world, "healthy").await;
    assert!(healthy.failed_disks.iter().all(|disk| disk.blocks == 0), "{:?}", healthy.failed_disks);
    assert_eq!(world.not_ok("k").await, []);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_named_with_the_reason() {
    let mut world = World::with(8, 4, |config| config.default_code = "rs(4,2)".into()).await;
    world.put("k", &data(2 << 20, 1)).await.unwrap();
    world.put("other", &data(100, 2)).await.unwrap();
    until_level(&world, "healthy").await;
    assert!(world.stat("k").await.unreadable.is_empty());
    let nodes: Vec<u32> = world.stat("k").await.stripes[0].blocks[..3].iter().map(|block| block.node).collect();
    world.kill(nodes[0]);
    world.kill(nodes[1]);
    let at_risk = until_level(&world, "at-risk").await;
    assert!(at_risk.reasons[0].contains("not survive a further loss"), "{:?}", at_risk.reasons);
    assert!(world.stat("k").await.unreadable.is_empty(), "it can still be read");
    world.kill(nodes[2]);
    let unavailable = until_level(&world, "unavailable").await;
    let named = |key: &str| unavailable.unreadable_objects.iter().any(|it| (&*it.bucket, &*it.key) == ("b", key));
    assert!(named("k"), "{:?}", unavailable.unreadable_objects);
    assert_eq!(unavailable.lost_stripes, 0);
    assert_eq!(bearings(&unavailable)[0].0, None);
    let stat = world.stat("k").await.unreadable;
    assert_eq!((stat.len(), stat[0].number, stat[0].lost, &stat[0].blocks[..]), (1, 0, false, &[0, 1, 2][..]));
    assert!(stat[0].why.contains("its node is down"), "{}", stat[0].why);
    assert!(world.get("k", "").await.is_err(), "a read must agree");

    for node in nodes {
        world.start_agent(node).await;
    }
    until_level(&world, "healthy").await;
    let stripe = world.stat("k").await.stripes.remove(0);
    for block in &stripe.blocks[..3] {
        std::fs::remove_file(world.block_file(block.node, stripe.id, (block.index as u8, 0), block.generation)).unwrap();
    }
    world.get("k", "").await.unwrap_err();
    let lost = until_level(&world, "unavailable").await;
    assert_eq!((lost.unreadable_stripes, lost.lost_stripes, lost.unreadable_objects.len()), (1, 1, 1));
    assert!(world.stat("k").await.unreadable[0].lost);
}

#[tokio::test(start_paused = true)]
async fn what_lacks_blocks_is_listed_and_the_same_as_is_counted() {
    let mut world = World::new(9, 9).await;
    for key in ["k0", "k1", "k2"] {
        world.put(key, &data(9 << 20, 7)).await.unwrap();
    }
    let listed = async |world: &World, bucket: &str, key: &str| {
        let page = world.client.list_damage(bucket, key, 0).await.unwrap();
        assert_eq!(page.next_after, 0);
        page.stripes
    };
    until_level(&world, "healthy").await;
    assert_eq!(listed(&world, "", "").await, []);
    let node = world.holder("k0", 0).await;
    let mut on_it = std::collections::BTreeMap::new();
    for key in ["k0", "k1", "k2"] {
        on_it.insert(key.to_owned(), stripes_on(&world, key, node).await);
    }
    on_it.retain(|_, stripes| *stripes > 0);
    world.kill(node);
    let total: u64 = on_it.values().sum();
    let is_counted = async |world: &World| {
        let health = health(world).await;
        !health.counting && health.stripes_with_bad_blocks == total
    };
    world.until("its blocks count", is_counted).await;
    let all = listed(&world, "", "").await;
    let mut by_key = std::collections::BTreeMap::new();
    for stripe in &all {
        assert_eq!(
            (stripe.bucket.as_str(), stripe.further_losses, stripe.further_losses_with_all_nodes),
            ("b", Some(1), Some(2))
        );
        assert_eq!(stripe.blocks.unwrap().on_down_nodes, 1);
        *by_key.entry(stripe.key.clone()).or_insert(0) += 1;
    }
    assert_eq!(by_key, on_it);
    assert_eq!(listed(&world, "b", "k0").await.len() as u64, on_it["k0"]);
    assert_eq!(listed(&world, "b", "").await, all);
    world.client.create_bucket("c", "").await.unwrap();
    assert_eq!(listed(&world, "c", "").await, []);
    for (bucket, key) in [("d", ""), ("b", "k9"), ("d", "k0")] {
        let gone = world.client.list_damage(bucket, key, 0).await.unwrap_err();
        assert_eq!(gone.reaction, weft_types::Reaction::NotFound, "{bucket}/{key}");
    }
    world.start_agent(node).await;
    world.until("nothing is lacking", async |world| listed(world, "", "").await.is_empty()).await;
}
