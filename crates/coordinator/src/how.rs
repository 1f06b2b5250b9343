//! How lost blocks are brought back: what a request says of it, and the settings for what it does not say.

use crate::{errands::Errand, jobs, links, load::Lines, paces, shared::Shared, view::View};
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};
use tokio::time::Instant;
use weft_meta::{Home, NodeRepair};
use weft_plan::{ChosenPath, Class, Network};
use weft_proto::{rpc::Caller, v1};
use weft_schemes::{Paths, Select, disseminate, repair};
use weft_types::{AutoSize, Error, Layout, NodeId, PAGE_LEN, Party, Result, StripeLayout};

/// Links of 1 Gbit/s: which of two plans is shorter on equal links does not depend on what they carry, and people know them.
const LINK_BYTES_PER_S: f64 = 125e6;

/// What a slice costs besides its bytes where nobody has measured it: a few system calls and wake-ups at both ends.
const SLICE_OVERHEAD_S: f64 = 20e-6;

/// How lost blocks are brought back.
#[derive(Debug, Clone)]
pub(crate) struct How {
    /// The scheme's name, or `auto`.
    pub(crate) scheme: String,
    /// A slice of a block that is rebuilt.
    pub(crate) slice_len: AutoSize,
    /// Somebody asked for this very length.
    pub(crate) slice_asked: bool,
    pub(crate) select: Select,
    pub(crate) paths: Paths,
}

impl How {
    /// As the settings have it.
    pub(crate) fn usual(shared: &Shared) -> Self {
        let scheme = shared.config.scheme.clone();
        let (slice_len, select, paths) = (shared.config.repair_slice_len, Select::default(), Paths::default());
        Self { scheme, slice_len, slice_asked: false, select, paths }
    }

    /// As a repair asks for.
    pub(crate) fn of_repair(shared: &Shared, asked: &v1::RepairObjectRequest) -> Result<Self> {
        let usual = Self::usual(shared).with(&asked.scheme, asked.slice_len, asked.slice_auto)?;
        let select = Select::parse(&asked.select, || shared.draw_seed())?;
        Ok(Self { select, paths: Paths::of(asked.paths)?, ..usual })
    }

    /// As a read asks for.
    pub(crate) fn of_read(shared: &Shared, asked: &v1::ReadStripeRequest) -> Result<Self> {
        Self::usual(shared).with(&asked.scheme, asked.slice_len, asked.slice_auto)
    }

    /// As the repair of a node does: who helps is selected over all its stripes, and only the order is left open.
    pub(crate) fn of_node(shared: &Shared, repair: &NodeRepair) -> Self {
        let usual = Self::usual(shared);
        let scheme = if repair.scheme.is_empty() { usual.scheme } else { repair.scheme.clone() };
        let slice_asked = repair.slice_len > 0;
        let slice_len = if slice_asked { AutoSize::bytes(repair.slice_len) } else { usual.slice_len };
        Self { scheme, slice_len, slice_asked, select: Select::Ordered, paths: Paths::Count(1) }
    }

    /// Positions of a slice of a block that is rebuilt. Where its length is left open, as for a chain of links that are all alike.
    pub(crate) fn slice_positions(&self, stripe: &StripeLayout, network: &Network) -> u64 {
        let bytes = match self.slice_len {
            AutoSize::Bytes(size) if self.slice_asked => return jobs::slice_positions(&stripe.layout, size.0),
            AutoSize::Bytes(size) => size.0,
            AutoSize::Auto => best_slice(stripe, &vec![network.link_bytes_per_s; stripe.k as usize], network),
        };
        jobs::usual_slice_positions(&stripe.layout, bytes)
    }

    /// The same for a path that was chosen, if the length is left open.
    pub(crate) fn slice_positions_on(&self, path: &ChosenPath, stripe: &StripeLayout, network: &Network) -> Option<u64> {
        let links: Vec<f64> = path.parties.windows(2).map(|pair| network.between(pair[0], pair[1])).collect();
        let is_open = self.slice_len == AutoSize::Auto && !links.is_empty();
        is_open.then(|| jobs::usual_slice_positions(&stripe.layout, best_slice(stripe, &links, network)))
    }

