//! Stripes that are opened for updates, sealed, settled and closed, by agents that answer and fail as told.

use crate::{
    fake_agent::FakeAgent,
    updating::{Step, checksum},
    world::World,
};
use std::time::Duration;
use weft_coordinator::CoordinatorConfig;
use weft_meta::{
    CommitPut, EndStripe, Meta, MetaMode, NewCluster, NewStripe, NewUpload, SqliteMeta, TermRecord, TermState, UpdateMeta,
};
use weft_proto::{LinkToken, UpdateRights, decode_sealed, from_status, v1};
use weft_types::{
    Ack, BlockId, BlockState, ClusterId, Epoch, Error, FailureDomain, Home, Layout, ObjectName, PutKey, Reaction, Result, Seq,
    StripeId, StripeLayout, StripeRecord, UploadId,
};
use weft_update::Sealed;

pub(crate) const BLOCK_LEN: u64 = 64 << 10;
pub(crate) const IDLE_MS: u64 = 30_000;

pub(crate) fn opened(world: &World) -> SqliteMeta {
    let new = NewCluster { id: ClusterId(1), incarnation: 1, policies: Vec::new(), created_ms: 1, auto_repair: false };
    SqliteMeta::open(&world.metadata_file(), MetaMode::Inline, &new).unwrap()
}

/// An object of one stripe of rs(4,2), on the first six of some agents.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) agents: Vec<FakeAgent>,
    pub(crate) meta: SqliteMeta,
    pub(crate) version: UploadId,
    pub(crate) stripe: StripeId,
}

impl Cluster {
    pub(crate) async fn new(nodes: u32) -> Self {
        Self::of(nodes, 2, None).await
    }

    /// A stripe of rs(4,m), on some agents, one of which may speak an earlier protocol.
    pub(crate) async fn of(nodes: u32, m: u32, earlier: Option<(u32, u16)>) -> Self {
        Self::with_len(nodes, m, earlier, 4 * BLOCK_LEN, |_| {}).await
    }

    /// The same, of so many bytes.
    pub(crate) async fn with_len(
        nodes: u32,
        m: u32,
        earlier: Option<(u32, u16)>,
        data_len: u64,
        change: impl FnOnce(&mut CoordinatorConfig),
    ) -> Self {
        let world = World::with(0, 1, move |config| {
            config.updates_idle_ms = IDLE_MS;
            change(config);
        })
        .await;
        let mut agents = Vec::new();
        for node in 1..=nodes {
            let name = format!("n{node}");
            agents.push(match earlier.filter(|(earlier, _)| *earlier == node) {
                Some((_, protocol)) => FakeAgent::start_speaking(&world, &name, protocol).await,
                None => FakeAgent::start(&world, &name).await,
            });
        }
        let n = 4 + m as usize;
        let meta = opened(&world);
        let epoch = Epoch(world.coordinator().epoch());
        let layout = Layout { block_len: BLOCK_LEN, cell_len: 4096, alpha: 1 };
        let upload = NewUpload {
            name: ObjectName { bucket: "b".into(), key: "k".into() },
            code: format!("rs(4,{m})"),
            layout,
            failure_domain: FailureDomain::Node,
            ack: Ack { missing_max: 0 },
            replicas: 1,
            created_ms: 1,
            expires_ms: u64::MAX >> 1,
            replaces: None,
            key: PutKey(7),
        };
        let disks = meta.nodes().await.unwrap();
        let layout = StripeLayout { layout, k: 4, m, data_len };
        let stored = layout.blocks().count();
        let homes: Vec<Home> = disks[..stored].iter().map(|node| Home { node: node.id, disk: node.disks[0].number }).collect();
        let sums = |index: u8| if layout.block_len(index.into()) > 0 { vec![checksum(index, 0)] } else { Vec::new() };
        let stripe = NewStripe { number: 0, layout, homes: homes.clone() };
        let (upload, stripes) = meta.begin_put(epoch, upload, vec![stripe]).await.unwrap();
        let end = EndStripe {
            upload: upload.id,
            stripe: stripes[0].id,
            blocks: homes.iter().map(|home| (1, *home, BlockState::Ok)).collect(),
            checksums: (0..n as u8).map(sums).collect(),
            garbage_not_before_ms: 1,
        };
        let commit = CommitPut { size: data_len, now_ms: 1, ..CommitPut::default() };
        meta.end_stripe(epoch, end, Some(commit)).await.unwrap();
        Self { world, agents, meta, version: upload.id, stripe: stripes[0].id }
    }

