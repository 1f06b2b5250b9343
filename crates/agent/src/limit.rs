//! The cluster's limit on all classes below foreground, as the coordinator sets it for this node.
//!
//! It is not written to the state directory: the answer to a registration carries it, and an agent takes no task before it has registered.
//! An agent that the coordinator cannot reach keeps the limit that it has.

use crate::{
    disks::Disks,
    line::{Bound, Line},
    throttle::Throttles,
};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use weft_plan::Class;
use weft_proto::{
    ExtraStall,
    v1::{LimitedLine, LowerLimit},
};
use weft_types::ByteSize;

/// The limit in force.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    /// Its epoch and number.
    last: Mutex<(u64, u64)>,
    /// How much longer the links of running tasks may be silent.
    extra_stall: ExtraStall,
}

impl Limit {
    /// Applies a limit, unless a later one was applied.
    pub(crate) fn apply(&self, epoch: u64, limit: &LowerLimit, throttles: &Throttles, disks: &Disks) {
        let mut known = self.lock();
        if (epoch, limit.number) <= *known {
            return;
        }
        *known = (epoch, limit.number);
        // A rate of 0 would stop everything for good, and no coordinator sends it.
        let rate = |rate: Option<u64>| rate.map(|rate| ByteSize(rate.max(1)));
        throttles.uplink.bound(Bound::BelowForeground, rate(limit.up_bytes_per_s));
        throttles.downlink.bound(Bound::BelowForeground, rate(limit.down_bytes_per_s));
        disks.limit(rate(limit.disk_bytes_per_s));
        self.extra_stall.set_ms(limit.extra_stall_ms);
    }

    /// How much longer than usual links of a class may be silent.
    pub(crate) fn extra_stall(&self, class: Class) -> ExtraStall {
        if class == Class::Foreground { ExtraStall::default() } else { self.extra_stall.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, u64)> {
        // A poisoned lock is safe to use: each change is one assignment.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rate of repairs at each line, which follows from all limits there.
pub(crate) fn lines(throttles: &Throttles, disks: &Disks) -> Vec<LimitedLine> {
    let line = |line: String, rate: Option<ByteSize>| LimitedLine {
        line,
        bytes_per_s: rate.map(|rate| rate.0),
        measured_bytes_per_s: None,
    };
    let links = [("uplink", &throttles.uplink), ("downlink", &throttles.downlink)];
    let links = links.map(|(name, of)| line(name.to_owned(), of.rate(Class::Repair)));
    let of_disk = |of: &Line| of.rate(Class::Repair).into_iter().chain(throttles.disk_rate()).min();
    links.into_iter().chain(disks.lines().map(|(path, of)| line(path.display().to_string(), of_disk(of)))).collect()
}

/// The time that tasks have waited for the limit since the agent started.
pub(crate) fn limited(throttles: &Throttles, disks: &Disks) -> Duration {
    let links = [&throttles.uplink, &throttles.downlink].into_iter().map(|line| line.limited());
    links.chain(disks.lines().map(|(_, line)| line.limited())).sum()
}
