//! The state machine of a rebuild: what it waits for, and what follows from each answer.

mod failures;
mod keep;

use super::{
    Action, Arriving, BlocksGiven, Event, Lost, Needed, PlanRequest, Purpose, Rebuilt, RebuiltBlock, Request, World,
    avoided::Avoided,
    doubts::Doubts,
    homes::{Chosen, Others},
    state::State,
};
use crate::{
    planning::{Planned, Target},
    view::View,
};
use std::collections::{BTreeSet, VecDeque};
use weft_types::{BlockId, Error, Home, NodeId, Reaction, Result, StripeRecord};

/// How many homes are tried for a block while other rebuilds bring blocks of the stripe there.
pub(super) const HOMES_MAX: usize = 4;

/// A rebuild.
#[derive(Debug)]
pub struct Rebuild {
    request: Request,
    state: State,
    /// Blocks with a chosen home that is not allocated yet.
    unallocated: VecDeque<(Lost, Home)>,
    arriving: Vec<Arriving>,
    avoided: Avoided,
    doubts: Doubts,
    /// The first reason why a block could not be allocated.
    conflict: Option<Error>,
    /// Whether a node did not keep what it was asked to: none is asked from then on.
    keeps_nothing: bool,
    /// Why the last plan failed; `None` before the first.
    failure: Option<Error>,
    rebuilt: Rebuilt,
    actions: Vec<Action>,
}

impl Rebuild {
    /// For this request.
    pub fn new(request: Request) -> Self {
        Self {
            request,
            state: State::Begin,
            unallocated: VecDeque::new(),
            arriving: Vec::new(),
            avoided: Avoided::default(),
            doubts: Doubts::default(),
            conflict: None,
            keeps_nothing: false,
            failure: None,
            rebuilt: Rebuilt::default(),
            actions: Vec::new(),
        }
    }

    /// The request, with the stripe as it was last looked up.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The stripe's current record is known.
    pub fn refresh(&mut self, now: &StripeRecord) {
        self.request.refresh(now);
    }

    /// The blocks that are being written.
    pub fn arriving(&self) -> &[Arriving] {
        &self.arriving
    }

    /// How many plans followed the first.
    pub fn resumed(&self) -> u32 {
        self.rebuilt.resumed
    }

    /// The first plan and its warnings. Starts nothing, but counts its homes in `world.given`.
    pub fn explain(&self, world: &mut World<'_>) -> Result<(PlanRequest, Vec<String>)> {
        let request = &self.request;
        request.require_recoverable(world.view)?;
        let Chosen { homes, mut warnings, short } = request.choose_homes(world.view, world.given)?;
        let new = |(lost, home): (&Lost, &Option<Home>)| {
            let placed = request.stripe.blocks.get(&lost.index);
            let generation = placed.map_or(1, |placed| placed.generation_high_water + 1);
            let block = BlockId { stripe: request.stripe.id, index: lost.index, copy: lost.copy, generation };
            Some(Target { node: (*home)?.node, block, missing: vec![request.stripe.layout.coded_span()] })
        };
        let targets = request.lost.iter().zip(&homes).filter_map(new).collect();
        warnings.extend(short.map(|error| error.message));
        Ok((self.ask(targets, world), warnings))
    }

    /// Records the helpers of a plan, so that the next rebuilds prefer others.
    pub fn note_helpers(&self, planned: &Planned, world: &mut World<'_>) {
        let binding = &planned.plan.binding;
        let node = |block: &weft_plan::BoundBlock| binding.parties.get(usize::from(block.vertex))?.node();
        if self.request.helpers.is_some() {
            world.used.selected(binding.blocks.iter().filter_map(node));
        }
    }

    /// Whether another plan could replace the running one without this node: with other helpers or another home.
    pub fn is_spare(&self, node: NodeId, view: &View, given: &BlocksGiven) -> bool {
        let (request, failed) = (&self.request, self.left_alone());
        if self.pending().any(|new| new.home.node == node) {
            let avoid = self.pending().map(|new| new.home.node).chain(failed).collect();
            let others = Others { avoid, coming: self.coming(|home| home != node) };
            return !request.to.names(node) && request.find_homes(1, &others, view, given).is_ok();
        }
        request.can_do_without(&failed.into_iter().chain([node]).collect(), view)
    }

