//! Estimates the remaining time of work that consists of items and bytes, such as blocks: both each item and each byte take time.

/// An amount of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Blocks or objects; 0 in a total: not counted.
    pub items: u64,
    /// Bytes; 0 in a total: unknown.
    pub bytes: u64,
}

impl Work {
    fn since(self, before: Self) -> Self {
        Self { items: self.items.saturating_sub(before.items), bytes: self.bytes.saturating_sub(before.bytes) }
    }
}

/// Estimates the time per item and per byte from the progress.
///
/// Small blocks are processed at a fraction of the byte rate of large ones, so a byte rate predicts nothing if block sizes differ. The time
/// of each interval with finished items is fitted to `item cost · items + byte cost · bytes` by non-negative least squares. While all
/// intervals are alike, an item is assumed to cost as much as 1 MiB. The costs are then scaled to the time since the start, which
/// averages out the noise of single intervals.
#[derive(Debug, Clone)]
pub struct Estimate {
    /// The finished work and the time in seconds, at the start and at the end of the last interval.
    first: (Work, f64),
    last: (Work, f64),
    sums: Sums,
}

/// Sums of products over all intervals.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    items_items: f64,
    items_bytes: f64,
    bytes_bytes: f64,
    items_seconds: f64,
    bytes_seconds: f64,
}

/// The assumed overhead of an item, in bytes, until intervals differ enough to measure it: opening and committing a block takes about as
/// long as moving 1 MiB.
const ITEM_BYTES: f64 = 1048576.0;
/// The weight of this assumption against the intervals.
const ALIKE: f64 = 1e-3;

impl Estimate {
    /// `done`: work that was finished before, in an unknown time.
    pub fn new(done: Work) -> Self {
        Self { first: (done, 0.0), last: (done, 0.0), sums: Sums::default() }
    }

    /// Records the work that is finished `seconds` after the start.
    pub fn observe(&mut self, done: Work, seconds: f64) {
        let (step, time) = (done.since(self.last.0), seconds - self.last.1);
        if step.items == 0 || time <= 0.0 {
            return;
        }
        let (items, bytes) = (step.items as f64, step.bytes as f64);
        self.sums.items_items += items * items;
        self.sums.items_bytes += items * bytes;
        self.sums.bytes_bytes += bytes * bytes;
        self.sums.items_seconds += items * time;
        self.sums.bytes_seconds += bytes * time;
        self.last = (done, seconds);
    }

    /// The work that was finished before the start.
    pub fn before(&self) -> Work {
        self.first.0
    }

    /// The bytes that were processed since the start.
    pub fn bytes(&self, done: Work) -> u64 {
        done.since(self.first.0).bytes
    }

    /// The remaining seconds; `None` before any progress.
    pub fn left(&self, done: Work, total: Work, seconds: f64) -> Option<f64> {
        let (so_far, rest) = (done.since(self.first.0), total.since(done));
        if so_far.bytes == 0 {
            return None;
        }
        if total.items == 0 || so_far.items == 0 {
            return Some(rest.bytes as f64 * seconds / so_far.bytes as f64);
        }
        // Relative to the finished work, so that the costs of items and bytes have comparable magnitudes.
        let part = |of: u64, all: u64| of as f64 / all as f64;
        let (item_cost, byte_cost) = self.sums.costs(so_far.items as f64, so_far.bytes as f64);
        let predicted = item_cost + byte_cost;
        let rest = item_cost * part(rest.items, so_far.items) + byte_cost * part(rest.bytes, so_far.bytes);
        Some(rest * seconds / predicted)
    }
}

