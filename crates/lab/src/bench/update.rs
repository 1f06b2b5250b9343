//! Measures small writes in place to one object, so many at a time; beside that, the same with another code, and what the disk allows.
//!
//! Each of the concurrent writers has slots of its own, so in the end it is known what the object must contain, and it is read back and compared.
//! The bound is the disk's: an update waits for a sync at the node of each block concerned, and these work in parallel. So as many threads as
//! blocks are concerned sync a page each, and then begin the next round together.

use super::{
    percentile,
    place::Place,
    put,
    update_cost::{Cost, Counts},
};
use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    fs::File,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};
use weft_cli::{files::io_error, seed::seed};
use weft_client::{Client, GetOptions, PutOptions, WriteOptions, Writer};
use weft_types::{Error, Result};

/// Bytes of a write that only measures the disk.
pub(crate) const BOUND_BYTES: usize = 4096;
/// A file of the bound has as many places.
const BOUND_PLACES: u64 = 256;

/// The workload.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    /// Bytes of the object.
    pub(crate) size: usize,
    /// Bytes of a write; it divides the size.
    pub(crate) write_size: usize,
    /// There is an object of each. The last one is that with which the others are compared.
    pub(crate) codes: Vec<Coded>,
    /// The numbers of concurrent writes, one after another.
    pub(crate) depths: Vec<usize>,
    /// The time for each of them.
    pub(crate) time: Duration,
    pub(crate) seed: u64,
}

/// A code and the length of its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Coded {
    pub(crate) code: String,
    /// Bytes; 0: as the policy says.
    pub(crate) block_len: u64,
    /// How many blocks' nodes sync for a write within one block.
    pub(crate) concerned: usize,
}

/// The writes at one depth, or the syncs of the bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// None: the bound.
    pub(crate) code: Option<String>,
    /// The nodes that sync for a write, or the threads that sync together.
    pub(crate) blocks_concerned: usize,
    /// Writes at the same time; none: the bound.
    pub(crate) depth: Option<usize>,
    pub(crate) count: usize,
    pub(crate) seconds: f64,
    pub(crate) per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// The median relative to that of the bound: of as many syncs at once as there are blocks concerned.
    pub(crate) p50_over_bound: Option<f64>,
    /// Writes a second, relative to those of the code with which it is compared, at the same depth.
    pub(crate) ratio: Option<f64>,
    /// None: the nodes' counters cannot be read from here.
    pub(crate) cost: Option<Cost>,
}

/// Measures all codes at all depths; calls `says` before each. The objects are removed at the end.
pub(crate) async fn measure(place: &Place<'_>, work: &Work, says: &dyn Fn(&str)) -> Result<Vec<Row>> {
    put::make_bucket(place.session).await?;
    let (client, run) = (place.client().await?, seed()?);
    let keys: Vec<String> = (0..work.codes.len()).map(|number| format!("update-{run:016x}-{number}")).collect();
    let measured = measure_objects(place, &client, work, &keys, says).await;
    for key in &keys {
        // It may not have been put.
        let _gone = client.remove(put::BUCKET, key).await;
    }
    client.close().await;
    let mut rows = measured?;
    if let Some(local) = place.local {
        let concerned: BTreeSet<usize> = work.codes.iter().map(|coded| coded.concerned).collect();
        for threads in concerned {
            says("syncs");
            let (dir, time) = (local.dir().to_path_buf(), work.time);
            let bound = tokio::task::spawn_blocking(move || bound(&dir, threads, time)).await;
            let bound = bound.map_err(|error| Error::fatal(format!("cannot measure the disk: {error}")))??;
            rows.iter_mut().filter(|row| row.blocks_concerned == threads).for_each(|row| row.relate(&bound));
            rows.push(bound);
        }
    }
    Ok(rows)
}

/// An object that is overwritten.
struct Object<'a> {
    coded: &'a Coded,
    key: &'a str,
    writer: Writer,
    /// Where the first slot of each stripe begins.
    starts: Vec<usize>,
    /// What it must contain.
    bytes: Vec<u8>,
}

