//! `weft put` and `weft get`: the data of objects.

use super::{
    code_info::short_sub_blocks,
    explain,
    names::ObjectName,
    object::Incomplete,
    put_many::{Asked, Many},
};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use weft_cli::{
    exit::Exit,
    files::{io_error, standard},
    names::with_names,
    output::{Output, human_rate},
    progress::Progress,
    session::Session,
    target,
};
use weft_client::{ByteRange, Destination, GetOptions, Got, ProgressFn, PutOptions, api};
use weft_types::{AutoSize, ByteSize, Error, Result, human_bytes};

/// Store a file as an object, or many files
///
/// One FILE becomes the object BUCKET/KEY. Several files, or one, go into the folder BUCKET/PREFIX/ under their names. With --recursive, all
/// files of a directory go below BUCKET/PREFIX, and their paths below the directory become keys; with --from, the files of a list. Of many
/// files, those that fail do not stop the rest: the command names them at the end.
///
/// The put is acknowledged when the metadata is committed and all blocks are durable, or as many as --ack requires. The object is invisible
/// before that. With --ack, the remaining blocks follow or are rebuilt; `weft stat` shows which are missing.
#[derive(Debug, Args)]
#[command(override_usage = "\
weft put [OPTIONS] FILE BUCKET/KEY
       weft put [OPTIONS] FILE... BUCKET/[PREFIX/]
       weft put [OPTIONS] --recursive DIR BUCKET[/PREFIX]
       weft put [OPTIONS] --from LIST BUCKET[/PREFIX]")]
#[command(after_help = "\
EXAMPLE
  weft put cat.jpg photos/cat.jpg
  weft put *.jpg photos/2024/
  weft put --recursive album photos/2024
  find . -name '*.jpg' -print0 | weft put --from - --null photos/2024
  weft put cat.jpg photos/cat.jpg --code 'rs(10,4)' --block-size 64MiB --cell-size 1MiB
  tar c photos | weft put - backup/photos.tar
  weft put cat.jpg photos/cat.jpg --scheme mist --explain
  weft put cat.jpg photos/cat.jpg --code 'rs(10,4)' --ack k+2

EXIT CODES
  0 stored   1 failed, and nothing is left behind; of many files, some failed for different reasons   2 an invalid code, size or name   \
  3 no FILE, no such bucket, or no cluster   4 no coordinator   5 a block did not arrive as it was sent   \
  6 too few nodes for the code, or too few of them are up   7 disks are full")]
pub(super) struct Put {
    /// Code: `rs(k,m)`, or an HDFS name such as `RS-6-3-1024k`; `weft code info` lists all codes [default: the bucket's policy]
    #[arg(long, value_name = "SPEC")]
    code: Option<String>,
    /// Bytes of a block [default: the bucket's policy]
    #[arg(long, value_name = "SIZE")]
    block_size: Option<ByteSize>,
    /// Bytes written to one block before the next block's turn [default: the bucket's policy]
    #[arg(long, value_name = "SIZE")]
    cell_size: Option<ByteSize>,
    /// How the data reaches its nodes: direct (the writer sends every block), mist (the writer sends the data, and nodes compute the
    /// other blocks), or auto (whichever is predicted to be faster) [default: the coordinator's setting, normally auto]
    #[arg(long)]
    scheme: Option<String>,
    /// Bytes of a slice of a block, a multiple of 4 KiB [default: the coordinator's setting]
    #[arg(long, value_name = "SIZE")]
    slice_size: Option<ByteSize>,
    /// When the put is acknowledged: when `all` blocks are durable, when N more than k blocks of each stripe are (`k+N`), or when all but
    /// N are (`tolerate=N`). A put then does not wait for slow disks or dead nodes; a slow link still slows down the whole put [default:
    /// the bucket's policy]
    #[arg(long, value_name = "all|k+N|tolerate=N")]
    ack: Option<String>,
    /// Copies of each data block, including the coded one [default: the bucket's policy]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    replicas: Option<u32>,
    /// Show the plan with its cost and do nothing (with --json: in the form that `weft plan verify` reads)
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    many: Many,
    /// File to store, or `-` for stdin; the last one is the target: BUCKET/KEY, or for many files BUCKET/PREFIX/
    #[arg(required = true, value_name = "FILE|TARGET")]
    paths: Vec<PathBuf>,
}

