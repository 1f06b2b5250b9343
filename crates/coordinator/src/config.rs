//! A coordinator's settings.

use crate::validate;
use serde::{Deserialize, Serialize};
use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
};
use weft_control::options::check_slice_len;
use weft_meta::PolicyRecord;
use weft_proto::{Peer, Security, certs::CertificateFiles, metrics, security::HANDSHAKE_TIMEOUT};
use weft_schemes::Kind;
use weft_types::{AutoSize, ByteSize, ClassLimits, ClusterId, DrainFailingDisks, Error, RebuildReserve, Result};

/// What `write_min` may be. No code has more parities.
const WRITE_MIN: std::ops::RangeInclusive<u32> = 1..=255;

/// The heartbeat intervals that agents accept.
const HEARTBEAT_INTERVALS_MS: RangeInclusive<u32> = 10..=60_000;

/// Agents report progress every 250 ms: a late report must not count as silence.
const REPAIR_STALL_MIN_MS: u64 = 500;

/// A shorter period would keep disks busy all the time, and finds nothing earlier that matters.
const SCRUB_PERIOD_MIN_MS: u64 = 10_000;

/// A coordinator's settings, as its TOML file has them. A setting that is absent has the value of [`Default`].
///
/// ```toml
/// listen = "10.0.0.1:7400"
/// dir = "/var/lib/weft/coordinator"
/// certificates = "/etc/weft/certificates"
/// down_after_ms = 5000
///
/// [limits]
/// repair_percent = 50
/// repair_bytes_per_s = "100MiB"
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorConfig {
    /// Address for agents and clients, `host:port`. Port 0 takes a free port.
    pub listen: String,
    /// Address for Prometheus, `host:port`: `GET /metrics` over plain HTTP, without authentication. Port 0 takes a free port; `weft cluster
    /// status --json` and the log tell it. `off`: no metrics.
    pub metrics: String,
    /// Directory of the metadata.
    pub dir: PathBuf,
    /// Id of the cluster. Metadata of another cluster is refused. A new cluster without this setting draws an id.
    pub cluster: Option<ClusterId>,
    /// Directory with `ca.pem`, `coordinator.pem` and `coordinator-key.pem`. Required unless `insecure` is set.
    pub certificates: Option<PathBuf>,
    /// No TLS: any process that reaches the port has all rights.
    pub insecure: bool,
    /// Time between two heartbeats of an agent; 10 to 60000.
    pub heartbeat_interval_ms: u32,
    /// A node that is silent for longer counts as down: reads avoid it, and no block is placed on it. At least twice
    /// `heartbeat_interval_ms`.
    pub down_after_ms: u64,
    /// A node that is silent for this long is lost: its blocks are rebuilt on other nodes. A restart that takes less costs nothing, except
    /// for stripes that would not survive a further loss: these are rebuilt at once. More than `down_after_ms`.
    pub lost_after_ms: u64,
    /// Whether a new cluster rebuilds lost blocks without a person; `weft repair auto` changes it later.
    pub auto_repair: bool,
    /// Plans avoid a node or block that failed in a plan for this long, if they can. More than `stall_ms`: it takes one stall to find which
    /// node failed.
    pub suspect_ms: u64,
    /// A put whose client is silent for this long is aborted, and its blocks are removed. A repair that moves no byte for this long loses
    /// its new blocks.
    pub upload_lease_ms: u64,
    /// Blocks of removed and replaced objects stay readable for this long, for reads in progress.
    pub garbage_grace_ms: u64,
    /// Time between two removals of garbage.
    pub sweep_interval_ms: u64,
    /// Time between two comparisons of a node's blocks with the metadata. They are also compared when the node registers. Blocks that the
    /// metadata does not know go to quarantine. 0 turns off both.
    pub orphan_check_interval_ms: u64,
    /// Time in which each link between idle nodes is measured once (in a large cluster, only some of the links). 0: links are measured only
    /// by `weft link probe`.
    pub link_probe_interval_ms: u64,
    /// Plans ignore link measurements that are older than this. More than `link_probe_interval_ms`.
    pub link_age_max_ms: u64,
    /// A task that moves no byte for this long has failed; time to connect counts too. More than `call_timeout_ms`, `failure_grace_ms` and
    /// the 5 s of a TLS handshake.
    pub stall_ms: u32,
    /// A repair, a degraded read or a put whose nodes forward data continues without a node that delays it for this long, if it can; 500
    /// or more. 0: it waits for `stall_ms`.
    pub repair_stall_ms: u64,
    /// Deadline of a call to an agent.
    pub call_timeout_ms: u64,
    /// When one task of a plan has failed, the others have this much time to end before they are cancelled.
    pub failure_grace_ms: u64,
    /// Attempts to open a plan at agents that are busy.
    pub open_attempts_max: u32,
    /// Failures after which one repair still continues, and attempts to place one stripe of a put on other nodes.
    pub resumes_max: u32,
    /// Slice size of plain reads and of writes; a multiple of 4 KiB.
    pub slice_len: ByteSize,
    /// Slice size of repairs and degraded reads; a multiple of 4 KiB. `auto`: the size that is predicted to be fastest.
    pub repair_slice_len: AutoSize,
    /// Default scheme of degraded reads and repairs: `conventional`, `ppr`, `pipeline`, `cyclic`, or `auto`, which chooses the one that is
    /// predicted to be fastest.
    pub scheme: String,
    /// Default scheme of puts: `direct`, `mist`, or `auto`, which chooses the one that is predicted to be faster, given the other puts in
    /// progress.
    pub write_scheme: String,
    /// Code of the policy `default` of a new cluster.
    pub default_code: String,
    /// Failure domain of the policy `default` of a new cluster: `rack` or `node`.
    pub default_failure_domain: String,
    /// A disk with less free space than this gets no new block.
    pub disk_reserve: ByteSize,
    /// Share of each disk that puts and conversions leave free, in addition to `disk_reserve`, so that the largest node can be rebuilt. Repair
    /// may use it. `auto`: the share of the largest node in all, and nothing if every stripe has a block on every node or if nodes share a file
    /// system. `off`: nothing. `15%`: this share, always.
    pub rebuild_reserve: RebuildReserve,
    /// Whether `weft balance` begins by itself when puts may fill less than a tenth of a disk, while they may fill a fifth of all disks
    /// together. At most once in six hours.
    pub auto_balance: bool,
    /// Share of each disk that conversions leave free for puts, in addition to `disk_reserve` and `rebuild_reserve`; below 100. A conversion waits if too few
    /// nodes have more free space.
    pub conversion_free_percent: u32,
    /// A conversion waits this long for a node that is down and holds its new blocks, because the node may be restarting.
    pub conversion_restart_ms: u64,
    /// Time in which all stripes are checked once in the background; 10000 or more. 0: they are checked only by `weft scrub`.
    pub scrub_period_ms: u64,
    /// The most that the check in the background reads from each disk in a second; 0: only the limits of its class hold.
    pub scrub_disk_bytes_per_s: ByteSize,
    /// A disk that serves at less than a quarter of the usual speed for this long is slow, and stops being slow after as long at half of it or more:
    /// see docs/operations.md, "Disks". 0: no disk is slow.
    pub slow_disk_ms: u64,
    /// Disks that still work and are drained without a person, one at a time: `failing` those with many corrupt or unreadable blocks, `slow`
    /// those that are slow, too; `off` none.
    pub drain_failing_disks: DrainFailingDisks,
    /// A stripe that was opened for updates in place is settled, so that it can be read without delay, when no client has asked for it for this long.
    pub updates_idle_ms: u64,
    /// Bytes of a stripe are changed in place only while k and this many more of its blocks are good, or all of them if its code has fewer: 1 or more. The
    /// others are given up for it and rebuilt, also those of nodes that come back, so with k alone, the next failure would lose the stripe.
    pub write_min: u32,
    /// Limits of repairs and scrubs on every node. An agent applies the lower of these and its own limits.
    pub limits: ClassLimits,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7400".into(),
            metrics: metrics::ANY_PORT.into(),
            dir: PathBuf::from("coordinator"),
            cluster: None,
            certificates: None,
            insecure: false,
            heartbeat_interval_ms: 1_000,
            down_after_ms: 5_000,
            lost_after_ms: 900_000,
            auto_repair: true,
            suspect_ms: 30_000,
            upload_lease_ms: 600_000,
            garbage_grace_ms: 60_000,
            sweep_interval_ms: 5_000,
            orphan_check_interval_ms: 3_600_000,
            link_probe_interval_ms: 600_000,
            link_age_max_ms: 1_800_000,
            stall_ms: 10_000,
            repair_stall_ms: 1_000,
            call_timeout_ms: 3_000,
            failure_grace_ms: 2_000,
            open_attempts_max: 30,
            resumes_max: 8,
            slice_len: ByteSize(256 << 10),
            repair_slice_len: AutoSize::bytes(64 << 10),
            scheme: weft_schemes::AUTO.into(),
            write_scheme: weft_schemes::AUTO.into(),
            default_code: "rs(6,3)".into(),
            default_failure_domain: "rack".into(),
            disk_reserve: ByteSize(64 << 20),
            rebuild_reserve: RebuildReserve::Auto,
            auto_balance: true,
            conversion_free_percent: 10,
            conversion_restart_ms: 300_000,
            scrub_period_ms: 30 * 86_400_000,
            scrub_disk_bytes_per_s: ByteSize(20 << 20),
            slow_disk_ms: 600_000,
            drain_failing_disks: DrainFailingDisks::default(),
            updates_idle_ms: 60_000,
            write_min: 1,
            limits: ClassLimits::default(),
        }
    }
}

