//! Puts that are acknowledged before all blocks of a stripe are durable, and how the other blocks follow.

use crate::{
    puts::{Put, Strike},
    world::{World, data},
};
use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};
use tokio::{io::AsyncWriteExt as _, time::Instant};
use weft_agent::Throttle;
use weft_client::{PutOptions, api};
use weft_proto::from_status;
use weft_types::{ByteSize, Reaction};

async fn patient_world(nodes: u32, stall_ms: u32, down_after_ms: u64) -> World {
    World::with(nodes, nodes, |config| {
        (config.stall_ms, config.suspect_ms, config.down_after_ms) = (stall_ms, 60_000, down_after_ms);
    })
    .await
}

async fn direct(world: &World, ack: &str, block_len: usize) -> Put {
    let mut put = Put::new(world, "rs(4,2)", 1).await;
    put.options = PutOptions { scheme: "direct".into(), ack: ack.into(), block_len: block_len as u64, ..put.options };
    put.bytes = data(4 * block_len - 5000, 40);
    put
}

/// The blocks that have yet to arrive, by stripe number.
fn coming(object: &api::ObjectReply) -> Vec<(u64, Vec<u32>)> {
    object.incomplete.iter().map(|stripe| (stripe.number, stripe.blocks.clone())).collect()
}

/// A put of slow data may take days. Its stripes have their full redundancy long before it ends.
#[tokio::test(start_paused = true)]
async fn a_stripe_is_completed_while_its_put_goes_on() {
    let mut world = World::new(7, 7).await;
    let mut put = direct(&world, "k+1", 2 << 20).await;
    put.bytes = data(12 << 20, 44);
    let (mut pipe, reader) = tokio::io::duplex(64 << 10);
    let putting = put.client.put("b", "k", reader, &put.options);
    let feeding = async {
        let (first, rest) = put.bytes.split_at(8 << 20);
        let striking = async {
            let hit = put.receivers(&world, &[2]).await;
            world.kill(hit[0]);
            hit
        };
        let (fed, hit) = tokio::join!(pipe.write_all(first), striking);
        fed.unwrap();
        world.until("the first stripe has ended", async |world| world.rows("block_at") > 0).await;
        world.until("the stripe is complete", async |world| world.rows("incomplete") == 0 && world.allocations() == 0).await;
        assert_eq!(world.rows("uploads"), 1);
        pipe.write_all(rest).await.unwrap();
        drop(pipe);
        hit
    };
    let (stored, hit) = tokio::join!(putting, feeding);
    assert_eq!(coming(&stored.unwrap()), []);
    put.stripes = 2;
    put.is_right(&world, &hit).await;
    let stat = world.stat("k").await;
    assert!(stat.stripes[0].blocks.iter().all(|block| block.node != hit[0]), "{stat:?}");
    assert_eq!(stat.stripes[0].blocks[2].generation, 2, "the block was rebuilt");
}

