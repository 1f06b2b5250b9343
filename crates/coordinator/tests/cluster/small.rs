//! Objects so small that some data blocks of their stripe have no bytes: these blocks are not stored, and cannot be lost.

use crate::world::{World, block, data};
use weft_client::{ConvertOptions, PutOptions, RepairNodeOptions, RepairOptions, api};
use weft_types::{NodeId, Reaction};

const CELL_LEN: usize = 64 << 10;

/// The nodes of an object's blocks, and their indexes.
async fn blocks(world: &World, key: &str) -> Vec<(u32, u32)> {
    let stripes = world.stat(key).await.stripes;
    stripes.iter().flat_map(|stripe| stripe.blocks.iter().map(|block| (block.index, block.node))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_small_object_has_blocks_where_it_has_bytes_and_parity() {
    let world = World::new(6, 3).await;
    for (cells, indexes) in [(1, vec![0, 4, 5]), (2, vec![0, 1, 4, 5]), (3, vec![0, 1, 2, 4, 5]), (4, (0..6).collect())] {
        let bytes = data(cells * CELL_LEN - 5, cells as u64);
        world.put("k", &bytes).await.unwrap();
        assert!(blocks(&world, "k").await.into_iter().map(|(index, _)| index).eq(indexes.clone()));
        for scheme in ["conventional", "ppr", "pipeline"] {
            assert!(world.get("k", scheme).await.unwrap().0 == bytes);
        }
        assert_eq!(world.not_ok("k").await, []);
        world.until("the old blocks are gone", async |world| world.block_count(1..=6) == indexes.len()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_read_and_repaired_as_long_as_one_block_of_it_is_there() {
    let mut world = World::new(7, 7).await;
    let bytes = data(1000, 3);
    world.put("k", &bytes).await.unwrap();
    let homes = blocks(&world, "k").await;
    let asked = world.repair("k", &block(2, None)).await.unwrap_err();
    assert!(asked.reaction == Reaction::InvalidInput && asked.message.contains("is empty"), "{asked}");
    // The data block and a parity block are lost: the other parity block suffices for everything.
    for (_, node) in &homes[..2] {
        world.kill(*node);
    }
    world.until("two nodes are down", async |world| world.up().await.len() == 5).await;
    for scheme in ["conventional", "ppr", "pipeline"] {
        let (read, got) = world.get("k", scheme).await.unwrap();
        assert!(read == bytes && got.rebuilt.len() == 1, "{scheme}");
    }
    let done = world.repair("k", &RepairOptions::default()).await.unwrap();
    assert_eq!(done.blocks.iter().map(|block| block.index).collect::<Vec<_>>(), [0, 4]);
    assert_eq!((world.not_ok("k").await, world.get("k", "").await.unwrap().0), (vec![], bytes));
    assert_eq!(done.traffic.map(|traffic| traffic.sent_bytes), Some(2 * 1000), "one helper suffices for both blocks");
}

#[tokio::test(start_paused = true)]
async fn the_repair_of_a_node_leaves_nothing_of_small_objects() {
    let mut world = World::new(7, 7).await;
    for key in 0..12 {
        world.put(&format!("k{key}"), &data(1 + key as usize * CELL_LEN / 3, key)).await.unwrap();
    }
    let lost = world.block_count(3..=3) as u64;
    world.kill(3);
    world.until("the node is down", async |world| world.up().await.len() == 6).await;
    let job = world.client.repair_node(NodeId(3), &RepairNodeOptions::default()).await.unwrap();
    let ended = world.ended(job.id).await;
    assert_eq!((ended.state.as_str(), ended.done.map(|done| done.blocks)), ("done", Some(lost)), "{}", ended.last_error);
    for key in 0..12 {
        let bytes = data(1 + key as usize * CELL_LEN / 3, key);
        assert!(world.get(&format!("k{key}"), "").await.unwrap().0 == bytes);
        assert_eq!(world.not_ok(&format!("k{key}")).await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_converted_heated_and_cooled_and_has_copies_of_what_has_bytes() {
    let mut world = World::new(12, 4).await;
    let bytes = data(1000, 9);
    let options = PutOptions { code: "rs(4,2)".into(), replicas: 2, ..PutOptions::default() };
    world.client.put("b", "k", bytes.as_slice(), &options).await.unwrap();
    let copies = async || world.stat("k").await.stripes[0].copies.len();
    assert_eq!((blocks(&world, "k").await.len(), copies().await), (3, 1));
    assert_eq!(world.client.cool("b", "k").await.unwrap().blocks, 1);
    world.repair("k", &RepairOptions { heat: Some(3), ..RepairOptions::default() }).await.unwrap();
    assert_eq!(copies().await, 2);
    let policy = api::Policy { name: "cold".into(), code: "lrc(4,2,2)".into(), ..api::Policy::default() };
    world.client.create_policy(policy).await.unwrap();
    let job = world.client.convert("b", "k", "cold", &ConvertOptions::default()).await.unwrap().id;
    assert_eq!(world.ended(job).await.state, "done");
    assert_eq!(world.stat("k").await.code, "lrc(4,2,2)");
    let homes = blocks(&world, "k").await;
    assert!(homes.len() == 5 && world.get("k", "").await.unwrap().0 == bytes);
    // One of its parity blocks depends only on data blocks without bytes.
    for (_, node) in &homes[1..3] {
        world.kill(*node);
    }
    world.until("two nodes are down", async |world| world.up().await.len() == 10).await;
    for scheme in ["conventional", "ppr", "pipeline", "cyclic"] {
        let explained = RepairOptions { scheme: scheme.into(), explain: true, ..RepairOptions::default() };
        world.repair("k", &explained).await.unwrap();
    }
    assert_eq!(world.repair("k", &RepairOptions::default()).await.unwrap().blocks.len(), 2);
    assert_eq!(world.not_ok("k").await, []);
}
