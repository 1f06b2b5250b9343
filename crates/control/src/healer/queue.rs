//! The order of the work, what is chosen, what waits, and how far it is.

use super::{Scope, held::Held, is_due};
use crate::{
    Time,
    health::{Condition, Tally},
    retries::Retries,
    schedule::STRIPES_PER_NODE,
    view::{NodeView, View},
};
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};
use weft_types::{Amount, Cause, Error, Reaction, StripeId};

/// The most stripes that are rebuilt at the same time. Each uses some tens of kilobytes of the coordinator's memory, and buffers at its
/// agents, which admit no more than they have memory for.
const STRIPES_MAX: usize = 256;
/// A stripe that was just rebuilt is left alone until the tally has looked at it again, and at most this long.
const SETTLE: Duration = Duration::from_secs(3);
/// The first and the last pause of a stripe whose rebuilt blocks are never what was recorded. Each attempt makes several plans.
const WRONG_PAUSES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3_600));

/// The most stripes that are rebuilt at the same time. The links decide how many of them are ([`crate::schedule::Admission`]).
pub fn concurrency(view: &View) -> usize {
    let has_disk = |node: &&NodeView| node.up && node.disks.iter().any(|disk| !disk.failed);
    (view.nodes.values().filter(has_disk).count() * STRIPES_PER_NODE).clamp(1, STRIPES_MAX)
}

/// Stripes of which blocks only leave get at most one place of so many.
const MOVES_PART: usize = 4;

/// What a stripe waits for that could not be rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// More nodes.
    Nodes,
    /// Space on disks.
    Space,
    /// Another attempt, much later: all rebuilt blocks differ from the recorded checksums.
    Checksums,
    /// Another attempt.
    Retry,
}

impl Wait {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Space => "space",
            Self::Checksums => "checksums",
            Self::Retry => "retry",
        }
    }
}

/// Stripes that wait for the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What they wait for.
    pub wait: Wait,
    /// How many.
    pub stripes: u64,
    /// Why the first of them could not be rebuilt.
    pub why: String,
}

/// The outcome of the work on a stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// These blocks were rebuilt.
    Rebuilt(Amount),
    /// There was nothing to do, or someone else does it.
    Nothing,
    /// These blocks were rebuilt, and others not.
    Left(Amount, Error),
}

/// How far the work is since there was last nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Stripes that were rebuilt as a whole.
    pub stripes: u64,
    /// The rebuilt blocks.
    pub done: Amount,
    /// When it began.
    begun: Option<Time>,
}

/// The work.
#[derive(Debug, Default)]
pub struct Queue {
    /// The stripes that were chosen and are not done.
    chosen: BTreeMap<StripeId, Chosen>,
    settling: BTreeMap<StripeId, Settling>,
    tried: Retries<StripeId>,
    /// Stripes that could not be rebuilt, what each waits for, and why.
    waiting: BTreeMap<StripeId, (Wait, String)>,
    /// Those whose rebuilt blocks were wrong, or of which blocks could not leave, and in which condition. If it changes, other blocks may be lost.
    wrong: BTreeMap<StripeId, Arc<Condition>>,
    held: Held,
    /// Whether there is work that does not wait.
    working: bool,
    progress: Progress,
}

/// The state of a stripe when it was chosen.
#[derive(Debug)]
struct Chosen {
    condition: Arc<Condition>,
    look: Option<u64>,
}

/// A stripe that was just rebuilt. The tally may not know yet.
#[derive(Debug)]
struct Settling {
    until: Time,
    /// The tally's look at it by which it was chosen. After any later one, it may have lost another block.
    look: Option<u64>,
}

impl Settling {
    fn is_over(&self, stripe: StripeId, tally: &Tally, now: Time) -> bool {
        self.until <= now || tally.look(stripe) != self.look
    }
}

impl Queue {
    /// Forgets stripes that have no bad blocks any more, and rests that are over. To be called now and then.
    pub fn tidy(&mut self, tally: &Tally, scope: &Scope, now: Time) {
        self.settling.retain(|stripe, settling| !settling.is_over(*stripe, tally, now));
        let (tried, waiting) = (&mut self.tried, &mut self.waiting);
        waiting.retain(|stripe, _| tally.has(*stripe));
        self.wrong.retain(|stripe, condition| {
            let is_same = tally.condition(*stripe) == Some(condition);
            if !is_same {
                tried.done(stripe);
                waiting.remove(stripe);
            }
            is_same
        });
        self.tried.retain(|stripe| tally.has(*stripe));
        self.held.tidy(tally);
        self.works(self.left(tally, scope) > 0, now);
    }

