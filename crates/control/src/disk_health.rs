//! Which disks are about to fail although they work: those that serve much more slowly than the others, and those that lose what was written.
//!
//! A disk is *slow* by comparison alone, because no rate is slow on every kind of disk. A wrong accusation costs more than a late one: it moves
//! all blocks of a good disk. Therefore:
//!
//! - Reads are compared with reads and syncs with syncs.
//! - A slow disk moves fewer bytes in the time that it is busy **and** takes longer for each operation. Each figure alone depends on the load: few
//!   or small operations at a time move fewer bytes, many or large ones take longer. No load does both.
//! - It does so for a long time without a break. Figures from too few operations say nothing.
//! - If several disks are that slow (more than a tenth), they are of another kind or share a cause, and no disk of its own is at fault.
//!
//! A disk is *failing* if many of its blocks were found corrupt or unreadable within a day. One bad sector is normal, and is one block.
//!
//! All of this is in memory: a coordinator that starts measures again.

use crate::Time;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};
use weft_types::{BlockId, DiskNumber, DrainFailingDisks, human_bytes};

/// Figures from fewer recent operations say nothing.
const OPERATIONS_MIN: u64 = 16;
/// A disk that was busy for less time lately has delayed nothing.
const BUSY_MIN: Duration = Duration::from_secs(1);
/// With fewer others, it is unknown what is usual.
const OTHERS_MIN: usize = 3;
/// A slow disk differs from the median by more than this factor.
const SLOW: f64 = 4.0;
/// One that is no longer slow differs by less than this factor.
const USUAL: f64 = 2.0;
/// For how long a bad block counts.
const BAD_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// A disk with more bad blocks in that time is failing.
const BAD_BLOCKS_MAX: usize = 8;
/// The most bad blocks of a disk that are remembered.
const REMEMBERED_BLOCKS_MAX: usize = 64;

/// What is wrong with a disk that works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// It serves much more slowly than the others.
    Slow,
    /// It loses what was written.
    Failing,
}

impl Trouble {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Slow, Self::Failing];

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Failing => "failing",
        }
    }
}

/// What a disk has served lately: operations that went to the disk itself, of which older ones count less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Service {
    /// Operations.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time in which any was under way.
    pub busy: Duration,
    /// The time that they took, all together.
    pub taken: Duration,
}

/// What a disk has served lately, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Served {
    /// Reads that were not in the page cache.
    pub reads: Service,
    /// Syncs of new blocks.
    pub syncs: Service,
}

/// What is wrong with a disk, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ailment {
    /// What is wrong.
    pub trouble: Trouble,
    /// The figures.
    pub why: String,
}

/// The health of all disks.
#[derive(Debug, Default)]
pub struct DiskHealth(BTreeMap<DiskNumber, Known>);

#[derive(Debug, Default)]
struct Known {
    /// Of reads and of syncs.
    paces: [Pace; 2],
    /// Distinct blocks, the oldest first.
    bad: VecDeque<(BlockId, Time)>,
    ailment: Option<Ailment>,
}

/// Whether operations of one kind are slow.
#[derive(Debug, Default)]
struct Pace {
    /// The figures, if they are.
    slow: Option<String>,
    /// Since when the opposite is seen.
    changing_since: Option<Time>,
}

/// What is seen at one moment.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Unknown,
    Slow(String),
    Between,
    Usual,
}

impl DiskHealth {
    /// A block of a disk was found to be corrupt or unreadable.
    pub fn note_bad(&mut self, disk: DiskNumber, block: BlockId, now: Time) {
        let bad = &mut self.0.entry(disk).or_default().bad;
        bad.retain(|(known, _)| *known != block);
        if bad.len() >= REMEMBERED_BLOCKS_MAX {
            bad.pop_front();
        }
        bad.push_back((block, now));
    }

    /// Judges all disks, and forgets others. A disk that cannot be measured now has served nothing. A disk becomes slow, or stops being slow, after
    /// `slow_after`; zero: none is. Returns the disks whose trouble changed.
    pub fn judge(&mut self, disks: &BTreeMap<DiskNumber, Served>, slow_after: Duration, now: Time) -> Vec<DiskNumber> {
        self.0.retain(|disk, _| disks.contains_key(disk));
        let kinds = [("read", "read", |it: &Served| it.reads), ("synced", "sync", |it: &Served| it.syncs)] as [Kind; 2];
        let seen = kinds.map(|kind| if slow_after.is_zero() { BTreeMap::new() } else { kind_seen(kind, disks) });
        let mut changed = Vec::new();
        for disk in disks.keys() {
            let known = self.0.entry(*disk).or_default();
            for (pace, seen) in known.paces.iter_mut().zip(&seen) {
                pace.see(seen.get(disk).unwrap_or(&Seen::Unknown), slow_after, now);
            }
            known.bad.retain(|(_, at)| now.since(*at) < BAD_FOR);
            let ailment = known.judged();
            let before = std::mem::replace(&mut known.ailment, ailment);
            if before.map(|it| it.trouble) != known.ailment.as_ref().map(|it| it.trouble) {
                changed.push(*disk);
            }
        }
        changed
    }

    /// What is wrong with a disk, if anything.
    pub fn of(&self, disk: DiskNumber) -> Option<&Ailment> {
        self.0.get(&disk)?.ailment.as_ref()
    }
}

