//! Measures updates in place by each scheme in turn, on shaped links: from a client's first byte to its acknowledgement.
//!
//! A client sits on the node of the block that changes, so its bytes cross no link. Every run overwrites other bytes of the same stripe; in the end each
//! object is read back and compared with what was written.

use super::{
    DIRECT, IdleMeter, Outcome, Sample, median,
    put::{BUCKET, Compare, Data, make_bucket},
    repair::{Case, network},
    scrub::is_clean,
    update_bound::{RANDOM, bound_s, concerned},
    update_home::{Home, Used, choose},
    update_way::{STRAIGHT, Way},
    writer::{Writers, on_named},
};
use crate::testbed::{Settings, Testbed};
use futures::FutureExt as _;
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use std::{collections::BTreeMap, path::Path, time::Duration};
use tokio::time::Instant;
use weft_cli::{seed::seed, session::Session};
use weft_client::{GetOptions, PutOptions, WriteOptions, Writer, api};
use weft_types::{AutoSize, ByteSize, Error, NodeId, Party, Result};

/// Bytes that a writer overwrites before it is measured: it gets its lease with them.
const LITTLE: usize = 4096;
/// A journal takes so many of the updates that are measured.
const UPDATES_OF_JOURNAL: u64 = 64;
const JOURNAL_MIN: u64 = 32 << 20;
/// How long journals may take until all are written.
const JOURNALS_WITHIN: Duration = Duration::from_secs(300);
/// How long an update may take, with all repetitions.
const DEADLINE: Duration = Duration::from_secs(120);
/// How often a stripe is stored until it leaves the nodes of other stripes' clients alone.
const PLACES_MAX: usize = 8;

/// The updates of a run, all at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) code: String,
    pub(crate) block_len: u64,
    /// Bytes of each update; it divides the block.
    pub(crate) update_len: u64,
    /// Data blocks of each stripe that are updated.
    pub(crate) blocks: usize,
    pub(crate) stripes: usize,
    pub(crate) seed: u64,
}

/// Stored stripes, and the clients that update them.
pub(crate) struct Subject {
    work: Work,
    stripes: Vec<Stripe>,
    targets: Vec<Target>,
    writers: Writers,
    /// How the updates of each case travel, by its label.
    ways: BTreeMap<String, Vec<Way>>,
    /// Updates so far.
    count: u64,
}

/// A stripe: an object of its own.
struct Stripe {
    key: String,
    /// What it must contain.
    data: Data,
    homes: Vec<Home>,
}

/// A block that is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Target {
    stripe: usize,
    block: u8,
}

/// The size of the journals for updates of this length.
pub(crate) fn journal_bytes(update_len: u64) -> ByteSize {
    // A record has the deltas, the old page sums and its own head.
    let record = update_len / 3 * 4 + (64 << 10);
    ByteSize((record * UPDATES_OF_JOURNAL).max(JOURNAL_MIN).next_multiple_of(1 << 20))
}

impl Work {
    pub(crate) fn check(&self) -> Result<()> {
        let code = weft_codes::parse(&self.code).map_err(Error::invalid)?;
        let Self { block_len, update_len, blocks, stripes, .. } = self;
        if *update_len == 0 || !block_len.is_multiple_of(*update_len) || !block_len.is_multiple_of(4096 * code.alpha() as u64) {
            let (block, update) = (ByteSize(*block_len), ByteSize(*update_len));
            return Err(Error::invalid(format!("blocks of {block} are not whole updates of {update} and whole pages")));
        }
        if *blocks == 0 || *stripes == 0 || *blocks > code.k() {
            let (spec, k) = (&self.code, code.k());
            return Err(Error::invalid(format!(
                "{blocks} blocks of {stripes} stripes: {spec} has {k} data blocks, and none is too few"
            )));
        }
        Ok(())
    }
}

