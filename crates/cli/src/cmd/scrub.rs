//! `weft scrub`: a job that reads what is stored and compares it with what was written.

use super::{check, job, names::ObjectName};
use clap::Args;
use serde::Serialize;
use std::{cell::Cell, collections::BTreeSet, fmt::Write as _};
use weft_cli::{exit::Exit, names::with_names, output::Output, session::Session, target};
use weft_client::api;
use weft_types::{Error, Result, counted, human_bytes};

/// The most wrong blocks that get a line of their own.
const LINES_MAX: usize = 20;

/// Read everything that is stored, and find what is wrong on disks
///
/// Every block is read to the end: its pages are compared with its checksums, these with those that were recorded when it was written, and the
/// blocks of each stripe with each other. Wrong and missing blocks are recorded, and the cluster rebuilds them (`weft repair auto`). Reads,
/// writes and repairs go first at every disk and link.
///
/// The cluster does this by itself in the background (`weft status` shows how far it is); this command does it now. It is a job: it survives
/// disconnects and coordinator restarts, and can be paused and cancelled (see `weft job`).
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft scrub
  weft scrub photos
  weft scrub photos/cat.jpg
  weft scrub --node node-03 --no-wait && weft job ls
  weft scrub --json | jq '.wrong[]'

EXIT CODES
  0 nothing is wrong, or what was found is rebuilt; with --no-wait: the job has begun   1 failed or cancelled   \
  2 an invalid option, or such a job runs already   3 no such bucket, object or node, or no cluster   \
  4 some stripes could not be checked, some data cannot be read, or no coordinator   \
  5 blocks of a stripe contradict each other, and it is not certain which is wrong   \
  8 blocks are wrong or lacking and not rebuilt yet, and all data survives another loss   \
  9 some data does not survive the loss of a further block   130 interrupted; the job continues")]
pub(super) struct Scrub {
    /// Only this bucket, or this object: BUCKET/KEY [default: all]
    #[arg(value_name = "BUCKET[/KEY]", conflicts_with = "node")]
    what: Option<String>,
    /// Only stripes that have a block on this node (name or number)
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Maximum number of stripes that are checked at the same time, 1 to 64 [default: one for four nodes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: Option<u32>,
    /// Start the job and return
    #[arg(long)]
    no_wait: bool,
}

/// What a scrub has checked and found.
#[derive(Debug, Default, Serialize)]
pub(super) struct Scrubbed {
    stripes: u64,
    blocks: u64,
    bytes: u64,
    wrong_blocks: u64,
    /// Stripes whose blocks match their recorded checksums and contradict each other.
    inconsistent_stripes: u64,
    /// Blocks that were known to be lost or corrupt.
    lacking_blocks: u64,
    /// Blocks that were not read because their nodes are down.
    away_blocks: u64,
    not_checked_stripes: u64,
    /// The first wrong blocks.
    wrong: Vec<Wrong>,
}

#[derive(Debug, Serialize)]
struct Wrong {
    object: String,
    stripe: u64,
    /// Null: it is not certain which block of the stripe is wrong.
    block: Option<u32>,
    copy: u32,
    /// The name of the node; empty: unknown.
    node: String,
    why: String,
}

impl Scrubbed {
    pub(super) fn new(it: api::ScrubReport, nodes: &[api::Node]) -> Self {
        let tally = it.tally.unwrap_or_default();
        let wrong = |it: api::WrongBlock| Wrong {
            object: it.object,
            stripe: it.stripe,
            block: it.index,
            copy: it.copy,
            node: it.name,
            why: with_names(&it.why, nodes),
        };
        Self {
            stripes: tally.stripes,
            blocks: tally.blocks,
            bytes: tally.bytes,
            wrong_blocks: tally.wrong_blocks,
            inconsistent_stripes: tally.inconsistent_stripes,
            lacking_blocks: tally.lacking_blocks,
            away_blocks: tally.away_blocks,
            not_checked_stripes: tally.not_checked_stripes,
            wrong: it.wrong.into_iter().map(wrong).collect(),
        }
    }

    pub(super) fn stripes(&self) -> u64 {
        self.stripes
    }

    /// What was found, in a few words.
    pub(super) fn found(&self) -> String {
        let parts = [
            (self.wrong_blocks, "wrong block"),
            (self.inconsistent_stripes, "inconsistent stripe"),
            (self.lacking_blocks, "block known to be lost"),
            (self.away_blocks, "block on nodes that are down"),
            (self.not_checked_stripes, "stripe not checked yet"),
        ];
        let some = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| match what.split_once(' ') {
            // Only the noun gets a plural.
            Some((noun @ ("block" | "stripe"), rest)) => format!("{} {rest}", counted(*count, noun)),
            _ => counted(*count, what),
        });
        let text = some.collect::<Vec<_>>().join(", ");
        if text.is_empty() { "nothing wrong".to_owned() } else { text }
    }

