//! Files to store: those of a tree, and the keys that paths become.

use std::{
    fs::{self, FileType, Metadata, ReadDir},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Component, Path, PathBuf},
};
use weft_cli::files::io_error;
use weft_types::{Error, Result};

/// Most directories within each other: each is open while its entries are read.
const DEPTH_MAX: usize = 128;

/// What a walk through a tree meets.
#[derive(Debug)]
pub(super) enum Found {
    /// A file, its path below the root as a key, and its length in bytes.
    File { path: PathBuf, key: String, len: u64 },
    /// A symbolic link, which is not followed.
    Link,
    /// What cannot be stored, and why.
    Failed(PathBuf, Error),
}

/// A directory whose entries are being read.
struct Level {
    entries: ReadDir,
    path: PathBuf,
    /// What the keys of its files begin with: empty, or with a final `/`.
    prefix: String,
    /// Its device and inode, to notice links to a directory that contains them.
    id: (u64, u64),
}

struct Walk<F> {
    levels: Vec<Level>,
    follows_links: bool,
    told: F,
}

/// Tells of all files below a directory, in no order, until `told` returns false. Memory does not grow with the number of files.
pub(super) fn walk(root: &Path, follows_links: bool, told: impl FnMut(Found) -> bool) {
    let mut walk = Walk { levels: Vec::new(), follows_links, told };
    let mut goes_on = match fs::metadata(root) {
        Ok(metadata) => walk.enter(root.to_owned(), String::new(), &metadata),
        Err(error) => (walk.told)(Found::Failed(root.to_owned(), io_error(root, "read", &error))),
    };
    while goes_on && let Some(level) = walk.levels.last_mut() {
        goes_on = match level.entries.next() {
            Some(Ok(entry)) => {
                let prefix = level.prefix.clone();
                walk.entry(entry.path(), &prefix)
            }
            Some(Err(error)) => {
                let path = level.path.clone();
                walk.levels.pop();
                (walk.told)(Found::Failed(path.clone(), io_error(&path, "read", &error)))
            }
            None => walk.levels.pop().is_some(),
        };
    }
}

impl<F: FnMut(Found) -> bool> Walk<F> {
    fn entry(&mut self, path: PathBuf, prefix: &str) -> bool {
        let metadata = if self.follows_links { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
        let found = match (metadata, path.file_name().and_then(|name| name.to_str())) {
            (Err(error), _) => Found::Failed(path.clone(), io_error(&path, "read", &error)),
            (Ok(metadata), _) if metadata.is_symlink() => Found::Link,
            (Ok(_), None) => Found::Failed(path, not_utf8()),
            (Ok(metadata), Some(name)) if metadata.is_dir() => {
                let prefix = format!("{prefix}{name}/");
                return self.enter(path, prefix, &metadata);
            }
            (Ok(metadata), Some(name)) => match check_kind(metadata.file_type()) {
                Ok(()) => Found::File { key: format!("{prefix}{name}"), path, len: metadata.len() },
                Err(error) => Found::Failed(path, error),
            },
        };
        (self.told)(found)
    }

    fn enter(&mut self, path: PathBuf, prefix: String, metadata: &Metadata) -> bool {
        let id = (metadata.dev(), metadata.ino());
        let error = match fs::read_dir(&path) {
            _ if self.levels.len() >= DEPTH_MAX => {
                Error::invalid(format!("it is below {DEPTH_MAX} directories, and no more are read"))
            }
            _ if self.levels.iter().any(|level| level.id == id) => {
                Error::invalid("a symbolic link leads back to a directory above it")
            }
            Err(error) => io_error(&path, "read", &error),
            Ok(entries) => {
                self.levels.push(Level { entries, path, prefix, id });
                return true;
            }
        };
        (self.told)(Found::Failed(path, error))
    }
}

/// The key of a path in a list of files: its parts without `.`.
pub(super) fn key_of(path: &Path) -> Result<String> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str().ok_or_else(not_utf8)?),
            Component::CurDir => {}
            Component::ParentDir => {
                return Err(Error::invalid("a path with '..' does not become a key: name a path below this directory"));
            }
            Component::RootDir | Component::Prefix(_) => {
                return Err(Error::invalid("an absolute path does not become a key: name a path relative to this directory"));
            }
        }
    }
    if parts.is_empty() { Err(Error::invalid("it names no file")) } else { Ok(parts.join("/")) }
}

