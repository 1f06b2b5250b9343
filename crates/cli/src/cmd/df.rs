//! `weft df`: where space is used and free, and how much can still be written.

use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use weft_cli::{exit::Exit, output::Output, session::Session, table::table, target};
use weft_client::api;
use weft_types::{NodeId, Result, human_bytes};

/// Show where space is used and free, by node, rack, bucket and policy, and how much can still be written
///
/// Sizes of nodes and racks are those of disks that have not failed; directories on one file system share it evenly. Used is all that is not
/// free, also what does not belong to weft. What can still be written counts only space that one stripe after the other can use: each of
/// its blocks needs another node. Puts also leave room to rebuild the largest node (`rebuild_reserve`).
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft df
  weft df --by rack
  weft df --json | jq '.policies[] | {policy, fits_bytes}'

EXIT CODES
  0 done   3 no cluster   4 no coordinator")]
pub(super) struct Df {
    /// Show only this [default: all]
    #[arg(long, value_enum)]
    by: Option<By>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Node,
    Rack,
    Bucket,
    Policy,
}

#[derive(Debug, Serialize)]
struct Report {
    nodes: Vec<Node>,
    racks: Vec<Rack>,
    buckets: Vec<Bucket>,
    policies: Vec<Policy>,
}

#[derive(Debug, Serialize)]
struct Node {
    id: String,
    name: String,
    rack: String,
    /// up, down or lost.
    state: String,
    /// Whether it gets no new blocks because it is being drained.
    draining: bool,
    total_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    /// Blocks of stripes.
    blocks: u64,
}

#[derive(Debug, Default, Serialize)]
struct Rack {
    rack: String,
    nodes: u64,
    /// Nodes that are up.
    up: u64,
    total_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    blocks: u64,
}

/// The objects of a bucket that have the same code.
#[derive(Debug, Serialize)]
struct Bucket {
    bucket: String,
    policy: String,
    code: String,
    objects: u64,
    stripes: u64,
    data_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Policy {
    policy: String,
    code: String,
    is_default: bool,
    /// New data that can still be written.
    fits_bytes: u64,
    /// What puts leave free besides, to rebuild the largest node.
    kept_bytes: u64,
    /// Why nothing can be written; null: something can.
    why: Option<String>,
}

impl From<api::SpaceReply> for Report {
    fn from(it: api::SpaceReply) -> Self {
        let node = |it: api::NodeSpace| Node {
            id: NodeId(it.node).to_string(),
            name: it.name,
            rack: it.rack,
            state: it.state,
            draining: it.draining,
            total_bytes: it.total_bytes,
            used_bytes: it.total_bytes.saturating_sub(it.free_bytes),
            free_bytes: it.free_bytes,
            blocks: it.blocks,
        };
        let bucket = |it: api::BucketSpace| Bucket {
            bucket: it.bucket,
            policy: it.policy,
            code: it.code,
            objects: it.objects,
            stripes: it.stripes,
            data_bytes: it.data_bytes,
        };
        let policy = |it: api::PolicySpace| Policy {
            policy: it.policy,
            code: it.code,
            is_default: it.is_default,
            fits_bytes: it.fits_bytes,
            kept_bytes: it.kept_bytes,
            why: (!it.why.is_empty()).then_some(it.why),
        };
        let nodes: Vec<Node> = it.nodes.into_iter().map(node).collect();
        Self {
            racks: racks(&nodes),
            nodes,
            buckets: it.buckets.into_iter().map(bucket).collect(),
            policies: it.policies.into_iter().map(policy).collect(),
        }
    }
}

fn racks(nodes: &[Node]) -> Vec<Rack> {
    let mut racks: BTreeMap<&str, Rack> = BTreeMap::new();
    for node in nodes {
        let rack = racks.entry(&node.rack).or_insert_with(|| Rack { rack: node.rack.clone(), ..Rack::default() });
        rack.nodes += 1;
        rack.up += u64::from(node.state == "up");
        rack.total_bytes = rack.total_bytes.saturating_add(node.total_bytes);
        rack.used_bytes = rack.used_bytes.saturating_add(node.used_bytes);
        rack.free_bytes = rack.free_bytes.saturating_add(node.free_bytes);
        rack.blocks += node.blocks;
    }
    racks.into_values().collect()
}

impl Df {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let report = Report::from(Session::with(options, async |session| session.client.space().await)?);
        output.result(&report, |report| self.text(report)).map(|()| Exit::Ok)
    }

