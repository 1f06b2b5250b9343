//! Classifies the path of a get: a file that can be replaced, or a device or pipe, which must not be.

use crate::io_error;
use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};
use weft_types::{Error, Result};

/// The destination of a get.
///
/// ```
/// # use weft_client::Destination;
/// assert_eq!(Destination::of("/dev/null".as_ref()), Ok(Destination::Stream("/dev/null".into())));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A regular file, which need not exist yet, with all symbolic links resolved: a new file can take its place.
    File(PathBuf),
    /// A device or a pipe: it is written to and never replaced.
    Stream(PathBuf),
}

/// Most symbolic links that are followed to a file that does not exist yet; the system has the same limit.
const LINKS_MAX: usize = 40;

impl Destination {
    /// Classifies `path`. Directories and sockets are refused.
    pub fn of(path: &Path) -> Result<Self> {
        let shown = path.display();
        let failed = |error: std::io::Error| io_error(path, "write", &error);
        let kind = match fs::metadata(path) {
            Ok(metadata) => metadata.file_type(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::File(behind_links(path).map_err(failed)?)),
            Err(error) => return Err(failed(error)),
        };
        match () {
            () if kind.is_file() => fs::canonicalize(path).map(Self::File).map_err(failed),
            () if kind.is_dir() => Err(Error::invalid(format!("{shown} is a directory: pass the path of a file"))),
            () if kind.is_socket() => Err(Error::invalid(format!("{shown} is a socket: pass the path of a file"))),
            () => Ok(Self::Stream(path.to_owned())),
        }
    }
}

/// The target of symbolic links that lead to a file that does not exist yet.
fn behind_links(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(std::io::Error::other("too many symbolic links"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::{fs::symlink, net::UnixListener};

    #[test]
    fn links_are_followed_and_devices_are_distinguished_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        fs::write(at("file"), "").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("second", at("first")).unwrap();
        symlink(at("nothing"), at("second")).unwrap();
        symlink("/dev/null", at("null")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        for (name, leads_to) in [("file", "file"), ("link", "file"), ("nothing", "nothing"), ("first", "nothing")] {
            assert_eq!(Destination::of(&at(name)), Ok(Destination::File(at(leads_to))), "{name}");
        }
        assert_eq!(Destination::of(&at("null")), Ok(Destination::Stream(at("null"))));
        for refused in ["", "socket", "loop", "file/x"] {
            assert!(Destination::of(&at(refused)).is_err(), "{refused}");
        }
    }
}
