//! What an operator says about a node. In TOML:
//!
//! ```toml
//! name = "node-07"
//! rack = "r2"
//! coordinators = ["10.0.0.1:7400"]
//! data_listen = "10.0.0.17:7411"
//! control_listen = "10.0.0.17:7412"
//! state_dir = "/var/lib/weft"
//! disks = ["/srv/weft/a", "/srv/weft/b"]
//! certificates = "/etc/weft/tls"
//!
//! [throttle]
//! disk_bytes_per_s = "50MiB"
//! coding_bytes_per_s = "100MiB"
//! ```

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weft_proto::{Peer, Security, certs};
use weft_types::{ByteSize, ClusterId, Error, RATE_MIN, Result};

/// What an operator says about a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// What the node is called: unique in the cluster, and the name in its certificate. Letters, digits and dashes.
    pub name: String,
    /// The rack that it stands in.
    #[serde(default = "default_place")]
    pub rack: String,
    /// The zone that the rack stands in.
    #[serde(default = "default_place")]
    pub zone: String,
    /// The cluster that it belongs to. Without it, the agent joins the cluster of the coordinator that it first reaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Where coordinators listen for agents, as `host:port`; they are tried in turn.
    pub coordinators: Vec<String>,
    /// Where it listens for data, as `host:port`.
    pub data_listen: String,
    /// Where it listens for the coordinator, as `host:port`.
    pub control_listen: String,
    /// Where others reach `data_listen`, if that is another address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_advertise: Option<String>,
    /// Where the coordinator reaches `control_listen`, if that is another address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_advertise: Option<String>,
    /// Where it keeps what it must remember: its number, its cluster, the highest epoch.
    pub state_dir: PathBuf,
    /// One directory for each disk.
    pub disks: Vec<PathBuf>,
    /// The directory with `ca.pem`, `agent-NAME.pem` and `agent-NAME-key.pem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<PathBuf>,
    /// No TLS: everybody who reaches the ports is believed. Must be said by name, instead of `certificates`.
    #[serde(default)]
    pub insecure: bool,
    /// What it takes on.
    #[serde(default)]
    pub limits: Limits,
    /// How fast it may do it.
    #[serde(default, skip_serializing_if = "Throttle::is_nothing")]
    pub throttle: Throttle,
}

/// How much all tasks of a node together do a second, at most; what is not said is not bounded. For a disk that others need, and to
/// see what one slow node costs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Throttle {
    /// Read from and written to its disks, together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes_per_s: Option<ByteSize>,
    /// Combined with others: counted where it goes in. What is only passed on does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coding_bytes_per_s: Option<ByteSize>,
    /// Sent to agents and clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_bytes_per_s: Option<ByteSize>,
}

impl Throttle {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    fn validate(&self) -> Result<()> {
        let said = [
            ("disk_bytes_per_s", self.disk_bytes_per_s),
            ("coding_bytes_per_s", self.coding_bytes_per_s),
            ("network_bytes_per_s", self.network_bytes_per_s),
        ];
        match said.into_iter().find_map(|(name, rate)| rate.filter(|rate| rate.0 < RATE_MIN.0).map(|rate| (name, rate))) {
            Some((name, rate)) => Err(Error::invalid(format!(
                "throttle.{name} is {rate}: with less than {RATE_MIN} a second peers would take the node for dead"
            ))),
            None => Ok(()),
        }
    }
}

/// What repairs and scrubs may use together at most, percent.
const LOWER_PERCENT_MAX: u32 = 95;

/// What an agent takes on at once. What does not fit is answered with "busy", and the coordinator tries again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory of all tasks together.
    pub memory_budget: ByteSize,
    /// Connections of all tasks together; as many again may be idle between two links.
    pub connections_max: u32,
    /// Blocks of one disk that are read or written at once.
    pub blocks_per_disk_max: u32,
    /// What repairs, moves and conversions may use together of the memory, the connections and a disk's blocks, percent. Where the
    /// coordinator's settings say less for all of the cluster, that holds.
    pub repair_percent: u32,
    /// The same for scrubs. Five percent of each are kept for repairs, and for scrubs, or this if it is less; foreground tasks may use
    /// all that is free besides.
    pub scrub_percent: u32,
    /// Connections that came before the task that they are for, and wait for it.
    pub parked_connections_max: u32,
    /// How long they wait, milliseconds.
    pub parked_ms: u64,
    /// A task that was opened and is not started within this time is dropped, milliseconds.
    pub unstarted_ms: u64,
    /// Blocks that have not wholly arrived and are kept for a plan that goes on with them.
    pub partial_blocks_max: u32,
    /// How long each of them is kept, milliseconds.
    pub partial_block_ms: u64,
    /// Of what a person or a committed transaction gave up, the part of a disk's bytes that may be freed within an hour, percent. 100:
    /// all of them. The rest follows in the next hours.
    pub freed_percent_per_hour: u32,
    /// Bytes of a disk that may be freed within an hour whatever their part of it is.
    pub freed_bytes_per_hour: ByteSize,
    /// Blocks of one disk that may be taken away within a day although nobody expects it (moved to the quarantine, or deleted there by
    /// their age), whatever their part of it is.
    pub removed_blocks_per_day: u32,
    /// Beyond these, the part of a disk's blocks that may be taken away so within a day, percent. 100: all of them.
    pub removed_percent_per_day: u32,
    /// A block that nobody expects is kept in quarantine for this long, and deleted then, milliseconds.
    pub quarantine_ms: u64,
    /// Where less of a disk is free, percent, the oldest such blocks go before their time, as fast as other blocks are freed.
    pub quarantine_free_percent: u32,
}

