//! Asks the coordinator what the node must know of open stripes: after a restart, when a block does not know a seal, and when an agent cannot be
//! reached where it was.

use super::{Command, Hub, Told};
use crate::wire;
use std::{
    collections::BTreeSet,
    ops::Bound::{Excluded, Unbounded},
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
use weft_types::{BlockId, Error, Reaction, Result};

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

    /// What the coordinator says of the stripes of these blocks that are open. The blocks may not be open here.
    pub(crate) async fn find(&self, blocks: &[BlockId]) -> Result<Vec<Told>> {
        let (mut found, mut rest, mut most) = (Vec::new(), blocks, BLOCKS_MAX);
        while !rest.is_empty() {
            let (asked, behind) = rest.split_at(most.min(rest.len()));
            match self.call(asked, false).await {
                Ok(told) => {
                    found.extend(told);
                    rest = behind;
                }
                Err(error) => most = fewer(&error, asked.len()).ok_or(error)?,
            }
        }
        Ok(found)
    }

    /// `open`: the blocks are open here. If their stripes are not, the coordinator looks into that.
    async fn call(&self, blocks: &[BlockId], open: bool) -> Result<Vec<Told>> {
        let known = self.coordinator.borrow().clone();
        let mut known = known.ok_or_else(|| Error::retry("the agent has not registered yet"))?;
        let blocks = blocks.iter().map(wire::encode).collect();
        let request = FindOpenStripesRequest { node: known.node, epoch: known.epoch, blocks, open };
        let asked = known.calls.find_open_stripes(with_deadline(request, CALL_DEADLINE));
        let late = |_| Error::retry(format!("the coordinator did not answer within {CALL_DEADLINE:?}"));
        let reply = timeout(CALL_DEADLINE, asked).await.map_err(late)?.map_err(|status| from_status(&status))?;
        reply.into_inner().stripes.iter().map(Told::decode).collect()
    }

    /// At most so many pending blocks: those behind `last`, then from the first on.
    fn behind(&self, last: Option<BlockId>, most: usize) -> Vec<BlockId> {
        let pending = self.lock();
        let Some(last) = last else { return pending.iter().take(most).copied().collect() };
        let behind = pending.range((Excluded(last), Unbounded));
        behind.chain(pending.range(..=last)).take(most).copied().collect()
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
        let (mut last, mut most) = (None, BLOCKS_MAX);
        loop {
            let blocks = asker.behind(last, most);
            if blocks.is_empty() {
                break;
            }
            match asker.call(&blocks, true).await {
                Ok(found) => {
                    last = blocks.last().copied();
                    asker.lock().retain(|block| !blocks.contains(block));
                    asker.lock().extend(hub.tell_disks(&blocks, found));
                }
                Err(error) => {
                    match fewer(&error, blocks.len()) {
                        Some(fewer) => most = fewer,
                        // Others need not wait for a block of which nothing can be learned.
                        None if error.reaction == Reaction::InvalidInput => last = blocks.last().copied(),
                        None => {}
                    }
                    if let Some(left_out) = asker.failures.admit() {
                        tracing::warn!(%error, left_out, "cannot ask the coordinator about stripes that are open for updates");
                    }
                }
            }
            sleep(BETWEEN_CALLS).await;
        }
    }
}

/// How many blocks to ask about if a question about so many was refused because the answer would be too large.
fn fewer(error: &Error, blocks: usize) -> Option<usize> {
    (error.reaction == Reaction::InvalidInput && blocks > 1).then_some(blocks / 2)
}

impl Hub {
    /// Hands on what the coordinator says of the stripes of these blocks. Returns the blocks that are to be asked about again, because their
    /// disk takes nothing now: it may hang, and nothing waits for it.
    fn tell_disks(&self, blocks: &[BlockId], found: Vec<Told>) -> Vec<BlockId> {
        let is_open = |block: &BlockId| found.iter().any(|told| told.stripe == block.stripe);
        let unknown = blocks.iter().copied().filter(|block| !is_open(block));
        let mut left: Vec<BlockId> = unknown.filter(|block| !self.tell_disk(*block, Command::Unknown(*block))).collect();
        for told in found {
            self.learn(&told);
            let (stripe, sealed) = (told.stripe, Arc::new(told.sealed));
            let here = self.fence.open_blocks().into_iter().filter(|block| block.stripe == stripe);
            left.extend(here.filter(|block| {
                let (block, sealed) = (*block, Arc::clone(&sealed));
                !self.tell_disk(block, Command::Learn { block, sealed })
            }));
        }
        left
    }

    /// Returns false if the disk's queue is full.
    fn tell_disk(&self, block: BlockId, command: Command) -> bool {
        // Without a thread, the block has no use for it.
        self.queue_of(block).is_none_or(|queue| queue.offer(0, |_room| command).is_ok() || queue.has_ended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::updates::Queue;
    use weft_proto::{Security, TcpNet};
    use weft_types::{StripeId, SystemClock};

    fn block(stripe: u64) -> BlockId {
        BlockId { stripe: StripeId(stripe), index: 0, copy: 0, generation: 1 }
    }

    #[test]
    fn pending_blocks_take_turns() {
        let asker = Asker::default();
        asker.ask((1..=5).map(block));
        assert_eq!(asker.behind(None, 2), [block(1), block(2)]);
        assert_eq!(asker.behind(Some(block(2)), 2), [block(3), block(4)]);
        assert_eq!(asker.behind(Some(block(4)), 3), [block(5), block(1), block(2)]);
        assert_eq!(asker.behind(Some(block(9)), 9).len(), 5);
    }

    #[test]
    fn a_disk_that_takes_nothing_holds_up_no_other_and_is_told_later() {
        let (cluster, dials) = (watch::Sender::new(None), (Arc::new(TcpNet::default()) as _, Security::Insecure));
        let hub = Hub::new("node-1", cluster.subscribe(), dials, Arc::new(SystemClock), Arc::default());
        let ((hangs, mut taken), (answers, mut told)) = (Queue::new(), Queue::new());
        while hangs.offer(0, |_room| Command::Tick).is_ok() {}
        hub.queues.write().unwrap().extend([(0, hangs), (1, answers)]);
        (0..2).for_each(|disk| hub.fence.opened(block(disk as u64), disk));
        let blocks = [block(0), block(1), block(2)];
        assert_eq!(hub.tell_disks(&blocks, Vec::new()), [block(0)]);
        assert!(matches!(told.try_recv(), Ok(Command::Unknown(of)) if of == block(1)));
        taken.try_recv().unwrap();
        assert_eq!(hub.tell_disks(&blocks[..1], Vec::new()), []);
        taken.close();
        assert_eq!(hub.tell_disks(&blocks[..1], Vec::new()), [], "its thread has ended");
    }

    #[test]
    fn a_question_is_halved_down_to_one_block() {
        let too_large = Error::invalid("the answer would be too large");
        assert_eq!([1000, 3, 2, 1].map(|blocks| fewer(&too_large, blocks)), [Some(500), Some(1), Some(1), None]);
        assert_eq!(fewer(&Error::retry("busy"), 1000), None);
    }
}