impl Known {
    fn judged(&self) -> Option<Ailment> {
        let bad = self.bad.len();
        if bad > BAD_BLOCKS_MAX {
            let more = if bad >= REMEMBERED_BLOCKS_MAX { " or more" } else { "" };
            return Some(Ailment {
                trouble: Trouble::Failing,
                why: format!("{bad}{more} of its blocks were found corrupt or unreadable within a day"),
            });
        }
        let slow: Vec<&str> = self.paces.iter().filter_map(|pace| pace.slow.as_deref()).collect();
        (!slow.is_empty()).then(|| Ailment { trouble: Trouble::Slow, why: slow.join(", and ") })
    }
}

impl Pace {
    fn see(&mut self, seen: &Seen, after: Duration, now: Time) {
        let changes = match (seen, &mut self.slow) {
            (Seen::Slow(why), Some(slow)) => {
                slow.clone_from(why);
                false
            }
            (Seen::Slow(_), None) | (Seen::Usual, Some(_)) => true,
            _ => false,
        };
        if !changes {
            self.changing_since = None;
            return;
        }
        if now.since(*self.changing_since.get_or_insert(now)) >= after {
            self.slow = if let Seen::Slow(why) = seen { Some(why.clone()) } else { None };
            self.changing_since = None;
        }
    }
}

/// A kind of operations: what the disk has done with the bytes, the name of an operation, and its figures.
type Kind = (&'static str, &'static str, fn(&Served) -> Service);

/// What is seen of the disks that are known.
fn kind_seen((did, operation, service): Kind, disks: &BTreeMap<DiskNumber, Served>) -> BTreeMap<DiskNumber, Seen> {
    let known = disks.iter().map(|(disk, served)| (*disk, service(served)));
    let known: Vec<(DiskNumber, Service)> = known.filter(|(_, it)| it.is_known()).collect();
    if known.len() <= OTHERS_MIN {
        return BTreeMap::new();
    }
    let sorted = |figure: fn(&Service) -> f64| {
        let mut all: Vec<f64> = known.iter().map(|(_, it)| figure(it)).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (rates, times) = (sorted(Service::bytes_per_s), sorted(Service::seconds));
    let mut all: BTreeMap<DiskNumber, Seen> = BTreeMap::new();
    for (disk, it) in &known {
        // Of an even number, the middle one that accuses less.
        let others = known.len() - 1;
        let rate = without(&rates, it.bytes_per_s(), (others - 1) / 2);
        let time = without(&times, it.seconds(), others / 2);
        let (fewer, longer) = (rate / it.bytes_per_s().max(1.0), it.seconds() / time);
        let seen = if fewer > SLOW && longer > SLOW && it.busy >= BUSY_MIN {
            let [own, usual] = [it.bytes_per_s(), rate].map(|rate| human_bytes(rate as u64));
            let [took, usually] = [it.seconds(), time].map(|seconds| format!("{:.0} ms", seconds * 1000.0));
            Seen::Slow(format!("it {did} {own}/s, {took} each {operation}; usual on {others} other disks: {usual}/s, {usually}"))
        } else if fewer < USUAL || longer < USUAL {
            Seen::Usual
        } else {
            Seen::Between
        };
        all.insert(*disk, seen);
    }
    let slow = all.values().filter(|seen| matches!(seen, Seen::Slow(_))).count();
    if slow > (known.len() / 10).max(1) {
        all.values_mut().filter(|seen| matches!(seen, Seen::Slow(_))).for_each(|seen| *seen = Seen::Between);
    }
    all
}

impl Service {
    fn is_known(&self) -> bool {
        self.operations >= OPERATIONS_MIN && !self.busy.is_zero() && !self.taken.is_zero()
    }

    fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.busy.as_secs_f64()
    }

    /// Of one operation.
    fn seconds(&self) -> f64 {
        self.taken.as_secs_f64() / self.operations as f64
    }
}

/// Number `place` of sorted figures without one of them.
fn without(sorted: &[f64], own: f64, place: usize) -> f64 {
    let at = sorted.partition_point(|it| it.total_cmp(&own).is_lt());
    sorted[if place >= at { place + 1 } else { place }]
}

/// A disk with an ailment, as far as it matters for a drain without a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// What is wrong.
    pub trouble: Trouble,
    /// Whether it or its node is being drained.
    pub draining: bool,
    /// Whether a person ended a drain of it.
    pub kept: bool,
    /// Whether it has blocks.
    pub has_blocks: bool,
    /// Whether its node is up.
    pub up: bool,
}

/// The cluster, as far as it matters for a drain without a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Surroundings {
    /// Whether any drain, by a person or by the cluster, still has blocks to move.
    pub drains: bool,
    /// Whether stripes survive no further loss or cannot be read, or may do so: their blocks are rebuilt first.
    pub at_risk: bool,
    /// Whether the cluster rebuilds nothing without a person now.
    pub stopped: bool,
}

/// Which of the disks may be drained without a person, the worst first. Only one is, and only if it passes [`crate::drain::Drain::check`].
pub fn to_drain<T: Copy>(
    policy: DrainFailingDisks,
    disks: impl IntoIterator<Item = (T, Candidate)>,
    around: Surroundings,
) -> Vec<T> {
    if around.drains || around.at_risk || around.stopped {
        return Vec::new();
    }
    let is_meant = |trouble| match policy {
        DrainFailingDisks::Off => false,
        DrainFailingDisks::Failing => trouble == Trouble::Failing,
        DrainFailingDisks::Slow => true,
    };
    let may = |(_, it): &(T, Candidate)| is_meant(it.trouble) && it.up && it.has_blocks && !it.draining && !it.kept;
    let mut may: Vec<(T, Candidate)> = disks.into_iter().filter(may).collect();
    may.sort_by_key(|(_, it)| std::cmp::Reverse(it.trouble));
    may.into_iter().map(|(disk, _)| disk).collect()
}

#[cfg(test)]
mod tests;
