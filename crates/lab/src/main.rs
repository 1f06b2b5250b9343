//! The `weft-lab` binary: what is measured on links of a chosen rate, beside the `weft` that it measures. The network around a
//! cluster is in `testbed/`, what is measured on it in `bench/`, experiments of papers in `reproduce/`, and the commands in `cmd/`.
//! People call it by `weft`, which hands these commands over.

mod bench;
mod cmd;
mod reproduce;
mod testbed;
mod version;

fn main() -> std::process::ExitCode {
    cmd::main().into()
}
