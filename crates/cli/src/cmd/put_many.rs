//! `weft put` of many files: several at a time, in bounded memory.

use super::{
    many::{Done, Names, Source},
    tree::{Found, file_len, key_of, walk},
};
use clap::Args;
use serde::Serialize;
use std::{
    collections::{BTreeSet, HashSet},
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::{sync::mpsc, task::JoinSet};
use weft_cli::{
    exit::Exit,
    files::io_error,
    output::{Output, human_rate},
    progress::Progress,
    session::Session,
    target,
};
use weft_client::{ProgressFn, PutOptions, api};
use weft_control::eta::Work;
use weft_types::{Error, Reaction, Result};

/// Most files that are found before their turn.
const FOUND_MAX: usize = 64;
/// Most different warnings that are kept.
const WARNINGS_MAX: usize = 8;
/// After so many failures in a row that concern the cluster, not a file, the command ends.
const FAILURES_IN_A_ROW_MAX: u32 = 16;

/// The options for many files.
#[derive(Debug, Args)]
pub(super) struct Many {
    /// Store all files below the directory DIR; their paths below it become keys
    #[arg(short, long, conflicts_with_all = ["from", "explain"])]
    recursive: bool,
    /// With --recursive: store the files that symbolic links point to, also in other directories; otherwise links are skipped
    #[arg(long, requires = "recursive")]
    follow_symlinks: bool,
    #[command(flatten)]
    source: Source,
    /// Files in progress at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,
}

/// What a command line asks to store.
pub(super) enum Asked {
    /// A file, or `-`, as `BUCKET/KEY`.
    One(PathBuf, String),
    /// Files, in a folder.
    Files(Vec<PathBuf>, Folder),
    /// The files of a tree, below a prefix.
    Tree(PathBuf, Folder),
    /// The files of a list, below a prefix.
    List(Folder),
}

/// `BUCKET/` or `BUCKET/PREFIX/`.
pub(super) struct Folder {
    bucket: String,
    /// Empty, or with a final `/`.
    prefix: String,
}

/// Files on their way.
struct Puts<'a> {
    session: &'a Session,
    folder: Folder,
    options: PutOptions,
    progress: Progress,
    sent: Arc<AllSent>,
    running: JoinSet<Put>,
    report: &'a mut Report,
    failures_in_a_row: u32,
}

/// A put that has ended.
struct Put {
    path: PathBuf,
    stored: Result<api::ObjectReply>,
    sent: Arc<Sent>,
}

/// What all puts have done, for the progress.
#[derive(Default)]
struct AllSent {
    objects: AtomicU64,
    bytes: AtomicU64,
}

/// The bytes that a put has sent, as a part of those of all puts.
struct Sent {
    all: Arc<AllSent>,
    own: AtomicU64,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    #[serde(flatten)]
    done: Done,
    /// Symbolic links that were not followed.
    skipped_links: u64,
    /// Objects that were acknowledged before all their blocks were durable.
    incomplete: u64,
    seconds: f64,
    warnings: BTreeSet<String>,
}

impl Many {
    /// What the paths of the command line mean: files, and the target.
    pub(super) fn asked(&self, paths: &[PathBuf]) -> Result<Asked> {
        let (target, files) = paths.split_last().ok_or_else(no_target)?;
        let target =
            target.to_str().ok_or_else(|| Error::invalid(format!("{} is not UTF-8: write BUCKET/KEY", target.display())))?;
        match files {
            [] if self.source.from.is_some() => Ok(Asked::List(Folder::below(target)?)),
            _ if self.source.from.is_some() => {
                Err(Error::invalid("with --from, the files are those of the list: write BUCKET/PREFIX only, and no FILE"))
            }
            [] => Err(no_target()),
            [dir] if self.recursive => {
                let metadata = std::fs::metadata(dir).map_err(|error| io_error(dir, "read", &error))?;
                if !metadata.is_dir() {
                    return Err(Error::invalid(format!("{} is not a directory: store it without --recursive", dir.display())));
                }
                Ok(Asked::Tree(dir.clone(), Folder::below(target)?))
            }
            _ if self.recursive => Err(Error::invalid("--recursive stores one directory: make a command for each")),
            [file] if target.ends_with('/') => Ok(Asked::One(file.clone(), format!("{target}{}", name_of(file)?))),
            [file] => Ok(Asked::One(file.clone(), target.to_owned())),
            _ if !target.ends_with('/') => Err(Error::invalid(format!(
                "several files go to a folder: write {target}/ for the folder or bucket of this name"
            ))),
            _ => {
                let mut names = HashSet::new();
                for file in files {
                    let name = name_of(file)?;
                    if !names.insert(name) {
                        return Err(Error::invalid(format!(
                            "two of the files are named {name}: only one of them can be {target}{name}"
                        )));
                    }
                }
                Ok(Asked::Files(files.to_vec(), Folder::below(target)?))
            }
        }
    }

