//! `weft` and `weft-lab` are installed in one directory and have one version. Each finds and starts the other there.

use std::path::{Path, PathBuf};
use weft_types::{Error, Result};

/// The binary with all commands except experiments; it also runs the daemons.
pub const WEFT: &str = "weft";
/// The binary with the experiments.
pub const LAB: &str = "weft-lab";
/// The environment variable in which `weft` passes its version to the `weft-lab` that it starts.
pub const HANDED_OVER_BY: &str = "WEFT_HANDED_OVER_BY";
/// The version of `weft`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The path of this binary.
pub fn this() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| Error::fatal(format!("cannot find this binary: {error}")))
}

/// The binary of that name beside this one, or beside the target of a symbolic link to this one.
pub fn find(name: &str) -> Result<Option<PathBuf>> {
    let this = this()?;
    let real = std::fs::canonicalize(&this).ok();
    let dirs = [Some(this.as_path()), real.as_deref()].into_iter().flatten().filter_map(Path::parent);
    Ok(dirs.map(|dir| dir.join(name)).find(|path| path.is_file()))
}

/// The `weft` that runs the daemons: this binary, or the one beside it if this is `weft-lab`.
pub fn weft() -> Result<PathBuf> {
    let this = this()?;
    if this.file_name().is_none_or(|name| name != LAB) {
        return Ok(this);
    }
    let none = || {
        Error::fatal(format!(
            "there is no `{WEFT}` beside {}, but it is needed to run the daemons: build both with `make lab`",
            this.display()
        ))
    };
    find(WEFT)?.ok_or_else(none)
}