    /// A line for each of the first wrong blocks.
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        for Wrong { object, stripe, block, node, why, .. } in self.wrong.iter().take(LINES_MAX) {
            let block = block.map(|block| format!(" block {block} on {node}")).unwrap_or_default();
            let _ = write!(text, "\n{object} stripe {stripe}{block}: {why}");
        }
        let more = (self.wrong_blocks + self.inconsistent_stripes).saturating_sub(self.wrong.len().min(LINES_MAX) as u64);
        if more > 0 {
            let _ = write!(text, "\nand {more} more (--json lists the first {})", self.wrong.len());
        }
        text
    }

    /// What was checked, in a few words.
    pub(super) fn amount(&self) -> String {
        format!("{} in {} ({})", counted(self.blocks, "block"), counted(self.stripes, "stripe"), human_bytes(self.bytes))
    }
}

impl Scrub {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let begun = Cell::new(None);
        let done = Session::with(options, async |session| {
            let (bucket, key) = self.asked(session).await?;
            let node = match &self.node {
                Some(node) => Some(session.find_node(node).await?),
                None => None,
            };
            let job = session.client.scrub(&bucket, &key, node, self.concurrency.unwrap_or(0)).await?;
            begun.set(Some(job.id));
            if self.no_wait {
                return Ok((job::Report::new(job, &session.nodes().await), Exit::Ok));
            }
            let report = job::wait_in(session, job.id, output).await?;
            let exit = exit(session, &report, (&bucket, &key)).await?;
            Ok((report, exit))
        });
        let (report, exit) = job::goes_on(done, &begun)?;
        if self.no_wait {
            return output.result(&report, job::Report::line).map(|()| Exit::Ok);
        }
        let ended = job::end(report, output)?;
        Ok(if ended == Exit::Ok { exit } else { ended })
    }

    /// The bucket and key; empty: all.
    async fn asked(&self, session: &Session) -> Result<(String, String)> {
        match &self.what {
            None => Ok((String::new(), String::new())),
            Some(bucket) if !bucket.contains('/') => Ok((bucket.clone(), String::new())),
            Some(bucket) if bucket.ends_with('/') => Ok((bucket.trim_end_matches('/').to_owned(), String::new())),
            Some(name) => name.parse::<ObjectName>().map_err(Error::invalid)?.resolve(session, "weft scrub BUCKET/KEY").await,
        }
    }
}

/// What is still wrong after a scrub.
async fn exit(session: &Session, report: &job::Report, (bucket, key): (&str, &str)) -> Result<Exit> {
    let Some(scrubbed) = report.scrubbed() else { return Ok(Exit::Ok) };
    if scrubbed.inconsistent_stripes > 0 {
        return Ok(Exit::Corrupt);
    }
    if scrubbed.wrong_blocks + scrubbed.lacking_blocks == 0 {
        return Ok(if scrubbed.not_checked_stripes > 0 { Exit::Unavailable } else { Exit::Ok });
    }
    let worst = check::worst(session, bucket, key).await?;
    if worst != Exit::Ok {
        return Ok(worst);
    }
    // What was just recorded is not counted at once.
    let objects: BTreeSet<&str> = scrubbed.wrong.iter().map(|wrong| wrong.object.as_str()).collect();
    for (bucket, key) in objects.iter().filter_map(|name| name.split_once('/')) {
        let Ok(object) = session.client.stat(bucket, key).await else { continue };
        if object.stripes.iter().flat_map(|stripe| &stripe.blocks).any(|block| block.state != "ok") {
            return Ok(Exit::Degraded);
        }
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_was_checked_and_found() {
        let tally = api::ScrubTally { stripes: 2, blocks: 12, bytes: 12 << 20, ..api::ScrubTally::default() };
        let nothing = Scrubbed::new(api::ScrubReport { tally: Some(tally), wrong: Vec::new() }, &[]);
        assert_eq!((nothing.amount(), nothing.found()), ("12 blocks in 2 stripes (12.0 MiB)".into(), "nothing wrong".into()));
        assert_eq!(nothing.lines(), "");
        let wrong = |index| api::WrongBlock {
            object: "b/k".into(),
            stripe: 1,
            index,
            name: "node-03".into(),
            why: "it is gone".into(),
            ..api::WrongBlock::default()
        };
        let tally =
            api::ScrubTally { wrong_blocks: 3, inconsistent_stripes: 1, lacking_blocks: 1, not_checked_stripes: 2, ..tally };
        let some = Scrubbed::new(api::ScrubReport { tally: Some(tally), wrong: vec![wrong(Some(4)), wrong(None)] }, &[]);
        let found = "3 wrong blocks, 1 inconsistent stripe, 1 block known to be lost, 2 stripes not checked yet";
        assert_eq!(some.found(), found);
        let lines =
            "\nb/k stripe 1 block 4 on node-03: it is gone\nb/k stripe 1: it is gone\nand 2 more (--json lists the first 2)";
        assert_eq!(some.lines(), lines);
    }
}
