//! Blocks on nodes' disks that the metadata does not know: left by an agent that returned after its blocks were
//! forgotten, by a disk that was away, or by a restored copy of the metadata.
//!
//! The blocks of one node after another are compared with the metadata, slowly and a page at a time. A block is
//! allocated before its first byte moves, and is garbage until its node has reported its removal. So a block that was
//! listed before the metadata was queried, and is unknown then, is not needed. It is still not removed at once, but
//! kept in its node's quarantine for days.

use crate::{members::Session, shared::Shared};
use std::{sync::Arc, time::Duration};
use weft_control::{orphans::Turns, walk::Walk};
use weft_proto::{rpc, v1};
use weft_types::{BlockId, Error, NodeId, Result};

/// How often due nodes are looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Blocks that one call lists.
const BLOCKS_PER_PAGE: u32 = 1_000;
/// The pause between two pages, which leaves time for other work of the metadata and the disks.
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
                tracing::warn!(node = %session.record.name, %error, "cannot compare a node's blocks with the metadata");
            }
            turns.compared(node, registration, compared.is_ok(), shared.started.now());
        }
    }
}

/// Compares all blocks of a node.
async fn compare(shared: &Shared, node: NodeId, session: &Session) -> Result<()> {
    for disk in session.record.disks.iter().filter(|disk| !disk.failed) {
        let mut walk = Walk::new(Vec::new(), Vec::clone);
        while let Some(after) = walk.next() {
            let request = v1::ListBlocksRequest { after, limit: BLOCKS_PER_PAGE, disk: disk.id.to_string() };
            let mut agent = rpc::agent_client(session.channel.clone());
            let page = shared.answer(agent.list_blocks(rpc::with_deadline(request, shared.call_timeout()))).await?;
            let decoded = page.blocks.iter().map(|id| postcard::from_bytes(id)).collect::<Result<Vec<BlockId>, _>>();
            let blocks = decoded.map_err(|error| Error::invalid(format!("cannot decode a listed block's id: {error}")))?;
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
    let blocks = blocks.map_err(|error| Error::fatal(format!("cannot encode a block's id: {error}")))?;
    let cluster = shared.meta.cluster().await.map_err(|error| shared.meta_error(error))?;
    let request = v1::QuarantineRequest {
        epoch: shared.epoch.0,
        incarnation: cluster.incarnation,
        high_water: cluster.stripes_high_water,
        blocks,
    };
    let mut agent = rpc::agent_client(session.channel.clone());
    let reply = shared.answer(agent.quarantine(rpc::with_deadline(request, shared.call_timeout()))).await?;
    let first = orphans.first().map(ToString::to_string).unwrap_or_default();
    tracing::warn!(
        node = %session.record.name, unknown = orphans.len(), %first, quarantined = reply.moved,
        "moved blocks that the metadata does not know to the node's quarantine, where they are kept for some days"
    );
    if reply.kept.is_empty() { Ok(()) } else { Err(Error::retry(reply.kept)) }
}
