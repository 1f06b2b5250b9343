//! What a message of the update protocol must look like before a state machine may see it.

use weft_update::{Message, Record};

/// The most data blocks of a stripe, and so the most parts of an update.
const PARTS_MAX: usize = 255;

/// Whether all records of a message have what the protocol relies on: parts, in the order of their streams.
pub(crate) fn is_sound(message: &Message) -> bool {
    match message {
        Message::Prepare { record, .. }
        | Message::Refuse { record, .. }
        | Message::Commit { record, .. }
        | Message::Ask { record } => is_record(record),
        Message::Reported { report, .. } | Message::SealReported { report, .. } => {
            report.records.iter().all(|(id, (record, _))| record.id == *id && is_record(record))
        }
        _ => true,
    }
}

fn is_record(record: &Record) -> bool {
    let parts = &record.parts;
    (1..=PARTS_MAX).contains(&parts.len())
        && parts.windows(2).all(|pair| pair[0].stream < pair[1].stream)
        && parts.iter().all(|part| part.span.start < part.span.end)
}