impl CoordinatorConfig {
    /// The file of the metadata.
    pub fn metadata_file(&self) -> PathBuf {
        self.dir.join("metadata.sqlite")
    }

    /// The default policy of a new cluster with these settings.
    pub(crate) fn first_policy(&self) -> Result<PolicyRecord> {
        let default = validate::default_policy();
        let coding = validate::coding(&self.default_code, 0, 0, Some(&default))
            .map_err(|error| Error { message: format!("default_code: {}", error.message), ..error })?;
        let failure_domain = validate::failure_domain(&self.default_failure_domain)
            .map_err(|error| Error { message: format!("default_failure_domain: {}", error.message), ..error })?;
        let (block_len, cell_len) = (coding.layout.block_len, coding.layout.cell_len);
        Ok(PolicyRecord { code: coding.code.spec(), block_len, cell_len, failure_domain, ..default })
    }

    /// Refuses invalid settings, and names valid ones.
    pub(crate) fn check(&self) -> Result<()> {
        let positive = [
            ("upload_lease_ms", self.upload_lease_ms),
            ("sweep_interval_ms", self.sweep_interval_ms),
            ("call_timeout_ms", self.call_timeout_ms),
            ("failure_grace_ms", self.failure_grace_ms),
            ("open_attempts_max", self.open_attempts_max.into()),
            ("updates_idle_ms", self.updates_idle_ms),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(Error::invalid(format!("{name} must be greater than zero")));
        }
        if !WRITE_MIN.contains(&self.write_min) {
            let (first, last, asked) = (WRITE_MIN.start(), WRITE_MIN.end(), self.write_min);
            return Err(Error::invalid(format!(
                "write_min is {asked}: use {first} to {last} blocks above k. With 0, a write in place could give up all blocks that are not needed, and the \
                 next failure would lose data"
            )));
        }
        if !HEARTBEAT_INTERVALS_MS.contains(&self.heartbeat_interval_ms) {
            let (first, last, asked) = (HEARTBEAT_INTERVALS_MS.start(), HEARTBEAT_INTERVALS_MS.end(), self.heartbeat_interval_ms);
            return Err(Error::invalid(format!("heartbeat_interval_ms is {asked}: agents accept {first} to {last}")));
        }
        if (1..REPAIR_STALL_MIN_MS).contains(&self.repair_stall_ms) {
            let asked = self.repair_stall_ms;
            let message = format!(
                "repair_stall_ms is {asked}, which is shorter than the interval of agents' progress reports: use at least {REPAIR_STALL_MIN_MS}, or 0"
            );
            return Err(Error::invalid(message));
        }
        if (1..SCRUB_PERIOD_MIN_MS).contains(&self.scrub_period_ms) {
            let asked = self.scrub_period_ms;
            return Err(Error::invalid(format!("scrub_period_ms is {asked}: use at least {SCRUB_PERIOD_MIN_MS}, or 0")));
        }
        let reserve = if let RebuildReserve::Percent(percent) = self.rebuild_reserve { percent } else { 0 };
        if self.conversion_free_percent.saturating_add(reserve) >= 100 {
            let asked = self.conversion_free_percent;
            return Err(Error::invalid(format!(
                "conversion_free_percent is {asked}: with rebuild_reserve ({}) it must be less than 100, to leave space for conversions",
                self.rebuild_reserve
            )));
        }
        metrics::check_address(&self.metrics)?;
        self.limits.check()?;
        self.relations().iter().try_for_each(Relation::check)?;
        check_slice_len("slice_len", AutoSize::Bytes(self.slice_len))?;
        check_slice_len("repair_slice_len", self.repair_slice_len)?;
        self.first_policy()?;
        weft_schemes::check_name(Kind::Repair, &self.scheme)?;
        weft_schemes::check_name(Kind::Write, &self.write_scheme)
    }

