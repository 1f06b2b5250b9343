//! The network of a testbed: a namespace for every agent, one for the coordinator and whoever commands the experiment, and one
//! that is the switch. Nothing of it is in the machine's own namespace.
//!
//! ```text
//!   weft-ID-01  eth0 ══ p1 ┐
//!   weft-ID-02  eth0 ══ p2 ┤ rack1 ── up1 ══ down1 ┐
//!   weft-ID-03  eth0 ══ p3 ┐                       ├ core     (all bridges in weft-ID-hub)
//!   weft-ID-04  eth0 ══ p4 ┤ rack2 ── up2 ══ down2 ┤
//!   weft-ID-out eth0 ══════════════════════════ p0 ┘
//! ```
//!
//! `══` is a veth pair. What a node sends is shaped at its own end, what it receives at the switch's; the uplink of a rack
//! likewise. A rate between two nodes is a class of the sender's. Without racks all ports are at `core`.

use super::rate::LinkRate;
use std::{
    io::Write as _,
    net::Ipv4Addr,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
};
use weft_cli::{
    interrupt,
    local::{Namespaces, Process},
};
use weft_types::{Error, Result};

/// With these settings shaped links hold what they say, and a chain of ten over them too: what comes at once must be more than
/// the largest packet that the kernel hands over as one (64 KiB).
const BURST: &str = "128kb";
const QUEUE: &str = "200ms";
const QUEUE_S: f64 = 0.2;
/// What a class of a sender has for itself: as good as nothing.
const OWN: &str = "8kbit";
/// The same in bytes: so much an idle shaper lets pass at once.
pub(crate) const BURST_BYTES: f64 = 131_072.0;
/// More agents do not fit into the testbed's addresses, nor onto a machine.
pub(crate) const NODES_MAX: u32 = 250;

/// A network that exists, or can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Network {
    namespaces: Namespaces,
    nodes: u32,
    racks: u32,
}

/// What the links carry; `None`: as much as the machine does.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shaping {
    /// Of each node, what it sends.
    pub(crate) up: Vec<Option<LinkRate>>,
    /// Of each node, what it receives.
    pub(crate) down: Vec<Option<LinkRate>>,
    /// From a node to another, by their numbers from 0, where that is less; sorted.
    pub(crate) pairs: Vec<(u32, u32, LinkRate)>,
    /// Of each rack, up and down.
    pub(crate) rack: Option<LinkRate>,
    /// Of whoever stands outside, up and down.
    pub(crate) outside: Option<LinkRate>,
}

impl Network {
    /// In these namespaces, with so many nodes in so many racks.
    pub(crate) fn new(namespaces: Namespaces, nodes: u32, racks: u32) -> Self {
        Self { namespaces, nodes, racks }
    }

    /// What tells it from others.
    pub(crate) fn id(&self) -> &str {
        self.namespaces.id()
    }