impl Sums {
    /// The relative costs of `items` and `bytes`: neither is negative, and at least one is positive.
    fn costs(&self, items: f64, bytes: f64) -> (f64, f64) {
        let (ii, ib, bb) =
            (self.items_items / (items * items), self.items_bytes / (items * bytes), self.bytes_bytes / (bytes * bytes));
        let (it, bt) = (self.items_seconds / items, self.bytes_seconds / bytes);
        // A penalty on costs that are not in the assumed proportion.
        let (of_items, of_bytes) = (items * ITEM_BYTES, bytes);
        let penalty = ALIKE * (ii + bb) / (of_items * of_items + of_bytes * of_bytes);
        let ii = ii + penalty * of_bytes * of_bytes;
        let bb = bb + penalty * of_items * of_items;
        let ib = ib - penalty * of_items * of_bytes;
        let of_items = it * bb - bt * ib;
        let of_bytes = bt * ii - it * ib;
        match (of_items > 0.0, of_bytes > 0.0) {
            (true, true) => (of_items, of_bytes),
            (true, false) => (1.0, 0.0),
            (false, true) => (0.0, 1.0),
            (false, false) => (0.5, 0.5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// 20 ms a block and 10 ms a MiB.
    const COSTS: (f64, f64) = (0.02, 0.01);

    /// Processes blocks of these sizes one after another. Returns the prediction after each block, as a multiple of the actual time.
    fn predictions(sizes: &[u64], (item, mib): (f64, f64)) -> Vec<f64> {
        let time = |size: &u64| item + mib * *size as f64 / MIB as f64;
        let total = Work { items: sizes.len() as u64, bytes: sizes.iter().sum() };
        let (mut estimate, mut done, mut seconds, mut all) = (Estimate::new(Work::default()), Work::default(), 0.0, Vec::new());
        for (at, size) in sizes.iter().enumerate().take(sizes.len() - 1) {
            done = Work { items: done.items + 1, bytes: done.bytes + size };
            seconds += time(size);
            estimate.observe(done, seconds);
            let truth: f64 = sizes[at + 1..].iter().map(time).sum();
            all.push(estimate.left(done, total, seconds).unwrap() / truth);
        }
        all
    }

    fn within(predictions: &[f64], factor: f64) -> bool {
        predictions.iter().all(|it| (1.0 / factor..factor).contains(it))
    }

    #[test]
    fn equal_blocks_take_equal_time() {
        for (size, costs) in [(4 << 10, COSTS), (64 * MIB, COSTS), (MIB, (0.0, 0.01)), (MIB, (0.02, 0.0))] {
            let all = predictions(&[size; 50], costs);
            assert!(within(&all, 1.001), "{size}: {all:?}");
        }
    }

    #[test]
    fn small_blocks_after_large_ones_and_the_reverse_are_predicted() {
        // Per byte, blocks of 4 KiB take 500 times as long as those of 64 MiB.
        let mixed: Vec<u64> = (0..200).map(|at| if at % 10 == 0 { 64 * MIB } else { 4 << 10 }).collect();
        let all = predictions(&mixed, COSTS);
        assert!(within(&all[20..], 1.25), "{all:?}");
        // After one block of the other size, the costs can be distinguished.
        for (many, few) in [(64 * MIB, 4 << 10), (4 << 10, 64 * MIB)] {
            let sizes = [[many; 20].as_slice(), &[few; 40]].concat();
            let all = predictions(&sizes, COSTS);
            assert!(within(&all[21..], 1.4), "{many} then {few}: {all:?}");
        }
        // Even before it, the prediction has the right magnitude. Bytes alone are wrong by a factor of 500.
        for (many, few) in [(64 * MIB, 4 << 10), (4 << 10, 64 * MIB)] {
            let sizes = [[many; 20].as_slice(), &[few; 40]].concat();
            let all = predictions(&sizes, COSTS);
            assert!(within(&all[..20], 3.0), "{many} then {few}: {all:?}");
        }
    }

    #[test]
    fn work_done_before_the_start_is_not_part_of_the_rate() {
        let before = Work { items: 90, bytes: 90 * MIB };
        let mut estimate = Estimate::new(before);
        let done = Work { items: 92, bytes: 92 * MIB };
        estimate.observe(done, 4.0);
        let left = estimate.left(done, Work { items: 100, bytes: 100 * MIB }, 4.0).unwrap();
        assert!((left - 16.0).abs() < 0.01, "{left}");
        assert_eq!(estimate.left(before, Work { items: 100, bytes: 100 * MIB }, 4.0), None);
    }

    #[test]
    fn bytes_alone_predict_if_no_item_is_finished_or_counted() {
        let estimate = Estimate::new(Work::default());
        let done = Work { items: 0, bytes: 2 * MIB };
        for items in [0, 5] {
            assert_eq!(estimate.left(done, Work { items, bytes: 8 * MIB }, 2.0), Some(6.0));
        }
    }
}
