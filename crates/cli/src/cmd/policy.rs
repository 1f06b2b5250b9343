//! `weft policy`: names for how objects are stored.

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

/// Storage policies: code, sizes, placement; each bucket uses one
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

/// Make a policy
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy create wide --code 'rs(12,4)' --block-size 32MiB --failure-domain rack
  weft policy create quick --code 'rs(12,4)' --ack k+2
  weft policy create hot --code 'rs(6,3)' --replicas 2

EXIT CODES
  0 done   2 a code, sizes or a name that make no sense   3 no cluster   4 no coordinator")]
struct Create {
    /// Its name
    name: String,
    /// The code: `rs(k,m)`, or as HDFS spells it, `RS-6-3-1024k`; `weft code info` lists all
    #[arg(long, value_name = "SPEC")]
    code: String,
    /// Size of a block, at most 4 GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    block_size: Option<ByteSize>,
    /// Bytes that go to one block before the next; divides the block size [default: 1MiB, or as in an HDFS spelling; more for codes with
    /// many sub-blocks]
    #[arg(long, value_name = "SIZE")]
    cell_size: Option<ByteSize>,
    /// Placement keeps the loss of one of these survivable, if there are enough: a `rack` or a `node`
    #[arg(long, value_parser = ["node", "rack"], default_value = "rack")]
    failure_domain: String,
    /// When a put is acknowledged: when `all` blocks are durable; or of each stripe `k+N` blocks, or all but N (`tolerate=N`), from which the
    /// others can be made, and these follow later
    #[arg(long, default_value = "all")]
    ack: String,
    /// Copies of each data block, the first included. Reads are spread over them, and use another if one is lost. Each copy needs a node
    /// of its own; `weft policy cool` drops them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// New buckets use it unless they name another
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

/// What a policy says
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy show wide

EXIT CODES
  0 done   3 no such policy, or no cluster   4 no coordinator")]
struct Show {
    /// Its name
    name: String,
}

/// Remove a policy that no bucket carries
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy rm wide

EXIT CODES
  0 done   2 a bucket carries it, or it is the default   3 no such policy, or no cluster   4 no coordinator")]
struct Rm {
    /// Its name
    name: String,
}

/// Make a policy the one that new buckets carry
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy default wide

EXIT CODES
  0 done   3 no such policy, or no cluster   4 no coordinator")]
struct SetDefault {
    /// Its name
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
    /// Copies of each data block, with the coded one.
    replicas: u32,
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
                let made = Session::with(options, async |session| session.client.create_policy(policy).await)?;
                let mut report = Report::from(made);
                report.warnings.extend(short_sub_blocks(&report.code, report.cell_size));
                output.result(&report, shown)?;
            }
            Command::Ls(Ls {}) => {
                let policies = Session::with(options, async |session| session.client.policies().await)?;
                let policies: Vec<Report> = policies.into_iter().map(Report::from).collect();
                output.result(&policies, |policies| {
                    let row = |it: &Report| {
                        let name = if it.default { format!("{} (default)", it.name) } else { it.name.clone() };
                        let [block, cell] = [it.block_size, it.cell_size].map(|size| ByteSize(size).to_string());
                        [name, it.code.clone(), block, cell, it.failure_domain.clone(), it.ack.clone(), it.replicas.to_string()]
                    };
                    table(["policy", "code", "block", "cell", "domain", "ack", "replicas"], &[2, 3, 6], policies.iter().map(row))
                })?;
            }
            Command::Show(Show { name }) => {
                let policies = Session::with(options, async |session| session.client.policies().await)?;
                let found = policies.into_iter().find(|policy| policy.name == name);
                let policy =
                    found.ok_or_else(|| Error::not_found(format!("there is no policy '{name}': `weft policy ls` lists them")))?;
                output.result(&Report::from(policy), shown)?;
            }
            Command::Heat(heat) => return heat.run(options, output),
            Command::Cool(cool) => return cool.run(options, output),
            Command::Rm(Rm { name }) => {
                Session::with(options, async |session| session.client.remove_policy(&name).await)?;
                output.result(&serde_json::json!({ "removed": name }), |_| format!("removed {name}"))?;
            }
            Command::Default(SetDefault { name }) => {
                Session::with(options, async |session| session.client.set_default_policy(&name).await)?;
                output.result(&serde_json::json!({ "default": name }), |_| format!("{name} is the default"))?;
            }
        }
        Ok(Exit::Ok)
    }
}

impl Create {
    fn policy(self) -> Result<api::Policy> {
        // To the coordinator, 0 says that nothing was said.
        if [self.block_size, self.cell_size].contains(&Some(ByteSize(0))) {
            return Err(Error::invalid("block and cell size must be greater than zero"));
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
            warnings: Vec::new(),
        })
    }
}

fn shown(it: &Report) -> String {
    let default = if it.default { " (the default)" } else { "" };
    let [block, cell] = [it.block_size, it.cell_size].map(ByteSize);
    let mut text = format!(
        "{}{default}\ncode            {}\nblock size      {block}\ncell size       {cell}\nfailure domain  {}\nack             {}\nreplicas        {}",
        it.name, it.code, it.failure_domain, it.ack, it.replicas
    );
    for warning in &it.warnings {
        text += &format!("\nwarning: {warning}");
    }
    text
}
