//! The state of the nodes from their heartbeats: which are up, which are suspect, and their disks' free space. A view
//! is a snapshot of it.

mod suspicion;

pub use suspicion::Suspect;

use crate::{
    Time,
    disk_health::Served,
    disputes::Disputes,
    view::{DiskView, NodeView, View},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use suspicion::Suspicion;
use weft_types::{BlockId, DiskNumber, DiskRecord, Home, NodeId, NodeRecord, NodeState};

/// The most blocks that are suspect at the same time.
const SUSPECT_BLOCKS_MAX: usize = 10_000;

/// The nodes.
#[derive(Debug)]
pub struct Members {
    nodes: BTreeMap<NodeId, Member>,
    disputes: Disputes,
    /// Until when each block is avoided. Views share this map, which changes seldom.
    suspect_blocks: Arc<BTreeMap<BlockId, Time>>,
    /// A node that is silent for longer is down.
    down_after: Duration,
    /// How long a node or block that failed is avoided.
    suspect_for: Duration,
    /// A moment, and the time of day then, in milliseconds since 1970. If the clock of the machine jumps later, times since when nodes are
    /// in their states stay right.
    time_of_day: (Time, u64),
}

#[derive(Debug)]
struct Member {
    record: NodeRecord,
    /// Whether the metadata may have another state, because it is not known whether it was recorded that the node is down.
    in_doubt: bool,
    /// Whether it has registered with this coordinator.
    registered: bool,
    /// Whether its agent has opened disks.
    has_disks: bool,
    /// The coordinator's start, until the node registers.
    last_seen: Time,
    suspicion: Option<Suspicion>,
    disks: BTreeMap<DiskNumber, DiskState>,
    /// Coding rate, in bytes a second; 0 if unknown.
    coding_bytes_per_s: u64,
    /// Fsyncs of all its disks since its agent started.
    fsyncs: u64,
}

/// The state of a disk besides its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskState {
    /// Free bytes.
    pub free_bytes: u64,
    /// Equal for disks on one file system of one machine; 0: unknown.
    pub file_system: u64,
    /// The size of its quarantine.
    pub quarantined: Quarantined,
    /// The number of its blocks in the metadata.
    pub blocks: u64,
    /// Whether its agent listed it when it registered.
    pub listed: bool,
    /// What it has served lately, from its last heartbeat.
    pub served: Served,
    /// For how long it had not answered its agent by then; zero if it answers.
    pub silent_for: Duration,
    /// What it reads and writes together, bytes a second; 0 if unknown.
    pub bytes_per_s: u64,
}

/// The size of a disk's quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quarantined {
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// An agent's report on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskReport {
    /// The disk's id.
    pub id: String,
    /// Whether it failed.
    pub failed: bool,
    /// Free bytes.
    pub free_bytes: u64,
    /// Equal for disks on one file system of one machine; 0: unknown.
    pub file_system: u64,
    /// The size of its quarantine.
    pub quarantined: Quarantined,
    /// What it has served lately.
    pub served: Served,
    /// For how long it has not answered its agent; zero if it answers.
    pub silent_for: Duration,
    /// What it reads and writes together, bytes a second; 0 if unknown.
    pub bytes_per_s: u64,
}

/// The status of a node.
#[derive(Debug, Clone)]
pub struct MemberStatus {
    /// The node.
    pub record: NodeRecord,
    /// Whether it is up.
    pub up: bool,
    /// The time since its last heartbeat, or since the coordinator's start.
    pub silent_for: Duration,
    /// How long it has been in its recorded state; also before the coordinator's start.
    pub state_for: Duration,
    /// Its disks, by number.
    pub disks: BTreeMap<DiskNumber, DiskState>,
    /// Coding rate, in bytes a second; 0 if unknown.
    pub coding_bytes_per_s: u64,
    /// Fsyncs of all its disks since its agent started, from its last heartbeat.
    pub fsyncs: u64,
    /// For how long plans still avoid it although it is up; zero if they do not.
    pub suspect_for: Duration,
    /// Why, if they do.
    pub suspect: Option<Suspect>,
}

