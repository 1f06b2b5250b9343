//! A whole cluster in one process: clients' requests to the coordinator, and their effects on the nodes.

mod ailing_disks;
mod appends;
mod at_nodes;
mod balance;
mod commits;
mod conversions;
mod copies;
mod corruption;
mod crowded;
mod departures;
mod drain;
mod early;
mod failures;
mod fake_agent;
mod garbage;
mod given_up;
mod healing;
mod health;
mod jobs;
mod kept;
mod leases;
mod limits;
mod links;
mod lying_disks;
mod moved;
mod objects;
mod openings;
mod orphans;
mod puts;
mod reads;
mod refusals;
mod repairs;
mod reserve;
mod restarts;
mod restored;
mod returned;
mod scrub;
mod slow_net;
mod small;
mod update_routes;
mod updates;
mod updating;
mod world;

use weft_client::{PutOptions, RepairNodeOptions, RepairOptions};
use weft_types::{AutoSize, NodeId};
use world::{World, data};

#[tokio::test(start_paused = true)]
async fn what_is_put_is_there_and_what_is_removed_leaves_nothing() {
    let world = World::new(7, 4).await;
    let (big, small) = (data(5 << 20, 1), data(10, 2));
    let put = world.put("big", &big).await.unwrap();
    assert_eq!((put.size, put.stripe_count, put.code.as_str()), (5 << 20, 3, "rs(4,2)"));
    world.put("small", &small).await.unwrap();
    world.put("nothing", &[]).await.unwrap();
    assert_eq!(world.get("big", "").await.unwrap().0, big);
    assert_eq!(world.get("small", "").await.unwrap().0, small);
    assert!(world.get("nothing", "").await.unwrap().0.is_empty());
    assert_eq!(world.not_ok("big").await, []);
    for stripe in world.stat("big").await.stripes {
        let mut nodes: Vec<u32> = stripe.blocks.iter().map(|block| block.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), 6, "one block per node");
        for rack in ["r0", "r1", "r2", "r3"] {
            assert!(stripe.blocks.iter().filter(|block| block.rack == rack).count() <= 2, "rs(4,2) survives the loss of a rack");
        }
        assert!(stripe.blocks.iter().all(|block| block.checksums.len() as u64 == block.len.div_ceil(1 << 20)));
    }
    // The object of ten bytes has one data block and two parity blocks.
    assert_eq!(world.block_count(1..=7), 3 * 6 + 3);

    let other = data(3 << 20, 3);
    let again = world.put("big", &other).await.unwrap();
    assert!(again.version > put.version);
    assert_eq!(world.get("big", "").await.unwrap().0, other);
    world.until("the old blocks are gone", async |world| world.block_count(1..=7) == 2 * 6 + 3).await;
    for key in ["big", "small", "nothing"] {
        world.client.remove("b", key).await.unwrap();
    }
    world.until("all blocks are gone", async |world| world.block_count(1..=7) == 0).await;
    world.client.remove_bucket("b").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn explaining_does_nothing() {
    let world = World::new(6, 3).await;
    let options = PutOptions { code: "RS-4-2-1024k".into(), ..PutOptions::default() };
    let explained = world.client.explain_put("b", "k", 4 << 20, &options).await.unwrap();
    assert_eq!((explained.code.as_str(), explained.cell_len), ("rs(4,2)", 1 << 20));
    let saved = weft_plan::from_json(std::str::from_utf8(&explained.plan).unwrap()).unwrap();
    assert_eq!(saved.plan.binding.stores.len(), 6);
    assert_eq!(world.block_count(1..=6), 0);

    world.put("k", &data(1 << 20, 4)).await.unwrap();
    let before = world.stat("k").await;
    for scheme in ["conventional", "ppr", "pipeline"] {
        let options = RepairOptions { blocks: vec![1], scheme: scheme.into(), explain: true, ..RepairOptions::default() };
        let mut repair = world.client.repair("b", "k", &options).await.unwrap();
        let event = repair.next().await.unwrap().unwrap().event.unwrap();
        let weft_client::api::repair_event::Event::Plan(plan) = event else { panic!("not a plan: {event:?}") };
        assert_eq!(plan.lost, [1]);
        let saved = weft_plan::from_json(std::str::from_utf8(&plan.plan).unwrap()).unwrap();
        let code = weft_codes::parse("rs(4,2)").unwrap();
        let view = weft_plan::CodeView { spec: "rs(4,2)", k: 4, n: 6, alpha: 1, generator: code.generator(), tolerance: 2 };
        weft_plan::verify(&saved.plan, view, &saved.job).unwrap();
    }
    assert_eq!(world.stat("k").await, before);
    assert_eq!(world.block_count(1..=6), 6);
}

