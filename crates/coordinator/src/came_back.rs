//! Checks the blocks of nodes that came back after they were lost or away for long: what their disks may have lost meanwhile is rebuilt at
//! once, and not found by a later read. What is right is kept, and counts as there from the moment the node is back.
//!
//! A page of the metadata at a time, the node looks for its blocks and tells the checksums in their sidecars. The bytes themselves are
//! checked by every read. Whether a node is still to be checked is in the metadata, so the next coordinator continues.

use crate::{members::Session, membership, shared::Shared};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::MissedTickBehavior;
use weft_control::{
    findings::{self, Seen},
    retries::Retries,
};
use weft_proto::{rpc, v1};
use weft_types::{BlockId, Error, Home, NodeId, Result, StripeId, StripeRecord};

/// How often to look for nodes that came back.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Blocks that one call checks. A disk that must seek for each answers in time.
const BLOCKS_PER_PAGE: u32 = 20;
/// The pause between two pages, which leaves time for other work of the metadata and the disks.
const PAGE_PAUSE: Duration = Duration::from_millis(20);

/// How far the checks are, by node.
#[derive(Debug, Default)]
pub(crate) struct Checks(Mutex<BTreeMap<NodeId, Checked>>);

/// How far the check of a node is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Checked {
    /// Blocks that were checked.
    pub(crate) blocks: u64,
    /// Of these, the ones that are missing or not what was written.
    pub(crate) bad: u64,
}

impl Checks {
    /// How far the check of a node is.
    pub(crate) fn of(&self, node: NodeId) -> Checked {
        self.lock().get(&node).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Checked>> {
        // A poisoned lock is safe to use: each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut tried = Retries::default();
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let back = shared.members.statuses().into_iter().filter(|it| it.up && it.record.came_back);
        for node in back.map(|it| it.record.id) {
            if !tried.is_due(&node, shared.started.now()) {
                continue;
            }
            let name = shared.members.name(node);
            match check_node(&shared, node).await {
                Ok(Checked { blocks, bad }) => {
                    tracing::info!(node = %name, blocks, bad, "checked the blocks of a node that came back");
                    tried.done(&node);
                }
                Err(error) => {
                    tracing::warn!(node = %name, %error, "cannot check all blocks of a node that came back yet");
                    tried.failed(node, String::new(), shared.started.now());
                }
            }
            shared.came_back.lock().remove(&node);
        }
    }
}

async fn check_node(shared: &Shared, node: NodeId) -> Result<Checked> {
    let session = shared.members.session(node).ok_or_else(|| Error::retry("the node is down again"))?;
    shared.came_back.lock().insert(node, Checked::default());
    let mut unknown = None;
    // The session knows the disks as they were at the registration.
    let now = shared.members.statuses().into_iter().find(|status| status.record.id == node).map(|status| status.record.disks);
    for disk in now.unwrap_or_default().iter().filter(|disk| !disk.failed) {
        let home = Home { node, disk: disk.number };
        let mut after = None;
        loop {
            let page = shared.meta.blocks_on(home, after, BLOCKS_PER_PAGE).await.map_err(|error| shared.meta_error(error))?;
            let why = check_page(shared, &session, &disk.id, &page.items).await?;
            unknown = unknown.or(why);
            after = page.items.last().copied();
            if !page.more || after.is_none() {
                break;
            }
            tokio::time::sleep(PAGE_PAUSE).await;
        }
    }
    if let Some(why) = unknown {
        return Err(Error::retry(why));
    }
    shared.meta.set_checked(shared.epoch, node).await.map_err(|error| shared.meta_error(error))?;
    shared.members.checked(node);
    Ok(shared.came_back.of(node))
}

/// Checks some blocks of a node, and records what is wrong. Returns why it cannot be said of one, if so.
async fn check_page(shared: &Shared, session: &Session, disk: &str, blocks: &[BlockId]) -> Result<Option<String>> {
    if blocks.is_empty() {
        return Ok(None);
    }
    let encoded = blocks.iter().map(postcard::to_allocvec).collect::<Result<Vec<_>, _>>();
    let encoded = encoded.map_err(|error| Error::fatal(format!("cannot encode a block's id: {error}")))?;
    let request = v1::CheckBlocksRequest { blocks: encoded, disk: disk.to_owned() };
    let mut agent = rpc::agent_client(session.channel.clone());
    let reply = shared.answer(agent.check_blocks(rpc::with_deadline(request, shared.call_timeout()))).await?;
    if reply.blocks.len() != blocks.len() {
        return Err(Error::invalid(format!("it answers for {} of {} blocks", reply.blocks.len(), blocks.len())));
    }
    // Looked up behind the answer: what was replaced before is not judged.
    let ids: BTreeSet<StripeId> = blocks.iter().map(|block| block.stripe).collect();
    let stripes = shared.meta.find_stripes(ids.into_iter().collect()).await.map_err(|error| shared.meta_error(error))?;
    let stripes: BTreeMap<StripeId, StripeRecord> = stripes.into_iter().map(|stripe| (stripe.id, stripe)).collect();
    let node = session.record.id;
    let judged: Vec<_> = blocks
        .iter()
        .zip(reply.blocks.into_iter().map(seen))
        .map(|(block, seen)| {
            let found = stripes.get(&block.stripe).and_then(|stripe| seen.finding(stripe, node, *block));
            (*block, seen, found)
        })
        .collect();
    if findings::is_disk_in_doubt(judged.len(), judged.iter().filter(|(.., found)| found.is_some()).count()) {
        return Err(Error::retry(format!(
            "disk {disk} has none of {} blocks as they were written: is it in order?",
            judged.len()
        )));
    }
    let mut unknown = None;
    for (block, seen, found) in judged {
        if let Seen::Unknown(why) = seen {
            unknown = unknown.or(Some(why));
        }
        if let Some((finding, why)) = &found {
            membership::mark(shared, node, block, finding, why).await?;
        }
        let mut checks = shared.came_back.lock();
        let checked = checks.entry(node).or_default();
        (checked.blocks, checked.bad) = (checked.blocks + 1, checked.bad + u64::from(found.is_some()));
    }
    Ok(unknown)
}

fn seen(told: v1::CheckedBlock) -> Seen {
    match told.state {
        1 => Seen::There(told.checksums),
        2 => Seen::Absent(told.why),
        3 => Seen::Damaged(told.why),
        _ => Seen::Unknown(told.why),
    }
}
