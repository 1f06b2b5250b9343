//! Blocks that move from fuller nodes to emptier ones.

use crate::world::{World, data};
use std::collections::BTreeMap;
use weft_client::{ConvertOptions, JobChange, PutOptions, api};
use weft_types::{NodeId, Reaction};

impl World {
    /// Stores objects of four stripes of six small blocks each.
    pub(crate) async fn put_stripes(&self, seeds: std::ops::Range<u64>) -> Vec<(String, Vec<u8>)> {
        let options = PutOptions { code: "rs(4,2)".into(), block_len: 64 << 10, cell_len: 64 << 10, ..PutOptions::default() };
        let mut objects = Vec::new();
        for seed in seeds {
            let (key, bytes) = (format!("s{seed}"), data(1 << 20, seed));
            self.client.put("b", &key, &bytes[..], &options).await.unwrap();
            objects.push((key, bytes));
        }
        objects
    }

    /// The blocks of each node by the metadata.
    fn blocks(&self, nodes: std::ops::RangeInclusive<u32>) -> BTreeMap<u32, u64> {
        nodes.map(|node| (node, self.rows(&format!("block_at WHERE node = {node}")))).collect()
    }

    async fn join(&mut self, nodes: std::ops::RangeInclusive<u32>) {
        for node in nodes {
            self.start_agent(node).await;
            self.until("it is up", async |world| world.up().await.contains(&node)).await;
        }
    }

    async fn assert_stored(&self, objects: &[(String, Vec<u8>)]) {
        for (key, bytes) in objects {
            self.assert_whole(key, bytes).await;
        }
    }
}

fn spread(blocks: &BTreeMap<u32, u64>) -> (u64, u64) {
    (*blocks.values().min().unwrap(), *blocks.values().max().unwrap())
}

