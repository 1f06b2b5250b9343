//! Measures foreground reads beside the repair or the drain of a node: some readers get small ranges of random objects, one after another
//! each, while nothing else runs, while a node is rebuilt or drained under a limit, and while it is so without one.
//!
//! The node stays up, so that no read has to rebuild a block: what differs is only the traffic of the repair or the drain. It is
//! repeated until there are enough reads beside it. Copying the blocks back in between does not count.

use super::{
    IdleMeter,
    lost::LostNodes,
    node::{LostNode, bring_back},
    percentile,
    repair::Subject,
};
use crate::testbed::Testbed;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};
use weft_cli::session::Session;
use weft_client::{Client, GetOptions, RepairNodeOptions, api::RepairLimit};
use weft_types::{Error, Result};

/// Readers at the same time.
pub(crate) const READERS: usize = 4;
/// The limit of a limited repair, percent of the measured rate of each link and disk.
pub(crate) const PERCENT: u32 = 50;
/// More repairs or drains than this for the reads of one phase mean that something is wrong.
const REPEATS_MAX: usize = 100;

/// The workload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// The least number of reads in a phase of a run.
    pub(crate) reads: usize,
    /// Bytes of a read.
    pub(crate) read_len: u64,
    /// Bytes of an object.
    pub(crate) object_len: u64,
    pub(crate) runs: usize,
    pub(crate) seed: u64,
}

/// What runs beside the reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Beside {
    Nothing,
    LimitedRepair,
    Repair,
    LimitedDrain,
    Drain,
}

/// The node whose blocks are rebuilt or moved beside the reads.
#[derive(Debug)]
pub(crate) enum Moved {
    Repaired(LostNode),
    Drained(LostNodes),
}

/// The reads of one phase of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) latencies: Vec<Duration>,
    /// The time of the repairs or drains beside them, and the bytes of the blocks that these rebuilt or moved.
    pub(crate) repair_s: f64,
    pub(crate) rebuilt_bytes: u64,
    pub(crate) cpu_idle: f64,
}

impl Beside {
    /// Those with a repair, in the order in which a run measures them.
    const REPAIRS: [Self; 3] = [Self::Nothing, Self::LimitedRepair, Self::Repair];
    /// Likewise with a drain.
    const DRAINS: [Self; 3] = [Self::Nothing, Self::LimitedDrain, Self::Drain];

    /// In the order in which a run measures them.
    pub(crate) fn of(is_drain: bool) -> [Self; 3] {
        if is_drain { Self::DRAINS } else { Self::REPAIRS }
    }

    fn limit(self) -> RepairLimit {
        let percent = matches!(self, Self::LimitedRepair | Self::LimitedDrain).then_some(PERCENT);
        RepairLimit { percent, ..RepairLimit::default() }
    }
}

impl std::fmt::Display for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.pad("nothing"),
            Self::LimitedRepair => f.pad(&format!("repair at {PERCENT} %")),
            Self::Repair => f.pad("repair, no limit"),
            Self::LimitedDrain => f.pad(&format!("drain at {PERCENT} %")),
            Self::Drain => f.pad("drain, no limit"),
        }
    }
}

impl Moved {
    pub(crate) fn is_drain(&self) -> bool {
        matches!(self, Self::Drained(_))
    }

    /// The stored objects.
    fn keys(&self) -> Vec<String> {
        match self {
            Self::Repaired(node) => node.keys(),
            Self::Drained(nodes) => nodes.keys(),
        }
    }

    /// The bytes of the node's blocks.
    fn bytes(&self) -> u64 {
        match self {
            Self::Repaired(node) => node.rebuilt_bytes(),
            Self::Drained(nodes) => nodes.moved_bytes(),
        }
    }

    /// Rebuilds or moves all blocks of the node as the cluster chooses; returns the seconds.
    async fn run(&self, session: &Session) -> Result<f64> {
        match self {
            Self::Repaired(node) => {
                let options = RepairNodeOptions { force: true, ..RepairNodeOptions::default() };
                node.recover(session, &options).await
            }
            Self::Drained(nodes) => Ok(nodes.heal(session).await?.0),
        }
    }

    /// Brings the blocks back to the node.
    async fn undo(&self, session: &Session, testbed: &mut Testbed) -> Result<()> {
        match self {
            Self::Repaired(node) => node.bring_back(session, testbed).await.map(|_| ()),
            Self::Drained(nodes) => {
                nodes.drain(session, false).await?;
                bring_back(session, testbed, nodes.held()).await.map(|_| ())
            }
        }
    }

    /// Removes the stored objects.
    pub(crate) async fn remove(self, session: &Session) -> Result<()> {
        match self {
            Self::Repaired(node) => node.remove(session).await,
            Self::Drained(nodes) => nodes.remove(session).await,
        }
    }
}

