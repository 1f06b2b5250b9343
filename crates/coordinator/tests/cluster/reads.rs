//! How many round trips a read takes, and what the coordinator keeps of it.

use crate::{
    slow_net::FAR,
    world::{World, data},
};
use std::time::Duration;
use tokio::time::Instant;
use weft_client::{Client, GetOptions, api};
use weft_types::Reaction;

/// The bytes of an object and the round trips of its get, one after another.
async fn round_trips(client: &Client, key: &str, options: &GetOptions) -> (Vec<u8>, u32) {
    let (begin, mut bytes) = (Instant::now(), Vec::new());
    client.get("b", key, &mut bytes, options).await.unwrap();
    (bytes, trips_since(begin))
}

/// On simulated time, only the network takes time.
fn trips_since(begin: Instant) -> u32 {
    let (elapsed, trip) = (begin.elapsed(), 2 * FAR);
    let trips = (elapsed.as_millis() / trip.as_millis()) as u32;
    assert!(elapsed - trips * trip < Duration::from_millis(10), "{elapsed:?} is not a number of round trips");
    trips
}

#[tokio::test(start_paused = true)]
async fn a_small_read_takes_two_round_trips() {
    let world = World::new(6, 3).await;
    let bytes = data(4096, 1);
    world.put("k", &bytes).await.unwrap();
    let client = world.far_client().await;
    for dials in [true, false] {
        // The coordinator, which starts the read; then a node, whose connection takes no time here if it is new.
        assert_eq!(round_trips(&client, "k", &GetOptions::default()).await, (bytes.clone(), 2), "dials: {dials}");
    }
    for range in [0..1, 100..4000, 4095..4096] {
        let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
        let part = bytes[range.start as usize..range.end as usize].to_vec();
        assert_eq!(round_trips(&client, "k", &options).await, (part, 2), "{range:?}");
    }
    // Nothing is left to tell the coordinator.
    let begin = Instant::now();
    client.close().await;
    assert_eq!(trips_since(begin), 0);
}

#[tokio::test(start_paused = true)]
async fn a_small_read_of_a_lost_block_takes_two_round_trips() {
    let mut world = World::new(6, 6).await;
    let bytes = data(4096, 2);
    world.put("k", &bytes).await.unwrap();
    world.kill(world.holder("k", 0).await);
    world.until("a node is down", async |world| world.up().await.len() == 5).await;
    let client = world.far_client().await;
    assert_eq!(round_trips(&client, "k", &GetOptions::default()).await, (bytes, 2));
}

#[tokio::test(start_paused = true)]
async fn a_lookup_starts_a_read_only_for_a_client_that_asks() {
    let world = World::new(6, 3).await;
    let bytes = data(3 << 20, 3);
    world.put("k", &bytes).await.unwrap();
    let stripe = 4 * (512 << 10);
    let mut client = world.bare_client().await;
    let mut stat = async |read: Option<api::BeginRead>, from_stripe| {
        let (bucket, key) = ("b".into(), "k".into());
        let asked = api::StatObjectRequest { bucket, key, from_stripe, read, ..api::StatObjectRequest::default() };
        client.stat_object(asked).await.unwrap().into_inner()
    };
    let read = |start, end, bytes_max| Some(api::BeginRead { start, end, bytes_max, ..api::BeginRead::default() });
    assert_eq!(stat(None, 0).await.read, None);
    for (asked, from_stripe) in [
        (read(0, None, stripe - 1), 0),
        (read(5, Some(5), stripe), 0),
        (read(3 << 20, None, stripe), 0),
        (read(6, Some(5), stripe), 0),
        (read(0, Some(1), stripe), 1),
        (Some(api::BeginRead { scheme: "none".into(), ..read(0, Some(1), stripe).unwrap() }), 0),
    ] {
        let object = stat(asked.clone(), from_stripe).await;
        assert_eq!((object.read, object.stripe_count), (None, 2), "{asked:?} from stripe {from_stripe}");
    }
    let last = api::BeginRead { last: Some(9), bytes_max: 9, ..api::BeginRead::default() };
    for (asked, number, delivers) in [
        (read(0, Some(1), 1), 0, 4096),
        (read(0, None, stripe), 0, stripe),
        (read(stripe, None, stripe), 1, 1 << 20),
        (read(stripe - 1, Some(u64::MAX), 1), 0, 4096),
        (Some(last), 1, 4096),
    ] {
        let begun = stat(asked.clone(), 0).await.read.unwrap();
        let reply = begun.reply.unwrap();
        let bytes: u64 = reply.delivers.iter().map(|range| range.end - range.start).sum();
        assert_eq!((begun.number, bytes, reply.task.is_some()), (number, delivers, true), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_can_ask_which_cluster_it_is_and_nothing_else() {
    let world = World::new(3, 3).await;
    let mut client = world.bare_client().await;
    let whole = client.status(api::StatusRequest::default()).await.unwrap().into_inner();
    let brief = client.status(api::StatusRequest { identity: true }).await.unwrap().into_inner();
    assert_eq!((brief.cluster, brief.epoch, brief.nodes.len()), (whole.cluster, whole.epoch, 0));
    assert_eq!(whole.nodes.len(), 3);
    let error = world.client.get("b", "none", &mut Vec::new(), &GetOptions::default()).await.unwrap_err();
    assert_eq!((error.reaction, error.object.as_deref()), (Reaction::NotFound, Some("b/none")), "{error}");
}
