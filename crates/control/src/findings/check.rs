//! The check of the blocks of a node that came back: what is asked next, what is asked again, and when it is over.
//!
//! Each disk has a place of its own in the order of its blocks, so a disk that does not answer delays no other one, and nothing is asked twice.
//! Blocks of which it cannot be said how they are do not stop the check either: they are asked for again, and only they.

use super::{Doubt, Verdict};
use crate::{Time, retries::Retries};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
};
use weft_types::{BlockId, DiskNumber};

/// The most blocks of a disk that may be unknown while the check goes on behind them.
const UNKNOWN_MAX: usize = 1_000;
/// The blocks of a disk that can show that it answers: some may be deleted meanwhile.
const WITNESSES_MAX: usize = 8;

/// What to ask for on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// The blocks behind this one, in order; `None`: the first ones.
    Behind(Option<BlockId>),
    /// These, of which it could not be said how they are.
    Again(Vec<BlockId>),
}

/// How far the check of a node is.
#[derive(Debug, Default)]
pub struct Check {
    disks: BTreeMap<DiskNumber, DiskCheck>,
    /// The disk that was asked last: all have their turn.
    last: Option<DiskNumber>,
    failures: Retries<DiskNumber>,
    /// Blocks of which it was said how they are.
    pub blocks: u64,
    /// Of these, the ones that are missing or not what was written.
    pub bad: u64,
}

#[derive(Debug, Default)]
struct DiskCheck {
    /// Whether it can be used.
    is_usable: bool,
    /// The last block that was asked for in order.
    after: Option<BlockId>,
    /// Whether all were.
    is_through: bool,
    unknown: BTreeSet<BlockId>,
    /// The last of these that was asked for again.
    again: Option<BlockId>,
    doubt: Doubt,
    /// The last blocks that were right.
    witnesses: VecDeque<BlockId>,
}

impl DiskCheck {
    fn is_over(&self) -> bool {
        self.is_through && self.unknown.is_empty()
    }

    fn ask(&mut self, blocks_max: usize) -> Ask {
        if !self.is_through && self.unknown.len() < UNKNOWN_MAX {
            return Ask::Behind(self.after);
        }
        let first = self.again.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.unknown.range((first, Bound::Unbounded));
        let before = self.unknown.iter().take_while(|block| self.again.is_some_and(|again| **block <= again));
        let again: Vec<BlockId> = behind.chain(before).take(blocks_max).copied().collect();
        self.again = again.last().copied();
        Ask::Again(again)
    }
}

impl Check {
    /// The disk to ask now, if any, and for what. `disks`: the node's, and whether each can be used. What one that cannot be used has left in
    /// the metadata must be looked up too: it is over when all was rebuilt elsewhere.
    pub fn next(&mut self, disks: &[(DiskNumber, bool)], blocks_max: usize, now: Time) -> Option<(DiskNumber, Ask)> {
        self.disks.retain(|disk, _| disks.iter().any(|(number, _)| number == disk));
        for (number, is_usable) in disks {
            let disk = self.disks.entry(*number).or_default();
            if *is_usable && !disk.is_usable {
                self.failures.done(number);
            }
            disk.is_usable = *is_usable;
        }
        let last = self.last.unwrap_or(DiskNumber(0));
        let in_turn = self.disks.range((Bound::Excluded(last), Bound::Unbounded)).chain(self.disks.range(..=last));
        let mut due = in_turn.filter(|(number, disk)| !disk.is_over() && self.failures.is_due(number, now));
        let number = *due.next()?.0;
        self.last = Some(number);
        Some((number, self.disks.get_mut(&number)?.ask(blocks_max)))
    }

    /// Whether what a disk answers is in doubt as a whole, and nothing is concluded: none of its blocks is right.
    pub fn is_in_doubt(&mut self, disk: DiskNumber, verdicts: &[(BlockId, Verdict)], now: Time) -> bool {
        let Some(disk) = self.disks.get_mut(&disk) else { return true };
        disk.doubt.is_in_doubt(verdicts, now)
    }

    /// Blocks of a disk that were right: if one still is, what the disk answers next is not in doubt.
    pub fn witnesses(&self, disk: DiskNumber) -> Vec<BlockId> {
        self.disks.get(&disk).map(|disk| disk.witnesses.iter().copied().collect()).unwrap_or_default()
    }

