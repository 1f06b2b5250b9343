//! What plans the routes of updates beside the calls that ask for them.

use crate::compute::compute_apart;
use std::{sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::timeout};

/// The most plans that are made at the same time: each takes a processor.
const PLANNERS: usize = 2;
/// The most that wait or are made.
const QUEUED_MAX: usize = 64;

/// Plans that are being made, and those that wait.
#[derive(Debug)]
pub(super) struct Planners {
    queue: Arc<Semaphore>,
    turns: Arc<Semaphore>,
}

impl Default for Planners {
    fn default() -> Self {
        Self { queue: Arc::new(Semaphore::new(QUEUED_MAX)), turns: Arc::new(Semaphore::new(PLANNERS)) }
    }
}

impl Planners {
    /// Makes a plan, and waits for it for this long. `None`: it is not there yet, and is being made; or very many others wait.
    pub(super) async fn plan<T: Send + 'static>(&self, within: Duration, make: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let queued = Arc::clone(&self.queue).try_acquire_owned().ok()?;
        let turns = Arc::clone(&self.turns);
        let plan = async move {
            let _queued = queued;
            let turn = turns.acquire_owned().await;
            let make = move || {
                let _turn = turn;
                make()
            };
            compute_apart(make).await
        };
        timeout(within, tokio::spawn(plan)).await.ok()?.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SOON: Duration = Duration::from_millis(20);
    const LATE: Duration = Duration::from_secs(10);

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_plan_that_takes_long_is_made_and_not_waited_for() {
        let planners = Planners::default();
        let ((go, waits), (done, is_done)) = (mpsc::channel::<()>(), mpsc::channel());
        let late = planners.plan(SOON, move || {
            let _goes = waits.recv();
            done.send(7)
        });
        assert_eq!(late.await, None);
        go.send(()).unwrap();
        assert_eq!(is_done.recv_timeout(LATE), Ok(7));
        assert_eq!(planners.plan(LATE, || 8).await, Some(8));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn few_plans_are_made_at_the_same_time_and_the_others_wait() {
        let planners = Planners::default();
        let mut all = Vec::new();
        for number in 0..PLANNERS {
            let (go, waits) = mpsc::channel::<()>();
            assert_eq!(planners.plan(SOON, move || waits.recv().map(|()| number)).await, None);
            all.push(go);
        }
        assert_eq!(planners.plan(SOON, || 3).await, None, "it is made, too");
        for _ in 0..QUEUED_MAX {
            let _waits = planners.plan(Duration::ZERO, || 4).await;
        }
        assert_eq!(planners.queue.available_permits(), 0, "their number is not bounded");
        assert_eq!(planners.plan(LATE, || 5).await, None);
        drop(all);
        while planners.queue.available_permits() < QUEUED_MAX {
            tokio::time::sleep(SOON).await;
        }
        assert_eq!(planners.plan(LATE, || 6).await, Some(6));
    }
}