    /// Says plainly what the machine lacks.
    pub(crate) fn check_machine() -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::unavailable("a testbed needs root: it makes network namespaces and shapes links (try sudo)"));
        }
        for (tool, args) in [("ip", ["-V"]), ("tc", ["-V"])] {
            let found = Command::new(tool).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
            if found.is_err() {
                return Err(Error::unavailable(format!(
                    "a testbed needs `{tool}`, and there is none: the package iproute2 has it"
                )));
            }
        }
        Ok(())
    }

    /// The namespace in which an agent runs (number from 0).
    pub(crate) fn of_node(&self, number: u32) -> String {
        self.namespaces.node(number)
    }

    /// The namespace in which the coordinator runs, and whoever commands.
    pub(crate) fn outside(&self) -> String {
        self.namespaces.outside()
    }

    /// The address of the coordinator.
    pub(crate) fn address_outside() -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 1)
    }

    /// The address of an agent (number from 0).
    pub(crate) fn address(number: u32) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 1, (number + 1) as u8)
    }

    /// Makes it, unless that is broken off; nothing of it is there before.
    pub(crate) fn make(&self) -> Result<()> {
        let hub = self.namespaces.hub();
        ip(&["netns", "add", &hub])?;
        let mut lines = vec!["link add core type bridge".to_owned(), "link set core up".to_owned()];
        for rack in 1..=self.racks {
            if self.racks > 1 {
                lines.push(format!("link add rack{rack} type bridge"));
                lines.push(format!("link add up{rack} type veth peer name down{rack}"));
                lines.push(format!("link set up{rack} master rack{rack} up"));
                lines.push(format!("link set down{rack} master core up"));
                lines.push(format!("link set rack{rack} up"));
            }
        }
        batch("ip", &hub, &lines)?;
        let ends = std::iter::once((self.outside(), Self::address_outside(), 0, "core".to_owned()));
        let nodes = (0..self.nodes).map(|number| {
            let bridge = if self.racks > 1 { format!("rack{}", number % self.racks + 1) } else { "core".to_owned() };
            (self.of_node(number), Self::address(number), number + 1, bridge)
        });
        for (namespace, address, port, bridge) in ends.chain(nodes) {
            interrupt::check()?;
            ip(&["netns", "add", &namespace])?;
            let port = format!("p{port}");
            ip(&["link", "add", "eth0", "netns", &namespace, "type", "veth", "peer", "name", &port, "netns", &hub])?;
            batch("ip", &hub, &[format!("link set {port} master {bridge} up")])?;
            let lines = ["link set lo up".to_owned(), format!("addr add {address}/16 dev eth0"), "link set eth0 up".to_owned()];
            batch("ip", &namespace, &lines)?;
            // The usual congestion controls pace and probe: they take twice the processor, and shaped runs become unsteady. What
            // was learned of a path in one run must not matter in the next.
            let settings = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control; \
                            echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save; \
                            echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null || true";
            run("ip", &["netns", "exec", &namespace, "sh", "-c", settings], "")?;
        }
        Ok(())
    }

    /// Shapes all links anew.
    pub(crate) fn shape(&self, shaping: &Shaping) -> Result<()> {
        let hub = self.namespaces.hub();
        let mut lines = Vec::new();
        // There may be nothing to take away.
        let unshape = |namespace: &str, device| drop(run("tc", &["-n", namespace, "qdisc", "del", "dev", device, "root"], ""));
        unshape(&self.outside(), "eth0");
        unshape(&hub, "p0");
        if let Some(rate) = shaping.outside {
            batch("tc", &self.outside(), &[limit("eth0", rate)])?;
            lines.push(limit("p0", rate));
        }
        for number in 0..self.nodes {
            let namespace = self.of_node(number);
            let at = |rates: &[Option<LinkRate>]| rates.get(number as usize).copied().flatten();
            unshape(&namespace, "eth0");
            let pairs: Vec<(u32, LinkRate)> =
                shaping.pairs.iter().filter(|(from, ..)| *from == number).map(|(_, to, rate)| (*to, *rate)).collect();
            batch("tc", &namespace, &sending(at(&shaping.up), &pairs))?;
            lines.extend(limited(&format!("p{}", number + 1), at(&shaping.down)));
        }
        for rack in 1..=self.racks {
            if self.racks > 1 {
                lines.extend(limited(&format!("up{rack}"), shaping.rack));
                lines.extend(limited(&format!("down{rack}"), shaping.rack));
            }
        }
        batch("tc", &hub, &lines)
    }

    /// Whether any of it is there.
    pub(crate) fn exists(&self) -> Result<bool> {
        Ok(!self.namespaces()?.is_empty())
    }

    /// Takes away whatever of it is there. Its processes must have ended.
    pub(crate) fn remove(&self) -> Result<()> {
        // One that cannot be removed keeps no other.
        let removed: Vec<Result<()>> = self.namespaces()?.iter().map(|namespace| ip(&["netns", "del", namespace])).collect();
        removed.into_iter().collect()
    }

    /// The daemons in it whose directory is `dir`, whoever remembers them. A person's shell in it, or another cluster, is that person's.
    pub(crate) fn daemons(&self, dir: &Path) -> Result<Vec<Process>> {
        let mut daemons = Vec::new();
        for namespace in self.namespaces()? {
            let pids = run("ip", &["netns", "pids", &namespace], "")?;
            let pids = pids.split_whitespace().filter_map(|pid| pid.parse().ok());
            daemons.extend(pids.filter_map(Process::of).filter(|process| process.is_daemon_of(dir)));
        }
        Ok(daemons)
    }

    fn namespaces(&self) -> Result<Vec<String>> {
        let prefix = self.namespaces.prefix();
        let listed = run("ip", &["netns", "list"], "")?;
        let names = listed.lines().filter_map(|line| line.split_whitespace().next());
        Ok(names.filter(|name| name.starts_with(&prefix)).map(ToOwned::to_owned).collect())
    }
}

