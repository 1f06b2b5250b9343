//! A cluster in which every agent has its own network namespace and the links between agents are shaped: so the time of a plan on links
//! of, for example, 200 Mbit/s is measured and not computed.
//!
//! It is a [`LocalCluster`] with one more file, `testbed.toml`, which describes the network. Its processes run in namespaces whose names
//! derive from the directory: so [`Testbed::down`] finds and removes a testbed whose creator was killed, even without its directory.

pub(crate) mod net;
pub(crate) mod scratch;

pub(crate) use net::{BURST_BYTES, Carried, enter};
pub(crate) use weft_cli::{matrix::Matrix, rate::LinkRate};

use net::{Network, Shaping};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    str::FromStr,
};
use weft_cli::{
    beside,
    files::{io_error, real_path},
    interrupt,
    local::{self, COORDINATOR, DaemonSettings, LocalCluster, Namespaces, Size, TESTBED_FILE as FILE_NAME, node_number},
    settings as files,
};
use weft_types::{ByteSize, Error, Result};

/// The testbeds of this machine: one file for each, which contains its directory.
const REGISTRY: &str = "/run/weft-testbeds";
/// A machine of two cores can carry links of this rate for ten agents, and more.
pub(crate) const DEFAULT_LINK: &str = "200mbit";
/// Experiments without pipelining hold whole blocks in an agent's memory, and repairs may use only a part of it.
const MEMORY_BUDGET: ByteSize = ByteSize(3 << 30);
/// The space of removed objects is freed before the next experiment begins.
const FREED_PER_HOUR: ByteSize = ByteSize(1 << 50);
const PORT: u16 = 7400;
/// The largest value that a file of settings can express.
const FOREVER_MS: u64 = i64::MAX as u64;

/// The settings of a testbed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Agents.
    pub(crate) nodes: u32,
    /// Racks, to which the agents are assigned in turn.
    pub(crate) racks: u32,
    /// What each agent sends and receives; None: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<LinkRate>,
    /// What each rack sends and receives over its uplink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rack_link: Option<LinkRate>,
    /// Rate, each way, of the link that the coordinator and the commands share; None: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outside_link: Option<LinkRate>,
    /// Links with other rates.
    #[serde(default)]
    pub(crate) limits: Vec<Limit>,
    /// Without TLS.
    #[serde(default)]
    pub(crate) insecure: bool,
    /// Nodes with a slow disk or processor.
    #[serde(default)]
    pub(crate) slow: Vec<Slow>,
    /// Rates between pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) matrix: Option<Matrix>,
}

/// A link with another rate: `node-03:*=40mbit` limits what node-03 sends, `*:node-03=40mbit` what it receives,
/// `node-03:node-05=40mbit` what goes from one to the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Limit {
    /// The sender; `None`: all.
    pub(crate) from: Option<String>,
    /// The receiver; `None`: all.
    pub(crate) to: Option<String>,
    /// The rate.
    pub(crate) rate: LinkRate,
}

/// A node with a slow disk or processor: `node-03:disk=50MiB` reads and writes 50 MiB per second, `*:coding=20MiB`: all code 20.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Slow {
    /// The node; `None`: all.
    pub(crate) node: Option<String>,
    /// The slow part.
    pub(crate) part: Part,
    /// Bytes per second.
    pub(crate) rate: ByteSize,
}

/// A part of a node that can be slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The disk, reading and writing together.
    Disk,
    /// Coding, measured at its input.
    Coding,
}

/// A testbed that exists or can be created.
#[derive(Debug)]
pub(crate) struct Testbed {
    dir: PathBuf,
    network: Network,
    settings: Settings,
}

impl Testbed {
    /// Fails if something is missing: the `weft` that runs the daemons, or a tool of the machine.
    pub(crate) fn check_machine() -> Result<()> {
        beside::weft()?;
        Network::check_machine()
    }