impl Seen {
    /// The least latency in milliseconds that this percentage of the reads does not exceed.
    pub(crate) fn ms(&self, percent: usize) -> f64 {
        let mut ms: Vec<f64> = self.latencies.iter().map(|it| it.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        percentile(&ms, percent)
    }
}

/// Measures all phases in each run; calls `says` before each of them. Without a failure, no limit is left behind.
pub(crate) async fn measure(
    session: &Session,
    testbed: &mut Testbed,
    node: &Moved,
    work: Work,
    says: &dyn Fn(usize, Beside),
) -> Result<Vec<[Seen; 3]>> {
    let mut bench = Bench { session, node, readers: Readers::new(session, node, work) };
    // Warm-up: the first reads and the first repair or drain open connections and are not counted.
    bench.readers.read(work.reads.min(READERS * 4), None).await?;
    node.run(session).await?;
    node.undo(session, testbed).await?;
    let mut runs = Vec::with_capacity(work.runs);
    for run in 0..work.runs {
        let mut seen: [Seen; 3] = Default::default();
        for (beside, seen) in Beside::of(node.is_drain()).into_iter().zip(&mut seen) {
            says(run, beside);
            *seen = bench.phase(testbed, beside, work.reads).await?;
        }
        runs.push(seen);
    }
    Ok(runs)
}

struct Bench<'a> {
    session: &'a Session,
    node: &'a Moved,
    readers: Readers,
}

impl Bench<'_> {
    async fn phase(&mut self, testbed: &mut Testbed, beside: Beside, reads: usize) -> Result<Seen> {
        let idle = IdleMeter::begin();
        if beside == Beside::Nothing {
            let latencies = self.readers.read(reads, None).await?;
            return Ok(Seen { latencies, cpu_idle: idle.share(), ..Seen::default() });
        }
        let (mut seen, mut repeats) = (Seen::default(), 0);
        while seen.latencies.len() < reads {
            if repeats == REPEATS_MAX {
                let done = seen.latencies.len();
                let what = if self.node.is_drain() { "drains" } else { "repairs" };
                return Err(Error::fatal(format!("{REPEATS_MAX} {what} took no longer than {done} reads: use more --blocks")));
            }
            repeats += 1;
            self.limit(beside.limit()).await?;
            let (idle, is_over) = (IdleMeter::begin(), Arc::new(AtomicBool::new(false)));
            let moving = async {
                let moved = self.node.run(self.session).await;
                is_over.store(true, Relaxed);
                moved
            };
            let (moved, latencies) = tokio::join!(moving, self.readers.read(usize::MAX, Some(&is_over)));
            seen.cpu_idle += idle.share();
            seen.repair_s += moved?;
            seen.rebuilt_bytes += self.node.bytes();
            seen.latencies.extend(latencies?);
            // Copies obey the limit, too.
            self.limit(RepairLimit::default()).await?;
            self.node.undo(self.session, testbed).await?;
        }
        seen.cpu_idle /= f64::from(u32::try_from(repeats).unwrap_or(u32::MAX));
        Ok(seen)
    }

    /// Sets the limit; it is in force at all nodes when this returns.
    async fn limit(&self, limit: RepairLimit) -> Result<()> {
        let told = self.session.client.set_repair_limit(limit).await?;
        match told.nodes.iter().find(|node| node.state != "confirmed") {
            Some(node) => Err(Error::fatal(format!("{} has not confirmed the limit on repair: {}", node.name, node.why))),
            None => Ok(()),
        }
    }
}

/// The readers, which share the client's connections.
struct Readers {
    client: Client,
    keys: Arc<[String]>,
    work: Work,
    random: StdRng,
}

impl Readers {
    fn new(session: &Session, node: &Moved, work: Work) -> Self {
        let (client, keys) = (session.client.clone(), node.keys().into());
        Self { client, keys, work, random: StdRng::seed_from_u64(work.seed) }
    }

    /// Reads `reads` times, or until it is over.
    async fn read(&mut self, reads: usize, is_over: Option<&Arc<AtomicBool>>) -> Result<Vec<Duration>> {
        let (left, is_over) = (Arc::new(AtomicUsize::new(reads)), is_over.cloned().unwrap_or_default());
        // Dropping the set ends all of them.
        let mut under_way = JoinSet::new();
        for _ in 0..READERS {
            let (client, keys, work) = (self.client.clone(), Arc::clone(&self.keys), self.work);
            let (left, is_over, random) = (Arc::clone(&left), Arc::clone(&is_over), StdRng::from_rng(&mut self.random));
            under_way.spawn(async move {
                let may_read =
                    move || !is_over.load(Relaxed) && left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
                read_while(&client, &keys, work, random, may_read).await
            });
        }
        let mut all = Vec::new();
        while let Some(ended) = under_way.join_next().await {
            all.extend(ended.map_err(|error| Error::fatal(format!("a reader did not end: {error}")))??);
        }
        Ok(all)
    }
}

async fn read_while(
    client: &Client,
    keys: &[String],
    work: Work,
    mut random: StdRng,
    may_read: impl Fn() -> bool,
) -> Result<Vec<Duration>> {
    let (mut latencies, mut bytes) = (Vec::new(), Vec::with_capacity(work.read_len as usize));
    while may_read() {
        let key = &keys[random.random_range(0..keys.len())];
        let first = random.random_range(0..work.object_len / work.read_len) * work.read_len;
        let options = GetOptions { range: Some((first..first + work.read_len).into()), ..GetOptions::default() };
        bytes.clear();
        let begun = Instant::now();
        client.get(Subject::bucket(), key, &mut bytes, &options).await?;
        latencies.push(begun.elapsed());
        if bytes.len() as u64 != work.read_len {
            return Err(Error::corrupt(format!("a read returned {} bytes instead of {}", bytes.len(), work.read_len)));
        }
    }
    Ok(latencies)
}
