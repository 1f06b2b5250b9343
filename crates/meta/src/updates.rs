//! Stripes that are open for updates in place, or were a while ago.

use crate::{Page, Result};
use async_trait::async_trait;
use std::collections::BTreeMap;
use weft_types::{BlockId, BlockState, Epoch, Seq, Span, StripeId, StripeRecord};
use weft_update::StripeTerm;

/// A stripe that is open for updates, or was a while ago.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TermRecord {
    /// The stripe.
    pub stripe: StripeId,
    /// Whether it is open.
    pub state: TermState,
    /// Its term, and what the last complete seal recorded. Once it is settled, the unaware blocks are those that are not closed yet.
    pub term: StripeTerm,
    /// When it was settled, milliseconds since 1970; 0 while it is open.
    pub settled_ms: u64,
    /// Of a stripe that is being opened: how many bytes of the object it holds once it is open, if it grows.
    pub grows_to: Option<u64>,
}

impl TermRecord {
    /// Whether clients may update the stripe: it is open, no seal is under way, and none was recorded since, which would settle it.
    pub fn takes_updates(&self) -> bool {
        self.state == TermState::Open && !self.term.is_open() && self.term.unaware.is_empty()
    }
}

/// Whether a stripe is open for updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermState {
    /// Its blocks are being opened: no client may update it yet.
    Opening,
    /// All its blocks were opened, so clients may update it.
    Open,
    /// Nothing changes it any more, and its record says what it contains; some blocks are not closed yet.
    Settled,
    /// All its blocks are closed. The record is kept for a while, because of its outcomes.
    Closed,
}

impl TermState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Opening, Self::Open, Self::Settled, Self::Closed];

    /// The state's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Open => "open",
            Self::Settled => "settled",
            Self::Closed => "closed",
        }
    }

    /// Whether only the update protocol may change the stripe.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Opening | Self::Open)
    }
}

/// The beginning of a stripe's updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenStripe {
    /// The stripe.
    pub stripe: StripeId,
    /// Its term, as the caller has read it; `None` if there was none.
    pub before: Option<StripeTerm>,
    /// The blocks that take part, all of which are good. All others are fenced: see [`UpdateMeta::open_stripe`].
    pub members: Vec<BlockId>,
    /// The time of sessions: what the last term tells of those that have ended for long is forgotten.
    pub now_ms: u64,
    /// When nodes may remove fenced blocks, milliseconds since 1970.
    pub garbage_not_before_ms: u64,
    /// How many bytes of the object the stripe holds once it is open, if it grows. The new ones are zeros.
    pub grows_to: Option<u64>,
}

/// The end of a stripe's updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettleStripe {
    /// The stripe.
    pub stripe: StripeId,
    /// The term of the last seal, whose members have all settled.
    pub term: u64,
    /// The CRC32C of each MiB of the members' blocks, by index.
    pub checksums: BTreeMap<u8, Vec<u32>>,
    /// The time, milliseconds since 1970.
    pub now_ms: u64,
}

/// What the blocks of a stripe say of updates that the metadata do not know, because they were restored from an older copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptStripe {
    /// The stripe.
    pub stripe: StripeId,
    /// Its term, as the caller has read it; `None` if there was none.
    pub before: Option<StripeTerm>,
    /// The term to record. Its members are good current blocks; all others are fenced.
    pub term: StripeTerm,
    /// What is recorded of its blocks.
    pub state: Adopted,
    /// How many bytes of the object the blocks hold. The stripe does not get shorter.
    pub data_len: u64,
    /// When nodes may remove fenced blocks, milliseconds since 1970.
    pub garbage_not_before_ms: u64,
}

/// How blocks were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopted {
    /// Being opened.
    Opening,
    /// Open, and some of them may be sealed.
    Open,
    /// Settled in the term of the last seal.
    Settled {
        /// The CRC32C of each MiB of the members' blocks, by index.
        checksums: BTreeMap<u8, Vec<u32>>,
        /// The time, milliseconds since 1970.
        now_ms: u64,
    },
}

