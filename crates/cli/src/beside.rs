//! `weft` and `weft-lab` lie in one directory and are of one version: each starts the other from there.

use std::path::{Path, PathBuf};
use weft_types::{Error, Result};

/// The binary with everything but experiments; daemons are run by it.
pub const WEFT: &str = "weft";
/// The binary with experiments.
pub const LAB: &str = "weft-lab";
/// The environment variable in which `weft` tells its version to the `weft-lab` that it hands over to.
pub const HANDED_OVER_BY: &str = "WEFT_HANDED_OVER_BY";
/// The version of `weft`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The path of this binary.
pub fn this() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| Error::fatal(format!("cannot find this binary: {error}")))
}

/// The binary of that name beside this one, or beside the file that a symbolic link to this one leads to.
pub fn find(name: &str) -> Result<Option<PathBuf>> {
    let this = this()?;
    let real = std::fs::canonicalize(&this).ok();
    let dirs = [Some(this.as_path()), real.as_deref()].into_iter().flatten().filter_map(Path::parent);
    Ok(dirs.map(|dir| dir.join(name)).find(|path| path.is_file()))
}

/// The `weft` that daemons are started from: this binary, or the one beside it where this is `weft-lab`.
pub fn weft() -> Result<PathBuf> {
    let this = this()?;
    if this.file_name().is_none_or(|name| name != LAB) {
        return Ok(this);
    }
    let none =
        || Error::fatal(format!("no `{WEFT}` lies beside {}, and daemons are run by it: `make lab` builds both", this.display()));
    find(WEFT)?.ok_or_else(none)
}
