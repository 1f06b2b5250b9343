//! What a packet must look like before anything may act on it.

use super::{Found, LoadHead, LoadId, Packet};
use weft_types::BlockId;
use weft_update::{Message, Part, Record};

/// The most data blocks of a stripe, and so the most parts of an update.
const PARTS_MAX: usize = 255;

/// Numbers are counted up from 1, so none of a stripe that exists is near this.
const NUMBER_MAX: u64 = 1 << 62;

/// The most updates of a version that a reader names: several times as many as a block has records.
const VERSION_NUMBERS_MAX: usize = 1024;

/// What is wrong with a packet, beside the bytes of its parts.
pub(crate) fn fault_of(packet: &Packet, has_parts: bool) -> Option<&'static str> {
    let (is_right, fault) = match packet {
        Packet::Message { message, .. } => (is_sound(message), "a record has invalid parts"),
        Packet::Announced { load, from, to, message } => {
            let is_prepare = matches!(message, Message::Prepare { .. }) && is_sound(message);
            let is_its = load.from == *from && from.stripe == to.stripe;
            (is_prepare && is_its && !has_parts, "what is announced is no message with deltas")
        }
        Packet::Routed { block, route, .. } => (route.check(*block).is_ok(), "its route is no route from the block"),
        Packet::Slice { load, to, number, head } => {
            let has_head = head.as_ref().map_or(*number > 0, |head| *number == 0 && is_head(load, *to, head));
            (has_head && has_parts, "a slice has no parts, or an invalid head")
        }
        Packet::Arrived { load, at } | Packet::Stuck { load, at } => {
            (load.from.stripe == at.stripe && !has_parts, "it speaks of two stripes, or has parts")
        }
        Packet::Read { read, .. } => {
            let is_known = read.since.as_ref().is_none_or(|since| since.numbers.len() <= VERSION_NUMBERS_MAX);
            (is_known && !has_parts, "a read has parts, or names too many updates")
        }
        Packet::Content { found, .. } => {
            (matches!(found, Found::Served { .. }) == has_parts, "a read's answer and its parts do not fit")
        }
        Packet::Request { .. } | Packet::Answer { .. } | Packet::TooLong { .. } => (true, ""),
    };
    (!is_right).then_some(fault)
}

/// Whether the head of a load has a route from its origin over this block, and parts that may travel.
fn is_head(load: &LoadId, to: BlockId, head: &LoadHead) -> bool {
    head.check(load.from).is_ok() && head.route.reached().any(|block| block == to)
}

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
