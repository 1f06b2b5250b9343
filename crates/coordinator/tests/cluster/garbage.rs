//! Garbage: freed at once if its removal is expected, else quarantined until an operator releases it.

use crate::world::{World, data};
use std::time::Duration;
use weft_agent::Limits;
use weft_types::{ByteSize, NodeId, Reaction};

/// The garbage of all nodes: whether in quarantine, the reason, and the number of blocks.
async fn listed(world: &World) -> Vec<(bool, String, u64)> {
    let told = world.client.garbage(None).await.unwrap();
    assert_eq!(told.warnings, [] as [&str; 0]);
    let mut all: Vec<(bool, String, u64)> = Vec::new();
    for it in told.garbage {
        match all.iter_mut().find(|(quarantined, reason, _)| (*quarantined, reason) == (it.quarantined, &it.reason)) {
            Some((_, _, blocks)) => *blocks += it.blocks,
            None => all.push((it.quarantined, it.reason, it.blocks)),
        }
    }
    all.sort();
    all
}

fn entries<const N: usize>(all: [(bool, &str, u64); N]) -> Vec<(bool, String, u64)> {
    all.into_iter().map(|(quarantined, reason, blocks)| (quarantined, reason.to_owned(), blocks)).collect()
}

/// Garbage as an older version recorded it, without reasons.
fn forget_reasons(world: &World) {
    let file = rusqlite::Connection::open(world.metadata_file()).unwrap();
    file.execute("UPDATE garbage SET reason = 'unexpected', bytes = NULL", []).unwrap();
}

#[tokio::test(start_paused = true)]
async fn garbage_without_a_reason_is_quarantined_until_an_operator_releases_it() {
    let world = World::with(6, 6, |config| config.garbage_grace_ms = 2_000).await;
    world.put("old", &data(100 << 10, 1)).await.unwrap();
    let blocks = world.block_count(1..=6) as u64;
    world.client.remove("b", "old").await.unwrap();
    assert_eq!(listed(&world).await, entries([(false, "removed", blocks)]));
    let of_nodes: u64 = world.client.status().await.unwrap().nodes.iter().map(|it| it.garbage_blocks).sum();
    assert_eq!((of_nodes, world.health().await.garbage_blocks), (blocks, blocks));
    forget_reasons(&world);
    assert_eq!(listed(&world).await, entries([(false, "unexpected", blocks)]));
    world
        .until("the blocks are in quarantine", async |world| listed(world).await == entries([(true, "unexpected", blocks)]))
        .await;
    assert_eq!(world.block_count(1..=6), 0);
    // Later removals are freed as usual.
    world.put("new", &data(100 << 10, 2)).await.unwrap();
    world.client.remove("b", "new").await.unwrap();
    world
        .until("the removed blocks are freed", async |world| listed(world).await == entries([(true, "unexpected", blocks)]))
        .await;
    assert_eq!(world.block_count(1..=6), 0);

    let mut freed = 0;
    for node in (1..=6).map(NodeId) {
        let released = world.client.release_garbage(node, false).await.unwrap();
        assert_eq!((released.left_blocks, released.released_blocks, released.kept.as_str()), (0, 0, ""));
        freed += released.freed_blocks;
    }
    assert_eq!((freed, listed(&world).await), (blocks, vec![]));
    let error = world.client.release_garbage(NodeId(9), false).await.unwrap_err();
    assert!(error.reaction == Reaction::NotFound && error.message.contains("there is no node n9"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn unexpected_garbage_that_an_operator_releases_is_freed_like_a_removal() {
    let mut world = World::new(6, 6).await;
    world.limits = Limits { removed_blocks_per_day: 0, removed_percent_per_day: 0, ..Limits::default() };
    world.restart_agents().await;
    world.put("old", &data(100 << 10, 1)).await.unwrap();
    let blocks = world.block_count(1..=6);
    world.client.remove("b", "old").await.unwrap();
    forget_reasons(&world);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(listed(&world).await, entries([(false, "unexpected", blocks as u64)]), "the bound of the quarantine is reached");
    // It does not delay expected removals.
    world.put("new", &data(100 << 10, 2)).await.unwrap();
    world.client.remove("b", "new").await.unwrap();
    world.until("the removed blocks are freed", async |world| world.block_count(1..=6) == blocks).await;
    for node in (1..=6).map(NodeId) {
        world.client.release_garbage(node, true).await.unwrap();
    }
    world.until("all blocks are freed", async |world| world.block_count(1..=6) == 0).await;
    assert_eq!(listed(&world).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_release_at_a_node_that_is_down_changes_nothing() {
    let mut world = World::new(6, 6).await;
    world.limits = Limits { removed_blocks_per_day: 0, removed_percent_per_day: 0, ..Limits::default() };
    world.restart_agents().await;
    for seed in 1..=6 {
        world.put("old", &data(100 << 10, seed)).await.unwrap();
    }
    world.client.remove("b", "old").await.unwrap();
    forget_reasons(&world);
    let unexpected = |world: &World| -> u64 {
        let file = rusqlite::Connection::open(world.metadata_file()).unwrap();
        file.query_row("SELECT count(*) FROM garbage WHERE reason = 'unexpected' AND node = 1", [], |row| row.get(0)).unwrap()
    };
    let before = unexpected(&world);
    assert!(before > 0);
    world.kill(1);
    world.until("the node is down", async |world| !world.up().await.contains(&1)).await;
    let error = world.client.release_garbage(NodeId(1), true).await.unwrap_err();
    assert!(error.message.contains("is down"), "{error}");
    assert_eq!(unexpected(&world), before);
}

#[tokio::test(start_paused = true)]
async fn garbage_beyond_the_hourly_bound_is_freed_in_the_next_hours() {
    let slowly = |config: &mut weft_coordinator::CoordinatorConfig| {
        (config.heartbeat_interval_ms, config.down_after_ms, config.sweep_interval_ms) = (10_000, 60_000, 5_000);
    };
    let mut world = World::with(2, 2, slowly).await;
    // One block of each disk, of any length.
    world.limits = Limits { freed_bytes_per_hour: ByteSize(1), freed_percent_per_hour: 0, ..Limits::default() };
    world.restart_agents().await;
    let options = weft_client::PutOptions { code: "rs(1,1)".into(), ..Default::default() };
    for key in ["1", "2", "3", "4", "5"] {
        world.client.put("b", key, &[7u8; 1_000][..], &options).await.unwrap();
        world.client.remove("b", key).await.unwrap();
    }
    let mut before = 10;
    while before > 0 {
        world.until("some blocks are freed", async |world| world.block_count(1..=2) < before).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
        let left = world.block_count(1..=2);
        assert!(before - left <= 4, "more than one of each disk: {left} of {before} are left");
        tokio::time::sleep(Duration::from_secs(30 * 60)).await;
        assert_eq!(world.block_count(1..=2), left, "no more within the hour");
        tokio::time::sleep(Duration::from_secs(31 * 60)).await;
        before = left;
    }
    assert_eq!(listed(&world).await, []);
}
