//! `weft code` on plain files, with the real binary.

use crate::common::{bytes, flip, weft};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// An encoded file.
struct Encoded {
    _scratch: TempDir,
    file: PathBuf,
    dir: PathBuf,
    out: PathBuf,
    content: Vec<u8>,
}

fn encoded(spec: &str, len: usize, options: &[&str]) -> Encoded {
    let scratch = TempDir::new().unwrap();
    let [file, dir, out] = ["file", "blocks", "out"].map(|name| scratch.path().join(name));
    let content = bytes(len, len as u64);
    std::fs::write(&file, &content).unwrap();
    let it = Encoded { _scratch: scratch, file, dir, out, content };
    weft([&["code", "encode", "--code", spec], options, &[it.file(), it.dir()]].concat()).ok();
    it
}

impl Encoded {
    fn file(&self) -> &str {
        self.file.to_str().unwrap()
    }
    fn dir(&self) -> &str {
        self.dir.to_str().unwrap()
    }
    fn out(&self) -> &str {
        self.out.to_str().unwrap()
    }
    fn block(&self, index: usize) -> PathBuf {
        self.dir.join(format!("block-{index:03}"))
    }
    fn blocks(&self) -> Vec<Vec<u8>> {
        (0..).map(|index| self.block(index)).take_while(|path| path.exists()).map(|path| std::fs::read(path).unwrap()).collect()
    }
    fn repair(&self) -> Value {
        weft(["code", "repair", self.dir(), "--json"]).ok().json()
    }
    fn decodes(&self) {
        weft(["code", "decode", self.dir(), self.out()]).ok();
        assert!(std::fs::read(&self.out).unwrap() == self.content, "the decoded file differs");
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn blocks_are_the_raw_bytes_of_an_independent_model() {
    let golden: Value = serde_json::from_str(include_str!("../../../codes/tests/data/rs.json")).unwrap();
    let hex = |value: &Value| -> Vec<u8> {
        let text = value["hex"].as_str().unwrap();
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    for code in golden["codes"].as_array().unwrap().iter().filter(|code| code["mds"] == true) {
        let scratch = TempDir::new().unwrap();
        let [file, dir] = ["file", "blocks"].map(|name| scratch.path().join(name));
        let (k, n) = (code["k"].as_u64().unwrap() as usize, code["n"].as_u64().unwrap() as usize);
        let blocks = code["blocks"].as_array().unwrap();
        std::fs::write(&file, blocks[..k].iter().flat_map(hex).collect::<Vec<_>>()).unwrap();
        let matrix = code["params"]["construction"].as_str().unwrap();
        let matrix = matrix.trim_start_matches("isal_").trim_end_matches("1").trim_end_matches("_reed_sol_van");
        let spec = format!("rs({k},{},matrix={matrix})", n - k);
        weft(["code", "encode", "--code", &spec, file.to_str().unwrap(), dir.to_str().unwrap()]).ok();
        for (index, block) in blocks.iter().enumerate() {
            assert_eq!(std::fs::read(dir.join(format!("block-{index:03}"))).unwrap(), hex(block), "{spec} block {index}");
        }
        for repair in code["repairs"].as_array().unwrap().iter().take(4) {
            let lost = dir.join(format!("block-{:03}", repair["lost"].as_u64().unwrap()));
            std::fs::remove_file(&lost).unwrap();
            let repaired = weft(["code", "repair", dir.to_str().unwrap(), "--json"]).ok().json();
            assert_eq!(std::fs::read(&lost).unwrap(), hex(&repair["expect"]));
            assert_eq!((&repaired["bytes_read"], &repaired["bytes_moved"]), (&repair["bytes_read"], &repair["bytes_moved"]));
        }
    }
}

#[test]
fn every_pattern_up_to_m_is_repaired_and_decoded() {
    let it = encoded("rs(3,2)", 10_001, &[]);
    let blocks = it.blocks();
    assert_eq!(blocks.iter().map(Vec::len).collect::<Vec<_>>(), [3334, 3334, 3333, 3334, 3334]);
    assert_eq!(blocks[..3].concat(), it.content, "without a cell size, the data blocks are consecutive parts of the file");
    for first in 0..5 {
        for second in first..5 {
            std::fs::remove_file(it.block(first)).unwrap();
            if second != first {
                flip(&it.block(second), 1000);
            }
            it.decodes();
            let repaired = it.repair();
            assert_eq!(it.blocks(), blocks, "{first} {second}");
            let lost: Vec<u64> = repaired["repaired"].as_array().unwrap().iter().map(|b| b["index"].as_u64().unwrap()).collect();
            assert_eq!(lost, if first == second { vec![first as u64] } else { vec![first as u64, second as u64] });
            let helpers = repaired["helpers"].as_array().unwrap();
            assert_eq!(helpers.len(), 3);
            assert!(helpers.iter().all(|helper| !lost.contains(&helper.as_u64().unwrap())), "a corrupt block was used");
        }
    }
    assert_eq!(names(&it.dir).len(), 6, "nothing is left behind");
}

#[test]
fn files_of_all_sizes_are_restored() {
    for (spec, len, options) in [
        ("rs(3,2)", 0, &[][..]),
        ("rs(3,2)", 1, &[]),
        ("rs(10,4)", 7, &[]),
        ("rs(1,1)", 5000, &[]),
        ("rs(3,2)", 100_000, &["--block-size", "4096"]),
        ("rs(3,2)", 98_304, &["--block-size", "4KiB", "--cell-size", "1KiB"]),
        ("rs(3,2)", 98_305, &["--block-size", "4KiB", "--cell-size", "512"]),
        ("rs(3,2)", 500, &["--block-size", "64MiB", "--cell-size", "1MiB"]),
        ("RS-6-3-1k", 100_000, &[]),
        ("rs(10,4,matrix=vandermonde)", 3_000_001, &["--cell-size", "77"]),
        ("rs(4,2)", 9_000_000, &[]),
        ("rs(3,2)", 2_000_003, &["--cell-size", "1"]),
    ] {
        let it = encoded(spec, len, options);
        let blocks = it.blocks();
        it.decodes();
        let m = if spec.contains("10,4") { 4 } else { 1 };
        for index in 0..m {
            std::fs::remove_file(it.block(index)).unwrap();
        }
        it.decodes();
        it.repair();
        assert!(it.blocks() == blocks, "{spec} {len}");
        let verified = weft(["code", "verify", it.dir(), "--json"]).ok().json();
        assert_eq!((&verified["ok"], &verified["file_size"]), (&Value::from(true), &Value::from(len)));
    }
}

#[test]
fn blocks_that_are_corrupt_in_different_places_help_each_other() {
    // Five of five blocks are corrupt, each in another MiB: each MiB has four good blocks, and three are enough.
    let it = encoded("rs(3,2)", 15 << 20, &[]);
    let blocks = it.blocks();
    (0..5).for_each(|index| flip(&it.block(index), (index << 20) + 17));
    let verified = weft(["code", "verify", it.dir(), "--json"]);
    assert_eq!((verified.code, &verified.json()["recoverable"]), (5, &Value::from(true)));
    it.decodes();
    let repaired = it.repair();
    assert_eq!(repaired["bytes_read"], 15 << 20);
    assert!(it.blocks() == blocks);
}

#[test]
fn truncated_and_overlong_blocks_are_found() {
    let it = encoded("rs(3,2)", 9000, &[]);
    let blocks = it.blocks();
    std::fs::write(it.block(1), &blocks[1][..100]).unwrap();
    std::fs::write(it.block(4), [&blocks[4][..], b"more"].concat()).unwrap();
    let verified = weft(["code", "verify", it.dir()]);
    assert_eq!(verified.code, 5);
    assert!(verified.stdout.contains("block-001 corrupt: it has 100 bytes instead of 3000"), "{}", verified.stdout);
    assert!(verified.stdout.contains("block-004 corrupt: it has 3004 bytes"), "{}", verified.stdout);
    it.repair();
    assert!(it.blocks() == blocks);
}

#[test]
fn one_loss_too_many_names_the_blocks_and_writes_nothing() {
    let it = encoded("rs(3,2)", 9000, &[]);
    std::fs::remove_file(it.block(0)).unwrap();
    std::fs::remove_file(it.block(3)).unwrap();
    flip(&it.block(4), 0);
    let before = names(&it.dir);
    weft(["code", "repair", it.dir()]).refused(4, "missing: block-000, block-003; corrupt: block-004");
    weft(["code", "decode", it.dir(), it.out()]).refused(4, "rs(3,2) recovers any 2 lost blocks");
    assert!(!it.out.exists());
    assert_eq!(names(&it.dir), before);
    assert_eq!(weft(["code", "verify", it.dir()]).code, 4);
    let error = weft(["code", "repair", it.dir(), "--json"]);
    let said: Value = serde_json::from_str(&error.stderr).unwrap();
    assert_eq!((error.code, error.stdout.as_str()), (4, ""));
    assert_eq!((&said["error"]["kind"], &said["error"]["exit_code"]), (&Value::from("unavailable"), &Value::from(4)));
}

#[test]
fn a_damaged_or_foreign_manifest_is_refused() {
    let it = encoded("rs(3,2)", 9000, &[]);
    let path = it.dir.join("manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to, code, says) in [
        ("\"size\": 3000", "\"size\": 3001", 5, "its checksum (manifest_crc32c)"),
        ("\"code\": \"rs(3,2)\"", "\"code\": \"rs(3,3)\"", 5, "its checksum (manifest_crc32c)"),
        ("\"version\": 1", "\"version\": 2", 2, "the manifest has version 2; this weft reads version 1"),
        ("\"format\": \"weft-blocks\"", "\"format\": \"tar\"", 2, "the format is 'tar'"),
        ("{", "", 5, "not a manifest"),
    ] {
        assert!(text.contains(from));
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        for command in ["repair", "verify"] {
            weft(["code", command, it.dir()]).refused(code, says);
        }
    }
    // Blanks are ignored.
    std::fs::write(&path, text.replace('\n', "\n\n")).unwrap();
    weft(["code", "verify", it.dir()]).ok();
    std::fs::remove_file(&path).unwrap();
    weft(["code", "verify", it.dir()]).refused(3, "manifest.json does not exist");
}

#[test]
fn invalid_requests_are_refused_before_any_write() {
    let scratch = TempDir::new().unwrap();
    let [file, dir] = ["file", "blocks"].map(|name| scratch.path().join(name).to_str().unwrap().to_owned());
    std::fs::write(&file, bytes(1000, 1)).unwrap();
    let encode = |options: &[&str]| weft([&["code", "encode"], options, &[file.as_str(), dir.as_str()]].concat());
    encode(&["--code", "raid(5)"]).refused(2, "there is no code 'raid': choose one of rs, xor, ");
    encode(&["--code", "rs(0,4)"]).refused(2, "k must be at least 1");
    encode(&["--code", "rs(200,56)"]).refused(2, "at most 255");
    encode(&["--code", "rs(10,5,matrix=vandermonde)"]).refused(2, "would lose data: blocks [");
    encode(&["--code", "rs(3,2)", "--block-size", "0"]).refused(2, "must be greater than zero");
    encode(&["--code", "rs(3,2)", "--block-size", "4096", "--cell-size", "1000"]).refused(2, "does not divide the block size");
    encode(&["--code", "rs(3,2)", "--block-size", "many"]).refused(2, "'many' is not a size");
    encode(&[]).refused(2, "--code <SPEC>");
    assert!(!Path::new(&dir).exists());
    weft(["code", "encode", "--code", "rs(3,2)", "/no/such/file", &dir]).refused(3, "/no/such/file: it does not exist");
    weft(["code", "encode", "--code", "rs(3,2)", "/dev/null", &dir]).refused(2, "is not a regular file");
    encode(&["--code", "rs(3,2)"]).ok();
    encode(&["--code", "rs(3,2)"]).refused(2, "choose a directory without blocks");
    weft(["code", "decode", &dir, scratch.path().to_str().unwrap()]).refused(2, "is a directory");
    weft(["code", "info", "rs(9"]).refused(2, "is not a code");
    weft(["frobnicate"]).refused(2, "unrecognized subcommand 'frobnicate'");
}

#[test]
fn info_shows_the_costs_of_a_code() {
    let info = weft(["code", "info", "RS-10-4-1024k", "--json"]).ok().json();
    assert_eq!((&info["code"], &info["k"], &info["tolerance"]), (&"rs(10,4)".into(), &10.into(), &4.into()));
    assert_eq!(info["blocks"][13]["blocks_read"], 10.0);
    assert!(weft(["code", "info", "rs(10,4)"]).ok().stdout.contains("recovers    any 4 blocks lost"));
    assert_eq!((&info["mds"], info.get("fatal")), (&true.into(), None));

    // Compared with Reed-Solomon, with the cell that a cluster would choose.
    assert_eq!(info["beyond_tolerance"].as_array().map(Vec::len), Some(0));
    let info = weft(["code", "info", "lrc(6,2,2)", "--json"]).ok().json();
    let four = serde_json::json!([{
        "lost": 4, "patterns": 210, "tried": 210, "recovered": 180, "share": 180.0 / 210.0, "exact": true
    }]);
    assert_eq!(info["beyond_tolerance"], four);
    let text = weft(["code", "info", "lrc(6,2,2)"]).ok().stdout;
    assert!(text.contains("85.7 % of the losses of 4 blocks (180 of 210 patterns)"), "{text}");
    let text = weft(["code", "info", "hsrc(250,8)"]).ok().stdout;
    assert!(text.contains("patterns of a sample, seed 1)"), "{text}");
    let info = weft(["code", "info", "clay(4,2)", "--json"]).ok().json();
    assert_eq!((&info["average"]["blocks_read"], &info["reed_solomon"]["blocks_read"]), (&2.5.into(), &4.0.into()));
    assert_eq!((&info["cell_size"], &info["sub_block_size"]), (&(1 << 20).into(), &(128 << 10).into()));
    assert_eq!(info["warnings"].as_array().map(Vec::len), Some(0));
    let text = weft(["code", "info", "clay(4,2)"]).ok().stdout;
    for says in
        ["blocks 0-5     5 helpers   reads  2.50   moves  2.50", "any block of rs(4,2)", "cell        1MiB: sub-blocks of 128KiB"]
    {
        assert!(text.contains(says), "{text}");
    }
    let short = weft(["code", "info", "clay(4,2)", "--cell-size", "64KiB"]).ok().stderr;
    assert!(short.contains("warning: a cell of 64KiB has 8 sub-blocks of 8KiB: sub-blocks below 64KiB"), "{short}");
    weft(["code", "info", "clay(4,2)", "--cell-size", "1001"]).refused(2, "the cell size must be a multiple of its 8 sub-blocks");

    // A code that is not MDS says so, with an example that it does not recover.
    let text = weft(["code", "info", "lrc(4,2,2)"]).ok().stdout;
    assert!(
        text.contains("not any 4, unlike rs(4,4): the code is not MDS; for example, it does not recover blocks 0, "),
        "{text}"
    );
    let info = weft(["code", "info", "hsrc(7,3)", "--json"]).ok().json();
    assert_eq!((&info["mds"], info["fatal"].as_array().map(Vec::len)), (&false.into(), Some(4)));

    // Without a code: the list of codes.
    let families = weft(["code", "info", "--json"]).ok().json();
    let names: Vec<&str> = families.as_array().unwrap().iter().map(|family| family["name"].as_str().unwrap()).collect();
    let text = weft(["code", "info"]).ok().stdout;
    for name in ["rs", "xor", "replication", "lrc", "rotated-rs", "hitchhiker-xor", "butterfly", "msr", "clay", "hsrc"] {
        assert!(names.contains(&name) && text.contains(&format!("{name}(")), "{name}: {text}");
    }
}

#[test]
fn every_code_rebuilds_files_of_any_size() {
    for (spec, alpha, tolerance) in [
        ("rs(4,2,matrix=jerasure)", 1, 2),
        ("xor(3)", 1, 1),
        ("replication(3)", 1, 2),
        ("lrc(4,2,2)", 1, 3),
        ("rotated-rs(4,2)", 2, 2),
        ("hitchhiker-xor(4,2)", 2, 2),
        ("hitchhiker-xor+(4,2)", 2, 2),
        ("butterfly(4)", 8, 2),
        ("msr(3,3,d=4)", 2, 3),
        ("clay(4,2)", 8, 2),
        ("clay(5,3,d=6)", 16, 3),
        ("hsrc(7,3)", 1, 3),
    ] {
        let info = weft(["code", "info", spec, "--json"]).ok().json();
        assert_eq!((&info["alpha"], &info["tolerance"]), (&alpha.into(), &tolerance.into()), "{spec}");
        let n = info["blocks"].as_array().unwrap().len();
        // Odd sizes of blocks and cells, with sub-blocks of odd sizes; and the code's own choice.
        let [cell, block] = [7 * alpha, 3 * 7 * alpha].map(|len: usize| len.to_string());
        let odd = ["--block-size", block.as_str(), "--cell-size", cell.as_str()];
        for (len, options) in [(0, &[][..]), (1, &[]), (100_003, &[]), (5 * 21 * alpha * 4 + 3, &odd), (13 * alpha, &odd[..2])] {
            let it = encoded(spec, len, options);
            let blocks = it.blocks();
            it.decodes();
            // As many losses as the code tolerates, data and parity.
            for index in (0..tolerance).map(|at| (at * 2 + len) % n) {
                std::fs::remove_file(it.block(index)).unwrap();
            }
            assert_eq!(weft(["code", "verify", it.dir(), "--json"]).json()["recoverable"], true, "{spec} {len}");
            it.decodes();
            it.repair();
            assert!(it.blocks() == blocks, "{spec} {len} {options:?}");
            weft(["code", "verify", it.dir()]).ok();
        }
        if alpha > 1 {
            let scratch = TempDir::new().unwrap();
            let [file, dir] = ["file", "dir"].map(|name| scratch.path().join(name).to_str().unwrap().to_owned());
            std::fs::write(&file, bytes(1000, 1)).unwrap();
            let block = (7 * alpha + 1).to_string();
            weft(["code", "encode", "--code", spec, "--block-size", &block, &file, &dir]).refused(2, "multiple of");
        }
    }
}

#[test]
fn every_command_has_help() {
    assert!(weft(["help", "exit-codes"]).ok().stdout.contains("5  corrupt"));
    assert!(weft(["help", "code", "encode"]).ok().stdout.contains("EXAMPLE"));
    assert!(weft(["code", "repair", "--help"]).ok().stdout.contains("weft code repair /backup/photos --json"));
    for command in [&["help", "get"][..], &["help", "repair", "object"]] {
        let text = weft(command).ok().stdout;
        let schemes = weft_schemes::answering(weft_schemes::Kind::Repair);
        let names = schemes.map(|scheme| scheme.name()).chain([weft_schemes::AUTO]);
        names.for_each(|name| assert!(text.contains(name), "{name} is not in {command:?}: {text}"));
    }
    weft(["help", "nothing"]).refused(3, "there is no command 'nothing'");
    assert!(weft(["--version"]).ok().stdout.starts_with("weft 0."));
}

/// Sends a signal to a process that this test has started.
fn interrupt(child: &std::process::Child) {
    let sent = std::process::Command::new("/bin/sh").args(["-c", &format!("kill -s INT {}", child.id())]).status().unwrap();
    assert!(sent.success());
}

/// Runs `weft` and interrupts it as soon as `dir` has a file with this in its name; checks that it reports the interruption.
fn interrupted(args: &[&str], dir: &Path, name: &str) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weft"));
    let mut child = command.args(args).arg("--json").stderr(std::process::Stdio::piped()).spawn().unwrap();
    let is_there = || {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).any(|there| there.starts_with('.') && there.contains(name))
    };
    while !is_there() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be interrupted: {args:?}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    interrupt(&child);
    let ended = child.wait_with_output().unwrap();
    let said: Value = serde_json::from_slice(&ended.stderr).unwrap();
    assert_eq!((ended.status.code(), &said["error"]["kind"]), (Some(130), &Value::from("interrupted")), "{args:?}");
}

#[test]
fn an_interrupted_command_leaves_nothing() {
    let scratch = TempDir::new().unwrap();
    let [file, dir, out] = ["file", "blocks", "out"].map(|name| scratch.path().join(name));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    // Holes are fast to create, but slow to read.
    std::fs::File::create(&file).unwrap().set_len(160 << 20).unwrap();
    let encode = ["code", "encode", "--code", "rs(3,2)", &text(&file), &text(&dir)];
    interrupted(&encode, &dir, "block-000");
    assert!(!dir.exists(), "{:?}", names(&dir));
    weft(encode).ok();
    interrupted(&["code", "decode", &text(&dir), &text(&out)], scratch.path(), "out");
    assert_eq!(names(scratch.path()), ["blocks", "file"]);
    std::fs::remove_file(dir.join("block-001")).unwrap();
    let before = names(&dir);
    interrupted(&["code", "repair", &text(&dir)], &dir, "block-001");
    assert_eq!(names(&dir), before);
    weft(["code", "repair", &text(&dir)]).ok();
}

#[test]
fn standard_input_is_encoded() {
    let scratch = TempDir::new().unwrap();
    let [dir, out] = ["dir", "out"].map(|name| scratch.path().join(name).to_str().unwrap().to_owned());
    let content = bytes(3_000_001, 7);
    let args = ["code", "encode", "--code", "rs(3,2)", "-", &dir];
    let mut child =
        std::process::Command::new(env!("CARGO_BIN_EXE_weft")).args(args).stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &content).unwrap();
    assert!(child.wait().unwrap().success());
    std::fs::remove_file(format!("{dir}/block-001")).unwrap();
    weft(["code", "decode", &dir, &out]).ok();
    assert!(std::fs::read(out).unwrap() == content);
    weft(["code", "encode", "--code", "rs(3,2)", "--explain", "-", &dir]).refused(2, "pass a file");
}

