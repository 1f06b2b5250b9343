use super::*;
use crate::{Coordinator, CoordinatorConfig, Seams, members::Session};
use std::time::Duration;
use weft_control::{
    healer::Ended,
    health::{BadBlocks, Condition},
};
use weft_meta::MetaMode;
use weft_proto::{LinkKey, MemoryNet};
use weft_types::{Amount, Cause, DiskNumber, DiskRecord, Error, NodeId, NodeRecord, StripeId, SystemClock};

const STRIPES: u64 = 100_000;
/// Stripes of which the healer remembers what they wait for; it remembers no more.
const WAITING: u64 = 65_536;
/// The processor time that a scrape may take.
const SCRAPE_MAX: Duration = Duration::from_millis(50);
const SCRAPES: u32 = 10;

/// The processor time of this thread so far, which does not count the other programs of the machine.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

/// The condition of a stripe. There are some hundred different ones.
fn condition(stripe: u64) -> Condition {
    let now = Some((stripe % 4) as usize).filter(|_| !stripe.is_multiple_of(1000));
    let blocks = BadBlocks { corrupt: stripe % 3, lost: 1 + stripe % 7, away: stripe % 5, ..BadBlocks::default() };
    Condition { code: "rs(10,4)".into(), now, with_all_nodes: now, blocks }
}

fn node(id: u32) -> NodeRecord {
    NodeRecord {
        id: NodeId(id),
        name: if id == 1 { "n".into() } else { format!("n{id}").into() },
        rack: "r".into(),
        zone: String::new(),
        data_address: String::new(),
        control_address: String::new(),
        state: NodeState::Up,
        since_ms: 0,
        came_back: false,
        draining: false,
        disks: Vec::new(),
    }
}

/// A coordinator that has ended: what it knows stays, and nothing changes it any more.
async fn coordinator(dir: &std::path::Path) -> Arc<Shared> {
    let config = CoordinatorConfig {
        listen: "127.0.0.1:0".into(),
        metrics: metrics::OFF.into(),
        dir: dir.into(),
        insecure: true,
        ..CoordinatorConfig::default()
    };
    let net = Arc::new(MemoryNet::default());
    let seams = Seams { net, clock: Arc::new(SystemClock), seed: 1.into(), meta_mode: MetaMode::Inline };
    let (coordinator, shared) = Coordinator::begin(config, seams).await.unwrap();
    while !crate::healer::show(&shared).stopped.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    coordinator.shutdown().await.unwrap();
    shared
}

/// Node 2 is suspect; node 3 would be, and is down; node 1 is well.
#[tokio::test]
async fn status_and_the_list_of_nodes_and_metrics_agree_about_suspect_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let shared = coordinator(dir.path()).await;
    for id in 1..=3 {
        let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let (link_key, record) = (LinkKey::new([0; 32]), node(id));
        let (host, metrics_address, protocol) = (String::new(), String::new(), 4);
        let session = Session { link_key, channel, record, host, metrics_address, protocol, registered_ms: 0 };
        // Without disks, an agent is not up.
        let disks = if id == 3 { Vec::new() } else { vec![v1::Disk::default()] };
        shared.members.registered(session, &disks, 0);
    }
    let level = crate::health::reply(&shared).await.unwrap().level;
    [2, 3].iter().for_each(|id| shared.members.suspect_because(NodeId(*id), "no connection within 10000 ms"));
    let health = crate::health::reply(&shared).await.unwrap();
    let listed = crate::show::status(&shared).await.unwrap().nodes;
    let text = Source { shared, calls: Vec::new() }.figures().await.unwrap().text().unwrap();
    let of_health: Vec<(&str, &str)> = health.suspect_nodes.iter().map(|it| (&*it.name, &*it.why)).collect();
    assert_eq!(of_health, [("n2", "no connection within 10000 ms")]);
    assert!(health.suspect_nodes[0].suspect_ms > 0 && health.suspect_nodes[0].since_ms > 0, "{health:?}");
    assert_eq!(health.level, level, "it is no reason for alarm");
    let of_list: Vec<&str> = listed.iter().filter(|node| node.suspect_ms > 0).map(|node| &*node.name).collect();
    assert_eq!(of_list, ["n2"]);
    let of_metrics: Vec<&str> =
        text.lines().filter(|line| line.starts_with("weft_node_suspect{") && line.ends_with(" 1")).collect();
    assert_eq!(of_metrics, ["weft_node_suspect{node=\"n2\",rack=\"r\"} 1"]);
}

