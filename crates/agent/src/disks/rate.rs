//! How fast a disk reads when it has nothing else to do, for schedules of many repairs ([`weft_control::schedule`](../../weft_control/schedule/index.html))
//! and for limits that are a share of it.
//!
//! What tasks read does not show it. Few or small reads at a time move fewer bytes than the disk could, and what the kernel has read ahead
//! comes from memory. So the disk is measured as a repair reads it: blocks that are not in the page cache, from their begin, and as many at a time as a
//! disk gives turns to repairs. Other load can only slow a measurement down, so the best of the last ones counts.
//!
//! A measurement gives way: it reads in turns of the last class, begins only where no task reads, writes or waits, has no result if one comes,
//! and leaves alone what is in the page cache for readers, disks that have had an error, and those that hang. What it has read, it lets go of.

use super::{Disk, Disks};
use crate::line::Passage;
use futures::future::try_join_all;
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use weft_engine::classes::{FRAME_BYTES_MAX, TURNS_MAX};
use weft_plan::{Class, Precedence};
use weft_proto::{DiskMode, v1};
use weft_store::{BlockReader, BlockStore, DeviceErrors};
use weft_types::{BlockId, ByteSize, PAGE_LEN, Result, Span};

/// What a measurement reads, at most, and of one block.
const BYTES_MAX: u64 = 32 << 20;
const BLOCK_BYTES_MAX: u64 = 8 << 20;
/// A measurement of less says nothing.
const BYTES_MIN: u64 = 8 << 20;
/// The most blocks that a measurement opens. So many are enough if they have 32 KiB.
const BLOCKS_MAX: usize = 256;
/// A page of each of these many bytes shows whether readers have a block in memory.
const LOOK_EVERY: usize = 1 << 20;
/// A measurement ends after this time, with what it has read: the disk is slow. Looking for blocks may take as long before.
const TIME_MAX: Duration = Duration::from_secs(4);
/// If even less was read then, something else has held up the disk.
const SLOW_BYTES_MIN: u64 = 1 << 20;
/// A disk that takes longer hangs. The next one is measured then.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many measurements count, also those without a result: in the end nothing is known of a disk that cannot be measured any more.
const RECENT: usize = 8;

/// The last measurements of a disk.
#[derive(Debug, Default)]
pub(super) struct Rate(Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    /// Bytes a second, the oldest first; `None`: without a result.
    recent: VecDeque<Option<u64>>,
    /// The last block that was looked at: the next measurement reads those that follow.
    after: Option<BlockId>,
    is_under_way: bool,
}

/// A block, and how many of its bytes are read.
type Cold = (Arc<dyn BlockReader>, u64);

/// What a measurement has read since its begin, and the turns that it has asked for.
struct Reading {
    begin: Instant,
    bytes: AtomicU64,
    turns: AtomicU64,
}

impl Rate {
    /// Bytes a second; 0: not known.
    pub(super) fn bytes_per_s(&self) -> u64 {
        self.lock().recent.iter().flatten().copied().max().unwrap_or(0)
    }

    /// Whether a measurement begins now: not before the last one has ended.
    fn begins(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_under_way, true)
    }

    /// It has ended, and has found so many bytes a second, or nothing.
    fn ended(&self, found: Option<u64>) {
        let mut measured = self.lock();
        measured.is_under_way = false;
        measured.recent.push_back(found);
        if measured.recent.len() > RECENT {
            measured.recent.pop_front();
        }
    }

    /// A poisoned lock is safe to use: each change leaves it valid.
    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disks {
    /// Measures the disks that nothing uses now, one after the other.
    pub(crate) async fn measure(self: &Arc<Self>, mode: DiskMode) {
        // The disks of a simulation have no rate of their own.
        if mode != DiskMode::Pool {
            return;
        }
        for number in 0..self.0.len() {
            if !self.0[number].is_quiet(0) || !self.0[number].rate.begins() {
                continue;
            }
            let (disks, mut measuring) = (Arc::clone(self), JoinSet::new());
            measuring.spawn(async move {
                let disk = &disks.0[number];
                let found = disk.measured().await.unwrap_or_else(|error| {
                    // A scrub meets it, too, and tells of it.
                    tracing::debug!(path = %disk.path.display(), %error, "a disk was not measured");
                    None
                });
                disk.rate.ended(found);
            });
            // A disk that hangs holds up no other: its measurement goes on. It ends early if the agent stops meanwhile.
            if timeout(PATIENCE, measuring.join_next()).await.is_err() {
                measuring.detach_all();
            }
        }
    }
}