    /// Opens the testbed in `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let dir = real_path(dir)?;
        if !dir.join(FILE_NAME).is_file() {
            let dir = dir.display();
            return Err(Error::not_found(format!(
                "there is no testbed in {dir}: create one with `weft testbed up --dir {dir} --nodes 16`"
            )));
        }
        let settings: Settings = files::parse(&dir.join(FILE_NAME))?;
        Self::of(dir, settings)
    }

    fn of(dir: PathBuf, settings: Settings) -> Result<Self> {
        settings.check()?;
        let network = Network::new(Namespaces::of(&dir), settings.nodes, settings.racks);
        Ok(Self { dir, network, settings })
    }

    /// Creates a testbed in `dir`, with its network and its cluster's files; nothing runs yet. A failure or an interruption removes the
    /// network again. The caller holds the lock of `dir`.
    pub(crate) fn make(
        dir: &Path,
        settings: Settings,
        seed: u64,
        adjust: impl Fn(DaemonSettings<'_>),
    ) -> Result<(Self, LocalCluster)> {
        Self::check_machine()?;
        let testbed = Self::of(real_path(dir)?, settings)?;
        let Settings { nodes, racks, insecure, .. } = testbed.settings;
        let size = Size { nodes, racks, disks_per_node: 1, insecure };
        LocalCluster::check_free(&testbed.dir, size)?;
        // First: from now on the directory counts as a testbed, and can be taken down.
        testbed.save()?;
        let place = |mut it: DaemonSettings<'_>| {
            let listen = |address| format!("{address}:0");
            match &mut it {
                DaemonSettings::Coordinator(config) => {
                    config.listen = format!("{}:{PORT}", Network::address_outside());
                    // Removed data of an experiment must not stay in memory for long.
                    (config.garbage_grace_ms, config.sweep_interval_ms) = (2_000, 1_000);
                    // Experiments measure links when they choose to; rates do not change by themselves.
                    (config.link_probe_interval_ms, config.link_age_max_ms) = (0, FOREVER_MS);
                }
                DaemonSettings::Agent(number, config) => {
                    config.data_listen = listen(Network::address(*number));
                    config.control_listen = listen(Network::address(*number));
                    config.limits.memory_budget = MEMORY_BUDGET;
                    config.limits.freed_bytes_per_hour = FREED_PER_HOUR;
                    for slow in
                        testbed.settings.slow.iter().filter(|slow| slow.node.as_ref().is_none_or(|node| *node == config.name))
                    {
                        let throttle = &mut config.throttle;
                        match slow.part {
                            Part::Disk => throttle.disk_bytes_per_s = Some(slow.rate),
                            Part::Coding => throttle.coding_bytes_per_s = Some(slow.rate),
                        }
                    }
                }
            }
            adjust(it);
        };
        let make = || {
            testbed.make_network()?;
            let cluster = LocalCluster::make(&testbed.dir, size, seed, place)?;
            interrupt::check().map(|()| cluster)
        };
        match make() {
            Ok(cluster) => Ok((testbed, cluster)),
            Err(error) => {
                // The first error counts.
                let _down = Self::down(&testbed.dir);
                Err(error)
            }
        }
    }

    /// Creates the network again unless something runs in it. The caller holds the lock, and removes incomplete networks.
    pub(crate) fn make_network(&self) -> Result<()> {
        Self::check_machine()?;
        let runs =
            LocalCluster::is_in(&self.dir) && LocalCluster::open(&self.dir)?.processes()?.iter().any(|(_, it)| it.is_some());
        if !runs || !self.network.exists()? {
            // An incomplete network, or one whose processes were killed, is useless.
            self.network.remove()?;
            self.register()?;
            self.network.make()?;
        }
        self.network.shape(&self.settings.shaping()?)
    }

    /// Reshapes the links by `change`; running work continues.
    pub(crate) fn reshape(&mut self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        change(&mut self.settings);
        self.network.shape(&self.settings.shaping()?)?;
        self.save()
    }

    /// Its processes.
    pub(crate) fn cluster(&self) -> Result<LocalCluster> {
        LocalCluster::open(&self.dir)
    }

    /// Its directory, with its disks.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its settings.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What each node has sent and received since the network was made, by its number from 0.
    pub(crate) fn carried(&self) -> Result<Vec<Carried>> {
        self.network.carried()
    }

    /// What each node has sent and received since `before`.
    pub(crate) fn carried_since(&self, before: Vec<Carried>) -> Result<Vec<Carried>> {
        Ok(self.carried()?.into_iter().zip(before).map(|(now, before)| now.since(before)).collect())
    }

    /// How long the busiest node's link needs at least to carry these bytes. `None` if links have no limit, or if their limits differ.
    pub(crate) fn busiest_s(&self, carried: &[Carried]) -> Option<f64> {
        let rate = self.settings.link.filter(|_| !self.settings.is_uneven())?.goodput_bytes_per_s();
        let busiest = carried.iter().map(|it| it.up.max(it.down)).max().unwrap_or(0);
        Some(busiest as f64 / rate)
    }

    /// Moves this thread, and everything that it starts, into the testbed's network, where the coordinator is.
    pub(crate) fn enter(&self) -> Result<()> {
        enter(&self.network.outside())
    }

    /// The namespace of a process of the cluster.
    pub(crate) fn namespace(&self, name: &str) -> Result<String> {
        if name == COORDINATOR {
            return Ok(self.network.outside());
        }
        Ok(self.network.of_node(self.settings.number(name)?))
    }

    /// Stops the processes of the testbed in `dir` and removes its network, even if the directory is missing or empty; returns the number
    /// of processes. Also removes the directory of a benchmark. The caller holds the lock.
    pub(crate) fn down(dir: &Path) -> Result<usize> {
        let dir = real_path(dir)?;
        let mut stopped = if LocalCluster::is_in(&dir) { LocalCluster::open(&dir)?.stop()? } else { 0 };
        let namespaces = Namespaces::of(&dir);
        let entry = Path::new(REGISTRY).join(namespaces.id());
        let network = Network::new(namespaces, 0, 0);
        // Without the directory, only the namespaces know the processes.
        let daemons = network.daemons(&dir)?;
        if local::end(&daemons)?.contains(&false) {
            return Err(Error::fatal(format!("processes of {} did not end after SIGKILL", dir.display())));
        }
        stopped += daemons.len();
        network.remove()?;
        scratch::remove(&dir)?;
        match fs::remove_file(&entry) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(&entry, "remove", &error)),
            _ => Ok(stopped),
        }
    }

    /// The directories of all testbeds of this machine.
    pub(crate) fn all() -> Result<Vec<PathBuf>> {
        let registry = Path::new(REGISTRY);
        let entries = match fs::read_dir(registry) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| io_error(registry, "read", &error))?,
        };
        let mut dirs = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| io_error(registry, "read", &error))?.path();
            match fs::read_to_string(&path) {
                Ok(dir) => dirs.push(PathBuf::from(dir.trim_end_matches('\n'))),
                // It was removed just now.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(io_error(&path, "read", &error)),
            }
        }
        dirs.sort();
        Ok(dirs)
    }

    fn register(&self) -> Result<()> {
        let (registry, entry) = (Path::new(REGISTRY), Path::new(REGISTRY).join(self.network.id()));
        fs::create_dir_all(registry).map_err(|error| io_error(registry, "create", &error))?;
        fs::write(&entry, format!("{}\n", self.dir.display())).map_err(|error| io_error(&entry, "write", &error))
    }

    fn save(&self) -> Result<()> {
        let path = self.dir.join(FILE_NAME);
        let text = toml::to_string(&self.settings).map_err(Error::fatal)?;
        fs::write(&path, text).map_err(|error| io_error(&path, "write", &error))
    }
}

