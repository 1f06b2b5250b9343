//! What follows when a plan has ended, or could not run: whom the next one avoids, and where its blocks go.

use super::Rebuild;
use crate::{
    rebuild::{
        Action, Arriving, Lost, World,
        avoided::{DISPUTES_MAX, is_known_bad, knows_bad_blocks},
        doubts::Doubts,
        homes::Others,
        state::{Failure, State},
    },
    run::Report,
    view::View,
};
use std::collections::BTreeSet;
use weft_types::{BlockId, Cause, Error, Home, NodeId, Party, Reaction};

impl Rebuild {
    /// No plan could be made, or not all its agents could open it.
    pub(super) fn not_run(&mut self, error: Error, world: &mut World<'_>) {
        if self.request.is_needless(world.view) {
            return self.drop_all();
        }
        match (error.reaction, error.party) {
            // A node could not be reached: another plan avoids it.
            (Reaction::Replan, Some(Party::Node(node))) => self.look_up(Failure::NotOpened { node, error }, world),
            // Too few nodes are left without the blamed ones: perhaps the nodes that blamed them are at fault.
            (Reaction::Unavailable, _) if !self.avoided.blamed.is_empty() => {
                if self.avoid_doubtful(1, world) || self.avoided.second_chances() {
                    self.failure = Some(error);
                    self.go_on(world);
                } else {
                    self.fail(error);
                }
            }
            // The nodes have changed, or the scheme needs more helpers than the code.
            (Reaction::Unavailable, _) if !self.doubts.left_out.is_empty() => {
                if self.doubt_others(world) {
                    self.failure = Some(error);
                    self.go_on(world);
                } else {
                    self.forget_kept();
                    let error = self.doubts.error.take().unwrap_or(error);
                    self.leave_wrong(error, world.view);
                }
            }
            _ => self.fail(error),
        }
    }

    pub(super) fn ran(&mut self, report: Report, reads: &[BlockId], world: &mut World<'_>) {
        self.rebuilt.traffic = self.rebuilt.traffic + report.traffic();
        let whole = self.request.stripe.layout.coded_span();
        let mut wrong = Vec::new();
        for new in self.arriving.iter_mut().filter(|new| new.durable.is_none()) {
            new.take(&report, whole);
            if new.durable.is_none() && report.is_not_what_was_lost(new.block, new.home.node) {
                wrong.push((new.block, new.home.node));
            }
        }
        for (block, home) in &wrong {
            self.doubts.saw(block.index, report.stored(*block, *home).map(|stored| stored.checksums.clone()));
        }
        if let Some((block, _)) = wrong.first() {
            let error = self.request.not_what_was_lost(*block, reads, world.view);
            let stripe = &self.request.stripe;
            let helper = |block: &BlockId| Some(stripe.find(block.index, block.copy)?.home.node);
            self.doubts.learn(&wrong, reads.iter().filter_map(helper), error);
            return self.look_up(Failure::Wrong, world);
        }
        if self.arriving.iter().all(|new| new.durable.is_some()) {
            self.found_out(world);
            return self.all_durable(world.view);
        }
        self.look_up(Failure::Told(report), world);
    }

    /// Looks up what was recorded of the stripe's blocks since. For a put's stripe nothing is recorded before its end.
    fn look_up(&mut self, failure: Failure, world: &mut World<'_>) {
        if self.request.purpose.is_put() {
            return self.failed(failure, world);
        }
        self.actions.push(Action::LookUp);
        self.state = State::LookingUp(failure);
    }

    /// Decides which nodes the next plan avoids, and continues.
    pub(super) fn failed(&mut self, failure: Failure, world: &mut World<'_>) {
        let stripe = &self.request.stripe;
        self.failure = Some(match failure {
            Failure::NotOpened { node, error } => {
                // The next plan avoids a bad block, but not its node.
                if !error.block.is_some_and(|block| is_known_bad(stripe, block)) {
                    self.avoided.failed.insert(node);
                    self.avoided.disk_was_full |= error.cause == Some(Cause::NoSpace);
                }
                error
            }
            Failure::Wrong => {
                let error = self.doubts.error.clone().unwrap_or_else(|| Error::corrupt("the rebuilt block is wrong"));
                if !self.doubt_others(world) {
                    self.forget_kept();
                    self.suspect(self.doubts.only_home().into_iter().collect());
                    return self.leave_wrong(error, world.view);
                }
                error
            }
            Failure::Told(report) => {
                let is_bad = report.blame.is_some_and(|blame| knows_bad_blocks(stripe, blame.node, &report));
                self.avoided.learn(&report, &self.arriving, is_bad);
                let dead = self.arriving.iter().filter(|new| new.durable.is_none() && new.is_dead(&report));
                self.avoided.failed.extend(dead.map(|new| new.home.node));
                self.avoid_doubtful(DISPUTES_MAX, world);
                report.cause()
            }
        });
        self.go_on(world);
    }

    /// Leaves out the blocks that are not durable yet, one after another, and keeps the others of this rebuild.
    pub(super) fn leave_wrong(&mut self, error: Error, view: &View) {
        if self.request.purpose.is_put() || self.arriving.iter().all(|new| new.durable.is_none()) {
            return self.fail(error);
        }
        let Some(at) = self.arriving.iter().position(|new| new.durable.is_none()) else { return self.all_durable(view) };
        let block = self.arriving.remove(at).block;
        self.leave((block.index, block.copy), error.message.clone());
        self.doubts.given_up = Some(error);
        self.actions.push(Action::Release { block, may_be_written: true });
        self.state = State::Releasing;
    }

