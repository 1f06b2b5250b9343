//! The choices of requests, with the settings as defaults, and the network that they apply to.

use crate::{delegations::Delegation, shared::Shared};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_control::{
    capacity::{KeptFree, Wanted},
    in_flight::Lines,
    limit::UNMEASURED_BYTES_PER_S,
    links,
    options::{Assignment, RepairOptions, WriteOptions},
    reserve::{self, Share},
    stragglers,
    view::{NodeView, View},
};
use weft_plan::Network;
use weft_proto::{net::host, rpc::Caller, v1};
use weft_schemes::{Paths, Select};
use weft_types::{AutoSize, Error, Home, NodeId, NodeRepair, Party, Result};

/// The settings' defaults.
pub(crate) fn usual_repair(shared: &Shared) -> RepairOptions {
    RepairOptions::new(shared.config.scheme.clone(), shared.config.repair_slice_len)
}

/// The choices of a repair.
pub(crate) fn of_repair(shared: &Shared, asked: &v1::RepairObjectRequest) -> Result<RepairOptions> {
    let usual = usual_repair(shared).with(&asked.scheme, asked.slice_len, asked.slice_auto)?;
    let select = Select::parse(&asked.select, || shared.draw_seed())?;
    let explained = asked.explain || asked.plans;
    Ok(RepairOptions { select, paths: Paths::of(asked.paths)?, explained, ..usual })
}

/// The choices of a read.
pub(crate) fn of_read(shared: &Shared, asked: &v1::ReadStripeRequest) -> Result<RepairOptions> {
    let usual = usual_repair(shared).with(&asked.scheme, asked.slice_len, asked.slice_auto)?;
    Ok(RepairOptions { explained: asked.explain, ..usual })
}

/// The choices for the repair of a node: its helpers are selected over all its stripes, so only their order is open.
pub(crate) fn of_node(shared: &Shared, repair: &NodeRepair) -> RepairOptions {
    let usual = usual_repair(shared);
    let scheme = if repair.scheme.is_empty() { usual.scheme } else { repair.scheme.clone() };
    let slice_asked = repair.slice_len > 0;
    let slice_len = if slice_asked { AutoSize::bytes(repair.slice_len) } else { usual.slice_len };
    RepairOptions { scheme, slice_len, slice_asked, select: Select::Ordered, paths: Paths::Count(1), explained: false }
}

/// The choices of a put, from a client or from an agent with a delegation.
pub(crate) fn of_put(
    shared: &Shared,
    asked: Option<&v1::WriteScheme>,
    caller: &Caller,
    delegation: Option<&Delegation>,
) -> Result<WriteOptions> {
    let asked = asked.cloned().unwrap_or_default();
    let scheme = if asked.scheme.is_empty() { shared.config.write_scheme.clone() } else { asked.scheme };
    let slice_is_asked = asked.slice_len > 0;
    let slice_bytes = if slice_is_asked { asked.slice_len } else { shared.config.slice_len.0 };
    let (host, agent) = (host(&caller.address), delegation.map(|it| it.agent.clone()).unwrap_or_default());
    let mut options = WriteOptions::new(scheme, slice_bytes, slice_is_asked)?;
    options.assignment = match (asked.random, asked.by_name) {
        (false, false) => Assignment::BySpeed,
        (true, false) => Assignment::AtRandom,
        (false, true) => Assignment::ByName,
        (true, true) => return Err(Error::invalid("blocks are assigned to nodes at random or by name, not both")),
    };
    (options.host, options.agent) = (host, agent);
    Ok(options)
}

/// The expected transfers of a put before it is planned: the writer sends each home a block.
pub(crate) fn announced(options: &WriteOptions, shared: &Shared, homes: &[Home], block_len: u64) -> Lines {
    let writer = shared.draw_client();
    let (network, bytes) = (write_network(options, shared, writer), block_len as f64);
    let mut lines = Lines::new();
    for home in homes.iter().map(|home| Party::Node(home.node)).filter(|home| network.host_of_both(writer, *home).is_none()) {
        lines.entry(network.line_of(writer)).or_default().up_bytes += bytes;
        lines.entry(network.line_of(home)).or_default().down_bytes += bytes;
    }
    lines
}

/// The network around a writer, including other transfers. On one machine, the fewest bytes move if the writer sends
/// everything itself, and other nodes' sends save no link.
pub(crate) fn write_network(options: &WriteOptions, shared: &Shared, writer: Party) -> Network {
    let nodes = shared.members.hosts().into_iter().map(|(node, host)| (Party::Node(node), host));
    let hosts = nodes.chain([(writer, options.host.clone())]).collect();
    let mut network = Network { hosts, ..shared.network() };
    for (party, busy) in shared.in_flight.left() {
        let known = network.busy.entry(network.line_of(party)).or_default();
        known.waited_for += busy.waited_for;
        known.background.extend(busy.background);
    }
    network
}

impl Shared {
    /// The space that conversions leave free.
    pub(crate) fn kept_free(&self) -> KeptFree {
        KeptFree {
            reserve_bytes: self.config.disk_reserve.0,
            rebuild: self.config.rebuild_reserve,
            percent: self.config.conversion_free_percent,
        }
    }

    /// What of each disk stays free of new data in stripes of `n` blocks, so that the largest node can be rebuilt.
    pub(crate) fn kept_for_repair(&self, view: &View, n: usize) -> Share {
        reserve::share(self.config.rebuild_reserve, view, n)
    }

    /// The nodes that get no block of a conversion: see [`KeptFree::without_room`].
    pub(crate) fn without_capacity(&self, wanted: &Wanted<'_>) -> Result<BTreeSet<NodeId>> {
        self.kept_free().without_room(&self.members.view(), wanted)
    }

    /// The known network: nodes, racks, recent measurements of links, and the rates of disks.
    pub(crate) fn network(&self) -> Network {
        let age_max = Duration::from_millis(self.config.link_age_max_ms);
        let measured = self.links().network(self.started.now(), age_max, UNMEASURED_BYTES_PER_S);
        let view = self.members.view();
        let rate = |node: &NodeView| Some((Party::Node(node.id), node.disk_bytes_per_s()?));
        let disk_bytes_per_s = view.nodes.values().filter_map(rate).collect();
        let mut network = Network { racks: racks(&view), disk_bytes_per_s, ..measured };
        links::set_rack_lines(&mut network);
        network
    }

    /// The network for plans whose nodes send what they read and combine: stragglers send no faster than they do that.
    /// A slow coder counts as slow even where nothing is combined on the way (in a conventional repair); that only
    /// makes it less preferred.
    pub(crate) fn network_of_helpers(&self) -> Network {
        let coding = self.members.coding_bytes_per_s();
        // A helper in a chain takes in two bytes for each byte that it passes on.
        let computes = stragglers::among(coding).into_iter().map(|(node, rate)| (node, rate / 2.0));
        let mut network = self.network();
        for (node, most) in self.stragglers().stragglers(self.started.now()).into_iter().chain(computes) {
            let sends = network.up(Party::Node(node)).min(most);
            network.up_bytes_per_s.insert(Party::Node(node), sends);
        }
        network
    }
}

pub(crate) fn racks(view: &View) -> BTreeMap<Party, String> {
    let rack = |node: &NodeView| (Party::Node(node.id), node.rack.to_string());
    view.nodes.values().map(rack).filter(|(_, rack)| !rack.is_empty()).collect()
}
