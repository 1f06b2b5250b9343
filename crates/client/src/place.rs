//! Where the bytes of a get go: into memory, or into a file that appears when it is complete.
//!
//! In memory, bytes stay where they were received until the output has them: a window costs its own size, and no copy.

use crate::{calls::Random, destination::Destination, io_error, paths::cannot_write};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use weft_proto::DiskMode;
use weft_types::{Error, Result, Span};

/// The place for an object's bytes, by their offset in the object.
pub(crate) enum Place {
    /// A window of the object, in disjoint pieces by their offset in the object.
    Memory { window: Span, pieces: Mutex<BTreeMap<u64, Bytes>> },
    /// A file whose first byte is byte `start` of the object. Writes take turns: the system allows one write to a file at a time, and
    /// waiting inside the system burns CPU.
    File { start: u64, file: Arc<File>, mode: DiskMode, turn: tokio::sync::Mutex<()> },
}

impl Place {
    /// Memory for a window of the object.
    pub(crate) fn memory(window: Span) -> Self {
        Self::Memory { window, pieces: Mutex::default() }
    }

    /// A file whose first byte is byte `start` of the object.
    pub(crate) fn file(start: u64, file: Arc<File>, mode: DiskMode) -> Self {
        Self::File { start, file, mode, turn: tokio::sync::Mutex::default() }
    }

    /// Writes pieces, each at its offset in the object.
    pub(crate) async fn write(&self, pieces: Vec<(u64, Bytes)>) -> Result<()> {
        let outside = || Error::fatal("the plan delivered bytes that were not requested");
        match self {
            Self::Memory { window, pieces: known } => {
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                for (offset, piece) in pieces {
                    let end = offset.checked_add(piece.len() as u64).ok_or_else(outside)?;
                    if offset < window.start || end > window.end {
                        return Err(outside());
                    }
                    replace(&mut known, offset, piece);
                }
                Ok(())
            }
            Self::File { start, file, mode, turn } => {
                let (start, file) = (*start, file.clone());
                let write = move || {
                    for (offset, piece) in pieces {
                        let at = offset.checked_sub(start).ok_or_else(outside)?;
                        file.write_all_at(&piece, at).map_err(cannot_write)?;
                    }
                    Ok(())
                };
                let _turn = turn.lock().await;
                mode.run(write).await
            }
        }
    }

    /// All bytes of the window in order, if they are in memory.
    pub(crate) fn take_memory(&self) -> Result<Vec<Bytes>> {
        let Self::Memory { window, pieces } = self else { return Ok(Vec::new()) };
        let pieces = std::mem::take(&mut *pieces.lock().unwrap_or_else(PoisonError::into_inner));
        let mut at = window.start;
        for (offset, piece) in &pieces {
            if *offset != at {
                break;
            }
            at += piece.len() as u64;
        }
        match at == window.end {
            true => Ok(pieces.into_values().collect()),
            false => Err(Error::fatal(format!("byte {at} of the object is missing, although its window is complete"))),
        }
    }
}

/// Adds a piece in place of the bytes that are already there.
fn replace(pieces: &mut BTreeMap<u64, Bytes>, offset: u64, piece: Bytes) {
    let end = offset + piece.len() as u64;
    if piece.is_empty() {
        return;
    }
    let before = pieces.range(..end).rev().take_while(|(at, bytes)| **at + bytes.len() as u64 > offset);
    for at in before.map(|(at, _)| *at).collect::<Vec<_>>() {
        let Some(mut old) = pieces.remove(&at) else { continue };
        if at + old.len() as u64 > end {
            pieces.insert(end, old.split_off((end - at) as usize));
        }
        if at < offset {
            old.truncate((offset - at) as usize);
            pieces.insert(at, old);
        }
    }
    pieces.insert(offset, piece);
}

/// A file under a temporary name beside its target; it is removed unless it is [kept](Self::keep).
pub(crate) struct TemporaryFile {
    pub(crate) file: Arc<File>,
    path: Option<PathBuf>,
    target: PathBuf,
    mode: DiskMode,
}

