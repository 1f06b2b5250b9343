//! Measures a scrub of all data in a cluster on this machine, beside direct reads of the same files.

use super::{
    IdleMeter,
    healing::{is_whole, loopback_bytes, until},
    put::BUCKET,
};
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use rustix::fs::{Advice, OFlags, fadvise};
use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};
use tokio::time::Instant;
use weft_cli::{
    files::io_error,
    interrupt,
    local::{ScratchCluster, Size},
    session::{self, Session},
    up::bring_up,
};
use weft_client::{PutOptions, api::ScrubTally};
use weft_types::{ByteSize, Error, Result};

/// Consecutive objects begin this many bytes apart in the shared random bytes.
const STEP_BYTES: usize = 64;
/// What one direct read asks for, and the alignment that it needs.
const READ_BYTES: usize = 1 << 20;
const ALIGNMENT: usize = 4096;

/// What is stored, and how it is checked.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) code: String,
    pub(crate) objects: usize,
    /// Bytes of an object: of one stripe.
    pub(crate) object_len: usize,
    pub(crate) size: Size,
    /// What scrubs of a node may send in a second; None: only their share.
    pub(crate) limit: Option<ByteSize>,
    /// Stripes at the same time, at most; 0: the usual number.
    pub(crate) concurrency: u32,
    pub(crate) runs: usize,
    pub(crate) seed: u64,
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scrubbed {
    /// The time of the job, by the coordinator's clock.
    pub(crate) seconds: f64,
    /// The blocks that were read to the end, and their bytes.
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// Bytes over the loopback interface meanwhile, of all programs.
    pub(crate) moved_bytes: u64,
    pub(crate) cpu_idle: f64,
    /// Direct reads of all files, of all disks at the same time, each disk's files one after another.
    pub(crate) read_s: f64,
    pub(crate) read_bytes: u64,
}

/// Runs in a cluster of its own.
pub(crate) fn run(work: &Work, says: &dyn Fn(&str)) -> Result<Vec<Scrubbed>> {
    let scratch = ScratchCluster::make_with("weft-bench", work.size, |config| {
        (config.auto_repair, config.scrub_period_ms) = (false, 0);
        config.limits.scrub_bytes_per_s = work.limit;
    })?;
    interrupt::check()?;
    session::run(async {
        let session = bring_up(scratch.cluster()).await?;
        let done = measure(&session, work, says).await;
        session.client.close().await;
        done
    })
}

async fn measure(session: &Session, work: &Work, says: &dyn Fn(&str)) -> Result<Vec<Scrubbed>> {
    says("storing objects");
    store(session, work).await?;
    until(session, "all stripes are whole", is_whole).await?;
    let nodes = session.client.status().await?.nodes;
    let disks = nodes.iter().flat_map(|node| &node.disks).map(|disk| files_below(Path::new(&disk.path)));
    let disks = disks.collect::<Result<Vec<_>>>()?;
    let mut runs = Vec::with_capacity(work.runs);
    for run in 0..work.runs {
        says(&format!("run {} of {}", run + 1, work.runs));
        disks.iter().flatten().try_for_each(|file| forget(file).map_err(|error| io_error(file, "read", &error)))?;
        runs.push(one(session, work, &disks).await?);
    }
    Ok(runs)
}

async fn store(session: &Session, work: &Work) -> Result<()> {
    let mut data = vec![0; work.object_len + work.objects * STEP_BYTES];
    StdRng::seed_from_u64(work.seed).fill_bytes(&mut data);
    super::put::make_bucket(session).await?;
    let options = PutOptions { code: work.code.clone(), size: Some(work.object_len as u64), ..PutOptions::default() };
    for number in 0..work.objects {
        let bytes = &data[number * STEP_BYTES..][..work.object_len];
        session.client.put(BUCKET, &number.to_string(), bytes, &options).await?;
    }
    Ok(())
}

