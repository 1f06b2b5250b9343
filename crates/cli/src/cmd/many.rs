//! Work on many objects: names from a file or standard input, and a summary of what was done and what failed.

use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use weft_cli::{
    exit::Exit,
    files::{io_error, standard},
    interrupt::is_interrupted,
    output::Output,
    shell::on_one_line,
};
use weft_types::{Error, Result, human_bytes};

/// Most failures that are named.
const FAILURES_SHOWN: usize = 20;
/// Most bytes of a name: more than any path has.
const NAME_BYTES_MAX: usize = 8 << 10;

/// Names from a file or standard input.
#[derive(Debug, Args)]
pub(super) struct Source {
    /// Read the names from FILE, one a line; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    pub(super) from: Option<PathBuf>,
    /// With --from: each name ends with a NUL byte instead of a line feed, as `find -print0` writes them
    #[arg(short = '0', long, requires = "from")]
    null: bool,
}

/// Names that are read one after another.
pub(super) struct Names {
    reader: Box<dyn AsyncBufRead + Unpin + Send>,
    file: PathBuf,
    end: u8,
}

impl Source {
    /// Opens the file with the names; `None` without --from.
    pub(super) async fn open(&self) -> Result<Option<Names>> {
        let Some(file) = &self.from else { return Ok(None) };
        let opened = match file.as_path() == Path::new("-") {
            true => tokio::fs::File::from_std(standard(std::io::stdin())?),
            false => tokio::fs::File::open(file).await.map_err(|error| io_error(file, "read", &error))?,
        };
        let end = if self.null { 0 } else { b'\n' };
        Ok(Some(Names { reader: Box::new(BufReader::new(opened)), file: file.clone(), end }))
    }
}

impl Names {
    /// The next name that is not empty; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let mut name = Vec::new();
            let mut bounded = (&mut self.reader).take(NAME_BYTES_MAX as u64 + 1);
            let read = bounded.read_until(self.end, &mut name).await;
            if read.map_err(|error| io_error(&self.file, "read", &error))? == 0 {
                return Ok(None);
            }
            if name.last() == Some(&self.end) {
                name.pop();
            }
            if name.len() > NAME_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "a name in {} has more than {NAME_BYTES_MAX} bytes: write one name a line, or end each with a NUL byte and pass --null",
                    self.file.display()
                )));
            }
            if !name.is_empty() {
                return Ok(Some(name));
            }
        }
    }
}

/// What a command has done to many objects.
#[derive(Debug, Default, Serialize)]
pub(super) struct Done {
    /// The objects that it was done to.
    pub(super) objects: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// The number of names that it failed for.
    failed: u64,
    /// The first of them.
    failures: Vec<Failure>,
    #[serde(skip)]
    exit: Option<Exit>,
}

#[derive(Debug, Serialize)]
struct Failure {
    name: String,
    exit_code: u8,
    message: String,
}

impl Done {
    /// Counts an object.
    pub(super) fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Notes a failure; the command goes on.
    pub(super) fn fail(&mut self, name: &str, error: &Error) {
        let exit = Exit::from(error);
        self.exit = Some(self.exit.map_or(exit, |before| if before == exit { exit } else { Exit::Failed }));
        self.failed += 1;
        if self.failures.len() < FAILURES_SHOWN {
            // The name is said already.
            let message = Error { object: None, ..error.clone() }.to_string();
            self.failures.push(Failure { name: name.to_owned(), exit_code: exit as u8, message });
        }
    }

    /// The exit code: that of the failures if all have the same one, 1 if they differ.
    pub(super) fn exit(&self) -> Exit {
        self.exit.unwrap_or(Exit::Ok)
    }

    /// `12 objects, 3.4 MiB`.
    pub(super) fn amount(&self) -> String {
        let unit = if self.objects == 1 { "object" } else { "objects" };
        format!("{} {unit}, {}", self.objects, human_bytes(self.bytes))
    }

    /// `; 2 failed`, or nothing.
    pub(super) fn failed(&self) -> String {
        if self.failed == 0 { String::new() } else { format!("; {} failed", self.failed) }
    }

    /// Names what failed on stderr; JSON results contain it.
    pub(super) fn tell_failures(&self, output: Output) {
        if output.json {
            return;
        }
        for Failure { name, message, .. } in &self.failures {
            eprintln!("failed: {}", on_one_line(&format!("{name}: {message}")));
        }
        let rest = self.failed - self.failures.len() as u64;
        if rest > 0 {
            eprintln!("failed: {rest} more");
        }
    }

    /// The error of a command that ended early, with what it has done before: `did` is a word such as `removed`.
    pub(super) fn ended_early(&self, error: Error, did: &str, output: Output) -> Error {
        if self.objects + self.failed == 0 && !is_interrupted() {
            return error;
        }
        self.tell_failures(output);
        Error { message: format!("{}; {did} before that: {}{}", error.message, self.amount(), self.failed()), ..error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &[u8], null: bool) -> Result<Vec<String>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut names = Source { from: Some(file.path().into()), null }.open().await?.unwrap();
        let mut all = Vec::new();
        while let Some(name) = names.next().await? {
            all.push(String::from_utf8(name).unwrap());
        }
        Ok(all)
    }

    #[tokio::test]
    async fn names_end_with_a_line_feed_or_a_nul_byte_and_are_bounded() {
        assert_eq!(all(b"a\n\nb c\r\nd", false).await.unwrap(), ["a", "b c\r", "d"]);
        assert_eq!(all(b"a\nb\0\0c\0", true).await.unwrap(), ["a\nb", "c"]);
        assert_eq!(all(b"", false).await.unwrap(), [""; 0]);
        let long = "x".repeat(NAME_BYTES_MAX);
        assert_eq!(all(format!("{long}\n{long}").as_bytes(), false).await.unwrap().len(), 2);
        assert!(all(format!("a\n{long}x\n").as_bytes(), false).await.unwrap_err().message.contains("--null"));
    }

    #[test]
    fn failures_are_bounded_and_their_common_exit_code_is_the_commands() {
        let mut done = Done::default();
        assert_eq!(done.exit(), Exit::Ok);
        for _ in 0..100 {
            done.fail("b/k", &Error::not_found("no").object("b/k"));
        }
        assert_eq!(
            (done.exit(), done.failures.len(), done.failed()),
            (Exit::NotFound, FAILURES_SHOWN, "; 100 failed".to_owned())
        );
        assert_eq!(done.failures[0].message, "no");
        done.fail("b/k", &Error::invalid("no"));
        assert_eq!(done.exit(), Exit::Failed);
    }
}
