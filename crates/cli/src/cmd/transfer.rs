//! `weft put` and `weft get`: the data of objects.

use super::{
    code_info::short_sub_blocks,
    explain,
    names::{ByteRange, ObjectName},
    object::Incomplete,
};
use clap::Args;
use serde::Serialize;
use std::{
    fs::File,
    os::fd::AsFd,
    path::{Path, PathBuf},
};
use weft_cli::{
    exit::Exit,
    files::io_error,
    names::with_names,
    output::{Output, human_rate},
    progress::Progress,
    session::Session,
    target,
};
use weft_client::{Destination, GetOptions, Got, ProgressFn, PutOptions, api};
use weft_types::{AutoSize, ByteSize, Error, Result, human_bytes};

/// Store FILE as an object
///
/// It is acknowledged when all its blocks are durable, or as many as --ack says, and the cluster's metadata says so; before that nothing
/// of it can be seen. Blocks that are on their way then come afterwards, or are rebuilt: `weft stat` tells.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft put cat.jpg photos/cat.jpg
  weft put cat.jpg photos/cat.jpg --code 'rs(10,4)' --block-size 64MiB --cell-size 1MiB
  tar c photos | weft put - backup/photos.tar
  weft put cat.jpg photos/cat.jpg --scheme mist --explain
  weft put cat.jpg photos/cat.jpg --code 'rs(10,4)' --ack k+2

EXIT CODES
  0 stored   1 failed on the way; nothing is left behind   2 a code, sizes or a name that make no sense, or more blocks than nodes   \
  3 no FILE, no such bucket, or no cluster   4 too few nodes are up   5 a block did not arrive as it was sent")]
pub(super) struct Put {
    /// The code: `rs(k,m)`, or as HDFS spells it, `RS-6-3-1024k`; `weft code info` lists all. Without it, the bucket's policy says
    #[arg(long, value_name = "SPEC")]
    code: Option<String>,
    /// Bytes of a block; without it, the bucket's policy says
    #[arg(long, value_name = "SIZE")]
    block_size: Option<ByteSize>,
    /// Bytes that go to one block before the next one's turn; without it, the bucket's policy says
    #[arg(long, value_name = "SIZE")]
    cell_size: Option<ByteSize>,
    /// How the data gets to its nodes: direct (the writer sends every block), mist (it sends the data, and nodes make the rest of it),
    /// or auto (what is predicted to be the quicker); without it, the coordinator's setting says, which is auto unless it was changed
    #[arg(long)]
    scheme: Option<String>,
    /// Bytes of a slice of a block, a multiple of 4 KiB; without it, the coordinator's setting says
    #[arg(long, value_name = "SIZE")]
    slice_size: Option<ByteSize>,
    /// When it is acknowledged: `all` blocks are durable, or of each stripe N more than k, `k+N`, or all but N, `tolerate=N`, from which
    /// the rest can be made; without it, the bucket's policy says. A slow disk or a dead node is not waited for then; a slow link is, as
    /// it slows down the sending to all
    #[arg(long, value_name = "all|k+N|tolerate=N")]
    ack: Option<String>,
    /// Copies of each data block in all, with the coded one; without it, the bucket's policy says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    replicas: Option<u32>,
    /// Show the plan with its cost, and do nothing (with --json: as `weft plan verify` reads it)
    #[arg(long)]
    explain: bool,
    /// What to store; `-` is stdin
    file: PathBuf,
    /// The object: BUCKET/KEY
    object: ObjectName,
}

/// Fetch an object, or a range of it, into FILE
///
/// Blocks that are lost are rebuilt on the way; what is rebuilt is compared with recorded checksums before it is handed out.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft get photos/cat.jpg cat.jpg
  weft get backup/photos.tar - | tar x
  weft get photos/cat.jpg head --range 0-1023
  weft get photos/cat.jpg cat.jpg --scheme pipeline --explain

EXIT CODES
  0 done; FILE is complete   1 failed on the way   2 a range outside the object, or a scheme that does not exist   \
  3 no such object, or no cluster   4 more is lost than the code recovers; the message names the blocks   5 what was rebuilt is wrong")]
