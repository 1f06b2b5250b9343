//! Updates in place on real agents: what is acknowledged is in the data and in the parities, whatever fails meanwhile.

use crate::cluster::{
    CLUSTER, Cluster, Options, Stripe, node, until,
    updates::{Updated, node_of, part},
};
use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};
use weft_agent::{KeepJournal, Limits, LocalDisks, OpenDisk, OpenedDisk};
use weft_plan::Plan;
use weft_proto::{
    LinkToken, Peer, UpdatesHello, from_status,
    updates::{HeadMax, Packet, UpdateClient, UpdateRequest, dial},
    v1::{CheckBlocksRequest, CheckedBlock, RemoveRequest},
};
use weft_store::{Journal, NewDisk, NewJournal};
use weft_types::{BlockId, ByteSize, Cause, ClusterId, Error, NodeId, Reaction};
use weft_update::{Incarnation, Message, NotRun, Session, Told, UpdateId};
use weft_updater::Piece;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

fn options(agents: u32) -> Options {
    let limits = Limits { update_journal: ByteSize(8 << 20), ..Limits::default() };
    Options { limits, ..Options::agents(agents) }
}

fn small(number: u64) -> Stripe {
    Stripe::new(number, "rs(2,1)", MIB as u64, 2 * MIB as u64)
}

/// A plan of a client that computes block 0 from the others.
fn read(stripe: &Stripe) -> Plan {
    stripe.read_plan(0, &[1, 2], "conventional")
}

async fn opened(cluster: &Cluster, plan: &Plan, stripe: &Stripe) -> weft_types::Result<()> {
    cluster.open(plan, stripe).await.map(drop)
}

/// Updates of all kinds, with TLS and real disks; then tasks read the blocks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_are_in_data_and_parities_and_the_blocks_can_be_read_afterwards() {
    let limits = Limits { update_journal: ByteSize(96 << 20), ..Limits::default() };
    let cluster = Cluster::start(Options { tls: true, limits, ..options(6) }).await;
    let stripe = Stripe::new(1, "rs(4,2)", 2 * MIB as u64, 8 * MIB as u64);
    let mut updated = Updated::start(&cluster, stripe).await;
    updated.commit(vec![part(0, 4096, PAGE, 1)]).await;
    updated.commit(vec![part(3, 12_345, 7, 2)]).await;
    updated.commit(vec![part(1, MIB as u64 / 2, MIB, 3)]).await;
    updated.commit(vec![part(0, 5000, 3000, 4), part(2, 0, 100_000, 5)]).await;
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
    // A block that is settled answers again, and is not read until it is closed.
    for (block, reply) in &settled {
        assert_eq!(updated.settle_block(*block).await.as_ref(), Ok(reply));
    }
    let of_settled = opened(&cluster, &updated.stripe.check_plan(node(0)), &updated.stripe).await.unwrap_err();
    assert_eq!(of_settled.cause, Some(Cause::OpenForUpdates));
    updated.close().await;
    updated.close().await;
    for (block, reply) in &settled {
        assert_eq!(updated.settle_block(*block).await.as_ref(), Ok(reply), "it is closed");
    }
    for index in 0..6 {
        let block = updated.stripe.block(index, 1);
        let checked = checked(&cluster, block).await;
        assert_eq!((checked.state, &checked.checksums), (1, &updated.stripe.units(index)), "{block}");
    }
}

async fn checked(cluster: &Cluster, block: BlockId) -> CheckedBlock {
    let request = CheckBlocksRequest { blocks: vec![postcard::to_allocvec(&block).unwrap()], ..CheckBlocksRequest::default() };
    cluster.call(node_of(block)).await.check_blocks(request).await.unwrap().into_inner().blocks.remove(0)
}

/// The coordinator has recorded what blocks contain, and could not close one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settled_block_stays_closed_to_tasks_after_a_restart_until_its_stripe_is_known_to_be_settled() {
    let mut cluster = Cluster::start(options(3)).await;
    let (block, stripe) = {
        let mut updated = Updated::start(&cluster, small(1)).await;
        updated.commit(vec![part(0, 0, PAGE, 1)]).await;
        let settled = updated.settle(&[]).await;
        updated.check(&settled);
        (updated.stripe.block(2, 1), updated.stripe.id)
    };
    cluster.coordinator.silence(true);
    cluster.kill_agent(3).await;
    cluster.start_agent(3).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(checked(&cluster, block).await.state, 0);
    cluster.coordinator.withdraw(stripe);
    cluster.coordinator.silence(false);
    until("the block is closed", async || checked(&cluster, block).await.state == 1).await;
    cluster.kill_agent(3).await;
    cluster.start_agent(3).await;
    assert_eq!(checked(&cluster, block).await.state, 1, "the journal still had it");
}