    fn with(self, scheme: &str, asked_bytes: u64, slice_auto: bool) -> Result<Self> {
        let scheme = if scheme.is_empty() { self.scheme } else { scheme.to_owned() };
        repair::check_name(&scheme)?;
        let slice_len = match (slice_auto, asked_bytes) {
            (true, 0) => AutoSize::Auto,
            (true, _) => return Err(Error::invalid("the slice's length is both said and left open")),
            (false, 0) => self.slice_len,
            (false, bytes) => AutoSize::bytes(bytes),
        };
        check_slice_len("the slice's length", slice_len)?;
        Ok(Self { scheme, slice_len, slice_asked: asked_bytes > 0, ..self })
    }
}

/// Bytes of a slice over links of so many bytes a second each.
fn best_slice(stripe: &StripeLayout, links: &[f64], network: &Network) -> u64 {
    let overhead_s = if network.slice_overhead_s > 0.0 { network.slice_overhead_s } else { SLICE_OVERHEAD_S };
    weft_schemes::slice_size(stripe.layout.block_len, links, overhead_s)
}

/// How new data gets to the nodes that store it.
#[derive(Debug, Clone)]
pub(crate) struct HowToWrite {
    /// The scheme's name, or `auto`.
    pub(crate) scheme: String,
    /// Bytes of a slice of a block.
    slice_bytes: u64,
    /// Whether they were asked for.
    slice_is_asked: bool,
    /// Which node gets which block is left to chance.
    pub(crate) by_lot: bool,
    /// The machine from which the writer calls.
    host: String,
    /// The agent that writes, by its name, in a conversion; empty: a client does.
    pub(crate) agent: String,
}

impl HowToWrite {
    /// As a put asks for, and for the rest as the settings have it.
    pub(crate) fn of(shared: &Shared, asked: Option<&v1::WriteScheme>, caller: &Caller) -> Result<Self> {
        let asked = asked.cloned().unwrap_or_default();
        let scheme = if asked.scheme.is_empty() { shared.config.write_scheme.clone() } else { asked.scheme };
        disseminate::check_name(&scheme)?;
        let slice_is_asked = asked.slice_len > 0;
        let slice_bytes = if slice_is_asked { asked.slice_len } else { shared.config.slice_len.0 };
        check_slice_len("the slice's length", AutoSize::bytes(slice_bytes))?;
        let (by_lot, host) = (asked.by_lot, host(&caller.address));
        Ok(Self { scheme, slice_bytes, slice_is_asked, by_lot, host, agent: String::new() })
    }

    /// By an agent that was sent to do it.
    pub(crate) fn on_errand(self, errand: Option<&Errand>) -> Self {
        Self { agent: errand.map(|errand| errand.agent.clone()).unwrap_or_default(), ..self }
    }

    /// Nobody waits for what an agent writes.
    pub(crate) fn class(&self) -> Class {
        if self.agent.is_empty() { Class::Foreground } else { Class::Repair }
    }

    /// Whether it is left to predictions.
    pub(crate) fn is_left_open(&self) -> bool {
        self.scheme == disseminate::AUTO
    }

    /// By the scheme that asks the least of everybody but the writer.
    pub(crate) fn by_the_simplest(self) -> Self {
        Self { scheme: disseminate::DIRECT.into(), ..self }
    }

    /// Positions of a slice.
    pub(crate) fn slice_positions(&self, layout: &Layout) -> u64 {
        let positions = if self.slice_is_asked { jobs::slice_positions } else { jobs::usual_slice_positions };
        positions(layout, self.slice_bytes)
    }

    /// What a put will move, as long as nothing is known but its homes: each gets a block, from the writer.
    pub(crate) fn announced(&self, shared: &Shared, homes: &[Home], block_len: u64) -> Lines {
        let writer = shared.draw_client();
        let (network, bytes) = (self.network(shared, writer), block_len as f64);
        let mut lines = Lines::new();
        for home in homes.iter().map(|home| Party::Node(home.node)).filter(|home| network.host_of_both(writer, *home).is_none()) {
            lines.entry(network.line_of(writer)).or_default().up_bytes += bytes;
            lines.entry(network.line_of(home)).or_default().down_bytes += bytes;
        }
        lines
    }

    /// What is known of the network around the writer, a client, and of what others move over it. On one machine less is moved by a
    /// writer that sends all itself, and no link is saved by others that send for it.
    pub(crate) fn network(&self, shared: &Shared, writer: Party) -> Network {
        let host_of = |node: &NodeId| Some((Party::Node(*node), shared.members.session(*node)?.host));
        let hosts = shared.members.view().nodes.keys().filter_map(host_of).chain([(writer, self.host.clone())]).collect();
        let mut network = Network { hosts, ..shared.network() };
        for (party, busy) in shared.loads.left() {
            let known = network.busy.entry(network.line_of(party)).or_default();
            known.waited_for += busy.waited_for;
            known.background.extend(busy.background);
        }
        network
    }
}