async fn measure_objects(
    place: &Place<'_>,
    client: &Client,
    work: &Work,
    keys: &[String],
    says: &dyn Fn(&str),
) -> Result<Vec<Row>> {
    let mut rng = StdRng::seed_from_u64(work.seed);
    let mut objects = Vec::new();
    for (coded, key) in work.codes.iter().zip(keys) {
        objects.push(Object::put(client, (coded, key.as_str()), work, &mut rng).await?);
    }
    let mut rows = Vec::new();
    for depth in &work.depths {
        let first = rows.len();
        // One after the other, so that the machine is the same for all.
        for object in &mut objects {
            says(&format!("{}, depth {depth}", object.coded.code));
            object.open_stripes(work.write_size).await?;
            let before = Counts::applied(place).await?;
            let Object { coded, writer, bytes, .. } = object;
            let (latencies, seconds) = at_depth(writer, work, *depth, bytes, &mut rng).await?;
            let after = Counts::applied(place).await?;
            let written = latencies.len() as u64 * work.write_size as u64;
            let cost = before.zip(after).map(|(before, after)| Cost::between(before, after, written, coded.concerned));
            let row = Row::of((Some(*depth), coded.concerned), latencies, seconds);
            rows.push(Row { code: Some(coded.code.clone()), cost, ..row });
        }
        compare(&mut rows[first..]);
    }
    for object in &objects {
        object.check(client).await?;
    }
    Ok(rows)
}

/// Relates the rows of one depth to the last one.
fn compare(rows: &mut [Row]) {
    let Some((base, others)) = rows.split_last_mut() else { return };
    others.iter_mut().for_each(|row| row.ratio = Some(row.per_s / base.per_s));
}

impl<'a> Object<'a> {
    /// Stores it.
    async fn put(client: &Client, (coded, key): (&'a Coded, &'a str), work: &Work, rng: &mut StdRng) -> Result<Self> {
        let mut bytes = vec![0; work.size];
        rng.fill_bytes(&mut bytes);
        let Coded { code, block_len, .. } = coded;
        let options =
            PutOptions { code: code.clone(), block_len: *block_len, size: Some(work.size as u64), ..PutOptions::default() };
        client.put(put::BUCKET, key, &bytes[..], &options).await?;
        let writer = client.writer(put::BUCKET, key, &WriteOptions::default()).await?;
        let stripes = client.stat(put::BUCKET, key).await?.stripes;
        let starts = stripes.iter().map(|stripe| stripe.offset as usize / work.write_size * work.write_size).collect();
        Ok(Self { coded, key, writer, starts, bytes })
    }

    /// Writes what it contains to each of its stripes, so that they are open for updates: those that rest for long are closed.
    async fn open_stripes(&self, write_size: usize) -> Result<()> {
        for start in &self.starts {
            self.writer.write_at(*start as u64, self.bytes[*start..][..write_size].to_vec()).await?;
        }
        Ok(())
    }

    /// Fails if it does not contain what was written.
    async fn check(&self, client: &Client) -> Result<()> {
        let mut found = Vec::with_capacity(self.bytes.len());
        client.get(put::BUCKET, self.key, &mut found, &GetOptions::default()).await?;
        match found == self.bytes {
            true => Ok(()),
            false => Err(Error::corrupt("the object does not contain what was written")),
        }
    }
}

/// Writes for a time. Returns the time that each write took, and the seconds of all.
async fn at_depth(
    writer: &Writer,
    work: &Work,
    depth: usize,
    bytes: &mut [u8],
    rng: &mut StdRng,
) -> Result<(Vec<Duration>, f64)> {
    let (begun, slots) = (Instant::now(), work.size / work.write_size);
    let mut writers = JoinSet::new();
    for number in 0..depth {
        let (writer, mut rng) = (writer.clone(), StdRng::from_rng(rng));
        let (write_size, until) = (work.write_size, begun + work.time);
        writers.spawn(async move {
            let (mut latencies, mut written) = (Vec::new(), Vec::new());
            while Instant::now() < until {
                let slot = number + depth * rng.random_range(0..(slots - number).div_ceil(depth));
                let seed = rng.random();
                let new = new_bytes(seed, write_size);
                let started = Instant::now();
                writer.write_at((slot * write_size) as u64, new).await?;
                latencies.push(started.elapsed());
                written.push((slot, seed));
            }
            Ok::<_, Error>((latencies, written))
        });
    }
    let mut latencies = Vec::new();
    while let Some(ended) = writers.join_next().await {
        let (took, written) = ended.map_err(|error| Error::fatal(format!("a writer ended unexpectedly: {error}")))??;
        latencies.extend(took);
        for (slot, seed) in written {
            bytes[slot * work.write_size..][..work.write_size].copy_from_slice(&new_bytes(seed, work.write_size));
        }
    }
    Ok((latencies, begun.elapsed().as_secs_f64()))
}

