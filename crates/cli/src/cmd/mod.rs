//! The command line: what there is, and where it goes.

mod bench;
mod bench_put;
mod bucket;
mod certificate;
mod cluster;
mod code;
mod code_info;
mod convert;
mod daemon;
mod demo;
mod explain;
mod heat;
mod job;
mod link;
mod node;
mod object;
mod plan;
mod policy;
mod repair;
mod repair_node;
mod reproduce;
mod status;
mod testbed;
mod transfer;

pub(crate) use daemon::seed;

use crate::{
    exit::{EXIT_CODES, Exit, report},
    output::{Output, print},
    target,
};
use clap::{CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use weft_types::{Error, Result};

/// Erasure-coded storage that repairs at the speed of a read.
#[derive(Debug, Parser)]
#[command(
    name = "weft",
    version,
    disable_help_subcommand = true,
    max_term_width = 110,
    after_help = "`weft help exit-codes` says what exit codes mean; `weft COMMAND --help` has examples."
)]
struct Weft {
    /// Print results (and errors) as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    target: target::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Cluster(cluster::Cluster),
    Put(transfer::Put),
    Get(transfer::Get),
    Ls(object::Ls),
    Stat(object::Stat),
    Rm(object::Rm),
    Bucket(bucket::Bucket),
    Policy(policy::Policy),
    Node(node::Node),
    Link(link::Link),
    Repair(repair::Repair),
    Job(job::Job),
    Code(code::Code),
    Plan(plan::Plan),
    Demo(demo::Demo),
    Testbed(testbed::TestbedCommand),
    Bench(bench::Bench),
    Reproduce(reproduce::Reproduce),
    Certificate(certificate::Certificate),
    Coordinator(daemon::RunCoordinator),
    Agent(daemon::RunAgent),
    /// Help on a command, or on `exit-codes`
    Help {
        /// `exit-codes`, or a command: `code encode`
        topic: Vec<String>,
    },
}

/// Reads the command line and does what it says.
pub(crate) fn main() -> Exit {
    let weft = match Weft::try_parse() {
        Ok(weft) => weft,
        Err(error) => return refuse(&error),
    };
    let output = Output { json: weft.json };
    let done = match weft.command {
        Command::Cluster(it) => it.run(&weft.target, output),
        Command::Put(it) => it.run(&weft.target, output),
        Command::Get(it) => it.run(&weft.target, output),
        Command::Ls(it) => it.run(&weft.target, output),
        Command::Stat(it) => it.run(&weft.target, output),
        Command::Rm(it) => it.run(&weft.target, output),
        Command::Bucket(it) => it.run(&weft.target, output),
        Command::Policy(it) => it.run(&weft.target, output),
        Command::Node(it) => it.run(&weft.target, output),
        Command::Link(it) => it.run(&weft.target, output),
        Command::Repair(it) => it.run(&weft.target, output),
        Command::Job(it) => it.run(&weft.target, output),
        Command::Code(it) => it.run(output),
        Command::Plan(it) => it.run(output),
        Command::Demo(it) => it.run(output),
        Command::Testbed(it) => it.run(&weft.target, output),
        Command::Bench(it) => it.run(&weft.target, output),
        Command::Reproduce(it) => it.run(&weft.target, output),
        Command::Certificate(it) => it.run(output),
        Command::Coordinator(it) => it.run(),
        Command::Agent(it) => it.run(),
        Command::Help { topic } => help(&topic),
    };
    done.unwrap_or_else(|error| report(&error, output.json))
}

/// Help and version are asked for; the rest is a command line that makes no sense, in one line like every other error.
fn refuse(error: &clap::Error) -> Exit {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return print(&error.to_string()).map_or(Exit::Failed, |()| Exit::Ok);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{error}");
        return Exit::Usage;
    }
    let json = std::env::args_os().any(|arg| arg == "--json");
    report(&Error::invalid(one_line(&error.to_string())), json)
}

/// clap says what is wrong in its first paragraph, and what would be right in `tip:` lines and the usage.
fn one_line(message: &str) -> String {
    let mut said = String::new();
    for line in message.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("For more information")) {
        let line = line.strip_prefix("error: ").or(line.strip_prefix("tip: ")).unwrap_or(line);
        if !said.is_empty() {
            said.push_str(if said.ends_with(':') { " " } else { "; " });
        }
        said.push_str(line);
    }
    said
}

fn help(topic: &[String]) -> Result<Exit> {
    if topic == ["exit-codes"] {
        return print(EXIT_CODES).map(|()| Exit::Ok);
    }
    let mut command = Weft::command();
    command.build();
    let mut named = &mut command;
    for word in topic {
        named = named.find_subcommand_mut(word).ok_or_else(|| {
            Error::not_found(format!("there is no command '{}'; `weft help` lists what there is", topic.join(" ")))
        })?;
    }
    print(&named.render_long_help().to_string()).map(|()| Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_an_example() {
        fn check(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
                let path = format!("{path} {}", sub.get_name());
                if sub.get_subcommands().next().is_none() {
                    let after = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                    assert!(after.contains("EXAMPLE") && after.contains(&path), "{path} has no example of itself");
                    assert!(after.contains("EXIT CODES"), "{path} does not tell its exit codes");
                }
                check(sub, &path);
            }
        }
        Weft::command().debug_assert();
        check(&Weft::command(), "weft");
    }
}
