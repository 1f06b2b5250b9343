//! The directory of a temporary testbed: in memory, or on a disk if what the disk does is measured, and removed afterwards.

use std::{
    fs::{self, DirBuilder, File},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};
use weft_cli::{files::io_error, local::SCRATCH_FILE as MARK, seed::seed};
use weft_types::{Error, Result};

/// A file system in memory, so disks do not slow down what links deliver.
const IN_MEMORY: &str = "/dev/shm";
/// The prefix of such directories; 16 digits follow.
const PREFIX: &str = "weft-bench-";

/// What `statfs` says of file systems in memory: tmpfs and ramfs.
const MEMORY_TYPES: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Creates an empty directory in memory, if there is such a file system.
pub(crate) fn make() -> Result<PathBuf> {
    let memory = Path::new(IN_MEMORY);
    make_in(&if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() })
}

/// Creates an empty directory below TMPDIR. Fails if it is in memory.
pub(crate) fn make_on_disk() -> Result<PathBuf> {
    let parent = std::env::temp_dir();
    let found = rustix::fs::statfs(&parent).map_err(|errno| io_error(&parent, "look at", &errno.into()))?;
    if MEMORY_TYPES.contains(&(found.f_type as u64)) {
        let parent = parent.display();
        return Err(Error::invalid(format!(
            "{parent} is in memory: set TMPDIR to a directory on a disk, whose syncs are measured"
        )));
    }
    make_in(&parent)
}

/// The kind of the file system of a directory, such as `ext4`.
pub(crate) fn file_system(dir: &Path) -> Result<String> {
    let (dir, mounts) = (fs::canonicalize(dir), Path::new("/proc/self/mounts"));
    let mounted = fs::read_to_string(mounts).map_err(|error| io_error(mounts, "read", &error))?;
    let dir = dir.map_err(|error| io_error(mounts, "look at", &error))?;
    let mut kind = ("", "unknown");
    for fields in mounted.lines().map(|line| line.split(' ').collect::<Vec<_>>()) {
        // Of mounts at one place, the last one counts.
        if let [_, place, what, ..] = fields[..]
            && dir.starts_with(place)
            && place.len() >= kind.0.len()
        {
            kind = (place, what);
        }
    }
    Ok(kind.1.to_owned())
}

fn make_in(parent: &Path) -> Result<PathBuf> {
    let dir = parent.join(format!("{PREFIX}{:016x}", seed()?));
    DirBuilder::new().mode(0o700).create(&dir).map_err(|error| io_error(&dir, "create", &error))?;
    let mark = dir.join(MARK);
    File::create_new(&mark).map_err(|error| io_error(&mark, "create", &error))?;
    Ok(dir)
}

/// Removes a directory that was created here, by any process; leaves other directories and copies alone.
pub(super) fn remove(dir: &Path) -> Result<()> {
    let name = dir.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX));
    let is_name = name.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let is_place = [Path::new(IN_MEMORY), &std::env::temp_dir()].into_iter().any(|place| {
        let real = fs::canonicalize(place).ok();
        [Some(place), real.as_deref()].contains(&dir.parent())
    });
    if !(is_name && is_place && dir.join(MARK).is_file()) {
        return Ok(());
    }
    fs::remove_dir_all(dir).map_err(|error| io_error(dir, "remove", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_in_memory_are_known() {
        assert_eq!(file_system(Path::new("/proc")).unwrap(), "proc");
        if Path::new(IN_MEMORY).is_dir() {
            assert_eq!(file_system(Path::new(IN_MEMORY)).unwrap(), "tmpfs");
        }
    }

    #[test]
    fn only_what_a_benchmark_made_is_removed() {
        let scratch = make().unwrap();
        let place = scratch.parent().unwrap();
        // A user's directory with such a name, a copy elsewhere, and a directory with another name.
        let own = place.join(format!("{PREFIX}{:016x}", seed().unwrap()));
        let elsewhere = tempfile::tempdir().unwrap();
        let copy = elsewhere.path().join(scratch.file_name().unwrap());
        let named = place.join(format!("{PREFIX}of-{:016x}", seed().unwrap()));
        for dir in [&own, &copy, &named] {
            fs::create_dir(dir).unwrap();
        }
        fs::write(copy.join(MARK), "").unwrap();
        fs::write(named.join(MARK), "").unwrap();
        for dir in [&scratch, &own, &copy, &named] {
            remove(dir).unwrap();
        }
        assert!(!scratch.exists());
        for dir in [&own, &copy, &named] {
            assert!(dir.is_dir(), "{}", dir.display());
            fs::remove_dir_all(dir).unwrap();
        }
        // Removing a missing directory is no error.
        remove(&scratch).unwrap();
    }
}
