//! `weft write --explain`: how the changes of a stripe's blocks travel from node to node.

use super::explain::{MEASURED, considered_text, is_told};
use serde::Serialize;
use std::fmt::Write as _;
use weft_cli::names::with_names;
use weft_client::{PlannedStripe, api};
use weft_plan::{Considered, human_time};
use weft_types::{ByteSize, Error, NodeId, Result, counted, human_bytes};

/// Blocks shown as text.
const SHOWN_MAX: usize = 2;
/// Why changes go straight although a longer way would be a little faster.
const ONE_HOP: &str = "about as fast as the fastest, and needs one hop only";
/// Why changes take a way of several hops that is not the fastest for these bytes.
const USUAL: &str = "for updates of 1 MiB";

/// How the change of a block travels in the longest update that its node leads.
#[derive(Debug, Serialize)]
pub(super) struct Way {
    /// The index of the block.
    block: u32,
    /// The update's bytes.
    bytes: u64,
    /// Absent: there is no plan, and `straight_because` says why.
    scheme: Option<String>,
    /// The predicted time until all nodes have the change.
    seconds: Option<f64>,
    /// Each node sends over one link at a time, and only when it has received everything.
    in_turn: bool,
    /// Bytes that are sent at once.
    slice_size: u64,
    /// From this length on, updates take a way of several hops; absent: none does.
    from_bytes: Option<u64>,
    /// Why the stripe's changes cannot take a way of several hops.
    straight_because: Option<String>,
    /// In the order in which each node sends.
    hops: Vec<Hop>,
    /// The schemes that were compared, this one first.
    considered: Vec<Considered>,
    /// For a person.
    #[serde(skip)]
    considered_text: String,
}

#[derive(Debug, Serialize)]
struct Hop {
    from: Place,
    to: Place,
}

/// A block, and the node on which it is.
#[derive(Debug, Serialize)]
struct Place {
    block: u32,
    copy: u32,
    node: String,
    name: String,
    rack: String,
}

/// The ways of a stripe's changes.
pub(super) fn explain(planned: &PlannedStripe, nodes: &[api::Node]) -> Result<Vec<Way>> {
    planned.ways.iter().map(|way| Way::new(way, planned.longest, nodes)).collect()
}

impl Way {
    fn new(way: &api::ExplainedUpdate, bytes: u64, nodes: &[api::Node]) -> Result<Self> {
        let json = std::str::from_utf8(&way.plan).map_err(|_| Error::fatal("the coordinator's plan is not text"))?;
        // Without a plan, the answer says why.
        let is_planned = !json.is_empty() || way.no_routes.is_empty();
        let considered = if is_planned { weft_plan::from_json(json)?.considered } else { Vec::new() };
        if is_planned && considered.is_empty() {
            return Err(Error::fatal("the coordinator's plan lacks its predicted time"));
        }
        let (scheme, seconds) = considered.first().map(|chosen| (chosen.scheme.clone(), chosen.seconds)).unzip();
        let place = |block: Option<&api::UpdatedBlock>| {
            let block = block.copied().unwrap_or_default();
            let node = nodes.iter().find(|node| node.id == block.node);
            Place {
                block: block.index,
                copy: block.copy,
                node: NodeId(block.node).to_string(),
                name: node.map(|node| node.name.clone()).unwrap_or_default(),
                rack: node.map(|node| node.rack.clone()).unwrap_or_default(),
            }
        };
        let hop = |hop: &api::UpdateHop| Hop { from: place(hop.from.as_ref()), to: place(hop.to.as_ref()) };
        let leads = |block: &api::UpdatedBlock| (block.index, block.copy) == (way.index, 0);
        let otherwise = if way.hops.iter().all(|hop| hop.from.as_ref().is_some_and(leads)) { ONE_HOP } else { USUAL };
        let text = if is_told(&considered) { considered_text(&considered, MEASURED, otherwise) } else { String::new() };
        Ok(Self {
            block: way.index,
            bytes,
            scheme,
            seconds,
            in_turn: way.in_turn,
            slice_size: way.slice_len,
            from_bytes: way.from_bytes,
            straight_because: Some(way.no_routes.clone()).filter(|why| !why.is_empty()),
            hops: way.hops.iter().map(hop).collect(),
            considered,
            considered_text: with_names(&text, nodes),
        })
    }
}

