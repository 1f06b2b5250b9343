//! Many objects, on a temporary plain cluster; needs no root.

use super::{alone, common::weft_path, json};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

/// The measurement, with `tmp` as directory for temporary files.
fn objects(tmp: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(weft_path());
    command.args(["bench", "objects", "--clients", "2", "--code", "rs(2,1)"]).args(args);
    command.env("TMPDIR", tmp).env_remove("WEFT_CLUSTER").env_remove("WEFT_INSECURE").stdin(Stdio::null());
    command
}

/// Checks that nothing is left there, and that no process that was started there is running.
fn is_clean(tmp: &Path) {
    assert_eq!(fs::read_dir(tmp).unwrap().count(), 0, "something was left in {}", tmp.display());
    let tmp = tmp.to_str().unwrap();
    let lines = fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok());
    let left: Vec<String> =
        lines.map(|line| String::from_utf8_lossy(&line).into_owned()).filter(|line| line.contains(tmp)).collect();
    assert!(left.is_empty(), "still running: {left:?}");
}

#[test]
fn every_phase_is_measured_and_nothing_stays() {
    let _alone = alone();
    let tmp = tempfile::tempdir().unwrap();
    let found = json(&objects(tmp.path(), &["--size", "64KiB", "--count", "8", "--json"]).output().unwrap());
    let settings = &found["settings"];
    assert_eq!((&settings["nodes"], &settings["cluster"]), (&Value::from(6), &Value::Null), "{found}");
    let phases = found["results"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["put", "get", "degraded_get", "remove"]);
    let figure = |phase: &Value, name: &str| phase[name].as_f64().unwrap_or_else(|| panic!("no {name}: {phase}"));
    for phase in phases {
        assert_eq!(figure(phase, "objects"), 8.0, "{phase}");
        for name in ["seconds", "objects_per_s", "objects_per_s_min", "objects_per_s_max", "p50_ms", "p99_ms", "max_ms"] {
            assert!(figure(phase, name) > 0.0, "{name}: {phase}");
        }
        assert!(figure(phase, "p50_ms") <= figure(phase, "p99_ms") && figure(phase, "p99_ms") <= figure(phase, "max_ms"));
    }
    let [put, get, degraded, remove] = &phases[..] else { panic!("{found}") };
    for phase in [put, get, degraded] {
        let (bytes, objects) = (figure(phase, "bytes_per_s"), figure(phase, "objects_per_s"));
        assert!((bytes / objects - 65536.0).abs() < 1.0, "{phase}");
    }
    assert!(remove["bytes_per_s"].is_null(), "{remove}");
    // The CPU time of one process in one phase can be below the resolution of a hundredth of a second.
    for name in ["client_cpu_s", "agents_cpu_s", "coordinator_cpu_s"] {
        assert!(phases.iter().map(|phase| figure(phase, name)).sum::<f64>() > 0.0, "{name}: {found}");
    }
    assert!(figure(put, "commits") >= 8.0 && figure(remove, "commits") >= 8.0, "{found}");
    // A block is durable after fsyncs of its sidecar, its payload and its directory.
    assert!(figure(put, "fsyncs") >= 8.0 * 2.0 * 3.0, "{put}");
    assert_eq!((figure(get, "rebuilt"), figure(degraded, "rebuilt")), (0.0, 8.0), "{found}");
    let on_disk = &found["on_disk"];
    assert_eq!(figure(on_disk, "files_per_object"), 4.0, "a payload and a sidecar of a data block and a parity block");
    assert!(figure(on_disk, "bytes_per_object") >= 1.5 * 65536.0, "{on_disk}");
    assert!(found["machine"]["cores"].as_u64().unwrap() > 0 && found["warnings"].as_array().unwrap().is_empty(), "{found}");
    is_clean(tmp.path());
}

#[test]
fn what_is_interrupted_leaves_nothing() {
    let _alone = alone();
    let tmp = tempfile::tempdir().unwrap();
    let mut command = objects(tmp.path(), &["--size", "64KiB", "--count", "100000", "--insecure"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "round 1 of 1: put");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    is_clean(tmp.path());
}

#[test]
fn in_a_cluster_that_is_named_nothing_is_killed_and_nothing_stays() {
    let _alone = alone();
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("cluster");
    let dir = dir.to_str().unwrap();
    let weft = |args: &[&str]| json(&Command::new(weft_path()).args(args).args(["--json"]).output().unwrap());
    weft(&["cluster", "up", "--dir", dir, "--nodes", "3", "--insecure"]);
    let found = objects(tmp.path(), &["--size", "64KiB", "--count", "4", "--cluster", dir, "--json"]).output().unwrap();
    let status = weft(&["--cluster", dir, "cluster", "status"]);
    weft(&["cluster", "down", "--dir", dir]);
    let found = json(&found);
    let names: Vec<&str> = found["results"].as_array().unwrap().iter().map(|it| it["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["put", "get", "remove"]);
    assert!(found["warnings"][0].as_str().unwrap().contains("degraded get was not measured"), "{found}");
    assert_eq!((&found["settings"]["cluster"], &found["settings"]["insecure"]), (&Value::from(dir), &Value::from(true)));
    assert!(status["objects"] == 0 && status["commits"].as_u64() >= Some(8) && status["fsyncs"].as_u64() >= Some(36), "{status}");
    assert!(status["nodes"][0]["state"] == "up" && status["nodes"][0]["fsyncs"].as_u64() >= Some(12), "{status}");
}
