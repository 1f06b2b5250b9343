use super::*;
use weft_control::view::{DiskView, NodeView};
use weft_proto::to_status;
use weft_types::{BlockState, DiskNumber, Home, Layout, Owner, PlacedBlock, Seq, StripeId, StripeLayout};

const LEN: u64 = 1 << 20;

fn node(id: u32, up: bool) -> (NodeId, NodeView) {
    let (number, size) = (DiskNumber(id), 1 << 40);
    let (id, path, failed) = (NodeId(id), String::new(), false);
    let disk = DiskView { number, id: path.clone(), path, total_bytes: size, free_bytes: size, failed, blocks: 0 };
    let (name, rack) = (id.to_string(), "r".to_owned());
    (id, NodeView { id, name, rack, up, suspect_for: Duration::ZERO, disks: vec![disk] })
}

fn stripe(number: u64, k: u32, nodes: &[u32]) -> StripeRecord {
    let layout = Layout { block_len: LEN, cell_len: LEN, alpha: 1 };
    let layout = StripeLayout { layout, k, m: nodes.len() as u32 - k, data_len: LEN * u64::from(k) };
    let placed = |node: &u32| PlacedBlock {
        generation: 1,
        generation_high_water: 1,
        home: Home { node: NodeId(*node), disk: DiskNumber(*node) },
        state: BlockState::Ok,
        copy: 0,
    };
    StripeRecord {
        id: StripeId(number + 1),
        owner: Owner::Object(UploadId(1)),
        number,
        ended: true,
        seq: Seq::default(),
        layout,
        blocks: (0..=u8::MAX).zip(nodes.iter().map(placed)).collect(),
        copies: Vec::new(),
        checksums: Vec::new(),
        corrupt: BTreeMap::new(),
        incomplete: false,
    }
}

fn progress(bytes: u64) -> Result<ConvertEvent, Status> {
    Ok(ConvertEvent { event: Some(Event::Progress(ConvertProgress { bytes })) })
}

/// What is told each second of how far it is, of 1000.
async fn each_second(far: impl Fn(u64) -> u64) -> (Duration, Unfinished) {
    let (begin, silence) = (Instant::now(), Duration::from_secs(5));
    let events = futures::stream::iter(0..1200).then(async |second| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        progress(far(second))
    });
    let end = followed(std::pin::pin!(events), 1000, silence, |_| {}).await;
    (begin.elapsed(), end.unwrap_err())
}

#[test]
fn one_object_waits_for_space() {
    let room = Room::default();
    let (one, other) = (UploadId(1), UploadId(2));
    let waits = [room.wait(one), room.wait(one)];
    assert!(waits.iter().all(Option::is_some) && room.is_awaited());
    assert!(room.wait(other).is_none(), "its space may be what is lacking");
    let [first, second] = waits;
    drop(first);
    assert!(room.wait(other).is_none(), "another stripe of the first waits still");
    assert!(room.has_made_way(other) && !room.has_made_way(one));
    drop(second);
    assert!(!room.is_awaited() && room.wait(other).is_some());
}

#[tokio::test(start_paused = true)]
async fn who_is_there_and_no_farther_is_not_waited_for_and_who_is_slow_is() {
    let (after, why) = each_second(|second| second.min(10)).await;
    assert!(matches!(&why, Unfinished::Broken(why) if why.contains("stood still for 60s")), "{why:?}");
    assert_eq!(after.as_secs(), 11 + 60);
    let (after, why) = each_second(|second| second / 59).await;
    assert!(matches!(&why, Unfinished::Broken(why) if why.contains("went away")), "{why:?}");
    assert_eq!(after.as_secs(), 1200);
    // The coordinator itself may have to rebuild what was lost before it says that the stripe has ended.
    let (after, why) = each_second(|second| if second < 10 { second } else { 1000 }).await;
    assert!(matches!(&why, Unfinished::Broken(why) if why.contains("stood still for 600s")), "{why:?}");
    assert_eq!(after.as_secs(), 11 + 600);
    for status in [Status::unavailable("broken pipe"), Status::from_error("stream closed".into()), Status::unknown("h2")] {
        let broken = followed(futures::stream::iter([Err(status)]), 1000, Duration::from_secs(5), |_| {}).await;
        assert!(matches!(&broken, Err(Unfinished::Broken(_))), "who said nothing is not merely busy: {broken:?}");
    }
    let busy = futures::stream::iter([Err(to_status(&Error::retry("busy")))]);
    let busy = followed(busy, 1000, Duration::from_secs(5), |_| {}).await;
    assert!(matches!(&busy, Err(Unfinished::Failed(error)) if *error == Error::retry("busy")), "{busy:?}");
    let silent = followed(futures::stream::pending(), 1000, Duration::from_secs(5), |_| {}).await;
    assert!(matches!(&silent, Err(Unfinished::Broken(why)) if why.contains("said nothing")), "{silent:?}");
}

#[test]
fn who_has_copies_or_data_is_near_and_who_is_down_has_nothing() {
    let view = View { nodes: (1..=6).map(|id| node(id, id != 3)).collect(), ..View::default() };
    let near = |old: &[StripeRecord], start, end| {
        let near = near(old, Span::new(start, end), &view);
        near.into_iter().map(|(node, bytes)| (node.0, bytes)).collect::<Vec<_>>()
    };
    // Of replicas each block is all of it.
    let replicas = [stripe(0, 1, &[1, 2, 3]), stripe(1, 1, &[2, 3, 4])];
    assert_eq!(near(&replicas, 0, 2 * LEN), [(1, LEN), (2, 2 * LEN), (4, LEN)]);
    assert_eq!(near(&replicas, LEN + 10, LEN + 30), [(2, 20), (4, 20)]);
    // Of coded data only the data can be read as it is.
    let coded = [stripe(0, 3, &[4, 3, 2, 5, 6])];
    assert_eq!(near(&coded, 0, 3 * LEN), [(2, LEN), (4, LEN)]);
    assert_eq!(near(&coded, LEN, 2 * LEN + 5), [(2, 5)]);
    // Of data with copies each of them is as good.
    let mut hot = [stripe(0, 2, &[1, 3, 5])];
    let second = |index: u8, node: u32| (index, PlacedBlock { copy: 1, ..stripe(0, 1, &[node]).blocks[&0] });
    hot[0].copies = vec![second(0, 2), second(1, 4)];
    assert_eq!(near(&hot, 0, 2 * LEN), [(1, LEN), (2, LEN), (4, LEN)]);
}
