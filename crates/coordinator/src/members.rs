//! The nodes' sessions, in addition to their state ([`weft_control::members`]). In memory; only transitions are
//! recorded.

use crate::started::Started;
use rand::{Rng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tonic::transport::Channel;
use weft_control::{
    disk_health::{Served, Service},
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
    /// Held while a change of a node's state is recorded: a later change must not be overwritten by an earlier one.
    pub(crate) recording: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    known: members::Members,
    /// Sessions of the nodes that have registered with this coordinator.
    sessions: BTreeMap<NodeId, Session>,
}

/// A node's session, which begins with its registration.
#[derive(Clone)]
pub(crate) struct Session {
    /// The key for tokens of links that end at the node.
    pub(crate) link_key: LinkKey,
    /// The channel to its agent.
    pub(crate) channel: Channel,
    /// The node's record at its registration.
    pub(crate) record: NodeRecord,
    /// The machine from which it calls.
    pub(crate) host: String,
    /// Where its agent serves metrics; empty if it does not.
    pub(crate) metrics_address: String,
    /// The protocol version that was agreed with its agent.
    pub(crate) protocol: u16,
    /// When it registered, milliseconds since 1970.
    pub(crate) registered_ms: u64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("node", &self.record.id).finish_non_exhaustive()
    }
}

impl Members {
    /// The nodes in the metadata, none of which has sent a heartbeat yet.
    pub(crate) fn new(
        records: Vec<NodeRecord>,
        (started, now_ms): (Started, u64),
        down_after: Duration,
        suspect_for: Duration,
    ) -> Self {
        let known = members::Members::new(records, down_after, suspect_for, started.now(), now_ms);
        let state = Mutex::new(State { known, sessions: BTreeMap::new() });
        Self { state, started, recording: tokio::sync::Mutex::default() }
    }

    /// A node has registered, with this report on its disks and its coding rate: input bytes a second for each output
    /// row; 0 if unknown.
    pub(crate) fn registered(&self, session: Session, disks: &[v1::Disk], coding_bytes_per_s: u64) {
        let mut state = self.lock();
        state.known.registered(session.record.clone(), coding_bytes_per_s, &reports(disks), self.started.now());
        state.sessions.insert(session.record.id, session);
    }

    /// A node was removed from the metadata.
    pub(crate) fn forget(&self, node: NodeId) {
        let mut state = self.lock();
        state.known.forget(node);
        state.sessions.remove(&node);
    }

    /// The disks of a node have changed in the metadata, or whether its blocks must be checked.
    pub(crate) fn refresh(&self, record: &NodeRecord) {
        self.lock().known.refresh(record);
    }

    /// The node that has the disk with this id in the metadata.
    pub(crate) fn owner_of(&self, disk: &str) -> Option<NodeId> {
        self.lock().known.owner_of(disk)
    }

    /// Where a disk is now, if it was moved to another node.
    pub(crate) fn moved_to(&self, home: Home) -> Option<Home> {
        self.lock().known.moved_to(home)
    }

    /// Whether a disk was moved to another node, or is not known any more.
    pub(crate) fn is_moved_or_gone(&self, home: Home) -> bool {
        let state = self.lock();
        !state.known.has_disk(home) || state.known.moved_to(home).is_some()
    }

    /// A disk was removed from the metadata.
    pub(crate) fn forget_disk(&self, home: Home) {
        self.lock().known.forget_disk(home);
    }

    /// It was recorded that a node or, with `disk`, one of its disks is being drained, or no longer.
    pub(crate) fn set_draining(&self, node: NodeId, disk: Option<DiskNumber>, on: bool) {
        self.lock().known.set_draining(node, disk, on);
    }

    /// It was recorded that a disk is drained for good.
    pub(crate) fn retire(&self, home: Home) {
        self.lock().known.retire(home);
    }