/// The machine from whose address and port somebody calls, however the address is spelt.
pub(crate) fn host(address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(address) => address.ip().to_canonical().to_string(),
        Err(_) => address.rsplit_once(':').map_or(address, |(host, _)| host).to_owned(),
    }
}

/// The longest slice that may be asked for: more of it in the agents' memory speeds up nothing.
pub(crate) const SLICE_BYTES_MAX: u64 = 64 << 20;

/// Whether slices of this length are whole pages, and not too long.
pub(crate) fn check_slice_len(name: &str, len: AutoSize) -> Result<()> {
    match len {
        AutoSize::Bytes(size) if size.0 == 0 || !size.0.is_multiple_of(PAGE_LEN) => {
            Err(Error::invalid(format!("{name} is {size}: it must be a multiple of {}", weft_types::ByteSize(PAGE_LEN))))
        }
        AutoSize::Bytes(size) if size.0 > SLICE_BYTES_MAX => {
            Err(Error::invalid(format!("{name} is {size}: at most {} is possible", weft_types::ByteSize(SLICE_BYTES_MAX))))
        }
        _ => Ok(()),
    }
}

impl Shared {
    /// What is known of the network: where everybody stands, and what was measured of links lately.
    pub(crate) fn network(&self) -> Network {
        let age_max = Duration::from_millis(self.config.link_age_max_ms);
        let measured = self.links.network(Instant::now(), age_max, LINK_BYTES_PER_S);
        let mut network = Network { racks: racks(&self.members.view()), ..measured };
        links::set_rack_lines(&mut network);
        network
    }

    /// The same for plans whose nodes give what they read and add up: stragglers among them send no more than that. Who adds up slowly
    /// counts as slow also where nothing is added up on the way (in a conventional repair): it is only rather left out.
    pub(crate) fn network_of_helpers(&self) -> Network {
        let coding = self.members.coding_bytes_per_s();
        // A helper of a chain takes in two bytes for each that it passes on.
        let computes = paces::stragglers(coding).into_iter().map(|(node, rate)| (node, rate / 2.0));
        let mut network = self.network();
        for (node, most) in self.paces.stragglers(Instant::now()).into_iter().chain(computes) {
            let sends = network.up(Party::Node(node)).min(most);
            network.up_bytes_per_s.insert(Party::Node(node), sends);
        }
        network
    }
}

pub(crate) fn racks(view: &View) -> BTreeMap<Party, String> {
    let rack = |node: &crate::view::NodeView| (Party::Node(node.id), node.rack.clone());
    view.nodes.values().map(rack).filter(|(_, rack)| !rack.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_its_address_however_it_is_spelt() {
        assert_eq!(["10.0.0.5:41", "[::ffff:10.0.0.5]:42"].map(host), ["10.0.0.5", "10.0.0.5"]);
        assert_eq!(["[fd00::1]:1", "somewhere:7", ""].map(host), ["fd00::1", "somewhere", ""]);
    }

    #[test]
    fn slices_are_whole_pages_or_left_open() {
        let how = || How {
            scheme: "auto".into(),
            slice_len: AutoSize::bytes(64 << 10),
            slice_asked: false,
            select: Select::default(),
            paths: Paths::default(),
        };
        assert_eq!(how().with("", 0, false).unwrap().slice_len, AutoSize::bytes(64 << 10));
        assert_eq!(how().with("ppr", 0, true).unwrap().slice_len, AutoSize::Auto);
        assert_eq!(how().with("", 8192, false).unwrap().slice_len, AutoSize::bytes(8192));
        let layout = weft_types::Layout::new(2 << 20, 2 << 20, 8).unwrap();
        let stripe = StripeLayout { layout, k: 4, m: 4, data_len: 8 << 20 };
        let positions = |bytes| how().with("", bytes, false).unwrap().slice_positions(&stripe, &Network::uniform(125e6));
        assert_eq!([0, 64 << 10, 256 << 10].map(positions), [128 << 10, 8 << 10, 32 << 10], "what is asked for is what is done");
        for (scheme, len, auto, says) in [
            ("", 1000, false, "is 1000"),
            ("", 65 << 20, false, "at most 64MiB"),
            ("", 4096, true, "both said"),
            ("pigeon", 0, false, "no repair scheme 'pigeon'"),
        ] {
            assert!(how().with(scheme, len, auto).unwrap_err().message.contains(says));
        }
    }
}
