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
/// Each block file holds the raw bytes of one block. Without --block-size, FILE becomes one stripe with blocks just large enough.
/// With it, a FILE larger than k blocks becomes several stripes, whose blocks follow one another in each block file. A block ends
/// with its last byte of FILE, so the last data blocks can be short; missing bytes count as zeros.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft code encode --code 'rs(10,4)' photos.tar /backup/photos
  weft code encode --code RS-6-3-1024k --block-size 64MiB photos.tar /backup/photos
  tar c photos | weft code encode --code 'rs(10,4)' - /backup/photos

EXIT CODES
  0 done   1 failed   2 unknown code, invalid sizes, or DIR already holds blocks   3 no FILE")]
struct Encode {
    /// Code: `rs(k,m)`, or an HDFS name such as `RS-6-3-1024k`; `weft code info` lists all codes
    #[arg(long, value_name = "SPEC")]
    code: String,
    /// Bytes of a block: a multiple of the cell size and of the code's sub-blocks
    #[arg(long, value_name = "SIZE")]
    block_size: Option<ByteSize>,
    /// Bytes written to one block before the next block's turn [default: the block size]
    #[arg(long, value_name = "SIZE")]
    cell_size: Option<ByteSize>,
    /// Show the plan with its cost and do nothing (with --json: in the form that `weft plan verify` reads)
    #[arg(long)]
    explain: bool,
    /// File to encode; `-` reads stdin
    file: PathBuf,
    /// Directory for the blocks; created if it does not exist
    dir: PathBuf,
}

/// Rebuild missing and corrupt blocks in DIR
///
/// First compares all blocks with the manifest's checksums. Uses only good bytes, MiB by MiB, and checks each rebuilt block before
/// it replaces the old one.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft code repair /backup/photos --json

EXIT CODES
  0 every block is good   1 failed   3 no DIR, or no manifest in it   4 more blocks are lost than the code recovers   \
  5 the manifest is corrupt, or a rebuilt block does not match its checksums")]
struct Repair {
    /// Show the plan with its cost and do nothing (with --json: in the form that `weft plan verify` reads)
    #[arg(long)]
    explain: bool,
    /// Directory that `weft code encode` wrote
    dir: PathBuf,
}

/// Write the encoded file to OUT, even if blocks are missing or corrupt
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft code decode /backup/photos photos.tar

EXIT CODES
  0 done; OUT's SHA-256 matches the recorded one   1 failed   3 no DIR, or no manifest in it   \
  4 more blocks are lost than the code recovers   5 the manifest is corrupt, or the output does not match its checksum")]
struct Decode {
    /// Show the plan with its cost and do nothing (with --json: in the form that `weft plan verify` reads)
    #[arg(long)]
    explain: bool,
    /// Directory that `weft code encode` wrote
    dir: PathBuf,
    /// File to write; it appears only when it is complete
    out: PathBuf,
}

/// Compare every block in DIR with its checksums
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft code verify /backup/photos && echo good

EXIT CODES
  0 every block is good   3 no DIR, or no manifest in it   4 more blocks are lost than the code recovers   \
  5 a block is missing or corrupt and `weft code repair` can rebuild it, or the manifest is corrupt")]
struct Verify {
    /// Directory that `weft code encode` wrote
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
        None => output.result(&serde_json::Value::Null, |_| "nothing to move".to_owned()).map(|()| Exit::Ok),
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
        return format!("all blocks are good ({} checked)", human_bytes(it.bytes_checked));
    }
    let mut text = String::new();
    for block in &it.repaired {
        let was = if block.was == Health::Missing { "was missing" } else { "was corrupt" };
        let _ = writeln!(text, "{} {was} ({}): {} rebuilt", block.file, block.reason, human_bytes(block.bytes_rebuilt));
    }
    let _ = write!(
        text,
        "read {} of blocks {}, moved {}; all checksums match",
        human_bytes(it.bytes_read),
        list(&it.helpers),
        human_bytes(it.bytes_moved)
    );
    text
}

fn decoded_text(it: &Decoded) -> String {
    let rebuilt = if it.rebuilt.is_empty() { String::new() } else { format!(", rebuilt blocks {}", list(&it.rebuilt)) };
    format!(
        "{}{rebuilt}, {}\nsha256 {}, matches the recorded one",
        human_bytes(it.file_size),
        human_rate(it.file_size, it.seconds),
        it.sha256
    )
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
        (false, true) => text.push_str("; `weft code repair` can rebuild the others"),
        (false, false) => text.push_str("; too few to rebuild the others"),
    }
    text
}

fn list(indices: &[u8]) -> String {
    indices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
