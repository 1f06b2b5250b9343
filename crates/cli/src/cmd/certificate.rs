//! `weft certificate`: TLS certificates for a cluster that is started by hand.

use clap::{Args, Subcommand};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};
use weft_cli::{exit::Exit, files::io_error, output::Output, seed::seed};
use weft_proto::{
    Peer,
    certs::{Authority, check_agent_name},
};
use weft_types::{ClusterId, Error, Result};

/// Create certificates for a cluster across machines
///
/// For a cluster on one machine, `weft cluster up` creates the certificates.
#[derive(Debug, Args)]
pub(super) struct Certificate {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Authority(MakeAuthority),
    Issue(Issue),
}

/// Create a certificate authority for a new cluster: DIR/ca.pem and DIR/ca-key.pem
///
/// Prints the cluster's id. Set it as `cluster` in the settings of the coordinator; agents and clients can set it too.
///
/// Anyone who has ca-key.pem can admit daemons and clients to the cluster. Do not copy it to other machines; no daemon needs it.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft certificate authority authority
  weft certificate authority authority --id 0a1b2c3d4e5f60718293a4b5c6d7e8f9

EXIT CODES
  0 done   1 failed   2 DIR already has an authority, or cannot hold one")]
struct MakeAuthority {
    /// Id of the cluster, for an authority of an existing cluster: 32 hex digits [default: a new id]
    #[arg(long, value_name = "ID")]
    id: Option<ClusterId>,
    /// Directory for the authority
    dir: PathBuf,
}

/// Issue certificates signed by a cluster's authority, each in its own directory
///
/// Creates the directories DIR/coordinator, DIR/client and DIR/agent-NODE. Each holds three files: ca.pem, the certificate, and its
/// private key. Copy each directory to its machine, and name it as `certificates` in the settings of `weft coordinator` or
/// `weft agent`, or in a client's weft.toml.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft certificate issue coordinator client agent:node-01 --authority authority
  scp -r agent-node-01 node-01:/etc/weft/certificates

EXIT CODES
  0 done   1 failed   2 an invalid name, or a directory that already exists   3 no authority")]
struct Issue {
    /// Owners: `coordinator`, `client`, or `agent:NODE`, where NODE is the `name` in the agent's settings
    #[arg(required = true, value_name = "NAME")]
    names: Vec<Name>,
    /// Directory that `weft certificate authority` created
    #[arg(long, value_name = "DIR")]
    authority: PathBuf,
    /// Directory for the new directories
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// The owner of a certificate.
#[derive(Debug, Clone)]
struct Name(Peer);

impl FromStr for Name {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once(':') {
            None if text == "coordinator" => Ok(Self(Peer::Coordinator)),
            None if text == "client" => Ok(Self(Peer::Client)),
            Some(("agent", name)) => {
                check_agent_name(name).map_err(|error| error.message)?;
                Ok(Self(Peer::Agent(name.to_owned())))
            }
            _ => Err("the owner must be 'coordinator', 'client' or 'agent:NODE'".to_owned()),
        }
    }
}

impl Name {
    /// The name of its directory.
    fn dir(&self) -> String {
        match &self.0 {
            Peer::Agent(name) => format!("agent-{name}"),
            Peer::Coordinator => "coordinator".to_owned(),
            _ => "client".to_owned(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Made {
    cluster: ClusterId,
    authority: PathBuf,
}

#[derive(Debug, Serialize)]
struct Issued {
    cluster: ClusterId,
    directories: Vec<PathBuf>,
}

impl Certificate {
    pub(super) fn run(self, output: Output) -> Result<Exit> {
        match self.command {
            Command::Authority(MakeAuthority { id, dir }) => {
                let cluster = match id {
                    Some(id) => id,
                    None => ClusterId(StdRng::seed_from_u64(seed()?).random()),
                };
                make_dir(&dir)?;
                Authority::create(&dir, cluster)?;
                let text = |made: &Made| {
                    let (cluster, dir) = (made.cluster, made.authority.display());
                    format!(
                        "created {dir}/ca.pem and {dir}/ca-key.pem for cluster {cluster}\nset this in coordinator.toml: cluster = \"{cluster}\""
                    )
                };
                output.result(&Made { cluster, authority: dir }, text)?;
            }
            Command::Issue(issue) => {
                output.result(&issue.issue()?, |issued| {
                    let lines: Vec<String> = issued.directories.iter().map(|dir| dir.display().to_string()).collect();
                    lines.join("\n")
                })?;
            }
        }
        Ok(Exit::Ok)
    }
}

impl Issue {
    fn issue(self) -> Result<Issued> {
        let authority = Authority::load(&self.authority)?;
        let directories: Vec<PathBuf> = self.names.iter().map(|name| self.out.join(name.dir())).collect();
        // Checked before anything is created: a key that is in use must not be overwritten by mistake.
        for (at, dir) in directories.iter().enumerate() {
            if directories[..at].contains(dir) {
                return Err(Error::invalid(format!("two names have the directory {}: give each name once", dir.display())));
            }
            if dir.exists() {
                return Err(Error::invalid(format!("{} exists already: remove it, or choose another --out", dir.display())));
            }
        }
        for (name, dir) in self.names.iter().zip(&directories) {
            make_dir(dir)?;
            authority.issue(dir, &name.0)?;
        }
        Ok(Issued { cluster: authority.cluster(), directories })
    }
}

/// Creates a directory for private keys, readable by its owner only.
fn make_dir(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| io_error(dir, "create", &error))
}