    /// Handles an event and returns the next actions. An event that answers no action is ignored.
    pub fn on(&mut self, event: Event, world: &mut World<'_>) -> Vec<Action> {
        match (std::mem::replace(&mut self.state, State::Ended), event) {
            (State::Begin, Event::Begin) => self.begin(world),
            (State::Allocating { lost, home, avoid, tried }, Event::Allocated(allocated)) => match allocated {
                Ok(block) => {
                    let missing = vec![self.request.stripe.layout.coded_span()];
                    let known = self.request.known_of(lost.index, lost.copy);
                    self.arriving.push(Arriving { block, home, expected: lost.checksums, known, missing, durable: None });
                    // Keeps the order of the request, also for a block that got another home.
                    let place = |new: &Arriving| {
                        let is_it = |lost: &Lost| (lost.index, lost.copy) == (new.block.index, new.block.copy);
                        self.request.lost.iter().position(is_it)
                    };
                    self.arriving.sort_by_key(place);
                    if !self.keep(block, home) {
                        self.go_on(world);
                    }
                }
                Err(error) => self.not_allocated(lost, home, avoid, tried, error, world),
            },
            (State::Keeping(block), Event::Kept(kept)) => self.kept(block, kept, world),
            (State::Releasing, Event::Released) => self.go_on(world),
            (State::Planning, Event::Planned(planned)) => match planned {
                Ok(planned) => self.planned(planned, world),
                Err(error) => self.not_run(error, world),
            },
            (State::Running { reads }, Event::Ran(ran)) => match ran {
                Ok(report) => self.ran(report, &reads, world),
                Err(error) => self.not_run(error, world),
            },
            (State::LookingUp(failure), Event::LookedUp(stripe)) => {
                if let Some(now) = stripe {
                    self.request.refresh(&now);
                }
                self.failed(failure, world);
            }
            (State::Committing { new, others, failure }, Event::Committed(committed)) => match committed {
                Ok(()) => {
                    self.rebuilt.blocks.push(new);
                    self.commit(others, failure, world.view);
                }
                // Another repair committed first, or the object is gone: the new block is not needed.
                Err(error) => {
                    self.leave((new.block.index, new.block.copy), error.message.clone());
                    self.not_committed(&new, others, failure.or(Some(error)));
                }
            },
            (State::NotCommitted { others, failure }, Event::Released) => self.commit(others, failure, world.view),
            (State::Ending { result, others }, Event::Released) => self.release_rest(result, others),
            (state, _) => self.state = state,
        }
        std::mem::take(&mut self.actions)
    }

    fn begin(&mut self, world: &mut World<'_>) {
        let chosen = self.request.require_recoverable(world.view);
        let chosen = chosen.and_then(|()| self.request.choose_homes(world.view, world.given));
        let Chosen { homes, warnings, short } = match chosen {
            Ok(chosen) => chosen,
            Err(error) => return self.end(Err(error)),
        };
        self.warn(&warnings);
        self.rebuilt.warnings = warnings;
        self.rebuilt.lack = short.as_ref().and_then(|error| error.cause);
        let why = short.map(|error| error.message).unwrap_or_default();
        for (lost, home) in self.request.lost.clone().into_iter().zip(homes) {
            match home {
                Some(home) => self.unallocated.push_back((lost, home)),
                None => self.leave((lost.index, lost.copy), why.clone()),
            }
        }
        self.go_on(world);
    }

