//! The leases of the allocations of repairs: progress renews them, however slow it is.

use crate::world::{World, block, data};
use std::time::Duration;
use weft_agent::Throttle;
use weft_client::RepairOptions;
use weft_types::ByteSize;

const LEASE: Duration = Duration::from_secs(1);

/// A cluster with a spare node, an object with a lost block, and short leases. Links give up late.
async fn world() -> (World, u32) {
    let mut world = World::with(7, 7, |config| {
        config.upload_lease_ms = LEASE.as_millis() as u64;
        config.stall_ms = 10_000;
        config.suspect_ms = 30_000;
    })
    .await;
    world.put("k", &data(768 << 10, 1)).await.unwrap();
    let holders: Vec<u32> = world.stat("k").await.stripes[0].blocks.iter().map(|block| block.node).collect();
    let spare = (1..=7).find(|node| !holders.contains(node)).unwrap();
    let lost = world.holder("k", 0).await;
    world.kill(lost);
    world.until("one node is down", async |world| world.up().await.len() == 6).await;
    (world, spare)
}

#[tokio::test(start_paused = true)]
async fn a_repair_that_makes_progress_keeps_its_allocation_however_slow_it_is() {
    let (mut world, spare) = world().await;
    world.throttle(spare, Throttle { network_bytes_per_s: Some(ByteSize(64 << 10)), ..Throttle::default() }).await;
    let options = RepairOptions {
        scheme: "conventional".into(),
        slice_len: Some(weft_types::AutoSize::bytes(16 << 10)),
        ..block(0, Some(spare))
    };
    let begin = tokio::time::Instant::now();
    let done = world.repair("k", &options).await.unwrap();
    // Four blocks of 192 KiB have arrived.
    assert!(begin.elapsed() > LEASE * 10, "it was not slow: {:?}", begin.elapsed());
    assert_eq!((done.blocks.len(), done.resumed, done.blocks[0].node), (1, 0, spare));
    assert_eq!(world.allocations(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_repair_without_progress_loses_its_allocation_while_its_plan_still_waits() {
    let (world, spare) = world().await;
    world.cut_off(spare).await;
    let begin = tokio::time::Instant::now();
    let options = RepairOptions { scheme: "conventional".into(), ..block(0, Some(spare)) };
    let mut repair = Box::pin(world.repair("k", &options));
    let given_up = async {
        world.until("the block is allocated", async |world| world.allocations() == 1).await;
        world.until("its allocation is released", async |world| world.allocations() == 0).await;
        begin.elapsed()
    };
    let after = tokio::select! {
        ended = &mut repair => panic!("the repair has ended: {:?}", ended.map(|done| done.blocks)),
        after = given_up => after,
    };
    assert!(after >= LEASE && after < LEASE * 3, "{after:?}");
}
