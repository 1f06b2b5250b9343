//! Measures puts of one stripe on shaped links: the same data, stored repeatedly by each scheme in turn.
//!
//! The data is in memory before the clock starts, and each object is removed after its run. The measured time covers the whole command:
//! planning, coding, moving, storing, committing. Several writers put one object each at the same time; the time is that of all.

use super::{
    IdleMeter, Outcome, Sample,
    repair::{Case, network},
    writer::Writer,
};
use crate::testbed::{LinkRate, Settings, Testbed};
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use std::{
    fs::File,
    io::{self, Write as _},
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{io::AsyncWrite, time::Instant};
use weft_cli::{seed::seed, session::Session};
use weft_client::{
    PutOptions,
    api::{ObjectReply, StageReport},
};
use weft_types::{AutoSize, ByteSize, Error, Party, Result};

/// The bucket of the objects that are measured.
pub(crate) const BUCKET: &str = "bench";
/// The `select` of a case that places blocks on random nodes.
pub(crate) const AT_RANDOM: &str = "random";
/// The `select` of a case that places blocks on nodes in the order of their names.
pub(crate) const BY_NAME: &str = "name";
/// The page size of a disk: blocks consist of whole pages.
const PAGE: u64 = 4096;
/// Random bytes generated at once.
const CHUNK: usize = 1 << 20;

/// One stripe of random bytes: a file in memory, so no disk slows down the put; it is freed on drop.
#[derive(Debug)]
pub(crate) struct Data {
    file: File,
    pub(crate) code: String,
    pub(crate) size: u64,
    pub(crate) block_len: u64,
    /// Copies of each data block, including the coded one.
    pub(crate) replicas: u32,
}

impl Data {
    /// `size` bytes for a code, with blocks of matching length.
    pub(crate) fn make(code: &str, size: ByteSize, seed: u64) -> Result<Self> {
        let block_len = block_len(code, size)?;
        let failed =
            |error: std::io::Error| Error::unavailable(format!("cannot allocate {size} of memory for the data: {error}"));
        let mut file = File::from(memfd_create("weft-bench", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?);
        let (mut random, mut chunk) = (StdRng::seed_from_u64(seed), vec![0; CHUNK]);
        let mut left = size.0;
        while left > 0 {
            let len = left.min(CHUNK as u64) as usize;
            random.fill_bytes(&mut chunk[..len]);
            file.write_all(&chunk[..len]).map_err(failed)?;
            left -= len as u64;
        }
        Ok(Self { file, code: code.to_owned(), size: size.0, block_len, replicas: 1 })
    }

    /// Changes a part of it.
    pub(crate) fn overwrite(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|error| Error::fatal(format!("cannot change the data in memory: {error}")))
    }

    /// With this many copies of each data block.
    pub(crate) fn copied(self, replicas: u32) -> Self {
        Self { replicas, ..self }
    }

    /// Its path in this process.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.file.as_raw_fd().to_string())
    }

    /// The least time that the links allow for a put from outside, by its plan.
    pub(crate) async fn predicted_s(&self, session: &Session, settings: &Settings, case: &Case) -> Result<Option<f64>> {
        let plan = session.client.explain_put(BUCKET, "data", self.size, &self.options(case)).await?.plan;
        let Ok(saved) = weft_plan::from_json(&String::from_utf8_lossy(&plan)) else { return Ok(None) };
        let names = session.client.status().await?.nodes.into_iter().map(|node| (node.id, node.name)).collect();
        let mut network = network(settings, &names)?;
        let outside = settings.outside_link.map(LinkRate::goodput_bytes_per_s);
        for client in saved.plan.binding.parties.iter().filter(|party| matches!(party, Party::Client(_))) {
            network.up_bytes_per_s.extend(outside.map(|rate| (*client, rate)));
        }
        Ok(Some(weft_plan::predict(&saved.plan, &network)?).filter(|seconds| seconds.is_finite()))
    }

    /// The options of its put.
    pub(crate) fn options(&self, case: &Case) -> PutOptions {
        PutOptions {
            code: self.code.clone(),
            block_len: self.block_len,
            cell_len: self.block_len,
            scheme: case.scheme.clone(),
            random: case.select == AT_RANDOM,
            by_name: case.select == BY_NAME,
            replicas: self.replicas,
            slice_len: match case.slice_len {
                AutoSize::Bytes(size) => size.0,
                AutoSize::Auto => 0,
            },
            ..PutOptions::default()
        }
    }
}

