//! Measures how a cluster on this machine heals itself: an agent is killed for good, and the others rebuild its blocks without a command.

use super::{IdleMeter, put::BUCKET};
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    time::Duration,
};
use tokio::time::Instant;
use weft_cli::{
    files::io_error,
    interrupt,
    local::{LocalCluster, ScratchCluster, Signal, Size},
    session::{self, Session},
    up::bring_up,
};
use weft_client::{GetOptions, PutOptions, api};
use weft_types::{Error, Result};

/// The silence after which a node is lost, so that the benchmark does not wait for the usual quarter of an hour.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// How often the state of the cluster is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// By then the cluster must have healed.
const HEALED_WITHIN: Duration = Duration::from_secs(600);
/// Threads that write files for the comparison.
const WRITERS: usize = 8;
/// Consecutive objects begin this many bytes apart in the shared random bytes.
const STEP_BYTES: usize = 64;

/// What is stored, and where.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) code: String,
    pub(crate) objects: usize,
    /// Bytes of an object: of one stripe.
    pub(crate) object_len: usize,
    pub(crate) block_len: usize,
    pub(crate) size: Size,
    pub(crate) seed: u64,
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Healed {
    /// From the death of the agent until the first block was being rebuilt.
    pub(crate) noticed_s: f64,
    /// From then until the last block was recorded. Every stripe was whole then.
    pub(crate) seconds: f64,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// Bytes over the loopback interface meanwhile, of all programs.
    pub(crate) moved_bytes: u64,
    pub(crate) cpu_idle: f64,
    /// The time to write the same bytes to the same disk, in files of a block that are synced.
    pub(crate) written_s: f64,
}

/// Runs once, in a cluster of its own.
pub(crate) fn run(work: &Work, says: &dyn Fn(&str)) -> Result<Healed> {
    let scratch = ScratchCluster::make_with("weft-bench", work.size, |config| {
        config.lost_after_ms = LOST_AFTER.as_millis() as u64;
    })?;
    interrupt::check()?;
    let mut data = vec![0; work.object_len + work.objects * STEP_BYTES];
    StdRng::seed_from_u64(work.seed).fill_bytes(&mut data);
    session::run(async {
        let session = bring_up(scratch.cluster()).await?;
        let done = heal(&session, scratch.cluster(), work, &data, says).await;
        session.client.close().await;
        done
    })
}

async fn heal(session: &Session, cluster: &LocalCluster, work: &Work, data: &[u8], says: &dyn Fn(&str)) -> Result<Healed> {
    says("storing objects");
    super::put::make_bucket(session).await?;
    let options = PutOptions { code: work.code.clone(), size: Some(work.object_len as u64), ..PutOptions::default() };
    let bytes = |number: usize| &data[number * STEP_BYTES..][..work.object_len];
    for number in 0..work.objects {
        session.client.put(BUCKET, &number.to_string(), bytes(number), &options).await?;
    }
    until(session, "all stripes are whole", is_whole).await?;
    let victim = cluster.nodes().last().ok_or_else(|| Error::invalid("a cluster without nodes"))?;
    says(&format!("killing {victim}"));
    cluster.signal(victim, Signal::Kill)?;
    let killed = Instant::now();
    until(session, "the cluster rebuilds blocks", |health| healing(health).stripes_under_way > 0 || done(health).blocks > 0)
        .await?;
    let (noticed, idle, moved) = (killed.elapsed(), IdleMeter::begin(), loopback_bytes()?);
    // The cluster counts stripes only now and then, but rebuilt blocks at once.
    let (mut rebuilt, mut all, mut cpu_idle) = (0, noticed, 0.0);
    let healed = until(session, "all stripes are whole again", |health| {
        let blocks = done(health).blocks;
        if blocks > rebuilt {
            (rebuilt, all, cpu_idle) = (blocks, killed.elapsed(), idle.share());
        }
        is_whole(health)
    })
    .await?;
    let (moved_bytes, done) = (loopback_bytes()?.saturating_sub(moved), done(&healed));
    if done.blocks == 0 {
        return Err(Error::fatal("the killed node held no block: store more objects"));
    }
    says("reading all objects back");
    for number in 0..work.objects {
        let mut back = Vec::with_capacity(work.object_len);
        let got = session.client.get(BUCKET, &number.to_string(), &mut back, &GetOptions::default()).await?;
        if back != bytes(number) || !got.rebuilt.is_empty() {
            return Err(Error::corrupt("an object is not whole after the repair").object(format!("{BUCKET}/{number}")));
        }
    }
    let written = written(&cluster.dir().join("written"), &data[..work.block_len], done.blocks as usize)?;
    Ok(Healed {
        noticed_s: noticed.as_secs_f64(),
        seconds: (all - noticed).as_secs_f64(),
        blocks: done.blocks,
        bytes: done.bytes,
        moved_bytes,
        cpu_idle,
        written_s: written.as_secs_f64(),
    })
}

pub(super) fn healing(health: &api::HealthReply) -> api::Healing {
    health.healing.clone().unwrap_or_default()
}

pub(super) fn done(health: &api::HealthReply) -> api::JobAmount {
    healing(health).done.unwrap_or_default()
}

pub(super) fn is_whole(health: &api::HealthReply) -> bool {
    health.stripes_with_bad_blocks == 0 && !health.counting && health.stripes > 0 && healing(health).stripes_left == 0
}

/// Waits for a state of the cluster.
pub(super) async fn until(
    session: &Session,
    what: &str,
    mut is_so: impl FnMut(&api::HealthReply) -> bool,
) -> Result<api::HealthReply> {
    let last = Instant::now() + HEALED_WITHIN;
    loop {
        let health = session.client.health().await?;
        if is_so(&health) {
            return Ok(health);
        }
        if Instant::now() > last {
            let reasons = health.reasons.join("; ");
            return Err(Error::fatal(format!("not within {} s: {what} ({reasons})", HEALED_WITHIN.as_secs())));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Bytes that the loopback interface has received.
pub(super) fn loopback_bytes() -> Result<u64> {
    let path = Path::new("/proc/net/dev");
    let text = fs::read_to_string(path).map_err(|error| io_error(path, "read", &error))?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    bytes.ok_or_else(|| Error::fatal("/proc/net/dev has no loopback interface"))
}

/// Writes so many files of these bytes, several at the same time, each of them synced.
fn written(dir: &Path, bytes: &[u8], files: usize) -> Result<Duration> {
    fs::create_dir(dir).map_err(|error| io_error(dir, "create", &error))?;
    let begun = Instant::now();
    let writer = |first: usize| -> Result<()> {
        for number in (first..files).step_by(WRITERS) {
            let path = dir.join(number.to_string());
            let write = |path: &Path| {
                let mut file = File::create(path)?;
                file.write_all(bytes)?;
                file.sync_all()
            };
            write(&path).map_err(|error| io_error(&path, "write", &error))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|first| scope.spawn(move || writer(first))).collect();
        let ended = writers.into_iter().map(|it| it.join().map_err(|_| Error::fatal("a writer panicked"))?);
        ended.collect::<Result<Vec<()>>>()
    })?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| io_error(dir, "sync", &error))?;
    Ok(begun.elapsed())
}