/// The changes after a heartbeat.
#[derive(Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// If the node had been down or lost: since when it is up, milliseconds since 1970. [`Members::came_up`] confirms it.
    pub came_up: Option<u64>,
    /// Disks that failed (true) or recovered. If that cannot be recorded: [`Members::disk_not_recorded`].
    pub disks: Vec<(DiskNumber, bool)>,
}

impl Members {
    /// The known nodes at start-up, none of which has sent a heartbeat yet. `now_ms`: the time of day, in milliseconds since 1970.
    pub fn new(records: Vec<NodeRecord>, down_after: Duration, suspect_for: Duration, now: Time, now_ms: u64) -> Self {
        let member = |record: NodeRecord| {
            let (last_seen, disks) = (now, BTreeMap::new());
            let member = Member {
                record,
                in_doubt: false,
                registered: false,
                has_disks: false,
                last_seen,
                suspicion: None,
                disks,
                coding_bytes_per_s: 0,
                fsyncs: 0,
            };
            (member.record.id, member)
        };
        let nodes = records.into_iter().map(member).collect();
        let (disputes, suspect_blocks, time_of_day) = (Disputes::default(), Arc::default(), (now, now_ms));
        Self { nodes, disputes, suspect_blocks, down_after, suspect_for, time_of_day }
    }

    /// A node has registered, with this report on its disks. Clears earlier suspicions. A new agent first registers without disks, to learn
    /// the cluster that it opens them for; it is up only when it registers again with them.
    pub fn registered(&mut self, record: NodeRecord, coding_bytes_per_s: u64, told: &[DiskReport], now: Time) {
        self.disputes.forget(record.id);
        let before = self.nodes.remove(&record.id).map(|before| before.disks).unwrap_or_default();
        let disk = |known: &DiskRecord| {
            let blocks = before.get(&known.number).map_or(0, |before| before.blocks);
            let state = DiskState { blocks, ..DiskState::default() };
            (known.number, told.iter().find(|told| *told.id == *known.id).map_or(state, |told| state.after(told)))
        };
        let disks = record.disks.iter().map(disk).collect();
        let member = Member {
            in_doubt: false,
            registered: true,
            has_disks: !told.is_empty(),
            last_seen: now,
            suspicion: None,
            disks,
            coding_bytes_per_s,
            fsyncs: 0,
            record,
        };
        self.nodes.insert(member.record.id, member);
    }

    /// The blocks of a node that came back have been checked.
    pub fn checked(&mut self, node: NodeId) {
        if let Some(member) = self.nodes.get_mut(&node) {
            member.record.came_back = false;
        }
    }

    /// A node or, with `disk`, one of its disks is being drained, or no longer.
    pub fn set_draining(&mut self, node: NodeId, disk: Option<DiskNumber>, on: bool) {
        let Some(record) = self.nodes.get_mut(&node).map(|member| &mut member.record) else { return };
        match disk {
            None => record.draining = on,
            Some(number) => record.disks.iter_mut().filter(|disk| disk.number == number).for_each(|disk| {
                (disk.draining, disk.kept, disk.retired) = (on, !on, false);
            }),
        }
    }

    /// A disk is drained for good.
    pub fn retire(&mut self, home: Home) {
        let disks = self.nodes.get_mut(&home.node).into_iter().flat_map(|member| &mut member.record.disks);
        disks.filter(|disk| disk.number == home.disk).for_each(|disk| {
            (disk.draining, disk.kept, disk.retired) = (true, false, true);
        });
    }

    /// Whether the metadata has the node.
    pub fn has(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// A node was removed from the metadata.
    pub fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
        self.disputes.forget(node);
    }

    /// A disk was removed from the metadata.
    pub fn forget_disk(&mut self, home: Home) {
        if let Some(member) = self.nodes.get_mut(&home.node) {
            member.record.disks.retain(|disk| disk.number != home.disk);
            member.disks.remove(&home.disk);
        }
    }

