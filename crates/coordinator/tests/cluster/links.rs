//! Measured link speeds.

use crate::world::World;
use std::time::Duration;
use tokio::time::Instant;
use weft_agent::Throttle;
use weft_client::api;
use weft_types::{ByteSize, NodeId, Reaction, Result};

/// The result for each link: (from, to, bytes a second or the reason of the failure).
type Probed = Vec<(u32, u32, Result<f64, String>)>;

async fn probe(world: &World, from: &[NodeId], to: &[NodeId]) -> Result<Probed> {
    let mut probe = world.client.probe_links(from, to).await?;
    let mut probed = Vec::new();
    let total = probe.next().await?.unwrap().total;
    while let Some(api::ProbeEvent { link, error, from, to, .. }) = probe.next().await? {
        let figure = link.map(|link| {
            assert_eq!((link.from, link.to), (from, to));
            link.bytes_per_s
        });
        let why = || weft_proto::status::decode_error(&error).unwrap().to_string();
        probed.push((from, to, figure.ok_or_else(why)));
    }
    assert_eq!(probed.len() as u32, total, "an event for each link");
    Ok(probed)
}

#[tokio::test(start_paused = true)]
async fn a_straggler_is_visible_and_a_dead_node_is_reported() {
    let mut world = World::with(4, 2, |config| config.link_probe_interval_ms = 0).await;
    let rate = 1 << 20;
    world.throttle(2, Throttle { network_bytes_per_s: Some(ByteSize(rate)), ..Throttle::default() }).await;
    assert_eq!(world.client.links().await.unwrap().links, [], "no probe has run yet");

    let probed = probe(&world, &[], &[]).await.unwrap();
    assert_eq!(probed.len(), 12);
    assert!(probed.iter().all(|(.., figure)| figure.is_ok()), "{probed:?}");
    let known = world.client.links().await.unwrap();
    assert_eq!(known.links.len(), 12);
    assert!(known.slice_overhead_s.is_some());
    for link in known.links {
        let of_rate = link.bytes_per_s / rate as f64;
        let is_right = if link.from == 2 { (0.5..1.2).contains(&of_rate) } else { of_rate > 4.0 };
        assert!(is_right, "{link:?}");
        assert!(link.age_ms < 20_000, "{link:?}");
    }

    let error = probe(&world, &[NodeId(9)], &[]).await.unwrap_err();
    assert_eq!((error.reaction, error.message.as_str()), (Reaction::NotFound, "there is no node n9"));
    let error = probe(&world, &[NodeId(1)], &[NodeId(1)]).await.unwrap_err();
    assert_eq!(error.reaction, Reaction::InvalidInput, "{error}");

    // The node is dead, but still counts as up.
    world.kill(3);
    let begin = Instant::now();
    let probed = probe(&world, &[NodeId(1)], &[NodeId(3)]).await;
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    let message = match probed {
        Ok(probed) => probed[0].2.clone().unwrap_err(),
        Err(error) => error.to_string(),
    };
    assert!(message.contains("node-03"), "{message}");
    world.until("the node is down", async |world| world.up().await.len() == 3).await;
    let error = probe(&world, &[NodeId(1)], &[NodeId(3)]).await.unwrap_err();
    assert_eq!((error.reaction, error.message.as_str()), (Reaction::Unavailable, "node-03 is down"));
    assert_eq!(probe(&world, &[], &[]).await.unwrap().len(), 6, "only links between nodes that are up");
    assert_eq!(world.client.links().await.unwrap().links.len(), 12, "earlier measurements are kept");
}

#[tokio::test(start_paused = true)]
async fn idle_nodes_are_measured_now_and_then() {
    let mut world = World::with(3, 1, |config| config.link_probe_interval_ms = 300).await;
    world.until("all links are measured", async |world| world.client.links().await.unwrap().links.len() == 6).await;
    world.restart_coordinator().await;
    world.until("the links are known", async |world| world.client.links().await.unwrap().links.len() == 6).await;
    world
        .until("all links are measured again", async |world| {
            world.client.links().await.unwrap().links.iter().all(|link| link.age_ms < 400)
        })
        .await;
}
