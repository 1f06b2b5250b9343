//! Whole plans over real agents: write, read, repair.

use crate::cluster::{Cluster, Options, Stripe, errors};
use std::{collections::BTreeMap, fs, time::Duration};
use tokio::time::Instant;
use weft_agent::{DiskMode, Throttle};
use weft_proto::crc32c;
use weft_proto::v1::task_event::Event;
use weft_types::{ByteSize, NodeId, Party, Reaction, Span};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_written_stripe_is_read_and_rebuilt() {
    for (tls, disk_mode, data_len) in [(true, DiskMode::Pool, 4 * (1 << 20)), (false, DiskMode::Inline, 1_500_001)] {
        let cluster = Cluster::start(Options { tls, disk_mode, ..Options::agents(7) }).await;
        let stripe = Stripe::new(1, "rs(4,2)", 1 << 20, data_len);
        cluster.write(&stripe).await;
        for index in 0..6u8 {
            let payload = cluster.payload(NodeId(u32::from(index) + 1), stripe.block(index, 1)).unwrap();
            assert_eq!(fs::read(payload).unwrap(), stripe.blocks[usize::from(index)], "block {index}");
        }
        let client = cluster.client();
        for (index, helpers) in [(0, &[0, 1, 2, 3][..]), (2, &[0, 1, 3, 4]), (5, &[0, 1, 2, 4])] {
            for scheme in ["conventional", "ppr", "pipeline"] {
                let plan = stripe.read_plan(index, helpers, scheme);
                for (node, event) in cluster.run(&plan, &stripe, &client).await.unwrap() {
                    assert!(matches!(event, Event::Done(_)), "{node}: {:?}", errors(&event));
                }
                let mut expected = stripe.blocks[usize::from(index)].clone();
                expected.resize(stripe.layout.coded_span().len() as usize, 0);
                assert!(client.output(index) == expected, "block {index} by {scheme}");
            }
        }
        let to = NodeId(7);
        let plan = stripe.repair_plan(1, Party::Node(to), &[0, 2, 3, 5], "pipeline", &[stripe.layout.coded_span()]);
        let events = cluster.run(&plan, &stripe, &client).await.unwrap();
        let Event::Done(done) = &events[&to] else { panic!("{:?}", errors(&events[&to])) };
        assert_eq!(done.stored[0].checksums, stripe.units(1));
        let span = stripe.layout.coded_span().len();
        let traffic = done.traffic.unwrap();
        assert_eq!((traffic.received_bytes, traffic.sent_bytes, traffic.read_bytes), (span, 0, 0));
        assert_eq!(traffic.written_bytes, stripe.blocks[1].len() as u64);
        let Event::Done(helper) = &events[&NodeId(3)] else { panic!() };
        let traffic = helper.traffic.unwrap();
        assert_eq!((traffic.received_bytes, traffic.sent_bytes), (span, span), "a helper in the chain");
        assert_eq!(traffic.read_bytes, stripe.blocks[2].len() as u64);
        assert_eq!(fs::read(cluster.payload(to, stripe.block(1, 2)).unwrap()).unwrap(), stripe.blocks[1]);
        assert!(cluster.agents.values().all(|agent| agent.memory_used_bytes() == 0), "memory was not released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_reports_the_pages_of_partly_read_units() {
    let cluster = Cluster::start(Options::agents(7)).await;
    let stripe = Stripe::new(1, "rs(4,2)", 3 << 20, 12 << 20);
    cluster.write(&stripe).await;
    let unit = 1 << 20;
    for (range, units) in [
        (Span::new(0, 3 * unit), vec![]),
        (Span::new(unit, 2 * unit), vec![]),
        (Span::new(4096, 8192), vec![0]),
        (Span::new(unit - 4096, 2 * unit + 4096), vec![0, 2]),
    ] {
        let client = cluster.client();
        cluster.run(&stripe.read_plan_of(2, range, &[0, 1, 2, 3], "conventional"), &stripe, &client).await.unwrap();
        let told = cluster.coordinator.pages(NodeId(3)).unwrap();
        assert_eq!(
            told.iter().map(|told| (told.index, told.unit)).collect::<Vec<_>>(),
            units.iter().map(|unit| (2, *unit)).collect::<Vec<_>>()
        );
        for told in told {
            let bytes = stripe.blocks[2].chunks(unit as usize).nth(told.unit as usize).unwrap();
            assert_eq!(told.checksums, bytes.chunks(4096).map(crc32c).collect::<Vec<_>>());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_over_sockets_passes_or_names_the_error() {
    let cluster = Cluster::start(Options { tls: true, ..Options::agents(7) }).await;
    let (stripe, other) = (Stripe::new(1, "rs(4,2)", 1 << 20, 3 << 20), Stripe::new(2, "rs(4,2)", 1 << 20, 4 << 20));
    cluster.write(&stripe).await;
    // The checker holds a block itself, or none.
    for checker in [NodeId(2), NodeId(7)] {
        let events = cluster.run(&stripe.check_plan(Party::Node(checker)), &stripe, &cluster.client()).await.unwrap();
        assert_eq!(events.len(), if checker == NodeId(7) { 7 } else { 6 });
        for (node, event) in events {
            assert!(matches!(event, Event::Done(_)), "{node}: {:?}", errors(&event));
        }
    }

    // A parity block that differs in one byte. All checksums on its node are valid.
    let (at, checker) = ((700 << 10) + 3, NodeId(7));
    let mut wrong = other.blocks[2].clone();
    wrong[at] ^= 1;
    cluster.run(&other.write_plan_of(0..5), &other, &cluster.client().with_data(&other)).await.unwrap();
    let wrong = Stripe {
        blocks: [&other.blocks[..2], &[wrong], &other.blocks[3..]].concat(),
        ..Stripe::new(2, "rs(4,2)", 1 << 20, 4 << 20)
    };
    cluster.run(&wrong.write_plan_of(5..6), &wrong, &cluster.client().with_data(&wrong)).await.unwrap();
    let events = cluster.run(&other.check_plan(Party::Node(checker)), &other, &cluster.client()).await.unwrap();
    let found = &errors(&events[&checker])[0];
    let (reaction, party, position) = (found.reaction, found.party, found.position);
    assert_eq!((reaction, party, position), (Reaction::Corrupt, Some(Party::Node(checker)), Some(at as u64)), "{found}");

    // A flipped byte on a disk is found by its node.
    let (helper, block) = (NodeId(1), stripe.block(0, 1));
    let payload = cluster.payload(helper, block).unwrap();
    let mut bytes = fs::read(&payload).unwrap();
    bytes[999] ^= 1;
    fs::write(&payload, bytes).unwrap();
    let events = cluster.run(&stripe.check_plan(Party::Node(checker)), &stripe, &cluster.client()).await.unwrap();
    let found = &errors(&events[&helper])[0];
    assert_eq!((found.reaction, found.block), (Reaction::Corrupt, Some(block)), "{found}");
    assert!(cluster.agents.values().all(|agent| agent.memory_used_bytes() == 0), "memory was not released");
}

/// On simulated time, in which only throttles take time.
#[tokio::test(start_paused = true)]
async fn a_throttled_node_keeps_to_its_rate() {
    let rate = |mib: u64| Some(ByteSize(mib << 20));
    let (helper, to) = (3, 4);
    // The helper reads, combines and sends a block of 1 MiB; the requestor writes it.
    let bounds = [
        (helper, Throttle { disk_bytes_per_s: rate(2), ..Throttle::default() }),
        (helper, Throttle { coding_bytes_per_s: rate(4), ..Throttle::default() }),
        (helper, Throttle { network_bytes_per_s: rate(2), ..Throttle::default() }),
        (to, Throttle { disk_bytes_per_s: rate(2), ..Throttle::default() }),
        // A node that only stores what it receives combines nothing.
        (to, Throttle { coding_bytes_per_s: rate(1), ..Throttle::default() }),
    ];
    for (node, throttle) in bounds {
        let is_slow = node == helper || throttle.coding_bytes_per_s.is_none();
        let throttles = BTreeMap::from([(node, throttle.clone())]);
        let cluster = Cluster::start(Options { throttles, ..Options::agents(4) }.simulated()).await;
        let stripe = Stripe::new(1, "rs(2,1)", 1 << 20, 2 << 20);
        cluster.write(&stripe).await;
        let plan = stripe.repair_plan(1, Party::Node(NodeId(to)), &[0, 2], "pipeline", &[stripe.layout.coded_span()]);
        let begin = Instant::now();
        cluster.run(&plan, &stripe, &cluster.client()).await.unwrap();
        // Half a second, less the burst.
        assert_eq!(begin.elapsed() >= Duration::from_millis(400), is_slow, "{:?} with {throttle:?}", begin.elapsed());
        assert_eq!(fs::read(cluster.payload(NodeId(to), stripe.block(1, 2)).unwrap()).unwrap(), stripe.blocks[1]);
    }
}
