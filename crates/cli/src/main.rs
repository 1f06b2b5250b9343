//! The `weft` binary: one command line over everything that weft does. One file a noun in `cmd/`; what works on plain files
//! without a cluster is in `offline/`, a cluster of processes on this machine in `local/`, the network around it in
//! `testbed/`, what is measured on it in `bench/`, and experiments of papers in `reproduce/`.

mod bench;
mod cmd;
mod exit;
mod interrupt;
mod local;
mod names;
mod offline;
mod output;
mod progress;
mod reproduce;
mod session;
mod settings;
mod table;
mod target;
mod testbed;

fn main() -> std::process::ExitCode {
    cmd::main().into()
}
