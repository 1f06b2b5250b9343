//! The remaining time of a job: the shell around [`weft_control::job::Job::remaining`].

use super::control::Control;
use crate::{limit, shared::Shared};
use weft_types::JobState;

/// The remaining time at the rate so far, or the least one that the limit on repair allows. `None`: it is unknown, or the job does not run.
pub(super) fn remaining_ms(shared: &Shared, control: &Control) -> Option<u64> {
    if *control.state.borrow() != JobState::Running {
        return None;
    }
    let left_bytes = control.left_bytes();
    let least_ms = limit::least_ms(shared, Some((control.converts, left_bytes))).filter(|_| left_bytes > 0);
    let live = control.live();
    let remaining = live.job.remaining(live.begun_bytes(), shared.started.now());
    remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)).max(least_ms)
}

/// Records how far the job is, for the estimates of its remaining time.
pub(super) fn observe(shared: &Shared, control: &Control) {
    {
        let mut live = control.live();
        let begun_bytes = live.begun_bytes();
        live.job.observe(begun_bytes, shared.started.now());
    }
    if let Some(remaining_ms) = remaining_ms(shared, control) {
        control.live().job.estimated(remaining_ms, shared.now_ms());
    }
}
