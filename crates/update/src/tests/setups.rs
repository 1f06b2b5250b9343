//! What is explored: setups that every run of the tests explores in full, larger ones, and for each rule of the protocol one in which it is needed.

use super::{Rule, Setup, Write};
use weft_types::Span;

fn write(stream: u8, start: u64, end: u64) -> Write {
    Write { stream, span: Span::new(start, end) }
}

/// Every node may crash.
const ANY: u8 = 0b1111;

impl Setup {
    /// The nodes of a set may crash, this often in all.
    fn crashes(mut self, count: u8, nodes: u8) -> Self {
        (self.budget.crashes, self.crashing) = (count, nodes);
        self
    }

    /// Seals without one of these sets of nodes.
    fn seals(mut self, count: u8, absent: &[u8]) -> Self {
        (self.budget.seals, self.absent) = (count, absent.to_vec());
        self
    }

    /// An update is given up.
    fn gives_up(mut self) -> Self {
        self.budget.give_ups = 1;
        self
    }

    /// Updates are applied on the way, at every node.
    fn applies(self) -> Self {
        self.applies_at(ANY)
    }

    fn applies_at(mut self, nodes: u8) -> Self {
        self.applying = nodes;
        self
    }

    /// The time passes after which outcomes are forgotten, at one node; and an update is requested again.
    fn forgets(mut self) -> Self {
        (self.budget.forgets, self.budget.repeats) = (1, 1);
        self
    }

    /// Stripes that were sealed are settled and opened again, this often; and an update is requested again.
    fn reopens(mut self, count: u8) -> Self {
        (self.budget.reopenings, self.budget.repeats) = (count, 1);
        self
    }

    fn reads(mut self, count: u8) -> Self {
        self.budget.reads = count;
        self
    }

    fn damages(mut self) -> Self {
        self.budget.damages = 1;
        self
    }

    fn coordinator_restarts(mut self) -> Self {
        self.budget.coordinator_restarts = 1;
        self
    }

    /// Another node stays away during a seal.
    fn another_absent(mut self) -> Self {
        self.budget.absences = 1;
        self
    }

    /// Only one of the updates.
    fn only(mut self, update: usize) -> Self {
        self.updates = vec![self.updates.swap_remove(update)];
        self
    }

    /// A parity depends on one data block only.
    fn local_parity(mut self, at: u8, stream: u8) -> Self {
        self.partial.insert(at, [stream].into());
        self
    }

    /// A data block has a second copy.
    fn copy_of(mut self, stream: u8) -> Self {
        self.copies.push(stream);
        self
    }

    /// A seal may admit another generation of a block.
    fn joins(mut self, index: u8) -> Self {
        (self.joining, self.budget.joins) = (Some(index), 1);
        self
    }

    /// A coordinator that was replaced goes on. Whether it can save a stripe's term.
    fn old_coordinator(mut self, saves: bool) -> Self {
        (self.budget.coordinator_restarts, self.old_coordinator) = (1, Some(saves));
        self
    }

    fn parities(mut self, m: u8) -> Self {
        self.m = m;
        self
    }
}

/// One data block, two parities, one update.
fn one() -> Setup {
    Setup { k: 1, m: 2, pages: 1, updates: vec![vec![write(0, 0, 1)]], ..Setup::default() }
}

/// One data block, one parity, two updates of one range.
fn overlapping() -> Setup {
    Setup { updates: vec![vec![write(0, 0, 1)], vec![write(0, 0, 1)]], ..one().parities(1) }
}

/// The same with two ranges.
fn disjoint() -> Setup {
    Setup { pages: 2, updates: vec![vec![write(0, 0, 1)], vec![write(0, 1, 2)]], ..overlapping() }
}

/// Two data blocks, one parity, one update of both.
fn of_two_blocks() -> Setup {
    Setup { k: 2, m: 1, pages: 1, updates: vec![vec![write(0, 0, 1), write(1, 0, 1)]], ..Setup::default() }
}

