//! Puts.

use crate::{World, random_bytes};
use async_trait::async_trait;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{io::AsyncWriteExt, time::Instant};
use weft_client::{Client, ClientConfig, GetOptions, Progress, ProgressFn, PutOptions, RepairOptions};
use weft_proto::{ExtraStall, NodeLink};
use weft_types::{NodeId, Reaction};

fn options(block_len: u64, cell_len: u64) -> PutOptions {
    PutOptions { block_len, cell_len, ..PutOptions::default() }
}

async fn get(world: &World, key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    world.client.get("b", key, &mut bytes, &GetOptions::default()).await.unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_object_is_read_back() {
    for world in [World::insecure().await, World::secured().await] {
        // Nothing; less than a cell; a whole stripe; several, the last short; stripes that are too large for memory.
        for (block_len, cell_len, len) in [
            (64 << 10, 4096, 0),
            (64 << 10, 4096, 1),
            (64 << 10, 64 << 10, 256 << 10),
            (64 << 10, 4096, (3 << 20) + 77),
            (1 << 20, 1 << 20, (9 << 20) + 5),
        ] {
            let data = random_bytes(len, 7);
            let options = options(block_len, cell_len);
            let piped = world.client.put("b", "piped", &data[..], &options).await.unwrap();
            let path = world.dir.path().join("data");
            std::fs::write(&path, &data).unwrap();
            let file = world.client.put_file("b", "file", &path, &options).await.unwrap();
            assert_eq!((piped.size, file.size), (len as u64, len as u64));
            assert_eq!(piped.stripe_count, (len as u64).div_ceil(4 * block_len));
            assert!(get(&world, "piped").await == data && get(&world, "file").await == data, "{len} bytes came back changed");
            assert_eq!(world.files(), ["data"], "a file was left behind");
        }
        assert_eq!(world.coordinator.state.lock().unwrap().aborted, Vec::<u64>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_dies_is_replaced_and_progress_ends_at_the_total() {
    let world = World::insecure().await;
    let data = random_bytes(3 << 20, 8);
    let path = world.dir.path().join("data");
    std::fs::write(&path, &data).unwrap();
    world.agents.faults.lock().unwrap().dying.insert(NodeId(3), 20);
    let told: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let listener = told.clone();
    let progress = ProgressFn::new(move |progress| listener.lock().unwrap().push(progress));
    let options = PutOptions { progress, ..options(256 << 10, 4096) };
    world.client.put_file("b", "k", &path, &options).await.unwrap();
    assert!(world.agents.is_dead(NodeId(3)), "no node died");
    let last = *told.lock().unwrap().last().unwrap();
    assert_eq!(last, Progress { done_bytes: data.len() as u64, total_bytes: Some(data.len() as u64) });
    assert!(get(&world, "k").await == data);
}

/// Holds back all data until this time.
struct HeldBack(Instant);

#[async_trait]
impl NodeLink for HeldBack {
    async fn send(&self, bytes: u64) {
        assert!(bytes <= 256 << 10, "a frame of {bytes} bytes");
        tokio::time::sleep_until(self.0).await;
    }

    async fn received(&self, _: u64) {}

    fn is_held_back(&self) -> bool {
        Instant::now() < self.0
    }

    fn extra_stall(&self) -> ExtraStall {
        ExtraStall::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_held_back_at_its_uplink_blames_no_receiver() {
    let world = World::insecure().await;
    // Longer than a receiver may take to accept data, and than a transfer may stall.
    let link: Arc<dyn NodeLink> = Arc::new(HeldBack(Instant::now() + Duration::from_secs(4)));
    let held_back = Client::connect(ClientConfig { node_link: Some(link), ..world.config.clone() }).await.unwrap();
    let data = random_bytes(3 << 20, 11);
    held_back.put("b", "k", &data[..], &options(1 << 20, 1 << 20)).await.unwrap();
    assert!(get(&world, "k").await == data);
    let state = world.coordinator.state.lock().unwrap();
    assert_eq!((&state.complaints[..], state.errors), (&[][..], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_does_not_undo_or_repeat_an_operation() {
    let world = World::insecure().await;
    let data = random_bytes(200_000, 9);
    // One stripe, and one lost answer.
    world.coordinator.state.lock().unwrap().answers_lost = 1;
    world.client.put("b", "k", &data[..], &options(64 << 10, 4096)).await.unwrap();
    assert!(get(&world, "k").await == data);
    // A file's first stripe is started with the put, and the put is committed with its last stripe: that answer is lost more often than
    // the call is retried.
    let path = world.dir.path().join("data");
    std::fs::write(&path, &data).unwrap();
    let told: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let listener = told.clone();
    let progress = ProgressFn::new(move |progress| listener.lock().unwrap().push(progress));
    world.coordinator.state.lock().unwrap().answers_lost = 8;
    world.client.put_file("b", "file", &path, &PutOptions { progress, ..options(64 << 10, 4096) }).await.unwrap();
    assert!(get(&world, "file").await == data);
    assert_eq!(told.lock().unwrap().last().unwrap().done_bytes, data.len() as u64);
    // An empty object has no stripe.
    world.coordinator.state.lock().unwrap().answers_lost = 1;
    world.client.put("b", "nothing", &[][..], &options(64 << 10, 4096)).await.unwrap();
    assert!(get(&world, "nothing").await.is_empty());
    assert_eq!(world.coordinator.state.lock().unwrap().answers_lost, 0);
    assert_eq!(world.coordinator.state.lock().unwrap().aborted, Vec::<u64>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_of_known_size_stores_exactly_that_many_bytes() {
    let world = World::insecure().await;
    let data = random_bytes(700_000, 10);
    for size in [0, 1, 262_144, 524_288, 699_999, 700_000] {
        let mut reader = &data[..];
        let options = PutOptions { size: Some(size), ..options(64 << 10, 4096) };
        assert_eq!(world.client.put("b", "k", &mut reader, &options).await.unwrap().size, size);
        assert!(get(&world, "k").await == data[..size as usize], "{size}");
        assert_eq!(reader.len() as u64, 700_000 - size, "the rest stays in the reader");
    }
    for size in [700_001, 786_432, 10 << 20] {
        let options = PutOptions { size: Some(size), ..options(64 << 10, 4096) };
        let error = world.client.put("b", "short", &data[..], &options).await.unwrap_err();
        assert!(error.message.contains("ends after 700000 bytes") && error.reaction == Reaction::InvalidInput, "{error}");
    }
    world.client.close().await;
    assert_eq!(world.coordinator.state.lock().unwrap().aborted.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_or_failed_put_is_aborted() {
    let world = World::insecure().await;
    let aborted = || world.coordinator.state.lock().unwrap().aborted.len();
    {
        // The pipe delivers a stripe and then stalls.
        let (mut pipe, reader) = tokio::io::duplex(4 << 20);
        pipe.write_all(&random_bytes(1 << 20, 1)).await.unwrap();
        let options = options(64 << 10, 4096);
        let putting = world.client.put("b", "k", reader, &options);
        assert!(tokio::time::timeout(Duration::from_millis(300), putting).await.is_err());
    }
    world.client.close().await;
    assert_eq!(aborted(), 1);

    for node in 1..=3 {
        world.agents.kill(NodeId(node));
    }
    let error = world.client.put("b", "k", &[1; 10_000][..], &options(64 << 10, 4096)).await.unwrap_err();
    assert_eq!((error.reaction, error.object.as_deref()), (Reaction::Unavailable, Some("b/k")), "{error}");
    world.client.close().await;
    assert_eq!(aborted(), 2);
    assert_eq!(world.client.stat("b", "k").await.unwrap_err().reaction, Reaction::NotFound);
}

#[tokio::test]
async fn an_impossible_put_fails_before_data_is_sent() {
    let world = World::insecure().await;
    let missing = world.dir.path().join("missing");
    let error = world.client.put_file("b", "k", &missing, &PutOptions::default()).await.unwrap_err();
    assert!(error.reaction == Reaction::InvalidInput && error.message.contains("missing"), "{error}");
    let error = world.client.put_file("b", "k", world.dir.path(), &PutOptions::default()).await.unwrap_err();
    assert!(error.message.contains("regular file"), "{error}");
    let error = world.client.put("none", "k", &b""[..], &PutOptions::default()).await.unwrap_err();
    assert_eq!((error.reaction, error.object.as_deref()), (Reaction::NotFound, Some("none/k")));
    world.client.close().await;
    assert!(world.agents.blocks.lock().unwrap().is_empty());
    assert!(world.coordinator.state.lock().unwrap().aborted.is_empty());
}

#[tokio::test]
async fn many_removals_have_a_result_each_however_many_a_call_answers() {
    let world = World::insecure().await;
    for key in ["a1", "a2", "a3", "a4", "a5"] {
        world.client.put("b", key, &b"x"[..], &PutOptions::default()).await.unwrap();
    }
    let names = ["a1", "a2", "no", "a3", "a4", "a1"].map(|key| ("b".to_owned(), key.to_owned()));
    for (dry_run, expected) in [(true, [true, true, false, true, true, true]), (false, [true, true, false, true, true, false])] {
        let results = world.client.remove_many(&names, dry_run).await;
        assert!(results.iter().map(Result::is_ok).eq(expected), "{results:?}");
        assert_eq!(results[2].as_ref().unwrap_err().object.as_deref(), Some("b/no"));
    }
    let left = world.client.list("b", "").next_page().await.unwrap().unwrap();
    assert_eq!(left.iter().map(|object| object.key.as_str()).collect::<Vec<_>>(), ["a5"]);
    assert_eq!(world.client.remove_many(&[], false).await, []);
}

#[tokio::test]
async fn lists_come_in_pages_and_repairs_as_events() {
    let world = World::insecure().await;
    for key in ["a1", "a2", "a3", "b1"] {
        world.client.put("b", key, &b"x"[..], &PutOptions::default()).await.unwrap();
    }
    world.client.remove("b", "a2").await.unwrap();
    assert_eq!(world.client.remove("b", "a2").await.unwrap_err().object.as_deref(), Some("b/a2"));
    let mut listing = world.client.list("b", "");
    let mut pages: Vec<Vec<String>> = Vec::new();
    while let Some(page) = listing.next_page().await.unwrap() {
        pages.push(page.into_iter().map(|object| object.key).collect());
    }
    assert_eq!(pages, [vec!["a1", "a3"], vec!["b1"]]);
    assert_eq!(world.client.list("b", "z").next_page().await, Ok(None));

    let options = RepairOptions { scheme: "ppr".into(), to: vec![NodeId(3)], ..RepairOptions::default() };
    let mut repair = world.client.repair("b", "a1", &options).await.unwrap();
    assert!(repair.next().await.unwrap().is_some());
    let error = repair.next().await.unwrap_err();
    assert_eq!((error.reaction, error.object.as_deref()), (Reaction::Unavailable, Some("b/a1")));
}