pub(super) struct Get {
    /// The bytes A to B, both included; also `A-`, to the end, and `-N`, the last N
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    range: Option<ByteRange>,
    /// How lost blocks are rebuilt: auto (what is predicted to be the quickest), conventional, ppr, pipeline or cyclic; without it,
    /// the coordinator's setting says, which is auto unless it was changed
    #[arg(long)]
    scheme: Option<String>,
    /// Bytes of a slice of what is lost, a multiple of 4 KiB, or auto: with which it should be the quickest; without it, the
    /// coordinator's setting says
    #[arg(long, value_name = "SIZE|auto")]
    slice_size: Option<AutoSize>,
    /// Show the plan with its cost, and do nothing (with --json: as `weft plan verify` reads it)
    #[arg(long)]
    explain: bool,
    /// The object: BUCKET/KEY
    object: ObjectName,
    /// Where it goes; `-` is stdout. The file appears only when it is whole; a device or pipe is written to as it comes
    file: PathBuf,
}

#[derive(Debug, Serialize)]
struct Stored {
    object: String,
    version: u64,
    size: u64,
    code: String,
    block_size: u64,
    cell_size: u64,
    stripes: u64,
    seconds: f64,
    /// Whether all blocks were durable when it was acknowledged.
    complete: bool,
    /// How many stripes were not.
    incomplete_stripes: u64,
    /// The last of them.
    incomplete: Option<Incomplete>,
    /// Blocks of a stripe.
    #[serde(skip)]
    stripe_blocks: usize,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Fetched {
    object: String,
    version: u64,
    bytes: u64,
    /// Blocks that were rebuilt on the way.
    rebuilt: Vec<String>,
    /// What was got around.
    errors: Vec<String>,
    plans: u64,
    seconds: f64,
}

impl Put {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let is_pipe = self.file == Path::new("-");
        // To the coordinator, 0 says that nothing was said.
        if [self.block_size, self.cell_size, self.slice_size].contains(&Some(ByteSize(0))) {
            return Err(Error::invalid("sizes of blocks, cells and slices must be greater than zero"));
        }
        let size = if is_pipe { 0 } else { size_of(&self.file)? };
        if self.explain {
            let (reply, nodes) = Session::with(options, async |session| {
                let (bucket, key) = self.object.resolve(session.bucket.as_deref())?;
                let reply = session.client.explain_put(&bucket, &key, size, &self.options(ProgressFn::default())).await?;
                Ok((reply, session.nodes().await))
            })?;
            return explain::show_saved(&[reply.plan], &reply.warnings, &nodes, output);
        }
        let progress = Progress::new("storing", size, output.json);
        let stored = Session::with(options, async |session| {
            let (bucket, key) = self.object.resolve(session.bucket.as_deref())?;
            let put_options = self.options(told(&progress));
            match is_pipe {
                true => {
                    let stdin = tokio::fs::File::from_std(standard(std::io::stdin())?);
                    session.client.put(&bucket, &key, stdin, &put_options).await
                }
                false => session.client.put_file(&bucket, &key, &self.file, &put_options).await,
            }
        })?;
        let stored = Stored::new(stored, progress.finish());
        output.result(&stored, stored_text).map(|()| Exit::Ok)
    }

    fn options(&self, progress: ProgressFn) -> PutOptions {
        let size = |size: Option<ByteSize>| size.map_or(0, |size| size.0);
        PutOptions {
            code: self.code.clone().unwrap_or_default(),
            block_len: size(self.block_size),
            cell_len: size(self.cell_size),
            scheme: self.scheme.clone().unwrap_or_default(),
            slice_len: size(self.slice_size),
            random: false,
            ack: self.ack.clone().unwrap_or_default(),
            replicas: self.replicas.unwrap_or(0),
            size: None,
            progress,
        }
    }
}

