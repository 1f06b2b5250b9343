//! The size of a batch, and what the batches before it have left uneven.

use super::super::Load;

/// How many blocks a job knows before it schedules a batch of `size`: so many that it knows whether the end is in sight.
pub fn known_max(size: usize) -> usize {
    size + size / 4 + 1
}

/// How many of `known` blocks the next batch takes, whose size is `size`: all if at most a quarter more are left. Helpers that a code ties to
/// blocks fix what links carry, and nothing evens that out after a small last batch.
pub fn batch_len(known: usize, size: usize) -> usize {
    if known < known_max(size) { known } else { size }
}

/// What each carries more than the one that carries least.
pub(super) fn above_least(loads: &[Load]) -> Vec<Load> {
    let least = |of: fn(&Load) -> u64| loads.iter().map(of).min().unwrap_or(0);
    let least = Load { up: least(|load| load.up), down: least(|load| load.down), disk: least(|load| load.disk) };
    let above = |load: &Load| {
        let mut above = *load;
        above -= least;
        above
    };
    loads.iter().map(above).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batch_is_not_a_small_one() {
        let batches = |mut left: usize| {
            let mut taken = Vec::new();
            while left > 0 {
                taken.push(batch_len(left.min(known_max(60)), 60));
                left -= taken[taken.len() - 1];
            }
            taken
        };
        assert_eq!(batches(64), [64]);
        assert_eq!((batches(75), batches(76)), (vec![75], vec![60, 16]));
        assert_eq!(batches(300), [60, 60, 60, 60, 60]);
        assert_eq!(batches(310), [60, 60, 60, 60, 70]);
        assert_eq!((batches(1), batches(0)), (vec![1], Vec::new()));
    }
}
