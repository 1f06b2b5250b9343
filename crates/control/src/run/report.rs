//! What the agents of a plan have told.

use crate::findings::Finding;
use std::collections::BTreeMap;
use weft_types::{BlockId, BlockState, Error, NodeId, Party, Reaction, Span, StageTimes, TaskTraffic};

/// Who is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blame {
    /// The node that is blamed.
    pub node: NodeId,
    /// Who complains of it. None: it needs nobody's complaint, since nothing was heard of it any more or its own disk failed it.
    /// A link that is broken has two ends, and who complains may as well be to blame.
    pub accuser: Option<NodeId>,
}

/// What became of a plan at all its agents.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What each agent has told.
    pub nodes: BTreeMap<NodeId, NodeReport>,
    /// Who is to blame, if the plan failed and it is known.
    pub blame: Option<Blame>,
    /// Who held up the plan until it was ended, and how that is told.
    pub held_up: Option<(Blame, Error)>,
}

/// What became of one agent's task.
#[derive(Debug, Clone, Default)]
pub struct NodeReport {
    /// None: it still runs.
    pub end: Option<End>,
    /// Blocks that are durable now: their lengths and checksums.
    pub stored: BTreeMap<BlockId, Stored>,
    /// Positions of blocks that are not whole, kept for a plan that goes on.
    pub arrived: BTreeMap<BlockId, Vec<Span>>,
    /// What went through its disks and sockets.
    pub traffic: TaskTraffic,
    /// What its stages spent their time on, if it came to its end.
    pub stages: Vec<StageTimes>,
    /// The bytes of blocks of its own that it found to be corrupt.
    pub corrupt: BTreeMap<BlockId, Vec<Span>>,
    /// Whom its stages wait for, and since when, milliseconds; itself: its own disk or processor.
    pub waiting: Vec<(Party, u32)>,
    /// Whether, when it last told of it, a stage of it waited for tasks of an earlier class at the node. No fault of the node's.
    pub held_back: bool,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It did its share.
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
pub struct Stored {
    /// Its bytes.
    pub len: u64,
    /// CRC32C of each MiB.
    pub checksums: Vec<u32>,
}

/// What an agent tells of its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    /// It goes on.
    Progress {
        /// What it has moved since the start, bytes.
        moved_bytes: u64,
        /// Whom its stages wait for, and since when, milliseconds; itself: its own disk or processor.
        waiting: Vec<(Party, u32)>,
        /// Whether a stage waits for tasks of an earlier class at the node, and for nothing else; such a wait is not in `waiting`.
        held_back: bool,
    },
    /// It did its share.
    Done {
        /// Blocks that are durable.
        stored: Vec<(BlockId, Stored)>,
        /// What it moved.
        traffic: TaskTraffic,
        /// What its stages spent their time on.
        stages: Vec<StageTimes>,
    },
    /// It could not.
    Failed {
        /// Blocks that are durable all the same.
        stored: Vec<(BlockId, Stored)>,
        /// Positions that it keeps of blocks that are not whole.
        arrived: Vec<(BlockId, Vec<Span>)>,
        /// Bytes of blocks of its own that are corrupt.
        corrupt: Vec<(BlockId, Span)>,
        /// What it moved.
        traffic: TaskTraffic,
        /// Why, the cause first.
        errors: Vec<Error>,
    },
}

impl Report {
    /// Of a plan whose tasks run at these nodes.
    pub fn new(nodes: impl Iterator<Item = NodeId>) -> Self {
        Self { nodes: nodes.map(|node| (node, NodeReport::default())).collect(), blame: None, held_up: None }
    }

    /// Whether none of them runs any more.
    pub fn all_ended(&self) -> bool {
        self.nodes.values().all(|node| node.end.is_some())
    }

    /// Whether one of them ended otherwise than it should.
    pub fn any_failed(&self) -> bool {
        self.failed_nodes().next().is_some()
    }

