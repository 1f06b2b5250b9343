//! What an operator can say about a coordinator.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use weft_proto::{Peer, Security, certs::CertificateFiles};
use weft_types::{ByteSize, ClusterId, Error, PAGE_LEN, Result};

/// A coordinator's settings, as its TOML file says them. What is not said is as [`Default`] has it.
///
/// ```toml
/// listen = "10.0.0.1:7400"
/// dir = "/var/lib/weft/coordinator"
/// certificates = "/etc/weft/certificates"
/// down_after_ms = 5000
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorConfig {
    /// Where agents and clients call, `host:port`; port 0 takes a free one.
    pub listen: String,
    /// Where the metadata lies.
    pub dir: PathBuf,
    /// The cluster that it is. A new one draws an id if none is said; metadata of another cluster is refused.
    pub cluster: Option<ClusterId>,
    /// The directory with `ca.pem`, `coordinator.pem` and `coordinator-key.pem`.
    pub certificates: Option<PathBuf>,
    /// No TLS: whoever reaches the port may do everything. It must be said by name.
    pub insecure: bool,
    /// How often an agent gives a sign of life.
    pub heartbeat_interval_ms: u32,
    /// A node that was silent for longer is down: reads go around it, nothing is placed on it.
    pub down_after_ms: u64,
    /// A node or block that failed somebody is avoided for this long, where there is a way around it.
    pub suspect_ms: u64,
    /// A put of which nothing was heard for this long is swept.
    pub upload_lease_ms: u64,
    /// Blocks of removed and replaced objects stay readable this long, for readers that have their plan already.
    pub garbage_grace_ms: u64,
    /// How often what is not needed any more is removed.
    pub sweep_interval_ms: u64,
    /// How often each node's disks are searched for blocks that the metadata does not know, beside once after the node has
    /// registered; 0: never.
    pub orphan_check_interval_ms: u64,
    /// A task whose ports move nothing for this long has failed.
    pub stall_ms: u32,
    /// A call to an agent is answered within this time.
    pub call_timeout_ms: u64,
    /// Once a part of a plan has failed, the others have this long to end by themselves.
    pub failure_grace_ms: u64,
    /// How often a plan asks agents that are busy again.
    pub open_attempts_max: u32,
    /// How often a repair goes on around another failure, and a put's stripe with other nodes.
    pub resumes_max: u32,
    /// A slice of reads and writes; a multiple of 4 KiB.
    pub slice_len: ByteSize,
    /// A slice of repairs and of reads of lost blocks, which go through chains; a multiple of 4 KiB.
    pub repair_slice_len: ByteSize,
    /// How lost blocks are read unless the reader says otherwise, and how they are rebuilt during a put.
    pub scheme: String,
    /// A disk with less than this left gets no new block.
    pub disk_reserve: ByteSize,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7400".into(),
            dir: PathBuf::from("coordinator"),
            cluster: None,
            certificates: None,
            insecure: false,
            heartbeat_interval_ms: 1_000,
            down_after_ms: 5_000,
            suspect_ms: 5_000,
            upload_lease_ms: 600_000,
            garbage_grace_ms: 60_000,
            sweep_interval_ms: 5_000,
            orphan_check_interval_ms: 3_600_000,
            stall_ms: 10_000,
            call_timeout_ms: 3_000,
            failure_grace_ms: 2_000,
            open_attempts_max: 30,
            resumes_max: 8,
            slice_len: ByteSize(256 << 10),
            repair_slice_len: ByteSize(64 << 10),
            scheme: "pipeline".into(),
            disk_reserve: ByteSize(64 << 20),
        }
    }
}

impl CoordinatorConfig {
    /// The file of the metadata.
    pub(crate) fn metadata_file(&self) -> PathBuf {
        self.dir.join("metadata.sqlite")
    }

    /// Refuses settings with which nothing would work, and says what would do.
    pub(crate) fn check(&self) -> Result<()> {
        let positive = [
            ("heartbeat_interval_ms", u64::from(self.heartbeat_interval_ms)),
            ("upload_lease_ms", self.upload_lease_ms),
            ("sweep_interval_ms", self.sweep_interval_ms),
            ("stall_ms", self.stall_ms.into()),
            ("call_timeout_ms", self.call_timeout_ms),
            ("open_attempts_max", self.open_attempts_max.into()),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(Error::invalid(format!("{name} must be greater than zero")));
        }
        if self.down_after_ms < 2 * u64::from(self.heartbeat_interval_ms) {
            return Err(Error::invalid(format!(
                "down_after_ms is {} and heartbeat_interval_ms {}: it must be twice that at least, or one late heartbeat takes a \
                 node down",
                self.down_after_ms, self.heartbeat_interval_ms
            )));
        }
        for (name, size) in [("slice_len", self.slice_len), ("repair_slice_len", self.repair_slice_len)] {
            if size.0 == 0 || !size.0.is_multiple_of(PAGE_LEN) {
                return Err(Error::invalid(format!("{name} is {size}: it must be a multiple of {}", ByteSize(PAGE_LEN))));
            }
        }
        weft_schemes::repair::by_name(&self.scheme).map(drop)
    }

    /// TLS with the coordinator's certificate, or nothing where that was said by name.
    pub(crate) fn security(&self) -> Result<Security> {
        match (&self.certificates, self.insecure) {
            (Some(dir), false) => Security::load(&CertificateFiles::in_dir(dir, &Peer::Coordinator)),
            (None, true) => Ok(Security::Insecure),
            (Some(_), true) => Err(Error::invalid("both certificates and insecure are set: choose one")),
            (None, false) => Err(Error::invalid(
                "certificates must name the directory with ca.pem, coordinator.pem and coordinator-key.pem; without them, \
                 insecure = true lets in whoever reaches the port",
            )),
        }
    }
}

/// Makes the directory of the metadata.
pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| Error::fatal(format!("{} cannot be made: {error}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_differs_and_mistakes_are_named() {
        let config: CoordinatorConfig = toml::from_str("insecure = true\nslice_len = \"1MiB\"").unwrap();
        assert_eq!(config, CoordinatorConfig { insecure: true, slice_len: ByteSize(1 << 20), ..CoordinatorConfig::default() });
        assert_eq!(config.check(), Ok(()));
        assert!(toml::from_str::<CoordinatorConfig>("downafter = 1").unwrap_err().to_string().contains("downafter"));

        let wrong = |config: CoordinatorConfig| config.check().unwrap_err().message;
        assert!(wrong(CoordinatorConfig { slice_len: ByteSize(1000), ..config.clone() }).contains("slice_len is 1000"));
        assert!(wrong(CoordinatorConfig { down_after_ms: 1500, ..config.clone() }).contains("down_after_ms"));
        assert!(wrong(CoordinatorConfig { scheme: "pigeon".into(), ..config.clone() }).contains("pigeon"));
        assert!(wrong(CoordinatorConfig { stall_ms: 0, ..config }).contains("stall_ms"));
    }

    #[test]
    fn no_listener_without_a_decision() {
        let neither = CoordinatorConfig::default().security().unwrap_err();
        assert!(neither.message.contains("insecure = true"), "{neither}");
        let both = CoordinatorConfig { insecure: true, certificates: Some("x".into()), ..CoordinatorConfig::default() };
        assert!(both.security().is_err());
        assert!(CoordinatorConfig { insecure: true, ..CoordinatorConfig::default() }.security().unwrap().is_insecure());
    }
}
