//! A read of ranges of a stripe's data blocks. Lost blocks are rebuilt; if a node cannot take part, the next plan
//! avoids it.
//!
//! Events go in, actions come out ([`Read::on`]); the next event answers the last action. If a read fails later, while its client receives
//! data, the client's next attempt is another read, which avoids what the client blamed ([`avoided`]).

use crate::{
    known::Known,
    options::{RepairOptions, usual_slice_positions},
    planning::{self, Planned, Range, Readable, Way},
    view::View,
};
use rand::{Rng, RngCore};
use std::collections::{BTreeMap, BTreeSet};
use weft_codes::SharedCode;
use weft_plan::{Class, Network, Precedence};
use weft_schemes::Run;
use weft_types::{BlockId, BlockState, CHECKSUM_UNIT_LEN, Error, NodeId, Party, Reaction, Result, Span, StripeRecord};

/// The most plans for a read whose nodes cannot take part.
const PLANS_MAX: u32 = 8;

/// A read request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The stripe's code.
    pub code: SharedCode,
    /// The current stripe.
    pub stripe: StripeRecord,
    /// The ranges, block by block, without overlaps.
    pub ranges: Vec<Range>,
    /// How lost blocks are rebuilt.
    pub options: RepairOptions,
    /// Bytes of a slice of a block that is not rebuilt.
    pub slice_bytes: u64,
    /// The node that reads for a conversion; `None` if a client reads.
    pub delegate: Option<NodeId>,
}

/// A plan to make, with everything that is needed for it, so that it can be made on any thread.
#[derive(Debug)]
pub struct PlanRequest(Request);

/// A finished plan.
#[derive(Debug)]
pub struct PlannedRead {
    /// The plan.
    pub planned: Planned,
    /// What it delivers: the requested ranges, widened to what can be checked.
    pub delivers: Vec<Range>,
    /// The blocks that are rebuilt, at least in part.
    pub rebuilt: Vec<u8>,
    /// The stripe as the plan reads it.
    pub stripe: StripeRecord,
    code: SharedCode,
}

/// An event.
#[derive(Debug)]
pub enum Event {
    /// The read starts.
    Begin,
    /// Answers [`Action::Plan`].
    Planned(Result<Box<PlannedRead>>),
    /// Answers [`Action::Start`]: all agents run their tasks, or why not.
    Started(Result<()>),
    /// Answers [`Action::LookUp`].
    LookedUp(Result<StripeRecord>),
}

/// An action.
#[derive(Debug)]
pub enum Action {
    /// Avoid a node for a while.
    Suspect(NodeId),
    /// Make a plan; [`Event::Planned`] answers.
    Plan(Box<PlanRequest>),
    /// Open and start the plan; [`Event::Started`] answers.
    Start(Box<PlannedRead>),
    /// Look up the current stripe; [`Event::LookedUp`] answers.
    LookUp,
    /// The last plan runs, or the read failed.
    End(Result<()>),
}

/// The state machine of a read, until its plan runs.
#[derive(Debug)]
pub struct Read {
    request: Request,
    plans: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Planning,
    Starting,
    LookingUp,
    Ended,
}

impl Read {
    /// For this request.
    pub fn new(request: Request) -> Self {
        Self { request, plans: 0, state: State::Begin }
    }

    /// The plan to make now.
    pub fn ask(&self, view: &View, rng: &mut dyn RngCore) -> PlanRequest {
        let Request { stripe, delegate, .. } = &self.request;
        // The delegate prefers its own blocks where they are equally good.
        let draw = |node| if *delegate == Some(node) { 0 } else { rng.random() };
        let stripe = view.serving(stripe.clone(), |block, _| view.is_suspect_block(block), draw);
        PlanRequest(Request { stripe, ..self.request.clone() })
    }

    /// Handles an event and returns the next actions. An event that answers no action is ignored.
    pub fn on(&mut self, event: Event, view: &View, rng: &mut dyn RngCore) -> Vec<Action> {
        match (self.state, event) {
            (State::Begin, Event::Begin) => self.plan(view, rng),
            (State::Planning, Event::Planned(Ok(planned))) => {
                self.state = State::Starting;
                vec![Action::Start(planned)]
            }
            (State::Starting, Event::Started(Err(error))) if error.reaction == Reaction::Replan && self.plans < PLANS_MAX => {
                self.state = State::LookingUp;
                // For a bad block, only the block is avoided, and not its node.
                let suspect = match (error.party, error.block) {
                    (Some(Party::Node(node)), None) => Some(Action::Suspect(node)),
                    _ => None,
                };
                suspect.into_iter().chain([Action::LookUp]).collect()
            }
            (State::LookingUp, Event::LookedUp(Ok(stripe))) => {
                self.request.stripe = stripe;
                self.plan(view, rng)
            }
            (State::Starting, Event::Started(result)) => self.end(result),
            (State::Planning, Event::Planned(Err(error))) | (State::LookingUp, Event::LookedUp(Err(error))) => {
                self.end(Err(error))
            }
            _ => Vec::new(),
        }
    }

