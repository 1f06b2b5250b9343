//! `weft policy`: storage policies.

use super::{
    code_info::short_sub_blocks,
    convert::Convert,
    heat::{Cool, Heat},
};
use clap::{Args, Subcommand};
use serde::Serialize;
use weft_cli::{exit::Exit, output::Output, session::Session, table::table, target};
use weft_client::api;
use weft_types::{ByteSize, Error, Result};

/// The most buckets that `weft policy default` lists.
const KEPT_NAMED: usize = 4;

/// Manage storage policies: code, sizes, placement; each bucket uses one
#[derive(Debug, Args)]
pub(super) struct Policy {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
    Ls(Ls),
    Show(Show),
    Rm(Rm),
    Default(SetDefault),
    Convert(Convert),
    Heat(Heat),
    Cool(Cool),
}

/// Create a policy
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy create wide --code 'rs(12,4)' --block-size 32MiB --failure-domain rack
  weft policy create quick --code 'rs(12,4)' --ack k+2
  weft policy create hot --code 'rs(6,3)' --replicas 2
  weft policy create archive --code 'rs(12,4)' --updates refused

EXIT CODES
  0 done   2 an invalid code, size or name   3 no cluster   4 no coordinator")]
struct Create {
    /// Name of the policy
    name: String,
    /// Code: `rs(k,m)`, or an HDFS name such as `RS-6-3-1024k`; `weft code info` lists all codes
    #[arg(long, value_name = "SPEC")]
    code: String,
    /// Size of a block, at most 4 GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    block_size: Option<ByteSize>,
    /// Bytes written to one block before the next block's turn [default: 1MiB, or as an HDFS name says; more for codes with many
    /// sub-blocks]
    #[arg(long, value_name = "SIZE")]
    cell_size: Option<ByteSize>,
    /// Unit that must not hold more blocks of a stripe than the code can lose
    #[arg(long, value_parser = ["node", "rack"], default_value = "rack")]
    failure_domain: String,
    /// When a put is acknowledged: when `all` blocks are durable, when N more than k blocks of each stripe are (`k+N`), or when all but
    /// N are (`tolerate=N`). The remaining blocks follow, or are rebuilt
    #[arg(long, default_value = "all")]
    ack: String,
    /// Copies of each data block, including the coded one. Reads are spread over the copies, and use another copy if one is lost. Each
    /// copy needs one more node; `weft policy cool` drops them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// Whether `weft write` may change bytes of objects in place and append to them; if not, an object is only replaced as a whole
    #[arg(long, value_parser = ["allowed", "refused"], default_value = "allowed")]
    updates: String,
    /// Make it the default: new buckets use it unless they name another policy
    #[arg(long)]
    default: bool,
}

/// List all policies
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy ls

EXIT CODES
  0 done   3 no cluster   4 no coordinator")]
struct Ls {}

/// Show a policy
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy show wide

EXIT CODES
  0 done   3 no such policy, or no cluster   4 no coordinator")]
struct Show {
    /// Name of the policy
    name: String,
}

/// Remove a policy that no bucket uses
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy rm wide

EXIT CODES
  0 done   2 a bucket uses the policy, or it is the default   3 no such policy, or no cluster   4 no coordinator")]
struct Rm {
    /// Name of the policy
    name: String,
}

/// Choose the default policy of new buckets
///
/// Existing buckets keep their policies, including the bucket that `weft cluster up` creates. `weft policy convert BUCKET --to POLICY`
/// changes a bucket's policy and rewrites its objects.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy default wide
  weft policy convert default --to wide

EXIT CODES
  0 done   3 no such policy, or no cluster   4 no coordinator")]
struct SetDefault {
    /// Name of the policy
    name: String,
}

