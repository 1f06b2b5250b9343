//! Appends: which writer gets leases and may end, how the last stripe grows, and what a coordinator that was killed leaves behind.

use crate::{
    updates::{BLOCK_LEN, Cluster},
    updating::Step,
};
use std::time::Duration;
use tokio::time::sleep;
use weft_meta::{Meta, TermState};
use weft_proto::{from_status, v1};
use weft_types::{BlockState, Cause, Error, Reaction, Result};

/// Not a multiple of anything.
const SIZE: u64 = 3 * BLOCK_LEN + 4321;
const HOLDS: u64 = 4 * BLOCK_LEN;

impl Cluster {
    async fn short(nodes: u32) -> Self {
        Self::with_len(nodes, 2, None, SIZE, |_| {}).await
    }

    fn append(&self, append: u64) -> v1::BeginAppendRequest {
        v1::BeginAppendRequest { bucket: "b".into(), key: "k".into(), append, ..v1::BeginAppendRequest::default() }
    }

    async fn begin(&self, asked: v1::BeginAppendRequest) -> Result<v1::ObjectReply> {
        let reply = self.world.bare_client().await.begin_append(asked).await.map_err(|status| from_status(&status))?;
        Ok(reply.into_inner().object.unwrap())
    }

    /// A lease for an append that reaches so many bytes.
    async fn lease(&self, append: u64, reaches: u64) -> Result<u64> {
        let asked = v1::OpenForUpdatesRequest { append, reaches, ..self.asked() };
        self.open_with(asked).await.map(|(sealed, _)| sealed.term)
    }

    async fn end(&self, append: u64, from: u64, to: u64) -> Result<u64> {
        let (bucket, key, version) = ("b".into(), "k".into(), self.version.0);
        let asked = v1::EndAppendRequest { bucket, key, append, version, from, to };
        let ended = self.world.bare_client().await.end_append(asked).await;
        ended.map(|object| object.into_inner().size).map_err(|status| from_status(&status))
    }

    async fn size(&self) -> u64 {
        self.meta.object_of(self.version).await.unwrap().size
    }

    /// What the agents were told of how many bytes the stripe holds.
    fn told(&self) -> Vec<u64> {
        let told = |(at, agent): (usize, &crate::fake_agent::FakeAgent)| {
            agent.asked().updating.blocks.get(&self.block(at as u8)).map_or(0, |it| it.data_len)
        };
        self.agents.iter().enumerate().map(told).collect()
    }
}

fn says(error: &Error, reaction: Reaction, part: &str) {
    assert!(error.reaction == reaction && error.message.contains(part), "{part}: {error:?}");
}

#[tokio::test(start_paused = true)]
async fn the_last_stripe_grows_and_the_object_when_the_append_ends() {
    let cluster = Cluster::short(6).await;
    // An object in which only reads go on.
    assert_eq!(cluster.open().await.unwrap().term, 1);
    assert_eq!(cluster.told(), [SIZE; 6], "it is as long as it is recorded");
    let object = cluster.begin(cluster.append(7)).await.unwrap();
    assert_eq!((object.size, object.stripe_count, object.stripes.len()), (SIZE, 1, 1));

    // It is settled, and opened again, longer, and with it the blocks.
    assert_eq!(cluster.lease(7, SIZE + 100).await, Ok(3));
    let grown = cluster.record().await.layout.data_len;
    assert!((SIZE + 100..=HOLDS).contains(&grown), "{grown}");
    assert_eq!((cluster.told(), cluster.calls(Step::Open)), (vec![grown; 6], vec![2; 6]));
    assert_eq!(cluster.size().await, SIZE, "it is visible");
    assert_eq!(cluster.end(7, SIZE, SIZE + 100).await, Ok(SIZE + 100));
    assert_eq!(cluster.end(7, SIZE, SIZE + 100).await, Ok(SIZE + 100), "an answer was lost");

    // The next one has room, and there is nothing to fence.
    cluster.begin(v1::BeginAppendRequest { at: Some(SIZE + 100), bytes: 50, ..cluster.append(8) }).await.unwrap();
    assert_eq!(cluster.lease(8, SIZE + 150).await, Ok(3), "it was settled for nothing");
    assert_eq!(cluster.end(7, SIZE, SIZE + 100).await, Ok(SIZE + 100), "an answer was lost, and another append has begun");
    assert_eq!(cluster.end(8, SIZE + 100, SIZE + 150).await, Ok(SIZE + 150));
    cluster.update(1);
    cluster.read().await.unwrap();
    let record = cluster.record().await;
    assert_eq!((record.layout.data_len, record.blocks.values().all(|it| it.state == BlockState::Ok)), (grown, true));
}

