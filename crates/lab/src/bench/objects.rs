//! Measures many objects: several clients in this process put, get and remove objects, each client one after another.
//!
//! The bytes of all objects lie in memory before the clock starts. Between two gets the clock is stopped to compare the result. A phase
//! takes as long as its slowest client. CPU time is read as soon as a phase ends; counters are read two heartbeats later, because
//! agents report them with heartbeats.

use super::{
    percentile,
    place::Place,
    put::{self, BUCKET},
    until_nodes,
    usage::{Cpu, Files},
};
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};
use weft_cli::{
    local::{LocalCluster, Signal},
    seed::seed,
};
use weft_client::{Client, GetOptions, PutOptions};
use weft_types::{Error, Result};

/// Consecutive objects begin this many bytes apart in the shared random bytes.
const STEP_BYTES: usize = 64;
/// At most this many objects decide which node is killed.
const STATS_MAX: u64 = 1024;

/// The workload.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    /// Bytes of an object.
    pub(crate) size: usize,
    /// Objects per round.
    pub(crate) count: u64,
    pub(crate) clients: usize,
    pub(crate) code: String,
    pub(crate) rounds: usize,
    pub(crate) seed: u64,
}

/// The operations on all objects, in the order of the phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Job {
    Put,
    Get,
    /// A get while a node is down that holds data of the object.
    DegradedGet,
    Remove,
}

/// The totals of one phase over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Phase {
    pub(crate) phase: Job,
    pub(crate) objects: usize,
    /// Operations in which a block was rebuilt.
    pub(crate) rebuilt: usize,
    pub(crate) seconds: f64,
    pub(crate) objects_per_s: f64,
    /// In the slowest and the fastest round.
    pub(crate) objects_per_s_min: f64,
    pub(crate) objects_per_s_max: f64,
    /// None: the operation moves no bytes.
    pub(crate) bytes_per_s: Option<f64>,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// Of this process, including the comparison of results.
    pub(crate) client_cpu_s: f64,
    /// None: the cluster's processes are on other machines.
    pub(crate) agents_cpu_s: Option<f64>,
    pub(crate) coordinator_cpu_s: Option<f64>,
    /// Durable commits of the metadata.
    pub(crate) commits: u64,
    /// Of the agents' disks.
    pub(crate) fsyncs: u64,
}

/// The space of an object on the agents' disks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct OnDisk {
    pub(crate) files_per_object: f64,
    /// Allocated by the file system.
    pub(crate) bytes_per_object: f64,
}

/// The results.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) phases: Vec<Phase>,
    /// None: the disks are on other machines.
    pub(crate) on_disk: Option<OnDisk>,
}

/// One phase of one round.
#[derive(Debug, Clone, Default)]
struct Sample {
    latencies: Vec<Duration>,
    rebuilt: usize,
    seconds: f64,
    cpu: Cpu,
    commits: u64,
    fsyncs: u64,
}

/// What one client did in a phase.
#[derive(Debug, Default)]
struct Turn {
    latencies: Vec<Duration>,
    rebuilt: usize,
}

/// The bytes of all objects: each object is another piece of one run of random bytes, so all objects differ and none needs memory of its
/// own.
#[derive(Debug)]
struct Data {
    bytes: Vec<u8>,
    size: usize,
}

/// What all clients share.
struct Shared {
    data: Data,
    options: PutOptions,
    /// The prefix of all keys: the cluster may be in use.
    prefix: String,
}

/// A benchmark in progress.
struct Bench<'a> {
    work: &'a Work,
    place: &'a Place<'a>,
    clients: Vec<Client>,
    shared: Arc<Shared>,
}

/// Runs the benchmark; calls `says` before each phase of each round. Removes all objects at the end.
pub(crate) async fn measure(place: &Place<'_>, work: &Work, says: &dyn Fn(usize, Job)) -> Result<Measured> {
    put::make_bucket(place.session).await?;
    let mut clients = Vec::with_capacity(work.clients);
    for _ in 0..work.clients {
        clients.push(place.client().await?);
    }
    let options = PutOptions { code: work.code.clone(), size: Some(work.size as u64), ..PutOptions::default() };
    let shared = Shared { data: Data::make(work), options, prefix: format!("objects-{:016x}/", seed()?) };
    let bench = Bench { work, place, clients, shared: Arc::new(shared) };
    let measured = bench.measure(says).await;
    if !place.is_own {
        bench.clean_up(measured.is_err()).await;
    }
    for client in &bench.clients {
        client.close().await;
    }
    measured
}

