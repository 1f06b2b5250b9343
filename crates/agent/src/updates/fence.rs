//! Which blocks tasks may read, and which are open for updates. One lock for all of a node, so that a block is never both.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::timeout};
use weft_types::{BlockId, Cause, Error, Result, StripeId};

/// The blocks that are in use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fence(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    blocks: Mutex<BTreeMap<BlockId, Use>>,
    /// A reader has ended.
    ended: Notify,
}

/// A block that is in use.
#[derive(Debug, Default)]
struct Use {
    readers: u32,
    /// Calls that are opening it.
    opening: u32,
    /// The number of the disk on which it is open for updates.
    disk: Option<usize>,
}

/// The right to read a block. It cannot be opened for updates meanwhile.
#[derive(Debug)]
pub(crate) struct Reading {
    fence: Fence,
    block: BlockId,
}

/// No reader has the block, and none begins. Dropping it ends this, unless the block is open then.
#[derive(Debug)]
pub(crate) struct Opening {
    fence: Fence,
    block: BlockId,
}

/// How long an opening waits for the readers to end.
const READERS_END_WITHIN: Duration = Duration::from_secs(1);

impl Fence {
    /// Fails with [`Reaction::Retry`](weft_types::Reaction) and [`Cause::OpenForUpdates`] if the block is open for updates.
    pub(crate) fn read(&self, block: BlockId) -> Result<Reading> {
        let mut blocks = self.lock();
        let of_block = blocks.entry(block).or_default();
        if of_block.opening > 0 || of_block.disk.is_some() {
            let error = Error::retry("the block is open for updates: settle its stripe first");
            return Err(error.block(block).cause(Cause::OpenForUpdates));
        }
        of_block.readers += 1;
        Ok(Reading { fence: self.clone(), block })
    }

    /// Keeps new readers out, and waits for those that there are. Fails with [`Reaction::Retry`](weft_types::Reaction) if they do not end.
    pub(crate) async fn open(&self, block: BlockId) -> Result<Opening> {
        self.lock().entry(block).or_default().opening += 1;
        let opening = Opening { fence: self.clone(), block };
        let readers_end = async {
            loop {
                let mut ended = std::pin::pin!(self.0.ended.notified());
                ended.as_mut().enable();
                if self.readers(block) == 0 {
                    return;
                }
                ended.await;
            }
        };
        match timeout(READERS_END_WITHIN, readers_end).await {
            Ok(()) => Ok(opening),
            Err(_) => {
                Err(Error::retry(format!("{} tasks read the block: it is not opened for updates now", self.readers(block)))
                    .block(block))
            }
        }
    }

    /// The block is open for updates on this disk until [`close`](Self::close).
    pub(crate) fn opened(&self, block: BlockId, disk: usize) {
        self.lock().entry(block).or_default().disk = Some(disk);
    }

    /// The block is not open any more.
    pub(crate) fn close(&self, block: BlockId) {
        self.change(block, |of_block| of_block.disk = None);
    }

    /// The number of the disk on which a block is open for updates.
    pub(crate) fn disk_of(&self, block: BlockId) -> Option<usize> {
        self.lock().get(&block).and_then(|of_block| of_block.disk)
    }

    /// The blocks that are open, ascending.
    pub(crate) fn open_blocks(&self) -> Vec<BlockId> {
        self.lock().iter().filter(|(_, of_block)| of_block.disk.is_some()).map(|(block, _)| *block).collect()
    }

    /// Whether any block of a stripe is open.
    pub(crate) fn has_open(&self, stripe: StripeId) -> bool {
        let first = BlockId { stripe, index: 0, copy: 0, generation: 0 };
        let of_stripe = |block: &BlockId| block.stripe == stripe;
        self.lock().range(first..).take_while(|(block, _)| of_stripe(block)).any(|(_, of_block)| of_block.disk.is_some())
    }

    fn readers(&self, block: BlockId) -> u32 {
        self.lock().get(&block).map_or(0, |of_block| of_block.readers)
    }

    fn change(&self, block: BlockId, change: impl FnOnce(&mut Use)) {
        let mut blocks = self.lock();
        if let Entry::Occupied(mut entry) = blocks.entry(block) {
            change(entry.get_mut());
            let Use { readers, opening, disk } = entry.get();
            if (*readers, *opening, *disk) == (0, 0, None) {
                entry.remove();
            }
        }
    }

    /// A poisoned lock is safe to use: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<BlockId, Use>> {
        self.0.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opening {
    /// The block.
    pub(crate) fn block(&self) -> BlockId {
        self.block
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.fence.change(self.block, |of_block| of_block.readers = of_block.readers.saturating_sub(1));
        self.fence.0.ended.notify_waiters();
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.fence.change(self.block, |of_block| of_block.opening = of_block.opening.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};
    use weft_types::Reaction;

    fn block(stripe: u64) -> BlockId {
        BlockId { stripe: StripeId(stripe), index: 0, copy: 0, generation: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_block_is_read_or_open_and_never_both() {
        let fence = Fence::default();
        let refused = |fence: &Fence| fence.read(block(1)).unwrap_err();
        let reading = fence.read(block(1)).unwrap();
        assert!(fence.open(block(2)).await.is_ok(), "another block was held up");

        let begin = Instant::now();
        let in_use = fence.open(block(1)).await.unwrap_err();
        assert_eq!((in_use.reaction, in_use.block, begin.elapsed()), (Reaction::Retry, Some(block(1)), READERS_END_WITHIN));
        drop(fence.read(block(1)).unwrap());

        let (opening, ()) = tokio::join!(fence.open(block(1)), async {
            sleep(Duration::from_millis(300)).await;
            assert_eq!(refused(&fence).cause, Some(Cause::OpenForUpdates), "a reader overtook the opening");
            drop(reading);
        });
        let opening = opening.unwrap();
        assert_eq!(refused(&fence).reaction, Reaction::Retry);
        fence.opened(opening.block(), 3);
        drop(opening);
        assert_eq!((fence.disk_of(block(1)), fence.open_blocks()), (Some(3), vec![block(1)]));
        assert_eq!((fence.has_open(StripeId(1)), fence.has_open(StripeId(2))), (true, false));
        assert!(fence.open(block(1)).await.is_ok(), "it can be opened again");
        assert_eq!(refused(&fence).cause, Some(Cause::OpenForUpdates), "a failed opening closed the block");
        fence.close(block(1));
        drop(fence.read(block(1)).unwrap());
        assert!(fence.lock().is_empty(), "blocks that nothing uses are kept");
    }

    #[tokio::test(start_paused = true)]
    async fn an_opening_that_is_given_up_lets_readers_in() {
        let fence = Fence::default();
        drop(fence.open(block(1)).await.unwrap());
        let reading = fence.read(block(1)).unwrap();
        let (opening, ()) = tokio::join!(timeout(Duration::from_millis(10), fence.open(block(1))), async {
            sleep(Duration::from_millis(5)).await;
            assert!(fence.read(block(1)).is_err());
        });
        assert!(opening.is_err());
        drop(fence.read(block(1)).unwrap());
        drop(reading);
        assert!(fence.lock().is_empty());
    }
}
