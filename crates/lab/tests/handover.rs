//! The handover from `weft` to the `weft-lab` beside it, with the real binaries.

mod common;

use common::{LAB, weft_path};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

const HANDED_OVER_BY: &str = "WEFT_HANDED_OVER_BY";
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn run(program: impl AsRef<Path>, args: &[&str]) -> Output {
    let mut command = Command::new(program.as_ref());
    command.args(args).env_remove(HANDED_OVER_BY).env_remove("WEFT_CLUSTER").stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Checks that it failed with this code and a one-line error that contains all of `says`.
fn refused(output: &Output, code: i32, says: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.lines().count() == 1 && said.starts_with("weft: "), "not one line of error: {said}");
    says.iter().for_each(|it| assert!(said.contains(it), "'{it}' is missing: {said}"));
}

/// The same for errors as JSON.
fn refused_as_json(output: &Output, code: i32, kind: &str) {
    let error: Value = serde_json::from_slice(&output.stderr).unwrap_or_else(|_| panic!("no JSON: {}", stderr(output)));
    assert_eq!((output.status.code(), &error["error"]["kind"]), (Some(code), &Value::from(kind)), "{error}");
    assert_eq!(error["error"]["exit_code"], code);
}

/// A directory of its own, on the file system of the binaries.
fn scratch() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Links a binary there.
fn place(binary: &str, dir: &Path) -> PathBuf {
    let path = dir.join(Path::new(binary).file_name().unwrap());
    fs::hard_link(binary, &path).unwrap();
    path
}

/// Puts a script there instead of a binary.
fn place_script(dir: &Path, name: &str, does: &str) {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{does}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn experiments_read_as_commands_of_weft() {
    for args in [&["bench", "--help"][..], &["help", "bench"], &["--json", "bench", "-h"]] {
        let ended = run(weft_path(), args);
        assert!(ended.status.success() && stdout(&ended).contains("Usage: weft bench "), "{args:?}: {ended:?}");
    }
    for args in [&["bench", "repair", "--help"][..], &["help", "bench", "repair"]] {
        let ended = run(weft_path(), args);
        let said = stdout(&ended);
        assert!(said.contains("Usage: weft bench repair ") && said.contains("sudo weft bench repair --schemes"), "{said}");
        assert!(!said.contains("weft-lab"), "{said}");
    }
    let ended = run(weft_path(), &["testbed"]);
    assert!(ended.status.code() == Some(2) && stderr(&ended).contains("Usage: weft testbed "), "{ended:?}");
    let ended = run(LAB, &["bench", "--help"]);
    assert!(stdout(&ended).contains("Usage: weft-lab bench "), "{ended:?}");
}

#[test]
fn errors_are_those_of_weft() {
    refused(&run(weft_path(), &["bench", "repair", "--runs", "0"]), 2, &["nothing to measure"]);
    refused(&run(weft_path(), &["bench", "repair", "--no-such-option"]), 2, &["--no-such-option", "Usage: weft bench repair "]);
    refused(&run(weft_path(), &["help", "bench", "nothing"]), 3, &["there is no command 'bench nothing'"]);
    for args in [&["--json", "bench", "repair", "--runs", "0"][..], &["bench", "repair", "--runs", "0", "--json"]] {
        refused_as_json(&run(weft_path(), args), 2, "invalid_input");
    }
    for args in [&["--json", "testbed", "ls"][..], &["testbed", "--json", "ls"], &["testbed", "ls", "--json"]] {
        let ended = run(weft_path(), args);
        assert!(serde_json::from_slice::<Value>(&ended.stdout).is_ok_and(|listed| listed.is_array()), "{args:?}: {ended:?}");
    }
}

#[test]
fn a_weft_of_another_version_is_refused_before_anything_is_done() {
    let both = ["this is weft-lab", VERSION, "is 9.8.7", "make lab"];
    let handed_over =
        |args: &[&str]| Command::new(LAB).args(args).env(HANDED_OVER_BY, "9.8.7").stdin(Stdio::null()).output().unwrap();
    for args in [&["testbed", "ls"][..], &["bench", "--help"], &["bench", "repair", "--no-such-option"]] {
        refused(&handed_over(args), 1, &both);
    }
    refused_as_json(&handed_over(&["testbed", "ls", "--json"]), 1, "fatal");

    // Started directly, it asks the weft beside it.
    let dir = scratch();
    let lab = place(LAB, dir.path());
    place_script(dir.path(), "weft", "echo weft 9.8.7");
    refused(&run(&lab, &["testbed", "ls"]), 1, &both);
    assert_eq!(stdout(&run(&lab, &["--version"])), format!("weft-lab {VERSION}\n"));
    place_script(dir.path(), "weft", &format!("echo weft {VERSION}"));
    assert!(run(&lab, &["testbed", "ls"]).status.success());
    place_script(dir.path(), "weft", "exit 3");
    refused(&run(&lab, &["testbed", "ls"]), 1, &["cannot get the version of"]);
}

#[test]
fn without_a_weft_only_what_needs_none_is_done() {
    let dir = scratch();
    let lab = place(LAB, dir.path());
    assert!(run(&lab, &["testbed", "ls"]).status.success());
    refused(&run(&lab, &["bench", "repair"]), 1, &["there is no `weft` beside", "make lab"]);
}

#[test]
fn what_was_typed_is_handed_over_as_it_is() {
    let (dir, elsewhere) = (scratch(), scratch());
    let weft = place(weft_path(), dir.path());
    place_script(dir.path(), "weft-lab", "echo \"$WEFT_HANDED_OVER_BY\"; for arg in \"$@\"; do echo \"<$arg>\"; done; exit 7");
    let link = elsewhere.path().join("weft");
    std::os::unix::fs::symlink(&weft, &link).unwrap();
    for program in [&weft, &link] {
        for args in [
            &["--json", "bench", "--cluster", "x y", "repair", "--runs", "", "--", "--help"][..],
            &["--cluster", "there", "reproduce", "-h"],
            &["testbed", "run", "--", "weft", "--json", "ls"],
            &["help", "testbed", "up"],
        ] {
            let ended = run(program, args);
            let all: String = args.iter().map(|arg| format!("<{arg}>\n")).collect();
            assert_eq!((ended.status.code(), stdout(&ended)), (Some(7), &*format!("{VERSION}\n{all}")), "{args:?}");
        }
    }
}

/// Without root and without a testbed: only what was measured is needed.
#[test]
fn results_are_drawn_again_where_nothing_can_be_measured() {
    let figures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures");
    let (dir, name) = (scratch(), "mist-13.json");
    fs::copy(figures.join(name), dir.path().join(name)).unwrap();
    let redraw = |figure: &str| {
        let out = dir.path().to_str().unwrap();
        run(weft_path(), &["reproduce", "mist", "--figure", figure, "--redraw", "--out", out])
    };
    let ended = redraw("13");
    assert!(ended.status.success() && stdout(&ended).contains("figure 13 of mist"), "{ended:?}");
    for ending in ["json", "csv", "svg", "png"] {
        let name = format!("mist-13.{ending}");
        assert!(fs::read(dir.path().join(&name)).unwrap() == fs::read(figures.join(&name)).unwrap(), "{name}");
    }
    let page = fs::read_to_string(dir.path().join("reproduce.md")).unwrap();
    assert!(page.contains("](mist-13.svg)") && page.contains("| 21.4 % | 21.4 % |"), "{page}");
    refused(&redraw("15"), 3, &["mist-15.json"]);
}
