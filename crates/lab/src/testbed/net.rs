//! The network of a testbed: a namespace for every agent, one for the coordinator and the commands, and one for the switch. Nothing of
//! it is in the machine's own namespace.
//!
//! ```text
//!   weft-ID-01  eth0 ══ p1 ┐
//!   weft-ID-02  eth0 ══ p2 ┤ rack1 ── up1 ══ down1 ┐
//!   weft-ID-03  eth0 ══ p3 ┐                       ├ core     (all bridges in weft-ID-hub)
//!   weft-ID-04  eth0 ══ p4 ┤ rack2 ── up2 ══ down2 ┤
//!   weft-ID-out eth0 ══════════════════════════ p0 ┘
//! ```
//!
//! `══` is a veth pair. What a node sends is shaped at its own end, what it receives at the switch's end; the uplink of a rack likewise.
//! A rate between two nodes is a class of the sender's queue. Without racks, all ports are at `core`.

use super::LinkRate;
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

/// With these settings, shaped links keep their rate, also in a chain of ten: a burst must be larger than the largest packet that the
/// kernel passes on as one (64 KiB).
const BURST: &str = "128kb";
const QUEUE: &str = "200ms";
const QUEUE_S: f64 = 0.2;
/// The guaranteed rate of a sender's class: almost nothing.
const OWN: &str = "8kbit";
/// The same in bytes: an idle shaper passes this much at once.
pub(crate) const BURST_BYTES: f64 = 131_072.0;
/// More agents fit neither into the testbed's addresses nor onto a machine.
pub(crate) const NODES_MAX: u32 = 250;

/// A network that exists or can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Network {
    namespaces: Namespaces,
    nodes: u32,
    racks: u32,
}

/// The rates of the links; `None`: as much as the machine can carry.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shaping {
    /// What each node sends.
    pub(crate) up: Vec<Option<LinkRate>>,
    /// What each node receives.
    pub(crate) down: Vec<Option<LinkRate>>,
    /// From node to node, by number from 0, where the rate is lower; sorted.
    pub(crate) pairs: Vec<(u32, u32, LinkRate)>,
    /// Of each rack, up and down.
    pub(crate) rack: Option<LinkRate>,
    /// Of the outside link, up and down.
    pub(crate) outside: Option<LinkRate>,
}

/// Bytes over a node's link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) up: u64,
    pub(crate) down: u64,
}

impl Carried {
    /// What was carried since an earlier count.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self { up: self.up.saturating_sub(earlier.up), down: self.down.saturating_sub(earlier.down) }
    }
}

impl Network {
    /// In these namespaces, with that many nodes and racks.
    pub(crate) fn new(namespaces: Namespaces, nodes: u32, racks: u32) -> Self {
        Self { namespaces, nodes, racks }
    }

    /// The id that distinguishes it from other networks.
    pub(crate) fn id(&self) -> &str {
        self.namespaces.id()
    }