impl Disk {
    /// Whether a measurement may read: the disk works, without errors so far, and no task uses it. `turns`: those that the measurement
    /// itself may have.
    fn is_quiet(&self, turns: usize) -> bool {
        let works = |store: &Arc<dyn BlockStore>| store.failed().is_none() && store.errors() == DeviceErrors::default();
        let is_unused = || !self.served.is_busy() && self.line.asked() <= turns;
        self.require_answers().is_ok() && self.store().is_ok_and(works) && is_unused()
    }

    /// Bytes a second; `None` if too few can be read to tell, or if a task came.
    async fn measured(&self) -> Result<Option<u64>> {
        let (store, line, after) = (Arc::clone(self.store()?), Arc::clone(&self.line), self.rate.lock().after);
        let begin = Instant::now();
        let must_end = move || line.asked() > 0 || begin.elapsed() >= TIME_MAX;
        let (blocks, last) = DiskMode::Pool.run(move || cold(store.as_ref(), after, must_end)).await?;
        self.rate.lock().after = last;
        if blocks.iter().map(|(_, len)| len).sum::<u64>() < BYTES_MIN {
            return Ok(None);
        }
        let mut streams: Vec<Vec<Cold>> = vec![Vec::new(); TURNS_MAX];
        blocks.iter().cloned().enumerate().for_each(|(at, block)| streams[at % TURNS_MAX].push(block));
        let asked_before = self.line.asked_so_far();
        let reading = Reading { begin: Instant::now(), bytes: AtomicU64::new(0), turns: AtomicU64::new(0) };
        let quiet = try_join_all(streams.into_iter().map(|blocks| self.read(blocks, &reading))).await?;
        let (bytes, seconds) = (reading.bytes.load(Relaxed), reading.begin.elapsed().as_secs_f64());
        // A task may have come and gone between two looks.
        let is_alone = self.line.asked_so_far() - asked_before == reading.turns.load(Relaxed);
        if !is_alone || !quiet.into_iter().all(|quiet| quiet) {
            return Ok(None);
        }
        // Nothing else has read these blocks. The next measurements shall find them on the disk.
        let forget = move || {
            blocks.iter().for_each(|(block, len)| block.forget_cached(Span::new(0, *len)));
            Ok(())
        };
        DiskMode::Pool.run(forget).await?;
        Ok((bytes >= SLOW_BYTES_MIN && seconds > 0.0).then(|| (bytes as f64 / seconds) as u64))
    }

    /// Reads the blocks until the time is over, and counts the bytes. Returns whether no task came.
    async fn read(&self, blocks: Vec<Cold>, reading: &Reading) -> Result<bool> {
        let passage = Passage::new(&self.line, Precedence::of(Class::Scrub));
        for (block, len) in blocks {
            for offset in (0..len).step_by(FRAME_BYTES_MAX as usize) {
                reading.turns.fetch_add(1, Relaxed);
                let turn = passage.turn().await;
                if !self.is_quiet(TURNS_MAX) {
                    return Ok(false);
                }
                if reading.begin.elapsed() >= TIME_MAX {
                    return Ok(true);
                }
                let (reader, bytes) = (Arc::clone(&block), (len - offset).min(FRAME_BYTES_MAX));
                let one = move || reader.read_at(offset, &mut vec![0; bytes as usize]).map(drop);
                DiskMode::Pool.run(one).await?;
                drop(turn);
                reading.bytes.fetch_add(bytes, Relaxed);
            }
        }
        Ok(true)
    }
}

