//! Runs all stages of all lanes of a task concurrently, in one future.

use crate::{Observer, Ports, pace::Pace, stage::StageRun};
use futures::future::join_all;
use std::sync::{Mutex, PoisonError};
use weft_plan::Task;
use weft_types::{Error, Result};

/// The outcome of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The errors in the order in which they happened: the first is the cause. Empty on success.
    pub errors: Vec<Error>,
    /// The progress of each stage, in the order of the task's lanes and stages.
    pub stages: Vec<StageOutcome>,
}

/// The progress of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageOutcome {
    /// The lane's number in the plan.
    pub lane: u16,
    /// The stage's number in the lane.
    pub stage: u16,
    /// The positions of the slices that at least one sink has taken.
    pub positions_done: u64,
    /// Whether the stage went through all its slices and at least one sink finished.
    pub finished: bool,
}

impl Outcome {
    /// The first error, if there is one.
    pub fn into_result(self) -> Result<()> {
        self.errors.into_iter().next().map_or(Ok(()), Err)
    }
}

/// Runs the task to its end. Dropping the future drops all its ports.
pub async fn run(task: &Task, ports: &dyn Ports) -> Outcome {
    run_observed(task, ports, &Observer::new(task)).await
}

/// Like [`run`], with an observer, which must have been created for this task.
pub async fn run_observed(task: &Task, ports: &dyn Ports, observer: &Observer) -> Outcome {
    let (failures, pace) = (Failures::default(), Pace::default());
    let mut runs = Vec::new();
    for lane in &task.lanes {
        for stage in &lane.stages {
            let Some(watch) = observer.stage(runs.len()) else {
                failures.add(Error::fatal("the observer was created for another task"));
                continue;
            };
            let step = pace.join(lane, runs.len());
            runs.push(StageRun { task, lane, stage, ports, watch, step, failures: &failures }.run());
        }
    }
    let stages = join_all(runs).await;
    Outcome { errors: failures.take(), stages }
}

/// The errors so far. They are bounded: a task has a bounded number of ports, and each fails at most once.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Vec<Error>>);

impl Failures {
    pub(crate) fn add(&self, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(error);
    }

    fn take(&self) -> Vec<Error> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
