//! What follows from the answer to the request of an update: a decision without a clock and a network.
//!
//! An id is requested again until an answer tells its outcome, because a request that got no answer may have had an effect. A new id is taken only
//! when the old one certainly has none.

use std::time::Duration;
use weft_types::{Error, Result, UPDATE_BYTES_USUAL};
use weft_update::{NotRun, Told};

/// How long an answer is waited for, and how long an update may fail in one term: then its blocks that do not answer must be left out. What its
/// bytes take comes on top.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// What became of a request.
#[derive(Debug, Clone)]
pub(crate) enum Heard {
    Told(Told),
    /// A data block is lost, so there was no node to ask.
    Lost(u8),
    /// The node could not be reached: it has not got the request.
    NotSent(Error),
    /// The request is not acceptable.
    Refused(Error),
    /// The connection ended after the request was sent.
    Broken(Error),
    /// No answer for so long.
    Silent(Duration),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// The update is durable.
    Done,
    /// Request it again.
    Repeat(Repeat),
    /// It was not, and will not be run.
    Fail(Error),
    /// It may have been run, and no answer can tell any more.
    Doubt(Error),
}

/// How to request it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Repeat {
    /// Under a new id: the old one has no effect.
    pub(crate) new_id: bool,
    /// Ask the coordinator for the stripe's blocks before, with the term that failed, if any.
    pub(crate) reopen: Option<u64>,
    /// After a pause.
    pub(crate) pause: bool,
}

/// The course of an update until its outcome is known.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// The update's bytes.
    bytes: u64,
    /// What the update's bytes may take.
    travels: Duration,
    /// A request under the current id may have had an effect.
    is_in_doubt: bool,
    /// The term of the last request, and when the first one in it was made.
    term: Option<(u64, Duration)>,
    /// Why the last request failed.
    last: Option<Error>,
}

impl Course {
    /// Of an update of so many bytes, which may take so long.
    pub(crate) fn new(bytes: u64, travels: Duration) -> Self {
        Self { bytes, travels, ..Self::default() }
    }

    /// A request is made, at a time since any fixed moment.
    pub(crate) fn requested(&mut self, term: u64, now: Duration) {
        match self.term {
            Some((current, _)) if current == term => {}
            _ => self.term = Some((term, now)),
        }
    }

    /// Its answer.
    pub(crate) fn heard(&mut self, heard: Heard, now: Duration) -> Next {
        match heard {
            Heard::Told(Told::Committed) => Next::Done,
            Heard::Told(Told::Aborted) => {
                self.is_in_doubt = false;
                self.again("the update was aborted", Repeat { new_id: true, reopen: None, pause: true })
            }
            Heard::Told(Told::Expired) if self.is_in_doubt => {
                Next::Doubt(Error::retry("the nodes do not know the outcome of an update any more"))
            }
            Heard::Told(Told::Expired) => {
                self.again("the id of the update has expired", Repeat { new_id: true, reopen: Some(0), pause: true })
            }
            Heard::Told(Told::NotRun(NotRun::Invalid)) => Next::Fail(Error::fatal(self.refused())),
            Heard::Told(Told::NotRun(NotRun::Busy)) => {
                let repeat = Repeat { new_id: !self.is_in_doubt, reopen: None, pause: true };
                self.again("the node is busy with other updates, or its journal or disk is full", repeat)
            }
            Heard::Told(Told::NotRun(NotRun::Retry)) => self.reopen("the node cannot accept the update now", now),
            Heard::Lost(index) => {
                // The coordinator rebuilds the blocks that a failed term lacks, and opens the stripe again.
                let (why, failed) =
                    (format!("data block {index} is lost, and not rebuilt yet"), self.term.map_or(0, |(term, _)| term));
                self.again(&why, Repeat { new_id: false, reopen: Some(failed), pause: true })
            }
            Heard::Refused(error) => Next::Fail(error),
            Heard::NotSent(error) => self.reopen(&error.to_string(), now),
            Heard::Broken(error) => {
                self.is_in_doubt = true;
                self.reopen(&error.to_string(), now)
            }
            Heard::Silent(waited) => {
                self.is_in_doubt = true;
                let failed = self.term.map_or(0, |(term, _)| term);
                let why = format!("no answer to an update within {} s", waited.as_secs());
                self.again(&why, Repeat { new_id: false, reopen: Some(failed), pause: false })
            }
        }
    }

