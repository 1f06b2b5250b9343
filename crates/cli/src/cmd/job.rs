//! `weft job`: work that goes on whoever looks on.

use crate::{
    exit::Exit,
    interrupt,
    names::with_names,
    output::{Output, human_rate},
    progress::Progress,
    session::Session,
    table::table,
    target,
};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::cell::Cell;
use weft_client::{JobChange, api};
use weft_types::{ByteSize, Error, NodeId, Reaction, Result, human_bytes};

/// Jobs: work that goes on whoever looks on, and under the next coordinator too
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

/// List the jobs: those that are running or paused, and the last ones that have ended
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job ls
  weft job ls --json | jq '.[] | select(.state == \"running\").id'

EXIT CODES
  0 done   3 no cluster   4 no coordinator")]
struct Ls {}

/// What a job is to do, how far it is, and what went wrong last
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job show 3

EXIT CODES
  0 shown, whatever became of the job   3 no such job, or no cluster   4 no coordinator")]
struct Show {
    /// The job's number
    id: u64,
}

/// Wait until a job has ended, and show how far it is
///
/// ctrl-C ends the waiting; the job goes on.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job wait 3

EXIT CODES
  0 the job is done   1 it failed, or was cancelled   3 no such job, or no cluster   \
  4 blocks are left that could not be rebuilt, or no coordinator   130 broken off; the job goes on")]
struct Wait {
    /// The job's number
    id: u64,
}

/// Let a job begin nothing new until it is resumed
///
/// The stripes that are under way end. A paused job stays paused when the coordinator is restarted.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job pause 3

EXIT CODES
  0 it is paused (or was)   2 it has ended   3 no such job, or no cluster   4 no coordinator")]
struct Pause {
    /// The job's number
    id: u64,
}

/// Let a paused job go on
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job resume 3

EXIT CODES
  0 it is running (or was)   2 it has ended   3 no such job, or no cluster   4 no coordinator")]
struct Resume {
    /// The job's number
    id: u64,
}

/// End a job
///
/// The stripes that are under way end, and what was done stays done. The same can be begun again as a new job, which finds only
/// what is left.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft job cancel 3

EXIT CODES
  0 it is cancelled (or was)   2 it has ended otherwise   3 no such job, or no cluster   4 no coordinator")]
struct Cancel {
    /// The job's number
    id: u64,
}

/// A job, as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    id: u64,
    kind: String,
    state: String,
    node: String,
    /// What the operator calls the node.
    name: String,
    total: Amount,
    done: Amount,
    /// Tried in vain.
    left: Amount,
    /// The first of them.
    left_blocks: Vec<Left>,
    last_error: String,
    stripes_under_way: u32,
    created_ms: u64,
    changed_ms: u64,
    select: String,
    to: Vec<String>,
    scheme: String,
    concurrency: u32,
    /// None: the coordinator's setting.
    slice_size: Option<u64>,
    force: bool,
}

/// A block that could not be rebuilt.
#[derive(Debug, Serialize)]
struct Left {
    /// Empty: it is not known.
    object: String,
    stripe: u64,
    block: u32,
    reason: String,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Amount {
    blocks: u64,
    bytes: u64,
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
        output.result(&report, if change.is_some() { Report::line } else { Report::text }).map(|()| Exit::Ok)
    }
}

fn list(options: &target::Options, output: Output) -> Result<Exit> {
    let reports = Session::with(options, async |session| {
        let (jobs, nodes) = (session.client.jobs().await?, session.nodes().await);
        Ok(jobs.into_iter().map(|job| Report::new(job, &nodes)).collect::<Vec<_>>())
    })?;
    let row = |it: &Report| {
        let of = |amount: Amount| format!("{} ({})", amount.blocks, human_bytes(amount.bytes));
        [it.id.to_string(), it.kind.clone(), it.about(), it.state.clone(), of(it.done), of(it.total), it.left.blocks.to_string()]
    };
    let heading = ["job", "kind", "node", "state", "done", "of", "left"];
    output.result(&reports, |reports| table(heading, &[0, 4, 5, 6], reports.iter().map(row))).map(|()| Exit::Ok)
}

fn wait(id: u64, options: &target::Options, output: Output) -> Result<Exit> {
    let begun = Cell::new(Some(id));
    let waited = Session::with(options, async |session| wait_in(session, id, output).await);
    end(goes_on(waited, &begun)?, output)
}

/// Waits for a job, and shows how far it is.
pub(super) async fn wait_in(session: &Session, id: u64, output: Output) -> Result<Report> {
    let progress = Progress::new("repairing", 0, output.json);
    let mut state = String::new();
    let look = |job: &api::Job| {
        let [total, done, left] =
            [&job.total, &job.done, &job.left].map(|amount| amount.as_ref().map_or(0, |amount| amount.bytes));
        progress.set(done.saturating_add(job.moving_bytes), Some(total.saturating_sub(left)).filter(|total| *total > 0));
        if state != job.state && job.state == "paused" && !output.json {
            eprintln!("job {id} is paused: `weft job resume {id}` lets it go on");
        }
        state.clone_from(&job.state);
    };
    let job = session.client.wait_for_job(id, look).await?;
    progress.finish();
    Ok(Report::new(job, &session.nodes().await))
}

