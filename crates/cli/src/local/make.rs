//! Creates the directory of a cluster: certificates, settings, ports.

use super::{
    cluster::{AGENT_FILE, COORDINATOR_FILE, FIRST_UP, LOCK, LocalCluster},
    namespaces::{COORDINATOR, SCRATCH_FILE, TESTBED_FILE, node_number},
};
use crate::{
    files::io_error,
    settings,
    target::{ClusterFile, FILE_NAME},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    fs::Permissions,
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};
use weft_agent::AgentConfig;
use weft_coordinator::CoordinatorConfig;
use weft_proto::{Peer, certs::Authority};
use weft_types::{ClusterId, Error, Result};

/// Below the ephemeral ports, so no connection takes the port between two starts.
const PORTS: std::ops::Range<u16> = 17_000..32_000;
const PORT_TRIES_MAX: usize = 1000;
/// How often, and at which interval, to check whether a port is free again.
const PORT_WAITS_MAX: u32 = 40;
const PORT_WAIT: Duration = Duration::from_millis(50);
const CERTIFICATES: &str = "certificates";
/// Where a cluster is built before it is moved to its place.
const NEW: &str = ".new";
/// The parts of a cluster, in the order in which they are moved.
const PARTS: [&str; 6] = [CERTIFICATES, COORDINATOR, "nodes", "log", "run", FILE_NAME];
/// Most agents on one machine.
const NODES_MAX: u32 = 512;
/// Codes for the default policy of a new cluster, as (k, m): the first one that fits is used.
const DEFAULT_CODES: [(u32, u32); 6] = [(6, 3), (4, 2), (3, 2), (2, 2), (2, 1), (1, 1)];
/// Most disks of an agent.
const DISKS_MAX: u32 = 64;

/// The settings of a process to be created; they can be changed.
pub enum DaemonSettings<'a> {
    /// The coordinator's settings.
    Coordinator(&'a mut CoordinatorConfig),
    /// The settings of the agent with that number, from 0.
    Agent(u32, &'a mut AgentConfig),
}

/// The size of a new cluster.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Agents.
    pub nodes: u32,
    /// Racks; agents are assigned to them in turn.
    pub racks: u32,
    /// Disks of each agent.
    pub disks_per_node: u32,
    /// Without TLS.
    pub insecure: bool,
}