    /// Those that ended otherwise than they should.
    pub fn failed_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let failed = self.nodes.iter().filter(|(_, node)| !matches!(node.end, None | Some(End::Done)));
        failed.map(|(id, _)| *id)
    }

    /// How many have ended.
    pub fn ended_count(&self) -> usize {
        self.nodes.values().filter(|node| node.end.is_some()).count()
    }

    /// Those that have not ended.
    pub fn running(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|(_, node)| node.end.is_none()).map(|(id, _)| *id).collect()
    }

    /// Why the plan failed, for a person: the culprit's own words, if there are any.
    pub fn cause(&self) -> Error {
        if let Some((_, error)) = &self.held_up {
            return error.clone();
        }
        let ends = |id: &NodeId| self.nodes.get(id).and_then(NodeReport::first_error);
        let culprit = self.blame.and_then(|blame| ends(&blame.node));
        let any = || self.nodes.values().find_map(NodeReport::first_error);
        culprit.or_else(any).cloned().unwrap_or_else(|| Error::replan("the plan ended without a word"))
    }

    /// The receipt for a block from the node that it was sent to. What another node says of it counts for nothing.
    pub fn stored(&self, block: BlockId, home: NodeId) -> Option<&Stored> {
        self.nodes.get(&home)?.stored.get(&block)
    }

    /// Whether a block was rebuilt, on this node, to something that is not what it should be.
    pub fn is_not_what_was_lost(&self, block: BlockId, node: NodeId) -> bool {
        let refused = |error: &Error| error.reaction == Reaction::Corrupt && error.block == Some(block);
        self.stored(block, node).is_some() || self.nodes.get(&node).is_some_and(|node| node.errors().iter().any(refused))
    }

    /// Whether all that a node is blamed for is a block of its own that is bad.
    pub fn is_bad_block(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|report| report.bad_blocks(node).next().is_some())
    }

    /// What went through all disks and sockets.
    pub fn traffic(&self) -> TaskTraffic {
        let add = |sum: TaskTraffic, node: &NodeReport| sum + node.traffic;
        self.nodes.values().fold(TaskTraffic::default(), add)
    }

    /// Takes what a node tells. After its end nothing counts any more.
    pub fn take(&mut self, id: NodeId, event: TaskEvent) {
        let Some(node) = self.open(id) else { return };
        match event {
            TaskEvent::Progress { waiting, held_back, .. } => (node.waiting, node.held_back) = (waiting, held_back),
            TaskEvent::Done { stored, traffic, stages } => {
                node.stored.extend(stored);
                (node.traffic, node.stages) = (traffic, stages);
                node.end = Some(End::Done);
            }
            TaskEvent::Failed { stored, arrived, corrupt, traffic, mut errors } => {
                node.stored.extend(stored);
                node.traffic = traffic;
                node.arrived.extend(arrived.into_iter().map(|(block, spans)| (block, Span::normalize(spans))));
                for (block, bytes) in corrupt {
                    node.corrupt.entry(block).or_default().push(bytes);
                }
                if errors.is_empty() {
                    errors.push(Error::replan("its task failed without a word"));
                }
                node.end = Some(End::Failed(errors.into_iter().map(|error| error.party(Party::Node(id))).collect()));
            }
        }
    }

    /// Nothing is heard of a node any more. Tells whether that was news.
    pub fn broken(&mut self, id: NodeId, error: Error) -> bool {
        let Some(node) = self.open(id) else { return false };
        node.end = Some(End::Broken(error));
        true
    }

    /// Nobody waits any more for those that have not ended.
    pub fn give_up_rest(&mut self) {
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
    /// Why it failed, the cause first.
    pub fn errors(&self) -> &[Error] {
        match &self.end {
            Some(End::Failed(errors)) => errors,
            Some(End::Broken(error)) => std::slice::from_ref(error),
            _ => &[],
        }
    }

    /// The cause.
    pub fn first_error(&self) -> Option<&Error> {
        self.errors().first()
    }

    /// The blocks of its own disks that were found to be bad, or not to be there.
    pub fn bad_blocks(&self, id: NodeId) -> impl Iterator<Item = (BlockId, BlockState, &Error)> {
        let own = self.errors().iter().filter(move |error| error.party == Some(Party::Node(id)));
        own.filter_map(|error| Some((error.block?, bad_state(error)?, error)))
    }

    /// What it says of them. Where the corrupt bytes are not told, a block is lost as a whole.
    pub fn findings(&self, id: NodeId) -> impl Iterator<Item = (BlockId, Finding, &Error)> {
        let finding = |(block, state, error)| match self.corrupt.get(&block) {
            Some(bytes) if state == BlockState::Corrupt => (block, Finding::Corrupt(bytes.clone()), error),
            _ => (block, Finding::Lost(state), error),
        };
        self.bad_blocks(id).map(finding)
    }
}

/// What an agent's error says of the block that it names.
pub fn bad_state(error: &Error) -> Option<BlockState> {
    match error.reaction {
        Reaction::Corrupt => Some(BlockState::Corrupt),
        Reaction::NotFound => Some(BlockState::Missing),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::StripeId;

    #[test]
    fn a_receipt_counts_from_the_home_alone() {
        let block = BlockId { stripe: StripeId(1), index: 2, copy: 0, generation: 1 };
        let (home, other) = (NodeId(1), NodeId(2));
        let receipt = Stored { len: 4096, checksums: vec![7] };
        let done =
            || TaskEvent::Done { stored: vec![(block, receipt.clone())], traffic: TaskTraffic::default(), stages: Vec::new() };
        let mut report = Report::new([home, other].into_iter());
        report.take(other, done());
        assert_eq!(report.stored(block, home), None, "another node's word");
        assert!(!report.is_not_what_was_lost(block, home));
        report.take(home, done());
        assert_eq!(report.stored(block, home), Some(&receipt));
        report.take(home, TaskEvent::Done { stored: Vec::new(), traffic: TaskTraffic::default(), stages: Vec::new() });
        assert_eq!(report.stored(block, home), Some(&receipt), "after its end a task tells nothing");
    }

    #[test]
    fn what_a_node_says_of_its_own_blocks_is_found_and_corrupt_bytes_where_they_are_told() {
        let block = |index| BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 };
        let (own, other, bytes) = (NodeId(1), NodeId(2), Span::new(0, 4096));
        let error = |error: Error, index, node| error.block(block(index)).party(Party::Node(node));
        let errors = vec![
            error(Error::corrupt("page 3"), 0, own),
            error(Error::corrupt("page 4"), 1, own),
            error(Error::not_found("no file"), 2, own),
            error(Error::corrupt("page 5"), 3, other),
            error(Error::replan("reset"), 4, own),
        ];
        let corrupt = [(block(0), vec![bytes]), (block(2), vec![bytes])].into();
        let told = NodeReport { end: Some(End::Failed(errors)), corrupt, ..NodeReport::default() };
        let found: Vec<_> = told.findings(own).map(|(block, finding, _)| (block.index, finding)).collect();
        let [whole, missing] = [BlockState::Corrupt, BlockState::Missing].map(Finding::Lost);
        assert_eq!(found, [(0, Finding::Corrupt(vec![bytes])), (1, whole), (2, missing)]);
    }
}
