//! What plans under way still have to move over whose lines. Whoever plans the next one sees it, so that writers who do not know of
//! each other keep out of each other's way (Mist, §7.7).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_plan::{Busy, Class, Moved};
use weft_types::Party;

/// A put that was announced and sends nothing for so long counts no more.
const ANNOUNCED_FOR: Duration = Duration::from_secs(2);

/// Bytes by the party over whose lines they go.
pub(crate) type Lines = BTreeMap<Party, Moved>;

/// What is under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loads(Arc<Mutex<Underway>>);

#[derive(Debug, Default)]
struct Underway {
    last: u64,
    moves: BTreeMap<u64, Move>,
}

#[derive(Debug)]
struct Move {
    lines: Lines,
    class: Class,
    /// What of it has not been moved yet, from 0 to 1.
    left: f64,
    /// It has only been announced, and counts until then.
    until: Option<Instant>,
}

/// Counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Moving {
    loads: Loads,
    number: u64,
}

impl Loads {
    /// A plan begins.
    pub(crate) fn begin(&self, lines: Lines, class: Class) -> Moving {
        self.add(lines, class, None)
    }

    /// A put will move about this much, if it is not given up before.
    pub(crate) fn announce(&self, lines: Lines) -> Moving {
        self.add(lines, Class::Foreground, Some(Instant::now() + ANNOUNCED_FOR))
    }

    /// What is left of everything now.
    pub(crate) fn left(&self) -> BTreeMap<Party, Busy> {
        let (now, underway) = (Instant::now(), self.lock());
        let mut left: BTreeMap<Party, Busy> = BTreeMap::new();
        for of in underway.moves.values() {
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

    fn add(&self, lines: Lines, class: Class, until: Option<Instant>) -> Moving {
        let mut underway = self.lock();
        underway.last += 1;
        let number = underway.last;
        underway.moves.insert(number, Move { lines, class, left: 1.0, until });
        Moving { loads: self.clone(), number }
    }

    /// A panic elsewhere leaves it as good as it was: each change to it is one call.
    fn lock(&self) -> MutexGuard<'_, Underway> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Moving {
    /// So much of it, from 0 to 1, has been moved.
    pub(crate) fn moved(&self, share: f64) {
        if let Some(of) = self.loads.lock().moves.get_mut(&self.number) {
            of.left = (1.0 - share).clamp(0.0, 1.0);
        }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.loads.lock().moves.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::NodeId;

    #[tokio::test(start_paused = true)]
    async fn what_is_left_of_a_plan_is_what_has_not_been_moved() {
        let loads = Loads::default();
        let node = Party::Node(NodeId(1));
        let lines = |bytes: f64| Lines::from([(node, Moved { up_bytes: bytes, down_bytes: 2.0 * bytes })]);
        let up = || loads.left().get(&node).map_or(0.0, |busy| busy.waited_for.up_bytes);
        let announced = loads.announce(lines(1000.0));
        let plan = loads.begin(lines(100.0), Class::Foreground);
        let repair = loads.begin(lines(10.0), Class::Repair);
        let moved = |up_bytes: f64| Moved { up_bytes, down_bytes: 2.0 * up_bytes };
        assert_eq!(loads.left()[&node], Busy { waited_for: moved(1100.0), background: vec![moved(10.0)] });
        plan.moved(0.75);
        assert_eq!(up(), 1025.0);
        tokio::time::advance(ANNOUNCED_FOR).await;
        assert_eq!(up(), 25.0, "nobody comes who was announced so long ago");
        plan.moved(1.5);
        assert_eq!(up(), 0.0);
        drop((plan, announced, repair));
        assert!(loads.left().is_empty() && loads.lock().moves.is_empty());
    }
}