impl LocalCluster {
    /// Creates a cluster in `dir`, which must hold nothing except what [`LocalCluster::lock`] and an earlier attempt put there. The
    /// caller holds that lock. The cluster is built in a directory beside its place and then moved, `weft.toml` last: after an
    /// interruption, the next attempt starts again or continues.
    pub fn make(dir: &Path, size: Size, seed: u64, adjust: impl Fn(DaemonSettings<'_>)) -> Result<Self> {
        Self::check_free(dir, size)?;
        let mode = Permissions::from_mode(0o700);
        std::fs::set_permissions(dir, mode).map_err(|error| io_error(dir, "protect", &error))?;
        let new = dir.join(NEW);
        if !new.join(FILE_NAME).exists() {
            if new.exists() {
                std::fs::remove_dir_all(&new).map_err(|error| io_error(&new, "remove", &error))?;
            }
            fill(&new, size, seed, adjust)?;
        }
        for name in PARTS {
            let (from, to) = (new.join(name), dir.join(name));
            match std::fs::rename(&from, &to) {
                // An earlier attempt moved it before it was interrupted.
                Err(error) if error.kind() == ErrorKind::NotFound && to.exists() => {}
                moved => moved.map_err(|error| io_error(&to, "make", &error))?,
            }
        }
        std::fs::remove_dir(&new).map_err(|error| io_error(&new, "remove", &error))?;
        Self::open(dir)
    }

    /// Whether a cluster of this size can be created in `dir`.
    pub fn check_free(dir: &Path, size: Size) -> Result<()> {
        size.check()?;
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_error(dir, "read", &error)),
        };
        let is_half_made = dir.join(NEW).join(FILE_NAME).exists();
        for entry in entries {
            let name = entry.map_err(|error| io_error(dir, "read", &error))?.file_name();
            let is_ours = [LOCK, NEW, TESTBED_FILE, SCRATCH_FILE].iter().any(|it| name == *it)
                || is_half_made && PARTS.iter().any(|it| name == *it);
            if !is_ours {
                let dir = dir.display();
                return Err(Error::invalid(format!("{dir} is not empty and holds no cluster: choose another directory")));
            }
        }
        Ok(())
    }

    /// The size with which it was created.
    pub fn size(&self) -> Result<Size> {
        let (mut racks, mut disks_per_node) = (BTreeSet::new(), 0);
        for name in &self.nodes {
            let agent: AgentConfig = settings::parse(&self.settings(name))?;
            disks_per_node = agent.disks.len() as u32;
            racks.insert(agent.rack);
        }
        let (nodes, racks, insecure) = (self.nodes.len() as u32, racks.len() as u32, self.file()?.insecure);
        Ok(Size { nodes, racks, disks_per_node, insecure })
    }

    /// Adds agents to the cluster, with as many disks as the others, each in the next rack in turn or in the named one. Returns the cluster with
    /// them. They are not started. The caller holds the lock ([`LocalCluster::lock`]).
    pub fn add(&self, count: u32, rack: Option<&str>) -> Result<Self> {
        if self.namespaces.is_some() {
            return Err(Error::invalid("the nodes of a testbed are fixed: make another one with more nodes"));
        }
        let (size, file) = (self.size()?, self.file()?);
        Size { nodes: size.nodes.saturating_add(count), ..size }.check()?;
        let racks = self.nodes.iter().map(|name| Ok(settings::parse::<AgentConfig>(&self.settings(name))?.rack));
        let racks: Vec<String> = racks.collect::<Result<BTreeSet<String>>>()?.into_iter().collect();
        let certificates = self.dir.join(CERTIFICATES);
        let authority = (!file.insecure).then(|| Authority::load(&certificates)).transpose()?;
        let last = self.nodes.iter().filter_map(|name| node_number(name)).max().map_or(0, |last| last + 1);
        let width = self.nodes.iter().filter_map(|name| name.strip_prefix("node-")).map(str::len).max().unwrap_or(2);
        let cluster = file.cluster.ok_or_else(|| Error::invalid(format!("{FILE_NAME} does not name the cluster")))?;
        let listen = file.coordinator;
        for number in last..last.saturating_add(count) {
            let name = format!("node-{:0width$}", number + 1);
            if let Some(authority) = &authority {
                authority.issue(&certificates, &Peer::Agent(name.clone()))?;
            }
            let of_node = (!file.insecure).then(|| Path::new("../..").join(CERTIFICATES));
            let mut config = node(name.clone(), number, size, &listen, cluster, of_node);
            let next = racks.get(number as usize % racks.len().max(1)).map(String::as_str);
            if let Some(rack) = rack.or(next) {
                rack.clone_into(&mut config.rack);
            }
            // Built beside its place: an interrupted attempt leaves no half of a node.
            let new = self.dir.join(NEW);
            if new.exists() {
                std::fs::remove_dir_all(&new).map_err(|error| io_error(&new, "remove", &error))?;
            }
            make_node(&new, &config)?;
            let (from, to) = (new.join("nodes").join(&name), self.dir.join("nodes").join(&name));
            std::fs::rename(&from, &to).map_err(|error| io_error(&to, "make", &error))?;
            std::fs::remove_dir_all(&new).map_err(|error| io_error(&new, "remove", &error))?;
        }
        Self::open(&self.dir)
    }

    /// Ensures that the coordinator's port is free. If another process took it while the cluster was down, chooses a new port and writes
    /// it to all settings. Agents that are still running are stopped, because they call the coordinator at its old address.
    pub(crate) fn settle_port(&self, seed: u64) -> Result<()> {
        // In its own network namespace, no other process can take the port.
        if self.namespaces.is_some() {
            return Ok(());
        }
        let path = self.settings(COORDINATOR);
        let mut config: CoordinatorConfig = settings::parse(&path)?;
        let is_free = || TcpListener::bind(&config.listen).is_ok();
        // A coordinator that was killed a moment ago can still hold its port.
        for _ in 0..PORT_WAITS_MAX {
            if is_free() {
                return Ok(());
            }
            std::thread::sleep(PORT_WAIT);
        }
        self.stop()?;
        let listen = format!("{}:{}", Ipv4Addr::LOCALHOST, free_port(&mut StdRng::seed_from_u64(seed))?);
        for name in &self.nodes {
            let path = self.settings(name);
            let mut agent: AgentConfig = settings::parse(&path)?;
            agent.coordinators = vec![listen.clone()];
            write_toml(&path, &agent)?;
        }
        let file_path = self.dir.join(FILE_NAME);
        let mut file: ClusterFile = settings::parse(&file_path)?;
        file.coordinator.clone_from(&listen);
        write_toml(&file_path, &file)?;
        // Written last: until then the file names the taken port, and the next start comes here again.
        config.listen = listen;
        write_toml(&path, &config)
    }
}

impl Size {
    fn check(self) -> Result<()> {
        let between = |what: &str, count: u32, max: u32| {
            let fits = (1..=max).contains(&count);
            fits.then_some(())
                .ok_or_else(|| Error::invalid(format!("a cluster cannot have {count} {what}: the range is 1 to {max}")))
        };
        between("nodes", self.nodes, NODES_MAX)?;
        between("racks", self.racks, self.nodes)?;
        between("disks per node", self.disks_per_node, DISKS_MAX)
    }

    /// The first of [`DEFAULT_CODES`] that has at most one block per node, and in each rack no more blocks than the code can lose. No code
    /// fits a single node.
    fn default_code(self) -> String {
        let fits = |(k, m): &&(u32, u32)| k + m <= self.nodes && (self.racks == 1 || (k + m).div_ceil(self.racks) <= *m);
        let (k, m) = DEFAULT_CODES.iter().find(fits).unwrap_or(&(1, 1));
        format!("rs({k},{m})")
    }
}

