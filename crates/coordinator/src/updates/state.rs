//! Which stripes are open, in memory: what the metadata say, so that nothing has to be looked up for stripes that are not.

use super::{
    crowd::{Crowd, SETTLED_EARLY},
    planners::Planners,
    silent::Silent,
};
use crate::claims::Claims;
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use weft_control::{
    Time,
    retries::Retries,
    updates::{Clock, Sessions},
};
use weft_types::{BlockId, Home, StripeId};

/// While so many stripes are known to be open, none is added because an agent says that it is. The agent asks again.
const DOUBTFUL_UP_TO: usize = 100_000;

/// The most blocks that are kept to be looked at.
const KEPT_MAX: usize = 4096;

/// The stripes that are open for updates, or have blocks that are not closed yet.
#[derive(Debug, Default)]
pub(crate) struct Updates {
    /// Taken to open or to settle a stripe, after the claim to rebuild it.
    pub(super) turns: Claims,
    stripes: Mutex<BTreeMap<StripeId, Entry>>,
    crowd: Mutex<Crowd>,
    sessions: Mutex<Sessions>,
    clock: Mutex<Clock>,
    /// Stripes that could not be settled in the background yet.
    retries: Mutex<Retries<StripeId>>,
    /// Blocks in which something was found while their stripes were open, and how often they were looked at since.
    kept: Mutex<BTreeMap<BlockId, u32>>,
    pub(super) planners: Planners,
    /// Nodes whose blocks were left out while they were up.
    pub(crate) silent: Silent,
    /// The most bytes of an update that the journals of these disks take, as their agents have told when a stripe was opened.
    update_bytes_max: Mutex<BTreeMap<Home, u64>>,
    pub(super) opens: AtomicU64,
    pub(super) seals: AtomicU64,
    pub(super) settles: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    phase: Phase,
    /// When it is settled, or its blocks are closed, without a request.
    due_at: Time,
    /// Since when its opening waits for blocks that are busy.
    busy_since: Option<Time>,
    /// All leases of its term were given here.
    is_opened_here: bool,
}

/// What is left to do about a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It must be settled.
    Open,
    /// Some of its blocks must be closed.
    Unclosed,
    /// An agent says that a block is open, and the metadata say that the stripe is not.
    Doubtful,
}

impl Updates {
    /// Whether a stripe must be settled before it is read.
    pub(super) fn is_open(&self, stripe: StripeId) -> bool {
        self.lock().get(&stripe).is_some_and(|entry| entry.phase == Phase::Open)
    }

    /// Whether anything of a stripe is open.
    pub(super) fn has(&self, stripe: StripeId) -> bool {
        self.lock().contains_key(&stripe)
    }

    pub(super) fn set(&self, stripe: StripeId, phase: Phase, due_at: Time) {
        self.lock().insert(stripe, Entry { phase, due_at, busy_since: None, is_opened_here: false });
    }

    /// A term of a stripe begins, in which nobody has a lease yet.
    pub(super) fn begins(&self, stripe: StripeId) {
        if let Some(entry) = self.lock().get_mut(&stripe) {
            entry.is_opened_here = true;
        }
    }

    /// Whether others may have leases of a stripe's term that these metadata do not tell of: an earlier coordinator opened it, and these may be an older copy
    /// of its metadata.
    pub(super) fn has_unknown_leases(&self, stripe: StripeId) -> bool {
        self.lock().get(&stripe).is_some_and(|entry| entry.phase == Phase::Open && !entry.is_opened_here)
    }

    /// Blocks of a stripe that is being opened are busy. Returns for how long this has been so, as far as known.
    pub(super) fn busy_for(&self, stripe: StripeId, now: Time) -> Duration {
        self.lock().get_mut(&stripe).map_or(Duration::ZERO, |entry| now.since(*entry.busy_since.get_or_insert(now)))
    }

