//! The writer sends data again: missing data goes to new homes, and everything else can be rebuilt from it.

use super::{
    Action, Event, SentStripe, World,
    end::{State, StripeEnd},
};
use crate::{
    capacity::Wanted,
    placement::{self, Ask, NOTHING},
    reserve::Share,
    view::View,
};
use std::collections::{BTreeSet, VecDeque};
use weft_types::{BlockId, Error, FailureDomain, Home, NodeId, Party, PlacedBlock, Reaction, Result};

/// The preparation of a resend.
#[derive(Debug, Default)]
pub(super) struct Resend {
    /// Blocks whose new home is not allocated yet; the first is being allocated.
    unallocated: VecDeque<(u8, Home)>,
    /// How many nodes could not take part.
    failures: u32,
    /// Set if there was no home for the missing data and other blocks are sent instead.
    others: bool,
}

impl StripeEnd {
    /// Starts to send the missing data again.
    pub(super) fn send_again(&mut self, world: &mut World<'_>) {
        let data = |index: &&u8| usize::from(**index) < self.request.code.k();
        self.sent.blocks = self.sent.missing.keys().filter(data).copied().collect();
        self.sent.resent += 1;
        self.place_again(self.sent.blocks.clone(), Resend::default(), world);
    }

    pub(super) fn on_resend(&mut self, mut resend: Resend, event: Event, world: &mut World<'_>) {
        match event {
            Event::Allocated(allocated) if !resend.unallocated.is_empty() => match allocated {
                Ok(block) => {
                    let home = resend.unallocated.pop_front();
                    home.into_iter().for_each(|(_, home)| self.moved(block, home));
                    self.allocate_next(resend);
                }
                Err(error) => self.not_placed(error, resend, world),
            },
            Event::Started(Ok(())) if resend.unallocated.is_empty() => self.end_again(),
            Event::Started(Err(error)) if resend.unallocated.is_empty() => self.not_started(error, resend, world),
            _ => self.state = State::Resend(resend),
        }
    }

    fn moved(&mut self, block: BlockId, home: Home) {
        if let Some(placed) = self.sent.stripe.blocks.get_mut(&block.index) {
            *placed = PlacedBlock { generation: block.generation, home, ..*placed };
        }
    }

    fn not_started(&mut self, error: Error, mut resend: Resend, world: &mut World<'_>) {
        match (error.reaction, error.party) {
            // A receiver that computes its block from many others needs more memory than some node has.
            (Reaction::InvalidInput, _) if self.sent.options.is_left_open() => {
                self.sent.options = self.sent.options.clone().by_the_simplest();
                self.actions.push(Action::Simplest(error));
                self.allocate_next(resend);
            }
            // A node could not be reached: its blocks go to other nodes.
            (Reaction::Replan, Some(Party::Node(node))) if resend.failures < self.request.resumes_max => {
                self.sent.failed.insert(node);
                resend.failures += 1;
                let is_there = |index: &u8| self.home(*index).is_some_and(|home| home.node == node);
                let unallocated = self.sent.blocks.iter().copied().filter(is_there).collect();
                self.place_again(unallocated, resend, world);
            }
            _ => self.not_sent(&error),
        }
    }

    /// Allocates new generations of blocks, at their old homes or, if those nodes failed, at others.
    fn place_again(&mut self, blocks: Vec<u8>, resend: Resend, world: &mut World<'_>) {
        match self.new_homes(&blocks, world) {
            Ok(homes) => self.allocate_next(Resend { unallocated: blocks.into_iter().zip(homes).collect(), ..resend }),
            Err(error) => self.not_placed(error, resend, world),
        }
    }

    /// There is no home for the data. Other missing blocks, whose nodes still work, may suffice for the
    /// acknowledgement.
    fn not_placed(&mut self, error: Error, resend: Resend, world: &mut World<'_>) {
        let stays = |index: &u8| self.home(*index).is_some_and(|home| !self.sent.failed.contains(&home.node));
        let others: Vec<u8> = self.sent.missing.keys().copied().filter(stays).collect();
        if resend.others || resend.failures > 0 || others.is_empty() {
            return self.not_sent(&error);
        }
        self.sent.blocks.clone_from(&others);
        self.place_again(others, Resend { others: true, unallocated: VecDeque::new(), ..resend }, world);
    }

    fn allocate_next(&mut self, resend: Resend) {
        self.actions.push(match resend.unallocated.front() {
            Some((index, home)) => {
                let placed = self.sent.stripe.blocks.get(index);
                Action::Allocate { index: *index, copy: placed.map_or(0, |placed| placed.copy), home: *home }
            }
            None => Action::Send(Box::new(self.sent.clone())),
        });
        self.state = State::Resend(resend);
    }

    fn not_sent(&mut self, error: &Error) {
        self.actions.push(Action::Warn(format!("the missing blocks cannot be sent again either: {error}")));
        self.give_up();
    }

    fn home(&self, index: u8) -> Option<Home> {
        self.sent.stripe.home_of(index)
    }

    /// Homes for blocks: their old ones, unless those nodes failed.
    fn new_homes(&self, blocks: &[u8], world: &mut World<'_>) -> Result<Vec<Home>> {
        let (request, SentStripe { stripe, failed, .. }) = (&self.request, &self.sent);
        let stays = |home: &Home| !failed.contains(&home.node);
        let mut homes: Vec<Option<Home>> = blocks.iter().map(|index| self.home(*index).filter(stays)).collect();
        let held: Vec<NodeId> = stripe.all().map(|(_, placed)| placed.home).filter(stays).map(|home| home.node).collect();
        let (spec, count) = (request.code.spec(), homes.iter().filter(|home| home.is_none()).count());
        let avoid = self.avoided(count, &held, request.failure_domain, world.view)?;
        let ask = Ask {
            code: &spec,
            count,
            tolerance: request.code.tolerance(),
            failure_domain: request.failure_domain,
            held: &held,
            avoid: &avoid,
            named: false,
            load: &NOTHING,
            bytes: stripe.layout.block_len(0).saturating_add(request.disk_reserve_bytes),
            kept: Share::NONE,
        };
        let mut found = placement::place(world.view, &ask, &mut world.rng)?.homes.into_iter();
        homes.iter_mut().filter(|home| home.is_none()).for_each(|home| *home = found.next());
        Ok(homes.into_iter().flatten().collect())
    }

    /// The nodes that get none of `count` further blocks: those that failed and, for a conversion, those that must keep
    /// their free space.
    pub(super) fn avoided(
        &self,
        count: usize,
        held: &[NodeId],
        failure_domain: FailureDomain,
        view: &View,
    ) -> Result<BTreeSet<NodeId>> {
        let (request, SentStripe { stripe, failed, .. }) = (&self.request, &self.sent);
        let Some(kept_free) = request.kept_free else { return Ok(failed.clone()) };
        let whole = Wanted::stripe(&request.code, request.replicas, failure_domain, &stripe.layout);
        let full = kept_free.without_room(view, &Wanted { count, held, avoid: failed, ..whole })?;
        Ok(failed | &full)
    }
}
