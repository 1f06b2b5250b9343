//! `weft bucket`: the containers of objects.

use clap::{Args, Subcommand};
use serde::Serialize;
use weft_cli::{exit::Exit, output::Output, session::Session, table::table, target};
use weft_client::api;
use weft_types::Result;

/// Create, list and remove buckets
#[derive(Debug, Args)]
pub(super) struct Bucket {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
    Ls(Ls),
    Rm(Rm),
}

/// Create a bucket
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft bucket create photos
  weft bucket create archive --policy wide

EXIT CODES
  0 done   2 the name is taken or invalid   3 no such policy, or no cluster   4 no coordinator")]
struct Create {
    /// Name of the bucket
    name: String,
    /// Policy of its objects: code, sizes, placement [default: the cluster's default policy]
    #[arg(long)]
    policy: Option<String>,
}

/// List all buckets
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft bucket ls

EXIT CODES
  0 done   3 no cluster   4 no coordinator")]
struct Ls {}

/// Remove an empty bucket
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft bucket rm photos

EXIT CODES
  0 done   2 the bucket is not empty   3 no such bucket, or no cluster   4 no coordinator")]
struct Rm {
    /// Name of the bucket
    name: String,
}

#[derive(Debug, Serialize)]
struct Report {
    name: String,
    policy: String,
    objects: u64,
    created_ms: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl From<api::Bucket> for Report {
    fn from(it: api::Bucket) -> Self {
        Self { name: it.name, policy: it.policy, objects: it.objects, created_ms: it.created_ms, warnings: it.warnings }
    }
}

impl Bucket {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match self.command {
            Command::Create(Create { name, policy }) => {
                let made = Session::with(options, async |session| {
                    session.client.create_bucket(&name, policy.as_deref().unwrap_or_default()).await
                })?;
                let made = Report::from(made);
                output.result_with(&made, &made.warnings, |it| format!("{} with policy {}", it.name, it.policy))?;
            }
            Command::Ls(Ls {}) => return list(options, output),
            Command::Rm(Rm { name }) => {
                Session::with(options, async |session| session.client.remove_bucket(&name).await)?;
                output.result(&serde_json::json!({ "removed": name }), |_| format!("removed {name}"))?;
            }
        }
        Ok(Exit::Ok)
    }
}

/// Lists all buckets.
pub(super) fn list(options: &target::Options, output: Output) -> Result<Exit> {
    let buckets = Session::with(options, async |session| session.client.buckets().await)?;
    let buckets: Vec<Report> = buckets.into_iter().map(Report::from).collect();
    output.result(&buckets, |buckets| {
        let row = |it: &Report| [it.name.clone(), it.policy.clone(), it.objects.to_string()];
        table(["bucket", "policy", "objects"], &[2], buckets.iter().map(row))
    })?;
    Ok(Exit::Ok)
}