fn default_place() -> String {
    "default".into()
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_budget: ByteSize(256 << 20),
            connections_max: 1024,
            blocks_per_disk_max: 256,
            repair_percent: 70,
            scrub_percent: 20,
            parked_connections_max: 64,
            parked_ms: 5_000,
            unstarted_ms: 30_000,
            partial_blocks_max: 256,
            partial_block_ms: 600_000,
            freed_percent_per_hour: 25,
            freed_bytes_per_hour: ByteSize(1 << 30),
            removed_blocks_per_day: 1024,
            removed_percent_per_day: 25,
            quarantine_ms: 7 * 24 * 60 * 60 * 1000,
            quarantine_free_percent: 5,
        }
    }
}

impl AgentConfig {
    /// Says what is wrong, and what would be right.
    pub fn validate(&self) -> Result<()> {
        certs::check_agent_name(&self.name)?;
        for (what, text) in [("rack", &self.rack), ("zone", &self.zone)] {
            if text.is_empty() || text.len() > 255 || text.chars().any(char::is_control) {
                return Err(Error::invalid(format!("a {what}'s name has 1 to 255 printable characters")));
            }
        }
        if self.coordinators.is_empty() {
            return Err(Error::invalid("no coordinator is named: coordinators = [\"host:port\"] names one"));
        }
        if self.disks.is_empty() {
            return Err(Error::invalid("no disk is named: disks = [\"/srv/weft/a\"] names one"));
        }
        for (at, disk) in self.disks.iter().enumerate() {
            if self.disks[..at].contains(disk) {
                return Err(Error::invalid(format!("the disk {} is named twice", disk.display())));
            }
        }
        if self.certificates.is_some() == self.insecure {
            return Err(Error::invalid(
                "either certificates = \"DIR\" says where the certificates are, or insecure = true that there shall be none",
            ));
        }
        let Limits { memory_budget, connections_max, blocks_per_disk_max, .. } = self.limits;
        if memory_budget.0 == 0 || connections_max == 0 || blocks_per_disk_max == 0 {
            return Err(Error::invalid("limits of 0 would let no task run: memory_budget, connections_max, blocks_per_disk_max"));
        }
        let Limits { repair_percent, scrub_percent, .. } = self.limits;
        if repair_percent == 0 || scrub_percent == 0 || repair_percent.saturating_add(scrub_percent) > LOWER_PERCENT_MAX {
            return Err(Error::invalid(format!(
                "limits.repair_percent is {repair_percent} and limits.scrub_percent {scrub_percent}: each is at least 1, and together they \
                 leave foreground tasks 5 or more, as 70 and 20 do"
            )));
        }
        self.throttle.validate()
    }

    /// How its connections are secured.
    pub fn security(&self) -> Result<Security> {
        match &self.certificates {
            Some(dir) if !self.insecure => Security::load(&certs::CertificateFiles::in_dir(dir, &Peer::Agent(self.name.clone()))),
            _ => Ok(Security::Insecure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        name = "node-07"
        coordinators = ["127.0.0.1:7400"]
        data_listen = "127.0.0.1:0"
        control_listen = "127.0.0.1:0"
        state_dir = "/var/lib/weft"
        disks = ["/srv/weft/a"]
        insecure = true
        limits.memory_budget = "64MiB"
        throttle.disk_bytes_per_s = "50MiB"
    "#;

    #[test]
    fn a_file_reads_and_what_is_left_out_has_defaults() {
        let config: AgentConfig = toml::from_str(TEXT).unwrap();
        config.validate().unwrap();
        assert_eq!((config.rack.as_str(), config.limits.memory_budget), ("default", ByteSize(64 << 20)));
        let throttle = Throttle { disk_bytes_per_s: Some(ByteSize(50 << 20)), ..Throttle::default() };
        assert_eq!(config.throttle, throttle);
        assert_eq!(config.limits.connections_max, Limits::default().connections_max);
        assert_eq!(toml::from_str::<AgentConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        type Spoil = fn(&mut AgentConfig);
        let spoils: [(Spoil, &str); 9] = [
            (|c| c.name = "Node 7".into(), "node-07"),
            (|c| c.disks.clear(), "disks = "),
            (|c| c.disks.push("/srv/weft/a".into()), "twice"),
            (|c| c.insecure = false, "certificates = "),
            (|c| c.certificates = Some("/etc/weft".into()), "insecure = true"),
            (|c| c.limits.connections_max = 0, "connections_max"),
            (|c| c.limits.scrub_percent = 0, "as 70 and 20 do"),
            (|c| c.limits.repair_percent = 80, "as 70 and 20 do"),
            (|c| c.throttle.coding_bytes_per_s = Some(ByteSize(1000)), "throttle.coding_bytes_per_s"),
        ];
        for (spoil, hint) in spoils {
            let mut config: AgentConfig = toml::from_str(TEXT).unwrap();
            spoil(&mut config);
            let error = config.validate().unwrap_err();
            assert!(error.message.contains(hint), "{error}");
        }
        assert!(toml::from_str::<AgentConfig>(&format!("{TEXT}\nstate_dri = \"x\"")).is_err(), "a misspelt field was taken");
    }
}
