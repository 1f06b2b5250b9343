//! The reports of a plan's agents.

use crate::findings::Finding;
use std::collections::BTreeMap;
use weft_types::{BlockId, BlockState, Cause, Error, NodeId, Party, Reaction, Span, StageTimes, TaskTraffic};

/// The node to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blame {
    /// The node.
    pub node: NodeId,
    /// The node that blames it. `None` if no complaint is needed, because the node was silent or its own disk failed.
    /// If a link breaks, either end may be at fault, so the accuser may be too.
    pub accuser: Option<NodeId>,
}

/// The outcome of a plan at all its agents.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The report of each agent.
    pub nodes: BTreeMap<NodeId, NodeReport>,
    /// The node to blame, if the plan failed and it is known.
    pub blame: Option<Blame>,
    /// The node that delayed the plan until it was ended, and the error for it.
    pub held_up: Option<(Blame, Error)>,
    /// Whether it may have failed only because the links of its nodes are full with what other plans move. Another plan should do without the
    /// node to blame, but the node may be in order.
    pub starved: bool,
}

/// The report on one agent's task.
#[derive(Debug, Clone, Default)]
pub struct NodeReport {
    /// How it ended; `None` while it runs.
    pub end: Option<End>,
    /// Blocks that are durable: their lengths and checksums.
    pub stored: BTreeMap<BlockId, Stored>,
    /// Positions of incomplete blocks, kept for a plan that resumes.
    pub arrived: BTreeMap<BlockId, Vec<Span>>,
    /// The traffic of its disks and sockets.
    pub traffic: TaskTraffic,
    /// How long its stages spent on what, if it finished.
    pub stages: Vec<StageTimes>,
    /// The corrupt bytes that it found in its own blocks.
    pub corrupt: BTreeMap<BlockId, Vec<Span>>,
    /// The parties that its stages wait for, and for how long, milliseconds; itself: its own disk or processor.
    pub waiting: Vec<(Party, u32)>,
    /// Whether, at its last report, one of its stages waited for tasks of an earlier class. This is no fault of the
    /// node.
    pub held_back: bool,
    /// Whether any of its reports said so: then its times do not show how fast the node is.
    pub was_held_back: bool,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It finished.
    Done,
    /// It failed with these errors; the first is the cause.
    Failed(Vec<Error>),
    /// Contact with it was lost.
    Broken(Error),
    /// It was cancelled after others had failed, and did not answer.
    GivenUp,
}

/// A durable block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its length, bytes.
    pub len: u64,
    /// The CRC32C of each MiB.
    pub checksums: Vec<u32>,
}

/// An agent's event about its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    /// Progress.
    Progress {
        /// The bytes sent and received since the start.
        moved_bytes: u64,
        /// Of these, received; 0 from an agent that does not tell.
        received_bytes: u64,
        /// The parties that its stages wait for, and for how long, milliseconds; itself: its own disk or processor.
        waiting: Vec<(Party, u32)>,
        /// Whether a stage waits only for tasks of an earlier class at the node; such a wait is not in `waiting`.
        held_back: bool,
    },
    /// It finished.
    Done {
        /// Blocks that are durable.
        stored: Vec<(BlockId, Stored)>,
        /// Its traffic.
        traffic: TaskTraffic,
        /// How long its stages spent on what.
        stages: Vec<StageTimes>,
    },
    /// It failed.
    Failed {
        /// Blocks that are durable despite the failure.
        stored: Vec<(BlockId, Stored)>,
        /// Positions that it keeps of incomplete blocks.
        arrived: Vec<(BlockId, Vec<Span>)>,
        /// Corrupt bytes of its own blocks.
        corrupt: Vec<(BlockId, Span)>,
        /// Its traffic.
        traffic: TaskTraffic,
        /// The errors, the cause first.
        errors: Vec<Error>,
    },
}

impl Report {
    /// For a plan whose tasks run at these nodes.
    pub fn new(nodes: impl Iterator<Item = NodeId>) -> Self {
        Self { nodes: nodes.map(|node| (node, NodeReport::default())).collect(), blame: None, held_up: None, starved: false }
    }

    /// Whether no task is running any more.
    pub fn all_ended(&self) -> bool {
        self.nodes.values().all(|node| node.end.is_some())
    }

    /// Whether any task failed.
    pub fn any_failed(&self) -> bool {
        self.failed_nodes().next().is_some()
    }

    /// Whether a disk was full.
    pub fn lacks_space(&self) -> bool {
        self.nodes.values().flat_map(NodeReport::errors).any(|error| error.cause == Some(Cause::NoSpace))
    }