    pub(crate) fn asked(&self) -> v1::OpenForUpdatesRequest {
        v1::OpenForUpdatesRequest {
            bucket: "b".into(),
            key: "k".into(),
            version: self.version.0,
            ..v1::OpenForUpdatesRequest::default()
        }
    }

    pub(crate) async fn open_with(&self, request: v1::OpenForUpdatesRequest) -> Result<(Sealed, v1::OpenForUpdatesReply)> {
        let mut bare = self.world.bare_client().await;
        let reply = bare.open_for_updates(request).await.map_err(|status| from_status(&status))?.into_inner();
        Ok((decode_sealed(&reply.stripe.as_ref().unwrap().sealed).unwrap(), reply))
    }

    pub(crate) async fn open(&self) -> Result<Sealed> {
        self.open_with(self.asked()).await.map(|(sealed, _)| sealed)
    }

    /// Begins to read the first data block.
    pub(crate) async fn read(&self) -> Result<v1::ReadStripeReply> {
        let mut bare = self.world.bare_client().await;
        let end = self.record().await.layout.block_len(0);
        let ranges = vec![v1::BlockRange { index: 0, start: 0, end }];
        let request = v1::ReadStripeRequest { bucket: "b".into(), key: "k".into(), ranges, ..v1::ReadStripeRequest::default() };
        bare.read_stripe(request).await.map(tonic::Response::into_inner).map_err(|status| from_status(&status))
    }

    /// All blocks that take part have applied so many updates of the first one.
    pub(crate) fn update(&self, updates: u64) {
        for agent in &self.agents {
            agent.asked().updating.blocks.values_mut().filter(|it| it.term.is_some()).for_each(|it| it.updates = updates);
        }
    }

    pub(crate) fn block(&self, index: u8) -> BlockId {
        BlockId { stripe: self.stripe, index, copy: 0, generation: 1 }
    }

    pub(crate) fn blocks(&self, indexes: impl IntoIterator<Item = u8>) -> Vec<BlockId> {
        indexes.into_iter().map(|index| self.block(index)).collect()
    }

    pub(crate) async fn record(&self) -> StripeRecord {
        self.meta.stripe(self.stripe).await.unwrap()
    }

    pub(crate) async fn term(&self) -> Option<TermRecord> {
        self.meta.stripe_term(self.stripe).await.unwrap()
    }

    pub(crate) async fn state(&self) -> Option<TermState> {
        self.term().await.map(|record| record.state)
    }

    /// The calls of a step that each agent has received.
    pub(crate) fn calls(&self, step: Step) -> Vec<usize> {
        self.agents.iter().map(|agent| agent.asked().updating.count(step)).collect()
    }

    pub(crate) fn open_blocks(&self) -> usize {
        let is_open = |agent: &FakeAgent| agent.asked().updating.blocks.values().filter(|it| it.term.is_some()).count();
        self.agents.iter().map(is_open).sum()
    }

    /// The states of the six blocks.
    pub(crate) async fn states(&self) -> Vec<BlockState> {
        self.record().await.blocks.values().map(|placed| placed.state).collect()
    }

