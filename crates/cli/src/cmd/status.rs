//! The nodes of a cluster and how much they store: the output of `weft cluster status` and `weft node ls`.

use super::health::AsideDisk;
use serde::Serialize;
use weft_cli::{table::table, utc::utc};
use weft_client::api;
use weft_types::{NodeId, counted, human_bytes};

/// A cluster at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    cluster: String,
    version: String,
    epoch: u64,
    insecure: bool,
    objects: u64,
    stripes: u64,
    data_bytes: u64,
    /// Durable commits of the metadata since the coordinator started.
    commits: u64,
    /// The fsyncs of all nodes, from their last heartbeats: each node counts since its agent started.
    fsyncs: u64,
    /// Where the coordinator serves metrics, as it sees the address; empty if it does not.
    metrics_address: String,
    pub(super) nodes: Vec<Node>,
    pub(super) warnings: Vec<String>,
}

/// A node at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Node {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) rack: String,
    zone: String,
    pub(super) state: String,
    /// Whether its blocks move to other nodes.
    draining: bool,
    /// For how long plans still avoid it, because it failed in one, milliseconds; 0: they do not.
    suspect_ms: u64,
    /// Since when it has been in its state, milliseconds since 1970.
    since_ms: u64,
    data_address: String,
    control_address: String,
    /// Where it serves metrics, as the node itself sees the address; empty if it does not, or is down.
    metrics_address: String,
    last_seen_ms: u64,
    blocks: u64,
    coding_bytes_per_s: u64,
    fsyncs: u64,
    /// Garbage in the metadata that the node still has to remove, blocks.
    garbage_blocks: u64,
    /// Bytes of those blocks whose length is known.
    garbage_bytes: u64,
    disks: Vec<Disk>,
    /// Disks that another node had and that wait to be taken in.
    aside: Vec<AsideDisk>,
}

/// A disk at one moment.
#[derive(Debug, Serialize)]
struct Disk {
    id: String,
    path: String,
    total_bytes: u64,
    free_bytes: u64,
    failed: bool,
    quarantined_blocks: u64,
    quarantined_bytes: u64,
    /// Blocks of stripes.
    blocks: u64,
    /// Whether its node is up and no longer lists it.
    gone: bool,
    /// Whether its blocks move elsewhere.
    draining: bool,
    /// The node to which it was moved; empty: it was not.
    moved_to: String,
}

impl From<api::StatusReply> for Report {
    fn from(it: api::StatusReply) -> Self {
        Self {
            cluster: it.cluster,
            version: it.version,
            epoch: it.epoch,
            insecure: it.insecure,
            objects: it.objects,
            stripes: it.stripes,
            data_bytes: it.data_bytes,
            commits: it.commits,
            fsyncs: it.fsyncs,
            metrics_address: it.metrics_address,
            nodes: it.nodes.into_iter().map(Node::from).collect(),
            warnings: it.warnings,
        }
    }
}

impl From<api::Node> for Node {
    fn from(it: api::Node) -> Self {
        let disk = |it: api::Disk| Disk {
            id: it.id,
            path: it.path,
            total_bytes: it.total_bytes,
            free_bytes: it.free_bytes,
            failed: it.failed,
            quarantined_blocks: it.quarantined_blocks,
            quarantined_bytes: it.quarantined_bytes,
            blocks: it.blocks,
            gone: it.gone,
            draining: it.draining,
            moved_to: it.moved_to,
        };
        Self {
            id: NodeId(it.id).to_string(),
            name: it.name,
            rack: it.rack,
            zone: it.zone,
            state: it.state,
            draining: it.draining,
            suspect_ms: it.suspect_ms,
            since_ms: it.since_ms,
            data_address: it.data_address,
            control_address: it.control_address,
            metrics_address: it.metrics_address,
            last_seen_ms: it.last_seen_ms,
            blocks: it.blocks,
            coding_bytes_per_s: it.coding_bytes_per_s,
            fsyncs: it.fsyncs,
            garbage_blocks: it.garbage_blocks,
            garbage_bytes: it.garbage_bytes,
            disks: it.disks.into_iter().map(disk).collect(),
            aside: it.aside.into_iter().map(AsideDisk::from).collect(),
        }
    }
}

impl Report {
    /// Whether every node is up.
    pub(super) fn all_up(&self) -> bool {
        self.nodes.iter().all(|node| node.state == "up")
    }

