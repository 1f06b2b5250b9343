//! Whether links carry what they say, and whether it was links that were measured.

use super::{
    DIRECT, IDLE_MIN, Outcome, Sample,
    repair::{Case, Subject},
};
use crate::testbed::{BURST_BYTES, DEFAULT_LINK, Testbed};
use serde::Serialize;
use std::fmt;
use weft_cli::session::Session;
use weft_types::{AutoSize, ByteSize, Error, Result};

/// A direct send may be so far from what its link says.
pub(crate) const TOLERANCE: f64 = 0.03;
/// The check stores three blocks and copies one of them to a fourth node.
const CHECK_NODES_MIN: u32 = 4;
/// How often it does that, until once it takes what it should.
const CHECKS_MAX: u32 = 3;
/// What links say that takes no longer does not go over a limited one.
const UNLIMITED_S: f64 = 1e-3;

/// A direct send beside what its link says.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct LinkCheck {
    seconds: f64,
    bound_s: f64,
    /// The part of the processors' time in which they had nothing to do.
    cpu_idle: f64,
    /// What was sent.
    bytes: u64,
}

/// What the reader should know before believing the results.
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

/// Says so, if it may be the processors that were measured.
pub(crate) fn too_busy(results: &[Outcome]) -> Option<String> {
    let busy = || results.iter().filter(|outcome| outcome.cpu_idle < IDLE_MIN);
    let most = busy().min_by(|a, b| a.cpu_idle.total_cmp(&b.cpu_idle))?;
    let (count, all, least, idle) = (busy().count(), results.len(), IDLE_MIN * 100.0, most.cpu_idle * 100.0);
    Some(format!(
        "the processors were idle for less than {least:.0} % of {count} of {all} results ({idle:.0} % of {}): slower links would \
         show the links, not them",
        most.scheme
    ))
}

impl LinkCheck {
    /// Sends a block from one node to another, and looks what it took; or why that would say nothing.
    pub(crate) async fn run(session: &Session, testbed: &Testbed) -> Result<Result<Self, &'static str>> {
        let settings = testbed.settings();
        if !settings.slow.is_empty() {
            return Ok(Err("nodes are slow, and not their links alone"));
        }
        if settings.nodes < CHECK_NODES_MIN {
            return Ok(Err("that takes four nodes"));
        }
        // Between which nodes it goes is not known before it is stored: what the fastest link carries in about a second is enough for
        // any, and what the slowest does in ten is not too much for any.
        let Some((slowest, fastest)) = settings.range()? else { return Ok(Err("nothing limits them")) };
        let bytes = fastest.goodput_bytes_per_s().min(10.0 * slowest.goodput_bytes_per_s());
        let block_len = (bytes as u64).clamp(1 << 18, 64 << 20) >> 18 << 18;
        let case = Case::parse(DIRECT, AutoSize::Bytes(ByteSize(256 << 10)), block_len)?.remove(0);
        let mut subject = Subject::store(session, "rs(2,1)", block_len, &[0], 1, true).await?;
        let mut best: Option<Self> = None;
        for _ in 0..CHECKS_MAX {
            let (Sample { seconds, cpu_idle, bytes_moved: bytes }, plan) = subject.rebuild(session, &case).await?;
            // There and back again: each way has a bound of its own.
            let bound_s = subject.bound_s(&plan, settings)?.filter(|bound_s| *bound_s > UNLIMITED_S);
            let check = bound_s.map(|bound_s| Self { seconds, bound_s, cpu_idle, bytes });
            best = Self::better(best, check);
            if best.is_some_and(|check| check.error().is_none()) {
                break;
            }
        }
        subject.remove(session).await?;
        Ok(best.ok_or("nothing limits some of them"))
    }

    /// The quicker one, each beside its own bound.
    fn better(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        one.into_iter().chain(other).min_by(|a, b| a.over().total_cmp(&b.over()))
    }

    /// How much longer it took than its link says, as a part of that.
    fn over(self) -> f64 {
        self.seconds / self.bound_s - 1.0
    }

    /// Says so, if the machine does not carry what its links say.
    pub(crate) fn error(self) -> Option<Error> {
        // A shaper that was idle lets some of it pass at once: of a small block that is much.
        let at_once = BURST_BYTES / self.bytes.max(1) as f64;
        (!(-TOLERANCE - at_once..=TOLERANCE).contains(&self.over())).then(|| {
            let percent = self.over() * 100.0;
            Error::unavailable(format!(
                "a direct send of one block is {percent:+.1} % off what its link says: this machine cannot carry this setting \
                 (slower links or fewer nodes, e.g. --link {DEFAULT_LINK}, may do)"
            ))
        })
    }
}

impl fmt::Display for LinkCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, bound_s, cpu_idle, .. } = self;
        let (ratio, idle) = (seconds / bound_s, cpu_idle * 100.0);
        write!(
            f,
            "a direct send of one block took {seconds:.3} s, and the link says {bound_s:.3} s ({ratio:.3} x); CPU idle {idle:.0} %"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_is_put_beside_the_bound_of_its_own_way() {
        let check = |seconds, bound_s| Some(LinkCheck { seconds, bound_s, cpu_idle: 0.5, bytes: 128 << 20 });
        // There the link carries a third of what it carries back.
        let (there, back) = (check(3.03, 3.0), check(1.01, 1.0));
        for (one, other) in [(there, back), (back, there), (None, back), (there, None)] {
            let best = LinkCheck::better(one, other).unwrap();
            assert!(best.error().is_none(), "{best}");
        }
        assert!(LinkCheck::better(check(3.3, 3.0), check(1.2, 1.0)).unwrap().error().unwrap().message.contains("+10.0 % off"));
        let too_quick = LinkCheck::better(check(0.9, 1.0), back).unwrap();
        assert!(too_quick.error().is_some());
        assert!(LinkCheck { bytes: 1 << 20, ..too_quick }.error().is_none(), "an eighth of it may pass at once");
    }
}
