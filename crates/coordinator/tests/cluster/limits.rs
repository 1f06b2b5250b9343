//! The limit on repair: it reaches all nodes at once, outlives the coordinator, and slow repairs are not taken for failed ones.

use crate::{
    fake_agent::FakeAgent,
    world::{World, block, data},
};
use std::time::Duration;
use tokio::time::Instant;
use weft_client::{PutOptions, RepairNodeOptions, RepairOptions, api};
use weft_types::{AutoSize, NodeId};

const MIB: u64 = 1 << 20;

fn rate(bytes_per_s: u64) -> api::RepairLimit {
    api::RepairLimit { bytes_per_s: Some(bytes_per_s), ..api::RepairLimit::default() }
}

/// The rates in force at a node's uplink, downlink and two disks.
fn rates(node: &api::LimitedNode) -> Vec<Option<u64>> {
    node.lines.iter().map(|line| line.bytes_per_s).collect()
}

impl World {
    async fn limited(&self) -> api::RepairLimitReply {
        self.client.repair_limit().await.unwrap()
    }

    /// Sets a limit. Returns the answer, and how long it took.
    async fn limit(&self, limit: api::RepairLimit) -> (api::RepairLimitReply, Duration) {
        let begin = Instant::now();
        let reply = self.client.set_repair_limit(limit).await.unwrap();
        (reply, begin.elapsed())
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_in_force_at_all_nodes_long_before_their_next_heartbeats() {
    let world = World::with(6, 3, |config| {
        config.heartbeat_interval_ms = 10_000;
        config.down_after_ms = 30_000;
    })
    .await;
    let percent = api::RepairLimit { percent: Some(50), ..api::RepairLimit::default() };
    // No link is measured: half of 1 Gbit/s. The rates of disks are unknown.
    let half = Some(62_500_000);
    for (limit, expected) in [
        (rate(10 * MIB), [Some(10 * MIB); 4]),
        (rate(MIB), [Some(MIB); 4]),
        (percent, [half, half, None, None]),
        (api::RepairLimit::default(), [None; 4]),
    ] {
        let (reply, took) = world.limit(limit).await;
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert_eq!((reply.limit, reply.nodes.len()), (Some(limit), 6));
        for node in &reply.nodes {
            assert_eq!((node.state.as_str(), rates(node)), ("confirmed", expected.to_vec()), "{node:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_reached_keeps_the_lower_limit_and_hears_the_higher_one_later() {
    let world = World::new(3, 3).await;
    let fake = FakeAgent::start(&world, "fake").await;
    let told = || fake.asked().limits.last().and_then(|limit| limit.up_bytes_per_s);
    let (reply, _) = world.limit(rate(MIB)).await;
    assert!(reply.nodes.iter().all(|node| node.state == "confirmed"), "{reply:?}");
    assert_eq!(told(), Some(MIB));
    assert_eq!(fake.asked().limits.last().map(|limit| limit.extra_stall_ms), Some(64_000));
    fake.asked().hangs = true;
    let (reply, took) = world.limit(rate(100 * MIB)).await;
    assert!(took < Duration::from_millis(2_100), "{took:?}");
    let (open, others): (Vec<_>, Vec<_>) = reply.nodes.iter().partition(|node| node.name == "fake");
    assert!(others.iter().all(|node| node.state == "confirmed" && rates(node)[0] == Some(100 * MIB)), "{others:?}");
    assert_eq!((open[0].state.as_str(), told()), ("pending", Some(MIB)));
    assert!(world.limited().await.nodes.iter().any(|node| node.why.contains("no answer within 1s")));
    fake.asked().hangs = false;
    world.until("it has heard", async |_| told() == Some(100 * MIB)).await;
    world
        .until("it counts as confirmed", async |world| world.limited().await.nodes.iter().all(|it| it.state == "confirmed"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_outlives_coordinators_and_agents_and_holds_before_an_agents_first_task() {
    let mut world = World::new(3, 3).await;
    world.limit(rate(MIB)).await;
    world.kill(1);
    world.until("it is down", async |world| world.up().await.len() == 2).await;
    assert_eq!(world.limited().await.nodes[0].state, "down");
    world.restart_coordinator().await;
    let reply = world.limited().await;
    assert_eq!(reply.limit, Some(rate(MIB)));
    world.start_agent(1).await;
    let is_in_force = async |world: &World| {
        let nodes = world.limited().await.nodes;
        nodes.iter().all(|node| node.state == "confirmed" && rates(node) == [Some(MIB); 4])
    };
    world.until("all nodes obey it", is_in_force).await;

    // An agent learns it with its registration.
    let request = api::RegisterRequest {
        protocol: Some(weft_proto::PROTOCOL.into()),
        name: "new".into(),
        rack: "r".into(),
        zone: "z".into(),
        data_address: "127.0.0.1:1".into(),
        control_address: "127.0.0.1:1".into(),
        ..api::RegisterRequest::default()
    };
    let registered = world.bare_member().await.register(request).await.unwrap().into_inner();
    let limit = registered.limit.unwrap();
    assert_eq!([limit.up_bytes_per_s, limit.down_bytes_per_s, limit.disk_bytes_per_s], [Some(MIB); 3]);
    assert_eq!(limit.extra_stall_ms, 64_000, "64 MiB may be before a slice");
}

#[tokio::test(start_paused = true)]
async fn a_low_limit_slows_repairs_and_fails_none_of_their_links() {
    let mut world = World::new(6, 1).await;
    for key in 0..12 {
        world.put(&format!("k{key}"), &data(256 << 10, key)).await.unwrap();
    }
    let lost = world.holder("k0", 0).await;
    // All objects are on the first six nodes, so all blocks go to this one.
    world.start_agent(7).await;
    world.until("it is up", async |world| world.up().await.len() == 7).await;
    world.limit(rate(256 << 10)).await;
    world.kill(lost);
    world.until_down(lost).await;
    let options = RepairNodeOptions { scheme: "conventional".into(), concurrency: 12, ..RepairNodeOptions::default() };
    let begin = Instant::now();
    let job = world.client.repair_node(NodeId(lost), &options).await.unwrap().id;
    let held_back = async |world: &World| {
        let job = world.client.job(job).await.unwrap();
        job.limit == "256KiB/s" && job.limited_ms.is_some_and(|left| left > 0)
    };
    world.until("the job says what holds it back", held_back).await;
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), ended.last_error.as_str()), ("done", ""));
    let blocks = ended.done.unwrap().blocks;
    // Four blocks of 64 KiB arrive for each, over a line of 256 KiB/s.
    let least = Duration::from_millis(1_000 * blocks * 9 / 10);
    assert!(blocks == 12 && begin.elapsed() > least, "{blocks} blocks in {:?}", begin.elapsed());
    assert!(begin.elapsed() < least * 2, "{blocks} blocks in {:?}", begin.elapsed());
}

/// The plan is signed without a limit, and the lease is shorter than a slice takes at the new one.
#[tokio::test(start_paused = true)]
async fn a_limit_that_is_lowered_while_a_repair_runs_ends_neither_its_links_nor_its_lease() {
    let mut world = World::with(7, 7, |config| {
        (config.stall_ms, config.upload_lease_ms, config.down_after_ms) = (2_000, 3_000, 800);
    })
    .await;
    let options = PutOptions { code: "rs(4,2)".into(), block_len: 4 << 20, cell_len: 64 << 10, ..PutOptions::default() };
    let bytes = data(16 << 20, 5);
    world.client.put("b", "k", &bytes[..], &options).await.unwrap();
    let holders: Vec<u32> = world.stat("k").await.stripes[0].blocks.iter().map(|block| block.node).collect();
    let spare = (1..=7).find(|node| !holders.contains(node)).unwrap();
    let lost = world.holder("k", 0).await;
    world.kill(lost);
    world.until_down(lost).await;
    world.limit(rate(32 * MIB)).await;
    let options =
        RepairOptions { scheme: "conventional".into(), slice_len: Some(AutoSize::bytes(1 << 20)), ..block(0, Some(spare)) };
    let client = world.client.clone();
    let repair = tokio::spawn(async move {
        let mut repair = client.repair("b", "k", &options).await?;
        let mut done = None;
        while let Some(event) = repair.next().await? {
            if let Some(api::repair_event::Event::Done(end)) = event.event {
                done = Some(end);
            }
        }
        Ok::<_, weft_types::Error>(done)
    });
    world.until("a block is being written", async |world| world.being_written().len() == 1).await;
    // Four slices of 1 MiB at a time arrive over a line of 256 KiB/s.
    world.limit(rate(256 << 10)).await;
    let begin = Instant::now();
    let done = repair.await.unwrap().unwrap().unwrap();
    assert!(begin.elapsed() > Duration::from_secs(40), "it was not slow: {:?}", begin.elapsed());
    assert_eq!((done.blocks.len(), done.resumed, world.allocations()), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_becomes_a_rate_at_which_the_work_ends_in_time() {
    let mut world = World::new(7, 1).await;
    for key in 0..40 {
        world.put(&format!("k{key}"), &data(2 << 20, key)).await.unwrap();
    }
    let lost = world.holder("k0", 0).await;
    world.kill(lost);
    world.until_down(lost).await;
    let deadline = api::RepairLimit { deadline_in_ms: Some(15_000), ..api::RepairLimit::default() };
    let (reply, _) = world.limit(deadline).await;
    assert_eq!(reply.deadline_bytes_per_s, Some(256 << 10), "there is no work yet");
    let begin = Instant::now();
    let job = world.client.repair_node(NodeId(lost), &RepairNodeOptions::default()).await.unwrap().id;
    let follows = async |world: &World| world.limited().await.deadline_bytes_per_s.is_some_and(|rate| rate > 300 << 10);
    world.until("the rate follows the work", follows).await;
    let ended = world.ended(job).await;
    let took = begin.elapsed();
    assert_eq!((ended.state.as_str(), ended.last_error.as_str()), ("done", ""));
    assert!((4.0..15.0).contains(&took.as_secs_f64()), "{took:?}");
    let over = async |world: &World| {
        let reply = world.limited().await;
        reply.deadline_bytes_per_s.is_none() && reply.nodes.iter().all(|node| node.state == "down" || rates(node) == [None; 4])
    };
    world.until("the deadline has passed", over).await;
}

#[tokio::test(start_paused = true)]
async fn wrong_limits_are_refused() {
    let world = World::new(1, 1).await;
    let percent = |percent| api::RepairLimit { percent: Some(percent), ..api::RepairLimit::default() };
    let deadline = |ms| api::RepairLimit { deadline_in_ms: Some(ms), ..api::RepairLimit::default() };
    for (limit, says) in [
        (rate(0), "would stop repair"),
        (rate(1000), "too low"),
        (percent(0), "would stop repair"),
        (percent(150), "use 1% to 100%"),
        (deadline(0), "has passed already"),
        (deadline(u64::MAX), "more than a year"),
        (api::RepairLimit { percent: Some(5), ..rate(MIB) }, "choose one of them"),
    ] {
        let error = world.client.set_repair_limit(limit).await.unwrap_err();
        assert!(error.message.contains(says), "{error}");
    }
    assert_eq!(world.limited().await.limit, Some(api::RepairLimit::default()));
}