    /// All helpers and several homes agree on a block, and only what is known of it differs: that is forgotten, so that the next rebuild succeeds.
    fn forget_kept(&mut self) {
        let Some(index) = self.doubts.same_everywhere() else { return };
        let is_known = |new: &Arriving| new.block.index == index && new.expected.is_none() && !new.known.is_empty();
        if let Some(new) = self.arriving.iter().find(|new| is_known(new)) {
            let why = format!("what was known of block {} from before updates is wrong: it is forgotten", new.block);
            self.actions.extend([Action::Warn(why), Action::ForgetKept { index }]);
        }
    }

    /// Chooses whom the next plan does without, after a wrong result. Returns whether there is a plan that was not tried.
    fn doubt_others(&mut self, world: &World<'_>) -> bool {
        let (request, always) = (&self.request, self.avoided.left_alone());
        self.doubts.turn(|left_out| request.can_do_without(&always.union(left_out).copied().collect(), world.view))
    }

    /// After wrong results, all is right: one of those that this plan did without is at fault. If blocks were wrong at several homes, it is
    /// a helper.
    fn found_out(&mut self, world: &World<'_>) {
        let Doubts { homes, left_out, error: Some(_), .. } = &self.doubts else { return };
        let homes = homes.iter().filter(|_| left_out.is_empty() || homes.len() == 1);
        let nodes: BTreeSet<NodeId> = left_out.iter().chain(homes).copied().collect();
        let names: Vec<String> = nodes.iter().map(|node| world.view.name(*node)).collect();
        let names = names.join(", ");
        self.actions
            .push(Action::Warn(format!("the rebuilt block is right without these nodes, one of which changes bytes: {names}")));
        self.suspect(nodes);
    }

    fn suspect(&mut self, nodes: BTreeSet<NodeId>) {
        self.actions.extend(nodes.into_iter().map(Action::Suspect));
    }

    /// A home that was in disputes with its helpers in this many plans is their common cause. It is replaced if there
    /// is another node, and the helpers are cleared. Returns whether there was such a home.
    fn avoid_doubtful(&mut self, plans: u32, world: &mut World<'_>) -> bool {
        let avoided = &self.avoided;
        let is_doubtful = |node: &NodeId| avoided.disputes.get(node).is_some_and(|disputes| *disputes >= plans);
        let homes = || self.pending().map(|new| new.home.node).filter(|node| !avoided.failed.contains(node));
        let doubtful: BTreeSet<NodeId> = homes().filter(|node| is_doubtful(node) && !self.request.to.names(*node)).collect();
        // Homes that have failed must be replaced, too.
        let needed = doubtful.len() + (self.pending().count() - homes().count());
        let avoid: BTreeSet<NodeId> = self.arriving.iter().map(|new| new.home.node).chain(self.left_alone()).collect();
        let coming = self.coming(|node| !doubtful.contains(&node) && !self.avoided.failed.contains(&node));
        let others = Others { avoid, coming };
        if doubtful.is_empty() || self.request.find_homes(needed, &others, world.view, world.given).is_err() {
            return false;
        }
        if !self.avoided.starved {
            self.suspect(doubtful.clone());
        }
        self.avoided.failed.extend(doubtful);
        self.avoided.blamed.clear();
        true
    }

    /// Finds a new home for a block whose node has failed. If one of several blocks has none, the others are rebuilt
    /// without it.
    pub(super) fn replace(&mut self, at: usize, world: &mut World<'_>) {
        let new = self.arriving.remove(at);
        let (block, node) = (new.block, new.home.node);
        let lost = Lost { index: block.index, copy: block.copy, checksums: new.expected.clone() };
        let is_wrong = self.doubts.wrong.remove(&block);
        if is_wrong && !self.avoided.failed.contains(&node) {
            let home = self.another_home(&lost, new.home, world);
            self.unallocated.push_back((lost, home));
            self.actions.push(Action::Release { block, may_be_written: true });
            self.state = State::Releasing;
            return;
        }
        if self.request.to.names(node) {
            self.arriving.push(new);
            let name = world.view.name(node);
            return self.fail(Error::unavailable(format!("{name} failed, which was to store the block")).block(block));
        }
        // Those that have failed, too, are replaced next.
        let coming = self.coming(|node| !self.avoided.failed.contains(&node));
        let others = Others { avoid: self.taken(&lost), coming };
        match self.request.place_one(&others, world.view, world.given) {
            Ok((home, warnings)) => {
                self.warn(&warnings);
                self.unallocated.push_back((lost, home));
            }
            Err(error) if !self.request.purpose.is_put() && !self.arriving.is_empty() => {
                self.rebuilt.lack = error.cause;
                self.leave((block.index, block.copy), error.message);
            }
            Err(error) => {
                self.arriving.push(new);
                return self.fail(error);
            }
        }
        self.actions.push(Action::Release { block, may_be_written: true });
        self.state = State::Releasing;
    }

    /// The next home of a block that was wrong at this one: another one, if there is any.
    fn another_home(&mut self, lost: &Lost, home: Home, world: &mut World<'_>) -> Home {
        if self.request.to.names(home.node) {
            return home;
        }
        let avoid = self.taken(lost).into_iter().chain(self.doubts.homes.iter().copied()).collect();
        let others = Others { avoid, coming: self.coming(|node| !self.avoided.failed.contains(&node)) };
        let Ok((other, warnings)) = self.request.place_one(&others, world.view, world.given) else { return home };
        self.warn(&warnings);
        other
    }
}
