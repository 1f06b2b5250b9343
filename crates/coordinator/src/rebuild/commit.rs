//! The repair of a stripe, whoever asked for it: what is lost is rebuilt, and takes the place of what was.

use super::{Rebuild, Rebuilt, Told};
use weft_types::Result;

impl Rebuild<'_> {
    /// Rebuilds what is lost of an object's stripe, as much as there is room for, and commits it: the blocks are the stripe's now.
    pub(crate) async fn repair(&mut self, tell: impl FnMut(Told<'_>) + Send) -> Result<Rebuilt> {
        let rebuilt = self.run(tell).await?;
        let (shared, object) = (self.shared, self.object);
        for new in &rebuilt.blocks {
            let block = new.block;
            let old = self.stripe.blocks.get(usize::from(block.index)).map_or(0, |placed| placed.generation);
            let not_before_ms = shared.garbage_not_before_ms();
            let committed = shared.meta.commit_repair(shared.epoch, block, old, new.units.clone(), not_before_ms).await;
            if let Err(error) = committed {
                // Somebody else was faster, or the object is gone: what was rebuilt is nobody's.
                let given_up = shared.meta.abort_repair(shared.epoch, block, shared.now_ms()).await;
                given_up.map_err(|error| shared.meta_error(error))?;
                return Err(shared.meta_error(error));
            }
            tracing::info!(%object, %block, node = %shared.members.name(new.home.node), "a block was rebuilt");
        }
        for (index, reason) in &rebuilt.left {
            tracing::warn!(%object, stripe = self.stripe.number, index, reason, "a lost block was not rebuilt");
        }
        Ok(rebuilt)
    }
}