impl Get {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let is_pipe = self.file == Path::new("-");
        if self.explain {
            let (plans, nodes) = Session::with(options, async |session| {
                let (bucket, key, get_options) = self.asked(session, ProgressFn::default()).await?;
                Ok((session.client.explain_get(&bucket, &key, &get_options).await?, session.nodes().await))
            })?;
            let plans: Vec<Vec<u8>> = plans.into_iter().map(|reply| reply.plan).collect();
            return explain::show_saved(&plans, &[], &nodes, output);
        }
        let destination = if is_pipe { None } else { Some(Destination::of(&self.file)?) };
        let progress = Progress::new("fetching", 0, output.json);
        let fetched = Session::with(options, async |session| {
            let (bucket, key, get_options) = self.asked(session, told(&progress)).await?;
            let got = match &destination {
                None => session.client.get_pipe(&bucket, &key, standard(std::io::stdout())?, &get_options).await,
                Some(Destination::File(file)) => session.client.get_file(&bucket, &key, file, &get_options).await,
                Some(Destination::Stream(stream)) => {
                    let opened = tokio::fs::File::options().write(true).open(stream).await;
                    let opened = opened.map_err(|error| io_error(stream, "write to", &error))?.into_std().await;
                    session.client.get_pipe(&bucket, &key, opened, &get_options).await
                }
            }?;
            let nodes = if got.errors.is_empty() { Vec::new() } else { session.nodes().await };
            Ok(Fetched::new(got, progress.finish(), &nodes))
        })?;
        if !matches!(destination, Some(Destination::File(_))) {
            // The data may have gone to stdout.
            let json = serde_json::to_string(&fetched).map_err(Error::fatal)?;
            eprintln!("{}", if output.json { json } else { fetched_text(&fetched) });
            return Ok(Exit::Ok);
        }
        output.result(&fetched, fetched_text).map(|()| Exit::Ok)
    }

    async fn asked(&self, session: &Session, progress: ProgressFn) -> Result<(String, String, GetOptions)> {
        let (bucket, key) = self.object.resolve(session.bucket.as_deref())?;
        let range = match self.range {
            Some(range) => {
                let span = range.of(session.client.stat(&bucket, &key).await?.size)?;
                Some(span.start..span.end)
            }
            None => None,
        };
        Ok((
            bucket,
            key,
            GetOptions { range, scheme: self.scheme.clone().unwrap_or_default(), slice_len: self.slice_size, progress },
        ))
    }
}

impl Stored {
    fn new(it: api::ObjectReply, seconds: f64) -> Self {
        let short = short_sub_blocks(&it.code, it.cell_len);
        Self {
            object: format!("{}/{}", it.bucket, it.key),
            version: it.version,
            size: it.size,
            block_size: it.block_len,
            cell_size: it.cell_len,
            stripes: it.stripe_count,
            seconds,
            complete: it.incomplete_count == 0,
            incomplete_stripes: it.incomplete_count,
            stripe_blocks: weft_codes::parse(&it.code).map(|code| code.n()).unwrap_or_default(),
            incomplete: it.incomplete.into_iter().map(Incomplete::from).next_back(),
            code: it.code,
            warnings: it.warnings.into_iter().chain(short).collect(),
        }
    }
}

impl Fetched {
    fn new(it: Got, seconds: f64, nodes: &[api::Node]) -> Self {
        Self {
            object: format!("{}/{}", it.object.bucket, it.object.key),
            version: it.object.version,
            bytes: it.bytes,
            rebuilt: it.rebuilt.iter().map(ToString::to_string).collect(),
            errors: it.errors.iter().map(|error| with_names(error.to_string(), nodes)).collect(),
            plans: it.plans,
            seconds,
        }
    }
}

fn stored_text(it: &Stored) -> String {
    let stripes = if it.stripes == 1 { "1 stripe".to_owned() } else { format!("{} stripes", it.stripes) };
    let (size, rate) = (human_bytes(it.size), human_rate(it.size, it.seconds));
    let mut text = format!("{}  {size} under {} in {stripes}, {:.2} s, {rate}", it.object, it.code, it.seconds);
    if let Some(last) = &it.incomplete {
        text += &format!(
            "\nacknowledged with {} of {} blocks of stripe {} on their way",
            last.blocks.len(),
            it.stripe_blocks,
            last.stripe
        );
        if it.incomplete_stripes > 1 {
            text += &format!(", and others of {} more stripes", it.incomplete_stripes - 1);
        }
    }
    for warning in &it.warnings {
        text += &format!("\nwarning: {warning}");
    }
    text
}

fn fetched_text(it: &Fetched) -> String {
    let mut text = format!("{}  {}, {:.2} s, {}", it.object, human_bytes(it.bytes), it.seconds, human_rate(it.bytes, it.seconds));
    if !it.rebuilt.is_empty() {
        text += &format!("\nrebuilt on the way: {}", it.rebuilt.join(", "));
    }
    for error in &it.errors {
        text += &format!("\ngot around: {error}");
    }
    text
}

/// Tells a bar how far a put or get is.
fn told(progress: &Progress) -> ProgressFn {
    let progress = progress.clone();
    ProgressFn::new(move |at| progress.set(at.done_bytes, at.total_bytes))
}

fn size_of(file: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(file).map_err(|error| io_error(file, "read", &error))?;
    if !metadata.is_file() {
        return Err(Error::invalid(format!("{} is not a plain file; from a pipe, name it -", file.display())));
    }
    Ok(metadata.len())
}

/// Standard input or output as a file, without the buffer that the library puts around it.
fn standard(end: impl AsFd) -> Result<File> {
    let owned = end.as_fd().try_clone_to_owned();
    owned.map(File::from).map_err(|error| Error::fatal(format!("no standard input or output: {error}")))
}