/// Moves this thread, and whatever it starts from now on, into a namespace.
pub(crate) fn enter(namespace: &str) -> Result<()> {
    let path = format!("/run/netns/{namespace}");
    let failed = |error: String| Error::fatal(format!("cannot enter {path}: {error}"));
    let namespace = std::fs::File::open(&path).map_err(|error| failed(error.to_string()))?;
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind)
        .map_err(|error| failed(error.to_string()))
}

/// What shapes a node's sending: a plain limit, or a class for each peer to whom it has a rate of its own.
fn sending(up: Option<LinkRate>, pairs: &[(u32, LinkRate)]) -> Vec<String> {
    if pairs.is_empty() {
        return up.map(|rate| limit("eth0", rate)).into_iter().collect();
    }
    let whole = up.map_or_else(|| "100gbit".to_owned(), LinkRate::tc);
    // A class may always send at its own rate, whatever its parent has left: so all that they send is borrowed.
    let shape = |rate: &str, ceil: &str| format!("htb rate {rate} ceil {ceil} burst {BURST} cburst {BURST} quantum 60000");
    let mut lines = vec![
        "qdisc add dev eth0 root handle 1: htb default ffff".to_owned(),
        format!("class add dev eth0 parent 1: classid 1:1 {}", shape(&whole, &whole)),
        format!("class add dev eth0 parent 1:1 classid 1:ffff {}", shape(OWN, &whole)),
    ];
    for (to, rate) in pairs {
        let (class, address) = (format!("{:x}", to + 16), Network::address(*to));
        let queue = (rate.bits_per_s() / 8.0 * QUEUE_S + BURST_BYTES) as u64;
        lines.push(format!("class add dev eth0 parent 1:1 classid 1:{class} {}", shape(OWN, &rate.tc())));
        lines.push(format!("qdisc add dev eth0 parent 1:{class} bfifo limit {queue}"));
        lines.push(format!("filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {address}/32 flowid 1:{class}"));
    }
    lines
}

fn limit(device: &str, rate: LinkRate) -> String {
    format!("qdisc replace dev {device} root handle 1: tbf rate {} burst {BURST} latency {QUEUE}", rate.tc())
}

/// A port of the switch; without a rate, as fast as it can be.
fn limited(device: &str, rate: Option<LinkRate>) -> Vec<String> {
    match rate {
        Some(rate) => vec![limit(device, rate)],
        // A handle of its own: one that is taken cannot be made another kind.
        None => vec![format!("qdisc replace dev {device} root handle 2: pfifo limit 1000")],
    }
}

fn ip(args: &[&str]) -> Result<()> {
    run("ip", args, "").map(drop)
}

/// Runs the commands of `lines` in a namespace, all of them by one process.
fn batch(tool: &str, namespace: &str, lines: &[String]) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    run(tool, &["-n", namespace, "-batch", "-"], &(lines.join("\n") + "\n")).map(drop)
}

/// Runs a tool with `input`; what it prints, or what it complained of.
fn run(tool: &str, args: &[&str], input: &str) -> Result<String> {
    let failed = |why: &str| {
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        Error::unavailable(format!("`{tool} {}` failed: {why}", args.join(" ")))
    };
    let mut command = Command::new(tool);
    // A ctrl-C is not for it: what is half made could not be taken down either.
    command.args(args).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may have ended over the first line already: then it says why.
        let _broken = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(&error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(&String::from_utf8_lossy(&output.stderr))),
    }
}