    /// An agent says that a block of the stripe is open. Nothing happens if the stripe must be settled anyway, or if there are very many. Blocks that
    /// are not closed are no reason: the stripe may have been opened again after this copy of the metadata was made.
    pub(crate) fn doubt(&self, stripe: StripeId, now: Time) {
        let mut stripes = self.lock();
        let has_room = stripes.len() < DOUBTFUL_UP_TO;
        let doubtful = Entry { phase: Phase::Doubtful, due_at: now, busy_since: None, is_opened_here: false };
        match stripes.get_mut(&stripe) {
            Some(entry) if entry.phase == Phase::Unclosed => *entry = doubtful,
            None if has_room => drop(stripes.insert(stripe, doubtful)),
            _ => {}
        }
    }

    /// Whether the blocks of a stripe must be asked whether they are open.
    pub(crate) fn is_doubtful(&self, stripe: StripeId) -> bool {
        self.lock().get(&stripe).is_some_and(|entry| entry.phase == Phase::Doubtful)
    }

    /// A client asks for an open stripe.
    pub(super) fn touch(&self, stripe: StripeId, due_at: Time) {
        if let Some(entry) = self.lock().get_mut(&stripe).filter(|entry| entry.phase == Phase::Open) {
            entry.due_at = due_at;
        }
    }

    /// A stripe is opened on these disks. Stripes that were not used for longest are due now if one of the disks has very many.
    pub(super) fn opens(&self, stripe: StripeId, homes: Vec<Home>, now: Time) {
        let crowded = self.crowd().add(stripe, homes);
        if crowded.is_empty() {
            return;
        }
        let mut stripes = self.lock();
        let open = |entry: &&mut Entry| entry.phase == Phase::Open;
        let mut open: Vec<&mut Entry> =
            stripes.iter_mut().filter(|(stripe, _)| crowded.contains(stripe)).map(|(_, entry)| entry).filter(open).collect();
        open.sort_unstable_by_key(|entry| entry.due_at);
        for entry in open.into_iter().take(SETTLED_EARLY) {
            entry.due_at = entry.due_at.min(now);
        }
    }

    pub(super) fn forget(&self, stripe: StripeId) {
        self.lock().remove(&stripe);
        self.crowd().remove(stripe);
    }

    fn crowd(&self) -> MutexGuard<'_, Crowd> {
        self.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the failures about stripes of which nothing is open any more.
    pub(super) fn forget_retries(&self) {
        let (stripes, mut retries) = (self.lock(), self.retries());
        retries.retain(|stripe| stripes.contains_key(stripe));
    }

    /// The stripes about which something must be done without a request.
    pub(super) fn due(&self, now: Time) -> Vec<StripeId> {
        let (stripes, retries) = (self.lock(), self.retries());
        let is_due = |(stripe, entry): &(&StripeId, &Entry)| entry.due_at <= now && retries.is_due(stripe, now);
        stripes.iter().filter(is_due).map(|(stripe, _)| *stripe).collect()
    }