    /// Whether a failed disk held blocks that were not rebuilt.
    pub(super) fn lacks_blocks(&self) -> bool {
        self.nodes.iter().flat_map(|node| &node.disks).any(|disk| disk.failed && disk.blocks > 0)
    }
}

/// A summary of a few lines.
pub(super) fn summary(it: &Report) -> String {
    let up = it.nodes.iter().filter(|node| node.state == "up").count();
    let mut racks: Vec<&str> = it.nodes.iter().map(|node| node.rack.as_str()).collect();
    racks.sort_unstable();
    racks.dedup();
    let disks: usize = it.nodes.iter().map(|node| node.disks.len()).sum();
    let mut text = format!("cluster {}{}\n", it.cluster, if it.insecure { " (insecure)" } else { "" });
    let (nodes, racks) = (it.nodes.len(), racks.len());
    text +=
        &format!("{up} of {nodes} nodes are up, in {}, with {}\n", counted(racks as u64, "rack"), counted(disks as u64, "disk"));
    text += &format!(
        "{} with {} of data in {}",
        counted(it.objects, "object"),
        human_bytes(it.data_bytes),
        counted(it.stripes, "stripe")
    );
    text
}

/// The whole report.
pub(super) fn text(it: &Report) -> String {
    format!("{}\n\n{}", summary(it), nodes_text(&it.nodes))
}

/// The nodes.
pub(super) fn nodes_text(nodes: &[Node]) -> String {
    let row = |node: &Node| {
        let free: u64 = node.disks.iter().map(|disk| disk.free_bytes).sum();
        let failed = node.disks.iter().filter(|disk| disk.failed).count();
        let disks = if failed == 0 { node.disks.len().to_string() } else { format!("{} ({failed} failed)", node.disks.len()) };
        let state = if node.state == "up" {
            let draining = node.draining.then(|| "draining".to_owned());
            let suspect = (node.suspect_ms > 0).then(|| format!("suspect for {} s", node.suspect_ms.div_ceil(1000)));
            [Some(node.state.clone()), draining, suspect].into_iter().flatten().collect::<Vec<_>>().join(", ")
        } else {
            format!("{}, silent for {:.1} s", node.state, node.last_seen_ms as f64 / 1000.0)
        };
        let (blocks, free) = (node.blocks.to_string(), human_bytes(free));
        let garbage = amount(node.garbage_blocks, node.garbage_bytes);
        [
            node.id.clone(),
            node.name.clone(),
            node.rack.clone(),
            disks,
            free,
            blocks,
            garbage,
            quarantined(node),
            state,
            utc(node.since_ms),
        ]
    };
    let columns = ["node", "name", "rack", "disks", "free", "blocks", "garbage", "quarantined", "state", "since"];
    let mut text = table(columns, &[3, 4, 5, 6, 7], nodes.iter().map(row));
    nodes.iter().flat_map(|node| &node.aside).for_each(|disk| text += &format!("\n{}", disk.line()));
    text
}

/// Blocks that are out of service but still on the node's disks.
fn quarantined(node: &Node) -> String {
    let bytes: u64 = node.disks.iter().map(|disk| disk.quarantined_bytes).sum();
    amount(node.disks.iter().map(|disk| disk.quarantined_blocks).sum(), bytes)
}

fn amount(blocks: u64, bytes: u64) -> String {
    if blocks == 0 { "0".to_owned() } else { format!("{blocks} ({})", human_bytes(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_plans_avoid_is_shown() {
        let states = |state: &str, draining, suspect_ms| {
            let node = api::Node { id: 3, state: state.into(), draining, suspect_ms, ..api::Node::default() };
            nodes_text(&[Node::from(node)])
        };
        assert!(states("up", false, 11_001).contains(" up, suspect for 12 s "));
        assert!(states("up", true, 1).contains(" up, draining, suspect for 1 s "));
        let aside = vec![api::AsideDisk { name: "node-03".into(), why: "it is up".into(), ..api::AsideDisk::default() }];
        let waiting = nodes_text(&[Node::from(api::Node { aside, ..api::Node::default() })]);
        assert!(waiting.contains("\nnode-03 keeps a disk aside, with 0 blocks of : it is up"), "{waiting}");
        assert!(!states("up", false, 0).contains("suspect") && !states("down", false, 9_000).contains("suspect"));
    }
}
