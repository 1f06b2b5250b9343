//! The testbed itself: that its links are what they should be, that results have the promised form, and that nothing is left behind,
//! however it ends. It needs root, `ip` and `tc`, and says so where it is skipped.

use serde_json::Value;
use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const WEFT: &str = env!("CARGO_BIN_EXE_weft");

/// One at a time: a machine carries only so many links, and each test looks at what the others would make too.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why testbeds cannot be had here, if they cannot.
fn skipped() -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0);
    let has = |tool: &str| Command::new(tool).arg("-V").output().is_ok();
    let can_make = || {
        let name = format!("weft-try-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output().is_ok_and(|it| it.status.success());
        made && Command::new("ip").args(["netns", "del", &name]).status().is_ok_and(|it| it.success())
    };
    let why = match () {
        () if !is_root => "this is not root",
        () if !has("ip") || !has("tc") => "there is no `ip` or no `tc`",
        () if !can_make() => "network namespaces cannot be made here",
        () => return false,
    };
    eprintln!("skipped: {why}");
    true
}

fn weft(args: &[&str]) -> Output {
    Command::new(WEFT).args(args).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn namespaces() -> BTreeSet<String> {
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(ToOwned::to_owned).collect()
}

#[test]
fn without_its_tools_it_says_plainly_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let ended = Command::new(WEFT)
        .args(["testbed", "up", "--nodes", "3", "--dir"])
        .arg(dir.path().join("bed"))
        .env("PATH", dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(4), "{said}");
    assert!(said.contains("needs root") || said.contains("needs `ip`"), "{said}");
    for (args, hint) in [
        (&["--link", "fast"][..], "800kbit"),
        (&["--limit", "node-99:*=1mbit"], "node-01 is the first"),
        (&["--slow", "node-01:memory=1MiB"], "coding"),
        (&["--rack-link", "10mbit"], "--racks"),
    ] {
        let bed = dir.path().join("other");
        let ended = weft(&[&["testbed", "up", "--nodes", "3", "--dir", bed.to_str().unwrap()][..], args].concat());
        assert!(!bed.exists(), "{args:?}: what makes no sense makes nothing");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && (said.contains(hint) || said.contains("needs")), "{args:?}: {said}");
    }
}

#[test]
fn a_testbed_comes_up_is_used_and_goes_also_after_a_crash() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("bed");
    let dir = dir.to_str().unwrap();
    // Not checked here: on a machine that runs other tests besides, a link may seem slower than it is.
    let up = json(&weft(&["--json", "testbed", "up", "--nodes", "4", "--link", "100mbit", "--no-check", "--dir", dir]));
    assert_eq!(up["settings"]["link"], "100mbit");
    // Other programs may have testbeds too: ours is the one that is registered with its directory.
    let entries = std::fs::read_dir("/run/weft-testbeds").unwrap().map(|entry| entry.unwrap());
    let entry = entries.into_iter().find(|entry| std::fs::read_to_string(entry.path()).unwrap().trim_end() == dir).unwrap();
    let prefix = format!("weft-{}-", entry.file_name().to_str().unwrap());
    let ours = || -> Vec<String> { namespaces().into_iter().filter(|name| name.starts_with(&prefix)).collect() };
    assert_eq!(ours().len(), 6, "a hub, an outside, and four nodes: {:?}", ours());
    let listed = json(&weft(&["--json", "testbed", "ls"]));
    assert!(listed.as_array().unwrap().iter().any(|it| it.as_str() == Some(dir)), "{listed}");

    let file = root.path().join("file");
    std::fs::write(&file, vec![7; 300_000]).unwrap();
    let run = |args: &[&str]| weft(&[&["testbed", "run", "--dir", dir, "--", "weft", "--json"][..], args].concat());
    json(&run(&["put", file.to_str().unwrap(), "default/file", "--code", "rs(2,1)"]));
    assert_eq!(json(&run(&["stat", "default/file"]))["size"], 300_000);
    let repaired = json(&run(&["repair", "object", "default/file", "--block", "1"]));
    assert_eq!(repaired["blocks"].as_array().unwrap().len(), 1);

    // Whoever kills its processes has not taken its network away.
    let pids = Command::new("ip").args(["netns", "pids", &format!("{prefix}01")]).output().unwrap();
    for pid in String::from_utf8(pids.stdout).unwrap().split_whitespace() {
        assert!(Command::new("kill").args(["-9", pid]).status().unwrap().success());
    }
    let down = weft(&["testbed", "down", "--dir", dir]);
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert!(ours().is_empty(), "{:?}", ours());
    assert!(!json(&weft(&["--json", "testbed", "ls"])).as_array().unwrap().iter().any(|it| it.as_str() == Some(dir)));
}

