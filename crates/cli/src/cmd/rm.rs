//! `weft rm`: removes objects.

use super::{
    many::{Done, Names, Source},
    names::ObjectName,
};
use clap::Args;
use serde::Serialize;
use weft_cli::{
    exit::Exit,
    interrupt::is_interrupted,
    output::{Output, print},
    progress::Progress,
    session::Session,
    target,
};
use weft_client::{REMOVED_MAX, Removed};
use weft_control::eta::Work;
use weft_types::{Error, Reaction, Result};

/// Remove objects
///
/// Several objects are removed in each transaction, and each object is removed or still there, also after a crash. What fails does not
/// stop the rest: the command names it at the end. After an interrupted command, the same command removes the rest.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft rm photos/cat.jpg photos/dog.jpg
  weft rm --recursive photos/2024/ --dry-run
  weft rm --recursive photos/2024/          # keys that begin with '2024/'; without the final '/' also '2024-draft.jpg'
  weft rm --recursive photos --yes          # all objects of the bucket
  weft ls photos --recursive --json | jq -r '.[] | select(.size == 0) | \"photos/\" + .key' | weft rm --from -

EXIT CODES
  0 done, also if no key begins with the prefix   1 some objects failed, for different reasons   2 an invalid name, or --yes is missing   \
  3 no such object or bucket, or no cluster   4 no coordinator   130 interrupted; the message says how many objects were removed")]
pub(super) struct Rm {
    /// Remove all objects whose keys begin with PREFIX
    #[arg(short, long, visible_alias = "prefix", conflicts_with = "from")]
    recursive: bool,
    #[command(flatten)]
    source: Source,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Confirm the removal of all objects of a bucket: --recursive with a bucket and no PREFIX
    #[arg(long)]
    yes: bool,
    /// Objects: BUCKET/KEY; with --recursive: BUCKET/PREFIX
    #[arg(value_name = "OBJECT", required_unless_present = "from", conflicts_with = "from")]
    names: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    done: &'a Done,
    dry_run: bool,
}

/// A removal of many objects.
struct Removal<'a> {
    session: &'a Session,
    dry_run: bool,
    /// Print the names that would be removed.
    names_shown: bool,
    done: &'a mut Done,
    /// The objects whose removal is on its way.
    asked: &'a mut usize,
    progress: &'a Progress,
    batch: Vec<(String, String)>,
}

impl Rm {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match &self.names[..] {
            [one] if !self.recursive && !self.dry_run => remove_one(&parse(one)?, options, output),
            _ => self.remove_many(options, output),
        }
    }

    fn remove_many(self, options: &target::Options, output: Output) -> Result<Exit> {
        if self.recursive {
            self.check_buckets()?;
        }
        let progress = Progress::of_objects("removing", output.json || self.dry_run);
        let (mut done, mut asked) = (Done::default(), 0);
        let ended = Session::with(options, async |session| {
            let names_shown = self.dry_run && !output.json;
            let (done, asked, batch) = (&mut done, &mut asked, Vec::new());
            let removal = Removal { session, dry_run: self.dry_run, names_shown, done, asked, progress: &progress, batch };
            match self.source.open().await? {
                Some(names) => removal.listed(names).await,
                None if self.recursive => removal.below(&self.names).await,
                None => removal.named(&self.names).await,
            }
        });
        progress.finish();
        let did = if self.dry_run { "would remove" } else { "removed" };
        if let Err(error) = ended {
            let mut error = done.ended_early(error, did, output);
            if is_interrupted() && asked > 0 && !self.dry_run {
                error.message += &format!(", and up to {asked} more objects whose removal was on its way");
            }
            return Err(error);
        }
        let summary = Summary { done: &done, dry_run: self.dry_run };
        output.result(&summary, |it| format!("{did} {}{}", it.done.amount(), it.done.failed()))?;
        done.tell_failures(output);
        Ok(done.exit())
    }

    /// Refuses to remove whole buckets without --yes.
    fn check_buckets(&self) -> Result<()> {
        for (said, (bucket, prefix)) in self.names.iter().map(|said| (said, split(said))) {
            if bucket.is_empty() {
                return Err(Error::invalid(format!("'{said}' names no bucket: write BUCKET/PREFIX")));
            }
            if prefix.is_empty() && !self.yes && !self.dry_run {
                return Err(Error::invalid(format!(
                    "--recursive {said} would remove all objects of the bucket '{bucket}': pass --yes to remove them, or --dry-run to see them"
                )));
            }
        }
        Ok(())
    }
}

