//! `weft job`: background work that survives disconnects and coordinator restarts.

use super::{
    healing::duration,
    job_work::{Amount, Course, GaveUp, What},
    scrub::Scrubbed,
};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::{cell::Cell, time::Duration};
use weft_cli::{
    exit::Exit,
    interrupt,
    names::with_names,
    output::{Output, human_rate},
    progress::Progress,
    session::Session,
    table::table,
    target,
};
use weft_client::{JobChange, api};
use weft_control::eta::Work;
use weft_types::{Error, Reaction, Result, counted, human_bytes};

/// The kind of a conversion.
const CONVERT: &str = "convert";
/// The kind of a job that makes the fill of disks even.
const BALANCE: &str = "balance";
/// The kind of a job that checks stripes.
const SCRUB: &str = "scrub";
/// A job that is predicted to take longer than this gets a warning.
const LONG_S: f64 = 86_400.0;

/// Manage jobs: background work that survives disconnects and coordinator restarts
#[derive(Debug, Args)]
pub(super) struct Job {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(Ls),
    Show(Show),
    Wait(Wait),
    Pause(Pause),
    Resume(Resume),
    Cancel(Cancel),
}

/// List jobs: running and paused ones, and the most recent ended ones
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job ls
  weft job ls --json | jq '.[] | select(.state == \"running\").id'

EXIT CODES
  0 done   3 no cluster   4 no coordinator")]
struct Ls {}

/// Show a job's task, progress, remaining time and last error
///
/// Also what it has sent over links, and how many stripes of the cluster would not survive a further loss. When it is done: how wrong the
/// remaining time was that it showed at a quarter and at half of the work.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job show 3
  weft job show 3 --json | jq '{remaining_ms, moved_bytes, stripes_at_risk, eta_error}'

EXIT CODES
  0 shown, whatever the job's state   3 no such job, or no cluster   4 no coordinator")]
struct Show {
    /// Number of the job
    id: u64,
}

/// Wait until a job has ended, and show its progress
///
/// ctrl-C stops the waiting; the job continues.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job wait 3

EXIT CODES
  0 the job is done   1 the job failed or was cancelled   3 no such job, or no cluster   \
  4 some blocks could not be rebuilt, or some objects not converted, or some stripes not checked; or no coordinator   130 interrupted; the job continues")]
struct Wait {
    /// Number of the job
    id: u64,
}

/// Pause a job: it starts nothing new until it is resumed
///
/// Stripes in progress are completed. A paused job stays paused when the coordinator restarts; a conversion then starts its
/// incomplete objects again.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job pause 3

EXIT CODES
  0 the job is paused (or already was)   2 the job has ended   3 no such job, or no cluster   4 no coordinator")]
struct Pause {
    /// Number of the job
    id: u64,
}

/// Resume a paused job
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job resume 3

EXIT CODES
  0 the job is running (or already was)   2 the job has ended   3 no such job, or no cluster   4 no coordinator")]
struct Resume {
    /// Number of the job
    id: u64,
}

/// Cancel a job
///
/// Completed work is kept. A repair completes the stripes in progress. A conversion drops what it has written of incomplete objects
/// at once; these objects stay as they were. A new job of the same kind finds only what is left.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job cancel 3

EXIT CODES
  0 the job is cancelled (or already was)   2 the job has already ended   3 no such job, or no cluster   4 no coordinator")]
struct Cancel {
    /// Number of the job
    id: u64,
}

/// A job in printable form.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    id: u64,
    kind: String,
    state: String,
    total: Amount,
    done: Amount,
    /// Items that were tried and failed.
    gave_up: Amount,
    /// Items that are neither done nor given up; null until all are counted.
    remaining: Option<Amount>,
    last_error: String,
    /// What the job waits for at the moment.
    waits_for: Vec<String>,
    /// The limit that holds it back now; null: none does.
    limit: Option<String>,
    /// The least remaining time at the limit on repair; null: there is no limit, or nothing is left.
    limited_ms: Option<u64>,
    stripes_under_way: u32,
    #[serde(flatten)]
    course: Course,
    created_ms: u64,
    changed_ms: u64,
    pub(super) warnings: Vec<String>,
    #[serde(flatten)]
    what: What,
}

impl Job {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let (id, change) = match self.command {
            Command::Ls(Ls {}) => return list(options, output),
            Command::Show(Show { id }) => (id, None),
            Command::Wait(Wait { id }) => return wait(id, options, output),
            Command::Pause(Pause { id }) => (id, Some(JobChange::Pause)),
            Command::Resume(Resume { id }) => (id, Some(JobChange::Resume)),
            Command::Cancel(Cancel { id }) => (id, Some(JobChange::Cancel)),
        };
        let report = Session::with(options, async |session| {
            let job = match change {
                Some(change) => session.client.change_job(id, change).await?,
                None => session.client.job(id).await?,
            };
            Ok(Report::new(job, &session.nodes().await))
        })?;
        let text = if change.is_some() { Report::line } else { Report::text };
        output.result_with(&report, &report.warnings, text).map(|()| Exit::Ok)
    }
}