    /// Fails with the reason if the machine lacks something.
    pub(crate) fn check_machine() -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::unavailable("a testbed needs root: it makes network namespaces and shapes links (try sudo)"));
        }
        for (tool, args) in [("ip", ["-V"]), ("tc", ["-V"])] {
            let found = Command::new(tool).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
            if found.is_err() {
                return Err(Error::unavailable(format!("a testbed needs `{tool}`: install the package iproute2")));
            }
        }
        Ok(())
    }

    /// The namespace of an agent (number from 0).
    pub(crate) fn of_node(&self, number: u32) -> String {
        self.namespaces.node(number)
    }

    /// The namespace of the coordinator and of commands.
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

    /// Creates it unless interrupted; nothing of it exists before.
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
            // The default congestion controls pace and probe: they need twice the CPU, and runs become unsteady. What was learned about a
            // path in one run must not affect the next.
            let settings = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control; \
                            echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save; \
                            echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null || true";
            run("ip", &["netns", "exec", &namespace, "sh", "-c", settings], "")?;
        }
        Ok(())
    }

    /// Reshapes all links.
    pub(crate) fn shape(&self, shaping: &Shaping) -> Result<()> {
        let hub = self.namespaces.hub();
        let mut lines = Vec::new();
        // There may be nothing to remove.
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

    /// What each node has sent and received since its link was made, in bytes.
    pub(crate) fn carried(&self) -> Result<Vec<Carried>> {
        let counted = run("ip", &["netns", "exec", &self.namespaces.hub(), "cat", "/proc/net/dev"], "")?;
        let of = |number: u32| {
            carried(&counted, &format!("p{}", number + 1))
                .ok_or_else(|| Error::fatal(format!("the switch of the testbed has no port p{}", number + 1)))
        };
        (0..self.nodes).map(of).collect()
    }

    /// Whether any part of it exists.
    pub(crate) fn exists(&self) -> Result<bool> {
        Ok(!self.namespaces()?.is_empty())
    }

    /// Removes all parts of it that exist. Its processes must have ended.
    pub(crate) fn remove(&self) -> Result<()> {
        // A namespace that cannot be removed must not keep the others.
        let removed: Vec<Result<()>> = self.namespaces()?.iter().map(|namespace| ip(&["netns", "del", namespace])).collect();
        removed.into_iter().collect()
    }

    /// The daemons in it whose directory is `dir`. Other processes in it, such as a shell or another cluster, are left alone.
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

/// Moves this thread, and everything that it starts later, into a namespace.
pub(crate) fn enter(namespace: &str) -> Result<()> {
    let path = format!("/run/netns/{namespace}");
    let failed = |error: String| Error::fatal(format!("cannot enter {path}: {error}"));
    let namespace = std::fs::File::open(&path).map_err(|error| failed(error.to_string()))?;
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind)
        .map_err(|error| failed(error.to_string()))
}

/// The shaping of a node's sending side: a plain limit, or a class for each peer with a rate of its own.
fn sending(up: Option<LinkRate>, pairs: &[(u32, LinkRate)]) -> Vec<String> {
    if pairs.is_empty() {
        return up.map(|rate| limit("eth0", rate)).into_iter().collect();
    }
    let whole = up.map_or_else(|| "100gbit".to_owned(), LinkRate::tc);
    // A class can always send at its guaranteed rate, whatever its parent has left, so nearly all of its rate is borrowed.
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

/// A port of the switch; without a rate, unlimited.
fn limited(device: &str, rate: Option<LinkRate>) -> Vec<String> {
    match rate {
        Some(rate) => vec![limit(device, rate)],
        // A handle of its own: the kind of an existing handle cannot change.
        None => vec![format!("qdisc replace dev {device} root handle 2: pfifo limit 1000")],
    }
}

/// What a node has carried, by the counters of the switch (`/proc/net/dev`): its port receives what the node sends.
fn carried(counters: &str, port: &str) -> Option<Carried> {
    let line = counters.lines().find_map(|line| line.trim().strip_prefix(port)?.strip_prefix(':'))?;
    let mut fields = line.split_whitespace().map(|field| field.parse().ok());
    // Eight counters of what it receives, then those of what it sends; bytes first.
    Some(Carried { up: fields.next()??, down: fields.nth(7)?? })
}

fn ip(args: &[&str]) -> Result<()> {
    run("ip", args, "").map(drop)
}

/// Runs the commands `lines` in a namespace with one process.
fn batch(tool: &str, namespace: &str, lines: &[String]) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    run(tool, &["-n", namespace, "-batch", "-"], &(lines.join("\n") + "\n")).map(drop)
}

/// Runs a tool with `input`; returns its output or its error.
fn run(tool: &str, args: &[&str], input: &str) -> Result<String> {
    let failed = |why: &str| {
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        Error::unavailable(format!("`{tool} {}` failed: {why}", args.join(" ")))
    };
    let mut command = Command::new(tool);
    // A ctrl-C must not reach the tool: an incomplete network could not be removed either.
    command.args(args).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // The tool may end at the first line: then its output tells why.
        let _broken = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(&error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(&String::from_utf8_lossy(&output.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_port_receives_is_what_its_node_sends() {
        let counters = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
   p12:     700       6    0    0    0     0          0         0      800       9    0    0    0     0       0          0
    p1:   66036      29    0    0    0     0          0         0     5230      31    0    0    0     0       0          0
";
        assert_eq!(carried(counters, "p1"), Some(Carried { up: 66036, down: 5230 }));
        assert_eq!(carried(counters, "p12").unwrap().since(Carried { up: 600, down: 900 }), Carried { up: 100, down: 0 });
        assert_eq!(carried(counters, "p2"), None);
    }
}
