//! How many durable changes of the metadata a put takes, and what happens to stripes that are allocated ahead.

use crate::world::{World, data};
use weft_client::{PutOptions, api};

const BLOCK_LEN: u64 = 64 << 10;
const STRIPE_LEN: usize = 4 * BLOCK_LEN as usize;

fn options() -> PutOptions {
    PutOptions { code: "rs(4,2)".into(), block_len: BLOCK_LEN, ..PutOptions::default() }
}

/// A put of this many full stripes; 0: of unknown size.
fn begin(stripes: u64) -> api::BeginPutRequest {
    api::BeginPutRequest {
        bucket: "b".into(),
        key: "k".into(),
        code: "rs(4,2)".into(),
        block_len: BLOCK_LEN,
        size_hint: stripes * STRIPE_LEN as u64,
        ..api::BeginPutRequest::default()
    }
}

async fn commits(world: &World) -> u64 {
    world.client.status().await.unwrap().commits
}

fn garbage(world: &World) -> u64 {
    let file = rusqlite::Connection::open(world.metadata_file()).unwrap();
    file.query_row("SELECT count(*) FROM garbage", [], |row| row.get(0)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_put_of_one_stripe_takes_two_durable_changes_and_a_larger_one_little_more_than_one_a_stripe() {
    let world = World::new(8, 4).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    // The size of a file is known.
    for (stripes, commits_max) in [(1, 2), (2, 4), (20, 2 + 20 + 1), (33, 2 + 33 + 2)] {
        let bytes = data(stripes * STRIPE_LEN - 5, 1);
        std::fs::write(file.path(), &bytes).unwrap();
        let before = commits(&world).await;
        world.client.put_file("b", "file", file.path(), &options()).await.unwrap();
        let count = commits(&world).await - before;
        assert!(count <= commits_max, "{count} changes for {stripes} stripes");
        assert_eq!(world.get("file", "").await.unwrap().0, bytes);
    }
    // The size of a pipe is not known: stripes are allocated 1, 2, 4, 8, 16 at a time, and the last is shorter than allocated.
    let bytes = data(20 * STRIPE_LEN - 5, 2);
    let before = commits(&world).await;
    world.client.put("b", "pipe", bytes.as_slice(), &options()).await.unwrap();
    let count = commits(&world).await - before;
    assert!(count <= 20 + 5 + 1, "{count} changes for 20 stripes from a pipe");
    assert_eq!(world.get("pipe", "").await.unwrap().0, bytes);
}

#[tokio::test(start_paused = true)]
async fn stripes_that_were_allocated_and_never_opened_cost_no_call_of_an_agent() {
    let world = World::new(8, 4).await;
    let mut bare = world.bare_client().await;
    let api::BeginPutReply { upload, put_key, .. } = bare.begin_put(begin(40)).await.unwrap().into_inner();
    bare.abort_put(api::AbortPutRequest { upload, put_key: put_key.clone() }).await.unwrap();
    assert_eq!(garbage(&world), 0);
    // A put from a pipe that ends after three stripes has allocated seven.
    world.client.put("b", "pipe", data(3 * STRIPE_LEN + 5, 2).as_slice(), &options()).await.unwrap();
    assert_eq!(garbage(&world), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stripe_that_was_allocated_ahead_goes_elsewhere_once_a_node_of_it_is_down() {
    let mut world = World::new(8, 4).await;
    let mut bare = world.bare_client().await;
    let api::BeginPutReply { upload, put_key, .. } = bare.begin_put(begin(2)).await.unwrap().into_inner();
    world.kill(1);
    world.kill(2);
    world.until("two nodes are down", async |world| world.up().await.len() == 6).await;
    for number in 0..2 {
        let stripe =
            api::PutStripeRequest { upload, number, data_len: STRIPE_LEN as u64, options: None, put_key: put_key.clone() };
        assert!(bare.put_stripe(stripe).await.unwrap().into_inner().task.is_some());
        assert_eq!(garbage(&world), 0, "the stripe was first sent to nodes that are down");
    }
    bare.abort_put(api::AbortPutRequest { upload, put_key: put_key.clone() }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_coordinator_allocated_behind_the_last_stripe_does_not_stop_a_commit() {
    let mut world = World::new(8, 4).await;
    let mut bare = world.bare_client().await;
    let api::BeginPutReply { upload, put_key, .. } = bare.begin_put(begin(9)).await.unwrap().into_inner();
    world.restart_coordinator().await;
    let mut bare = world.bare_client().await;
    let object = bare.commit_put(api::CommitPutRequest { upload, size: 0, put_key: put_key.clone() }).await.unwrap().into_inner();
    assert_eq!((object.version, object.size, object.stripe_count), (upload, 0, 0));
    world.until("the garbage is removed", async |world| garbage(world) == 0).await;
}

/// A call never allocates ahead a stripe that another call is already sending.
#[tokio::test(start_paused = true)]
async fn stripes_that_begin_concurrently_in_any_order_stay_separate() {
    let world = World::new(8, 4).await;
    let mut bare = world.bare_client().await;
    let api::BeginPutReply { upload, put_key, .. } = bare.begin_put(begin(0)).await.unwrap().into_inner();
    let put = |number: u64| {
        let (mut bare, put_key) = (bare.clone(), put_key.clone());
        async move {
            let stripe = api::PutStripeRequest { upload, number, data_len: STRIPE_LEN as u64, options: None, put_key };
            bare.put_stripe(stripe).await.unwrap().into_inner().task.unwrap();
        }
    };
    futures::future::join_all([5, 2, 3, 0, 4, 1, 9, 7, 8, 6].map(put)).await;
    let file = rusqlite::Connection::open(world.metadata_file()).unwrap();
    let query = "SELECT count(*), count(DISTINCT number) FROM stripes WHERE number < 10";
    let counts: (u64, u64) = file.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!((counts, garbage(&world)), ((10, 10), 0), "a stripe that is being sent was given up");
    bare.abort_put(api::AbortPutRequest { upload, put_key: put_key.clone() }).await.unwrap();
}
