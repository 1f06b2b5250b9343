//! What may be removed of a disk: never so much within a day that a mistake empties it.

use crate::Limits;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_types::{BlockId, Error, Reaction, Result};

/// What became of blocks that were to be removed.
#[derive(Debug, Default)]
pub(crate) struct Removal {
    /// Those that were there.
    pub(crate) removed: u32,
    /// Those that are certainly not on the node any more, or never were.
    pub(crate) gone: Vec<BlockId>,
    /// Why each of the others is still there, or may be.
    pub(crate) kept: Vec<Error>,
}

/// Counts the blocks of one disk that are removed within a day. The count begins anew with the process.
#[derive(Default)]
pub(crate) struct Quota(Mutex<Option<Window>>);

struct Window {
    began: Instant,
    removed_blocks: u64,
    /// Of all that were there when it was asked for; until more than the floor is removed nobody asks.
    allowed_blocks: Option<u64>,
}

const WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

impl Quota {
    /// Takes the right to remove one block; `count_blocks` tells how many there are. May block.
    pub(crate) fn take(&self, limits: &Limits, now: Instant, count_blocks: impl FnOnce() -> Result<usize>) -> Result<()> {
        let mut quota = self.lock();
        let fresh = || Window { began: now, removed_blocks: 0, allowed_blocks: None };
        let window = quota.get_or_insert_with(fresh);
        if now.duration_since(window.began) >= WINDOW {
            *window = fresh();
        }
        if window.removed_blocks >= u64::from(limits.removed_blocks_per_day) {
            let allowed = match window.allowed_blocks {
                Some(allowed) => allowed,
                None => {
                    let all = count_blocks()? as u64 + window.removed_blocks;
                    *window.allowed_blocks.insert(all * u64::from(limits.removed_percent_per_day) / 100)
                }
            };
            if window.removed_blocks >= allowed {
                return Err(too_many(window.removed_blocks));
            }
        }
        window.removed_blocks += 1;
        Ok(())
    }

    /// Gives back a right that was not used.
    pub(crate) fn give_back(&self) {
        if let Some(window) = self.lock().as_mut() {
            window.removed_blocks = window.removed_blocks.saturating_sub(1);
        }
    }

    /// A panic elsewhere leaves it as good as it was: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, Option<Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_many(removed_blocks: u64) -> Error {
    Error::new(
        Reaction::Unavailable,
        format!(
            "{removed_blocks} blocks of the disk have been removed within a day: a person must decide whether more is meant, and \
             raise limits.removed_percent_per_day; otherwise it goes on tomorrow"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_small_requests_cannot_empty_a_disk_and_the_next_day_it_goes_on() {
        let limits = Limits { removed_blocks_per_day: 10, removed_percent_per_day: 20, ..Limits::default() };
        let (small, large) = (Quota::default(), Quota::default());
        let now = Instant::now();
        let take_all = |quota: &Quota, now, there: usize| {
            let taken = (0..there).take_while(|taken| quota.take(&limits, now, || Ok(there - taken)).is_ok());
            taken.count()
        };
        assert_eq!(take_all(&small, now, 40), 10, "the floor");
        assert_eq!(take_all(&large, now, 1000), 200, "a fifth of all that were there");
        let refused = large.take(&limits, now, || Ok(800)).unwrap_err();
        assert!(refused.message.contains("removed_percent_per_day"), "{refused}");
        large.give_back();
        large.take(&limits, now, || Ok(800)).unwrap();
        large.take(&limits, now, || Ok(800)).unwrap_err();
        assert_eq!(take_all(&large, now + WINDOW, 800), 160);
    }
}
