//! Keeps lanes that take turns over one span in step.
//!
//! Links that share a line seldom get equal shares of it. So lanes that share all their lines would drift apart. Some
//! would end early and leave their lines idle, and lanes that run ahead would take bandwidth from slices that others
//! wait for. So at each party no stage goes more than half a window ahead of the slowest of its siblings. A smaller
//! distance would leave lines idle at every short delay.
//!
//! This cannot deadlock. Take the stage of the plan that is furthest behind: it waits for no sibling, the stage before
//! it has produced its input, and the stage after it has room.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};
use weft_plan::TaskLane;
use weft_types::Span;

/// The progress of all stages of a task that keep in step.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<Groups>);

type Groups = BTreeMap<Group, Members>;
/// Lanes of one span that take turns.
type Group = (u64, u64, u32);

#[derive(Debug, Default)]
struct Members {
    /// The slices done by each stage, by its number in the task.
    done: BTreeMap<usize, u64>,
    /// The stages that wait for others.
    waiting: Vec<Waker>,
}

/// A stage's membership in its group. Dropping it leaves the group.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pace: &'a Pace,
    group: Option<Group>,
    number: usize,
    lead: u64,
}

impl Pace {
    /// Registers stage `number` of the task. All stages register before any of them starts.
    pub(crate) fn join(&self, lane: &TaskLane, number: usize) -> Step<'_> {
        let Span { start, end } = lane.span;
        // A lane that has its span to itself takes no turns.
        let group = (lane.step > 1).then_some((start, end, lane.step));
        if let Some(group) = group {
            self.lock().entry(group).or_default().done.insert(number, 0);
        }
        Step { pace: self, group, number, lead: u64::from((lane.window / 2).max(1)) }
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

impl Step<'_> {
    /// Waits while the stage is too far ahead of the others.
    pub(crate) async fn turn(&self) {
        let Some(group) = self.group else { return };
        poll_fn(|context| {
            let mut groups = self.pace.lock();
            let Some(members) = groups.get_mut(&group) else { return Poll::Ready(()) };
            let own = members.done.get(&self.number).copied().unwrap_or(0);
            let slowest = members.done.values().copied().min().unwrap_or(own);
            if own < slowest.saturating_add(self.lead) {
                return Poll::Ready(());
            }
            members.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Counts one more slice of the stage as done.
    pub(crate) fn done(&self) {
        let Some(group) = self.group else { return };
        if let Some(members) = self.pace.lock().get_mut(&group) {
            *members.done.entry(self.number).or_default() += 1;
            members.wake();
        }
    }
}

impl Drop for Step<'_> {
    /// A stage that has ended, with or without an error, must not delay the others.
    fn drop(&mut self) {
        let Some(group) = self.group else { return };
        if let Some(members) = self.pace.lock().get_mut(&group) {
            members.done.remove(&self.number);
            members.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn lane(first: u32, step: u32) -> TaskLane {
        TaskLane { lane: first as u16, span: Span::new(0, 100), first, step, window: 4, stages: Vec::new() }
    }

    #[test]
    fn no_stage_runs_far_ahead_of_the_slowest_and_an_ended_stage_delays_none() {
        let pace = Pace::default();
        let (slow, fast) = (pace.join(&lane(0, 2), 0), pace.join(&lane(1, 2), 1));
        for _ in 0..2 {
            assert_eq!(fast.turn().now_or_never(), Some(()));
            fast.done();
        }
        assert_eq!(fast.turn().now_or_never(), None, "two ahead");
        slow.done();
        assert_eq!(fast.turn().now_or_never(), Some(()));
        fast.done();
        assert_eq!(fast.turn().now_or_never(), None);
        drop(slow);
        assert_eq!(fast.turn().now_or_never(), Some(()));
    }

    #[test]
    fn a_lane_with_its_own_span_waits_for_no_other() {
        let pace = Pace::default();
        let (_other, alone) = (pace.join(&lane(0, 2), 0), pace.join(&lane(0, 1), 1));
        for _ in 0..10 {
            assert_eq!(alone.turn().now_or_never(), Some(()));
            alone.done();
        }
    }

    #[test]
    fn a_waiting_stage_is_woken() {
        let pace = Pace::default();
        let (slow, fast) = (pace.join(&lane(0, 2), 0), pace.join(&lane(1, 2), 1));
        let ahead = async {
            for _ in 0..10 {
                fast.turn().await;
                fast.done();
            }
        };
        let behind = async {
            for _ in 0..10 {
                slow.turn().await;
                slow.done();
            }
        };
        futures::executor::block_on(async { futures::join!(ahead, behind) });
    }
}
