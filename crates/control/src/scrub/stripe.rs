//! The check of one stripe.
//!
//! ```text
//!   Look: has every node its block, with the checksums that were recorded?
//!    │ at least one more than the code needs    │ fewer
//!    ▼                                          ▼
//!   Sum: blocks are read, page by page, and    Read: the content of each block that the sum has not read, and of further
//!    │   their parity check is added up         ▲    copies, is compared with the checksums that were recorded
//!    │ not zero, or a page is wrong             │
//!    └──────────────────────────────────────────┘
//! ```
//! What is wrong is recorded by the shell as for any read. A node that is down, busy or too slow is no finding, and neither is a stripe that
//! was changed or removed meanwhile. No claim of the stripe is needed: blocks are never changed in place, a rebuilt one has the content of the
//! one that it replaces, and a report counts only for the generation that is current when it is recorded.

use crate::{findings::Verdict, health::Reach, view::View};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
};
use weft_types::{BlockId, BlockState, Error, Home, NodeId, Owner, Reaction, StripeRecord, WrongBlock};

/// How often the parity check is added up before blocks that all match their checksums are called inconsistent.
const SUMS_MAX: u32 = 2;

/// An action. The event that answers it comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the nodes of these blocks for them; [`Event::Seen`] answers.
    Look(Vec<(BlockId, Home)>),
    /// Add the parity check up without these blocks; [`Event::Summed`] answers. `full`: all rows of it, and not only one combination of them.
    Sum {
        /// Their indexes.
        left_out: Vec<u8>,
        /// Whether all rows are added up.
        full: bool,
    },
    /// Read a block and compare it with what was recorded; [`Event::Seen`] answers.
    Read(BlockId, Home),
    /// It is over.
    End(Outcome),
}

/// An event.
#[derive(Debug)]
pub enum Event {
    /// The check begins.
    Begin,
    /// What is to be said of blocks. What is wrong has been recorded.
    Seen(Vec<(BlockId, Verdict)>),
    /// The parity check was added up, or could not be.
    Summed(Summed),
}

/// The result of adding the parity check up.
#[derive(Debug)]
pub enum Summed {
    /// It is zero at all positions, and all pages of these blocks were right.
    Zero(BTreeSet<BlockId>),
    /// Too few blocks can be read for a check.
    Unable,
    /// It is not zero.
    NotZero(String),
    /// It could not be added up to the end. What its nodes found wrong has been recorded.
    Failed {
        /// Why.
        error: Error,
        /// The stripe after that; `None`: it is gone.
        now: Option<Box<StripeRecord>>,
        /// What the nodes said about their blocks.
        said: BTreeMap<BlockId, Error>,
    },
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The object, `bucket/key`, and the number of the stripe in it; empty if they could not be looked up.
    pub object: String,
    /// See `object`.
    pub number: u64,
    /// Blocks that were read to the end.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that its plans have sent over links.
    pub moved_bytes: u64,
    /// What is wrong.
    pub wrong: Vec<WrongBlock>,
    /// Blocks that were known to be lost or corrupt.
    pub lacking: u64,
    /// Blocks whose nodes are down.
    pub away: u64,
    /// How it ended.
    pub end: End,
}

/// How a check ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum End {
    /// All that can be read was checked.
    #[default]
    Checked,
    /// The stripe is not needed any more.
    Gone,
    /// Some of it could not be checked now, for this reason.
    Again(Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Looking,
    Summing,
    Reading,
    Ended,
}

/// The state machine of a check.
#[derive(Debug)]
pub struct StripeCheck {
    object: String,
    stripe: StripeRecord,
    /// Whether its code has parity blocks.
    has_parity: bool,
    state: State,
    /// Blocks that are to be checked.
    sound: BTreeMap<BlockId, Home>,
    /// Those of them that were read to the end.
    read: BTreeSet<BlockId>,
    /// Those that are read next.
    to_read: VecDeque<BlockId>,
    /// How often the parity check was added up, and what the last one said if it was not zero.
    sums: u32,
    not_zero: Option<String>,
    /// Blocks that are left out next, one at a time, and those without which the sum was zero.
    to_leave_out: VecDeque<u8>,
    without: Vec<u8>,
    outcome: Outcome,
}

