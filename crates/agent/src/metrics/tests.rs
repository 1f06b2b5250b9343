use super::*;
use crate::{AgentConfig, DiskMode, LocalDisks, OpenDisk, OpenedDisk, Seams};
use std::{
    path::Path,
    sync::{Condvar, Mutex},
};
use tokio::sync::watch;
use weft_proto::{Conversion, Converter};
use weft_store::{BlockReader, BlockStore, BlockWriter, Capacity, NewDisk, QuarantinePlace, Quarantined};
use weft_types::{BlockId, BlockMeta, ClusterId};

/// Whether a disk hangs when it is asked for its size.
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
}

/// Disks that may hang.
struct HangingDisks(Arc<Hang>);

impl OpenDisk for HangingDisks {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk> {
        let OpenedDisk { id, store } = LocalDisks.open(dir, cluster, new)?;
        Ok(OpenedDisk { id, store: Arc::new(HangingStore(store, Arc::clone(&self.0))) })
    }
}

struct HangingStore(Arc<dyn BlockStore>, Arc<Hang>);

impl BlockStore for HangingStore {
    fn create(&self, meta: &BlockMeta) -> Result<Box<dyn BlockWriter>> {
        self.0.create(meta)
    }

    fn open(&self, id: BlockId) -> Result<Arc<dyn BlockReader>> {
        self.0.open(id)
    }

    fn remove(&self, id: BlockId) -> Result<bool> {
        self.0.remove(id)
    }

    fn list_after(&self, after: Option<BlockId>, blocks_max: usize) -> Result<Vec<BlockId>> {
        self.0.list_after(after, blocks_max)
    }

    fn quarantine(&self, id: BlockId, reason: &str, since_ms: Option<u64>) -> Result<()> {
        self.0.quarantine(id, reason, since_ms)
    }

    fn quarantined(&self) -> Quarantined {
        self.0.quarantined()
    }

    fn quarantine_places(&self) -> Result<Vec<QuarantinePlace>> {
        self.0.quarantine_places()
    }

    fn delete_quarantined(&self, place: &str) -> Result<()> {
        self.0.delete_quarantined(place)
    }

    fn capacity(&self) -> Result<Capacity> {
        drop(self.1.changed.wait_while(self.1.hangs.lock().unwrap(), |hangs| *hangs).unwrap());
        self.0.capacity()
    }
}

/// This test converts nothing.
struct NoConverter;

#[async_trait]
impl Converter for NoConverter {
    async fn convert(&self, _: Conversion) -> Result<()> {
        Err(Error::fatal("there is no converter"))
    }
}

#[tokio::test]
async fn a_disk_that_hangs_takes_one_thread_however_often_it_is_scraped() {
    let (dir, hang) = (tempfile::tempdir().unwrap(), Arc::new(Hang::default()));
    let text = format!(
        "name = 'node-07'\ncoordinators = ['127.0.0.1:1']\ndata_listen = '127.0.0.1:0'\ncontrol_listen = '127.0.0.1:0'\ninsecure = true\n\
         state_dir = '{0}/state'\ndisks = ['{0}/a', '{0}/b']",
        dir.path().display()
    );
    let config: AgentConfig = toml::from_str(&text).unwrap();
    let seams = Seams {
        disks: Arc::new(HangingDisks(Arc::clone(&hang))),
        disk_mode: DiskMode::Pool,
        ..Seams::real(1.into(), Arc::new(NoConverter))
    };
    let (_stop, stopping) = watch::channel(false);
    let node = Node::new(config, seams, stopping).unwrap();
    let source = Arc::new(Source::new(Arc::clone(&node), Vec::new()));
    let text = source.figures().await.unwrap().text().unwrap();
    assert!(
        text.contains("weft_agent_registered 0\n") && !text.contains("weft_agent_disk_failed{"),
        "its disks are not open:\n{text}"
    );

    node.open_disks(ClusterId(7)).await.unwrap();
    let text = source.figures().await.unwrap().text().unwrap();
    assert_eq!(text.matches("weft_agent_disk_failed{").count(), 2, "{text}");
    hang.set(true);
    let first = tokio::spawn({
        let source = Arc::clone(&source);
        async move { source.figures().await.is_ok() }
    });
    while source.disks.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        let error = source.figures().await.unwrap_err();
        assert!(error.message.contains("it may hang"), "{error}");
    }
    // The scrape is given up, and its thread still waits.
    first.abort();
    assert!(source.figures().await.is_err());
    hang.set(false);
    while source.disks.available_permits() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(source.figures().await.is_ok());
}
