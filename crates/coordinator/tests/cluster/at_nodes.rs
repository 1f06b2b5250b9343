//! Reads of open stripes at the nodes of their data blocks: the coordinator says where, and the stripe stays open.

use crate::{
    updates::{BLOCK_LEN, Cluster},
    updating::Step,
};
use weft_meta::TermState;
use weft_proto::{LinkToken, ReadRights, from_status, v1};
use weft_types::{BlockId, Result};

impl Cluster {
    async fn read_at_nodes(&self, change: impl FnOnce(&mut v1::ReadStripeRequest)) -> Result<v1::ReadStripeReply> {
        let ranges = [(1, 0, 10), (3, 5, BLOCK_LEN)].map(|(index, start, end)| v1::BlockRange { index, start, end }).to_vec();
        let (bucket, key) = ("b".into(), "k".into());
        let mut request = v1::ReadStripeRequest { bucket, key, ranges, at_nodes: true, ..v1::ReadStripeRequest::default() };
        change(&mut request);
        let mut bare = self.world.bare_client().await;
        bare.read_stripe(request).await.map(tonic::Response::into_inner).map_err(|status| from_status(&status))
    }

    fn seals(&self) -> usize {
        self.calls(Step::Seal).into_iter().sum()
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_stripe_is_read_at_its_data_nodes_and_stays_open() {
    let cluster = Cluster::new(6).await;
    let plain = cluster.read_at_nodes(|_| {}).await.unwrap();
    assert!(plain.at_nodes.is_none() && plain.task.is_some(), "a stripe that is not open has a plan");
    let sealed = cluster.open().await.unwrap();
    let reply = cluster.read_at_nodes(|_| {}).await.unwrap();
    assert!(reply.task.is_none() && reply.checksums.is_empty());
    let at_nodes = reply.at_nodes.unwrap();
    assert_eq!(at_nodes.term, sealed.term);
    let mut blocks = Vec::new();
    for at in &at_nodes.blocks {
        let block: BlockId = postcard::from_bytes(&at.block).unwrap();
        let agent = &cluster.agents[usize::from(block.index)];
        let rights = ReadRights { block, term: at_nodes.term, ends_at_ms: at_nodes.ends_at_ms };
        let key = agent.asked().link_key.clone().unwrap();
        key.verify_read(&rights, &LinkToken::from_slice(&at.token).unwrap()).unwrap();
        assert_eq!(at.name, format!("n{}", block.index + 1));
        blocks.push(block);
    }
    assert_eq!(blocks, cluster.blocks([1, 3]));
    assert_eq!((cluster.state().await, cluster.seals()), (Some(TermState::Open), 0));
    // Also with the question where the object is.
    let read = v1::BeginRead { end: Some(100), bytes_max: 1 << 20, at_nodes: true, ..v1::BeginRead::default() };
    let asked =
        v1::StatObjectRequest { bucket: "b".into(), key: "k".into(), read: Some(read), ..v1::StatObjectRequest::default() };
    let mut bare = cluster.world.bare_client().await;
    let begun = bare.stat_object(asked).await.unwrap().into_inner().read.unwrap();
    assert_eq!(begun.reply.unwrap().at_nodes.unwrap().blocks.len(), 1);

    // An explanation has the plan that is made if it is settled, too.
    let explained = cluster.read_at_nodes(|request| request.explain = true).await.unwrap();
    assert!(explained.at_nodes.is_some_and(|at_nodes| at_nodes.blocks.len() == 2) && !explained.plan.is_empty());
    assert_eq!((cluster.state().await, cluster.seals()), (Some(TermState::Open), 0));

    // A client that could not read there asks again, and so does one of an earlier version.
    let reply = cluster.read_at_nodes(|request| request.at_nodes = false).await.unwrap();
    assert!(reply.at_nodes.is_none() && reply.task.is_some());
    assert_eq!((cluster.state().await, cluster.seals()), (Some(TermState::Closed), 6));
}

#[tokio::test(start_paused = true)]
async fn an_open_stripe_is_settled_if_its_nodes_cannot_serve_the_read() {
    // The node of a block that is read does not know how.
    let cluster = Cluster::of(6, 2, Some((2, 4))).await;
    cluster.open().await.unwrap();
    let only = |index| move |request: &mut v1::ReadStripeRequest| request.ranges.retain(|range| range.index == index);
    assert!(cluster.read_at_nodes(only(3)).await.unwrap().at_nodes.is_some(), "the other one does");
    assert!(cluster.read_at_nodes(only(1)).await.unwrap().task.is_some());
    assert_eq!(cluster.state().await, Some(TermState::Closed));

    // A node that must confirm the term is down.
    let mut cluster = Cluster::new(6).await;
    cluster.open().await.unwrap();
    drop(cluster.agents.remove(5));
    cluster.until_up(5).await;
    assert!(cluster.read_at_nodes(|_| {}).await.unwrap().task.is_some());

    // A data block is lost: it did not take part when the stripe was opened.
    let cluster = Cluster::new(6).await;
    cluster.agents[1].asked().updating.hangs_at = Some(Step::Open);
    assert!(cluster.open().await.is_err());
    cluster.open().await.unwrap();
    assert!(cluster.read_at_nodes(only(3)).await.unwrap().at_nodes.is_some());
    assert!(cluster.read_at_nodes(only(1)).await.unwrap().task.is_some());
}