    /// Stores many files.
    pub(super) fn store(&self, asked: Asked, put: PutOptions, options: &target::Options, output: Output) -> Result<Exit> {
        let (mut report, progress) = (Report::default(), Progress::of_objects("storing", output.json));
        let ended = Session::with(options, async |session| {
            let (running, sent, progress) = (JoinSet::new(), Arc::default(), progress.clone());
            if !output.json {
                self.count(&asked, Arc::downgrade(&sent), progress.clone());
            }
            let (folder, found) = self.found(asked).await?;
            check(session, &folder, &put).await?;
            let report = &mut report;
            let puts = Puts { session, folder, options: put, progress, sent, running, report, failures_in_a_row: 0 };
            puts.run(found, usize::from(self.parallel)).await
        });
        report.seconds = progress.finish();
        ended.map_err(|error| report.done.ended_early(error, "stored", output))?;
        if report.skipped_links > 0 {
            let count = report.skipped_links;
            report.warnings.insert(format!("skipped {count} symbolic links: --follow-symlinks stores what they point to"));
        }
        let warnings: Vec<String> = report.warnings.iter().cloned().collect();
        output.result_with(&report, &warnings, text)?;
        report.done.tell_failures(output);
        Ok(report.done.exit())
    }

    /// Starts to count the files of a tree or of the command line, for the progress. Ends early if the puts `sent` have ended.
    fn count(&self, asked: &Asked, sent: Weak<AllSent>, progress: Progress) {
        let goes_on = move || sent.strong_count() > 0;
        match asked {
            Asked::Tree(dir, _) => {
                let (dir, follows_links) = (dir.clone(), self.follow_symlinks);
                tokio::task::spawn_blocking(move || progress.set_total(tree_work(&dir, follows_links, goes_on)));
            }
            Asked::Files(files, _) => {
                let lens: Vec<u64> = files.iter().filter_map(|path| file_len(path).ok()).collect();
                progress.set_total(Work { items: lens.len() as u64, bytes: lens.iter().sum() });
            }
            Asked::One(..) | Asked::List(_) => {}
        }
    }

    /// Starts to find the files.
    async fn found(&self, asked: Asked) -> Result<(Folder, mpsc::Receiver<Result<Found>>)> {
        let (tell, found) = mpsc::channel(FOUND_MAX);
        let folder = match asked {
            Asked::Tree(dir, folder) => {
                let follows_links = self.follow_symlinks;
                tokio::task::spawn_blocking(move || walk(&dir, follows_links, |found| tell.blocking_send(Ok(found)).is_ok()));
                folder
            }
            Asked::Files(files, folder) => {
                tokio::task::spawn_blocking(move || {
                    let mut found = files.into_iter().map(|path| named(path, |path| name_of(path).map(str::to_owned)));
                    found.all(|found| tell.blocking_send(Ok(found)).is_ok())
                });
                folder
            }
            Asked::List(folder) => {
                let names = self.source.open().await?.ok_or_else(no_target)?;
                tokio::spawn(listed(names, tell));
                folder
            }
            Asked::One(..) => return Err(no_target()),
        };
        Ok((folder, found))
    }
}

/// The files of a tree and their bytes, as far as they are counted while `goes_on`.
fn tree_work(dir: &Path, follows_links: bool, goes_on: impl Fn() -> bool) -> Work {
    let mut work = Work::default();
    walk(dir, follows_links, |found| {
        if let Found::File { len, .. } = found {
            work = Work { items: work.items + 1, bytes: work.bytes.saturating_add(len) };
        }
        goes_on()
    });
    work
}

/// Fails if no file can be stored: there is no such bucket, or the coding or the prefix is invalid.
async fn check(session: &Session, folder: &Folder, put: &PutOptions) -> Result<()> {
    // Of a file whose size is unknown: small files may need fewer nodes.
    match session.client.explain_put(&folder.bucket, &format!("{}k", folder.prefix), 0, put).await {
        Err(error) if error.cause.is_none() => Err(error),
        _ => Ok(()),
    }
}