impl TemporaryFile {
    /// Creates a file of `len` bytes that will become `target`, or the file that `target` links to.
    pub(crate) async fn create(target: &Path, len: u64, mode: DiskMode, random: &Random) -> Result<Self> {
        let Destination::File(target) = Destination::of(target)? else {
            return Err(Error::invalid(format!("{} is not a regular file: write to it as a stream", target.display())));
        };
        let name = target.file_name().ok_or_else(|| Error::invalid(format!("'{}' is not a file name", target.display())))?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".weft-{:08x}", random.number() as u32));
        let path = target.with_file_name(hidden);
        let (created, shown) = (path.clone(), target.clone());
        let create = move || {
            let failed = |error| io_error(&shown, "write", &error);
            let file = File::options().write(true).create_new(true).open(&created).map_err(failed)?;
            if let Err(error) = file.set_len(len) {
                // Creating it failed, so it is useless; an error of its removal matters less.
                let _removed = std::fs::remove_file(&created);
                return Err(failed(error));
            }
            Ok(Arc::new(file))
        };
        let file = mode.run(create).await?;
        Ok(Self { file, path: Some(path), target, mode })
    }

    /// Completes it: makes it durable and gives it its name.
    pub(crate) async fn keep(self) -> Result<()> {
        self.keep_with(sync_parent).await
    }

    /// Like [`keep`](Self::keep); `sync_parent` makes the target's name durable.
    async fn keep_with(mut self, sync_parent: impl FnOnce(&Path) -> std::io::Result<()> + Send + 'static) -> Result<()> {
        let Some(path) = self.path.take() else { return Ok(()) };
        let (file, target) = (self.file.clone(), self.target.clone());
        let keep = move || {
            let kept = file.sync_all().and_then(|()| std::fs::rename(&path, &target)).and_then(|()| sync_parent(&target));
            kept.map_err(|error| {
                let _removed = std::fs::remove_file(&path);
                Error::fatal(format!("cannot write {}: {error}", target.display()))
            })
        };
        self.mode.run(keep).await
    }
}

