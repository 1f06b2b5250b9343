//! Puts over several levels in which receivers crash, hang or store wrong bytes.

use crate::{
    fake_agent::FakeAgent,
    world::{World, data},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;
use weft_agent::Throttle;
use weft_client::{Client, GetOptions, PutOptions, api};
use weft_types::{BlockId, ByteSize, Reaction, Result, crc32c};

pub(crate) const BLOCK_LEN: usize = 2 << 20;

/// A put by a slow client.
pub(crate) struct Put {
    pub(crate) client: Client,
    pub(crate) bucket: &'static str,
    pub(crate) sent_bytes: Arc<AtomicU64>,
    /// The copy whose receivers fail.
    pub(crate) copy: u8,
    pub(crate) options: PutOptions,
    pub(crate) k: usize,
    pub(crate) stripes: usize,
    pub(crate) bytes: Vec<u8>,
}

/// What happens to a node that receives a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Strike {
    Kill,
    Stop,
}

impl Put {
    /// Over several levels.
    pub(crate) async fn new(world: &World, code: &str, stripes: usize) -> Self {
        let (client, sent_bytes) = world.slow_client().await;
        let k = weft_codes::parse(code).unwrap().k();
        let options = PutOptions {
            code: code.into(),
            block_len: BLOCK_LEN as u64,
            cell_len: 64 << 10,
            scheme: "mist".into(),
            slice_len: 64 << 10,
            ..PutOptions::default()
        };
        let bytes = data(stripes * k * BLOCK_LEN - 5000, 30);
        Self { client, bucket: "b", sent_bytes, copy: 0, options, k, stripes, bytes }
    }

    /// Puts data of unknown size. In the middle of the last stripe, the receivers of `blocks` fail. Returns their nodes.
    pub(crate) async fn run(&self, world: &mut World, blocks: &[u8], strike: Strike) -> (Result<api::ObjectReply>, Vec<u32>) {
        let putting = self.client.put(self.bucket, "k", self.bytes.as_slice(), &self.options);
        let striking = async {
            let receivers = self.receivers(world, blocks).await;
            for node in &receivers {
                match strike {
                    Strike::Kill => world.kill(*node),
                    Strike::Stop => world.stop(*node),
                }
            }
            receivers
        };
        let both = async { tokio::join!(putting, striking) };
        tokio::time::timeout(Duration::from_secs(60), both).await.expect("the put did not end")
    }

    /// The nodes that are receiving these blocks of the last stripe.
    pub(crate) async fn receivers(&self, world: &World, blocks: &[u8]) -> Vec<u32> {
        let mut stripes = BTreeSet::new();
        for _ in 0..4000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let written = world.being_written();
            stripes.extend(written.keys().map(|block| block.stripe));
            let is_last = stripes.len() == self.stripes;
            let is_of_last = |block: &BlockId| block.copy == self.copy && stripes.last() == Some(&block.stripe);
            let of = |index: &u8| written.iter().find(|(block, _)| block.index == *index && is_of_last(block));
            let found: Vec<u32> = blocks.iter().filter_map(of).map(|(_, node)| *node).collect();
            if is_last && found.len() == blocks.len() {
                // By then all nodes have reported progress.
                tokio::time::sleep(Duration::from_millis(400)).await;
                return found;
            }
        }
        panic!("no node receives anything");
    }

    /// Checks that the object can be read, that all its blocks are intact and on different nodes, and that no other files are left.
    pub(crate) async fn is_right(&self, world: &World, without: &[u32]) {
        let mut bytes = Vec::new();
        world.client.get(self.bucket, "k", &mut bytes, &GetOptions::default()).await.unwrap();
        assert!(bytes == self.bytes, "the object was read back changed");
        let stat = world.client.stat(self.bucket, "k").await.unwrap();
        assert_eq!(stat.stripes.len(), self.stripes);
        for (number, stripe) in stat.stripes.iter().enumerate() {
            let all: Vec<&api::PlacedBlock> = stripe.blocks.iter().chain(&stripe.copies).collect();
            let nodes: BTreeSet<u32> = all.iter().map(|block| block.node).collect();
            assert_eq!(nodes.len(), all.len(), "two blocks on one node");
            let is_last = number + 1 == self.stripes;
            assert!(!is_last || without.iter().all(|node| !nodes.contains(node)), "{without:?} hold blocks of {nodes:?}");
            for block in all.into_iter().filter(|block| !without.contains(&block.node)) {
                assert_eq!(block.state, "ok", "{block:?}");
                let file = world.block_file(block.node, stripe.id, (block.index as u8, block.copy as u8), block.generation);
                let payload = std::fs::read(file).unwrap();
                let checksums: Vec<u32> = payload.chunks(1 << 20).map(crc32c).collect();
                assert_eq!((payload.len() as u64, &checksums), (block.len, &block.checksums), "{block:?}");
            }
        }
        assert_eq!(world.allocations(), 0);
    }

    /// The data that the client sent in addition to the object's size, in blocks.
    fn sent_again(&self) -> f64 {
        let sent = self.sent_bytes.load(Ordering::Relaxed) as f64;
        (sent - self.bytes.len() as f64) / BLOCK_LEN as f64
    }
}

