//! Reads and repairs despite nodes that crash and bytes that flip.

use crate::world::{World, block, data};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use weft_agent::Throttle;
use weft_client::api::repair_event::Event;
use weft_client::{PutOptions, RepairOptions, api};
use weft_types::{AutoSize, ByteSize, NodeId, Party, Reaction};

#[tokio::test(start_paused = true)]
async fn a_lost_node_is_read_around_and_its_blocks_are_rebuilt() {
    let mut world = World::new(8, 4).await;
    let bytes = data(5 << 20, 1);
    world.put("k", &bytes).await.unwrap();
    let lost = world.holder("k", 0).await;
    world.kill(lost);
    // At once, before the coordinator notices that the node is down.
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    world.until("the node is down", async |world| !world.up().await.contains(&lost)).await;
    for scheme in ["conventional", "ppr", "pipeline"] {
        let (read, got) = world.get("k", scheme).await.unwrap();
        assert!(read == bytes, "{scheme}");
        assert!(!got.rebuilt.is_empty());
    }
    let not_ok = world.not_ok("k").await;
    assert!(!not_ok.is_empty() && not_ok.iter().all(|(_, _, state)| state == "down"));

    let done = world.repair("k", &RepairOptions { scheme: "ppr".into(), ..RepairOptions::default() }).await.unwrap();
    assert_eq!(done.blocks.len(), not_ok.len());
    assert!(done.blocks.iter().all(|block| block.node != lost && block.generation == 2));
    assert!(done.traffic.unwrap().received_bytes > 0);
    assert_eq!(world.not_ok("k").await, []);
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    assert!(world.repair("k", &RepairOptions::default()).await.unwrap().blocks.is_empty(), "no block is missing");

    assert!(!world.block_files(lost).is_empty());
    world.start_agent(lost).await;
    world.until("the old blocks are gone from the node that came back", async |world| world.block_files(lost).is_empty()).await;
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
}

