//! Whole plans over real agents: write, read, repair.

use crate::cluster::{Cluster, Options, Stripe};
use std::fs;
use weft_agent::DiskMode;
use weft_proto::v1::task_event::Event;
use weft_types::{NodeId, Party};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_is_read_and_rebuilt() {
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
                    assert!(matches!(event, Event::Done(_)), "{node}: {:?}", crate::cluster::errors(&event));
                }
                let mut expected = stripe.blocks[usize::from(index)].clone();
                expected.resize(stripe.layout.coded_span().len() as usize, 0);
                assert!(client.output(index) == expected, "block {index} by {scheme}");
            }
        }
        let to = NodeId(7);
        let plan = stripe.repair_plan(1, Party::Node(to), &[0, 2, 3, 5], "pipeline", &[stripe.layout.coded_span()]);
        let events = cluster.run(&plan, &stripe, &client).await.unwrap();
        let Event::Done(done) = &events[&to] else { panic!("{:?}", crate::cluster::errors(&events[&to])) };
        assert_eq!(done.stored[0].units, stripe.units(1));
        let span = stripe.layout.coded_span().len();
        let traffic = done.traffic.unwrap();
        assert_eq!((traffic.received_bytes, traffic.sent_bytes, traffic.read_bytes), (span, 0, 0));
        assert_eq!(traffic.written_bytes, stripe.blocks[1].len() as u64);
        let Event::Done(helper) = &events[&NodeId(3)] else { panic!() };
        let traffic = helper.traffic.unwrap();
        assert_eq!((traffic.received_bytes, traffic.sent_bytes), (span, span), "a helper in the chain");
        assert_eq!(traffic.read_bytes, stripe.blocks[2].len() as u64);
        assert_eq!(fs::read(cluster.payload(to, stripe.block(1, 2)).unwrap()).unwrap(), stripe.blocks[1]);
        assert!(cluster.agents.values().all(|agent| agent.memory_used_bytes() == 0), "memory that nobody gave back");
    }
}