#[test]
fn a_benchmark_has_the_one_form_and_a_ctrl_c_leaves_nothing() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let args = ["bench", "repair", "--json", "--code", "rs(2,1)", "--block-size", "1MiB", "--link", "100mbit"];
    let schemes = "direct,conventional,ppr,pipeline";
    let report = json(&weft(&[&args[..], &["--schemes", schemes, "--runs", "1"]].concat()));
    assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
    assert_eq!(report["settings"]["code"], "rs(2,1)");
    let names: Vec<&str> = report["results"].as_array().unwrap().iter().map(|it| it["scheme"].as_str().unwrap()).collect();
    assert_eq!(names, ["direct", "conventional", "ppr", "ppr-sliced", "pipeline"]);
    for result in report["results"].as_array().unwrap() {
        for field in ["median_s", "min_s", "max_s", "bound_s", "ratio"] {
            assert!(result[field].as_f64().unwrap() > 0.0, "{field}: {result}");
        }
        assert!((0.0..=1.0).contains(&result["cpu_idle"].as_f64().unwrap()), "{result}");
        assert_eq!(result["runs"], 1);
        // Nothing is faster than its links, but for what a shaper lets pass at once: 128 KiB at each end of a link, of this 1 MiB. How
        // much slower it is, is the machine's to say.
        assert!(result["median_s"].as_f64().unwrap() > 0.97 * 0.75 * result["bound_s"].as_f64().unwrap(), "{result}");
    }
    let moved = |name: usize| report["results"][name]["bytes_moved"].as_u64().unwrap();
    assert_eq!([moved(0), moved(1), moved(4)], [1 << 20, 2 << 20, 2 << 20]);

    let mut child = Command::new(WEFT)
        .args(args.iter().filter(|arg| **arg != "--json"))
        .args(["--schemes", "conventional", "--runs", "100"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let runs = lines.any(|line| line.unwrap().contains("run 2 of"));
    assert!(runs, "it never came to its second run");
    let shared_memory = || -> Vec<String> {
        let entries = std::fs::read_dir(Path::new("/dev/shm")).into_iter().flatten();
        entries.filter_map(|it| it.ok()?.file_name().into_string().ok()).filter(|it| it.starts_with("weft-bench-")).collect()
    };
    let during = (namespaces(), shared_memory());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let begun = tokio::time::Instant::now();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(30));
    // Other testbeds may come and go meanwhile; of this one, which was there, nothing may be.
    let after = (namespaces(), shared_memory());
    let hubs = |names: &BTreeSet<String>| names.iter().filter(|it| it.starts_with("weft-") && it.ends_with("-hub")).count();
    assert!(hubs(&after.0) < hubs(&during.0) || hubs(&after.0) == 0, "{:?}", after.0);
    assert!(after.1.len() < during.1.len() || during.1.is_empty(), "{:?}", after.1);
}

#[test]
fn a_figure_is_measured_again_and_written_in_all_its_forms() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("figures");
    let args = ["--json", "reproduce", "ecpipe", "--figure", "6a", "--quick", "--block-size", "64KiB", "--runs", "1", "--out"];
    let reports = json(&weft(&[&args[..], &[out.to_str().unwrap()]].concat()));
    let report = &reports[0];
    assert_eq!((&report["settings"]["figure"], &report["settings"]["quick"]), (&Value::from("6a"), &Value::from(true)));
    let results = report["results"].as_array().unwrap();
    for scheme in ["direct", "conventional", "ppr", "pipeline", "cyclic"] {
        let of_scheme: Vec<&Value> = results.iter().filter(|it| it["scheme"] == scheme).collect();
        let expected = if ["pipeline", "cyclic"].contains(&scheme) { 5 } else { 1 };
        assert_eq!(of_scheme.len(), expected, "slices of 4 to 64 KiB: {of_scheme:?}");
        for result in of_scheme {
            assert!(result["median_s"].as_f64().unwrap() > 0.0 && result["bound_s"].as_f64().unwrap() > 0.0, "{result}");
        }
    }
    let written = |ending: &str| std::fs::read(out.join(format!("ecpipe-6a.{ending}"))).unwrap();
    assert_eq!(written("csv").split(|byte| *byte == b'\n').count(), results.len() + 2);
    assert_eq!(serde_json::from_slice::<Value>(&written("json")).unwrap(), *report);
    assert!(written("svg").starts_with(b"<svg") && written("png").starts_with(b"\x89PNG"));
    let page = std::fs::read_to_string(out.join("ecpipe.md")).unwrap();
    assert!(page.contains("90.9 %") && page.contains("ecpipe-6a.svg"), "{page}");

    for (args, code) in [(&["--figure", "9"][..], 2), (&["--figure", "6a", "--block-size", "5000"], 2), (&[], 2)] {
        let ended = weft(&[&["reproduce", "ecpipe"][..], args].concat());
        assert_eq!(ended.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}
