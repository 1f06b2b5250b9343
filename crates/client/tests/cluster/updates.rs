//! Writes in place, against agents that answer as told: busy, aborted, or not at all.

use crate::{CLUSTER, World, agents::Agents, open_reads, random_bytes};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use weft_client::{PutOptions, WriteLog, WriteOptions};
use weft_proto::{
    FrameStream, LinkToken, Peer, UpdatesHello, encode_sealed,
    updates::{HeadMax, Hop, Packet, Part, Route, accept},
    v1::{
        ExplainUpdateReply, ExplainUpdateRequest, ExplainedUpdate, OpenForUpdatesReply, OpenForUpdatesRequest, OpenMember,
        OpenStripe, UpdateRoute, UpdateSession, UpdateToken, UpdateWay,
    },
};
use weft_types::{BlockId, Error, NodeId, Reaction, Result, Span, StripeLayout};
use weft_update::{NotRun, Sealed, Told, UpdateId};

/// What happens to a request.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// It is not run, and answered so.
    Answer(Told),
    /// It is run, or not, and the connection ends.
    Broken { runs: bool },
    /// It is run, or not, and not answered.
    Silent { runs: bool },
}

/// The stripes that are open for updates, and what their nodes remember.
#[derive(Default)]
pub(crate) struct Updates {
    term: u64,
    sessions: u64,
    /// How long sessions last; 0: five minutes.
    lasts_ms: u64,
    /// All ids that were requested, with what they change, and whether they were run.
    known: BTreeMap<UpdateId, (Vec<Part>, bool)>,
    faults: VecDeque<Fault>,
    opened: Vec<OpenForUpdatesRequest>,
    explained: Vec<ExplainUpdateRequest>,
    /// Updates of at least so many bytes have a route to these blocks.
    routed: Option<(u64, Vec<u8>)>,
    /// The lengths of the updates that came, and the blocks that their routes reach.
    routes: Vec<(usize, Option<Vec<u8>>)>,
    /// The most bytes of an update that the nodes take, as the coordinator says; 0: it does not.
    update_bytes_max: u64,
    /// The coordinator refuses to open stripes for this reason.
    refuses: Option<Error>,
    requests: usize,
}

fn token(block: BlockId, term: u64, session: u64) -> [u8; 32] {
    let mut token = [block.index; 32];
    token[..8].copy_from_slice(&term.to_le_bytes());
    token[8..16].copy_from_slice(&session.to_le_bytes());
    token
}

/// The coordinator's part. `homes`: the data blocks and their nodes.
pub(crate) fn open(agents: &Agents, homes: &[(NodeId, BlockId)], request: OpenForUpdatesRequest) -> Result<OpenForUpdatesReply> {
    let mut state = agents.updates.lock().unwrap();
    state.opened.push(request.clone());
    if let Some(error) = &state.refuses {
        return Err(error.clone());
    }
    if state.term == 0 || request.failed_term == state.term {
        state.term += 1;
    }
    let lasts_ms = if state.lasts_ms == 0 { 300_000 } else { state.lasts_ms };
    let session = request.session.unwrap_or_else(|| {
        state.sessions += 1;
        UpdateSession { number: state.sessions, ends_at_ms: lasts_ms }
    });
    let (term, members) = (state.term, homes.iter().map(|(_, block)| *block).collect());
    let sealed = encode_sealed(&Sealed { term, members, ..Sealed::default() })?;
    let member = |(node, block): &(NodeId, BlockId)| {
        let node = agents.node(*node);
        let block = postcard::to_stdvec(block).unwrap();
        OpenMember { block, node: node.id.0, name: node.name.clone(), address: node.address.clone() }
    };
    let token = |(_, block): &(NodeId, BlockId)| UpdateToken {
        index: block.index.into(),
        token: token(*block, term, session.number).to_vec(),
    };
    let stripe = OpenStripe { stripe: homes[0].1.stripe.0, sealed, members: homes.iter().map(member).collect() };
    Ok(OpenForUpdatesReply {
        stripe: Some(stripe),
        session: Some(session),
        lasts_ms,
        tokens: homes.iter().map(token).collect(),
        routes: homes.iter().filter_map(|(_, block)| state.route(*block)).collect(),
        update_bytes_max: state.update_bytes_max,
        update_bytes_why: "agent n5 is of an earlier version".into(),
    })
}