    /// Records whether any stripe can be worked on now. Progress starts anew with the first such stripe after a time without any.
    fn works(&mut self, working: bool, now: Time) {
        if working && !self.working {
            self.progress = Progress { begun: Some(now), ..Progress::default() };
        }
        self.working = working;
    }

    /// The next stripes to rebuild; at most `places` are chosen at the same time. Those that survive the fewest further losses come first,
    /// and among these those that are read most. Of stripes that wait together, some are tried now and then, in at most half of the open places.
    pub fn next(&mut self, tally: &Tally, scope: &Scope, places: usize, now: Time) -> Vec<StripeId> {
        let open = places.saturating_sub(self.chosen.len());
        if open == 0 {
            return Vec::new();
        }
        let (chosen, settling) = (&self.chosen, &self.settling);
        let settles = |stripe: StripeId| settling.get(&stripe).is_some_and(|settling| !settling.is_over(stripe, tally, now));
        let is_busy = |stripe: StripeId| chosen.contains_key(&stripe) || settles(stripe);
        // What is lost later must find places, however long moves take.
        let moving = chosen.values().filter(|it| it.condition.only_moves()).count();
        let mut moves = (places / MOVES_PART).max(1).saturating_sub(moving);
        let mut may = |stripe: &StripeId| {
            let may = tally.lacks(*stripe) || moves > 0;
            moves = moves.saturating_sub(usize::from(!tally.lacks(*stripe)));
            may
        };
        let mut next = self.held.probes(tally, open.div_ceil(2), |condition| is_due(condition, scope), is_busy, now);
        next.retain(&mut may);
        let is_open = |condition: &Condition| is_due(condition, scope) && !self.held.has(condition);
        let mut fresh = tally.first(open - next.len(), is_open, |stripe| is_busy(stripe) || self.tried.rests(&stripe, now));
        fresh.retain(may);
        if fresh.iter().any(|stripe| !self.waiting.contains_key(stripe)) {
            self.works(true, now);
        }
        next.extend(fresh);
        let rank = |stripe: &StripeId| {
            let order = tally.condition(*stripe).map(|condition| condition.order());
            (order, Reverse(tally.reads(*stripe)), *stripe)
        };
        next.sort_by_key(rank);
        for stripe in &next {
            if let Some(condition) = tally.condition(*stripe) {
                self.settling.remove(stripe);
                self.chosen.insert(*stripe, Chosen { condition: Arc::clone(condition), look: tally.look(*stripe) });
            }
        }
        next
    }

    /// The work on a stripe has ended.
    pub fn ended(&mut self, stripe: StripeId, ended: Ended, now: Time) {
        let (condition, look) = self.chosen.remove(&stripe).map_or((None, None), |it| (Some(it.condition), it.look));
        let (done, left) = match ended {
            Ended::Rebuilt(done) => (done, None),
            Ended::Nothing => (Amount::default(), None),
            Ended::Left(done, error) => (done, Some(error)),
        };
        self.progress.done.blocks += done.blocks;
        self.progress.done.bytes = self.progress.done.bytes.saturating_add(done.bytes);
        let Some(error) = left else {
            if let Some(condition) = condition.filter(|_| done.blocks > 0) {
                self.progress.stripes += 1;
                self.held.done(&condition);
            }
            self.tried.done(&stripe);
            self.waiting.remove(&stripe);
            self.wrong.remove(&stripe);
            self.settling.insert(stripe, Settling { until: now + SETTLE, look });
            return;
        };
        let wait = match (error.cause, error.reaction) {
            (Some(Cause::TooFewNodes), _) => Wait::Nodes,
            (Some(Cause::NoSpace), _) => Wait::Space,
            (None, Reaction::Corrupt) => Wait::Checksums,
            (Some(Cause::Unreadable | Cause::Inconsistent | Cause::Stalled | Cause::OpenForUpdates) | None, _) => Wait::Retry,
        };
        let why = error.to_string();
        self.wrong.remove(&stripe);
        if wait == Wait::Checksums {
            self.tried.failed_within(stripe, String::new(), WRONG_PAUSES, now);
            // It says nothing about others.
            if let Some(condition) = condition.filter(|_| self.wrong.len() < WAITING_MAX) {
                self.wrong.insert(stripe, condition);
            }
        } else {
            self.tried.failed(stripe, String::new(), now);
            if let Some(condition) = condition.as_ref().filter(|it| it.only_moves() && self.wrong.len() < WAITING_MAX) {
                self.wrong.insert(stripe, Arc::clone(condition));
            }
            // A part of it could be rebuilt: perhaps of others, too.
            if let Some(condition) = condition.filter(|_| done.blocks == 0) {
                self.held.failed(condition, stripe, (wait, &why), now);
            }
        }
        if self.waiting.len() < WAITING_MAX || self.waiting.contains_key(&stripe) {
            self.waiting.insert(stripe, (wait, why));
        }
    }

