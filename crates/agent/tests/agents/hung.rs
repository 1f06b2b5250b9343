//! A disk that hangs is a state of that disk only.

use crate::cluster::{CLUSTER, Cluster, Options, Stripe, until};
use std::{
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::time::timeout;
use weft_agent::{KeepJournal, Limits, LocalDisks, OpenDisk, OpenedDisk};
use weft_proto::v1::{CheckBlocksRequest, Disk};
use weft_store::{BlockReader, BlockStore, BlockWriter, Capacity, Journal, NewDisk, NewJournal, QuarantinePlace, Quarantined};
use weft_types::{BlockId, BlockMeta, ClusterId, Error, NodeId, Result};

/// Whether the disk hangs: calls to it wait until it answers again.
#[derive(Default)]
struct Hang {
    hangs: Mutex<bool>,
    changed: Condvar,
}

impl Hang {
    fn set(&self, hangs: bool) {
        *self.hangs.lock().unwrap() = hangs;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let hangs = self.hangs.lock().unwrap();
        // Bounded, so that a test that fails while it hangs still ends.
        drop(self.changed.wait_timeout_while(hangs, Duration::from_secs(60), |hangs| *hangs).unwrap());
    }
}

/// Disks of which the one in the directory `disk1` can hang, as a whole or only when its journal is opened.
#[derive(Default)]
struct HangingDisks {
    hang: Arc<Hang>,
    journal: Arc<JournalFault>,
}

/// What keeps a journal from being opened.
#[derive(Default)]
struct JournalFault {
    hang: Hang,
    refuses: AtomicBool,
    opened: AtomicU32,
}

impl OpenDisk for HangingDisks {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk> {
        if !dir.ends_with("disk1") {
            return LocalDisks.open(dir, cluster, new);
        }
        let hang = Arc::clone(&self.hang);
        hang.pass();
        let OpenedDisk { id, store, journal } = LocalDisks.open(dir, cluster, new)?;
        let journal = Arc::new(FaultyJournal { journal, fault: Arc::clone(&self.journal) });
        Ok(OpenedDisk { id, store: Arc::new(HangingStore { store, hang }), journal })
    }
}

struct FaultyJournal {
    journal: Arc<dyn KeepJournal>,
    fault: Arc<JournalFault>,
}

impl KeepJournal for FaultyJournal {
    fn exists(&self) -> Result<bool> {
        self.journal.exists()
    }

    fn open(&self, new: NewJournal) -> Result<Arc<dyn Journal>> {
        self.fault.opened.fetch_add(1, Ordering::Relaxed);
        self.fault.hang.pass();
        if self.fault.refuses.load(Ordering::Relaxed) {
            return Err(Error::unavailable("no answer now"));
        }
        self.journal.open(new)
    }

    fn set_aside(&self) -> Result<()> {
        self.journal.set_aside()
    }
}

struct HangingStore {
    store: Arc<dyn BlockStore>,
    hang: Arc<Hang>,
}

impl HangingStore {
    fn asked(&self) -> &dyn BlockStore {
        self.hang.pass();
        self.store.as_ref()
    }
}

impl BlockStore for HangingStore {
    fn create(&self, meta: &BlockMeta) -> Result<Box<dyn BlockWriter>> {
        self.asked().create(meta)
    }

    fn open(&self, id: BlockId) -> Result<Arc<dyn BlockReader>> {
        self.asked().open(id)
    }

    fn remove(&self, id: BlockId) -> Result<bool> {
        self.asked().remove(id)
    }

    fn list_after(&self, after: Option<BlockId>, blocks_max: usize) -> Result<Vec<BlockId>> {
        self.asked().list_after(after, blocks_max)
    }

    fn quarantine(&self, id: BlockId, reason: &str, since_ms: Option<u64>) -> Result<()> {
        self.asked().quarantine(id, reason, since_ms)
    }

    fn quarantined(&self) -> Quarantined {
        self.store.quarantined()
    }

    fn quarantine_places(&self) -> Result<Vec<QuarantinePlace>> {
        self.asked().quarantine_places()
    }

    fn delete_quarantined(&self, place: &str) -> Result<()> {
        self.asked().delete_quarantined(place)
    }

    fn capacity(&self) -> Result<Capacity> {
        self.asked().capacity()
    }
}

const NODE: NodeId = NodeId(1);

impl Cluster {
    /// The second disk, as the node last told.
    fn second_disk(&self) -> Disk {
        self.coordinator.member(NODE).unwrap().disks[1].clone()
    }

    /// The node's block of the stripe is on its first disk, and is found there.
    async fn require_first_disk(&self, stripe: &Stripe) {
        let blocks = vec![postcard::to_allocvec(&stripe.block(0, 1)).unwrap()];
        let disk = self.coordinator.member(NODE).unwrap().disks[0].id.clone();
        let asked = CheckBlocksRequest { blocks, disk, read: None };
        let mut agent = self.call(NODE).await;
        let answer = timeout(Duration::from_secs(10), agent.check_blocks(asked)).await.expect("the other disk is not asked");
        assert_eq!(answer.unwrap().into_inner().blocks[0].state, 1, "it is there");
    }
}

/// Six agents, of which the first has a second disk that can hang, and that fails after this time.
fn options(hang: &Arc<Hang>, disk_timeout_ms: u64) -> Options {
    options_with(HangingDisks { hang: Arc::clone(hang), ..HangingDisks::default() }, disk_timeout_ms)
}

fn options_with(disks: HangingDisks, disk_timeout_ms: u64) -> Options {
    let limits = Limits { disk_timeout_ms, ..Limits::default() };
    let mut options = Options { disks_per_agent: 2, limits, ..Options::agents(6) };
    options.disks.insert(1, Arc::new(disks));
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_is_told_and_holds_up_neither_heartbeats_nor_the_other_disk() {
    let hang = Arc::new(Hang::default());
    let cluster = Cluster::start(options(&hang, 4_000)).await;
    let stripe = Stripe::new(1, "rs(4,2)", 64 << 10, 256 << 10);
    cluster.write(&stripe).await;
    until("both disks are told", async || {
        let disks = cluster.coordinator.member(NODE).unwrap().disks;
        disks.len() == 2 && disks.iter().all(|disk| disk.total_bytes > 0)
    })
    .await;

    hang.set(true);
    let before = cluster.coordinator.member(NODE).unwrap();
    until("the heartbeat says that the disk hangs", async || cluster.second_disk().silent_ms > 0).await;
    let told = cluster.second_disk();
    assert!(!told.failed && told.total_bytes > 0, "it may only be slow: {told:?}");
    assert!(cluster.coordinator.member(NODE).unwrap().heartbeats >= before.heartbeats + 4, "heartbeats wait for it");
    cluster.require_first_disk(&stripe).await;
    until("it counts as failed", async || cluster.second_disk().failed).await;
    assert!(!cluster.coordinator.member(NODE).unwrap().disks[0].failed);
    assert_eq!(cluster.coordinator.member(NODE).unwrap().registrations, before.registrations, "it is not lost");

    hang.set(false);
    until("it answers again", async || !cluster.second_disk().failed && cluster.second_disk().silent_ms == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_starts_while_a_disk_hangs_and_the_disk_joins_when_it_answers() {
    let hang = Arc::new(Hang::default());
    hang.set(true);
    // A disk that was never opened has no id yet, so nothing can be told of it.
    let mut cluster = Cluster::start(options(&hang, 8_000)).await;
    assert_eq!(cluster.coordinator.member(NODE).unwrap().disks.len(), 1);
    hang.set(false);
    until("the new disk joins", async || cluster.coordinator.member(NODE).unwrap().disks.len() == 2).await;
    let id = cluster.second_disk().id;
    let stripe = Stripe::new(1, "rs(4,2)", 64 << 10, 256 << 10);
    cluster.write(&stripe).await;

    cluster.kill_agent(1).await;
    hang.set(true);
    cluster.start_agent(1).await;
    let told = cluster.second_disk();
    assert!(told.id == id && !told.failed && told.silent_ms > 0, "it hangs: {told:?}");
    cluster.require_first_disk(&stripe).await;
    until("it counts as failed", async || cluster.second_disk().failed).await;
    assert!(!cluster.coordinator.member(NODE).unwrap().disks[0].failed);
    hang.set(false);
    until("it joins", async || {
        let disk = cluster.second_disk();
        !disk.failed && disk.silent_ms == 0 && disk.total_bytes > 0
    })
    .await;
    until("its size is registered", async || {
        let member = cluster.coordinator.member(NODE).unwrap();
        member.request.disks.len() == 2 && member.request.disks.iter().all(|disk| disk.total_bytes > 0)
    })
    .await;
}

/// Which blocks are open for updates on the disk is not known then, so none of its blocks may be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_registers_while_a_journal_cannot_be_opened_and_the_disk_joins_when_it_can() {
    let journal = Arc::new(JournalFault::default());
    let disks = HangingDisks { journal: Arc::clone(&journal), ..HangingDisks::default() };
    let mut cluster = Cluster::start(options_with(disks, 8_000)).await;
    let stripe = Stripe::new(1, "rs(4,2)", 64 << 10, 256 << 10);
    cluster.write(&stripe).await;
    cluster.kill_agent(1).await;
    let second = cluster.agent_dir(1).join("disk1");
    until("the disk has a journal", async || {
        let Ok(opened) = LocalDisks.open(&second, CLUSTER, None) else { return false };
        opened.journal.open(NewJournal { ring_bytes: 8 << 20, nonce: 1 }).is_ok()
    })
    .await;

    journal.hang.set(true);
    timeout(Duration::from_secs(20), cluster.start_agent(1)).await.expect("a registration waits for the journal");
    assert!(cluster.second_disk().silent_ms > 0, "it serves: {:?}", cluster.second_disk());
    cluster.require_first_disk(&stripe).await;
    cluster.coordinator.forget(NODE);
    let registrations = cluster.coordinator.member(NODE).unwrap().registrations;
    until("it registers again", async || cluster.coordinator.member(NODE).unwrap().registrations > registrations).await;
    assert_eq!(journal.opened.load(Ordering::Relaxed), 1, "one opening waits for it");

    journal.refuses.store(true, Ordering::Relaxed);
    journal.hang.set(false);
    until("it is tried again", async || journal.opened.load(Ordering::Relaxed) > 2).await;
    assert!(cluster.second_disk().silent_ms > 0, "it serves: {:?}", cluster.second_disk());
    journal.refuses.store(false, Ordering::Relaxed);
    until("it joins", async || {
        let disk = cluster.second_disk();
        !disk.failed && disk.silent_ms == 0 && disk.total_bytes > 0
    })
    .await;
}