/// `BUCKET/PREFIX`, or `BUCKET` alone.
fn split(said: &str) -> (&str, &str) {
    said.split_once('/').unwrap_or((said, ""))
}

fn parse(name: &str) -> Result<ObjectName> {
    name.parse().map_err(Error::invalid)
}

fn remove_one(name: &ObjectName, options: &target::Options, output: Output) -> Result<Exit> {
    let (bucket, key) = Session::with(options, async |session| {
        let (bucket, key) = name.resolve(session, "KEY").await?;
        session.client.remove(&bucket, &key).await?;
        Ok((bucket, key))
    })?;
    let removed = serde_json::json!({ "removed": format!("{bucket}/{key}") });
    output.result(&removed, |_| format!("removed {bucket}/{key}")).map(|()| Exit::Ok)
}

impl Removal<'_> {
    /// Removes the objects that a file lists.
    async fn listed(mut self, mut names: Names) -> Result<()> {
        while let Some(name) = names.next().await? {
            match String::from_utf8(name) {
                Ok(name) => self.add(&name).await?,
                Err(error) => {
                    let name = String::from_utf8_lossy(error.as_bytes()).into_owned();
                    self.done.fail(&name, &Error::invalid("the name is not UTF-8: no object has it"));
                }
            }
        }
        self.remove_batch().await
    }

    /// Removes the objects that the command line lists.
    async fn named(mut self, names: &[String]) -> Result<()> {
        self.progress.set_total(Work { items: names.len() as u64, bytes: 0 });
        for name in names {
            self.add(name).await?;
        }
        self.remove_batch().await
    }

    async fn add(&mut self, name: &str) -> Result<()> {
        let resolved = match parse(name) {
            Ok(parsed) => parsed.resolve(self.session, "KEY").await,
            Err(error) => Err(error),
        };
        match resolved {
            Ok(name) => self.batch.push(name),
            Err(error) if concerns_name(&error) => self.done.fail(name, &error),
            Err(error) => return Err(error),
        }
        if self.batch.len() >= REMOVED_MAX { self.remove_batch().await } else { Ok(()) }
    }

    /// Removes all objects with these prefixes, page by page.
    async fn below(mut self, prefixes: &[String]) -> Result<()> {
        for (bucket, prefix) in prefixes.iter().map(|said| split(said)) {
            let mut listing = self.session.client.list(bucket, prefix);
            while let Some(page) = listing.next_page().await? {
                if self.dry_run {
                    let found = page.into_iter().map(|object| (format!("{bucket}/{}", object.key), object.size));
                    self.would_remove(found.collect())?;
                    continue;
                }
                self.batch.extend(page.into_iter().map(|object| (bucket.to_owned(), object.key)));
                self.remove_batch().await?;
            }
        }
        Ok(())
    }

    async fn remove_batch(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        *self.asked = batch.len();
        let results = self.session.client.remove_many(&batch, self.dry_run).await;
        *self.asked = 0;
        let (mut found, mut last) = (Vec::new(), None);
        for ((bucket, key), result) in batch.into_iter().zip(results) {
            let name = format!("{bucket}/{key}");
            match result {
                Ok(Removed { size, .. }) if self.dry_run => found.push((name, size)),
                Ok(Removed { size, .. }) => self.done.add(size),
                Err(error) if concerns_name(&error) => self.done.fail(&name, &error),
                Err(error) => last = Some(error),
            }
        }
        self.would_remove(found)?;
        self.progress.set_work(Work { items: self.done.objects, bytes: self.done.bytes }, None);
        // It would fail for the next objects as well.
        last.map_or(Ok(()), Err)
    }

    /// Counts what a dry run found, and prints the names.
    fn would_remove(&mut self, found: Vec<(String, u64)>) -> Result<()> {
        found.iter().for_each(|(_, size)| self.done.add(*size));
        if !self.names_shown || found.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = found.into_iter().map(|(name, _)| format!("would remove {name}")).collect();
        print(&lines.join("\n"))
    }
}

/// Whether an error concerns one name only, so the others can still be removed.
fn concerns_name(error: &Error) -> bool {
    matches!(error.reaction, Reaction::NotFound | Reaction::InvalidInput)
}
