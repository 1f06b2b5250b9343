//! The `weft` binary. `cmd/` has one file per noun; `offline/` works on plain files without a cluster. The library holds what `weft`
//! shares with `weft-lab`.

mod cmd;
mod offline;

fn main() -> std::process::ExitCode {
    cmd::main().into()
}