impl StripeCheck {
    /// For a stripe of an object, `bucket/key`.
    pub fn new(object: String, stripe: StripeRecord, has_parity: bool) -> Self {
        Self {
            object,
            stripe,
            has_parity,
            state: State::New,
            sound: BTreeMap::new(),
            read: BTreeSet::new(),
            to_read: VecDeque::new(),
            sums: 0,
            not_zero: None,
            to_leave_out: VecDeque::new(),
            without: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    /// The stripe.
    pub fn stripe(&self) -> &StripeRecord {
        &self.stripe
    }

    /// Handles an event. An event that answers nothing ends the check.
    pub fn on(&mut self, event: Event, view: &View) -> Action {
        match (self.state, event) {
            (State::New, Event::Begin) => self.begin(view),
            (State::Looking, Event::Seen(seen)) => {
                self.saw(&seen);
                self.next()
            }
            (State::Reading, Event::Seen(seen)) => {
                self.saw(&seen);
                let right = seen.iter().filter(|(_, verdict)| *verdict == Verdict::Right);
                self.read.extend(right.map(|(block, _)| *block));
                self.read_next()
            }
            (State::Summing, Event::Summed(summed)) => self.summed(summed),
            _ => self.end(End::Again(Error::fatal("internal error: a check waits for nothing"))),
        }
    }

    fn begin(&mut self, view: &View) -> Action {
        if !matches!(self.stripe.owner, Owner::Object(_)) {
            return self.end(End::Gone);
        }
        if !self.stripe.ended || self.stripe.incomplete {
            return self.end(End::Again(Error::retry("some of its blocks are still on their way")));
        }
        for (index, placed) in self.stripe.all() {
            match (placed.state, Reach::of(view, placed.home)) {
                (BlockState::Ok, Reach::Here | Reach::Leaving) => {
                    self.sound.insert(self.stripe.id_of(index, placed), placed.home);
                }
                (BlockState::Ok, Reach::Away) => self.outcome.away += 1,
                _ => self.outcome.lacking += 1,
            }
        }
        if self.sound.is_empty() {
            return self.end(End::Checked);
        }
        self.state = State::Looking;
        Action::Look(self.sound.iter().map(|(block, home)| (*block, *home)).collect())
    }

    /// Adds the parity check up, if the code has one. What that does not read is read then.
    fn next(&mut self) -> Action {
        if self.has_parity && self.sums == 0 { self.sum(None) } else { self.read_rest() }
    }

    /// Without blocks that are not there or wrong, and without one more.
    fn sum(&mut self, without: Option<u8>) -> Action {
        let is_sound = |index: &u8| self.stripe.block_id(*index).is_some_and(|block| self.sound.contains_key(&block));
        let left_out = self.stripe.blocks.keys().copied().filter(|index| !is_sound(index) || without == Some(*index)).collect();
        self.sums += 1;
        self.state = State::Summing;
        Action::Sum { left_out, full: self.sums > 1 }
    }

    fn summed(&mut self, summed: Summed) -> Action {
        match summed {
            summed if self.sums > SUMS_MAX => self.summed_without(&summed),
            Summed::Zero(read) => {
                self.not_zero = None;
                self.read.extend(read.into_iter().filter(|block| self.sound.contains_key(block)));
                self.read_rest()
            }
            // All blocks match their checksums, and not each other, as the first sum has shown.
            Summed::Unable if self.not_zero.is_some() => self.inconsistent(),
            Summed::Unable => self.read_rest(),
            Summed::NotZero(why) if self.sums < SUMS_MAX => {
                // Which block is wrong shows in its content.
                self.not_zero = Some(why);
                self.read_rest()
            }
            Summed::NotZero(why) => {
                self.not_zero = Some(why);
                self.to_leave_out = self.stripe.blocks.keys().copied().collect();
                self.sum_without()
            }
            Summed::Failed { error, now: None, .. } if error.reaction != Reaction::Fatal => self.end(End::Gone),
            Summed::Failed { error, now, said } => self.failed(error, now.as_deref(), &said),
        }
    }

    /// Leaves the next block out; at the end, says what that has shown.
    fn sum_without(&mut self) -> Action {
        match self.to_leave_out.front() {
            Some(index) => self.sum(Some(*index)),
            None => self.inconsistent(),
        }
    }

    fn summed_without(&mut self, summed: &Summed) -> Action {
        let left_out = self.to_leave_out.pop_front();
        match summed {
            Summed::Zero(_) => self.without.extend(left_out),
            Summed::NotZero(_) => {}
            // It cannot be told which block it is.
            Summed::Unable | Summed::Failed { .. } => {
                self.to_leave_out.clear();
                self.without.clear();
            }
        }
        self.sum_without()
    }

    /// All blocks match their checksums and contradict each other. None of them is given up for that.
    fn inconsistent(&mut self) -> Action {
        let sum = self.not_zero.take().unwrap_or_default();
        let which = match self.without[..] {
            [index] => {
                let home = self.stripe.home_of(index).map(|home| home.node.to_string()).unwrap_or_default();
                let block = self.stripe.block_id(index).map(|block| block.to_string()).unwrap_or_default();
                format!("The others agree without block {index} ({block} on {home})")
            }
            _ => "It is not known which block is wrong".to_owned(),
        };
        let why = format!(
            "all blocks match their recorded checksums, but not each other: {sum}. {which}. The stripe was stored so, or its record was \
             changed: compare the object with another copy of it, and store it again"
        );
        self.outcome.wrong.push(self.wrong(None, why));
        self.end(End::Checked)
    }

    /// The sum could not be added up. If blocks are known to be bad now, the others are read.
    fn failed(&mut self, error: Error, now: Option<&StripeRecord>, said: &BTreeMap<BlockId, Error>) -> Action {
        // What its node read was wrong, even if it was rebuilt before the sum had ended. A block that was moved is missed without any fault.
        let was_bad = |block: &BlockId| said.get(block).is_some_and(|error| error.reaction == Reaction::Corrupt);
        let is_bad = |block: &BlockId| match now.and_then(|now| now.find(block.index, block.copy)) {
            Some(placed) if placed.generation == block.generation => placed.state != BlockState::Ok,
            _ => was_bad(block),
        };
        let bad: Vec<BlockId> = self.sound.keys().copied().filter(is_bad).collect();
        if bad.is_empty() {
            return self.end(End::Again(error));
        }
        for block in bad {
            let why = said.get(&block).map_or("another read has found it bad", |error| &error.message).to_owned();
            self.is_wrong(block, why);
        }
        self.read_rest()
    }

    /// Takes note of what nodes say about blocks.
    fn saw(&mut self, seen: &[(BlockId, Verdict)]) {
        for (block, verdict) in seen {
            match verdict {
                Verdict::Right => {}
                Verdict::Wrong(_, why) => self.is_wrong(*block, why.clone()),
                Verdict::Unknown(why) => {
                    self.sound.remove(block);
                    self.outcome.end = End::Again(Error::retry(format!("block {block}: {why}")));
                }
                Verdict::Obsolete => {
                    self.sound.remove(block);
                    self.outcome.end = End::Again(Error::retry(format!("block {block} was moved meanwhile")));
                }
            }
        }
    }

    fn is_wrong(&mut self, block: BlockId, why: String) {
        if let Some(home) = self.sound.remove(&block) {
            self.outcome.wrong.push(self.wrong(Some((block, home.node)), why));
        }
    }

    fn wrong(&self, block: Option<(BlockId, NodeId)>, why: String) -> WrongBlock {
        WrongBlock { object: self.object.clone(), stripe: self.stripe.number, block, why }
    }

    /// Reads the blocks that were not read to the end yet.
    fn read_rest(&mut self) -> Action {
        self.to_read = self.sound.keys().copied().filter(|block| !self.read.contains(block)).collect();
        self.read_next()
    }

    fn read_next(&mut self) -> Action {
        while let Some(block) = self.to_read.pop_front() {
            if let Some(home) = self.sound.get(&block) {
                self.state = State::Reading;
                return Action::Read(block, *home);
            }
        }
        let is_disputed = self.not_zero.is_some() && self.outcome.wrong.is_empty() && self.outcome.end == End::Checked;
        if is_disputed && self.sums < SUMS_MAX {
            // The bytes may have been right on the disks, and wrong on their way.
            return self.sum(None);
        }
        let end = mem::take(&mut self.outcome.end);
        self.end(end)
    }

    fn end(&mut self, end: End) -> Action {
        self.state = State::Ended;
        let len = |block: &BlockId| self.stripe.layout.block_len(block.index.into());
        let (blocks, bytes) = (self.read.len() as u64, self.read.iter().map(len).sum());
        let (object, number) = (self.object.clone(), self.stripe.number);
        Action::End(Outcome { object, number, blocks, bytes, end, ..mem::take(&mut self.outcome) })
    }
}
