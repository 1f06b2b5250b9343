//! Blocks that are being written. When a plan fails, the bytes of a block that arrived are kept, so that the next plan
//! transfers only the rest. The block is committed when it is complete.
//!
//! After the agent has reported a block as gone, no task that was already on its way may write it again. So the block
//! cannot be claimed for as long as such a task may arrive. A complete block needs no such time: its tasks have ended.

use crate::Limits;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;
use weft_store::{BlockStore, BlockWriter, Receipt};
use weft_types::{BlockId, BlockMeta, Error, PlanId, Result, Span};

/// All blocks of a node that are being written.
pub(crate) struct Partials {
    blocks_max: usize,
    kept_for: Duration,
    blocks: Mutex<BTreeMap<BlockId, Entry>>,
    /// Blocks that must not be claimed. Locked after `blocks`.
    given_up: Mutex<BTreeMap<BlockId, GivenUp>>,
}

struct Entry {
    /// `None` while it is being created.
    block: Option<Arc<Partial>>,
    /// The plan that writes it now.
    user: Option<PlanId>,
    /// Since when no plan writes it.
    idle_since: Instant,
}

/// A block that must not be claimed.
#[derive(Default)]
struct GivenUp {
    /// The removals that look for the block now.
    removals: u32,
    /// Until when tasks may arrive that would write it; set when it is reported as gone.
    until: Option<Instant>,
}

/// The most blocks that are remembered as given up. Only blocks that are reported as gone and were not complete count, and none of
/// them gives way to another. If there are as many, such blocks have to wait; complete blocks are removed nevertheless.
const GIVEN_UP_MAX: usize = 65_536;
/// The longest time for which a block is remembered as given up, even if the coordinator requests a longer one.
const GIVEN_UP_FOR_MAX: Duration = Duration::from_secs(60 * 60);

/// A block that is being written.
struct Partial {
    disk: usize,
    meta: BlockMeta,
    writer: Mutex<Option<Box<dyn BlockWriter>>>,
}

/// The removal of a block: while it exists, no plan can claim the block.
pub(crate) struct Removing<'a> {
    partials: &'a Partials,
    id: BlockId,
}

/// A plan's right to write a block. On release, the block is kept for the next plan if any of its bytes has arrived.
pub(crate) struct Claim {
    partials: Arc<Partials>,
    id: BlockId,
    block: Arc<Partial>,
    /// Read while the writer is locked, so that a late call cannot change the block of a later plan.
    released: AtomicBool,
}

