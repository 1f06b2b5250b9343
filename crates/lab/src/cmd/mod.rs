//! The command line of `weft-lab`.

mod bench;
mod bench_healing;
mod bench_in_place;
mod bench_lost;
mod bench_node;
mod bench_objects;
mod bench_put;
mod bench_reads;
mod bench_scrub;
mod bench_update;
mod links;
mod reproduce;
mod reproduce_cpu;
mod testbed;

use crate::version::Caller;
use clap::{CommandFactory as _, Parser, Subcommand};
use weft_cli::{
    beside::WEFT,
    exit::Exit,
    output::Output,
    shell::{self, Globals, Help},
};

/// Shaped links on one machine, and measurements on them.
#[derive(Debug, Parser)]
#[command(
    name = "weft-lab",
    version,
    disable_help_subcommand = true,
    max_term_width = 110,
    after_help = "`weft bench`, `weft testbed` and `weft reproduce` are these commands."
)]
struct Lab {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Testbed(testbed::TestbedCommand),
    Bench(Box<bench::Bench>),
    Reproduce(reproduce::Reproduce),
    Help(Help),
}

/// Parses the command line and runs the command.
pub(crate) fn main() -> Exit {
    let caller = Caller::of_this_process();
    // Check the version first: another version may have other options.
    if let Err(error) = caller.check_handed_over() {
        return shell::report(&error, shell::asks_for_json());
    }
    let named = |command: clap::Command| match caller.is_weft() {
        true => command.name(WEFT).bin_name(WEFT),
        false => command,
    };
    let Lab { globals: Globals { json, target }, command } = match shell::parse(named(Lab::command())) {
        Ok(lab) => lab,
        Err(exit) => return exit,
    };
    let output = Output { json };
    let done = caller.check_beside().and_then(|()| match command {
        Command::Testbed(it) => it.run(&target, output),
        Command::Bench(it) => it.run(&target, output),
        Command::Reproduce(it) => it.run(&target, output),
        Command::Help(it) => it.run(named(Lab::command())),
    });
    done.unwrap_or_else(|error| shell::report(&error, json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_an_example() {
        Lab::command().debug_assert();
        assert_eq!(shell::missing_in_help(&Lab::command(), &[]), Vec::<String>::new());
    }
}
