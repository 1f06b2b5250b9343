//! The life of testbeds: after failures, interruptions and kills, `down` removes everything, and existing testbeds change only where
//! options say so.

use super::{alone, common::weft_path, json, namespaces, prefix, skipped, weft};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};
use tokio::time::Instant;

/// Most time for a process to end by itself.
const END_MAX: Duration = Duration::from_secs(30);

fn ours(prefix: &str) -> Vec<String> {
    namespaces().into_iter().filter(|name| name.starts_with(prefix)).collect()
}

fn is_listed(dir: &str) -> bool {
    json(&weft(&["--json", "testbed", "ls"])).as_array().unwrap().iter().any(|it| it.as_str() == Some(dir))
}

fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Runs `weft` with a replacement of `tc`, which runs this script for everything but its version, and records the namespaces in which
/// it was called. Also returns the prefix of their names.
fn with_tc(root: &Path, does: &str, args: &[&str]) -> (Output, String) {
    let (tools, told) = (root.join("tools"), root.join("told"));
    fs::create_dir_all(&tools).unwrap();
    let path = std::env::var("PATH").unwrap();
    let tc = format!("#!/bin/sh\n[ \"$1\" = -V ] && exit 0\necho \"$2\" >> {}\nPATH={path}\n{does}\n", told.display());
    fs::write(tools.join("tc"), tc).unwrap();
    fs::set_permissions(tools.join("tc"), fs::Permissions::from_mode(0o755)).unwrap();
    let ended = Command::new(weft_path()).args(args).env("PATH", format!("{}:{path}", tools.display())).output().unwrap();
    let told = fs::read_to_string(told).unwrap();
    let name = told.lines().find(|name| name.starts_with("weft-")).unwrap();
    (ended, name[..=name.rfind('-').unwrap()].to_owned())
}

#[test]
fn what_fails_or_is_interrupted_on_the_way_up_leaves_nothing() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let up = |dir: &str, does: &str, code: i32| {
        let up = ["testbed", "up", "--nodes", "3", "--no-check", "--dir", dir];
        let (ended, prefix) = with_tc(root.path(), does, &up);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{said}");
        assert_eq!(ours(&prefix), Vec::<String>::new(), "{said}");
        assert!(!is_listed(dir), "{said}");
        fs::remove_file(root.path().join("told")).unwrap();
        said
    };
    let new = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    // As on a kernel without the necessary shapers.
    let no_shaper = "echo 'Specified qdisc kind is unknown.' >&2; exit 2";
    assert!(up(&new("shaped"), no_shaper, 4).contains("qdisc kind is unknown"));
    // As if the user pressed ctrl-C at this moment, once.
    let interrupted = "[ $(wc -l < \"${0%/*}/../told\") = 1 ] && kill -INT $PPID && sleep 0.3; exec tc \"$@\"";
    let dir = new("broken-off");
    up(&dir, interrupted, 130);
    assert!(!Path::new(&dir).join("log/coordinator.log").exists(), "a process was started after that");

    // The same for an existing testbed that is not running.
    let dir = new("again");
    json(&weft(&["--json", "testbed", "up", "--nodes", "3", "--no-check", "--dir", &dir]));
    assert!(weft(&["testbed", "down", "--dir", &dir]).status.success());
    up(&dir, no_shaper, 4);
    up(&dir, interrupted, 130);
}

#[test]
fn settings_without_an_option_stay_unchanged() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("bed");
    let dir = dir.to_str().unwrap();
    let run = |what: &str, args: &[&str]| weft(&[&["--json", "testbed", what, "--dir", dir][..], args].concat());
    let links = ["--nodes", "3", "--link", "100mbit", "--outside-link", "50mbit", "--limit", "node-01:*=24mbit"];
    let up = json(&run("up", &links));
    assert_eq!((&up["check"], &up["unchecked"]), (&Value::Null, &"the check needs four nodes".into()));
    let config = fs::read_to_string(root.path().join("bed/coordinator/coordinator.toml")).unwrap();
    assert!(config.contains("link_age_max_ms = 9223372036854775807"), "measurements of links expire: {config}");

    let is = |settings: &Value, link: &str, outside: Value, limits: &[&str]| {
        let fields = ["nodes", "link", "outside_link", "limits"].map(|field| settings[field].clone());
        assert_eq!(fields, [3.into(), link.into(), outside, limits.into()], "{settings}");
    };
    let shaped = json(&run("shape", &["--limit", "node-02:*=10mbit", "--limit", "*:node-03=9mbit"]));
    is(&shaped, "100mbit", "50mbit".into(), &["node-02:*=10mbit", "*:node-03=9mbit"]);
    is(&json(&run("shape", &["--link", "80mbit"])), "80mbit", "50mbit".into(), &["node-02:*=10mbit", "*:node-03=9mbit"]);
    let up = json(&run("up", &["--limit", "node-03:*=7mbit"]));
    is(&up["settings"], "80mbit", "50mbit".into(), &["node-03:*=7mbit"]);
    for other in [["--nodes", "4"], ["--racks", "2"], ["--slow", "node-01:disk=1MiB"]] {
        assert_eq!(run("up", &other).status.code(), Some(2), "{other:?}");
    }
    is(&json(&run("up", &[]))["settings"], "80mbit", "50mbit".into(), &["node-03:*=7mbit"]);
    is(&json(&run("shape", &["--reset", "--link", "60mbit"])), "60mbit", Value::Null, &[]);
    assert!(weft(&["testbed", "down", "--dir", dir]).status.success());
}