impl Partials {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            blocks_max: limits.partial_blocks_max as usize,
            kept_for: Duration::from_millis(limits.partial_block_ms),
            blocks: Mutex::default(),
            given_up: Mutex::default(),
        })
    }

    /// Starts to write a block on a disk, or resumes it. May block.
    pub(crate) fn claim(self: &Arc<Self>, plan: PlanId, disk: usize, store: &dyn BlockStore, meta: &BlockMeta) -> Result<Claim> {
        let id = meta.id;
        let known = self.reserve(plan, disk, meta)?;
        let block = match known {
            Some(block) => block,
            None => match store.create(meta) {
                Ok(writer) => Arc::new(Partial { disk, meta: meta.clone(), writer: Mutex::new(Some(writer)) }),
                Err(error) => {
                    self.lock().remove(&id);
                    return Err(error.block(id));
                }
            },
        };
        if let Some(entry) = self.lock().get_mut(&id) {
            entry.block = Some(Arc::clone(&block));
        }
        Ok(Claim { partials: Arc::clone(self), id, block, released: AtomicBool::new(false) })
    }

    /// Registers `plan` as the writer of the block. Returns the block if a part of it is already there.
    fn reserve(&self, plan: PlanId, disk: usize, meta: &BlockMeta) -> Result<Option<Arc<Partial>>> {
        let id = meta.id;
        let mut blocks = self.lock();
        if self.lock_given_up().get(&id).is_some_and(|given_up| given_up.holds(Instant::now())) {
            return Err(Error::replan("the task came too late: the coordinator has given up the block").block(id));
        }
        if let Some(entry) = blocks.get_mut(&id) {
            if let Some(user) = entry.user {
                return Err(Error::retry(format!("busy: plan {user} is still writing the block")).block(id));
            }
            if entry.block.as_ref().is_some_and(|block| block.disk != disk || block.meta != *meta) {
                return Err(
                    Error::invalid("a part of this block is already on another disk or belongs to another object").block(id)
                );
            }
            entry.user = Some(plan);
            return Ok(entry.block.clone());
        }
        if blocks.len() >= self.blocks_max {
            let idle = blocks.iter().filter(|(_, entry)| entry.user.is_none()).min_by_key(|(_, entry)| entry.idle_since);
            let oldest = idle.map(|(id, _)| *id);
            let Some(oldest) = oldest else {
                return Err(Error::retry(format!("busy: {} blocks are already being written", blocks.len())).block(id));
            };
            tracing::warn!(block = %oldest, "dropped the oldest partial block to make room for a new one");
            blocks.remove(&oldest);
        }
        blocks.insert(id, Entry { block: None, user: Some(plan), idle_since: Instant::now() });
        Ok(None)
    }

    /// Drops a block that no plan writes now, and prevents new claims until the removal ends. May block.
    pub(crate) fn give_up(&self, id: BlockId) -> Result<Removing<'_>> {
        let mut blocks = self.lock();
        if let Some(user) = blocks.get(&id).and_then(|entry| entry.user) {
            return Err(Error::retry(format!("busy: plan {user} is still writing the block")).block(id));
        }
        self.lock_given_up().entry(id).or_default().removals += 1;
        blocks.remove(&id);
        Ok(Removing { partials: self, id })
    }

    /// Fails while a plan writes the block. May block.
    pub(crate) fn require_unused(&self, id: BlockId) -> Result<()> {
        match self.lock().get(&id).and_then(|entry| entry.user) {
            Some(user) => Err(Error::retry(format!("busy: plan {user} is still writing the block")).block(id)),
            None => Ok(()),
        }
    }

    /// Drops partial blocks that have been idle for too long. May block.
    pub(crate) fn expire(&self) {
        let now = Instant::now();
        let mut blocks = self.lock();
        let old: Vec<BlockId> = (blocks.iter())
            .filter(|(_, entry)| entry.user.is_none() && now.duration_since(entry.idle_since) > self.kept_for)
            .map(|(id, _)| *id)
            .collect();
        for id in old {
            tracing::warn!(block = %id, "dropped a partial block that no plan resumed");
            blocks.remove(&id);
        }
        self.lock_given_up().retain(|_, given_up| given_up.holds(now));
    }

    /// A poisoned lock is safe to use: each change to the map is one call.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<BlockId, Entry>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_given_up(&self) -> MutexGuard<'_, BTreeMap<BlockId, GivenUp>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GivenUp {
    fn holds(&self, now: Instant) -> bool {
        self.removals > 0 || self.until.is_some_and(|until| now < until)
    }
}

impl Removing<'_> {
    /// Prevents claims for the time `remember` after the removal, and at least for as long as an earlier removal has asked for.
    /// Required before a block that was not complete is reported as gone.
    pub(crate) fn remember(&self, remember: Duration) -> Result<()> {
        let mut all = self.partials.lock_given_up();
        let is_full = all.len() > GIVEN_UP_MAX;
        let given_up = all.entry(self.id).or_default();
        if is_full && given_up.until.is_none() {
            return Err(Error::retry(format!("busy: {GIVEN_UP_MAX} blocks were given up recently")));
        }
        given_up.until = given_up.until.max(Some(Instant::now() + remember.min(GIVEN_UP_FOR_MAX)));
        Ok(())
    }
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        let mut all = self.partials.lock_given_up();
        let Some(given_up) = all.get_mut(&self.id) else { return };
        given_up.removals -= 1;
        if !given_up.holds(Instant::now()) {
            all.remove(&self.id);
        }
    }
}

impl Claim {
    pub(crate) fn meta(&self) -> &BlockMeta {
        &self.block.meta
    }

    /// The byte ranges that are missing. Empty, too, if the block was committed or given up. May block.
    pub(crate) fn missing(&self) -> Vec<Span> {
        self.with_writer(|writer| writer.as_ref().map(|writer| writer.missing())).flatten().unwrap_or_default()
    }