    /// Its id must not be requested any more, because its session ends.
    pub(crate) fn session_ends(&self) -> Result<()> {
        match self.is_in_doubt {
            true => Err(Error::retry("the session of an update ended before its outcome was known")),
            false => Ok(()),
        }
    }

    /// Whether the update may have been run.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

    /// It takes too long.
    pub(crate) fn too_long(&self, deadline: Duration) -> Error {
        let why = self.last.as_ref().map_or("no stripe could be opened for updates", |last| &last.message);
        Error::retry(format!("an update did not end within {} s: {why}", deadline.as_secs_f64()))
    }

    /// Notes why the stripe could not be opened.
    pub(crate) fn not_opened(&mut self, why: Error) {
        self.last = Some(why);
    }

    /// What a node's refusal means. It does not say why, but only a long update is refused although it is valid.
    fn refused(&self) -> String {
        let refused = "the node refuses the update as invalid";
        match self.bytes {
            bytes if bytes > UPDATE_BYTES_USUAL => format!(
                "{refused}: the journals of its nodes may be too small for an update of {bytes} bytes: write with a smaller --atomic, \
                 or raise `limits.update_journal`"
            ),
            _ => refused.to_owned(),
        }
    }

    fn reopen(&mut self, why: &str, now: Duration) -> Next {
        let failed = match self.term {
            Some((term, since)) if now.saturating_sub(since) >= ANSWER_TIMEOUT + self.travels => term,
            _ => 0,
        };
        self.again(why, Repeat { new_id: false, reopen: Some(failed), pause: true })
    }

