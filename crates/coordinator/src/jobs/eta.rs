//! The remaining time of a job: the shell around [`weft_control::job::Job::remaining`].

use super::control::Control;
use crate::{limit, shared::Shared};
use std::time::Duration;
use weft_types::JobState;

/// The remaining time at the rate so far, and not less than the limit on repair allows. `None`: it is unknown, or the job does not run.
pub(super) fn remaining_ms(shared: &Shared, control: &Control) -> Option<u64> {
    if *control.state.borrow() != JobState::Running {
        return None;
    }
    let left_bytes = control.left_bytes();
    let least_ms = limit::least_ms(shared, Some((control.converts, left_bytes))).filter(|_| left_bytes > 0);
    let live = control.live();
    let remaining = live.job.remaining(live.begun_bytes(), shared.started.now());
    at_least(remaining, least_ms)
}

/// The least time alone is no estimate: before anything is finished, the remaining time is unknown.
fn at_least(remaining: Option<Duration>, least_ms: Option<u64>) -> Option<u64> {
    let remaining_ms = u64::try_from(remaining?.as_millis()).unwrap_or(u64::MAX);
    Some(remaining_ms.max(least_ms.unwrap_or(0)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_lower_bound_and_no_estimate() {
        let second = Some(Duration::from_secs(1));
        assert_eq!([at_least(None, None), at_least(None, Some(7_000))], [None, None]);
        let known = [at_least(second, None), at_least(second, Some(7_000)), at_least(second, Some(7))];
        assert_eq!(known, [Some(1_000), Some(7_000), Some(1_000)]);
    }
}
