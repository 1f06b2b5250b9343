//! The files under a disk: one seam for all that the store does with files. [`RealFiles`] is the operating system;
//! [`SimFiles`](crate::SimFiles) is a file system in memory that crashes, for tests and simulations.

use rustix::fs::{Advice, FallocateFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, TryLockError};
use std::io::{self, ErrorKind, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use weft_types::Span;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// For reading.
    Read,
    /// For reading and writing.
    Write,
    /// For reading and writing; it is created if it does not exist.
    CreateOrKeep,
    /// For reading and writing; it is created, or emptied if it exists.
    CreateEmpty,
}

/// The size of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All bytes.
    pub total_bytes: u64,
    /// The bytes that can still be written.
    pub free_bytes: u64,
}

/// A file system.
///
/// The store assumes: a rename is atomic. What a sync of a file or directory has confirmed survives a loss of power. Of what was not
/// synced, any part may survive; a write is torn at most between sectors of 512 bytes. After a failed sync nothing that was written
/// since the last one is certain.
pub trait Files: Send + Sync + fmt::Debug {
    /// Opens a file.
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn FileHandle>>;

    /// Creates a directory; fails if it exists.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Creates a directory and its parents, unless they exist.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Renames a file, replacing another of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file a second name.
    fn hard_link(&self, file: &Path, name: &Path) -> io::Result<()>;

    /// Removes a file's name.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, in any order.
    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>>;

    /// Whether a file or directory exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// The length of a file, in bytes.
    fn len(&self, path: &Path) -> io::Result<u64>;

    /// The path without symbolic links and relative parts.
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// The size of the file system of a directory.
    fn space(&self, dir: &Path) -> io::Result<Space>;

    /// Identifies the file system of a directory, as in [`Capacity`](crate::Capacity); 0: unknown.
    fn file_system(&self, dir: &Path) -> io::Result<u64>;

    /// Reads a whole small text.
    fn read_text(&self, path: &Path) -> io::Result<String> {
        let file = self.open(path, Open::Read)?;
        let mut bytes = vec![0; file.len()?.min(TEXT_BYTES_MAX) as usize];
        file.read_exact_at(&mut bytes, 0)?;
        String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into())
    }
}

/// The most that [`Files::read_text`] reads.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// An open file.
pub trait FileHandle: Send + Sync + fmt::Debug {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills a buffer with the bytes from an offset on. Fails with [`ErrorKind::UnexpectedEof`] if there are too few.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// The same from memory only. Fails if it would wait for the disk.
    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all bytes, and extends the file if they end behind it.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Extends the file with zeros to at least this length, and reserves the space.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Begins to write a part to the disk, and does not wait. Only an advice.
    fn begin_write_back(&self, part: Span);

    /// Forgets what of a part is in memory and equals the disk, so that later reads tell what the disk has. Only an advice.
    fn drop_cache(&self, part: Span);

    /// Makes content and length durable (fsync).
    fn sync_all(&self) -> io::Result<()>;

    /// The same, without what is not needed to read them (fdatasync).
    fn sync_data(&self) -> io::Result<()>;

    /// Makes everything on its file system durable.
    fn sync_file_system(&self) -> io::Result<()>;

    /// Locks the file for this process until it is dropped. `false`: another process has it.
    fn try_lock(&self) -> io::Result<bool>;
}

/// The operating system's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFiles;

impl Files for RealFiles {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn FileHandle>> {
        let mut options = fs::File::options();
        options.read(true).write(how != Open::Read);
        options.create(matches!(how, Open::CreateOrKeep | Open::CreateEmpty)).truncate(how == Open::CreateEmpty);
        Ok(Box::new(options.open(path)?))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn hard_link(&self, file: &Path, name: &Path) -> io::Result<()> {
        fs::hard_link(file, name)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        let stat = rustix::fs::statvfs(dir)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space { total_bytes: bytes(stat.f_blocks), free_bytes: bytes(stat.f_bavail) })
    }

    /// By its device, and by the machine's current boot, which is drawn at random.
    fn file_system(&self, dir: &Path) -> io::Result<u64> {
        let device = fs::metadata(dir)?.dev();
        let Ok(boot) = fs::read_to_string("/proc/sys/kernel/random/boot_id") else { return Ok(0) };
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        Ok(u64::from_str_radix(&digits, 16).map_or(0, |boot| boot ^ device))
    }
}

impl FileHandle for fs::File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buf, offset)
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let read = rustix::io::preadv2(self, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT)?;
        if read == buf.len() { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(self, FallocateFlags::empty(), 0, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Self::set_len(self, self.metadata()?.len().max(len)),
            other => Ok(other?),
        }
    }

    fn begin_write_back(&self, part: Span) {
        // A file system that ignores the advice writes at the commit.
        let _only_advice = rustix::fs::fadvise(self, part.start, NonZeroU64::new(part.len()), Advice::DontNeed);
    }

    fn drop_cache(&self, part: Span) {
        // Without a length, it would be all that follows.
        if let Some(len) = NonZeroU64::new(part.len()) {
            let _only_advice = rustix::fs::fadvise(self, part.start, Some(len), Advice::DontNeed);
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        Self::sync_all(self)
    }

    fn sync_data(&self) -> io::Result<()> {
        Self::sync_data(self)
    }

    fn sync_file_system(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(self)?)
    }

    fn try_lock(&self) -> io::Result<bool> {
        match Self::try_lock(self) {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}