    /// Which setting must exceed which other one by how much, and why.
    fn relations(&self) -> Vec<Relation> {
        let stall = ("stall_ms", u64::from(self.stall_ms));
        let call = ("call_timeout_ms", self.call_timeout_ms);
        let heartbeat = ("heartbeat_interval_ms", u64::from(self.heartbeat_interval_ms));
        let relation = |longer: (&'static str, u64), times: u64, shorter: (&'static str, u64), or_else: &'static str| Relation {
            longer,
            times,
            shorter,
            or_else,
        };
        let mut relations = vec![
            relation(("down_after_ms", self.down_after_ms), 2, heartbeat, "one late heartbeat takes a node down"),
            relation(
                ("lost_after_ms", self.lost_after_ms),
                1,
                ("down_after_ms", self.down_after_ms),
                "a node is lost before it counts as down",
            ),
            relation(stall, 1, call, "a task fails while the coordinator still waits for other tasks to start"),
            relation(
                stall,
                1,
                ("failure_grace_ms", self.failure_grace_ms),
                "the coordinator waits longer for a failed plan than all its tasks take to fail",
            ),
            relation(("suspect_ms", self.suspect_ms), 1, stall, "a node is trusted again before the next plan has failed on it"),
        ];
        relations.push(relation(
            ("link_age_max_ms", self.link_age_max_ms),
            1,
            ("link_probe_interval_ms", self.link_probe_interval_ms),
            "a link's measurement expires before the link is measured again",
        ));
        if !self.insecure {
            let handshake = ("the timeout of a TLS handshake", HANDSHAKE_TIMEOUT.as_millis() as u64);
            relations.push(relation(stall, 1, handshake, "a task fails before a failed handshake is reported"));
        }
        relations
    }

    /// TLS with the coordinator's certificate, or none if `insecure` is set.
    pub(crate) fn security(&self) -> Result<Security> {
        match (&self.certificates, self.insecure) {
            (Some(dir), false) => Security::load(&CertificateFiles::in_dir(dir, &Peer::Coordinator)),
            (None, true) => Ok(Security::Insecure),
            (Some(_), true) => Err(Error::invalid("both certificates and insecure are set: choose one")),
            (None, false) => Err(Error::invalid(
                "set certificates to the directory with ca.pem, coordinator.pem and coordinator-key.pem, or set \
                 insecure = true to accept every connection",
            )),
        }
    }
}

