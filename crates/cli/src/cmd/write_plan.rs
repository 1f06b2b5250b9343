//! `weft write --explain`: which blocks and nodes take part in a write, how many bytes move, and how changes travel.

use super::write_way::{self, Way};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _};
use weft_cli::{exit::Exit, output::Output, table::table};
use weft_client::{PlannedStripe, WritePlan, api};
use weft_codes::SharedCode;
use weft_types::{ByteSize, Error, NodeId, Result, Span, StripeId, counted, human_bytes};

/// Stripes shown as text.
const SHOWN_MAX: usize = 4;

#[derive(Debug, Serialize)]
struct Explained {
    object: String,
    version: u64,
    code: String,
    block_size: u64,
    cell_size: u64,
    offset: u64,
    bytes: u64,
    /// Of these, those by which the object grows.
    appended_bytes: u64,
    /// Each is atomic.
    updates: u64,
    /// What the client sends.
    client_bytes: u64,
    /// What the nodes send to each other.
    between_nodes_bytes: u64,
    stripes: Vec<Stripe>,
}

#[derive(Debug, Serialize)]
struct Stripe {
    /// Its number in the object, from 0.
    number: u64,
    stripe: StripeId,
    /// Its bytes in the object that are written.
    object_bytes: Span,
    updates: u64,
    between_nodes_bytes: u64,
    /// Those that take part.
    blocks: Vec<Block>,
    /// How the changes of the longest update travel, by the block whose node leads it.
    ways: Vec<Way>,
}

#[derive(Debug, Serialize)]
struct Block {
    index: u32,
    copy: u32,
    role: Role,
    node: String,
    name: String,
    state: String,
    /// Bytes of the block that are overwritten; absent for parity blocks.
    bytes: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    /// Its node gets new bytes.
    Data,
    /// Its node gets the change of the coded block.
    Copy,
    /// Its node gets the changes of the data blocks on which it depends.
    Parity,
}

/// Shows it.
pub(super) fn show(plan: &WritePlan, nodes: &[api::Node], output: Output) -> Result<Exit> {
    let explained = explain(plan, nodes)?;
    output.result(&explained, text).map(|()| Exit::Ok)
}

fn explain(plan: &WritePlan, nodes: &[api::Node]) -> Result<Explained> {
    let object = &plan.object;
    let code = weft_codes::parse(&object.code).map_err(Error::invalid)?;
    let stripe = |planned: &PlannedStripe| {
        let placed = usize::try_from(planned.number).ok().and_then(|at| object.stripes.get(at));
        let placed = placed.ok_or_else(|| Error::fatal("the coordinator's answer lacks a stripe"))?;
        let ways = write_way::explain(planned, nodes)?;
        Ok(Stripe { ways, ..Stripe::new(planned, placed, &code, nodes) })
    };
    let stripes = plan.stripes.iter().map(stripe).collect::<Result<Vec<_>>>()?;
    Ok(Explained {
        object: format!("{}/{}", object.bucket, object.key),
        version: object.version,
        code: object.code.clone(),
        block_size: object.block_len,
        cell_size: object.cell_len,
        offset: plan.bytes.start,
        bytes: plan.bytes.len(),
        appended_bytes: plan.bytes.end.saturating_sub(object.size),
        updates: plan.updates(),
        client_bytes: plan.bytes.len(),
        between_nodes_bytes: stripes.iter().map(|stripe| stripe.between_nodes_bytes).sum(),
        stripes,
    })
}

impl Stripe {
    fn new(planned: &PlannedStripe, placed: &api::Stripe, code: &SharedCode, nodes: &[api::Node]) -> Self {
        let changed: BTreeMap<u32, Span> = planned.blocks.iter().map(|it| (u32::from(it.index), it.bytes)).collect();
        // The node of another data block gets its new bytes from the leader and answers with the change, which returns as part of the update.
        let mut between_nodes_bytes = 3 * planned.blocks.iter().map(|it| it.forwarded_bytes).sum::<u64>();
        let mut blocks = Vec::new();
        for block in placed.blocks.iter().chain(&placed.copies) {
            let bytes = changed.get(&block.index).copied();
            let role = match bytes {
                Some(_) if block.copy == 0 => Role::Data,
                Some(_) => Role::Copy,
                None if (block.index as usize) < code.k() => continue,
                None => Role::Parity,
            };
            let received = match role {
                Role::Data => 0,
                Role::Copy => bytes.map_or(0, Span::len),
                Role::Parity => {
                    let concerned = changed.iter().filter(|(index, _)| depends(code, block.index, **index));
                    concerned.map(|(_, bytes)| bytes.len()).sum()
                }
            };
            if role == Role::Parity && received == 0 {
                continue;
            }
            between_nodes_bytes += received;
            let name = nodes.iter().find(|node| node.id == block.node).map(|node| node.name.clone()).unwrap_or_default();
            let (node, state) = (NodeId(block.node).to_string(), block.state.clone());
            blocks.push(Block { index: block.index, copy: block.copy, role, node, name, state, bytes });
        }
        blocks.sort_by_key(|block| (block.index, block.copy));
        let PlannedStripe { number, stripe, bytes: object_bytes, updates, .. } = *planned;
        Self { number, stripe, object_bytes, updates, between_nodes_bytes, blocks, ways: Vec::new() }
    }
}