impl Settings {
    /// The places of a matrix are racks.
    pub(crate) fn with_matrix(mut self, matrix: Matrix) -> Self {
        if !matrix.names.iter().all(|name| self.number(name).is_ok()) {
            self.racks = matrix.names.len() as u32;
        }
        self.matrix = Some(matrix);
        self
    }

    /// Whether the choice of nodes matters.
    pub(crate) fn is_uneven(&self) -> bool {
        let has_racks = self.rack_link.is_some();
        has_racks || self.matrix.is_some() || !self.limits.is_empty() || self.slow.iter().any(|slow| slow.node.is_some())
    }

    /// Checks that the settings are valid.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=net::NODES_MAX).contains(&self.nodes) || !(1..=self.nodes).contains(&self.racks) {
            let (nodes, racks, most) = (self.nodes, self.racks, net::NODES_MAX);
            return Err(Error::invalid(format!(
                "a testbed cannot have {nodes} nodes in {racks} racks: use 1 to {most} nodes, and no more racks than nodes"
            )));
        }
        if self.rack_link.is_some() && self.racks == 1 {
            return Err(Error::invalid("--rack-link needs several racks: for example --racks 4"));
        }
        self.slow.iter().filter_map(|slow| slow.node.as_ref()).try_for_each(|node| self.number(node).map(drop))?;
        self.shaping().map(drop)
    }

    /// The number of a node, from 0.
    pub(crate) fn number(&self, name: &str) -> Result<u32> {
        node_number(name).filter(|number| *number < self.nodes).ok_or_else(|| {
            Error::invalid(format!("there is no node '{name}': the {} nodes are named from node-01 on", self.nodes))
        })
    }

    /// The rate from one node to another, if it is limited.
    fn carried(&self, shaping: &Shaping, from: u32, to: u32) -> Option<LinkRate> {
        let pair = shaping.pairs.binary_search_by_key(&(from, to), |(from, to, _)| (*from, *to)).ok();
        let pair = pair.and_then(|at| shaping.pairs.get(at)).map(|(.., rate)| *rate);
        let rack = shaping.rack.filter(|_| from % self.racks != to % self.racks);
        let ends = [shaping.up[from as usize], shaping.down[to as usize], pair, rack];
        ends.into_iter().flatten().min_by(|a, b| a.bits_per_s().total_cmp(&b.bits_per_s()))
    }

    /// The slowest and the fastest limited link between two nodes.
    pub(crate) fn range(&self) -> Result<Option<(LinkRate, LinkRate)>> {
        let shaping = self.shaping()?;
        let pairs = (0..self.nodes).flat_map(|from| (0..self.nodes).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let mut rates: Vec<LinkRate> = pairs.filter_map(|(from, to)| self.carried(&shaping, from, to)).collect();
        rates.sort_by(|a, b| a.bits_per_s().total_cmp(&b.bits_per_s()));
        Ok(rates.first().copied().zip(rates.last().copied()))
    }

    pub(crate) fn shaping(&self) -> Result<Shaping> {
        let nodes = self.nodes as usize;
        let mut shaping = Shaping {
            up: vec![self.link; nodes],
            down: vec![self.link; nodes],
            pairs: Vec::new(),
            rack: self.rack_link,
            outside: self.outside_link,
        };
        let mut pairs = std::collections::BTreeMap::new();
        if let Some(matrix) = &self.matrix {
            let places = matrix.names.len() as u32;
            let is_of_nodes = matrix.names.iter().all(|name| self.number(name).is_ok());
            let place = |number: u32| -> Option<usize> {
                if !is_of_nodes {
                    return Some((number % places) as usize);
                }
                matrix.names.iter().position(|name| self.number(name).is_ok_and(|it| it == number))
            };
            for (from, to) in (0..self.nodes).flat_map(|from| (0..self.nodes).map(move |to| (from, to))).filter(|(a, b)| a != b) {
                let rate = place(from).zip(place(to)).and_then(|(row, column)| matrix.rates.get(row)?.get(column));
                rate.map(|rate| pairs.insert((from, to), *rate));
            }
        }
        for limit in &self.limits {
            match (&limit.from, &limit.to) {
                (None, None) => {
                    return Err(Error::invalid("--limit must name a sender, a receiver or both: use --link for all nodes"));
                }
                (Some(from), None) => shaping.up[self.number(from)? as usize] = Some(limit.rate),
                (None, Some(to)) => shaping.down[self.number(to)? as usize] = Some(limit.rate),
                (Some(from), Some(to)) => drop(pairs.insert((self.number(from)?, self.number(to)?), limit.rate)),
            }
        }
        shaping.pairs = pairs.into_iter().map(|((from, to), rate)| (from, to, rate)).collect();
        Ok(shaping)
    }
}

