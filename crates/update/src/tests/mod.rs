//! The model: these very state machines, with journals that lose what is not durable, a network that loses, repeats and reorders, and a
//! coordinator, explored exhaustively within bounds.
//!
//! Every setup is small: three to five blocks, one or two updates, one or two of each kind of fault. What is explored is stated in
//! docs/adr/0014-update-protocol.md. `WEFT_UPDATE_STATES=5000000` explores the larger setups, each up to that many states.

mod check;
mod explore;
mod local;
mod setups;

use crate::{
    Config, Dependence, Seal, Session, StripeTerm, UpdateId, Write,
    mutation::{Rule, drop_rule},
};
use explore::{Budget, Explored, Explorer, Violation};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_types::{BlockId, Span, StripeId};

/// What is explored.
#[derive(Debug, Clone, Default)]
struct Setup {
    k: u8,
    m: u8,
    /// Pages of a block.
    pages: u64,
    /// What each update writes; the first block's node leads it.
    updates: Vec<Vec<Write>>,
    /// The nodes that apply updates on the way, and not only in the end, one bit each.
    applying: u8,
    /// The nodes that may crash, one bit each.
    crashing: u8,
    /// The sets of nodes without which a seal may be begun.
    absent: Vec<u8>,
    budget: Budget,
    records_max: usize,
    /// The parities that depend on some data blocks only.
    partial: BTreeMap<u8, BTreeSet<u8>>,
    /// The data blocks that have a second copy.
    copies: Vec<u8>,
    /// Whether the coordinator that was replaced goes on, and whether it can save.
    old_coordinator: Option<bool>,
    /// The index of a block that may join, as another generation.
    joining: Option<u8>,
}

impl Setup {
    /// The blocks of the code, the copies, the block that may join.
    fn nodes(&self) -> usize {
        self.first_blocks() + usize::from(self.joining.is_some())
    }

    fn first_blocks(&self) -> usize {
        usize::from(self.k + self.m) + self.copies.len()
    }

    fn block(&self, at: usize) -> BlockId {
        let block = |index: u8, copy, generation| BlockId { stripe: StripeId(1), index, copy, generation };
        match (at.checked_sub((self.k + self.m).into()), self.joining) {
            (None, _) => block(at as u8, 0, 1),
            (Some(_), Some(index)) if at == self.first_blocks() => block(index, 0, 2),
            (Some(copy), _) => block(self.copies[copy], 1, 1),
        }
    }

    /// The stripe's blocks in the beginning.
    fn blocks(&self) -> Vec<BlockId> {
        (0..self.first_blocks()).map(|at| self.block(at)).collect()
    }

    /// Whether a node's content depends on a stream.
    fn depends(&self, at: usize, stream: u8) -> bool {
        self.dependence().of(self.block(at).index, stream)
    }

