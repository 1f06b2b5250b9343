//! The routes that clients get with their leases.

use crate::{updates::Cluster, updating::Step};
use std::collections::BTreeSet;
use weft_plan::from_json;
use weft_proto::{from_status, updates::Route, v1};
use weft_types::{BlockId, Reaction, Result};

impl Cluster {
    /// The routes that come with a lease.
    async fn routes(&self, way: v1::UpdateWay) -> Result<Vec<(v1::UpdateRoute, Route)>> {
        let (_, reply) = self.open_with(v1::OpenForUpdatesRequest { way: Some(way), ..self.asked() }).await?;
        let decoded = |route: v1::UpdateRoute| {
            let decoded: Route = postcard::from_bytes(&route.route).unwrap();
            (route, decoded)
        };
        Ok(reply.routes.into_iter().map(decoded).collect())
    }

    async fn explain(&self, way: v1::UpdateWay, bytes: u64, indexes: &[u32]) -> Result<Vec<v1::ExplainedUpdate>> {
        let v1::OpenForUpdatesRequest { bucket, key, version, number, .. } = self.asked();
        let (way, indexes) = (Some(way), indexes.to_vec());
        let request = v1::ExplainUpdateRequest { bucket, key, version, number, way, bytes, indexes };
        let answer = self.world.bare_client().await.explain_update(request).await;
        answer.map(|answer| answer.into_inner().blocks).map_err(|status| from_status(&status))
    }
}

fn by(scheme: &str) -> v1::UpdateWay {
    v1::UpdateWay { scheme: scheme.into(), ..v1::UpdateWay::default() }
}

