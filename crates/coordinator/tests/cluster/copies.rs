//! Objects with copies of their data: written, read, spoiled, rebuilt, cooled down and heated up again.

use crate::{
    puts::{Put, Strike},
    world::{World, block, data},
};
use std::{collections::BTreeSet, time::Duration};
use weft_agent::Throttle;
use weft_client::{GetOptions, PutOptions, RepairOptions, api};
use weft_coordinator::CoordinatorConfig;
use weft_types::{BlockId, ByteSize, Cause, NodeId, Reaction, Result, StripeId};

const BLOCK_LEN: u64 = 512 << 10;

/// A cluster of nodes in three racks, with a bucket `hot` of rs(2,1) and this many copies of the data.
async fn world(nodes: u32, replicas: u32) -> World {
    let world = World::new(nodes, 3).await;
    let policy = api::Policy {
        name: "hot".into(),
        code: "rs(2,1)".into(),
        block_len: BLOCK_LEN,
        cell_len: 64 << 10,
        replicas,
        ..api::Policy::default()
    };
    world.client.create_policy(policy).await.unwrap();
    world.client.create_bucket("hot", "hot").await.unwrap();
    world
}

async fn put(world: &World, key: &str, bytes: &[u8], scheme: &str) -> Result<api::ObjectReply> {
    let options = PutOptions { scheme: scheme.into(), ..PutOptions::default() };
    world.client.put("hot", key, bytes, &options).await
}

/// Reads an object. Returns the blocks that were rebuilt for the read.
async fn get(world: &World, key: &str, bytes: &[u8]) -> Vec<BlockId> {
    let mut out = Vec::new();
    let got = world.client.get("hot", key, &mut out, &GetOptions::default()).await.unwrap();
    assert!(out == bytes, "{key} came back changed");
    got.rebuilt.into_iter().collect()
}

async fn stripes(world: &World, key: &str) -> Vec<api::Stripe> {
    world.client.stat("hot", key).await.unwrap().stripes
}

/// Every copy of a block of an object's first stripe, the first one first.
async fn copies_of(world: &World, key: &str, index: u32) -> Vec<api::PlacedBlock> {
    let stripe = stripes(world, key).await.remove(0);
    stripe.blocks.into_iter().chain(stripe.copies).filter(|block| block.index == index).collect()
}

fn states(stripes: &[api::Stripe]) -> BTreeSet<String> {
    let all = stripes.iter().flat_map(|stripe| stripe.blocks.iter().chain(&stripe.copies));
    all.map(|block| block.state.clone()).collect()
}

/// Runs an operator's repair command and returns its result.
async fn repair(world: &World, key: &str, options: &RepairOptions) -> Result<api::RepairDone> {
    let mut repair = world.client.repair("hot", key, options).await?;
    while let Some(event) = repair.next().await? {
        if let Some(api::repair_event::Event::Done(done)) = event.event {
            return Ok(done);
        }
    }
    panic!("the repair did not end")
}