#[tokio::test(start_paused = true)]
async fn a_put_that_has_lost_too_much_meanwhile_is_not_acknowledged() {
    let (stored, hit, world) = put_while_nodes_go(true).await;
    let error = stored.unwrap_err();
    assert!(error.reaction == Reaction::Unavailable && error.object.as_deref() == Some("b/k"), "{error}");
    for says in ["cannot be acknowledged", "stripe 0", "block 0 (", "block 2 (", "block 3 (", "its disk failed"] {
        assert!(error.message.contains(says), "{says}: {error}");
    }
    assert!(hit.iter().all(|node| error.message.contains(&format!("node-{node:02}"))), "{error}");
    assert_eq!(world.client.stat("b", "k").await.unwrap_err().reaction, Reaction::NotFound);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_put_waits_for_nodes_that_only_restart() {
    let (stored, _, world) = put_while_nodes_go(false).await;
    assert_eq!(coming(&stored.unwrap()), [(0, vec![2])]);
    assert!(world.get("k", "").await.unwrap().0 == data(8 << 20, 45), "the object was read back changed");
}

/// A put of one stripe of rs(4,2) that ends without block 2 while the nodes of blocks 0 and 3 are down; they come back, perhaps
/// without their disks. Returns the put's outcome and the nodes of these blocks.
async fn put_while_nodes_go(for_good: bool) -> (weft_types::Result<api::ObjectReply>, Vec<u32>, World) {
    let mut world = World::new(6, 6).await;
    let mut put = direct(&world, "k+1", 2 << 20).await;
    put.bytes = data(8 << 20, 45);
    let (mut pipe, reader) = tokio::io::duplex(64 << 10);
    let putting = put.client.put("b", "k", reader, &put.options);
    let striking = async {
        let (fed, hit) = tokio::join!(pipe.write_all(&put.bytes), put.receivers(&world, &[0, 2, 3]));
        fed.unwrap();
        world.kill(hit[1]);
        world.until("its stripe has ended", async |world| world.rows("incomplete") == 1).await;
        world.kill(hit[0]);
        world.kill(hit[2]);
        world.until("three nodes are left", async |world| world.up().await.len() == 3).await;
        drop(pipe);
        // Meanwhile the put ends, and retries its commit.
        tokio::time::sleep(Duration::from_secs(1)).await;
        for node in [hit[0], hit[2]] {
            if for_good {
                world.disk_dirs(node).iter().for_each(|disk| std::fs::remove_dir_all(disk).unwrap());
            }
            world.start_agent(node).await;
        }
        world.until("five nodes are up", async |world| world.up().await.len() == 5).await;
        hit
    };
    let (stored, hit) = tokio::join!(putting, striking);
    (stored, hit, world)
}

/// Without a spare node. Acknowledged data survive a crash of all nodes. The missing block is rebuilt when its node is back; until then,
/// the object's state says why it is missing.
#[tokio::test(start_paused = true)]
async fn data_that_are_acknowledged_early_survive_a_crash_of_all_nodes_and_are_completed() {
    let mut world = patient_world(6, 7_000, 2_000).await;
    let (put, begin) = (direct(&world, "k+1", 2 << 20).await, Instant::now());
    let (stored, hit) = put.run(&mut world, &[2], Strike::Stop).await;
    let (stored, took) = (stored.unwrap(), begin.elapsed());
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!((coming(&stored), stored.incomplete_count), (vec![(0, vec![2])], 1));

    (1..=6).for_each(|node| world.kill(node));
    world.restart_coordinator().await;
    for node in (1..=6).filter(|node| *node != hit[0]) {
        world.start_agent(node).await;
    }
    world.until("five nodes are up again", async |world| world.up().await.len() == 5).await;
    assert!(world.get("k", "").await.unwrap().0 == put.bytes, "the object was read back changed");
    let stat = world.stat("k").await;
    assert_eq!(coming(&stat), [(0, vec![2])]);
    assert_eq!(stat.stripes[0].blocks[2].state, "coming");
    world
        .until("the reason why it is incomplete is reported", async |world| {
            world.stat("k").await.incomplete.iter().any(|stripe| stripe.why.contains("rs(4,2)"))
        })
        .await;

    world.start_agent(hit[0]).await;
    world.until("the stripe is complete", async |world| world.stat("k").await.incomplete.is_empty()).await;
    put.is_right(&world, &[]).await;
    assert_eq!(world.stat("k").await.stripes[0].blocks[2].generation, 2, "the block was rebuilt");
    world.until("unneeded blocks are removed", async |world| world.block_count(1..=6) == 6).await;
}

/// The hung node's connections stay open, and their buffers hold the data that were sent to it.
#[tokio::test(start_paused = true)]
async fn a_node_that_hung_and_resumes_completes_its_block_itself() {
    let mut world = patient_world(6, 20_000, 60_000).await;
    let put = direct(&world, "k+1", 2 << 20).await;
    let (stored, hit) = put.run(&mut world, &[5], Strike::Stop).await;
    assert_eq!(coming(&stored.unwrap()), [(0, vec![5])]);
    world.go_on(hit[0]);
    world.until("the stripe is complete", async |world| world.stat("k").await.incomplete.is_empty()).await;
    put.is_right(&world, &[]).await;
    assert_eq!(world.stat("k").await.stripes[0].blocks[5].generation, 1, "nothing had to be rebuilt");
}

/// More data than the sockets' buffers hold: the writer stalls, and only the hanging node is to blame.
#[tokio::test(start_paused = true)]
async fn a_writer_does_not_wait_for_a_receiver_that_is_silent() {
    for (ack, nodes, left) in [("all", 7, false), ("k+1", 6, true)] {
        let mut world = patient_world(nodes, 40_000, 60_000).await;
        let (put, begin) = (direct(&world, ack, 12 << 20).await, Instant::now());
        let (stored, hit) = put.run(&mut world, &[4], Strike::Stop).await;
        let (stored, took) = (stored.unwrap(), begin.elapsed());
        assert!(took < Duration::from_secs(16), "{ack}: {took:?}");
        let sent = put.sent_bytes.load(Ordering::Relaxed);
        assert!(sent <= 6 * (12 << 20) + 100_000, "{ack}: {sent} bytes were sent, some of them twice");
        assert_eq!(coming(&stored), if left { vec![(0, vec![4])] } else { vec![] }, "{ack}");
        if left {
            assert!(world.get("k", "").await.unwrap().0 == put.bytes, "the object was read back changed");
        } else {
            put.is_right(&world, &hit).await;
        }
    }
}

/// The slow node needs no repair: its writer has sent it everything.
#[tokio::test(start_paused = true)]
async fn a_put_does_not_wait_for_a_slow_node_whose_block_counts_when_it_arrives() {
    let mut world = World::new(6, 6).await;
    let disk_bytes_per_s = Some(ByteSize(192 << 10));
    world.throttle(3, Throttle { disk_bytes_per_s, ..Throttle::default() }).await;
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 512 << 10, ack: "k+1".into(), ..PutOptions::default() };
    let bytes = data(2 << 20, 41);
    let stored = world.client.put("b", "k", bytes.as_slice(), &options).await.unwrap();
    let stat = world.stat("k").await;
    let slow = stat.stripes[0].blocks.iter().find(|block| block.node == 3).unwrap();
    assert_eq!((coming(&stored), slow.state.as_str()), (vec![(0, vec![slow.index])], "coming"));
    world.until("the block has arrived", async |world| world.stat("k").await.incomplete.is_empty()).await;
    let stat = world.stat("k").await;
    assert!(stat.stripes[0].blocks.iter().all(|block| block.state == "ok" && block.generation == 1), "{stat:?}");
    assert!(world.get("k", "").await.unwrap().0 == bytes && world.allocations() == 0);
    // A put with `ack: all` waits for all blocks.
    let all = world.client.put("b", "all", bytes.as_slice(), &PutOptions { ack: "all".into(), ..options }).await.unwrap();
    assert_eq!(coming(&all), []);
}