fn list(options: &target::Options, output: Output) -> Result<Exit> {
    let reports = Session::with(options, async |session| {
        let (jobs, nodes) = (session.client.jobs().await?, session.nodes().await);
        Ok(jobs.into_iter().map(|job| Report::new(job, &nodes)).collect::<Vec<_>>())
    })?;
    let row = |it: &Report| {
        let of = |amount: Amount| format!("{} ({})", amount.count(), human_bytes(amount.bytes));
        let gave_up = it.gave_up.count().to_string();
        [it.id.to_string(), it.kind.clone(), it.about(), it.state.clone(), of(it.done), of(it.total), gave_up]
    };
    let heading = ["job", "kind", "what", "state", "done", "of", "gave up"];
    output.result(&reports, |reports| table(heading, &[0, 4, 5, 6], reports.iter().map(row))).map(|()| Exit::Ok)
}

fn wait(id: u64, options: &target::Options, output: Output) -> Result<Exit> {
    let begun = Cell::new(Some(id));
    let waited = Session::with(options, async |session| wait_in(session, id, output).await);
    end(goes_on(waited, &begun)?, output)
}

/// Waits for a job and shows its progress.
pub(super) async fn wait_in(session: &Session, id: u64, output: Output) -> Result<Report> {
    let mut progress = Progress::new("working", 0, true);
    let (mut state, mut kind, mut is_warned) = (String::new(), String::new(), false);
    let look = |job: &api::Job| {
        let warning = long(job).filter(|_| !is_warned && !output.json);
        is_warned |= warning.is_some();
        output.warn(warning.as_slice());
        let [total, done, left] = [&job.total, &job.done, &job.left].map(work);
        let done = Work { bytes: done.bytes.saturating_add(job.moving_bytes), ..done };
        if kind.is_empty() {
            kind.clone_from(&job.kind);
            let doing = match kind.as_str() {
                CONVERT => "converting",
                BALANCE => "balancing",
                SCRUB => "checking",
                _ => "repairing",
            };
            progress = Progress::resume(doing, done, output.json);
        }
        let tried = Work { items: total.items.saturating_sub(left.items), bytes: total.bytes.saturating_sub(left.bytes) };
        progress.set_least_left(Duration::from_millis(job.limited_ms.unwrap_or(0)));
        progress.set_work(done, Some(tried).filter(|tried| tried.bytes > 0));
        if state != job.state && job.state == "paused" && !output.json {
            eprintln!("job {id} is paused: resume it with `weft job resume {id}`");
        }
        state.clone_from(&job.state);
    };
    let job = session.client.wait_for_job(id, look).await?;
    progress.finish();
    Ok(Report::new(job, &session.nodes().await))
}

fn work(amount: &Option<api::JobAmount>) -> Work {
    amount.as_ref().map_or(Work::default(), |amount| Work { items: amount.blocks, bytes: amount.bytes })
}

/// The result of an ended job: printed, or an error.
pub(super) fn end(report: Report, output: Output) -> Result<Exit> {
    let (id, gave_up, why) = (report.id, report.gave_up.count(), &report.last_error);
    let error = match report.state.as_str() {
        "cancelled" => Some(Error::retry(format!("job {id} was cancelled; its completed work is kept"))),
        "failed" if gave_up > 0 => {
            let are = if gave_up == 1 { "is" } else { "are" };
            let still = match report.what {
                What::Repair { .. } => format!("{} {are} still lost", counted(gave_up, "block")),
                What::Balance { .. } => format!("{} {are} not moved", counted(gave_up, "block")),
                What::Convert { .. } => format!("{} {are} not converted", counted(gave_up, "object")),
                What::Scrub { .. } => format!("{} {are} not checked", counted(gave_up, "stripe")),
            };
            Some(Error::unavailable(format!("job {id} has ended, but {still}; last error: {why}")))
        }
        "failed" => Some(Error::retry(format!("job {id} failed: {why}"))),
        _ => None,
    };
    if error.is_none() || output.json || report.done.count() > 0 {
        output.result(&report, Report::ended)?;
    }
    error.map_or(Ok(Exit::Ok), Err)
}

/// Begins a job, and waits for its end unless `no_wait`.
pub(super) fn begin(
    options: &target::Options,
    output: Output,
    no_wait: bool,
    begin: impl AsyncFnOnce(&Session) -> Result<api::Job>,
) -> Result<Exit> {
    let begun = Cell::new(None);
    let done = Session::with(options, async |session| {
        let job = begin(session).await?;
        begun.set(Some(job.id));
        match no_wait {
            true => Ok(Report::new(job, &session.nodes().await)),
            false => wait_in(session, job.id, output).await,
        }
    });
    let report = goes_on(done, &begun)?;
    match no_wait {
        true => output.result(&report, Report::line).map(|()| Exit::Ok),
        false => end(report, output),
    }
}

