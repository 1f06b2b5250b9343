//! How a scrub is shown.

use crate::shared::Shared;
use weft_control::scrub::Outcome;
use weft_proto::v1;
use weft_types::{SCRUB_WRONG_MAX, ScrubPass, ScrubRecord, ScrubTally, WrongBlock};

/// Says that blocks of a stripe contradict each other: no block is to blame, so nothing else says it. Wrong blocks were logged when they were
/// recorded.
pub(crate) fn log(shared: &Shared, outcome: &Outcome) {
    for wrong in outcome.wrong.iter().filter(|wrong| wrong.block.is_none()) {
        let WrongBlock { object, stripe, why, .. } = wrong;
        if let Some(left_out) = shared.failures.admit("inconsistent stripes", object) {
            tracing::error!(%object, stripe, why, left_out, "found an inconsistent stripe");
        }
    }
}

/// What a scrub has checked and found.
pub(crate) fn of_record(shared: &Shared, record: &ScrubRecord) -> v1::ScrubReport {
    report(shared, tally(&record.tally, record.not_checked()), &record.wrong)
}

/// How far the scrub in the background is.
pub(crate) fn status(shared: &Shared, stripes: u64) -> v1::ScrubStatus {
    let (record, period_ms) = (shared.scrub.progress().record().clone(), shared.config.scrub_period_ms);
    let last = record.last.clone().unwrap_or_default();
    let is_late = period_ms > 0 && record.began_ms > 0 && shared.now_ms() > record.began_ms.saturating_add(period_ms);
    v1::ScrubStatus {
        period_ms,
        began_ms: record.began_ms,
        report: (record.began_ms > 0).then(|| of_record(shared, &record)),
        stripes,
        last_began_ms: last.began_ms,
        last_ended_ms: last.ended_ms,
        last_report: (last.ended_ms > 0).then(|| of_pass(shared, &last)),
        late: is_late,
    }
}

fn of_pass(shared: &Shared, pass: &ScrubPass) -> v1::ScrubReport {
    report(shared, tally(&pass.tally, pass.tally.skipped_stripes), &pass.wrong)
}

fn report(shared: &Shared, tally: v1::ScrubTally, wrong: &[WrongBlock]) -> v1::ScrubReport {
    let view = shared.members.view();
    let wrong = wrong.iter().take(SCRUB_WRONG_MAX).map(|it| {
        let (block, node) = it.block.unzip();
        v1::WrongBlock {
            object: it.object.clone(),
            stripe: it.stripe,
            index: block.map(|block| block.index.into()),
            copy: block.map_or(0, |block| block.copy.into()),
            node: node.map_or(0, |node| node.0),
            name: node.map(|node| view.name(node)).unwrap_or_default(),
            why: it.why.clone(),
        }
    });
    v1::ScrubReport { tally: Some(tally), wrong: wrong.collect() }
}

fn tally(it: &ScrubTally, not_checked_stripes: u64) -> v1::ScrubTally {
    v1::ScrubTally {
        stripes: it.stripes,
        blocks: it.blocks,
        bytes: it.bytes,
        wrong_blocks: it.wrong_blocks,
        inconsistent_stripes: it.inconsistent_stripes,
        lacking_blocks: it.lacking_blocks,
        away_blocks: it.away_blocks,
        not_checked_stripes,
    }
}