    /// Whether the metadata has the node.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.lock().known.has(node)
    }

    /// Handles a heartbeat; returns what changed. `None` if the node must register first.
    pub(crate) fn heartbeat(&self, node: NodeId, disks: &[v1::Disk], fsyncs: u64) -> Option<Heartbeat> {
        self.lock().known.heartbeat(node, &reports(disks), fsyncs, self.started.now())
    }

    /// It was recorded that a node is up again.
    pub(crate) fn came_up(&self, node: NodeId, since_ms: u64) {
        self.lock().known.came_up(node, since_ms);
    }

    /// Marks nodes as down that were silent for too long; returns them.
    pub(crate) fn take_down_silent(&self) -> Vec<NodeRecord> {
        self.lock().known.take_down_silent(self.started.now())
    }

    /// It could not be recorded that a node is down.
    pub(crate) fn not_recorded(&self, node: NodeId) {
        self.lock().known.not_recorded(node);
    }

    /// It could not be recorded that a disk failed or recovered.
    pub(crate) fn disk_not_recorded(&self, node: NodeId, disk: DiskNumber, failed: bool) {
        self.lock().known.disk_not_recorded(node, disk, failed);
    }

    /// Declares nodes lost that are down; returns them.
    pub(crate) fn declare_lost(&self, nodes: &[NodeId]) -> Vec<NodeRecord> {
        self.lock().known.declare_lost(nodes, self.started.now())
    }

    /// The blocks of a node that came back have been checked.
    pub(crate) fn checked(&self, node: NodeId) {
        self.lock().known.checked(node);
    }

    /// Avoids a node for a while after it failed another.
    pub(crate) fn suspect(&self, node: NodeId) {
        self.suspect_because(node, "");
    }

    /// Likewise, with the reason for a person.
    pub(crate) fn suspect_because(&self, node: NodeId, why: &str) {
        self.lock().known.suspect(node, why, self.started.now());
    }

    /// Records that a node blamed another, which is suspect for that.
    pub(crate) fn dispute(&self, node: NodeId, accuser: NodeId) {
        self.lock().known.dispute(node, accuser, self.started.now());
    }

    /// Avoids a block for a while after it could not be read.
    pub(crate) fn suspect_block(&self, block: BlockId) {
        self.lock().known.suspect_block(block, self.started.now());
    }

    /// The current view.
    pub(crate) fn view(&self) -> View {
        self.lock().known.view(self.started.now())
    }

    /// The node's session, if it is up.
    pub(crate) fn session(&self, node: NodeId) -> Option<Session> {
        let state = self.lock();
        state.sessions.get(&node).filter(|_| state.known.is_up(node, self.started.now())).cloned()
    }

    /// Whether the node is up.
    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        self.lock().known.is_up(node, self.started.now())
    }

    /// The number of nodes.
    pub(crate) fn count(&self) -> usize {
        self.lock().known.count()
    }

    /// The machines from which the nodes that are up call.
    pub(crate) fn hosts(&self) -> BTreeMap<NodeId, String> {
        let (state, now) = (self.lock(), self.started.now());
        let up = state.sessions.iter().filter(|(node, _)| state.known.is_up(**node, now));
        up.map(|(node, session)| (*node, session.host.clone())).collect()
    }

    /// Where the node's agent serves metrics; empty if it does not, or is down.
    pub(crate) fn metrics_address(&self, node: NodeId) -> String {
        self.session(node).map(|session| session.metrics_address).unwrap_or_default()
    }

    /// Whether the node has registered again since the session began.
    pub(crate) fn has_registered_since(&self, session: &Session) -> bool {
        let now = self.lock().sessions.get(&session.record.id).map(|now| now.link_key.clone());
        now.is_none_or(|now| now != session.link_key)
    }

    /// The node's name.
    pub(crate) fn name(&self, node: NodeId) -> String {
        self.lock().known.name(node)
    }

    /// Whether a node of this name is up.
    pub(crate) fn is_name_up(&self, name: &str) -> bool {
        self.lock().known.is_name_up(name, self.started.now())
    }

    /// Whether some nodes that were up before the coordinator started have not returned yet, so that it is too early to
    /// say which are down.
    pub(crate) fn are_coming_back(&self) -> bool {
        self.lock().known.are_coming_back()
    }

    /// The coding rates of the nodes that are up, in bytes a second, where known.
    pub(crate) fn coding_bytes_per_s(&self) -> BTreeMap<NodeId, f64> {
        self.lock().known.coding_bytes_per_s(self.started.now())
    }

    /// The status of all nodes.
    pub(crate) fn statuses(&self) -> Vec<MemberStatus> {
        self.lock().known.statuses(self.started.now())
    }

    /// The status of a node, if the metadata has it.
    pub(crate) fn status(&self, node: NodeId) -> Option<MemberStatus> {
        self.lock().known.status(node, self.started.now())
    }

    /// Sets the number of blocks on the disks, from the metadata.
    pub(crate) fn set_blocks(&self, counts: &[(DiskNumber, u64)]) {
        self.lock().known.set_blocks(counts);
    }

    /// Counts new blocks at these homes at once.
    pub(crate) fn add_blocks(&self, homes: &[Home], bytes_each: u64) {
        self.lock().known.add_blocks(homes, bytes_each);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is safe to use: each change is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reports(disks: &[v1::Disk]) -> Vec<DiskReport> {
    let report = |disk: &v1::Disk| DiskReport {
        id: disk.id.clone(),
        failed: disk.failed,
        free_bytes: disk.free_bytes,
        file_system: disk.file_system,
        quarantined: Quarantined { blocks: disk.quarantined_blocks, bytes: disk.quarantined_bytes },
        served: Served { reads: service(disk.reads.as_ref()), syncs: service(disk.syncs.as_ref()) },
        silent_for: Duration::from_millis(disk.silent_ms),
        bytes_per_s: disk.bytes_per_s,
    };
    disks.iter().map(report).collect()
}

fn service(told: Option<&v1::DiskService>) -> Service {
    let it = told.copied().unwrap_or_default();
    let [busy, taken] = [it.busy_us, it.taken_us].map(Duration::from_micros);
    Service { operations: it.operations, bytes: it.bytes, busy, taken }
}

/// A new key for a node's links.
pub(crate) fn draw_link_key(rng: &mut StdRng) -> LinkKey {
    LinkKey::new(rng.random())
}
