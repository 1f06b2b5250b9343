//! Gets with lost blocks, failing nodes and wrong bytes.

use crate::{World, random_bytes};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::io::AsyncReadExt;
use weft_client::{ByteRange, Client, ClientConfig, GetOptions, Got, PutOptions};
use weft_types::{ClusterId, NodeId, Party, Reaction};

/// An object of two and a half stripes in blocks of 2 MiB, so checksum units, cells and slices all differ.
async fn stored(cell_len: u64) -> (World, Vec<u8>) {
    let world = World::insecure().await;
    let data = random_bytes((20 << 20) - 12345, cell_len);
    let options = PutOptions { block_len: 2 << 20, cell_len, ..PutOptions::default() };
    world.client.put("b", "k", &data[..], &options).await.unwrap();
    (world, data)
}

async fn get(world: &World, options: &GetOptions) -> weft_types::Result<(Got, Vec<u8>)> {
    let mut bytes = Vec::new();
    let got = world.client.get("b", "k", &mut bytes, options).await?;
    assert_eq!(got.bytes, bytes.len() as u64);
    Ok((got, bytes))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_blocks_are_rebuilt_by_every_scheme_to_files_and_pipes() {
    for cell_len in [64 << 10, 2 << 20] {
        let (world, data) = stored(cell_len).await;
        let path = world.dir.path().join("out");
        for dead in [1, 4] {
            world.agents.kill(NodeId(dead));
            for scheme in ["conventional", "ppr", "pipeline"] {
                let options = GetOptions { scheme: scheme.into(), ..GetOptions::default() };
                let (got, bytes) = get(&world, &options).await.unwrap();
                assert!(bytes == data, "{scheme} returned other bytes");
                assert!(!got.rebuilt.is_empty() && got.errors.is_empty(), "{:?}", got.errors);
                world.client.get_file("b", "k", &path, &options).await.unwrap();
                assert!(std::fs::read(&path).unwrap() == data);
            }
        }
        world.agents.kill(NodeId(2));
        let error = get(&world, &GetOptions::default()).await.unwrap_err();
        assert_eq!(error.object.as_deref(), Some("b/k"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(world.client.get_file("b", "k", &path, &GetOptions::default()).await.is_err());
        assert_eq!(world.files(), Vec::<String>::new(), "a failed get left a file");
    }
}

/// A block that was lost while it was updated in place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuilt_block_whose_checksums_are_unknown_is_read() {
    let (world, data) = stored(64 << 10).await;
    world.agents.kill(NodeId(1));
    world.coordinator.state.lock().unwrap().forgets_rebuilt = true;
    let (got, bytes) = get(&world, &GetOptions::default()).await.unwrap();
    assert!(bytes == data && !got.rebuilt.is_empty() && got.errors.is_empty(), "{:?}", got.errors);
    let path = world.dir.path().join("out");
    world.client.get_file("b", "k", &path, &GetOptions::default()).await.unwrap();
    assert!(std::fs::read(&path).unwrap() == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_return_exactly_their_bytes() {
    let (world, data) = stored(64 << 10).await;
    let size = data.len() as u64;
    for dead in [None, Some(2)] {
        if let Some(node) = dead {
            world.agents.kill(NodeId(node));
        }
        for range in [0..1, 0..0, size - 1..size, 4095..4097, (8 << 20) - 3..(8 << 20) + 3, 70_000..5_000_001] {
            let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
            let (_, bytes) = get(&world, &options).await.unwrap();
            assert!(bytes == data[range.start as usize..range.end as usize], "{range:?}");
            let path = world.dir.path().join("part");
            world.client.get_file("b", "k", &path, &options).await.unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes);
        }
    }
    let outside = GetOptions { range: Some((size - 1..size + 1).into()), ..GetOptions::default() };
    let error = get(&world, &outside).await.unwrap_err();
    assert!(error.reaction == Reaction::InvalidInput && error.message.contains(&size.to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_read_takes_one_call_and_two_with_an_older_coordinator() {
    let (world, data) = stored(64 << 10).await;
    let size = data.len() as u64;
    let stripe = 8 << 20;
    // The last one begins on the second page of stripes.
    let ranges = [0..4096, 4095..4097, stripe - 3..stripe, size - 70_000..size];
    for (is_old, calls) in [(false, &["StatObject"][..]), (true, &["StatObject", "ReadStripe"])] {
        world.coordinator.state.lock().unwrap().is_old = is_old;
        for range in &ranges {
            world.coordinator.calls();
            let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
            let (got, bytes) = get(&world, &options).await.unwrap();
            assert!(bytes == data[range.start as usize..range.end as usize], "{range:?}");
            world.client.close().await;
            let mut made = world.coordinator.calls();
            // Another page of the object's stripes, but no other plan.
            assert_eq!((made.remove(1), got.plans), ("StatObject", 1), "{range:?}");
            assert_eq!(made, calls, "{range:?}");
            world.coordinator.reads_ended().await;
        }
        // The first stripe's part is read at once; a part that is longer than a window is not.
        for (range, windows) in [(stripe - 100..stripe + 100, 1), (5..(1 << 20) + 6, 2)] {
            world.coordinator.calls();
            let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
            assert!(get(&world, &options).await.unwrap().1 == data[range.start as usize..range.end as usize]);
            let asked = world.coordinator.calls().iter().filter(|call| **call == "ReadStripe").count();
            assert_eq!(asked, windows + usize::from(is_old && windows == 1), "{range:?}");
        }
    }
    // Nothing is left of a read that was started and is not wanted.
    world.coordinator.state.lock().unwrap().is_old = false;
    let beyond = GetOptions { range: Some((size - 1..size + 1).into()), ..GetOptions::default() };
    get(&world, &beyond).await.unwrap_err();
    world.client.close().await;
    assert_eq!(world.coordinator.calls().last(), Some(&"EndRead"));
    world.coordinator.reads_ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_avoids_a_node_that_dies_and_reports_it() {
    // A node that is read, and a helper in a chain.
    for (dead, dying) in [(None, 1), (Some(1), 3), (Some(1), 5)] {
        let (world, data) = stored(2 << 20).await;
        if let Some(node) = dead {
            world.agents.kill(NodeId(node));
        }
        world.agents.faults.lock().unwrap().dying.insert(NodeId(dying), 17);
        let progress: Arc<Mutex<u64>> = Arc::default();
        let told = progress.clone();
        let told = weft_client::ProgressFn::new(move |progress| *told.lock().unwrap() = progress.done_bytes);
        let path = world.dir.path().join("out");
        let options = GetOptions { progress: told, ..GetOptions::default() };
        let got = world.client.get_file("b", "k", &path, &options).await.unwrap();
        assert!(world.agents.is_dead(NodeId(dying)), "no node died");
        assert!(std::fs::read(&path).unwrap() == data);
        assert!(!got.errors.is_empty() && got.plans > 3, "{got:?}");
        assert_eq!(*progress.lock().unwrap(), data.len() as u64);
        world.client.close().await;
        world.coordinator.reads_ended().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wrong_byte_is_returned() {
    for cell_len in [64 << 10, 2 << 20] {
        for file in [false, true] {
            let (world, data) = stored(cell_len).await;
            world.agents.kill(NodeId(1));
            // The bytes of a parity block are wrong for a while; only the rebuilt block's checksums reveal it.
            world.agents.faults.lock().unwrap().lying.insert(NodeId(5), 2);
            let path = world.dir.path().join("out");
            let (got, bytes) = if file {
                let got = world.client.get_file("b", "k", &path, &GetOptions::default()).await.unwrap();
                (got, std::fs::read(&path).unwrap())
            } else {
                get(&world, &GetOptions::default()).await.unwrap()
            };
            assert!(bytes == data);
            assert!(got.errors.iter().any(|error| error.reaction == Reaction::Corrupt && error.block.is_some()), "{got:?}");

            world.agents.faults.lock().unwrap().lying.insert(NodeId(5), u32::MAX);
            let error = get(&world, &GetOptions::default()).await.unwrap_err();
            assert_eq!(error.reaction, Reaction::Corrupt, "{error}");
        }
    }
}

/// Whether the error names block 0 as corrupt, and its node.
fn is_named(error: &weft_types::Error) -> bool {
    let (block, party) = (error.block.map(|block| block.index), error.party);
    (error.reaction, block, party) == (Reaction::Corrupt, Some(0), Some(Party::Node(NodeId(1))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_units_are_checked() {
    for (cell_len, tells_no_pages) in [(64 << 10, false), (2 << 20, false), (2 << 20, true)] {
        let (world, data) = stored(cell_len).await;
        world.coordinator.state.lock().unwrap().tells_no_pages = tells_no_pages;
        let ranges = [5000..5001, 4096..8192, 0..100_000, 30_000..(2 << 20) - 5000, 100_000..(7 << 20) + 1];
        for range in ranges.clone() {
            let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
            let part = &data[range.start as usize..range.end as usize];
            let (got, bytes) = get(&world, &options).await.unwrap();
            assert!(bytes == part && got.errors.is_empty(), "{range:?}: {:?}", got.errors);

            // A node, or the network, changes a byte.
            world.agents.faults.lock().unwrap().lying.insert(NodeId(1), 1);
            let (got, bytes) = get(&world, &options).await.unwrap();
            assert!(bytes == part, "{range:?}: a wrong byte was returned");
            let lies = world.agents.faults.lock().unwrap().lying[&NodeId(1)];
            // Without page checksums, a unit that arrives in part is not checked.
            assert!(tells_no_pages || lies == 0 && got.errors.iter().any(is_named), "{range:?}: {got:?}");
        }
        world.agents.faults.lock().unwrap().lying.insert(NodeId(1), u32::MAX);
        let options = GetOptions { range: Some(ranges[0].clone().into()), ..GetOptions::default() };
        let error = get(&world, &options).await.unwrap_err();
        assert!(is_named(&error), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_a_replaced_object_restarts_or_fails() {
    let new = random_bytes(9 << 20, 3);
    let options = PutOptions { block_len: 1 << 20, cell_len: 64 << 10, ..PutOptions::default() };
    let replaced_after = |world: &World, calls| world.coordinator.state.lock().unwrap().replaced_after = Some(calls);

    // To a file, which is invisible before it is complete: in the first stripe, and after two of three.
    let (world, data) = stored(64 << 10).await;
    let path = world.dir.path().join("out");
    for (calls, old) in [(0, true), (2, false)] {
        if !old {
            world.client.put("b", "k", &data[..], &options).await.unwrap();
        }
        world.client.put("b", "new", &new[..], &options).await.unwrap();
        replaced_after(&world, calls);
        let got = world.client.get_file("b", "k", &path, &GetOptions::default()).await.unwrap();
        assert_eq!((got.bytes, got.object.size), (new.len() as u64, new.len() as u64));
        assert!(std::fs::read(&path).unwrap() == new, "not the new object");
        assert_eq!(world.files(), ["out"]);
    }

    // To a pipe, in windows of 1 MiB: before the first byte, and after some.
    let (world, _) = stored(64 << 10).await;
    world.client.put("b", "new", &new[..], &options).await.unwrap();
    replaced_after(&world, 0);
    let (got, bytes) = get(&world, &GetOptions::default()).await.unwrap();
    assert!(bytes == new && got.object.size == new.len() as u64);
    world.client.put("b", "new", &data[..], &options).await.unwrap();
    replaced_after(&world, 5);
    let mut bytes = Vec::new();
    let error = world.client.get("b", "k", &mut bytes, &GetOptions::default()).await.unwrap_err();
    assert_eq!((error.reaction, error.object.as_deref()), (Reaction::Retry, Some("b/k")), "{error}");
    assert!(error.message.contains("was replaced during the read"), "{error}");
    assert!(!bytes.is_empty() && new.starts_with(&bytes), "two objects were mixed");

    // The object is removed and not replaced.
    let (world, _) = stored(64 << 10).await;
    replaced_after(&world, 1);
    let error = world.client.get_file("b", "k", world.dir.path().join("out"), &GetOptions::default()).await.unwrap_err();
    assert_eq!((error.reaction, error.object.as_deref()), (Reaction::NotFound, Some("b/k")), "{error}");
    assert!(error.message.contains("removed during"), "{error}");
    assert_eq!(world.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_continues_when_its_object_is_converted() {
    let (world, data) = stored(64 << 10).await;
    let options = PutOptions { block_len: 1 << 20, cell_len: 256 << 10, ..PutOptions::default() };
    for (calls, range) in [(0, None), (5, None), (9, Some(3 << 20..(19 << 20) + 17)), (u32::MAX, None)] {
        world.client.put("b", "new", &data[..], &options).await.unwrap();
        {
            let mut state = world.coordinator.state.lock().unwrap();
            (state.is_conversion, state.replaced_after) = (true, Some(calls));
        }
        let options = GetOptions { range: range.clone().map(ByteRange::from), ..GetOptions::default() };
        let (got, bytes) = get(&world, &options).await.unwrap();
        let expected = range.map_or(&data[..], |range| &data[range.start as usize..range.end as usize]);
        assert!(bytes == expected, "after {calls} calls: {} bytes", bytes.len());
        assert_eq!(got.object.size, data.len() as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_busy_coordinator_are_retried() {
    let (world, data) = stored(64 << 10).await;
    world.coordinator.state.lock().unwrap().busy = 3;
    let (got, bytes) = get(&world, &GetOptions::default()).await.unwrap();
    assert!(bytes == data && got.errors.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_fails_no_node() {
    let (world, data) = stored(64 << 10).await;
    let (writer, mut reader) = tokio::io::duplex(64 << 10);
    let slow = async {
        // Longer than an agent waits for a peer that accepts nothing.
        tokio::time::sleep(Duration::from_secs(7)).await;
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).await.unwrap();
        bytes
    };
    let getting = async {
        let options = GetOptions::default();
        let got = world.client.get("b", "k", writer, &options).await;
        got.unwrap()
    };
    let (got, bytes) = tokio::join!(getting, slow);
    assert!(bytes == data && got.errors.is_empty(), "{:?}", got.errors);
}

#[tokio::test]
async fn explaining_moves_nothing() {
    let (world, _) = stored(64 << 10).await;
    let plans = world.client.explain_get("b", "k", &GetOptions::default()).await.unwrap();
    assert_eq!(plans.len(), 3);
    assert!(plans.iter().all(|stripe| stripe.plan == b"rs(4,2)" && stripe.task.is_none()));
    world.client.close().await;
    assert_eq!(world.coordinator.calls(), ["StatObject", "StatObject", "ReadStripe", "ReadStripe", "ReadStripe"]);
}

#[tokio::test]
async fn another_cluster_and_an_unreachable_one_are_refused() {
    let world = World::secured().await;
    let files = weft_proto::certs::CertificateFiles::in_dir(world.dir.path(), &weft_proto::Peer::Client);
    let security = weft_proto::Security::load(&files).unwrap();
    let address = world.coordinator_address.clone();
    let config = ClientConfig { cluster: Some(ClusterId(5)), ..ClientConfig::new([address], security.clone()) };
    let Err(error) = Client::connect(config).await else { panic!("another cluster was accepted") };
    assert!(error.message.contains(&ClusterId(5).to_string()), "{error}");
    let Err(error) = Client::connect(ClientConfig::new(Vec::<String>::new(), security.clone())).await else {
        panic!("connected without a coordinator")
    };
    assert_eq!(error.reaction, Reaction::InvalidInput);
    let Err(error) = Client::connect(ClientConfig::new(["127.0.0.1:1"], security)).await else {
        panic!("connected without a coordinator")
    };
    assert!(error.message.contains("127.0.0.1:1"), "{error}");
}