/// Puts an object while the receivers of some blocks crash.
async fn put_through(world: &mut World, code: &str, stripes: usize, blocks: &[u8]) {
    let put = Put::new(world, code, stripes).await;
    let (stored, hit) = put.run(world, blocks, Strike::Kill).await;
    stored.unwrap_or_else(|error| panic!("{code} without {blocks:?}: {error}"));
    put.is_right(world, &hit).await;
    let lost = blocks.iter().filter(|index| usize::from(**index) < put.k).count();
    // The lost blocks had been sent in part. The parts that other blocks need were rebuilt from blocks on live nodes.
    assert!(put.sent_again() < lost as f64 + 0.1, "{code} without {blocks:?}: {} blocks were sent again", put.sent_again());
    let stat = world.stat("k").await;
    for block in &stat.stripes[stripes - 1].blocks[..put.k] {
        let is_lost = blocks.contains(&(block.index as u8));
        assert_eq!(block.generation, 1 + u32::from(is_lost), "{code} without {blocks:?}: {block:?}");
    }
    for node in hit {
        world.start_agent(node).await;
        world.until("the node is up again", async |world| world.up().await.contains(&node)).await;
    }
    let count = stat.stripes.iter().map(|stripe| stripe.blocks.len()).sum::<usize>();
    world.until("unneeded blocks are removed", async |world| world.block_count(1..=99) == count).await;
}

/// All other nodes can store their blocks, including blocks computed from the lost one.
#[tokio::test(start_paused = true)]
async fn without_a_node_to_spare_a_put_that_may_lack_a_block_is_acknowledged() {
    let mut world = World::new(6, 6).await;
    let policy =
        api::Policy { name: "tolerant".into(), code: "rs(4,2)".into(), ack: "tolerate=1".into(), ..api::Policy::default() };
    world.client.create_policy(policy).await.unwrap();
    world.client.create_bucket("t", "tolerant").await.unwrap();
    let put = Put { bucket: "t", ..Put::new(&world, "rs(4,2)", 1).await };
    let (stored, _) = put.run(&mut world, &[0], Strike::Kill).await;
    stored.unwrap();
    let states: Vec<String> =
        world.client.stat("t", "k").await.unwrap().stripes[0].blocks.iter().map(|block| block.state.clone()).collect();
    assert!(states[0] != "ok" && states[1..].iter().all(|state| state == "ok"), "{states:?}");
    let mut got = Vec::new();
    world.client.get("t", "k", &mut got, &weft_client::GetOptions::default()).await.unwrap();
    assert!(got == put.bytes, "the object was read back changed");
}

/// If the receiver of a data block crashes, all parities computed from that block are lost too.
#[tokio::test(start_paused = true)]
async fn blocks_of_crashed_receivers_are_sent_again_and_the_rest_is_computed() {
    let mut world = World::new(11, 11).await;
    let cases: [(&str, &[u8]); 9] = [
        ("rs(4,4)", &[1]),
        ("rs(4,4)", &[5]),
        ("rs(4,4)", &[0, 2]),
        ("rs(4,4)", &[3, 6]),
        ("rs(4,2)", &[3]),
        ("rs(4,2)", &[0, 1]),
        ("rs(4,2)", &[4]),
        ("lrc(4,2,2)", &[1]),
        ("lrc(4,2,2)", &[4]),
    ];
    for (code, blocks) in cases {
        put_through(&mut world, code, 1, blocks).await;
    }
}