/// The coordinator's explanation.
pub(crate) fn explain(agents: &Agents, request: ExplainUpdateRequest) -> ExplainUpdateReply {
    let blocks = request.indexes.iter().map(|index| ExplainedUpdate { index: *index, ..ExplainedUpdate::default() }).collect();
    agents.updates.lock().unwrap().explained.push(request);
    ExplainUpdateReply { blocks }
}

impl Updates {
    fn route(&self, block: BlockId) -> Option<UpdateRoute> {
        let (from_bytes, reached) = self.routed.as_ref()?;
        let mut from = block;
        let hop = |index: &u8| {
            let to = BlockId { index: *index, ..block };
            Hop { from: std::mem::replace(&mut from, to), to }
        };
        let route = Route { hops: reached.iter().map(hop).collect(), in_turn: false, slice_len: 4096 };
        let route = postcard::to_stdvec(&route).unwrap();
        Some(UpdateRoute { index: block.index.into(), route, scheme: "chain".into(), from_bytes: *from_bytes })
    }
}

/// An agent's end of a connection for updates.
pub(crate) async fn serve(agents: Arc<Agents>, node: NodeId, frames: FrameStream, hello: UpdatesHello, peer: Peer) {
    assert_eq!((hello.cluster, &hello.to), (CLUSTER, &agents.node(node).name));
    let Ok((mut reader, mut writer)) = accept(frames, &hello, &peer, HeadMax::Small).await else { return };
    while let Ok((packet, parts)) = reader.next().await {
        let (number, block, id, term, token, route) = match packet {
            Packet::Request { number, block, id, term, token } => (number, block, id, term, token, None),
            Packet::Routed { number, block, id, term, token, route } => (number, block, id, term, token, Some(route)),
            Packet::Read { number, read } => {
                let Some((found, part)) = open_reads::serve(&agents, node, read) else { return };
                let parts: Vec<_> = part.iter().map(Part::as_part_ref).collect();
                writer.feed(&Packet::Content { number, found }, &parts).await.unwrap();
                writer.flush().await.unwrap();
                continue;
            }
            other => panic!("a client sends requests, not {other:?}"),
        };
        let reached = route.map(|route| {
            route.check(block).unwrap();
            route.reached().map(|block| block.index).collect()
        });
        agents.updates.lock().unwrap().routes.push((parts.iter().map(|part| part.bytes.len()).sum(), reached));
        let told = match agents.request(node, (block, id, term, token), parts) {
            Ok(Some(told)) => told,
            Ok(None) => continue,
            Err(Broken) => return,
        };
        writer.feed(&Packet::Answer { number, told: Some(told) }, &[]).await.unwrap();
        writer.flush().await.unwrap();
    }
}

struct Broken;

impl Agents {
    fn request(
        &self,
        node: NodeId,
        (block, id, term, LinkToken(shown)): (BlockId, UpdateId, u64, LinkToken),
        parts: Vec<Part>,
    ) -> Result<Option<Told>, Broken> {
        let mut state = self.updates.lock().unwrap();
        state.requests += 1;
        assert_eq!(shown, token(block, term, id.session.number), "the token is for another block, term or session");
        assert_eq!((block.index, id.lead), (parts[0].stream, parts[0].stream), "another block leads it");
        assert!(parts.iter().map(|part| part.bytes.len()).sum::<usize>() <= 16 << 20);
        let known = state.known.entry(id).or_insert_with(|| (parts.clone(), false));
        assert!(known.0 == parts, "an id was used for two updates");
        let is_run = known.1;
        if term != state.term {
            return Ok(Some(Told::NotRun(NotRun::Retry)));
        }
        let fault = state.faults.pop_front();
        let runs = match fault {
            Some(Fault::Answer(told)) if !is_run => return Ok(Some(told)),
            Some(Fault::Broken { runs } | Fault::Silent { runs }) => runs,
            _ => true,
        };
        if runs && !is_run {
            state.known.get_mut(&id).unwrap().1 = true;
            self.patch(node, block, &parts);
        }
        match fault {
            Some(Fault::Broken { .. }) => Err(Broken),
            Some(Fault::Silent { .. }) => Ok(None),
            _ => Ok(Some(Told::Committed)),
        }
    }

