//! How high the numbers of updates can be. What others say is bounded by that: otherwise one number of a node that errs would be the highest that the
//! stripe has seen, and none would be left above it.

use crate::types::{Message, Part, Record, Report};

/// The most updates of one data block in a term: more than a disk syncs in a hundred years.
const NUMBERS_PER_TERM: u64 = 1 << 40;

/// The highest number that an update can have in a term, since each term gives its own numbers and goes on above those before.
fn number_max(term: u64) -> u64 {
    term.saturating_add(1).saturating_mul(NUMBERS_PER_TERM)
}

impl Message {
    /// Whether it speaks of nothing that cannot be in this term: of no number that no update can have, and of no life that began in a later one.
    pub(crate) fn is_possible(&self, term: u64) -> bool {
        let max = number_max(term);
        let is_stamp_possible =
            self.stamp().is_none_or(|stamp| stamp.watermark <= max && stamp.incarnation.opened <= term.max(stamp.term));
        let are_possible = match self {
            Self::Prepare { record, .. } | Self::Refuse { record, .. } | Self::Commit { record, .. } | Self::Ask { record } => {
                is_record_possible(record, max)
            }
            Self::Locked { part, .. } => is_part_possible(part, max),
            Self::Reported { report, .. } => report.is_possible(term),
            _ => true,
        };
        is_stamp_possible && are_possible
    }
}

impl Report {
    /// Whether it contains only numbers that updates can have in this term.
    pub fn is_possible(&self, term: u64) -> bool {
        let max = number_max(term);
        let mut numbers = self.watermarks.values().chain(self.numbers.values());
        numbers.all(|number| *number <= max) && self.records.values().all(|(record, _)| is_record_possible(record, max))
    }
}

fn is_record_possible(record: &Record, max: u64) -> bool {
    record.parts.iter().all(|part| is_part_possible(part, max))
}

fn is_part_possible(part: &Part, max: u64) -> bool {
    part.number <= max
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Incarnation,
        fixtures::{FIRST, Node, crcs, part, record, sent, stamp},
    };

    #[test]
    fn numbers_that_no_update_can_have_are_not_believed() {
        let (mut node, wrong) = (Node::new(2), NUMBERS_PER_TERM + 1);
        let prepare =
            |number| Message::Prepare { stamp: stamp(FIRST, 0, 0), record: record(0, vec![part(0, number)]), crcs: crcs(1) };
        node.receive(0, Message::Watermark { stamp: stamp(FIRST, 0, wrong) });
        assert_eq!(sent(&node.receive(0, prepare(wrong))), []);
        let later = Incarnation { opened: 1, ..FIRST };
        assert_eq!(sent(&node.receive(0, Message::Query { stamp: stamp(later, 0, 0) })), []);
        assert_eq!(node.block.participant().decided().values().max(), None, "a number of a node that errs counts");
        assert_eq!(sent(&node.receive(0, prepare(NUMBERS_PER_TERM))).len(), 1);
        node.receive(0, Message::Watermark { stamp: stamp(FIRST, 0, NUMBERS_PER_TERM - 1) });
        assert_eq!(node.block.participant().decided().values().max(), Some(&(NUMBERS_PER_TERM - 1)));
    }

    #[test]
    fn each_term_has_numbers_of_its_own() {
        let report = |number| Report { numbers: [(0, number)].into(), ..Report::default() };
        assert!(report(3 * NUMBERS_PER_TERM).is_possible(2) && !report(3 * NUMBERS_PER_TERM + 1).is_possible(2));
        assert!(report(u64::MAX).is_possible(u64::MAX), "none overflows");
    }
}
