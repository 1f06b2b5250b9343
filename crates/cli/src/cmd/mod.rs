//! The command line: all commands, and the dispatch to them.

mod balance;
mod bucket;
mod certificate;
mod check;
mod cluster;
mod code;
mod code_info;
mod convert;
mod daemon;
mod demo;
mod df;
mod drain_plan;
mod explain;
mod garbage;
mod healing;
mod health;
mod heat;
mod job;
mod job_work;
mod lab;
mod link;
mod logging;
mod ls;
mod many;
mod metadata;
#[cfg(test)]
mod metrics_page;
mod names;
mod node;
mod node_disk;
mod node_drain;
mod object;
mod plan;
mod plan_update;
mod policy;
mod put_many;
mod repair;
mod repair_auto;
mod repair_limit;
mod repair_node;
mod rm;
mod schedule;
mod scrub;
mod scrubbing;
#[cfg(test)]
mod settings_page;
mod status;
mod transfer;
mod tree;
mod write;
mod write_plan;
mod write_way;

use clap::{CommandFactory as _, Parser, Subcommand};
use weft_cli::{
    exit::Exit,
    output::Output,
    shell::{self, Globals, Help},
};

/// Erasure-coded storage that repairs at the speed of a read.
#[derive(Debug, Parser)]
#[command(
    name = "weft",
    version,
    disable_help_subcommand = true,
    max_term_width = 110,
    after_help = "`weft help exit-codes` explains exit codes; `weft COMMAND --help` has examples."
)]
struct Weft {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Cluster(cluster::Cluster),
    Status(health::Status),
    Df(df::Df),
    Check(check::Check),
    Put(transfer::Put),
    Get(transfer::Get),
    Write(write::Write),
    Ls(ls::Ls),
    Stat(object::Stat),
    Rm(rm::Rm),
    Bucket(bucket::Bucket),
    Policy(policy::Policy),
    Node(node::Node),
    Link(link::Link),
    Repair(repair::Repair),
    Balance(balance::Balance),
    Scrub(scrub::Scrub),
    Job(job::Job),
    Code(code::Code),
    Plan(plan::Plan),
    Demo(demo::Demo),
    /// A cluster with shaped links on this machine: real sockets, chosen rates (in weft-lab)
    Testbed(lab::HandedOver),
    /// Measure schemes on links of a given rate (in weft-lab)
    Bench(lab::HandedOver),
    /// Repeat experiments from papers and compare the results (in weft-lab)
    Reproduce(lab::HandedOver),
    Certificate(certificate::Certificate),
    Metadata(metadata::Metadata),
    Coordinator(daemon::RunCoordinator),
    Agent(daemon::RunAgent),
    Help(Help),
}

/// Parses the command line and runs the command.
pub(crate) fn main() -> Exit {
    let Weft { globals: Globals { json, target }, command } = match shell::parse(Weft::command()) {
        Ok(weft) => weft,
        Err(exit) => return exit,
    };
    let output = Output { json };
    let done = match command {
        Command::Cluster(it) => it.run(&target, output),
        Command::Status(it) => it.run(&target, output),
        Command::Df(it) => it.run(&target, output),
        Command::Check(it) => it.run(&target, output),
        Command::Put(it) => it.run(&target, output),
        Command::Get(it) => it.run(&target, output),
        Command::Write(it) => it.run(&target, output),
        Command::Ls(it) => it.run(&target, output),
        Command::Stat(it) => it.run(&target, output),
        Command::Rm(it) => it.run(&target, output),
        Command::Bucket(it) => it.run(&target, output),
        Command::Policy(it) => it.run(&target, output),
        Command::Node(it) => it.run(&target, output),
        Command::Link(it) => it.run(&target, output),
        Command::Repair(it) => it.run(&target, output),
        Command::Balance(it) => it.run(&target, output),
        Command::Scrub(it) => it.run(&target, output),
        Command::Job(it) => it.run(&target, output),
        Command::Code(it) => it.run(output),
        Command::Plan(it) => it.run(output),
        Command::Demo(it) => it.run(output),
        Command::Testbed(_) => return lab::hand_over("testbed"),
        Command::Bench(_) => return lab::hand_over("bench"),
        Command::Reproduce(_) => return lab::hand_over("reproduce"),
        Command::Certificate(it) => it.run(output),
        Command::Metadata(it) => it.run(&target, output),
        Command::Coordinator(it) => it.run(),
        Command::Agent(it) => it.run(),
        Command::Help(it) => match it.topic.first().filter(|topic| lab::COMMANDS.contains(&topic.as_str())) {
            Some(topic) => return lab::hand_over(topic),
            None => it.run(Weft::command()),
        },
    };
    done.unwrap_or_else(|error| shell::report(&error, output.json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_an_example() {
        Weft::command().debug_assert();
        // `weft-lab` has the same test of its own.
        assert_eq!(shell::missing_in_help(&Weft::command(), &lab::COMMANDS), Vec::<String>::new());
        for name in lab::COMMANDS {
            let about = Weft::command().find_subcommand(name).and_then(|it| it.get_about().map(ToString::to_string));
            assert!(about.is_some_and(|about| about.contains("weft-lab")), "{name} does not tell where it is");
        }
    }
}