impl Bench<'_> {
    async fn measure(&self, says: &dyn Fn(usize, Job)) -> Result<Measured> {
        self.warm_up().await?;
        let jobs = if self.may_kill() {
            &[Job::Put, Job::Get, Job::DegradedGet, Job::Remove][..]
        } else {
            &[Job::Put, Job::Get, Job::Remove]
        };
        let mut samples = vec![Vec::new(); jobs.len()];
        let mut on_disk = None;
        let all: Arc<[u64]> = (0..self.work.count).collect();
        for round in 0..self.work.rounds {
            for (job, samples) in jobs.iter().zip(&mut samples) {
                says(round, *job);
                let before = if (round, *job) == (0, Job::Put) { self.used().await? } else { None };
                samples.push(match (job, self.place.local) {
                    (Job::DegradedGet, Some(cluster)) => self.degraded(cluster).await?,
                    _ => self.phase(*job, &all).await?,
                });
                if let Some(before) = before {
                    on_disk = self.used().await?.map(|after| self.on_disk(before, after));
                }
            }
        }
        let phases = jobs.iter().zip(&samples).map(|(job, samples)| Phase::of(*job, self.work.size, samples));
        Ok(Measured { phases: phases.collect(), on_disk })
    }

    /// Whether a node may be killed and its blocks rebuilt.
    fn may_kill(&self) -> bool {
        self.place.is_own && weft_codes::parse(&self.work.code).is_ok_and(|code| code.tolerance() > 0)
    }

    /// Warm-up: each client opens its connections and runs the code once with an object that is not counted.
    async fn warm_up(&self) -> Result<()> {
        let own: Arc<[u64]> = self.work.warm_up_objects().collect();
        self.turns(Job::Put, &own).await?;
        self.turns(Job::Get, &own).await.map(drop)
    }

    /// Removes the warm-up objects; after a failure, all remaining objects.
    async fn clean_up(&self, failed: bool) {
        let counted = if failed { 0..self.work.count } else { 0..0 };
        for number in counted.chain(self.work.warm_up_objects()) {
            // The put of this object may not have happened.
            let _gone = self.place.session.client.remove(BUCKET, &self.shared.key(number)).await;
        }
    }

    /// One phase with its counters.
    async fn phase(&self, job: Job, numbers: &Arc<[u64]>) -> Result<Sample> {
        let (commits, fsyncs) = self.counters().await?;
        let cpu = Cpu::now(self.place.local)?;
        let turns = self.turns(job, numbers).await?;
        let cpu = Cpu::now(self.place.local)?.since(cpu);
        let after = self.counters().await?;
        let seconds = turns.iter().map(|turn| turn.latencies.iter().sum::<Duration>().as_secs_f64()).fold(0.0, f64::max);
        Ok(Sample {
            rebuilt: turns.iter().map(|turn| turn.rebuilt).sum(),
            latencies: turns.into_iter().flat_map(|turn| turn.latencies).collect(),
            seconds,
            cpu,
            commits: after.0.saturating_sub(commits),
            fsyncs: after.1.saturating_sub(fsyncs),
        })
    }

    /// All clients work at the same time, each on the next object that no other has taken.
    async fn turns(&self, job: Job, numbers: &Arc<[u64]>) -> Result<Vec<Turn>> {
        let next = Arc::new(AtomicUsize::new(0));
        // Dropping the set ends all of them.
        let mut under_way = JoinSet::new();
        for client in &self.clients {
            let (client, shared) = (client.clone(), Arc::clone(&self.shared));
            let (numbers, next) = (Arc::clone(numbers), Arc::clone(&next));
            under_way.spawn(async move { shared.turn(&client, job, &numbers, &next).await });
        }
        let mut turns = Vec::new();
        while let Some(ended) = under_way.join_next().await {
            turns.push(ended.map_err(|error| Error::fatal(format!("a client did not end: {error}")))??);
        }
        Ok(turns)
    }

    /// Reads while the node is down that holds data of most objects: only these objects, repeatedly, to get the same number of reads.
    async fn degraded(&self, cluster: &LocalCluster) -> Result<Sample> {
        let (node, held) = self.node_with_most().await?;
        let numbers: Arc<[u64]> = held.iter().copied().cycle().take(self.work.count as usize).collect();
        let node = std::slice::from_ref(&node);
        cluster.signal(&node[0], Signal::Kill)?;
        until_nodes(self.place.session, node, |node| node.state != "up").await?;
        let sample = self.phase(Job::DegradedGet, &numbers).await;
        cluster.start(&node[0])?;
        until_nodes(self.place.session, node, |node| node.state == "up").await?;
        sample
    }

    /// The name of the node that holds data of most objects, and these objects.
    async fn node_with_most(&self) -> Result<(String, Vec<u64>)> {
        let k = weft_codes::parse(&self.work.code).map_err(Error::invalid)?.k();
        let client = &self.place.session.client;
        let mut held: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for number in 0..self.work.count.min(STATS_MAX) {
            let object = client.stat(BUCKET, &self.shared.key(number)).await?;
            let blocks = object.stripes.iter().flat_map(|stripe| &stripe.blocks);
            for block in blocks.filter(|block| (block.index as usize) < k && block.len > 0) {
                let numbers = held.entry(block.node).or_default();
                // An object of several stripes can have several blocks on a node.
                if numbers.last() != Some(&number) {
                    numbers.push(number);
                }
            }
        }
        let (id, numbers) =
            held.into_iter().max_by_key(|(_, numbers)| numbers.len()).ok_or_else(|| Error::fatal("no node holds data"))?;
        let node = client.status().await?.nodes.into_iter().find(|node| node.id == id);
        let node =
            node.ok_or_else(|| Error::fatal(format!("the coordinator does not know node n{id}, although it holds data")))?;
        Ok((node.name, numbers))
    }

    /// Durable commits of the metadata and fsyncs of the agents so far, after all agents have reported.
    async fn counters(&self) -> Result<(u64, u64)> {
        tokio::time::sleep(self.place.heartbeat * 2).await;
        let status = self.place.session.client.status().await?;
        Ok((status.commits, status.fsyncs))
    }

    /// The use of the agents' disks; None: they are on other machines.
    async fn used(&self) -> Result<Option<Files>> {
        if self.place.local.is_none() {
            return Ok(None);
        }
        let nodes = self.place.session.client.status().await?.nodes;
        Files::below(nodes.iter().flat_map(|node| &node.disks).map(|disk| Path::new(&disk.path))).map(Some)
    }

    fn on_disk(&self, before: Files, after: Files) -> OnDisk {
        let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / self.work.count as f64;
        OnDisk { files_per_object: each(before.files, after.files), bytes_per_object: each(before.bytes, after.bytes) }
    }
}

