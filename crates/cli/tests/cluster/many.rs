//! Many objects at once: put, listed and removed.

use crate::harness::{Cluster, Ended, Setup, bytes, path, send_signal, wait_for};
use serde_json::{Value, json};
use std::{
    ffi::OsStr,
    fs,
    io::Write as _,
    os::unix::{ffi::OsStrExt as _, fs::symlink, net::UnixListener},
    path::{Path, PathBuf},
    process::Stdio,
};

/// Small blocks, so that a small file has several stripes.
const CODING: [&str; 6] = ["--code", "rs(2,1)", "--block-size", "64KiB", "--cell-size", "4KiB"];

fn up() -> Cluster {
    Setup { racks: 3, ..Setup::nodes(4) }.up()
}

/// Writes files below a directory beside the cluster: each contains as many bytes as its path has, or 300,000.
fn tree(cluster: &Cluster, name: &str, files: &[&str]) -> PathBuf {
    let root = cluster.file(name);
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content(file)).unwrap();
    }
    root
}

fn content(file: &str) -> Vec<u8> {
    if file.ends_with("large") { bytes(300_000, 7) } else { file.as_bytes().to_vec() }
}

/// Names of a listing as JSON: keys, and folders.
fn names(listed: &Value) -> Vec<&str> {
    let name = |it: &Value| if it["key"].is_null() { it["folder"].clone() } else { it["key"].clone() };
    assert!(listed.as_array().unwrap().iter().all(|it| name(it).is_string()), "{listed}");
    listed.as_array().unwrap().iter().map(|it| it["key"].as_str().or(it["folder"].as_str()).unwrap()).collect()
}

fn all(cluster: &Cluster, prefix: &str) -> Vec<String> {
    names(&cluster.json(&["ls", prefix, "--recursive"])).into_iter().map(str::to_owned).collect()
}

/// Runs a command with these bytes as its standard input.
fn fed(cluster: &Cluster, args: &[&str], input: &[u8]) -> Ended {
    let mut running = cluster.start(args, Stdio::piped());
    running.child().stdin.take().unwrap().write_all(input).unwrap();
    running.end()
}

/// `failed: NAME: …` on stderr, for each of these.
fn says_failed(ended: &Ended, parts: &[(&str, &str)]) {
    for (name, why) in parts {
        let line = ended.stderr.lines().find(|line| line.starts_with("failed: ") && line.contains(name));
        assert!(line.is_some_and(|line| line.contains(why)), "{name}: '{why}' is missing: {}", ended.stderr);
    }
}