    /// The nodes whose tasks failed.
    pub fn failed_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let failed = self.nodes.iter().filter(|(_, node)| !matches!(node.end, None | Some(End::Done)));
        failed.map(|(id, _)| *id)
    }

    /// The number of ended tasks.
    pub fn ended_count(&self) -> usize {
        self.nodes.values().filter(|node| node.end.is_some()).count()
    }

    /// The nodes whose tasks are running.
    pub fn running(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|(_, node)| node.end.is_none()).map(|(id, _)| *id).collect()
    }

    /// Why the plan failed, for an operator: the culprit's own error, if there is one.
    pub fn cause(&self) -> Error {
        if let Some((_, error)) = &self.held_up {
            return error.clone();
        }
        let ends = |id: &NodeId| self.nodes.get(id).and_then(NodeReport::first_error);
        let culprit = self.blame.and_then(|blame| ends(&blame.node));
        let any = || self.nodes.values().find_map(NodeReport::first_error);
        culprit.or_else(any).cloned().unwrap_or_else(|| Error::replan("the plan ended without an error"))
    }

    /// The receipt for a block from its own home. Other nodes' receipts do not count.
    pub fn stored(&self, block: BlockId, home: NodeId) -> Option<&Stored> {
        self.nodes.get(&home)?.stored.get(&block)
    }

    /// Whether a block was rebuilt on this node with wrong checksums.
    pub fn is_not_what_was_lost(&self, block: BlockId, node: NodeId) -> bool {
        let refused = |error: &Error| error.reaction == Reaction::Corrupt && error.block == Some(block);
        self.stored(block, node).is_some() || self.nodes.get(&node).is_some_and(|node| node.errors().iter().any(refused))
    }

    /// Whether a node is blamed only for a bad block of its own.
    pub fn is_bad_block(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|report| report.bad_blocks(node).next().is_some())
    }

    /// The error of a check that was not zero: what its blocks contain is not consistent, although each of their pages is right. It does not
    /// say which block is wrong.
    pub fn inconsistency(&self) -> Option<&Error> {
        let of_itself =
            |id: NodeId, error: &Error| error.cause == Some(Cause::Inconsistent) && error.party == Some(Party::Node(id));
        self.nodes.iter().find_map(|(id, node)| node.errors().iter().find(|error| of_itself(*id, error)))
    }

    /// The traffic of all disks and sockets.
    pub fn traffic(&self) -> TaskTraffic {
        let add = |sum: TaskTraffic, node: &NodeReport| sum + node.traffic;
        self.nodes.values().fold(TaskTraffic::default(), add)
    }

    /// Adds a node's event. Events after the end of its task are ignored.
    pub fn take(&mut self, id: NodeId, event: TaskEvent) {
        let Some(node) = self.open(id) else { return };
        match event {
            TaskEvent::Progress { waiting, held_back, .. } => {
                (node.waiting, node.held_back) = (waiting, held_back);
                node.was_held_back |= held_back;
            }
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
                    errors.push(Error::replan("its task failed without an error"));
                }
                node.end = Some(End::Failed(errors.into_iter().map(|error| error.party(Party::Node(id))).collect()));
            }
        }
    }

    /// Records that contact with a node is lost. Returns whether that is new.
    pub fn broken(&mut self, id: NodeId, error: Error) -> bool {
        let Some(node) = self.open(id) else { return false };
        node.end = Some(End::Broken(error));
        true
    }

    /// Gives up the tasks that have not ended.
    pub fn give_up_rest(&mut self) {
        for node in self.nodes.values_mut().filter(|node| node.end.is_none()) {
            node.end = Some(End::GivenUp);
        }
    }

    /// The report of a node whose task has not ended.
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

    /// The blocks on its own disks that were found bad or missing.
    pub fn bad_blocks(&self, id: NodeId) -> impl Iterator<Item = (BlockId, BlockState, &Error)> {
        let own = self.errors().iter().filter(move |error| error.party == Some(Party::Node(id)));
        own.filter_map(|error| Some((error.block?, bad_state(error)?, error)))
    }

    /// Its findings on its own blocks. A block without known corrupt ranges is lost as a whole.
    pub fn findings(&self, id: NodeId) -> impl Iterator<Item = (BlockId, Finding, &Error)> {
        let finding = |(block, state, error)| match self.corrupt.get(&block) {
            Some(bytes) if state == BlockState::Corrupt => (block, Finding::Corrupt(bytes.clone()), error),
            _ => (block, Finding::Lost(state), error),
        };
        self.bad_blocks(id).map(finding)
    }
}

/// The state of a block according to an agent's error.
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
    fn only_the_homes_own_receipt_counts() {
        let block = BlockId { stripe: StripeId(1), index: 2, copy: 0, generation: 1 };
        let (home, other) = (NodeId(1), NodeId(2));
        let receipt = Stored { len: 4096, checksums: vec![7] };
        let done =
            || TaskEvent::Done { stored: vec![(block, receipt.clone())], traffic: TaskTraffic::default(), stages: Vec::new() };
        let mut report = Report::new([home, other].into_iter());
        report.take(other, done());
        assert_eq!(report.stored(block, home), None, "another node's receipt");
        assert!(!report.is_not_what_was_lost(block, home));
        report.take(home, done());
        assert_eq!(report.stored(block, home), Some(&receipt));
        report.take(home, TaskEvent::Done { stored: Vec::new(), traffic: TaskTraffic::default(), stages: Vec::new() });
        assert_eq!(report.stored(block, home), Some(&receipt), "events after the task's end are ignored");
    }

    #[test]
    fn a_nodes_findings_on_its_own_blocks_include_corrupt_ranges() {
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
