//! `weft write`: overwrites bytes of an object in place, and appends.

use super::{names::ObjectName, transfer::told, write_plan};
use clap::Args;
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use weft_cli::{
    duration,
    exit::Exit,
    files::{io_error, standard},
    interrupt::is_interrupted,
    output::{Output, human_rate},
    progress::Progress,
    session::Session,
    target,
};
use weft_client::{ProgressFn, WriteLog, WriteOptions, Wrote, api};
use weft_schemes::{AUTO, Kind, check_name};
use weft_types::{AutoSize, ByteSize, Error, Result, counted, human_bytes};

/// Overwrite bytes of an object in place, or append to it
///
/// The bytes of FILE replace those of the object from --offset on, which is its end or before. The write is
/// acknowledged when all bytes are durable on all blocks concerned. Only these bytes and the changes of parity blocks move, not whole stripes.
///
/// Bytes beyond the end are appended, as with --append: readers see all of them or none. They must fit into the object's last stripe: into all of its blocks
/// if each data block has bytes of the object, and otherwise into the cell with the last byte. If they do not fit, nothing is written, and the message says
/// how many do. Of several commands that append at the same time, one waits for the other, up to --timeout.
///
/// Up to 1 MiB within one stripe, or what --atomic says, is written atomically: all of it or nothing, also after crashes. A longer write is
/// several such updates, and reads at the same time may see some of them. If the command fails or is interrupted, it says which bytes are
/// written; running it again is safe unless others write the same bytes.
///
/// The node of a changed block sends the change (new XOR old) to the nodes of all blocks that depend on it. Schemes: `star` and `tree` send whole
/// changes, each node to one other after another. `concurrent-star` sends to all nodes at the same time. `pipeline` sends slices along a path
/// of racks, and in each rack down a chain of its nodes. `chain` sends slices along a path of nodes. `auto` takes what is
/// predicted to be fastest for an update of 1 MiB, if that gains at least 5 % over sending straight to all nodes; short updates go straight.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft write sector volumes/disk.img --offset 64KiB
  date | weft write - logs/today --append
  weft write lines logs/today --append --explain
  printf 'new header' | weft write - logs/today --offset 0
  weft write disk.part volumes/disk.img --offset 1GiB --explain
  weft write disk.part volumes/disk.img --offset 1GiB --json | jq .updates
  weft write disk.part volumes/disk.img --offset 1GiB --atomic 2MiB --scheme pipeline
  weft write disk.part volumes/disk.img --offset 1GiB --scheme pipeline --path random --seed 7 --slice-size 64KiB --explain

EXIT CODES
  0 all bytes are durable   1 failed; the message says which bytes are written, and of which it is unknown   2 an offset beyond the end of the \
object, more bytes than can be appended, or a policy that refuses updates   3 no FILE, no such object, or no cluster   4 no coordinator, or too many blocks are lost   130 interrupted; the message \
says which bytes are written")]
pub(super) struct Write {
    /// Where the first byte goes: its offset in the object
    #[arg(long, value_name = "SIZE", required_unless_present = "append", conflicts_with = "append")]
    offset: Option<ByteSize>,
    /// Append the bytes to the object
    #[arg(long)]
    append: bool,
    /// The most bytes that are written atomically within a stripe, up to 16MiB; the nodes' journals must take them (setting `limits.update_journal`)
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    atomic: ByteSize,
    /// Scheme by which changes travel from node to node, or `auto`
    #[arg(long, value_name = "NAME", default_value = AUTO)]
    scheme: String,
    /// Order of the racks of a pipeline: `exact` (the fastest), `tabu`, `random` or `worst`
    #[arg(long, value_name = "ORDER", default_value = "exact")]
    path: String,
    /// Seed of random paths and of the tabu search
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes that are sent at once: a multiple of 4 KiB and at most 1 MiB, or all bytes of the update; or auto: the size predicted to be
    /// fastest
    #[arg(long, value_name = "SIZE|auto", default_value = "auto")]
    slice_size: AutoSize,
    /// How long each update may take, with all repetitions; and how long to wait for another command that appends
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    timeout: Duration,
    /// Show which blocks and nodes take part, how many bytes move, and how changes travel, and write nothing
    #[arg(long)]
    explain: bool,
    /// File with the new bytes, or `-` for stdin
    file: PathBuf,
    /// Object: BUCKET/KEY
    object: ObjectName,
}

