//! `weft demo`: the main use case, explained for readers new to erasure coding.

use super::{explain::LINK_BYTES_PER_S, repair};
use crate::offline::file_sha256;
use clap::Args;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{io::AsyncWrite, time::Instant};
use weft_cli::{
    exit::Exit,
    files::io_error,
    local::{LocalCluster, ScratchCluster, Signal, Size},
    output::{Output, print},
    session::{self, Session},
    table::table,
    up::bring_up,
};
use weft_client::{GetOptions, PutOptions, RepairOptions, api};
use weft_plan::Network;
use weft_types::{Error, NodeId, Result, human_bytes};

const NODES: u32 = 16;
const RACKS: u32 = 4;
const CODE: &str = "rs(10,4)";
const DATA_BLOCKS: u64 = 10;
/// The block whose node dies.
const LOST: u32 = 3;
const BUCKET: &str = "default";
const KEY: &str = "demo";
/// Blocks of a cluster are whole pages.
const PAGE: u64 = 4096;
const BLOCK_BYTES_MAX: u64 = 64 << 20;
/// Each way of reading is measured this many times, and the median counts: the very first read also opens connections.
const READS: usize = 3;
/// The coordinator must notice a dead node within this time.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(20);

/// Watch a file survive the death of a machine
///
/// Starts a cluster of sixteen processes in a temporary directory, stores a real file, kills a node, reads the file back in three
/// ways, rebuilds the lost block, and compares SHA-256 at every step. Removes everything at the end.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft demo
  weft demo --file holiday.mp4

EXIT CODES
  0 everything came back as it was stored   1 failed   2 FILE is too small   3 no FILE   \
  5 a byte came back wrong   130 interrupted; nothing is left behind")]
pub(super) struct Demo {
    /// File to store [default: this program]
    #[arg(long, value_name = "F")]
    file: Option<PathBuf>,
}

/// The result of the demonstration.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    size: u64,
    sha256: String,
    killed: String,
    noticed_after_s: f64,
    put_seconds: f64,
    reads: Vec<Reading>,
    rebuilt_on: String,
    rebuild_seconds: f64,
    last_read_seconds: f64,
    same: bool,
}

/// One way of reading the file: medians.
#[derive(Debug, Serialize)]
struct Reading {
    way: String,
    whole_seconds: f64,
    /// The part of the file in the lost block alone.
    part_seconds: f64,
    /// The predicted time for that part.
    part_on_gigabit_seconds: f64,
}

/// A demonstration in progress.
struct Stage<'a> {
    session: &'a Session,
    file: &'a Path,
    size: u64,
    block_len: u64,
    sha256: String,
    part_sha256: String,
    output: Output,
}

impl Demo {
    pub(super) fn run(self, output: Output) -> Result<Exit> {
        let program = std::env::current_exe().map_err(|error| Error::fatal(format!("cannot find this program: {error}")))?;
        let file = self.file.unwrap_or(program);
        let metadata = std::fs::metadata(&file).map_err(|error| io_error(&file, "read", &error))?;
        let size = metadata.len();
        if metadata.is_dir() {
            return Err(Error::invalid(format!("{} is a directory: pass a file with --file", file.display())));
        }
        if size <= DATA_BLOCKS * DATA_BLOCKS * PAGE {
            let least = human_bytes(DATA_BLOCKS * DATA_BLOCKS * PAGE);
            return Err(Error::invalid(format!(
                "{} is too small for ten blocks: choose a file of more than {least}",
                file.display()
            )));
        }
        let report = session::run(demonstrate(&file, size, output))?;
        if output.json {
            output.result(&report, |_| String::new())?;
        }
        Ok(Exit::Ok)
    }
}

async fn demonstrate(file: &Path, size: u64, output: Output) -> Result<Report> {
    let say = |line: &str| if output.json { Ok(()) } else { print(line) };
    say("weft demo: a file survives the death of a machine")?;
    say("")?;
    let started = Instant::now();
    let scratch = ScratchCluster::make("weft-demo", Size { nodes: NODES, racks: RACKS, disks_per_node: 1, insecure: false })?;
    let session = bring_up(scratch.cluster()).await?;
    say(&line("START", &format!("{NODES} agents in {RACKS} racks and a coordinator, each in its own process"), started))?;
    session.client.create_bucket(BUCKET, "").await?;

    let part = size.div_ceil(DATA_BLOCKS).div_ceil(PAGE) * PAGE;
    let block_len = part.min(BLOCK_BYTES_MAX);
    let range = Stage::lost_part(block_len);
    let (sha256, part_sha256) = (file_sha256(file, 0..size)?, file_sha256(file, range)?);
    let stage = Stage { session: &session, file, size, block_len, sha256, part_sha256, output };
    let report = stage.play(scratch.cluster()).await?;
    session.client.close().await;
    say("\nEverything came back as it was stored.")?;
    Ok(report)
}

