//! The binaries that tests run.

// Every test file is its own program and uses only a part of this.
#![allow(dead_code)]

use std::{path::Path, sync::LazyLock};

/// The `weft-lab` that was built with the tests.
pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_weft-lab");

static WEFT: LazyLock<String> = LazyLock::new(|| {
    let weft = Path::new(LAB).with_file_name("weft");
    assert!(weft.is_file(), "there is no {}: build it with `cargo build --package weft` or `make test`", weft.display());
    weft.to_str().unwrap().to_owned()
});

/// The `weft` beside it.
pub(crate) fn weft_path() -> &'static str {
    &WEFT
}
