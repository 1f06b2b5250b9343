//! The nodes as they are heard of: sessions, heartbeats, who is up and who is suspect. In memory; only transitions are written.

use crate::started::Started;
use rand::{Rng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tonic::transport::Channel;
use weft_control::{
    Time,
    disputes::Disputes,
    view::{DiskView, NodeView, View},
};
use weft_meta::NodeRecord;
use weft_proto::{LinkKey, v1};
use weft_types::{BlockId, DiskNumber, Home, NodeId, NodeState};

/// Blocks that are suspect at the same time, at most; the oldest are forgotten first.
const SUSPECT_BLOCKS_MAX: usize = 10_000;

/// The nodes.
#[derive(Debug)]
pub(crate) struct Members {
    state: Mutex<State>,
    started: Started,
    down_after: Duration,
    suspect_for: Duration,
}

#[derive(Debug)]
struct State {
    nodes: BTreeMap<NodeId, Member>,
    disputes: Disputes,
    /// Until when each is avoided. Views share it; it changes seldom.
    suspect_blocks: Arc<BTreeMap<BlockId, Time>>,
}

#[derive(Debug)]
struct Member {
    record: NodeRecord,
    /// None until the node has registered with this coordinator.
    session: Option<Session>,
    /// Counted from the coordinator's start until the node registers.
    last_seen: Time,
    suspect_until: Option<Time>,
    free: BTreeMap<DiskNumber, u64>,
    quarantined: BTreeMap<DiskNumber, Quarantined>,
    blocks: BTreeMap<DiskNumber, u64>,
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
    /// Bytes a second that it combines, for each row that is made of them; 0: it is not known.
    pub(crate) coding_bytes_per_s: u64,
    /// The machine from which it calls.
    pub(crate) host: String,
}

/// What a status shows of a node.
#[derive(Debug, Clone)]
pub(crate) struct MemberStatus {
    pub(crate) record: NodeRecord,
    pub(crate) up: bool,
    pub(crate) silent_for: Duration,
    pub(crate) free: BTreeMap<DiskNumber, u64>,
    pub(crate) quarantined: BTreeMap<DiskNumber, Quarantined>,
    pub(crate) coding_bytes_per_s: u64,
}

/// What lies in a disk's quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Quarantined {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

impl Quarantined {
    fn on(disk: &v1::Disk) -> Self {
        Self { blocks: disk.quarantined_blocks, bytes: disk.quarantined_bytes }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("node", &self.record.id).finish_non_exhaustive()
    }
}

impl Members {
    /// The nodes that the metadata knows; none of them has been heard of yet.
    pub(crate) fn new(records: Vec<NodeRecord>, started: Started, down_after: Duration, suspect_for: Duration) -> Self {
        let member = |record: NodeRecord| {
            let member = Member {
                session: None,
                last_seen: started.now(),
                suspect_until: None,
                free: BTreeMap::new(),
                quarantined: BTreeMap::new(),
                blocks: BTreeMap::new(),
                record,
            };
            (member.record.id, member)
        };
        let nodes = records.into_iter().map(member).collect();
        Self {
            state: Mutex::new(State { nodes, disputes: Disputes::default(), suspect_blocks: Arc::default() }),
            started,
            down_after,
            suspect_for,
        }
    }

    /// A node has registered, and says this of its disks.
    pub(crate) fn registered(&self, session: Session, disks: &[v1::Disk]) {
        let record = session.record.clone();
        let told = |known: &weft_meta::DiskRecord| Some((known.number, disks.iter().find(|disk| disk.id == known.id)?));
        let told: BTreeMap<DiskNumber, &v1::Disk> = record.disks.iter().filter_map(told).collect();
        let free = told.iter().map(|(number, disk)| (*number, disk.free_bytes)).collect();
        let quarantined = told.iter().map(|(number, disk)| (*number, Quarantined::on(disk))).collect();
        let mut state = self.lock();
        let blocks = state.nodes.remove(&record.id).map(|before| before.blocks).unwrap_or_default();
        let (session, last_seen) = (Some(session), self.started.now());
        let member = Member { session, last_seen, suspect_until: None, free, quarantined, blocks, record };
        state.nodes.insert(member.record.id, member);
    }

    /// A sign of life; returns the disks that failed or recovered since the last one. None: the node must register first.
    pub(crate) fn heartbeat(&self, node: NodeId, disks: &[v1::Disk]) -> Option<Heartbeat> {
        let mut state = self.lock();
        let member = state.nodes.get_mut(&node).filter(|member| member.session.is_some())?;
        member.last_seen = self.started.now();
        let came_up = member.record.state == NodeState::Down;
        member.record.state = NodeState::Up;
        let mut changed = Vec::new();
        for disk in disks {
            let Some(known) = member.record.disks.iter_mut().find(|known| known.id == disk.id) else { continue };
            member.free.insert(known.number, disk.free_bytes);
            member.quarantined.insert(known.number, Quarantined::on(disk));
            if known.failed != disk.failed {
                known.failed = disk.failed;
                changed.push((known.number, disk.failed));
            }
        }
        Some(Heartbeat { came_up, disks: changed })
    }

    /// Takes down the nodes that were silent for too long; returns them.
    pub(crate) fn take_down_silent(&self) -> Vec<NodeRecord> {
        let now = self.started.now();
        let mut state = self.lock();
        let silent = |member: &&mut Member| member.record.state == NodeState::Up && now.since(member.last_seen) > self.down_after;
        let down = |member: &mut Member| {
            member.record.state = NodeState::Down;
            member.record.clone()
        };
        state.nodes.values_mut().filter(silent).map(down).collect()
    }

    /// A node failed another: it is avoided for a while.
    pub(crate) fn suspect(&self, node: NodeId) {
        let until = self.started.now() + self.suspect_for;
        self.lock().suspect(node, until);
    }

    /// A node complained of another, which is suspect for it. A node that is in a dispute with several is avoided for twice as long: it
    /// is taken after those that are in a dispute with it.
    pub(crate) fn dispute(&self, node: NodeId, accuser: NodeId) {
        let now = self.started.now();
        let mut state = self.lock();
        let common = state.disputes.note(node, accuser, now, self.suspect_for);
        common.into_iter().for_each(|node| state.suspect(node, now + self.suspect_for * 2));
    }

    /// A block could not be read: it is avoided for a while.
    pub(crate) fn suspect_block(&self, block: BlockId) {
        let now = self.started.now();
        let mut state = self.lock();
        let blocks = Arc::make_mut(&mut state.suspect_blocks);
        if blocks.len() >= SUSPECT_BLOCKS_MAX {
            blocks.retain(|_, until| *until > now);
        }
        if blocks.len() < SUSPECT_BLOCKS_MAX {
            blocks.insert(block, now + self.suspect_for);
        }
    }

    /// The nodes now.
    pub(crate) fn view(&self) -> View {
        let now = self.started.now();
        let state = self.lock();
        View {
            nodes: state.nodes.values().map(|member| (member.record.id, self.node_view(member, now))).collect(),
            suspect_blocks: Arc::clone(&state.suspect_blocks),
            now,
            coming_back: state.are_coming_back(),
        }
    }

    /// The node's session, if it is up.
    pub(crate) fn session(&self, node: NodeId) -> Option<Session> {
        let now = self.started.now();
        let state = self.lock();
        let member = state.nodes.get(&node)?;
        member.session.clone().filter(|_| self.is_up(member, now))
    }

    /// Whether the node has registered anew since the session began.
    pub(crate) fn has_registered_since(&self, session: &Session) -> bool {
        let state = self.lock();
        let now = state.nodes.get(&session.record.id).and_then(|member| member.session.as_ref());
        now.is_none_or(|now| now.link_key != session.link_key)
    }

    /// The node's name, as people know it.
    pub(crate) fn name(&self, node: NodeId) -> String {
        self.lock().nodes.get(&node).map_or_else(|| node.to_string(), |member| member.record.name.clone())
    }

    /// Whether a node of this name is up.
    pub(crate) fn is_name_up(&self, name: &str) -> bool {
        let now = self.started.now();
        self.lock().nodes.values().any(|member| member.record.name == name && self.is_up(member, now))
    }

    /// Whether it is too early to say who is down: nodes that were up before are still coming back.
    pub(crate) fn are_coming_back(&self) -> bool {
        self.lock().are_coming_back()
    }

    /// What each node that is up combines a second, in bytes, where that is known.
    pub(crate) fn coding_bytes_per_s(&self) -> BTreeMap<NodeId, f64> {
        let now = self.started.now();
        let state = self.lock();
        let rate = |member: &Member| {
            let session = member.session.as_ref().filter(|_| self.is_up(member, now))?;
            Some((member.record.id, session.coding_bytes_per_s as f64)).filter(|(_, rate)| *rate > 0.0)
        };
        state.nodes.values().filter_map(rate).collect()
    }

    /// What a status shows.
    pub(crate) fn statuses(&self) -> Vec<MemberStatus> {
        let now = self.started.now();
        let state = self.lock();
        let status = |member: &Member| MemberStatus {
            record: member.record.clone(),
            up: self.is_up(member, now),
            silent_for: now.since(member.last_seen),
            free: member.free.clone(),
            quarantined: member.quarantined.clone(),
            coding_bytes_per_s: member.session.as_ref().map_or(0, |session| session.coding_bytes_per_s),
        };
        state.nodes.values().map(status).collect()
    }

    /// How many blocks the disks have, as the metadata counts them.
    pub(crate) fn set_blocks(&self, counts: &[(DiskNumber, u64)]) {
        let counts: BTreeMap<DiskNumber, u64> = counts.iter().copied().collect();
        for member in self.lock().nodes.values_mut() {
            let of = |disk: DiskNumber| (disk, counts.get(&disk).copied().unwrap_or(0));
            member.blocks = member.record.disks.iter().map(|disk| of(disk.number)).collect();
        }
    }

    /// New blocks go to these homes: they count from now on.
    pub(crate) fn add_blocks(&self, homes: &[Home], bytes_each: u64) {
        let mut state = self.lock();
        for home in homes {
            if let Some(member) = state.nodes.get_mut(&home.node) {
                *member.blocks.entry(home.disk).or_default() += 1;
                // The next heartbeat tells how much is really left.
                if let Some(free) = member.free.get_mut(&home.disk) {
                    *free = free.saturating_sub(bytes_each);
                }
            }
        }
    }

    fn node_view(&self, member: &Member, now: Time) -> NodeView {
        let record = &member.record;
        let disk = |disk: &weft_meta::DiskRecord| DiskView {
            number: disk.number,
            id: disk.id.clone(),
            path: disk.path.clone(),
            total_bytes: disk.total_bytes,
            free_bytes: member.free.get(&disk.number).copied().unwrap_or(0),
            failed: disk.failed,
            blocks: member.blocks.get(&disk.number).copied().unwrap_or(0),
        };
        NodeView {
            id: record.id,
            name: record.name.clone(),
            rack: record.rack.clone(),
            up: self.is_up(member, now),
            suspect_for: member.suspect_until.map_or(Duration::ZERO, |until| until.since(now)),
            disks: record.disks.iter().map(disk).collect(),
        }
    }

    /// By the clock, not by the last look at it: a read goes around a silent node at once.
    fn is_up(&self, member: &Member, now: Time) -> bool {
        member.session.is_some() && now.since(member.last_seen) <= self.down_after
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one call, so a panic leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn suspect(&mut self, node: NodeId, until: Time) {
        if let Some(member) = self.nodes.get_mut(&node) {
            member.suspect_until = member.suspect_until.max(Some(until));
        }
    }

    fn are_coming_back(&self) -> bool {
        self.nodes.values().any(|member| member.session.is_none() && member.record.state == NodeState::Up)
    }
}

/// What a heartbeat changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    /// The node had been down.
    pub(crate) came_up: bool,
    /// Disks that failed (true) or recovered.
    pub(crate) disks: Vec<(DiskNumber, bool)>,
}

/// A new key for a node's links.
pub(crate) fn draw_link_key(rng: &mut StdRng) -> LinkKey {
    LinkKey::new(rng.random())
}