impl Stage<'_> {
    async fn play(&self, cluster: &LocalCluster) -> Result<Report> {
        let put_seconds = self.store().await?;
        let before = self.read("plain, before", "", 0).await?;
        self.say(&format!("  READ    the whole file, from the data blocks: same sha256 ({:.2} s)", before.whole_seconds))?;

        let holder = self.holder().await?;
        let begun = Instant::now();
        cluster.signal(&holder.name, Signal::Kill)?;
        self.wait_until_noticed(&holder.name).await?;
        let noticed_after_s = begun.elapsed().as_secs_f64();
        self.say(&format!(
            "  KILL    {}, which holds block {LOST}, with SIGKILL: noticed after {noticed_after_s:.1} s",
            holder.name
        ))?;

        let mut reads = vec![before];
        for scheme in ["conventional", "ppr", "pipeline"] {
            reads.push(self.read(scheme, scheme, 1).await?);
        }
        self.say(&format!(
            "  READ    the file again, computing block {LOST} from ten others in three ways: same sha256 each time\n"
        ))?;
        self.say(&readings(&reads))?;

        let options = RepairOptions { scheme: "pipeline".into(), ..RepairOptions::default() };
        let rebuilt = repair::repair(self.session, BUCKET, KEY, &options, true).await?;
        let node = rebuilt.blocks.first().map(|block| block.node.clone());
        let node = node.ok_or_else(|| Error::corrupt(format!("block {LOST} was lost, but the repair rebuilt nothing")))?;
        let rebuilt_on = self.name_of(&node).await?;
        self.say(&format!("\n  REBUILD block {LOST} on {rebuilt_on}, through a chain of ten agents ({:.2} s)", rebuilt.seconds))?;

        let last = self.read("plain, after", "", 0).await?;
        self.say(&format!("  READ    the whole file, nothing to compute: same sha256 ({:.2} s)", last.whole_seconds))?;
        Ok(Report {
            file: self.file.display().to_string(),
            size: self.size,
            sha256: self.sha256.clone(),
            killed: holder.name,
            noticed_after_s,
            put_seconds,
            reads,
            rebuilt_on,
            rebuild_seconds: rebuilt.seconds,
            last_read_seconds: last.whole_seconds,
            same: true,
        })
    }

    async fn store(&self) -> Result<f64> {
        // Contiguous layout: a tenth of the file lies in the block that will be lost.
        let (block_len, code) = (self.block_len, CODE.to_owned());
        let options = PutOptions { code, block_len, cell_len: block_len, ..PutOptions::default() };
        let begun = Instant::now();
        let stored = self.session.client.put_file(BUCKET, KEY, self.file, &options).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let name = self.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (size, block) = (human_bytes(self.size), human_bytes(block_len));
        let pieces = match stored.stripe_count {
            1 => String::new(),
            stripes => format!(", in {stripes} stripes"),
        };
        self.say(&format!(
            "  STORE   {name} ({size}) as 10 data blocks of {block}{pieces}; the writer computes 4 parity blocks\n          \
             from them, and each of the 14 goes to a different agent. Any 10 are enough ({seconds:.2} s).\n          sha256 {}",
            self.sha256
        ))?;
        Ok(seconds)
    }

    /// Reads the whole file, then the part in the lost block. At least `rebuilt_min` blocks of each stripe must be computed during
    /// the read.
    async fn read(&self, way: &str, scheme: &str, rebuilt_min: usize) -> Result<Reading> {
        let whole_seconds = self.fetch(0..self.size, scheme, &self.sha256, rebuilt_min).await?;
        let part = Self::lost_part(self.block_len);
        let part_seconds = self.fetch(part.clone(), scheme, &self.part_sha256, rebuilt_min).await?;
        let options = GetOptions { range: Some(part.into()), scheme: scheme.to_owned(), ..GetOptions::default() };
        let mut part_on_gigabit_seconds = 0.0;
        for reply in self.session.client.explain_get(BUCKET, KEY, &options).await? {
            let plan = weft_plan::from_json(&String::from_utf8_lossy(&reply.plan))?.plan;
            part_on_gigabit_seconds += weft_plan::predict(&plan, &Network::uniform(LINK_BYTES_PER_S))?;
        }
        Ok(Reading { way: way.to_owned(), whole_seconds, part_seconds, part_on_gigabit_seconds })
    }

    /// The median time in seconds of [`READS`] reads. The bytes are hashed, not written: a busy disk would slow down only the first
    /// read.
    async fn fetch(&self, range: Range<u64>, scheme: &str, sha256: &str, rebuilt_min: usize) -> Result<f64> {
        let options = GetOptions { range: Some(range.into()), scheme: scheme.to_owned(), ..GetOptions::default() };
        let mut seconds = [0.0; READS];
        for seconds in &mut seconds {
            let mut hash = Hash::default();
            let begun = Instant::now();
            let got = self.session.client.get(BUCKET, KEY, &mut hash, &options).await?;
            *seconds = begun.elapsed().as_secs_f64();
            if hash.hex() != sha256 {
                return Err(Error::corrupt(format!("the file read back ({scheme}) differs from the stored one"))
                    .object(format!("{BUCKET}/{KEY}")));
            }
            if got.rebuilt.len() < rebuilt_min {
                return Err(Error::fatal(format!("the read ({scheme}) should have computed block {LOST}, but did not")));
            }
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[READS / 2])
    }

    /// The node that holds the block.
    async fn holder(&self) -> Result<api::Node> {
        let object = self.session.client.stat(BUCKET, KEY).await?;
        let block = object.stripes.first().and_then(|stripe| stripe.blocks.iter().find(|block| block.index == LOST));
        let id = block.ok_or_else(|| Error::fatal(format!("no node holds block {LOST}")))?.node;
        let nodes = self.session.client.status().await?.nodes;
        nodes.into_iter().find(|node| node.id == id).ok_or_else(|| Error::fatal(format!("node {id} is unknown")))
    }

    async fn name_of(&self, node: &str) -> Result<String> {
        let nodes = self.session.client.status().await?.nodes;
        let found = nodes.into_iter().find(|it| NodeId(it.id).to_string() == node);
        Ok(found.map_or_else(|| node.to_owned(), |node| node.name))
    }

    async fn wait_until_noticed(&self, name: &str) -> Result<()> {
        let until = Instant::now() + NOTICE_TIMEOUT;
        while self.session.client.status().await?.nodes.iter().any(|node| node.name == *name && node.state == "up") {
            if Instant::now() > until {
                return Err(Error::fatal(format!(
                    "{name} is dead, but the coordinator did not notice within {NOTICE_TIMEOUT:?}"
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// The bytes of the file in the block that will be lost.
    fn lost_part(block_len: u64) -> Range<u64> {
        u64::from(LOST) * block_len..u64::from(LOST + 1) * block_len
    }

    fn say(&self, line: &str) -> Result<()> {
        if self.output.json { Ok(()) } else { print(line) }
    }
}

/// Takes bytes, and keeps only their SHA-256.
#[derive(Default)]
struct Hash(Sha256);

impl Hash {
    fn hex(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl AsyncWrite for Hash {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.update(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// All readings side by side.
fn readings(reads: &[Reading]) -> String {
    let plain = reads.first().map_or(0.0, |plain| plain.part_on_gigabit_seconds);
    let how = |way: &str| match way {
        "conventional" => "ten blocks to one reader",
        "ppr" => "a tree of partial sums",
        "pipeline" => "a chain, slice by slice",
        _ => "nothing lost",
    };
    let row = |it: &Reading| {
        let times = if plain > 0.0 { format!("{:.1} x", it.part_on_gigabit_seconds / plain) } else { String::new() };
        let [whole, part] = [it.whole_seconds, it.part_seconds].map(|seconds| format!("{seconds:.2} s"));
        let predicted = format!("{:.0} ms", it.part_on_gigabit_seconds * 1000.0);
        [it.way.clone(), whole, part, predicted, times, how(&it.way).to_owned()]
    };
    let heading = ["", "whole file", "lost tenth", "on 1 Gbit/s*", "", ""];
    let table = table(heading, &[1, 2, 3, 4], reads.iter().map(row));
    let table: Vec<String> = table.lines().map(|line| format!("    {line}")).collect();
    format!(
        "{}\n    Medians of {READS} reads; the bytes are hashed, not written.\n    \
         * the tenth alone, as predicted from its plan: within one machine no link is slow",
        table.join("\n")
    )
}

fn line(word: &str, text: &str, begun: Instant) -> String {
    format!("  {word:<7} {text} ({:.1} s)", begun.elapsed().as_secs_f64())
}
