//! Requests that an agent refuses without harm to itself, and its membership in the cluster.

use crate::cluster::{CLIENT, Cluster, Options, Stripe, errors, node, until};
use std::{fs, time::Duration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weft_agent::{Agent, Limits};
use weft_proto::{
    Peer, TcpNet, decode_task, encode_task, from_status,
    v1::{
        ListBlocksRequest, OpenRequest, QuarantineRequest, ReleaseQuarantineRequest, RemoveRequest, StartRequest,
        task_event::Event,
    },
};
use weft_types::{BlockId, ClusterId, Error, NodeId, Party, Reaction, StripeId};

const MIB: u64 = 1 << 20;
const ONE: NodeId = NodeId(1);

fn small(number: u64) -> Stripe {
    Stripe::new(number, "rs(1,1)", MIB, MIB)
}

async fn refused(cluster: &Cluster, request: OpenRequest) -> Error {
    from_status(&cluster.call(ONE).await.open(request).await.unwrap_err())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_tasks_are_refused_and_leave_nothing() {
    let cluster = Cluster::start(Options::agents(2)).await;
    let stripe = small(1);
    let request = |change: fn(&mut weft_plan::Task)| {
        let mut request = cluster.coordinator.tasks(&stripe.write_plan(), &stripe)[&node(0)].clone();
        let mut task = decode_task(&request.task).unwrap();
        change(&mut task);
        request.task = encode_task(&task).unwrap();
        request
    };
    let for_another = refused(&cluster, request(|task| task.party = node(1))).await;
    assert!(for_another.message.contains("a task of n2 was sent to n1"), "{for_another}");
    let no_window = refused(&cluster, request(|task| task.lanes[0].window = 0)).await;
    assert_eq!(no_window.reaction, Reaction::InvalidInput, "{no_window}");
    let too_long = refused(&cluster, request(|task| task.stores[0].len -= 1)).await;
    assert!(too_long.message.contains("do not agree"), "{too_long}");
    let mut garbage = request(|_| ());
    garbage.task.truncate(garbage.task.len() / 2);
    assert_eq!(refused(&cluster, garbage).await.reaction, Reaction::InvalidInput);
    let mut no_disk = request(|_| ());
    no_disk.stores[0].disk = "0".repeat(32);
    assert_eq!(refused(&cluster, no_disk).await.reaction, Reaction::Replan);
    let mut no_peer = request(|_| ());
    no_peer.peers.clear();
    assert_eq!(refused(&cluster, no_peer).await.reaction, Reaction::InvalidInput);

    let old = refused(&cluster, request(|task| task.epoch = 0)).await;
    assert_eq!(old.reaction, Reaction::Fatal);
    assert!(old.message.contains("epoch 0 has ended: this node obeys epoch 1"), "{old}");

    let read = stripe.repair_plan(1, node(1), &[0], "conventional", &[stripe.layout.coded_span()]);
    let missing = refused(&cluster, cluster.coordinator.tasks(&read, &stripe)[&node(0)].clone()).await;
    assert_eq!((missing.reaction, missing.block), (Reaction::NotFound, Some(stripe.block(0, 1))));
    assert_eq!(cluster.agents[&1].memory_used_bytes(), 0);

    // After all these refusals, the same agent accepts the valid request, and accepts it once.
    let right = request(|_| ());
    cluster.call(ONE).await.open(right.clone()).await.unwrap();
    assert!(refused(&cluster, right.clone()).await.message.contains("already open"));
    cluster.cancel(ONE, decode_task(&right.task).unwrap().plan).await;
    cluster.write(&stripe).await;
    assert!(refused(&cluster, request(|_| ())).await.message.contains("already"), "a block was overwritten");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_call_opens_and_starts_a_task() {
    let cluster = Cluster::start(Options::agents(2)).await;
    let stripe = small(1);
    let plan = stripe.write_plan();
    let tasks = cluster.coordinator.tasks(&plan, &stripe);
    let open = tasks[&node(0)].clone();
    let request = StartRequest { plan: plan.id.0, epoch: cluster.coordinator.epoch(), open: Some(open), pages: false };
    let mut agent = cluster.call(ONE).await;
    let of_another = StartRequest { plan: plan.id.0 + 1, ..request.clone() };
    let error = from_status(&agent.start(of_another).await.unwrap_err());
    assert!(error.message.contains("not to plan") && error.reaction == Reaction::InvalidInput, "{error}");
    assert_eq!(cluster.agents[&1].memory_used_bytes(), 0);

    let _events = agent.start(request.clone()).await.unwrap();
    assert!(cluster.agents[&1].memory_used_bytes() > 0);
    let again = from_status(&agent.start(request.clone()).await.unwrap_err());
    assert!(again.message.contains("already open"), "{again}");
    let again = from_status(&agent.start(StartRequest { open: None, ..request.clone() }).await.unwrap_err());
    assert!(again.message.contains("already been started"), "{again}");

    // Another agent was busy: the started task is cancelled, and all agents are asked again. Connections that arrive
    // then are accepted.
    cluster.cancel(ONE, plan.id).await;
    assert_eq!(cluster.agents[&1].memory_used_bytes(), 0, "its memory is released");
    let _events = agent.start(request).await.unwrap();
    let client = cluster.client();
    let (task, peers) = (decode_task(&tasks[&CLIENT].task).unwrap(), &tasks[&CLIENT].peers);
    let (link, peer) = task.links.iter().zip(peers).find(|(link, _)| link.peer == node(0)).unwrap();
    let let_in = client.dial(&task, link, peer).await;
    assert!(let_in.is_ok(), "{:?}", let_in.err());
    drop(let_in);
    cluster.cancel(ONE, plan.id).await;
    cluster.write(&stripe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_valid_token_moves_bytes_and_each_token_is_valid_once() {
    let cluster = Cluster::start(Options { tls: true, ..Options::agents(2) }).await;
    let stripe = small(1);
    let client = cluster.client().with_data(&stripe);
    let opened = cluster.open(&stripe.write_plan(), &stripe).await.unwrap();
    let task = decode_task(&opened.tasks[&CLIENT].task).unwrap();
    let (link, peer) = (&task.links[0], &opened.tasks[&CLIENT].peers[0]);

    let mut forged = peer.clone();
    forged.token[0] ^= 1;
    let error = client.dial(&task, link, &forged).await.err().unwrap();
    assert!(error.message.contains("token") && error.reaction == Reaction::InvalidInput, "{error}");
    // The token of another link is refused, and so is a certificate that is not the client's.
    let mut other = peer.clone();
    other.token = opened.tasks[&CLIENT].peers[1].token.clone();
    assert!(client.dial(&task, link, &other).await.is_err());
    let stranger = cluster.client_with(&Peer::Agent("node-02".into()));
    let error = stranger.dial(&task, link, peer).await.err().unwrap();
    assert!(error.message.contains("expected a client, but agent node-02 connected"), "{error}");

    let first = client.dial(&task, link, peer).await.ok().unwrap();
    assert!(client.dial(&task, link, peer).await.is_err(), "a token was accepted twice");
    drop(first);

    // Only the coordinator may call.
    let mut call = cluster.coordinator.call_with(cluster.security(&Peer::Client), ONE).await;
    let error = from_status(&call.list_blocks(ListBlocksRequest::default()).await.unwrap_err());
    assert!(error.message.contains("a client is not the coordinator"), "{error}");
    for node in [ONE, NodeId(2)] {
        cluster.cancel(node, opened.plan.id).await;
    }
    cluster.write(&stripe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_peer_of_a_failed_plan_learns_the_cause() {
    let cluster = Cluster::start(Options { tls: true, ..Options::agents(2) }).await;
    let stripe = small(1);
    let client = cluster.client();
    let opened = cluster.open(&stripe.write_plan(), &stripe).await.unwrap();
    let task = decode_task(&opened.tasks[&CLIENT].task).unwrap();
    let link = task.links.iter().find(|link| link.peer == node(0)).unwrap();
    let peer = opened.tasks[&CLIENT].peers.iter().find(|peer| peer.link == link.id()).unwrap();
    let mut running = cluster.start_all(&opened).await;
    for (node, running) in std::mem::take(&mut running) {
        cluster.cancel(node, opened.plan.id).await;
        let end = running.await.unwrap().unwrap();
        assert!(errors(&end)[0].message.contains("was cancelled"), "{end:?}");
    }

    let error = client.dial(&task, link, peer).await.err().unwrap();
    assert!(error.message.contains("was cancelled"), "{error}");
    let mut forged = peer.clone();
    forged.token[0] ^= 1;
    let stranger = cluster.client_with(&Peer::Agent("node-02".into()));
    for refused in [client.dial(&task, link, &forged).await, stranger.dial(&task, link, peer).await] {
        let error = refused.err().unwrap();
        assert!(!error.message.contains("was cancelled") && error.reaction == Reaction::InvalidInput, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_never_sends_a_hello_takes_only_its_share() {
    let limits = Limits { connections_max: 8, ..Limits::default() };
    let cluster = Cluster::start(Options { tls: true, limits, ..Options::agents(2) }).await;
    let stranger = cluster.security(&Peer::Agent("node-02".into()));
    let address = cluster.agents[&1].data_address().to_string();
    let mut held = Vec::new();
    // Twice as many as the agent accepts in all.
    for _ in 0..32 {
        held.push(stranger.dial(&TcpNet::default(), &address, &Peer::Agent("node-01".into())).await.unwrap());
    }
    let mut closed = 0;
    for stream in &mut held {
        let end = tokio::time::timeout(Duration::from_millis(200), stream.read_u8()).await;
        closed += u32::from(end.is_ok());
    }
    assert_eq!(closed, 32 - 4, "a quarter of 16");
    cluster.write(&small(1)).await;
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_on_both_ports_do_no_harm() {
    for tls in [false, true] {
        let cluster = Cluster::start(Options { tls, ..Options::agents(2) }).await;
        let agent = &cluster.agents[&1];
        let mut frame = b"WEFT".to_vec();
        frame.extend([3, 0, 0, 0, 1, 0, 0, 0]);
        let mut oversized = frame.clone();
        oversized.extend([0xff; 24]);
        let mut corrupt = frame.clone();
        corrupt.extend([0; 24]);
        let garbage: [&[u8]; 6] = [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", &[0x16; 3000], &oversized, &corrupt];
        for address in [agent.data_address(), agent.control_address()] {
            for bytes in garbage {
                let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
                let _closed_early = stream.write_all(bytes).await;
                let _half_closed = stream.shutdown().await;
                let mut answer = Vec::new();
                let closed = tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut answer)).await;
                assert!(closed.is_ok(), "{} bytes of garbage keep a connection to {address} open", bytes.len());
            }
        }
        cluster.write(&small(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_frames_end_only_their_task() {
    let cluster = Cluster::start(Options::agents(2)).await;
    for (number, spoil) in [(1, 40usize), (2, 3), (3, 14)] {
        let stripe = small(number);
        let opened = cluster.open(&stripe.write_plan(), &stripe).await.unwrap();
        let mut running = cluster.start_all(&opened).await;
        let task = decode_task(&opened.tasks[&CLIENT].task).unwrap();
        let link = task.links.iter().find(|link| link.peer == node(0)).unwrap();
        let peer = opened.tasks[&CLIENT].peers.iter().find(|peer| peer.link == link.id()).unwrap();
        let client = cluster.client();
        let mut stream = client.dial_raw(&task, link, peer).await;
        // A valid frame with one byte changed: in the payload, the magic, or the length.
        let mut frame = crate::cluster::data_frame(link.id(), stripe.slice_len);
        frame[spoil] ^= 0x80;
        let _closed_early = stream.write_all(&frame).await;
        let end = running.remove(&ONE).unwrap().await.unwrap().unwrap();
        let cause = &errors(&end)[0];
        assert_eq!((cause.party, cause.link, cause.position), (Some(CLIENT), Some(link.id()), Some(0)), "{cause}");
        let corrupt = cause.reaction == Reaction::Corrupt;
        assert_eq!(corrupt, spoil == 40, "{cause}");
        cluster.cancel(NodeId(2), opened.plan.id).await;
    }
    cluster.write(&small(4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_early_connection_waits_for_its_task_for_a_bounded_time() {
    let limits = Limits { parked_ms: 2_000, parked_connections_max: 1, ..Limits::default() };
    let cluster = Cluster::start(Options { limits, ..Options::agents(2) }).await;
    let stripe = small(1);
    let tasks = cluster.coordinator.tasks(&stripe.write_plan(), &stripe);
    let task = decode_task(&tasks[&CLIENT].task).unwrap();
    let client = cluster.client();
    let peers = &tasks[&CLIENT].peers;
    let at = |party: Party| {
        let link = task.links.iter().find(|link| link.peer == party).unwrap();
        (link, peers.iter().find(|peer| peer.link == link.id()).unwrap())
    };
    let ((to_one, peer_one), (to_two, peer_two)) = (at(node(0)), at(node(1)));
    let open_soon = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.call(ONE).await.open(tasks[&node(0)].clone()).await.unwrap();
    };
    let (early, ()) = tokio::join!(client.dial(&task, to_one, peer_one), open_soon);
    assert!(early.is_ok(), "{:?}", early.err());
    let (never, no_room) = tokio::join!(client.dial(&task, to_two, peer_two), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        client.dial(&task, to_two, peer_two).await
    });
    for refused in [never, no_room] {
        let error = refused.err().unwrap();
        assert!(error.reaction == Reaction::Retry && error.message.contains("is not open"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opened_task_that_is_never_started_is_dropped() {
    let limits = Limits { unstarted_ms: 300, ..Limits::default() };
    let cluster = Cluster::start(Options { limits, ..Options::agents(2) }).await;
    let stripe = small(1);
    let opened = cluster.open(&stripe.write_plan(), &stripe).await.unwrap();
    assert!(cluster.agents[&1].memory_used_bytes() > 0);
    until("it is dropped", async || cluster.agents.values().all(|agent| agent.memory_used_bytes() == 0)).await;
    let late = cluster.start_one(ONE, opened.plan.id).await.await.unwrap();
    assert_eq!(late.err().unwrap().reaction, Reaction::NotFound);
    cluster.write(&stripe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_removed_only_for_valid_metadata_and_within_the_daily_limit() {
    let limits = Limits { removed_blocks_per_day: 4, removed_percent_per_day: 10, ..Limits::default() };
    let mut cluster = Cluster::start(Options { limits, ..Options::agents(2) }).await;
    let stripes: Vec<Stripe> = (1..=70).map(|number| Stripe::new(number, "rs(1,1)", 4096, 4096)).collect();
    for stripe in &stripes {
        cluster.write(stripe).await;
    }
    let blocks: Vec<BlockId> = stripes.iter().map(|stripe| stripe.block(0, 1)).collect();
    let remove = async |change: fn(&mut RemoveRequest), blocks: &[BlockId]| {
        let blocks = blocks.iter().map(|id| postcard::to_allocvec(id).unwrap()).collect();
        // Without a reason, the blocks count as unexpected.
        let incarnation = "first".into();
        let mut request = RemoveRequest { epoch: 1, incarnation, high_water: 70, blocks, ..RemoveRequest::default() };
        change(&mut request);
        let answer = cluster.call(ONE).await.remove(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| from_status(&status))
    };
    assert_eq!(remove(|r| r.epoch = 0, &blocks[..1]).await.unwrap_err().reaction, Reaction::Fatal);
    assert!(remove(|r| r.incarnation = "second".into(), &blocks[..1]).await.unwrap_err().message.contains("incarnation"));
    assert!(remove(|r| r.high_water = 69, &blocks[..1]).await.unwrap_err().message.contains("has seen stripe 70"));
    let unknown = BlockId { stripe: StripeId(999), ..blocks[0] };
    let few = remove(|_| (), &[blocks[0], blocks[1], unknown]).await.unwrap();
    assert_eq!((few.removed, few.quarantined, few.gone.len(), few.kept.as_str()), (0, 2, 3, ""));
    let many = remove(|r| r.reason = "drained".into(), &blocks[2..65]).await.unwrap();
    assert_eq!((many.removed, many.quarantined, many.gone.len(), many.waiting), (0, 5, 5, 58), "a tenth of 70 in all");
    assert!(many.kept.contains("kept 58 blocks") && many.kept.contains("to remove more now"), "{}", many.kept);
    assert_eq!(cluster.payload(ONE, blocks[0]), None);

    // Quarantine obeys the same request checks and the same limit.
    let quarantine = async |node: NodeId, incarnation: &str, epoch, high_water, block: BlockId| {
        let blocks = vec![postcard::to_allocvec(&block).unwrap()];
        let request = QuarantineRequest { epoch, incarnation: incarnation.into(), high_water, blocks };
        let answer = cluster.call(node).await.quarantine(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| from_status(&status))
    };
    let (two, other) = (NodeId(2), stripes[0].block(1, 1));
    assert_eq!(quarantine(two, "first", 0, 70, other).await.unwrap_err().reaction, Reaction::Fatal);
    assert!(quarantine(two, "second", 1, 70, other).await.unwrap_err().message.contains("incarnation"));
    assert!(quarantine(two, "first", 1, 69, other).await.unwrap_err().message.contains("has seen stripe 70"));
    assert!(cluster.payload(two, other).is_some());
    let moved = quarantine(two, "first", 1, 70, other).await.unwrap();
    assert_eq!((moved.moved, moved.kept.as_str()), (1, ""));
    assert_eq!(cluster.payload(two, other), None);
    let told =
        async |node| cluster.coordinator.member(node).unwrap().disks.iter().map(|disk| disk.quarantined_blocks).sum::<u64>();
    until("the coordinator is told", async || told(two).await == 1).await;
    let kept = quarantine(ONE, "first", 1, 70, blocks[20]).await.unwrap();
    assert!(kept.moved == 0 && kept.kept.contains("to remove more now"), "{kept:?}");

    let mut listed = Vec::new();
    loop {
        let after = listed.last().map(|id| postcard::to_allocvec::<BlockId>(id).unwrap()).unwrap_or_default();
        let page = cluster
            .call(ONE)
            .await
            .list_blocks(ListBlocksRequest { after, limit: 9, ..ListBlocksRequest::default() })
            .await
            .unwrap()
            .into_inner();
        listed.extend(page.blocks.iter().map(|id| postcard::from_bytes::<BlockId>(id).unwrap()));
        if !page.more {
            break;
        }
    }
    assert_eq!(listed, blocks[7..]);

    // A restart does not start a new day.
    cluster.agents.remove(&1).unwrap().shutdown().await.unwrap();
    cluster.start_agent(1).await;
    let some = vec![postcard::to_allocvec(&blocks[30]).unwrap()];
    let incarnation = "first".to_owned();
    let request = RemoveRequest { epoch: 1, incarnation, high_water: 70, blocks: some, ..RemoveRequest::default() };
    let after = cluster.call(ONE).await.remove(request.clone()).await.unwrap().into_inner();
    assert!(after.quarantined == 0 && after.kept.contains("to remove more now"), "{after:?}");

    // Only a bound on bytes limits the removal of blocks with a reason. An operator can release the quarantine.
    let all = blocks[7..].iter().map(|id| postcard::to_allocvec(id).unwrap()).collect();
    let request = RemoveRequest { blocks: all, reason: "replaced".into(), ..request };
    let after = cluster.call(ONE).await.remove(request.clone()).await.unwrap().into_inner();
    assert_eq!((after.removed, after.gone.len(), after.kept.as_str()), (63, 63, ""));
    let release = async |incarnation: &str, high_water, blocks_max| {
        let incarnation = incarnation.into();
        let request = ReleaseQuarantineRequest { epoch: 1, incarnation, high_water, blocks_max };
        let answer = cluster.call(ONE).await.release_quarantine(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| from_status(&status))
    };
    assert!(release("second", 70, 9).await.unwrap_err().message.contains("incarnation"));
    assert!(release("first", 69, 9).await.unwrap_err().message.contains("has seen stripe 70"));
    let told = release("", 0, 0).await.unwrap();
    assert_eq!((told.freed_blocks, told.disks[0].blocks, told.disks[0].bytes), (0, 7, 7 * 4096));
    let freed = release("first", 70, 9).await.unwrap();
    assert_eq!((freed.freed_blocks, freed.freed_bytes, freed.disks[0].blocks), (7, 7 * 4096, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_task_that_would_store_a_removed_block_is_refused() {
    let cluster = Cluster::start(Options::agents(2)).await;
    let (stripe, coordinator) = (small(1), &cluster.coordinator);
    let late = coordinator.tasks(&stripe.write_plan(), &stripe)[&node(0)].clone();
    let block = stripe.block(0, 1);
    let blocks = vec![postcard::to_allocvec(&block).unwrap()];
    let (incarnation, reason) = ("first".into(), "removed".into());
    let remove = RemoveRequest { epoch: 1, incarnation, high_water: 1, blocks, opening_ms: 60_000, reason };
    let gone = cluster.call(ONE).await.remove(remove.clone()).await.unwrap().into_inner().gone;
    assert_eq!(gone.len(), 1, "the block was never there");
    let error = refused(&cluster, late.clone()).await;
    assert!(error.reaction == Reaction::Replan && error.block == Some(block), "{error}");
    assert_eq!((cluster.payload(ONE, block), cluster.agents[&1].memory_used_bytes()), (None, 0));
    // A complete block has no task left that could write it, so its removal need not be remembered.
    let other = small(2);
    cluster.write(&other).await;
    let of_other = postcard::to_allocvec(&other.block(0, 1)).unwrap();
    let request = RemoveRequest { blocks: vec![of_other], high_water: 2, ..remove.clone() };
    assert_eq!(cluster.call(ONE).await.remove(request).await.unwrap().into_inner().removed, 1);

    // A removal is not remembered over a restart. But the node has then registered again.
    let of = |registered: weft_proto::LinkKey| OpenRequest { registration: registered.id().to_vec(), ..late.clone() };
    let before = of(coordinator.member(ONE).unwrap().key);
    assert!(refused(&cluster, before.clone()).await.message.contains("too late"));
    coordinator.forget(ONE);
    until("it registers again", async || coordinator.member(ONE).is_some_and(|m| m.registrations == 2 && m.heartbeats > 0)).await;
    let error = refused(&cluster, before).await;
    assert!(error.reaction == Reaction::Retry && error.message.contains("another registration"), "{error}");
    assert!(refused(&cluster, of(coordinator.member(ONE).unwrap().key)).await.message.contains("too late"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_reconnects_and_remembers_the_epoch_that_it_obeyed() {
    let mut cluster = Cluster::start(Options::agents(2)).await;
    cluster.write(&small(7)).await;
    let coordinator = std::sync::Arc::clone(&cluster.coordinator);
    coordinator.forget(ONE);
    until("it registers again", async || coordinator.member(ONE).is_some_and(|m| m.registrations == 2)).await;

    coordinator.restart().await;
    until("it registers with the new one", async || coordinator.member(ONE).is_some() && coordinator.member(NodeId(2)).is_some())
        .await;
    until("it is told to obey", async || coordinator.member(ONE).is_some_and(|m| m.heartbeats > 1)).await;
    cluster.write(&small(8)).await;

    cluster.agents.remove(&1).unwrap().shutdown().await.unwrap();
    cluster.start_agent(1).await;
    let request = coordinator.member(ONE).unwrap().request;
    assert_eq!((request.node, request.highest_epoch, request.high_water), (1, 2, 8));
    assert_eq!((request.incarnation.as_str(), request.disks.len()), ("first", 1));
    let error = refused(&cluster, {
        let stripe = small(9);
        let mut request = coordinator.tasks(&stripe.write_plan(), &stripe)[&node(0)].clone();
        let mut task = decode_task(&request.task).unwrap();
        task.epoch = 1;
        request.task = encode_task(&task).unwrap();
        request
    })
    .await;
    assert!(error.message.contains("epoch 1 has ended"), "{error}");

    // Lost state is restored from the disks or from the coordinator.
    cluster.agents.remove(&1).unwrap().shutdown().await.unwrap();
    fs::remove_file(cluster.agent_dir(1).join("state/agent")).unwrap();
    cluster.start_agent(1).await;
    assert_eq!(coordinator.member(ONE).unwrap().request.high_water, 8);
    let read = small(8);
    let client = cluster.client();
    for event in cluster.run(&read.read_plan(0, &[0], "conventional"), &read, &client).await.unwrap().into_values() {
        assert!(matches!(event, Event::Done(_)), "{:?}", errors(&event));
    }
    assert!(client.output(0) == read.blocks[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_does_not_start_where_it_does_not_belong() {
    let mut cluster = Cluster::start(Options::agents(1)).await;
    let address = cluster.agents[&1].data_address().to_string();
    let taken = weft_agent::AgentConfig { data_listen: address, ..cluster.config(2) };
    let error = Agent::start(taken, cluster.seams(2)).await.err().unwrap();
    assert!(error.message.contains("cannot listen on"), "{error}");

    cluster.agents.remove(&1).unwrap().shutdown().await.unwrap();
    let other = weft_agent::AgentConfig { cluster: Some(ClusterId(9)), ..cluster.config(1) };
    let error = Agent::start(other.clone(), cluster.seams(1)).await.err().unwrap();
    assert!(error.message.contains("belongs to a node of cluster"), "{error}");
    fs::remove_dir_all(cluster.agent_dir(1).join("state")).unwrap();
    let error = Agent::start(other, cluster.seams(1)).await.err().unwrap();
    assert!(error.message.contains("cluster") && error.reaction == Reaction::InvalidInput, "{error}");

    // Without a configured cluster, it joins the coordinator's.
    let joining = weft_agent::AgentConfig { cluster: None, ..cluster.config(1) };
    let agent = Agent::start(joining, cluster.seams(1)).await.unwrap();
    until("it has joined", async || agent.node() == Some(ONE)).await;
    assert_eq!(cluster.coordinator.member(ONE).unwrap().request.disks.len(), 1);
    cluster.agents.insert(1, agent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_continues_without_an_unusable_disk_and_reports_it() {
    let mut cluster = Cluster::start(Options { disks_per_agent: 2, ..Options::agents(1) }).await;
    let before = cluster.coordinator.member(ONE).unwrap().request.disks;
    cluster.agents.remove(&1).unwrap().shutdown().await.unwrap();
    let label = cluster.agent_dir(1).join("disk1/disk");
    fs::write(&label, "weft-disk 1\ngarbage\n").unwrap();
    cluster.start_agent(1).await;
    let after = cluster.coordinator.member(ONE).unwrap().request.disks;
    let told = |disks: &[weft_proto::v1::Disk]| disks.iter().map(|disk| (disk.id.clone(), disk.failed)).collect::<Vec<_>>();
    assert_eq!(told(&before), [(before[0].id.clone(), false), (before[1].id.clone(), false)]);
    assert_eq!(told(&after), [(before[0].id.clone(), false), (before[1].id.clone(), true)]);
}