/// All copies are as `stat` says, on different nodes, with the bytes that they should have.
async fn is_whole(world: &World, key: &str, copies: usize) {
    for stripe in stripes(world, key).await {
        let all: Vec<&api::PlacedBlock> = stripe.blocks.iter().chain(&stripe.copies).collect();
        assert_eq!(stripe.copies.len(), 2 * copies, "{stripe:?}");
        let nodes: BTreeSet<u32> = all.iter().map(|block| block.node).collect();
        assert_eq!(nodes.len(), all.len(), "two blocks on one node: {stripe:?}");
        let payload = |it: &api::PlacedBlock| {
            let (stripe, index, copy) = (StripeId(stripe.id), it.index as u8, it.copy as u8);
            let name = BlockId { stripe, index, copy, generation: it.generation }.to_string();
            let file = world.block_files(it.node).into_iter().find(|file| file.ends_with(&name));
            std::fs::read(file.unwrap_or_else(|| panic!("{name} is not on n{}", it.node))).unwrap()
        };
        for block in all {
            assert_eq!((block.state.as_str(), payload(block).len() as u64), ("ok", block.len), "{block:?}");
            assert!(payload(block) == payload(&stripe.blocks[block.index as usize]), "{block:?} differs from the first copy");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn data_with_copies_are_written_and_read_plainly_though_nodes_are_down() {
    let mut world = world(6, 2).await;
    let bytes = data(3 * BLOCK_LEN as usize + 777, 50);
    for scheme in ["direct", "mist", "auto"] {
        put(&world, scheme, &bytes, scheme).await.unwrap();
        is_whole(&world, scheme, 1).await;
        assert_eq!(get(&world, scheme, &bytes).await, []);
    }
    for block in copies_of(&world, "mist", 0).await {
        world.kill(block.node);
        world.until("the node is down", async |world| !world.up().await.contains(&block.node)).await;
        let rebuilt = get(&world, "mist", &bytes).await;
        let of_first = rebuilt.iter().filter(|it| it.index == 0).count();
        assert_eq!(of_first > 0, block.copy == 1, "blocks are rebuilt only if both copies are lost: {rebuilt:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn readers_are_spread_over_the_copies() {
    let world = world(5, 2).await;
    let bytes = data(2 * BLOCK_LEN as usize, 51);
    put(&world, "k", &bytes, "direct").await.unwrap();
    let mut copies: BTreeSet<(u8, u8)> = BTreeSet::new();
    for _ in 0..12 {
        let request = api::ReadStripeRequest {
            bucket: "hot".into(),
            key: "k".into(),
            ranges: (0..2).map(|index| api::BlockRange { index, start: 0, end: BLOCK_LEN }).collect(),
            explain: true,
            ..api::ReadStripeRequest::default()
        };
        let reply = world.bare_client().await.read_stripe(request).await.unwrap().into_inner();
        for checksums in reply.checksums {
            let block: BlockId = postcard::from_bytes(&checksums.id).unwrap();
            copies.insert((block.index, block.copy));
        }
    }
    assert_eq!(copies.into_iter().collect::<Vec<_>>(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

#[tokio::test(start_paused = true)]
async fn copies_are_lost_and_rebuilt_by_reading_one_block() {
    let mut world = world(7, 2).await;
    let bytes = data(2 * BLOCK_LEN as usize, 52);
    put(&world, "k", &bytes, "mist").await.unwrap();
    let [first, second] = copies_of(&world, "k", 1).await.try_into().unwrap();
    world.kill(second.node);
    world.until("the node is down", async |world| !world.up().await.contains(&second.node)).await;
    assert_eq!(copies_of(&world, "k", 1).await[1].state, "down");
    let done = repair(&world, "k", &RepairOptions::default()).await.unwrap();
    let rebuilt: Vec<(u32, u32)> = done.blocks.iter().map(|block| (block.index, block.copy)).collect();
    assert_eq!((rebuilt, done.left.len()), (vec![(1, 1)], 0));
    let traffic = done.traffic.unwrap();
    assert_eq!((traffic.read_bytes, traffic.written_bytes), (BLOCK_LEN, BLOCK_LEN), "one read, and one write");

    // A job rebuilds the whole node of the first copy.
    world.kill(first.node);
    world.until("the node is down", async |world| !world.up().await.contains(&first.node)).await;
    let jobs = weft_client::RepairNodeOptions::default();
    let job = world.client.repair_node(NodeId(first.node), &jobs).await.unwrap().id;
    world.until("the job is done", async |world| world.client.job(job).await.unwrap().state == "done").await;
    assert_eq!(states(&stripes(&world, "k").await), ["ok".to_owned()].into());
    is_whole(&world, "k", 1).await;
    assert_eq!(get(&world, "k", &bytes).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_copy_is_found_read_around_and_rebuilt() {
    let world = world(6, 2).await;
    let bytes = data(2 * BLOCK_LEN as usize, 53);
    put(&world, "k", &bytes, "direct").await.unwrap();
    let second = copies_of(&world, "k", 0).await.remove(1);
    let file = world.block_files(second.node).pop().unwrap();
    let mut payload = std::fs::read(&file).unwrap();
    payload[5000] ^= 1;
    std::fs::write(&file, payload).unwrap();
    let found = async |world: &World| copies_of(world, "k", 0).await[1].state == "corrupt";
    world
        .until("a read picks the corrupt copy", async |world| {
            assert_eq!(get(world, "k", &bytes).await, [], "nothing needs to be rebuilt for a reader");
            found(world).await
        })
        .await;
    assert_eq!(copies_of(&world, "k", 0).await[0].state, "ok");
    let done = repair(&world, "k", &RepairOptions::default()).await.unwrap();
    assert_eq!((done.blocks.len(), done.blocks[0].copy, done.traffic.unwrap().read_bytes), (1, 1, BLOCK_LEN));
    is_whole(&world, "k", 1).await;
    // If a repair names a block that is not lost, its first copy is rebuilt from the other.
    let done = repair(&world, "k", &block(0, None)).await.unwrap();
    assert_eq!((done.blocks[0].copy, done.traffic.unwrap().read_bytes), (0, BLOCK_LEN));
    is_whole(&world, "k", 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_is_cooled_and_heated_again() {
    let mut world = world(9, 2).await;
    let bytes = data(5 * BLOCK_LEN as usize, 54);
    put(&world, "k", &bytes, "mist").await.unwrap();
    let cooled = world.client.cool("hot", "k").await.unwrap();
    assert_eq!(cooled.blocks, 3 * 2, "a second copy of two data blocks of each of three stripes");
    assert_eq!(cooled.warnings, Vec::<String>::new(), "no rack has two blocks of a stripe");
    assert_eq!(world.client.cool("hot", "k").await.unwrap(), api::CoolReply::default());
    world.until("the files are gone", async |world| world.block_count(1..=9) == 3 * 3).await;
    is_whole(&world, "k", 0).await;
    assert_eq!(get(&world, "k", &bytes).await, []);

    let heat = |replicas| RepairOptions { heat: Some(replicas), ..RepairOptions::default() };
    let explained = repair(&world, "k", &RepairOptions { explain: true, ..heat(0) }).await.unwrap();
    assert!(explained.blocks.is_empty() && stripes(&world, "k").await[0].copies.is_empty());
    let done = repair(&world, "k", &heat(0)).await.unwrap();
    assert_eq!((done.blocks.len(), done.left.len()), (3 * 2, 0), "as many as the policy says");
    let traffic = done.traffic.unwrap();
    assert_eq!(traffic.read_bytes, traffic.written_bytes, "every copy is read once and written once");
    is_whole(&world, "k", 1).await;
    assert!(repair(&world, "k", &heat(2)).await.unwrap().blocks.is_empty(), "all copies exist");
    let done = repair(&world, "k", &heat(3)).await.unwrap();
    assert_eq!(done.blocks.len(), 3 * 2);
    is_whole(&world, "k", 2).await;
    // A restart of the coordinator changes nothing.
    world.restart_coordinator().await;
    world.until("all nodes are up again", async |world| world.up().await.len() == 9).await;
    is_whole(&world, "k", 2).await;
    assert_eq!(get(&world, "k", &bytes).await, []);
    // Too few nodes for all copies: none is made.
    let refused = repair(&world, "k", &heat(6)).await.unwrap_err();
    let says = "6 copies of 2 data blocks and 1 parity block need 13 nodes, and 9 of 9 nodes are up";
    assert!(refused.cause == Some(Cause::TooFewNodes) && refused.message.contains(says), "{refused}");
    is_whole(&world, "k", 2).await;
    world.client.remove("hot", "k").await.unwrap();
    world.until("nothing is left", async |world| world.block_count(1..=9) == 0).await;
}

/// Kills a node and waits until the coordinator notices.
async fn take_down(world: &mut World, node: u32) {
    world.kill(node);
    world.until("the node is down", async |world| !world.up().await.contains(&node)).await;
}

/// Without a node to spare.
#[tokio::test(start_paused = true)]
async fn copies_stay_while_parity_is_down_and_are_dropped_if_only_their_own_node_is() {
    let mut world = world(5, 2).await;
    let bytes = data(2 * BLOCK_LEN as usize, 56);
    for key in ["k", "l"] {
        put(&world, key, &bytes, "direct").await.unwrap();
    }
    let parity = copies_of(&world, "k", 2).await.remove(0).node;
    take_down(&mut world, parity).await;
    let refused = world.client.cool("hot", "k").await.unwrap_err();
    let says = format!("block 2 of stripe 0 is not complete (on node-{parity:02}: its node is down)");
    assert!(refused.reaction == Reaction::Unavailable && refused.message.contains(&says), "{refused}");
    assert!(refused.message.contains("weft repair object hot/k"), "{refused}");
    assert_eq!(stripes(&world, "k").await[0].copies.len(), 2, "its blocks can be rebuilt from these copies");
    world.start_agent(parity).await;
    world.until("the node is up again", async |world| world.up().await.contains(&parity)).await;

    // If the node of one copy is down, the other copy is kept.
    for (key, copy) in [("k", 0), ("l", 1)] {
        let away = copies_of(&world, key, 0).await.remove(copy).node;
        take_down(&mut world, away).await;
        let left = repair(&world, key, &RepairOptions::default()).await.unwrap_err();
        assert!(
            left.message.contains("2 copies of 2 data blocks and 1 parity block need 5 nodes, and 4 of 5 nodes are up"),
            "{left}"
        );
        assert_eq!(world.client.cool("hot", key).await.unwrap().blocks, 2);
        assert_eq!(copies_of(&world, key, 0).await[0].copy as usize, 1 - copy);
        assert_eq!(get(&world, key, &bytes).await, [], "the node held no needed block");
        world.start_agent(away).await;
        world.until("the node is up again", async |world| world.up().await.contains(&away)).await;
        is_whole(&world, key, 0).await;
    }
    world.until("the blocks of the node that was down are removed, too", async |world| world.block_count(1..=5) == 2 * 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_partial_cooling_reports_what_was_dropped() {
    let mut world = world(7, 2).await;
    let bytes = data(4 * BLOCK_LEN as usize, 57);
    let mut found = None;
    for key in ["a", "b", "c", "d", "e"] {
        put(&world, key, &bytes, "direct").await.unwrap();
        let stripes = stripes(&world, key).await;
        let [first, second] = [0, 1].map(|at: usize| stripes[at].blocks[2].node);
        if first != second {
            found = Some((key, second));
            break;
        }
    }
    let (key, parity) = found.expect("the parity of two stripes on different nodes");
    take_down(&mut world, parity).await;
    let refused = world.client.cool("hot", key).await.unwrap_err().to_string();
    let says = ["block 2 of stripe 1 is not complete", "; 2 blocks of 1 stripes were dropped before"];
    assert!(says.iter().all(|says| refused.contains(says)), "{refused}");
    let copies = async |world: &World| stripes(world, key).await.iter().map(|stripe| stripe.copies.len()).collect::<Vec<_>>();
    assert_eq!(copies(&world).await, [0, 2]);
    let refused = world.client.cool("hot", key).await.unwrap_err().to_string();
    assert!(!refused.contains("were dropped before"), "{refused}");
    repair(&world, key, &RepairOptions::default()).await.unwrap();
    assert_eq!(world.client.cool("hot", key).await.unwrap().blocks, 2);
}

#[tokio::test(start_paused = true)]
async fn cooling_that_leaves_too_many_blocks_in_a_rack_warns() {
    let mut world = world(5, 2).await;
    let policy = |domain: &str| api::Policy {
        name: domain.into(),
        code: "rs(2,1)".into(),
        block_len: BLOCK_LEN,
        replicas: 2,
        failure_domain: domain.into(),
        ..api::Policy::default()
    };
    let bytes = data(2 * BLOCK_LEN as usize, 58);
    let mut found = Vec::new();
    for domain in ["rack", "node"] {
        world.client.create_policy(policy(domain)).await.unwrap();
        world.client.create_bucket(domain, domain).await.unwrap();
        for key in ["a", "b", "c", "d", "e", "f"] {
            world.client.put(domain, key, bytes.as_slice(), &PutOptions::default()).await.unwrap();
            // The only node of its rack; without it, three blocks are left in two racks.
            if world.client.stat(domain, key).await.unwrap().stripes[0].blocks[2].node != 3 {
                found.push((domain, key));
                break;
            }
        }
    }
    take_down(&mut world, 3).await;
    for (domain, key) in found {
        let cooled = world.client.cool(domain, key).await.unwrap();
        assert_eq!((cooled.blocks, cooled.warnings.len()), (2, usize::from(domain == "rack")), "{cooled:?}");
        let says = "keeps 2 blocks of a stripe, but rs(2,1) tolerates the loss of 1";
        assert!(cooled.warnings.iter().all(|it| it.contains(says) && it.contains("weft repair object rack/")), "{cooled:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn copies_stay_until_late_parity_has_arrived() {
    let patient = |config: &mut CoordinatorConfig| {
        (config.stall_ms, config.suspect_ms, config.down_after_ms) = (20_000, 60_000, 60_000);
    };
    let mut world = World::with(5, 5, patient).await;
    let mut put = Put::new(&world, "rs(2,1)", 1).await;
    put.options = PutOptions { scheme: "direct".into(), ack: "k+0".into(), replicas: 2, ..put.options };
    let (stored, hit) = put.run(&mut world, &[2], Strike::Stop).await;
    assert_eq!(stored.unwrap().incomplete_count, 1);
    let refused = world.client.cool("b", "k").await.unwrap_err();
    let says = format!("block 2 of stripe 0 is not complete (on node-{:02}: still coming)", hit[0]);
    assert!(refused.reaction == Reaction::Unavailable && refused.message.contains(&says), "{refused}");
    assert_eq!(world.stat("k").await.stripes[0].copies.len(), 2);
    world.go_on(hit[0]);
    world.until("the object is complete", async |world| world.stat("k").await.incomplete.is_empty()).await;
    assert_eq!(world.client.cool("b", "k").await.unwrap().blocks, 2);
    put.is_right(&world, &[]).await;
}

/// Even if no block that stays is missing: if a copy were dropped while it is being sent, its sender would leave it behind.
#[tokio::test(start_paused = true)]
async fn a_copy_that_is_still_being_sent_is_not_dropped() {
    let mut world = World::new(5, 5).await;
    world.throttle(3, Throttle { disk_bytes_per_s: Some(ByteSize(192 << 10)), ..Throttle::default() }).await;
    let options = PutOptions {
        code: "rs(2,1)".into(),
        block_len: BLOCK_LEN,
        ack: "k+0".into(),
        replicas: 2,
        scheme: "direct".into(),
        ..PutOptions::default()
    };
    let bytes = data(2 * BLOCK_LEN as usize, 59);
    for key in ["a", "b", "c", "d", "e", "f"] {
        world.client.put("b", key, bytes.as_slice(), &options).await.unwrap();
        // At first all copies of a block, or parity, may still be in transit.
        while let Err(refused) = world.client.cool("b", key).await {
            if refused.message.contains("still sending copies of stripe 0") {
                assert_eq!(world.stat(key).await.stripes[0].copies.len(), 2);
                world.until("the object is complete", async |world| world.stat(key).await.incomplete.is_empty()).await;
                assert_eq!(world.client.cool("b", key).await.unwrap().blocks, 2);
                return;
            }
            assert!(refused.message.contains("still coming"), "{refused}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    panic!("the slow node gets nothing but parity");
}

#[tokio::test(start_paused = true)]
async fn a_put_may_have_other_copies_than_its_bucket() {
    let world = world(9, 2).await;
    let bytes = data(BLOCK_LEN as usize, 55);
    for (replicas, copies) in [(1, 0), (3, 2), (0, 1)] {
        let options = PutOptions { replicas, ..PutOptions::default() };
        world.client.put("hot", "k", bytes.as_slice(), &options).await.unwrap();
        is_whole(&world, "k", copies).await;
    }
    let options = PutOptions { replicas: 99, ..PutOptions::default() };
    let refused = world.client.put("hot", "k", bytes.as_slice(), &options).await.unwrap_err();
    assert_eq!(refused.reaction, Reaction::InvalidInput, "{refused}");
}

#[tokio::test(start_paused = true)]
async fn too_few_nodes_for_all_copies_are_counted() {
    let world = World::new(4, 2).await;
    let policy =
        |replicas| api::Policy { name: format!("x{replicas}"), code: "rs(2,1)".into(), replicas, ..api::Policy::default() };
    let made = world.client.create_policy(policy(2)).await.unwrap();
    assert_eq!(made.replicas, 2);
    let says = "rs(2,1) with 2 copies of its data puts the blocks of a stripe on 5 different nodes";
    assert!(made.warnings[0].contains(says) && made.warnings[0].contains("has 4"), "{made:?}");
    assert_eq!(world.client.create_policy(policy(0)).await.unwrap().warnings, Vec::<String>::new());
    assert_eq!(world.client.create_policy(policy(17)).await.unwrap_err().reaction, Reaction::InvalidInput);
    world.client.create_bucket("hot", "x2").await.unwrap();
    let refused = put(&world, "k", &data(1000, 55), "direct").await.unwrap_err();
    assert!(refused.message.contains(says) && refused.message.contains("4 of 4 nodes are up"), "{refused}");
    // Heating objects of a policy with one copy needs a number.
    world.client.create_bucket("cold", "x0").await.unwrap();
    world.client.put("cold", "k", data(1000, 55).as_slice(), &PutOptions::default()).await.unwrap();
    let mut heat = world.client.repair("cold", "k", &RepairOptions { heat: Some(0), ..RepairOptions::default() }).await.unwrap();
    let refused = heat.next().await.unwrap_err();
    assert!(refused.message.contains("x0 keeps only one copy"), "{refused}");
}