/// What is wrong with a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bad {
    /// The whole block is lost; its new state.
    Lost(BlockState),
    /// These bytes are corrupt. They are added to those that are known, if the block is not lost as a whole. With more than
    /// [`CORRUPT_RANGES_MAX`](weft_types::CORRUPT_RANGES_MAX) ranges, the whole block counts as corrupt.
    Corrupt(Vec<Span>),
}

/// What became of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marked {
    /// It is recorded.
    Changed,
    /// It was known, or is about a block that the stripe does not have.
    Unchanged,
    /// The stripe is open for updates, so nothing is recorded: its next seal finds who is lost, but not bytes that no update touches.
    Open,
    /// The stripe was updated since: what was found is about an earlier content, and proves nothing.
    Updated,
}

/// The metadata of updates in place. Each method is one transaction, as those of [`Meta`](crate::Meta).
#[async_trait]
pub trait UpdateMeta: Send + Sync {
    /// The term of a stripe that is open, or was a while ago.
    async fn stripe_term(&self, stripe: StripeId) -> Result<Option<TermRecord>>;
    /// The terms of all such stripes, in order, after `after`.
    async fn stripe_terms(&self, after: Option<StripeId>, limit: u32) -> Result<Page<TermRecord>>;
    /// Begins a term in which a stripe is updated in place. It is then being opened. A conflict unless it is a complete stripe of an object, it is not
    /// open, its term is `before`, and the members are good current blocks that are not open.
    ///
    /// All other blocks are fenced: they become garbage, and count as missing in a new generation that no node has, so a node that returns cannot bring
    /// old contents back. Allocations of repairs are given up.
    async fn open_stripe(&self, epoch: Epoch, open: OpenStripe) -> Result<TermRecord>;
    /// All members have opened their blocks in this term. A conflict unless the stripe is being opened in it, or is open in it. If it grows, it is longer
    /// from now on.
    async fn mark_open(&self, epoch: Epoch, stripe: StripeId, term: u64) -> Result<()>;
    /// No block was opened in this term, and none will be: the stripe is closed as it was, except that fenced blocks stay fenced. A conflict unless
    /// it is being opened in it.
    async fn cancel_opening(&self, epoch: Epoch, stripe: StripeId, term: u64, now_ms: u64) -> Result<()>;
    /// Saves what a seal has decided. A conflict unless the stripe is open with the term `before`. Blocks that are no longer members are fenced. A stripe
    /// that was being opened, and grows, is longer from now on.
    async fn save_term(
        &self,
        epoch: Epoch,
        stripe: StripeId,
        before: StripeTerm,
        term: StripeTerm,
        garbage_not_before_ms: u64,
    ) -> Result<()>;
    /// Ends a stripe's updates: records its term, counts and checksums. Those of blocks that have no member become unknown. A conflict
    /// unless the stripe is open, and the last seal is complete and of this term.
    async fn settle_stripe(&self, epoch: Epoch, settle: SettleStripe) -> Result<StripeRecord>;
    /// Records what the blocks of a stripe say of updates that these metadata do not know. A conflict unless it is a complete stripe of an object, its
    /// term is `before`, and the members are good current blocks. Other blocks and repairs are treated as in [`Self::open_stripe`].
    async fn adopt_stripe(&self, epoch: Epoch, adopt: AdoptStripe) -> Result<()>;
    /// Blocks of a settled stripe are closed, or gone for good. Nothing happens if it has another term by now. Returns whether some are left.
    async fn blocks_closed(&self, epoch: Epoch, stripe: StripeId, term: u64, blocks: Vec<BlockId>) -> Result<bool>;
    /// Forgets what is [kept](StripeRecord::kept) of a block, because it is not what the stripe contains. Nothing happens if the stripe has another term
    /// by now. Returns whether anything was known.
    async fn forget_kept(&self, epoch: Epoch, stripe: StripeId, term: u64, index: u8) -> Result<bool>;
    /// Records what was found in a block, if that generation is current. `planned`: the updates that the stripe contained for the plan that found it.
    async fn mark_found(&self, epoch: Epoch, block: BlockId, bad: Bad, planned: Option<Seq>) -> Result<Marked>;
    /// Forgets stripes that were settled at `settled_ms` or before and are closed. Returns their number.
    async fn forget_terms(&self, epoch: Epoch, settled_ms: u64) -> Result<u64>;
}
