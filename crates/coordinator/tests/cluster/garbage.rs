//! What nobody needs: freed at once if it is meant to go, else set aside until a person says so.

use crate::world::{World, data};
use std::time::Duration;
use weft_agent::Limits;
use weft_types::{ByteSize, NodeId, Reaction};

/// What is listed of all nodes: whether in quarantine, the reason, and how many blocks.
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

/// As of a removal under a version that wrote no reasons down.
fn forget_reasons(world: &World) {
    let file = rusqlite::Connection::open(world.metadata_file()).unwrap();
    file.execute("UPDATE garbage SET reason = 'unexpected', bytes = NULL", []).unwrap();
}

#[tokio::test(start_paused = true)]
async fn garbage_without_a_reason_is_set_aside_and_goes_when_a_person_says_so() {
    let world = World::with(6, 6, |config| config.garbage_grace_ms = 2_000).await;
    world.put("old", &data(100 << 10, 1)).await.unwrap();
    let blocks = world.block_count(1..=6) as u64;
    world.client.remove("b", "old").await.unwrap();
    assert_eq!(listed(&world).await, entries([(false, "removed", blocks)]));
    forget_reasons(&world);
    assert_eq!(listed(&world).await, entries([(false, "unexpected", blocks)]));
    world.until("it is set aside", async |world| listed(world).await == entries([(true, "unexpected", blocks)])).await;
    assert_eq!(world.block_count(1..=6), 0);
    // What is removed after it is freed as ever.
    world.put("new", &data(100 << 10, 2)).await.unwrap();
    world.client.remove("b", "new").await.unwrap();
    world.until("it is freed", async |world| listed(world).await == entries([(true, "unexpected", blocks)])).await;
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
async fn unexpected_garbage_that_a_person_releases_is_freed_as_what_is_removed() {
    let mut world = World::new(6, 6).await;
    world.limits = Limits { removed_blocks_per_day: 0, removed_percent_per_day: 0, ..Limits::default() };
    world.restart_agents().await;
    world.put("old", &data(100 << 10, 1)).await.unwrap();
    let blocks = world.block_count(1..=6);
    world.client.remove("b", "old").await.unwrap();
    forget_reasons(&world);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(listed(&world).await, entries([(false, "unexpected", blocks as u64)]), "no more may be set aside");
    // What is meant to go is not held up by it.
    world.put("new", &data(100 << 10, 2)).await.unwrap();
    world.client.remove("b", "new").await.unwrap();
    world.until("it is freed", async |world| world.block_count(1..=6) == blocks).await;
    for node in (1..=6).map(NodeId) {
        world.client.release_garbage(node, true).await.unwrap();
    }
    world.until("all is freed", async |world| world.block_count(1..=6) == 0).await;
    assert_eq!(listed(&world).await, []);
}

#[tokio::test(start_paused = true)]
async fn what_exceeds_an_hours_bound_follows_in_the_next_hours_by_itself() {
    let slowly = |config: &mut weft_coordinator::CoordinatorConfig| {
        (config.heartbeat_interval_ms, config.down_after_ms, config.sweep_interval_ms) = (10_000, 60_000, 5_000);
    };
    let mut world = World::with(2, 2, slowly).await;
    // One block of each disk, whatever its length is.
    world.limits = Limits { freed_bytes_per_hour: ByteSize(1), freed_percent_per_hour: 0, ..Limits::default() };
    world.restart_agents().await;
    let options = weft_client::PutOptions { code: "rs(1,1)".into(), ..Default::default() };
    for key in ["1", "2", "3", "4", "5"] {
        world.client.put("b", key, &[7u8; 1_000][..], &options).await.unwrap();
        world.client.remove("b", key).await.unwrap();
    }
    let mut before = 10;
    while before > 0 {
        world.until("some are freed", async |world| world.block_count(1..=2) < before).await;
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