/// A block that may be missing is rebuilt later. Only blocks that cannot be rebuilt are sent again.
#[tokio::test(start_paused = true)]
async fn a_put_does_not_wait_for_blocks_that_its_policy_lets_be_missing() {
    let mut world = World::new(7, 7).await;
    let (name, code, failure_domain, ack) = ("quick".into(), "rs(4,2)".into(), "node".into(), "tolerate=2".into());
    let (block_len, cell_len) = (BLOCK_LEN as u64, 64 << 10);
    let policy = api::Policy { name, code, block_len, cell_len, failure_domain, ack, ..api::Policy::default() };
    world.client.create_policy(policy).await.unwrap();
    world.client.create_bucket("quick", "quick").await.unwrap();
    let put = Put { bucket: "quick", ..Put::new(&world, "rs(4,2)", 1).await };
    let (stored, hit) = put.run(&mut world, &[0], Strike::Kill).await;
    stored.unwrap();
    assert!(put.sent_again() < 1.1, "{} blocks were sent again", put.sent_again());
    // Repair is automatic.
    world
        .until("the missing block is rebuilt", async |world| {
            let stat = world.client.stat("quick", "k").await.unwrap();
            stat.incomplete.is_empty() && stat.stripes[0].blocks.iter().all(|block| block.state == "ok")
        })
        .await;
    let stat = world.client.stat("quick", "k").await.unwrap();
    assert!(stat.stripes[0].blocks.iter().all(|block| block.node != hit[0]), "{stat:?}");
    let mut bytes = Vec::new();
    world.client.get("quick", "k", &mut bytes, &GetOptions::default()).await.unwrap();
    assert!(bytes == put.bytes && world.allocations() == 0);
}

/// If one copy of a block is lost, another exists, and nothing is sent again. If all copies are lost, the block is sent once.
#[tokio::test(start_paused = true)]
async fn copies_of_crashed_receivers_are_made_from_other_copies() {
    let mut world = World::new(13, 13).await;
    let policy = api::Policy { name: "hot".into(), code: "rs(4,2)".into(), replicas: 2, ..api::Policy::default() };
    world.client.create_policy(policy).await.unwrap();
    world.client.create_bucket("hot", "hot").await.unwrap();
    for (scheme, copy, blocks) in
        [("direct", 0, &[1][..]), ("direct", 1, &[0, 3]), ("mist", 0, &[2]), ("mist", 1, &[2]), ("mist", 0, &[4])]
    {
        let mut put = Put { bucket: "hot", copy, ..Put::new(&world, "rs(4,2)", 1).await };
        put.options.scheme = scheme.into();
        let (stored, hit) = put.run(&mut world, blocks, Strike::Kill).await;
        stored.unwrap_or_else(|error| panic!("{scheme} without copy {copy} of {blocks:?}: {error}"));
        put.is_right(&world, &hit).await;
        let stat = world.client.stat("hot", "k").await.unwrap();
        assert_eq!(stat.stripes[0].copies.len(), 4, "{scheme} without copy {copy} of {blocks:?}");
        for node in hit {
            world.start_agent(node).await;
            world.until("the node is up again", async |world| world.up().await.contains(&node)).await;
        }
        world.until("unneeded blocks are removed", async |world| world.block_count(1..=13) == 6 + 4).await;
    }
}

