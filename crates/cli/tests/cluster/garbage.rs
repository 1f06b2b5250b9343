//! Space after a removal: expected garbage is freed automatically; unexpected garbage is quarantined, listed, and released on request.

use crate::harness::{Cluster, Setup, bytes, wait_for};
use serde_json::Value;
use std::{fs, path::PathBuf, sync::Arc};
use tokio::task::JoinSet;
use weft_client::{Client, ClientConfig, PutOptions};
use weft_proto::{Peer, Security, certs::CertificateFiles};

/// More blocks on each disk than may be removed from it within a day if the removal is unexpected.
const OBJECTS: usize = 1_100;
/// The number of objects that are put or removed at the same time.
const AT_ONCE: usize = 8;

async fn client(cluster: &Cluster) -> Client {
    let file = fs::read_to_string(cluster.dir().join("weft.toml")).unwrap().parse::<toml::Table>().unwrap();
    let files = CertificateFiles::in_dir(&cluster.dir().join("certificates"), &Peer::Client);
    let coordinator = file["coordinator"].as_str().unwrap().to_owned();
    Client::connect(ClientConfig::new([coordinator], Security::load(&files).unwrap())).await.unwrap()
}

/// Runs `work` for all objects.
async fn for_all<F: Future<Output = weft_types::Result<()>> + Send + 'static>(work: impl Fn(String) -> F) {
    let mut under_way: JoinSet<weft_types::Result<()>> = JoinSet::new();
    for number in 0..OBJECTS {
        if under_way.len() >= AT_ONCE {
            under_way.join_next().await.unwrap().unwrap().unwrap();
        }
        under_way.spawn(work(format!("small-{number}")));
    }
    while let Some(done) = under_way.join_next().await {
        done.unwrap().unwrap();
    }
}

/// Of all listed garbage: the places and reasons, the number of blocks, and the number of bytes.
fn listed(garbage: &Value) -> (Vec<(String, String)>, u64, u64) {
    let all = garbage["garbage"].as_array().unwrap();
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap().to_owned();
    let number = |name: &str| all.iter().map(|entry| entry[name].as_u64().unwrap()).sum();
    let mut kinds: Vec<_> = all.iter().map(|entry| (text(entry, "place"), text(entry, "reason"))).collect();
    kinds.sort_unstable();
    kinds.dedup();
    (kinds, number("blocks"), number("bytes"))
}

#[test]
fn the_space_of_many_small_objects_comes_back_at_once() {
    let cluster = Setup::nodes(2).with(&[("WEFT_COORDINATOR_GARBAGE_GRACE_MS", "5000")]).up();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Arc::new(client(&cluster).await);
        for_all(|key| {
            let client = Arc::clone(&client);
            async move {
                let options = PutOptions { code: "rs(1,1)".into(), ..PutOptions::default() };
                client.put("default", &key, &[7u8; 1_000][..], &options).await.map(drop)
            }
        })
        .await;
        assert_eq!(cluster.files().len(), 2 * 2 * OBJECTS, "each block has a payload and a sidecar");
        for_all(|key| {
            let client = Arc::clone(&client);
            async move { client.remove("default", &key).await }
        })
        .await;
        client.close().await;
    });
    let (kinds, blocks, bytes) = listed(&cluster.json(&["node", "garbage", "ls"]));
    assert_eq!((kinds, bytes), (vec![("metadata".to_owned(), "removed".to_owned())], 1_000 * blocks));
    wait_for("all blocks to be freed", || cluster.files().is_empty());
    assert!(cluster.weft(["node", "garbage", "ls"]).ok().text().contains("there is no garbage"));
    let nodes = cluster.json(&["node", "ls"]);
    let waiting: u64 = nodes.as_array().unwrap().iter().map(|node| node["garbage_blocks"].as_u64().unwrap()).sum();
    assert_eq!(waiting, 0);
    let log = cluster.log("coordinator");
    assert!(
        !log.contains("cannot remove garbage") && !log.contains("garbage waits for"),
        "the log reports expected garbage: {log}"
    );
}

#[test]
fn what_nobody_expects_is_shown_and_released_when_a_person_says_so() {
    let cluster = Setup::nodes(2).with(&[("WEFT_COORDINATOR_ORPHAN_CHECK_INTERVAL_MS", "1000")]).up();
    cluster.put("old", &bytes(3_000, 1), &["--code", "rs(1,1)"]).ok();
    let kept: Vec<(PathBuf, Vec<u8>)> =
        cluster.files_of("node-01").into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect();
    assert_eq!(kept.len(), 2);
    cluster.weft(["rm", "old"]).ok();
    wait_for("the blocks to be removed", || cluster.files().is_empty());
    kept.iter().for_each(|(file, content)| fs::write(file, content).unwrap());
    let list = || listed(&cluster.json(&["node", "garbage", "ls", "node-01"]));
    let there = (vec![("quarantine".to_owned(), "unexpected".to_owned())], 1, 3_000);
    wait_for("the restored block to be quarantined", || list() == there);
    assert!(listed(&cluster.json(&["node", "garbage", "ls", "node-02"])).0.is_empty());
    let text = cluster.weft(["node", "garbage", "ls"]).ok();
    assert!(text.text().contains("unexpected") && text.text().contains(" days"), "{}", text.text());

    cluster.weft(["node", "garbage", "release", "node-09", "--yes"]).refused(3, &["there is no node 'node-09'"]);
    cluster.weft(["node", "garbage", "release", "node-01"]).refused(2, &["1 blocks of node-01", "nothing was done", "--yes"]);
    assert_eq!(list(), there);
    let released = cluster.json(&["node", "garbage", "release", "node-01", "--yes"]);
    assert_eq!((released["freed_blocks"].as_u64(), released["freed_bytes"].as_u64()), (Some(1), Some(3_000)));
    assert_eq!(list().1, 0);
    assert!(cluster.weft(["node", "garbage", "release", "node-01"]).ok().text().contains("nothing to release"));
    cluster.take_down(&["node-02"]);
    cluster.weft(["node", "garbage", "release", "node-02", "--yes"]).refused(4, &["node-02 is down"]);
    let ended = cluster.weft(["node", "garbage", "ls"]).ok();
    assert!(ended.stderr.contains("warning: the quarantine of node-02 is not known"), "{}", ended.stderr);
}

/// Sweeps come twice a second here.
#[test]
fn what_waits_for_the_next_hour_is_told_of_once() {
    let nothing = [("WEFT_AGENT_LIMITS__FREED_BYTES_PER_HOUR", "0"), ("WEFT_AGENT_LIMITS__FREED_PERCENT_PER_HOUR", "0")];
    let cluster = Setup::nodes(2).with(&nothing).up();
    cluster.put("one", &bytes(3_000, 1), &["--code", "rs(1,1)"]).ok();
    cluster.weft(["rm", "one"]).ok();
    let told = || cluster.log("coordinator").matches("garbage waits for the hourly limit").count();
    wait_for("both nodes to be named in the log", || told() >= 2);
    cluster.put("two", &bytes(3_000, 2), &["--code", "rs(1,1)"]).ok();
    cluster.weft(["rm", "two"]).ok();
    let removed = || listed(&cluster.json(&["node", "garbage", "ls"])).1;
    assert_eq!(removed(), 4);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!((told(), removed()), (2, 4));
    let nodes = cluster.json(&["node", "ls"]);
    assert!(nodes.as_array().unwrap().iter().all(|node| node["garbage_bytes"] == 6_000), "{nodes}");
}