    /// Something was found in a block whose stripe is open. The block is looked at when that is settled. If there are very many, the next scrub finds it.
    pub(crate) fn keep(&self, block: BlockId) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_MAX {
            kept.entry(block).or_default();
        }
    }

    /// Takes a kept block whose stripe is not open any more, and how often it was taken before. The lowest of those that were taken least often.
    pub(super) fn take_kept(&self) -> Option<(BlockId, u32)> {
        let (stripes, mut kept) = (self.lock(), self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let is_closed = |(block, _): &(&BlockId, &u32)| !stripes.contains_key(&block.stripe);
        let (block, times) =
            kept.iter().filter(is_closed).min_by_key(|(_, times)| **times).map(|(block, times)| (*block, *times))?;
        kept.remove(&block);
        Some((block, times))
    }

    /// A block that was taken could not be looked at.
    pub(super) fn keep_again(&self, block: BlockId, times: u32) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(block, times);
    }

    /// The journal of a disk takes updates of so many bytes; 0: its agent does not know that.
    pub(super) fn takes(&self, home: Home, bytes: u64) {
        if bytes > 0 {
            self.update_bytes_max.lock().unwrap_or_else(PoisonError::into_inner).insert(home, bytes);
        }
    }

    /// The most bytes of an update that the journal of a disk takes, as far as known.
    pub(super) fn update_bytes_max(&self, home: Home) -> Option<u64> {
        self.update_bytes_max.lock().unwrap_or_else(PoisonError::into_inner).get(&home).copied()
    }

    /// The number of open stripes.
    pub(crate) fn open_stripes(&self) -> u64 {
        self.lock().values().filter(|entry| entry.phase == Phase::Open).count() as u64
    }

    /// How often stripes were opened, sealed and settled.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.opens, &self.seals, &self.settles].map(|count| count.load(Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<StripeId, Entry>> {
        // A poisoned lock is safe to use: each change is one call.
        self.stripes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn retries(&self) -> MutexGuard<'_, Retries<StripeId>> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::crowd::CROWDED_FROM, *};
    use weft_types::{DiskNumber, NodeId};

    fn home(node: u32) -> Home {
        Home { node: NodeId(node), disk: DiskNumber(node) }
    }

    #[test]
    fn the_stripes_that_were_not_used_for_longest_are_settled_when_a_disk_has_very_many() {
        let (updates, at) = (Updates::default(), |seconds: u64| Time::after(Duration::from_secs(seconds)));
        let open = |number: u64, homes: Vec<Home>| {
            updates.opens(StripeId(number), homes, at(10));
            updates.set(StripeId(number), Phase::Open, at(1000 + number));
        };
        let many = CROWDED_FROM as u64;
        (0..many).for_each(|number| open(number, vec![home(1), home(2 + number as u32 % 2)]));
        assert_eq!(updates.due(at(10)), []);
        // The first was used again.
        updates.touch(StripeId(0), at(90_000));
        open(many, vec![home(4), home(5)]);
        assert_eq!(updates.due(at(10)), [], "its disks have room");
        open(many + 1, vec![home(1), home(4)]);
        assert_eq!(updates.due(at(10)), (1..=SETTLED_EARLY as u64).map(StripeId).collect::<Vec<_>>());
        (1..=SETTLED_EARLY as u64).for_each(|number| updates.forget(StripeId(number)));
        open(many + 2, vec![home(1)]);
        assert_eq!(updates.due(at(10)), []);
        (0..=many + 2).for_each(|number| updates.forget(StripeId(number)));
        assert!(updates.crowd().add(StripeId(1), vec![home(1)]).is_empty());
    }

    #[test]
    fn only_leases_of_a_term_that_began_here_are_known() {
        let (updates, stripe) = (Updates::default(), StripeId(1));
        assert!(!updates.has_unknown_leases(stripe), "it is not open");
        updates.set(stripe, Phase::Open, Time::default());
        assert!(updates.has_unknown_leases(stripe));
        updates.begins(stripe);
        updates.touch(stripe, Time::default());
        assert!(!updates.has_unknown_leases(stripe));
        updates.set(stripe, Phase::Unclosed, Time::default());
        assert!(!updates.has_unknown_leases(stripe), "no lease counts any more");
        updates.forget(stripe);
        updates.begins(stripe);
        updates.set(stripe, Phase::Open, Time::default());
        assert!(updates.has_unknown_leases(stripe), "it was found open");
    }

    #[test]
    fn kept_blocks_wait_until_their_stripe_is_closed_and_are_bounded() {
        let (updates, block) =
            (Updates::default(), |stripe| BlockId { stripe: StripeId(stripe), index: 0, copy: 0, generation: 1 });
        updates.set(StripeId(1), Phase::Open, Time::default());
        [1, 2, 3].into_iter().for_each(|stripe| updates.keep(block(stripe)));
        assert_eq!(updates.take_kept(), Some((block(2), 0)));
        updates.keep_again(block(2), 1);
        assert_eq!(updates.take_kept(), Some((block(3), 0)), "another one first");
        assert_eq!((updates.take_kept(), updates.take_kept()), (Some((block(2), 1)), None));
        updates.forget(StripeId(1));
        assert_eq!(updates.take_kept(), Some((block(1), 0)));
        (0..2 * KEPT_MAX as u64).for_each(|stripe| updates.keep(block(stripe)));
        assert_eq!(updates.kept.lock().unwrap().len(), KEPT_MAX);
    }
}
