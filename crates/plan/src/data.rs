//! Plans and jobs as data.

use crate::{Shared, SliceSet};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use weft_gf::Factored;
use weft_types::{BlockId, Layout, Party, PlanId, Seq, Span};

/// The question: which party holds which block for which positions, what is put in, what changes, and what is wanted
/// where.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Job {
    /// Which party holds which block, for which positions, in which generation.
    pub holds: Vec<Hold>,
    /// Which party has the data of which data blocks: new data where the job says that it changes, otherwise the
    /// stripe's current data (for a write that resumes after a failed node).
    pub inputs: Vec<Input>,
    /// What changes.
    pub changed: Vec<Change>,
    /// What is wanted.
    pub wants: Vec<Want>,
}

/// A block held by a party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The party.
    pub party: Party,
    /// The block, in its generation.
    pub block: BlockId,
    /// The positions (a corrupt page is a hole).
    pub span: Span,
}

/// A party that can put in a data block's new bytes (or its delta).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The party.
    pub party: Party,
    /// The data block's index.
    pub index: u8,
}

/// Positions of a data block's sub-block that change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The data block's index.
    pub index: u8,
    /// The sub-block.
    pub sub_block: u16,
    /// The positions.
    pub span: Span,
}

/// A wanted result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// Its kind.
    pub kind: WantKind,
    /// The party that gets it.
    pub party: Party,
    /// The block (0 for a Check).
    pub index: u8,
    /// The sub-blocks (for a Check: one number for each row, 0..rows).
    pub sub_blocks: Vec<u16>,
    /// The positions.
    pub span: Span,
}

/// The kinds of wanted results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WantKind {
    /// Stored as a block.
    Store,
    /// XORed into a stored block.
    Patch,
    /// Delivered to a reader.
    Output,
    /// Checked to be zero: rows that find any one of the held blocks that is wrong.
    Check,
}

/// The answer to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Which vertex sends what to which.
    pub shape: Shape,
    /// The party of each vertex, and the blocks and lengths.
    pub binding: Binding,
    /// The run's id.
    pub id: PlanId,
    /// The epoch of the coordinator that made it.
    pub epoch: u64,
    /// The purpose of the plan.
    pub class: Class,
    /// The priority within the class; lower numbers go first. Older files have none: 0.
    #[serde(default)]
    pub priority: u8,
}

/// The purpose of a plan: at every agent, an earlier class has precedence over a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// A user waits for it.
    Foreground,
    /// Rebuilds lost data.
    Repair,
    /// Checks stored data.
    Scrub,
}

/// The precedence of plans: by class, and within a class by priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Precedence {
    /// The purpose.
    pub class: Class,
    /// The priority; 0 goes first.
    pub priority: u8,
}

impl Precedence {
    /// Rebuilds lost data.
    pub const REBUILD: Self = Self { class: Class::Repair, priority: 0 };
    /// Moves or converts readable data: lost data is rebuilt first.
    pub const MOVE: Self = Self { class: Class::Repair, priority: 1 };

    /// The highest priority of a class.
    pub const fn of(class: Class) -> Self {
        Self { class, priority: 0 }
    }
}

impl From<Class> for Precedence {
    fn from(class: Class) -> Self {
        Self::of(class)
    }
}

/// Lanes over vertices, without parties or positions: shared by all stripes of a code with the same losses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// The code's spec.
    pub code: String,
    /// The lanes; each progresses independently.
    pub lanes: Vec<Lane>,
    /// Whether each party sends over one link at a time: a slice leaves when the party's previous one has arrived. Of
    /// the links that are ready, the lowest rank goes first, so the links of a party in a lane have different ranks.
    ///
    /// Predictions follow it. Tasks do not contain it, and no agent could keep to it: such plans are not signed.
    #[serde(default)]
    pub in_turn: bool,
}

/// The parties, positions and blocks of a shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The party of each vertex.
    pub parties: Vec<Party>,
    /// The positions of each lane.
    pub spans: Vec<Span>,
    /// The blocks that stages read or patch.
    pub blocks: Vec<BoundBlock>,
    /// The blocks that stages store, in their new generation.
    pub stores: Vec<BoundBlock>,
    /// The layout of the stripe's blocks.
    pub layout: Layout,
    /// The updates that the stripe, as it is read, contains.
    #[serde(deserialize_with = "seq_or_none")]
    pub seq: Seq,
    /// Positions in a slice.
    pub slice_len: u64,
}

/// Older saved plans have a single count of updates, which was always 0.
fn seq_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Seq, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Saved {
        Seq(Seq),
        Count(u64),
    }
    if !deserializer.is_human_readable() {
        return Seq::deserialize(deserializer);
    }
    match Saved::deserialize(deserializer)? {
        Saved::Seq(seq) => Ok(seq),
        Saved::Count(0) => Ok(Seq::default()),
        Saved::Count(count) => {
            Err(D::Error::custom(format!("a plan with {count} updates does not say which data blocks they belong to")))
        }
    }
}

/// The block that a vertex refers to by an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundBlock {
    /// The vertex.
    pub vertex: u16,
    /// The block, in its generation.
    pub id: BlockId,
    /// Its length on disk; beyond it, the block reads as zeros and must be zero when it is stored.
    pub len: u64,
}