/// One file, and the object that it becomes.
struct One {
    file: PathBuf,
    object: ObjectName,
}

/// Fetch an object, or a range of it, into FILE
///
/// Lost blocks are rebuilt during the read; rebuilt bytes are compared with recorded checksums before they are returned.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft get photos/cat.jpg cat.jpg
  weft get backup/photos.tar - | tar x
  weft get photos/cat.jpg head --range 0-1023
  weft get photos/cat.jpg cat.jpg --scheme pipeline --explain

EXIT CODES
  0 done; FILE is complete   1 failed   2 a range that starts past the end, or an unknown scheme   \
  3 no such object, or no cluster   4 more is lost than the code recovers; the message names the blocks   \
  5 rebuilt bytes do not match their checksums")]
pub(super) struct Get {
    /// Bytes A to B, both included, up to the end of the object; also `A-`, to the end, and `-N`, the last N
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    range: Option<ByteRange>,
    /// How lost blocks are rebuilt: auto (whichever is predicted to be fastest), conventional, ppr, pipeline or cyclic [default: the
    /// coordinator's setting, normally auto]
    #[arg(long)]
    scheme: Option<String>,
    /// Bytes of a slice of a lost block, a multiple of 4 KiB; or auto: the size predicted to be fastest [default: the coordinator's
    /// setting]
    #[arg(long, value_name = "SIZE|auto")]
    slice_size: Option<AutoSize>,
    /// Show the plan with its cost and do nothing (with --json: in the form that `weft plan verify` reads)
    #[arg(long)]
    explain: bool,
    /// Object: BUCKET/KEY
    object: ObjectName,
    /// File to write; `-` is stdout. A file appears only when it is complete; a device or pipe gets the bytes as they arrive
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
    /// Whether all blocks were durable when the put was acknowledged.
    complete: bool,
    /// The number of incomplete stripes.
    incomplete_stripes: u64,
    /// The last incomplete stripe.
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
    /// Blocks that were rebuilt during the read.
    rebuilt: Vec<String>,
    /// Errors that the get recovered from.
    errors: Vec<String>,
    plans: u64,
    seconds: f64,
}

impl Put {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        // In the request, 0 stands for "not given".
        if [self.block_size, self.cell_size, self.slice_size].contains(&Some(ByteSize(0))) {
            return Err(Error::invalid("--block-size, --cell-size and --slice-size must be greater than zero"));
        }
        match self.many.asked(&self.paths)? {
            Asked::One(file, object) => {
                let one = One { file, object: object.parse().map_err(Error::invalid)? };
                if self.explain { self.explain(&one, options, output) } else { self.store(&one, options, output) }
            }
            _ if self.explain => {
                Err(Error::invalid("--explain shows the plan of one FILE: write weft put FILE BUCKET/KEY --explain"))
            }
            many => self.many.store(many, self.options(ProgressFn::default()), options, output),
        }
    }

    fn explain(&self, one: &One, options: &target::Options, output: Output) -> Result<Exit> {
        let size = one.size()?;
        let (reply, nodes) = Session::with(options, async |session| {
            let (bucket, key) = one.object.resolve(session, &one.example()).await?;
            let reply = session.client.explain_put(&bucket, &key, size, &self.options(ProgressFn::default())).await?;
            Ok((reply, session.nodes().await))
        })?;
        explain::show_saved(&[reply.plan], &reply.warnings, &nodes, output)
    }

    fn store(&self, one: &One, options: &target::Options, output: Output) -> Result<Exit> {
        let progress = Progress::new("storing", one.size()?, output.json);
        let stored = Session::with(options, async |session| {
            let (bucket, key) = one.object.resolve(session, &one.example()).await?;
            let put_options = self.options(told(&progress));
            match one.is_pipe() {
                true => {
                    let stdin = tokio::fs::File::from_std(standard(std::io::stdin())?);
                    session.client.put(&bucket, &key, stdin, &put_options).await
                }
                false => session.client.put_file(&bucket, &key, &one.file, &put_options).await,
            }
        })?;
        let stored = Stored::new(stored, progress.finish());
        output.result_with(&stored, &stored.warnings, stored_text).map(|()| Exit::Ok)
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
            by_name: false,
            ack: self.ack.clone().unwrap_or_default(),
            replicas: self.replicas.unwrap_or(0),
            size: None,
            progress,
        }
    }
}