#[derive(Debug, Serialize)]
struct Report {
    name: String,
    code: String,
    block_size: u64,
    cell_size: u64,
    failure_domain: String,
    ack: String,
    /// Copies of each data block, including the coded one.
    replicas: u32,
    /// Whether bytes of objects may be changed in place: allowed or refused.
    updates: String,
    default: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl From<api::Policy> for Report {
    fn from(it: api::Policy) -> Self {
        Self {
            name: it.name,
            code: it.code,
            block_size: it.block_len,
            cell_size: it.cell_len,
            failure_domain: it.failure_domain,
            ack: it.ack,
            replicas: it.replicas.max(1),
            updates: if it.updates.is_empty() { "allowed".to_owned() } else { it.updates },
            default: it.is_default,
            warnings: it.warnings,
        }
    }
}

impl Policy {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match self.command {
            Command::Convert(convert) => return convert.run(options, output),
            Command::Create(create) => {
                let policy = create.policy()?;
                let (made, kept) = Session::with(options, async |session| {
                    let made = session.client.create_policy(policy).await?;
                    let kept = if made.is_default { keep_theirs(session, &made.name).await? } else { Vec::new() };
                    Ok((made, kept))
                })?;
                let mut report = Report::from(made);
                report.warnings.extend(short_sub_blocks(&report.code, report.cell_size));
                output.result_with(&report, &report.warnings, |it| format!("{}{}", shown(it), kept_text(&kept, &it.name)))?;
            }
            Command::Ls(Ls {}) => {
                let policies = Session::with(options, async |session| session.client.policies().await)?;
                let policies: Vec<Report> = policies.into_iter().map(Report::from).collect();
                output.result(&policies, |policies| {
                    let row = |it: &Report| {
                        let name = if it.default { format!("{} (default)", it.name) } else { it.name.clone() };
                        let [block, cell] = [it.block_size, it.cell_size].map(|size| ByteSize(size).to_string());
                        let (domain, ack, updates) = (it.failure_domain.clone(), it.ack.clone(), it.updates.clone());
                        [name, it.code.clone(), block, cell, domain, ack, it.replicas.to_string(), updates]
                    };
                    table(
                        ["policy", "code", "block", "cell", "domain", "ack", "replicas", "updates"],
                        &[2, 3, 6],
                        policies.iter().map(row),
                    )
                })?;
            }
            Command::Show(Show { name }) => {
                let policies = Session::with(options, async |session| session.client.policies().await)?;
                let found = policies.into_iter().find(|policy| policy.name == name);
                let policy = found.ok_or_else(|| {
                    Error::not_found(format!("there is no policy '{name}': `weft policy ls` lists all policies"))
                })?;
                output.result(&Report::from(policy), shown)?;
            }
            Command::Heat(heat) => return heat.run(options, output),
            Command::Cool(cool) => return cool.run(options, output),
            Command::Rm(Rm { name }) => {
                Session::with(options, async |session| session.client.remove_policy(&name).await)?;
                output.result(&serde_json::json!({ "removed": name }), |_| format!("removed {name}"))?;
            }
            Command::Default(SetDefault { name }) => {
                let kept = Session::with(options, async |session| {
                    session.client.set_default_policy(&name).await?;
                    keep_theirs(session, &name).await
                })?;
                let report = serde_json::json!({ "default": name, "other_buckets": kept });
                let text = || format!("{name} is the default policy: new buckets use it{}", kept_text(&kept, &name));
                output.result(&report, |_| text())?;
            }
        }
        Ok(Exit::Ok)
    }
}

/// A bucket that keeps its policy when the default changes.
#[derive(Debug, Serialize)]
struct Kept {
    bucket: String,
    policy: String,
}

/// The buckets whose policy is not the new default.
async fn keep_theirs(session: &Session, default: &str) -> Result<Vec<Kept>> {
    let buckets = session.client.buckets().await?.into_iter().filter(|bucket| bucket.policy != default);
    Ok(buckets.map(|it| Kept { bucket: it.name, policy: it.policy }).collect())
}

/// Lines that list the buckets that keep their policies, and the command to convert them.
fn kept_text(kept: &[Kept], default: &str) -> String {
    let Some(first) = kept.first() else { return String::new() };
    let mut named: Vec<String> = kept.iter().take(KEPT_NAMED).map(|it| format!("{} ({})", it.bucket, it.policy)).collect();
    if kept.len() > KEPT_NAMED {
        named.push(format!("{} more", kept.len() - KEPT_NAMED));
    }
    let (named, bucket) = (named.join(", "), &first.bucket);
    format!(
        "\nbuckets that keep their policy: {named}\n`weft policy convert {bucket} --to {default}` gives a bucket the new policy and rewrites \
         its objects"
    )
}

impl Create {
    fn policy(self) -> Result<api::Policy> {
        // In the request, 0 stands for "not given".
        if [self.block_size, self.cell_size].contains(&Some(ByteSize(0))) {
            return Err(Error::invalid("--block-size and --cell-size must be greater than zero"));
        }
        let size = |size: Option<ByteSize>| size.map_or(0, |size| size.0);
        Ok(api::Policy {
            name: self.name,
            code: self.code,
            block_len: size(self.block_size),
            cell_len: size(self.cell_size),
            failure_domain: self.failure_domain,
            ack: self.ack,
            is_default: self.default,
            replicas: self.replicas,
            updates: self.updates,
            warnings: Vec::new(),
        })
    }
}

fn shown(it: &Report) -> String {
    let default = if it.default { " (the default)" } else { "" };
    let [block, cell] = [it.block_size, it.cell_size].map(ByteSize);
    format!(
        "{}{default}\ncode            {}\nblock size      {block}\ncell size       {cell}\nfailure domain  {}\nack             {}\nreplicas        {}\n\
         updates         {}",
        it.name, it.code, it.failure_domain, it.ack, it.replicas, it.updates
    )
}
