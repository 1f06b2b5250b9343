//! The rule that decides an update from what blocks report. A restarted leader and a seal use the same.
//!
//! An update is committed once every participant holds it. So if one that answered does not hold it, nobody can have acknowledged it;
//! and since those that answered refuse earlier lives of the leader, or lower terms, nobody ever will. If all that answered hold it, it may have
//! been acknowledged, and it can be committed: the blocks that did not answer are fenced.

use crate::{
    mutation::{Rule, dropped},
    types::{Claim, Crcs, Outcome, Record, Report},
};
use std::collections::BTreeMap;
use weft_types::BlockId;

/// Decides a record by the reports of those of its participants that count. Reports of other blocks tell their watermarks.
pub fn decide(record: &Record, reports: &BTreeMap<BlockId, Report>) -> Outcome {
    let claims = || reports.values().filter_map(|report| report.records.get(&record.id)).map(|(_, claim)| claim);
    // A known outcome stands.
    if claims().any(|claim| *claim == Claim::Committed)
        || reports.values().any(|report| report.outcomes.get(&record.id) == Some(&Outcome::Committed))
    {
        return Outcome::Committed;
    }
    let refused = |report: &Report| report.outcomes.get(&record.id) == Some(&Outcome::Aborted);
    if !dropped(Rule::RefusedIsMissing) && (claims().any(|claim| *claim == Claim::Refused) || reports.values().any(refused)) {
        return Outcome::Aborted;
    }
    // The watermark passes an aborted update only after every participant has refused it. A participant holds this update, so it was
    // committed, and the participants that do not report it have trimmed it.
    let lead = record.lead();
    let is_below = |report: &Report| report.watermarks.get(&lead.stream).is_some_and(|number| lead.number <= *number);
    if !dropped(Rule::BelowWatermark) && reports.values().any(is_below) {
        return Outcome::Committed;
    }
    let mut deltas = Vec::new();
    for report in record.participants.iter().filter_map(|block| reports.get(block)) {
        match report.records.get(&record.id) {
            Some((_, Claim::Held(crcs))) => deltas.push(crcs),
            Some((_, Claim::Refused)) if dropped(Rule::RefusedIsMissing) => {}
            _ => return Outcome::Aborted,
        }
    }
    if agree(deltas) { Outcome::Committed } else { Outcome::Aborted }
}

/// Whether blocks hold the same deltas. An update whose deltas differ is never acknowledged, and never committed later.
pub(crate) fn agree<'a>(deltas: impl IntoIterator<Item = &'a Crcs>) -> bool {
    let mut seen = Crcs::new();
    deltas.into_iter().flatten().all(|(stream, crc)| *seen.entry(*stream).or_insert(*crc) == *crc) || dropped(Rule::EqualDeltas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{block, crcs, part, record};
    use std::sync::Arc;

    const HELD: fn(u32) -> Option<Claim> = |crc| Some(Claim::Held(crcs(crc)));

    /// Decides a record from what blocks 0, 2 and 3 claim; `watermark` is that of the last of them that answered.
    fn decided(claims: [Option<Option<Claim>>; 3], watermark: u64) -> Outcome {
        let record = record(0, vec![part(0, 5)]);
        let mut reports = BTreeMap::new();
        for (index, claim) in [0, 2, 3].into_iter().zip(claims) {
            let Some(claim) = claim else { continue };
            let records = claim.into_iter().map(|claim| (record.id, (Arc::clone(&record), claim))).collect();
            reports.insert(block(index), Report { records, ..Report::default() });
        }
        if let Some(mut last) = reports.last_entry() {
            last.get_mut().watermarks.insert(0, watermark);
        }
        decide(&record, &reports)
    }

    #[test]
    fn held_everywhere_is_committed_and_missing_anywhere_is_aborted() {
        assert_eq!(decided([Some(HELD(1)), Some(HELD(1)), Some(HELD(1))], 0), Outcome::Committed);
        assert_eq!(decided([Some(HELD(1)), Some(None), Some(HELD(1))], 0), Outcome::Aborted);
        assert_eq!(decided([Some(HELD(1)), Some(HELD(1)), Some(Some(Claim::Refused))], 0), Outcome::Aborted);
        // The absent block is fenced.
        assert_eq!(decided([None, Some(HELD(1)), Some(HELD(1))], 0), Outcome::Committed);
    }

    #[test]
    fn a_known_outcome_stands() {
        assert_eq!(decided([Some(None), Some(HELD(1)), Some(Some(Claim::Committed))], 0), Outcome::Committed);
    }

    #[test]
    fn different_deltas_were_never_acknowledged() {
        assert_eq!(decided([Some(HELD(1)), Some(HELD(1)), Some(HELD(2))], 0), Outcome::Aborted);
    }

    #[test]
    fn a_block_that_has_trimmed_the_record_does_not_miss_it() {
        assert_eq!(decided([Some(HELD(1)), Some(HELD(1)), Some(None)], 5), Outcome::Committed);
        assert_eq!(decided([Some(HELD(1)), Some(HELD(1)), Some(None)], 4), Outcome::Aborted);
    }
}