/// If blocks may follow the acknowledgement, copies may, too: each block has one copy, and the others are made from it.
#[tokio::test(start_paused = true)]
async fn copies_may_follow_the_acknowledgement_if_blocks_may() {
    for (scheme, copy, strike) in [("direct", 1, Strike::Kill), ("direct", 0, Strike::Stop), ("mist", 1, Strike::Stop)] {
        let mut world = World::new(11, 11).await;
        let (name, code, ack) = ("hot".into(), "rs(4,2)".into(), "tolerate=1".into());
        world.client.create_policy(api::Policy { name, code, ack, replicas: 2, ..api::Policy::default() }).await.unwrap();
        world.client.create_bucket("hot", "hot").await.unwrap();
        let mut put = Put { bucket: "hot", copy, ..Put::new(&world, "rs(4,2)", 1).await };
        put.options.scheme = scheme.into();
        let (stored, hit) = put.run(&mut world, &[2], strike).await;
        stored.unwrap_or_else(|error| panic!("{scheme} without copy {copy}: {error}"));
        world
            .until("all copies exist", async |world| {
                let stripe = world.client.stat("hot", "k").await.unwrap().stripes.remove(0);
                stripe.blocks.iter().chain(&stripe.copies).all(|block| block.state == "ok" && !hit.contains(&block.node))
            })
            .await;
        put.is_right(&world, &hit).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_stripe_of_a_pipe_loses_a_receiver_with_one_node_to_spare() {
    // The nodes that waited for the crashed one must stay in the plan: there are no other nodes.
    let mut world = World::new(9, 9).await;
    put_through(&mut world, "rs(4,4)", 3, &[2]).await;
}

/// All nodes wait for one that hangs, and the writer waits for all nodes. Only one node is spare, so nodes that only waited must get a
/// block when the stripe is sent again.
#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_is_found_long_before_the_links_time_out() {
    for (code, n, blocks) in [("rs(4,4)", 8, [1]), ("rs(4,4)", 8, [6]), ("rs(4,2)", 6, [2]), ("lrc(4,2,2)", 8, [4])] {
        let mut world = World::with(n + 1, n + 1, |config| {
            (config.stall_ms, config.suspect_ms, config.down_after_ms) = (40_000, 60_000, 60_000);
        })
        .await;
        let (put, begin) = (Put::new(&world, code, 1).await, Instant::now());
        let (stored, hit) = put.run(&mut world, &blocks, Strike::Stop).await;
        stored.unwrap_or_else(|error| panic!("{code} without {blocks:?}: {error}"));
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(16), "{code} without {blocks:?}: {took:?}");
        put.is_right(&world, &hit).await;
    }
}

/// The only spare node does not answer. Another node registers while the coordinator waits for the answer.
#[tokio::test(start_paused = true)]
async fn a_block_that_is_sent_again_goes_elsewhere_if_its_new_node_does_not_answer() {
    let mut world = World::new(6, 6).await;
    let mut put = Put::new(&world, "rs(4,2)", 1).await;
    put.options.block_len = 4 * BLOCK_LEN as u64;
    put.bytes = data(4 * 4 * BLOCK_LEN - 5000, 32);
    let putting = put.client.put("b", "k", put.bytes.as_slice(), &put.options);
    let striking = async {
        let hit = put.receivers(&world, &[1]).await[0];
        let fake = FakeAgent::start(&world, "fake").await;
        fake.asked().hangs = true;
        world.until("the node is up", async |world| world.up().await.contains(&7)).await;
        world.kill(hit);
        world.until("the node is asked", async |_| fake.asked().opens > 0).await;
        world.start_agent(8).await;
        hit
    };
    let (stored, hit) = tokio::join!(putting, striking);
    stored.unwrap();
    put.is_right(&world, &[hit, 7]).await;
    assert!(put.sent_again() < 4.4, "{} of four parts of a block were sent again", put.sent_again());
}

/// One block was stored wrongly and is rebuilt. One more helper than needed is available.
#[tokio::test(start_paused = true)]
async fn a_wrong_block_is_rebuilt_although_a_helper_dies() {
    let mut world = World::new(8, 8).await;
    world.slow_down_agents().await;
    let mut put = Put::new(&world, "rs(4,2)", 1).await;
    put.options.scheme = "direct".into();
    world.lies.lock().unwrap().insert(5);
    let putting = put.client.put("b", "k", put.bytes.as_slice(), &put.options);
    let striking = async {
        let mut holders = BTreeMap::new();
        for _ in 0..4000 {
            let written = world.being_written();
            if written.keys().any(|block| (block.index, block.generation) == (5, 2)) {
                break;
            }
            holders.extend(written.into_iter().map(|(block, node)| (block.index, node)));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // By then some data have moved.
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.kill(holders[&0]);
    };
    tokio::join!(putting, striking).0.unwrap();
    assert!(world.get("k", "").await.unwrap().0 == put.bytes, "the object was read back changed");
    let stat = world.stat("k").await;
    let rebuilt = &stat.stripes[0].blocks[5];
    assert!(rebuilt.state == "ok" && rebuilt.generation > 1 && stat.stripes[0].blocks[1].generation == 1, "{stat:?}");
    // All six blocks come from the writer, once.
    assert!(put.sent_again() < 2.1, "{} blocks were sent again", put.sent_again() - 2.0);
}

/// By the prediction, some nodes compute blocks from many others, for which one of them lacks memory. That node stores nothing either:
/// the policy lets one block be missing.
#[tokio::test(start_paused = true)]
async fn a_put_remembers_that_a_node_lacks_memory_for_the_scheme_that_was_predicted() {
    let mut world = World::new(0, 6).await;
    for node in 1..=5 {
        world.start_agent(node).await;
        world.until("the node is up", async |world| world.up().await.contains(&node)).await;
    }
    let fake = FakeAgent::start(&world, "fake").await;
    world.until("the node is up", async |world| world.up().await.contains(&6)).await;
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 256 << 10, scheme: "auto".into(), ..PutOptions::default() };
    let outside = world.outside_client().await;
    let begun = outside.explain_put("b", "k", 1 << 20, &options).await.unwrap();
    let saved = weft_plan::from_json(std::str::from_utf8(&begun.plan).unwrap()).unwrap();
    assert_ne!(saved.considered[0].scheme, "direct", "the test needs a scheme other than direct");
    fake.asked().refuses_linked = true;
    let bytes = data(3 << 20, 33);
    let options = PutOptions { ack: "tolerate=1".into(), ..options };
    let stored = outside.put("b", "k", bytes.as_slice(), &options).await.unwrap();
    assert_eq!((stored.stripe_count, fake.asked().refused), (3, 1));
    assert!(world.get("k", "").await.unwrap().0 == bytes, "the object was read back changed");
}