impl Work {
    /// The numbers of the warm-up objects, one per client.
    fn warm_up_objects(&self) -> std::ops::Range<u64> {
        self.count..self.count + self.clients as u64
    }
}

impl Shared {
    fn key(&self, number: u64) -> String {
        format!("{}{number}", self.prefix)
    }

    /// What one client does in a phase.
    async fn turn(&self, client: &Client, job: Job, numbers: &[u64], next: &AtomicUsize) -> Result<Turn> {
        let mut turn = Turn::default();
        // Touch the memory before the clock starts: first use is slower.
        let mut back = if job.reads() { vec![1; self.data.size] } else { Vec::new() };
        while let Some(number) = numbers.get(next.fetch_add(1, Relaxed)).copied() {
            let (key, bytes) = (self.key(number), self.data.of(number));
            back.clear();
            let begun = Instant::now();
            match job {
                Job::Put => drop(client.put(BUCKET, &key, bytes, &self.options).await?),
                Job::Get | Job::DegradedGet => {
                    let got = client.get(BUCKET, &key, &mut back, &GetOptions::default()).await?;
                    turn.rebuilt += usize::from(!got.rebuilt.is_empty());
                }
                Job::Remove => client.remove(BUCKET, &key).await?,
            }
            turn.latencies.push(begun.elapsed());
            if job.reads() && back != bytes {
                return Err(Error::corrupt("the object read back differs from the stored one").object(format!("{BUCKET}/{key}")));
            }
        }
        Ok(turn)
    }
}

