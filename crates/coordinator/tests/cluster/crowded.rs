//! Stripes with too many blocks in a rack: they move to other racks, and give way to what is lost.

use crate::{
    healing::healing,
    world::{World, data},
};
use std::time::Duration;
use tokio::time::Instant;
use weft_client::{PutOptions, api};

impl World {
    /// The most blocks of a stripe of an object in one of three racks.
    async fn most_in_rack(&self, key: &str) -> usize {
        let stripes = self.stat(key).await.stripes;
        let of_rack = |blocks: &[api::PlacedBlock], rack: u32| blocks.iter().filter(|block| block.node % 3 == rack).count();
        stripes.iter().flat_map(|stripe| (0..3).map(move |rack| of_rack(&stripe.blocks, rack))).max().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_move_gives_way_to_the_rebuild_of_its_stripe() {
    let mut world = healing(9, 3).await;
    let bytes = data(16 << 20, 90);
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 4 << 20, cell_len: 64 << 10, ..PutOptions::default() };
    world.client.put("b", "k", &bytes[..], &options).await.unwrap();
    world.until_healthy().await;
    [1, 4, 7].iter().for_each(|node| world.kill(*node));
    let is_whole = async |world: &World| world.up().await.len() == 6 && world.not_ok("k").await.is_empty();
    world.until("what survives no further loss is rebuilt", is_whole).await;
    world.until("it is crowded", async |world| world.told().await.crowded_stripes == 1).await;
    world.until("what is not needed is gone", async |world| world.allocations() == 0).await;
    // From now on a block takes a quarter of a minute.
    let slow = api::RepairLimit { bytes_per_s: Some(256 << 10), ..api::RepairLimit::default() };
    world.client.set_repair_limit(slow).await.unwrap();
    for node in [1, 4, 7] {
        world.start_agent(node).await;
    }
    world.until("two blocks move", async |world| world.rows("allocations WHERE idx > 0") == 2).await;
    world.flip("k", 0, 4096 * 3).await;
    world.get("k", "").await.unwrap();
    let lost_at = Instant::now();
    world.until("another is rebuilt", async |world| world.rows("allocations WHERE idx = 0") == 1).await;
    assert!(lost_at.elapsed() < Duration::from_secs(8), "{:?}", lost_at.elapsed());
    world.client.set_repair_limit(api::RepairLimit::default()).await.unwrap();
    world.until_healthy().await;
    world.until("all are moved", async |world| world.told().await.crowded_stripes == 0).await;
    assert_eq!(world.most_in_rack("k").await, 2);
    world.assert_whole("k", &bytes).await;
}

#[tokio::test(start_paused = true)]
async fn blocks_that_a_repair_crowded_into_racks_move_back_and_stay() {
    // Six blocks, two of which may be lost: two in each of three racks.
    let mut world = healing(9, 3).await;
    let objects: Vec<(String, Vec<u8>)> = (0..4).map(|key| (format!("k{key}"), data(3 << 20, 40 + key))).collect();
    for (key, bytes) in &objects {
        world.put(key, bytes).await.unwrap();
    }
    world.until_healthy().await;
    assert_eq!((world.most_in_rack("k0").await, world.told().await.crowded_stripes), (2, 0));
    [1, 4, 7].iter().for_each(|node| world.kill(*node));
    for (key, _) in &objects {
        let is_whole = async |world: &World| world.up().await.len() == 6 && world.not_ok(key).await.is_empty();
        world.until("what survives no further loss is rebuilt", is_whole).await;
    }
    assert_eq!(world.most_in_rack("k0").await, 3, "there were two racks");
    world.until("they are counted", async |world| world.told().await.crowded_stripes == 8).await;
    let before = world.generation("k0").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!((world.generation("k0").await, world.allocations()), (before, 0), "nothing moves without another rack");
    // The next coordinator finds them, too.
    world.restart_coordinator().await;
    world.until("they are counted again", async |world| world.told().await.crowded_stripes == 8).await;

    for node in [1, 4, 7] {
        world.start_agent(node).await;
    }
    world.until("all are moved", async |world| world.told().await.crowded_stripes == 0).await;
    world.until_healthy().await;
    let mut generations = Vec::new();
    for (key, bytes) in &objects {
        assert_eq!(world.most_in_rack(key).await, 2, "{key}");
        world.assert_whole(key, bytes).await;
        generations.push(world.generation(key).await);
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    for ((key, _), generation) in objects.iter().zip(generations) {
        assert_eq!(world.generation(key).await, generation, "{key}: what is right is not moved again");
    }
    world.until("what is not needed is gone", async |world| world.block_count(1..=9) == 8 * 6).await;
}
