//! Asks nodes about their blocks: whether they have them, with the checksums that were recorded, and what they contain.

use crate::{members::Session, shared::Shared};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_control::findings::{Seen, Verdict, of_content};
use weft_proto::{from_status, rpc, v1};
use weft_types::{BlockId, Error, Home, NodeId, Result, Span, StripeId, StripeRecord};

/// MiB that one call reads at most.
const UNITS_PER_CALL: u32 = 8;
/// After this time, a call begins to read no further MiB.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// The deadline of such a call: the first MiB may have to wait for other work of the disk, and for its limits.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Asks a node for blocks on one of its disks.
pub(crate) async fn asked(shared: &Shared, node: NodeId, disk: &str, blocks: &[BlockId]) -> Result<Vec<(BlockId, Verdict)>> {
    let (told, stripes) = told(shared, node, disk, blocks, None).await?;
    let verdict =
        |(block, told): (&BlockId, v1::CheckedBlock)| (*block, seen(told).verdict(stripes.get(&block.stripe), node, *block));
    Ok(blocks.iter().zip(told).map(verdict).collect())
}

/// Reads a block at its node, and compares it with the checksums that were recorded.
pub(crate) async fn read(shared: &Shared, home: Home, disk: &str, block: BlockId, units: u64) -> Result<Verdict> {
    let mut unit = 0;
    while unit < units {
        let first_unit = u32::try_from(unit).map_err(|_| Error::invalid("a block is too long"))?;
        let within_ms = u32::try_from(READ_WITHIN.as_millis()).unwrap_or(u32::MAX);
        let read = v1::ReadContent { first_unit, units_max: UNITS_PER_CALL, within_ms };
        let (told, stripes) = told(shared, home.node, disk, &[block], Some(read)).await?;
        let mut told = told.into_iter().next().unwrap_or_default();
        let read = std::mem::take(&mut told.read);
        let stripe = stripes.get(&block.stripe);
        let verdict = match (seen(told).verdict(stripe, home.node, block), stripe) {
            (Verdict::Right, Some(_)) if read.is_empty() => {
                Verdict::Unknown("its agent is of a version that does not read blocks to check them: upgrade it".to_owned())
            }
            (Verdict::Right, Some(stripe)) => of_content(stripe, block, first_unit as usize, &read),
            (verdict, _) => verdict,
        };
        if verdict != Verdict::Right {
            return Ok(verdict);
        }
        unit += read.len() as u64;
    }
    Ok(Verdict::Right)
}

/// A node's answers about blocks, and their stripes, which are looked up behind the answer: what was replaced before is not judged, nor what
/// was updated in place meanwhile.
async fn told(
    shared: &Shared,
    node: NodeId,
    disk: &str,
    blocks: &[BlockId],
    read: Option<v1::ReadContent>,
) -> Result<(Vec<v1::CheckedBlock>, BTreeMap<StripeId, StripeRecord>)> {
    let Session { channel, .. } = shared.members.session(node).ok_or_else(|| Error::retry("the node is down again"))?;
    let before = stripes_of(shared, blocks).await?;
    let encoded = blocks.iter().map(postcard::to_allocvec).collect::<Result<Vec<_>, _>>();
    let encoded = encoded.map_err(|error| Error::fatal(format!("cannot encode a block's id: {error}")))?;
    let timeout = if read.is_some() { READ_TIMEOUT } else { shared.call_timeout() };
    let request = v1::CheckBlocksRequest { blocks: encoded, disk: disk.to_owned(), read };
    let mut agent = rpc::agent_client(channel);
    let answer = tokio::time::timeout(timeout, agent.check_blocks(rpc::with_deadline(request, timeout))).await;
    let mut reply = match answer {
        Ok(Ok(reply)) => reply.into_inner(),
        Ok(Err(status)) => return Err(from_status(&status)),
        Err(_) => return Err(Error::retry("no answer in time")),
    };
    if reply.blocks.len() != blocks.len() {
        return Err(Error::invalid(format!("it answers for {} of {} blocks", reply.blocks.len(), blocks.len())));
    }
    let stripes = stripes_of(shared, blocks).await?;
    for (block, told) in blocks.iter().zip(&mut reply.blocks) {
        if let (Some(before), Some(now)) = (before.get(&block.stripe), stripes.get(&block.stripe))
            && before.seq != now.seq
        {
            *told =
                v1::CheckedBlock { why: "its stripe was updated in place meanwhile".to_owned(), ..v1::CheckedBlock::default() };
        }
    }
    Ok((reply.blocks, stripes))
}

/// The stripes of blocks that still exist.
pub(crate) async fn stripes_of(shared: &Shared, blocks: &[BlockId]) -> Result<BTreeMap<StripeId, StripeRecord>> {
    let ids: BTreeSet<StripeId> = blocks.iter().map(|block| block.stripe).collect();
    let stripes = shared.meta.find_stripes(ids.into_iter().collect()).await.map_err(|error| shared.meta_error(error))?;
    Ok(stripes.into_iter().map(|stripe| (stripe.id, stripe)).collect())
}

fn seen(told: v1::CheckedBlock) -> Seen {
    match told.state {
        1 => Seen::There(told.checksums),
        2 => Seen::Absent(told.why),
        3 if !told.corrupt.is_empty() => {
            let spans = told.corrupt.iter().filter(|it| it.start < it.end).map(|it| Span::new(it.start, it.end)).collect();
            Seen::DamagedIn(spans, told.why)
        }
        3 => Seen::Damaged(told.why),
        _ => Seen::Unknown(told.why),
    }
}
