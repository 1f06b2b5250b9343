//! Which silent nodes are lost, and how far repair goes without a person.

use crate::{Time, members::MemberStatus};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_types::{NodeId, NodeState, counted};

/// If at least this many nodes are silent, and more than this share of all, something else than their disks has probably failed.
const MANY_NODES: usize = 3;
const MANY_PERCENT: usize = 10;
/// While nodes come back one after the other, the last ones are not lost: so long after the last one, or less if nodes are lost after less.
const SETTLE: Duration = Duration::from_secs(60);

/// What people decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Whether lost blocks are rebuilt without a person.
    pub on: bool,
    /// A node that is silent for this long is lost.
    pub lost_after: Duration,
}

/// How far repair goes without a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Nothing is rebuilt.
    Nothing(Stop),
    /// Bad blocks, and those on lost nodes and failed disks, are rebuilt.
    Lost {
        /// Of stripes that survive at most this many further losses, also the blocks on nodes that are only silent.
        silent_slack: usize,
    },
}

/// Why nothing is rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// A person turned it off.
    Off,
    /// The coordinator has just started, and nodes may still come back.
    ComingBack,
    /// Most nodes are silent: it is probably the coordinator that is cut off.
    Minority {
        /// Nodes that are up.
        up: usize,
        /// Nodes that count.
        of: usize,
    },
}

/// Why silent nodes are not declared lost without a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// All nodes of a rack are silent: probably its switch or its power failed.
    Rack {
        /// The rack.
        rack: String,
        /// How many nodes it has.
        nodes: usize,
    },
    /// Many nodes are silent at the same time.
    Many {
        /// How many.
        silent: usize,
        /// Of how many.
        of: usize,
    },
}

/// The judgement about the nodes at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Nodes that are lost from now on.
    pub declared: Vec<NodeId>,
    /// How far repair goes.
    pub scope: Scope,
    /// Why no silent node is declared lost.
    pub guard: Option<Guard>,
    /// Silent nodes that are not lost, and how long at least until they are; zero if only a guard prevents it.
    pub silent: Vec<(NodeId, Duration)>,
}

impl Scope {
    /// Whether blocks leave nodes and disks that are being drained: a person asked for it, so also if lost blocks are rebuilt only when a
    /// person asks for that.
    pub fn moves(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Nothing(Stop::Off))
    }
}

impl Stop {
    /// The reason as text.
    pub fn text(&self) -> String {
        match self {
            Self::Off => "it is turned off: `weft repair auto on` turns it on".to_owned(),
            Self::ComingBack => "the coordinator has just started, and waits for nodes to come back".to_owned(),
            Self::Minority { up, of } => {
                format!("the coordinator hears only {up} of {of} nodes: check its network, or start the nodes")
            }
        }
    }
}

impl Guard {
    /// The reason as text.
    pub fn text(&self) -> String {
        let what = match self {
            Self::Rack { rack, nodes } => format!("all {} of rack {rack} are silent", counted(*nodes as u64, "node")),
            Self::Many { silent, of } => format!("{silent} of {of} nodes are silent"),
        };
        format!(
            "{what}, so none is declared lost without a person, and only stripes that survive at most one further loss are rebuilt: start \
             the nodes, or run `weft repair node NODE` for each that will not come back"
        )
    }
}

/// Judges the nodes again and again.
#[derive(Debug, Default)]
pub struct Judge {
    /// When the coordinator started, the last node came back that had been silent for long, or a guard was lifted.
    disturbed: Time,
    /// Whether too many nodes were silent to declare any of them lost.
    guarded: bool,
    /// The nodes that were silent for long, or lost.
    away: BTreeSet<NodeId>,
}

impl Judge {
    /// Judges the nodes. `coming_back`: whether the coordinator has just started and some nodes have not registered yet.
    pub fn judge(&mut self, nodes: &[MemberStatus], coming_back: bool, policy: Policy, now: Time) -> Judgement {
        let settle = settle(policy.lost_after);
        if nodes.iter().any(|node| node.up && self.away.contains(&node.record.id)) {
            self.disturbed = now;
        }
        // A node that restarts repeatedly must not delay the decisions about other nodes.
        let is_away = |node: &&MemberStatus| !node.up && (is_lost(node) || silent_for(node) >= settle);
        self.away = nodes.iter().filter(is_away).map(|node| node.record.id).collect();
        let unsettled = |since: Time| settle.saturating_sub(now.since(since));
        let judged = judge(nodes, coming_back, policy, unsettled(self.disturbed));
        let is_guarded = judged.guard.is_some() || matches!(judged.scope, Scope::Nothing(Stop::Minority { .. }));
        let was_guarded = std::mem::replace(&mut self.guarded, is_guarded);
        if !was_guarded || self.guarded {
            return judged;
        }
        self.disturbed = now;
        judge(nodes, coming_back, policy, settle)
    }
}

