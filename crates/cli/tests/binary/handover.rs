//! The real `weft` binary without a `weft-lab` beside it. `crates/lab` tests the handover itself.

use crate::common::{Ended, weft, weft_at};
use serde_json::Value;
use std::path::PathBuf;
use tempfile::TempDir;

/// A `weft` with nothing beside it.
fn alone() -> (TempDir, PathBuf) {
    // On the file system of the binary.
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("weft");
    std::fs::hard_link(env!("CARGO_BIN_EXE_weft"), &path).unwrap();
    (dir, path)
}

#[test]
fn without_weft_lab_the_error_says_how_to_build_it() {
    let (_dir, alone) = alone();
    let run = |args: &[&str]| -> Ended { weft_at(&alone, args) };
    for (args, command) in [
        (&["bench", "repair", "--runs", "3"][..], "bench"),
        (&["bench"], "bench"),
        (&["bench", "--help"], "bench"),
        (&["--cluster", "there", "testbed", "ls"], "testbed"),
        (&["help", "reproduce", "mist"], "reproduce"),
    ] {
        let path = alone.display();
        let says =
            format!("`weft {command}` needs weft-lab, and there is none beside this weft ({path}): build it with `make lab`");
        run(args).refused(1, &says);
    }
    for args in [&["--json", "bench", "repair"][..], &["bench", "repair", "--runs", "3", "--json"]] {
        let ended = run(args);
        let error: Value = serde_json::from_str(&ended.stderr).unwrap_or_else(|_| panic!("no JSON: {}", ended.stderr));
        assert_eq!((ended.code, &error["error"]["kind"], &error["error"]["exit_code"]), (1, &"fatal".into(), &1.into()));
    }
    // All other commands work.
    run(&["help", "exit-codes"]).ok();
    run(&["code", "info", "rs(4,2)"]).ok();
}

#[test]
fn experiments_are_among_the_commands() {
    let (_dir, alone) = alone();
    for ended in [weft(["help"]), weft(["--help"]), weft_at(&alone, ["help"])] {
        let help = ended.ok().stdout;
        for command in ["testbed", "bench", "reproduce"] {
            let line = help.lines().find(|line| line.trim_start().starts_with(command)).unwrap_or_else(|| panic!("{help}"));
            assert!(line.contains("(in weft-lab)"), "{line}");
        }
    }
    assert_eq!(weft(["--version"]).ok().stdout, format!("weft {}\n", env!("CARGO_PKG_VERSION")));
}
