//! `weft code`: erasure coding of plain files, without a cluster.

use super::{code_info::Info, explain};
use crate::offline::{self, Decoded, Encoded, Health, Proved, Repaired, Sizes, Stored, Verified};
use clap::{Args, Subcommand};
use std::{fmt::Write as _, path::PathBuf};
use weft_cli::{
    exit::Exit,
    interrupt,
    output::{Output, human_rate},
};
use weft_types::{ByteSize, Error, Result, human_bytes};

/// Encode, repair and decode plain files, without a cluster
#[derive(Debug, Args)]
pub(super) struct Code {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Encode(Encode),
    Repair(Repair),
    Decode(Decode),
    Verify(Verify),
    Info(Info),
}

/// Encode FILE into blocks: DIR/block-000, DIR/block-001, … and DIR/manifest.json
///
/// Every block file holds the raw bytes of one block. Without --block-size all of FILE becomes one stripe, with blocks just large
/// enough. With it, a FILE larger than k blocks becomes several stripes, whose blocks lie one after another in each block file.
/// Blocks end with their last byte of FILE, so that the last ones may be short; what is not there counts as zeros.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft code encode --code 'rs(10,4)' photos.tar /backup/photos
  weft code encode --code RS-6-3-1024k --block-size 64MiB photos.tar /backup/photos

EXIT CODES
  0 done   1 failed on the way   2 unknown code, sizes that make no sense, or DIR holds blocks already   3 no FILE")]
struct Encode {
    /// The code: `rs(k,m)`, or as HDFS spells it, `RS-6-3-1024k`; `weft code info` lists all
    #[arg(long, value_name = "SPEC")]
    code: String,
    /// Bytes of a block: a multiple of the cell size, and of the code's sub-blocks
    #[arg(long, value_name = "SIZE")]
    block_size: Option<ByteSize>,
    /// Bytes that go to one block before the next one's turn; without it, the block size
    #[arg(long, value_name = "SIZE")]
    cell_size: Option<ByteSize>,
    /// Show the plan with its cost, and do nothing (with --json: as `weft plan verify` reads it)
    #[arg(long)]
    explain: bool,
    /// What to encode
    file: PathBuf,
    /// Where the blocks go; it is made if it is not there
    dir: PathBuf,
}

/// Rebuild whatever is missing or corrupt in DIR
///
/// All blocks are compared with the manifest's checksums first; only what is good is used, MiB by MiB, and what is rebuilt is
/// compared before it takes its place.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft code repair /backup/photos --json

EXIT CODES
  0 every block is good now   1 failed on the way   3 no DIR, or no manifest there   4 more is lost than the code recovers   \
  5 the manifest is damaged, or what was rebuilt is not what was recorded")]
struct Repair {
    /// Show the plan with its cost, and do nothing (with --json: as `weft plan verify` reads it)
    #[arg(long)]
    explain: bool,
    /// The directory that `weft code encode` wrote
    dir: PathBuf,
}

/// Write the file that was encoded to OUT, in spite of what is missing or corrupt
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft code decode /backup/photos photos.tar

EXIT CODES
  0 done, and OUT's SHA-256 is the recorded one   1 failed on the way   3 no DIR, or no manifest there   \
  4 more is lost than the code recovers   5 the manifest is damaged, or what came out is not what was recorded")]
struct Decode {
    /// Show the plan with its cost, and do nothing (with --json: as `weft plan verify` reads it)
    #[arg(long)]
    explain: bool,
    /// The directory that `weft code encode` wrote
    dir: PathBuf,
    /// The file to write; it appears only when it is whole
    out: PathBuf,
}

/// Compare every block in DIR with its checksums
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft code verify /backup/photos && echo good

EXIT CODES
  0 every block is good   3 no DIR, or no manifest there   4 more is lost than the code recovers   \
  5 something is missing or corrupt, and `weft code repair` would rebuild it; or the manifest is damaged")]
struct Verify {
    /// The directory that `weft code encode` wrote
    dir: PathBuf,
}

impl Code {
    pub(super) fn run(self, output: Output) -> Result<Exit> {
        let _watch = interrupt::Watch::begin()?;
        match self.command {
            Command::Encode(encode) => encode.run(output),
            Command::Repair(repair) => repair.run(output),
            Command::Decode(decode) => decode.run(output),
            Command::Verify(verify) => verify.run(output),
            Command::Info(info) => info.run(output),
        }
    }
}