#[tokio::test(start_paused = true)]
async fn one_append_is_under_way_and_another_one_fences_it() {
    let cluster = Cluster::short(6).await;
    cluster.begin(cluster.append(1)).await.unwrap();
    let term = cluster.lease(1, SIZE + 10).await.unwrap();
    says(&cluster.begin(cluster.append(2)).await.unwrap_err(), Reaction::Retry, "another append to the object is under way");
    // As long as it is renewed.
    for _ in 0..3 {
        sleep(Duration::from_secs(6)).await;
        cluster.begin(v1::BeginAppendRequest { renews: true, ..cluster.append(1) }).await.unwrap();
    }
    assert_eq!(cluster.lease(1, SIZE + 10).await, Ok(term), "a renewal fences nothing");
    says(&cluster.begin(cluster.append(2)).await.unwrap_err(), Reaction::Retry, "at the latest");
    sleep(Duration::from_secs(11)).await;
    cluster.begin(cluster.append(2)).await.unwrap();
    assert_eq!(cluster.state().await, Some(TermState::Closed), "updates of the first one may still come");
    says(&cluster.lease(1, SIZE + 10).await.unwrap_err(), Reaction::NotFound, "another append has begun");
    says(&cluster.end(1, SIZE, SIZE + 10).await.unwrap_err(), Reaction::Replan, "another append has begun");
    let renewed = cluster.begin(v1::BeginAppendRequest { renews: true, ..cluster.append(1) }).await;
    says(&renewed.unwrap_err(), Reaction::NotFound, "another append has begun");
    assert!(cluster.lease(2, SIZE + 10).await.unwrap() > term);
    assert_eq!(cluster.end(2, SIZE, SIZE + 10).await, Ok(SIZE + 10));
    // One that is given up makes room at once.
    cluster.begin(cluster.append(3)).await.unwrap();
    let given_up = v1::GiveUpAppendRequest { bucket: "b".into(), key: "k".into(), append: 3 };
    cluster.world.bare_client().await.give_up_append(given_up).await.unwrap();
    cluster.begin(cluster.append(4)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_appended_is_refused_before_anything_begins() {
    let cluster = Cluster::short(6).await;
    let room = HOLDS - SIZE;
    let fits = |bytes| v1::BeginAppendRequest { bytes, explain: true, ..cluster.append(0) };
    cluster.begin(fits(room)).await.unwrap();
    let error = cluster.begin(fits(room + 1)).await.unwrap_err();
    says(&error, Reaction::InvalidInput, &format!("{room} can be appended, because the last stripe ends there"));
    says(&cluster.begin(cluster.append(0)).await.unwrap_err(), Reaction::InvalidInput, "draw one");
    let at = v1::BeginAppendRequest { at: Some(SIZE + 1), ..cluster.append(1) };
    says(&cluster.begin(at).await.unwrap_err(), Reaction::InvalidInput, &format!("{SIZE} bytes by now"));
    assert_eq!(cluster.term().await, None);

    cluster.begin(cluster.append(1)).await.unwrap();
    says(&cluster.lease(1, HOLDS + 1).await.unwrap_err(), Reaction::InvalidInput, "it may grow to");
    says(&cluster.lease(2, SIZE + 1).await.unwrap_err(), Reaction::NotFound, "another append");
    assert_eq!(cluster.record().await.layout.data_len, SIZE);
    // Only the row of the object knows of it.
    cluster.read().await.unwrap();
    says(&cluster.end(1, SIZE, SIZE + 1).await.unwrap_err(), Reaction::InvalidInput, "hold");

    // A short object grows within its cell only: the other data blocks do not exist.
    let short = Cluster::with_len(6, 2, None, 5000, |_| {}).await;
    short.begin(v1::BeginAppendRequest { bytes: 8192 - 5000, ..short.append(1) }).await.unwrap();
    let error = short.begin(v1::BeginAppendRequest { bytes: 8192 - 4999, ..short.append(2) }).await.unwrap_err();
    says(&error, Reaction::InvalidInput, "bytes in 2 of 4 data blocks only");
}

#[tokio::test(start_paused = true)]
async fn blocks_of_agents_of_earlier_versions_and_of_full_disks_do_not_grow() {
    let earlier = Cluster::with_len(6, 2, Some((5, 4)), SIZE, |_| {}).await;
    let full = Cluster::with_len(6, 2, None, SIZE, |config| config.disk_reserve = weft_types::ByteSize(1 << 50)).await;
    for (cluster, said, cause) in
        [(&earlier, "agent n5 is of an earlier version", None), (&full, "(disk_reserve)", Some(Cause::NoSpace))]
    {
        cluster.begin(cluster.append(1)).await.unwrap();
        let error = cluster.lease(1, SIZE + 1).await.unwrap_err();
        says(&error, Reaction::Unavailable, said);
        assert_eq!((error.cause, cluster.term().await, cluster.record().await.layout.data_len), (cause, None, SIZE));
        // What is there can be overwritten.
        cluster.open().await.unwrap();
    }
}

/// Some blocks have grown, and others have not heard of it.
#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_killed_while_a_stripe_grows_goes_on_with_it() {
    let mut cluster = Cluster::short(6).await;
    cluster.begin(cluster.append(1)).await.unwrap();
    cluster.agents[0].asked().updating.hangs_at = Some(Step::Open);
    let (mut bare, asked) = (cluster.world.bare_client().await, cluster.asked());
    let asked = v1::OpenForUpdatesRequest { append: 1, reaches: SIZE + 10, ..asked };
    let opening = tokio::spawn(async move { bare.open_for_updates(asked).await });
    cluster.world.until("five have grown", async |_| cluster.open_blocks() == 5).await;
    let grows_to = cluster.term().await.unwrap().grows_to.expect("it grows");
    assert_eq!(cluster.record().await.layout.data_len, SIZE, "not all have");
    cluster.world.restart_coordinator().await;
    opening.abort();
    cluster.agents[0].asked().updating.hangs_at = None;
    cluster.until_up(6).await;
    cluster.read().await.unwrap();
    assert_eq!((cluster.told(), cluster.record().await.layout.data_len), (vec![grows_to; 6], grows_to));
    assert_eq!((cluster.states().await, cluster.size().await), (vec![BlockState::Ok; 6], SIZE));
    // The append goes on with the next coordinator.
    cluster.lease(1, SIZE + 10).await.unwrap();
    assert_eq!(cluster.end(1, SIZE, SIZE + 10).await, Ok(SIZE + 10));
}

/// The copy knows the term in which the writer of a later append has a lease.
#[tokio::test(start_paused = true)]
async fn an_append_that_restored_metadata_do_not_know_is_fenced_by_the_next_one() {
    let mut cluster = Cluster::short(6).await;
    cluster.begin(cluster.append(1)).await.unwrap();
    let term = cluster.lease(1, SIZE + 10).await.unwrap();
    assert_eq!(cluster.end(1, SIZE, SIZE + 10).await, Ok(SIZE + 10));
    let copy = cluster.world.back_up();
    cluster.begin(cluster.append(2)).await.unwrap();
    assert_eq!(cluster.lease(2, SIZE + 20).await, Ok(term));
    cluster.restore(&copy).await;
    assert_eq!(cluster.state().await, Some(TermState::Open));

    cluster.begin(cluster.append(3)).await.unwrap();
    assert_eq!(cluster.state().await, Some(TermState::Closed), "updates of the second one may still come");
    says(&cluster.lease(2, SIZE + 20).await.unwrap_err(), Reaction::NotFound, "another append has begun");
    let fenced = cluster.lease(3, SIZE + 20).await.unwrap();
    assert!(fenced > term);
    assert_eq!(cluster.end(3, SIZE + 10, SIZE + 20).await, Ok(SIZE + 20));
    // All leases of this term are known.
    cluster.begin(cluster.append(4)).await.unwrap();
    assert_eq!(cluster.lease(4, SIZE + 30).await, Ok(fenced), "it was settled for nothing");
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_all_refuse_leaves_the_stripe_as_long_as_it_was() {
    let cluster = Cluster::short(6).await;
    cluster.begin(cluster.append(1)).await.unwrap();
    let before = cluster.record().await;
    cluster.agents.iter().for_each(|agent| agent.asked().updating.refuses = true);
    assert!(cluster.lease(1, SIZE + 10).await.is_err());
    assert_eq!(cluster.record().await, before);
    cluster.read().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_refuses_updates_is_obeyed() {
    let cluster = Cluster::short(6).await;
    let strict = v1::Policy { name: "strict".into(), code: "rs(4,2)".into(), updates: "refused".into(), ..v1::Policy::default() };
    let made = cluster.world.client.create_policy(strict).await.unwrap();
    assert_eq!(made.updates, "refused");
    cluster.open().await.unwrap();
    // As a conversion does that has rewritten nothing yet.
    rusqlite::Connection::open(cluster.world.metadata_file())
        .unwrap()
        .execute("UPDATE buckets SET policy = 'strict' WHERE name = 'b'", [])
        .unwrap();
    let refused = "the policy strict of bucket b refuses writes in place and appends";
    says(&cluster.open().await.unwrap_err(), Reaction::InvalidInput, refused);
    says(&cluster.begin(cluster.append(1)).await.unwrap_err(), Reaction::InvalidInput, refused);
    says(
        &cluster.begin(v1::BeginAppendRequest { explain: true, ..cluster.append(1) }).await.unwrap_err(),
        Reaction::InvalidInput,
        refused,
    );
    let wrong = v1::Policy { name: "other".into(), code: "rs(4,2)".into(), updates: "never".into(), ..v1::Policy::default() };
    says(&cluster.world.client.create_policy(wrong).await.unwrap_err(), Reaction::InvalidInput, "use allowed or refused");
}

#[tokio::test(start_paused = true)]
async fn writes_in_place_stop_with_fewer_blocks_than_the_setting_says() {
    for (write_min, lost, opens) in [(1, 1, true), (1, 2, false), (2, 0, true), (2, 1, false), (9, 0, true), (9, 1, false)] {
        let cluster = Cluster::with_len(6, 2, None, 4 * BLOCK_LEN, |config| config.write_min = write_min).await;
        cluster.agents[..lost].iter().for_each(|agent| agent.asked().updating.lost = true);
        let opened = cluster.open().await;
        assert_eq!(opened.is_ok(), opens, "write_min {write_min}, {lost} lost: {opened:?}");
        if let Err(error) = opened {
            let least = 4 + write_min.min(2);
            says(&error, Reaction::Unavailable, &format!("needs at least {least} from which all others can be rebuilt"));
            says(&error, Reaction::Unavailable, "the setting write_min");
        }
    }
}
