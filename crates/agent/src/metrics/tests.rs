use super::*;
use crate::{AgentConfig, DiskMode, LocalDisks, OpenDisk, OpenedDisk, Seams};
use std::{
    path::Path,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::watch;
use weft_proto::{Conversion, Converter};
use weft_store::{BlockReader, BlockStore, BlockWriter, Capacity, NewDisk, QuarantinePlace, Quarantined};
use weft_types::{BlockId, BlockMeta, ClusterId, Error};

/// Whether a disk hangs when it is asked for its size.
#[derive(Default)]
struct Hang {
    hangs: Mutex<bool>,
    changed: Condvar,
    /// How often it was asked.
    asked: AtomicU64,
}

impl Hang {
    fn set(&self, hangs: bool) {
        *self.hangs.lock().unwrap() = hangs;
        self.changed.notify_all();
    }
}

/// Disks in `a` and `b`, which may hang.
struct HangingDisks([Arc<Hang>; 2]);

impl OpenDisk for HangingDisks {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk> {
        let OpenedDisk { id, store, journal } = LocalDisks.open(dir, cluster, new)?;
        let hang = &self.0[usize::from(dir.ends_with("b"))];
        Ok(OpenedDisk { id, store: Arc::new(HangingStore(store, Arc::clone(hang))), journal })
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
        self.1.asked.fetch_add(1, Ordering::Relaxed);
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

/// The two disks, by whether they have figures, and answer.
async fn disks(source: &Source) -> [(bool, bool); 2] {
    let text = source.figures().await.unwrap().text().unwrap();
    assert!(text.contains("weft_agent_tasks{"), "the other figures are there:\n{text}");
    let line = |name: &str, disk: &str| {
        let of = |line: &&str| line.starts_with(&format!("{name}{{disk=\"")) && line.contains(&format!("/{disk}\"}}"));
        text.lines().find(of).map(str::to_owned)
    };
    ["a", "b"].map(|disk| {
        let answers = line("weft_agent_disk_answers", disk).unwrap();
        let figures = ["weft_agent_disk_failed", "weft_agent_disk_size_bytes"].map(|name| line(name, disk).is_some());
        assert_eq!(figures[0], figures[1], "{text}");
        (figures[0], answers.ends_with(" 1"))
    })
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_hangs_loses_its_own_figures_and_takes_one_thread_however_often_it_is_scraped() {
    let (dir, hangs) = (tempfile::tempdir().unwrap(), [Arc::new(Hang::default()), Arc::new(Hang::default())]);
    let text = format!(
        "name = 'node-07'\ncoordinators = ['127.0.0.1:1']\ndata_listen = '127.0.0.1:0'\ncontrol_listen = '127.0.0.1:0'\ninsecure = true\n\
         state_dir = '{0}/state'\ndisks = ['{0}/a', '{0}/b']",
        dir.path().display()
    );
    let config: AgentConfig = toml::from_str(&text).unwrap();
    let seams = Seams {
        disks: Arc::new(HangingDisks(hangs.clone())),
        disk_mode: DiskMode::Pool,
        ..Seams::real(1.into(), Arc::new(NoConverter))
    };
    let (_stop, stopping) = watch::channel(false);
    let node = Node::new(config, seams, stopping).unwrap();
    let source = Arc::new(Source::new(Arc::clone(&node), Vec::new()));
    let text = source.figures().await.unwrap().text().unwrap();
    assert!(text.contains("weft_agent_registered 0\n") && !text.contains("{disk="), "its disks are not open:\n{text}");

    node.open_disks(ClusterId(7)).await.unwrap();
    assert_eq!(disks(&source).await, [(true, true); 2]);
    hangs[0].set(true);
    let turns = |disk: usize| source.asking.get().unwrap()[disk].available_permits();
    let threads = hangs[0].asked.load(Ordering::Relaxed) + 1;
    for _ in 0..3 {
        let asked = hangs[1].asked.load(Ordering::Relaxed);
        let scrape = tokio::spawn({
            let source = Arc::clone(&source);
            async move { disks(&source).await }
        });
        // The other disk has answered, and its turn was given back with the answer.
        while hangs[1].asked.load(Ordering::Relaxed) == asked || turns(1) == 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(DISK_ANSWERS_WITHIN).await;
        assert_eq!(scrape.await.unwrap(), [(false, false), (true, true)]);
    }
    assert_eq!((hangs[0].asked.load(Ordering::Relaxed), turns(0)), (threads, 0), "one thread waits for it");
    hangs[0].set(false);
    while turns(0) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(disks(&source).await, [(true, true); 2]);
}
