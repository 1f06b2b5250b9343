//! Commands of `weft-lab`: this process replaces itself by the `weft-lab` beside it.

use clap::Args;
use std::{convert::Infallible, ffi::OsString, os::unix::process::CommandExt as _, process::Command};
use weft_cli::{
    beside::{self, HANDED_OVER_BY, LAB, VERSION},
    exit::Exit,
    shell,
};
use weft_types::{Error, Result};

/// The commands of `weft-lab`.
pub(super) const COMMANDS: [&str; 3] = ["testbed", "bench", "reproduce"];

/// A command line for `weft-lab` to parse.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(super) struct HandedOver {
    /// Options and arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    _all: Vec<OsString>,
}

/// Replaces this process by `weft-lab` with the same command line. Returns only if that fails.
pub(super) fn hand_over(command: &str) -> Exit {
    match become_lab(command) {
        Ok(never) => match never {},
        // This process did not parse the command's own options.
        Err(error) => shell::report(&error, shell::asks_for_json()),
    }
}

fn become_lab(command: &str) -> Result<Infallible> {
    let Some(lab) = beside::find(LAB)? else {
        let this = beside::this()?;
        return Err(Error::fatal(format!(
            "`weft {command}` needs {LAB}, and there is none beside this weft ({}): build it with `make lab`",
            this.display()
        )));
    };
    let mut line = std::env::args_os();
    let mut as_lab = Command::new(&lab);
    // Help and errors of `weft-lab` name the command that the user typed.
    as_lab.arg0(line.next().unwrap_or_default()).args(line).env(HANDED_OVER_BY, VERSION);
    let error = as_lab.exec();
    Err(Error::fatal(format!("cannot run {}: {error}", lab.display())))
}
