//! The bytes that running plans still have to move, by network line. The planner uses them, so that independent writers
//! avoid each other's lines (Mist, §7.7).

use crate::Time;
use std::{collections::BTreeMap, time::Duration};
use weft_plan::{Busy, Class, Moved};
use weft_types::Party;

/// An announced put that sends nothing for this long no longer counts.
const ANNOUNCED_FOR: Duration = Duration::from_secs(2);

/// Bytes by the party whose lines they use.
pub type Lines = BTreeMap<Party, Moved>;

/// The running plans.
#[derive(Debug, Default)]
pub struct InFlight {
    last: u64,
    moves: BTreeMap<u64, Move>,
}

#[derive(Debug)]
struct Move {
    lines: Lines,
    class: Class,
    /// The share that is still to be moved, from 0 to 1.
    left: f64,
    /// Set for a plan that is only announced: until when it counts.
    until: Option<Time>,
}

impl InFlight {
    /// Adds a plan; returns its number.
    pub fn begin(&mut self, lines: Lines, class: Class) -> u64 {
        self.add(lines, class, None)
    }

    /// Announces a put that will move about this much.
    pub fn announce(&mut self, lines: Lines, now: Time) -> u64 {
        self.add(lines, Class::Foreground, Some(now + ANNOUNCED_FOR))
    }

    /// Records that the share `share` of a plan, from 0 to 1, has been moved.
    pub fn moved(&mut self, number: u64, share: f64) {
        if let Some(of) = self.moves.get_mut(&number) {
            of.left = (1.0 - share).clamp(0.0, 1.0);
        }
    }

    /// Removes a plan.
    pub fn end(&mut self, number: u64) {
        self.moves.remove(&number);
    }

    /// Whether no plan is running.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// The remaining bytes of all plans.
    pub fn left(&self, now: Time) -> BTreeMap<Party, Busy> {
        let mut left: BTreeMap<Party, Busy> = BTreeMap::new();
        for of in self.moves.values() {
            let counts = of.left > 0.0 && of.until.is_none_or(|until| now < until);
            for (party, Moved { up_bytes, down_bytes }) in of.lines.iter().filter(|_| counts) {
                let moved = Moved { up_bytes: up_bytes * of.left, down_bytes: down_bytes * of.left };
                let busy = left.entry(*party).or_default();
                match of.class {
                    Class::Foreground => busy.waited_for += moved,
                    _ => busy.background.push(moved),
                }
            }
        }
        left
    }

    fn add(&mut self, lines: Lines, class: Class, until: Option<Time>) -> u64 {
        self.last += 1;
        self.moves.insert(self.last, Move { lines, class, left: 1.0, until });
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::NodeId;

    #[test]
    fn the_rest_of_a_plan_is_what_has_not_been_moved() {
        let (mut in_flight, mut now) = (InFlight::default(), Time::default());
        let node = Party::Node(NodeId(1));
        let lines = |bytes: f64| Lines::from([(node, Moved { up_bytes: bytes, down_bytes: 2.0 * bytes })]);
        let up = |it: &InFlight, now| it.left(now).get(&node).map_or(0.0, |busy| busy.waited_for.up_bytes);
        let announced = in_flight.announce(lines(1000.0), now);
        let plan = in_flight.begin(lines(100.0), Class::Foreground);
        let repair = in_flight.begin(lines(10.0), Class::Repair);
        let moved = |up_bytes: f64| Moved { up_bytes, down_bytes: 2.0 * up_bytes };
        assert_eq!(in_flight.left(now)[&node], Busy { waited_for: moved(1100.0), background: vec![moved(10.0)] });
        in_flight.moved(plan, 0.75);
        assert_eq!(up(&in_flight, now), 1025.0);
        now = now + ANNOUNCED_FOR;
        assert_eq!(up(&in_flight, now), 25.0, "an old announcement no longer counts");
        in_flight.moved(plan, 1.5);
        assert_eq!(up(&in_flight, now), 0.0);
        [plan, announced, repair].into_iter().for_each(|number| in_flight.end(number));
        assert!(in_flight.left(now).is_empty() && in_flight.is_empty());
    }
}
