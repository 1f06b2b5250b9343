//! `weft stat`: an object, its stripes and blocks.

use super::names::ObjectName;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use weft_cli::{exit::Exit, output::Output, session::Session, table::table, target};
use weft_client::api;
use weft_types::{ByteSize, NodeId, Result, Span, StripeId, human_bytes};

/// Show an object's stripes, the location of each block, and whether it can be read now
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft stat photos/cat.jpg
  weft stat photos/cat.jpg --json | jq '.stripes[0].blocks[3].node'
  weft stat photos/cat.jpg --json | jq '.readable, .unreadable'

EXIT CODES
  0 shown, even if the object cannot be read   3 no such object, or no cluster   4 no coordinator")]
pub(super) struct Stat {
    /// Object: BUCKET/KEY
    object: ObjectName,
}

/// The most incomplete stripes that are listed.
const INCOMPLETE_SHOWN: usize = 8;

/// The most unreadable stripes that are listed.
const UNREADABLE_SHOWN: usize = 4;

/// An object and its stripes.
#[derive(Debug, Serialize)]
pub(super) struct Object {
    bucket: String,
    key: String,
    version: u64,
    pub(super) size: u64,
    code: String,
    block_size: u64,
    cell_size: u64,
    created_ms: u64,
    pub(super) stripes: Vec<Stripe>,
    /// Whether all blocks are stored, including those that an early acknowledgement left for later.
    complete: bool,
    /// The stripes with blocks that are not stored yet.
    incomplete: Vec<Incomplete>,
    /// Whether all of it can be read now.
    readable: bool,
    /// The stripes that cannot be read now.
    unreadable: Vec<Unreadable>,
    warnings: Vec<String>,
}

/// A stripe that was acknowledged before all its blocks were durable.
#[derive(Debug, Serialize)]
pub(super) struct Incomplete {
    /// Its number in the object, from 0.
    pub(super) stripe: u64,
    /// The blocks that are not stored yet.
    pub(super) blocks: Vec<u32>,
    /// Why the last attempt to rebuild them failed; empty: none has failed.
    why: String,
}

/// A stripe that cannot be read now.
#[derive(Debug, Serialize)]
struct Unreadable {
    /// Its number in the object, from 0.
    stripe: u64,
    /// The blocks that cannot be read.
    blocks: Vec<u32>,
    /// Why; given for the first such stripes only.
    why: String,
    /// Whether it cannot be read even if all nodes are up.
    lost: bool,
}

impl From<api::UnreadableStripe> for Unreadable {
    fn from(it: api::UnreadableStripe) -> Self {
        Self { stripe: it.number, blocks: it.blocks, why: it.why, lost: it.lost }
    }
}

impl From<api::IncompleteStripe> for Incomplete {
    fn from(it: api::IncompleteStripe) -> Self {
        Self { stripe: it.number, blocks: it.blocks, why: it.why }
    }
}