/// Two data blocks, one parity, an update of each.
fn of_each_block() -> Setup {
    Setup { updates: vec![vec![write(0, 0, 1)], vec![write(1, 0, 1)]], ..of_two_blocks() }
}

/// Two data blocks, one parity, an update of both and one of the second.
fn of_both_and_one() -> Setup {
    Setup { updates: vec![vec![write(0, 0, 1), write(1, 0, 1)], vec![write(1, 0, 1)]], ..of_two_blocks() }
}

/// Two data blocks, a parity of each, one of both, as in a local reconstruction code; one update of the first block, one of both.
fn of_local_parities() -> Setup {
    let updates = vec![vec![write(0, 0, 1)], vec![write(0, 0, 1), write(1, 0, 1)]];
    Setup { k: 2, m: 3, pages: 1, updates, ..Setup::default() }.local_parity(2, 0).local_parity(3, 1)
}

/// The same with another range of the second block, which is updated, too.
fn of_both_and_two() -> Setup {
    let updates = vec![vec![write(0, 0, 1), write(1, 0, 1)], vec![write(1, 0, 1)], vec![write(1, 1, 2)]];
    Setup { pages: 2, updates, ..of_two_blocks() }
}

/// Name, setup, and every how many states one is settled.
pub(super) fn small() -> Vec<(&'static str, Setup, usize)> {
    vec![
        ("an update, a give-up, a crash", one().gives_up().crashes(1, ANY), 1),
        ("an update, a give-up, a crash of the leader, a seal", one().gives_up().crashes(1, 1).seals(1, &[2]), 50),
        ("an update, a give-up, two seals", one().gives_up().seals(2, &[1, 4]), 50),
        ("an update, a seal, another absent node", one().seals(1, &[0, 4]).another_absent(), 20),
        ("an update, a damaged delta, a crash", one().damages().crashes(1, 1), 1),
        ("an update that is applied and forgotten, a crash", one().parities(1).applies().forgets().crashes(1, ANY), 1),
        ("an update, a read, a seal", one().reads(1).seals(1, &[1]), 10),
        ("overlapping updates, a give-up, a crash", overlapping().gives_up().crashes(1, ANY), 10),
        ("overlapping updates, a give-up, a seal", overlapping().gives_up().seals(1, &[0, 2]), 10),
        ("disjoint updates that are applied, a crash", disjoint().applies().crashes(1, ANY), 50),
        ("an update of two blocks, a give-up, a crash", of_two_blocks().gives_up().crashes(1, ANY), 10),
        ("an update of two blocks, a give-up, a seal", of_two_blocks().gives_up().seals(1, &[0, 1, 2, 4]), 10),
        ("an update of each block, a crash", of_each_block().crashes(1, ANY), 20),
        ("an update of one block with local parities, a seal", of_local_parities().only(0).seals(1, &[1, 4, 8]), 20),
        ("an update of two blocks with local parities, a seal", of_local_parities().only(1).seals(1, &[1, 2, 4, 8, 16]), 50),
        ("updates of both blocks and of one, applied by the parity, a crash", of_both_and_one().applies_at(4).crashes(1, 2), 50),
        ("an update, two seals, two coordinators", one().seals(2, &[3, 5]).old_coordinator(false), 50),
        ("an update of a block with a copy, a give-up, a crash", one().parities(1).copy_of(0).gives_up().crashes(1, ANY), 5),
        ("an update of a block with a copy, a give-up, a seal", one().parities(1).copy_of(0).gives_up().seals(1, &[1, 2, 4]), 10),
        ("an update of two blocks, one with a copy, a seal", of_two_blocks().copy_of(1).seals(1, &[1, 2, 4, 8]), 20),
        ("an update, a seal that admits a parity", one().joins(2).seals(1, &[4]), 5),
        ("overlapping updates, a seal that admits the data block", overlapping().joins(0).seals(1, &[1]), 10),
        ("overlapping updates, a give-up, a seal that admits a parity", overlapping().gives_up().joins(1).seals(1, &[2]), 20),
        ("an update of two blocks, a seal that admits a parity", of_two_blocks().joins(2).seals(1, &[4]), 10),
        (
            "an update that is applied, a seal that admits a parity, its crash",
            one().parities(1).applies().joins(1).crashes(1, 4).seals(1, &[2]),
            20,
        ),
        ("an update, a seal, an opening", one().parities(1).seals(1, &[0]).reopens(1), 10),
        ("overlapping updates, a give-up, a seal, an opening", overlapping().gives_up().seals(1, &[0, 2]).reopens(1), 100),
        ("an update of two blocks, a give-up, a seal, an opening", of_two_blocks().gives_up().seals(1, &[0]).reopens(1), 200),
    ]
}

