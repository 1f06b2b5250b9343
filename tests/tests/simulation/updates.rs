//! Writes in place by two clients under faults, once for each seed, while a third one reads.
//!
//! The writers share an object, but no bytes. Each repeats a write that failed until it is acknowledged, and from time to time reads what it has
//! written. One appends, too. Meanwhile something happens that the seed chooses ([`Trouble`]). The reads of one writer settle stripes that are open for updates,
//! and later writes open them again, so all of that is met at any moment. The others read open stripes at their nodes.
//!
//! **What must hold.** Acknowledged writes can be read at once, byte for byte. Whatever the reader sees of a stripe is what it contained at one moment
//! during the read: each writer's bytes up to one of its writes, none before those that were acknowledged when the read began, and none before those
//! that an earlier read has seen. In the end the object has exactly the bytes that were written, also
//! when as many blocks are lost as the code tolerates; a scrub finds nothing wrong; every stripe is at full strength; the disks hold exactly what
//! the metadata names.

use crate::{BLOCK_LEN, BUCKET, CELL_LEN, replay, seeds, some_bytes, trace_file};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IteratorRandom};
use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use weft_client::{
    Client, ClientConfig, ConvertOptions, GetOptions, PutOptions, WriteLog, WriteOptions,
    api::{ObjectReply, Policy},
};
use weft_tests::{Acknowledged, Cluster, Deed, Failure, Hand, Shape, Trace, agent_name, check_apart, check_disks, connect};
use weft_types::{NodeId, Reaction};

const AGENTS: u32 = 9;
const KEY: &str = "object";
const COORDINATOR: &str = "coordinator";
/// The number of seeds if the environment sets none: each trouble has its turn.
const SEEDS: u64 = TROUBLES.len() as u64;
/// Threads that run seeds.
const THREADS: usize = 2;
const STACK_BYTES: usize = 16 << 20;
/// The codes of objects, the copies of their data, and cells.
const CODES: [(&str, u32, u64); 3] = [("rs(4,2)", 1, CELL_LEN), ("rs(2,2)", 2, BLOCK_LEN), ("butterfly(4)", 1, 32 << 10)];
/// Bytes that belong to one writer. The next ones belong to the other.
const UNIT_BYTES: usize = 40_000;
const UNITS: usize = 20;
/// Writes of each writer.
const WRITES: usize = 30;
/// Attempts of something that fails while a node is away.
const ATTEMPTS: u32 = 40;

/// What happens during the writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// An agent is killed and starts again.
    AgentRestarts,
    /// An agent loses power, and comes back when all writes are done.
    AgentGoes,
    /// Two agents are killed, one soon after the other, and start again.
    AgentsRestart,
    CoordinatorRestarts,
    /// Coordinator and agent are killed at about the same time.
    BothRestart,
    /// Nothing passes for a while between two agents.
    Apart,
    /// The object is converted to another layout.
    Conversion,
    /// All stripes are checked, again and again.
    Scrubs,
    /// A node that has a block of the object is drained.
    Drain,
}

const TROUBLES: [Trouble; 10] = [
    Trouble::Nothing,
    Trouble::AgentRestarts,
    Trouble::AgentGoes,
    Trouble::AgentsRestart,
    Trouble::CoordinatorRestarts,
    Trouble::BothRestart,
    Trouble::Apart,
    Trouble::Conversion,
    Trouble::Scrubs,
    Trouble::Drain,
];

#[test]
fn acknowledged_writes_in_place_survive() {
    let seeds = seeds(SEEDS);
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let work = || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(failure) = run_to_the_end(seed) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                    }
                }
            };
            // Unoptimised futures of clients within clients are large.
            std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work).expect("a thread starts");
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(failed.is_empty(), "{} seeds failed:\n{}", failed.len(), failed.join("\n"));
}

