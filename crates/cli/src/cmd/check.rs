//! `weft check`: which objects lack blocks, what they still survive, and their repair.

use super::names::ObjectName;
use clap::Args;
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _};
use weft_cli::{exit::Exit, output::Output, session::Session, table::table, target};
use weft_client::{RepairOptions, api, api::repair_event::Event};
use weft_types::{Error, Result, counted};

/// The most objects that get a line of their own.
const LINES_MAX: usize = 200;

/// List objects that lack blocks, and repair them
///
/// Lists what the cluster knows: blocks that are missing or were found corrupt, and those of failed disks and of nodes that are down. No disk
/// is read. Without an argument, all objects are listed, the most endangered first.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft check
  weft check photos
  weft check photos/cat.jpg --repair
  weft check --json | jq -r '.objects[] | select(.further_losses == 0) | .object'

EXIT CODES
  0 no block is lacking (any more)   3 no such bucket or object, or no cluster   \
  4 some data cannot be read now, or no coordinator   8 blocks are lacking, and all data survives another loss   \
  9 some data does not survive the loss of a further block   130 interrupted: what was repaired stays")]
pub(super) struct Check {
    /// Rebuild the blocks that are lacking, also those on nodes that are down, the most endangered objects first
    #[arg(long)]
    repair: bool,
    /// Only this bucket, or this object: BUCKET/KEY [default: all]
    #[arg(value_name = "BUCKET[/KEY]")]
    what: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    /// The most endangered first.
    objects: Vec<Damaged>,
    /// Whether stripes are still being counted: then others may lack blocks, too.
    counting: bool,
    /// What was rebuilt; null without --repair.
    repaired_blocks: Option<u64>,
    /// Why objects could not be repaired.
    failures: Vec<Failure>,
    warnings: Vec<String>,
}

/// An object that lacks blocks.
#[derive(Debug, Default, Serialize)]
struct Damaged {
    object: String,
    /// How many of its stripes lack blocks.
    stripes: u64,
    /// How many further blocks each of its stripes can lose, in any combination; null: some cannot be read.
    further_losses: Option<u32>,
    /// The same number if all nodes that are down came back.
    further_losses_with_all_nodes: Option<u32>,
    corrupt: u64,
    missing: u64,
    /// Still on their way.
    coming: u64,
    on_failed_disks: u64,
    on_lost_nodes: u64,
    on_down_nodes: u64,
    #[serde(skip)]
    name: (String, String),
}

#[derive(Debug, Serialize)]
struct Failure {
    object: String,
    error: String,
}

impl Check {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let report = Session::with(options, async |session| self.checked(session, output).await)?;
        output.result_with(&report, &report.warnings, text)?;
        Ok(exit(&report.objects))
    }

    async fn checked(&self, session: &Session, output: Output) -> Result<Report> {
        let (bucket, key) = self.asked(session).await?;
        let (mut objects, mut counting) = damaged(session, &bucket, &key).await?;
        let (mut repaired_blocks, mut failures) = (None, Vec::new());
        if self.repair {
            let mut rebuilt = 0;
            for object in &objects {
                match repair(session, &object.name).await {
                    Ok(blocks) => {
                        rebuilt += blocks;
                        if !output.json && blocks > 0 {
                            eprintln!("{}: {} rebuilt", object.object, counted(blocks, "block"));
                        }
                    }
                    Err(error) => failures.push(Failure { object: object.object.clone(), error: error.message }),
                }
            }
            repaired_blocks = Some(rebuilt);
            (objects, counting) = damaged(session, &bucket, &key).await?;
        }
        let warnings = counting.then(|| "stripes are still being counted: others may lack blocks, too".to_owned());
        Ok(Report { objects, counting, repaired_blocks, failures, warnings: warnings.into_iter().collect() })
    }

    /// The bucket and key; empty: all.
    async fn asked(&self, session: &Session) -> Result<(String, String)> {
        match &self.what {
            None => Ok((String::new(), String::new())),
            Some(bucket) if !bucket.contains('/') => Ok((bucket.clone(), String::new())),
            Some(bucket) if bucket.ends_with('/') => Ok((bucket.trim_end_matches('/').to_owned(), String::new())),
            Some(name) => name.parse::<ObjectName>().map_err(Error::invalid)?.resolve(session, "weft check BUCKET/KEY").await,
        }
    }
}

/// The objects that lack blocks, the most endangered first; and whether stripes are still being counted.
async fn damaged(session: &Session, bucket: &str, key: &str) -> Result<(Vec<Damaged>, bool)> {
    let mut all: BTreeMap<(String, String), Damaged> = BTreeMap::new();
    let (mut after, mut counting) = (0, false);
    loop {
        let page = session.client.list_damage(bucket, key, after).await?;
        counting |= page.counting;
        page.stripes.into_iter().for_each(|stripe| add(&mut all, stripe));
        after = page.next_after;
        if after == 0 {
            break;
        }
    }
    let mut objects: Vec<Damaged> = all.into_values().collect();
    objects.sort_by_key(|it| it.further_losses.map_or(0, |further| further + 1));
    Ok((objects, counting))
}