    fn patch(&self, leader: NodeId, block: BlockId, parts: &[Part]) {
        let mut blocks = self.blocks.lock().unwrap();
        assert!(blocks.contains_key(&(leader, block)), "the request came to another node");
        for part in parts {
            let block = BlockId { index: part.stream, ..block };
            let (_, bytes) = blocks.iter_mut().find(|((_, id), _)| *id == block).unwrap();
            bytes[part.start as usize..][..part.bytes.len()].copy_from_slice(&part.bytes);
        }
    }

    /// The bytes of an object's stripes, as the data blocks have them.
    fn object(&self, stripes: &[(StripeLayout, u64)]) -> Vec<u8> {
        let blocks = self.blocks.lock().unwrap();
        let of = |(layout, stripe): &(StripeLayout, u64)| {
            let (layout, stripe) = (*layout, *stripe);
            let block = |index: u32| {
                let is_it = |id: &BlockId| id.stripe.0 == stripe && u32::from(id.index) == index;
                blocks.iter().find(|((_, id), _)| is_it(id)).unwrap().1
            };
            let data: Vec<&Vec<u8>> = (0..layout.data_blocks()).map(block).collect();
            let byte = |offset| {
                let (index, at) = layout.locate(offset);
                data[index as usize][at as usize]
            };
            (0..layout.data_len).map(byte).collect::<Vec<u8>>()
        };
        stripes.iter().flat_map(of).collect()
    }
}

/// A world with an object `b/k`, and its bytes.
async fn world(len: usize, block_len: u64, cell_len: u64) -> (World, Vec<u8>) {
    let world = World::insecure().await;
    let data = random_bytes(len, 7);
    let options = PutOptions { block_len, cell_len, ..PutOptions::default() };
    world.client.put("b", "k", &data[..], &options).await.unwrap();
    (world, data)
}

async fn stored(world: &World) -> Vec<u8> {
    let object = world.client.stat("b", "k").await.unwrap();
    let layouts = object.stripes.iter().map(|stripe| (postcard::from_bytes(&stripe.layout).unwrap(), stripe.id));
    world.agents.object(&layouts.collect::<Vec<_>>())
}

fn set_faults(world: &World, faults: impl IntoIterator<Item = Fault>) {
    world.agents.updates.lock().unwrap().faults.extend(faults);
}

