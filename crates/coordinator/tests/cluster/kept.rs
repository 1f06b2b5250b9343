//! Blocks that were left out of updates in place: their nodes keep what is right, and their old files until then.

use crate::{
    updates::Cluster,
    updating::{Step, checksum},
    world::World,
};
use std::time::Duration;
use weft_client::RepairOptions;
use weft_types::{BlockMeta, BlockState};

/// What an agent was asked to keep, and whether it was to store the rest.
async fn asked_to_keep(is_old: bool) {
    let cluster = Cluster::new(6).await;
    let left_out = &cluster.agents[2];
    left_out.asked().updating.hangs_at = Some(Step::Open);
    cluster.open().await.unwrap_err();
    left_out.asked().updating.hangs_at = None;
    left_out.asked().updating.is_old = is_old;
    let record = cluster.record().await;
    assert_eq!((record.blocks[&2].state, record.kept_of(2, 0)), (BlockState::Missing, Some(&[Some(checksum(2, 0))][..])));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let old = cluster.block(2);
    assert!(!left_out.asked().removed().concat().contains(&old), "its old file is needed");

    let stores = async |_: &World| left_out.asked().last.as_ref().is_some_and(|task| !task.stores.is_empty());
    let options = RepairOptions::default();
    tokio::select! {
        ended = cluster.world.repair("k", &options) => panic!("agents store nothing: {ended:?}"),
        () = cluster.world.until("a plan brings the rest", stores) => {}
    }
    let told = left_out.asked();
    let [asked] = &told.kept[..] else { panic!("it is asked once: {:?}", told.kept) };
    assert_eq!((&asked.units[..], &asked.checksums[..]), (&[0][..], &[checksum(2, 0)][..]));
    assert!((1..=4_000).contains(&asked.within_ms), "openings of the stripe wait: {}", asked.within_ms);
    let meta: BlockMeta = postcard::from_bytes(&asked.store.as_ref().unwrap().meta).unwrap();
    let stored: BlockMeta = postcard::from_bytes(&told.last.as_ref().unwrap().stores[0].meta).unwrap();
    assert_eq!((meta.id.index, meta.id.generation > record.blocks[&2].generation, &meta), (2, true, &stored));
}

#[tokio::test(start_paused = true)]
async fn a_node_is_asked_to_keep_what_is_right_before_a_plan_brings_the_rest() {
    asked_to_keep(false).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_an_earlier_version_keeps_nothing() {
    asked_to_keep(true).await;
}
