//! Blocks on disks that the metadata does not know are quarantined, and no others.

use crate::world::{World, data};
use std::{fs, path::PathBuf};
use tokio::io::AsyncWriteExt;
use weft_client::PutOptions;

/// Copies of a block's two files.
struct Kept {
    files: [PathBuf; 2],
    copies: [Vec<u8>; 2],
}

impl Kept {
    fn of(payload: PathBuf) -> Self {
        let sidecar = payload.with_file_name(format!("{}.meta", payload.file_name().unwrap().to_string_lossy()));
        let files = [payload, sidecar];
        Self { copies: files.clone().map(|file| fs::read(file).unwrap()), files }
    }

    /// Restores the block: the payload last, as in every write of a block.
    fn put_back(&self) {
        for (file, copy) in self.files.iter().zip(&self.copies).rev() {
            fs::write(file, copy).unwrap();
        }
    }
}

async fn quarantined(world: &World) -> Vec<(u32, u64, u64)> {
    let status = world.client.status().await.unwrap();
    let disks = status.nodes.iter().flat_map(|node| node.disks.iter().map(|disk| (node.id, disk)));
    let some = disks.filter(|(_, disk)| disk.quarantined_blocks > 0);
    some.map(|(node, disk)| (node, disk.quarantined_blocks, disk.quarantined_bytes)).collect()
}

/// Puts an object, removes it, and restores one of its blocks on a node.
async fn orphan(world: &World) -> (u32, Kept) {
    world.put("old", &data(2 << 20, 1)).await.unwrap();
    let node = world.holder("old", 0).await;
    let kept = Kept::of(world.block_files(node).pop().unwrap());
    world.client.remove("b", "old").await.unwrap();
    world.until("the blocks are removed", async |world| world.block_count(1..=7) == 0).await;
    (node, kept)
}

#[tokio::test(start_paused = true)]
async fn unknown_blocks_are_quarantined_and_blocks_being_written_are_not() {
    let world = World::with(7, 4, |config| config.orphan_check_interval_ms = 300).await;
    let (node, kept) = orphan(&world).await;
    let bytes = data(5 << 20, 2);
    let (mut writer, reader) = tokio::io::duplex(64 << 10);
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 512 << 10, cell_len: 64 << 10, ..PutOptions::default() };
    let client = world.client.clone();
    let orphaned = async {
        // Two stripes have ended, and one is under way.
        writer.write_all(&bytes[..(4 << 20) + 1000]).await.unwrap();
        world.until("two stripes are stored", async |world| world.block_count(1..=7) >= 12).await;
        kept.put_back();
        world.until("the block is in quarantine", async |world| !quarantined(world).await.is_empty()).await;
        assert_eq!(quarantined(&world).await, [(node, 1, kept.copies[0].len() as u64)]);
        assert!(kept.files.iter().all(|file| !file.exists()));
        kept.put_back();
        world.until("both are set aside", async |world| quarantined(world).await.iter().any(|(_, blocks, _)| *blocks == 2)).await;
        writer.write_all(&bytes[(4 << 20) + 1000..]).await.unwrap();
        drop(writer);
    };
    let (put, ()) = tokio::join!(client.put("b", "new", reader, &options), orphaned);
    put.unwrap();
    assert_eq!(world.get("new", "").await.unwrap().0, bytes);
    assert_eq!(world.not_ok("new").await, []);
    assert_eq!(world.block_count(1..=7), 18);
    assert_eq!(quarantined(&world).await, [(node, 2, 2 * kept.copies[0].len() as u64)]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_is_compared_once() {
    // A node that is silent because the machine is loaded must not register again.
    let mut world = World::with(7, 4, |config| config.down_after_ms = 20_000).await;
    let (node, kept) = orphan(&world).await;
    world.put("k", &data(1 << 20, 3)).await.unwrap();
    // By then the coordinator has compared the nodes that have just registered.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    kept.put_back();
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(quarantined(&world).await, [], "the node was compared too early");
    world.kill(node);
    world.start_agent(node).await;
    world.until("the block is in quarantine", async |world| !quarantined(world).await.is_empty()).await;
    assert_eq!(world.block_count(1..=7), 6);
    // The quarantine is reported after a restart, too.
    world.kill(node);
    world.start_agent(node).await;
    world
        .until("the quarantine is reported", async |world| quarantined(world).await == [(node, 1, kept.copies[0].len() as u64)])
        .await;
}