    /// What was asked for has been answered, and what is wrong was recorded. `last`: the last block behind which there are more.
    pub fn answered(
        &mut self,
        (number, ask): (DiskNumber, Ask),
        verdicts: &[(BlockId, Verdict)],
        last: Option<BlockId>,
        now: Time,
    ) {
        let Some(disk) = self.disks.get_mut(&number) else { return };
        let mut is_unknown = false;
        let again = match ask {
            Ask::Behind(_) => {
                (disk.is_through, disk.after) = (last.is_none(), last.or(disk.after));
                Vec::new()
            }
            Ask::Again(blocks) => blocks,
        };
        // Those of which nothing is said are gone.
        disk.unknown.retain(|block| !again.contains(block));
        for (block, verdict) in verdicts {
            match verdict {
                Verdict::Unknown(_) => {
                    disk.unknown.insert(*block);
                    is_unknown = true;
                    continue;
                }
                Verdict::Wrong(..) => self.bad += 1,
                Verdict::Right => {
                    disk.witnesses.push_front(*block);
                    disk.witnesses.truncate(WITNESSES_MAX);
                }
                Verdict::Obsolete => {}
            }
            self.blocks += 1;
        }
        if is_unknown && !again.is_empty() {
            self.failures.failed(number, String::new(), now);
        } else {
            self.failures.done(&number);
        }
    }

    /// The disk could not be asked, or its answer is in doubt. The same is asked again after a pause.
    pub fn failed(&mut self, disk: DiskNumber, now: Time) {
        self.failures.failed(disk, String::new(), now);
    }

    /// Whether all blocks of all disks have been checked.
    pub fn is_over(&self) -> bool {
        self.disks.values().all(DiskCheck::is_over)
    }

    /// Whether it only waits for disks that cannot be used.
    pub fn waits_for_disks(&self) -> bool {
        !self.is_over() && self.disks.values().all(|disk| disk.is_over() || !disk.is_usable)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Finding, *};
    use std::time::Duration;
    use weft_types::{BlockState, StripeId};

    const A: DiskNumber = DiskNumber(1);
    const B: DiskNumber = DiskNumber(2);
    const MOST: usize = 4;

    fn block(stripe: u64) -> BlockId {
        BlockId { stripe: StripeId(stripe), index: 0, copy: 0, generation: 1 }
    }

    fn at(seconds: u64) -> Time {
        Time::after(Duration::from_secs(seconds))
    }

    fn wrong() -> Verdict {
        Verdict::Wrong(Finding::Lost(BlockState::Missing), "it is gone".into())
    }

    fn unknown() -> Verdict {
        Verdict::Unknown("busy".into())
    }

    fn all(blocks: std::ops::Range<u64>, verdict: &Verdict) -> Vec<(BlockId, Verdict)> {
        blocks.map(|stripe| (block(stripe), verdict.clone())).collect()
    }

    #[test]
    fn a_disk_that_cannot_be_asked_delays_no_other_and_goes_on_where_it_was() {
        let (mut check, both) = (Check::default(), [(A, true), (B, true)]);
        let first = check.next(&both, MOST, at(0)).unwrap();
        assert_eq!(first, (A, Ask::Behind(None)));
        check.answered(first, &all(1..5, &Verdict::Right), Some(block(4)), at(0));
        assert_eq!(check.next(&both, MOST, at(0)), Some((B, Ask::Behind(None))), "each has its turn");
        check.failed(B, at(0));
        let second = check.next(&both, MOST, at(0)).unwrap();
        assert_eq!(second, (A, Ask::Behind(Some(block(4)))));
        check.answered(second, &all(5..7, &Verdict::Right), None, at(0));
        assert_eq!((check.next(&both, MOST, at(0)), check.is_over()), (None, false));
        let again = check.next(&both, MOST, at(1)).unwrap();
        assert_eq!(again, (B, Ask::Behind(None)), "only this disk is asked again");
        check.answered(again, &[], None, at(1));
        assert_eq!((check.next(&both, MOST, at(1)), check.is_over(), check.blocks, check.bad), (None, true, 6, 0));
    }

