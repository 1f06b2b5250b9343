//! `weft metadata`: maintenance of the coordinator's metadata, on the coordinator's machine.

use super::{cluster::directory, daemon::coordinator_config};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::PathBuf;
use weft_cli::{exit::Exit, local::LocalCluster, output::Output, target};
use weft_types::{Error, Result, human_bytes};

/// Copy the coordinator's metadata
#[derive(Debug, Args)]
pub(super) struct Metadata {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Backup(Backup),
}

/// Copy the metadata to a file, whether or not the coordinator is running
///
/// Run it on the coordinator's machine, as the coordinator's user. The copy is the complete state at one moment. When the command ends, the
/// copy has been checked and is durable. To restore a copy, stop the coordinator, replace its metadata.sqlite with the copy, and delete
/// metadata.sqlite-wal and metadata.sqlite-shm.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft metadata backup /backup/metadata-$(date +%F).sqlite --config /etc/weft/coordinator.toml

EXIT CODES
  0 copied   1 the metadata or FILE cannot be read or written, or the metadata is damaged or busy   2 FILE already exists   \
  3 no metadata, or no such settings file")]
struct Backup {
    /// File for the copy; must not exist
    file: PathBuf,
    /// Settings of the coordinator [default: those of the cluster that `weft cluster up` created here or in --cluster]
    #[arg(long, env = "WEFT_COORDINATOR_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Report {
    file: PathBuf,
    bytes: u64,
    cluster: String,
    epoch: u64,
    objects: u64,
    stripes: u64,
}

impl Metadata {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let Command::Backup(Backup { file, config }) = self.command;
        let settings = match config {
            Some(config) => config,
            None => LocalCluster::open(&directory(None, options)?)?.coordinator_settings(),
        };
        let from = coordinator_config(Some(&settings))?.metadata_file();
        let (cluster, totals) = weft_meta::backup(&from, &file)?;
        let bytes = std::fs::metadata(&file).map_err(|error| Error::fatal(format!("{}: {error}", file.display())))?.len();
        let (objects, stripes) = (totals.objects, totals.stripes);
        let report = Report { file, bytes, cluster: cluster.id.to_string(), epoch: cluster.epoch.0, objects, stripes };
        let text = |it: &Report| {
            let (file, bytes) = (it.file.display(), human_bytes(it.bytes));
            format!("copied to {file}: {bytes}, {} objects in {} stripes, epoch {}", it.objects, it.stripes, it.epoch)
        };
        output.result(&report, text).map(|()| Exit::Ok)
    }
}
