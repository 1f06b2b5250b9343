//! Checks whether links carry their configured rate, and whether a benchmark measured the links or the processors.

use super::{
    DIRECT, IDLE_MIN, Outcome, Sample,
    repair::{Case, Subject},
};
use crate::testbed::{BURST_BYTES, DEFAULT_LINK, Testbed};
use serde::Serialize;
use std::fmt;
use weft_cli::session::Session;
use weft_types::{AutoSize, ByteSize, Error, Result};

/// Largest accepted deviation of a direct send from the predicted time of its link.
pub(crate) const TOLERANCE: f64 = 0.03;
/// The check stores three blocks and copies one of them to a fourth node.
const CHECK_NODES_MIN: u32 = 4;
/// Most attempts, until one takes the expected time.
const CHECKS_MAX: u32 = 3;
/// A shorter predicted time means that no link on the way is limited.
const UNLIMITED_S: f64 = 1e-3;

/// A direct send, compared with the predicted time of its link.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct LinkCheck {
    seconds: f64,
    bound_s: f64,
    /// The fraction of time in which the processors were idle.
    cpu_idle: f64,
    /// The bytes that were sent.
    bytes: u64,
}

/// Warnings that a reader needs to judge the results.
pub(crate) fn warnings(results: &[Outcome]) -> Vec<String> {
    let mut warnings = Vec::new();
    let direct = results.iter().find(|outcome| outcome.scheme == DIRECT);
    if let Some((direct, bound_s)) = direct.and_then(|direct| Some((direct, direct.bound_s?))) {
        let check = LinkCheck { seconds: direct.median_s, bound_s, cpu_idle: direct.cpu_idle, bytes: direct.bytes_moved };
        warnings.extend(check.error().map(|error| error.message));
    }
    warnings.extend(too_busy(results));
    warnings
}

/// A warning if the processors may have limited the results.
pub(crate) fn too_busy(results: &[Outcome]) -> Option<String> {
    let busy = || results.iter().filter(|outcome| outcome.cpu_idle < IDLE_MIN);
    let most = busy().min_by(|a, b| a.cpu_idle.total_cmp(&b.cpu_idle))?;
    let (count, all, least, idle) = (busy().count(), results.len(), IDLE_MIN * 100.0, most.cpu_idle * 100.0);
    Some(format!(
        "the processors were idle for less than {least:.0} % of {count} of {all} results ({idle:.0} % of {}): use slower links to \
         measure the links and not the processors",
        most.scheme
    ))
}

impl LinkCheck {
    /// Sends a block from one node to another and measures the time. Otherwise returns the reason why the result would mean nothing.
    pub(crate) async fn run(session: &Session, testbed: &Testbed) -> Result<Result<Self, &'static str>> {
        let settings = testbed.settings();
        if !settings.slow.is_empty() {
            return Ok(Err("nodes are slow, not only their links"));
        }
        if settings.nodes < CHECK_NODES_MIN {
            return Ok(Err("the check needs four nodes"));
        }
        // The blocks are placed only when they are stored. So the length suits all links: a second's worth of the fastest link, but at
        // most ten seconds' worth of the slowest.
        let Some((slowest, fastest)) = settings.range()? else { return Ok(Err("no link is limited")) };
        let bytes = fastest.goodput_bytes_per_s().min(10.0 * slowest.goodput_bytes_per_s());
        let block_len = (bytes as u64).clamp(1 << 18, 64 << 20) >> 18 << 18;
        let case = Case::parse(DIRECT, AutoSize::Bytes(ByteSize(256 << 10)), block_len)?.remove(0);
        let mut subject = Subject::store(session, "rs(2,1)", block_len, &[0], 1, true).await?;
        let mut best: Option<Self> = None;
        for _ in 0..CHECKS_MAX {
            let (Sample { seconds, cpu_idle, bytes_moved: bytes }, plan) = subject.rebuild(session, &case).await?;
            // There and back: each direction has its own bound.
            let bound_s = subject.bound_s(&plan, settings)?.filter(|bound_s| *bound_s > UNLIMITED_S);
            let check = bound_s.map(|bound_s| Self { seconds, bound_s, cpu_idle, bytes });
            best = Self::better(best, check);
            if best.is_some_and(|check| check.error().is_none()) {
                break;
            }
        }
        subject.remove(session).await?;
        Ok(best.ok_or("some links are not limited"))
    }

    /// The faster of two sends, each relative to its own bound.
    fn better(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        one.into_iter().chain(other).min_by(|a, b| a.over().total_cmp(&b.over()))
    }

    /// How much longer the send took than predicted, as a fraction.
    fn over(self) -> f64 {
        self.seconds / self.bound_s - 1.0
    }

    /// A warning if the machine does not carry the configured rates.
    pub(crate) fn error(self) -> Option<Error> {
        // An idle shaper passes a burst at once, which is a large part of a small block.
        let at_once = BURST_BYTES / self.bytes.max(1) as f64;
        (!(-TOLERANCE - at_once..=TOLERANCE).contains(&self.over())).then(|| {
            let percent = self.over() * 100.0;
            Error::unavailable(format!(
                "a direct send of one block is {percent:+.1} % off the predicted time of its link: this machine cannot carry this \
                 setting (try slower links or fewer nodes, for example --link {DEFAULT_LINK})"
            ))
        })
    }
}

impl fmt::Display for LinkCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, bound_s, cpu_idle, .. } = self;
        let (ratio, idle) = (seconds / bound_s, cpu_idle * 100.0);
        write!(f, "a direct send of one block took {seconds:.3} s; predicted {bound_s:.3} s ({ratio:.3} x); CPU idle {idle:.0} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_is_put_beside_the_bound_of_its_own_way() {
        let check = |seconds, bound_s| Some(LinkCheck { seconds, bound_s, cpu_idle: 0.5, bytes: 128 << 20 });
        // One direction has a third of the other's rate.
        let (there, back) = (check(3.03, 3.0), check(1.01, 1.0));
        for (one, other) in [(there, back), (back, there), (None, back), (there, None)] {
            let best = LinkCheck::better(one, other).unwrap();
            assert!(best.error().is_none(), "{best}");
        }
        assert!(LinkCheck::better(check(3.3, 3.0), check(1.2, 1.0)).unwrap().error().unwrap().message.contains("+10.0 % off"));
        let too_quick = LinkCheck::better(check(0.9, 1.0), back).unwrap();
        assert!(too_quick.error().is_some());
        assert!(LinkCheck { bytes: 1 << 20, ..too_quick }.error().is_none(), "an eighth of it passes as a burst");
    }
}
