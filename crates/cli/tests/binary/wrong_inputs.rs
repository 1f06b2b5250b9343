//! Wrong inputs without a cluster: each answer is one line that says what is wrong and what to do, with the names that were typed.

use crate::common::{bytes, weft_in};
use std::{fs, path::Path};
use tempfile::TempDir;

/// Files and directories that the commands name.
fn scratch() -> TempDir {
    let scratch = TempDir::new().unwrap();
    let dir = scratch.path();
    fs::write(dir.join("file"), bytes(1000, 1)).unwrap();
    fs::write(dir.join("text"), "hello\n").unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    fs::create_dir(dir.join("dir")).unwrap();
    weft_in(dir, &["code", "encode", "--code", "rs(3,2)", "file", "blocks"]).ok();
    weft_in(dir, &["certificate", "authority", "auth"]).ok();
    scratch
}

/// What is typed, the exit code, and parts of the answer.
type Case = (&'static str, i32, &'static [&'static str]);

const LINES: &[Case] = &[
    ("frobnicate", 2, &["unrecognized subcommand 'frobnicate'"]),
    ("puts", 2, &["a similar subcommand exists: 'put'"]),
    ("heat photos/cat.jpg", 2, &["there is no command 'heat' here: use `weft policy heat`"]),
    ("convert photos --to lrc(6,2,2)", 2, &["use `weft policy convert`"]),
    ("node repair node-03", 2, &["use `weft repair`"]),
    ("help nothing", 3, &["there is no command 'nothing'", "`weft help`"]),
    ("node remove", 2, &["<NODE>", "Usage: weft node remove"]),
    ("node disk forget node-03", 2, &["<DISK>"]),
    ("job show x", 2, &["'x'", "a whole number is required"]),
    ("get a b --range 5-1", 2, &["'5-1' is not a range", "0-1023"]),
    ("cluster up --nodes 0", 2, &["cannot have 0 nodes", "1 to 512"]),
    ("cluster up --nodes x", 2, &["'x'", "a whole number is required"]),
    ("cluster up --nodes 3 --racks 9", 2, &["9 racks", "1 to 3"]),
];

const CODES: &[Case] = &[
    ("code info rs(4", 2, &["'rs(4' is not a code", "rs(10,4)"]),
    ("code info rs(0,2)", 2, &["k must be at least 1"]),
    ("code info rs(200,100)", 2, &["k+m is 300", "at most 255"]),
    ("code info raid(5)", 2, &["there is no code 'raid'", "`weft code info`"]),
    ("code info lrc(4,3,2)", 2, &["use lrc(3,3,2) or lrc(6,3,2)"]),
    ("code encode --code bad file out", 2, &["there is no code 'bad'"]),
    ("code encode --code rs(3,2) --cell-size 0 file out", 2, &["greater than zero"]),
    ("code encode --code rs(3,2) --cell-size 1XB file out", 2, &["'1XB' is not a size", "64KiB"]),
    ("code encode --code rs(3,2) --cell-size 99999999999TiB file out", 2, &["'99999999999TiB' is too large"]),
];

const PATHS: &[Case] = &[
    ("code encode --code rs(3,2) none out", 3, &["cannot open none: it does not exist"]),
    ("code encode --code rs(3,2) dir out", 2, &["dir is not a regular file"]),
    ("code encode --code rs(3,2) file file", 2, &["cannot create file: a file of this name exists"]),
    ("code encode --code rs(3,2) file blocks", 2, &["blocks/manifest.json exists", "without blocks"]),
    ("code decode none out", 3, &["none does not exist", "`weft code encode` wrote"]),
    ("code decode file out", 2, &["file is not a directory", "`weft code encode` wrote"]),
    ("code decode dir out", 3, &["dir/manifest.json does not exist", "`weft code encode` wrote"]),
    ("code decode blocks dir", 2, &["dir is a directory", "path of a file"]),
    ("code decode blocks none/out", 3, &["the directory none does not exist"]),
    ("code verify none", 3, &["none does not exist"]),
    ("plan show none", 3, &["cannot read none: it does not exist"]),
    ("plan show dir", 2, &["cannot read dir: it is a directory, not a file"]),
    ("plan show text", 2, &["text: not a saved plan", "--explain --json"]),
    ("plan verify empty", 2, &["empty: not a saved plan: it is empty", "--explain --json"]),
    ("certificate authority file", 2, &["cannot create file: a file of this name exists"]),
    ("certificate authority file/x", 2, &["file is a file, not a directory"]),
    ("certificate authority auth", 2, &["already has an authority"]),
    ("certificate issue bogus --authority auth", 2, &["'coordinator', 'client' or 'agent:NODE'"]),
    ("certificate issue agent:a/b --authority auth", 2, &["'a/b' is not a valid node name", "node-07"]),
    ("certificate issue client --authority dir", 3, &["cannot read dir/ca.pem: it does not exist"]),
    ("demo --file dir", 2, &["dir is a directory"]),
];

const CLUSTERS: &[Case] = &[
    ("ls", 3, &["--cluster DIR", "`weft cluster up --dir DIR --nodes 16`"]),
    ("cluster up", 2, &["there is no cluster in weft-cluster", "--nodes N"]),
    ("cluster down --dir none", 3, &["there is no cluster in none"]),
    ("cluster down --dir file", 2, &["file is a file", "the directory of a cluster"]),
    ("cluster up --nodes 3 --dir file", 2, &["file is a file"]),
    ("cluster up --nodes 3 --dir auth", 2, &["auth is not empty and holds no cluster"]),
    ("--cluster none ls", 3, &["no cluster 'none'", "host:port"]),
    ("--cluster dir ls", 3, &["there is no cluster in dir", "weft.toml"]),
    ("--cluster text ls", 2, &["text line 1, `hello`"]),
    ("--cluster 127.0.0.1:1 ls", 2, &["--certificates DIR", "--insecure"]),
    ("--cluster 127.0.0.1:1 --insecure ls", 4, &["127.0.0.1:1", "is the cluster up?"]),
    ("--cluster 127.0.0.1:1 --certificates none ls", 3, &["--certificates none: there is no such directory"]),
    ("--cluster 127.0.0.1:1 --certificates dir ls", 3, &["dir/ca.pem: there is no such file"]),
    ("coordinator --config none", 3, &["cannot read none: it does not exist"]),
    ("coordinator --config dir", 2, &["cannot read dir: it is a directory, not a file"]),
    ("agent --config text", 2, &["text line 1, `hello`"]),
    ("metadata backup copy", 3, &["there is no cluster in weft-cluster"]),
    ("metadata backup copy --config none", 3, &["cannot read none: it does not exist"]),
];

#[test]
fn a_wrong_input_is_answered_with_what_is_wrong_and_what_to_do() {
    let scratch = scratch();
    let before = names(scratch.path());
    for (typed, code, says) in [LINES, CODES, PATHS, CLUSTERS].concat() {
        let args: Vec<&str> = typed.split(' ').collect();
        let ended = weft_in(scratch.path(), &args);
        assert_eq!(ended.code, code, "{typed}: {}", ended.stderr);
        let lines: Vec<&str> = ended.stderr.lines().collect();
        assert!(lines.len() == 1 && lines[0].starts_with("weft: "), "{typed}: not one line of error: {}", ended.stderr);
        for part in says {
            assert!(lines[0].contains(part), "{typed}: '{part}' is missing: {}", ended.stderr);
        }
        // Error numbers and internal names do not help a user.
        for word in ["os error", "panicked", "I/O error", "Err(", "None"] {
            assert!(!lines[0].contains(word), "{typed}: {}", ended.stderr);
        }
        assert_eq!(names(scratch.path()), before, "{typed} left something behind");
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