    pub(crate) async fn until_up(&self, nodes: usize) {
        self.world.until("the agents are up", async |world| world.up().await.len() == nodes).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stripe_is_opened_once_for_many_clients() {
    let cluster = Cluster::new(6).await;
    let all = futures::future::join_all((0..8).map(|_| cluster.open_with(cluster.asked()))).await;
    let (sealed, first) = all[0].clone().unwrap();
    assert_eq!((sealed.term, &sealed.members), (1, &cluster.blocks(0..6)));
    assert_eq!(cluster.calls(Step::Open), [1; 6]);
    let mut sessions: Vec<u64> = all.iter().map(|it| it.clone().unwrap().1.session.unwrap().number).collect();
    assert!(all.iter().all(|it| it.clone().unwrap().0 == sealed), "one term");
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!(sessions.len(), 8, "each client has its own session");

    let open = first.stripe.unwrap();
    let homes: Vec<(u32, &str)> = open.members.iter().map(|member| (member.node, &*member.name)).collect();
    assert_eq!(homes, [(1, "n1"), (2, "n2"), (3, "n3"), (4, "n4"), (5, "n5"), (6, "n6")]);
    assert!(open.members.iter().all(|member| !member.address.is_empty()));
    let session = first.session.unwrap();
    assert_eq!(first.lasts_ms, 300_000);
    assert_eq!(first.tokens.iter().map(|token| token.index).collect::<Vec<_>>(), [0, 1, 2, 3], "of the data blocks");
    for token in &first.tokens {
        let block = cluster.block(token.index as u8);
        let rights = UpdateRights { block, term: 1, session: session.number, ends_at_ms: session.ends_at_ms };
        let agent = cluster.agents[token.index as usize].asked();
        agent.link_key.as_ref().unwrap().verify_update(&rights, &LinkToken::from_slice(&token.token).unwrap()).unwrap();
    }
    // A client keeps its session.
    let again = v1::OpenForUpdatesRequest { session: Some(session), ..cluster.asked() };
    assert_eq!(cluster.open_with(again).await.unwrap().1.session, Some(session));
    for (wrong, reaction) in [
        (v1::OpenForUpdatesRequest { number: 1, ..cluster.asked() }, Reaction::InvalidInput),
        (v1::OpenForUpdatesRequest { version: 99, ..cluster.asked() }, Reaction::NotFound),
        (v1::OpenForUpdatesRequest { key: "other".into(), ..cluster.asked() }, Reaction::NotFound),
    ] {
        assert_eq!(cluster.open_with(wrong).await.unwrap_err().reaction, reaction);
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_settles_an_open_stripe_and_two_settles_at_once_are_one() {
    let cluster = Cluster::new(6).await;
    cluster.open().await.unwrap();
    cluster.update(3);
    let (first, second) = tokio::join!(cluster.read(), cluster.read());
    let reply = first.unwrap();
    second.unwrap();
    for step in [Step::Seal, Step::Sealed, Step::Settle, Step::Close] {
        assert_eq!(cluster.calls(step), [1; 6], "{step:?}");
    }
    assert_eq!((cluster.state().await, cluster.open_blocks()), (Some(TermState::Closed), 0));
    assert_eq!(cluster.record().await.seq, Seq::new(2, vec![3, 0, 0, 0]));
    assert_eq!(reply.checksums[0].checksums, [checksum(0, 3)]);
    // Plans of the old content are refused by the term and counts in their tasks.
    let task = weft_proto::decode_task(&cluster.agents[0].asked().last.as_ref().unwrap().task).unwrap();
    assert_eq!(task.seq, Seq::new(2, vec![3, 0, 0, 0]));
    let sealed = cluster.open().await.unwrap();
    assert_eq!((sealed.term, sealed.vector), (3, [(0, 3)].into()));
}

#[tokio::test(start_paused = true)]
async fn a_block_that_is_not_opened_in_time_is_left_out_and_never_comes_back() {
    let mut cluster = Cluster::new(6).await;
    cluster.agents[5].asked().updating.hangs_at = Some(Step::Open);
    let error = cluster.open().await.unwrap_err();
    assert!(error.reaction == Reaction::Retry && error.message.contains("1 blocks of the stripe could not be opened"), "{error}");
    let states = cluster.states().await;
    assert_eq!(states.iter().filter(|state| **state == BlockState::Missing).count(), 1);
    assert_eq!((states[5], cluster.state().await), (BlockState::Missing, Some(TermState::Closed)));
    assert_eq!(cluster.record().await.checksums_of(5), None);
    // The others are enough.
    let sealed = cluster.open().await.unwrap();
    assert_eq!(sealed.members, cluster.blocks(0..5));
    let known = cluster.agents[5].known();
    drop(cluster.agents.remove(5));
    cluster.until_up(5).await;
    known.told().updating.hangs_at = None;
    let back = FakeAgent::back(&cluster.world, "n6", known).await;
    cluster.until_up(6).await;
    cluster.update(1);
    cluster.read().await.unwrap();
    assert_eq!(cluster.record().await.blocks[&5].state, BlockState::Missing);
    let old = cluster.block(5);
    // An update has changed all that it contains.
    cluster.world.until("it removes its old block", async |_| back.asked().removed().concat().contains(&old)).await;
    // What it says of its old block changes nothing.
    let mut member = cluster.world.bare_member().await;
    let epoch = cluster.world.coordinator().epoch();
    let corrupt = v1::CorruptBlock { block: postcard::to_allocvec(&old).unwrap(), len_bytes: 1, ..Default::default() };
    let heartbeat = v1::HeartbeatRequest { node: 6, epoch, corrupt: vec![corrupt], ..Default::default() };
    member.heartbeat(heartbeat).await.unwrap();
    assert_eq!(cluster.record().await.blocks[&5].state, BlockState::Missing);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_a_task_uses_is_waited_for_and_nothing_is_left_out() {
    let cluster = Cluster::new(6).await;
    cluster.agents[4].asked().updating.busy = true;
    let error = cluster.open().await.unwrap_err();
    assert!(error.reaction == Reaction::Retry && error.message.contains("a task uses the block"), "{error}");
    assert_eq!(cluster.state().await, Some(TermState::Opening));
    let error = cluster.read().await.unwrap_err();
    assert_eq!(error.reaction, Reaction::Retry, "{error}");
    cluster.agents[4].asked().updating.busy = false;
    assert_eq!(cluster.open().await.unwrap().members, cluster.blocks(0..6));
    cluster.read().await.unwrap();
    assert_eq!(cluster.states().await, [BlockState::Ok; 6]);
}

#[tokio::test(start_paused = true)]
async fn a_stripe_that_no_agent_opens_stays_as_it_was() {
    let cluster = Cluster::new(6).await;
    let before = cluster.record().await;
    cluster.agents.iter().for_each(|agent| agent.asked().updating.refuses = true);
    let error = cluster.open().await.unwrap_err();
    assert!(error.message.contains("it has no journal"), "{error}");
    assert_eq!((cluster.record().await, cluster.state().await), (before, Some(TermState::Closed)));
    cluster.read().await.unwrap();
    cluster.agents.iter().for_each(|agent| agent.asked().updating.refuses = false);
    assert_eq!(cluster.open().await.unwrap().term, 2);
}

/// The coordinator dies while an agent has not answered a call yet, and what is recorded then.
#[tokio::test(start_paused = true)]
async fn the_next_coordinator_finishes_what_the_last_one_began() {
    for (step, recorded) in [
        (Step::Open, TermState::Opening),
        (Step::Seal, TermState::Open),
        (Step::Sealed, TermState::Open),
        (Step::Settle, TermState::Open),
        (Step::Close, TermState::Settled),
    ] {
        let mut cluster = Cluster::new(6).await;
        if step != Step::Open {
            cluster.open().await.unwrap();
            cluster.update(2);
        }
        cluster.agents[1].asked().updating.hangs_at = Some(step);
        let (mut bare, asked) = (cluster.world.bare_client().await, cluster.asked());
        let ranges = vec![v1::BlockRange { index: 0, start: 0, end: BLOCK_LEN }];
        let read = v1::ReadStripeRequest { bucket: "b".into(), key: "k".into(), ranges, ..v1::ReadStripeRequest::default() };
        tokio::spawn(async move {
            let _dies = if step == Step::Open {
                bare.open_for_updates(asked).await.map(drop)
            } else {
                bare.read_stripe(read).await.map(drop)
            };
        });
        cluster.world.until("an agent is asked", async |_| cluster.agents[1].asked().updating.count(step) > 0).await;
        cluster.world.until("the others have answered", async |_| cluster.state().await == Some(recorded)).await;
        cluster.world.restart_coordinator().await;
        cluster.agents[1].asked().updating.hangs_at = None;
        cluster.until_up(6).await;
        let is_closed = async |_: &World| cluster.state().await == Some(TermState::Closed);
        cluster.world.until("the stripe is settled and closed", is_closed).await;
        let updates = if step == Step::Open { 0 } else { 2 };
        let record = cluster.record().await;
        assert_eq!(record.checksums, (0..6).map(|index| vec![checksum(index, updates)]).collect::<Vec<_>>(), "{step:?}");
        assert_eq!((cluster.states().await, cluster.open_blocks()), (vec![BlockState::Ok; 6], 0), "{step:?}");
        cluster.read().await.unwrap();
        let sealed = cluster.open().await.unwrap();
        assert!(sealed.term > record.seq.term() && sealed.members == cluster.blocks(0..6), "{step:?}: {sealed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stripe_that_was_open_when_the_coordinator_died_can_still_be_updated() {
    let mut cluster = Cluster::new(6).await;
    let (sealed, reply) = cluster.open_with(cluster.asked()).await.unwrap();
    cluster.world.restart_coordinator().await;
    cluster.until_up(6).await;
    let again = v1::OpenForUpdatesRequest { session: reply.session, ..cluster.asked() };
    let (now, other) = cluster.open_with(again).await.unwrap();
    assert_eq!((now, cluster.calls(Step::Open)), (sealed, vec![1; 6]));
    assert_ne!(other.session, reply.session, "the sessions of the last coordinator are not known");
}

#[tokio::test(start_paused = true)]
async fn blocks_that_go_silent_are_left_out_of_what_is_settled() {
    for step in [Step::Seal, Step::Sealed, Step::Settle] {
        let cluster = Cluster::new(6).await;
        cluster.open().await.unwrap();
        cluster.update(1);
        cluster.agents[5].asked().updating.hangs_at = Some(step);
        cluster.read().await.unwrap();
        let record = cluster.record().await;
        assert_eq!(record.seq.counts(), [1, 0, 0, 0], "{step:?}");
        assert_eq!((record.blocks[&5].state, record.checksums_of(5)), (BlockState::Missing, None), "{step:?}");
        assert_eq!(record.checksums_of(4), Some(&[checksum(4, 1)][..]));
        assert_eq!(record.seq.term(), if step == Step::Seal { 2 } else { 3 }, "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stripe_with_too_few_blocks_waits_for_them() {
    let cluster = Cluster::new(6).await;
    cluster.open().await.unwrap();
    let hang = |step| cluster.agents[..3].iter().for_each(|agent| agent.asked().updating.hangs_at = step);
    hang(Some(Step::Seal));
    let error = cluster.read().await.unwrap_err();
    assert!(error.reaction == Reaction::Unavailable && error.message.contains("too many of its blocks do not answer"), "{error}");
    assert_eq!(cluster.states().await, [BlockState::Ok; 6], "nothing is given up");
    hang(None);
    cluster.read().await.unwrap();
    assert_eq!(cluster.states().await, [BlockState::Ok; 6]);
}

#[tokio::test(start_paused = true)]
async fn a_stripe_that_no_client_asks_for_is_settled_unless_a_node_is_away() {
    let mut cluster = Cluster::new(6).await;
    cluster.open().await.unwrap();
    tokio::time::sleep(Duration::from_millis(IDLE_MS - 2_000)).await;
    cluster.open().await.unwrap();
    tokio::time::sleep(Duration::from_millis(IDLE_MS - 2_000)).await;
    assert_eq!(cluster.state().await, Some(TermState::Open), "a client has asked for it");
    let known = cluster.agents[0].known();
    drop(cluster.agents.remove(0));
    tokio::time::sleep(Duration::from_millis(10_000)).await;
    assert_eq!(cluster.state().await, Some(TermState::Open), "its node may come back");
    let back = FakeAgent::back(&cluster.world, "n1", known).await;
    cluster.agents.insert(0, back);
    let is_closed = async |_: &World| cluster.state().await == Some(TermState::Closed);
    cluster.world.until("it is settled", is_closed).await;
    assert_eq!(cluster.states().await, [BlockState::Ok; 6]);
    assert_eq!(cluster.record().await.seq.term(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_was_not_closed_is_closed_when_a_task_needs_it() {
    let cluster = Cluster::new(6).await;
    cluster.open().await.unwrap();
    cluster.agents[0].asked().updating.hangs_at = Some(Step::Close);
    let reading = cluster.read();
    let answering = async {
        cluster.world.until("it is settled", async |_| cluster.state().await == Some(TermState::Settled)).await;
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        cluster.agents[0].asked().updating.hangs_at = None;
    };
    let (read, ()) = tokio::join!(reading, answering);
    read.unwrap();
    assert_eq!((cluster.state().await, cluster.open_blocks()), (Some(TermState::Closed), 0));
    assert_eq!(cluster.states().await, [BlockState::Ok; 6]);
}

#[tokio::test(start_paused = true)]
async fn what_a_plan_from_before_an_update_finds_proves_nothing() {
    let cluster = Cluster::new(6).await;
    cluster.agents[0].asked().hangs = true;
    let (mut bare, ranges) = (cluster.world.bare_client().await, vec![v1::BlockRange { index: 0, start: 0, end: BLOCK_LEN }]);
    let read = v1::ReadStripeRequest { bucket: "b".into(), key: "k".into(), ranges, ..v1::ReadStripeRequest::default() };
    let reading = tokio::spawn(async move { bare.read_stripe(read).await });
    cluster.world.until("its agent is asked", async |_| cluster.agents[0].asked().opens > 0).await;
    // Its task comes late, and its block no longer contains what is recorded in it.
    cluster.open().await.unwrap();
    cluster.update(1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    cluster.agents[0].asked().finds_corrupt = Some(cluster.block(0));
    let ranges = vec![v1::BlockRange { index: 1, start: 0, end: BLOCK_LEN }];
    let other = v1::ReadStripeRequest { bucket: "b".into(), key: "k".into(), ranges, ..v1::ReadStripeRequest::default() };
    cluster.world.bare_client().await.read_stripe(other).await.unwrap();
    assert_eq!(cluster.record().await.seq.counts(), [1, 0, 0, 0]);
    cluster.agents[0].asked().hangs = false;
    let _another_plan = reading.await.unwrap();
    assert_eq!(cluster.states().await, [BlockState::Ok; 6]);
    // A plan of the current content finds what is so.
    cluster.agents[0].asked().finds_corrupt = Some(cluster.block(0));
    let _rebuilt = cluster.read().await;
    assert_eq!(cluster.states().await[0], BlockState::Corrupt);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_removed_while_it_is_open() {
    let cluster = Cluster::new(6).await;
    cluster.open().await.unwrap();
    cluster.world.client.remove("b", "k").await.unwrap();
    assert_eq!((cluster.term().await, cluster.world.rows("stripe_terms")), (None, 0));
    let removed = async |_: &World| {
        (0..6u8).all(|index| cluster.agents[usize::from(index)].asked().removed().concat().contains(&cluster.block(index)))
    };
    cluster.world.until("its blocks are removed", removed).await;
    tokio::time::sleep(Duration::from_millis(IDLE_MS + 2_000)).await;
    assert_eq!(cluster.calls(Step::Seal), [0; 6]);
    assert_eq!(cluster.open().await.unwrap_err().reaction, Reaction::NotFound);
}

#[tokio::test(start_paused = true)]
async fn updates_that_do_not_end_are_continued_without_the_silent_block() {
    // With a node that could take the lost block, it is rebuilt at once; without one, the others go on.
    for nodes in [6, 7] {
        let mut cluster = Cluster::new(nodes).await;
        cluster.open().await.unwrap();
        cluster.update(4);
        cluster.agents[3].asked().updating.hangs_at = Some(Step::Seal);
        if nodes == 6 {
            drop(cluster.agents.remove(3));
            cluster.until_up(5).await;
        }
        let failed = || v1::OpenForUpdatesRequest { failed_term: 1, ..cluster.asked() };
        let answer = cluster.open_with(failed()).await;
        let record = cluster.record().await;
        assert_eq!((record.blocks[&3].state, record.seq), (BlockState::Missing, Seq::new(2, vec![4, 0, 0, 0])));
        if nodes == 6 {
            let (sealed, reply) = answer.unwrap();
            assert_eq!((sealed.term, &sealed.vector), (3, &[(0, 4)].into()));
            assert_eq!(sealed.members, cluster.blocks([0, 1, 2, 4, 5]));
            assert_eq!(reply.tokens.iter().map(|token| token.index).collect::<Vec<_>>(), [0, 1, 2], "block 3 has no node");
            // An older term than the stripe's is over already.
            assert_eq!(cluster.open_with(failed()).await.unwrap().0, sealed);
            continue;
        }
        let error = answer.unwrap_err();
        assert!(error.reaction == Reaction::Retry && error.message.contains("being rebuilt"), "{error}");
        let request = cluster.agents[6].asked().last.clone().unwrap();
        let meta: weft_types::BlockMeta = postcard::from_bytes(&request.stores[0].meta).unwrap();
        assert_eq!((meta.id.index, meta.seq), (3, Seq::new(2, vec![4, 0, 0, 0])));
        assert!(request.stores[0].expected_checksums.is_empty(), "they are not known");
        assert!(meta.id.generation > 2, "not the one that was given up");
    }
}

#[tokio::test(start_paused = true)]
async fn agents_learn_which_stripes_are_open() {
    let cluster = Cluster::new(6).await;
    let (epoch, mut member) = (cluster.world.coordinator().epoch(), cluster.world.bare_member().await);
    let blocks = vec![postcard::to_allocvec(&cluster.block(2)).unwrap(); 2];
    let asked = v1::FindOpenStripesRequest { node: 3, epoch, blocks, open: false };
    let mut find = async |asked: v1::FindOpenStripesRequest| {
        let answer = member.find_open_stripes(asked).await;
        answer.map(|answer| answer.into_inner().stripes).map_err(|status| from_status(&status))
    };
    assert_eq!(find(asked.clone()).await.unwrap(), []);
    let (_, reply) = cluster.open_with(cluster.asked()).await.unwrap();
    assert_eq!(find(asked.clone()).await.unwrap(), [reply.stripe.unwrap()]);
    cluster.read().await.unwrap();
    assert_eq!(find(asked.clone()).await.unwrap(), []);
    for (wrong, reaction) in [
        (v1::FindOpenStripesRequest { epoch: epoch + 1, ..asked.clone() }, Reaction::NotFound),
        (v1::FindOpenStripesRequest { node: 99, ..asked.clone() }, Reaction::NotFound),
        (v1::FindOpenStripesRequest { blocks: vec![vec![0xff; 9]], ..asked.clone() }, Reaction::InvalidInput),
        (v1::FindOpenStripesRequest { blocks: vec![asked.blocks[0].clone(); 5_000], ..asked.clone() }, Reaction::InvalidInput),
    ] {
        let error: Error = find(wrong).await.unwrap_err();
        assert_eq!(error.reaction, reaction, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn old_records_are_forgotten() {
    let cluster = Cluster::new(6).await;
    cluster.open().await.unwrap();
    cluster.read().await.unwrap();
    tokio::time::sleep(Duration::from_secs(500)).await;
    assert_eq!(cluster.state().await, Some(TermState::Closed), "a client may repeat its request");
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(cluster.state().await, None);
    assert_eq!(cluster.open().await.unwrap().term, 3);
}