/// Data that the writer does not wait for take memory on the slow node.
#[tokio::test(start_paused = true)]
async fn a_writer_of_many_stripes_is_not_ahead_of_a_slow_receiver_without_bound() {
    let mut world = World::new(6, 6).await;
    let disk_bytes_per_s = Some(ByteSize(192 << 10));
    world.throttle(3, Throttle { disk_bytes_per_s, ..Throttle::default() }).await;
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 128 << 10, ack: "k+1".into(), ..PutOptions::default() };
    let bytes = data(16 * (512 << 10), 42);
    let (client, done) = (world.client.clone(), tokio::sync::Notify::new());
    let putting = async {
        let stored = client.put("b", "k", bytes.as_slice(), &options).await;
        done.notify_one();
        stored
    };
    let watching = async {
        let mut most = 0;
        loop {
            tokio::select! {
                () = done.notified() => return most,
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
            }
            let writes: BTreeSet<_> = world.being_written().into_iter().filter(|(_, node)| *node == 3).collect();
            most = most.max(writes.len());
        }
    };
    let (stored, most) = tokio::join!(putting, watching);
    let stored = stored.unwrap();
    // Plus one stripe that is being sent and one that ends.
    assert!((2..=6).contains(&most), "{most} stripes at once");
    assert!((1..=4).contains(&stored.incomplete_count), "{}", stored.incomplete_count);
    world.until("the stripe is complete", async |world| world.stat("k").await.incomplete.is_empty()).await;
    assert!(world.get("k", "").await.unwrap().0 == bytes);
}

/// The faster of two late blocks does not wait for the other.
#[tokio::test(start_paused = true)]
async fn a_late_block_counts_as_soon_as_it_arrives() {
    let mut world = patient_world(6, 4_000, 800).await;
    for (node, rate) in [(3, 256 << 10), (5, 128 << 10)] {
        world.throttle(node, Throttle { disk_bytes_per_s: Some(ByteSize(rate)), ..Throttle::default() }).await;
    }
    let (code, scheme, ack) = ("rs(4,2)".into(), "direct".into(), "tolerate=2".into());
    let options = PutOptions { code, scheme, ack, block_len: 448 << 10, ..PutOptions::default() };
    let stored = world.client.put("b", "k", data(4 * (448 << 10), 46).as_slice(), &options).await.unwrap();
    assert_eq!(stored.incomplete[0].blocks.len(), 2, "{stored:?}");
    let state = async |world: &World, node| {
        let stat = world.stat("k").await;
        let block = stat.stripes[0].blocks.iter().find(|block| block.node == node);
        block.map(|block| (block.state.clone(), block.generation))
    };
    world.until("one block has arrived", async |world| state(world, 3).await == Some(("ok".into(), 1))).await;
    assert_eq!(state(&world, 5).await, Some(("coming".into(), 1)));
    world.until("both blocks have arrived", async |world| world.stat("k").await.incomplete.is_empty()).await;
    assert_eq!(state(&world, 5).await, Some(("ok".into(), 1)));
}