const BUSY: Fault = Fault::Answer(Told::NotRun(NotRun::Busy));
const RETRY: Fault = Fault::Answer(Told::NotRun(NotRun::Retry));
const ABORTED: Fault = Fault::Answer(Told::Aborted);
const EXPIRED: Fault = Fault::Answer(Told::Expired);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_change_their_bytes_and_no_others() {
    let (world, mut data) = world(600_000, 64 << 10, 4096).await;
    let mut random = StdRng::seed_from_u64(5);
    for round in 0..30 {
        let start = random.random_range(0..data.len());
        let len = random.random_range(1..=(data.len() - start).min(if round % 2 == 0 { 200 } else { 400_000 }));
        let new = random_bytes(len, 100 + round);
        let faults: Vec<Fault> = [BUSY, RETRY, ABORTED, EXPIRED, Fault::Broken { runs: true }, Fault::Broken { runs: false }]
            .into_iter()
            .filter(|_| random.random_bool(0.15))
            .collect();
        set_faults(&world, faults);
        let log = WriteLog::default();
        let options = WriteOptions { size: Some(len as u64), log: log.clone(), ..WriteOptions::default() };
        let wrote = world.client.write_at("b", "k", start as u64, &new[..], &options).await.unwrap();
        assert_eq!((wrote.offset, wrote.bytes), (start as u64, len as u64));
        assert_eq!((log.written(), log.in_doubt()), (vec![Span::new(start as u64, (start + len) as u64)], vec![]));
        data[start..start + len].copy_from_slice(&new);
        assert!(stored(&world).await == data, "round {round}: {len} bytes at {start}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_asks_the_coordinator_once_and_repeats_an_id_only_while_its_outcome_is_unknown() {
    let (world, mut data) = world(100_000, 64 << 10, 4096).await;
    let writer = world.client.writer("b", "k", &WriteOptions::default()).await.unwrap();
    let opened = || world.agents.updates.lock().unwrap().opened.len();
    let ids = || world.agents.updates.lock().unwrap().known.len();
    for at in 0..20 {
        writer.write_at(at * 100, vec![at as u8; 50]).await.unwrap();
    }
    assert_eq!((opened(), ids()), (1, 20));
    set_faults(&world, [BUSY, ABORTED]);
    writer.write_at(0, vec![77; 50]).await.unwrap();
    assert_eq!((opened(), ids()), (1, 23), "each answer told the outcome");
    set_faults(&world, [Fault::Broken { runs: true }, BUSY, RETRY]);
    writer.write_at(0, vec![78; 50]).await.unwrap();
    assert_eq!(ids(), 24, "the id in doubt was requested until its outcome was known");
    let sessions: Vec<_> = world.agents.updates.lock().unwrap().opened.iter().map(|it| it.session.is_some()).collect();
    assert!(!sessions[0] && sessions[1..].iter().all(|is_kept| *is_kept), "{sessions:?}");
    (0..20).for_each(|at| data[at * 100..at * 100 + 50].fill(at as u8));
    data[..50].fill(78);
    assert!(stored(&world).await == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_does_not_answer_fails_the_term() {
    for runs in [true, false] {
        let (world, mut data) = world(100_000, 64 << 10, 4096).await;
        set_faults(&world, [Fault::Silent { runs }]);
        world.client.write_at("b", "k", 5000, &[9; 100][..], &WriteOptions::default()).await.unwrap();
        {
            let state = world.agents.updates.lock().unwrap();
            assert_eq!(state.opened.iter().map(|it| it.failed_term).collect::<Vec<_>>(), [0, 1]);
            assert_eq!((state.term, state.known.len()), (2, 1), "the id was repeated in the next term");
        }
        data[5000..5100].fill(9);
        assert!(stored(&world).await == data);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_cannot_end_says_what_is_known() {
    let (world, data) = world(100_000, 64 << 10, 4096).await;
    let options = || WriteOptions { deadline: Duration::from_millis(700), ..WriteOptions::default() };
    set_faults(&world, [BUSY; 20]);
    let error = world.client.write_at("b", "k", 5000, &[9; 100][..], &options()).await.unwrap_err();
    assert_eq!((error.reaction, error.object.as_deref()), (Reaction::Retry, Some("b/k")));
    assert!(error.message.contains("busy") && error.message.ends_with("; nothing was written"), "{error}");
    world.agents.updates.lock().unwrap().faults.clear();

    set_faults(&world, [Fault::Broken { runs: false }].into_iter().chain([RETRY; 20]));
    let broken = options();
    let error = world.client.write_at("b", "k", 5000, &[9; 100][..], &broken).await.unwrap_err();
    assert!(error.message.ends_with("it is unknown whether bytes 5000-5099 were written"), "{error}");
    assert_eq!(broken.log.in_doubt(), [Span::new(5000, 5100)]);
    world.agents.updates.lock().unwrap().faults.clear();
    assert!(stored(&world).await == data, "nothing ran");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_is_not_requested_after_its_session() {
    let (world, data) = world(100_000, 64 << 10, 4096).await;
    world.agents.updates.lock().unwrap().lasts_ms = 2_500;
    set_faults(&world, [Fault::Broken { runs: false }].into_iter().chain([RETRY; 100]));
    let error = world.client.write_at("b", "k", 0, &[9; 100][..], &WriteOptions::default()).await.unwrap_err();
    assert!(error.message.contains("the session of an update ended before its outcome was known"), "{error}");
    let sessions = |world: &World| world.agents.updates.lock().unwrap().sessions;
    let before = sessions(&world);
    assert!(stored(&world).await == data, "nothing ran");
    world.agents.updates.lock().unwrap().faults.clear();

    // A writer that is not in doubt gets a new session.
    let writer = world.client.writer("b", "k", &WriteOptions::default()).await.unwrap();
    for _ in 0..3 {
        writer.write_at(0, vec![1; 10]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1000)).await;
    }
    assert!(sessions(&world) > before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_beyond_the_end_are_refused_before_anything_is_written() {
    let (world, data) = world(100_000, 64 << 10, 4096).await;
    let options = || WriteOptions { size: Some(100), ..WriteOptions::default() };
    // What can be appended, the coordinator says before.
    for (offset, says) in
        [(99_901, "appends nothing"), (100_000, "appends nothing"), (100_001, "0-99999, and a write must not leave a gap")]
    {
        let error = world.client.write_at("b", "k", offset, &[9; 100][..], &options()).await.unwrap_err();
        assert!(error.reaction == Reaction::InvalidInput && error.message.contains(says), "{error}");
    }
    assert!(world.client.append("b", "k", &[9; 100][..], &options()).await.unwrap_err().message.contains("appends nothing"));
    let writer = world.client.writer("b", "k", &WriteOptions::default()).await.unwrap();
    let error = writer.write_at(99_901, vec![9; 100]).await.unwrap_err();
    assert!(error.message.contains("this write does not append"), "{error}");
    assert_eq!(world.agents.updates.lock().unwrap().requests, 0);
    // A pipe is longer than the object: what fits is written.
    let error = world.client.write_at("b", "k", 99_950, &[9; 100][..], &WriteOptions::default()).await.unwrap_err();
    assert!(error.message.contains("appends nothing") && error.message.contains("bytes 99950-99999 are written"), "{error}");
    let error = world.client.write_at("b", "k", 0, &[9; 50][..], &options()).await.unwrap_err();
    assert!(error.message.contains("the data ends after 50 bytes"), "{error}");
    assert!(stored(&world).await[..99_950] == data[..99_950]);

    world.client.put("b", "empty", &[][..], &PutOptions::default()).await.unwrap();
    let error = world.client.write_at("b", "empty", 0, &[9; 1][..], &WriteOptions::default()).await.unwrap_err();
    assert!(error.message.contains("the object is empty"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_cannot_open_the_stripe_ends_the_write_or_delays_it() {
    let (world, _) = world(100_000, 64 << 10, 4096).await;
    let refuse = |error: Option<Error>| world.agents.updates.lock().unwrap().refuses = error;
    refuse(Some(Error::unavailable("too many blocks are lost")));
    let error = world.client.write_at("b", "k", 0, &[9; 100][..], &WriteOptions::default()).await.unwrap_err();
    assert_eq!((error.reaction, &error.message[..]), (Reaction::Unavailable, "too many blocks are lost; nothing was written"));
    refuse(Some(Error::retry("the stripe is being repaired")));
    let wait = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        refuse(None);
    };
    let options = WriteOptions::default();
    let (written, ()) = tokio::join!(world.client.write_at("b", "k", 0, &[9; 100][..], &options), wait);
    assert_eq!(written.unwrap().updates, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_continues_when_its_object_is_converted_but_not_when_it_is_replaced() {
    for is_conversion in [true, false] {
        let (world, mut data) = world(600_000, 64 << 10, 4096).await;
        let other = PutOptions { block_len: 32 << 10, cell_len: 8192, ..PutOptions::default() };
        let writer = world.client.writer("b", "k", &WriteOptions::default()).await.unwrap();
        writer.write_at(0, vec![1; 300_000]).await.unwrap();
        data[..300_000].fill(1);
        world.client.put("b", "new", &data[..], &other).await.unwrap();
        {
            let mut state = world.coordinator.state.lock().unwrap();
            (state.replaced_after, state.is_conversion) = (Some(0), is_conversion);
            state.replace();
            // The old stripe is not open any more.
            world.agents.updates.lock().unwrap().term += 1;
        }
        // The new stripes are shorter.
        match writer.write_at(100_000, vec![2; 100_000]).await {
            Ok(()) => assert!(is_conversion, "the object is another one"),
            Err(error) => {
                assert!(!is_conversion, "{error}");
                assert_eq!(error.message, "the object was replaced during the write; nothing was written");
            }
        }
        if is_conversion {
            data[100_000..200_000].fill(2);
        }
        assert!(stored(&world).await == data);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_updates_of_some_length_are_requested_with_a_route() {
    let (world, mut data) = world(400_000, 64 << 10, 64 << 10).await;
    world.agents.updates.lock().unwrap().routed = Some((8192, vec![4, 5]));
    let way = UpdateWay { scheme: "pipeline".into(), path: "random".into(), seed: 3, slice_len: 4096 };
    let options = WriteOptions { way: way.clone(), ..WriteOptions::default() };
    let writer = world.client.writer("b", "k", &options).await.unwrap();
    for (at, len) in [(0, 4096), (10, 8191), (70_000, 8192), (60_000, 20_000)] {
        writer.write_at(at, vec![at as u8; len]).await.unwrap();
        data[at as usize..][..len].fill(at as u8);
    }
    {
        let state = world.agents.updates.lock().unwrap();
        let routed = Some(vec![4, 5]);
        assert_eq!(state.routes, [(4096, None), (8191, None), (8192, routed.clone()), (20_000, routed)]);
        assert_eq!(state.opened.iter().map(|it| it.way.clone()).collect::<Vec<_>>(), [Some(way)], "one lease serves all");
    }
    // Through other blocks than its own, a route leads nowhere.
    world.agents.updates.lock().unwrap().routed = Some((0, vec![0, 4]));
    let writer = world.client.writer("b", "k", &options).await.unwrap();
    writer.write_at(0, vec![7; 100]).await.unwrap();
    data[..100].fill(7);
    assert_eq!(world.agents.updates.lock().unwrap().routes.last(), Some(&(100, None)));
    assert!(stored(&world).await == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_that_the_nodes_do_not_take_is_not_requested() {
    const MIB: usize = 1 << 20;
    let (world, mut data) = world(10 * MIB, 2 << 20, 64 << 10).await;
    world.agents.updates.lock().unwrap().update_bytes_max = 1 << 20;
    let options = WriteOptions { update_bytes: 2 << 20, ..WriteOptions::default() };
    let new = random_bytes(2 * MIB, 1);
    let error = world.client.write_at("b", "k", 0, &new[..], &options).await.unwrap_err();
    assert_eq!(error.reaction, Reaction::InvalidInput);
    let says = "cannot be written atomically here: agent n5 is of an earlier version; write with --atomic 1MiB or less";
    assert!(error.message.contains(says), "{error}");
    assert_eq!(world.agents.updates.lock().unwrap().requests, 0);
    assert!(stored(&world).await == data);
    let wrote = world.client.write_at("b", "k", 0, &new[..], &WriteOptions::default()).await.unwrap();
    assert_eq!(wrote.updates, 2);
    data[..2 * MIB].copy_from_slice(&new);
    assert!(stored(&world).await == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_is_as_long_as_the_options_say() {
    const MIB: usize = 1 << 20;
    let (world, mut data) = world(10 * MIB, 2 << 20, 64 << 10).await;
    let lengths = |world: &World| -> Vec<usize> {
        let mut lengths: Vec<usize> = world.agents.updates.lock().unwrap().routes.drain(..).map(|(len, _)| len).collect();
        lengths.sort_unstable();
        lengths
    };
    for (update_bytes, expected) in [(1 << 20, vec![MIB; 4]), (16 << 20, vec![4 * MIB]), (3 << 20, vec![MIB, 3 * MIB])] {
        let options = WriteOptions { update_bytes, ..WriteOptions::default() };
        let new = random_bytes(4 * MIB, update_bytes);
        let plan = world.client.explain_write("b", "k", 0, new.len() as u64, &options).await.unwrap();
        let wrote = world.client.write_at("b", "k", 0, &new[..], &options).await.unwrap();
        let found = lengths(&world);
        assert_eq!((found.len() as u64, plan.updates()), (wrote.updates, wrote.updates));
        assert_eq!(found, expected, "updates of {update_bytes}");
        assert_eq!(plan.stripes[0].longest, *expected.last().unwrap() as u64);
        let asked = world.agents.updates.lock().unwrap().explained.pop().unwrap();
        assert_eq!((asked.bytes, asked.indexes.first()), (plan.stripes[0].longest, Some(&0)));
        assert_eq!(plan.stripes[0].ways.iter().map(|way| way.index).collect::<Vec<_>>(), asked.indexes);
        data[..4 * MIB].copy_from_slice(&new);
    }
    for wrong in [0, (16 << 20) + 1] {
        let options = WriteOptions { update_bytes: wrong, ..WriteOptions::default() };
        let error = world.client.write_at("b", "k", 0, &[1; 10][..], &options).await.unwrap_err();
        assert_eq!(error.reaction, Reaction::InvalidInput);
        assert!(error.message.contains("the range is 1 byte to 16MiB"), "{error}");
    }
    assert!(stored(&world).await == data);
}