async fn one(session: &Session, work: &Work, disks: &[Vec<PathBuf>]) -> Result<Scrubbed> {
    let (idle, moved) = (IdleMeter::begin(), loopback_bytes()?);
    let begun = session.client.scrub("", "", None, work.concurrency).await?;
    let job = session.client.wait_for_job(begun.id, |_| {}).await?;
    let (moved_bytes, cpu_idle) = (loopback_bytes()?.saturating_sub(moved), idle.share());
    let tally = job.scrubbed.and_then(|report| report.tally).unwrap_or_default();
    if job.state != "done" || !is_clean(&tally) || tally.stripes != work.objects as u64 {
        return Err(Error::fatal(format!("the scrub is {}, and has found: {tally:?} {}", job.state, job.last_error)));
    }
    let reading = Instant::now();
    let read_bytes = read_all(disks)?;
    Ok(Scrubbed {
        // The coordinator's timestamps: an observer sees the end later.
        seconds: job.changed_ms.saturating_sub(job.created_ms) as f64 / 1e3,
        blocks: tally.blocks,
        bytes: tally.bytes,
        moved_bytes,
        cpu_idle,
        read_s: reading.elapsed().as_secs_f64(),
        read_bytes,
    })
}

/// Whether all was checked, and nothing is wrong.
pub(super) fn is_clean(it: &ScrubTally) -> bool {
    it.wrong_blocks + it.inconsistent_stripes + it.lacking_blocks + it.away_blocks + it.not_checked_stripes == 0
}

/// All files of blocks on a disk, by name.
fn files_below(disk: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut dirs) = (Vec::new(), vec![disk.join("blocks")]);
    while let Some(dir) = dirs.pop() {
        let wrong = |error: io::Error| io_error(&dir, "look through", &error);
        for entry in fs::read_dir(&dir).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let is_dir = entry.file_type().map_err(wrong)?.is_dir();
            if is_dir { &mut dirs } else { &mut files }.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Lets go of what the page cache has of a file.
fn forget(file: &Path) -> io::Result<()> {
    Ok(fadvise(File::open(file)?, 0, None, Advice::DontNeed)?)
}

/// Reads all files past the page cache, all disks at the same time. Returns how many bytes there are.
fn read_all(disks: &[Vec<PathBuf>]) -> Result<u64> {
    let read_disk = |files: &[PathBuf]| -> Result<u64> {
        let mut buffer = vec![0; READ_BYTES + ALIGNMENT];
        let sizes = files.iter().map(|file| read_direct(file, &mut buffer).map_err(|error| cannot_read(file, &error)));
        sizes.sum()
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = disks.iter().map(|files| scope.spawn(move || read_disk(files))).collect();
        readers.into_iter().map(|it| it.join().map_err(|_| Error::fatal("a reader panicked"))?).sum()
    })
}

fn read_direct(file: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let file = fs::File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(file)?;
    let from = buffer.as_ptr().align_offset(ALIGNMENT);
    let (aligned, mut at) = (&mut buffer[from..][..READ_BYTES], 0);
    loop {
        let read = file.read_at(aligned, at)?;
        at += read as u64;
        // Behind a part of a page, the file has ended, and the next offset would not be aligned.
        if read == 0 || !at.is_multiple_of(ALIGNMENT as u64) {
            return Ok(at);
        }
    }
}

fn cannot_read(file: &Path, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidInput => {
            let dir = std::env::temp_dir();
            Error::invalid(format!(
                "the file system of {} has no direct reads: set TMPDIR to a directory on a disk",
                dir.display()
            ))
        }
        _ => io_error(file, "read", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_of_blocks_are_read_to_their_ends() {
        let dir = tempfile::tempdir().unwrap();
        let shard = dir.path().join("blocks/0a");
        fs::create_dir_all(&shard).unwrap();
        fs::write(dir.path().join("disk"), "no block").unwrap();
        let lens = [5000, 0, READ_BYTES, 2 * READ_BYTES + 1];
        for (number, len) in lens.iter().enumerate() {
            let path = shard.join(number.to_string());
            fs::write(&path, vec![7; *len]).unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
        }
        let files = files_below(dir.path()).unwrap();
        assert_eq!(files.len(), lens.len());
        files.iter().for_each(|file| forget(file).unwrap());
        match read_all(&[files, Vec::new()]) {
            Ok(bytes) => assert_eq!(bytes, lens.iter().sum::<usize>() as u64),
            // Not every file system has direct reads.
            Err(error) => assert!(error.message.contains("no direct reads"), "{error}"),
        }
    }
}