    fn plan(&mut self, view: &View, rng: &mut dyn RngCore) -> Vec<Action> {
        (self.state, self.plans) = (State::Planning, self.plans + 1);
        vec![Action::Plan(Box::new(self.ask(view, rng)))]
    }

    fn end(&mut self, result: Result<()>) -> Vec<Action> {
        self.state = State::Ended;
        vec![Action::End(result)]
    }
}

impl PlanRequest {
    /// Makes the plan. `frame` gives the run and the reader of a plan with slices of this many positions.
    pub fn plan(
        &self,
        view: &View,
        network: &Network,
        known: &Known,
        mut frame: impl FnMut(&Self, u64) -> (Run, Party),
    ) -> Result<PlannedRead> {
        let Request { code, stripe, ranges, options, slice_bytes, delegate } = &self.0;
        let Readable { good, suspect, lost } = planning::readable(stripe, view);
        let mut attempt = |available: &[u8]| {
            let rebuilt = planning::rebuilt(stripe, available, ranges);
            let delivers = widen(stripe, ranges, &rebuilt);
            let slice_len = match rebuilt.is_empty() {
                true => usual_slice_positions(&stripe.layout.layout, *slice_bytes),
                false => options.slice_positions(&stripe.layout, network),
            };
            let prefer = planning::preference(stripe, available, view, stripe.dimension(), None);
            let (run, reader) = frame(self, slice_len);
            let way = Way { options, network, prefer: &prefer, known };
            let planned = planning::read(code, stripe, available, &delivers, reader, &way, run)?;
            let (rebuilt, stripe, code) = (rebuilt.into_iter().collect(), stripe.clone(), code.clone());
            Ok::<_, Error>(PlannedRead { planned, delivers, rebuilt, stripe, code })
        };
        // With one data block, every block is a copy: a delegate that has one reads its own.
        let is_own = |index: &u8| delegate.is_some() && stripe.home_of(*index).map(|home| home.node) == *delegate;
        if let Some(own) = good.iter().copied().find(is_own).filter(|_| code.k() == 1)
            && let Ok(planned) = attempt(&[own])
        {
            return Ok(planned);
        }
        // Uses as few suspect blocks as possible. If two nodes were each blamed for the link between them, both are
        // suspect, and one of them suffices.
        let all: Vec<u8> = good.iter().chain(&suspect).copied().collect();
        let mut planned = attempt(&good);
        for count in good.len() + 1..=all.len() {
            match planned {
                Err(error) if error.reaction == Reaction::Unavailable => planned = attempt(&all[..count]),
                other => return other,
            }
        }
        planned.map_err(|error| match error.reaction {
            Reaction::Unavailable => {
                let rebuilt = planning::rebuilt(stripe, &all, ranges);
                let wanted = planning::wanted(stripe, &widen(stripe, ranges, &rebuilt));
                let absent = planning::unrecoverable(code, stripe, &all, &wanted).unwrap_or_default();
                let lost = planning::why_absent(stripe, &absent, &lost, "unknown");
                view.lacking_nodes(planning::too_many_lost(code, stripe, &lost, view))
            }
            _ => error,
        })
    }

    /// Whether everything can be read directly, without computation.
    pub fn is_plain(&self, view: &View) -> bool {
        let Request { stripe, ranges, .. } = &self.0;
        planning::rebuilt(stripe, &planning::readable(stripe, view).good, ranges).is_empty()
    }

    /// The stripe as the plan reads it.
    pub fn stripe(&self) -> &StripeRecord {
        &self.0.stripe
    }

    /// The plan's precedence.
    pub fn precedence(&self) -> Precedence {
        if self.0.delegate.is_some() { Precedence::MOVE } else { Class::Foreground.into() }
    }
}

impl PlannedRead {
    /// The blocks that are read directly, and of which the plan delivers part of a checksum unit.
    pub fn in_part(&self) -> BTreeSet<u8> {
        let is_edge =
            |index: u8, at: u64| at.is_multiple_of(CHECKSUM_UNIT_LEN) || at == self.stripe.layout.block_len(index.into());
        let is_in_part = |range: &&Range| !is_edge(range.index, range.bytes.start) || !is_edge(range.index, range.bytes.end);
        let read = self.delivers.iter().filter(|range| !self.rebuilt.contains(&range.index));
        read.filter(is_in_part).map(|range| range.index).collect()
    }

    /// The blocks that are read.
    pub fn read(&self) -> Vec<BlockId> {
        self.planned.plan.binding.blocks.iter().map(|block| block.id).collect()
    }

