//! `weft policy convert`: a job that rewrites objects in another policy's code and sizes.

use super::job;
use clap::Args;
use std::cell::Cell;
use weft_cli::{exit::Exit, output::Output, session::Session, target};
use weft_client::ConvertOptions;
use weft_types::{ByteSize, Error, Result};

/// Rewrite objects in the code and sizes of another policy, for example from replication to erasure coding
///
/// This is a job: it survives disconnects and coordinator restarts (see `weft job`). It converts one object after another. A node that
/// already holds much of a stripe writes the new one, with the same plans and checks as a put. When all stripes of an object are written,
/// they replace the old ones at once; until then the object is unchanged, and reads in progress finish. An object that is overwritten or
/// removed during the conversion keeps its new state.
///
/// Both forms of an object need space at the same time, and the space of the old one becomes free gradually: an agent frees at most a
/// quarter of a disk's bytes per hour, or 1 GiB if that is more (the agent's settings limits.freed_percent_per_hour and
/// limits.freed_bytes_per_hour). Conversions leave a tenth of each disk to puts (the coordinator's setting conversion_free_percent). If too
/// few nodes have more space than that, the job waits; `weft job show` shows what it waits for.
///
/// With BUCKET, the job converts all objects that do not match the policy. The bucket gets the policy when the job begins, so later
/// puts need no conversion. With BUCKET/KEY, the job converts that object, and the bucket keeps its policy. A bucket can have one
/// conversion at a time. Objects that cannot be converted are reported and stay as they are.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy convert photos --to cold --rate 50MiB
  weft policy convert photos/cat.jpg --to cold --wait
  weft job wait 3

EXIT CODES
  0 the job has begun; with --wait: all objects are converted   1 failed or cancelled   \
  2 an invalid option, or another job converts objects of the bucket   \
  3 no such policy, bucket or object, or no cluster   \
  4 with --wait: some objects could not be converted   6 too few nodes for the code, or too few of them are up   \
  130 interrupted; the job continues")]
pub(super) struct Convert {
    /// Policy to convert to
    #[arg(long, value_name = "POLICY")]
    to: String,
    /// Maximum number of stripes written at the same time, 1 to 64 [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: Option<u32>,
    /// Average bytes of data converted per second. Each stripe is written at full speed; the next one is delayed to keep the average
    /// [default: no limit]
    #[arg(long, value_name = "SIZE")]
    rate: Option<ByteSize>,
    /// Wait until the job has ended, and show its progress
    #[arg(long)]
    wait: bool,
    /// Bucket, or one object of it
    #[arg(value_name = "BUCKET[/KEY]")]
    what: String,
}

impl Convert {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        // In the request, 0 stands for "not given".
        if self.rate == Some(ByteSize(0)) {
            return Err(Error::invalid("--rate must be greater than zero"));
        }
        let (bucket, key) = match self.what.split_once('/') {
            Some((bucket, "")) => {
                return Err(Error::invalid(format!(
                    "'{bucket}/' has no key: pass '{bucket}' to convert all objects of the bucket"
                )));
            }
            Some(named) => named,
            None => (self.what.as_str(), ""),
        };
        let begun = Cell::new(None);
        let done = Session::with(options, async |session| {
            let asked = ConvertOptions {
                concurrency: self.concurrency.unwrap_or_default(),
                bytes_per_s: self.rate.map_or(0, |rate| rate.0),
            };
            let job = session.client.convert(bucket, key, &self.to, &asked).await?;
            begun.set(Some(job.id));
            match self.wait {
                true => job::wait_in(session, job.id, output).await,
                false => Ok(job::Report::new(job::with_total(session, job).await?, &session.nodes().await)),
            }
        });
        let report = job::goes_on(done, &begun)?;
        match self.wait {
            true => job::end(report, output),
            false => output.result_with(&report, &report.warnings, job::Report::line).map(|()| Exit::Ok),
        }
    }
}