#[test]
fn files_of_other_programs_and_commands_are_left_alone() {
    let it = encoded("rs(3,2)", 9000, &[]);
    let encode = || weft(["code", "encode", "--code", "rs(3,2)", it.file(), it.dir()]);
    std::fs::remove_file(it.dir.join("manifest.json")).unwrap();
    for index in [0, 1, 2, 4] {
        std::fs::remove_file(it.block(index)).unwrap();
    }
    std::fs::write(it.block(3), "mine").unwrap();
    encode().refused(2, "block-003 exists without a manifest.json");
    assert_eq!(std::fs::read(it.block(3)).unwrap(), b"mine");
    assert_eq!(names(&it.dir), ["block-003"]);
    std::fs::remove_file(it.block(3)).unwrap();

    // A leftover of a killed process is never written through, even if it is a link.
    let target = it.dir.with_file_name("target");
    std::fs::write(&target, "mine").unwrap();
    std::os::unix::fs::symlink(&target, it.dir.join(".block-000.tmp")).unwrap();
    let held = std::fs::File::open(&it.dir).unwrap();
    held.lock().unwrap();
    encode().refused(1, "another weft process is working");
    drop(held);
    encode().ok();
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    it.decodes();
}

#[test]
fn a_symbolic_link_is_followed_and_a_device_or_pipe_is_not_replaced() {
    let it = encoded("rs(3,2)", 9000, &[]);
    let [link, fifo] = ["link", "fifo"].map(|name| it.dir.with_file_name(name));
    std::os::unix::fs::symlink(&it.out, &link).unwrap();
    weft(["code", "decode", it.dir(), link.to_str().unwrap()]).ok();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(std::fs::read(&it.out).unwrap() == it.content);
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    weft(["code", "decode", it.dir(), fifo.to_str().unwrap()]).refused(2, "fifo is not a regular file");
    assert!(!std::fs::symlink_metadata(&fifo).unwrap().is_file());
}