    /// The disks of a node have changed in the metadata, or whether its blocks must be checked.
    pub fn refresh(&mut self, now: &NodeRecord) {
        if let Some(member) = self.nodes.get_mut(&now.id) {
            member.record.disks.clone_from(&now.disks);
            member.record.came_back = now.came_back;
            member.disks.retain(|number, _| now.disks.iter().any(|disk| disk.number == *number));
        }
    }

    /// The node that has the disk with this id in the metadata.
    pub fn owner_of(&self, disk: &str) -> Option<NodeId> {
        let has = |member: &&Member| member.record.disks.iter().any(|known| *known.id == *disk);
        self.nodes.values().find(has).map(|member| member.record.id)
    }

    /// Where a disk is now, if it was moved to another node.
    pub fn moved_to(&self, home: Home) -> Option<Home> {
        self.nodes.get(&home.node)?.record.disks.iter().find(|disk| disk.number == home.disk)?.moved_to
    }

    /// Whether the metadata has the disk.
    pub fn has_disk(&self, home: Home) -> bool {
        self.nodes.get(&home.node).is_some_and(|member| member.record.disks.iter().any(|disk| disk.number == home.disk))
    }

    /// The time of day, milliseconds since 1970.
    fn ms(&self, at: Time) -> u64 {
        let (start, ms) = self.time_of_day;
        ms.saturating_add(u64::try_from(at.since(start).as_millis()).unwrap_or(u64::MAX))
    }

    /// Handles a heartbeat, with the report on the node's disks. `None` if the node must register first.
    pub fn heartbeat(&mut self, node: NodeId, told: &[DiskReport], fsyncs: u64, now: Time) -> Option<Heartbeat> {
        let now_ms = self.ms(now);
        let member = self.nodes.get_mut(&node).filter(|member| member.registered)?;
        (member.last_seen, member.fsyncs) = (now, fsyncs);
        let came_up = (member.record.state != NodeState::Up || member.in_doubt).then_some(now_ms);
        let mut changed = Vec::new();
        for told in told {
            let Some(known) = member.record.disks.iter_mut().find(|known| *known.id == *told.id) else { continue };
            let state = member.disks.entry(known.number).or_default();
            *state = state.after(told);
            if known.failed != told.failed {
                known.failed = told.failed;
                changed.push((known.number, told.failed));
            }
        }
        Some(Heartbeat { came_up, disks: changed })
    }

    /// It was recorded that a node had been down or lost, and is up since this moment. Until then, each heartbeat says so.
    pub fn came_up(&mut self, node: NodeId, since_ms: u64) {
        let Some(member) = self.nodes.get_mut(&node) else { return };
        member.in_doubt = false;
        if member.record.state != NodeState::Up {
            member.record.came_back |= member.record.is_long_away(since_ms);
            (member.record.state, member.record.since_ms) = (NodeState::Up, since_ms);
        }
    }

    /// Marks nodes as down that were silent for too long; returns them.
    pub fn take_down_silent(&mut self, now: Time) -> Vec<NodeRecord> {
        let silent = |member: &Member| member.record.state == NodeState::Up && now.since(member.last_seen) > self.down_after;
        let silent = self.nodes.values().filter(|member| silent(member));
        let silent: Vec<(NodeId, u64)> = silent.map(|member| (member.record.id, self.ms(member.last_seen))).collect();
        silent.into_iter().filter_map(|(node, since_ms)| self.change(node, NodeState::Down, since_ms)).collect()
    }

    /// It could not be recorded that a node is down, or it is not known whether it was. If it stays silent, it is taken down again: otherwise it
    /// would not be recorded later that it is lost, and its blocks would not be checked when it comes back. If it is heard again, that is recorded.
    pub fn not_recorded(&mut self, node: NodeId) {
        if let Some(member) = self.nodes.get_mut(&node).filter(|member| member.record.state == NodeState::Down) {
            (member.record.state, member.in_doubt) = (NodeState::Up, true);
        }
    }