    #[test]
    fn only_what_is_unknown_is_asked_again_and_at_once_when_its_disk_can_be_used_again() {
        let mut check = Check::default();
        let first = check.next(&[(A, true)], MOST, at(0)).unwrap();
        let mut verdicts = all(1..7, &Verdict::Right);
        (verdicts[1].1, verdicts[4].1) = (unknown(), unknown());
        check.answered(first, &verdicts, None, at(0));
        let again = check.next(&[(A, true)], MOST, at(0)).unwrap();
        assert_eq!((&again, check.blocks), (&(A, Ask::Again(vec![block(2), block(5)])), 4));
        check.answered(again, &all(2..3, &unknown()), None, at(0));
        assert_eq!(check.next(&[(A, true)], MOST, at(0)), None);
        // While it cannot be used, it is looked up now and then whether the block is still there.
        let failed = check.next(&[(A, false)], MOST, at(1)).unwrap();
        check.answered(failed, &all(2..3, &unknown()), None, at(1));
        assert!(check.waits_for_disks() && check.next(&[(A, false)], MOST, at(1)).is_none());
        let back = check.next(&[(A, true)], MOST, at(1)).unwrap();
        assert_eq!(back, (A, Ask::Again(vec![block(2)])));
        check.answered(back, &all(2..3, &wrong()), None, at(1));
        assert_eq!((check.is_over(), check.blocks, check.bad), (true, 5, 1));
    }

    #[test]
    fn a_disk_that_was_never_usable_is_checked_when_it_is() {
        let mut check = Check::default();
        let first = check.next(&[(A, false)], MOST, at(0)).unwrap();
        assert_eq!(first, (A, Ask::Behind(None)));
        check.failed(A, at(0));
        assert!(!check.is_over() && check.waits_for_disks());
        let back = check.next(&[(A, true)], MOST, at(0)).unwrap();
        assert_eq!((&back, check.waits_for_disks()), (&(A, Ask::Behind(None)), false));
        // Nothing is left on one that was replaced.
        check.answered(back, &[], None, at(0));
        assert!(check.is_over());
    }

    #[test]
    fn what_is_unknown_is_bounded_and_all_of_it_has_its_turn() {
        let (mut check, disks) = (Check::default(), [(A, true)]);
        let mut asked = BTreeSet::new();
        for second in 0..50_000 {
            match check.next(&disks, MOST, at(second)) {
                Some((disk, Ask::Behind(after))) => {
                    let first = after.map_or(1, |after| after.stripe.0 + 1);
                    let verdicts = all(first..first + 4, &unknown());
                    check.answered((disk, Ask::Behind(after)), &verdicts, Some(block(first + 3)), at(second));
                }
                Some((disk, Ask::Again(blocks))) => {
                    asked.extend(blocks.clone());
                    let verdicts: Vec<_> = blocks.iter().map(|block| (*block, unknown())).collect();
                    check.answered((disk, Ask::Again(blocks)), &verdicts, None, at(second));
                }
                None => {}
            }
        }
        assert_eq!((check.disks[&A].unknown.len(), asked.len()), (UNKNOWN_MAX, UNKNOWN_MAX));
    }

    #[test]
    fn the_last_blocks_that_were_right_are_remembered() {
        let mut check = Check::default();
        let first = check.next(&[(A, true)], MOST, at(0)).unwrap();
        assert!(check.witnesses(A).is_empty());
        let mut verdicts = all(1..40, &Verdict::Right);
        verdicts[38].1 = wrong();
        check.answered(first, &verdicts, None, at(0));
        let right: Vec<BlockId> = (31..39).rev().map(block).collect();
        assert_eq!((check.witnesses(A), check.witnesses(B)), (right, Vec::new()));
    }

    #[test]
    fn blocks_that_are_all_bad_are_not_believed_at_once_and_many_never() {
        let mut check = Check::default();
        check.next(&[(A, true)], MOST, at(0));
        let mut doubts = |verdicts: &[(BlockId, Verdict)], second| check.is_in_doubt(A, verdicts, at(second));
        assert!(doubts(&all(1..6, &wrong()), 0) && doubts(&all(1..6, &wrong()), 1_000));
        assert!(doubts(&all(1..5, &wrong()), 0) && doubts(&all(1..5, &wrong()), 4) && !doubts(&all(1..5, &wrong()), 5));
        assert!(doubts(&all(1..4, &wrong()), 100), "others are bad now");
        let mut mixed = all(1..4, &wrong());
        mixed.push((block(4), unknown()));
        assert!(doubts(&mixed, 101), "one that is unknown proves nothing");
        mixed.push((block(5), Verdict::Right));
        assert!(!doubts(&mixed, 101) && !doubts(&all(1..9, &unknown()), 101) && !doubts(&[], 101));
    }
}
