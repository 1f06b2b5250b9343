//! What the agents of a plan have told.

use super::blame::Blame;
use std::collections::BTreeMap;
use weft_meta::BlockState;
use weft_proto::{status::decode_error, v1};
use weft_types::{BlockId, Error, NodeId, Party, Reaction, Span};

/// What became of a plan at all its agents.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    pub(crate) nodes: BTreeMap<NodeId, NodeReport>,
    /// Who is to blame, if the plan failed and it is known.
    pub(crate) blame: Option<Blame>,
    /// Who held up the plan until it was ended, and how that is told.
    pub(crate) held_up: Option<(Blame, Error)>,
}

/// What became of one agent's task.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeReport {
    /// None: it still runs.
    pub(crate) end: Option<End>,
    /// Blocks that are durable now: their lengths and checksums.
    pub(crate) stored: BTreeMap<BlockId, Stored>,
    /// Positions of blocks that are not whole, kept for a plan that goes on.
    pub(crate) arrived: BTreeMap<BlockId, Vec<Span>>,
    pub(crate) traffic: v1::TaskTraffic,
    /// What its stages spent their time on, if it came to its end.
    pub(crate) stages: Vec<v1::StageTimes>,
    /// The bytes of blocks of its own that it found to be corrupt.
    pub(crate) corrupt: BTreeMap<BlockId, Vec<Span>>,
    /// Whom its stages wait for, and since when, milliseconds; itself: its own disk or processor.
    pub(crate) waiting: Vec<(Party, u32)>,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// The agent told why: the first is the cause.
    Failed(Vec<Error>),
    /// Nothing was heard of it any more.
    Broken(Error),
    /// It was cancelled since others had failed, and did not say more.
    GivenUp,
}

/// A durable block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) len: u64,
    pub(crate) units: Vec<u32>,
}

impl Report {
    pub(crate) fn new(nodes: impl Iterator<Item = NodeId>) -> Self {
        Self { nodes: nodes.map(|node| (node, NodeReport::default())).collect(), blame: None, held_up: None }
    }

    pub(crate) fn all_ended(&self) -> bool {
        self.nodes.values().all(|node| node.end.is_some())
    }

    pub(crate) fn any_failed(&self) -> bool {
        self.failed_nodes().next().is_some()
    }

    /// Why nothing was heard any more of somebody.
    pub(super) fn first_broken(&self) -> Option<&Error> {
        self.nodes.values().find_map(|node| match &node.end {
            Some(End::Broken(error)) => Some(error),
            _ => None,
        })
    }

