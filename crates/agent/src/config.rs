//! An agent's settings. In TOML:
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
use weft_proto::{Peer, Security, certs, metrics};
use weft_store::{RING_BYTES, RING_BYTES_MAX, RING_BYTES_MIN};
use weft_types::{ByteSize, ClusterId, Error, PAGE_LEN, RATE_MIN, Result};

/// An agent's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// Name of the node: unique in the cluster, and the name in its certificate. 1 to 63 of `a-z`, `0-9` and inner `-`, not ending in `-key`.
    pub name: String,
    /// Rack of the node.
    #[serde(default = "default_place")]
    pub rack: String,
    /// Zone of the rack. Shown, but placement does not use it.
    #[serde(default = "default_place")]
    pub zone: String,
    /// Id of the cluster. An agent without it joins the cluster of the first coordinator that it reaches, and stays in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Addresses of coordinators, `host:port`; they are tried in turn.
    pub coordinators: Vec<String>,
    /// Address for data, `host:port`.
    pub data_listen: String,
    /// Address for the coordinator's calls, `host:port`.
    pub control_listen: String,
    /// Address at which others reach `data_listen`, if it differs. Required if `data_listen` is a wildcard (`0.0.0.0`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_advertise: Option<String>,
    /// Address at which the coordinator reaches `control_listen`, if it differs. Required if `control_listen` is a wildcard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_advertise: Option<String>,
    /// Address for Prometheus, `host:port`: `GET /metrics` over plain HTTP, without authentication. Port 0 takes a free port; `weft node ls
    /// --json` and the log tell it. `off`: no metrics.
    #[serde(default = "default_metrics")]
    pub metrics: String,
    /// Directory of the file `agent`: the node's number, its cluster, the highest epoch, its disks.
    pub state_dir: PathBuf,
    /// Directories, one for each disk. In production, each should be a separate file system.
    pub disks: Vec<PathBuf>,
    /// Directory with `ca.pem`, `agent-NAME.pem` and `agent-NAME-key.pem`. Required unless `insecure` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<PathBuf>,
    /// No TLS: any process that reaches the ports is trusted.
    #[serde(default)]
    pub insecure: bool,
    /// Limits on the agent's concurrent work.
    #[serde(default)]
    pub limits: Limits,
    /// Limits on the speed of its tasks.
    #[serde(default, skip_serializing_if = "Throttle::is_nothing")]
    pub throttle: Throttle,
}

/// The most that all tasks of a node together may do per second. An absent rate is unlimited. Use it for disks that are shared with other
/// programs, and to test the effect of a slow node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Throttle {
    /// Bytes read from and written to its disks, together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes_per_s: Option<ByteSize>,
    /// Bytes that enter the arithmetic. Bytes that are only forwarded do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coding_bytes_per_s: Option<ByteSize>,
    /// Bytes sent to agents and clients. As many are received for repairs and scrubs; the data of puts does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_bytes_per_s: Option<ByteSize>,
    /// Microseconds that are added to each sync of its disks, also of journals; at most 1000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_us: Option<u32>,
}

/// With a longer delay, disks would count as failed.
const SYNC_US_MAX: u32 = 1_000_000;

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
        if let Some(us) = self.sync_us.filter(|us| *us > SYNC_US_MAX) {
            return Err(Error::invalid(format!("throttle.sync_us is {us}: use at most {SYNC_US_MAX}")));
        }
        match said.into_iter().find_map(|(name, rate)| rate.filter(|rate| rate.0 < RATE_MIN.0).map(|rate| (name, rate))) {
            Some((name, rate)) => Err(Error::invalid(format!(
                "throttle.{name} is {rate}: below {RATE_MIN} a second, peers would treat the node as dead"
            ))),
            None => Ok(()),
        }
    }
}

/// A disk that is only busy answers sooner.
const DISK_TIMEOUT_MIN_MS: u64 = 2_000;

/// The most that repairs and scrubs may use together, percent.
const LOWER_PERCENT_MAX: u32 = 95;

