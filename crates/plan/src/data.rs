//! Plans and jobs as data.

use crate::{Shared, SliceSet};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use weft_gf::Factored;
use weft_types::{BlockId, Layout, Party, PlanId, Seq, Span};

/// The question: who holds which block for which positions, what is put in, what changes, and what must come out where.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Job {
    /// Who holds which block, for which positions, in which generation.
    pub holds: Vec<Hold>,
    /// Who has the data of which data blocks: new where the job says that it changes, else what the stripe holds already (a
    /// write that goes on around a node that failed).
    pub inputs: Vec<Input>,
    /// What changes.
    pub changed: Vec<Change>,
    /// What must come out.
    pub wants: Vec<Want>,
}

/// A party holds a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Who.
    pub party: Party,
    /// Which block, in which generation.
    pub block: BlockId,
    /// For which positions (a corrupt page is a hole).
    pub span: Span,
}

/// A party can put in a data block's new bytes (or its delta).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Who.
    pub party: Party,
    /// The data block's index.
    pub index: u8,
}

/// Positions of a sub-block of a data block that change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The data block's index.
    pub index: u8,
    /// Which sub-block.
    pub sub_block: u16,
    /// Which positions.
    pub span: Span,
}

/// Something must come out somewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// As what.
    pub kind: WantKind,
    /// Where.
    pub party: Party,
    /// Of which block (for a Check: not used, 0).
    pub index: u8,
    /// Which sub-blocks (for a Check: one number for each row, 0..rows).
    pub sub_blocks: Vec<u16>,
    /// Which positions.
    pub span: Span,
}

/// The kinds of things that can be wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WantKind {
    /// Stored as a block.
    Store,
    /// XORed into a stored block.
    Patch,
    /// Delivered to a reader.
    Output,
    /// Found to be zero.
    Check,
}

/// The answer to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Who sends what to whom, with vertices for parties.
    pub shape: Shape,
    /// Which party is which vertex; which blocks, which lengths.
    pub binding: Binding,
    /// This run.
    pub id: PlanId,
    /// The epoch of the coordinator that made it.
    pub epoch: u64,
    /// What it is for.
    pub class: Class,
    /// Among plans of its class, those of a lower number go first. Older files have none: 0.
    #[serde(default)]
    pub priority: u8,
}

/// What a plan is for: at every agent, an earlier class goes before a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Somebody waits for it.
    Foreground,
    /// Rebuilds what is lost.
    Repair,
    /// Looks whether all is well.
    Scrub,
}

/// Who goes before whom: by class, and within a class by priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Precedence {
    /// What a plan is for.
    pub class: Class,
    /// 0 goes first.
    pub priority: u8,
}

impl Precedence {
    /// Rebuilds what is lost.
    pub const REBUILD: Self = Self { class: Class::Repair, priority: 0 };
    /// Moves or converts what can still be read: it waits for what is lost to be rebuilt.
    pub const MOVE: Self = Self { class: Class::Repair, priority: 1 };

    /// The first of a class.
    pub const fn of(class: Class) -> Self {
        Self { class, priority: 0 }
    }
}

impl From<Class> for Precedence {
    fn from(class: Class) -> Self {
        Self::of(class)
    }
}

/// Lanes over vertices. No party and no position in it: shared by all stripes of a code that lost the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// The code's spec.
    pub code: String,
    /// The lanes; each progresses by itself.
    pub lanes: Vec<Lane>,
}

/// What a shape is bound to.
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
    /// How the stripe's blocks are laid out.
    pub layout: Layout,
    /// Which updates the stripe has that is read.
    #[serde(deserialize_with = "seq_or_none")]
    pub seq: Seq,
    /// Positions in a slice.
    pub slice_len: u64,
}

/// Older saved plans have one count of all updates, which was always 0.
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
        Saved::Count(count) => Err(D::Error::custom(format!("{count} updates, and nothing says of which data blocks"))),
    }
}

/// Which block a vertex means by an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundBlock {
    /// At which vertex.
    pub vertex: u16,
    /// Which block, in which generation.
    pub id: BlockId,
    /// Bytes that it has on disk; it reads as zeros beyond them, and must be zero beyond them when it is stored.
    pub len: u64,
}

