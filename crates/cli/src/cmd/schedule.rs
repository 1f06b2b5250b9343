//! The schedule of a node's repair: what each node and rack sends and receives, what disks carry, and how far the busiest is from the lower bound.

use serde::Serialize;
use weft_cli::{
    names::with_names,
    output::{Output, print},
    table::columns,
};
use weft_client::api::{self, RepairSchedule};
use weft_types::{Error, NodeId, Result, human_bytes};

/// The JSON form. `weft plan` skips it among plans.
#[derive(Debug, Serialize)]
struct Shown {
    schedule: Schedule,
}

#[derive(Debug, Serialize)]
struct Schedule {
    select: String,
    blocks: u64,
    /// The time of the busiest link, or of the busiest disks, in bytes that the fastest link carries in it.
    busiest_bytes: u64,
    /// What no schedule of these blocks can undercut.
    bound_bytes: u64,
    ratio: f64,
    nodes: Vec<Load>,
    /// Empty unless the links between racks are limited.
    racks: Vec<RackLoad>,
}

#[derive(Debug, Serialize)]
struct Load {
    node: String,
    up_bytes: u64,
    down_bytes: u64,
    /// Read and written by its disks.
    disk_bytes: u64,
}

#[derive(Debug, Serialize)]
struct RackLoad {
    rack: String,
    up_bytes: u64,
    down_bytes: u64,
}

/// Shows it: with `--json` as an object with the key `schedule`.
pub(super) fn show(schedule: &RepairSchedule, nodes: &[api::Node], output: Output) -> Result<()> {
    let name = |node: u32| with_names(&NodeId(node).to_string(), nodes);
    let load = |it: &api::NodeLoad| {
        let api::NodeLoad { node, up_bytes, down_bytes, disk_bytes } = *it;
        Load { node: name(node), up_bytes, down_bytes, disk_bytes }
    };
    let of_rack = |it: &api::RackLoad| RackLoad { rack: it.rack.clone(), up_bytes: it.up_bytes, down_bytes: it.down_bytes };
    let shown = Schedule {
        select: schedule.select.clone(),
        blocks: schedule.blocks,
        busiest_bytes: schedule.busiest_bytes,
        bound_bytes: schedule.bound_bytes,
        ratio: schedule.busiest_bytes as f64 / schedule.bound_bytes.max(1) as f64,
        nodes: schedule.nodes.iter().map(load).collect(),
        racks: schedule.racks.iter().map(of_rack).collect(),
    };
    if output.json {
        return print(&serde_json::to_string_pretty(&Shown { schedule: shown }).map_err(Error::fatal)?);
    }
    print(&text(&shown))
}

fn text(schedule: &Schedule) -> String {
    let Schedule { select, blocks, busiest_bytes, bound_bytes, ratio, nodes, racks } = schedule;
    let (busiest, bound) = (human_bytes(*busiest_bytes), human_bytes(*bound_bytes));
    let row = |load: &Load| {
        let [up, down, disk] = [load.up_bytes, load.down_bytes, load.disk_bytes].map(human_bytes);
        vec![load.node.clone(), up, down, disk]
    };
    let table = columns(["node", "sends", "receives", "reads, writes"], &[1, 2, 3], nodes.iter().map(row));
    let row = |load: &RackLoad| vec![load.rack.clone(), human_bytes(load.up_bytes), human_bytes(load.down_bytes)];
    let of_racks = match racks.is_empty() {
        true => String::new(),
        false => format!("\n{}", columns(["rack", "sends", "receives"], &[1, 2], racks.iter().map(row))),
    };
    format!(
        "Schedule of {blocks} blocks by {select}\n{}{of_racks}\n\nbusiest link or disks {busiest}, lower bound {bound}, ratio {ratio:.3}\n",
        table.trim_end(),
        of_racks = of_racks.trim_end()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_all_nodes_and_the_ratio() {
        let load = |node: &str, up_bytes, down_bytes| Load { node: node.into(), up_bytes, down_bytes, disk_bytes: 7 << 20 };
        let schedule = Schedule {
            select: "boost".into(),
            blocks: 3,
            busiest_bytes: 3 << 20,
            bound_bytes: 2 << 20,
            ratio: 1.5,
            nodes: vec![load("node-01", 3 << 20, 0), load("node-02", 0, 1 << 20)],
            racks: vec![RackLoad { rack: "east".into(), up_bytes: 5 << 20, down_bytes: 0 }],
        };
        let text = text(&schedule);
        for part in [
            "3 blocks by boost",
            "node-01",
            "node-02",
            "3.0 MiB",
            "1.0 MiB",
            "east",
            "5.0 MiB",
            "reads, writes",
            "7.0 MiB",
            "lower bound 2.0 MiB",
            "ratio 1.500",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