    /// Whether the code rebuilds the stripe from these blocks: any set of data blocks is reached by as many of them (Hall's theorem), and
    /// coefficients are generic. A block that joined is not counted: it may not be rebuilt.
    fn can_rebuild<'a>(&self, blocks: impl IntoIterator<Item = &'a BlockId>) -> bool {
        let indexes: BTreeSet<u8> = blocks.into_iter().filter(|block| block.generation == 1).map(|block| block.index).collect();
        let dependence = self.dependence();
        let reach =
            |streams: u32, index: u8| (0..self.k).any(|stream| streams >> stream & 1 == 1 && dependence.of(index, stream));
        (1..1_u32 << self.k)
            .all(|streams| indexes.iter().filter(|index| reach(streams, **index)).count() as u32 >= streams.count_ones())
    }

    /// Whether a node orders a stream.
    fn orders(&self, at: usize, stream: u8) -> bool {
        let block = self.block(at);
        (block.index, block.copy) == (stream, 0)
    }

    fn config(&self, at: usize) -> Config {
        let records_max = if self.records_max == 0 { 8 } else { self.records_max };
        Config {
            me: self.block(at),
            dependence: self.dependence(),
            records_max,
            outcomes_max: 8,
            updates_max: 4,
            lag_max: 8,
            waiting_max: 4,
            reads_max: 2,
            batch_positions_max: u64::MAX,
            sessions_max: 2,
        }
    }

    fn dependence(&self) -> Dependence {
        Dependence { k: self.k, partial: Arc::new(self.partial.clone()) }
    }

    fn seal(&self) -> Seal {
        Seal::new(StripeTerm::new(self.blocks()))
    }

    fn id(&self, update: u8) -> UpdateId {
        let session = Session { number: 1, ends_at_ms: 10 * crate::OUTCOMES_KEPT_MS };
        UpdateId { session, counter: u64::from(update) + 1, lead: self.leader_of(update.into()) as u8 }
    }

    fn update_of(&self, id: UpdateId) -> usize {
        id.counter as usize - 1
    }

    fn leader_of(&self, update: usize) -> usize {
        self.updates[update][0].stream.into()
    }

    fn all(&self) -> Span {
        Span::new(0, self.pages)
    }

    fn span(&self, id: UpdateId, stream: u8) -> Span {
        self.updates[self.update_of(id)].iter().find(|write| write.stream == stream).map_or(Span::new(0, 0), |write| write.span)
    }

    /// The bit of an update's delta for a stream, in the pages that contain it.
    fn bit(&self, id: UpdateId, stream: u8) -> u32 {
        1 << (self.update_of(id) * usize::from(self.k) + usize::from(stream))
    }

    /// The bits of a stream, of all updates.
    fn bits_of(&self, stream: u8) -> u32 {
        (0..self.updates.len()).fold(0, |bits, update| bits | 1 << (update * usize::from(self.k) + usize::from(stream)))
    }

    fn crc(&self, id: UpdateId, stream: u8) -> Option<u32> {
        self.updates[self.update_of(id)].iter().find(|write| write.stream == stream).map(|write| 7 + u32::from(write.stream))
    }

    fn updates_in(&self, page: u32) -> u32 {
        let of = |update: &usize| page >> (update * usize::from(self.k)) & ((1 << self.k) - 1) != 0;
        (0..self.updates.len()).filter(of).fold(0, |all, update| all | 1 << update)
    }

    /// The updates that change a data block.
    fn updates_of(&self, at: usize) -> u32 {
        let changes = |update: &usize| self.updates[*update].iter().any(|write| write.stream == self.block(at).index);
        (0..self.updates.len()).filter(changes).fold(0, |all, update| all | 1 << update)
    }

    /// The updates of which clients were told one of these things.
    fn updates_told(&self, told: u32, what: u32) -> u32 {
        (0..self.updates.len()).filter(|update| told >> (4 * update) & what != 0).fold(0, |all, update| all | 1 << update)
    }

    fn each(&self, updates: u32) -> impl Iterator<Item = usize> + use<> {
        (0..self.updates.len()).filter(move |update| updates >> update & 1 == 1)
    }

    /// Whether two of these updates overlap in a data block.
    fn overlap(&self, updates: u32, at: usize) -> bool {
        let writes: Vec<Span> = self
            .each(updates)
            .flat_map(|update| &self.updates[update])
            .filter(|write| write.stream == self.block(at).index)
            .map(|write| write.span)
            .collect();
        writes.iter().enumerate().any(|(first, span)| writes[first + 1..].iter().any(|other| !span.intersect(*other).is_empty()))
    }

    fn are_all_members(&self, members: &[usize], update: usize) -> bool {
        self.updates[update].iter().all(|write| members.iter().any(|at| self.orders(*at, write.stream)))
    }
}

/// Explores a setup, prints how far it got, and fails with the path to the violation if there is one.
fn explore(name: &str, setup: &Setup, states_max: usize, every: usize) -> Explored {
    let explored = Explorer::new(setup).explore(states_max, every);
    let is_all = if explored.is_complete { "" } else { ", not all" };
    println!("{name}: {} states{is_all}, {} of them settled", explored.states, explored.settled);
    if let Some(Violation { what, path }) = &explored.violation {
        panic!("{name}: {what}, after {} steps:\n  {}", path.len(), path.join("\n  "));
    }
    explored
}

/// The most states in which a violation must be found without a rule.
const RULE_STATES_MAX: usize = 400_000;

/// The number of states of the larger setups that may be explored, if they are wanted.
fn states_wanted() -> Option<usize> {
    std::env::var("WEFT_UPDATE_STATES").ok().and_then(|states| states.parse().ok())
}

#[test]
fn no_setup_breaks_the_protocol() {
    for (name, setup, every) in setups::small() {
        assert!(explore(name, &setup, usize::MAX, every).is_complete);
    }
}

#[test]
fn no_larger_setup_breaks_the_protocol() {
    let Some(states_max) = states_wanted() else {
        return println!("skipped: set WEFT_UPDATE_STATES to the number of states to explore, e.g. 5000000");
    };
    for (name, setup, every) in setups::large() {
        explore(name, &setup, states_max, every);
    }
}

#[test]
fn every_rule_is_needed() {
    let mut needless = Vec::new();
    for (rule, setup, every) in setups::mutations() {
        drop_rule(Some(rule));
        let explored = Explorer::new(&setup).explore(RULE_STATES_MAX, every);
        drop_rule(None);
        match explored.violation {
            Some(Violation { what, path }) => {
                println!("without {rule:?}: {what}, after {} steps of {} states", path.len(), explored.states)
            }
            None => needless.push(rule),
        }
    }
    assert_eq!(needless, [], "no violation was found without these rules");
}

#[test]
fn a_coordinator_that_was_replaced_must_not_save() {
    let explored = Explorer::new(&setups::of_two_coordinators_that_save()).explore(RULE_STATES_MAX, 1000);
    assert!(explored.violation.is_some(), "no violation in {} states", explored.states);
}