    fn again(&mut self, why: &str, repeat: Repeat) -> Next {
        self.last = Some(Error::retry(why));
        Next::Repeat(repeat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Heard = Heard::Told(Told::NotRun(NotRun::Busy));
    const RETRY: Heard = Heard::Told(Told::NotRun(NotRun::Retry));
    const EXPIRED: Heard = Heard::Told(Told::Expired);
    const ABORTED: Heard = Heard::Told(Told::Aborted);
    const SILENT: Heard = Heard::Silent(ANSWER_TIMEOUT);

    fn broken() -> Heard {
        Heard::Broken(Error::replan("the connection was closed"))
    }

    fn not_sent() -> Heard {
        Heard::NotSent(Error::replan("connection refused"))
    }

    /// The last decision after these answers, each with the second in which it comes, to requests in term 4 from second 0 on.
    fn after(answers: &[(Heard, u64)]) -> Next {
        let mut course = Course::default();
        let mut next = None;
        for (heard, second) in answers {
            course.requested(4, next.map_or(Duration::ZERO, |_| Duration::from_secs(*second)));
            next = Some(course.heard(heard.clone(), Duration::from_secs(*second)));
        }
        next.unwrap()
    }

    fn repeat(new_id: bool, reopen: Option<u64>, pause: bool) -> Next {
        Next::Repeat(Repeat { new_id, reopen, pause })
    }

    #[test]
    fn each_answer_has_one_consequence() {
        let committed = Heard::Told(Told::Committed);
        let invalid = Heard::Told(Told::NotRun(NotRun::Invalid));
        assert_eq!(after(&[(committed, 0)]), Next::Done);
        assert!(matches!(after(&[(invalid, 0)]), Next::Fail(_)));
        assert!(matches!(after(&[(Heard::Refused(Error::invalid("too long")), 0)]), Next::Fail(_)));
        assert_eq!(after(&[(ABORTED, 0)]), repeat(true, None, true));
        assert_eq!(after(&[(EXPIRED, 0)]), repeat(true, Some(0), true));
        assert_eq!(after(&[(BUSY, 0)]), repeat(true, None, true));
        assert_eq!(after(&[(RETRY, 0)]), repeat(false, Some(0), true));
        assert_eq!(after(&[(not_sent(), 0)]), repeat(false, Some(0), true));
        assert_eq!(after(&[(Heard::Lost(1), 0)]), repeat(false, Some(4), true), "no update of it can end in this term");
        assert_eq!(after(&[(broken(), 0)]), repeat(false, Some(0), true));
        assert_eq!(after(&[(SILENT, 3)]), repeat(false, Some(4), false));
    }

    #[test]
    fn the_refusal_of_a_long_update_names_the_remedy() {
        let invalid = Heard::Told(Told::NotRun(NotRun::Invalid));
        let refused = |bytes| match Course::new(bytes, Duration::ZERO).heard(invalid.clone(), Duration::ZERO) {
            Next::Fail(error) => error.message,
            next => format!("{next:?}"),
        };
        assert!(refused(UPDATE_BYTES_USUAL + 1).ends_with("smaller --atomic, or raise `limits.update_journal`"));
        assert!(refused(UPDATE_BYTES_USUAL).ends_with("as invalid"));
    }

    #[test]
    fn an_id_in_doubt_is_kept_until_an_answer_tells_its_outcome() {
        for doubt in [broken(), SILENT] {
            for heard in [BUSY, RETRY, broken(), SILENT, not_sent()] {
                let next = after(&[(doubt.clone(), 1), (heard.clone(), 2)]);
                assert!(matches!(next, Next::Repeat(Repeat { new_id: false, .. })), "{heard:?} after {doubt:?}: {next:?}");
            }
            assert!(matches!(after(&[(doubt.clone(), 1), (EXPIRED, 2)]), Next::Doubt(_)));
            assert_eq!(after(&[(doubt.clone(), 1), (ABORTED, 2)]), repeat(true, None, true));
            assert_eq!(after(&[(doubt.clone(), 1), (ABORTED, 2), (EXPIRED, 3)]), repeat(true, Some(0), true), "a new id");
        }
        assert_eq!(after(&[(RETRY, 1), (EXPIRED, 2)]), repeat(true, Some(0), true), "no request had an effect");
    }

    #[test]
    fn a_term_has_failed_when_an_update_fails_in_it_for_long() {
        for heard in [RETRY, broken(), not_sent()] {
            assert_eq!(after(&[(heard.clone(), 0), (heard.clone(), 2)]), repeat(false, Some(0), true), "{heard:?}");
            assert_eq!(after(&[(heard.clone(), 0), (heard.clone(), 3)]), repeat(false, Some(4), true), "{heard:?}");
        }
        // Bytes take their time.
        let mut course = Course::new(16 << 20, Duration::from_secs(8));
        course.requested(4, Duration::ZERO);
        assert_eq!(course.heard(broken(), Duration::from_secs(10)), repeat(false, Some(0), true));
        assert_eq!(course.heard(broken(), Duration::from_secs(11)), repeat(false, Some(4), true));
        let mut course = Course::default();
        course.requested(4, Duration::ZERO);
        course.requested(5, Duration::from_secs(10));
        assert_eq!(course.heard(RETRY, Duration::from_secs(12)), repeat(false, Some(0), true), "a new term has its own time");
        assert_eq!(course.heard(RETRY, Duration::from_secs(13)), repeat(false, Some(5), true));
    }

    #[test]
    fn a_session_ends_without_harm_unless_an_id_is_in_doubt() {
        let mut course = Course::default();
        course.requested(4, Duration::ZERO);
        course.heard(BUSY, Duration::ZERO);
        assert!(course.session_ends().is_ok());
        course.heard(broken(), Duration::ZERO);
        assert!(course.session_ends().is_err() && course.is_in_doubt());
        course.heard(ABORTED, Duration::ZERO);
        assert!(course.session_ends().is_ok());
    }

    #[test]
    fn an_update_that_takes_too_long_says_why() {
        let mut course = Course::default();
        assert!(course.too_long(Duration::from_secs(60)).message.contains("within 60 s: no stripe"));
        course.heard(not_sent(), Duration::ZERO);
        assert!(course.too_long(Duration::from_secs(60)).message.ends_with("connection refused"));
    }

    #[test]
    fn what_cannot_be_journalled_is_refused_or_waits_and_says_why() {
        let invalid = Heard::Told(Told::NotRun(NotRun::Invalid));
        let mut long = Course::new(2 << 20, Duration::ZERO);
        long.requested(1, Duration::ZERO);
        let Next::Fail(error) = long.heard(invalid.clone(), Duration::ZERO) else { panic!("it is repeated") };
        assert!(error.message.contains("--atomic") && error.message.contains("limits.update_journal"), "{error}");
        assert!(!long.is_in_doubt(), "nothing of it was run");
        let mut short = Course::new(4096, Duration::ZERO);
        let Next::Fail(error) = short.heard(invalid, Duration::ZERO) else { panic!("it is repeated") };
        assert!(!error.message.contains("limits.update_journal"), "any journal takes it: {error}");
        let mut full = Course::default();
        full.heard(BUSY, Duration::ZERO);
        assert!(full.too_long(Duration::from_secs(60)).message.ends_with("or its journal or disk is full"));
    }
}
