//! What readers and patches of one block share: its checksums, which a patch replaces together with its pages.

use crate::sidecar::Loaded;
use std::collections::BTreeMap;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use weft_types::{BlockId, Result};

/// The blocks of a disk that have open readers.
#[derive(Debug, Default)]
pub(super) struct Blocks(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    blocks: BTreeMap<BlockId, Weak<Shared>>,
    /// At this number of blocks, those without open readers are removed from the map.
    clean_at: usize,
    /// How often patches of blocks have begun, by a part of the block's id.
    patches: [u64; 32],
}

/// One block.
#[derive(Debug)]
pub(super) struct Shared {
    loaded: Mutex<Arc<Loaded>>,
    /// Held for writing while a patch changes pages and checksums.
    pages: RwLock<()>,
    /// Whether a patch has begun. Then memory counts, not the sidecar's file.
    is_patched: AtomicBool,
}

impl Shared {
    fn new(loaded: Loaded) -> Arc<Self> {
        Arc::new(Self { loaded: Mutex::new(Arc::new(loaded)), pages: RwLock::default(), is_patched: AtomicBool::new(false) })
    }

    /// The checksums of now.
    pub(super) fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn is_patched(&self) -> bool {
        self.is_patched.load(Relaxed)
    }

    pub(super) fn lock_pages_for_reading(&self) -> RwLockReadGuard<'_, ()> {
        self.pages.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_pages(&self) -> RwLockWriteGuard<'_, ()> {
        self.pages.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the checksums. The caller has locked the pages.
    pub(super) fn replace(&self, loaded: Loaded) {
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }
}

impl Blocks {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block. It is read from the disk by `load`, unless it has an open reader and was patched since that was opened.
    pub(super) fn get_or_load(&self, id: BlockId, load: impl Fn() -> Result<Loaded>) -> Result<Arc<Shared>> {
        loop {
            let begun = {
                let known = self.known();
                if let Some(block) = known.get(id).filter(|block| block.is_patched()) {
                    return Ok(block);
                }
                known.patches[part(id)]
            };
            let loaded = load();
            let mut known = self.known();
            if known.patches[part(id)] != begun {
                // What was read may be a mixture.
                continue;
            }
            let loaded = loaded?;
            if let Some(block) = known.get(id).filter(|block| *block.current() == loaded) {
                return Ok(block);
            }
            return Ok(known.insert(id, Shared::new(loaded)));
        }
    }

    /// The block, for a patch. The caller has claimed it.
    pub(super) fn begin_patch(&self, id: BlockId, load: impl Fn() -> Result<Loaded>) -> Result<Arc<Shared>> {
        let block = self.get_or_load(id, load)?;
        let mut known = self.known();
        known.patches[part(id)] += 1;
        block.is_patched.store(true, Relaxed);
        // Another may have taken its place, if the sidecar's file was changed from outside.
        known.blocks.insert(id, Arc::downgrade(&block));
        Ok(block)
    }

    /// Who opens the block next, reads it from the disk.
    pub(super) fn forget(&self, id: BlockId) {
        self.known().blocks.remove(&id);
    }
}

impl Known {
    fn get(&self, id: BlockId) -> Option<Arc<Shared>> {
        self.blocks.get(&id).and_then(Weak::upgrade)
    }

    fn insert(&mut self, id: BlockId, block: Arc<Shared>) -> Arc<Shared> {
        if self.blocks.len() >= self.clean_at {
            self.blocks.retain(|_, block| block.strong_count() > 0);
            self.clean_at = 2 * self.blocks.len() + 1024;
        }
        self.blocks.insert(id, Arc::downgrade(&block));
        block
    }
}

fn part(id: BlockId) -> usize {
    (id.stripe.0 % 32) as usize
}