/// Adds to an error that the job continues without the waiting command.
pub(super) fn goes_on<T>(waited: Result<T>, job: &Cell<Option<u64>>) -> Result<T> {
    waited.map_err(|error| {
        let cause = &error.message;
        let message = match job.get() {
            Some(id) if interrupt::is_interrupted() => {
                format!(
                    "{cause}: job {id} continues; wait for it with `weft job wait {id}`, or cancel it with `weft job cancel {id}`"
                )
            }
            None if interrupt::is_interrupted() => format!("{cause}: `weft job ls` shows whether the job has begun"),
            Some(id) if error.reaction == Reaction::Retry => {
                format!("{cause}; job {id} continues when a coordinator runs again")
            }
            _ => return error,
        };
        Error { message, ..error }
    })
}

/// A warning if the rate limit of a running conversion makes it take very long.
fn long(job: &api::Job) -> Option<String> {
    let rate = job.convert.as_ref().map(|what| what.bytes_per_s).filter(|rate| *rate > 0)?;
    let rest = job.total.map_or(0, |total| remaining(total, [&job.done, &job.left]).bytes);
    let seconds = rest as f64 / rate as f64;
    let days = seconds / LONG_S;
    let time = if days < 730.0 { format!("{days:.0} days") } else { format!("{:.0} years", days / 365.25) };
    (seconds > LONG_S && !has_ended(&job.state))
        .then(|| format!("job {} converts {} at {}/s: that can take about {time}", job.id, human_bytes(rest), human_bytes(rate)))
}

/// The part of a job's work that is neither done nor given up.
fn remaining(total: api::JobAmount, settled: [&Option<api::JobAmount>; 2]) -> api::JobAmount {
    settled.into_iter().flatten().fold(total, |rest, of| api::JobAmount {
        blocks: rest.blocks.saturating_sub(of.blocks),
        bytes: rest.bytes.saturating_sub(of.bytes),
    })
}

fn has_ended(state: &str) -> bool {
    !matches!(state, "running" | "paused")
}

