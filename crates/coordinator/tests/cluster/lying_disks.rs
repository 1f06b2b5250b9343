//! Disks that store other bytes than they were given, without an error; nodes that change bytes which were read correctly; and disks of
//! a chosen size.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use weft_agent::{LocalDisks, OpenDisk, OpenedDisk};
use weft_store::{BlockReader, BlockStore, BlockWriter, Capacity, NewDisk, QuarantinePlace, Quarantined, Receipt};
use weft_types::{BlockId, BlockMeta, Cause, ClusterId, Error, Result, Span, crc32c};

/// The indices of blocks whose next write stores wrong bytes.
pub(crate) type Lies = Arc<Mutex<BTreeSet<u8>>>;

/// The indices of blocks whose every read returns wrong bytes.
pub(crate) type Spoils = Arc<Mutex<BTreeMap<u8, Spoiled>>>;

/// Where a byte changes after its page was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoiled {
    /// During the read: the node sends the wrong byte with a checksum that matches it.
    Read,
    /// In memory, after the read: the node sends the wrong byte with the checksum of the right one.
    Memory,
}

/// The directories of disks that do not read their blocks' sectors now.
pub(crate) type Unreadable = Arc<Mutex<BTreeSet<PathBuf>>>;

/// The blocks of which the page cache was told to let go: their bytes (true) or their sidecars.
pub(crate) type Forgotten = Arc<Mutex<BTreeSet<(BlockId, bool)>>>;

/// The size of a disk in bytes; 0: the size of the real disk.
pub(crate) type DiskBytes = Arc<AtomicU64>;

/// Local directories as disks that return wrong bytes and report a chosen size.
pub(crate) struct LyingDisks {
    pub(crate) lies: Lies,
    pub(crate) spoils: Spoils,
    pub(crate) unreadable: Unreadable,
    pub(crate) forgotten: Forgotten,
    pub(crate) disk_bytes: DiskBytes,
}

impl OpenDisk for LyingDisks {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk> {
        let OpenedDisk { id, store } = LocalDisks.open(dir, cluster, new)?;
        Ok(OpenedDisk {
            id,
            store: Arc::new(LyingStore {
                store,
                lies: Arc::clone(&self.lies),
                spoils: Arc::clone(&self.spoils),
                unreadable: Arc::clone(&self.unreadable),
                forgotten: Arc::clone(&self.forgotten),
                dir: dir.to_path_buf(),
                disk_bytes: Arc::clone(&self.disk_bytes),
                file_system: id as u64 | 1,
            }),
        })
    }
}

struct LyingStore {
    store: Arc<dyn BlockStore>,
    lies: Lies,
    spoils: Spoils,
    unreadable: Unreadable,
    forgotten: Forgotten,
    dir: PathBuf,
    disk_bytes: DiskBytes,
    /// Of its own, if it has a chosen size.
    file_system: u64,
}

/// Bytes of all files in a directory and below.
pub(crate) fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

impl BlockStore for LyingStore {
    fn create(&self, meta: &BlockMeta) -> Result<Box<dyn BlockWriter>> {
        let writer = self.store.create(meta)?;
        let lies = self.lies.lock().unwrap().remove(&meta.id.index);
        Ok(if lies { Box::new(LyingWriter(writer)) } else { writer })
    }

    fn open(&self, id: BlockId) -> Result<Arc<dyn BlockReader>> {
        if self.unreadable.lock().unwrap().contains(&self.dir) {
            return Err(Error::corrupt("cannot read it: injected").cause(Cause::Unreadable));
        }
        let (reader, spoils, forgotten) = (self.store.open(id)?, Arc::clone(&self.spoils), Arc::clone(&self.forgotten));
        Ok(Arc::new(SpoilingReader { reader, spoils, forgotten }))
    }

    fn forget_cached_sidecar(&self, id: BlockId) {
        self.forgotten.lock().unwrap().insert((id, false));
        self.store.forget_cached_sidecar(id);
    }

    fn remove(&self, id: BlockId) -> Result<bool> {
        self.store.remove(id)
    }

    fn list_after(&self, after: Option<BlockId>, blocks_max: usize) -> Result<Vec<BlockId>> {
        self.store.list_after(after, blocks_max)
    }

    fn quarantine(&self, id: BlockId, reason: &str, since_ms: Option<u64>) -> Result<()> {
        self.store.quarantine(id, reason, since_ms)
    }

    fn quarantined(&self) -> Quarantined {
        self.store.quarantined()
    }

    fn quarantine_places(&self) -> Result<Vec<QuarantinePlace>> {
        self.store.quarantine_places()
    }

    fn delete_quarantined(&self, place: &str) -> Result<()> {
        self.store.delete_quarantined(place)
    }

    fn capacity(&self) -> Result<Capacity> {
        match self.disk_bytes.load(Ordering::Relaxed) {
            0 => self.store.capacity(),
            total_bytes => {
                let free_bytes = total_bytes.saturating_sub(bytes_in(&self.dir));
                Ok(Capacity { total_bytes, free_bytes, file_system: self.file_system })
            }
        }
    }

    fn failed(&self) -> Option<String> {
        self.store.failed()
    }
}

struct LyingWriter(Box<dyn BlockWriter>);

impl BlockWriter for LyingWriter {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut bytes = bytes.to_vec();
        if let (0, Some(first)) = (offset, bytes.first_mut()) {
            *first ^= 1;
        }
        self.0.write_at(offset, &bytes)
    }

    fn missing(&self) -> Vec<Span> {
        self.0.missing()
    }

    fn finish(self: Box<Self>, expected_checksums: Option<&[u32]>) -> Result<Receipt> {
        self.0.finish(expected_checksums)
    }
}

/// Reads the bytes that were written, and returns other ones.
struct SpoilingReader {
    reader: Arc<dyn BlockReader>,
    spoils: Spoils,
    forgotten: Forgotten,
}

impl SpoilingReader {
    /// Changes a byte of a spoiled block. Returns the checksum that accompanies the bytes.
    fn spoil(&self, bytes: &mut [u8], checksum: u32) -> u32 {
        let spoiled = self.spoils.lock().unwrap().get(&self.meta().id.index).copied();
        if let (Some(_), Some(first)) = (spoiled, bytes.first_mut()) {
            *first ^= 1;
        }
        if spoiled == Some(Spoiled::Read) { crc32c(bytes) } else { checksum }
    }
}

impl BlockReader for SpoilingReader {
    fn meta(&self) -> &BlockMeta {
        self.reader.meta()
    }

    fn units(&self) -> &[u32] {
        self.reader.units()
    }

    fn pages(&self) -> &[u32] {
        self.reader.pages()
    }

    fn stored_len(&self) -> Result<u64> {
        self.reader.stored_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<u32> {
        let checksum = self.reader.read_at(offset, buf)?;
        Ok(self.spoil(buf, checksum))
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Option<u32> {
        let checksum = self.reader.read_cached(offset, buf)?;
        Some(self.spoil(buf, checksum))
    }

    fn forget_cached(&self, bytes: Span) {
        if bytes == Span::new(0, self.meta().len()) {
            self.forgotten.lock().unwrap().insert((self.meta().id, true));
        }
        self.reader.forget_cached(bytes);
    }
}
