//! The `weft-lab` binary: measurements on links of a chosen rate, with the `weft` beside it. `testbed/` is the network around a cluster,
//! `bench/` the measurements on it, `reproduce/` the experiments of papers, and `cmd/` the commands. Users call it through `weft`, which
//! hands these commands over.

mod bench;
mod cmd;
mod reproduce;
mod testbed;
mod version;

fn main() -> std::process::ExitCode {
    cmd::main().into()
}
