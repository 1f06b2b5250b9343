//! Stripes that cannot be opened or settled at once: what is waited for, and what is kept for later.

use crate::{
    fake_agent::{Asked, FakeAgent},
    updates::{Cluster, IDLE_MS},
    updating::Step,
    world::World,
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::{Instant, sleep};
use weft_meta::TermState;
use weft_proto::v1;
use weft_types::{BlockState, Cause, Reaction};

impl Cluster {
    /// An agent reports that the first page of its block is corrupt.
    async fn report(&self, index: u8) {
        let (epoch, mut member) = (self.world.coordinator().epoch(), self.world.bare_member().await);
        let block = postcard::to_allocvec(&self.block(index)).unwrap();
        let corrupt = v1::CorruptBlock { block, len_bytes: 4096, ..Default::default() };
        let heartbeat = v1::HeartbeatRequest { node: u32::from(index) + 1, epoch, corrupt: vec![corrupt], ..Default::default() };
        member.heartbeat(heartbeat).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_without_room_for_its_journal_keeps_its_block() {
    // More than the code tolerates; one would be enough.
    for full in [1, 4] {
        let cluster = Cluster::new(6).await;
        let before = cluster.record().await;
        cluster.agents[..full].iter().for_each(|agent| agent.asked().updating.full = true);
        let error = cluster.open().await.unwrap_err();
        assert_eq!((error.reaction, error.cause), (Reaction::Retry, Some(Cause::NoSpace)));
        assert!(error.message.contains("has no room for its journal of 256MiB"), "{error}");
        assert_eq!((cluster.term().await, cluster.record().await, cluster.calls(Step::Open)), (None, before, vec![0; 6]));
        cluster.read().await.unwrap();
        cluster.agents.iter().for_each(|agent| agent.asked().updating.full = false);
        assert_eq!(cluster.open().await.unwrap().members, cluster.blocks(0..6));
    }
}

#[tokio::test(start_paused = true)]
async fn an_opening_waits_for_journals_that_are_being_created_but_not_for_ever() {
    let cluster = Cluster::new(6).await;
    cluster.agents.iter().for_each(|agent| agent.asked().updating.creates = true);
    let begin = Instant::now();
    let error = cluster.open().await.unwrap_err();
    assert!(error.reaction == Reaction::Retry && error.message.contains("is being created"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
    assert_eq!(cluster.term().await, None, "something was recorded");
    let created = async {
        sleep(Duration::from_secs(3)).await;
        cluster.agents.iter().for_each(|agent| agent.asked().updating.creates = false);
    };
    let (opened, ()) = tokio::join!(cluster.open(), created);
    assert_eq!(opened.unwrap().members, cluster.blocks(0..6));
}

#[tokio::test(start_paused = true)]
async fn a_block_that_is_busy_for_very_long_is_left_out_when_a_reader_waits() {
    let cluster = Cluster::new(6).await;
    cluster.agents[4].asked().updating.busy = true;
    cluster.open().await.unwrap_err();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(cluster.read().await.unwrap_err().reaction, Reaction::Retry);
    assert_eq!((cluster.state().await, cluster.states().await), (Some(TermState::Opening), vec![BlockState::Ok; 6]));
    sleep(Duration::from_secs(40)).await;
    cluster.read().await.unwrap();
    let mut states = vec![BlockState::Ok; 6];
    states[4] = BlockState::Missing;
    assert_eq!((cluster.state().await, cluster.states().await), (Some(TermState::Closed), states));
    assert_eq!(cluster.open().await.unwrap().members, cluster.blocks([0, 1, 2, 3, 5]));
}

#[tokio::test(start_paused = true)]
async fn a_stripe_with_too_few_blocks_that_can_be_opened_stays_as_it_was() {
    let cluster = Cluster::new(6).await;
    let before = cluster.record().await;
    cluster.agents[..2].iter().for_each(|agent| agent.asked().updating.lost = true);
    let error = cluster.open().await.unwrap_err();
    assert!(error.reaction == Reaction::Unavailable && error.message.contains("4 of 6 blocks"), "{error}");
    assert_eq!((cluster.term().await, cluster.record().await), (None, before));
    // One that is lost is left out at once.
    cluster.agents[0].asked().updating.lost = false;
    assert_eq!(cluster.open().await.unwrap().members, cluster.blocks([0, 2, 3, 4, 5]));
    assert_eq!(cluster.states().await[1], BlockState::Missing);
}

#[tokio::test(start_paused = true)]
async fn a_settle_that_nothing_demands_waits_for_a_block_at_each_step() {
    for step in [Step::Seal, Step::Sealed, Step::Settle] {
        let cluster = Cluster::new(6).await;
        cluster.open().await.unwrap();
        cluster.update(1);
        cluster.agents[5].asked().updating.hangs_at = Some(step);
        sleep(Duration::from_millis(IDLE_MS + 45_000)).await;
        assert_eq!((cluster.state().await, cluster.states().await), (Some(TermState::Open), vec![BlockState::Ok; 6]), "{step:?}");
        cluster.agents[5].asked().updating.hangs_at = None;
        sleep(Duration::from_secs(40)).await;
        assert_eq!(cluster.state().await, Some(TermState::Closed), "{step:?}");
        assert_eq!((cluster.states().await, cluster.record().await.seq.counts()), (vec![BlockState::Ok; 6], &[1, 0, 0, 0][..]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_settle_that_nothing_demands_does_not_wait_for_ever() {
    let cluster = Cluster::new(6).await;
    cluster.open().await.unwrap();
    cluster.agents[5].asked().updating.hangs_at = Some(Step::Sealed);
    sleep(Duration::from_secs(150)).await;
    assert_eq!(cluster.state().await.filter(|state| *state != TermState::Closed), None);
    assert_eq!(cluster.states().await[5], BlockState::Missing);
}

/// The opening was given up, a seal without one block is recorded, and not all blocks know it: they are not opened again in its term.
#[tokio::test(start_paused = true)]
async fn a_recorded_seal_is_not_opened_again() {
    let mut cluster = Cluster::new(6).await;
    cluster.agents[0].asked().updating.hangs_at = Some(Step::Open);
    cluster.agents[1].asked().updating.hangs_at = Some(Step::Sealed);
    let (mut bare, asked) = (cluster.world.bare_client().await, cluster.asked());
    let opening = tokio::spawn(async move { bare.open_for_updates(asked).await });
    cluster
        .world
        .until("the agent hears the outcome of the seal", async |_| cluster.agents[1].asked().updating.count(Step::Sealed) > 0)
        .await;
    let record = cluster.term().await.unwrap();
    assert_eq!((record.state, record.term.sealed.term, record.term.unaware.len()), (TermState::Opening, 2, 5));
    cluster.world.restart_coordinator().await;
    opening.abort();
    cluster.agents.iter().for_each(|agent| agent.asked().updating.hangs_at = None);
    cluster.until_up(6).await;
    cluster.read().await.unwrap();
    assert_eq!(cluster.states().await[1..], [BlockState::Ok; 5], "a good block was left out");
}

#[tokio::test(start_paused = true)]
async fn findings_in_an_open_stripe_are_looked_at_when_it_is_settled() {
    let cluster = Cluster::new(6).await;
    for agent in &cluster.agents {
        agent.asked().damaged = Some([cluster.block(2)].into());
    }
    cluster.open().await.unwrap();
    cluster.report(2).await;
    // An update has overwritten this one.
    cluster.report(3).await;
    assert_eq!(cluster.states().await, [BlockState::Ok; 6]);
    cluster.read().await.unwrap();
    let is_found = async |_: &World| cluster.states().await[2] == BlockState::Corrupt;
    cluster.world.until("the finding is recorded", is_found).await;
    assert_eq!(cluster.record().await.corrupt_of(2, 0), [weft_types::Span::new(0, 4096)]);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(cluster.states().await[3], BlockState::Ok);
}

#[tokio::test(start_paused = true)]
async fn writes_go_on_when_the_clock_of_the_coordinator_is_set_back() {
    let mut cluster = Cluster::new(6).await;
    let ends_at_ms = async |cluster: &Cluster| {
        let (_, reply) = cluster.open_with(cluster.asked()).await.unwrap();
        assert_eq!(reply.lasts_ms, 300_000);
        reply.session.unwrap().ends_at_ms
    };
    let first = ends_at_ms(&cluster).await;
    cluster.world.clock.ahead_ms.fetch_sub(400_000, Ordering::Relaxed);
    sleep(Duration::from_secs(2)).await;
    let second = ends_at_ms(&cluster).await;
    assert!(second >= first + 2_000, "a new session ends before the agents' time");
    // The next coordinator learns the time from an agent that registers.
    let known = cluster.agents[0].known();
    known.told().updates_ms = second - 300_000;
    drop(cluster.agents.remove(0));
    cluster.until_up(5).await;
    cluster.world.restart_coordinator().await;
    let back = FakeAgent::back(&cluster.world, "n1", known).await;
    cluster.agents.insert(0, back);
    cluster.until_up(6).await;
    assert!(ends_at_ms(&cluster).await >= second);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_has_not_followed_its_disk_yet_takes_part() {
    let mut cluster = Cluster::new(6).await;
    drop(cluster.agents.remove(0));
    let asked = Arc::<Asked>::default();
    asked.told().lists = Some("n1".into());
    let _new = FakeAgent::back(&cluster.world, "n7", asked).await;
    let is_taken = async |world: &World| world.rows("disks WHERE moved_to IS NOT NULL") > 0;
    cluster.world.until("the disk has a number at its new node", is_taken).await;
    // The next walk over its blocks begins within a second.
    assert_eq!(cluster.open().await.unwrap().members, cluster.blocks(0..6), "in the generations that they had");
    assert_eq!(cluster.record().await.blocks[&0].home.node.0, 7);
}

#[tokio::test(start_paused = true)]
async fn an_opening_waits_until_the_agent_that_a_disk_was_moved_to_knows_that_it_is_its_own() {
    const SILENT_FOR: Duration = Duration::from_millis(500);
    let mut cluster = Cluster::new(6).await;
    drop(cluster.agents.remove(0));
    cluster.until_up(5).await;
    sleep(Duration::from_secs(2)).await;
    let asked = Arc::<Asked>::default();
    asked.told().lists = Some("n1".into());
    asked.told().is_silent = true;
    // It is taken over when the agent registers. The agent acts on the answer before it sends a heartbeat.
    let new = FakeAgent::back(&cluster.world, "n7", asked).await;
    assert_eq!(cluster.world.rows("disks WHERE moved_to IS NOT NULL"), 1);
    let begun = Instant::now();
    let speaks = async {
        sleep(SILENT_FOR).await;
        assert_eq!(cluster.record().await.blocks[&0].home.node.0, 1, "no block follows before");
        new.asked().is_silent = false;
    };
    let (opened, ()) = tokio::join!(cluster.open(), speaks);
    assert_eq!(opened.unwrap().members, cluster.blocks(0..6));
    assert!(begun.elapsed() >= SILENT_FOR, "{:?}", begun.elapsed());
    assert_eq!(cluster.record().await.blocks[&0].home.node.0, 7);
}
