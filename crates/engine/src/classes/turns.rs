//! Decides whose turn it is at a disk or a link.
//!
//! Foreground tasks pass at once: they wait only for the disk or the line itself. At most [`TURNS_MAX`] frames of lower
//! classes pass at a time, and none while an earlier class is busy there. So a foreground task waits for at most that
//! many frames. A class stays busy for a moment after each of its turns, because a reader's next slice arrives a little
//! after its last one: a frame in each gap would delay every slice.
//!
//! No class starves. After a turn of length t, the class's next turn is due 19 t later, even if earlier classes are
//! busy. So a class that is always held back gets 5 % of the time. No priority starves either: within a class, one turn
//! in 20 goes to a later priority.

use super::{ByClass, KEPT_PERCENT, LOWER, TURNS_MAX};
use std::{
    collections::{BTreeMap, BTreeSet, btree_set},
    time::Duration,
};
use weft_plan::{Class, Precedence};

/// A class counts as busy for this many times the length of its last turn. That is about the time of the frames that
/// could slip in, since slices are often a quarter of a frame. A reader whose slices are further apart spends most of
/// its time elsewhere.
const QUIET_TURNS: u32 = 8;
const QUIET_MAX: Duration = Duration::from_millis(20);
/// A turn that takes longer no longer keeps its class busy: its disk hangs, or its peer is slow.
const BUSY_MAX: Duration = Duration::from_millis(100);
/// The most that a turn is charged, so that a turn that hung does not hold back its class for long.
const TURN_TIME_MAX: Duration = Duration::from_millis(500);
/// Shares of the time for other classes, for each share of the class's own.
const OTHERS_SHARES: u32 = 100 / KEPT_PERCENT - 1;

/// The turns at one disk or uplink. All times count from one fixed point.
#[derive(Debug, Default)]
pub struct Turns {
    last: u64,
    /// In the order in which they get a turn.
    waiting: BTreeSet<(Precedence, Ticket)>,
    passing: BTreeMap<Ticket, Passing>,
    /// Consecutive turns of each class for which its later priorities have waited.
    passed_over: ByClass<u32>,
    ended: ByClass<Option<Ended>>,
}

/// A request for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Passing {
    of: Precedence,
    since: Duration,
}

/// The last turn of a class.
#[derive(Debug, Clone, Copy)]
struct Ended {
    at: Duration,
    took: Duration,
}

impl Turns {
    /// Asks for a turn. [`has`](Self::has) says whether it has come: for foreground at once, otherwise when
    /// [`grant`](Self::grant) returns the ticket.
    pub fn ask(&mut self, of: Precedence, now: Duration) -> Ticket {
        self.last += 1;
        let ticket = Ticket(self.last);
        if of.class == Class::Foreground {
            self.passing.insert(ticket, Passing { of, since: now });
        } else {
            self.waiting.insert((of, ticket));
        }
        ticket
    }

    /// Whether this ticket has its turn.
    pub fn has(&self, ticket: Ticket) -> bool {
        self.passing.contains_key(&ticket)
    }

    /// How many tickets have their turn or wait for it.
    pub fn asked(&self) -> usize {
        self.passing.len() + self.waiting.len()
    }

    /// How many turns were asked for so far, also those that have ended.
    pub fn asked_so_far(&self) -> u64 {
        self.last
    }

    /// Grants turns, and returns their tickets.
    pub fn grant(&mut self, now: Duration) -> Vec<Ticket> {
        let mut granted = Vec::new();
        while let Some(next) = self.next(now) {
            self.waiting.remove(&next);
            let (of, ticket) = next;
            self.passed_over[of.class] = self.passed_over_after(of);
            self.passing.insert(ticket, Passing { of, since: now });
            granted.push(ticket);
        }
        granted
    }

    /// Ends a turn or withdraws a request. `took` is how long the disk or line worked for it alone, as far as known.
    pub fn end(&mut self, of: Precedence, ticket: Ticket, took: Duration, now: Duration) {
        self.waiting.remove(&(of, ticket));
        if self.passing.remove(&ticket).is_some() {
            self.ended[of.class] = Some(Ended { at: now, took: took.min(TURN_TIME_MAX) });
        }
    }

    /// Whether a waiting task waits for an earlier class or an earlier priority of its own class. If not, it waits for
    /// its own priority or for a frame of a later one.
    pub fn is_held_back(&self, of: Precedence, now: Duration) -> bool {
        self.busy_until(of.class, now).is_some() || self.waiting_of(of.class).next().is_some_and(|(first, _)| *first < of)
    }