fn run_to_the_end(seed: u64) -> Result<(), String> {
    let trace = Trace::default();
    let ended = catch_unwind(AssertUnwindSafe(|| trace.capture(|| run(seed, &trace))));
    let ended = ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Failure(format!("it panicked: {}", text.unwrap_or_default())))
    });
    if ended.is_err() || std::env::var_os("WEFT_SIM_SEED").is_some() {
        let _no_trace = fs::write(trace_file(seed), trace.text());
    }
    ended.map_err(|failure| {
        let (case, trace) = (Case::of(seed), trace_file(seed));
        format!("seed {seed}, {case:?}: {failure}\n  trace:  {}\n  replay: {}", trace.display(), replay(seed))
    })
}

/// One run.
#[derive(Debug, Clone, Copy)]
struct Case {
    trouble: Trouble,
    code: &'static str,
    replicas: u32,
    cell_len: u64,
}

impl Case {
    fn of(seed: u64) -> Self {
        let troubles = TROUBLES.len() as u64;
        let (code, replicas, cell_len) = CODES[((seed + seed / troubles) % CODES.len() as u64) as usize];
        Self { trouble: TROUBLES[(seed % troubles) as usize], code, replicas, cell_len }
    }
}

fn run(seed: u64, trace: &Trace) -> Result<(), Failure> {
    let shape = Shape {
        agents: AGENTS,
        racks: AGENTS,
        disks_per_agent: 1,
        memory_budget_bytes: 32 << 20,
        heals: true,
        scrub_period: None,
        time_max: Duration::from_secs(1_500),
    };
    let mut cluster = Cluster::new(seed, shape, trace);
    let config = cluster.client_config("client", seed ^ 2);
    let (hand, traced, left) = (cluster.hand(), trace.clone(), Arc::new(Mutex::new(Vec::new())));
    let objects = Arc::clone(&left);
    cluster.client("client", async move {
        let (client, rng) = (connect(config.clone()).await, StdRng::seed_from_u64(seed));
        let (case, bytes, drained) = (Case::of(seed), Rc::default(), None);
        let mut story = Story { client, config, hand, rng, case, trace: traced, bytes, drained };
        story.tell().await?;
        let object = story.client.stat(BUCKET, KEY).await?;
        objects.lock().unwrap_or_else(PoisonError::into_inner).push(object);
        story.client.close().await;
        Ok(())
    });
    cluster.run()?;
    if let Some(over) = cluster.over_budget().first() {
        return Err(Failure(over.clone()));
    }
    let disks = cluster.disks();
    let _dir = cluster.switch_off();
    let objects: Vec<ObjectReply> = std::mem::take(&mut *left.lock().unwrap_or_else(PoisonError::into_inner));
    check_disks(&disks, &objects, &BTreeSet::new())
}

struct Story {
    client: Client,
    config: ClientConfig,
    hand: Hand,
    rng: StdRng,
    case: Case,
    trace: Trace,
    /// What the object must contain.
    bytes: Rc<RefCell<Vec<u8>>>,
    /// The node that is being drained.
    drained: Option<NodeId>,
}

