//! Builds topologies level by level: which receivers are placed, what each can still send, which are left.

use super::topology::{Receiver, Upstream, whole};
use std::collections::BTreeMap;
use weft_codes::{Ask, Code, Recipe};

/// A partly built topology.
#[derive(Debug, Clone)]
pub(super) struct Grower<'a> {
    code: &'a dyn Code,
    pub(super) receivers: Vec<Receiver>,
    /// Sub-blocks that each receiver sends.
    used: Vec<usize>,
    /// Blocks without a receiver, in the order in which they get one.
    left: Vec<u8>,
    /// The copies of each block, ascending.
    copies: &'a BTreeMap<u8, Vec<u8>>,
    /// The last level with a receiver.
    pub(super) level: usize,
    /// Sub-blocks that are sent, in total.
    pub(super) sent: usize,
}

impl<'a> Grower<'a> {
    /// The first level: blocks that cannot be computed from each other, data first. The writer sends these.
    pub(super) fn start(code: &'a dyn Code, copies: &'a BTreeMap<u8, Vec<u8>>) -> Self {
        let left = copies.keys().copied().collect();
        let mut grower = Self { code, receivers: Vec::new(), used: Vec::new(), left, copies, level: 1, sent: 0 };
        for index in grower.left.clone() {
            let before: Vec<usize> = (0..grower.receivers.len()).collect();
            if !grower.has_all_data() && grower.recipe(index, &before).is_none() {
                grower.place(index, Upstream::Writer);
            }
        }
        grower
    }

    /// Whether every block has a receiver.
    pub(super) fn is_done(&self) -> bool {
        self.left.is_empty()
    }

    /// Adds levels of receivers whose blocks can be computed from less than k blocks of earlier ones, as long as there
    /// are any. Each level takes those with the least input, because others may need as little later.
    pub(super) fn local(&mut self) {
        loop {
            let before = self.receivers.len();
            let offers = self.left.iter().filter_map(|index| self.cheap(*index, before));
            let Some(least) = offers.map(|helpers| total(&helpers)).min() else { break };
            self.level += 1;
            for index in self.left.clone() {
                // Receivers placed since then have used some of the capacities.
                if let Some(helpers) = self.cheap(index, before).filter(|helpers| total(helpers) == least) {
                    self.place(index, Upstream::Helpers(helpers));
                }
            }
        }
    }

    /// Places these blocks before the others.
    pub(super) fn prefer(&mut self, blocks: &[u8]) {
        self.left.sort_by_key(|index| !blocks.contains(index));
    }

    /// Places up to `count` receivers by the general rule; no earlier receiver sends more than `capacity` blocks. Some
    /// receivers may remain if capacities are used up.
    pub(super) fn general(&mut self, count: usize, capacity: usize) {
        let capacity = capacity * self.code.alpha();
        loop {
            let before = self.receivers.len();
            while self.receivers.len() < count
                && let Some(index) = self.left.first().copied()
                && let Some(helpers) = self.all_known(before, capacity)
            {
                self.level += usize::from(self.receivers.len() == before);
                self.place(index, Upstream::Helpers(helpers));
                self.stand_in(index);
            }
            let stand_ins = before..self.receivers.len();
            if stand_ins.is_empty() {
                break;
            }
            let mut is_first = true;
            while self.receivers.len() < count
                && let Some(index) = self.left.first().copied()
                && let Some(from) = self.with_room(stand_ins.clone(), capacity).first().copied()
            {
                self.level += usize::from(std::mem::take(&mut is_first));
                self.place(index, Upstream::Receiver(from));
            }
        }
    }

    /// Lets the writer send the remaining blocks.
    pub(super) fn give_up(&mut self) {
        self.level = 1;
        for index in self.left.clone() {
            self.place(index, Upstream::Writer);
        }
    }

    fn place(&mut self, index: u8, upstream: Upstream) {
        let alpha = self.code.alpha();
        self.sent += match &upstream {
            Upstream::Writer => alpha,
            Upstream::Receiver(from) => {
                self.used[*from] += alpha;
                alpha
            }
            Upstream::Helpers(helpers) => {
                helpers.iter().for_each(|(from, sent)| self.used[*from] += sent);
                total(helpers)
            }
        };
        let copy = self.copies[&index][0];
        self.receivers.push(Receiver { index, copy, level: self.level, upstream, stands_in: false });
        self.used.push(0);
        self.left.retain(|left| *left != index);
    }