/// Compares what is read with data.
pub(crate) struct Compare<'a> {
    data: &'a Data,
    offset: u64,
    is_same: bool,
}

impl<'a> Compare<'a> {
    pub(crate) fn new(data: &'a Data) -> Self {
        Self { data, offset: 0, is_same: true }
    }

    /// Fails unless everything was read and is the same.
    pub(crate) fn end(self) -> Result<()> {
        match self.is_same && self.offset == self.data.size {
            true => Ok(()),
            false => Err(Error::corrupt("the object does not contain what was written")),
        }
    }
}

impl AsyncWrite for Compare<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut expected = vec![0; bytes.len()];
        let is_read = self.data.file.read_exact_at(&mut expected, self.offset).is_ok();
        self.is_same &= is_read && expected == bytes;
        self.offset += bytes.len() as u64;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The block size of an object of that size in one stripe: each sub-block has whole pages.
pub(crate) fn block_len(code: &str, size: ByteSize) -> Result<u64> {
    let code = weft_codes::parse(code).map_err(Error::invalid)?;
    match size.0 {
        0 => Err(Error::invalid("--size must be greater than zero")),
        size => Ok(size.div_ceil(code.k() as u64).next_multiple_of(PAGE * code.alpha() as u64)),
    }
}

/// The least time of the data on the writer's link, whatever happens behind it.
pub(crate) fn bound_s(testbed: Option<&Testbed>, size: u64) -> Option<f64> {
    let link = testbed?.settings().outside_link?;
    Some(size as f64 / link.goodput_bytes_per_s())
}

/// Creates the bucket unless it exists.
pub(crate) async fn make_bucket(session: &Session) -> Result<()> {
    if !session.client.buckets().await?.iter().any(|bucket| bucket.name == BUCKET) {
        session.client.create_bucket(BUCKET, "").await?;
    }
    Ok(())
}

/// How one party's part of a put spent its time, seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct StageSeconds {
    pub(crate) scheme: String,
    /// A node's name, or the writer.
    pub(crate) party: String,
    /// Links from the writer.
    pub(crate) level: u32,
    /// Its own disk, or the data of the put.
    pub(crate) read_s: f64,
    /// Waiting for its incoming links.
    pub(crate) wait_s: f64,
    /// Arithmetic.
    pub(crate) combine_s: f64,
    /// Waiting for room in its outgoing links.
    pub(crate) send_s: f64,
    /// Storing, or computing checksums.
    pub(crate) write_s: f64,
}

impl StageSeconds {
    fn of(case: &Case, report: &StageReport) -> Self {
        let StageReport { party, level, times } = report;
        let times = times.unwrap_or_default();
        let seconds = |us: u64| us as f64 / 1e6;
        Self {
            scheme: case.label.clone(),
            party: if party.is_empty() { "writer".to_owned() } else { party.clone() },
            level: *level,
            read_s: seconds(times.read_us),
            wait_s: seconds(times.wait_us),
            combine_s: seconds(times.combine_us),
            send_s: seconds(times.send_us),
            write_s: seconds(times.write_us),
        }
    }
}

/// How all parties of one put of each case spend their time, starting with the writer.
pub(crate) async fn stages(session: &Session, writers: &[Writer], data: &Data, cases: &[Case]) -> Result<Vec<StageSeconds>> {
    let mut all = Vec::new();
    for case in cases {
        let (_, stored) = store(session, writers, data, case).await?;
        let mut reports: Vec<&StageReport> = stored.iter().flat_map(|object| &object.stages).collect();
        reports.sort_by_key(|report| (report.level, &report.party));
        all.extend(reports.into_iter().map(|report| StageSeconds::of(case, report)));
    }
    Ok(all)
}

/// Puts the data once from each writer, or without writers from the session's own client; then removes it.
pub(crate) async fn put(session: &Session, writers: &[Writer], data: &Data, case: &Case) -> Result<Sample> {
    Ok(store(session, writers, data, case).await?.0)
}