/// The threads of disks are tasks then, and nothing takes real time.
#[tokio::test(start_paused = true)]
async fn updates_run_on_simulated_time() {
    let cluster = Cluster::start(options(3).simulated()).await;
    let mut updated = Updated::start(&cluster, small(1)).await;
    let begin = Instant::now();
    for number in 0..20u8 {
        updated.commit(vec![part(number % 2, u64::from(number) * 3000, PAGE, number)]).await;
    }
    assert!(begin.elapsed() < Duration::from_millis(20), "an update waited: {:?} for 20 of them", begin.elapsed());
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
    // Again in the next term, from the counts of the last.
    updated.close().await;
    updated.open().await;
    updated.commit(vec![part(1, 77, 5, 9)]).await;
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_that_all_agents_are_killed() {
    let mut cluster = Cluster::start(options(3)).await;
    let (stripe, mut acknowledged) = (small(1), Vec::new());
    let (term, session) = {
        let mut updated = Updated::start(&cluster, stripe).await;
        for number in 0..4u8 {
            let parts = vec![part(number % 2, u64::from(number) * 5000, PAGE, number)];
            updated.commit(parts.clone()).await;
            acknowledged.push(parts);
        }
        (updated.term.clone(), updated.session)
    };
    for number in 1..=3 {
        cluster.kill_agent(number).await;
    }
    for number in 1..=3 {
        cluster.start_agent(number).await;
    }
    let mut updated = Updated::resume(&cluster, small(1), term, session, 4);
    acknowledged.iter().for_each(|parts| updated.apply(parts));
    // A repeated request of an earlier life gets its outcome, and does not run again.
    let repeated = UpdateId { session, counter: 1, lead: 0 };
    until("the restarted leader answers", async || updated.ask(repeated, &[part(0, 0, PAGE, 99)]).await == Ok(Told::Committed))
        .await;
    updated.commit(vec![part(0, 60_000, PAGE, 50), part(1, 100, 10, 51)]).await;
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_agent_asks_for_fewer_stripes_if_the_answer_would_be_too_large() {
    let mut cluster = Cluster::start(options(3)).await;
    let mut open = Vec::new();
    for number in 1..=3 {
        let updated = Updated::start(&cluster, small(number)).await;
        open.push((number, updated.term.clone(), updated.session));
    }
    cluster.coordinator.answer_at_most(1);
    cluster.kill_agent(3).await;
    cluster.start_agent(3).await;
    // The parities there take updates only from the homes that they know.
    for (number, term, session) in open {
        let mut updated = Updated::resume(&cluster, small(number), term, session, 0);
        let (id, parts) = (updated.next_id(0), vec![part(0, 0, PAGE, 1)]);
        updated.finish(id, &parts).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_down_holds_up_updates_until_it_returns() {
    let mut cluster = Cluster::start(options(3)).await;
    let (parts, id, term, session) = {
        let mut updated = Updated::start(&cluster, small(1)).await;
        updated.commit(vec![part(0, 0, PAGE, 1)]).await;
        (vec![part(0, 8192, PAGE, 2)], updated.next_id(0), updated.term.clone(), updated.session)
    };
    cluster.kill_agent(3).await;
    {
        let mut updated = Updated::resume(&cluster, small(1), term.clone(), session, 2);
        let waits = updated.ask(id, &parts).await;
        assert_eq!(waits.unwrap_err().message, "no answer in time");
    }
    // At another address: the others ask the coordinator for it.
    cluster.start_agent(3).await;
    let mut updated = Updated::resume(&cluster, small(1), term, session, 2);
    updated.apply(&[part(0, 0, PAGE, 1)]);
    updated.finish(id, &parts).await;
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seal_without_an_agent_that_is_down_ends_its_updates() {
    let mut cluster = Cluster::start(options(3)).await;
    let (term, session) = {
        let updated = Updated::start(&cluster, small(1)).await;
        (updated.term.clone(), updated.session)
    };
    cluster.kill_agent(3).await;
    let mut updated = Updated::resume(&cluster, small(1), term, session, 2);
    let (id, parts) = (updated.next_id(0), vec![part(0, 8192, PAGE, 2)]);
    let (client, request) = (updated.client(NodeId(1)).await, updated.request(id, parts.clone()));
    let waiting = tokio::spawn(async move { client.request(request).await });
    sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished());
    let parity = updated.stripe.block(2, 1);
    let settled = updated.settle(&[parity]).await;
    let told = timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap();
    match told {
        Ok(Told::Committed) => updated.apply(&parts),
        other => assert_eq!(other, Ok(Told::Aborted)),
    }
    assert_eq!(settled.len(), 2);
    updated.check(&settled);
    // It cannot bring back what it had: a seal went on without it.
    drop(updated);
    cluster.start_agent(3).await;
    let checked = checked(&cluster, parity).await;
    assert!(checked.state == 0 && checked.why.contains("open for updates"), "{checked:?}");
}

async fn told(client: &UpdateClient, request: UpdateRequest) -> Told {
    timeout(Duration::from_secs(5), client.request(request)).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_the_right_to_them_have_no_effect() {
    let cluster = Cluster::start(Options { tls: true, ..options(3) }).await;
    let mut updated = Updated::start(&cluster, small(1)).await;
    let client = updated.client(NodeId(1)).await;
    let parts = || vec![part(0, 0, PAGE, 1)];
    let mut requests: Vec<(&str, UpdateRequest)> = Vec::new();
    let id = updated.next_id(0);
    let good = updated.request(id, parts());
    let retry = Told::NotRun(NotRun::Retry);
    requests.push(("a forged token", UpdateRequest { token: LinkToken([1; 32]), ..good.clone() }));
    requests.push(("another term", UpdateRequest { term: good.term + 1, ..good.clone() }));
    let longer = Session { ends_at_ms: id.session.ends_at_ms + 1, ..id.session };
    requests.push(("a longer session", UpdateRequest { id: UpdateId { session: longer, ..id }, ..good.clone() }));
    requests.push(("another block", UpdateRequest { block: updated.stripe.block(1, 1), ..good.clone() }));
    for (case, request) in requests {
        assert_eq!(told(&client, request).await, retry, "{case}");
    }
    let ended = UpdateId { session: Session { number: 8, ends_at_ms: 5 }, ..id };
    assert_eq!(told(&client, updated.request(ended, parts())).await, Told::Expired);
    assert_eq!(
        told(&client, updated.request(id, vec![part(0, 0, 10, 1), part(2, 0, 10, 1)])).await,
        Told::NotRun(NotRun::Invalid)
    );
    let beyond = vec![part(0, MIB as u64 - 5, 10, 1)];
    assert_eq!(told(&client, updated.request(id, beyond)).await, Told::NotRun(NotRun::Invalid));

    // A block that nothing opened.
    let mut other = Updated::write(&cluster, small(2)).await;
    other.announce();
    assert_eq!(told(&client, other.request(id, parts())).await, retry);
    let seal = other.seal_block(other.stripe.block(0, 1), &Message::Seal { term: 1 }).await.unwrap_err();
    assert_eq!(seal.reaction, Reaction::NotFound);
    assert_eq!(other.settle_block(other.stripe.block(0, 1)).await.unwrap_err().reaction, Reaction::NotFound);
    other.close().await;

    assert_eq!(told(&client, good).await, Told::Committed);
    updated.apply(&parts());
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
    // After the seal, the term is stale.
    let stale = updated.request(UpdateId { counter: 99, ..id }, parts());
    assert_eq!(told(&client, stale).await, retry);
}

/// A parity that is down cannot say that it holds an update; a node that says it in its place is not believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_count_only_from_the_holder_of_their_block() {
    let mut cluster = Cluster::start(Options { tls: true, ..options(3) }).await;
    let (term, session) = {
        let updated = Updated::start(&cluster, small(1)).await;
        (updated.term.clone(), updated.session)
    };
    cluster.kill_agent(3).await;
    let mut updated = Updated::resume(&cluster, small(1), term, session, 0);
    let (id, parts) = (updated.next_id(0), vec![part(0, 8192, PAGE, 2)]);
    let old = &updated.stripe.blocks[0][8192..8192 + PAGE];
    let delta = Piece { start: 8192, bytes: parts[0].bytes.iter().zip(old).map(|(new, old)| new ^ old).collect() };
    let incarnation = Incarnation { generation: 1, opened: updated.term.term, starts: 0 };
    let held = Message::Held { id, incarnation, crcs: [(0, delta.crc())].into() };
    let packet = Packet::Message { from: updated.stripe.block(2, 1), to: updated.stripe.block(0, 1), message: held };

    let (client, request) = (updated.client(NodeId(1)).await, updated.request(id, parts.clone()));
    let mut waiting = tokio::spawn(async move { client.request(request).await });
    let member = cluster.coordinator.member(NodeId(1)).unwrap().request;
    let connect = async |name: &str, peer: Peer| {
        let hello = UpdatesHello { cluster: CLUSTER, from: Some(name.to_owned()), to: member.name.clone() };
        let (net, security) = (Arc::clone(&cluster.options.net), cluster.security(&peer));
        dial(net.as_ref(), &security, &member.data_address, &hello, HeadMax::Small).await
    };
    let refused = connect("node-03", Peer::Client).await.err().unwrap();
    assert!(refused.message.contains("expected agent node-03"), "{refused}");
    for (name, is_holder) in [("node-02", false), ("node-09", false), ("node-03", true)] {
        let (_reader, mut writer) = connect(name, Peer::Agent(name.to_owned())).await.unwrap();
        writer.feed(&packet, &[]).await.unwrap();
        writer.flush().await.unwrap();
        let told = timeout(Duration::from_millis(if is_holder { 5000 } else { 300 }), &mut waiting).await;
        assert_eq!(told.ok().map(Result::unwrap), is_holder.then_some(Ok(Told::Committed)), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_is_opened_when_its_readers_have_ended_and_read_when_it_is_closed() {
    let cluster = Cluster::start(options(3).simulated()).await;
    let mut updated = Updated::write(&cluster, small(1)).await;
    let (plan, block) = (read(&updated.stripe), updated.stripe.block(1, 1));
    opened(&cluster, &plan, &updated.stripe).await.unwrap();
    updated.announce();
    let begin = Instant::now();
    let in_use = updated.open_block(block).await.unwrap_err();
    assert_eq!((in_use.reaction, in_use.block), (Reaction::Retry, Some(block)));
    assert!((900..1500).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    let ends = async {
        sleep(Duration::from_millis(300)).await;
        // It does not wait behind the opening.
        let late = opened(&cluster, &read(&updated.stripe), &updated.stripe).await.unwrap_err();
        assert_eq!(late.cause, Some(Cause::OpenForUpdates));
        for node in [2, 3] {
            cluster.cancel(NodeId(node), plan.id).await;
        }
    };
    tokio::join!(updated.open_block(block), ends).0.unwrap();
    for index in [0, 2] {
        updated.open_block(updated.stripe.block(index, 1)).await.unwrap();
    }
    let refused = opened(&cluster, &read(&updated.stripe), &updated.stripe).await.unwrap_err();
    assert_eq!((refused.reaction, refused.cause, refused.block), (Reaction::Retry, Some(Cause::OpenForUpdates), Some(block)));
    assert!(refused.message.contains("open for updates"), "{refused}");
    updated.commit(vec![part(0, 0, PAGE, 1)]).await;
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
    updated.close().await;
    let client = cluster.client();
    let plan = read(&updated.stripe);
    let mut stripe = small(1);
    stripe.blocks = updated.stripe.blocks.clone();
    cluster.run(&plan, &stripe, &client).await.unwrap();
    assert!(client.output(0) == stripe.blocks[0], "another content was read");
}

#[tokio::test(start_paused = true)]
async fn an_agent_tells_what_it_knows_of_a_block() {
    let cluster = Cluster::start(options(3).simulated()).await;
    let mut updated = Updated::write(&cluster, small(1)).await;
    let block = updated.stripe.block(2, 1);
    let plain = updated.inspect(block, false).await.unwrap();
    let content = plain.content.unwrap();
    assert_eq!((plain.open, content.seq.unwrap().term, content.checksums), (None, 0, updated.stripe.units(2)));
    assert!(!journal_of(&cluster, 3).exists());
    assert_eq!(plain.update_bytes_max, 0);
    let ready = updated.inspect(block, true).await.unwrap();
    assert!(journal_of(&cluster, 3).exists(), "its journal is not ready");
    // A journal of 8 MiB.
    assert_eq!(ready.update_bytes_max, 96 << 10);
    updated.open().await;
    updated.commit(vec![part(0, 0, PAGE, 1)]).await;
    let open = updated.inspect(block, true).await.unwrap();
    let told = open.open.unwrap();
    let members: Vec<BlockId> = told.members.iter().map(|member| postcard::from_bytes(member).unwrap()).collect();
    assert_eq!((told.term, told.known, members, told.fenced), (1, 1, updated.members(), false));
    assert_eq!(open.content, None, "it changes");
    // A seal that is not complete.
    updated.seal_block(block, &Message::Seal { term: 2 }).await.unwrap();
    let told = updated.inspect(block, false).await.unwrap().open.unwrap();
    assert_eq!((told.term, told.known), (2, 1));
    updated.term.term = 2;
    let settled = updated.settle(&[]).await;
    let told = updated.inspect(block, false).await.unwrap();
    assert_eq!((told.open.unwrap().known, told.content.as_ref()), (3, Some(&settled[&block])));
    updated.close().await;
    let told = updated.inspect(block, false).await.unwrap();
    assert_eq!((told.open, told.content.as_ref()), (None, Some(&settled[&block])));
    let none = BlockId { generation: 9, ..block };
    assert_eq!(updated.inspect(none, true).await.unwrap_err().reaction, Reaction::NotFound);
}

fn journal_of(cluster: &Cluster, agent: u32) -> std::path::PathBuf {
    cluster.agent_dir(agent).join("disk0").join("journal")
}

/// Disks on which a journal has no room.
#[derive(Clone, Default)]
struct Full(Arc<AtomicBool>);

struct FullJournal(Arc<dyn KeepJournal>, Full);

impl OpenDisk for Full {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> weft_types::Result<OpenedDisk> {
        let OpenedDisk { id, store, journal } = LocalDisks.open(dir, cluster, new)?;
        Ok(OpenedDisk { id, store, journal: Arc::new(FullJournal(journal, self.clone())) })
    }
}

impl KeepJournal for FullJournal {
    fn exists(&self) -> weft_types::Result<bool> {
        self.0.exists()
    }

    fn open(&self, new: NewJournal) -> weft_types::Result<Arc<dyn Journal>> {
        match self.1.0.load(Ordering::Relaxed) {
            true => Err(Error::unavailable("the disk is full: allocate").cause(Cause::NoSpace)),
            false => self.0.open(new),
        }
    }

    fn set_aside(&self) -> weft_types::Result<()> {
        self.0.set_aside()
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_says_which_disk_has_no_room_for_its_journal() {
    let full = Full::default();
    let mut options = options(3).simulated();
    options.disks.insert(3, Arc::new(full.clone()));
    full.0.store(true, Ordering::Relaxed);
    let cluster = Cluster::start(options).await;
    let mut updated = Updated::write(&cluster, small(1)).await;
    let block = updated.stripe.block(2, 1);
    let error = updated.inspect(block, true).await.unwrap_err();
    assert_eq!((error.reaction, error.cause, error.block), (Reaction::Unavailable, Some(Cause::NoSpace), Some(block)));
    let disk = journal_of(&cluster, 3).parent().unwrap().display().to_string();
    assert_eq!(error.message, format!("disk {disk} of node-03 has no room for its journal of 8MiB"));
    assert!(updated.inspect(block, false).await.is_ok(), "the block is good");
    full.0.store(false, Ordering::Relaxed);
    updated.inspect(block, true).await.unwrap();
    updated.open().await;
}

/// Its metadata may be an older copy.
#[tokio::test(start_paused = true)]
async fn an_agent_tells_each_coordinator_which_blocks_are_open() {
    let cluster = Cluster::start(options(3).simulated()).await;
    let updated = Updated::start(&cluster, small(1)).await;
    cluster.coordinator.take_told_open();
    cluster.coordinator.forget(NodeId(3));
    let block = updated.stripe.block(2, 1);
    until("it tells of its block", async || cluster.coordinator.take_told_open().contains(&block)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_journal_loses_its_blocks_and_makes_room_for_a_new_one() {
    let mut cluster = Cluster::start(options(3)).await;
    let (term, session) = {
        let mut updated = Updated::start(&cluster, small(1)).await;
        updated.commit(vec![part(0, 0, PAGE, 1)]).await;
        (updated.term.clone(), updated.session)
    };
    cluster.kill_agent(3).await;
    let journal = cluster.agent_dir(3).join("disk0").join("journal");
    let mut bytes = fs::read(&journal).unwrap();
    let at = (PAGE..bytes.len()).find(|at| bytes[*at] != 0).unwrap() + 20;
    bytes[at] ^= 0x40;
    fs::write(&journal, bytes).unwrap();
    cluster.coordinator.silence(true);
    cluster.start_agent(3).await;
    let mut updated = Updated::resume(&cluster, small(1), term, session, 2);
    let parity = updated.stripe.block(2, 1);
    let refused = updated.open_block(parity).await.unwrap_err();
    assert!(refused.reaction == Reaction::Unavailable && refused.message.contains("damaged"), "{refused}");
    for ready in [true, false] {
        let refused = updated.inspect(parity, ready).await.unwrap_err();
        assert!(refused.reaction == Reaction::Unavailable && refused.message.contains("damaged"), "{refused}");
    }
    assert!(journal.exists());
    cluster.coordinator.silence(false);
    let encoded = postcard::to_allocvec(&parity).unwrap();
    until("the block is reported", async || cluster.coordinator.corrupt().iter().any(|(_, found)| found.block == encoded)).await;
    until("the journal is set aside", async || !journal.exists()).await;
    assert!(journal.with_file_name("journal.damaged").exists());
    updated.apply(&[part(0, 0, PAGE, 1)]);
    let settled = updated.settle(&[parity]).await;
    updated.check(&settled);
    // Another stripe begins a new journal.
    let mut other = Updated::start(&cluster, small(2)).await;
    other.commit(vec![part(1, 0, PAGE, 1)]).await;
    let settled = other.settle(&[]).await;
    other.check(&settled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_is_removed_is_forgotten() {
    let mut cluster = Cluster::start(options(3)).await;
    {
        let mut updated = Updated::start(&cluster, small(1)).await;
        updated.commit(vec![part(0, 0, PAGE, 1)]).await;
        let block = updated.stripe.block(2, 1);
        let request = RemoveRequest {
            epoch: cluster.coordinator.epoch(),
            incarnation: "first".into(),
            high_water: 1000,
            blocks: vec![postcard::to_allocvec(&block).unwrap()],
            reason: weft_types::GarbageReason::Removed.name().into(),
            ..RemoveRequest::default()
        };
        let removed = cluster.call(NodeId(3)).await.remove(request).await.map_err(|status| from_status(&status)).unwrap();
        assert_eq!(removed.into_inner().removed, 1);
        assert_eq!(updated.seal_block(block, &Message::Seal { term: 2 }).await.unwrap_err().reaction, Reaction::NotFound);
    }
    cluster.kill_agent(3).await;
    cluster.start_agent(3).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(cluster.coordinator.corrupt(), [], "a removed block was reported");
}

/// On simulated time: 5 seconds after the client has gone, and not before.
#[tokio::test(start_paused = true)]
async fn an_update_without_a_client_is_given_up_and_its_id_stays_aborted() {
    let mut cluster = Cluster::start(options(3).simulated()).await;
    let (term, session) = {
        let updated = Updated::start(&cluster, small(1)).await;
        (updated.term.clone(), updated.session)
    };
    cluster.kill_agent(3).await;
    let (id, parts, kept) = {
        let mut updated = Updated::resume(&cluster, small(1), term.clone(), session, 0);
        let (id, kept) = (updated.next_id(0), updated.next_id(0));
        let parts = vec![part(0, 8192, PAGE, 2)];
        assert!(updated.ask(id, &parts).await.is_err());
        // Another client waits for its own update.
        (id, parts, kept)
    };
    let mut waiting = Updated::resume(&cluster, small(1), term.clone(), session, 2);
    let (client, request) = (waiting.client(NodeId(2)).await, UpdateId { lead: 1, ..kept });
    let request = waiting.request(request, vec![part(1, 0, PAGE, 3)]);
    let kept = tokio::spawn(async move { client.request(request).await });
    sleep(Duration::from_secs(7)).await;
    drop(waiting);
    cluster.start_agent(3).await;
    assert_eq!(timeout(Duration::from_secs(10), kept).await.unwrap().unwrap(), Ok(Told::Committed));
    let mut updated = Updated::resume(&cluster, small(1), term, session, 2);
    updated.apply(&[part(1, 0, PAGE, 3)]);
    let mut told = None;
    until("the update has ended", async || {
        told = updated.ask(id, &parts).await.ok().filter(|told| !matches!(told, Told::NotRun(_)));
        told.is_some()
    })
    .await;
    assert_eq!(told, Some(Told::Aborted));
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
}