impl One {
    fn is_pipe(&self) -> bool {
        self.file == Path::new("-")
    }

    /// The bytes of the file; 0: unknown.
    fn size(&self) -> Result<u64> {
        if self.is_pipe() { Ok(0) } else { size_of(&self.file) }
    }

    /// The name of the file, as a key.
    fn example(&self) -> String {
        let name = self.file.file_name().filter(|name| *name != "-");
        name.map_or_else(|| "KEY".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

impl Get {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let is_pipe = self.file == Path::new("-");
        if self.explain {
            let (stripes, nodes) = Session::with(options, async |session| {
                let (bucket, key, get_options) = self.asked(session, ProgressFn::default())?;
                match session.client.explain_get(&bucket, &key, &get_options).await {
                    Ok(stripes) => Ok((stripes, session.nodes().await)),
                    Err(error) => Err(self.object.unread(session, error).await),
                }
            })?;
            return explain::show_read(stripes, &nodes, output);
        }
        let destination = if is_pipe { None } else { Some(Destination::of(&self.file)?) };
        let progress = Progress::new("fetching", 0, output.json);
        let fetched = Session::with(options, async |session| {
            let got = match self.fetch(session, destination.as_ref(), told(&progress)).await {
                Ok(got) => got,
                Err(error) => return Err(self.object.unread(session, error).await),
            };
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

    async fn fetch(&self, session: &Session, destination: Option<&Destination>, progress: ProgressFn) -> Result<Got> {
        let (bucket, key, get_options) = self.asked(session, progress)?;
        match destination {
            None => session.client.get_pipe(&bucket, &key, standard(std::io::stdout())?, &get_options).await,
            Some(Destination::File(file)) => session.client.get_file(&bucket, &key, file, &get_options).await,
            Some(Destination::Stream(stream)) => {
                let opened = tokio::fs::File::options().write(true).open(stream).await;
                let opened = opened.map_err(|error| io_error(stream, "write to", &error))?.into_std().await;
                session.client.get_pipe(&bucket, &key, opened, &get_options).await
            }
        }
    }

    fn asked(&self, session: &Session, progress: ProgressFn) -> Result<(String, String, GetOptions)> {
        let (bucket, key) = self.object.to_read(session)?;
        let (range, scheme) = (self.range.clone(), self.scheme.clone().unwrap_or_default());
        Ok((bucket, key, GetOptions { range, scheme, slice_len: self.slice_size, progress }))
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
            errors: it.errors.iter().map(|error| with_names(&error.to_string(), nodes)).collect(),
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
            "\nacknowledged before {} of {} blocks of stripe {} were stored",
            last.blocks.len(),
            it.stripe_blocks,
            last.stripe
        );
        if it.incomplete_stripes > 1 {
            text += &format!(", and blocks of {} more stripes", it.incomplete_stripes - 1);
        }
    }
    text
}

fn fetched_text(it: &Fetched) -> String {
    let mut text = format!("{}  {}, {:.2} s, {}", it.object, human_bytes(it.bytes), it.seconds, human_rate(it.bytes, it.seconds));
    if !it.rebuilt.is_empty() {
        text += &format!("\nrebuilt during the read: {}", it.rebuilt.join(", "));
    }
    for error in &it.errors {
        text += &format!("\nrecovered from: {error}");
    }
    text
}

/// Reports the progress of a put, get or write to a progress bar.
pub(super) fn told(progress: &Progress) -> ProgressFn {
    let progress = progress.clone();
    ProgressFn::new(move |at| progress.set(at.done_bytes, at.total_bytes))
}

fn size_of(file: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(file).map_err(|error| io_error(file, "read", &error))?;
    if metadata.is_dir() {
        return Err(Error::invalid(format!("{} is a directory: pass --recursive to store the files in it", file.display())));
    }
    if !metadata.is_file() {
        return Err(Error::invalid(format!(
            "{} is not a regular file; to store the output of a pipe, pass - as FILE",
            file.display()
        )));
    }
    Ok(metadata.len())
}