/// A graph of stages that processes its slices in one order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lane {
    /// The number of the lane's first slice.
    pub first: u32,
    /// The distance to the next slice.
    pub step: u32,
    /// Slices that may wait at each end of a link; at least 1.
    pub window: u32,
    /// The stages, in any order.
    pub stages: Shared<Stage>,
    /// The links.
    pub links: Shared<Link>,
}

/// The operation of one vertex on each slice: `sinks = matrix × sources`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stage {
    /// The vertex.
    pub vertex: u16,
    /// The inputs: the matrix's columns, in order.
    pub sources: Vec<Source>,
    /// One row for each output sub-block, one column for each input sub-block; it may use temporaries.
    pub matrix: Factored,
    /// The outputs: the matrix's rows, in order.
    pub sinks: Vec<Sink>,
}

/// A stream of `width` sub-blocks from one stage to another of the same lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Link {
    /// The sending stage (an index into the lane's stages).
    pub from: u16,
    /// The receiving stage.
    pub to: u16,
    /// The number of sub-blocks that it carries.
    pub width: u32,
    /// Only for predictions: orders links of one sender that have slices ready at the same time. The link with the
    /// lowest sum of rank and (the slice's place in the lane times the lane's step) goes first; a rank counts slice
    /// times. Tasks do not contain it: at run time, lanes that take turns keep in step at each party, and their links
    /// share its line.
    pub rank: u32,
}

/// An input of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Stored bytes of a block at the stage's party.
    Block {
        /// The block's index.
        index: u8,
        /// The sub-blocks, in order.
        sub_blocks: Vec<u16>,
    },
    /// A link of the lane, by its index.
    Link(u16),
    /// New bytes of a data block (or new XOR old) from the stage's party.
    Input {
        /// The data block's index.
        index: u8,
        /// The sub-blocks, in order.
        sub_blocks: Vec<u16>,
        /// Whether it is new XOR old.
        delta: bool,
    },
}

/// An output of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sink {
    /// A link of the lane, by its index.
    Link(u16),
    /// A new block's bytes, at the stage's party.
    Store {
        /// The block's index.
        index: u8,
        /// The sub-blocks, in order.
        sub_blocks: Vec<u16>,
    },
    /// XORed into a block that the stage's party holds.
    Patch {
        /// The block's index.
        index: u8,
        /// The sub-blocks, in order.
        sub_blocks: Vec<u16>,
    },
    /// Delivered to the stage's party, which is a reader.
    Output {
        /// The block's index.
        index: u8,
        /// The sub-blocks, in order.
        sub_blocks: Vec<u16>,
    },
    /// Must be zero.
    Check {
        /// Rows.
        width: u32,
    },
}

/// The slices of a lane, in order; see [`Plan::slices`].
#[derive(Debug, Clone)]
pub struct Slices {
    span: Span,
    slice_len: u64,
    next: u64,
    step: u64,
}

impl Iterator for Slices {
    type Item = Span;
    fn next(&mut self) -> Option<Span> {
        let offset = self.next.checked_mul(self.slice_len)?;
        let start = self.span.start.checked_add(offset)?;
        if self.slice_len == 0 || self.step == 0 || start >= self.span.end {
            return None;
        }
        self.next = self.next.checked_add(self.step)?;
        Some(Span::new(start, start.saturating_add(self.slice_len).min(self.span.end)))
    }
}

impl Slices {
    /// The slices first, first+step, … of `span`, each of `slice_len` positions except the last.
    pub fn new(span: Span, first: u32, step: u32, slice_len: u64) -> Self {
        Self { span, slice_len, next: u64::from(first), step: u64::from(step) }
    }
}

impl Plan {
    /// The plan's precedence at an agent.
    pub fn precedence(&self) -> Precedence {
        Precedence { class: self.class, priority: self.priority }
    }

    /// The positions of a lane, by its number; empty if the plan has no such lane.
    pub fn span(&self, lane: usize) -> Span {
        self.binding.spans.get(lane).copied().unwrap_or(Span::new(0, 0))
    }

    /// A lane's slices, for calculations.
    pub fn slice_set(&self, lane: usize) -> SliceSet {
        let (first, step) = self.shape.lanes.get(lane).map_or((0, 0), |lane| (lane.first, lane.step));
        SliceSet { span: self.span(lane), first, step, slice_len: self.binding.slice_len }
    }

    /// The positions of a lane's slices, in the order of all its stages.
    pub fn slices(&self, lane: usize) -> Slices {
        let SliceSet { span, first, step, slice_len } = self.slice_set(lane);
        Slices::new(span, first, step, slice_len)
    }
}

impl Lane {
    /// The width of a source, in sub-blocks; 0 for a link that does not exist.
    pub fn source_width(&self, source: &Source) -> usize {
        match source {
            Source::Block { sub_blocks, .. } | Source::Input { sub_blocks, .. } => sub_blocks.len(),
            Source::Link(link) => self.link_width(*link),
        }
    }

    /// The width of a sink, in sub-blocks; 0 for a link that does not exist.
    pub fn sink_width(&self, sink: &Sink) -> usize {
        match sink {
            Sink::Store { sub_blocks, .. } | Sink::Patch { sub_blocks, .. } | Sink::Output { sub_blocks, .. } => sub_blocks.len(),
            Sink::Link(link) => self.link_width(*link),
            Sink::Check { width } => *width as usize,
        }
    }

    fn link_width(&self, link: u16) -> usize {
        self.links.get(usize::from(link)).map_or(0, |link| link.width as usize)
    }
}
