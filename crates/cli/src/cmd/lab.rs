//! Commands that `weft-lab` has: this process becomes the one that lies beside it.

use clap::Args;
use std::{convert::Infallible, ffi::OsString, os::unix::process::CommandExt as _, process::Command};
use weft_cli::{
    beside::{self, HANDED_OVER_BY, LAB, VERSION},
    exit::Exit,
    shell,
};
use weft_types::{Error, Result};

/// What it has.
pub(super) const COMMANDS: [&str; 3] = ["testbed", "bench", "reproduce"];

/// A command line that `weft-lab` reads.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(super) struct HandedOver {
    /// Options and arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    _all: Vec<OsString>,
}

/// Becomes `weft-lab`, with this process's own command line; returns only where it cannot, and has told why.
pub(super) fn hand_over(command: &str) -> Exit {
    match become_lab(command) {
        Ok(never) => match never {},
        // Options of the command were not read here.
        Err(error) => shell::report(&error, shell::asks_for_json()),
    }
}

fn become_lab(command: &str) -> Result<Infallible> {
    let Some(lab) = beside::find(LAB)? else {
        let this = beside::this()?;
        return Err(Error::fatal(format!(
            "`weft {command}` is part of {LAB}, which does not lie beside this weft ({}): `make lab` builds it",
            this.display()
        )));
    };
    let mut line = std::env::args_os();
    let mut as_lab = Command::new(&lab);
    // Its help and its errors name the command that was typed.
    as_lab.arg0(line.next().unwrap_or_default()).args(line).env(HANDED_OVER_BY, VERSION);
    let error = as_lab.exec();
    Err(Error::fatal(format!("cannot run {}: {error}", lab.display())))
}
