//! The limit on all classes below foreground: running repairs obey it, and readers do not wait for it.

use crate::cluster::{Cluster, Options, Stripe, node, until};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_plan::Plan;
use weft_proto::v1::{LimitedLine, LowerLimit, SetLimitRequest, task_event::Event};
use weft_types::{NodeId, Span};

const MIB: u64 = 1 << 20;
const HELPER: NodeId = NodeId(1);
const HOME: NodeId = NodeId(3);

/// At every line.
fn everywhere(number: u64, rate: Option<u64>) -> LowerLimit {
    LowerLimit { number, up_bytes_per_s: rate, down_bytes_per_s: rate, disk_bytes_per_s: rate, extra_stall_ms: 0 }
}

impl Cluster {
    async fn limit(&self, node: NodeId, limit: LowerLimit) -> Vec<LimitedLine> {
        let request = SetLimitRequest { epoch: self.coordinator.epoch(), limit: Some(limit) };
        self.call(node).await.set_limit(request).await.unwrap().into_inner().lines
    }

    fn received(&self) -> u64 {
        self.coordinator.progress(HOME).map_or(0, |told| told.bytes_moved)
    }

    /// The bytes a second that arrive in about this time.
    async fn rate(&self, within: Duration) -> f64 {
        let next = async || {
            let before = self.received();
            until("bytes arrive", async || self.received() > before).await;
            (self.received(), Instant::now())
        };
        let (first, begin) = next().await;
        sleep(within).await;
        let (last, end) = next().await;
        (last - first) as f64 / (end - begin).as_secs_f64()
    }
}

fn repair(stripe: &Stripe) -> Plan {
    let span = [stripe.layout.coded_span()];
    stripe.repair_plan_of(stripe.block(1, 2), node(2), &[0], "conventional", &span)
}

/// At the helper's disk and uplink, and at the home's downlink and disk; each alone, and all together.
#[tokio::test(start_paused = true)]
async fn a_running_repair_obeys_a_limit_that_is_lowered_and_raised_and_a_reader_does_not() {
    type Of = fn(u64, Option<u64>) -> LowerLimit;
    let of: [(&str, NodeId, Of); 5] = [
        ("disk of the helper", HELPER, |number, rate| LowerLimit { number, disk_bytes_per_s: rate, ..LowerLimit::default() }),
        ("uplink", HELPER, |number, rate| LowerLimit { number, up_bytes_per_s: rate, ..LowerLimit::default() }),
        ("downlink", HOME, |number, rate| LowerLimit { number, down_bytes_per_s: rate, ..LowerLimit::default() }),
        ("disk of the home", HOME, |number, rate| LowerLimit { number, disk_bytes_per_s: rate, ..LowerLimit::default() }),
        ("all lines", HOME, everywhere),
    ];
    for (what, at, limit) in of {
        let cluster = Cluster::start(Options::agents(3).simulated()).await;
        let stripe = Stripe { slice_len: 64 << 10, ..Stripe::new(1, "rs(1,1)", 64 * MIB, 64 * MIB) };
        cluster.write(&stripe).await;
        let mut number = 0;
        let mut limit_to = async |rate: Option<u64>| {
            number += 1;
            cluster.limit(at, limit(number, rate)).await
        };
        limit_to(Some(MIB)).await;
        let opened = cluster.open(&repair(&stripe), &stripe).await.unwrap();
        let running = cluster.start_all(&opened).await;
        sleep(Duration::from_secs(2)).await;
        for rate in [MIB, MIB / 4, 3 * MIB] {
            limit_to(Some(rate)).await;
            // What waits in queues and sockets has passed.
            sleep(Duration::from_secs(4)).await;
            let measured = cluster.rate(Duration::from_secs(8)).await / rate as f64;
            assert!((0.9..1.1).contains(&measured), "{what}: {measured:.3} of {rate} bytes a second");
        }
        let begin = Instant::now();
        let read = stripe.read_plan_of(0, Span::new(0, 8 * MIB), &[0], "conventional");
        let events = cluster.run(&read, &stripe, &cluster.client()).await.unwrap();
        assert!(events.values().all(|event| matches!(event, Event::Done(_))), "{events:?}");
        assert!(begin.elapsed() < Duration::from_millis(500), "{what}: a reader waited {:?}", begin.elapsed());
        limit_to(None).await;
        let begin = Instant::now();
        for (node, end) in running {
            let end = end.await.unwrap().unwrap();
            assert!(matches!(end, Event::Done(_)), "{what}, {node}: {end:?}");
        }
        assert!(begin.elapsed() < Duration::from_secs(2), "{what}: {:?} without a limit", begin.elapsed());
    }
}

/// The links of the tasks may be silent for 10 s, and a slice now takes 16 s at the helper.
#[tokio::test(start_paused = true)]
async fn links_of_running_tasks_may_be_silent_for_as_long_as_the_new_limit_says() {
    for (extra_stall_ms, survives) in [(190_000, true), (0, false)] {
        let cluster = Cluster::start(Options::agents(3).simulated()).await;
        let stripe = Stripe { slice_len: 64 << 10, ..Stripe::new(1, "rs(1,1)", 64 * MIB, 64 * MIB) };
        cluster.write(&stripe).await;
        let limit = async |number, helper, home, extra_stall_ms| {
            for (node, rate) in [(HELPER, helper), (HOME, home)] {
                cluster.limit(node, LowerLimit { extra_stall_ms, ..everywhere(number, rate) }).await;
            }
        };
        limit(1, Some(MIB), Some(MIB), 0).await;
        let opened = cluster.open(&repair(&stripe), &stripe).await.unwrap();
        let running = cluster.start_all(&opened).await;
        sleep(Duration::from_secs(2)).await;
        // A home that is as slow would always have the next slice at hand.
        limit(2, Some(4 << 10), None, extra_stall_ms).await;
        sleep(Duration::from_secs(120)).await;
        limit(3, None, None, 0).await;
        for (node, end) in running {
            let end = end.await.unwrap().unwrap();
            assert_eq!(matches!(end, Event::Done(_)), survives, "{extra_stall_ms} ms, {node}: {end:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_limit_is_ignored_and_the_answer_tells_what_holds() {
    let cluster = Cluster::start(Options::agents(1).simulated()).await;
    let rates = |lines: Vec<LimitedLine>| lines.into_iter().map(|line| line.bytes_per_s).collect::<Vec<_>>();
    let lines = cluster.limit(HELPER, everywhere(5, Some(MIB))).await;
    assert_eq!(lines.iter().map(|line| line.line.as_str()).take(2).collect::<Vec<_>>(), ["uplink", "downlink"]);
    assert_eq!(rates(lines), [Some(MIB); 3]);
    assert_eq!(rates(cluster.limit(HELPER, everywhere(4, None)).await), [Some(MIB); 3], "it was sent before");
    let links = LowerLimit { disk_bytes_per_s: None, ..everywhere(6, Some(2 * MIB)) };
    assert_eq!(rates(cluster.limit(HELPER, links).await), [Some(2 * MIB), Some(2 * MIB), None]);
    let old = SetLimitRequest { epoch: 0, limit: Some(everywhere(7, None)) };
    assert!(cluster.call(HELPER).await.set_limit(old).await.unwrap_err().message().contains("epoch 0 has ended"));
}
