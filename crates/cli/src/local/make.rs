//! Making a cluster's directory: certificates, settings, ports.

use super::{COORDINATOR, LocalCluster};
use crate::{
    offline::io_error,
    target::{ClusterFile, FILE_NAME},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};
use weft_agent::AgentConfig;
use weft_coordinator::CoordinatorConfig;
use weft_proto::{Peer, certs::Authority};
use weft_types::{ClusterId, Error, Result};

/// Below the ports that connections take for themselves, so that nobody takes it between two starts.
const PORTS: std::ops::Range<u16> = 17_000..32_000;
const PORT_TRIES_MAX: usize = 1000;
/// How often, and how far apart, it is seen whether a port is free by now.
const PORT_WAITS_MAX: u32 = 40;
const PORT_WAIT: Duration = Duration::from_millis(50);
/// A machine runs so many agents at most.
pub(crate) const NODES_MAX: u32 = 512;
/// And an agent has so many disks.
pub(crate) const DISKS_MAX: u32 = 64;

/// How large a cluster is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) nodes: u32,
    pub(crate) racks: u32,
    pub(crate) disks_per_node: u32,
    pub(crate) insecure: bool,
}

impl LocalCluster {
    /// Makes a cluster in `dir`, which must be empty or not there. `weft.toml` comes last: without it, nothing was made.
    pub(crate) fn make(dir: &Path, size: Size, seed: u64, adjust: impl Fn(&mut CoordinatorConfig)) -> Result<Self> {
        size.check()?;
        let mut random = StdRng::seed_from_u64(seed);
        let cluster = ClusterId(random.random());
        std::fs::create_dir_all(dir).map_err(|error| io_error(dir, "create", &error))?;
        let dir = &std::path::absolute(dir).map_err(|error| io_error(dir, "find", &error))?;
        let is_empty = std::fs::read_dir(dir).map_err(|error| io_error(dir, "read", &error))?.next().is_none();
        if !is_empty {
            return Err(Error::invalid(format!("{} is not empty and holds no cluster: choose another directory", dir.display())));
        }
        for name in ["certificates", COORDINATOR, "nodes", "log", "run"] {
            make_dir(&dir.join(name))?;
        }
        let certificates = dir.join("certificates");
        let authority = (!size.insecure).then(|| Authority::create(&certificates, cluster)).transpose()?;
        let issue = |peer: &Peer| authority.as_ref().map_or(Ok(()), |it| it.issue(&certificates, peer).map(drop));
        let certificates = (!size.insecure).then(|| certificates.clone());

        let listen = format!("{}:{}", Ipv4Addr::LOCALHOST, free_port(&mut random)?);
        issue(&Peer::Coordinator)?;
        let mut config = CoordinatorConfig {
            listen: listen.clone(),
            dir: dir.join(COORDINATOR),
            cluster: Some(cluster),
            certificates: certificates.clone(),
            insecure: size.insecure,
            ..CoordinatorConfig::default()
        };
        adjust(&mut config);
        write_toml(&dir.join(COORDINATOR).join("coordinator.toml"), &config)?;
        let width = size.nodes.to_string().len().max(2);
        for number in 0..size.nodes {
            let name = format!("node-{:0width$}", number + 1);
            issue(&Peer::Agent(name.clone()))?;
            make_node(dir, name, number, size, &listen, cluster, certificates.clone())?;
        }
        issue(&Peer::Client)?;
        let file = ClusterFile {
            cluster: Some(cluster),
            coordinator: listen,
            certificates: (!size.insecure).then(|| PathBuf::from("certificates")),
            insecure: size.insecure,
            bucket: Some("default".to_owned()),
        };
        write_toml(&dir.join(FILE_NAME), &file)?;
        Self::open(dir)
    }

    /// How large it was made.
    pub(crate) fn size(&self) -> Result<Size> {
        let (mut racks, mut disks_per_node) = (BTreeSet::new(), 0);
        for name in &self.nodes {
            let agent: AgentConfig = read_toml(&self.dir.join("nodes").join(name).join("agent.toml"))?;
            disks_per_node = agent.disks.len() as u32;
            racks.insert(agent.rack);
        }
        let (nodes, racks, insecure) = (self.nodes.len() as u32, racks.len() as u32, self.file()?.insecure);
        Ok(Size { nodes, racks, disks_per_node, insecure })
    }