impl Story {
    async fn tell(&mut self) -> Result<(), Failure> {
        self.until_up(AGENTS).await?;
        let policy = |name: &str, code: &str, replicas: u32, cell_len: u64| Policy {
            name: name.into(),
            code: code.into(),
            failure_domain: "node".into(),
            block_len: BLOCK_LEN,
            cell_len,
            replicas,
            ..Policy::default()
        };
        self.client.create_policy(policy("written", self.case.code, self.case.replicas, self.case.cell_len)).await?;
        self.client.create_policy(policy("other", "rs(3,2)", 1, BLOCK_LEN)).await?;
        self.client.create_bucket(BUCKET, "written").await?;
        let bytes = some_bytes(&mut self.rng, UNITS * UNIT_BYTES);
        self.client.put(BUCKET, KEY, &bytes[..], &PutOptions::default()).await?;
        *self.bytes.borrow_mut() = bytes;

        self.note(format_args!("{:?}", self.case));
        let first = Writing::new(self, 0, self.client.clone());
        let seed = self.config.seed ^ 7;
        let other = connect(ClientConfig { seed, reads_open_stripes: false, ..self.config.clone() }).await;
        let second = Writing::new(self, 1, other);
        let logs = [Rc::clone(&first.log), Rc::clone(&second.log)];
        let third = connect(ClientConfig { seed: seed ^ 1, ..self.config.clone() }).await;
        let reader = Reading::new(self, third, logs.clone());
        self.begin_trouble().await?;
        let scrubs = self.scrubs_during(&logs);
        let (_, _, at_nodes, ()) = tokio::try_join!(first.work(), second.work(), reader.work(), scrubs)?;
        self.note(format_args!("{at_nodes} reads at the nodes of open stripes"));
        if at_nodes == 0 {
            return Err(Failure("no open stripe was read at its nodes".into()));
        }
        self.note("all writes are done");
        self.hand.idle().await;
        (1..=AGENTS).for_each(|number| self.hand.after(Duration::ZERO, Deed::Start(agent_name(number))));
        self.hand.idle().await;
        self.until_up(AGENTS).await?;
        self.conversion_ended().await?;
        self.drain_ended().await?;
        self.compare("when all is over").await?;
        self.until_whole().await?;
        self.check_updates().await?;
        self.lose_some().await?;
        self.scrub().await?;
        // Idle stripes are settled, readers' grace ends, sweeps run.
        tokio::time::sleep(Duration::from_secs(90)).await;
        self.until_whole().await?;
        self.compare("in the end").await
    }
    /// Lets the trouble happen at some time of the writes.
    async fn begin_trouble(&mut self) -> Result<(), Failure> {
        let (one, other) = (self.rng.random_range(1..=AGENTS), self.rng.random_range(1..AGENTS));
        let (one, other) = (agent_name(one), agent_name((one + other - 1) % AGENTS + 1));
        match self.case.trouble {
            Trouble::Nothing => {}
            Trouble::AgentRestarts => self.restart(&one, 3_000),
            Trouble::AgentGoes => {
                let lost = self.moment(0, 3_000);
                self.hand.after(lost, Deed::PowerOff(one));
            }
            Trouble::AgentsRestart => {
                self.restart(&one, 2_000);
                self.restart(&other, 4_000);
            }
            Trouble::CoordinatorRestarts => self.restart(COORDINATOR, 3_000),
            Trouble::BothRestart => {
                self.restart(COORDINATOR, 3_000);
                self.restart(&one, 3_000);
            }
            Trouble::Apart => {
                let cut = self.moment(0, 3_000);
                let healed = cut + self.moment(500, 12_000);
                self.hand.after(cut, Deed::Cut(one.clone(), other.clone()));
                self.hand.after(healed, Deed::Heal(one, other));
            }
            Trouble::Conversion => {
                let begun = self.client.convert(BUCKET, "", "other", &ConvertOptions::default()).await?;
                self.note(format_args!("job {} converts the object", begun.id));
            }
            Trouble::Scrubs => {}
            Trouble::Drain => {
                let stripes = self.client.stat(BUCKET, KEY).await?.stripes;
                self.drained = stripes.iter().flat_map(|stripe| &stripe.blocks).map(|block| NodeId(block.node)).next();
                if let Some(node) = self.drained {
                    self.client.drain(node, "", Some(true), false).await?;
                }
            }
        }
        Ok(())
    }

