//! What both daemons count of the calls that they answer.

use super::families::{Family, Figures, Histogram};
use crate::status::from_status;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tonic::Status;
use weft_types::Reaction;

const TIMES: &str = "weft_rpc_seconds";
const ERRORS: &str = "weft_rpc_errors";

/// The families of the calls that a daemon answers.
pub const CALLS: &[Family] = &[
    Family::histogram(
        TIMES,
        &["service", "method"],
        "Time to answer a call; of a call that is answered by a stream, until the stream begins. Failed calls count, and calls whose \
         caller went away do not. A method appears with its first call.",
    ),
    Family::counter(
        ERRORS,
        &["service", "method", "reaction"],
        "Calls that were answered with an error, by what the caller can do about it: `retry` (something was busy), `replan` (a node \
         failed), `corrupt`, `invalid_input`, `not_found`, `unavailable` (too few blocks or nodes), `fatal`. Refused calls count.",
    ),
];

/// The ends of the buckets, seconds.
const BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// What is counted of one kind of call.
#[derive(Debug)]
pub struct CallMeter {
    service: &'static str,
    method: &'static str,
    /// From the first call on.
    times: OnceLock<Histogram>,
    /// In the order of [`Reaction::ALL`].
    errors: [AtomicU64; Reaction::ALL.len()],
}

impl CallMeter {
    /// Of a method of a service, which is named with its package.
    pub(crate) fn of(service: &'static str, method: &'static str) -> Self {
        let service = service.rsplit('.').next().unwrap_or(service);
        Self { service, method, times: OnceLock::new(), errors: Default::default() }
    }

    /// A call was answered, after this time; with a status if it failed.
    pub(crate) fn answered(&self, time: Duration, failed: Option<&Status>) {
        self.times.get_or_init(|| Histogram::new(&BUCKETS)).observe(time);
        if let Some(status) = failed.filter(|status| status.code() != tonic::Code::Ok) {
            self.failed(from_status(status).reaction);
        }
    }

    /// A call failed.
    pub(crate) fn failed(&self, reaction: Reaction) {
        self.errors[reaction as usize].fetch_add(1, Relaxed);
    }
}

/// Adds the figures of calls.
pub fn add_calls(figures: &mut Figures, meters: &[Arc<CallMeter>]) {
    for CallMeter { service, method, times, errors } in meters.iter().map(|meter| &**meter) {
        if let Some(times) = times.get() {
            figures.add(TIMES, [service, method], times.clone());
        }
        for (reaction, count) in Reaction::ALL.into_iter().zip(errors) {
            let count = count.load(Relaxed);
            if count > 0 {
                figures.add(ERRORS, [service, method, reaction.name()], count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::to_status;
    use weft_types::Error;

    #[test]
    fn calls_are_counted_by_method_and_errors_by_reaction() {
        let [put, unused] = ["Put", "Get"].map(|method| Arc::new(CallMeter::of("weft.v1.Weft", method)));
        put.answered(Duration::from_millis(2), None);
        for reaction in Reaction::ALL {
            put.answered(Duration::from_secs(60), Some(&to_status(&Error::new(reaction, "it failed"))));
        }
        put.failed(Reaction::Fatal);
        let mut figures = Figures::of(&[CALLS]);
        add_calls(&mut figures, &[put, unused]);
        let text = figures.text().unwrap();
        let has = |line: &str| assert!(text.lines().any(|it| it == line), "{line} is not in:\n{text}");
        has("weft_rpc_seconds_count{service=\"Weft\",method=\"Put\"} 8");
        has("weft_rpc_seconds_bucket{le=\"0.0025\",service=\"Weft\",method=\"Put\"} 1");
        has("weft_rpc_seconds_bucket{le=\"30.0\",service=\"Weft\",method=\"Put\"} 1");
        for (reaction, count) in Reaction::ALL.into_iter().zip([1, 1, 1, 1, 1, 1, 2]) {
            let name = reaction.name();
            has(&format!("weft_rpc_errors_total{{service=\"Weft\",method=\"Put\",reaction=\"{name}\"}} {count}"));
        }
        assert!(!text.contains("Get"), "a method that was never called is listed:\n{text}");
    }
}