    /// Sees to it that the coordinator's port is free. If somebody else took it while the cluster was down, another is chosen and
    /// told to everybody: agents that still run are stopped, because they look for the coordinator where it was.
    pub(crate) fn settle_port(&self, seed: u64) -> Result<()> {
        let path = self.dir.join(COORDINATOR).join("coordinator.toml");
        let mut config: CoordinatorConfig = read_toml(&path)?;
        let is_free = || TcpListener::bind(&config.listen).is_ok();
        // A coordinator that was killed a moment ago may hold its port for another one.
        for _ in 0..PORT_WAITS_MAX {
            if is_free() {
                return Ok(());
            }
            std::thread::sleep(PORT_WAIT);
        }
        self.stop()?;
        let listen = format!("{}:{}", Ipv4Addr::LOCALHOST, free_port(&mut StdRng::seed_from_u64(seed))?);
        for name in &self.nodes {
            let path = self.dir.join("nodes").join(name).join("agent.toml");
            let mut agent: AgentConfig = read_toml(&path)?;
            agent.coordinators = vec![listen.clone()];
            write_toml(&path, &agent)?;
        }
        let file_path = self.dir.join(FILE_NAME);
        let mut file: ClusterFile = read_toml(&file_path)?;
        file.coordinator.clone_from(&listen);
        write_toml(&file_path, &file)?;
        // Last: while it names the port that is taken, the next start comes here again.
        config.listen = listen;
        write_toml(&path, &config)
    }
}

impl Size {
    fn check(self) -> Result<()> {
        let between = |what: &str, count: u32, max: u32| {
            let fits = (1..=max).contains(&count);
            fits.then_some(()).ok_or_else(|| Error::invalid(format!("{count} {what} make no cluster: 1 to {max} do")))
        };
        between("nodes", self.nodes, NODES_MAX)?;
        between("racks", self.racks, self.nodes)?;
        between("disks a node", self.disks_per_node, DISKS_MAX)
    }
}

fn make_node(
    dir: &Path,
    name: String,
    number: u32,
    size: Size,
    coordinator: &str,
    cluster: ClusterId,
    certificates: Option<PathBuf>,
) -> Result<()> {
    let home = dir.join("nodes").join(&name);
    let disks: Vec<PathBuf> = (0..size.disks_per_node).map(|disk| home.join(format!("disk-{disk}"))).collect();
    disks.iter().chain([&home.join("state")]).try_for_each(|dir| make_dir(dir))?;
    let config = AgentConfig {
        name,
        rack: format!("rack-{}", number % size.racks + 1),
        zone: "default".to_owned(),
        cluster: Some(cluster),
        coordinators: vec![coordinator.to_owned()],
        // Any free port: the coordinator learns which when the agent registers.
        data_listen: format!("{}:0", Ipv4Addr::LOCALHOST),
        control_listen: format!("{}:0", Ipv4Addr::LOCALHOST),
        data_advertise: None,
        control_advertise: None,
        state_dir: home.join("state"),
        disks,
        certificates,
        insecure: size.insecure,
        limits: weft_agent::Limits::default(),
    };
    write_toml(&home.join("agent.toml"), &config)
}

fn free_port(random: &mut StdRng) -> Result<u16> {
    let mut tries = (0..PORT_TRIES_MAX).map(|_| random.random_range(PORTS));
    let free = tries.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.ok_or_else(|| Error::unavailable("no free port was found on 127.0.0.1"))
}

fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| io_error(dir, "create", &error))
}

fn write_toml(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = toml::to_string_pretty(value).map_err(Error::fatal)?;
    std::fs::write(path, text).map_err(|error| io_error(path, "write", &error))
}

fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).map_err(|error| io_error(path, "read", &error))?;
    toml::from_str(&text).map_err(|error| Error::invalid(format!("{}: {}", path.display(), error.message())))
}
