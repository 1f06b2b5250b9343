//! The nodes' sessions, beside what is known of the nodes ([`weft_control::members`]). In memory; only transitions are written.

use crate::started::Started;
use rand::{Rng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tonic::transport::Channel;
use weft_control::{
    members::{self, DiskReport, Heartbeat, MemberStatus, Quarantined},
    view::View,
};
use weft_proto::{LinkKey, v1};
use weft_types::{BlockId, DiskNumber, Home, NodeId, NodeRecord};

/// The nodes.
#[derive(Debug)]
pub(crate) struct Members {
    state: Mutex<State>,
    started: Started,
}

#[derive(Debug)]
struct State {
    known: members::Members,
    /// Of the nodes that have registered with this coordinator.
    sessions: BTreeMap<NodeId, Session>,
}

/// What a node's registration began.
#[derive(Clone)]
pub(crate) struct Session {
    /// For tokens of links that end at the node.
    pub(crate) link_key: LinkKey,
    /// To its agent.
    pub(crate) channel: Channel,
    /// The node's record as it was registered.
    pub(crate) record: NodeRecord,
    /// The machine from which it calls.
    pub(crate) host: String,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("node", &self.record.id).finish_non_exhaustive()
    }
}

impl Members {
    /// The nodes that the metadata knows; none of them has been heard of yet.
    pub(crate) fn new(records: Vec<NodeRecord>, started: Started, down_after: Duration, suspect_for: Duration) -> Self {
        let known = members::Members::new(records, down_after, suspect_for, started.now());
        Self { state: Mutex::new(State { known, sessions: BTreeMap::new() }), started }
    }

    /// A node has registered, and says this of its disks, and of the bytes a second that it combines, for each row that is made of them; 0: it
    /// is not known.
    pub(crate) fn registered(&self, session: Session, disks: &[v1::Disk], coding_bytes_per_s: u64) {
        let mut state = self.lock();
        state.known.registered(session.record.clone(), coding_bytes_per_s, &reports(disks), self.started.now());
        state.sessions.insert(session.record.id, session);
    }

    /// A sign of life; returns the disks that failed or recovered since the last one. None: the node must register first.
    pub(crate) fn heartbeat(&self, node: NodeId, disks: &[v1::Disk], fsyncs: u64) -> Option<Heartbeat> {
        self.lock().known.heartbeat(node, &reports(disks), fsyncs, self.started.now())
    }

    /// Takes down the nodes that were silent for too long; returns them.
    pub(crate) fn take_down_silent(&self) -> Vec<NodeRecord> {
        self.lock().known.take_down_silent(self.started.now())
    }

    /// A node failed another: it is avoided for a while.
    pub(crate) fn suspect(&self, node: NodeId) {
        self.lock().known.suspect(node, self.started.now());
    }

    /// A node complained of another, which is suspect for it.
    pub(crate) fn dispute(&self, node: NodeId, accuser: NodeId) {
        self.lock().known.dispute(node, accuser, self.started.now());
    }

    /// A block could not be read: it is avoided for a while.
    pub(crate) fn suspect_block(&self, block: BlockId) {
        self.lock().known.suspect_block(block, self.started.now());
    }

    /// The nodes now.
    pub(crate) fn view(&self) -> View {
        self.lock().known.view(self.started.now())
    }

    /// The node's session, if it is up.
    pub(crate) fn session(&self, node: NodeId) -> Option<Session> {
        let state = self.lock();
        state.sessions.get(&node).filter(|_| state.known.is_up(node, self.started.now())).cloned()
    }

    /// How many nodes there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().known.count()
    }

    /// The machines from which the nodes that are up call.
    pub(crate) fn hosts(&self) -> BTreeMap<NodeId, String> {
        let (state, now) = (self.lock(), self.started.now());
        let up = state.sessions.iter().filter(|(node, _)| state.known.is_up(**node, now));
        up.map(|(node, session)| (*node, session.host.clone())).collect()
    }

    /// Whether the node has registered again since the session began.
    pub(crate) fn has_registered_since(&self, session: &Session) -> bool {
        let now = self.lock().sessions.get(&session.record.id).map(|now| now.link_key.clone());
        now.is_none_or(|now| now != session.link_key)
    }

    /// The node's name, as people know it.
    pub(crate) fn name(&self, node: NodeId) -> String {
        self.lock().known.name(node)
    }

    /// Whether a node of this name is up.
    pub(crate) fn is_name_up(&self, name: &str) -> bool {
        self.lock().known.is_name_up(name, self.started.now())
    }

    /// Whether it is too early to say which nodes are down: some that were up before are still coming back.
    pub(crate) fn are_coming_back(&self) -> bool {
        self.lock().known.are_coming_back()
    }

    /// What each node that is up combines a second, in bytes, where that is known.
    pub(crate) fn coding_bytes_per_s(&self) -> BTreeMap<NodeId, f64> {
        self.lock().known.coding_bytes_per_s(self.started.now())
    }

    /// What a status shows.
    pub(crate) fn statuses(&self) -> Vec<MemberStatus> {
        self.lock().known.statuses(self.started.now())
    }

    /// How many blocks the disks have, as the metadata counts them.
    pub(crate) fn set_blocks(&self, counts: &[(DiskNumber, u64)]) {
        self.lock().known.set_blocks(counts);
    }

    /// New blocks go to these homes: they count from now on.
    pub(crate) fn add_blocks(&self, homes: &[Home], bytes_each: u64) {
        self.lock().known.add_blocks(homes, bytes_each);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one call, so a panic leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reports(disks: &[v1::Disk]) -> Vec<DiskReport> {
    let report = |disk: &v1::Disk| DiskReport {
        id: disk.id.clone(),
        failed: disk.failed,
        free_bytes: disk.free_bytes,
        quarantined: Quarantined { blocks: disk.quarantined_blocks, bytes: disk.quarantined_bytes },
    };
    disks.iter().map(report).collect()
}

/// A new key for a node's links.
pub(crate) fn draw_link_key(rng: &mut StdRng) -> LinkKey {
    LinkKey::new(rng.random())
}
