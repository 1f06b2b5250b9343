//! `weft metadata`: what an operator does with the coordinator's metadata on its own machine.

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

/// Copy the metadata to a file, while the coordinator runs or not
///
/// To be given on the coordinator's machine, by the user whose process it is. The copy is the state of one moment; it was checked and is
/// durable when the command ends. To restore one, stop the coordinator and put the copy in the place of its metadata.sqlite, without
/// metadata.sqlite-wal and metadata.sqlite-shm beside it.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft metadata backup /backup/metadata-$(date +%F).sqlite --config /etc/weft/coordinator.toml

EXIT CODES
  0 copied   1 it cannot be read or written, is damaged, or busy   2 FILE is there already   3 no metadata, or no such settings")]
struct Backup {
    /// Where the copy goes: a new file
    file: PathBuf,
    /// The coordinator's settings; without it, those of the cluster that `weft cluster up` made here or in --cluster
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