/// Tells of the files of a list, until nothing listens.
async fn listed(mut names: Names, tell: mpsc::Sender<Result<Found>>) {
    loop {
        let found = match names.next().await {
            Ok(None) => return,
            Ok(Some(name)) => Ok(named(PathBuf::from(OsString::from_vec(name)), key_of)),
            Err(error) => Err(error),
        };
        let ends = found.is_err();
        if tell.send(found).await.is_err() || ends {
            return;
        }
    }
}

/// A file that was named; its key follows from its path.
fn named(path: PathBuf, key: impl Fn(&Path) -> Result<String>) -> Found {
    match key(&path).and_then(|key| Ok((key, file_len(&path)?))) {
        Ok((key, len)) => Found::File { path, key, len },
        Err(error) => Found::Failed(path, error),
    }
}

/// The last part of a path.
fn name_of(file: &Path) -> Result<&str> {
    let cannot = |why: &str| Error::invalid(format!("{} {why}", file.display()));
    if file == Path::new("-") {
        return Err(cannot("is stdin, which has no name: write BUCKET/KEY"));
    }
    let name = file.file_name().ok_or_else(|| cannot("does not end with the name of a file"))?;
    name.to_str().ok_or_else(|| cannot("has a name that is not UTF-8, and a key must be: write BUCKET/KEY"))
}

fn no_target() -> Error {
    Error::invalid("a FILE and where to store it are required: write weft put FILE BUCKET/KEY")
}

impl Folder {
    /// `BUCKET`, or `BUCKET/PREFIX` with or without a final `/`.
    fn below(said: &str) -> Result<Self> {
        let (bucket, prefix) = said.split_once('/').unwrap_or((said, ""));
        if bucket.is_empty() {
            return Err(Error::invalid(format!("'{said}' names no bucket: write BUCKET/PREFIX")));
        }
        let end = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
        Ok(Self { bucket: bucket.to_owned(), prefix: format!("{prefix}{end}") })
    }
}

impl Puts<'_> {
    /// Stores what is found, `parallel` files at a time.
    async fn run(mut self, mut found: mpsc::Receiver<Result<Found>>, parallel: usize) -> Result<()> {
        let mut ended = None;
        loop {
            tokio::select! {
                Some(put) = self.running.join_next() => {
                    let stops = self.ended(put.map_err(|error| Error::fatal(format!("a put ended without a result: {error}")))?);
                    ended = ended.or(stops);
                }
                next = found.recv(), if ended.is_none() && self.running.len() < parallel => match next {
                    Some(Ok(found)) => self.start(found),
                    Some(Err(error)) => ended = Some(Err(error)),
                    None => ended = Some(Ok(())),
                },
                else => return ended.unwrap_or(Ok(())),
            }
        }
    }

    fn start(&mut self, found: Found) {
        let (path, key) = match found {
            Found::File { path, key, .. } => (path, format!("{}{key}", self.folder.prefix)),
            Found::Link => return self.report.skipped_links += 1,
            Found::Failed(path, error) => return self.report.done.fail(&path.to_string_lossy(), &error),
        };
        let sent = Arc::new(Sent { all: self.sent.clone(), own: AtomicU64::new(0) });
        let (told, progress) = (sent.clone(), self.progress.clone());
        let progress = ProgressFn::new(move |at| progress.set_work(told.set(at.done_bytes), None));
        let options = PutOptions { progress, ..self.options.clone() };
        let (client, bucket) = (self.session.client.clone(), self.folder.bucket.clone());
        self.running.spawn(async move {
            let stored = client.put_file(&bucket, &key, &path, &options).await;
            Put { path, stored, sent }
        });
    }

    /// Notes how a put ended; returns why the command ends, if it does.
    fn ended(&mut self, Put { path, stored, sent }: Put) -> Option<Result<()>> {
        let error = match stored {
            Ok(object) => {
                self.failures_in_a_row = 0;
                self.report.done.add(object.size);
                self.report.incomplete += u64::from(object.incomplete_count > 0);
                let room = WARNINGS_MAX.saturating_sub(self.report.warnings.len());
                self.report.warnings.extend(object.warnings.into_iter().take(room));
                self.sent.objects.fetch_add(1, Relaxed);
                self.progress.set_work(sent.set(object.size), None);
                return None;
            }
            Err(error) => error,
        };
        sent.set(0);
        self.report.done.fail(&path.to_string_lossy(), &error);
        let concerns_file = error.cause.is_none() && matches!(error.reaction, Reaction::InvalidInput | Reaction::NotFound);
        self.failures_in_a_row = if concerns_file { 0 } else { self.failures_in_a_row + 1 };
        (self.failures_in_a_row >= FAILURES_IN_A_ROW_MAX).then_some(Err(error))
    }
}