    /// Those that ended otherwise than they should.
    pub(crate) fn failed_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let failed = self.nodes.iter().filter(|(_, node)| !matches!(node.end, None | Some(End::Done)));
        failed.map(|(id, _)| *id)
    }

    /// How many have ended.
    pub(super) fn ended_count(&self) -> usize {
        self.nodes.values().filter(|node| node.end.is_some()).count()
    }

    /// Those that have not ended.
    pub(crate) fn running(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|(_, node)| node.end.is_none()).map(|(id, _)| *id).collect()
    }

    /// Why the plan failed, for a person: the culprit's own words, if there are any.
    pub(crate) fn cause(&self) -> Error {
        if let Some((_, error)) = &self.held_up {
            return error.clone();
        }
        let ends = |id: &NodeId| self.nodes.get(id).and_then(NodeReport::first_error);
        let culprit = self.blame.and_then(|blame| ends(&blame.node));
        let any = || self.nodes.values().find_map(NodeReport::first_error);
        culprit.or_else(any).cloned().unwrap_or_else(|| Error::replan("the plan ended without a word"))
    }

    /// A block that became durable, wherever that was.
    pub(crate) fn stored(&self, block: BlockId) -> Option<&Stored> {
        self.nodes.values().find_map(|node| node.stored.get(&block))
    }

    /// Whether a block was rebuilt, on this node, to something that is not what it should be.
    pub(crate) fn is_not_what_was_lost(&self, block: BlockId, node: NodeId) -> bool {
        let refused = |error: &Error| error.reaction == Reaction::Corrupt && error.block == Some(block);
        self.stored(block).is_some() || self.nodes.get(&node).is_some_and(|node| node.errors().iter().any(refused))
    }

    /// Whether all that a node is blamed for is a block of its own that is bad.
    pub(crate) fn is_bad_block(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|report| report.bad_blocks(node).next().is_some())
    }

    /// What went through all disks and sockets.
    pub(crate) fn traffic(&self) -> v1::TaskTraffic {
        let add = |sum: v1::TaskTraffic, node: &NodeReport| add_traffic(sum, node.traffic);
        self.nodes.values().fold(v1::TaskTraffic::default(), add)
    }

    pub(super) fn progress(&mut self, id: NodeId, told: &v1::TaskProgress) {
        let Some(node) = self.open(id) else { return };
        let party = |bytes: &[u8]| match bytes {
            [] => Some(Party::Node(id)),
            bytes => postcard::from_bytes(bytes).ok(),
        };
        node.waiting = told.waiting.iter().filter_map(|wait| Some((party(&wait.party)?, wait.since_ms))).collect();
    }

    pub(super) fn done(&mut self, id: NodeId, done: v1::TaskDone) {
        let Some(node) = self.open(id) else { return };
        node.take_stored(done.stored);
        node.traffic = done.traffic.unwrap_or_default();
        node.stages = done.stages;
        node.end = Some(End::Done);
    }

    pub(super) fn failed(&mut self, id: NodeId, failed: v1::TaskFailed) {
        let Some(node) = self.open(id) else { return };
        node.take_stored(failed.stored);
        node.traffic = failed.traffic.unwrap_or_default();
        for arrived in failed.arrived {
            let spans = arrived.spans.iter().map(|span| Span::new(span.start, span.end)).collect();
            if let Ok(block) = postcard::from_bytes(&arrived.id) {
                node.arrived.insert(block, Span::normalize(spans));
            }
        }
        for found in failed.corrupt {
            if let Ok(block) = postcard::from_bytes(&found.block) {
                let bytes = Span::new(found.first_byte, found.first_byte.saturating_add(found.len_bytes));
                node.corrupt.entry(block).or_default().push(bytes);
            }
        }
        let mut errors: Vec<Error> = failed.errors.iter().filter_map(|bytes| decode_error(bytes)).collect();
        if errors.is_empty() {
            errors.push(Error::replan("its task failed without a word"));
        }
        let errors = errors.into_iter().map(|error| error.party(Party::Node(id))).collect();
        node.end = Some(End::Failed(errors));
    }

    /// Tells whether that was news.
    pub(super) fn broken(&mut self, id: NodeId, error: Error) -> bool {
        let Some(node) = self.open(id) else { return false };
        node.end = Some(End::Broken(error));
        true
    }

    pub(super) fn give_up_rest(&mut self) {
        for node in self.nodes.values_mut().filter(|node| node.end.is_none()) {
            node.end = Some(End::GivenUp);
        }
    }

    /// What a node told last counts: after its end nothing does.
    fn open(&mut self, id: NodeId) -> Option<&mut NodeReport> {
        self.nodes.get_mut(&id).filter(|node| node.end.is_none())
    }
}

impl NodeReport {
    pub(crate) fn errors(&self) -> &[Error] {
        match &self.end {
            Some(End::Failed(errors)) => errors,
            Some(End::Broken(error)) => std::slice::from_ref(error),
            _ => &[],
        }
    }

    pub(crate) fn first_error(&self) -> Option<&Error> {
        self.errors().first()
    }

    /// The blocks of its own disks that were found to be bad, or not to be there.
    pub(crate) fn bad_blocks(&self, id: NodeId) -> impl Iterator<Item = (BlockId, BlockState, &Error)> {
        let own = self.errors().iter().filter(move |error| error.party == Some(Party::Node(id)));
        own.filter_map(|error| Some((error.block?, bad_state(error)?, error)))
    }

    fn take_stored(&mut self, stored: Vec<v1::StoredBlock>) {
        for block in stored {
            if let Ok(id) = postcard::from_bytes(&block.id) {
                self.stored.insert(id, Stored { len: block.len, units: block.units });
            }
        }
    }
}

/// What an agent's error says of the block that it names.
pub(super) fn bad_state(error: &Error) -> Option<BlockState> {
    match error.reaction {
        Reaction::Corrupt => Some(BlockState::Corrupt),
        Reaction::NotFound => Some(BlockState::Missing),
        _ => None,
    }
}

/// The sum of two.
pub(crate) fn add_traffic(a: v1::TaskTraffic, b: v1::TaskTraffic) -> v1::TaskTraffic {
    a + b
}
