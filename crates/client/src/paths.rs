//! Errors of the operating system, in the words of a user of files.

use std::{
    io::{Error as IoError, ErrorKind},
    path::Path,
};
use weft_types::{Cause, Error};

/// An error of the operating system with its path; the kind of error decides the reaction.
pub fn io_error(path: &Path, what: &str, error: &IoError) -> Error {
    let shown = path.display();
    let says = |why: &str| format!("cannot {what} {shown}: {why}");
    match error.kind() {
        ErrorKind::NotFound => Error::not_found(says(&absent(path, what))),
        ErrorKind::AlreadyExists => Error::invalid(says("a file of this name exists")),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::unavailable(says(&plain(error))).cause(Cause::NoSpace),
        ErrorKind::IsADirectory => Error::invalid(says("it is a directory, not a file")),
        ErrorKind::NotADirectory => match file_within(path) {
            Some(file) => Error::invalid(says(&format!("{} is a file, not a directory", file.display()))),
            None => Error::invalid(says("it is not a directory")),
        },
        ErrorKind::PermissionDenied => Error::invalid(says("this user does not have the permission")),
        ErrorKind::ReadOnlyFilesystem => Error::invalid(says("its file system is read-only")),
        ErrorKind::InvalidInput | ErrorKind::InvalidFilename => Error::invalid(says(&plain(error))),
        _ => Error::fatal(says(&plain(error))),
    }
}

/// An error of the output of a read, which no other plan avoids.
pub(crate) fn cannot_write(error: IoError) -> Error {
    let failed = Error::fatal(format!("cannot write: {}", plain(&error)));
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => failed.cause(Cause::NoSpace),
        _ => failed,
    }
}

/// What does not exist: a new file lacks its directory, or the file system does not allow it.
fn absent(path: &Path, what: &str) -> String {
    let is_new = matches!(what, "create" | "write");
    match path.parent().filter(|dir| is_new && !dir.as_os_str().is_empty()) {
        Some(dir) if !dir.exists() => format!("the directory {} does not exist", dir.display()),
        Some(dir) => format!("{} accepts no new files", dir.display()),
        None => "it does not exist".to_owned(),
    }
}

/// The part of a path before its last component that is a file.
fn file_within(path: &Path) -> Option<&Path> {
    path.ancestors().skip(1).find(|part| part.is_file())
}

/// The operating system's message without its number.
fn plain(error: &IoError) -> String {
    let message = error.to_string();
    message.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn errors_of_paths_say_which_part_is_wrong() {
        let scratch = tempfile::TempDir::new().unwrap();
        let dir = scratch.path();
        std::fs::write(dir.join("file"), "").unwrap();
        let read = |name: &str| {
            let path = dir.join(name);
            let error = std::fs::read(&path).unwrap_err();
            io_error(&path, "read", &error).message.replace(dir.to_str().unwrap(), "DIR")
        };
        let create = |name: &str| {
            let path = dir.join(name);
            let error = File::create_new(&path).unwrap_err();
            io_error(&path, "create", &error).message.replace(dir.to_str().unwrap(), "DIR")
        };
        assert_eq!(read("none"), "cannot read DIR/none: it does not exist");
        assert_eq!(read(""), "cannot read DIR/: it is a directory, not a file");
        assert_eq!(read("file/a/b"), "cannot read DIR/file/a/b: DIR/file is a file, not a directory");
        assert_eq!(create("none/a"), "cannot create DIR/none/a: the directory DIR/none does not exist");
        assert_eq!(create("file"), "cannot create DIR/file: a file of this name exists");
        let long = "x".repeat(300);
        assert_eq!(create(&long), format!("cannot create DIR/{long}: File name too long"));
    }
}