    /// Gives every block a working home, and then brings what is missing.
    fn go_on(&mut self, world: &mut World<'_>) {
        if self.request.is_needless(world.view) {
            return self.drop_all();
        }
        if let Some(error) = self.doubts.given_up.clone() {
            return self.leave_wrong(error, world.view);
        }
        if let Some((lost, home)) = self.unallocated.pop_front() {
            return self.allocate(lost, home);
        }
        let is_useless = |new: &Arriving| self.avoided.failed.contains(&new.home.node) || self.doubts.wrong.contains(&new.block);
        let failed = |new: &Arriving| new.durable.is_none() && is_useless(new);
        if let Some(at) = self.arriving.iter().position(failed) {
            return self.replace(at, world);
        }
        if self.arriving.is_empty() {
            let error = self.conflict.take().unwrap_or_else(|| Error::unavailable("no block of the stripe has a home"));
            return self.end(Err(error));
        }
        if self.arriving.iter().all(|new| new.durable.is_some()) {
            return self.all_durable(world.view);
        }
        if let Some(error) = self.failure.take() {
            self.rebuilt.resumed += 1;
            if self.rebuilt.resumed > self.request.resumes_max.saturating_add(self.doubts.turns) {
                let message =
                    format!("gave up after {} plans, the last of which failed: {}", self.rebuilt.resumed, error.message);
                return self.fail(Error { reaction: Reaction::Unavailable, message, ..error });
            }
            let missing: u64 = self.pending().flat_map(|new| &new.missing).map(|span| span.len()).sum();
            self.actions.push(Action::Resumed(format!("{error}; resuming with the {missing} missing positions")));
        }
        let target = |new: &Arriving| Target { node: new.home.node, block: new.block, missing: new.missing.clone() };
        let ask = self.ask(self.pending().map(target).collect(), world);
        self.actions.push(Action::Plan(Box::new(ask)));
        self.state = State::Planning;
    }

    fn ask(&self, targets: Vec<Target>, world: &mut World<'_>) -> PlanRequest {
        let World { view, used, rng, .. } = world;
        let mut select = self.request.helpers.map(|select| move |nodes: Vec<NodeId>| used.order(select, nodes, *rng));
        let select = select.as_mut().map(|select| select as &mut dyn FnMut(Vec<NodeId>) -> Vec<NodeId>);
        self.request.ask(targets, &self.left_alone(), view, select)
    }

    /// Requests a home, and then another one while a concurrent rebuild brings another block of the stripe there.
    fn allocate(&mut self, lost: Lost, home: Home) {
        let avoid = self.taken(&lost);
        self.allocate_at(lost, home, avoid, 1);
    }

    fn allocate_at(&mut self, lost: Lost, home: Home, avoid: BTreeSet<NodeId>, tried: usize) {
        self.actions.push(Action::Allocate { index: lost.index, copy: lost.copy, home });
        self.state = State::Allocating { lost, home, avoid, tried };
    }

    fn not_allocated(
        &mut self,
        lost: Lost,
        home: Home,
        mut avoid: BTreeSet<NodeId>,
        tried: usize,
        error: Error,
        world: &mut World<'_>,
    ) {
        if error.reaction != Reaction::Replan {
            return self.fail(error);
        }
        avoid.insert(home.node);
        let others = Others { avoid, coming: self.coming(|_| true) };
        if !self.request.to.names(home.node)
            && tried < HOMES_MAX
            && let Ok((other, warnings)) = self.request.place_one(&others, world.view, world.given)
        {
            self.warn(&warnings);
            return self.allocate_at(lost, other, others.avoid, tried + 1);
        }
        if self.request.purpose.is_put() {
            return self.fail(error);
        }
        self.leave((lost.index, lost.copy), error.message.clone());
        self.conflict.get_or_insert(error);
        self.go_on(world);
    }

    fn planned(&mut self, planned: Box<Planned>, world: &mut World<'_>) {
        self.note_helpers(&planned, world);
        self.state = State::Running { reads: planned.plan.binding.blocks.iter().map(|block| block.id).collect() };
        self.actions.push(Action::Run(planned));
    }

    /// All nodes that the next plan avoids.
    fn left_alone(&self) -> BTreeSet<NodeId> {
        self.avoided.left_alone().union(&self.doubts.left_out).copied().collect()
    }

