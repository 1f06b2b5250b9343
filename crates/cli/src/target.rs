//! The cluster of a command: `--cluster`, `WEFT_CLUSTER`, or a file that `weft cluster up` wrote.

use crate::settings;
use clap::{Args, builder::FalseyValueParser};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use weft_proto::{Peer, Security, certs::CertificateFiles};
use weft_types::{ClusterId, Error, Result};

/// The name of the file that says where a cluster is.
pub const FILE_NAME: &str = "weft.toml";
/// Default directory for `weft cluster up`, where other commands look for a cluster.
pub const DEFAULT_DIR: &str = "weft-cluster";

/// The options that name a cluster.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Cluster: a directory that `weft cluster up` created, a weft.toml, or a coordinator's host:port
    ///
    /// Default: ./weft.toml, or else ./weft-cluster/weft.toml.
    #[arg(long, global = true, env = "WEFT_CLUSTER", value_name = "WHERE", help_heading = "Cluster")]
    pub cluster: Option<String>,
    /// Directory with ca.pem, client.pem and client-key.pem: needed for host:port, and otherwise instead of the one in weft.toml
    #[arg(long, global = true, env = "WEFT_CERTIFICATES", value_name = "DIR", help_heading = "Cluster")]
    pub certificates: Option<PathBuf>,
    /// Use no TLS: `cluster up` creates the cluster without; with host:port, the cluster was started without
    #[arg(long, global = true, env = "WEFT_INSECURE", value_parser = FalseyValueParser::new(), help_heading = "Cluster")]
    pub insecure: bool,
}

/// The contents of `weft.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// Id of the cluster. A coordinator of another cluster is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Address of the coordinator, `host:port`.
    pub coordinator: String,
    /// Directory with `ca.pem`, `client.pem` and `client-key.pem`, relative to the file. Required unless `insecure` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<PathBuf>,
    /// The cluster runs without TLS.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// Default bucket, for keys without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
}

/// A cluster that was found.
#[derive(Debug)]
pub struct Target {
    /// The cluster's id, if known.
    pub cluster: Option<ClusterId>,
    /// Where the coordinator listens, `host:port`.
    pub coordinator: String,
    /// How to secure connections to it.
    pub security: Security,
    /// The bucket of keys without one.
    pub bucket: Option<String>,
}

impl Options {
    /// Finds the cluster.
    pub fn target(&self) -> Result<Target> {
        let Some(said) = &self.cluster else {
            let places = [PathBuf::from(FILE_NAME), Path::new(DEFAULT_DIR).join(FILE_NAME)];
            let found = places.iter().find(|place| place.is_file());
            return self.with_file(found.ok_or_else(no_cluster)?);
        };
        let path = Path::new(said);
        if path.is_dir() {
            let file = path.join(FILE_NAME);
            if !file.exists() {
                return Err(Error::not_found(format!(
                    "there is no cluster in {said}: it has no {FILE_NAME}; `weft cluster up --dir DIR --nodes 16` creates a cluster"
                )));
            }
            return self.with_file(&file);
        }
        if path.is_file() {
            return self.with_file(path);
        }
        if !is_address(said) {
            return Err(Error::not_found(format!(
                "no cluster '{said}': there is no such file or directory, and it is not a host:port either"
            )));
        }
        let (coordinator, insecure) = (said.clone(), self.insecure);
        ClusterFile { cluster: None, coordinator, certificates: self.certificates()?, insecure, bucket: None }.target()
    }

    /// The cluster of a file, with the certificates of these options if they name any.
    fn with_file(&self, path: &Path) -> Result<Target> {
        let file = ClusterFile::read(path)?;
        if self.insecure && !file.insecure {
            let shown = path.display();
            return Err(Error::invalid(format!(
                "the cluster of {shown} uses TLS: leave out --insecure, and unset WEFT_INSECURE"
            )));
        }
        let certificates = if file.insecure { None } else { self.certificates()?.or(file.certificates) };
        ClusterFile { certificates, ..file }.target()
    }

    /// The directory with certificates, if the options name one.
    fn certificates(&self) -> Result<Option<PathBuf>> {
        match &self.certificates {
            Some(dir) if !dir.is_dir() => {
                Err(Error::not_found(format!("--certificates {}: there is no such directory", dir.display())))
            }
            named => Ok(named.clone()),
        }
    }
}

impl ClusterFile {
    /// Reads one; paths in it become relative to its directory.
    pub fn read(path: &Path) -> Result<Self> {
        let mut file: Self = settings::parse(path)?;
        if let (Some(certificates), Some(dir)) = (&mut file.certificates, path.parent()) {
            *certificates = dir.join(&certificates);
        }
        Ok(file)
    }

    /// The cluster that it names.
    pub fn target(self) -> Result<Target> {
        let security = match (&self.certificates, self.insecure) {
            (_, true) => Security::Insecure,
            (Some(dir), false) => Security::load(&CertificateFiles::in_dir(dir, &Peer::Client))?,
            (None, false) => {
                return Err(Error::invalid(format!(
                    "no certificates for {}: pass --certificates DIR, or --insecure if the cluster was started without TLS",
                    self.coordinator
                )));
            }
        };
        Ok(Target { cluster: self.cluster, coordinator: self.coordinator, security, bucket: self.bucket })
    }
}

/// Whether the cluster was given as its coordinator's `host:port`.
pub fn is_address(said: &str) -> bool {
    let is_host_port = said.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    is_host_port && !Path::new(said).exists()
}

fn no_cluster() -> Error {
    Error::not_found(format!(
        "no cluster given, and there is no ./{FILE_NAME} and no ./{DEFAULT_DIR}: name a cluster with --cluster DIR or WEFT_CLUSTER, or \
         create one with `weft cluster up --dir DIR --nodes 16`"
    ))
}