#[tokio::test(start_paused = true)]
async fn nodes_that_join_get_their_share() {
    let mut world = World::new(9, 9).await;
    let objects = world.put_stripes(0..24).await;
    world.join(10..=12).await;
    let before = world.blocks(1..=12);
    assert_eq!((before[&10], before[&12], before.values().sum::<u64>()), (0, 0, 24 * 4 * 6));
    let plan = world.client.explain_balance(0).await.unwrap();
    assert_eq!(world.blocks(1..=12), before, "nothing moved");
    let least = plan.least_bytes / (64 << 10);
    assert!((3 * 40..=3 * 48 + 24).contains(&plan.blocks) && plan.blocks <= least + 24, "{} of {least}", plan.blocks);
    assert!(plan.nodes.iter().filter(|node| node.receives_bytes > 0).any(|node| node.node >= 10) && plan.seconds > 0.0);
    let moved: u64 = plan.moves.iter().map(|it| it.bytes).sum();
    let is_all = plan.further_moves == 0 && moved == plan.bytes;
    assert!(is_all || plan.moves.len() == 100 && moved < plan.bytes, "{moved} {plan:?}");
    let ends = |it: &api::DiskMoves| [it.from.clone().unwrap(), it.to.clone().unwrap()];
    let named =
        |it: &api::DiskName| plan.disks.iter().any(|disk| (disk.node, &disk.disk, &disk.path) == (it.node, &it.disk, &it.path));
    assert!(plan.moves.iter().flat_map(ends).all(|it| named(&it)), "{:?}", plan.moves);
    assert!(plan.moves.iter().filter(|it| it.to.as_ref().unwrap().node >= 10).map(|it| it.blocks).sum::<u64>() > 60);
    let after: u64 = plan.disks.iter().map(|disk| disk.after_bytes).sum();
    assert!(plan.disks.iter().map(|disk| disk.bytes).sum::<u64>().abs_diff(after) <= 24 * (64 << 10));

    let job = world.client.balance(0).await.unwrap();
    assert_eq!(job.kind, "balance");
    let again = world.client.balance(0).await.unwrap_err();
    assert!(again.reaction == Reaction::InvalidInput && again.message.contains("job"), "{again}");
    let ended = world.ended(job.id).await;
    assert_eq!((ended.state.as_str(), ended.left.unwrap().blocks), ("done", 0), "{ended:?}");
    let (fewest, most) = spread(&world.blocks(1..=12));
    assert!(fewest >= 44 && most <= 52, "48 each: {:?}", world.blocks(1..=12));
    let moved = ended.done.unwrap();
    assert!(moved.bytes as f64 <= 1.05 * plan.least_bytes as f64 + (24 * (64 << 10)) as f64, "{moved:?} {}", plan.least_bytes);
    let sent = ended.moved_bytes.unwrap();
    // Once for each block that goes to another node.
    assert!((moved.bytes / 2..=moved.bytes * 11 / 10).contains(&sent), "{sent} bytes sent for {moved:?}");
    world.assert_stored(&objects).await;
    // It is even: nothing moves again.
    let generations = world.rows("block_at WHERE generation > 1");
    let nothing = world.client.balance(0).await.unwrap();
    let nothing = world.ended(nothing.id).await;
    assert_eq!((nothing.state.as_str(), nothing.done.unwrap_or_default().blocks), ("done", 0));
    assert_eq!(world.rows("block_at WHERE generation > 1"), generations);
    world.until("what is not needed is gone", async |world| world.rows("garbage") == 0 && world.allocations() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_stops_and_goes_on_whatever_happens_meanwhile() {
    let mut world = World::new(8, 8).await;
    let mut objects = world.put_stripes(0..20).await;
    world.join(9..=10).await;
    let slow = |bytes_per_s| api::RepairLimit { bytes_per_s, ..api::RepairLimit::default() };
    world.client.set_repair_limit(slow(Some(256 << 10))).await.unwrap();
    let plan = world.client.explain_balance(2).await.unwrap();
    let busiest = plan.nodes.iter().map(|node| node.sends_bytes.max(node.receives_bytes)).max().unwrap();
    assert_eq!((plan.limit.as_str(), plan.limited_seconds), ("256KiB/s", busiest as f64 / f64::from(256 << 10)));
    assert!(plan.seconds < plan.limited_seconds, "{plan:?}");
    let job = world.client.balance(2).await.unwrap().id;
    world.until("blocks move", async |world| world.blocks(9..=10).values().sum::<u64>() > 0).await;
    world.client.change_job(job, JobChange::Pause).await.unwrap();
    world.until("nothing moves", async |world| world.allocations() == 0).await;
    let paused = world.blocks(9..=10);
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(world.blocks(9..=10), paused);
    world.client.change_job(job, JobChange::Resume).await.unwrap();
    world.until("blocks move again", async |world| world.allocations() > 0).await;
    world.restart_coordinator().await;
    world.until("nodes are back", async |world| world.up().await.len() == 10).await;
    world.until("blocks move under the next coordinator", async |world| world.allocations() > 0).await;
    // Objects come and go, and a node that gets blocks is away for a while.
    for (key, _) in objects.drain(..2) {
        world.client.remove("b", &key).await.unwrap();
    }
    // The first of the others is replaced.
    world.put_stripes(2..3).await;
    world.kill(10);
    world.until_down(10).await;
    world.client.set_repair_limit(slow(None)).await.unwrap();
    world.start_agent(10).await;
    world.until("it is back", async |world| world.up().await.contains(&10)).await;
    // It may have ended before the node was back, or given up blocks.
    world.ended(job).await;
    let again = world.client.balance(0).await.unwrap();
    assert_eq!(world.ended(again.id).await.state, "done");
    let (fewest, most) = spread(&world.blocks(1..=10));
    assert!(most - fewest <= 8, "{:?}", world.blocks(1..=10));
    world.assert_stored(&objects).await;
    let meant = "garbage WHERE reason IN ('removed', 'replaced', 'repaired')";
    world.until("what is not needed is gone", async |world| world.rows(meant) == 0 && world.allocations() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn moves_of_objects_that_are_removed_meanwhile_are_no_failures() {
    let mut world = World::new(8, 8).await;
    let objects = world.put_stripes(0..20).await;
    world.join(9..=10).await;
    let slow = |bytes_per_s| api::RepairLimit { bytes_per_s, ..api::RepairLimit::default() };
    world.client.set_repair_limit(slow(Some(256 << 10))).await.unwrap();
    let job = world.client.balance(2).await.unwrap().id;
    world.until("blocks move", async |world| world.allocations() > 0).await;
    for (key, _) in &objects {
        world.client.remove("b", key).await.unwrap();
    }
    world.client.set_repair_limit(slow(None)).await.unwrap();
    let ended = world.ended(job).await;
    let left = ended.left.unwrap_or_default().blocks;
    assert_eq!((ended.state.as_str(), left, ended.last_error.as_str()), ("done", 0, ""));
}

#[tokio::test(start_paused = true)]
async fn objects_are_converted_while_their_blocks_move() {
    let mut world = World::new(8, 8).await;
    let policy = api::Policy {
        name: "cold".into(),
        code: "rs(2,2)".into(),
        block_len: 64 << 10,
        cell_len: 64 << 10,
        ..api::Policy::default()
    };
    world.client.create_policy(policy).await.unwrap();
    let objects = world.put_stripes(0..20).await;
    world.join(9..=10).await;
    let slow = |bytes_per_s| api::RepairLimit { bytes_per_s, ..api::RepairLimit::default() };
    world.client.set_repair_limit(slow(Some(256 << 10))).await.unwrap();
    let moving = world.client.balance(2).await.unwrap().id;
    world.until("blocks move", async |world| world.allocations() > 0).await;
    // The stripes of which blocks move now, and all others, whose moves are planned.
    let converting = world.client.convert("b", "", "cold", &ConvertOptions::default()).await.unwrap().id;
    world.until("an object is converted", async |world| world.stat("s0").await.code == "rs(2,2)").await;
    world.client.set_repair_limit(slow(None)).await.unwrap();
    let converted = world.ended(converting).await;
    assert_eq!((converted.state.as_str(), converted.left.unwrap().blocks), ("done", 0), "{}", converted.last_error);
    // It may have given up blocks that were no longer there.
    world.ended(moving).await;
    for (key, _) in &objects {
        assert_eq!(world.stat(key).await.code, "rs(2,2)");
    }
    world.assert_stored(&objects).await;
    let again = world.client.balance(0).await.unwrap();
    assert_eq!(world.ended(again.id).await.state, "done");
    let blocks = world.blocks(1..=10);
    let (fewest, most) = spread(&blocks);
    assert!(blocks.values().sum::<u64>() == 20 * 8 * 4 && most - fewest <= 8, "{blocks:?}");
    world.assert_stored(&objects).await;
    world.until("what is not needed is gone", async |world| world.rows("garbage") == 0 && world.allocations() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_drained_gets_nothing_from_others() {
    let mut world = World::new(8, 8).await;
    let objects = world.put_stripes(0..8).await;
    world.join(9..=10).await;
    world.client.drain(NodeId(10), "", Some(true), false).await.unwrap();
    let job = world.client.balance(0).await.unwrap();
    assert_eq!(world.ended(job.id).await.state, "done");
    let blocks = world.blocks(1..=10);
    assert!(blocks[&10] == 0 && blocks[&9] > 10, "{blocks:?}");
    world.assert_stored(&objects).await;
}
