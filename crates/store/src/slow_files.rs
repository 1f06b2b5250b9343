//! Files whose syncs take longer: to measure what a slower disk costs, on the disk that is there.

use crate::files::{FileHandle, Files, Open, Space};
use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use weft_types::Span;

/// The same files, with a delay after each sync. Several syncs wait at the same time, as in a disk with a queue.
#[derive(Debug, Clone)]
pub struct SlowFiles<F> {
    files: F,
    sync: Duration,
}

impl<F: Files> SlowFiles<F> {
    /// Adds `sync` to each sync of a file, a directory or the file system.
    pub fn new(files: F, sync: Duration) -> Self {
        Self { files, sync }
    }

    fn late<T>(&self, synced: io::Result<T>) -> io::Result<T> {
        thread::sleep(self.sync);
        synced
    }
}

impl<F: Files> Files for SlowFiles<F> {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn FileHandle>> {
        Ok(Box::new(SlowFile { file: self.files.open(path, how)?, sync: self.sync }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.files.create_dir(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.files.create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn hard_link(&self, file: &Path, name: &Path) -> io::Result<()> {
        self.files.hard_link(file, name)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.files.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.files.remove_dir(path)
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.files.names(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.files.exists(path)
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        self.files.len(path)
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        self.files.canonicalize(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.late(self.files.sync_dir(dir))
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        self.files.space(dir)
    }

    fn file_system(&self, dir: &Path) -> io::Result<u64> {
        self.files.file_system(dir)
    }
}

/// An open file.
#[derive(Debug)]
struct SlowFile {
    file: Box<dyn FileHandle>,
    sync: Duration,
}

impl SlowFile {
    fn late(&self, synced: io::Result<()>) -> io::Result<()> {
        thread::sleep(self.sync);
        synced
    }
}

impl FileHandle for SlowFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_cached_at(buf, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }

    fn begin_write_back(&self, part: Span) {
        self.file.begin_write_back(part);
    }

    fn drop_cache(&self, part: Span) {
        self.file.drop_cache(part);
    }

    fn sync_all(&self) -> io::Result<()> {
        self.late(self.file.sync_all())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.late(self.file.sync_data())
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.late(self.file.sync_file_system())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LocalStore, NewDisk, RealFiles};
    use std::sync::Arc;
    use weft_types::ClusterId;

    #[test]
    fn a_disk_opens_on_them() {
        let dir = tempfile::tempdir().unwrap();
        let files = Arc::new(SlowFiles::new(RealFiles, Duration::from_millis(1)));
        let opened = LocalStore::open_on(files, dir.path(), ClusterId(1), NewDisk { disk_id: 7, created_ms: 0 });
        assert_eq!(opened.unwrap().disk_id(), 7);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "measures real time")]
    fn only_syncs_take_longer() {
        let (dir, delay) = (tempfile::tempdir().unwrap(), Duration::from_millis(30));
        let slow = SlowFiles::new(RealFiles, delay);
        let took = |work: &dyn Fn()| {
            let begun = std::time::Instant::now();
            work();
            begun.elapsed()
        };
        let file = slow.open(&dir.path().join("file"), Open::CreateEmpty).unwrap();
        file.write_all_at(b"bytes", 0).unwrap();
        for synced in [
            took(&|| file.sync_data().unwrap()),
            took(&|| file.sync_all().unwrap()),
            took(&|| slow.sync_dir(dir.path()).unwrap()),
        ] {
            assert!(synced >= delay, "{synced:?}");
        }
        let mut read = [0; 5];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((&read, slow.names(dir.path()).unwrap().len()), (b"bytes", 1));
    }
}
