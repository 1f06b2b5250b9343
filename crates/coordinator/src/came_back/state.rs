//! How far the checks of nodes that came back are.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use weft_control::findings::Check;
use weft_types::NodeId;

/// How far the checks are, by node.
#[derive(Debug, Default)]
pub(crate) struct Checks(Mutex<BTreeMap<NodeId, Check>>);

impl Checks {
    /// How many blocks of a node were checked, and how many of these are missing or not what was written; `None` if nothing of it can be
    /// checked now.
    pub(crate) fn of(&self, node: NodeId) -> Option<(u64, u64)> {
        match self.lock().get(&node) {
            Some(check) if check.waits_for_disks() => None,
            Some(check) => Some((check.blocks, check.bad)),
            None => Some((0, 0)),
        }
    }

    /// Blocks have come to a node that are to be checked.
    pub(crate) fn begin_again(&self, node: NodeId) {
        self.lock().remove(&node);
    }

    /// Whether the check of a node is over.
    pub(super) fn is_over(&self, node: NodeId) -> bool {
        self.lock().get(&node).is_some_and(Check::is_over)
    }

    /// Changes the check of a node, which may begin with that.
    pub(super) fn with<T>(&self, node: NodeId, change: impl FnOnce(&mut Check) -> T) -> T {
        change(self.lock().entry(node).or_default())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Check>> {
        // A poisoned lock is safe to use: each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
