//! `weft ls`: buckets, objects, and folders of them.

use clap::Args;
use serde::Serialize;
use weft_cli::{
    exit::Exit,
    output::{Output, print},
    session::Session,
    target,
    utc::utc,
};
use weft_client::{ListOptions, Listed, api};
use weft_types::{Error, Result, human_bytes};

/// List buckets, or the objects and folders of one bucket
///
/// A folder is the common beginning of keys up to a '/'. It is listed once, in place of the objects in it; --recursive lists them all.
/// A PREFIX is a beginning of keys: `photos/2024/` lists what is in the folder, `photos/2024` lists the folder.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft ls
  weft ls photos
  weft ls photos/2024/ --long
  weft ls photos --recursive --limit 100
  weft ls photos --recursive --limit 100 --after 2024/cat.jpg     # the next page
  weft ls photos --recursive --json | jq '.[] | .key, .size'

With --json, objects have the keys `key`, `size`, `created` and more; folders have `folder`. If --limit leaves something out, stderr says
with which --after to go on.

EXIT CODES
  0 done   2 an invalid option   3 no such bucket, or no cluster   4 no coordinator")]
pub(super) struct Ls {
    /// List all objects, not the folders that they are in
    #[arg(short, long, conflicts_with = "delimiter", requires = "prefix")]
    recursive: bool,
    /// Show time of the put (UTC), size, code and version
    #[arg(short, long)]
    long: bool,
    /// Text that ends the name of a folder
    #[arg(long, value_name = "TEXT", default_value = "/", allow_hyphen_values = true)]
    delimiter: String,
    /// List at most N objects and folders
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), requires = "prefix")]
    limit: Option<u64>,
    /// List what comes after this key or folder, in the order of their bytes
    #[arg(long, value_name = "KEY", requires = "prefix", allow_hyphen_values = true)]
    after: Option<String>,
    /// Bucket, or BUCKET/PREFIX [default: list all buckets]
    prefix: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Entry {
    Object { key: String, size: u64, version: u64, created: String, created_ms: u64, code: String },
    Folder { folder: String },
}

impl From<Listed> for Entry {
    fn from(it: Listed) -> Self {
        match it {
            Listed::Folder(folder) => Self::Folder { folder },
            Listed::Object(api::ObjectEntry { key, size, version, created_ms, code }) => {
                Self::Object { key, size, version, created: utc(created_ms), created_ms, code }
            }
        }
    }
}

impl Entry {
    fn name(&self) -> &str {
        match self {
            Self::Object { key, .. } => key,
            Self::Folder { folder } => folder,
        }
    }

    fn text(&self, long: bool) -> String {
        let (created, size, code, version) = match self {
            _ if !long => return self.name().to_owned(),
            Self::Object { created, size, code, version, .. } => {
                (created.as_str(), human_bytes(*size), code.as_str(), version.to_string())
            }
            Self::Folder { .. } => ("", "folder".into(), "", String::new()),
        };
        format!("{created:20}  {size:>10}  {code:<12}  {version:>10}  {}", self.name())
    }
}

impl Ls {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let Some(said) = &self.prefix else {
            return super::bucket::list(options, output);
        };
        let (bucket, prefix) = said.split_once('/').unwrap_or((said, ""));
        let list = ListOptions {
            prefix: prefix.to_owned(),
            delimiter: if self.recursive { String::new() } else { self.delimiter.clone() },
            after: self.after.clone().unwrap_or_default(),
            limit: self.limit,
        };
        let next = Session::with(options, async |session| {
            let mut listing = session.client.list_with(bucket, &list);
            let (mut is_first, mut last) = (true, None);
            while let Some(page) = listing.next_items().await? {
                let page: Vec<Entry> = page.into_iter().map(Entry::from).collect();
                print(&self.page_text(&page, is_first, output)?)?;
                is_first = false;
                last = page.last().map(|entry| entry.name().to_owned());
            }
            if output.json {
                print(if is_first { "[]" } else { "]" })?;
            }
            Ok(last.filter(|_| listing.has_more()))
        })?;
        if let Some(after) = next {
            self.tell_next(said, &after, output);
        }
        Ok(Exit::Ok)
    }

    /// A page; in JSON, a part of an array.
    fn page_text(&self, page: &[Entry], is_first: bool, output: Output) -> Result<String> {
        if !output.json {
            return Ok(page.iter().map(|entry| entry.text(self.long)).collect::<Vec<_>>().join("\n"));
        }
        let entries: Result<Vec<String>, _> = page.iter().map(serde_json::to_string).collect();
        let begin = if is_first { "[\n" } else { ",\n" };
        Ok(format!("{begin}{}", entries.map_err(Error::fatal)?.join(",\n")))
    }

    /// How to list what follows.
    fn tell_next(&self, said: &str, after: &str, output: Output) {
        if output.json {
            eprintln!("{}", serde_json::json!({ "more": true, "after": after }));
            return;
        }
        let mut command = format!("weft ls {}", quoted(said));
        for (given, flag) in [(self.recursive, " --recursive"), (self.long, " --long")] {
            command += if given { flag } else { "" };
        }
        if self.delimiter != "/" {
            command += &format!(" --delimiter {}", quoted(&self.delimiter));
        }
        if let Some(limit) = self.limit {
            command += &format!(" --limit {limit}");
        }
        eprintln!("more follows: {command} --after {}", quoted(after));
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+,:@%".contains(letter);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_for_a_shell_are_quoted_where_needed() {
        let words = [("a/b.jpg", "a/b.jpg"), ("a b", "'a b'"), ("it's", "'it'\\''s'"), ("", "''"), ("$x", "'$x'"), ("é", "'é'")];
        words.iter().for_each(|(word, shown)| assert_eq!(quoted(word), *shown));
    }
}