fn new_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Rounds in which each thread overwrites and syncs a page of a file of its own.
fn bound(dir: &Path, threads: usize, time: Duration) -> Result<Row> {
    let begun = Instant::now();
    let (barrier, is_over) = (Arc::new(Barrier::new(threads)), Arc::new(AtomicBool::new(false)));
    let files = (0..threads).map(|number| Scratch::make(dir, number)).collect::<Result<Vec<_>>>()?;
    let syncing = |(number, file): (usize, &Scratch)| {
        let mut latencies = Vec::new();
        for round in 0.. {
            // The first thread ends all in the same round.
            if number == 0 && begun.elapsed() >= time {
                is_over.store(true, Relaxed);
            }
            barrier.wait();
            if is_over.load(Relaxed) {
                break;
            }
            let started = Instant::now();
            let page = [round as u8; BOUND_BYTES];
            let written = file.file.write_all_at(&page, round % BOUND_PLACES * BOUND_BYTES as u64);
            let synced = written.and_then(|()| file.file.sync_data());
            barrier.wait();
            latencies.push(started.elapsed());
            synced.map_err(|error| io_error(dir, "sync a file in", &error))?;
        }
        Ok(latencies)
    };
    let latencies: Vec<Result<Vec<Duration>>> = std::thread::scope(|scope| {
        let syncing = &syncing;
        let threads: Vec<_> = files.iter().enumerate().map(|it| scope.spawn(move || syncing(it))).collect();
        let gone = || Error::fatal("a thread ended unexpectedly");
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(gone()))).collect()
    });
    let latencies = latencies.into_iter().collect::<Result<Vec<_>>>()?.into_iter().next().unwrap_or_default();
    Ok(Row::of((None, threads), latencies, begun.elapsed().as_secs_f64()))
}

/// A file that is removed when this is dropped.
struct Scratch {
    path: std::path::PathBuf,
    file: File,
}

impl Scratch {
    /// Written in full, so that syncs do not allocate.
    fn make(dir: &Path, number: usize) -> Result<Self> {
        let path = dir.join(format!("sync-{number}"));
        let failed = |error: std::io::Error| io_error(&path, "write", &error);
        let file = File::create(&path).map_err(failed)?;
        file.write_all_at(&vec![1; BOUND_BYTES * BOUND_PLACES as usize], 0).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(Self { path, file })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Its directory is temporary, or a cluster's, where it is small.
        let _left = std::fs::remove_file(&self.path);
    }
}

impl Row {
    fn of((depth, blocks_concerned): (Option<usize>, usize), latencies: Vec<Duration>, seconds: f64) -> Self {
        let mut ms: Vec<f64> = latencies.iter().map(|took| took.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let (count, max_ms) = (ms.len(), ms.last().copied().unwrap_or(f64::NAN));
        let (p50_ms, p99_ms) = (percentile(&ms, 50), percentile(&ms, 99));
        let (per_s, code, p50_over_bound, ratio, cost) = (count as f64 / seconds, None, None, None, None);
        Self { code, blocks_concerned, depth, count, seconds, per_s, p50_ms, p99_ms, max_ms, p50_over_bound, ratio, cost }
    }

    fn relate(&mut self, bound: &Self) {
        self.p50_over_bound = Some(self.p50_ms / bound.p50_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_depth_are_related_to_the_last_one() {
        let row = |writes: usize| Row::of((Some(1), 3), vec![Duration::from_millis(2); writes], 2.0);
        let mut rows = [row(10), row(30), row(20)];
        compare(&mut rows);
        assert_eq!(rows.map(|row| (row.per_s, row.ratio)), [(5.0, Some(0.5)), (15.0, Some(1.5)), (10.0, None)]);
        compare(&mut []);
        let mut slow = row(1);
        slow.relate(&Row::of((None, 3), vec![Duration::from_millis(1); 3], 1.0));
        assert_eq!(slow.p50_over_bound, Some(2.0));
    }

    #[test]
    fn the_bound_counts_rounds_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let row = bound(dir.path(), 3, Duration::from_millis(30)).unwrap();
        assert!(row.count > 0 && row.p50_ms > 0.0 && row.p50_ms <= row.p99_ms && row.p99_ms <= row.max_ms, "{row:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(bound(&dir.path().join("none"), 3, Duration::from_millis(30)).is_err());
    }
}
