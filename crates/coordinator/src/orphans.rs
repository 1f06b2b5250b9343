//! Blocks that lie on nodes' disks and that the metadata does not know: left by an agent that came back after its blocks were
//! forgotten, by a disk that was away, by a restored copy of the metadata.
//!
//! Slowly, one node after another and a page at a time, what a node has is compared with what is known. A block is allocated
//! before its first byte moves, and is garbage until its node has said that it is gone: so whatever was listed before the metadata
//! was asked and is not known then, nobody needs. All the same it is not removed, but moved aside for days, on the node that has it.

use crate::{members::Session, shared::Shared};
use std::{sync::Arc, time::Duration};
use weft_control::{orphans::Turns, walk::Walk};
use weft_proto::{from_status, rpc, v1};
use weft_types::{BlockId, Error, NodeId, Result};

/// How often it is looked whose turn it is.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Blocks that one call lists.
const BLOCKS_PER_PAGE: u32 = 1_000;
/// Between two pages: the metadata and the disks have other work.
const PAGE_PAUSE: Duration = Duration::from_millis(200);

/// Compares for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    if shared.config.orphan_check_interval_ms == 0 {
        return;
    }
    let mut turns = Turns::new(Duration::from_millis(shared.config.orphan_check_interval_ms));
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        for node in shared.members.view().nodes.into_keys() {
            let Some(session) = shared.members.session(node) else { continue };
            let registration = session.link_key.id();
            if !turns.is_due(node, &registration, shared.started.now()) {
                continue;
            }
            let compared = compare(&shared, node, &session).await;
            if let Err(error) = &compared {
                tracing::warn!(node = %session.record.name, %error, "its blocks could not be compared with the metadata");
            }
            turns.compared(node, registration, compared.is_ok(), shared.started.now());
        }
    }
}

/// Compares all that a node has.
async fn compare(shared: &Shared, node: NodeId, session: &Session) -> Result<()> {
    for disk in session.record.disks.iter().filter(|disk| !disk.failed) {
        let mut walk = Walk::new(Vec::new(), Vec::clone);
        while let Some(after) = walk.next() {
            let request = v1::ListBlocksRequest { after, limit: BLOCKS_PER_PAGE, disk: disk.id.to_string() };
            let mut agent = rpc::agent_client(session.channel.clone());
            let page = answer(shared, agent.list_blocks(rpc::with_deadline(request, shared.call_timeout()))).await?;
            let decoded = page.blocks.iter().map(|id| postcard::from_bytes(id)).collect::<Result<Vec<BlockId>, _>>();
            let blocks = decoded.map_err(|error| Error::invalid(format!("a listed block has no name: {error}")))?;
            let orphans = shared.meta.orphans(node, blocks).await.map_err(|error| shared.meta_error(error))?;
            if !orphans.is_empty() {
                set_aside(shared, session, &orphans).await?;
            }
            walk.came(&page.blocks, page.more);
            if walk.next().is_some() {
                tokio::time::sleep(PAGE_PAUSE).await;
            }
        }
    }
    Ok(())
}

async fn set_aside(shared: &Shared, session: &Session, orphans: &[BlockId]) -> Result<()> {
    let blocks = orphans.iter().map(postcard::to_allocvec).collect::<Result<Vec<_>, _>>();
    let blocks = blocks.map_err(|error| Error::fatal(format!("a block's name cannot be encoded: {error}")))?;
    let cluster = shared.meta.cluster().await.map_err(|error| shared.meta_error(error))?;
    let request = v1::QuarantineRequest {
        epoch: shared.epoch.0,
        incarnation: cluster.incarnation,
        high_water: cluster.stripes_high_water,
        blocks,
    };
    let mut agent = rpc::agent_client(session.channel.clone());
    let reply = answer(shared, agent.quarantine(rpc::with_deadline(request, shared.call_timeout()))).await?;
    let first = orphans.first().map(ToString::to_string).unwrap_or_default();
    tracing::warn!(
        node = %session.record.name, unknown = orphans.len(), %first, quarantined = reply.moved,
        "blocks that the metadata does not know are on a node; they are kept in its quarantine for some days"
    );
    if reply.kept.is_empty() { Ok(()) } else { Err(Error::retry(reply.kept)) }
}

async fn answer<T>(shared: &Shared, call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>) -> Result<T> {
    match tokio::time::timeout(shared.call_timeout(), call).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) => Err(from_status(&status)),
        Err(_) => Err(Error::retry("no answer in time")),
    }
}