    fn text(&self, it: &Report) -> String {
        let parts = [
            (By::Node, nodes_text(&it.nodes)),
            (By::Rack, racks_text(&it.racks)),
            (By::Bucket, buckets_text(&it.buckets)),
            (By::Policy, policies_text(&it.policies)),
        ];
        let shown = parts.into_iter().filter(|(by, _)| self.by.is_none_or(|only| only == *by)).map(|(_, text)| text);
        shown.collect::<Vec<_>>().join("\n\n")
    }
}

fn nodes_text(nodes: &[Node]) -> String {
    let row = |it: &Node| {
        let state = if it.draining { format!("{}, draining", it.state) } else { it.state.clone() };
        let [total, used, free] = [it.total_bytes, it.used_bytes, it.free_bytes].map(human_bytes);
        let (full, blocks) = (percent(it.used_bytes, it.total_bytes), it.blocks.to_string());
        [it.name.clone(), it.rack.clone(), total, used, free, full, blocks, state]
    };
    table(["node", "rack", "size", "used", "free", "full", "blocks", "state"], &[2, 3, 4, 5, 6], nodes.iter().map(row))
}

fn racks_text(racks: &[Rack]) -> String {
    let row = |it: &Rack| {
        let rack = if it.rack.is_empty() { "(none)".to_owned() } else { it.rack.clone() };
        let nodes = if it.up == it.nodes { it.nodes.to_string() } else { format!("{} ({} up)", it.nodes, it.up) };
        let [total, used, free] = [it.total_bytes, it.used_bytes, it.free_bytes].map(human_bytes);
        [rack, nodes, total, used, free, percent(it.used_bytes, it.total_bytes), it.blocks.to_string()]
    };
    table(["rack", "nodes", "size", "used", "free", "full", "blocks"], &[1, 2, 3, 4, 5, 6], racks.iter().map(row))
}

fn buckets_text(buckets: &[Bucket]) -> String {
    let row = |it: &Bucket| {
        let (objects, stripes, data) = (it.objects.to_string(), it.stripes.to_string(), human_bytes(it.data_bytes));
        [it.bucket.clone(), it.policy.clone(), it.code.clone(), objects, stripes, data]
    };
    table(["bucket", "policy", "code", "objects", "stripes", "data"], &[3, 4, 5], buckets.iter().map(row))
}

fn policies_text(policies: &[Policy]) -> String {
    let row = |it: &Policy| {
        let name = if it.is_default { format!("{} (default)", it.policy) } else { it.policy.clone() };
        let [fits, kept] = [it.fits_bytes, it.kept_bytes].map(human_bytes);
        [name, it.code.clone(), fits, kept, it.why.clone().unwrap_or_default()]
    };
    table(["policy", "code", "can be written", "kept for repair", ""], &[2, 3], policies.iter().map(row))
}

/// How full something of this size is.
fn percent(used: u64, total: u64) -> String {
    match total {
        0 => "-".to_owned(),
        _ => format!("{:.0} %", used as f64 * 100.0 / total as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks_are_the_sums_of_their_nodes_and_one_part_can_be_shown() {
        let node = |name: &str, rack: &str, state: &str, free_bytes| api::NodeSpace {
            name: name.into(),
            rack: rack.into(),
            state: state.into(),
            total_bytes: 100,
            free_bytes,
            blocks: 2,
            ..api::NodeSpace::default()
        };
        let nodes = vec![node("a", "r1", "up", 40), node("b", "r1", "down", 60), node("c", "", "up", 100)];
        let policies = vec![api::PolicySpace { policy: "p".into(), why: "disks are full".into(), ..api::PolicySpace::default() }];
        let report = Report::from(api::SpaceReply { nodes, policies, ..api::SpaceReply::default() });
        let r1 = &report.racks[1];
        assert_eq!((r1.nodes, r1.up, r1.total_bytes, r1.used_bytes, r1.free_bytes, r1.blocks), (2, 1, 200, 100, 100, 4));
        let racks = Df { by: Some(By::Rack) }.text(&report);
        let lines: Vec<Vec<&str>> =
            racks.lines().skip(1).map(|line| line.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect()).collect();
        assert_eq!(lines[1], ["r1", "2 (1 up)", "200 B", "100 B", "100 B", "50 %", "4"]);
        assert!(lines[0][0] == "(none)" && !racks.contains("policy"));
        assert!(Df { by: None }.text(&report).contains("disks are full"));
        assert_eq!(percent(0, 0), "-");
    }
}
