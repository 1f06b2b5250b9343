//! What is known of moved disks besides the metadata.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};
use weft_control::{Time, moved::Follow};
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
    /// The nodes that must register again, because a disk that they keep aside can be taken over, or is found to be a copy.
    pub(super) called: BTreeSet<NodeId>,
    /// Disks that are kept aside and that their owners have at the same time, by the name of the node that keeps them aside, and their ids. The
    /// agents remember it, and tell the next coordinator.
    pub(super) copies: BTreeSet<(String, String)>,
    /// The names of nodes that have taken disks over and have sent no heartbeat since. Their agents may not have the answer to the registration
    /// yet: they still keep the disks aside, and say that blocks are not there.
    pub(super) joining: BTreeSet<String>,
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
    /// Whether it is in [`State::copies`], as its agent was told.
    pub(super) copy: bool,
    /// Since when the node has had it open, as far as is known.
    pub(super) open_since: Option<Time>,
}

impl Moves {
    /// A node has registered, and keeps these disks aside. Without `has_disks` it has not opened its disks yet.
    pub(crate) fn registered(&self, (node, name): (NodeId, &str), mut aside: Vec<Aside>, has_disks: bool) {
        let mut state = self.lock();
        state.called.remove(&node);
        if has_disks {
            state.copies.retain(|(of, id)| *of != *name || aside.iter().any(|it| it.disk.id == *id));
        }
        let before = state.aside.get(&node).map(Vec::as_slice).unwrap_or_default();
        for it in &mut aside {
            it.open_since = before.iter().find(|before| before.disk.id == it.disk.id).and_then(|before| before.open_since);
        }
        if aside.is_empty() {
            state.aside.remove(&node);
        } else {
            state.aside.insert(node, aside);
        }
    }

    /// What a node says of its disks by now. Its agent has sorted them by the answer to its registration.
    pub(crate) fn heard(&self, (node, name): (NodeId, &str), told: &[v1::Disk]) {
        let mut state = self.lock();
        state.joining.remove(name);
        for it in state.aside.get_mut(&node).into_iter().flatten() {
            if let Some(told) = told.iter().find(|told| told.id == it.disk.id) {
                (it.disk.total_bytes, it.disk.failed) = (told.total_bytes, told.failed);
            }
        }
    }

    /// The owner of a disk that the node of this name keeps aside has had it at the same time.
    pub(super) fn note_copy(&self, name: &str, disk: &str) {
        self.lock().copies.insert((name.to_owned(), disk.to_owned()));
    }

    /// Whether a disk that the node of this name keeps aside is a copy, or its owner has one.
    pub(super) fn is_copy(&self, name: &str, disk: &str) -> bool {
        self.lock().copies.contains(&(name.to_owned(), disk.to_owned()))
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
        v1::AsideDisk { id: self.disk.id.clone(), why: self.why.clone(), copy: self.copy, ..v1::AsideDisk::default() }
    }
}
