//! The repair of a stripe, whoever asked for it: what is lost is rebuilt, and takes the place of what was.

use super::{Rebuild, Rebuilt, Told};
use weft_control::rebuild::RebuiltBlock;
use weft_types::Result;

impl Rebuild<'_> {
    /// Rebuilds what is lost of an object's stripe, as much as there is room for, and commits it: the blocks are the stripe's now.
    /// Those that could not be committed are among what is left; if none could be, it fails.
    pub(crate) async fn repair(&mut self, tell: impl FnMut(Told<'_>) + Send) -> Result<Rebuilt> {
        let mut rebuilt = self.run(tell).await?;
        let mut first = None;
        for new in std::mem::take(&mut rebuilt.blocks) {
            match self.commit(&new).await {
                Ok(()) => rebuilt.blocks.push(new),
                Err(error) => {
                    rebuilt.left.push(((new.block.index, new.block.copy), error.message.clone()));
                    first.get_or_insert(error);
                }
            }
        }
        for ((index, copy), reason) in &rebuilt.left {
            tracing::warn!(object = %self.object, stripe = self.stripe.number, index, copy, reason, "a lost block was not rebuilt");
        }
        match first.filter(|_| rebuilt.blocks.is_empty()) {
            Some(error) => Err(error),
            None => Ok(rebuilt),
        }
    }

    async fn commit(&self, new: &RebuiltBlock) -> Result<()> {
        let (shared, object, block) = (self.shared, self.object, new.block);
        let old = self.stripe.find(block.index, block.copy).map_or(0, |placed| placed.generation);
        let not_before_ms = shared.garbage_not_before_ms();
        let committed = shared.meta.commit_repair(shared.epoch, block, old, new.checksums.clone(), not_before_ms).await;
        let Err(error) = committed else {
            tracing::info!(%object, %block, node = %shared.members.name(new.home.node), "a block was rebuilt");
            return Ok(());
        };
        // Somebody else was faster, or the object is gone: what was rebuilt is nobody's.
        if let Err(error) = shared.meta.abort_repair(shared.epoch, block, shared.now_ms()).await {
            let error = shared.meta_error(error);
            tracing::warn!(%block, %error, "an allocation could not be given up; it will expire");
        }
        Err(shared.meta_error(error))
    }
}