/// The length of a regular file, or of the one that a link points to; fails for anything else.
pub(super) fn file_len(path: &Path) -> Result<u64> {
    let metadata = fs::metadata(path).map_err(|error| io_error(path, "read", &error))?;
    check_kind(metadata.file_type()).map(|()| metadata.len())
}

fn check_kind(kind: FileType) -> Result<()> {
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => return Err(Error::invalid("it is a directory: pass --recursive to store the files in it")),
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(Error::invalid(format!("it is {what}, not a regular file")))
}

fn not_utf8() -> Error {
    Error::invalid("its name is not UTF-8, and a key must be: rename it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, os::unix::fs::symlink};

    /// The keys of a tree, the number of links, and what failed.
    fn all(root: &Path, follows_links: bool) -> (Vec<String>, usize, Vec<String>) {
        let (mut keys, mut links, mut failed) = (Vec::new(), 0, Vec::new());
        walk(root, follows_links, |found| {
            match found {
                Found::File { path, key, len } => {
                    assert_eq!((fs::read(&path).unwrap(), len), (key.clone().into_bytes(), key.len() as u64));
                    keys.push(key);
                }
                Found::Link => links += 1,
                Found::Failed(path, error) => failed.push(format!("{}: {}", path.file_name().unwrap().display(), error.message)),
            }
            true
        });
        keys.sort();
        failed.sort();
        (keys, links, failed)
    }

    #[test]
    fn a_tree_becomes_keys_and_nothing_leads_out_of_it_or_around() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for key in ["a", "d/b", "d/e/ü c", ".hidden"] {
            fs::create_dir_all(root.join(key).parent().unwrap()).unwrap();
            fs::write(root.join(key), key).unwrap();
        }
        fs::create_dir(root.join("empty")).unwrap();
        let plain = vec![".hidden".to_owned(), "a".into(), "d/b".into(), "d/e/ü c".into()];
        assert_eq!(all(root, false), (plain.clone(), 0, vec![]));

        symlink(root, root.join("d/up")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        fs::write(root.join(OsStr::from_bytes(b"x\xff")), "").unwrap();
        let socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let (keys, links, failed) = all(root, false);
        assert_eq!((keys, links), (plain.clone(), 2));
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(failed[0].contains("a socket, not a regular file") && failed[1].contains("is not UTF-8"), "{failed:?}");
        let (keys, links, failed) = all(root, true);
        assert_eq!((keys, links, failed.len()), (plain, 0, 4), "{failed:?}");
        assert!(failed.iter().any(|it| it.contains("up: a symbolic link leads back")), "{failed:?}");
        drop(socket);

        let mut count = 0;
        walk(root, false, |_| {
            count += 1;
            count < 2
        });
        assert_eq!(count, 2, "the walk must end when it is no longer heard");
    }

    #[test]
    fn the_depth_of_a_tree_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let key = format!("{}f", "d/".repeat(DEPTH_MAX - 1));
        fs::create_dir_all(dir.path().join(&key).parent().unwrap().join("d")).unwrap();
        fs::write(dir.path().join(&key), &key).unwrap();
        let (keys, _, failed) = all(dir.path(), false);
        assert_eq!(keys, [key]);
        assert!(failed.len() == 1 && failed[0].contains("below 128 directories"), "{failed:?}");
    }

    #[test]
    fn paths_in_lists_become_keys_only_below_this_directory() {
        let key = |path: &[u8]| key_of(Path::new(OsStr::from_bytes(path))).map_err(|error| error.message);
        assert_eq!(key(b"a/b.jpg").unwrap(), "a/b.jpg");
        assert_eq!(key(b"./a//b/./c").unwrap(), "a/b/c");
        for (path, part) in [
            (&b"../a"[..], "'..'"),
            (b"a/../b", "'..'"),
            (b"/etc/passwd", "absolute"),
            (b".", "no file"),
            (b"", "no file"),
            (b"a/\xff", "UTF-8"),
        ] {
            assert!(key(path).unwrap_err().contains(part));
        }
    }
}
