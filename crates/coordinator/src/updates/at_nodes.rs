//! Reads of stripes that stay open for updates: each data block is read at its own node, which knows its last version. Nothing is recorded.

use super::{
    open::open_record,
    tell::{encode_block, node_of},
};
use crate::shared::Shared;
use std::collections::BTreeSet;
use weft_control::planning::Range;
use weft_meta::TermRecord;
use weft_proto::{
    OPEN_READS_SINCE, ReadRights,
    updates::{OPEN_READS_BYTES_MAX, OPEN_READS_MAX, pieces_of},
    v1,
};
use weft_types::{BlockId, Result, StripeRecord};

/// How long a client may read with its tokens.
const LASTS_MS: u64 = 60_000;

/// What a client needs to read ranges of a stripe's data blocks at their nodes. `None`: the stripe is not open, or must be settled first, because a
/// data block is lost, a node is down or of an earlier version, or the read is long.
pub(crate) async fn at_nodes(shared: &Shared, stripe: &StripeRecord, ranges: &[Range]) -> Result<Option<v1::ReadAtNodes>> {
    if !shared.updates.is_open(stripe.id) || !is_short(ranges) {
        return Ok(None);
    }
    let Some(TermRecord { term, .. }) = open_record(shared, stripe.id).await? else { return Ok(None) };
    let sealed = &term.sealed;
    // The nodes of the others confirm the term.
    let is_up = |block: &BlockId| node_of(stripe, block).is_some_and(|node| shared.members.session(node).is_some());
    if !sealed.members.iter().all(is_up) && shared.members.are_coming_back() {
        // After the coordinator's start: if it settled the stripe now, it would leave them out.
        shared.until_nodes_are_back().await;
    }
    if !sealed.members.iter().all(is_up) {
        return Ok(None);
    }
    let ends_at_ms = shared.updates_now_ms() + LASTS_MS;
    let mut blocks = Vec::new();
    for index in ranges.iter().map(|range| range.index).collect::<BTreeSet<u8>>() {
        let member = sealed.members.iter().find(|block| block.index == index && block.copy == 0);
        let session = member.and_then(|block| node_of(stripe, block)).and_then(|node| shared.members.session(node));
        let (Some(block), Some(session)) = (member, session.filter(|session| session.protocol >= OPEN_READS_SINCE)) else {
            return Ok(None);
        };
        let rights = ReadRights { block: *block, term: sealed.term, ends_at_ms };
        let token = session.link_key.issue_read(&rights).0.to_vec();
        let (name, address) = (session.record.name.to_string(), session.record.data_address.clone());
        blocks.push(v1::ReadAtNode { block: encode_block(block)?, name, address, token });
    }
    Ok(Some(v1::ReadAtNodes { term: sealed.term, ends_at_ms, blocks }))
}

/// All bytes of such a read are collected before any is used.
fn is_short(ranges: &[Range]) -> bool {
    let bytes: u64 = ranges.iter().map(|range| range.bytes.len()).sum();
    bytes <= OPEN_READS_BYTES_MAX && ranges.iter().map(|range| pieces_of(range.bytes).count()).sum::<usize>() <= OPEN_READS_MAX
}
