//! What is known of moved disks besides the metadata.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};
use weft_control::moved::Follow;
use weft_meta::NewDisk;
use weft_proto::v1;
use weft_types::{DiskNumber, NodeId};

/// What is known of moved disks besides the metadata.
#[derive(Debug, Default)]
pub(crate) struct Moves(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    /// The disks that nodes keep aside, by node.
    pub(super) aside: BTreeMap<NodeId, Vec<Aside>>,
    /// The nodes that must register again, because a disk that they keep aside can be taken over.
    pub(super) called: BTreeSet<NodeId>,
    /// By the number that the disk had.
    pub(super) follows: BTreeMap<DiskNumber, Following>,
}

#[derive(Debug, Default)]
pub(super) struct Following {
    pub(super) follow: Follow,
    /// Stripes that have too many blocks in a rack since this walk began.
    pub(super) crowded: usize,
}

/// A disk that is kept aside.
#[derive(Debug, Clone)]
pub(crate) struct Aside {
    pub(super) disk: NewDisk,
    pub(super) why: String,
}

impl Moves {
    /// A node has registered, and keeps these disks aside.
    pub(crate) fn registered(&self, node: NodeId, aside: Vec<Aside>) {
        let mut state = self.lock();
        state.called.remove(&node);
        if aside.is_empty() {
            state.aside.remove(&node);
        } else {
            state.aside.insert(node, aside);
        }
    }

    /// Whether a node must register again.
    pub(crate) fn is_called(&self, node: NodeId) -> bool {
        self.lock().called.contains(&node)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is safe to use: each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Aside {
    /// For the agent.
    pub(crate) fn told(&self) -> v1::AsideDisk {
        v1::AsideDisk { id: self.disk.id.clone(), why: self.why.clone(), ..v1::AsideDisk::default() }
    }
}