#[test]
fn a_disk_and_its_successor_at_the_same_path_are_one_series() {
    let disk = |number, failed| DiskRecord {
        number: DiskNumber(number),
        id: format!("id-{number}").into(),
        path: "/data".into(),
        total_bytes: 1,
        failed,
        draining: false,
        kept: false,
        retired: false,
        moved_to: None,
    };
    let record = NodeRecord { disks: vec![disk(1, true), disk(2, false)], ..node(1) };
    let status = MemberStatus {
        record,
        up: true,
        silent_for: Duration::ZERO,
        state_for: Duration::ZERO,
        disks: BTreeMap::new(),
        coding_bytes_per_s: 0,
        fsyncs: 0,
        suspect_for: Duration::from_millis(1),
        suspect: None,
    };
    let mut figures = Figures::of(GROUPS);
    let ailing = v1::AilingDisk { name: "n".into(), path: "/data".into(), trouble: "slow".into(), ..v1::AilingDisk::default() };
    of_nodes(&mut figures, &[status], &[ailing]);
    let text = figures.text().unwrap();
    let series: Vec<&str> = text.lines().filter(|line| line.starts_with("weft_disk_failed")).collect();
    assert_eq!(series, ["weft_disk_failed{node=\"n\",disk=\"/data\"} 1"]);
    assert!(text.lines().any(|line| line.starts_with("weft_node_suspect{node=\"n\",") && line.ends_with(" 1")), "{text}");
}

#[test]
fn what_is_left_of_a_drain_is_told_as_long_as_it_is_on() {
    let left = |name: &str, path: &str, blocks, allocations| {
        let (name, path) = (name.into(), path.into());
        v1::Draining { name, path, blocks, allocations, ..v1::Draining::default() }
    };
    let mut figures = Figures::of(GROUPS);
    of_drains(&mut figures, &[left("n1", "", 7, 1), left("n2", "/a", 0, 0), left("n3", "/a", 2, 0), left("n3", "/a", 3, 0)]);
    let text = figures.text().unwrap();
    let series: Vec<&str> = text.lines().filter(|line| line.starts_with("weft_draining_blocks{")).collect();
    let expected = ["node=\"n1\",disk=\"\"} 8", "node=\"n2\",disk=\"/a\"} 0", "node=\"n3\",disk=\"/a\"} 5"];
    assert_eq!(series, expected.map(|it| format!("weft_draining_blocks{{{it}")));
}

/// A scrape reads sums that are kept anyway. The time is the processor time of an unoptimised build, the mean of several.
#[tokio::test]
async fn a_scrape_is_quick_however_many_stripes_have_bad_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let shared = coordinator(dir.path()).await;
    for stripe in 1..=STRIPES {
        shared.health.lock().tally.set(StripeId(stripe), Some(condition(stripe)));
    }
    for stripe in 1..=WAITING {
        let error = Error::unavailable("no disk has room").cause(Cause::NoSpace);
        shared.healer.ended(StripeId(stripe), Ended::Left(Amount::default(), error), shared.started.now());
    }
    let source = Source { shared, calls: Vec::new() };
    let (begin, mut text) = (processor_time(), String::new());
    for _ in 0..SCRAPES {
        text = source.figures().await.unwrap().text().unwrap();
    }
    let took = (processor_time() - begin) / SCRAPES;
    let sum = |of: fn(&Condition) -> u64| (1..=STRIPES).map(|stripe| of(&condition(stripe))).sum::<u64>();
    let unreadable = STRIPES / 1000;
    for line in [
        format!("weft_stripes_with_bad_blocks {STRIPES}"),
        format!("weft_stripes_unreadable {unreadable}"),
        format!("weft_stripes_at_risk {}", sum(|condition| u64::from(condition.now == Some(0)))),
        format!("weft_stripes{{code=\"rs(10,4)\",further_losses=\"3\"}} {}", STRIPES / 4),
        format!("weft_stripes{{code=\"rs(10,4)\",further_losses=\"unreadable\"}} {unreadable}"),
        format!("weft_bad_blocks{{kind=\"corrupt\"}} {}", sum(|condition| condition.blocks.corrupt)),
        format!("weft_bad_blocks{{kind=\"on_lost_nodes\"}} {}", sum(|condition| condition.blocks.lost)),
        format!("weft_bad_blocks{{kind=\"on_down_nodes\"}} {}", sum(|condition| condition.blocks.away)),
        // Those that cannot be read wait for nodes.
        format!("weft_repair_stripes_waiting{{wait=\"space\"}} {}", WAITING - WAITING / 1000),
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is not in:\n{text}");
    }
    println!("a scrape with {STRIPES} stripes with bad blocks, {WAITING} of which wait: {:.1} ms", took.as_secs_f64() * 1e3);
    assert!(took <= SCRAPE_MAX, "a scrape took {took:?}");
    let begin = processor_time();
    for _ in 0..SCRAPES {
        assert_eq!(crate::health::reply(&source.shared).await.unwrap().stripes_with_bad_blocks, STRIPES);
    }
    let took = (processor_time() - begin) / SCRAPES;
    assert!(took <= SCRAPE_MAX, "the answer to `weft status` took {took:?}");
}
