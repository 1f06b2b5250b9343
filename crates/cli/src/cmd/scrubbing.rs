//! How far the check of all data in the background is, for `weft status`.

use super::scrub::Scrubbed;
use serde::Serialize;
use weft_cli::utc::utc;
use weft_client::api;

/// The check in the background at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Scrubbing {
    /// The time in which all is checked; null: only on request.
    period_ms: Option<u64>,
    /// When the pass that runs began, milliseconds since 1970; null: none runs.
    began_ms: Option<u64>,
    /// What this pass has checked and found.
    now: Option<Scrubbed>,
    /// The last whole pass.
    last: Option<Last>,
    /// Whether the pass takes longer than the period.
    late: bool,
    #[serde(skip)]
    stripes: u64,
}

#[derive(Debug, Serialize)]
struct Last {
    began_ms: u64,
    ended_ms: u64,
    #[serde(flatten)]
    found: Scrubbed,
}

impl From<api::ScrubStatus> for Scrubbing {
    fn from(it: api::ScrubStatus) -> Self {
        let (began_ms, ended_ms) = (it.last_began_ms, it.last_ended_ms);
        Self {
            period_ms: Some(it.period_ms).filter(|period| *period > 0),
            began_ms: Some(it.began_ms).filter(|began| *began > 0),
            now: it.report.map(|report| Scrubbed::new(report, &[])),
            last: it.last_report.map(|report| Last { began_ms, ended_ms, found: Scrubbed::new(report, &[]) }),
            late: it.late,
            stripes: it.stripes,
        }
    }
}

impl Scrubbing {
    /// A line.
    pub(super) fn text(&self) -> String {
        let mut parts = Vec::new();
        match (self.period_ms, self.began_ms, &self.now) {
            (None, ..) => parts.push("only by `weft scrub`".to_owned()),
            (_, Some(began_ms), Some(now)) => {
                let (stripes, late) = (now.stripes(), if self.late { " (late)" } else { "" });
                let all = self.stripes.max(stripes);
                parts.push(format!("{stripes} of {all} stripes checked since {}{late}, {}", utc(began_ms), now.found()));
            }
            _ => {}
        }
        match &self.last {
            Some(last) => parts.push(format!("the last pass ended {}, {}", utc(last.ended_ms), last.found.found())),
            None if parts.is_empty() => parts.push("nothing checked yet".to_owned()),
            None => {}
        }
        format!("scrub: {}\n", parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_the_pass_is_and_what_the_last_one_found() {
        let report = |stripes, wrong_blocks| {
            let tally = api::ScrubTally { stripes, wrong_blocks, ..api::ScrubTally::default() };
            Some(api::ScrubReport { tally: Some(tally), wrong: Vec::new() })
        };
        let text = |it: api::ScrubStatus| Scrubbing::from(it).text();
        let none = api::ScrubStatus { period_ms: 1000, stripes: 9, ..api::ScrubStatus::default() };
        assert_eq!(text(none.clone()), "scrub: nothing checked yet\n");
        assert_eq!(text(api::ScrubStatus { period_ms: 0, ..none.clone() }), "scrub: only by `weft scrub`\n");
        let first = api::ScrubStatus { began_ms: 951_782_400_000, report: report(3, 0), ..none };
        assert_eq!(text(first.clone()), "scrub: 3 of 9 stripes checked since 2000-02-29T00:00:00Z, nothing wrong\n");
        let last = api::ScrubStatus { last_ended_ms: 951_782_400_000, last_report: report(8, 2), late: true, ..first };
        assert_eq!(
            text(last),
            "scrub: 3 of 9 stripes checked since 2000-02-29T00:00:00Z (late), nothing wrong; the last pass ended 2000-02-29T00:00:00Z, \
             2 wrong blocks\n"
        );
    }
}