    fn all_durable(&mut self, view: &View) {
        let blocks: VecDeque<RebuiltBlock> = self.arriving.drain(..).filter_map(|new| new.rebuilt()).collect();
        match self.request.purpose {
            Purpose::Put(_) => {
                self.rebuilt.blocks = blocks.into();
                let rebuilt = std::mem::take(&mut self.rebuilt);
                self.end(Ok(rebuilt));
            }
            Purpose::Repair => self.commit(blocks, None, view),
        }
    }

    /// Commits the blocks one after another, without those that have come back. If none could be committed, the rebuild has failed.
    fn commit(&mut self, mut blocks: VecDeque<RebuiltBlock>, failure: Option<Error>, view: &View) {
        let Some(new) = blocks.pop_front() else {
            let rebuilt = std::mem::take(&mut self.rebuilt);
            return self.end(match failure.filter(|_| rebuilt.blocks.is_empty()) {
                Some(error) => Err(error),
                None => Ok(rebuilt),
            });
        };
        if self.request.needed == Needed::WhileLost && !self.request.is_lost_now(new.block.index, new.block.copy, view) {
            return self.not_committed(&new, blocks, failure);
        }
        let placed = self.request.stripe.find(new.block.index, new.block.copy);
        self.actions.push(Action::Commit { new: new.clone(), old: placed.map_or(0, |placed| placed.generation) });
        self.state = State::Committing { new, others: blocks, failure };
    }

    fn not_committed(&mut self, new: &RebuiltBlock, others: VecDeque<RebuiltBlock>, failure: Option<Error>) {
        self.actions.push(Action::Release { block: new.block, may_be_written: false });
        self.state = State::NotCommitted { others, failure };
    }

    /// Releases all allocations, and ends without a block.
    fn drop_all(&mut self) {
        self.unallocated.clear();
        self.rebuilt.left.clear();
        self.release_all(Ok(()));
    }

    /// Releases all allocations, and then ends.
    fn fail(&mut self, error: Error) {
        self.release_all(Err(error));
    }

    fn release_all(&mut self, result: Result<()>) {
        let blocks = self.arriving.drain(..).map(|new| new.block).collect();
        self.release_rest(result, blocks);
    }

    fn release_rest(&mut self, result: Result<()>, mut others: VecDeque<BlockId>) {
        match others.pop_front() {
            None => {
                let rebuilt = std::mem::take(&mut self.rebuilt);
                self.end(result.map(|()| rebuilt));
            }
            Some(block) => {
                self.actions.push(Action::Release { block, may_be_written: true });
                self.state = State::Ending { result, others };
            }
        }
    }

    fn end(&mut self, result: Result<Rebuilt>) {
        self.actions.push(Action::End(result.map_err(|error| error.for_lack_of_space(self.avoided.disk_was_full))));
        self.state = State::Ended;
    }

    fn leave(&mut self, (index, copy): (u8, u8), why: String) {
        self.actions.push(Action::Warn(format!("block {index}, copy {copy}, was not rebuilt: {why}")));
        self.rebuilt.left.push(((index, copy), why));
    }

    fn warn(&mut self, warnings: &[String]) {
        self.actions.extend(warnings.iter().cloned().map(Action::Warn));
    }

    /// The nodes that cannot take a block: they get or held other blocks, or have failed.
    fn taken(&self, lost: &Lost) -> BTreeSet<NodeId> {
        let others = self.coming(|_| true).into_iter().chain(self.request.lost_nodes_of_others(lost.index, lost.copy));
        others.chain(self.avoided.failed.iter().copied()).collect()
    }

    /// The nodes that get blocks, of these nodes.
    fn coming(&self, is_meant: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let arriving = self.arriving.iter().map(|new| new.home.node);
        arriving.chain(self.unallocated.iter().map(|(_, home)| home.node)).filter(|node| is_meant(*node)).collect()
    }

    fn pending(&self) -> impl Iterator<Item = &Arriving> {
        self.arriving.iter().filter(|new| new.durable.is_none())
    }
}