async fn store(session: &Session, writers: &[Writer], data: &Data, case: &Case) -> Result<(Sample, Vec<ObjectReply>)> {
    let options = data.options(case);
    // The prefix avoids other objects: the cluster may be in use.
    let run = seed()?;
    let keys: Vec<String> = (0..writers.len().max(1)).map(|number| format!("put-{run:016x}/{number}")).collect();
    let (idle, begun) = (IdleMeter::begin(), Instant::now());
    let came_of_it: Vec<Result<ObjectReply>> = match writers {
        [] => vec![session.client.put_file(BUCKET, &keys[0], data.path(), &options).await],
        writers => {
            let puts: Vec<_> =
                writers.iter().zip(&keys).map(|(writer, key)| writer.put(BUCKET, key, &data.path(), &options)).collect();
            let mut came_of_it = Vec::new();
            for put in puts {
                came_of_it.push(put.await);
            }
            came_of_it
        }
    };
    let (seconds, cpu_idle) = (begun.elapsed().as_secs_f64(), idle.share());
    // Stored objects are removed also if another writer failed.
    for (key, _) in keys.iter().zip(&came_of_it).filter(|(_, it)| it.is_ok()) {
        session.client.remove(BUCKET, key).await?;
    }
    let stored = came_of_it.into_iter().collect::<Result<Vec<_>>>()?;
    // Whatever an agent received, a writer or an agent sent.
    let received = |object: &ObjectReply| object.traffic.unwrap_or_default().received_bytes;
    Ok((Sample { seconds, bytes_moved: stored.iter().map(received).sum(), cpu_idle }, stored))
}

/// Runs all cases in turn, `runs` times each, and calls `says` before each run. Returns the times of each case.
pub(crate) async fn measure(
    session: &Session,
    writers: &[Writer],
    data: &Data,
    cases: &[Case],
    runs: usize,
    says: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Vec<Sample>>> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); cases.len()];
    for run in 0..runs {
        // The order of cases rotates.
        for at in (0..cases.len()).map(|at| (at + run) % cases.len()) {
            says(run, at);
            samples[at].push(put(session, writers, data, &cases[at]).await?);
        }
    }
    Ok(samples)
}

/// The outcome of each case, with its bound.
pub(crate) fn outcomes(cases: &[Case], samples: &[Vec<Sample>], bounds: &[Option<f64>]) -> Vec<Outcome> {
    let outcomes = cases.iter().zip(samples).zip(bounds);
    outcomes.map(|((case, samples), bound_s)| Outcome::of(case.label.clone(), samples, *bound_s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn blocks_are_whole_pages_of_each_sub_block_and_hold_all_of_the_data() {
        let len = |code, size| block_len(code, ByteSize(size)).unwrap();
        assert_eq!(
            [len("rs(4,4)", 64 << 20), len("rs(4,4)", 1), len("rs(4,4)", (64 << 20) + 1)],
            [16 << 20, 4096, (16 << 20) + 4096]
        );
        let alpha = weft_codes::parse("msr(4,4,d=6)").unwrap().alpha() as u64;
        let msr = len("msr(4,4,d=6)", 1 << 20);
        assert!(msr >= 1 << 18 && msr < (1 << 18) + 4096 * alpha && msr.is_multiple_of(4096 * alpha), "{msr}");
        assert!(block_len("rs(4,4)", ByteSize(0)).is_err() && block_len("rs(0,4)", ByteSize(1)).is_err());
    }

    #[tokio::test]
    async fn data_that_was_changed_is_compared_as_it_is() {
        use tokio::io::AsyncWriteExt as _;
        let data = Data::make("rs(2,1)", ByteSize(10_000), 1).unwrap();
        data.overwrite(5_000, b"changed").unwrap();
        let mut bytes = std::fs::read(data.path()).unwrap();
        assert_eq!(&bytes[5_000..5_007], b"changed");
        let compared = async |bytes: &[u8]| {
            let mut compare = Compare::new(&data);
            compare.write_all(bytes).await.unwrap();
            compare.end()
        };
        assert!(
            compared(&bytes).await.is_ok() && compared(&bytes[1..]).await.is_err() && compared(&bytes[..9_999]).await.is_err()
        );
        bytes[9_999] ^= 1;
        assert!(compared(&bytes).await.is_err());
        bytes.push(0);
        assert!(compared(&bytes).await.is_err());
    }

    #[test]
    fn data_is_read_by_its_path_and_gone_with_its_owner() {
        let data = Data::make("rs(2,1)", ByteSize((1 << 20) + 5), 1).unwrap();
        let (path, mut bytes) = (data.path(), Vec::new());
        File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, data.size);
        assert!(bytes.iter().any(|byte| *byte != bytes[0]));
        let options = data.options(&Case::parse("mist@64KiB", AutoSize::Auto, data.block_len).unwrap()[0]);
        assert_eq!((options.scheme.as_str(), options.slice_len, options.block_len), ("mist", 64 << 10, (512 << 10) + 4096));
    }
}
