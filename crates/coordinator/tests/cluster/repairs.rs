//! Repairs beside other repairs, and nodes that cannot store a rebuilt block.

use crate::{
    fake_agent::FakeAgent,
    lying_disks::Spoiled,
    world::{World, block, data},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_agent::Throttle;
use weft_client::{
    JobChange, PutOptions, RepairNodeOptions, RepairOptions,
    api::{BlockRange, Job, ReadStripeRequest, RepairDone, RepairLimit, RepairSchedule, repair_event::Event},
};
use weft_types::{ByteSize, Error, HelperSelect, NodeId, Party, Reaction};

impl World {
    /// Reports a node's failure as a reader of an object would. The node is suspect from then on.
    async fn complain(&self, key: &str, node: u32) {
        let error = Error::replan("it does not answer").party(Party::Node(NodeId(node)));
        let request = ReadStripeRequest {
            bucket: "b".into(),
            key: key.into(),
            ranges: vec![BlockRange { index: 0, start: 0, end: 1 }],
            errors: vec![weft_proto::status::encode_error(&error)],
            explain: true,
            ..ReadStripeRequest::default()
        };
        self.bare_client().await.read_stripe(request).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_named_requestor_gets_its_half_although_somebody_complained_of_it() {
    let mut world = World::with(6, 1, |config| config.suspect_ms = 600_000).await;
    for key in 0..16 {
        world.put(&format!("k{key}"), &data(256 << 10, key)).await.unwrap();
    }
    for node in [7, 8] {
        world.start_agent(node).await;
        world.until("the node is up", async |world| world.up().await.contains(&node)).await;
    }
    world.kill(1);
    world.until("one node is down", async |world| world.up().await.len() == 7).await;
    world.complain("k0", 7).await;
    let suspect = world.client.health().await.unwrap().suspect_nodes;
    let told: Vec<(u32, &str)> = suspect.iter().map(|it| (it.node, &*it.why)).collect();
    assert_eq!(told, [(7, "a client reports: it does not answer")]);
    let to = vec![NodeId(7), NodeId(8)];
    let job = world.client.repair_node(NodeId(1), &RepairNodeOptions { to, ..RepairNodeOptions::default() }).await.unwrap();
    let ended = world.ended(job.id).await;
    assert_eq!(ended.done.map(|done| done.blocks), Some(16), "{}", ended.last_error);
    let mut given = BTreeMap::new();
    for key in 0..16 {
        let blocks = world.stat(&format!("k{key}")).await.stripes[0].blocks.clone();
        blocks.iter().filter(|block| block.generation == 2).for_each(|block| *given.entry(block.node).or_insert(0) += 1);
    }
    assert_eq!(given, BTreeMap::from([(7, 8), (8, 8)]));
}

/// The schedule of a node's repair, as explained.
async fn schedule(world: &World, node: u32, options: &RepairNodeOptions) -> RepairSchedule {
    let mut events = world.client.explain_repair_node(NodeId(node), options).await.unwrap();
    let mut schedule = None;
    while let Some(event) = events.next().await.unwrap() {
        if let Some(Event::Schedule(told)) = event.event {
            schedule = Some(told);
        }
    }
    schedule.unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_way_to_select_repairs_a_node_and_the_balanced_ones_load_all_links_evenly() {
    for select in HelperSelect::ALL {
        let mut world = World::new(10, 1).await;
        for key in 0..30 {
            world.put(&format!("k{key}"), &data(256 << 10, key)).await.unwrap();
        }
        let lost = world.holder("k0", 0).await;
        let held = world.block_files(lost).len() as u64;
        world.kill(lost);
        world.until("one node is down", async |world| world.up().await.len() == 9).await;
        let (select, scheme) = (select.name().to_owned(), "conventional".to_owned());
        let options = RepairNodeOptions { select, scheme, ..RepairNodeOptions::default() };
        let told = schedule(&world, lost, &options).await;
        if !["random", "schedule"].contains(&options.select.as_str()) {
            assert_eq!(told, schedule(&world, lost, &options).await, "the same schedule again");
        }
        let select = &options.select;
        assert_eq!((told.blocks, &told.select), (held, select));
        let sent: u64 = told.nodes.iter().map(|node| node.up_bytes).sum();
        assert_eq!(sent, held * 4 * (64 << 10), "{select}: four blocks for each");
        assert!(told.bound_bytes > 0 && told.busiest_bytes >= told.bound_bytes, "{select}: {told:?}");

        let job = world.client.repair_node(NodeId(lost), &options).await.unwrap().id;
        let ended = world.ended(job).await;
        assert_eq!((ended.state.as_str(), ended.done.map(|done| done.blocks)), ("done", Some(held)), "{}", ended.last_error);
        let mut given: BTreeMap<u32, u64> = BTreeMap::new();
        for key in 0..30 {
            let name = format!("k{key}");
            let blocks = world.stat(&name).await.stripes[0].blocks.clone();
            blocks.iter().filter(|block| block.generation == 2).for_each(|block| *given.entry(block.node).or_insert(0) += 1);
            let nodes: BTreeSet<u32> = blocks.iter().map(|block| block.node).collect();
            assert_eq!(nodes.len(), 6, "{select}: two blocks of {name} on a node");
            assert!(world.get(&name, "").await.unwrap().0 == data(256 << 10, key), "{select}: {name}");
        }
        if ["boost", "balance", "sequential", "polling"].contains(&select.as_str()) {
            let ratio = told.busiest_bytes as f64 / told.bound_bytes as f64;
            assert!(ratio <= 1.2, "{select}: {told:?}");
            assert!(given.values().all(|blocks| *blocks <= held.div_ceil(9)), "{select}: {held} blocks on {given:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_with_slow_disks_gets_less_of_a_nodes_repair_and_its_share_of_a_limit() {
    const RATE: u64 = 64 << 20;
    let mut world = World::new(10, 1).await;
    // Agents of simulated disks know no other rate.
    let throttle = |rate: u64| Throttle { disk_bytes_per_s: Some(ByteSize(rate)), ..Throttle::default() };
    for node in 1..=10 {
        world.throttle(node, throttle(RATE)).await;
    }
    for key in 0..30 {
        world.put(&format!("k{key}"), &data(256 << 10, key)).await.unwrap();
    }
    let lost = world.holder("k0", 0).await;
    let held = world.block_files(lost).len() as u64;
    // It holds blocks of most stripes.
    let slow = (1..=10).filter(|node| *node != lost).max_by_key(|node| world.block_files(*node).len()).unwrap();
    let options = RepairNodeOptions { scheme: "conventional".into(), force: true, ..RepairNodeOptions::default() };
    let at_disks = async |world: &World| -> (u64, u64) {
        let told = schedule(world, lost, &options).await;
        let all: u64 = told.nodes.iter().map(|node| node.disk_bytes).sum();
        (told.nodes.iter().find(|node| node.node == slow).map_or(0, |node| node.disk_bytes), all)
    };
    world.kill(lost);
    world.until("one node is down", async |world| world.up().await.len() == 9).await;
    let (before, all) = at_disks(&world).await;
    assert_eq!(all, held * 5 * (64 << 10), "four blocks are read and one is written for each");
    assert!(before * 20 > all, "{before} of {all}: as much as others");
    world.throttle(slow, throttle(RATE / 32)).await;
    let (after, still_all) = at_disks(&world).await;
    assert!(still_all == all && after * 3 < before, "{after} of {before}");

    let half = RepairLimit { percent: Some(50), ..RepairLimit::default() };
    let limited = world.client.set_repair_limit(half).await.unwrap();
    for node in limited.nodes.iter().filter(|node| node.node != lost) {
        let rate = if node.node == slow { RATE / 32 } else { RATE };
        for disk in &node.lines[2..] {
            // Both disks are on one file system.
            assert_eq!((disk.measured_bytes_per_s, disk.bytes_per_s), (Some(rate), Some(rate / 4)), "{node:?}");
        }
    }
}

/// Many repairs bring their blocks to one node over its full link, on which the transfers that began last starve until they are given up.
#[tokio::test(start_paused = true)]
async fn no_node_is_suspect_because_a_link_is_full() {
    let mut world = World::new(6, 1).await;
    for key in 0..24 {
        world.put(&format!("k{key}"), &data(2 << 20, key)).await.unwrap();
    }
    world.start_agent(7).await;
    world.until("the node is up", async |world| world.up().await.contains(&7)).await;
    let link = world.fill_link_to(7).await;
    let options = RepairNodeOptions {
        to: vec![NodeId(7)],
        select: "random".into(),
        scheme: "conventional".into(),
        concurrency: 16,
        force: true,
        ..RepairNodeOptions::default()
    };
    let job = world.client.repair_node(NodeId(1), &options).await.unwrap().id;
    let mut looks = 0;
    while world.client.job(job).await.unwrap().state == "running" && looks < 600 {
        looks += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let nodes = world.client.status().await.unwrap().nodes;
        let suspect: Vec<&str> = nodes.iter().filter(|node| node.suspect_ms > 0).map(|node| node.name.as_str()).collect();
        assert_eq!(suspect, [] as [&str; 0], "after {looks} looks");
    }
    let ended = world.ended(job).await;
    assert_eq!((ended.state.as_str(), ended.done.map(|done| done.blocks)), ("done", Some(24)), "{ended:?}");
    assert!(
        link.starved() >= Duration::from_millis(2_000),
        "no transfer starved for as long as links wait: {:?}",
        link.starved()
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stands_still_while_others_are_busy_is_suspect() {
    let mut world = World::with(6, 1, |config| config.down_after_ms = 600_000).await;
    for key in 0..24 {
        world.put(&format!("k{key}"), &data(1 << 20, key)).await.unwrap();
    }
    for node in [7, 8] {
        world.start_agent(node).await;
        world.until("the node is up", async |world| world.up().await.contains(&node)).await;
    }
    for node in [7, 8] {
        world.fill_link_to(node).await;
    }
    let options = RepairNodeOptions {
        to: vec![NodeId(7), NodeId(8)],
        select: "random".into(),
        scheme: "conventional".into(),
        concurrency: 16,
        force: true,
        ..RepairNodeOptions::default()
    };
    world.client.repair_node(NodeId(1), &options).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.stop(8);
    let is_suspect = async |world: &World| {
        let nodes = world.client.status().await.unwrap().nodes;
        nodes.iter().find(|node| node.id == 8).unwrap().suspect_ms > 0
    };
    world.until("the node that stands still is suspect", async |world| is_suspect(world).await).await;
    world.go_on(8);
}

#[tokio::test(start_paused = true)]
async fn a_stripe_that_survives_fewer_losses_is_repaired_first() {
    let mut world = World::new(9, 1).await;
    let bytes = data(256 << 10, 5);
    let mut at_risk = Vec::new();
    for key in 0..24 {
        world.put(&format!("k{key}"), &bytes).await.unwrap();
    }
    let lost = [world.holder("k20", 0).await, world.holder("k20", 1).await];
    for key in 0..24 {
        let nodes: Vec<u32> = world.stat(&format!("k{key}")).await.stripes[0].blocks.iter().map(|block| block.node).collect();
        if lost.iter().all(|node| nodes.contains(node)) {
            at_risk.push(key);
        }
    }
    assert!(!at_risk.is_empty() && at_risk.len() < 20, "{at_risk:?}");
    lost.iter().for_each(|node| world.kill(*node));
    world.until("two nodes are down", async |world| world.up().await.len() == 7).await;
    world.slow_down_agents().await;
    let options = RepairNodeOptions { select: "sequential".into(), scheme: "pipeline".into(), ..RepairNodeOptions::default() };
    let job = world.client.repair_node(NodeId(lost[0]), &options).await.unwrap().id;
    let rebuilt = async |world: &World| -> Vec<u64> {
        let mut rebuilt = Vec::new();
        for key in 0..24 {
            let blocks = world.stat(&format!("k{key}")).await.stripes[0].blocks.clone();
            if blocks.iter().any(|block| block.generation == 2) {
                rebuilt.push(key);
            }
        }
        rebuilt
    };
    let most = at_risk.len() as u64;
    world
        .until("those at risk are repaired", async |world| {
            let keys = rebuilt(world).await;
            let done = world.client.job(job).await.unwrap().done.map_or(0, |done| done.blocks);
            assert!(done >= most || keys.iter().all(|key| at_risk.contains(key)), "{keys:?} before {at_risk:?}");
            done >= most
        })
        .await;
    world.client.change_job(job, JobChange::Cancel).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_jobs_with_one_spare_node_bring_it_one_block_of_a_stripe() {
    let mut world = World::new(7, 7).await;
    let bytes = data(1 << 20, 21);
    // All objects are on the same six nodes, so one node is spare.
    world.put("k0", &bytes).await.unwrap();
    let lost = [world.holder("k0", 0).await, world.holder("k0", 3).await];
    for key in 1..12 {
        world.put(&format!("k{key}"), &bytes).await.unwrap();
    }
    lost.iter().for_each(|node| world.kill(*node));
    world.until("two nodes are down", async |world| world.up().await.len() == 5).await;
    let repair = async |node| world.client.repair_node(NodeId(node), &RepairNodeOptions::default()).await.unwrap().id;
    let (one, two) = tokio::join!(repair(lost[0]), repair(lost[1]));
    let (one, two) = (world.ended(one).await, world.ended(two).await);
    let mut lost_still = 0;
    for key in 0..12 {
        let key = format!("k{key}");
        let blocks = world.stat(&key).await.stripes[0].blocks.clone();
        let mut nodes: Vec<u32> = blocks.iter().map(|block| block.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), 6, "{key}: a node has two blocks of a stripe: {blocks:?}");
        lost_still += blocks.iter().filter(|block| block.state != "ok").count() as u64;
        assert_eq!(world.get(&key, "").await.unwrap().0, bytes);
    }
    let left = |job: &Job| job.left.as_ref().map_or(0, |left| left.blocks);
    assert_eq!(left(&one) + left(&two), lost_still, "the jobs report the blocks that are still lost: {one:?} {two:?}");
}

#[tokio::test(start_paused = true)]
async fn two_repairs_of_an_object_end_and_say_what_is_left() {
    let mut world = World::new(7, 7).await;
    let bytes = data(1 << 20, 22);
    world.put("k", &bytes).await.unwrap();
    let lost = [world.holder("k", 0).await, world.holder("k", 3).await];
    lost.iter().for_each(|node| world.kill(*node));
    world.until("two nodes are down", async |world| world.up().await.len() == 5).await;
    let repair = async |index| {
        let options = RepairOptions { blocks: vec![index], ..RepairOptions::default() };
        world.repair("k", &options).await
    };
    let (one, two) = tokio::join!(repair(0), repair(3));
    let (done, failed) = if one.is_ok() { (one, two) } else { (two, one) };
    assert_eq!(done.unwrap().blocks.len(), 1);
    let error = failed.unwrap_err().to_string();
    assert!(error.contains("on its way") || error.contains("which has block") || error.contains("nodes are up"), "{error}");
    assert_eq!(world.not_ok("k").await.len(), 1);
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_can_never_be_taken_is_told_as_such() {
    let world = World::new(6, 6).await;
    world.put("k", &data(1 << 20, 23)).await.unwrap();
    let fake = FakeAgent::start(&world, "fake").await;
    fake.asked().refuses = true;
    world.until("the node is up", async |world| world.up().await.contains(&7)).await;
    let error = world.repair("k", &block(0, Some(7))).await.unwrap_err();
    assert!(error.reaction == Reaction::InvalidInput && error.message.contains("more memory than there is"), "{error}");
    assert_eq!(fake.asked().opens, 1, "another plan would need as much memory");
}

#[tokio::test(start_paused = true)]
async fn a_block_that_its_new_home_stores_wrong_goes_to_another() {
    let mut world = World::with(8, 8, |config| config.suspect_ms = 600_000).await;
    let bytes = data(1 << 20, 24);
    world.put("k", &bytes).await.unwrap();
    let lost = world.holder("k", 3).await;
    world.kill(lost);
    world.until("one node is down", async |world| world.up().await.len() == 7).await;
    let first = world.explained_target("k", 3).await;
    world.lies.lock().unwrap().insert(3);
    world.repair("k", &RepairOptions::default()).await.unwrap();
    assert_ne!(world.holder("k", 3).await, first, "the block goes to the same disk again");
    assert_eq!(world.not_ok("k").await, vec![]);
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    // To this node only.
    world.lies.lock().unwrap().insert(2);
    world.repair("k", &block(2, Some(first))).await.unwrap();
    assert_eq!((world.holder("k", 2).await, world.not_ok("k").await), (first, vec![]));
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
}

/// All that a node sends has the right checksums, but is not what it has stored.
#[tokio::test(start_paused = true)]
async fn a_helper_that_lies_is_left_out() {
    for scheme in ["pipeline", "conventional", "ppr"] {
        let mut world = World::new(8, 8).await;
        let bytes = data(1 << 20, 31);
        world.put("k", &bytes).await.unwrap();
        let (lost, liar) = (world.holder("k", 0).await, world.holder("k", 2).await);
        world.kill(lost);
        world.until("one node is down", async |world| world.up().await.len() == 7).await;
        world.spoils.lock().unwrap().insert(2, Spoiled::Read);
        let options = RepairOptions { scheme: scheme.into(), ..block(0, None) };
        world.repair("k", &options).await.unwrap();
        world.spoils.lock().unwrap().clear();
        assert_eq!(world.not_ok("k").await, [], "{scheme}");
        assert!(world.get("k", "").await.unwrap().0 == bytes, "{scheme}");
        assert_ne!(world.holder("k", 0).await, liar);
    }
}

/// One plan rebuilds two blocks of a stripe. A repair that names one of them meanwhile begins when it has ended.
#[tokio::test(start_paused = true)]
async fn a_repair_waits_for_another_repair_of_its_stripe() {
    let mut world = World::new(6, 1).await;
    let bytes = data(1 << 20, 25);
    world.put("k", &bytes).await.unwrap();
    for node in 7..=9 {
        world.start_agent(node).await;
        world.until("the node is up", async |world| world.up().await.contains(&node)).await;
    }
    // At this speed, node 8 finishes last.
    world.throttle(8, Throttle { disk_bytes_per_s: Some(ByteSize(96 << 10)), ..Throttle::default() }).await;
    let both = RepairOptions { blocks: vec![1, 2], to: vec![NodeId(7), NodeId(8)], ..RepairOptions::default() };
    let mut repair = world.client.repair("b", "k", &both).await.unwrap();
    let first = repair.next().await.unwrap().unwrap().event.unwrap();
    assert!(matches!(&first, Event::Plan(plan) if plan.plan.is_empty()), "the plan's JSON was not requested: {first:?}");
    let other = world.repair("k", &block(1, Some(9))).await.unwrap();
    assert_eq!((other.blocks.len(), other.blocks[0].generation), (1, 3), "generation 2 was there first");
    let mut done = None;
    while let Some(event) = repair.next().await.unwrap() {
        if let Some(Event::Done(last)) = event.event {
            done = Some(last);
        }
    }
    let done = done.unwrap();
    assert_eq!(done.blocks.iter().map(|block| (block.index, block.node)).collect::<Vec<_>>(), [(1, 7), (2, 8)]);
    assert_eq!(done.left, []);
    assert_eq!((world.holder("k", 1).await, world.holder("k", 2).await), (9, 8));
    assert_eq!(world.not_ok("k").await, []);
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    world.until("unneeded blocks are removed", async |world| world.block_count(1..=9) == 6).await;
    assert_eq!(world.block_files(7).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_with_a_slow_disk_helps_only_if_no_other_node_can() {
    let mut world = World::new(5, 5).await;
    let options = PutOptions { code: "rs(2,2)".into(), block_len: 4 << 20, ..PutOptions::default() };
    let bytes = data(8 << 20, 29);
    world.client.put("b", "k", bytes.as_slice(), &options).await.unwrap();
    let helpers = async |world: &World| -> BTreeSet<Party> {
        let binding = world.explained("k", 0).await.plan.binding;
        binding.blocks.iter().map(|block| binding.parties[usize::from(block.vertex)]).collect()
    };
    let before = helpers(&world).await;
    let Some(Party::Node(NodeId(slow))) = before.first().copied() else { panic!("{before:?}") };
    world.throttle(slow, Throttle { disk_bytes_per_s: Some(ByteSize(2 << 20)), ..Throttle::default() }).await;
    assert_eq!(helpers(&world).await, before, "the disk has not delayed a plan, so it is not known to be slow");
    world.repair("k", &block(0, None)).await.unwrap();
    let after = helpers(&world).await;
    assert!(after.len() == 2 && !after.contains(&Party::Node(NodeId(slow))), "n{slow} of {after:?}");
    // After a restart the node counts as healthy.
    world.throttle(slow, Throttle::default()).await;
    let again = helpers(&world).await;
    assert!(again.contains(&Party::Node(NodeId(slow))), "n{slow} of {again:?}");
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
}

/// Each sees what those before it have made of the stripe, so none commits beside another one.
#[tokio::test(start_paused = true)]
async fn repairs_of_named_blocks_of_a_stripe_run_one_after_another() {
    let world = World::new(9, 1).await;
    let bytes = data(512 << 10, 5);
    world.put("k", &bytes).await.unwrap();
    let named = |block: u8| RepairOptions { blocks: vec![block], ..RepairOptions::default() };
    let (first, second, other) = (named(0), named(0), named(1));
    let repaired = tokio::join!(world.repair("k", &first), world.repair("k", &second), world.repair("k", &other));
    let generations = |done: Result<RepairDone, Error>| -> Vec<(u32, u32)> {
        done.unwrap().blocks.iter().map(|block| (block.index, block.generation)).collect()
    };
    let mut all = [generations(repaired.0), generations(repaired.1), generations(repaired.2)].concat();
    all.sort_unstable();
    assert_eq!(all, [(0, 2), (0, 3), (1, 2)]);
    assert!(world.get("k", "conventional").await.unwrap().0 == bytes);
}