/// For a person.
pub(super) fn text(ways: &[Way]) -> String {
    let mut text = String::new();
    for way in ways.iter().take(SHOWN_MAX) {
        let (Some(scheme), Some(seconds)) = (&way.scheme, way.seconds) else {
            let (block, why) = (way.block, way.straight_because.as_deref().unwrap_or("there is no plan"));
            let _ = writeln!(text, "\nchange of block {block}: it is not known how it travels, because {why}");
            continue;
        };
        let (bytes, time, slice) = (human_bytes(way.bytes), human_time(seconds), ByteSize(way.slice_size));
        let how = match way.in_turn {
            true => "each node sends to one other after another".to_owned(),
            false => format!("in slices of {slice}"),
        };
        let block = way.block;
        let _ = writeln!(text, "\nchange of block {block} in an update of {bytes}, by {scheme}, {how}: takes {time}");
        for Hop { from, to } in &way.hops {
            let _ = writeln!(text, "  {} → {}", place_text(from), place_text(to));
        }
        let _ = match (&way.straight_because, way.from_bytes) {
            (Some(why), _) => writeln!(text, "straight to each node, because {why}"),
            (None, None | Some(0)) => Ok(()),
            (None, Some(from)) => {
                let from = human_bytes(from);
                writeln!(text, "this way is for updates of {from} or more; shorter ones go straight to each node")
            }
        };
        text.push_str(&way.considered_text);
    }
    if let Some(more) = ways.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
        let _ = writeln!(text, "\n… and the changes of {}: --json shows all of them", counted(more as u64, "more block"));
    }
    text
}

fn place_text(place: &Place) -> String {
    let Place { block, copy, node, name, rack } = place;
    let copy = if *copy == 0 { String::new() } else { format!(" copy {copy}") };
    let name = if name.is_empty() { node } else { name };
    let rack = if rack.is_empty() { String::new() } else { format!(" in rack {rack}") };
    format!("block {block}{copy} on {name}{rack}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_shown_hop_by_hop() {
        let place = |block: u32, name: &str, rack: &str| Place {
            block,
            copy: u32::from(block == 0),
            node: NodeId(block).to_string(),
            name: name.to_owned(),
            rack: rack.to_owned(),
        };
        let way = |block: u32, from_bytes: Option<u64>, because: Option<&str>| Way {
            block,
            bytes: 1 << 20,
            scheme: Some("pipeline".to_owned()),
            seconds: Some(0.012),
            in_turn: because.is_some(),
            slice_size: 64 << 10,
            from_bytes,
            straight_because: because.map(str::to_owned),
            hops: vec![
                Hop { from: place(1, "", ""), to: place(4, "node-05", "r2") },
                Hop { from: place(4, "node-05", "r2"), to: place(0, "far", "") },
            ],
            considered: Vec::new(),
            considered_text: "Schemes considered\n".to_owned(),
        };
        let shown = text(&[way(1, Some(128 << 10), None), way(2, None, Some("node-03 is down")), way(3, None, None)]);
        let expected = "
change of block 1 in an update of 1.0 MiB, by pipeline, in slices of 64KiB: takes 12.0 ms
  block 1 on n1 → block 4 on node-05 in rack r2
  block 4 on node-05 in rack r2 → block 0 copy 1 on far
this way is for updates of 128.0 KiB or more; shorter ones go straight to each node
Schemes considered

change of block 2 in an update of 1.0 MiB, by pipeline, each node sends to one other after another: takes 12.0 ms
  block 1 on n1 → block 4 on node-05 in rack r2
  block 4 on node-05 in rack r2 → block 0 copy 1 on far
straight to each node, because node-03 is down
Schemes considered

… and the changes of 1 more block: --json shows all of them
";
        assert_eq!(shown, expected);
        let lost = Way { scheme: None, seconds: None, ..way(2, None, Some("data block 2 is lost, and not rebuilt yet")) };
        let shown = text(&[lost]);
        assert_eq!(
            shown,
            "\nchange of block 2: it is not known how it travels, because data block 2 is lost, and not rebuilt yet\n"
        );
    }
}