impl Sent {
    /// Replaces the bytes of this put; returns what all have done.
    fn set(&self, own: u64) -> Work {
        let added = own.wrapping_sub(self.own.swap(own, Relaxed));
        let bytes = self.all.bytes.fetch_add(added, Relaxed).wrapping_add(added);
        Work { items: self.all.objects.load(Relaxed), bytes }
    }
}

fn text(it: &Report) -> String {
    let rate = human_rate(it.done.bytes, it.seconds);
    let mut text = format!("stored {} in {:.2} s, {rate}{}", it.done.amount(), it.seconds, it.done.failed());
    if it.incomplete > 0 {
        text += &format!(
            "\n{} objects were acknowledged before all their blocks were stored: `weft stat` shows which are missing",
            it.incomplete
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[arg(long)]
        explain: bool,
        #[command(flatten)]
        many: Many,
        paths: Vec<PathBuf>,
    }

    /// What a command line means: the files, the bucket and the prefix.
    fn asked(words: &[&str]) -> Result<String, String> {
        let line = Line::try_parse_from([&["put"], words].concat()).map_err(|error| error.to_string())?;
        let below = |Folder { bucket, prefix }: Folder| format!("{bucket} {prefix}");
        Ok(match line.many.asked(&line.paths).map_err(|error| error.message)? {
            Asked::One(file, object) => format!("{} as {object}", file.display()),
            Asked::Files(files, folder) => format!("{} files in {}", files.len(), below(folder)),
            Asked::Tree(dir, folder) => format!("tree {} in {}", dir.display(), below(folder)),
            Asked::List(folder) => format!("list in {}", below(folder)),
        })
    }

    #[test]
    fn a_target_is_an_object_or_a_folder() {
        for (words, means) in [
            (&["f", "photos"][..], "f as photos"),
            (&["d/f", "photos/k"], "d/f as photos/k"),
            (&["d/f", "photos/"], "d/f as photos/f"),
            (&["d/f", "photos/2024/"], "d/f as photos/2024/f"),
            (&["-", "photos/k"], "- as photos/k"),
            (&["d/f", "g", "photos/"], "2 files in photos "),
            (&["d/f", "g", "photos/a/"], "2 files in photos a/"),
            (&["--recursive", "/", "photos"], "tree / in photos "),
            (&["-r", "/", "photos/a"], "tree / in photos a/"),
            (&["-r", "/", "photos/a/"], "tree / in photos a/"),
            (&["--from", "-", "photos/a"], "list in photos a/"),
        ] {
            assert_eq!(asked(words).as_deref(), Ok(means), "{words:?}");
        }
        for (words, part) in [
            (&["f"][..], "weft put FILE BUCKET/KEY"),
            (&["f", "g", "photos"], "write photos/"),
            (&["d/f", "e/f", "photos/"], "two of the files are named f"),
            (&["-", "photos/"], "stdin, which has no name"),
            (&["-", "f", "photos/"], "stdin, which has no name"),
            (&["..", "photos/"], "does not end with the name"),
            (&["-r", "no such directory", "photos"], "it does not exist"),
            (&["-r", "/dev/null", "photos"], "is not a directory"),
            (&["-r", "/", "/", "photos"], "one directory"),
            (&["-r", "/", "/photos"], "names no bucket"),
            (&["--from", "-", "f", "photos"], "no FILE"),
            (&["--from", "-", "-r", "photos"], "cannot be used with"),
            (&["--parallel", "65", "f", "photos"], "65"),
        ] {
            let refused = asked(words).unwrap_err();
            assert!(refused.contains(part), "{words:?}: {refused}");
        }
    }

    #[test]
    fn the_files_of_a_tree_are_counted_while_it_is_stored() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        for (name, len) in [("a", 5), ("d/b", 7), ("d/empty", 0)] {
            std::fs::write(dir.path().join(name), vec![0; len]).unwrap();
        }
        assert_eq!(tree_work(dir.path(), false, || true), Work { items: 3, bytes: 12 });
        assert_eq!(tree_work(dir.path(), false, || false).items, 1, "the count goes on after the puts have ended");
    }

    #[test]
    fn the_bytes_of_a_failed_put_are_taken_back() {
        let all = Arc::new(AllSent::default());
        let put = || Sent { all: all.clone(), own: AtomicU64::new(0) };
        let (one, other) = (put(), put());
        let bytes = [one.set(5), other.set(7), one.set(9), other.set(2), one.set(0)].map(|work| work.bytes);
        assert_eq!(bytes, [5, 12, 16, 11, 2]);
    }
}
