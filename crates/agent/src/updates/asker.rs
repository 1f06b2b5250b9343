//! Asks the coordinator what the node must know of open stripes: after a restart, when a block does not know a seal, and when an agent cannot be
//! reached where it was.

use super::{Command, Hub, Told};
use crate::wire;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tonic::transport::Channel;
use weft_proto::{
    LogRate, from_status,
    rpc::with_deadline,
    v1::{FindOpenStripesRequest, membership_client::MembershipClient},
};
use weft_types::{BlockId, Error, Result};

/// The blocks whose stripes the coordinator is asked about.
#[derive(Default)]
pub(crate) struct Asker {
    pending: Mutex<BTreeSet<BlockId>>,
    added: Notify,
    coordinator: watch::Sender<Option<Coordinator>>,
    failures: LogRate,
}

/// The coordinator with which the node is registered.
#[derive(Clone)]
pub(crate) struct Coordinator {
    pub(crate) calls: MembershipClient<Channel>,
    pub(crate) node: u32,
    pub(crate) epoch: u64,
}

/// The most blocks in one call.
const BLOCKS_MAX: usize = 1000;
/// The most blocks that are remembered; those beyond ask again by themselves.
const PENDING_MAX: usize = 100_000;
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// The time before a call, so that questions that arise together share one.
const PAUSE: Duration = Duration::from_millis(20);
/// The least time between two calls: blocks ask again and again while the coordinator does not know their stripe as open.
const BETWEEN_CALLS: Duration = Duration::from_millis(500);

impl Asker {
    /// Asks about the stripes of these blocks, until there is an answer.
    pub(crate) fn ask(&self, blocks: impl IntoIterator<Item = BlockId>) {
        let mut pending = self.lock();
        for block in blocks {
            if pending.len() < PENDING_MAX {
                pending.insert(block);
            }
        }
        drop(pending);
        self.added.notify_one();
    }

    /// The node has registered.
    pub(crate) fn registered(&self, coordinator: Coordinator) {
        self.coordinator.send_replace(Some(coordinator));
    }

    /// What the coordinator says of the stripes of these blocks that are open.
    pub(crate) async fn find(&self, blocks: &[BlockId]) -> Result<Vec<Told>> {
        let known = self.coordinator.borrow().clone();
        let mut known = known.ok_or_else(|| Error::retry("the agent has not registered yet"))?;
        let mut found = Vec::new();
        for blocks in blocks.chunks(BLOCKS_MAX) {
            let blocks = blocks.iter().map(wire::encode).collect();
            let request = FindOpenStripesRequest { node: known.node, epoch: known.epoch, blocks };
            let asked = known.calls.find_open_stripes(with_deadline(request, CALL_DEADLINE));
            let late = |_| Error::retry(format!("the coordinator did not answer within {CALL_DEADLINE:?}"));
            let reply = timeout(CALL_DEADLINE, asked).await.map_err(late)?.map_err(|status| from_status(&status))?;
            for stripe in &reply.into_inner().stripes {
                found.push(Told::decode(stripe)?);
            }
        }
        Ok(found)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<BlockId>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks as long as the agent runs.
pub(crate) async fn ask_coordinator(hub: Arc<Hub>) {
    let asker = &hub.asker;
    let mut registered = asker.coordinator.subscribe();
    // The sender is a part of the hub.
    while registered.wait_for(Option::is_some).await.is_ok() {
        asker.added.notified().await;
        sleep(PAUSE).await;
        loop {
            let blocks: Vec<BlockId> = asker.lock().iter().take(BLOCKS_MAX).copied().collect();
            if blocks.is_empty() {
                break;
            }
            match asker.find(&blocks).await {
                Ok(found) => {
                    asker.lock().retain(|block| !blocks.contains(block));
                    let is_open = |block: &BlockId| found.iter().any(|told| told.stripe == block.stripe);
                    for block in blocks.into_iter().filter(|block| !is_open(block)) {
                        hub.tell_disk(block, Command::Unknown(block)).await;
                    }
                    for told in found {
                        hub.told(told).await;
                    }
                }
                Err(error) => {
                    if let Some(left_out) = asker.failures.admit() {
                        tracing::warn!(%error, left_out, "cannot ask the coordinator about stripes that are open for updates");
                    }
                }
            }
            sleep(BETWEEN_CALLS).await;
        }
    }
}

impl Hub {
    /// What the coordinator says of a stripe, for its homes and for its blocks here.
    async fn told(&self, told: Told) {
        self.learn(&told);
        let (stripe, sealed) = (told.stripe, Arc::new(told.sealed));
        for block in self.fence.open_blocks().into_iter().filter(|block| block.stripe == stripe) {
            self.tell_disk(block, Command::Learn { block, sealed: Arc::clone(&sealed) }).await;
        }
    }

    async fn tell_disk(&self, block: BlockId, command: Command) {
        if let Some(queue) = self.queue_of(block) {
            // Without a thread, the block has no use for it.
            let _ended = queue.send(command).await;
        }
    }
}