    /// When [`grant`](Self::grant) may grant the next turn if nothing else happens.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        if self.passing_lower() >= TURNS_MAX {
            return None;
        }
        let next = |class: Class| {
            self.first_waiting(class)?;
            let until = self.busy_until(class, now)?;
            Some(self.due_at(class).map_or(until, |due| due.min(until)))
        };
        LOWER.into_iter().filter_map(next).min()
    }

    /// The first waiting ticket of each class that gives way.
    pub fn first(&self) -> [Option<Ticket>; 2] {
        LOWER.map(|class| self.first_waiting(class).map(|(_, ticket)| ticket))
    }

    fn next(&self, now: Duration) -> Option<(Precedence, Ticket)> {
        if self.passing_lower() >= TURNS_MAX {
            return None;
        }
        // A class that is due goes first; otherwise the first class that no earlier class holds back.
        let due = LOWER.into_iter().find_map(|class| self.first_waiting(class).filter(|_| self.is_due(class, now)));
        let free =
            || LOWER.into_iter().find_map(|class| self.first_waiting(class).filter(|_| self.busy_until(class, now).is_none()));
        due.or_else(free)
    }

    /// The first ticket of the first priority or, if later priorities are due, the longest-waiting one of those.
    fn first_waiting(&self, class: Class) -> Option<(Precedence, Ticket)> {
        let mut waiting = self.waiting_of(class);
        let first = waiting.next().copied()?;
        if self.passed_over[class] < OTHERS_SHARES {
            return Some(first);
        }
        let later = waiting.filter(|(of, _)| *of > first.0).min_by_key(|(_, ticket)| *ticket);
        Some(later.copied().unwrap_or(first))
    }

    /// The waiting tickets of a class, in the order of their priorities.
    fn waiting_of(&self, class: Class) -> btree_set::Range<'_, (Precedence, Ticket)> {
        let last = Precedence { class, priority: u8::MAX };
        self.waiting.range((Precedence::of(class), Ticket(0))..=(last, Ticket(u64::MAX)))
    }

    /// For how many consecutive turns the later priorities of this class have waited, after this grant.
    fn passed_over_after(&self, of: Precedence) -> u32 {
        let mut waiting = self.waiting_of(of.class).map(|(other, _)| *other);
        let (first, last) = (waiting.next(), waiting.next_back());
        let is_of_later = first.is_some_and(|first| first < of);
        if last.or(first).is_none_or(|last| last <= of) || is_of_later { 0 } else { self.passed_over[of.class].saturating_add(1) }
    }

    /// Whether a class has had less than its share.
    fn is_due(&self, class: Class, now: Duration) -> bool {
        self.due_at(class).is_some_and(|due| due <= now)
    }

    /// `None` if it is getting its share now.
    fn due_at(&self, class: Class) -> Option<Duration> {
        let passes = self.passing.values().any(|passing| passing.of.class == class);
        (!passes).then(|| self.ended[class].map_or(Duration::ZERO, |ended| ended.at + ended.took * OTHERS_SHARES))
    }

    /// Until when earlier classes are busy if nothing else happens. `None` if they are not.
    fn busy_until(&self, class: Class, now: Duration) -> Option<Duration> {
        let passing = self.passing.values().filter(|passing| passing.of.class < class);
        let passing = passing.map(|passing| passing.since + BUSY_MAX);
        let earlier = [Class::Foreground, Class::Repair].into_iter().filter(|earlier| *earlier < class);
        let ended = earlier.clone().filter_map(|earlier| self.ended[earlier]);
        let ended = ended.map(|Ended { at, took }| at + (took * QUIET_TURNS).min(QUIET_MAX));
        let waiting = earlier.filter(|earlier| self.first_waiting(*earlier).is_some()).map(|_| now + QUIET_MAX);
        passing.chain(ended).chain(waiting).filter(|until| *until > now).max()
    }

    fn passing_lower(&self) -> usize {
        self.passing.values().filter(|passing| passing.of.class != Class::Foreground).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    const FOREGROUND: Precedence = Precedence { class: Class::Foreground, priority: 0 };
    const REPAIR: Precedence = Precedence { class: Class::Repair, priority: 0 };
    const MOVE: Precedence = Precedence { class: Class::Repair, priority: 1 };
    const SCRUB: Precedence = Precedence { class: Class::Scrub, priority: 0 };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn foreground_passes_at_once_and_two_frames_of_others_at_a_time() {
        let mut turns = Turns::default();
        let [scrub, moved, first, second] = [SCRUB, MOVE, REPAIR, REPAIR].map(|of| turns.ask(of, ms(0)));
        assert_eq!(turns.grant(ms(0)), [first, scrub], "by class and priority; a class that has had no turn is due");
        let reader = turns.ask(FOREGROUND, ms(1));
        assert!(turns.has(reader) && !turns.has(second) && turns.asked() == 5);
        turns.end(REPAIR, first, ms(5), ms(5));
        turns.end(SCRUB, scrub, ms(5), ms(10));
        assert_eq!((turns.asked(), turns.asked_so_far()), (3, 5));
        assert_eq!(turns.grant(ms(10)), [], "the reader is busy");
        assert!(turns.is_held_back(MOVE, ms(10)) && !turns.is_held_back(FOREGROUND, ms(10)));
        turns.end(FOREGROUND, reader, ms(2), ms(11));
        assert_eq!(turns.grant(ms(26)), [], "the reader's next slice may arrive");
        assert_eq!(turns.wake_at(ms(26)), Some(ms(27)));
        let waits = turns.ask(SCRUB, ms(27));
        assert_eq!(turns.grant(ms(27)), [second, moved]);
        assert!(turns.is_held_back(SCRUB, ms(27)) && !turns.is_held_back(REPAIR, ms(27)));
        turns.end(REPAIR, moved, ms(5), ms(32));
        assert_eq!(turns.grant(ms(32)), [], "repair goes before scrub");
        assert_eq!(turns.grant(ms(105)), [waits], "five percent of the time is its share");
    }

    #[test]
    fn a_hanging_turn_holds_back_no_task_and_a_withdrawn_one_does_not_count() {
        let mut turns = Turns::default();
        let used = turns.ask(REPAIR, ms(0));
        turns.grant(ms(0));
        turns.end(REPAIR, used, ms(50), ms(50));
        let _hangs = turns.ask(FOREGROUND, ms(50));
        let (given_up, next) = (turns.ask(REPAIR, ms(60)), turns.ask(REPAIR, ms(60)));
        turns.end(REPAIR, given_up, Duration::ZERO, ms(70));
        assert_eq!((turns.grant(ms(149)), turns.wake_at(ms(149))), (vec![], Some(ms(150))));
        assert_eq!(turns.grant(ms(150)), [next]);
    }

    #[test]
    fn a_later_priority_is_held_back_and_has_a_turn_in_twenty() {
        let mut turns = Turns::default();
        let mut passing: Vec<(Precedence, Ticket)> = Vec::new();
        let later = Precedence { priority: 2, ..MOVE };
        for of in [REPAIR, REPAIR, REPAIR, REPAIR, MOVE, later] {
            turns.ask(of, ms(0));
        }
        assert!(turns.is_held_back(MOVE, ms(0)) && !turns.is_held_back(REPAIR, ms(0)));
        let mut had = BTreeMap::<u8, u32>::new();
        for at in 0..4000 {
            let before = turns.waiting.clone();
            passing.extend(turns.grant(ms(at)).into_iter().map(|ticket| *before.iter().find(|it| it.1 == ticket).unwrap()));
            let (of, ticket) = passing.remove(0);
            *had.entry(of.priority).or_default() += 1;
            turns.end(of, ticket, ms(1), ms(at + 1));
            turns.ask(of, ms(at + 1));
        }
        assert_eq!((had[&0], had[&1], had[&2]), (3800, 100, 100));
    }

    /// A disk that passes one frame in 5 ms, foreground slices of a quarter of that, and random work of all classes.
    #[test]
    fn foreground_waits_for_at_most_two_frames_and_each_other_class_gets_its_share() {
        for seed in 0..30 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut turns, mut now) = (Turns::default(), Duration::ZERO);
            let mut passing: Vec<(Precedence, Ticket, Duration)> = Vec::new();
            let mut spent = ByClass::<Duration>::default();
            let mut free_at = Duration::ZERO;
            let end = Duration::from_secs(20);
            for of in [REPAIR, REPAIR, REPAIR, MOVE, SCRUB, SCRUB, SCRUB] {
                turns.ask(of, now);
            }
            let mut reader: Option<Duration> = Some(now);
            while now < end {
                if reader.is_some_and(|at| at <= now) {
                    reader = None;
                    let ahead = passing.iter().filter(|(of, ..)| of.class != Class::Foreground).count();
                    assert!(ahead <= TURNS_MAX, "seed {seed}: {ahead} frames before a reader's slice");
                    let ticket = turns.ask(FOREGROUND, now);
                    free_at = free_at.max(now) + Duration::from_micros(1250);
                    passing.push((FOREGROUND, ticket, free_at));
                }
                let before = turns.waiting.clone();
                for ticket in turns.grant(now) {
                    let (of, _) = *before.iter().find(|(_, waiting)| *waiting == ticket).unwrap();
                    free_at = free_at.max(now) + ms(5);
                    spent[of.class] += ms(5);
                    passing.push((of, ticket, free_at));
                }
                let next = passing.iter().map(|(.., until)| *until).chain(turns.wake_at(now)).chain(reader).min();
                now = next.unwrap_or(end).max(now);
                for (of, ticket, _) in passing.extract_if(.., |(.., until)| *until <= now) {
                    let took = if of == FOREGROUND { Duration::from_micros(1250) } else { ms(5) };
                    turns.end(of, ticket, took, now);
                    if of == FOREGROUND {
                        reader = Some(now + Duration::from_micros(random.random_range(0..1500)));
                    } else {
                        turns.ask(of, now);
                    }
                }
            }
            for class in LOWER {
                let part = spent[class].as_secs_f64() / end.as_secs_f64();
                assert!((0.045..0.12).contains(&part), "seed {seed}: {class:?} has {part:.3} of the time");
            }
        }
    }
}
