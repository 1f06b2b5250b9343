//! Nodes that are up and did not answer, so that their blocks were left out. For a while, or until they register again, no block goes back to one for what
//! it still has: it may hang.

use super::tell::node_of;
use crate::shared::Shared;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use weft_control::Time;
use weft_types::{BlockId, NodeId, StripeRecord};

/// For how long.
const SILENT_FOR: Duration = Duration::from_secs(30);

/// By node, in which registration it did not answer, and when that was last so.
#[derive(Debug, Default)]
pub(crate) struct Silent(Mutex<BTreeMap<NodeId, ([u8; 8], Time)>>);

impl Silent {
    /// These blocks of a stripe were left out.
    pub(super) fn left_out(&self, shared: &Shared, stripe: &StripeRecord, blocks: impl IntoIterator<Item = BlockId>) {
        let now = shared.started.now();
        let nodes = blocks.into_iter().filter_map(|block| node_of(stripe, &block));
        let up = nodes.filter_map(|node| Some((node, (shared.members.session(node)?.link_key.id(), now))));
        self.lock().extend(up);
    }

    /// The nodes.
    pub(crate) fn nodes(&self, shared: &Shared) -> BTreeSet<NodeId> {
        let now = shared.started.now();
        let mut silent = self.lock();
        silent.retain(|node, (registration, at)| {
            let session = shared.members.session(*node);
            now.since(*at) < SILENT_FOR && session.is_some_and(|session| session.link_key.id() == *registration)
        });
        silent.keys().copied().collect()
    }

    /// A poisoned lock is safe to use: each change is one call.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, ([u8; 8], Time)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
