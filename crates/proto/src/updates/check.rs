//! What a message of the update protocol must look like before a state machine may see it.

use weft_update::{Message, Part, Record};

/// The most data blocks of a stripe, and so the most parts of an update.
const PARTS_MAX: usize = 255;

/// Numbers are counted up from 1, so none of a stripe that exists is near this.
const NUMBER_MAX: u64 = 1 << 62;

/// Whether a message has what the protocol relies on: records with parts, in the order of their streams, and numbers that can be counted up.
pub(crate) fn is_sound(message: &Message) -> bool {
    if message.stamp().is_some_and(|stamp| stamp.watermark > NUMBER_MAX) {
        return false;
    }
    match message {
        Message::Prepare { record, .. }
        | Message::Refuse { record, .. }
        | Message::Commit { record, .. }
        | Message::Ask { record } => is_record(record),
        Message::Reported { report, .. } | Message::SealReported { report, .. } => {
            let vectors = report.watermarks.values().chain(report.numbers.values());
            vectors.copied().all(|number| number <= NUMBER_MAX)
                && report.records.iter().all(|(id, (record, _))| record.id == *id && is_record(record))
        }
        Message::Locked { part, .. } => is_part(part),
        _ => true,
    }
}

fn is_part(part: &Part) -> bool {
    part.span.start < part.span.end && (1..=NUMBER_MAX).contains(&part.number)
}

fn is_record(record: &Record) -> bool {
    let parts = &record.parts;
    (1..=PARTS_MAX).contains(&parts.len())
        && parts.windows(2).all(|pair| pair[0].stream < pair[1].stream)
        && parts.iter().all(is_part)
}