pub(super) fn large() -> Vec<(&'static str, Setup, usize)> {
    let each = [0, 1, 2, 4];
    vec![
        ("an update, a give-up, a crash, a seal", one().gives_up().crashes(1, ANY).seals(1, &each), 200),
        ("an update, two crashes, a seal", one().gives_up().crashes(2, ANY).seals(1, &each), 200),
        ("an update, two seals, restarts", one().gives_up().crashes(1, ANY).seals(2, &each).coordinator_restarts(), 200),
        ("an update on four blocks, two seals", one().parities(3).gives_up().seals(2, &[0, 1, 2, 5, 8]).another_absent(), 200),
        ("reads, a crash, a seal", one().applies().reads(2).crashes(1, ANY).seals(1, &each), 200),
        ("overlapping updates, a crash, a seal", overlapping().parities(2).gives_up().crashes(1, ANY).seals(1, &each), 200),
        (
            "disjoint updates that are applied and forgotten, a crash",
            disjoint().applies().forgets().gives_up().crashes(1, ANY),
            200,
        ),
        ("an update of two blocks, a crash, a seal", of_two_blocks().gives_up().crashes(1, ANY).seals(1, &each), 200),
        ("an update of each block, a crash, a seal", of_each_block().parities(2).crashes(1, 0b101).seals(1, &each), 200),
        ("updates of both blocks and of one, a crash, a seal", of_both_and_one().gives_up().crashes(1, ANY).seals(1, &each), 200),
        (
            "updates of both blocks and of one that are applied, a crash",
            of_both_and_one().gives_up().applies().crashes(1, ANY),
            200,
        ),
        ("updates of both blocks and two of one, a crash", of_both_and_two().gives_up().crashes(1, ANY), 200),
        (
            "updates with local parities, a crash, a seal",
            of_local_parities().crashes(1, 0b11111).seals(1, &[0, 1, 2, 4, 8, 16]),
            200,
        ),
        (
            "an update on four blocks, two seals, two coordinators",
            one().parities(3).seals(2, &[3, 5]).old_coordinator(false),
            200,
        ),
        ("an update of two blocks, a seal that admits a data block", of_two_blocks().joins(1).seals(1, &[2]), 200),
        ("disjoint updates that are applied, a seal that admits a parity", disjoint().applies().joins(1).seals(1, &[2]), 50),
        (
            "an update, a crash, a seal that admits the data block",
            one().parities(1).applies().joins(0).crashes(1, ANY).seals(1, &[1]),
            50,
        ),
        (
            "an update, two seals that may admit the data block, restarts",
            one().joins(0).gives_up().seals(2, &[1, 2]).coordinator_restarts(),
            200,
        ),
        (
            "a copy, a crash, a seal that admits the data block",
            one().parities(1).copy_of(0).joins(0).crashes(1, ANY).seals(1, &[1]),
            200,
        ),
        ("an update, a crash, a seal, an opening", one().gives_up().crashes(1, ANY).seals(1, &each).reopens(1), 200),
        ("an update, two seals, two openings", one().gives_up().seals(2, &[0, 4]).reopens(2), 200),
        ("an update of each block, a seal, an opening", of_each_block().gives_up().seals(1, &[0, 4]).reopens(1), 200),
        (
            "a read, a copy, a seal that admits the data block",
            one().parities(1).copy_of(0).joins(0).reads(1).seals(1, &[1, 3]),
            200,
        ),
    ]
}

