//! The coordinator crashes and restarts; puts are left unfinished.

use crate::world::{SimulatedClock, World, data, seams};
use weft_client::api;
use weft_coordinator::{Coordinator, CoordinatorConfig};
use weft_proto::MemoryNet;
use weft_types::Reaction;

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_comes_back_knows_everything_that_was_acknowledged() {
    let mut world = World::new(7, 4).await;
    let bytes = data(3 << 20, 1);
    world.put("k", &bytes).await.unwrap();
    let (epoch, cluster) = (world.coordinator().epoch(), world.coordinator().cluster());
    world.restart_coordinator().await;
    assert_eq!((world.coordinator().epoch(), world.coordinator().cluster()), (epoch + 1, cluster));
    // Agents reconnect by themselves. A client that calls too early gets the answer to retry, and does.
    assert_eq!(world.get("k", "").await.unwrap().0, bytes);
    world.until("all nodes are back", async |world| world.up().await.len() == 7).await;
    world.put("k", &data(1 << 20, 2)).await.unwrap();
    assert_eq!(world.get("k", "").await.unwrap().0, data(1 << 20, 2));
    world.until("the old blocks are gone", async |world| world.block_count(1..=7) == 6).await;
}

#[tokio::test(start_paused = true)]
async fn a_put_that_dies_half_way_leaves_nothing_behind() {
    let mut world = World::with(7, 4, |config| config.upload_lease_ms = 1_500).await;
    let mut bare = world.bare_client().await;
    let begin = |key: &str| api::BeginPutRequest {
        bucket: "b".into(),
        key: key.into(),
        code: "rs(4,2)".into(),
        block_len: 64 << 10,
        ..api::BeginPutRequest::default()
    };
    let api::BeginPutReply { upload, put_key, .. } = bare.begin_put(begin("k")).await.unwrap().into_inner();
    let stripe = api::PutStripeRequest { upload, number: 0, data_len: 100_000, options: None, put_key: put_key.clone() };
    assert!(bare.put_stripe(stripe.clone()).await.unwrap().into_inner().task.is_some());
    // A second call places the stripe again, and the first attempt is given up.
    assert!(bare.put_stripe(stripe).await.unwrap().into_inner().task.is_some());
    let incomplete =
        bare.commit_put(api::CommitPutRequest { upload, size: 100_000, put_key: put_key.clone() }).await.unwrap_err();
    assert!(incomplete.message().contains("has not ended"), "{incomplete}");
    assert_eq!(world.client.stat("b", "k").await.unwrap_err().reaction, Reaction::NotFound, "the object is visible");

    world.restart_coordinator().await;
    let mut bare = world.bare_client().await;
    let end = api::EndStripeRequest { upload, number: 0, put_key: put_key.clone(), ..api::EndStripeRequest::default() };
    let error = weft_proto::from_status(&bare.end_stripe(end).await.unwrap_err());
    assert!(error.reaction == Reaction::Replan && error.message.contains("send it again"), "{error}");
    world
        .until("the put is swept", async |world| {
            let mut bare = world.bare_client().await;
            let asked = api::CommitPutRequest { upload, size: 1, put_key: put_key.clone() };
            bare.commit_put(asked).await.unwrap_err().code() == tonic::Code::NotFound
        })
        .await;
    world.until("its blocks are gone", async |world| world.block_count(1..=7) == 0).await;
    let status = world.client.status().await.unwrap();
    assert_eq!(status.nodes.iter().map(|node| node.blocks).sum::<u64>(), 0);
    world.client.remove_bucket("b").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_second_coordinator_ends_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let config = CoordinatorConfig {
        listen: "127.0.0.1:0".into(),
        dir: dir.path().into(),
        insecure: true,
        sweep_interval_ms: 50,
        ..CoordinatorConfig::default()
    };
    let (net, clock) = (MemoryNet::default(), SimulatedClock::default());
    let mut first = Coordinator::start(config.clone(), seams(&net, clock.clone(), 1)).await.unwrap();
    let second = Coordinator::start(config.clone(), seams(&net, clock.clone(), 2)).await.unwrap();
    assert_eq!((first.epoch() + 1, first.cluster()), (second.epoch(), second.cluster()));
    tokio::time::timeout(std::time::Duration::from_secs(10), first.ended()).await.unwrap().unwrap();
    second.shutdown().await.unwrap();

    let other = CoordinatorConfig { cluster: Some(weft_types::ClusterId(5)), ..config };
    let error = Coordinator::start(other, seams(&net, clock, 3)).await.unwrap_err();
    assert!(error.message.contains("belongs to cluster"), "{error}");
}