/// A graph of stages that goes through its slices in one order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lane {
    /// The number of the first slice of the lane's positions that is its own.
    pub first: u32,
    /// Every how many slices another one is.
    pub step: u32,
    /// Slices that may wait at each end of a link, at least 1.
    pub window: u32,
    /// The stages, in any order.
    pub stages: Shared<Stage>,
    /// The links.
    pub links: Shared<Link>,
}

/// What one vertex does with each slice: `sinks = matrix × sources`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stage {
    /// Who.
    pub vertex: u16,
    /// What goes in; the matrix's columns, in order.
    pub sources: Vec<Source>,
    /// One row for each sub-block that comes out, one column for each that goes in; it may be computed by way of temporaries.
    pub matrix: Factored,
    /// What comes out; the matrix's rows, in order.
    pub sinks: Vec<Sink>,
}

/// A stream of `width` sub-blocks from one stage to another of the same lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Link {
    /// The stage that sends (an index into the lane's stages).
    pub from: u16,
    /// The stage that receives.
    pub to: u16,
    /// Sub-blocks that it carries.
    pub width: u32,
    /// For predictions, orders it against other links of the same sender that have a slice ready at the same time: that goes first
    /// whose slice's place in the lane times the lane's step, plus the rank, is lower. A rank counts slices' times. Tasks do not carry it:
    /// when a plan runs, lanes that take turns go in step at each party, and their links share its line.
    pub rank: u32,
}

/// What goes into a stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Stored bytes of a block at the stage's party.
    Block {
        /// The block's index.
        index: u8,
        /// Which sub-blocks, in order.
        sub_blocks: Vec<u16>,
    },
    /// A link of the lane, by its index.
    Link(u16),
    /// New bytes of a data block (or new XOR old) that the stage's party has.
    Input {
        /// The data block's index.
        index: u8,
        /// Which sub-blocks, in order.
        sub_blocks: Vec<u16>,
        /// Whether it is new XOR old.
        delta: bool,
    },
}

/// What comes out of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sink {
    /// A link of the lane, by its index.
    Link(u16),
    /// A new block's bytes, at the stage's party.
    Store {
        /// The block's index.
        index: u8,
        /// Which sub-blocks, in order.
        sub_blocks: Vec<u16>,
    },
    /// XORed into the block that the stage's party holds.
    Patch {
        /// The block's index.
        index: u8,
        /// Which sub-blocks, in order.
        sub_blocks: Vec<u16>,
    },
    /// Delivered to the reader that the stage's party is.
    Output {
        /// The block's index.
        index: u8,
        /// Which sub-blocks, in order.
        sub_blocks: Vec<u16>,
    },
    /// Must be zero.
    Check {
        /// Rows.
        width: u32,
    },
}

/// The slices of a lane, in order. See [`Plan::slices`].
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
    /// Slices first, first+step, … of `span`, each of `slice_len` positions but the last.
    pub fn new(span: Span, first: u32, step: u32, slice_len: u64) -> Self {
        Self { span, slice_len, next: u64::from(first), step: u64::from(step) }
    }
}

impl Plan {
    /// Who goes before it at an agent.
    pub fn precedence(&self) -> Precedence {
        Precedence { class: self.class, priority: self.priority }
    }

    /// The positions of a lane, by its number: none, if the plan has no such lane.
    pub fn span(&self, lane: usize) -> Span {
        self.binding.spans.get(lane).copied().unwrap_or(Span::new(0, 0))
    }

    /// A lane's slices, to calculate with.
    pub fn slice_set(&self, lane: usize) -> SliceSet {
        let (first, step) = self.shape.lanes.get(lane).map_or((0, 0), |lane| (lane.first, lane.step));
        SliceSet { span: self.span(lane), first, step, slice_len: self.binding.slice_len }
    }

    /// The positions of a lane's slices, in the order in which every stage goes through them.
    pub fn slices(&self, lane: usize) -> Slices {
        let SliceSet { span, first, step, slice_len } = self.slice_set(lane);
        Slices::new(span, first, step, slice_len)
    }
}

impl Lane {
    /// Sub-blocks that a source carries; 0 for a link that does not exist.
    pub fn source_width(&self, source: &Source) -> usize {
        match source {
            Source::Block { sub_blocks, .. } | Source::Input { sub_blocks, .. } => sub_blocks.len(),
            Source::Link(link) => self.link_width(*link),
        }
    }

    /// Sub-blocks that a sink takes; 0 for a link that does not exist.
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
