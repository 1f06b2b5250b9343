//! Measures small writes in place to one object, so many at a time; beside that, what the disk allows.
//!
//! Each of the concurrent writers has slots of its own, so in the end it is known what the object must contain, and it is read back and compared.
//! The bound is the disk's: an update waits for a sync at the node of each block concerned, and these work in parallel. So as many threads as
//! blocks are concerned sync a page each, and then begin the next round together.

use super::{percentile, place::Place, put};
use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use std::{
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
    pub(crate) code: String,
    /// The numbers of concurrent writes, one after another.
    pub(crate) depths: Vec<usize>,
    /// The time for each of them.
    pub(crate) time: Duration,
    pub(crate) seed: u64,
}

/// The writes at one depth, or the syncs of the bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// Writes at the same time; none: the bound.
    pub(crate) depth: Option<usize>,
    pub(crate) count: usize,
    pub(crate) seconds: f64,
    pub(crate) per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

/// Measures all depths; calls `says` before each. The object is removed at the end. `synced`: how many blocks' nodes sync for an update.
pub(crate) async fn measure(place: &Place<'_>, work: &Work, synced: usize, says: &dyn Fn(Option<usize>)) -> Result<Vec<Row>> {
    put::make_bucket(place.session).await?;
    let (client, key) = (place.client().await?, format!("update-{:016x}", seed()?));
    let measured = measure_object(&client, &key, work, says).await;
    // The object may not have been put.
    let _gone = client.remove(put::BUCKET, &key).await;
    client.close().await;
    let mut rows = measured?;
    if let Some(local) = place.local {
        says(None);
        let (dir, time) = (local.dir().to_path_buf(), work.time);
        let bound = tokio::task::spawn_blocking(move || bound(&dir, synced, time)).await;
        rows.push(bound.map_err(|error| Error::fatal(format!("cannot measure the disk: {error}")))??);
    }
    Ok(rows)
}

async fn measure_object(client: &Client, key: &str, work: &Work, says: &dyn Fn(Option<usize>)) -> Result<Vec<Row>> {
    let mut rng = StdRng::seed_from_u64(work.seed);
    let mut bytes = vec![0; work.size];
    rng.fill_bytes(&mut bytes);
    let options = PutOptions { code: work.code.clone(), size: Some(work.size as u64), ..PutOptions::default() };
    client.put(put::BUCKET, key, &bytes[..], &options).await?;
    let writer = client.writer(put::BUCKET, key, &WriteOptions::default()).await?;
    // Opens each stripe for updates.
    let stat = client.stat(put::BUCKET, key).await?;
    for stripe in &stat.stripes {
        let start = stripe.offset as usize / work.write_size * work.write_size;
        writer.write_at(start as u64, bytes[start..start + work.write_size].to_vec()).await?;
    }
    let mut rows = Vec::new();
    for depth in &work.depths {
        says(Some(*depth));
        let (latencies, seconds) = at_depth(&writer, work, *depth, &mut bytes, &mut rng).await?;
        rows.push(Row::of(Some(*depth), latencies, seconds));
    }
    let mut found = Vec::with_capacity(bytes.len());
    client.get(put::BUCKET, key, &mut found, &GetOptions::default()).await?;
    match found == bytes {
        true => Ok(rows),
        false => Err(Error::corrupt("the object does not contain what was written")),
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
    Ok(Row::of(None, latencies, begun.elapsed().as_secs_f64()))
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
    fn of(depth: Option<usize>, latencies: Vec<Duration>, seconds: f64) -> Self {
        let mut ms: Vec<f64> = latencies.iter().map(|took| took.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let (count, max_ms) = (ms.len(), ms.last().copied().unwrap_or(f64::NAN));
        let (p50_ms, p99_ms) = (percentile(&ms, 50), percentile(&ms, 99));
        Self { depth, count, seconds, per_s: count as f64 / seconds, p50_ms, p99_ms, max_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_counts_rounds_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let row = bound(dir.path(), 3, Duration::from_millis(30)).unwrap();
        assert!(row.count > 0 && row.p50_ms > 0.0 && row.p50_ms <= row.p99_ms && row.p99_ms <= row.max_ms, "{row:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(bound(&dir.path().join("none"), 3, Duration::from_millis(30)).is_err());
    }
}