#[test]
fn a_tree_is_put_listed_and_removed() {
    let cluster = up();
    cluster.weft(["bucket", "create", "photos"]).ok();
    let files = ["a.jpg", "2024/b.jpg", "2024/x/large", "2024/empty name", "2025/ü.jpg", "2024-draft"];
    let root = tree(&cluster, "album", &files);
    symlink("a.jpg", root.join("link")).unwrap();
    let put = [&["put", "--recursive", path(&root), "photos/all"][..], &CODING].concat();
    let stored = cluster.weft(&put).ok();
    let total: usize = files.iter().map(|file| content(file).len()).sum();
    assert!(stored.text().starts_with("stored 6 objects, "), "{}", stored.text());
    assert!(stored.stderr.contains("warning: skipped 1 symbolic links"), "{}", stored.stderr);
    for file in files {
        cluster.expect(&format!("photos/all/{file}"), &content(file), &[]);
    }
    let again = cluster.json(&[&put[..], &["--follow-symlinks", "--parallel", "1"]].concat());
    assert_eq!((&again["objects"], &again["failed"], &again["skipped_links"]), (&json!(7), &json!(0), &json!(0)), "{again}");
    assert_eq!((&again["bytes"], &again["failures"]), (&json!(total + content("a.jpg").len()), &json!([])));

    // Folders by default, all objects with --recursive, pages with --limit.
    let list = |args: &[&str]| cluster.weft([&["ls"], args].concat()).ok();
    assert_eq!(list(&["photos"]).text(), "all/\n");
    assert_eq!(list(&["photos/all/"]).text(), "all/2024-draft\nall/2024/\nall/2025/\nall/a.jpg\nall/link\n");
    assert_eq!(list(&["photos/all/2024"]).text(), "all/2024-draft\nall/2024/\n");
    assert_eq!(list(&["photos/all/2024/", "--delimiter", " "]).text(), "all/2024/b.jpg\nall/2024/empty \nall/2024/x/large\n");
    let page = list(&["photos", "-r", "--limit", "4"]);
    assert_eq!(page.text(), "all/2024-draft\nall/2024/b.jpg\nall/2024/empty name\nall/2024/x/large\n");
    assert_eq!(page.stderr, "more follows: weft ls photos --recursive --limit 4 --after all/2024/x/large\n");
    let rest = list(&["photos", "-r", "--limit", "4", "--after", "all/2024/x/large"]);
    assert_eq!((rest.text(), rest.stderr.as_str()), ("all/2025/ü.jpg\nall/a.jpg\nall/link\n", ""));
    let long = list(&["photos/all/", "--long"]);
    let line = |name: &str| long.text().lines().find(|line| line.ends_with(name)).unwrap().to_owned();
    assert!(line("all/2024/").contains("folder") && line("all/a.jpg").contains("5 B  rs(2,1)"), "{}", long.text());
    let listed = list(&["photos/all/2", "--json", "--limit", "2"]);
    assert_eq!(names(&listed.json()), ["all/2024-draft", "all/2024/"]);
    assert_eq!(listed.json()[0]["size"], 10);
    assert!(
        listed.json()[0]["created"].as_str().is_some_and(|it| it.starts_with("20") && it.ends_with('Z')),
        "{}",
        listed.text()
    );
    assert_eq!(serde_json::from_str::<Value>(&listed.stderr).unwrap(), json!({ "more": true, "after": "all/2024/" }));
    cluster.weft(["ls", "nowhere/all/"]).refused(3, &["nowhere"]);
    cluster.weft(["ls", "--recursive"]).refused(2, &["PREFIX"]);

    // A prefix is text: without its final '/', it includes the neighbour.
    let dry = cluster.weft(["rm", "--recursive", "photos/all/2024/", "--dry-run"]).ok();
    assert_eq!(dry.text().lines().filter(|line| line.starts_with("would remove photos/all/2024/")).count(), 3, "{}", dry.text());
    assert!(dry.text().lines().last().unwrap().starts_with("would remove 3 objects, "), "{}", dry.text());
    assert_eq!(all(&cluster, "photos").len(), 7);
    let removed = cluster.json(&["rm", "--recursive", "photos/all/2024/"]);
    assert_eq!((&removed["objects"], &removed["failed"], &removed["dry_run"]), (&json!(3), &json!(0), &json!(false)));
    assert_eq!(all(&cluster, "photos/all/2"), ["all/2024-draft", "all/2025/ü.jpg"]);
    for whole in ["photos", "photos/"] {
        cluster.weft(["rm", "--recursive", whole]).refused(2, &["all objects of the bucket 'photos'", "--yes", "--dry-run"]);
    }
    assert!(cluster.weft(["rm", "-r", "photos", "--dry-run"]).ok().text().contains("would remove 4 objects"));
    assert!(cluster.weft(["rm", "-r", "photos", "--yes"]).ok().text().starts_with("removed 4 objects, "));
    assert_eq!(cluster.weft(["rm", "-r", "photos/x"]).ok().text(), "removed 0 objects, 0 B\n");
    cluster.weft(["rm", "-r", "nowhere/x"]).refused(3, &["nowhere"]);
    wait_for("the blocks to be freed", || cluster.files().is_empty());
    cluster.weft(["bucket", "rm", "photos"]).ok();
}