/// Waits briefly until a new job knows its total amount of work, and returns the job's latest state.
pub(super) async fn with_total(session: &Session, mut job: api::Job) -> Result<api::Job> {
    for _ in 0..10 {
        if has_ended(&job.state) || job.total.as_ref().is_some_and(|total| total.blocks > 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        job = session.client.job(job.id).await?;
    }
    Ok(job)
}

impl Report {
    pub(super) fn new(it: api::Job, nodes: &[api::Node]) -> Self {
        let (is_conversion, is_scrub, warnings) = (it.convert.is_some(), it.scrub.is_some(), long(&it).into_iter().collect());
        let course = Course::new(&it);
        let amount = |it: Option<api::JobAmount>| {
            let api::JobAmount { blocks: items, bytes } = it.unwrap_or_default();
            let items = Some(items);
            let blocks = items.filter(|_| !is_conversion && !is_scrub);
            Amount { blocks, objects: items.filter(|_| is_conversion), stripes: items.filter(|_| is_scrub), bytes }
        };
        let gave_up = it.left_blocks.into_iter().map(|it| GaveUp {
            object: it.object,
            stripe: it.stripe,
            block: Some(it.index).filter(|_| !is_conversion && !is_scrub),
            reason: with_names(&it.reason, nodes),
        });
        let is_counted = |total: &api::JobAmount| total.blocks > 0 || has_ended(&it.state);
        let remaining = it.total.filter(is_counted).map(|total| remaining(total, [&it.done, &it.left]));
        let what = match it.convert {
            Some(what) => What::Convert {
                bucket: what.bucket,
                key: Some(what.key).filter(|key| !key.is_empty()),
                policy: what.policy,
                gave_up_objects: gave_up.collect(),
                concurrency: what.concurrency,
                bytes_per_s: Some(what.bytes_per_s).filter(|rate| *rate > 0),
            },
            None if it.balance.is_some() => What::Balance {
                gave_up_blocks: gave_up.collect(),
                concurrency: it.balance.map(|what| what.concurrency).filter(|count| *count > 0),
            },
            None if it.scrub.is_some() => {
                What::scrub(it.scrub.unwrap_or_default(), it.scrubbed.unwrap_or_default(), gave_up.collect(), nodes)
            }
            None => What::repair(it.repair_node.unwrap_or_default(), gave_up.collect(), nodes),
        };
        Self {
            warnings,
            id: it.id,
            kind: it.kind,
            state: it.state,
            total: amount(it.total),
            done: amount(it.done),
            gave_up: amount(it.left),
            remaining: remaining.map(|it| amount(Some(it))),
            last_error: with_names(&it.last_error, nodes),
            waits_for: it.waits_for.into_iter().map(|what| with_names(&what, nodes)).collect(),
            limit: Some(it.limit).filter(|limit| !limit.is_empty()),
            limited_ms: it.limited_ms.filter(|left| *left > 0),
            stripes_under_way: it.stripes_under_way,
            course,
            created_ms: it.created_ms,
            changed_ms: it.changed_ms,
            what,
        }
    }

    fn about(&self) -> String {
        match &self.what {
            What::Repair { node, name, .. } => format!("{node} {name}").trim_end().to_owned(),
            What::Balance { .. } => "all disks".to_owned(),
            What::Scrub { bucket: Some(bucket), key: Some(key), .. } => format!("{bucket}/{key}"),
            What::Scrub { bucket: Some(only), .. } | What::Scrub { node: Some(only), .. } => only.clone(),
            What::Scrub { .. } => "all stripes".to_owned(),
            What::Convert { bucket, key: Some(key), policy, .. } => format!("{bucket}/{key} to {policy}"),
            What::Convert { bucket, key: None, policy, .. } => format!("{bucket} to {policy}"),
        }
    }

    /// The job's name, its unit of progress, and its result if there was nothing to do.
    fn words(&self) -> (&'static str, &'static str, &'static str) {
        match &self.what {
            What::Repair { .. } => ("repair", "blocks rebuilt", "nothing is lost"),
            What::Scrub { .. } => ("scrub", "stripes checked", "there is nothing to check"),
            What::Balance { .. } => ("balancing", "blocks moved", "the fill is even, as far as stripes allow"),
            What::Convert { .. } => ("conversion", "objects converted", "all objects already match the policy"),
        }
    }

    /// A summary in one line.
    pub(super) fn line(&self) -> String {
        let (id, about, state, (work, items, nothing)) = (self.id, self.about(), &self.state, self.words());
        if self.state == "done" && self.done.count() == 0 {
            return format!("job {id}, {work} of {about}: {nothing}");
        }
        let (done, total) = (self.done.count(), self.total.count());
        let bytes = human_bytes(self.done.bytes);
        let mut line = format!("job {id}, {work} of {about}: {state}, {done} of {total} {items} ({bytes})");
        if self.gave_up.count() > 0 {
            line.push_str(&format!(", gave up {}", self.gave_up.count()));
        }
        if has_ended(&self.state) {
            let seconds = self.changed_ms.saturating_sub(self.created_ms) as f64 / 1000.0;
            line.push_str(&format!(", {seconds:.2} s, {}", human_rate(self.done.bytes, seconds)));
        } else if self.state == "running" && self.total.count() == 0 {
            return format!("job {id}, {work} of {about}: {state}; wait for it with `weft job wait {id}`");
        }
        line
    }

    /// What a scrub has checked and found.
    pub(super) fn scrubbed(&self) -> Option<&Scrubbed> {
        if let What::Scrub { scrubbed, .. } = &self.what { Some(scrubbed) } else { None }
    }

    /// The result of an ended job.
    fn ended(&self) -> String {
        match self.scrubbed() {
            Some(scrubbed) => format!("{}\nread {}: {}{}", self.line(), scrubbed.amount(), scrubbed.found(), scrubbed.lines()),
            None => self.line(),
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![self.ended(), self.what.how()];
        if self.stripes_under_way > 0 {
            lines.push(format!("{} stripes in progress", self.stripes_under_way));
        }
        lines.extend(self.course.lines());
        if let Some(limit) = &self.limit {
            let least = self.limited_ms.filter(|_| !self.course.has_remaining());
            let left = least.map(|left| format!("; {} or more remaining", duration(left))).unwrap_or_default();
            lines.push(format!("held back by the limit on repair, {limit}{left} (`weft repair limit` changes it)"));
        }
        lines.extend(self.waits_for.iter().map(|what| format!("waits for {what}")));
        let (What::Repair { gave_up_blocks: named, .. }
        | What::Balance { gave_up_blocks: named, .. }
        | What::Scrub { gave_up_stripes: named, .. }
        | What::Convert { gave_up_objects: named, .. }) = &self.what;
        for GaveUp { object, stripe, block, reason } in named {
            let block = block.map(|block| format!(" block {block}")).unwrap_or_default();
            lines.push(format!("gave up: {object} stripe {stripe}{block}: {reason}"));
        }
        let more = self.gave_up.count().saturating_sub(named.len() as u64);
        if more > 0 && !named.is_empty() {
            lines.push(format!("and {more} more, listed in the coordinator's log"));
        }
        if !self.last_error.is_empty() {
            lines.push(format!("last error: {}", self.last_error));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests;