/// A name is as durable as its directory.
fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Some(path) = self.path.take()
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove the temporary file of a failed get");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_gets_its_name_when_it_is_complete_and_leaves_nothing_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        let names = || {
            let entries = std::fs::read_dir(dir.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        for keep in [false, true] {
            let random = Random::seeded(7);
            let temporary = TemporaryFile::create(&target, 6, DiskMode::Pool, &random).await.unwrap();
            let place = Place::file(100, temporary.file.clone(), DiskMode::Pool);
            place.write(vec![(103, Bytes::from("def")), (100, Bytes::from("abc"))]).await.unwrap();
            assert!(place.write(vec![(99, Bytes::from("x"))]).await.is_err());
            assert!(!target.exists());
            if keep {
                temporary.keep().await.unwrap()
            } else {
                drop(temporary)
            }
            assert_eq!(names(), if keep { vec!["target".to_string()] } else { vec![] });
        }
        assert_eq!(std::fs::read(&target).unwrap(), b"abcdef");
        let nowhere = dir.path().join("no/such/file");
        let error = TemporaryFile::create(&nowhere, 1, DiskMode::Inline, &Random::seeded(1)).await.err().unwrap();
        assert!(error.message.contains("no/such/file: "), "{error}");
    }

    #[tokio::test]
    async fn a_symbolic_link_stays_and_a_device_or_pipe_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let [link, file] = ["link", "file"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("file", &link).unwrap();
        let random = Random::seeded(7);
        TemporaryFile::create(&link, 6, DiskMode::Inline, &random).await.unwrap().keep().await.unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink() && std::fs::metadata(&file).unwrap().len() == 6);
        assert!(TemporaryFile::create(Path::new("/dev/null"), 6, DiskMode::Inline, &random).await.is_err());
    }

    #[tokio::test]
    async fn a_file_is_kept_only_when_its_name_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        let temporary = async || TemporaryFile::create(&target, 6, DiskMode::Pool, &Random::seeded(7)).await.unwrap();
        let (asked, synced) = std::sync::mpsc::channel();
        let sync = move |path: &Path| {
            // Before it has the name, there is nothing to make durable.
            asked.send((path.to_path_buf(), path.exists())).unwrap();
            sync_parent(path)
        };
        temporary().await.keep_with(sync).await.unwrap();
        assert_eq!(synced.iter().collect::<Vec<_>>(), [(target.clone(), true)]);

        let failing = |_: &Path| Err(std::io::Error::other("the disk is gone"));
        let error = temporary().await.keep_with(failing).await.unwrap_err();
        assert!(error.message.contains("target: the disk is gone"), "{error}");
        assert!(sync_parent(&dir.path().join("no/file")).is_err());
        sync_parent(Path::new("a-name-alone-is-in-the-working-directory")).unwrap();
    }

    #[tokio::test]
    async fn writers_of_one_file_take_turns_and_all_of_it_arrives() {
        let dir = tempfile::tempdir().unwrap();
        let temporary = TemporaryFile::create(&dir.path().join("t"), 64, DiskMode::Pool, &Random::seeded(7)).await.unwrap();
        let place = Place::file(0, temporary.file.clone(), DiskMode::Pool);
        let Place::File { turn, .. } = &place else { panic!("a file is one") };
        let held = turn.lock().await;
        let mut writing =
            Box::pin(futures::future::try_join_all((0..64).map(|at| place.write(vec![(at, Bytes::from(vec![at as u8]))]))));
        assert!(futures::poll!(writing.as_mut()).is_pending());
        assert_eq!(std::fs::read(temporary.path.as_ref().unwrap()).unwrap(), [0; 64], "a write ignored its turn");
        drop(held);
        writing.await.unwrap();
        assert_eq!(std::fs::read(temporary.path.as_ref().unwrap()).unwrap(), (0..64).collect::<Vec<u8>>());
    }

    #[tokio::test]
    async fn memory_takes_only_bytes_of_its_window() {
        let place = Place::memory(Span::new(10, 14));
        place.write(vec![(12, Bytes::from("cd")), (10, Bytes::from("ab"))]).await.unwrap();
        for outside in [9, 13, 14, u64::MAX] {
            assert!(place.write(vec![(outside, Bytes::from("xy"))]).await.is_err());
        }
        assert_eq!(place.take_memory().unwrap().concat(), b"abcd");
    }

    #[tokio::test]
    async fn bytes_that_come_again_replace_the_earlier_ones_and_a_gap_is_an_error() {
        let place = || Place::memory(Span::new(100, 108));
        for (offset, again, expected) in [
            (100, "XY", "XYcdefgh"),
            (101, "XY", "aXYdefgh"),
            (103, "XYZ", "abcXYZgh"),
            (102, "X", "abXdefgh"),
            (104, "WXYZ", "abcdWXYZ"),
            (100, "STUVWXYZ", "STUVWXYZ"),
        ] {
            let place = place();
            let first = [(104, "efgh"), (100, "abcd")].map(|(offset, piece)| (offset, Bytes::from(piece)));
            place.write(first.into()).await.unwrap();
            place.write(vec![(offset, Bytes::from(again)), (offset, Bytes::new())]).await.unwrap();
            assert_eq!(place.take_memory().unwrap().concat(), expected.as_bytes());
        }
        for missing in [vec![], vec![(101, "bcdefgh")], vec![(100, "abc"), (104, "efgh")], vec![(100, "abcdefg")]] {
            let place = place();
            place.write(missing.iter().map(|(offset, piece)| (*offset, Bytes::from(*piece))).collect()).await.unwrap();
            assert!(place.take_memory().is_err(), "{missing:?}");
        }
    }
}