/// Shows what became of a job.
pub(super) fn end(report: Report, output: Output) -> Result<Exit> {
    let (id, left, why) = (report.id, report.left.blocks, &report.last_error);
    let error = match report.state.as_str() {
        "cancelled" => Some(Error::retry(format!("job {id} was cancelled: what it had done stays done"))),
        "failed" if left > 0 => {
            let blocks = if left == 1 { "block is" } else { "blocks are" };
            Some(Error::unavailable(format!("job {id} has ended and {left} {blocks} still lost; the last error: {why}")))
        }
        "failed" => Some(Error::retry(format!("job {id} failed: {why}"))),
        _ => None,
    };
    if error.is_none() || output.json || report.done.blocks > 0 {
        output.result(&report, Report::line)?;
    }
    error.map_or(Ok(Exit::Ok), Err)
}

/// Says that a job goes on although nobody waits for it any more.
pub(super) fn goes_on<T>(waited: Result<T>, job: &Cell<Option<u64>>) -> Result<T> {
    waited.map_err(|error| {
        let cause = &error.message;
        let message = match job.get() {
            Some(id) if interrupt::is_broken_off() => {
                format!("{cause}: job {id} goes on; `weft job wait {id}` waits for it, `weft job cancel {id}` ends it")
            }
            None if interrupt::is_broken_off() => format!("{cause}: `weft job ls` says whether a job has begun"),
            Some(id) if error.reaction == Reaction::Retry => {
                format!("{cause}; job {id} goes on when a coordinator is there again")
            }
            _ => return error,
        };
        Error { message, ..error }
    })
}

impl Report {
    pub(super) fn new(it: api::Job, nodes: &[api::Node]) -> Self {
        let amount = |it: Option<api::JobAmount>| {
            it.map_or(Amount { blocks: 0, bytes: 0 }, |it| Amount { blocks: it.blocks, bytes: it.bytes })
        };
        let what = it.repair_node.unwrap_or_default();
        let left_block = |it: api::LeftBlock| Left {
            object: it.object,
            stripe: it.stripe,
            block: it.index,
            reason: with_names(it.reason, nodes),
        };
        let name = |id: u32| nodes.iter().find(|node| node.id == id).map(|node| node.name.clone());
        let known = |id: &u32| name(*id).unwrap_or_else(|| NodeId(*id).to_string());
        Self {
            id: it.id,
            kind: it.kind,
            state: it.state,
            node: NodeId(what.node).to_string(),
            name: name(what.node).unwrap_or_default(),
            total: amount(it.total),
            done: amount(it.done),
            left: amount(it.left),
            left_blocks: it.left_blocks.into_iter().map(left_block).collect(),
            last_error: with_names(it.last_error, nodes),
            stripes_under_way: it.stripes_under_way,
            created_ms: it.created_ms,
            changed_ms: it.changed_ms,
            select: what.select,
            to: what.to_nodes.iter().map(known).collect(),
            scheme: what.scheme,
            concurrency: what.concurrency,
            slice_size: Some(what.slice_len).filter(|len| *len > 0),
            force: what.force,
        }
    }

    fn about(&self) -> String {
        format!("{} {}", self.node, self.name).trim_end().to_owned()
    }

    /// In a line.
    pub(super) fn line(&self) -> String {
        let (id, about, state) = (self.id, self.about(), &self.state);
        if self.state == "done" && self.done.blocks == 0 {
            return format!("job {id}, repair of {about}: nothing is lost");
        }
        let (done, total) = (self.done.blocks, self.total.blocks);
        let bytes = human_bytes(self.done.bytes);
        let mut line = format!("job {id}, repair of {about}: {state}, {done} of {total} blocks rebuilt ({bytes})");
        if self.left.blocks > 0 {
            line.push_str(&format!(", {} left", self.left.blocks));
        }
        if self.has_ended() {
            let seconds = self.changed_ms.saturating_sub(self.created_ms) as f64 / 1000.0;
            line.push_str(&format!(", {seconds:.2} s, {}", human_rate(self.done.bytes, seconds)));
        } else if self.state == "running" && self.total.blocks == 0 {
            return format!("job {id}, repair of {about}: {state}; `weft job wait {id}` waits for it");
        }
        line
    }

    fn text(&self) -> String {
        let to = if self.to.is_empty() { "any node".to_owned() } else { self.to.join(", ") };
        let slices = self.slice_size.map_or("as the coordinator's setting says".to_owned(), |len| ByteSize(len).to_string());
        let mut lines = vec![
            self.line(),
            format!(
                "helpers by {}, scheme {}, {} stripes at a time, slices {slices}, to {to}",
                self.select, self.scheme, self.concurrency
            ),
        ];
        if self.stripes_under_way > 0 {
            lines.push(format!("{} stripes are under way", self.stripes_under_way));
        }
        for Left { object, stripe, block, reason } in &self.left_blocks {
            lines.push(format!("left: {object} stripe {stripe} block {block}: {reason}"));
        }
        let more = self.left.blocks.saturating_sub(self.left_blocks.len() as u64);
        if more > 0 && !self.left_blocks.is_empty() {
            lines.push(format!("and {more} more, which the coordinator's log names"));
        }
        if !self.last_error.is_empty() {
            lines.push(format!("the last error: {}", self.last_error));
        }
        lines.join("\n")
    }

    fn has_ended(&self) -> bool {
        !matches!(self.state.as_str(), "running" | "paused")
    }
}