#[test]
fn a_check_puts_each_way_beside_what_it_carries() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("bed");
    let dir = dir.to_str().unwrap();
    // For any two nodes, one direction is faster than the other.
    let limits = ["*:node-01=20mbit", "*:node-02=35mbit", "*:node-03=60mbit", "*:node-04=100mbit"];
    let up = ["--json", "testbed", "up", "--nodes", "4", "--link", "100mbit", "--dir", dir];
    let up = weft(&[&up[..], &limits.map(|limit| ["--limit", limit]).concat()].concat());
    let report: Value = serde_json::from_slice(&up.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&up.stderr)));
    assert!(weft(&["testbed", "down", "--dir", dir]).status.success());
    let of = |field: &str| report["check"][field].as_f64().unwrap();
    // A busy machine may be slower than expected, but the ratio to the other direction's bound would be far off.
    assert!((0.9..1.5).contains(&(of("seconds") / of("bound_s"))), "{report}");
    assert!((0.0..=1.0).contains(&of("cpu_idle")), "{report}");
}

/// The state of a process; `None` if it has ended.
fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next().filter(|state| !"ZX".contains(*state))
}

#[test]
fn daemons_without_their_directory_are_stopped_and_no_other_process() {
    let _alone = alone();
    if skipped() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("bed");
    json(&weft(&["--json", "testbed", "up", "--nodes", "3", "--no-check", "--dir", dir.to_str().unwrap()]));
    let prefix = prefix(dir.to_str().unwrap());
    let pids = |name: &String| {
        let pids = Command::new("ip").args(["netns", "pids", name]).output().unwrap();
        String::from_utf8(pids.stdout).unwrap().split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let daemons: Vec<String> = ours(&prefix).iter().flat_map(pids).collect();
    assert_eq!(daemons.len(), 4, "a coordinator and three agents: {daemons:?}");
    let sleep = ["testbed", "run", "--dir", dir.to_str().unwrap(), "--", "sleep", "600"];
    let mut persons = Command::new(weft_path()).args(sleep).spawn().unwrap();
    let begun = Instant::now();
    while !pids(&format!("{prefix}out")).contains(&persons.id().to_string()) {
        assert!(begun.elapsed() < END_MAX, "the process is not in the testbed's network");
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::remove_dir_all(&dir).unwrap();
    let down = weft(&["--json", "testbed", "down", "--dir", dir.to_str().unwrap()]);
    let is_alive = persons.try_wait().unwrap().is_none();
    persons.kill().unwrap();
    persons.wait().unwrap();
    assert_eq!(json(&down)["stopped"], 4);
    assert!(is_alive, "a user's own process was killed");
    assert!(daemons.iter().all(|pid| state(pid).is_none()), "{daemons:?}");
    assert!(ours(&prefix).is_empty() && !is_listed(dir.to_str().unwrap()));
}

/// A benchmark in its second run.
struct Benchmark {
    child: Child,
    dir: PathBuf,
    prefix: String,
}

impl Benchmark {
    fn begin(program: &[&str], runs: &str) -> Self {
        let args =
            ["bench", "repair", "--code", "rs(2,1)", "--block-size", "1MiB", "--link", "100mbit", "--schemes", "conventional"];
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).args(args).args(["--runs", runs]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("run 2 of")), "the benchmark never reached its second run");
        std::thread::spawn(move || lines.for_each(drop));
        // It holds the lock of its directory.
        let open = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
        let mut open = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        let dir = open.find(|path| path.ends_with("lock")).unwrap().parent().unwrap().to_owned();
        let prefix = prefix(dir.to_str().unwrap());
        assert_eq!(ours(&prefix).len(), 7, "a hub, an outside, and five nodes");
        Self { child, dir, prefix }
    }

    /// Its exit code, if it had one. A process that does not end is killed.
    fn end(&mut self) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < END_MAX {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().unwrap();
        panic!("the process did not end");
    }

    fn is_gone(&self) -> bool {
        ours(&self.prefix).is_empty() && !is_listed(self.dir.to_str().unwrap()) && !self.dir.exists()
    }
}

#[test]
fn a_benchmark_that_is_interrupted_leaves_nothing_and_one_that_was_killed_is_taken_down() {
    let _alone = alone();
    if skipped() {
        return;
    }
    for ends in ["-INT", "-HUP"] {
        // The test run may have SIGHUP ignored.
        let mut benchmark = Benchmark::begin(&["env", "--default-signal=HUP", weft_path()], "1000");
        signal(benchmark.child.id(), ends);
        assert_eq!(benchmark.end(), Some(130), "{ends}");
        assert!(benchmark.is_gone(), "{ends}: {:?}", benchmark.dir);
    }
    let mut benchmark = Benchmark::begin(&[weft_path()], "1000");
    signal(benchmark.child.id(), "-KILL");
    benchmark.end();
    assert!(benchmark.dir.is_dir() && !benchmark.is_gone());
    let down = weft(&["testbed", "down", "--dir", benchmark.dir.to_str().unwrap()]);
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert!(benchmark.is_gone(), "{:?}", benchmark.dir);
    // With nohup, it survives the end of its terminal.
    let mut benchmark = Benchmark::begin(&["nohup", weft_path()], "4");
    signal(benchmark.child.id(), "-HUP");
    assert_eq!(benchmark.end(), Some(0));
    assert!(benchmark.is_gone(), "{:?}", benchmark.dir);
}