/// `longer` must exceed `shorter`, or be at least `times` as much if that is more than 1.
struct Relation {
    longer: (&'static str, u64),
    times: u64,
    shorter: (&'static str, u64),
    /// The consequence otherwise.
    or_else: &'static str,
}

impl Relation {
    fn check(&self) -> Result<()> {
        let ((longer, longer_ms), (shorter, shorter_ms), times) = (self.longer, self.shorter, self.times);
        let holds = if times > 1 { longer_ms >= shorter_ms.saturating_mul(times) } else { longer_ms > shorter_ms };
        if holds {
            return Ok(());
        }
        let needed = if times > 1 { format!("at least {times} times that") } else { "greater".to_owned() };
        let or_else = self.or_else;
        Err(Error::invalid(format!(
            "{longer} is {longer_ms} ms and {shorter} is {shorter_ms} ms: {longer} must be {needed}, otherwise {or_else}"
        )))
    }
}

/// Creates the metadata's directory.
pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| Error::fatal(format!("cannot create {}: {error}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_overrides_defaults_and_errors_are_named() {
        let config: CoordinatorConfig = toml::from_str("insecure = true\nslice_len = \"1MiB\"").unwrap();
        assert_eq!(config, CoordinatorConfig { insecure: true, slice_len: ByteSize(1 << 20), ..CoordinatorConfig::default() });
        assert_eq!(config.check(), Ok(()));
        assert!(toml::from_str::<CoordinatorConfig>("downafter = 1").unwrap_err().to_string().contains("downafter"));

        let wrong = |config: CoordinatorConfig| config.check().unwrap_err().message;
        assert!(wrong(CoordinatorConfig { slice_len: ByteSize(1000), ..config.clone() }).contains("slice_len is 1000"));
        assert!(wrong(CoordinatorConfig { metrics: "7401".into(), ..config.clone() }).contains("metrics is '7401'"));
        assert!(wrong(CoordinatorConfig { down_after_ms: 1500, ..config.clone() }).contains("down_after_ms"));
        assert!(wrong(CoordinatorConfig { repair_stall_ms: 100, ..config.clone() }).contains("repair_stall_ms is 100"));
        assert!(wrong(CoordinatorConfig { scrub_period_ms: 1000, ..config.clone() }).contains("scrub_period_ms is 1000"));
        for write_min in [0, 256] {
            let message = wrong(CoordinatorConfig { write_min, ..config.clone() });
            assert!(message.contains(&format!("write_min is {write_min}: use 1 to 255 blocks above k")), "{message}");
        }
        assert!(
            wrong(CoordinatorConfig { conversion_free_percent: 100, ..config.clone() })
                .contains("conversion_free_percent is 100")
        );
        let both =
            CoordinatorConfig { conversion_free_percent: 50, rebuild_reserve: RebuildReserve::Percent(50), ..config.clone() };
        assert!(wrong(both).contains("with rebuild_reserve (50%) it must be less than 100"));
        let reserve: CoordinatorConfig = toml::from_str("rebuild_reserve = '12%'").unwrap();
        assert_eq!(reserve.rebuild_reserve, RebuildReserve::Percent(12));
        assert!(
            toml::from_str::<CoordinatorConfig>("rebuild_reserve = '120%'").unwrap_err().to_string().contains("use auto, off")
        );
        let limits: CoordinatorConfig =
            toml::from_str("limits.repair_percent = 50\nlimits.scrub_bytes_per_s = \"1MiB\"").unwrap();
        assert_eq!((limits.limits.repair_percent, limits.limits.scrub_bytes_per_s), (Some(50), Some(ByteSize(1 << 20))));
        assert_eq!(toml::from_str::<CoordinatorConfig>(&toml::to_string(&limits).unwrap()).unwrap(), limits);
        assert!(toml::from_str::<CoordinatorConfig>("limits.repair_pct = 50").unwrap_err().to_string().contains("repair_pct"));
        let limits = ClassLimits { repair_percent: Some(0), ..limits.limits };
        assert!(
            wrong(CoordinatorConfig { limits, ..config.clone() }).contains("limits.repair_percent is 0: it must be 1 to 100")
        );
        assert!(wrong(CoordinatorConfig { scheme: "pigeon".into(), ..config.clone() }).contains("pigeon"));
        assert!(wrong(CoordinatorConfig { sweep_interval_ms: 0, ..config }).contains("sweep_interval_ms must be greater"));
    }

    #[test]
    fn inconsistent_times_are_refused_and_named() {
        let (config, tls) = (CoordinatorConfig { insecure: true, ..CoordinatorConfig::default() }, CoordinatorConfig::default());
        assert_eq!((config.check(), tls.check()), (Ok(()), Ok(())), "the default must be valid");
        let refused = |config: CoordinatorConfig, parts: [&str; 3]| {
            let message = config.check().unwrap_err().message;
            parts.iter().for_each(|part| assert!(message.contains(part), "{part} is not in: {message}"));
        };
        let base = || config.clone();
        refused(
            CoordinatorConfig { down_after_ms: 1_999, ..base() },
            ["down_after_ms is 1999", "heartbeat_interval_ms is 1000", "2 times"],
        );
        refused(
            CoordinatorConfig { call_timeout_ms: 10_000, ..base() },
            ["stall_ms is 10000", "call_timeout_ms is 10000", "greater"],
        );
        refused(
            CoordinatorConfig { failure_grace_ms: 11_000, ..base() },
            ["stall_ms is 10000", "failure_grace_ms is 11000", "greater"],
        );
        refused(
            CoordinatorConfig { lost_after_ms: 5_000, ..base() },
            ["lost_after_ms is 5000", "down_after_ms is 5000", "greater"],
        );
        refused(CoordinatorConfig { suspect_ms: 9_000, ..base() }, ["suspect_ms is 9000", "stall_ms is 10000", "trusted again"]);
        refused(CoordinatorConfig { heartbeat_interval_ms: 5, ..base() }, ["heartbeat_interval_ms is 5", "10", "60000"]);
        refused(
            CoordinatorConfig { link_age_max_ms: 600_000, ..base() },
            ["link_age_max_ms is 600000", "link_probe_interval_ms is 600000", "expires"],
        );
        let stall = |insecure| CoordinatorConfig { insecure, stall_ms: 5_000, ..base() };
        assert_eq!(stall(true).check(), Ok(()), "without TLS there is no handshake");
        refused(stall(false), ["stall_ms is 5000", "timeout of a TLS handshake is 5000", "greater"]);
    }

    #[test]
    fn certificates_or_insecure_must_be_set() {
        let neither = CoordinatorConfig::default().security().unwrap_err();
        assert!(neither.message.contains("insecure = true"), "{neither}");
        let both = CoordinatorConfig { insecure: true, certificates: Some("x".into()), ..CoordinatorConfig::default() };
        assert!(both.security().is_err());
        assert!(CoordinatorConfig { insecure: true, ..CoordinatorConfig::default() }.security().unwrap().is_insecure());
    }
}
