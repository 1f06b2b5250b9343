//! Conversions whose stripes have ended and whose object waits for the others.

use crate::world::{World, data};
use std::{collections::BTreeSet, path::PathBuf};
use weft_client::{ConvertOptions, JobChange, PutOptions, api};
use weft_proto::from_status;
use weft_types::Reaction;

/// Bytes of an object of two new stripes.
const LEN: usize = 256 << 10;

impl World {
    /// Begins to turn replicas into coded data, so slowly that the first stripe has ended long before the second begins.
    async fn convert_slowly(&self, content: &[u8], bytes_per_s: u64) -> u64 {
        let (block_len, cell_len) = (LEN as u64, 64 << 10);
        let options = PutOptions { code: "replication(2)".into(), block_len, cell_len, ..PutOptions::default() };
        self.client.put("b", "k", content, &options).await.unwrap();
        let (name, code) = ("cold".into(), "rs(2,1)".into());
        let policy = api::Policy { name, code, block_len: 64 << 10, cell_len, ..api::Policy::default() };
        self.client.create_policy(policy).await.unwrap();
        let options = ConvertOptions { concurrency: 1, bytes_per_s };
        let job = self.client.convert("b", "k", "cold", &options).await.unwrap().id;
        self.until("the first stripe has ended", async |world| {
            let job = world.client.job(job).await.unwrap();
            assert_eq!(job.state, "running", "{}", job.last_error);
            job.stripes_under_way == 0 && job.moving_bytes == LEN as u64 / 2
        })
        .await;
        job
    }

    fn files(&self, nodes: u32) -> BTreeSet<(u32, PathBuf)> {
        (1..=nodes).flat_map(|node| self.block_files(node).into_iter().map(move |file| (node, file))).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_whose_new_blocks_are_lost_before_it_is_whole_is_begun_anew() {
    let mut world = World::new(4, 4).await;
    let content = data(LEN, 1);
    let job = world.convert_slowly(&content, 40 << 10).await;
    let old: BTreeSet<u32> = world.stat("k").await.stripes[0].blocks.iter().map(|block| block.node).collect();
    // Of three nodes with new blocks there is one without an old one.
    let held = world.files(4);
    let lost = held.iter().map(|(node, _)| *node).find(|node| !old.contains(node)).unwrap();
    world.kill(lost);
    world.until("one is down", async |world| world.up().await.len() == 3).await;
    assert_eq!(world.stat("k").await.code, "replication(2)", "the conversion was faster than the test");
    let ended = world.ended(job).await;
    assert_eq!(ended.state, "done", "{}", ended.last_error);
    assert_eq!((world.stat("k").await.code.as_str(), world.not_ok("k").await), ("rs(2,1)", vec![]));
    assert_eq!(world.get("k", "").await.unwrap().0, content);
}

/// The answer to its commit may have been lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_was_converted_since_is_still_told_as_stored() {
    let world = World::new(4, 4).await;
    let content = data(LEN, 2);
    let job = world.convert_slowly(&content, 256 << 10).await;
    let before = world.stat("k").await;
    assert_eq!(world.ended(job).await.state, "done");
    let after = world.stat("k").await;
    assert_eq!((before.code.as_str(), after.code.as_str()), ("replication(2)", "rs(2,1)"));
    let mut bare = world.bare_client().await;
    let (upload, size) = (before.version, LEN as u64);
    let stored = bare.commit_put(api::CommitPutRequest { upload, size }).await.unwrap().into_inner();
    assert_eq!((stored.version, stored.written, stored.size), (after.version, before.version, size));
    let other = bare.commit_put(api::CommitPutRequest { upload, size: size - 1 }).await.unwrap_err();
    assert_eq!(from_status(&other).reaction, Reaction::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_meddles_with_the_put_of_a_conversion() {
    let world = World::new(4, 4).await;
    let content = data(LEN, 1);
    let job = world.convert_slowly(&content, 1).await;
    let before = world.stat("k").await;
    let upload = before.version + 1;
    let mut bare = world.bare_client().await;
    let put = api::PutStripeRequest { upload, number: 1, data_len: 4096, how: None };
    let refused = [
        ("put", bare.put_stripe(put).await.err()),
        ("end", bare.end_stripe(api::EndStripeRequest { upload, number: 1, ..Default::default() }).await.err()),
        ("keep", bare.keep_put(api::KeepPutRequest { upload, ..Default::default() }).await.err()),
        ("commit", bare.commit_put(api::CommitPutRequest { upload, size: LEN as u64 / 2 }).await.err()),
        ("abort", bare.abort_put(api::AbortPutRequest { upload }).await.err()),
    ];
    for (call, refused) in refused {
        let error = from_status(&refused.unwrap_or_else(|| panic!("{call} was not refused")));
        let says = error.message.contains("whom the coordinator sends");
        assert!(says && error.reaction == Reaction::InvalidInput, "{call}: {error}");
    }
    assert_eq!(world.client.job(job).await.unwrap().state, "running");
    world.client.change_job(job, JobChange::Cancel).await.unwrap();
    assert_eq!(world.ended(job).await.state, "cancelled");
    assert_eq!(world.stat("k").await, before);
    assert_eq!(world.get("k", "").await.unwrap().0, content);
}
