//! What plans under way still have to move over whose lines. Whoever plans the next one sees it, so that writers who do not know of
//! each other keep out of each other's way (Mist, §7.7).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_plan::Moved;
use weft_types::Party;

/// A put that was announced and sends nothing for so long counts no more.
const ANNOUNCED_FOR: Duration = Duration::from_secs(2);
/// What counts of a plan that takes longer than it should: nobody knows how much of it is left.
const LATE_SHARE: f64 = 0.1;

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
    begun: Instant,
    /// How long it should take; none: it has only been announced.
    takes: Option<Duration>,
}

/// Counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Moving {
    loads: Loads,
    number: u64,
}

impl Loads {
    /// A plan begins that should take so many seconds.
    pub(crate) fn begin(&self, lines: Lines, seconds: f64) -> Moving {
        self.add(lines, Duration::try_from_secs_f64(seconds).ok())
    }

    /// A put will move about this much, if it is not given up before.
    pub(crate) fn announce(&self, lines: Lines) -> Moving {
        self.add(lines, None)
    }

    /// What is left of everything now.
    pub(crate) fn left(&self) -> Lines {
        let (now, underway) = (Instant::now(), self.lock());
        let mut left = Lines::new();
        for of in underway.moves.values() {
            let share = of.share_left(now);
            for (party, moved) in of.lines.iter().filter(|_| share > 0.0) {
                let Moved { up_bytes, down_bytes } = *moved;
                *left.entry(*party).or_default() += Moved { up_bytes: up_bytes * share, down_bytes: down_bytes * share };
            }
        }
        left
    }

    fn add(&self, lines: Lines, takes: Option<Duration>) -> Moving {
        let mut underway = self.lock();
        underway.last += 1;
        let number = underway.last;
        underway.moves.insert(number, Move { lines, begun: Instant::now(), takes });
        Moving { loads: self.clone(), number }
    }

    /// A panic elsewhere leaves it as good as it was: each change to it is one call.
    fn lock(&self) -> MutexGuard<'_, Underway> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Move {
    fn share_left(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.begun);
        match self.takes {
            Some(takes) if since < takes => (1.0 - since.as_secs_f64() / takes.as_secs_f64()).max(LATE_SHARE),
            Some(_) => LATE_SHARE,
            None if since < ANNOUNCED_FOR => 1.0,
            None => 0.0,
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
    async fn what_is_left_of_a_plan_is_what_its_time_has_not_taken() {
        let loads = Loads::default();
        let node = Party::Node(NodeId(1));
        let lines = |bytes: f64| Lines::from([(node, Moved { up_bytes: bytes, down_bytes: 2.0 * bytes })]);
        let up = || loads.left().get(&node).map_or(0.0, |moved| moved.up_bytes);
        let announced = loads.announce(lines(1000.0));
        let plan = loads.begin(lines(100.0), 10.0);
        assert_eq!(loads.left()[&node], Moved { up_bytes: 1100.0, down_bytes: 2200.0 });
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(up(), 50.0, "half of the plan, and nobody comes who was announced so long ago");
        tokio::time::advance(Duration::from_secs(50)).await;
        assert_eq!(up(), 10.0, "a plan that is late is not done");
        drop((plan, announced));
        assert!(loads.left().is_empty());
    }
}