#[tokio::test(start_paused = true)]
async fn a_lease_has_a_route_for_each_data_block() {
    let cluster = Cluster::of(7, 3, None).await;
    for scheme in ["star", "tree", "pipeline", "chain"] {
        let routes = cluster.routes(by(scheme)).await.unwrap();
        assert_eq!(routes.iter().map(|(route, _)| route.index).collect::<Vec<_>>(), [0, 1, 2, 3], "{scheme}");
        for (told, route) in &routes {
            assert_eq!((&*told.scheme, told.from_bytes), (scheme, 0));
            route.check(cluster.block(told.index as u8)).unwrap();
            let reached: BTreeSet<BlockId> = route.reached().collect();
            assert_eq!(reached, (4..7).map(|index| cluster.block(index)).collect(), "{scheme}");
            assert_eq!(route.in_turn, ["star", "tree"].contains(&scheme));
        }
    }
    assert_eq!(cluster.routes(by("concurrent-star")).await.unwrap(), [], "straight to each node");
    // Left open: from some length on.
    let open = cluster.routes(v1::UpdateWay::default()).await.unwrap();
    assert_eq!(open.len(), 4);
    assert!(open.iter().all(|(told, _)| (8 << 10..=1 << 20).contains(&told.from_bytes)), "{open:?}");
    assert_eq!(cluster.open_with(cluster.asked()).await.unwrap().1.routes, [], "a client that does not say how knows no routes");
    let slices = v1::UpdateWay { slice_len: 12 << 10, path: "random".into(), seed: 3, ..by("pipeline") };
    assert!(cluster.routes(slices).await.unwrap().iter().all(|(_, route)| route.slice_len == 12 << 10));

    for (wrong, says) in [
        (by("pigeon"), "no update scheme 'pigeon'"),
        (v1::UpdateWay { path: "shortest".into(), ..by("pipeline") }, "'shortest' does not order the racks"),
        (v1::UpdateWay { path: "worst".into(), ..by("auto") }, "only be chosen for the scheme pipeline"),
        (v1::UpdateWay { slice_len: 5000, ..by("auto") }, "multiple of 4KiB"),
    ] {
        let error = cluster.routes(wrong).await.unwrap_err();
        assert!(error.reaction == Reaction::InvalidInput && error.message.contains(says), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn there_are_no_routes_without_a_choice_or_with_agents_that_pass_nothing_on() {
    let single = Cluster::of(5, 1, None).await;
    let earlier = Cluster::of(7, 3, Some((5, 3))).await;
    for scheme in ["auto", "pipeline", "tree"] {
        assert_eq!(single.routes(by(scheme)).await.unwrap(), [], "one node patches");
        assert_eq!(earlier.routes(by(scheme)).await.unwrap(), [], "an agent speaks protocol 3");
        let explained = earlier.explain(by(scheme), 1 << 20, &[0]).await.unwrap();
        assert_eq!((&*explained[0].no_routes, explained[0].from_bytes), ("agent n5 is of an earlier version", None));
        assert_eq!(explained[0].hops.len(), 3);
        assert!(explained[0].hops.iter().all(|hop| hop.from.unwrap().index == 0), "straight: {explained:?}");
    }
    // Another agent's version does not matter.
    let spare = Cluster::of(8, 3, Some((8, 3))).await;
    assert_eq!(spare.routes(by("pipeline")).await.unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_lease_says_how_long_an_update_may_be() {
    let limit = async |cluster: &Cluster| {
        let (_, reply) = cluster.open_with(cluster.asked()).await.unwrap();
        (reply.update_bytes_max, reply.update_bytes_why)
    };
    assert_eq!(limit(&Cluster::new(6).await).await, (0, String::new()));
    let earlier = Cluster::of(6, 2, Some((5, 3))).await;
    assert_eq!(limit(&earlier).await, (1 << 20, "agent n5 is of an earlier version".into()));
    let cluster = Cluster::new(6).await;
    cluster.agents[2].asked().updating.update_bytes_max = 3 << 20;
    cluster.agents[4].asked().updating.update_bytes_max = 96 << 10;
    cluster.agents[5].asked().updating.update_bytes_max = 16 << 20;
    let why = "a journal of agent n5 takes 96.0 KiB at most, by the `limits.update_journal` of its creation";
    assert_eq!(limit(&cluster).await, (96 << 10, why.into()));
}

#[tokio::test(start_paused = true)]
async fn an_explanation_opens_nothing_and_shows_what_a_lease_gives() {
    let cluster = Cluster::of(7, 3, None).await;
    let explained = cluster.explain(by("pipeline"), 1 << 20, &[2, 0]).await.unwrap();
    let auto = cluster.explain(by("auto"), 1 << 20, &[1]).await.unwrap();
    let short = cluster.explain(by("auto"), 4096, &[1]).await.unwrap();
    assert_eq!(cluster.calls(Step::Open), [0; 7]);
    assert_eq!(explained.iter().map(|it| it.index).collect::<Vec<_>>(), [2, 0]);

    let ends = |hop: &v1::UpdateHop| [hop.from, hop.to].map(|end| end.unwrap());
    for (explained, routes) in [
        (&explained[0], cluster.routes(by("pipeline")).await),
        (&explained[1], cluster.routes(by("pipeline")).await),
        (&auto[0], cluster.routes(by("auto")).await),
    ] {
        let (told, route) = routes.unwrap().into_iter().find(|(told, _)| told.index == explained.index).unwrap();
        let hops: Vec<_> = route.hops.iter().map(|hop| [hop.from, hop.to].map(|block| u32::from(block.index))).collect();
        assert_eq!(explained.hops.iter().map(|hop| ends(hop).map(|end| end.index)).collect::<Vec<_>>(), hops);
        assert!(explained.hops.iter().all(|hop| ends(hop).iter().all(|end| end.node == end.index + 1)), "{explained:?}");
        assert_eq!((explained.from_bytes, explained.slice_len), (Some(told.from_bytes), u64::from(route.slice_len)));
        let saved = from_json(std::str::from_utf8(&explained.plan).unwrap()).unwrap();
        assert_eq!(saved.considered[0].scheme, told.scheme);
        assert!(saved.considered[0].seconds > 0.0);
    }
    let saved = from_json(std::str::from_utf8(&short[0].plan).unwrap()).unwrap();
    assert_eq!((&*saved.considered[0].scheme, saved.considered.len()), ("concurrent-star", 5));
    assert!(short[0].hops.iter().all(|hop| ends(hop)[0].index == 1), "{short:?}");

    // The same while it is open.
    let again = cluster.explain(by("pipeline"), 1 << 20, &[2, 0]).await.unwrap();
    assert!(again.iter().zip(&explained).all(|(again, before)| again.hops == before.hops), "{again:?}");
    for (way, indexes, reaction) in [
        (by("pigeon"), vec![0], Reaction::InvalidInput),
        (by("auto"), vec![0; 300], Reaction::InvalidInput),
        (by("auto"), vec![300], Reaction::InvalidInput),
        (by("auto"), vec![5], Reaction::InvalidInput),
    ] {
        assert_eq!(cluster.explain(way, 1, &indexes).await.unwrap_err().reaction, reaction);
    }
}