#[tokio::test(start_paused = true)]
async fn slices_are_as_long_as_they_are_asked_for_also_of_several_sub_blocks() {
    let world = World::new(7, 4).await;
    let (bytes, cell_len) = (data(4 << 20, 24), 1 << 20);
    let options = PutOptions { code: "butterfly(4)".into(), block_len: cell_len, cell_len, ..PutOptions::default() };
    world.client.put("b", "k", bytes.as_slice(), &options).await.unwrap();
    let holder = NodeId(world.holder("k", 1).await);
    // A block has eight sub-blocks: by default, a slice is one MiB over all of them.
    for (asked, positions) in [(0, 128 << 10), (64 << 10, 8 << 10)] {
        let slice_len = (asked > 0).then(|| AutoSize::bytes(asked));
        let of_block = RepairOptions { slice_len, explain: true, ..world::block(1, None) };
        let of_node = RepairNodeOptions { slice_len: asked, force: true, ..RepairNodeOptions::default() };
        let plans = [
            world.client.repair("b", "k", &of_block).await.unwrap(),
            world.client.explain_repair_node(holder, &of_node).await.unwrap(),
        ];
        for mut plans in plans {
            let event = plans.next().await.unwrap().unwrap().event.unwrap();
            let weft_client::api::repair_event::Event::Plan(plan) = event else { panic!("not a plan: {event:?}") };
            let saved = weft_plan::from_json(std::str::from_utf8(&plan.plan).unwrap()).unwrap();
            assert_eq!(saved.plan.binding.slice_len, positions, "{asked} bytes were requested");
        }
    }
    let options = RepairOptions { slice_len: Some(AutoSize::bytes(64 << 10)), ..world::block(1, None) };
    assert_eq!(world.repair("k", &options).await.unwrap().blocks.len(), 1);
    assert!(world.get("k", "").await.unwrap().0 == bytes);
}

#[tokio::test(start_paused = true)]
async fn a_put_tells_what_was_moved_for_it() {
    let world = World::new(6, 3).await;
    let (stripes, block_len) = (3, 64 << 10);
    let bytes = data(stripes * 4 * block_len, 7);
    // With mist, the writer sends the four data blocks, and nodes send the inputs of the two parity blocks. One node computes both parity
    // blocks, or each node its own.
    for (scheme, from_writer, from_agents) in [("direct", 6, 0..=0), ("mist", 4, 5..=8)] {
        let (code, scheme) = ("rs(4,2)".into(), scheme.into());
        let len = block_len as u64;
        let options = PutOptions { code, scheme, block_len: len, cell_len: len, ..PutOptions::default() };
        let traffic = world.client.put("b", "k", &bytes[..], &options).await.unwrap().traffic.unwrap();
        let blocks = |bytes: u64| bytes / (stripes as u64 * len);
        assert_eq!(blocks(traffic.received_bytes - traffic.sent_bytes), from_writer, "{traffic:?}");
        assert!(from_agents.contains(&blocks(traffic.sent_bytes)), "{traffic:?}");
        assert_eq!((blocks(traffic.written_bytes), traffic.read_bytes), (6, 0), "{traffic:?}");
        assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_explained_is_what_is_done() {
    // The number of blocks on the nodes and the free space of their disks must not change between the explanation and the repair.
    let mut world = World::with(12, 3, |config| config.sweep_interval_ms = 60_000).await;
    world.disk_bytes.store(1 << 40, std::sync::atomic::Ordering::Relaxed);
    world.restart_agents().await;
    for key in 0..4 {
        let key = format!("k{key}");
        world.put(&key, &data(1 << 20, 5)).await.unwrap();
        let explained = world.explained_target(&key, 1).await;
        let done = world.repair(&key, &world::block(1, None)).await.unwrap();
        assert_eq!(done.blocks[0].node, explained, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_repair_goes_as_it_is_asked_to() {
    let mut world = World::new(9, 3).await;
    let bytes = data(1 << 20, 6);
    world.put("k", &bytes).await.unwrap();
    let len = world.stat("k").await.stripes[0].blocks[1].len;
    let one = || world::block(1, None);
    for (options, blocks_moved) in [
        (RepairOptions { scheme: "cyclic".into(), slice_len: Some(AutoSize::bytes(8192)), ..one() }, 4),
        (RepairOptions { scheme: "pipeline".into(), select: "random".into(), slice_len: Some(AutoSize::Auto), ..one() }, 4),
        (RepairOptions { scheme: "pipeline".into(), paths: 2, ..one() }, 4),
        (RepairOptions { scheme: "direct".into(), ..one() }, 1),
    ] {
        let done = world.repair("k", &options).await.unwrap();
        let traffic = done.traffic.unwrap();
        assert_eq!((done.blocks[0].len, traffic.read_bytes), (len, blocks_moved * len), "{options:?}");
        assert_eq!(world.get("k", "").await.unwrap().0, bytes, "{options:?}");
    }
    for (options, says) in [
        (RepairOptions { select: "worst".into(), ..one() }, "'worst' does not select helpers"),
        (RepairOptions { paths: 99, ..one() }, "99 paths are too many"),
        (RepairOptions { slice_len: Some(AutoSize::bytes(1000)), ..one() }, "multiple of 4KiB"),
        (RepairOptions { scheme: "ppr".into(), paths: 2, ..one() }, "'ppr' supports only one path"),
    ] {
        let error = world.repair("k", &options).await.unwrap_err();
        assert!(error.reaction == weft_types::Reaction::InvalidInput && error.message.contains(says), "{error}");
    }
    let holder = world.holder("k", 1).await;
    world.kill(holder);
    world.until("the node is down", async |world| !world.up().await.contains(&holder)).await;
    let error = world.repair("k", &RepairOptions { scheme: "direct".into(), ..one() }).await.unwrap_err();
    assert!(error.message.contains("'direct' only copies existing blocks"), "{error}");
    world.repair("k", &one()).await.unwrap();
}