    /// The last receiver knows all data; if its block has copies, it sends one to them.
    fn stand_in(&mut self, index: u8) {
        let relayed = if self.copies[&index].len() > 1 { self.code.alpha() } else { 0 };
        self.receivers.last_mut().into_iter().for_each(|last| last.stands_in = true);
        self.used.last_mut().into_iter().for_each(|used| *used += relayed);
    }

    /// The first `before` receivers, the least busy first; of equally busy ones the earliest.
    fn by_load(&self, before: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..before).collect();
        order.sort_by_key(|at| self.used[*at]);
        order
    }

    /// Those that can send another whole block, the least busy first.
    fn with_room(&self, of: std::ops::Range<usize>, capacity: usize) -> Vec<usize> {
        let alpha = self.code.alpha();
        let mut order: Vec<usize> = of.filter(|at| self.used[*at] + alpha <= capacity).collect();
        order.sort_by_key(|at| self.used[*at]);
        order
    }

    /// Receivers that can each send their whole block, and whose blocks determine all data.
    fn all_known(&self, before: usize, capacity: usize) -> Option<Vec<(usize, usize)>> {
        let (code, mut helpers) = (self.code, self.with_room(0..before, capacity));
        if code.tolerance() == code.m() {
            // Any k blocks.
            helpers.truncate(code.k());
            return (helpers.len() == code.k()).then(|| helpers.into_iter().map(|at| (at, code.alpha())).collect());
        }
        let wanted = (0..code.k()).flat_map(|index| whole(code, index as u8)).collect();
        let recipes = code.recipes(&Ask { wanted, available: self.indices(&helpers), read_anyway: Vec::new() });
        self.shares(&recipes.ok()?.into_iter().next()?, &helpers)
    }

    /// Receivers that can send the input of a block's recipe, if that is less than k blocks.
    fn cheap(&self, index: u8, before: usize) -> Option<Vec<(usize, usize)>> {
        let (k, alpha) = (self.code.k(), self.code.alpha());
        if before <= k && self.code.tolerance() == self.code.m() {
            // Of k blocks of which any k suffice, each depends on all others.
            return None;
        }
        let helpers: Vec<usize> = self.by_load(before).into_iter().filter(|at| self.used[*at] < k * alpha).collect();
        let recipe = self.recipe(index, &helpers).filter(|recipe| recipe.sub_blocks_sent() < k * alpha)?;
        let shares = self.shares(&recipe, &helpers)?;
        shares.iter().all(|(at, sent)| self.used[*at] + sent <= k * alpha).then_some(shares)
    }

    /// How a block is computed from receivers' blocks.
    fn recipe(&self, index: u8, helpers: &[usize]) -> Option<Recipe> {
        let available = self.indices(helpers);
        let ask = Ask { wanted: whole(self.code, index).collect(), available, read_anyway: Vec::new() };
        self.code.recipes(&ask).ok()?.into_iter().next()
    }

    /// The receivers in a recipe, and what each sends.
    fn shares(&self, recipe: &Recipe, helpers: &[usize]) -> Option<Vec<(usize, usize)>> {
        let at = |index: u8| helpers.iter().copied().find(|at| self.receivers[*at].index == index);
        recipe.helpers.iter().map(|share| Some((at(share.index)?, share.compute.rows()))).collect()
    }

    fn indices(&self, receivers: &[usize]) -> Vec<u8> {
        receivers.iter().map(|at| self.receivers[*at].index).collect()
    }

    /// Whether all data blocks are placed; then no recipe is needed to know it.
    fn has_all_data(&self) -> bool {
        let data = |receiver: &&Receiver| usize::from(receiver.index) < self.code.k();
        self.receivers.iter().filter(data).count() == self.code.k()
    }
}

/// Sub-blocks that helpers send.
fn total(helpers: &[(usize, usize)]) -> usize {
    helpers.iter().map(|(_, sent)| sent).sum()
}