    /// Whether another plan could avoid a node.
    pub fn is_spare(&self, node: NodeId, view: &View) -> bool {
        let wanted = planning::wanted(&self.stripe, &self.delivers);
        let stripe = view.serving(self.stripe.clone(), |_, home| home == node, |_| 0);
        let Readable { good, suspect, .. } = planning::readable(&stripe, view);
        let is_elsewhere = |index: &u8| stripe.home_of(*index).is_some_and(|home| home.node != node);
        let available: Vec<u8> = good.into_iter().chain(suspect).filter(is_elsewhere).collect();
        planning::unrecoverable(&self.code, &stripe, &available, &wanted).is_none()
    }
}

/// The part of a range of an object's bytes that lies in the first stripe that the range touches, as ranges of data blocks. `None`: this
/// is not that stripe, or the part is empty or has more than `bytes_max` bytes.
pub fn first_part(stripe: &StripeRecord, range: Span, bytes_max: u64) -> Option<Vec<Range>> {
    let start = range.start.checked_sub(stripe.object_offset())?;
    let end = range.end.checked_sub(stripe.object_offset())?;
    let part = Span::new(start, end.min(stripe.layout.data_len));
    if part.is_empty() || part.len() > bytes_max {
        return None;
    }
    let range = |(index, bytes): (u32, Span)| Some(Range { index: u8::try_from(index).ok()?, bytes });
    stripe.layout.data_ranges(part).map(range).collect()
}

/// Whether an error concerns only a stripe and the homes of its blocks.
pub fn is_about(error: &Error, stripe: &StripeRecord) -> bool {
    let is_home = |node| stripe.all().any(|(_, placed)| placed.home.node == node);
    let is_party = |party| matches!(party, Party::Node(node) if is_home(node));
    error.block.is_none_or(|block| block.stripe == stripe.id) && error.party.is_none_or(is_party)
}

/// The node and the block to avoid for a while after a client reported an error: for a bad block only the block; no
/// node if the agents have already found the one to blame.
pub fn avoided(error: &Error, stripe: &StripeRecord, blamed: bool) -> (Option<NodeId>, Option<BlockId>) {
    let node = match (error.reaction, error.party) {
        (Reaction::Retry, _) | (_, None | Some(Party::Client(_))) => None,
        (Reaction::Corrupt, _) if error.block.is_some() => None,
        (_, Some(Party::Node(node))) => Some(node).filter(|_| !blamed),
    };
    // For a block that is known to be corrupt, the readable parts are known.
    let is_known = |block: &BlockId| {
        let placed = stripe.find(block.index, block.copy);
        stripe.id == block.stripe && placed.is_some_and(|placed| placed.state != BlockState::Ok)
    };
    (node, error.block.filter(|block| !is_known(block)))
}

/// The blocks to avoid for a while after a rebuilt range arrived with wrong bytes. All that was read for it had passed the checksums on its
/// disk, so any of the blocks in `read` may have been changed on the way, and nobody knows which: the next plans do without each in turn.
pub fn doubted(code: &SharedCode, stripe: &StripeRecord, errors: &[Error], read: &[BlockId], view: &View) -> Vec<BlockId> {
    let is_wrong = |error: &&Error| error.reaction == Reaction::Corrupt && error.party.is_none();
    let wrong = errors.iter().filter(is_wrong).filter_map(|error| error.block);
    let rebuilt: BTreeSet<u8> =
        wrong.filter(|block| block.stripe == stripe.id && !read.contains(block)).map(|block| block.index).collect();
    let whole = |index: &u8| (*index, stripe.layout.coded_span());
    let wanted: Vec<(u8, Span)> = rebuilt.iter().map(whole).collect();
    let mut doubted: Vec<BlockId> = Vec::new();
    if wanted.is_empty() {
        return doubted;
    }
    let Readable { good, suspect, .. } = planning::readable(stripe, view);
    for block in read.iter().filter(|block| !view.is_suspect_block(**block)) {
        let is_left = |index: &u8| *index != block.index && doubted.iter().all(|other| other.index != *index);
        let left: Vec<u8> =
            good.iter().chain(&suspect).copied().filter(|index| !rebuilt.contains(index)).filter(is_left).collect();
        if planning::unrecoverable(code, stripe, &left, &wanted).is_none() {
            doubted.push(*block);
        }
    }
    doubted
}

/// Widens the ranges to what can be read and checked, and merges those that then overlap.
fn widen(stripe: &StripeRecord, ranges: &[Range], rebuilt: &BTreeSet<u8>) -> Vec<Range> {
    let mut by_block: BTreeMap<u8, Vec<Span>> = BTreeMap::new();
    for range in ranges {
        let wide = planning::widened(&stripe.layout, *range, rebuilt.contains(&range.index));
        by_block.entry(range.index).or_default().push(wide.bytes);
    }
    let merged = |(index, spans): (u8, Vec<Span>)| Span::normalize(spans).into_iter().map(move |bytes| Range { index, bytes });
    by_block.into_iter().flat_map(merged).collect()
}

#[cfg(test)]
mod tests;
