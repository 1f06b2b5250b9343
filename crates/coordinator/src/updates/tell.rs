//! The descriptions of open stripes for agents and clients.

use crate::shared::Shared;
use weft_control::updates::{Inspected, OpenBlock, Recorded, SettledBlock, is_behind};
use weft_meta::{TermRecord, TermState};
use weft_proto::{encode_sealed, rpc, v1};
use weft_types::{BlockId, Error, Home, NodeId, Result, Seq, StripeRecord};
use weft_update::Sealed;

/// The most blocks of one question, and the most bytes of records in its answer.
const BLOCKS_MAX: usize = 4096;
const ANSWER_BYTES_MAX: usize = 12 << 20;
/// The highest term that is believed: more than a stripe gets in a hundred years. Otherwise one number of a node that errs would be the highest that the
/// stripe has seen, and none would be left above it.
const TERM_MAX: u64 = 1 << 40;

/// The home of a stripe's block of this generation.
pub(super) fn node_of(stripe: &StripeRecord, block: &BlockId) -> Option<NodeId> {
    let placed = stripe.find(block.index, block.copy);
    placed.filter(|placed| placed.generation == block.generation).map(|placed| placed.home.node)
}

/// The disks of these blocks of a stripe.
pub(super) fn homes_of(stripe: &StripeRecord, blocks: &[BlockId]) -> Vec<Home> {
    blocks.iter().filter_map(|block| Some(stripe.find(block.index, block.copy)?.home)).collect()
}

pub(super) fn encode_block(block: &BlockId) -> Result<Vec<u8>> {
    postcard::to_allocvec(block).map_err(|error| Error::fatal(format!("cannot encode a block's id: {error}")))
}

/// An open stripe with the homes of its blocks.
pub(super) fn describe(shared: &Shared, stripe: &StripeRecord, sealed: &Sealed) -> Result<v1::OpenStripe> {
    let mut members = Vec::with_capacity(sealed.members.len());
    for block in &sealed.members {
        let status = node_of(stripe, block).and_then(|node| shared.members.status(node));
        let record = status.ok_or_else(|| Error::retry("its home is not known").block(*block))?.record;
        let (node, name, address) = (record.id.0, record.name.to_string(), record.data_address);
        members.push(v1::OpenMember { block: encode_block(block)?, node, name, address });
    }
    Ok(v1::OpenStripe { stripe: stripe.id.0, sealed: encode_sealed(sealed)?, members })
}

/// The stripes of these blocks that are open, with what the last complete seal recorded.
///
/// `are_open`: the blocks are open at their agent. If these metadata do not know that, it is looked into.
pub(crate) async fn find_open(shared: &Shared, blocks: &[Vec<u8>], are_open: bool) -> Result<Vec<v1::OpenStripe>> {
    if blocks.len() > BLOCKS_MAX {
        return Err(Error::invalid(format!("a question may name {BLOCKS_MAX} blocks, not {}", blocks.len())));
    }
    let (mut found, mut bytes) = (Vec::new(), 0);
    for block in blocks {
        let block: BlockId = postcard::from_bytes(block).map_err(|_| Error::invalid("the id of a block is damaged"))?;
        let record = shared.meta.stripe_term(block.stripe).await.map_err(|error| shared.meta_error(error))?;
        let is_known = |record: &TermRecord| match record.state {
            TermState::Opening | TermState::Open => true,
            TermState::Settled => record.term.unaware.contains(&block),
            TermState::Closed => false,
        };
        if are_open && !record.as_ref().is_some_and(is_known) {
            shared.updates.doubt(block.stripe, shared.started.now());
        }
        let Some(record) = record.filter(|record| record.state.is_open()) else { continue };
        let stripes = shared.meta.find_stripes(vec![block.stripe]).await.map_err(|error| shared.meta_error(error))?;
        let Some(stripe) = stripes.first() else { continue };
        let open = describe(shared, stripe, &record.term.sealed)?;
        if found.iter().any(|known: &v1::OpenStripe| known.stripe == open.stripe) {
            continue;
        }
        bytes += open.sealed.len();
        if bytes > ANSWER_BYTES_MAX {
            return Err(Error::invalid("the answer would be too large: ask for fewer blocks at a time"));
        }
        found.push(open);
    }
    Ok(found)
}

/// Whether a block has a term that these metadata do not know, so that it was not found bad, but newer. False if its agent does not tell now.
pub(crate) async fn is_newer(shared: &Shared, stripe: &StripeRecord, block: BlockId) -> Result<bool> {
    let Some(session) = node_of(stripe, &block).and_then(|node| shared.members.session(node)) else { return Ok(false) };
    let request = v1::InspectBlockRequest { epoch: shared.epoch.0, block: encode_block(&block)?, ready: false };
    let (mut agent, timeout) = (rpc::agent_client(session.channel), shared.call_timeout());
    let answer = tokio::time::timeout(timeout, agent.inspect_block(rpc::with_deadline(request, timeout))).await;
    let Some(told) = answer.ok().and_then(Result::ok).and_then(|reply| inspected(reply.into_inner())) else { return Ok(false) };
    let record = shared.meta.stripe_term(stripe.id).await.map_err(|error| shared.meta_error(error))?;
    Ok(is_behind(stripe, recorded(record.as_ref()), &told))
}

pub(super) fn recorded(record: Option<&TermRecord>) -> Recorded<'_> {
    Recorded { term: record.map(|record| &record.term), is_open: record.is_some_and(|record| record.state.is_open()) }
}

/// What an agent says of a block; `None` if it says nothing, or what cannot be.
pub(super) fn inspected(reply: v1::InspectBlockReply) -> Option<Inspected> {
    let of_open = reply.open.iter().flat_map(|open| [open.term, open.known]);
    let of_content = reply.content.iter().filter_map(|content| Some(content.seq.as_ref()?.term));
    if of_open.chain(of_content).any(|term| term > TERM_MAX) {
        return None;
    }
    let content = reply.content.map(|content| {
        let seq = content.seq.unwrap_or_default();
        SettledBlock { seq: Seq::new(seq.term, seq.counts), checksums: content.checksums }
    });
    match reply.open {
        None => content.map(Inspected::Closed),
        Some(v1::OpenTerm { term, known, members, fenced }) => {
            let members = members.iter().map(|member| postcard::from_bytes(member)).collect::<Result<_, _>>().ok()?;
            Some(Inspected::Open(OpenBlock { term, known, members, is_fenced: fenced, settled: content }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_that_no_stripe_can_have_are_not_believed() {
        let open = |term, known| {
            let open = v1::OpenTerm { term, known, ..v1::OpenTerm::default() };
            inspected(v1::InspectBlockReply { open: Some(open), ..v1::InspectBlockReply::default() })
        };
        let closed = |term| {
            let seq = Some(v1::Seq { term, ..v1::Seq::default() });
            let content = v1::SettleBlockReply { seq, ..v1::SettleBlockReply::default() };
            inspected(v1::InspectBlockReply { content: Some(content), ..v1::InspectBlockReply::default() })
        };
        assert!(open(TERM_MAX, TERM_MAX).is_some() && closed(TERM_MAX).is_some());
        assert!(open(u64::MAX, 1).is_none() && open(1, TERM_MAX + 1).is_none() && closed(u64::MAX).is_none());
    }
}