#[derive(Debug, Serialize)]
struct Written {
    object: String,
    version: u64,
    offset: u64,
    bytes: u64,
    /// Of these, those by which the object has grown.
    appended_bytes: u64,
    /// Each was atomic.
    updates: u64,
    seconds: f64,
}

impl Write {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let size = if self.file == Path::new("-") { None } else { Some(size_of(&self.file)?) };
        if !self.explain {
            return self.write(size, options, output);
        }
        let Some(size) = size else {
            return Err(Error::invalid("--explain needs to know how many bytes there are: pass a FILE"));
        };
        let write_options = self.options(Some(size))?;
        let (plan, nodes) = Session::with(options, async |session| {
            let (bucket, key) = self.object.to_read(session)?;
            let offset = match self.offset {
                Some(offset) => offset.0,
                None => match session.client.stat(&bucket, &key).await {
                    Ok(object) => object.size,
                    Err(error) => return Err(self.object.unread(session, error).await),
                },
            };
            match session.client.explain_write(&bucket, &key, offset, size, &write_options).await {
                Ok(plan) => Ok((plan, session.nodes().await)),
                Err(error) => Err(self.object.unread(session, error).await),
            }
        })?;
        write_plan::show(&plan, &nodes, output)
    }

    fn write(self, size: Option<u64>, options: &target::Options, output: Output) -> Result<Exit> {
        let progress = Progress::new("writing", size.unwrap_or(0), output.json);
        let log = WriteLog::default();
        let written =
            Session::with(options, async |session| match self.overwrite(session, size, told(&progress), log.clone()).await {
                Ok(wrote) => Ok(wrote),
                Err(error) => Err(self.object.unread(session, error).await),
            });
        let seconds = progress.finish();
        let wrote = written.map_err(|error| match is_interrupted() {
            true => Error { message: format!("{}: {log}", error.message), ..error },
            false => error,
        })?;
        let Wrote { object, version, offset, bytes, appended_bytes, updates } = wrote;
        output.result(&Written { object, version, offset, bytes, appended_bytes, updates, seconds }, text).map(|()| Exit::Ok)
    }

    fn options(&self, size: Option<u64>) -> Result<WriteOptions> {
        let slice_len = match self.slice_size {
            AutoSize::Auto => 0,
            AutoSize::Bytes(ByteSize(0)) => return Err(Error::invalid("--slice-size must be greater than zero")),
            AutoSize::Bytes(size) => size.0,
        };
        check_name(Kind::Update, &self.scheme)?;
        let way = api::UpdateWay { scheme: self.scheme.clone(), path: self.path.clone(), seed: self.seed, slice_len };
        Ok(WriteOptions { deadline: self.timeout, update_bytes: self.atomic.0, way, size, ..WriteOptions::default() })
    }

    async fn overwrite(&self, session: &Session, size: Option<u64>, progress: ProgressFn, log: WriteLog) -> Result<Wrote> {
        let (bucket, key) = self.object.to_read(session)?;
        let file = match size {
            None => tokio::fs::File::from_std(standard(std::io::stdin())?),
            Some(_) => tokio::fs::File::open(&self.file).await.map_err(|error| io_error(&self.file, "read", &error))?,
        };
        let write_options = WriteOptions { progress, log, ..self.options(size)? };
        match self.offset {
            Some(offset) => session.client.write_at(&bucket, &key, offset.0, file, &write_options).await,
            None => session.client.append(&bucket, &key, file, &write_options).await,
        }
    }
}

fn text(it: &Written) -> String {
    let (bytes, rate, updates) = (human_bytes(it.bytes), human_rate(it.bytes, it.seconds), counted(it.updates, "update"));
    format!("{}  {bytes} at offset {} in {updates}, {:.2} s, {rate}", it.object, it.offset, it.seconds)
}

fn size_of(file: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(file).map_err(|error| io_error(file, "read", &error))?;
    let shown = file.display();
    match metadata.is_file() {
        true => Ok(metadata.len()),
        false if metadata.is_dir() => Err(Error::invalid(format!("{shown} is a directory, not a file"))),
        false => Err(Error::invalid(format!("{shown} is not a regular file; to write the output of a pipe, pass - as FILE"))),
    }
}
