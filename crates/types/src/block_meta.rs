//! The content of a block's sidecar: enough to rebuild the metadata from sidecars alone.

use crate::{BlockId, ClusterId, Seq, StripeLayout};
use serde::{Deserialize, Serialize};

/// A block, fully described.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockMeta {
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// The block's id.
    pub id: BlockId,
    /// The object, as `bucket/key`.
    pub object: String,
    /// The object's version (a number that grows with each put of the key).
    pub version: u64,
    /// The offset of the stripe's data in the object, bytes.
    pub object_offset: u64,
    /// The code's spec.
    pub code: String,
    /// A hash of the code's generator matrix, so that a changed construction is never mistaken for the one that wrote
    /// the block.
    pub generator_hash: u64,
    /// The layout of the stripe.
    pub stripe: StripeLayout,
    /// The stripe's updates that the block contains.
    pub seq: Seq,
}

impl BlockMeta {
    /// Bytes of the payload.
    pub fn len(&self) -> u64 {
        self.stripe.block_len(u32::from(self.id.index))
    }

    /// Whether the payload is empty (the stripe ends before this block begins).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