#[tokio::test(start_paused = true)]
async fn as_many_losses_as_the_code_tolerates_and_not_one_more() {
    let mut world = World::new(8, 4).await;
    let bytes = data(1 << 20, 2);
    world.put("k", &bytes).await.unwrap();
    let mut lost = vec![world.holder("k", 0).await, world.holder("k", 2).await];
    lost.iter().for_each(|node| world.kill(*node));
    world.until("two nodes are down", async |world| world.up().await.len() == 6).await;
    for scheme in ["conventional", "ppr", "pipeline"] {
        assert!(world.get("k", scheme).await.unwrap().0 == bytes, "{scheme}");
    }
    lost.push(world.holder("k", 3).await);
    world.kill(lost[2]);
    world.until("three nodes are down", async |world| world.up().await.len() == 5).await;
    for error in [world.get("k", "").await.unwrap_err(), world.repair("k", &RepairOptions::default()).await.unwrap_err()] {
        assert_eq!(error.reaction, Reaction::Unavailable, "{error}");
        for part in ["b/k", "lost 3 blocks", "tolerates the loss of 2", "block 0", "block 2", "block 3", "its node is down"] {
            assert!(error.to_string().contains(part), "{part} is not in: {error}");
        }
    }
    world.start_agent(lost[0]).await;
    world.until("one node is up again", async |world| world.up().await.len() == 6).await;
    let done = world.repair("k", &RepairOptions { scheme: "pipeline".into(), ..RepairOptions::default() }).await.unwrap();
    assert_eq!(done.blocks.iter().map(|block| block.index).collect::<Vec<_>>(), [2, 3], "one plan rebuilds both");
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_flipped_byte_is_found_named_read_around_and_repaired() {
    let world = World::new(7, 4).await;
    let bytes = data(2 << 20, 3);
    world.put("k", &bytes).await.unwrap();
    let node = world.holder("k", 1).await;
    let file = world.block_files(node).pop().unwrap();
    let mut payload = std::fs::read(&file).unwrap();
    payload[100_000] ^= 1;
    std::fs::write(&file, payload).unwrap();

    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    world
        .until("the block is known to be corrupt", async |world| {
            world.not_ok("k").await.iter().any(|(_, index, state)| *index == 1 && state == "corrupt")
        })
        .await;
    let done = world.repair("k", &RepairOptions::default()).await.unwrap();
    assert_eq!(done.blocks.len(), 1);
    assert_eq!(world.not_ok("k").await, []);
    let (read, got) = world.get("k", "").await.unwrap();
    assert!(read == bytes && got.errors.is_empty() && got.rebuilt.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_good_block_moves_to_the_given_node() {
    let world = World::new(8, 4).await;
    let bytes = data(2 << 20, 4);
    world.put("k", &bytes).await.unwrap();
    let holders: Vec<u32> = world.stat("k").await.stripes[0].blocks.iter().map(|block| block.node).collect();
    let to = (1..=8).find(|node| !holders.contains(node)).unwrap();
    let error = world.repair("k", &block(5, Some(holders[2]))).await.unwrap_err();
    assert!(error.to_string().contains("already holds block 2"), "{error}");
    let error = world.repair("k", &block(6, None)).await.unwrap_err();
    assert!(error.to_string().contains("blocks 0 to 5"), "{error}");
    let error = world.repair("k", &block(0, Some(99))).await.unwrap_err();
    assert!(error.to_string().contains("no node n99"), "{error}");

    let done = world.repair("k", &block(5, Some(to))).await.unwrap();
    assert_eq!(done.blocks.iter().map(|block| (block.index, block.node)).collect::<Vec<_>>(), [(5, to)]);
    assert_eq!(world.holder("k", 5).await, to);
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    world.until("the old block is gone", async |world| world.block_count(1..=8) == 6).await;
}

#[tokio::test(start_paused = true)]
async fn a_repair_rebuilds_what_fits_and_names_the_rest() {
    let mut world = World::new(7, 4).await;
    let bytes = data(1 << 20, 16);
    world.put("k", &bytes).await.unwrap();
    let lost = [world.holder("k", 0).await, world.holder("k", 3).await];
    lost.iter().for_each(|node| world.kill(*node));
    world.until("two nodes are down", async |world| world.up().await.len() == 5).await;
    let done = world.repair("k", &RepairOptions::default()).await.unwrap();
    assert_eq!(done.blocks.iter().map(|block| block.index).collect::<Vec<_>>(), [0]);
    assert_eq!(done.left.iter().map(|left| (left.stripe, left.index)).collect::<Vec<_>>(), [(0, 3)]);
    assert!(done.left[0].reason.contains("5 of 7 nodes are up"), "{}", done.left[0].reason);
    assert_eq!(world.not_ok("k").await, [(0, 3, "down".to_owned())]);
    let error = world.repair("k", &RepairOptions::default()).await.unwrap_err();
    assert_eq!(error.reaction, Reaction::Unavailable, "no node is free: {error}");
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_repair_that_crowds_a_rack_warns() {
    // Three nodes in each of three racks, two of them with blocks.
    let world = World::new(9, 3).await;
    world.put("k", &data(1 << 20, 17)).await.unwrap();
    let blocks = world.stat("k").await.stripes[0].blocks.clone();
    let spare = |same: bool| {
        let free = (1..=9).filter(|node| !blocks.iter().any(|block| block.node == *node));
        free.clone().find(|node| (format!("r{}", node % 3) == blocks[0].rack) == same).unwrap()
    };
    let explain = RepairOptions { explain: true, ..block(0, Some(spare(false))) };
    let mut repair = world.client.repair("b", "k", &explain).await.unwrap();
    let first = repair.next().await.unwrap().unwrap().event.unwrap();
    assert!(matches!(&first, Event::Progress(it) if it.message.contains("gets 3 blocks")), "{first:?}");
    let crowded = world.repair("k", &block(0, Some(spare(false)))).await.unwrap();
    assert!(crowded.warnings.len() == 1 && crowded.warnings[0].contains("tolerates the loss of 2"), "{crowded:?}");
    let spread = world.repair("k", &block(0, Some(spare(true)))).await.unwrap();
    assert_eq!(spread.warnings, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_put_goes_on_when_a_node_dies() {
    let mut world = World::new(8, 4).await;
    let bytes = data(8 << 20, 5);
    let (mut writer, reader) = tokio::io::duplex(64 << 10);
    let client = world.client.clone();
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 512 << 10, cell_len: 64 << 10, ..PutOptions::default() };
    let sending = async {
        writer.write_all(&bytes[..5 << 20]).await.unwrap();
        world.kill(3);
        world.kill(5);
        writer.write_all(&bytes[5 << 20..]).await.unwrap();
        drop(writer);
    };
    let (put, ()) = tokio::join!(client.put("b", "k", reader, &options), sending);
    let put = put.unwrap();
    assert_eq!(put.stripe_count, 4);
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    // Stripes that had ended before the nodes died have lost blocks; those that came later have not.
    let last = &world.stat("k").await.stripes[3];
    assert!(last.blocks.iter().all(|block| block.state == "ok" && block.node != 3 && block.node != 5));
}

#[tokio::test(start_paused = true)]
async fn a_repair_goes_on_when_a_helper_dies() {
    let mut world = World::new(9, 3).await;
    let bytes = data(2 << 20, 6);
    world.put("k", &bytes).await.unwrap();
    let helper = world.holder("k", 3).await;
    let mut repair = world.client.repair("b", "k", &block(0, None)).await.unwrap();
    let mut done = None;
    while let Some(event) = repair.next().await.unwrap() {
        match event.event.unwrap() {
            // The plan exists and is about to be opened.
            Event::Plan(_) => world.kill(helper),
            Event::Done(last) => done = Some(last),
            Event::Progress(_) | Event::Schedule(_) => {}
        }
    }
    assert_eq!(done.unwrap().blocks.len(), 1);
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_repair_that_lost_a_helper_half_way_moves_only_what_is_missing() {
    let mut world = World::new(9, 3).await;
    let bytes = data(16 << 20, 7);
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 4 << 20, ..PutOptions::default() };
    world.client.put("b", "k", bytes.as_slice(), &options).await.unwrap();
    world.slow_down_agents().await;
    for scheme in ["pipeline", "conventional"] {
        let options = RepairOptions { scheme: scheme.into(), plans: true, ..block(0, None) };
        let mut repair = world.client.repair("b", "k", &options).await.unwrap();
        let (mut helper, mut missing, mut done) = (None, None, None);
        while let Some(event) = repair.next().await.unwrap() {
            match event.event.unwrap() {
                // The plans that follow avoid the lost helper.
                Event::Plan(plan) if helper.is_none() => {
                    let binding = weft_plan::from_json(std::str::from_utf8(&plan.plan).unwrap()).unwrap().plan.binding;
                    helper = Some(binding.parties[usize::from(binding.blocks[1].vertex)]);
                }
                Event::Plan(_) | Event::Schedule(_) => {}
                Event::Progress(progress) if progress.message.is_empty() => {
                    let Some(Party::Node(helper)) = helper else { panic!("a client helps: {helper:?}") };
                    if progress.done_bytes > 0 && missing.is_none() {
                        world.kill(helper.0);
                    }
                }
                Event::Progress(progress) => {
                    let words: Vec<&str> = progress.message.split(' ').collect();
                    let at = words.iter().rposition(|word| *word == "missing").unwrap();
                    missing = Some(words[at - 1].parse::<u64>().unwrap());
                }
                Event::Done(last) => done = Some(last),
            }
        }
        let (missing, done) = (missing.expect("the repair was resumed"), done.unwrap());
        assert!(done.resumed >= 1 && missing < 4 << 20, "{scheme}: {missing} positions were missing");
        assert_eq!(world.get("k", "").await.unwrap().0, bytes);
        let Some(Party::Node(helper)) = helper else { panic!("a client helps") };
        for node in (1..=9).filter(|node| *node != helper.0) {
            assert!(world.block_files(node).len() <= 2, "n{node}: {:?}", world.block_files(node));
        }
        world.start_agent(helper.0).await;
        world.until("all nodes are up again", async |world| world.up().await.len() == 9).await;
    }
}

/// The helpers only see that the new home does not answer; the new home only sees that no helper connects. There are exactly as many
/// helpers as the code needs, so the repair is impossible if one of them is blamed.
#[tokio::test(start_paused = true)]
async fn a_new_home_that_its_helpers_cannot_reach_is_replaced_and_not_its_helpers() {
    let mut world = World::new(8, 4).await;
    let bytes = data(2 << 20, 9);
    world.put("k", &bytes).await.unwrap();
    let lost = [world.holder("k", 0).await, world.holder("k", 1).await];
    lost.iter().for_each(|node| world.kill(*node));
    world.until("two nodes are down", async |world| world.up().await.len() == 6).await;
    for scheme in ["pipeline", "conventional", "ppr"] {
        let unreachable = world.explained_target("k", 0).await;
        world.cut_off(unreachable).await;
        let options = RepairOptions { scheme: scheme.into(), ..block(0, None) };
        let done = world.repair("k", &options).await.unwrap();
        assert!(done.blocks[0].node != unreachable && done.resumed <= 2, "{scheme}: {done:?}");
        world.reach_all();
        // The helpers are not excluded.
        assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    }
}

/// The new home's disk needs four seconds for a slice, longer than a stall, so the other nodes report that they wait for it. A node that is
/// asked to stop replies with what has arrived.
#[tokio::test(start_paused = true)]
async fn a_slow_new_home_that_answers_keeps_what_has_arrived() {
    let mut world = World::with(8, 4, |config| config.stall_ms = 5_000).await;
    let (bytes, block_len) = (data(32 << 20, 26), 8 << 20);
    let options = PutOptions { code: "rs(4,2)".into(), block_len, ..PutOptions::default() };
    world.client.put("b", "k", bytes.as_slice(), &options).await.unwrap();
    let slow = world.explained_target("k", 0).await;
    world.throttle(slow, Throttle { disk_bytes_per_s: Some(ByteSize(64 << 10)), ..Throttle::default() }).await;
    assert_eq!(world.explained_target("k", 0).await, slow);
    let slice_len = Some(AutoSize::bytes(256 << 10));
    let options = RepairOptions { scheme: "pipeline".into(), slice_len, plans: true, ..block(0, None) };
    let mut repair = world.client.repair("b", "k", &options).await.unwrap();
    let mut plans = Vec::new();
    let second = async {
        while plans.len() < 2 {
            if let Event::Plan(plan) = repair.next().await.unwrap().unwrap().event.unwrap() {
                plans.push(weft_plan::from_json(std::str::from_utf8(&plan.plan).unwrap()).unwrap());
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), second).await.expect("the slow node was not noticed");
    let wants = |plan: usize| plans[plan].job.wants.iter().map(|want| (want.party, want.span.len())).collect::<Vec<_>>();
    assert_eq!(wants(0), [(Party::Node(NodeId(slow)), block_len)]);
    let [(party, len)] = wants(1)[..] else { panic!("{:?}", wants(1)) };
    assert!(party == Party::Node(NodeId(slow)) && len < block_len, "the data that had arrived are lost: {party}, {len}");
}

#[tokio::test(start_paused = true)]
async fn a_stripe_that_lost_a_receiver_half_way_is_repaired() {
    // On a loaded machine more than one receiver may be late. The stripe is then sent again, which is correct, too.
    for _ in 0..4 {
        if lose_a_receiver_half_way().await {
            return;
        }
    }
    panic!("the stripe was sent again each time, and never repaired");
}

/// Puts an object while one receiver crashes. Returns true if its block was rebuilt, false if the stripe was sent again.
async fn lose_a_receiver_half_way() -> bool {
    let mut world = World::new(8, 4).await;
    let bytes = data(8 << 20, 8);
    let (client, _) = world.slow_client().await;
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 2 << 20, cell_len: 256 << 10, ..PutOptions::default() };
    let killing = async {
        // A node that has begun to receive.
        let receives = |world: &World, node: &u32| find_temporary(&world.node_dir(*node));
        for _ in 0..500 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            if let Some(node) = (1..=8).find(|node| receives(&world, node)) {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                world.kill(node);
                return node;
            }
        }
        panic!("no node receives anything");
    };
    let (put, killed) = tokio::join!(client.put("b", "k", bytes.as_slice(), &options), killing);
    put.unwrap();
    let put = world.stat("k").await;
    assert!(put.stripes[0].blocks.iter().all(|block| block.node != killed), "{:?}", put.stripes[0].blocks);
    assert!(put.stripes[0].blocks.iter().all(|block| block.checksums.len() == 2));
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    world.until("the node is down", async |world| !world.up().await.contains(&killed)).await;
    assert_eq!(world.not_ok("k").await, []);
    put.stripes[0].blocks.iter().any(|block| block.generation == 2)
}

/// Whether a block is being written somewhere below a directory.
fn find_temporary(dir: &std::path::Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        let is_temporary = || path.parent().and_then(|dir| dir.file_name()).is_some_and(|dir| dir == "tmp");
        if path.is_dir() { find_temporary(&path) } else { is_temporary() }
    })
}

#[tokio::test(start_paused = true)]
async fn calls_for_one_stripe_run_one_at_a_time() {
    let world = World::new(6, 6).await;
    let mut bare = world.bare_client().await;
    let (bucket, key, code) = ("b".to_owned(), "k".to_owned(), "rs(4,2)".to_owned());
    let begin = api::BeginPutRequest { bucket, key, code, block_len: 64 << 10, ..api::BeginPutRequest::default() };
    let api::BeginPutReply { upload, put_key, .. } = bare.begin_put(begin).await.unwrap().into_inner();
    let begin_stripe = async || {
        let put = api::PutStripeRequest { upload, number: 0, data_len: 1000, options: None, put_key: put_key.clone() };
        let task = bare.clone().put_stripe(put).await.unwrap().into_inner().task.unwrap();
        weft_proto::decode_task(&task.task).unwrap().plan.0
    };
    let end_stripe = async |plan| {
        let end = api::EndStripeRequest { upload, number: 0, plan, put_key: put_key.clone(), ..api::EndStripeRequest::default() };
        weft_proto::from_status(&bare.clone().end_stripe(end).await.unwrap_err()).message
    };
    // No data are sent, so the call that ends the stripe waits for the agents for the length of a stall. A call that begins the stripe
    // again waits for that one.
    let first = begin_stripe().await;
    let again = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        begin_stripe().await
    };
    let (ended, second) = tokio::join!(end_stripe(first), again);
    assert!(ended.contains("too few blocks"), "{ended}");
    // The last attempt is under way: the end of the previous attempt did not cancel it.
    assert_ne!(first, second);
    let ended = end_stripe(second).await;
    assert!(ended.contains("too few blocks"), "{ended}");
}