/// Waits until the disks of all nodes have their journals: an update must not wait for one to be written.
pub(crate) async fn make_journals(session: &Session, nodes: u32) -> Result<()> {
    make_bucket(session).await?;
    let (key, code, until) =
        (format!("journals-{:016x}", seed()?), format!("rs({},1)", nodes - 1), Instant::now() + JOURNALS_WITHIN);
    let bytes = vec![1; LITTLE * (nodes as usize - 1)];
    let block_len = LITTLE as u64;
    loop {
        let options = PutOptions {
            code: code.clone(),
            block_len,
            cell_len: block_len,
            size: Some(bytes.len() as u64),
            ..PutOptions::default()
        };
        session.client.put(BUCKET, &key, &bytes[..], &options).await?;
        let options = WriteOptions { deadline: Duration::from_secs(20), ..WriteOptions::default() };
        let written = session.client.write_at(BUCKET, &key, 0, &bytes[..LITTLE], &options).await;
        let held = session.client.stat(BUCKET, &key).await?.stripes.first().map_or(0, |stripe| stripe.blocks.len());
        session.client.remove(BUCKET, &key).await?;
        match written {
            // A node whose journal is not there yet was left out.
            Ok(_) if held == nodes as usize => return Ok(()),
            Err(error) if Instant::now() > until => return Err(error),
            Ok(_) if Instant::now() > until => {
                return Err(Error::unavailable(format!(
                    "the journals were not written within {JOURNALS_WITHIN:?}: try a smaller --journal"
                )));
            }
            _ => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

impl Subject {
    /// Stores the stripes and starts a client on the node of each block that is to be updated.
    pub(crate) async fn store(session: &Session, testbed: &Testbed, work: Work) -> Result<Self> {
        work.check()?;
        make_bucket(session).await?;
        let run = seed()?;
        let (stripes, targets, ways) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut subject = Self { work, stripes, targets, writers: Writers::default(), ways, count: 0 };
        let stored = subject.store_all(session, testbed, run).await;
        match stored {
            Ok(()) => Ok(subject),
            Err(error) => {
                subject.remove(session).await?;
                Err(error)
            }
        }
    }

    async fn store_all(&mut self, session: &Session, testbed: &Testbed, run: u64) -> Result<()> {
        let Work { code, block_len, stripes, seed, .. } = self.work.clone();
        let k = weft_codes::parse(&code).map_err(Error::invalid)?.k();
        for number in 0..stripes {
            let data = Data::make(&code, ByteSize(block_len * k as u64), seed.wrapping_add(number as u64))?;
            let options = PutOptions {
                code: code.clone(),
                block_len,
                cell_len: block_len,
                by_name: true,
                scheme: DIRECT.to_owned(),
                ..PutOptions::default()
            };
            let name = format!("update-{run:016x}/{number}");
            let (key, homes, chosen) = self.place(session, &name, &data.path(), &options).await?;
            self.stripes.push(Stripe { key, data, homes });
            self.targets.extend(chosen.into_iter().map(|block| Target { stripe: number, block }));
        }
        let nodes: Vec<String> = self.targets.iter().map(|target| self.home(*target).name.clone()).collect();
        self.writers = on_named(testbed, &nodes).await?;
        Ok(())
    }

    /// Stores a stripe, and chooses its blocks to update. It is stored again if it needs nodes that stripes before it use.
    async fn place(
        &self,
        session: &Session,
        name: &str,
        path: &Path,
        options: &PutOptions,
    ) -> Result<(String, Vec<Home>, Vec<u8>)> {
        let used = self.used()?;
        let most = if self.stripes.is_empty() { 1 } else { PLACES_MAX };
        let mut attempt = 1;
        loop {
            let key = format!("{name}-{attempt}");
            session.client.put_file(BUCKET, &key, path, options).await?;
            let homes = self.homes(session, &key).await;
            let chosen = homes.and_then(|homes| Ok((choose(&self.work.code, &homes, self.work.blocks, &used)?, homes)));
            match chosen {
                Ok((chosen, homes)) => return Ok((key, homes, chosen)),
                Err(error) => {
                    session.client.remove(BUCKET, &key).await?;
                    if attempt == most {
                        return Err(error);
                    }
                    attempt += 1;
                }
            }
        }
    }

    /// The nodes that the updates of all stripes so far use.
    fn used(&self) -> Result<Used> {
        let mut used = Used::default();
        for target in &self.targets {
            used.clients.insert(self.home(*target).node);
            let homes = &self.stripes[target.stripe].homes;
            let parities = concerned(&self.work.code, target.block)?;
            used.parities.extend(parities.iter().filter_map(|index| homes.get(usize::from(*index))).map(|home| home.node));
        }
        Ok(used)
    }

    async fn homes(&self, session: &Session, key: &str) -> Result<Vec<Home>> {
        let nodes: BTreeMap<u32, api::Node> =
            session.client.status().await?.nodes.into_iter().map(|node| (node.id, node)).collect();
        let stat = session.client.stat(BUCKET, key).await?;
        let mut blocks = stat.stripes.into_iter().next().map(|stripe| stripe.blocks).unwrap_or_default();
        blocks.sort_by_key(|block| block.index);
        let n = weft_codes::parse(&self.work.code).map_err(Error::invalid)?.n();
        if blocks.len() != n {
            return Err(Error::unavailable(format!(
                "{} of {n} blocks have a node: one was left out of the updates",
                blocks.len()
            )));
        }
        let home = |block: &api::PlacedBlock| {
            let node = nodes.get(&block.node).ok_or_else(|| Error::fatal("a block is on an unknown node"))?;
            Ok(Home { node: NodeId(node.id), name: node.name.clone(), rack: node.rack.clone() })
        };
        blocks.iter().map(home).collect()
    }

    pub(crate) fn work(&self) -> &Work {
        &self.work
    }

    fn home(&self, target: Target) -> &Home {
        &self.stripes[target.stripe].homes[usize::from(target.block)]
    }

    /// The nodes of the clients, which are those of the blocks that change.
    pub(crate) fn client_nodes(&self) -> Vec<String> {
        self.targets.iter().map(|target| self.home(*target).name.clone()).collect()
    }

    /// How the updates of a case of this label travel; several ways of a block if its path is drawn for each run.
    pub(crate) fn ways(&self, label: &str) -> Vec<Way> {
        self.ways.get(label).cloned().unwrap_or_default()
    }

    /// The least time that the links allow for a run, if only one update is under way.
    pub(crate) fn bound_s(&self, settings: &Settings, case: &Case, seed: u64) -> Result<Option<f64>> {
        let [target] = self.targets[..] else { return Ok(None) };
        let homes = &self.stripes[target.stripe].homes;
        let names = homes.iter().map(|home| (home.node.0, home.name.clone())).collect();
        let network = network(settings, &names)?;
        let party = |index: u8| Party::Node(homes.get(usize::from(index)).map_or(NodeId(0), |home| home.node));
        bound_s((&self.work.code, target.block, self.work.update_len), case, seed, &network, party)
    }

    /// A writer for each target, with its lease.
    async fn open(&mut self, case: &Case, seed: u64) -> Result<Vec<Writer>> {
        let options = options(case, seed, self.work.update_len);
        let mut open = Vec::new();
        for at in 0..self.targets.len() {
            let (key, options) = (self.stripes[self.targets[at].stripe].key.clone(), options.clone());
            let opened =
                self.writers[at].order(|client| async move { client.writer(BUCKET, &key, &options).await }.boxed_local()).await?;
            open.push(opened);
        }
        self.write(&open, LITTLE).await?;
        self.look(case, &options).await?;
        Ok(open)
    }

    /// Asks how the updates of a case travel, and fails if they do not take its scheme.
    async fn look(&mut self, case: &Case, options: &WriteOptions) -> Result<()> {
        let Work { block_len, update_len, .. } = self.work;
        for at in 0..self.targets.len() {
            let target = self.targets[at];
            let (key, options) = (self.stripes[target.stripe].key.clone(), options.clone());
            let (scheme, offset) = (options.way.scheme.clone(), u64::from(target.block) * block_len);
            let explain = self.writers[at].order(move |client| {
                async move { client.explain_write(BUCKET, &key, offset, update_len, &options).await }.boxed_local()
            });
            let plan = explain.await?;
            let mut ways = plan.stripes.iter().flat_map(|stripe| &stripe.ways);
            let explained = ways.find(|way| way.index == u32::from(target.block));
            let explained = explained.ok_or_else(|| Error::fatal("the coordinator does not say how an update travels"))?;
            let homes = &self.stripes[target.stripe].homes;
            let node = |index: u32| homes.get(index as usize).map(|home| home.name.clone()).unwrap_or_default();
            let way = Way::of(explained, (target.stripe, self.home(target).name.as_str()), node)?;
            way.check(&scheme, concerned(&self.work.code, target.block)?.len(), update_len, &explained.no_routes)?;
            let known = self.ways.entry(case.label.clone()).or_default();
            if !known.contains(&way) {
                known.push(way);
            }
        }
        Ok(())
    }

    /// Overwrites so many bytes of every target at the same time; returns the time from the first byte to the last acknowledgement.
    async fn write(&mut self, writers: &[Writer], len: usize) -> Result<f64> {
        let Work { block_len, update_len, seed, .. } = self.work;
        self.count += 1;
        let in_block = self.count % (block_len / update_len) * update_len;
        let mut written = Vec::new();
        for (at, (target, writer)) in self.targets.iter().zip(writers).enumerate() {
            let mut bytes = vec![0; len];
            StdRng::seed_from_u64(seed ^ (self.count << 16) ^ at as u64).fill_bytes(&mut bytes);
            let (offset, writer, sent) = (u64::from(target.block) * block_len + in_block, writer.clone(), bytes.clone());
            let done = self.writers[at].order(move |_| {
                async move {
                    let begun = Instant::now();
                    writer.write_at(offset, sent).await.map(|()| (begun, Instant::now()))
                }
                .boxed_local()
            });
            written.push((*target, offset, bytes, done));
        }
        let (mut begun, mut ended): (Vec<Instant>, Vec<Instant>) = Default::default();
        for (target, offset, bytes, done) in written {
            let times = done.await?;
            self.stripes[target.stripe].data.overwrite(offset, &bytes)?;
            begun.push(times.0);
            ended.push(times.1);
        }
        let (first, last) = (begun.into_iter().min(), ended.into_iter().max());
        Ok(first.zip(last).map_or(f64::NAN, |(first, last)| (last - first).as_secs_f64()))
    }

    /// One measured run.
    async fn run(&mut self, testbed: &Testbed, writers: &[Writer]) -> Result<Sample> {
        let sent = || Ok::<u64, Error>(testbed.carried()?.iter().map(|node| node.up).sum());
        let before = sent()?;
        let idle = IdleMeter::begin();
        let seconds = self.write(writers, self.work.update_len as usize).await?;
        let cpu_idle = idle.share();
        Ok(Sample { seconds, bytes_moved: sent()?.saturating_sub(before), cpu_idle })
    }

    /// Reads all objects, and compares them with what was written; then checks the parities. All blocks must still be where they were.
    pub(crate) async fn compare(&self, session: &Session) -> Result<()> {
        for stripe in &self.stripes {
            let mut compare = Compare::new(&stripe.data);
            session.client.get(BUCKET, &stripe.key, &mut compare, &GetOptions::default()).await?;
            compare.end()?;
            let begun = session.client.scrub(BUCKET, &stripe.key, None, 0).await?;
            let job = session.client.wait_for_job(begun.id, |_| {}).await?;
            let tally = job.scrubbed.and_then(|report| report.tally).unwrap_or_default();
            if job.state != "done" || tally.stripes != 1 || !is_clean(&tally) {
                return Err(Error::corrupt(format!(
                    "a check of the stripe is {}, and has found {tally:?} {}",
                    job.state, job.last_error
                )));
            }
            if self.homes(session, &stripe.key).await? != stripe.homes {
                return Err(Error::unavailable("a block was rebuilt elsewhere meanwhile: its node did not answer in time"));
            }
        }
        Ok(())
    }

    /// Removes the objects.
    pub(crate) async fn remove(self, session: &Session) -> Result<()> {
        for stripe in &self.stripes {
            session.client.remove(BUCKET, &stripe.key).await?;
        }
        Ok(())
    }
}

/// The options of a case's writes: one update, in the way of its scheme.
fn options(case: &Case, seed: u64, update_len: u64) -> WriteOptions {
    let scheme = match case.scheme.as_str() {
        // One delta over one link is the same in all schemes.
        DIRECT => STRAIGHT,
        scheme => scheme,
    };
    // Star and tree send everything at once, and have no path to choose.
    let (path, slice_len) = match (scheme, case.slice_len) {
        ("pipeline", AutoSize::Bytes(size)) => (case.select.clone(), size.0),
        ("pipeline", AutoSize::Auto) => (case.select.clone(), 0),
        _ => (String::new(), 0),
    };
    let way = api::UpdateWay { scheme: scheme.to_owned(), path, seed, slice_len };
    WriteOptions { deadline: DEADLINE, update_bytes: update_len, way, ..WriteOptions::default() }
}

/// Runs all cases in turn, `runs` times each; `says` comes before each. A case names its subject by its number.
pub(crate) async fn measure(
    testbed: &Testbed,
    subjects: &mut [Subject],
    cases: &[(usize, Case)],
    (runs, seed): (usize, u64),
    says: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Outcome>> {
    // Journals and blocks that were just stored must not be written back meanwhile.
    let synced = tokio::task::spawn_blocking(rustix::fs::sync).await;
    synced.map_err(|error| Error::fatal(format!("cannot sync the disks: {error}")))?;
    let mut open = Vec::new();
    for (of, case) in cases {
        let subject = subjects.get_mut(*of).ok_or_else(|| Error::fatal("a case has no subject"))?;
        let writers = subject.open(case, seed).await?;
        // Warm-up: the first run opens connections and is not counted.
        subject.write(&writers, subject.work.update_len as usize).await?;
        open.push(writers);
    }
    let (mut samples, mut bounds) = (vec![Vec::new(); cases.len()], vec![Vec::new(); cases.len()]);
    for run in 0..runs {
        // Each run begins with another case, so none always follows the same one.
        for step in 0..cases.len() {
            let at = (run + step) % cases.len();
            let (of, case) = &cases[at];
            says(run, at);
            let (subject, seed) = (&mut subjects[*of], seed.wrapping_add(run as u64));
            if case.select == RANDOM {
                open[at] = subject.open(case, seed).await?;
            }
            samples[at].push(subject.run(testbed, &open[at]).await?);
            bounds[at].extend(subject.bound_s(testbed.settings(), case, seed)?);
        }
    }
    let outcomes = cases.iter().zip(&samples).zip(&bounds);
    Ok(outcomes.map(|(((_, case), samples), bounds)| Outcome::of(case.label.clone(), samples, median(bounds))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_takes_many_updates() {
        assert_eq!(journal_bytes(1 << 10).0, 32 << 20);
        let ring = journal_bytes(16 << 20).0;
        assert!((1300 << 20..2048 << 20).contains(&ring), "{ring}");
    }
}
