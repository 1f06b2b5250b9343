//! Failures in the middle of a task, and their consequences.

use crate::cluster::{Cluster, Gate, GatedDisks, Options, Stripe, arrived, errors, node, until};
use std::{collections::BTreeMap, fs, os::unix::fs::FileExt, sync::Arc, time::Duration};
use tokio::time::timeout;
use weft_agent::Limits;
use weft_proto::v1::{CorruptBlock, task_event::Event};
use weft_types::{BlockId, ByteSize, NodeId, Party, Reaction};

const MIB: u64 = 1 << 20;

/// A cluster of seven, with a stripe on the first six; the reads of node 3 stop at 1 MiB.
async fn gated() -> (Cluster, Stripe, Arc<Gate>) {
    let gate = Gate::at(MIB);
    let mut options = Options::agents(7);
    options.disks.insert(3, Arc::new(GatedDisks(Arc::clone(&gate))));
    let cluster = Cluster::start(options).await;
    let stripe = Stripe::new(1, "rs(4,2)", 4 * MIB, 16 * MIB);
    cluster.write(&stripe).await;
    (cluster, stripe, gate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_continues_without_a_killed_helper() {
    let (mut cluster, stripe, gate) = gated().await;
    let (to, span) = (NodeId(7), stripe.layout.coded_span());
    let plan = stripe.repair_plan(0, Party::Node(to), &[1, 2, 3, 4], "pipeline", &[span]);
    let opened = cluster.open(&plan, &stripe).await.unwrap();
    let mut running = cluster.start_all(&opened).await;

    // All stages stall and report the peer that they wait for. Node 3 waits only for its disk.
    let waits_for = |node| {
        let progress = cluster.coordinator.progress(node);
        let waiting = progress.map(|progress| progress.waiting).unwrap_or_default();
        waiting.first().map(|first| postcard::from_bytes::<Party>(&first.party).ok())
    };
    until("the requestor waits", async || waits_for(to) == Some(Some(node(4)))).await;
    until("the helper waits", async || waits_for(NodeId(3)) == Some(None)).await;

    cluster.kill_agent(3).await;
    running.remove(&NodeId(3));
    let end = running.remove(&to).unwrap().await.unwrap().unwrap();
    gate.open();
    let there = arrived(&end, stripe.block(0, 2));
    // Slices that one call reads arrive together.
    let stopped = MIB - 3 * stripe.slice_len..=MIB;
    assert!(there.len() == 1 && there[0].start == 0 && stopped.contains(&there[0].end), "{there:?}");
    for error in errors(&end) {
        assert_eq!(error.reaction, Reaction::Replan, "{error}");
    }
    assert_eq!(errors(&end)[0].party, Some(node(4)), "the requestor names its neighbour");
    // The first node of the chain may have sent everything into the network's buffers.
    running.remove(&NodeId(2));
    for (helper, end) in running {
        let end = end.await.unwrap().unwrap();
        assert!(!errors(&end).is_empty(), "{helper} did not notice");
        assert!(errors(&end).iter().any(|error| error.position.is_some() && error.link.is_some()), "{:?}", errors(&end));
    }

    let rest = span.subtract(&there);
    let plan = stripe.repair_plan(0, Party::Node(to), &[1, 3, 4, 5], "pipeline", &rest);
    let events = cluster.run(&plan, &stripe, &cluster.client()).await.unwrap();
    let Event::Done(done) = &events[&to] else { panic!("{:?}", errors(&events[&to])) };
    assert_eq!(done.stored[0].checksums, stripe.units(0));
    assert_eq!(done.traffic.unwrap().received_bytes, span.end - there[0].end, "what had arrived was sent again");
    assert_eq!(fs::read(cluster.payload(to, stripe.block(0, 2)).unwrap()).unwrap(), stripe.blocks[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_continues_without_a_killed_receiver() {
    let mut cluster = Cluster::start(Options::agents(6)).await;
    let stripe = Stripe::new(1, "rs(4,2)", 4 * MIB, 16 * MIB);
    let opened = cluster.open(&stripe.write_plan(), &stripe).await.unwrap();
    let mut running = cluster.start_all(&opened).await;
    cluster.kill_agent(4).await;
    running.remove(&NodeId(4));
    let outcome = cluster.client().with_data(&stripe).run(&opened.tasks[&crate::cluster::CLIENT]).await;
    assert!(outcome.errors.iter().all(|error| error.party == Some(node(3))), "{:?}", outcome.errors);
    assert!(outcome.stages[0].finished && outcome.errors.len() == 1);
    for (node, end) in running {
        let end = end.await.unwrap().unwrap();
        let Event::Done(done) = &end else { panic!("{node}: {:?}", errors(&end)) };
        assert_eq!(done.stored[0].checksums, stripe.units(node.0 as u8 - 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_page_is_named_and_reported() {
    let cluster = Cluster::start(Options::agents(7)).await;
    let stripe = Stripe::new(1, "rs(4,2)", MIB, 4 * MIB);
    cluster.write(&stripe).await;
    let spoiled = stripe.block(2, 1);
    let file = fs::File::options().write(true).open(cluster.payload(NodeId(3), spoiled).unwrap()).unwrap();
    let at = 100 * 4096 + 17;
    file.write_all_at(&[stripe.blocks[2][at as usize] ^ 1], at).unwrap();

    let plan = stripe.repair_plan(0, Party::Node(NodeId(7)), &[1, 2, 3, 4], "pipeline", &[stripe.layout.coded_span()]);
    let events = cluster.run(&plan, &stripe, &cluster.client()).await.unwrap();
    let cause = &errors(&events[&NodeId(3)])[0];
    assert_eq!((cause.reaction, cause.block, cause.party), (Reaction::Corrupt, Some(spoiled), Some(node(2))));
    // The message names the cause at every receiver further down the chain, but no receiver reports a bad block.
    for receiver in [4, 5, 7].map(NodeId) {
        let told = &errors(&events[&receiver])[0];
        assert_eq!((told.reaction, told.block), (Reaction::Replan, None), "{receiver}: {told}");
        let cause = format!("its stage of the plan ended early: n3: block {spoiled}: ");
        assert!(told.message.starts_with(&cause) && told.message.contains("page 100"), "{receiver}: {told}");
    }
    assert_eq!(cluster.payload(NodeId(7), stripe.block(0, 2)), None);

    until("the coordinator is told", async || !cluster.coordinator.corrupt().is_empty()).await;
    let told = cluster.coordinator.corrupt();
    let (node, CorruptBlock { block, first_byte, len_bytes, message }) = &told[0];
    assert_eq!((*node, *first_byte, *len_bytes), (3, 100 * 4096, 4096));
    assert_eq!(postcard::from_bytes::<BlockId>(block).unwrap(), spoiled);
    assert!(message.contains("page 100"), "{message}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(cluster.coordinator.corrupt().len(), 1, "it was reported twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuilt_block_with_wrong_checksums_is_not_stored() {
    let cluster = Cluster::start(Options::agents(7)).await;
    let stripe = Stripe::new(1, "rs(4,2)", 2 * MIB, 8 * MIB);
    cluster.write(&stripe).await;
    let to = NodeId(7);
    // Generation 2 of block 0 gets the bytes of block 1, as after a wrong plan.
    let mut plan = stripe.repair_plan(1, Party::Node(to), &[0, 2, 3, 4], "pipeline", &[stripe.layout.coded_span()]);
    for stage in plan.shape.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
        for sink in &mut stage.sinks {
            if let weft_plan::Sink::Store { index, .. } = sink {
                *index = 0;
            }
        }
    }
    plan.binding.stores[0].id.index = 0;
    let events = cluster.run(&plan, &stripe, &cluster.client()).await.unwrap();
    let cause = &errors(&events[&to])[0];
    assert_eq!((cause.reaction, cause.block), (Reaction::Corrupt, Some(stripe.block(0, 2))), "{cause}");
    assert_eq!(arrived(&events[&to], stripe.block(0, 2)), [], "wrong bytes were kept for later");
    assert_eq!(cluster.payload(to, stripe.block(0, 2)), None);
    // The right plan can still store the block.
    let plan = stripe.repair_plan(0, Party::Node(to), &[1, 2, 3, 4], "ppr", &[stripe.layout.coded_span()]);
    let events = cluster.run(&plan, &stripe, &cluster.client()).await.unwrap();
    assert!(matches!(events[&to], Event::Done(_)), "{:?}", errors(&events[&to]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crossing_plans_with_memory_for_one_do_not_deadlock() {
    // A task has one source and one sink. At each, one slice waits and one is processed.
    let limits = Limits { memory_budget: ByteSize(6 * (64 << 10)), ..Limits::default() };
    let cluster = Cluster::start(Options { limits, ..Options::agents(4) }).await;
    let stripe = |number| Stripe { window: 1, ..Stripe::new(number, "rs(1,1)", 2 * MIB, 2 * MIB) };
    let (first, second) = (stripe(1), stripe(2));
    cluster.write(&first).await;
    cluster.write(&second).await;

    // Block 0 of one stripe moves from node 1 to node 2 while block 1 of the other moves from node 2 to node 1. Each
    // agent has memory for one of the two tasks.
    let forth = first.repair_plan(0, node(1), &[0], "conventional", &[first.layout.coded_span()]);
    let back = second.repair_plan(1, node(0), &[1], "conventional", &[second.layout.coded_span()]);
    for _ in 0..2 {
        let opened = cluster.coordinator.tasks(&forth, &first);
        cluster.call(NodeId(1)).await.open(opened[&node(0)].clone()).await.unwrap();
        let other = cluster.coordinator.tasks(&back, &second);
        cluster.call(NodeId(2)).await.open(other[&node(1)].clone()).await.unwrap();
        for (at, request) in [(NodeId(2), &opened[&node(1)]), (NodeId(1), &other[&node(0)])] {
            let mut agent = cluster.call(at).await;
            let answer = timeout(Duration::from_secs(2), agent.open(request.clone())).await.expect("the open call waited");
            let busy = weft_proto::from_status(&answer.unwrap_err());
            assert_eq!(busy.reaction, Reaction::Retry, "{busy}");
            assert!(busy.message.contains("busy"), "{busy}");
        }
        cluster.cancel(NodeId(1), forth.id).await;
        cluster.cancel(NodeId(2), back.id).await;
    }
    for (plan, stripe) in [(&forth, &first), (&back, &second)] {
        for (node, event) in cluster.run(plan, stripe, &cluster.client()).await.unwrap() {
            assert!(matches!(event, Event::Done(_)), "{node}: {:?}", errors(&event));
        }
    }
    assert!(cluster.agents.values().all(|agent| agent.memory_used_bytes() == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_end_when_cancelled_abandoned_or_late() {
    let (cluster, stripe, gate) = gated().await;
    let (to, span) = (NodeId(7), stripe.layout.coded_span());
    let used = |cluster: &Cluster| cluster.agents.values().map(|agent| agent.memory_used_bytes()).sum::<u64>();
    let plan = || stripe.repair_plan(0, Party::Node(to), &[1, 2, 3, 4], "pipeline", &[span]);

    let cancelled = plan();
    let opened = cluster.open(&cancelled, &stripe).await.unwrap();
    assert!(used(&cluster) > 0);
    let running = cluster.start_all(&opened).await;
    for node in running.keys() {
        cluster.cancel(*node, cancelled.id).await;
    }
    let (mut ended, mut cancels) = (0, 0);
    for end in running.into_values() {
        let end = end.await.unwrap().unwrap();
        ended += 1;
        cancels += usize::from(errors(&end).iter().any(|error| error.message.contains("was cancelled")));
    }
    // Later agents in the chain may have noticed the broken link first.
    assert!(ended == 5 && cancels >= 1);
    gate.open();
    until("all memory is released", async || used(&cluster) == 0).await;

    // The receiver of the events disconnected.
    let opened = cluster.coordinator.tasks(&plan(), &stripe);
    let requestor = &opened[&Party::Node(to)];
    cluster.call(to).await.open(requestor.clone()).await.unwrap();
    let listener = cluster.start_one(to, weft_proto::decode_task(&requestor.task).unwrap().plan).await;
    listener.abort();
    until("all memory is released", async || used(&cluster) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_peer_is_named() {
    let (cluster, stripe, gate) = gated().await;
    let to = NodeId(7);
    let plan = stripe.repair_plan(0, Party::Node(to), &[2, 1, 3, 4], "pipeline", &[stripe.layout.coded_span()]);
    let mut tasks: BTreeMap<_, _> = cluster.coordinator.tasks(&plan, &stripe);
    for (party, request) in &mut tasks {
        let Party::Node(node) = party else { panic!() };
        request.stall_ms = if node.0 == 2 { 300 } else { 60_000 };
        cluster.call(*node).await.open(request.clone()).await.unwrap();
    }
    let mut running = BTreeMap::new();
    for party in tasks.keys() {
        let Party::Node(node) = party else { panic!() };
        running.insert(*node, cluster.start_one(*node, plan.id).await);
    }
    let end = running.remove(&NodeId(2)).unwrap().await.unwrap().unwrap();
    let cause = &errors(&end)[0];
    assert_eq!((cause.party, cause.reaction), (Some(node(2)), Reaction::Replan), "{cause}");
    assert!(cause.message.contains("nothing moved for 300 ms"), "{cause}");
    assert!((MIB - 3 * stripe.slice_len..=MIB).contains(&cause.position.unwrap()), "{cause}");
    gate.open();
    running.remove(&NodeId(3));
    for end in running.into_values() {
        assert!(!errors(&end.await.unwrap().unwrap()).is_empty(), "the broken link went unnoticed");
    }
}
