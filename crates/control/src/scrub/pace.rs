//! When the next stripe of a scrub in the background begins: so that all are checked within the period, evenly, and no disk reads faster than
//! its limit.

use crate::Time;
use std::{collections::BTreeMap, time::Duration};
use weft_types::{Home, ScrubTally};

/// The share of the period in which all is to be checked, percent. The rest is for stripes that cannot be checked at their turn.
const SHARE_PERCENT: u64 = 90;
/// Work that each stripe counts for in addition to its bytes: opening its blocks takes time, too.
const STRIPE_BYTES: u64 = 256 << 10;

/// What is left of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Bytes of blocks, as far as known.
    pub bytes: u64,
    /// Stripes, as far as known.
    pub stripes: u64,
    /// The time in which they are to be checked.
    pub time: Duration,
}

impl Left {
    /// What is left of a pass that began at `began_ms`.
    pub fn of(bytes: u64, stripes: u64, (began_ms, period_ms): (u64, u64), now_ms: u64) -> Self {
        let all_ms = period_ms / 100 * SHARE_PERCENT;
        // If the clock was set back, there is no more time than at the beginning.
        let left_ms = began_ms.saturating_add(all_ms).saturating_sub(now_ms).min(all_ms);
        Self { bytes, stripes, time: Duration::from_millis(left_ms) }
    }

    /// The part of the time that a stripe with so many bytes has.
    fn share(&self, bytes: u64) -> Duration {
        let work = |bytes: u64, stripes: u64| bytes as f64 + STRIPE_BYTES as f64 * stripes as f64;
        let all = work(self.bytes.max(bytes), self.stripes.max(1));
        self.time.mul_f64((work(bytes, 1) / all).clamp(0.0, 1.0))
    }
}

/// The bytes of blocks that a pass has left: of the whole stock, or as many for each stripe as it found so far, whichever is more. The stock is
/// only known by its data, and short stripes have more parity than that tells.
pub fn left_bytes(stock_bytes: u64, stock_stripes: u64, done: &ScrubTally) -> u64 {
    let mean = done.bytes / done.stripes.max(1);
    let stripes = stock_stripes.saturating_sub(done.stripes);
    stock_bytes.saturating_sub(done.bytes).max(mean.saturating_mul(stripes))
}

/// When stripes begin.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the last stripe began, or the pass.
    last: Time,
    /// When each disk may read again.
    disks: BTreeMap<Home, Time>,
}

impl Pace {
    /// When a stripe with blocks on these disks may begin: after its share of the time, which becomes shorter if data are added.
    pub fn at(&self, blocks: &[(Home, u64)], left: Left) -> Time {
        self.disks_at(blocks).max(self.last + left.share(bytes_of(blocks)))
    }

    /// When these disks may read again.
    pub fn disks_at(&self, blocks: &[(Home, u64)]) -> Time {
        blocks.iter().filter_map(|(home, _)| self.disks.get(home)).copied().max().unwrap_or_default()
    }

    /// A stripe with blocks of these lengths begins. `bytes_per_s`: the limit of each disk; 0: none.
    pub fn began(&mut self, blocks: &[(Home, u64)], bytes_per_s: u64, now: Time) {
        self.last = now;
        self.read(blocks, bytes_per_s, now);
    }

    /// Blocks of these lengths are read.
    pub fn read(&mut self, blocks: &[(Home, u64)], bytes_per_s: u64, now: Time) {
        self.disks.retain(|_, free_at| *free_at > now);
        if bytes_per_s > 0 {
            for (home, bytes) in blocks {
                let reads = Duration::from_secs_f64(*bytes as f64 / bytes_per_s as f64);
                let free_at = self.disks.entry(*home).or_insert(now);
                *free_at = (*free_at).max(now) + reads;
            }
        }
    }

    /// A pass begins, or continues.
    pub fn begin_pass(&mut self, now: Time) {
        self.last = now;
    }
}

fn bytes_of(blocks: &[(Home, u64)]) -> u64 {
    blocks.iter().map(|(_, bytes)| bytes).fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
}
