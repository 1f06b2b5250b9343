//! The `weft` binary: one command line over everything that weft does. One file a noun in `cmd/`; what works on plain files without
//! a cluster is in `offline/`. What it shares with `weft-lab` is in the library.

mod cmd;
mod offline;

fn main() -> std::process::ExitCode {
    cmd::main().into()
}