/// For each rule, where it is needed, and every how many states one is settled.
pub(super) fn mutations() -> Vec<(Rule, Setup, usize)> {
    let seal = || one().seals(1, &[1, 2]);
    let crash = || one().crashes(1, ANY);
    vec![
        (Rule::OldTerm, seal().gives_up(), 1),
        (Rule::OldIncarnation, crash().gives_up(), 1),
        (Rule::AllAnswer, seal(), 1),
        (Rule::EqualDeltas, one().damages(), 1),
        (Rule::DurableFirst, crash(), 1),
        (Rule::AllRefuse, seal().gives_up(), 1),
        (Rule::RefusedIsMissing, seal().gives_up(), 1),
        (Rule::AllReport, crash().gives_up(), 1),
        (Rule::RecordedStands, one().seals(2, &[1, 4]), 1),
        (Rule::SealDecides, one().gives_up().crashes(1, 1).seals(1, &[0, 2]), 1),
        (Rule::WatermarkOfTerm, disjoint().parities(2).seals(1, &[0]), 1),
        (Rule::WatermarkAfterRefusals, overlapping().gives_up(), 1),
        (Rule::BelowWatermark, one().parities(1).applies().forgets().crashes(1, 1), 1),
        (Rule::TrimBelowWatermark, disjoint().applies().forgets().gives_up().crashes(1, 1), 1),
        (Rule::NumbersFollowReports, overlapping().applies().crashes(1, 1), 1),
        (Rule::LockBeforeHold, of_both_and_one().crashes(1, 2), 5),
        (Rule::NumberOfOwner, of_both_and_one().applies().crashes(1, 2), 5),
        (Rule::AppliedIsNoWatermark, disjoint().applies().forgets().gives_up().crashes(1, 2), 20),
        (Rule::BatchIsUsed, of_both_and_one().gives_up().applies_at(2).crashes(1, 2), 20),
        (Rule::RebuiltWhereKnown, one().parities(1).joins(1).seals(1, &[2]), 1),
        (Rule::JoinersWait, one().parities(1).applies().joins(1).seals(1, &[2]), 1000),
        (Rule::RangeLocks, overlapping(), 1),
        (Rule::RedoCopies, one().parities(1).applies().crashes(1, ANY), 1),
        (Rule::KnownBeforeUse, one().applies().gives_up(), 1),
        (Rule::VersionKnown, one().parities(1).applies(), 1),
        (Rule::VersionKept, one().parities(1).applies(), 1),
        (Rule::RepeatedId, one(), 1),
        (Rule::Expired, one().parities(1).applies().forgets(), 1),
        (Rule::ConfirmTerm, one().reads(1).seals(1, &[1]), 1),
        (Rule::ConfirmLife, one().parities(1).reads(2).crashes(1, 1).seals(1, &[1]), 1000),
        (Rule::WaitForLease, one().reads(1).seals(1, &[1]), 1),
        (Rule::SealHearsAll, seal(), 1),
        (Rule::SealHearsNumbers, of_two_blocks().gives_up().seals(1, &[0]).reopens(1), 10),
        (Rule::OutcomesAtOpening, one().parities(1).seals(1, &[0]).reopens(1), 1),
    ]
}

/// A coordinator that was replaced saves what it decides: what must not be.
pub(super) fn of_two_coordinators_that_save() -> Setup {
    one().parities(3).seals(2, &[3, 5]).old_coordinator(true)
}
