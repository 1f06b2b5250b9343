//! Which blocks a plan's receivers have stored, according to their own receipts, and which receivers failed.

use crate::{
    run::{End, NodeReport, Report, Stored},
    view::View,
};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{BlockId, BlockState, Error, NodeId, Party, PlacedBlock, Result, StripeRecord};

/// The nodes whose blocks must go to other nodes: nodes that are gone, are to blame, failed by themselves, or are
/// blamed by the writer. Nodes that only waited for another, or were cancelled because another delayed the plan, are
/// not among them.
pub(super) fn who_failed(report: &Report, complaints: &BTreeSet<NodeId>, long_ms: u32) -> BTreeSet<NodeId> {
    let failed = |(id, node): (&NodeId, &NodeReport)| {
        let own = Party::Node(*id);
        let waited = |is: &dyn Fn(Party) -> bool| node.waiting.iter().any(|(party, ms)| *ms >= long_ms && is(*party));
        let failed = match &node.end {
            Some(End::Broken(_) | End::GivenUp) | None => true,
            Some(End::Failed(_)) if report.held_up.is_none() => {
                let is_own = || complaints.contains(id) || node.first_error().is_some_and(|error| error.party == Some(own));
                waited(&|party| party == own) || is_own() && !waited(&|party| party != own && party.node().is_some())
            }
            Some(End::Failed(_) | End::Done) => false,
        };
        failed.then_some(*id)
    };
    report.nodes.iter().filter_map(failed).chain(report.blame.map(|blame| blame.node)).collect()
}

/// Whether the writer's checksums of a block are known.
pub(super) fn is_known(checksums: &[Option<Vec<u32>>], index: u8) -> bool {
    checksums.get(usize::from(index)).is_some_and(Option::is_some)
}

/// The home of a block of a stripe, and its receipt, if there is one.
pub(super) fn stored_at<'a>(stripe: &StripeRecord, index: u8, report: &'a Report) -> Option<(NodeId, &'a Stored)> {
    let placed = stripe.blocks.get(&index)?;
    Some((placed.home.node, report.nodes.get(&placed.home.node)?.stored.get(&stripe.id_of(index, placed))?))
}

/// Blocks that a node has stored with other checksums than the writer computed, and the node.
pub(super) fn stored_wrong(stripe: &StripeRecord, checksums: &[Option<Vec<u32>>], report: &Report) -> Vec<(BlockId, NodeId)> {
    let wrong = |(index, placed): (u8, &PlacedBlock)| {
        let (block, node) = (stripe.id_of(index, placed), placed.home.node);
        let stored = report.stored(block, node)?;
        let made = checksums.get(usize::from(index))?.as_ref()?;
        (stored.checksums != *made).then_some((block, node))
    };
    stripe.all().filter_map(wrong).collect()
}

/// `None` if one of these copies is durable with the checksums that the client sent; otherwise why not.
pub(super) fn received(
    stripe: &StripeRecord,
    blocks: &[u8],
    sent: &[Option<Vec<u32>>],
    report: &Report,
    view: &View,
) -> BTreeMap<u8, Option<String>> {
    let placed = |index: &u8| Some((*index, stripe.blocks.get(index)?));
    let why = |(index, placed)| (index, why_not_received(stripe, (index, placed), sent, report, view));
    blocks.iter().filter_map(placed).map(why).collect()
}

/// Why a copy of a block is not durable with the checksums that the client sent; `None` if it is.
pub(super) fn why_not_received(
    stripe: &StripeRecord,
    (index, placed): (u8, &PlacedBlock),
    sent: &[Option<Vec<u32>>],
    report: &Report,
    view: &View,
) -> Option<String> {
    let told = report.nodes.get(&placed.home.node);
    let node = || view.name(placed.home.node);
    match told.and_then(|node| node.stored.get(&stripe.id_of(index, placed))) {
        None => {
            let error = told.and_then(|node| node.first_error());
            let why = error.map_or_else(|| "did not store it in time".to_owned(), |error| error.message.clone());
            Some(format!("block {index}: {} {why}", node()))
        }
        Some(stored) if stored.len != stripe.layout.block_len(index.into()) => {
            Some(format!("block {index}: {} stored only {} bytes", node(), stored.len))
        }
        Some(stored) => match sent.get(usize::from(index)).and_then(Option::as_ref) {
            Some(checksums) if *checksums == stored.checksums => None,
            Some(_) => Some(format!("block {index}: {} stored other bytes than were sent", node())),
            None => Some(format!("block {index}: the client did not finish sending it")),
        },
    }
}

/// The checksums of all blocks.
pub(super) fn whole_checksums(stripe: &StripeRecord, checksums: Vec<Option<Vec<u32>>>) -> Result<Vec<Vec<u32>>> {
    let count = stripe.layout.blocks().filter(|index| is_known(&checksums, *index)).count();
    let checksums: Option<Vec<Vec<u32>>> = checksums.into_iter().collect();
    checksums.ok_or_else(|| {
        let n = stripe.layout.blocks().count();
        Error::unavailable(format!("the client sent the checksums of only {count} of {n} blocks of stripe {}", stripe.number))
    })
}

/// Records which blocks and copies a plan has stored, according to the writer's checksums. If the first copy of a block
/// was not stored and another was, the other takes its place.
pub(super) fn note_stored(stripe: &mut StripeRecord, checksums: &[Option<Vec<u32>>], report: &Report) {
    let is_stored = |stripe: &StripeRecord, index: u8, placed: &PlacedBlock| {
        let node = report.nodes.get(&placed.home.node);
        let stored = node.and_then(|node| node.stored.get(&stripe.id_of(index, placed)));
        let sent = checksums.get(usize::from(index)).and_then(Option::as_ref);
        stored.is_some_and(|stored| stored.len == stripe.layout.block_len(index.into()) && sent == Some(&stored.checksums))
    };
    let stored: Vec<(u8, u8)> = stripe
        .all()
        .filter(|(index, placed)| is_stored(stripe, *index, placed))
        .map(|(index, placed)| (index, placed.copy))
        .collect();
    for (index, copy) in stored {
        if let Some(placed) = stripe.find_mut(index, copy) {
            placed.state = BlockState::Ok;
        }
    }
    stripe.put_first(|_, _, placed| placed.state != BlockState::Ok);
}

#[cfg(test)]
mod tests;