#[test]
fn what_fails_is_named_and_the_rest_goes_on() {
    let cluster = up();
    let root = tree(&cluster, "files", &["a", "b", "sub/c"]);
    let strange = root.join(OsStr::from_bytes(b"x\xff"));
    fs::write(&strange, "x").unwrap();
    fs::write(root.join("line\nfeed"), "x").unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    let put = [&["put", "-r", path(&root), "default"][..], &CODING].concat();
    let ended = cluster.weft(&put).code(2);
    assert!(ended.text().starts_with("stored 3 objects, ") && ended.text().contains("; 3 failed"), "{}", ended.text());
    says_failed(&ended, &[("socket", "not a regular file"), ("x\u{fffd}", "not UTF-8"), ("line\\nfeed", "control characters")]);
    assert_eq!(all(&cluster, "default"), ["a", "b", "sub/c"]);

    // Several files go to a folder; one of them does not exist.
    let [a, b] = ["a", "b"].map(|name| path(&root.join(name)).to_owned());
    let missing = path(&root.join("missing")).to_owned();
    let ended = cluster.weft([&["put", &a, &missing, &b, "default/dir/"][..], &CODING].concat()).code(3);
    says_failed(&ended, &[("missing", "does not exist")]);
    cluster.weft(["put", &a, &b, "default"]).refused(2, &["write default/"]);
    cluster.weft(["put", path(&root), "default/k"]).refused(2, &["is a directory", "--recursive"]);
    cluster.weft(["put", &a, &b, "nowhere/"]).refused(3, &["there is no bucket nowhere"]);
    cluster.weft(["put", &a, &b, "default/", "--code", "raid(5)"]).refused(2, &["there is no code 'raid'"]);
    cluster.weft(["put", &a, &b, "default/a\tb/"]).refused(2, &["control characters"]);
    // Of small files, two blocks have bytes.
    cluster.weft(["put", &a, &b, "default/wide/", "--code", "rs(20,1)"]).ok();
    cluster.weft(["rm", "-r", "default/wide"]).ok();
    cluster.weft(["put", &a, &b, "default/dir/", "--explain"]).refused(2, &["one FILE"]);
    cluster.weft([&["put", &a, "default/one/"][..], &CODING].concat()).ok();
    assert_eq!(all(&cluster, "default"), ["a", "b", "dir/a", "dir/b", "one/a", "sub/c"]);

    // Lists of files and of names.
    let list = |end: &str| ["./a", "sub//c", "../a", "/etc/passwd", "missing", "sub", ""].join(end);
    for (end, option) in [("\n", None), ("\0", Some("--null"))] {
        let args: Vec<&str> = ["put", "--from", "-", "default/list"].into_iter().chain(option).chain(CODING).collect();
        let ended = in_dir(&cluster, &root, &args, list(end).as_bytes()).code(1);
        assert!(ended.text().starts_with("stored 2 objects, ") && ended.text().contains("; 4 failed"), "{}", ended.text());
        says_failed(
            &ended,
            &[("../a", "'..'"), ("/etc/passwd", "absolute"), ("missing", "not exist"), ("sub:", "is a directory")],
        );
    }
    assert_eq!(all(&cluster, "default/list/"), ["list/a", "list/sub/c"]);
    cluster.expect("default/list/sub/c", b"sub/c", &[]);

    let ended = fed(&cluster, &["rm", "--from", "-", "--json"], b"default/list/a\n\ndefault/list/no\na\ndefault/\n\xff\n");
    let report = ended.code(1).json();
    assert_eq!((&report["objects"], &report["failed"]), (&json!(2), &json!(3)), "{report}");
    let failures = report["failures"].as_array().unwrap();
    let failure = |name: &str| failures.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"));
    assert_eq!(failure("default/list/no")["exit_code"], 3);
    assert!(failure("default/")["message"].as_str().unwrap().contains("is not an object name"));
    assert!(failure("\u{fffd}")["message"].as_str().unwrap().contains("not UTF-8"));
    let names = cluster.write("names", b"default/b\0default/dir/a\0");
    assert!(cluster.weft(["rm", "--from", path(&names), "-0", "--dry-run"]).ok().text().contains("would remove default/dir/a"));
    assert!(cluster.weft(["rm", "--from", path(&names), "-0"]).ok().text().starts_with("removed 2 objects, "));
    cluster.weft(["rm", "--from", path(&cluster.file("no such list"))]).refused(3, &["no such list"]);

    let ended = cluster.weft(["rm", "default/dir/b", "default/no", "default/one/a"]).code(3);
    assert_eq!(ended.text(), "removed 2 objects, 2 B; 1 failed\n");
    says_failed(&ended, &[("default/no", "there is no object")]);
    assert_eq!(all(&cluster, "default"), ["list/sub/c", "sub/c"]);
    cluster.weft(["rm", "default/no"]).refused(3, &["there is no object"]);
    assert_eq!(cluster.json(&["rm", "default/sub/c"]), json!({ "removed": "default/sub/c" }));
}

#[test]
fn an_interrupted_command_says_what_it_has_done() {
    let cluster = up();
    for key in ["a", "b"] {
        cluster.put(key, key.as_bytes(), &CODING).ok();
    }
    // A full batch is removed at once; the rest waits for more names, until the signal.
    let mut running = cluster.start(["rm", "--from", "-"], Stdio::piped());
    let stdin = running.child().stdin.take().unwrap();
    let mut text = b"default/a\ndefault/b\n".to_vec();
    (0..998).for_each(|number| text.extend(format!("default/no-{number}\n").bytes()));
    (&stdin).write_all(&text).unwrap();
    // The command reads on only after the answer to the batch, and a pipe holds less than these empty lines.
    (&stdin).write_all(&[b'\n'; 256 << 10]).unwrap();
    assert_eq!(all(&cluster, "default"), [""; 0]);
    send_signal(running.child().id(), "INT");
    wait_for("the end", || !running.is_running());
    drop(stdin);
    let ended = running.end().code(130);
    assert!(ended.stderr.contains("weft: interrupted; removed before that: 2 objects, 2 B; 998 failed"), "{}", ended.stderr);
    assert!(ended.stderr.contains("failed: 978 more"), "{}", ended.stderr);
}

#[test]
fn an_interrupted_put_keeps_what_it_has_stored() {
    let cluster = up();
    let root = tree(&cluster, "files", &["a", "b"]);
    let args = [&["put", "--from", "-", "default/x"][..], &CODING].concat();
    let mut running = cluster.start_in(&root, &args, Stdio::piped());
    let stdin = running.child().stdin.take().unwrap();
    (&stdin).write_all(b"a\nb\nmissing\n").unwrap();
    wait_for("the files", || all(&cluster, "default").len() == 2);
    send_signal(running.child().id(), "INT");
    wait_for("the end", || !running.is_running());
    drop(stdin);
    let ended = running.end().code(130);
    assert!(ended.stderr.contains("weft: interrupted; stored before that: "), "{}", ended.stderr);
    assert_eq!(all(&cluster, "default"), ["x/a", "x/b"]);
}

fn in_dir(cluster: &Cluster, dir: &Path, args: &[&str], input: &[u8]) -> Ended {
    let mut running = cluster.start_in(dir, args, Stdio::piped());
    running.child().stdin.take().unwrap().write_all(input).unwrap();
    running.end()
}