/// Some blocks of the put were still arriving.
#[tokio::test(start_paused = true)]
async fn a_put_that_is_given_up_receives_no_more_blocks() {
    let mut world = World::with(6, 6, |config| (config.stall_ms, config.failure_grace_ms) = (3_000, 2_900)).await;
    let disk_bytes_per_s = Some(ByteSize(64 << 10));
    world.throttle(3, Throttle { disk_bytes_per_s, ..Throttle::default() }).await;
    let (code, scheme, ack) = ("rs(4,2)".into(), "direct".into(), "k+1".into());
    let options = PutOptions { code, scheme, ack, block_len: 896 << 10, slice_len: 16 << 10, ..PutOptions::default() };
    let (mut pipe, reader) = tokio::io::duplex(64 << 10);
    let putting = world.client.put("b", "k", reader, &options);
    let feeding = async {
        pipe.write_all(&data(4 * (896 << 10), 48)).await.unwrap();
        world.until("the stripe has ended", async |world| world.rows("incomplete") == 1).await;
    };
    tokio::select! {
        stored = putting => panic!("the put ended early: {stored:?}"),
        () = feeding => assert_eq!(world.being_written().len(), 1),
    }
    let begin = Instant::now();
    world.until("no node writes a block", async |world| world.being_written().is_empty()).await;
    // The sweep for garbage runs after a stall, and leaves blocks that are still being written.
    assert!(begin.elapsed() < Duration::from_millis(4_500), "{:?}", begin.elapsed());
    world.until("nothing is left", async |world| world.block_count(1..=6) == 0 && world.allocations() == 0).await;
}

/// Giving up a committed put, or committing it again, changes nothing.
#[tokio::test(start_paused = true)]
async fn a_committed_put_is_not_given_up() {
    let mut world = World::new(6, 6).await;
    let disk_bytes_per_s = Some(ByteSize(192 << 10));
    world.throttle(3, Throttle { disk_bytes_per_s, ..Throttle::default() }).await;
    let (code, ack) = ("rs(4,2)".into(), "k+1".into());
    let options = PutOptions { code, ack, block_len: 448 << 10, slice_len: 16 << 10, ..PutOptions::default() };
    let bytes = data(4 * (448 << 10), 47);
    let stored = world.client.put("b", "k", bytes.as_slice(), &options).await.unwrap();
    assert_eq!(coming(&stored).len(), 1);
    let (mut bare, upload) = (world.bare_client().await, stored.version);
    bare.abort_put(api::AbortPutRequest { upload, put_key: Vec::new() }).await.unwrap();
    let commit = api::CommitPutRequest { upload, size: bytes.len() as u64, put_key: Vec::new() };
    assert_eq!(
        bare.commit_put(commit.clone()).await.unwrap().into_inner().incomplete_count,
        1,
        "the block was given up, or the test is slow"
    );
    world.until("the block has arrived", async |world| world.stat("k").await.incomplete.is_empty()).await;
    let stat = world.stat("k").await;
    assert!(stat.stripes[0].blocks.iter().all(|block| block.generation == 1), "the transfer was cancelled: {stat:?}");

    // Something fails after the commit.
    let file = rusqlite::Connection::open(world.metadata_file()).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    file.execute_batch("ALTER TABLE incomplete RENAME TO hidden").unwrap();
    let error = from_status(&bare.commit_put(commit.clone()).await.unwrap_err());
    assert!(error.reaction == Reaction::Retry && error.message.contains("the object is stored"), "{error}");
    file.execute_batch("ALTER TABLE hidden RENAME TO incomplete").unwrap();
    assert_eq!(bare.commit_put(commit).await.unwrap().into_inner().version, upload);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_removed_while_its_blocks_arrive_leaves_nothing() {
    let mut world = World::new(6, 6).await;
    let disk_bytes_per_s = Some(ByteSize(192 << 10));
    world.throttle(3, Throttle { disk_bytes_per_s, ..Throttle::default() }).await;
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 512 << 10, ack: "k+2".into(), ..PutOptions::default() };
    let stored = world.client.put("b", "k", data(2 << 20, 43).as_slice(), &options).await.unwrap();
    assert_eq!(coming(&stored), [], "k+2 of rs(4,2) are all blocks");
    let options = PutOptions { ack: "tolerate=1".into(), ..options };
    let stored = world.client.put("b", "k", data(2 << 20, 43).as_slice(), &options).await.unwrap();
    assert_eq!(coming(&stored).len(), 1);
    world.client.remove("b", "k").await.unwrap();
    world.until("nothing is left", async |world| world.block_count(1..=6) == 0 && world.allocations() == 0).await;
    let error = world.client.put("b", "k", [1].as_slice(), &PutOptions { ack: "k+3".into(), ..options }).await.unwrap_err();
    assert!(error.reaction == Reaction::InvalidInput && error.message.contains("k+2"), "{error}");
}