#[tokio::test(start_paused = true)]
async fn with_too_few_nodes_left_a_put_fails_and_leaves_nothing_behind() {
    let mut world = World::new(8, 8).await;
    let put = Put::new(&world, "rs(4,4)", 1).await;
    let (stored, hit) = put.run(&mut world, &[1], Strike::Kill).await;
    let error = stored.unwrap_err();
    assert_eq!((error.reaction, error.object.as_deref()), (Reaction::Unavailable, Some("b/k")), "{error}");
    assert!(error.message.contains("rs(4,4)") && error.message.contains("7 of"), "{error}");
    assert_eq!(world.client.stat("b", "k").await.unwrap_err().reaction, Reaction::NotFound);
    world.start_agent(hit[0]).await;
    world.until("nothing is left", async |world| world.block_count(1..=8) == 0 && world.allocations() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn blocks_that_differ_from_the_writers_data_are_found_and_rebuilt() {
    let world = World::new(10, 10).await;
    // A data block, a parity, and both.
    for lies in [vec![1], vec![5], vec![0, 4]] {
        world.lies.lock().unwrap().extend(&lies);
        let put = Put::new(&world, "rs(4,2)", 1).await;
        put.client.put("b", "k", put.bytes.as_slice(), &put.options).await.unwrap();
        assert!(world.lies.lock().unwrap().is_empty(), "no disk stored wrong bytes");
        put.is_right(&world, &[]).await;
        assert!(put.sent_again() < 0.1, "{} blocks were sent again", put.sent_again());
        let stat = world.stat("k").await;
        let rebuilt: Vec<u8> = stat.stripes[0].blocks.iter().filter(|it| it.generation > 1).map(|it| it.index as u8).collect();
        assert_eq!(rebuilt, lies);
        world.until("unneeded blocks are removed", async |world| world.block_count(1..=10) == 6).await;
    }
}

/// Receivers of data blocks only pass them on; receivers of parities compute.
#[tokio::test(start_paused = true)]
async fn nodes_that_code_slowly_get_the_blocks_with_the_least_work() {
    let mut world = World::new(6, 6).await;
    let slow = [2, 5];
    for node in 1..=6 {
        // Simulated time stands still while a node codes: a node without a throttle would report no speed.
        let coding_bytes_per_s = Some(ByteSize(if slow.contains(&node) { 4 << 20 } else { 1 << 30 }));
        world.throttle(node, Throttle { coding_bytes_per_s, ..Throttle::default() }).await;
    }
    let status = world.client.status().await.unwrap();
    for node in &status.nodes {
        assert_eq!(node.coding_bytes_per_s, if slow.contains(&node.id) { 4 << 20 } else { 1 << 30 }, "{node:?}");
    }
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 64 << 10, scheme: "mist".into(), ..PutOptions::default() };
    for key in ["a", "b", "c", "d", "e", "f"] {
        world.client.put("b", key, data(200_000, 31).as_slice(), &options).await.unwrap();
        let blocks = &world.stat(key).await.stripes[0].blocks;
        let parities: Vec<u32> = blocks[4..].iter().map(|block| block.node).collect();
        assert!(slow.iter().all(|node| !parities.contains(node)), "{parities:?}");
    }
}