    /// Writes bytes at an offset. May block.
    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = self.with_writer(|writer| writer.as_mut().map(|writer| writer.write_at(offset, bytes)));
        let written = written.flatten().unwrap_or_else(|| Err(Error::fatal("the block is no longer being written")));
        written.map_err(|error| error.block(self.id))
    }

    /// Commits the block if it is complete, or returns `None`. In either case the claim can no longer write to it. May
    /// block.
    pub(crate) fn commit(&self, expected_checksums: Option<&[u32]>) -> Result<Option<Receipt>> {
        let commit = |writer: &mut Option<Box<dyn BlockWriter>>| {
            let whole = writer.take_if(|writer| writer.missing().is_empty());
            whole.map(|whole| whole.finish(expected_checksums)).transpose()
        };
        self.with_writer(commit).unwrap_or(Ok(None)).map_err(|error| error.block(self.id))
    }

    /// The complete positions, of all that the stripe has: a plan that resumes need not transfer them again. `None` if
    /// the block is no longer being written. May block.
    pub(crate) fn arrived(&self) -> Option<Vec<Span>> {
        let missing = self.with_writer(|writer| writer.as_ref().map(|writer| writer.missing())).flatten()?;
        let meta = &self.block.meta;
        let holes: Vec<Span> = missing.into_iter().flat_map(|bytes| meta.stripe.layout.positions_of(bytes)).collect();
        Some(meta.stripe.coded_span().subtract(&holes))
    }

    /// Leaves the block to the next plan. May block.
    pub(crate) fn release(&self) {
        let len = self.block.meta.len();
        let arrived = self.with_writer(|writer| {
            self.released.store(true, Relaxed);
            let missing = writer.as_ref().map(|writer| writer.missing().iter().map(|span| span.len()).sum::<u64>());
            missing.map_or(0, |missing| len.saturating_sub(missing))
        });
        let Some(arrived) = arrived else { return };
        let mut blocks = self.partials.lock();
        if arrived == 0 {
            blocks.remove(&self.id);
        } else if let Some(entry) = blocks.get_mut(&self.id) {
            entry.user = None;
            entry.idle_since = Instant::now();
        }
    }

    /// `None` once the claim has been released. After a panic in a writer, the writer's own checks still apply: it
    /// refuses to commit an incomplete block.
    fn with_writer<T>(&self, work: impl FnOnce(&mut Option<Box<dyn BlockWriter>>) -> T) -> Option<T> {
        let mut writer = self.block.writer.lock().unwrap_or_else(PoisonError::into_inner);
        (!self.released.load(Relaxed)).then(|| work(&mut writer))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LocalDisks, OpenDisk};
    use weft_store::NewDisk;
    use weft_types::{ClusterId, Layout, Reaction, Seq, StripeId, StripeLayout};

    const CLUSTER: ClusterId = ClusterId(3);

    fn meta(stripe: u64, alpha: u32) -> BlockMeta {
        let layout = Layout::new(8 * 4096, 4096, alpha).unwrap();
        BlockMeta {
            cluster: CLUSTER,
            id: BlockId { stripe: StripeId(stripe), index: 0, copy: 0, generation: 1 },
            object: "b/k".into(),
            version: 1,
            object_offset: 0,
            code: "none".into(),
            generator_hash: 0,
            stripe: StripeLayout { layout, k: 1, m: 1, data_len: 8 * 4096 },
            seq: Seq::default(),
        }
    }

    fn disk(dir: &std::path::Path) -> Arc<dyn BlockStore> {
        LocalDisks.open(dir, CLUSTER, Some(NewDisk { disk_id: 1, created_ms: 0 })).ok().unwrap().store
    }

    fn partials(blocks_max: u32, kept_ms: u64) -> Arc<Partials> {
        let limits = Limits { partial_blocks_max: blocks_max, partial_block_ms: kept_ms, ..Limits::default() };
        Partials::new(&limits)
    }

    #[tokio::test]
    async fn arrived_bytes_are_kept_for_the_next_plan_and_one_plan_at_a_time_writes() {
        let dir = tempfile::tempdir().unwrap();
        let (store, partials, meta) = (disk(dir.path()), partials(8, 60_000), meta(1, 1));
        let claim = |plan| partials.claim(PlanId(plan), 0, store.as_ref(), &meta);
        let first = claim(1).ok().unwrap();
        assert_eq!(claim(2).err().unwrap().reaction, Reaction::Retry);
        first.write_at(4096, &[7; 4096]).unwrap();
        assert_eq!(first.arrived(), Some(vec![Span::new(4096, 8192)]));
        assert_eq!(first.commit(None), Ok(None), "a block with holes was committed");
        first.release();
        let late = first.write_at(0, &[1]).unwrap_err();
        assert_eq!(late.reaction, Reaction::Fatal, "a late call wrote into the block of the next plan");

        let second = claim(2).ok().unwrap();
        drop(first);
        assert!(claim(3).is_err(), "an old claim released the block of the next one");
        assert_eq!(second.missing(), [Span::new(0, 4096), Span::new(8192, 8 * 4096)]);
        for hole in second.missing() {
            second.write_at(hole.start, &vec![7; hole.len() as usize]).unwrap();
        }
        assert_eq!(second.commit(None).unwrap().unwrap().len, 8 * 4096);
        assert_eq!(second.arrived(), None);
        drop(second);
        drop(partials.give_up(meta.id).ok().unwrap());
        assert_eq!(claim(4).err().unwrap().reaction, Reaction::InvalidInput, "the block exists now");
    }

    #[tokio::test]
    async fn partial_blocks_are_bounded_in_number_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let (store, partials) = (disk(dir.path()), partials(2, 0));
        let begin = |stripe| partials.claim(PlanId(stripe), 0, store.as_ref(), &meta(stripe, 1));
        let (first, second) = (begin(1).ok().unwrap(), begin(2).ok().unwrap());
        assert_eq!(begin(3).err().unwrap().reaction, Reaction::Retry, "a block in use was dropped");
        first.write_at(0, &[1]).unwrap();
        drop((first, second));
        assert_eq!(partials.lock().len(), 1, "a block of which nothing arrived is not kept");
        let (third, fourth) = (begin(3).ok().unwrap(), begin(4).ok().unwrap());
        assert!(!partials.lock().contains_key(&meta(1, 1).id), "the oldest was not dropped");
        third.write_at(0, &[1]).unwrap();
        drop((third, fourth));
        tokio::time::sleep(Duration::from_millis(5)).await;
        partials.expire();
        assert!(partials.lock().is_empty());
        assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0, "files were left behind");
    }

    #[tokio::test]
    async fn a_released_block_cannot_be_claimed_while_a_late_task_may_arrive() {
        let dir = tempfile::tempdir().unwrap();
        let (store, partials) = (disk(dir.path()), partials(8, 60_000));
        let begin = |stripe| partials.claim(PlanId(stripe), 0, store.as_ref(), &meta(stripe, 1));
        let remember = Duration::from_secs(100);
        let id = |stripe| meta(stripe, 1).id;
        let give_up = |stripe, remember| partials.give_up(id(stripe))?.remember(remember);
        let claim = begin(1).ok().unwrap();
        assert_eq!(give_up(1, remember).unwrap_err().reaction, Reaction::Retry, "a plan is writing it");
        claim.write_at(0, &[1]).unwrap();
        drop(claim);
        give_up(1, remember).unwrap();
        give_up(2, Duration::from_millis(1)).unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0, "the bytes that had arrived are still there");
        give_up(1, Duration::ZERO).unwrap();
        drop(partials.give_up(id(1)).ok().unwrap());
        tokio::time::sleep(Duration::from_millis(5)).await;
        let late = begin(1).err().unwrap();
        assert!(late.reaction == Reaction::Replan && late.message.contains("too late"), "{late}");
        assert!(begin(2).is_ok() && begin(3).is_ok());

        let (first, second) = (partials.give_up(id(4)).ok().unwrap(), partials.give_up(id(4)).ok().unwrap());
        drop(first);
        assert!(begin(4).is_err(), "another removal still looks for it");
        drop(second);
        assert!(begin(4).is_ok());
        partials.expire();
        assert_eq!(partials.lock_given_up().len(), 1);
    }
}
