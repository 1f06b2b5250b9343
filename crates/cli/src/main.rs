//! The `weft` binary: one command line over everything that weft does. One file a noun in `cmd/`; what works on plain files
//! without a cluster is in `offline/`.

mod cmd;
mod exit;
mod offline;
mod output;
mod progress;

fn main() -> std::process::ExitCode {
    cmd::main().into()
}