    /// It could not be recorded that a disk failed or recovered: the next heartbeat says so again.
    pub fn disk_not_recorded(&mut self, node: NodeId, disk: DiskNumber, failed: bool) {
        let disks = self.nodes.get_mut(&node).into_iter().flat_map(|member| &mut member.record.disks);
        disks.filter(|known| known.number == disk).for_each(|known| known.failed = !failed);
    }

    /// Declares nodes lost that are down; returns them.
    pub fn declare_lost(&mut self, nodes: &[NodeId], now: Time) -> Vec<NodeRecord> {
        let (is_down, now_ms) =
            (|id: &&NodeId| self.nodes.get(id).is_some_and(|it| it.record.state == NodeState::Down), self.ms(now));
        let down: Vec<NodeId> = nodes.iter().filter(is_down).copied().collect();
        down.into_iter().filter_map(|node| self.change(node, NodeState::Lost, now_ms)).collect()
    }

    fn change(&mut self, node: NodeId, state: NodeState, since_ms: u64) -> Option<NodeRecord> {
        let member = self.nodes.get_mut(&node)?;
        member.in_doubt = false;
        let record = &mut member.record;
        (record.state, record.since_ms) = (state, since_ms);
        Some(record.clone())
    }

    /// Avoids a node for a while after it failed another node. `why`: for a person; empty if it is not known.
    pub fn suspect(&mut self, node: NodeId, why: &str, now: Time) {
        if let Some(member) = self.nodes.get_mut(&node) {
            member.suspicion = Some(Suspicion::after(member.suspicion.take(), why, now, self.suspect_for));
        }
    }

    /// Records that one of two nodes blamed the other. A node that is at fault according to its disputes is avoided for
    /// twice as long, so that it comes after the nodes in dispute with it.
    pub fn dispute(&mut self, one: NodeId, other: NodeId, now: Time) {
        self.disputes.note(one, other, now, self.suspect_for);
    }

    /// For how long a node is still avoided.
    fn suspect_for(&self, member: &Member, now: Time) -> Duration {
        let at_fault = self.disputes.at_fault_since(member.record.id).map(|since| since + self.suspect_for * 2);
        member.suspicion.as_ref().map(|it| it.until).max(at_fault).map_or(Duration::ZERO, |until| until.since(now))
    }

    /// Avoids a block for a while after it could not be read.
    pub fn suspect_block(&mut self, block: BlockId, now: Time) {
        let blocks = Arc::make_mut(&mut self.suspect_blocks);
        if blocks.len() >= SUSPECT_BLOCKS_MAX {
            blocks.retain(|_, until| *until > now);
        }
        if blocks.len() < SUSPECT_BLOCKS_MAX {
            blocks.insert(block, now + self.suspect_for);
        }
    }

    /// The number of nodes, up or down.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The current view.
    pub fn view(&self, now: Time) -> View {
        View {
            nodes: self.nodes.values().map(|member| (member.record.id, self.node_view(member, now))).collect(),
            suspect_blocks: Arc::clone(&self.suspect_blocks),
            now,
            coming_back: self.are_coming_back(),
        }
    }

    /// Whether a node is up. This depends on the time and not on the last check, so that a read avoids a silent node at
    /// once.
    pub fn is_up(&self, node: NodeId, now: Time) -> bool {
        self.nodes.get(&node).is_some_and(|member| self.is_member_up(member, now))
    }

    /// The node's name.
    pub fn name(&self, node: NodeId) -> String {
        self.nodes.get(&node).map_or_else(|| node.to_string(), |member| member.record.name.to_string())
    }

    /// Whether a node of this name is up.
    pub fn is_name_up(&self, name: &str, now: Time) -> bool {
        self.nodes.values().any(|member| &*member.record.name == name && self.is_member_up(member, now))
    }

    /// Whether some nodes that were up before the coordinator started have not returned yet, so that it is too early to
    /// say which are down.
    pub fn are_coming_back(&self) -> bool {
        self.nodes.values().any(|member| !member.registered && member.record.state == NodeState::Up)
    }