/// The next blocks that are not in memory, as far as can be told before `must_end`, and the last one that was looked at; `None`: it was the last
/// of all.
fn cold(store: &dyn BlockStore, after: Option<BlockId>, must_end: impl Fn() -> bool) -> Result<(Vec<Cold>, Option<BlockId>)> {
    let ids = store.list_after(after, BLOCKS_MAX)?;
    let (mut blocks, mut bytes, mut last): (Vec<Cold>, u64, _) = (Vec::new(), 0, after.filter(|_| !ids.is_empty()));
    let more = ids.len() == BLOCKS_MAX;
    for (at, id) in ids.iter().enumerate() {
        if must_end() {
            break;
        }
        last = Some(*id).filter(|_| more || at + 1 < ids.len());
        let len_max = BLOCK_BYTES_MAX.min(BYTES_MAX - bytes);
        let opened = store.open(*id).and_then(|reader| Ok((reader.stored_len()?.min(len_max), reader)));
        let Ok((len, reader)) = opened else { continue };
        // What readers have in memory stays there.
        if len == 0 || is_in_memory(reader.as_ref(), len) {
            continue;
        }
        bytes += len;
        blocks.push((reader, len));
        if bytes >= BYTES_MAX {
            break;
        }
    }
    // Parts may be in memory all the same: the kernel may read what is looked for.
    blocks.iter().for_each(|(reader, len)| reader.forget_cached(Span::new(0, *len)));
    Ok((blocks, last))
}

/// Whether any of the pages that are looked at is in memory.
fn is_in_memory(block: &dyn BlockReader, len: u64) -> bool {
    let is_cached = |offset: u64| {
        let mut page = vec![0; (len - offset).min(PAGE_LEN) as usize];
        block.read_cached(offset, &mut page).is_some()
    };
    (0..len).step_by(LOOK_EVERY).any(is_cached)
}

/// Holds the disks' rates to the throttle of all disks together: each gets an equal part of it, those on one file system one together. A disk that
/// was not measured has this part.
pub(crate) fn hold(disks: &mut [v1::Disk], throttle: Option<ByteSize>) {
    let Some(ByteSize(all)) = throttle else { return };
    let working = || disks.iter().filter(|disk| !disk.failed);
    let shared: BTreeSet<u64> = working().map(|disk| disk.file_system).filter(|number| *number != 0).collect();
    let parts = shared.len() + working().filter(|disk| disk.file_system == 0).count();
    let part = (all / parts.max(1) as u64).max(1);
    for disk in disks {
        disk.bytes_per_s = if disk.bytes_per_s == 0 { part } else { disk.bytes_per_s.min(part) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_the_last_measurements_counts() {
        let rate = Rate::default();
        assert_eq!(rate.bytes_per_s(), 0);
        [10, 90, 50].into_iter().for_each(|it| rate.ended(Some(it)));
        rate.ended(None);
        assert_eq!(rate.bytes_per_s(), 90);
        (0..RECENT as u64).for_each(|it| rate.ended(Some(it)));
        assert_eq!(rate.bytes_per_s(), RECENT as u64 - 1, "it is forgotten in the end");
        (1..RECENT).for_each(|_| rate.ended(None));
        assert_eq!(rate.bytes_per_s(), RECENT as u64 - 1);
        rate.ended(None);
        assert_eq!(rate.bytes_per_s(), 0, "it could not be measured any more");
        assert!(rate.begins() && !rate.begins(), "the disk hangs");
        rate.ended(None);
        assert!(rate.begins());
    }

    #[test]
    fn disks_share_a_throttle() {
        let disk = |bytes_per_s, failed| v1::Disk { bytes_per_s, failed, ..v1::Disk::default() };
        let held = |throttle: Option<u64>| {
            let mut disks = [disk(0, false), disk(200, false), disk(40, false), disk(0, true)];
            hold(&mut disks, throttle.map(ByteSize));
            disks.map(|disk| disk.bytes_per_s)
        };
        assert_eq!(held(None), [0, 200, 40, 0]);
        assert_eq!(held(Some(300)), [100, 100, 40, 100]);
        let mut same = [7, 7, 8].map(|file_system| v1::Disk { file_system, ..v1::Disk::default() });
        hold(&mut same, Some(ByteSize(300)));
        assert_eq!(same.map(|disk| disk.bytes_per_s), [150; 3], "two are one disk");
    }
}
