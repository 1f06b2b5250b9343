//! Foreground before repair: at admission, at a disk and at a link.

use crate::cluster::{Client, Cluster, Options, Stripe, node, until};
use futures::future::join_all;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use tokio::time::{Instant, sleep};
use weft_agent::{Limits, Throttle};
use weft_plan::Plan;
use weft_proto::{
    from_status,
    v1::{ClassLimits, task_event::Event},
};
use weft_types::{ByteSize, NodeId, Reaction, Span};

const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreground_is_admitted_while_repairs_fill_their_share() {
    let limits = Limits { memory_budget: ByteSize(8 * MIB), ..Limits::default() };
    let cluster = Cluster::start(Options { limits, ..Options::agents(3) }).await;
    let stripe = Stripe::new(1, "rs(1,1)", MIB, MIB);
    cluster.write(&stripe).await;
    let mut repairs = Vec::new();
    let busy = loop {
        let plan = repair(&stripe, repairs.len() as u32);
        let opened = cluster.coordinator.tasks(&plan, &stripe);
        match cluster.call(NodeId(1)).await.open(opened[&node(0)].clone()).await {
            Ok(_) => repairs.push(plan.id),
            Err(status) => break from_status(&status),
        }
    };
    assert_eq!(busy.reaction, Reaction::Retry, "{busy}");
    assert!(busy.message.contains("busy: repair tasks use"), "{busy}");
    let used = cluster.agents[&1].memory_used_bytes();
    assert!((4 * MIB..8 * MIB * 70 / 100).contains(&used), "repairs use {used} bytes");
    let events = cluster.run(&read(&stripe, MIB), &stripe, &cluster.client()).await.unwrap();
    assert!(events.values().all(|event| matches!(event, Event::Done(_))), "{events:?}");
    for plan in repairs {
        cluster.cancel(NodeId(1), plan).await;
    }
    assert_eq!(cluster.agents[&1].memory_used_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_clusters_limits_apply_if_lower_and_while_the_coordinator_sends_them() {
    let limits = Limits { memory_budget: ByteSize(8 * MIB), ..Limits::default() };
    let cluster = Cluster::start(Options { limits, ..Options::agents(3) }.simulated()).await;
    let stripe = Stripe::new(1, "rs(1,1)", MIB, MIB);
    cluster.write(&stripe).await;
    let mut number = 0;
    let mut used_by_repairs = async || {
        let mut repairs = Vec::new();
        let busy = loop {
            number += 1;
            let plan = repair(&stripe, number);
            let opened = cluster.coordinator.tasks(&plan, &stripe);
            match cluster.call(NodeId(1)).await.open(opened[&node(0)].clone()).await {
                Ok(_) => repairs.push(plan.id),
                Err(status) => break from_status(&status),
            }
        };
        assert!(busy.message.contains("busy: repair tasks use"), "{busy}");
        let used = cluster.agents[&1].memory_used_bytes();
        for plan in repairs {
            cluster.cancel(NodeId(1), plan).await;
        }
        used * 100 / (8 * MIB)
    };
    assert!((50..=70).contains(&used_by_repairs().await));
    let percent = |repair_percent| Some(ClassLimits { repair_percent: Some(repair_percent), ..ClassLimits::default() });
    cluster.coordinator.limit(percent(40)).await;
    assert!((20..=40).contains(&used_by_repairs().await));
    for no_lower in [percent(90), percent(0), None] {
        cluster.coordinator.limit(percent(40)).await;
        cluster.coordinator.limit(no_lower).await;
        let used = used_by_repairs().await;
        assert!(if no_lower == percent(0) { used <= 40 } else { used >= 50 }, "{no_lower:?}: {used} %");
    }

    // The same for the bytes that they send.
    let rate = |repair_bytes_per_s| Some(ClassLimits { repair_bytes_per_s, ..ClassLimits::default() });
    let seconds = async |plan: Plan| {
        let begin = Instant::now();
        let events = cluster.run(&plan, &stripe, &cluster.client()).await.unwrap();
        assert!(events.values().all(|event| matches!(event, Event::Done(_))), "{events:?}");
        begin.elapsed().as_secs_f64()
    };
    cluster.coordinator.limit(rate(Some(MIB / 4))).await;
    assert!((3.0..5.0).contains(&seconds(repair(&stripe, 900)).await), "1 MiB at 256 KiB a second");
    assert!(seconds(read(&stripe, MIB)).await < 1.0);
    cluster.coordinator.limit(None).await;
    assert!(seconds(repair(&stripe, 901)).await < 1.0);
}

/// A node knows by itself the class that a repair gives way to, without waiting for a peer.
#[tokio::test(start_paused = true)]
async fn a_held_back_repair_reports_it_and_continues_when_readers_have_finished() {
    for (what, throttle) in bounds() {
        let throttles = BTreeMap::from([(1, throttle)]);
        let cluster = Cluster::start(Options { throttles, ..Options::agents(3) }.simulated()).await;
        let stripe = Stripe::new(1, "rs(1,1)", 4 * MIB, 4 * MIB);
        cluster.write(&stripe).await;
        let client = cluster.client();
        let readers = async {
            loop {
                cluster.run(&read(&stripe, 4 * MIB), &stripe, &client).await.unwrap();
            }
        };
        let opened = cluster.open(&repair(&stripe, 0), &stripe).await.unwrap();
        let mut running = BTreeMap::new();
        let held_back = async {
            sleep(Duration::from_millis(20)).await;
            running = cluster.start_all(&opened).await;
            until("the repair is held back", async || {
                let told = cluster.coordinator.progress(NodeId(1)).map(|told| told.waiting).unwrap_or_default();
                told.iter().any(|wait| wait.held_back)
            })
            .await;
        };
        tokio::select! {
            () = held_back => {}
            () = readers => unreachable!("readers go on"),
        }
        for (node, end) in running {
            let end = end.await.unwrap().unwrap();
            assert!(matches!(end, Event::Done(_)), "{what}, {node}: {end:?}");
        }
    }
}

/// The destination alone has a limit here: what it receives for a repair takes its time, and it says that no peer is the cause. What it
/// receives from a client does not wait.
#[tokio::test(start_paused = true)]
async fn a_node_bounds_what_it_receives_for_repairs() {
    let throttles = BTreeMap::from([(3, Throttle { network_bytes_per_s: Some(ByteSize(MIB)), ..Throttle::default() })]);
    let cluster = Cluster::start(Options { throttles, ..Options::agents(3) }.simulated()).await;
    let stripe = Stripe::new(1, "rs(1,1)", 4 * MIB, 4 * MIB);
    cluster.write(&stripe).await;
    let opened = cluster.open(&repair(&stripe, 0), &stripe).await.unwrap();
    let begin = Instant::now();
    let running = cluster.start_all(&opened).await;
    until("the destination is held back", async || {
        let told = cluster.coordinator.progress(NodeId(3)).map(|told| told.waiting).unwrap_or_default();
        told.iter().any(|wait| wait.held_back)
    })
    .await;
    for (node, end) in running {
        let end = end.await.unwrap().unwrap();
        assert!(matches!(end, Event::Done(_)), "{node}: {end:?}");
    }
    let seconds = begin.elapsed().as_secs_f64();
    assert!((3.5..6.0).contains(&seconds), "4 MiB at 1 MiB a second took {seconds} s");
    // A put to that node: its blocks have the homes 1, 2 and 3.
    let (written, begin) = (Stripe::new(2, "rs(2,1)", MIB, MIB), Instant::now());
    cluster.write(&written).await;
    assert!(begin.elapsed().as_secs_f64() < 0.5, "a put waited {:?}", begin.elapsed());
}

/// The rate of a limited disk or uplink of node 1, bytes a second.
const RATE: u64 = 32 * MIB;
/// The number of repairs that read continuously at node 1.
const REPAIRS: u32 = 8;
/// The pause between two reads, so that each one meets running repairs.
const PAUSE: Duration = Duration::from_millis(40);
/// The most that repairs send or read in one turn.
const FRAME_BYTES: u64 = 256 << 10;

/// On simulated time, in which only rate limits take time. So a read waits only for other tasks' bytes.
#[tokio::test(start_paused = true)]
async fn reads_wait_for_two_frames_of_the_repairs_that_saturate_a_disk_or_an_uplink() {
    for (what, throttle) in bounds() {
        let measured = measure(throttle, 20, Options::simulated).await;
        measured.print(what);
        let [small, large] = &measured.0;
        let two_frames = Duration::from_secs_f64(2.0 * FRAME_BYTES as f64 / RATE as f64);
        assert!(small.beside.p99 <= small.idle.p99 + two_frames + Duration::from_millis(2), "{what}: {small:?}");
        assert!(large.beside.p99 <= large.idle.p99 * 2, "{what}: {large:?}");
    }
}

/// The same on real sockets and disks, with `WEFT_MEASURE_READS` reads of each kind. It only prints figures, because
/// other work on the machine affects them. Without the variable it makes a few reads, as a smoke test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_beside_repairs_on_real_sockets() {
    let reads = std::env::var("WEFT_MEASURE_READS").ok().map(|reads| reads.parse().unwrap());
    for (what, throttle) in bounds() {
        let measured = measure(throttle, reads.unwrap_or(3), |options| options).await;
        measured.print(what);
    }
}

fn bounds() -> [(&'static str, Throttle); 2] {
    let rate = Some(ByteSize(RATE));
    [
        ("disk", Throttle { disk_bytes_per_s: rate, ..Throttle::default() }),
        ("uplink", Throttle { network_bytes_per_s: rate, ..Throttle::default() }),
    ]
}

/// How long reads of 4 KiB and of 4 MiB take.
struct Measured([Beside; 2]);

#[derive(Debug)]
struct Beside {
    idle: Times,
    beside: Times,
}

#[derive(Debug)]
struct Times {
    p50: Duration,
    p99: Duration,
}

impl Measured {
    fn print(&self, bound: &str) {
        for (kind, Beside { idle, beside }) in ["4 KiB", "4 MiB"].into_iter().zip(&self.0) {
            for (part, idle, beside) in [("p50", idle.p50, beside.p50), ("p99", idle.p99, beside.p99)] {
                let (ratio, more) = (beside.as_secs_f64() / idle.as_secs_f64(), beside.saturating_sub(idle));
                println!(
                    "{bound}, reads of {kind}, {part}: idle {idle:.1?}, beside repairs {beside:.1?}: × {ratio:.2}, + {more:.1?}"
                );
            }
        }
    }
}

async fn measure(throttle: Throttle, reads: usize, options: impl Fn(Options) -> Options) -> Measured {
    let throttles = BTreeMap::from([(1, throttle)]);
    let cluster = Cluster::start(options(Options { throttles, ..Options::agents(3) })).await;
    let read_stripe = Stripe::new(1, "rs(1,1)", 4 * MIB, 4 * MIB);
    let repaired = Stripe { slice_len: MIB, ..Stripe::new(2, "rs(1,1)", 8 * MIB, 8 * MIB) };
    cluster.write(&read_stripe).await;
    cluster.write(&repaired).await;
    let client = cluster.client();
    let mut idle = Vec::new();
    for len in [4096, 4 * MIB] {
        idle.push(times(&cluster, &read_stripe, len, reads, &client).await);
    }
    let generation = AtomicU32::new(0);
    let repairs = join_all((0..REPAIRS).map(async |_| {
        loop {
            let plan = repair(&repaired, generation.fetch_add(1, Ordering::Relaxed));
            for (node, event) in cluster.run(&plan, &repaired, &client).await.unwrap() {
                assert!(matches!(event, Event::Done(_)), "{node}: {event:?}");
            }
        }
    }));
    let beside = async {
        sleep(Duration::from_millis(500)).await;
        let mut beside = Vec::new();
        for len in [4096, 4 * MIB] {
            beside.push(times(&cluster, &read_stripe, len, reads, &client).await);
        }
        beside
    };
    let beside = tokio::select! {
        beside = beside => beside,
        _ = repairs => unreachable!("repairs go on"),
    };
    let mut both = idle.into_iter().zip(beside).map(|(idle, beside)| Beside { idle, beside });
    Measured([both.next().unwrap(), both.next().unwrap()])
}

/// Reads one after another, from the first open to the last byte.
async fn times(cluster: &Cluster, stripe: &Stripe, len: u64, reads: usize, client: &Client) -> Times {
    let mut times = Vec::new();
    for _ in 0..reads {
        sleep(PAUSE).await;
        let begin = Instant::now();
        cluster.run(&read(stripe, len), stripe, client).await.unwrap();
        times.push(begin.elapsed());
    }
    times.sort();
    let at = |part: f64| times[((times.len() as f64 * part).ceil() as usize).clamp(1, times.len()) - 1];
    Times { p50: at(0.5), p99: at(0.99) }
}

fn read(stripe: &Stripe, len: u64) -> Plan {
    stripe.read_plan_of(0, Span::new(0, len), &[0], "conventional")
}

/// Rebuilds block 1 at node 3 from node 1's block, over and over.
fn repair(stripe: &Stripe, number: u32) -> Plan {
    let span = [stripe.layout.coded_span()];
    stripe.repair_plan_of(stripe.block(1, 2 + number), node(2), &[0], "conventional", &span)
}
