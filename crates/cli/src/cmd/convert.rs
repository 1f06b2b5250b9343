//! `weft policy convert`: a job that writes objects anew in another policy's code and sizes.

use super::job;
use clap::Args;
use std::cell::Cell;
use weft_cli::{exit::Exit, output::Output, session::Session, target};
use weft_client::ConvertOptions;
use weft_types::{ByteSize, Error, Result};

/// Write objects anew in the code and sizes of another policy: replicas become coded data, or the other way round
///
/// This is a job: it goes on when nobody waits for it, and under the next coordinator too (see `weft job`). Object after object, each
/// new stripe is written by a node that has much of its bytes itself, by way of the same plans and checks as every put. When all
/// stripes of an object have ended, they take the old ones' place at once; until then it is as it was, and whoever reads it meanwhile
/// does so to the end. An object that is overwritten or removed meanwhile stays as it then is.
///
/// Both forms of an object need room at the same time, and the old one's comes free later: an agent frees at most a quarter of a disk's
/// bytes in an hour (its setting limits.freed_percent_per_hour). So that puts find room all the while, conversions leave a tenth of each disk to them (the
/// coordinator's setting conversion_free_percent). Where too few nodes have more, a job waits, and `weft job show` says for what.
///
/// Of a BUCKET, all objects that are not as the policy says are converted, and the bucket carries the policy from the beginning of the
/// job on, so that what is put by puts that begin later need not be converted. Of BUCKET/KEY, that object is, and the bucket stays as it is. A bucket
/// has one conversion at a time. What cannot be converted is told, and stays as it is.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy convert photos --to cold --rate 50MiB
  weft policy convert photos/cat.jpg --to cold --wait
  weft job wait 3

EXIT CODES
  0 the job has begun; with --wait: all is converted (or was)   1 failed on the way, or cancelled   \
  2 an option makes no sense, there are too few nodes, or another job converts objects of the bucket   \
  3 no such policy, bucket or object, or no cluster   \
  4 too few nodes are up; with --wait: objects are left that could not be converted   130 broken off; the job goes on")]
pub(super) struct Convert {
    /// The policy
    #[arg(long, value_name = "POLICY")]
    to: String,
    /// How many stripes are written at the same time, 1 to 64; without it, 2
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: Option<u32>,
    /// Bytes of data that are converted in a second, on the average: each stripe is written without a pause, and the next one begins
    /// when its time has come. Without it, as fast as it goes
    #[arg(long, value_name = "SIZE")]
    rate: Option<ByteSize>,
    /// Wait for the job's end, and show how far it is
    #[arg(long)]
    wait: bool,
    /// The bucket, or one object of it
    #[arg(value_name = "BUCKET[/KEY]")]
    what: String,
}

impl Convert {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        // To the coordinator, 0 says that nothing was said.
        if self.rate == Some(ByteSize(0)) {
            return Err(Error::invalid("the rate must be greater than zero"));
        }
        let (bucket, key) = match self.what.split_once('/') {
            Some((bucket, "")) => {
                return Err(Error::invalid(format!("'{bucket}/' has no key: `{bucket}` means all objects of the bucket")));
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
                false => Ok(job::Report::new(job, &session.nodes().await)),
            }
        });
        let report = job::goes_on(done, &begun)?;
        match self.wait {
            true => job::end(report, output),
            false => output.result(&report, job::Report::line).map(|()| Exit::Ok),
        }
    }
}