    /// The coding rates of the nodes that are up, in bytes a second, where known.
    pub fn coding_bytes_per_s(&self, now: Time) -> BTreeMap<NodeId, f64> {
        let known = self.nodes.values().filter(|member| member.coding_bytes_per_s > 0 && self.is_member_up(member, now));
        known.map(|member| (member.record.id, member.coding_bytes_per_s as f64)).collect()
    }

    /// The status of all nodes.
    pub fn statuses(&self, now: Time) -> Vec<MemberStatus> {
        self.nodes.values().map(|member| self.status_of(member, now)).collect()
    }

    /// The status of a node, if the metadata has it.
    pub fn status(&self, node: NodeId, now: Time) -> Option<MemberStatus> {
        self.nodes.get(&node).map(|member| self.status_of(member, now))
    }

    fn status_of(&self, member: &Member, now: Time) -> MemberStatus {
        let (up, suspect) = (self.is_member_up(member, now), self.suspect_of(member, now));
        MemberStatus {
            record: member.record.clone(),
            up,
            silent_for: now.since(member.last_seen),
            state_for: Duration::from_millis(self.ms(now).saturating_sub(member.record.since_ms)),
            disks: member.disks.clone(),
            coding_bytes_per_s: if member.registered { member.coding_bytes_per_s } else { 0 },
            fsyncs: member.fsyncs,
            suspect_for: if up { self.suspect_for(member, now) } else { Duration::ZERO },
            suspect: suspect.filter(|_| up),
        }
    }

    /// Sets the number of blocks on each disk, from the metadata; a disk that is missing has none.
    pub fn set_blocks(&mut self, counts: &[(DiskNumber, u64)]) {
        let counts: BTreeMap<DiskNumber, u64> = counts.iter().copied().collect();
        for member in self.nodes.values_mut() {
            for disk in &member.record.disks {
                member.disks.entry(disk.number).or_default().blocks = counts.get(&disk.number).copied().unwrap_or(0);
            }
        }
    }

    /// Counts new blocks at these homes at once. The next heartbeat reports the real free space.
    pub fn add_blocks(&mut self, homes: &[Home], bytes_each: u64) {
        for home in homes {
            if let Some(disk) = self.nodes.get_mut(&home.node).map(|member| member.disks.entry(home.disk).or_default()) {
                disk.blocks += 1;
                disk.free_bytes = disk.free_bytes.saturating_sub(bytes_each);
            }
        }
    }

    fn node_view(&self, member: &Member, now: Time) -> NodeView {
        let record = &member.record;
        let disk = |disk: &DiskRecord| {
            let state = member.disks.get(&disk.number).copied().unwrap_or_default();
            let DiskState { free_bytes, file_system, blocks, bytes_per_s, .. } = state;
            let (id, path, total_bytes) = (Arc::clone(&disk.id), Arc::clone(&disk.path), disk.total_bytes);
            let draining = record.draining || disk.draining;
            DiskView {
                number: disk.number,
                id,
                path,
                total_bytes,
                free_bytes,
                file_system,
                failed: disk.failed,
                draining,
                blocks,
                bytes_per_s,
            }
        };
        NodeView {
            id: record.id,
            name: Arc::clone(&record.name),
            rack: Arc::clone(&record.rack),
            up: self.is_member_up(member, now),
            lost: record.state == NodeState::Lost,
            suspect_for: self.suspect_for(member, now),
            disks: record.disks.iter().map(disk).collect(),
        }
    }

    fn is_member_up(&self, member: &Member, now: Time) -> bool {
        member.registered && member.has_disks && now.since(member.last_seen) <= self.down_after
    }
}

impl DiskState {
    fn after(self, told: &DiskReport) -> Self {
        // A disk that fails no longer says where it is.
        let file_system = if told.file_system == 0 { self.file_system } else { told.file_system };
        let DiskReport { free_bytes, quarantined, served, silent_for, bytes_per_s, .. } = *told;
        Self { free_bytes, file_system, quarantined, listed: true, served, silent_for, bytes_per_s, ..self }
    }
}

#[cfg(test)]
mod tests;