/// Limits on an agent's concurrent work. A task that does not fit is refused as busy, and the coordinator tries again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory of all tasks together.
    pub memory_budget: ByteSize,
    /// Connections of all tasks together. As many again may be idle between two links.
    pub connections_max: u32,
    /// Blocks of one disk that are read or written at the same time.
    pub blocks_per_disk_max: u32,
    /// Share of the memory, the connections and each disk's blocks that repairs, moves and conversions together may use. With
    /// `scrub_percent` at most 95.
    pub repair_percent: u32,
    /// The same share for scrubs. 5 percent (or their limit, if lower) is reserved for repairs and for scrubs each; foreground tasks may
    /// use all the rest.
    pub scrub_percent: u32,
    /// Connections that arrived before their task and are waiting for it.
    pub parked_connections_max: u32,
    /// How long such a connection waits.
    pub parked_ms: u64,
    /// A task that is opened and not started within this time is dropped.
    pub unstarted_ms: u64,
    /// Partly received blocks that are kept for a plan that resumes.
    pub partial_blocks_max: u32,
    /// How long such a block is kept.
    pub partial_block_ms: u64,
    /// Percentage of a disk's bytes that may be freed within an hour, by expected removals (of removed, replaced and repaired blocks). 100:
    /// all of them. The rest follows in the next hours.
    pub freed_percent_per_hour: u32,
    /// Bytes of a disk that may be freed within an hour regardless of that percentage.
    pub freed_bytes_per_hour: ByteSize,
    /// Unexpected removals of blocks from one disk within a day (moves to quarantine, and deletions from it by age) that are allowed
    /// regardless of the percentage.
    pub removed_blocks_per_day: u32,
    /// Beyond these, the percentage of a disk's blocks that may be removed unexpectedly within a day. 100: all of them.
    pub removed_percent_per_day: u32,
    /// Time that an unexpected block stays in quarantine before it is deleted, milliseconds.
    pub quarantine_ms: u64,
    /// If less than this percentage of a disk is free, its oldest unexpected blocks are deleted early, within the hourly limit.
    pub quarantine_free_percent: u32,
    /// Size of the journal of updates in place on each disk; the file is written at the first update on the disk, and keeps its size. 1 MiB to 64 GiB. Below
    /// 86 MiB, updates of 1 MiB do not fit, and writes that need them fail. Updates of 16 MiB need 1366 MiB.
    pub update_journal: ByteSize,
    /// A disk that does not answer for this long counts as failed, until it answers again: its blocks are rebuilt elsewhere. 2000
    /// or more.
    pub disk_timeout_ms: u64,
}

fn default_metrics() -> String {
    metrics::ANY_PORT.into()
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
            update_journal: ByteSize(RING_BYTES),
            disk_timeout_ms: 60_000,
        }
    }
}