/// Whether a block depends on a data block.
fn depends(code: &SharedCode, index: u32, data: u32) -> bool {
    let (alpha, index, data) = (code.alpha(), index as usize, data as usize);
    let mut columns = (index * alpha..(index + 1) * alpha).flat_map(|row| code.generator().row(row));
    columns.any(|(_, column, _)| *column as usize / alpha == data)
}

fn text(it: &Explained) -> String {
    let [block, cell] = [it.block_size, it.cell_size].map(ByteSize);
    let mut text = String::new();
    let appended = match it.appended_bytes {
        0 => String::new(),
        bytes => format!(", of which {} are appended", human_bytes(bytes)),
    };
    let _ = writeln!(text, "{}  {} at offset {}{appended}", it.object, human_bytes(it.bytes), it.offset);
    let _ = writeln!(text, "{} in blocks of {block}, cells of {cell}", it.code);
    let (updates, stripes) = (counted(it.updates, "atomic update"), counted(it.stripes.len() as u64, "stripe"));
    let [client, between] = [it.client_bytes, it.between_nodes_bytes].map(human_bytes);
    let _ = writeln!(text, "{updates} of {stripes}: the client sends {client}, the nodes send {between} to each other");
    for stripe in it.stripes.iter().take(SHOWN_MAX) {
        let updates = counted(stripe.updates, "update");
        let _ = writeln!(text, "\nstripe {} from byte {}, {updates}", stripe.stripe, stripe.object_bytes.start);
        let row = |it: &Block| {
            let copy = if it.copy == 0 { String::new() } else { format!(" copy {}", it.copy) };
            let role = match it.role {
                Role::Data => "data",
                Role::Copy => "copy",
                Role::Parity => "parity",
            };
            let bytes = it.bytes.map(|bytes| format!("{}-{}", bytes.start, bytes.end.saturating_sub(1))).unwrap_or_default();
            [format!("{}{copy}", it.index), role.to_owned(), format!("{} {}", it.node, it.name), bytes, it.state.clone()]
        };
        let heading = ["block", "role", "node", "bytes of the block", "state"];
        let _ = writeln!(text, "{}", table(heading, &[0], stripe.blocks.iter().map(row)));
        text.push_str(&write_way::text(&stripe.ways));
    }
    if let Some(more) = it.stripes.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
        let _ = writeln!(text, "\n… and {}: --json shows all of them", counted(more as u64, "more stripe"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_client::PlannedBlock;

    fn placed(code: &SharedCode, copies: u32) -> api::Stripe {
        let block = |index: usize, copy: u32| api::PlacedBlock {
            index: index as u32,
            copy,
            node: index as u32 + 1 + 10 * copy,
            state: "ok".to_owned(),
            ..api::PlacedBlock::default()
        };
        let blocks = (0..code.n()).map(|index| block(index, 0)).collect();
        let copies = (1..=copies).flat_map(|copy| (0..code.k()).map(move |index| (index, copy)));
        api::Stripe { blocks, copies: copies.map(|(index, copy)| block(index, copy)).collect(), ..api::Stripe::default() }
    }

    fn planned(blocks: &[(u8, u64)]) -> PlannedStripe {
        let block = |(at, (index, len)): (usize, &(u8, u64))| PlannedBlock {
            index: *index,
            bytes: Span::new(0, *len),
            leads: at == 0,
            forwarded_bytes: if at == 0 { 0 } else { *len },
        };
        let blocks = blocks.iter().enumerate().map(block).collect();
        PlannedStripe { number: 0, stripe: StripeId(1), bytes: Span::new(0, 1), updates: 1, longest: 1, blocks, ways: Vec::new() }
    }

    fn shown(spec: &str, copies: u32, blocks: &[(u8, u64)]) -> (u64, Vec<(u32, u32, Role)>) {
        let code = weft_codes::parse(spec).unwrap();
        let stripe = Stripe::new(&planned(blocks), &placed(&code, copies), &code, &[]);
        (stripe.between_nodes_bytes, stripe.blocks.iter().map(|it| (it.index, it.copy, it.role)).collect())
    }

    #[test]
    fn the_blocks_that_depend_on_the_changed_ones_take_part() {
        let (data, copy, parity) = (Role::Data, Role::Copy, Role::Parity);
        assert_eq!(shown("rs(4,2)", 0, &[(1, 10)]), (20, vec![(1, 0, data), (4, 0, parity), (5, 0, parity)]));
        // The second block's node gets new bytes, and its change goes to the leader and back; each parity gets both changes.
        let both = vec![(1, 0, data), (2, 0, data), (4, 0, parity), (5, 0, parity)];
        assert_eq!(shown("rs(4,2)", 0, &[(1, 10), (2, 5)]), (15 + 2 * 15, both));
        let (moved, blocks) = shown("rs(4,2)", 1, &[(1, 10)]);
        assert_eq!((moved, blocks[1]), (30, (1, 1, copy)));
        // A local parity depends on its own group only.
        let (moved, blocks) = shown("lrc(4,2,2)", 0, &[(0, 10)]);
        assert_eq!((moved, blocks.len()), (30, 4), "{blocks:?}");
    }
}