/// Creates all parts of a cluster in a new directory.
fn fill(new: &Path, size: Size, seed: u64, adjust: impl Fn(DaemonSettings<'_>)) -> Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let cluster = ClusterId(random.random());
    for part in PARTS.iter().filter(|part| **part != FILE_NAME) {
        make_dir(&new.join(part))?;
    }
    let certificates = new.join(CERTIFICATES);
    let authority = (!size.insecure).then(|| Authority::create(&certificates, cluster)).transpose()?;
    let issue = |peer: &Peer| authority.as_ref().map_or(Ok(()), |it| it.issue(&certificates, peer).map(drop));
    let certificates = |from: &str| (!size.insecure).then(|| Path::new(from).join(CERTIFICATES));

    issue(&Peer::Coordinator)?;
    let mut config = CoordinatorConfig {
        listen: format!("{}:{}", Ipv4Addr::LOCALHOST, free_port(&mut random)?),
        dir: PathBuf::from("."),
        cluster: Some(cluster),
        certificates: certificates(".."),
        insecure: size.insecure,
        default_code: size.default_code(),
        default_failure_domain: if size.racks > 1 { "rack" } else { "node" }.to_owned(),
        ..CoordinatorConfig::default()
    };
    adjust(DaemonSettings::Coordinator(&mut config));
    let listen = config.listen.clone();
    write_toml(&new.join(COORDINATOR).join(COORDINATOR_FILE), &config)?;
    let width = size.nodes.to_string().len().max(2);
    for number in 0..size.nodes {
        let name = format!("node-{:0width$}", number + 1);
        issue(&Peer::Agent(name.clone()))?;
        let mut config = node(name, number, size, &listen, cluster, certificates("../.."));
        adjust(DaemonSettings::Agent(number, &mut config));
        make_node(new, &config)?;
    }
    issue(&Peer::Client)?;
    let first_up = new.join("run").join(FIRST_UP);
    std::fs::write(&first_up, "").map_err(|error| io_error(&first_up, "write", &error))?;
    let file = ClusterFile {
        cluster: Some(cluster),
        coordinator: listen,
        certificates: certificates(""),
        insecure: size.insecure,
        bucket: Some("default".to_owned()),
    };
    write_toml(&new.join(FILE_NAME), &file)
}

fn node(
    name: String,
    number: u32,
    size: Size,
    coordinator: &str,
    cluster: ClusterId,
    certificates: Option<PathBuf>,
) -> AgentConfig {
    AgentConfig {
        name,
        rack: format!("rack-{}", number % size.racks + 1),
        zone: "default".to_owned(),
        cluster: Some(cluster),
        coordinators: vec![coordinator.to_owned()],
        // Any free port: the coordinator learns it when the agent registers.
        data_listen: format!("{}:0", Ipv4Addr::LOCALHOST),
        control_listen: format!("{}:0", Ipv4Addr::LOCALHOST),
        data_advertise: None,
        control_advertise: None,
        metrics: weft_proto::metrics::ANY_PORT.to_owned(),
        state_dir: PathBuf::from("state"),
        disks: (0..size.disks_per_node).map(|disk| PathBuf::from(format!("disk-{disk}"))).collect(),
        certificates,
        insecure: size.insecure,
        limits: weft_agent::Limits::default(),
        throttle: weft_agent::Throttle::default(),
    }
}

fn make_node(dir: &Path, config: &AgentConfig) -> Result<()> {
    let home = dir.join("nodes").join(&config.name);
    config.disks.iter().chain([&config.state_dir]).try_for_each(|dir| make_dir(&home.join(dir)))?;
    write_toml(&home.join(AGENT_FILE), config)
}

fn free_port(random: &mut StdRng) -> Result<u16> {
    let mut tries = (0..PORT_TRIES_MAX).map(|_| random.random_range(PORTS));
    let free = tries.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.ok_or_else(|| Error::unavailable("found no free port on 127.0.0.1"))
}

fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| io_error(dir, "create", &error))
}

/// Replaces the file atomically: it can exist and be in use.
fn write_toml(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = toml::to_string_pretty(value).map_err(Error::fatal)?;
    let temporary = path.with_extension("toml.new");
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|error| io_error(path, "write", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_code_fits_the_nodes_and_racks() {
        let code = |nodes, racks| Size { nodes, racks, disks_per_node: 1, insecure: false }.default_code();
        let of_nodes = [1, 2, 3, 4, 5, 6, 8, 9, 16].map(|nodes| code(nodes, 1));
        assert_eq!(of_nodes, ["rs(1,1)", "rs(1,1)", "rs(2,1)", "rs(2,2)", "rs(3,2)", "rs(4,2)", "rs(4,2)", "rs(6,3)", "rs(6,3)"]);
        let of_racks = [(16, 4), (9, 3), (6, 3), (16, 2), (3, 3), (3, 2)].map(|(nodes, racks)| code(nodes, racks));
        assert_eq!(of_racks, ["rs(6,3)", "rs(6,3)", "rs(4,2)", "rs(2,2)", "rs(2,1)", "rs(1,1)"]);
    }
}