impl AgentConfig {
    /// Refuses invalid settings, and names valid ones.
    pub fn validate(&self) -> Result<()> {
        certs::check_agent_name(&self.name)?;
        for (what, text) in [("rack", &self.rack), ("zone", &self.zone)] {
            if text.is_empty() || text.len() > 255 || text.chars().any(char::is_control) {
                return Err(Error::invalid(format!("the {what}'s name is invalid: use 1 to 255 printable characters")));
            }
        }
        metrics::check_address(&self.metrics)?;
        if self.coordinators.is_empty() {
            return Err(Error::invalid("no coordinator is set: add coordinators = [\"host:port\"]"));
        }
        if self.disks.is_empty() {
            return Err(Error::invalid("no disk is set: add disks = [\"/srv/weft/a\"]"));
        }
        for (at, disk) in self.disks.iter().enumerate() {
            if self.disks[..at].contains(disk) {
                return Err(Error::invalid(format!("the disk {} is listed twice", disk.display())));
            }
        }
        if self.certificates.is_some() == self.insecure {
            return Err(Error::invalid("set either certificates = \"DIR\", or insecure = true for a cluster without TLS"));
        }
        let Limits { memory_budget, connections_max, blocks_per_disk_max, .. } = self.limits;
        if memory_budget.0 == 0 || connections_max == 0 || blocks_per_disk_max == 0 {
            return Err(Error::invalid(
                "limits.memory_budget, limits.connections_max and limits.blocks_per_disk_max must be at least 1: with 0 no task can run",
            ));
        }
        let Limits { repair_percent, scrub_percent, .. } = self.limits;
        if repair_percent == 0 || scrub_percent == 0 || repair_percent.saturating_add(scrub_percent) > LOWER_PERCENT_MAX {
            return Err(Error::invalid(format!(
                "limits.repair_percent is {repair_percent} and limits.scrub_percent {scrub_percent}: each must be at least 1, and together \
                 they must leave at least 5 to foreground tasks, for example 70 and 20"
            )));
        }
        if self.limits.disk_timeout_ms < DISK_TIMEOUT_MIN_MS {
            let asked = self.limits.disk_timeout_ms;
            return Err(Error::invalid(format!(
                "limits.disk_timeout_ms is {asked}: below {DISK_TIMEOUT_MIN_MS}, a busy disk would count as failed"
            )));
        }
        let ring = self.limits.update_journal;
        if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring.0) || !ring.0.is_multiple_of(PAGE_LEN) {
            return Err(Error::invalid(format!(
                "limits.update_journal is {ring}: use {} to {}, in whole pages of {PAGE_LEN} bytes",
                ByteSize(RING_BYTES_MIN),
                ByteSize(RING_BYTES_MAX)
            )));
        }
        self.throttle.validate()
    }

    /// How the agent secures its connections.
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
    fn a_file_is_read_and_missing_settings_get_defaults() {
        let config: AgentConfig = toml::from_str(TEXT).unwrap();
        config.validate().unwrap();
        assert_eq!((config.rack.as_str(), config.limits.memory_budget), ("default", ByteSize(64 << 20)));
        let throttle = Throttle { disk_bytes_per_s: Some(ByteSize(50 << 20)), ..Throttle::default() };
        assert_eq!(config.throttle, throttle);
        assert_eq!(config.limits.connections_max, Limits::default().connections_max);
        assert_eq!(toml::from_str::<AgentConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn invalid_settings_are_refused_and_valid_ones_named() {
        type Spoil = fn(&mut AgentConfig);
        let spoils: [(Spoil, &str); 13] = [
            (|c| c.name = "Node 7".into(), "node-07"),
            (|c| c.metrics = "on".into(), "or off"),
            (|c| c.disks.clear(), "disks = "),
            (|c| c.disks.push("/srv/weft/a".into()), "twice"),
            (|c| c.insecure = false, "certificates = "),
            (|c| c.certificates = Some("/etc/weft".into()), "insecure = true"),
            (|c| c.limits.connections_max = 0, "connections_max"),
            (|c| c.limits.scrub_percent = 0, "for example 70 and 20"),
            (|c| c.limits.repair_percent = 80, "for example 70 and 20"),
            (|c| c.limits.update_journal = ByteSize(1 << 19), "limits.update_journal"),
            (|c| c.limits.update_journal = ByteSize((1 << 20) + 1), "whole pages"),
            (|c| c.throttle.coding_bytes_per_s = Some(ByteSize(1000)), "throttle.coding_bytes_per_s"),
            (|c| c.throttle.sync_us = Some(1_000_001), "throttle.sync_us"),
        ];
        for (spoil, hint) in spoils {
            let mut config: AgentConfig = toml::from_str(TEXT).unwrap();
            spoil(&mut config);
            let error = config.validate().unwrap_err();
            assert!(error.message.contains(hint), "{error}");
        }
        assert!(toml::from_str::<AgentConfig>(&format!("{TEXT}\nstate_dri = \"x\"")).is_err(), "a misspelt field was accepted");
    }
}