fn add(all: &mut BTreeMap<(String, String), Damaged>, stripe: api::DamagedStripe) {
    let name = (stripe.bucket, stripe.key);
    let blocks = stripe.blocks.unwrap_or_default();
    let least = |one: Option<u32>, other: Option<u32>| one.zip(other).map(|(one, other)| one.min(other));
    let new = || Damaged {
        object: format!("{}/{}", name.0, name.1),
        further_losses: stripe.further_losses,
        further_losses_with_all_nodes: stripe.further_losses_with_all_nodes,
        name: name.clone(),
        ..Damaged::default()
    };
    let it = all.entry(name.clone()).or_insert_with(new);
    it.stripes += 1;
    it.further_losses = least(it.further_losses, stripe.further_losses);
    it.further_losses_with_all_nodes = least(it.further_losses_with_all_nodes, stripe.further_losses_with_all_nodes);
    it.corrupt += blocks.corrupt;
    it.missing += blocks.missing;
    it.coming += blocks.coming;
    it.on_failed_disks += blocks.on_failed_disks;
    it.on_lost_nodes += blocks.on_lost_nodes;
    it.on_down_nodes += blocks.on_down_nodes;
}

/// Repairs an object; returns how many blocks were rebuilt. Fails if any was not.
async fn repair(session: &Session, (bucket, key): &(String, String)) -> Result<u64> {
    let mut repair = session.client.repair(bucket, key, &RepairOptions::default()).await?;
    while let Some(event) = repair.next().await? {
        if let Some(Event::Done(done)) = event.event {
            return match done.left.first() {
                None => Ok(done.blocks.len() as u64),
                Some(first) => Err(Error::unavailable(&first.reason)),
            };
        }
    }
    Err(Error::retry("the connection to the coordinator ended before the repair did"))
}

/// The exit code for the objects that lack blocks.
pub(super) async fn worst(session: &Session, bucket: &str, key: &str) -> Result<Exit> {
    Ok(exit(&damaged(session, bucket, key).await?.0))
}

fn exit(objects: &[Damaged]) -> Exit {
    match objects.first().map(|it| it.further_losses) {
        None => Exit::Ok,
        Some(None) => Exit::Unavailable,
        Some(Some(0)) => Exit::AtRisk,
        Some(Some(_)) => Exit::Degraded,
    }
}

impl Damaged {
    fn survives(&self) -> String {
        match (self.further_losses, self.further_losses_with_all_nodes) {
            (Some(1), _) => "1 further loss".to_owned(),
            (Some(losses), _) => format!("{losses} further losses"),
            (None, None) => "cannot be read".to_owned(),
            (None, Some(_)) => "cannot be read until nodes come back".to_owned(),
        }
    }

    fn lacks(&self) -> String {
        let counts = [
            (self.corrupt, "corrupt"),
            (self.missing, "missing"),
            (self.on_failed_disks, "on failed disks"),
            (self.on_lost_nodes, "on lost nodes"),
            (self.on_down_nodes, "on nodes that are down"),
            (self.coming, "still on their way"),
        ];
        let parts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, of)| format!("{count} {of}"));
        parts.collect::<Vec<_>>().join(", ")
    }
}

fn text(it: &Report) -> String {
    let mut text = String::new();
    if !it.objects.is_empty() {
        let row = |it: &Damaged| [it.object.clone(), it.stripes.to_string(), it.survives(), it.lacks()];
        let rows = it.objects.iter().take(LINES_MAX).map(row);
        let _ = writeln!(text, "{}\n", table(["object", "stripes", "survives any", "blocks"], &[1], rows));
    }
    if it.objects.len() > LINES_MAX {
        let _ = writeln!(text, "and {} more (--json lists all)", it.objects.len() - LINES_MAX);
    }
    for Failure { object, error } in it.failures.iter().take(LINES_MAX) {
        let _ = writeln!(text, "{object} was not repaired: {error}");
    }
    if let Some(blocks) = it.repaired_blocks {
        let _ = writeln!(text, "{} rebuilt", counted(blocks, "block"));
    }
    text += &match (it.objects.len() as u64, it.repaired_blocks) {
        (0, _) => "no object lacks a block".to_owned(),
        (1, None) => "1 object lacks blocks: `weft check --repair` rebuilds them".to_owned(),
        (count, None) => format!("{} lack blocks: `weft check --repair` rebuilds them", counted(count, "object")),
        (1, Some(_)) => "1 object still lacks blocks".to_owned(),
        (count, Some(_)) => format!("{} still lack blocks", counted(count, "object")),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripe(key: &str, further: Option<u32>, corrupt: u64, missing: u64) -> api::DamagedStripe {
        api::DamagedStripe {
            bucket: "b".into(),
            key: key.into(),
            further_losses: further,
            further_losses_with_all_nodes: further,
            blocks: Some(api::BadBlocks { corrupt, missing, ..api::BadBlocks::default() }),
            ..api::DamagedStripe::default()
        }
    }

    #[test]
    fn the_stripes_of_an_object_are_one_line() {
        let mut all = BTreeMap::new();
        for stripe in [stripe("k", Some(2), 1, 0), stripe("k", Some(1), 0, 2), stripe("l", None, 0, 3)] {
            add(&mut all, stripe);
        }
        let objects: Vec<Damaged> = all.into_values().collect();
        assert_eq!(
            (objects[0].stripes, objects[0].survives(), objects[0].lacks()),
            (2, "1 further loss".into(), "1 corrupt, 2 missing".into())
        );
        assert_eq!(objects[1].survives(), "cannot be read");
        assert_eq!(exit(&objects), Exit::Degraded);
        let report = Report { objects, counting: false, repaired_blocks: None, failures: Vec::new(), warnings: Vec::new() };
        assert!(text(&report).ends_with("2 objects lack blocks: `weft check --repair` rebuilds them"), "{}", text(&report));
        let none = Report { objects: Vec::new(), repaired_blocks: Some(3), ..report };
        assert_eq!((text(&none).as_str(), exit(&none.objects)), ("3 blocks rebuilt\nno object lacks a block", Exit::Ok));
    }
}