impl Encode {
    fn run(self, output: Output) -> Result<Exit> {
        let (code, cell_len) = weft_codes::parse_policy(&self.code).map_err(Error::invalid)?;
        let sizes = Sizes { block: self.block_size.map(|size| size.0), cell: self.cell_size.map(|size| size.0).or(cell_len) };
        if self.explain {
            return show(offline::explain_encode(&code, sizes, &self.file)?, output);
        }
        let encoded = offline::encode(&code, sizes, &self.file, &self.dir, output.json)?;
        output.result(&encoded, encoded_text).map(|()| Exit::Ok)
    }
}

impl Repair {
    fn run(self, output: Output) -> Result<Exit> {
        let stored = Stored::open(&self.dir, output.json)?;
        if self.explain {
            return show(stored.plan_repair()?, output);
        }
        output.result(&stored.repair()?, repaired_text).map(|()| Exit::Ok)
    }
}

impl Decode {
    fn run(self, output: Output) -> Result<Exit> {
        let stored = Stored::open(&self.dir, output.json)?;
        if self.explain {
            return show(stored.plan_decode()?, output);
        }
        output.result(&stored.decode(&self.out)?, decoded_text).map(|()| Exit::Ok)
    }
}

fn show(planned: Option<Proved>, output: Output) -> Result<Exit> {
    match planned {
        Some(Proved { plan, job }) => explain::show(&plan, &job, &[], explain::LINK_BYTES_PER_S, output),
        None => output.result(&serde_json::Value::Null, |_| "nothing would have to be moved".to_owned()).map(|()| Exit::Ok),
    }
}

impl Verify {
    fn run(self, output: Output) -> Result<Exit> {
        let verified = Stored::open(&self.dir, output.json)?.verify();
        output.result(&verified, verified_text)?;
        Ok(match (verified.ok, verified.recoverable) {
            (true, _) => Exit::Ok,
            (false, true) => Exit::Corrupt,
            (false, false) => Exit::Unavailable,
        })
    }
}

fn encoded_text(it: &Encoded) -> String {
    let stripes = if it.stripes == 1 { "1 stripe".to_owned() } else { format!("{} stripes", it.stripes) };
    format!(
        "{} as {} blocks under {}: {stripes}, blocks of {} in cells of {}, {} stored, {}\nsha256 {}",
        human_bytes(it.file_size),
        it.blocks,
        it.code,
        ByteSize(it.block_size),
        ByteSize(it.cell_size),
        human_bytes(it.bytes_stored),
        human_rate(it.file_size, it.seconds),
        it.sha256
    )
}

fn repaired_text(it: &Repaired) -> String {
    if it.repaired.is_empty() {
        return format!("every block is good ({} checked)", human_bytes(it.bytes_checked));
    }
    let mut text = String::new();
    for block in &it.repaired {
        let was = if block.was == Health::Missing { "was missing" } else { "was corrupt" };
        let _ = writeln!(text, "{} {was} ({}): {} rebuilt", block.file, block.reason, human_bytes(block.bytes_rebuilt));
    }
    let _ = write!(
        text,
        "read {} of blocks {}, moved {}; all checksums are right",
        human_bytes(it.bytes_read),
        list(&it.helpers),
        human_bytes(it.bytes_moved)
    );
    text
}

fn decoded_text(it: &Decoded) -> String {
    let rebuilt =
        if it.rebuilt.is_empty() { String::new() } else { format!(", blocks {} rebuilt on the way", list(&it.rebuilt)) };
    format!("{}{rebuilt}, {}\nsha256 {}, as recorded", human_bytes(it.file_size), human_rate(it.file_size, it.seconds), it.sha256)
}

fn verified_text(it: &Verified) -> String {
    let mut text = String::new();
    for block in it.blocks.iter().filter(|block| block.health != Health::Ok) {
        let health = if block.health == Health::Missing { "missing" } else { "corrupt" };
        let _ = writeln!(text, "{} {health}: {}", block.file, block.reason);
    }
    let (good, all) = (it.blocks.iter().filter(|block| block.health == Health::Ok).count(), it.blocks.len());
    let _ = write!(text, "{good} of {all} blocks of {} are good", it.code);
    match (it.ok, it.recoverable) {
        (true, _) => {}
        (false, true) => text.push_str("; `weft code repair` would rebuild the others"),
        (false, false) => text.push_str("; that is too few to rebuild the others"),
    }
    text
}

fn list(indices: &[u8]) -> String {
    indices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