pub(super) fn settle(lost_after: Duration) -> Duration {
    SETTLE.min(lost_after)
}

fn is_lost(node: &MemberStatus) -> bool {
    !node.up && node.record.state == NodeState::Lost
}

/// Whether a node was drained and then switched off: nothing is missing.
fn is_retired(node: &MemberStatus) -> bool {
    !node.up && node.record.draining && node.disks.values().all(|disk| disk.blocks == 0)
}

/// The judgement about the nodes at one moment. `unsettled`: for how long none is declared lost.
///
/// A node that was lost before, or that a person has repaired, is no sign of anything, except in the count of its rack. One that was drained
/// before it became silent is none at all.
fn judge(nodes: &[MemberStatus], coming_back: bool, policy: Policy, unsettled: Duration) -> Judgement {
    let in_service: Vec<&MemberStatus> = nodes.iter().filter(|node| !is_retired(node)).collect();
    let alive: Vec<&MemberStatus> = in_service.iter().copied().filter(|node| !is_lost(node)).collect();
    let silent: Vec<&MemberStatus> = alive.iter().copied().filter(|node| !node.up).collect();
    let left = |node: &MemberStatus| policy.lost_after.saturating_sub(silent_for(node)).max(unsettled);
    let told: Vec<(NodeId, Duration)> = silent.iter().map(|node| (node.record.id, left(node))).collect();
    let (up, of) = (alive.len() - silent.len(), alive.len());
    let stop = match policy.on {
        false => Some(Stop::Off),
        true if coming_back => Some(Stop::ComingBack),
        true => (up * 2 < of).then_some(Stop::Minority { up, of }),
    };
    if let Some(stop) = stop {
        return Judgement { declared: Vec::new(), scope: Scope::Nothing(stop), guard: None, silent: told };
    }
    let guard = whole_rack(&in_service, &silent).or_else(|| many(silent.len(), of));
    let (expired, within): (Vec<_>, Vec<_>) = told.iter().copied().partition(|(_, left)| left.is_zero());
    // Within the time of a restart, only what would not survive a further loss is urgent.
    let silent_slack = usize::from(guard.is_some() && !expired.is_empty());
    let scope = Scope::Lost { silent_slack };
    match guard {
        None => Judgement { declared: expired.into_iter().map(|(node, _)| node).collect(), scope, guard, silent: within },
        Some(_) => Judgement { declared: Vec::new(), scope, guard, silent: told },
    }
}

/// How long a node has been silent; also before the coordinator's start.
fn silent_for(node: &MemberStatus) -> Duration {
    match node.record.state {
        // It is about to be recorded as down.
        NodeState::Up => node.silent_for,
        NodeState::Down | NodeState::Lost => node.state_for,
    }
}

/// A rack of several nodes that are all silent, not all of them lost before.
fn whole_rack(nodes: &[&MemberStatus], silent: &[&MemberStatus]) -> Option<Guard> {
    let mut racks: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for node in nodes {
        let (all, up) = racks.entry(&node.record.rack).or_default();
        *all += 1;
        *up += usize::from(node.up);
    }
    let is_silent = |rack: &str| silent.iter().any(|node| *node.record.rack == *rack);
    let whole = |(rack, (all, up)): &(&str, (usize, usize))| !rack.is_empty() && *all > 1 && *up == 0 && is_silent(rack);
    racks.into_iter().find(whole).map(|(rack, (nodes, _))| Guard::Rack { rack: rack.to_owned(), nodes })
}

fn many(silent: usize, of: usize) -> Option<Guard> {
    (silent >= MANY_NODES && silent * 100 > of * MANY_PERCENT).then_some(Guard::Many { silent, of })
}
