//! Topologies grow level by level: who is placed already, what each can still send, who is left.

use super::topology::{Receiver, Upstream, whole};
use std::collections::BTreeMap;
use weft_codes::{Ask, Code, Recipe};

/// A topology of which some receivers are placed.
#[derive(Debug, Clone)]
pub(super) struct Grower<'a> {
    code: &'a dyn Code,
    pub(super) receivers: Vec<Receiver>,
    /// Sub-blocks that each receiver sends.
    used: Vec<usize>,
    /// Blocks that have no receiver yet, in the order in which they get one.
    left: Vec<u8>,
    /// The copies of each block, ascending.
    copies: &'a BTreeMap<u8, Vec<u8>>,
    /// The last level that anybody is on.
    pub(super) level: usize,
    /// Sub-blocks that are sent, all together.
    pub(super) sent: usize,
}

impl<'a> Grower<'a> {
    /// The first level: blocks of which none can be computed from the others, the data first. The writer sends those.
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

    /// Whether everybody has a place.
    pub(super) fn is_done(&self) -> bool {
        self.left.is_empty()
    }

    /// Levels of receivers whose blocks can be computed from less than k blocks of those before them, as long as there are any: on
    /// each those that take least, for others may come to take as little.
    pub(super) fn local(&mut self) {
        loop {
            let before = self.receivers.len();
            let offers = self.left.iter().filter_map(|index| self.cheap(*index, before));
            let Some(least) = offers.map(|helpers| total(&helpers)).min() else { break };
            self.level += 1;
            for index in self.left.clone() {
                // Whoever was placed in the meantime has taken some of the capacities.
                if let Some(helpers) = self.cheap(index, before).filter(|helpers| total(helpers) == least) {
                    self.place(index, Upstream::Helpers(helpers));
                }
            }
        }
    }

    /// Has these placed before the others.
    pub(super) fn prefer(&mut self, blocks: &[u8]) {
        self.left.sort_by_key(|index| !blocks.contains(index));
    }

    /// By the general rule, until so many receivers are placed; nobody who is placed sends more than `capacity` blocks. As far as
    /// capacities allow: there may be receivers left.
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

    /// Those who are left get their blocks from the writer after all.
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

    /// The receiver that was placed last knows all data; where its block has copies, it sends them one.
    fn stand_in(&mut self, index: u8) {
        let relayed = if self.copies[&index].len() > 1 { self.code.alpha() } else { 0 };
        self.receivers.last_mut().into_iter().for_each(|last| last.stands_in = true);
        self.used.last_mut().into_iter().for_each(|used| *used += relayed);
    }

    /// Those of the first receivers, the least busy first, and of equally busy ones the first.
    fn by_load(&self, before: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..before).collect();
        order.sort_by_key(|at| self.used[*at]);
        order
    }

    /// Those who can send a whole block more, the least busy first.
    fn with_room(&self, of: std::ops::Range<usize>, capacity: usize) -> Vec<usize> {
        let alpha = self.code.alpha();
        let mut order: Vec<usize> = of.filter(|at| self.used[*at] + alpha <= capacity).collect();
        order.sort_by_key(|at| self.used[*at]);
        order
    }

    /// Receivers who can each send their whole block, and from whose blocks all data can be had.
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

    /// Receivers who can send what a block is computed from, if that is less than k blocks.
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

    /// How a block is computed from those of receivers.
    fn recipe(&self, index: u8, helpers: &[usize]) -> Option<Recipe> {
        let available = self.indices(helpers);
        let ask = Ask { wanted: whole(self.code, index).collect(), available, read_anyway: Vec::new() };
        self.code.recipes(&ask).ok()?.into_iter().next()
    }

    /// The receivers that a recipe names, and what each sends.
    fn shares(&self, recipe: &Recipe, helpers: &[usize]) -> Option<Vec<(usize, usize)>> {
        let at = |index: u8| helpers.iter().copied().find(|at| self.receivers[*at].index == index);
        recipe.helpers.iter().map(|share| Some((at(share.index)?, share.compute.rows()))).collect()
    }

    fn indices(&self, receivers: &[usize]) -> Vec<u8> {
        receivers.iter().map(|at| self.receivers[*at].index).collect()
    }

    /// Whether all data blocks are placed: then nothing needs to be asked.
    fn has_all_data(&self) -> bool {
        let data = |receiver: &&Receiver| usize::from(receiver.index) < self.code.k();
        self.receivers.iter().filter(data).count() == self.code.k()
    }
}

/// Sub-blocks that helpers send.
fn total(helpers: &[(usize, usize)]) -> usize {
    helpers.iter().map(|(_, sent)| sent).sum()
}