    /// Nodes or disks have come or gone: what waits is tried again. This does not change recorded checksums.
    pub fn try_again(&mut self) {
        let waiting = &self.waiting;
        let has_wrong_checksums = |stripe: &StripeId| waiting.get(stripe).is_some_and(|(wait, _)| *wait == Wait::Checksums);
        self.wrong.retain(|stripe, condition| !condition.only_moves() || has_wrong_checksums(stripe));
        self.tried.retain(|stripe| self.wrong.contains_key(stripe));
        self.held.clear();
    }

    /// How many stripes are chosen.
    pub fn chosen(&self) -> usize {
        self.chosen.len()
    }

    /// What is due and waits.
    pub fn waiting(&self, tally: &Tally, scope: &Scope) -> Vec<Waiting> {
        let mut all: BTreeMap<Wait, Waiting> = BTreeMap::new();
        let mut add = |wait: Wait, why: &str, stripes: u64| {
            all.entry(wait).or_insert_with(|| Waiting { wait, stripes: 0, why: why.to_owned() }).stripes += stripes;
        };
        for (stripe, (wait, why)) in &self.waiting {
            if self.is_open(tally, scope, *stripe) {
                add(*wait, why, 1);
            }
        }
        for (condition, stripes) in tally.conditions().filter(|(condition, _)| is_due(condition, scope)) {
            if let Some((wait, why)) = self.held.why(condition) {
                add(wait, why, stripes);
            }
        }
        all.into_values().collect()
    }

    /// The stripes that are due and do not wait, including those that are chosen.
    pub fn left(&self, tally: &Tally, scope: &Scope) -> u64 {
        let is_open = |condition: &Condition| is_due(condition, scope) && !self.held.has(condition);
        let due: u64 = tally.conditions().filter(|(condition, _)| is_open(condition)).map(|(_, stripes)| stripes).sum();
        let settles = |(stripe, settling): &(&StripeId, &Settling)| tally.look(**stripe) == settling.look;
        let settling = self.settling.iter().filter(settles).map(|(stripe, _)| stripe);
        let settling = settling.filter(|stripe| !self.waiting.contains_key(stripe));
        let not_counted = settling.chain(self.waiting.keys()).filter(|stripe| self.is_open(tally, scope, **stripe));
        due.saturating_sub(not_counted.count() as u64)
    }

    /// About how many blocks those stripes lack: as many each as all that are due.
    pub fn left_blocks(&self, tally: &Tally, scope: &Scope) -> u64 {
        let due = tally.conditions().filter(|(condition, _)| is_due(condition, scope));
        let (stripes, blocks) = due.fold((0u64, 0u64), |(stripes, blocks), (condition, number)| {
            (stripes + number, blocks.saturating_add(condition.to_bring().saturating_mul(number)))
        });
        self.left(tally, scope).saturating_mul(blocks).div_ceil(stripes.max(1))
    }

    /// Whether a stripe is due, and does not wait together with all others in its condition.
    fn is_open(&self, tally: &Tally, scope: &Scope, stripe: StripeId) -> bool {
        tally.condition(stripe).is_some_and(|condition| is_due(condition, scope) && !self.held.has(condition))
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.progress
    }
}

/// The most stripes of which is remembered what each waits for.
const WAITING_MAX: usize = 65_536;

impl Progress {
    /// How long it takes until `left` more stripes are rebuilt, at the rate so far; `None` if it is unknown.
    pub fn remaining(&self, left: u64, now: Time) -> Option<Duration> {
        let elapsed = now.since(self.begun?);
        (self.stripes > 0).then(|| elapsed.mul_f64(left as f64 / self.stripes as f64))
    }
}