    /// Checks all stripes until all writes are done, if that is the trouble. Nothing is wrong, whatever the checks meet.
    async fn scrubs_during(&self, logs: &[Rc<RefCell<Log>>; 2]) -> Result<(), Failure> {
        while self.case.trouble == Trouble::Scrubs && !logs.iter().all(|log| log.borrow().is_over) {
            let job = self.client.scrub("", "", None, 0).await?;
            let ended = self.client.wait_for_job(job.id, |_| {}).await?;
            let tally = ended.scrubbed.clone().unwrap_or_default().tally.unwrap_or_default();
            self.note(format_args!("a scrub is {}: {tally:?}", ended.state));
            if tally.wrong_blocks + tally.inconsistent_stripes > 0 {
                return Err(Failure(format!("beside writes, a scrub says {ended:?}")));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    /// The node that is drained becomes empty. Then it is used again.
    async fn drain_ended(&mut self) -> Result<(), Failure> {
        let Some(node) = self.drained.take() else { return Ok(()) };
        for _ in 0..400 {
            let left = self.client.drain(node, "", None, false).await?.draining.unwrap_or_default();
            if left.blocks + left.allocations == 0 {
                let stripes = self.client.stat(BUCKET, KEY).await?.stripes;
                let mut blocks = stripes.iter().flat_map(|stripe| stripe.blocks.iter().chain(&stripe.copies));
                return match blocks.find(|block| block.node == node.0) {
                    Some(block) => Err(Failure(format!("{node} is said to be empty, and has block {}", block.index))),
                    None => self.client.drain(node, "", Some(false), false).await.map(drop).map_err(Failure::from),
                };
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let told = self.client.health().await.map(|health| health.healing);
        Err(Failure(format!("the drain of {node} does not end: {told:?}")))
    }

    fn restart(&mut self, host: &str, within_ms: u64) {
        let killed = self.moment(0, within_ms);
        let back = killed + self.moment(200, 8_000);
        self.hand.after(killed, Deed::Kill(host.into()));
        self.hand.after(back, Deed::Start(host.into()));
    }

    fn moment(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(from_ms..to_ms))
    }

    /// A conversion may meet writes for as long as there are any. Then it ends, and the object has the new layout.
    async fn conversion_ended(&mut self) -> Result<(), Failure> {
        if self.case.trouble != Trouble::Conversion {
            return Ok(());
        }
        for _ in 0..ATTEMPTS {
            let Some(job) = self.client.jobs().await?.pop() else { break };
            let ended = self.client.wait_for_job(job.id, |_| {}).await?;
            self.note(format_args!("the conversion is {}: {}", ended.state, ended.last_error));
            if self.client.stat(BUCKET, KEY).await?.code == "rs(3,2)" {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.client.convert(BUCKET, "", "other", &ConvertOptions::default()).await?;
        }
        Err(Failure("the object is not converted".into()))
    }

    /// Reads all of the object.
    async fn compare(&mut self, when: &str) -> Result<(), Failure> {
        let expected = self.bytes.borrow().clone();
        let size = size(&self.client).await?;
        if size != expected.len() as u64 {
            return Err(Failure(format!("{when}: the object has {size} bytes and not {}", expected.len())));
        }
        let found = read(&self.client, 0, expected.len()).await?;
        same(&found, &expected, 0).map_err(|failure| Failure(format!("{when}: {failure}")))
    }

    /// The metadata count the updates, unless a conversion has replaced all blocks.
    async fn check_updates(&mut self) -> Result<(), Failure> {
        let stat = self.client.stat(BUCKET, KEY).await?;
        let counts = stat.stripes.iter().flat_map(|stripe| stripe.seq.iter().flat_map(|seq| &seq.counts)).sum::<u64>();
        match self.case.trouble {
            Trouble::Conversion => Ok(()),
            _ if counts >= WRITES as u64 => Ok(()),
            _ => Err(Failure(format!("the metadata count {counts} updates"))),
        }
    }

    /// The object can be read without as many nodes as its code tolerates.
    async fn lose_some(&mut self) -> Result<(), Failure> {
        let stat = self.client.stat(BUCKET, KEY).await?;
        let nodes: BTreeSet<u32> = stat.stripes.iter().flat_map(|stripe| &stripe.blocks).map(|block| block.node).collect();
        let names = self.client.status().await?.nodes;
        let lost: Vec<String> = nodes
            .into_iter()
            .choose_multiple(&mut self.rng, 2)
            .into_iter()
            .filter_map(|id| names.iter().find(|node| node.id == id).map(|node| node.name.clone()))
            .collect();
        self.note(format_args!("{lost:?} are lost"));
        lost.iter().for_each(|agent| self.hand.after(Duration::ZERO, Deed::Kill(agent.clone())));
        self.hand.idle().await;
        self.compare("without two nodes").await?;
        lost.into_iter().for_each(|agent| self.hand.after(Duration::ZERO, Deed::Start(agent)));
        self.hand.idle().await;
        self.until_up(AGENTS).await?;
        self.until_whole().await
    }

    /// A scrub finds nothing wrong.
    async fn scrub(&mut self) -> Result<(), Failure> {
        let stripes = self.client.stat(BUCKET, KEY).await?.stripes.len() as u64;
        let job = self.client.scrub("", "", None, 0).await?;
        let ended = self.client.wait_for_job(job.id, |_| {}).await?;
        let tally = ended.scrubbed.clone().unwrap_or_default().tally.unwrap_or_default();
        let is_right = ended.state == "done" && tally.stripes == stripes;
        match is_right && tally.inconsistent_stripes == 0 && tally.wrong_blocks == 0 {
            true => Ok(()),
            false => Err(Failure(format!("of {stripes} stripes, a scrub says {ended:?}"))),
        }
    }

    async fn until_up(&self, agents: u32) -> Result<(), Failure> {
        for _ in 0..300 {
            if let Ok(status) = self.client.status().await
                && status.nodes.iter().filter(|node| node.state == "up").count() == agents as usize
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Err(Failure(format!("the number of agents that are up did not become {agents}")))
    }

    async fn until_whole(&self) -> Result<(), Failure> {
        let known = Acknowledged { objects: [(KEY.to_owned(), Vec::new())].into(), ..Acknowledged::default() };
        let mut left = String::new();
        for _ in 0..400 {
            match check_apart(&self.client, BUCKET, &known).await {
                Ok(()) => return Ok(()),
                Err(failure) => left = failure.0,
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let told = self.client.health().await.map(|health| health.healing);
        Err(Failure(format!("the cluster does not heal itself: {left}; {told:?}")))
    }

    fn note(&self, what: impl std::fmt::Display) {
        self.trace.event("client", format_args!("== {what}"));
    }
}

/// One of the writers.
struct Writing {
    number: usize,
    client: Client,
    rng: StdRng,
    bytes: Rc<RefCell<Vec<u8>>>,
    log: Rc<RefCell<Log>>,
    trace: Trace,
}

/// The writes of a writer, in order.
struct Log {
    /// Before its first write, all of the object.
    first: Vec<u8>,
    /// Offsets and bytes.
    begun: Vec<(usize, Vec<u8>)>,
    acknowledged: usize,
    is_over: bool,
}

impl Writing {
    fn new(story: &mut Story, number: usize, client: Client) -> Self {
        let rng = StdRng::from_rng(&mut story.rng);
        let log = Log { first: story.bytes.borrow().clone(), begun: Vec::new(), acknowledged: 0, is_over: false };
        let (bytes, log) = (Rc::clone(&story.bytes), Rc::new(RefCell::new(log)));
        Self { number, client, rng, bytes, log, trace: story.trace.clone() }
    }

    async fn work(mut self) -> Result<(), Failure> {
        // One asks for its lease once, the other with each write.
        let options = WriteOptions { deadline: Duration::from_secs(30), ..WriteOptions::default() };
        let mut writer = self.client.writer(BUCKET, KEY, &options).await?;
        for _ in 0..WRITES {
            let unit = self.number + 2 * self.rng.random_range(0..UNITS / 2);
            let longest = *[1, 100, 5_000, UNIT_BYTES].iter().choose(&mut self.rng).unwrap_or(&1);
            let len = self.rng.random_range(1..=longest);
            let start = unit * UNIT_BYTES + self.rng.random_range(0..=UNIT_BYTES - len);
            let new = some_bytes(&mut self.rng, len);
            self.log.borrow_mut().begun.push((start, new.clone()));
            for attempt in 0.. {
                let written = match self.number {
                    0 => writer.write_at(start as u64, new.clone()).await,
                    _ => {
                        let options = WriteOptions { size: Some(len as u64), log: WriteLog::default(), ..options.clone() };
                        self.client.write_at(BUCKET, KEY, start as u64, &new[..], &options).await.map(drop)
                    }
                };
                let Err(error) = written else { break };
                self.note(format_args!("{len} bytes at {start} are not written: {error}"));
                let may_pass = matches!(error.reaction, Reaction::Retry | Reaction::Replan | Reaction::Unavailable);
                if !may_pass || attempt == ATTEMPTS {
                    return Err(Failure(format!("{len} bytes at {start} cannot be written: {error}")));
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
                if self.number == 0 {
                    writer = self.client.writer(BUCKET, KEY, &options).await?;
                }
            }
            self.bytes.borrow_mut()[start..start + len].copy_from_slice(&new);
            self.log.borrow_mut().acknowledged += 1;
            if self.rng.random_bool(0.2) {
                self.read_back(unit).await?;
            }
            if self.number == 1 && self.rng.random_bool(0.4) {
                self.append(&options).await?;
            }
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..200))).await;
        }
        self.log.borrow_mut().is_over = true;
        self.client.close().await;
        Ok(())
    }

    /// Appends bytes, unless the last stripe is full. The other writer does not.
    async fn append(&mut self, options: &WriteOptions) -> Result<(), Failure> {
        let longest = [10, 3_000, 20_000].into_iter().choose(&mut self.rng).unwrap_or(1);
        let len = self.rng.random_range(1..=longest);
        let (new, before) = (some_bytes(&mut self.rng, len), self.bytes.borrow().len());
        for attempt in 0.. {
            let options = WriteOptions { size: Some(len as u64), log: WriteLog::default(), ..options.clone() };
            let error = match self.client.append(BUCKET, KEY, &new[..], &options).await {
                Ok(wrote) if wrote.offset == before as u64 => break,
                Ok(wrote) => return Err(Failure(format!("{len} bytes were appended at {} and not at {before}", wrote.offset))),
                Err(error) => error,
            };
            self.note(format_args!("{len} bytes are not appended at {before}: {error}"));
            match error.reaction {
                Reaction::InvalidInput if error.message.contains("can be appended") => return Ok(()),
                Reaction::Retry | Reaction::Replan | Reaction::Unavailable | Reaction::NotFound if attempt < ATTEMPTS => {}
                _ => return Err(Failure(format!("{len} bytes at {before} cannot be appended: {error}"))),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            // Its answer may have been lost.
            if size(&self.client).await? > before as u64 {
                break;
            }
        }
        self.bytes.borrow_mut().extend_from_slice(&new);
        let found = read(&self.client, before, len).await?;
        same(&found, &new, before)
    }

    /// What was acknowledged can be read. No other writer changes it.
    async fn read_back(&mut self, unit: usize) -> Result<(), Failure> {
        let place = unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES;
        let expected = self.bytes.borrow()[place.clone()].to_vec();
        let found = read(&self.client, place.start, place.len()).await?;
        same(&found, &expected, place.start)
    }

    fn note(&self, what: impl std::fmt::Display) {
        self.trace.event("client", format_args!("writer {}: {what}", self.number));
    }
}

/// Reads what both writers write.
struct Reading {
    client: Client,
    rng: StdRng,
    logs: [Rc<RefCell<Log>>; 2],
    /// Data of stripes end at multiples of these, also of stripes that are converted.
    ends: [usize; 2],
    /// Of each writer, the writes that were seen.
    seen: [usize; 2],
}

impl Reading {
    fn new(story: &mut Story, client: Client, logs: [Rc<RefCell<Log>>; 2]) -> Self {
        let k = if story.case.replicas > 1 { 2 } else { 4 };
        let ends = [k, 3].map(|k| k * BLOCK_LEN as usize);
        Self { client, rng: StdRng::from_rng(&mut story.rng), logs, ends, seen: [0; 2] }
    }

    /// Reads until all writes are done. Returns how many reads needed no plan.
    async fn work(mut self) -> Result<u64, Failure> {
        let mut at_nodes = 0;
        while !self.logs.iter().all(|log| log.borrow().is_over) {
            let unit = self.rng.random_range(0..UNITS - 2);
            let start = unit * UNIT_BYTES + self.rng.random_range(0..UNIT_BYTES);
            let end = start + self.rng.random_range(1..=2 * UNIT_BYTES);
            // A read of two stripes is two reads.
            let place = start..self.ends.iter().map(|len| (start / len + 1) * len).fold(end, usize::min);
            let floor = [0, 1].map(|writer| self.logs[writer].borrow().acknowledged.max(self.seen[writer]));
            let (mut bytes, range) = (Vec::new(), Some((place.start as u64..place.end as u64).into()));
            let got = self.client.get(BUCKET, KEY, &mut bytes, &GetOptions { range, ..GetOptions::default() }).await;
            // A plan that fails in part is continued by another one, later.
            if let Ok(got) = got
                && got.plans <= 1
            {
                at_nodes += u64::from(got.plans == 0);
                (0..2).try_for_each(|writer| self.check(writer, floor[writer], place.start, &bytes))?;
            }
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..100))).await;
        }
        self.client.close().await;
        Ok(at_nodes)
    }

    /// Of so many writes, those that are seen in all stripes. The last one may not be complete if it is one of two stripes.
    fn certain(&self, log: &Log, writes: usize) -> usize {
        let is_cut =
            |(offset, new): &(usize, Vec<u8>)| self.ends.iter().any(|len| offset / len != (offset + new.len() - 1) / len);
        writes - usize::from(writes.checked_sub(1).is_some_and(|last| is_cut(&log.begun[last])))
    }

    /// A writer's bytes are those after one of its writes, and not of one before `floor`.
    fn check(&mut self, writer: usize, floor: usize, start: usize, found: &[u8]) -> Result<(), Failure> {
        let log = Rc::clone(&self.logs[writer]);
        let log = log.borrow();
        let mut bytes = log.first.clone();
        let is_same = |bytes: &[u8]| {
            let is_its = |at: &usize| (at / UNIT_BYTES) % 2 == writer;
            (start..start + found.len()).filter(is_its).all(|at| bytes[at] == found[at - start])
        };
        for (at, (offset, new)) in log.begun.iter().enumerate() {
            if at >= floor && is_same(&bytes) {
                self.seen[writer] = self.certain(&log, at);
                return Ok(());
            }
            bytes[*offset..*offset + new.len()].copy_from_slice(new);
        }
        if is_same(&bytes) {
            self.seen[writer] = self.certain(&log, log.begun.len());
            return Ok(());
        }
        let (begun, end) = (log.begun.len(), start + found.len());
        Err(Failure(format!(
            "bytes {start}..{end}: writer {writer} had {floor} writes acknowledged and {begun} begun, and a read shows another state"
        )))
    }
}

/// The size of the object.
async fn size(client: &Client) -> Result<u64, Failure> {
    let mut why = String::new();
    for _ in 0..ATTEMPTS {
        match client.stat(BUCKET, KEY).await {
            Ok(object) => return Ok(object.size),
            Err(error) => why = error.to_string(),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Err(Failure(format!("the object's size is not known: {why}")))
}

/// Bytes of the object. A read fails while too much is out of reach.
async fn read(client: &Client, start: usize, len: usize) -> Result<Vec<u8>, Failure> {
    let mut why = String::new();
    for _ in 0..ATTEMPTS {
        let mut bytes = Vec::new();
        let range = Some((start as u64..(start + len) as u64).into());
        match client.get(BUCKET, KEY, &mut bytes, &GetOptions { range, ..GetOptions::default() }).await {
            Ok(_) => return Ok(bytes),
            Err(error) => why = error.to_string(),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Err(Failure(format!("{len} bytes at {start} cannot be read: {why}")))
}

fn same(found: &[u8], expected: &[u8], start: usize) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    let wrong: Vec<usize> = (0..expected.len()).filter(|at| found.get(*at) != expected.get(*at)).collect();
    let (count, first, last) = (wrong.len(), wrong.first().map_or(0, |at| start + at), wrong.last().map_or(0, |at| start + at));
    Err(Failure(format!("{count} bytes from {first} to {last} are not as they were written")))
}