impl Incomplete {
    /// Its blocks as text.
    fn blocks_text(&self) -> String {
        let blocks: Vec<String> = self.blocks.iter().map(ToString::to_string).collect();
        format!("block{} {}", if blocks.len() == 1 { "" } else { "s" }, blocks.join(", "))
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Stripe {
    id: String,
    offset: u64,
    /// The term under which the metadata names its blocks.
    term: u64,
    /// The number of committed updates of each data block; empty: all are 0.
    seq: Vec<u64>,
    pub(super) blocks: Vec<Block>,
    /// Additional copies of the blocks.
    copies: Vec<Block>,
}

#[derive(Debug, Serialize)]
pub(super) struct Block {
    pub(super) index: u32,
    copy: u32,
    generation: u32,
    pub(super) node: String,
    /// The name of the node.
    pub(super) name: String,
    pub(super) rack: String,
    disk: String,
    pub(super) state: String,
    size: u64,
    /// CRC32C of each MiB.
    crc32c: Vec<u32>,
    /// The corrupt byte ranges; empty: the state applies to the whole block.
    corrupt: Vec<Span>,
}

impl Object {
    fn new(it: api::ObjectReply, nodes: &[api::Node]) -> Self {
        Self {
            bucket: it.bucket,
            key: it.key,
            version: it.version,
            size: it.size,
            code: it.code,
            block_size: it.block_len,
            cell_size: it.cell_len,
            created_ms: it.created_ms,
            stripes: it.stripes.into_iter().map(|stripe| Stripe::new(stripe, nodes)).collect(),
            complete: it.incomplete.is_empty(),
            incomplete: it.incomplete.into_iter().map(Incomplete::from).collect(),
            readable: it.unreadable.is_empty(),
            unreadable: it.unreadable.into_iter().map(Unreadable::from).collect(),
            warnings: it.warnings,
        }
    }
}

impl Stripe {
    fn new(it: api::Stripe, nodes: &[api::Node]) -> Self {
        let name = |id: u32| nodes.iter().find(|node| node.id == id).map(|node| node.name.clone()).unwrap_or_default();
        let block = |it: api::PlacedBlock| Block {
            index: it.index,
            copy: it.copy,
            generation: it.generation,
            node: NodeId(it.node).to_string(),
            name: name(it.node),
            rack: it.rack,
            disk: it.disk,
            state: it.state,
            size: it.len,
            crc32c: it.checksums,
            corrupt: it.corrupt.iter().map(|bytes| Span::new(bytes.start, bytes.end)).collect(),
        };
        let blocks = it.blocks.into_iter().map(block).collect();
        let copies = it.copies.into_iter().map(block).collect();
        let api::Seq { term, counts: seq } = it.seq.unwrap_or_default();
        Self { id: StripeId(it.id).to_string(), offset: it.offset, term, seq, blocks, copies }
    }
}

impl Stat {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let object = Session::with(options, async |session| stat(session, &self.object).await)?;
        output.result_with(&object, &object.warnings, text).map(|()| Exit::Ok)
    }
}

/// An object and its stripes.
pub(super) async fn stat(session: &Session, object: &ObjectName) -> Result<Object> {
    let (bucket, key) = object.resolve(session, "KEY").await?;
    let object = session.client.stat(&bucket, &key).await?;
    Ok(Object::new(object, &session.client.status().await?.nodes))
}

/// All copies of a block next to each other.
fn in_order(stripe: &Stripe) -> Vec<&Block> {
    let mut all: Vec<&Block> = stripe.blocks.iter().chain(&stripe.copies).collect();
    all.sort_by_key(|block| (block.index, block.copy));
    all
}

/// The first and the last data block without bytes. These blocks are between the data blocks with bytes and the parity blocks.
fn without_bytes(stored: impl Iterator<Item = u32>) -> Option<(u32, u32)> {
    let stored: Vec<u32> = stored.collect();
    stored.windows(2).find_map(|pair| (pair[0] + 1 < pair[1]).then(|| (pair[0] + 1, pair[1] - 1)))
}

/// A block's state with the affected bytes.
fn state(it: &Block) -> String {
    let ranges: Vec<String> = it.corrupt.iter().map(|bytes| format!("{}..{}", bytes.start, bytes.end)).collect();
    if ranges.is_empty() { it.state.clone() } else { format!("{} at bytes {}", it.state, ranges.join(", ")) }
}

/// Which stripes cannot be read, and why; empty if all can.
fn unreadable_text(it: &Object) -> String {
    let (all, count) = (it.stripes.len(), it.unreadable.len());
    if count == 0 {
        return String::new();
    }
    let lost = it.unreadable.iter().filter(|stripe| stripe.lost).count();
    let when = match (lost, count - lost) {
        (0, _) => "until the nodes that are down return".to_owned(),
        (_, 0) => "unless the lost blocks come back".to_owned(),
        (_, waiting) => format!("{waiting} until the nodes that are down return, {lost} unless the lost blocks come back"),
    };
    let mut text = format!("cannot be read now: {count} of {all} stripes, {when}\n");
    for stripe in it.unreadable.iter().filter(|stripe| !stripe.why.is_empty()).take(UNREADABLE_SHOWN) {
        let _ = writeln!(text, "  {}", stripe.why);
    }
    if count > UNREADABLE_SHOWN {
        let _ = writeln!(text, "  and {} more stripes", count - UNREADABLE_SHOWN);
    }
    text
}

fn text(it: &Object) -> String {
    let [block, cell] = [it.block_size, it.cell_size].map(ByteSize);
    let mut text = String::new();
    let _ = writeln!(text, "{}/{}  {} ({} bytes), version {}", it.bucket, it.key, human_bytes(it.size), it.size, it.version);
    let _ = writeln!(text, "{} in blocks of {block}, cells of {cell}", it.code);
    if !it.complete {
        let (all, rest) = (it.stripes.len(), it.incomplete.len());
        let shown = it.incomplete.iter().take(INCOMPLETE_SHOWN).map(|rest| {
            let why = if rest.why.is_empty() { String::new() } else { format!(" ({})", rest.why) };
            format!("{} of stripe {}{why}", rest.blocks_text(), rest.stripe)
        });
        let mut shown: Vec<String> = shown.collect();
        if rest > shown.len() {
            shown.push(format!("and blocks of {} more stripes", rest - shown.len()));
        }
        let _ = writeln!(text, "{} of {all} stripes are complete; not stored yet: {}", all - rest, shown.join(", "));
    }
    text += &unreadable_text(it);
    for stripe in &it.stripes {
        let updates: u64 = stripe.seq.iter().sum();
        let _ = writeln!(text, "\nstripe {} from byte {}, {} updates", stripe.id, stripe.offset, updates);
        let row = |it: &Block| {
            let first = it.crc32c.first().map(|unit| format!("{unit:08x}")).unwrap_or_default();
            let checksums = if it.crc32c.len() > 1 { format!("{first} … ({})", it.crc32c.len()) } else { first };
            let generation = it.generation.to_string();
            let copy = if it.copy == 0 { String::new() } else { format!(" copy {}", it.copy) };
            [
                format!("{}{copy}", it.index),
                format!("{} {}", it.node, it.name),
                it.rack.clone(),
                human_bytes(it.size),
                generation,
                checksums,
                state(it),
            ]
        };
        let heading = ["block", "node", "rack", "size", "generation", "crc32c", "state"];
        let _ = writeln!(text, "{}", table(heading, &[0, 3, 4], in_order(stripe).into_iter().map(row)));
        if let Some((first, last)) = without_bytes(stripe.blocks.iter().map(|block| block.index)) {
            let _ = match first == last {
                true => writeln!(text, "block {first} has no bytes and is not stored"),
                false => writeln!(text, "blocks {first} to {last} have no bytes and are not stored"),
            };
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_without_bytes_are_those_before_the_parity_blocks() {
        let of = |stored: &[u32]| without_bytes(stored.iter().copied());
        assert_eq!([of(&[0, 6, 7, 8]), of(&[0, 1, 3, 4]), of(&[0, 1, 2])], [Some((1, 5)), Some((2, 2)), None]);
        assert_eq!(of(&[]), None);
    }
}