impl FromStr for Limit {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a limit: write node-03:*=40mbit, *:node-03=40mbit or node-03:node-05=40mbit");
        let (ends, rate) = text.split_once('=').ok_or_else(wrong)?;
        let (from, to) = ends.split_once(':').ok_or_else(wrong)?;
        let end = |name: &str| (name != "*").then(|| name.to_owned());
        Ok(Self { from: end(from.trim()), to: end(to.trim()), rate: rate.parse()? })
    }
}

impl From<Limit> for String {
    fn from(limit: Limit) -> Self {
        let end = |name: Option<String>| name.unwrap_or_else(|| "*".to_owned());
        format!("{}:{}={}", end(limit.from), end(limit.to), limit.rate)
    }
}

impl TryFrom<String> for Limit {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Slow {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' does not describe a slow node: write node-03:disk=50MiB or *:coding=20MiB");
        let (what, rate) = text.split_once('=').ok_or_else(wrong)?;
        let (node, part) = what.split_once(':').ok_or_else(wrong)?;
        let part = match part.trim() {
            "disk" => Part::Disk,
            "coding" => Part::Coding,
            _ => return Err(wrong()),
        };
        Ok(Self { node: (node.trim() != "*").then(|| node.trim().to_owned()), part, rate: rate.parse()? })
    }
}

impl From<Slow> for String {
    fn from(slow: Slow) -> Self {
        let part = if slow.part == Part::Disk { "disk" } else { "coding" };
        format!("{}:{part}={}", slow.node.as_deref().unwrap_or("*"), slow.rate)
    }
}

impl TryFrom<String> for Slow {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Whether this machine knows a testbed in `dir`: until it was taken down, even if its directory is missing.
pub(crate) fn is_known(dir: &Path) -> Result<bool> {
    let dir = real_path(dir)?;
    Ok(dir.join(FILE_NAME).is_file() || Testbed::all()?.contains(&dir))
}

#[cfg(test)]
mod tests;