impl Data {
    fn make(work: &Work) -> Self {
        let steps = (work.count as usize + work.clients) * STEP_BYTES;
        let mut bytes = vec![0; work.size + steps];
        StdRng::seed_from_u64(work.seed).fill_bytes(&mut bytes);
        Self { bytes, size: work.size }
    }

    /// The bytes of the object of that number.
    fn of(&self, number: u64) -> &[u8] {
        &self.bytes[number as usize * STEP_BYTES..][..self.size]
    }
}

impl Job {
    fn reads(self) -> bool {
        matches!(self, Self::Get | Self::DegradedGet)
    }
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::DegradedGet => "degraded get",
            Self::Remove => "remove",
        })
    }
}

impl Phase {
    /// Of at least one round.
    fn of(phase: Job, size: usize, samples: &[Sample]) -> Self {
        let mut ms: Vec<f64> = samples.iter().flat_map(|sample| &sample.latencies).map(|it| it.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let at = |percent: usize| percentile(&ms, percent);
        let rates = || samples.iter().map(|sample| sample.latencies.len() as f64 / sample.seconds);
        let seconds = samples.iter().map(|sample| sample.seconds).sum::<f64>();
        let objects_per_s = ms.len() as f64 / seconds;
        let cpu = |of: fn(&Cpu) -> Option<f64>| samples.iter().map(|sample| of(&sample.cpu)).sum::<Option<f64>>();
        Self {
            phase,
            objects: ms.len(),
            rebuilt: samples.iter().map(|sample| sample.rebuilt).sum(),
            seconds,
            objects_per_s,
            objects_per_s_min: rates().fold(f64::INFINITY, f64::min),
            objects_per_s_max: rates().fold(0.0, f64::max),
            bytes_per_s: (phase != Job::Remove).then_some(objects_per_s * size as f64),
            p50_ms: at(50),
            p99_ms: at(99),
            max_ms: at(100),
            client_cpu_s: samples.iter().map(|sample| sample.cpu.client).sum(),
            agents_cpu_s: cpu(|cpu| cpu.agents),
            coordinator_cpu_s: cpu(|cpu| cpu.coordinator),
            commits: samples.iter().map(|sample| sample.commits).sum(),
            fsyncs: samples.iter().map(|sample| sample.fsyncs).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_that_of_all_rounds_together() {
        let sample = |ms: std::ops::RangeInclusive<u64>, seconds, agents| Sample {
            latencies: ms.map(Duration::from_millis).collect(),
            rebuilt: 1,
            seconds,
            cpu: Cpu { client: 0.5, agents, coordinator: None },
            commits: 4,
            fsyncs: 9,
        };
        let phase = Phase::of(Job::Get, 1000, &[sample(101..=200, 10.0, Some(1.0)), sample(1..=100, 30.0, Some(2.0))]);
        assert_eq!((phase.objects, phase.rebuilt, phase.seconds, phase.objects_per_s), (200, 2, 40.0, 5.0));
        assert_eq!((phase.objects_per_s_min, phase.objects_per_s_max, phase.bytes_per_s), (100.0 / 30.0, 10.0, Some(5000.0)));
        assert_eq!([phase.p50_ms, phase.p99_ms, phase.max_ms].map(f64::round), [100.0, 198.0, 200.0]);
        assert_eq!((phase.client_cpu_s, phase.agents_cpu_s, phase.coordinator_cpu_s), (1.0, Some(3.0), None));
        assert_eq!((phase.commits, phase.fsyncs), (8, 18));
        assert_eq!(Phase::of(Job::Remove, 1000, &[sample(1..=1, 1.0, None)]).bytes_per_s, None);
    }

    #[test]
    fn objects_differ_and_are_the_same_again_by_their_seed() {
        let work = Work { size: 1000, count: 3, clients: 2, code: "rs(2,1)".to_owned(), rounds: 1, seed: 7 };
        let (data, again) = (Data::make(&work), Data::make(&work));
        let other = Data::make(&Work { seed: 8, ..work.clone() });
        for number in 0..work.warm_up_objects().end {
            assert_eq!((data.of(number), data.of(number).len()), (again.of(number), 1000), "object {number}");
            assert_ne!(data.of(number), other.of(number), "object {number}");
            assert!((0..number).all(|before| data.of(before) != data.of(number)), "object {number}");
        }
    }
}
