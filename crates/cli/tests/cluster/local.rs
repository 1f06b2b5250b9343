//! The directory and processes of a local cluster: created, moved, copied, interrupted, and never confused with another cluster's.

use crate::harness::{Cluster, Ended, Running, Setup, bytes, is_alive, path, send_signal, wait_for, weft, weft_command};
use std::{
    fs,
    os::unix::{ffi::OsStringExt as _, fs::PermissionsExt as _},
    path::Path,
    process::Stdio,
};

const CODING: [&str; 2] = ["--code", "rs(3,2)"];

#[test]
fn a_directory_that_was_moved_or_copied_is_a_cluster_of_its_own() {
    let cluster = Setup::nodes(5).up();
    let content = bytes(100_000, 1);
    cluster.put("kept", &content, &CODING).ok();
    cluster.down().ok();
    let elsewhere = cluster.file("elsewhere");
    fs::rename(cluster.dir(), &elsewhere).unwrap();
    weft(["cluster", "up", "--dir", path(&elsewhere)]).ok();
    assert!(!cluster.dir().exists(), "a file was created in the old place");
    weft(["cluster", "down", "--dir", path(&elsewhere)]).ok();
    fs::rename(&elsewhere, cluster.dir()).unwrap();
    cluster.up().ok();
    cluster.expect("kept", &content, &[]);

    // The copy is made while the whole other cluster runs, and includes its pid files.
    let copied = std::process::Command::new("cp").arg("-a").arg(cluster.dir()).arg(&elsewhere).status().unwrap();
    assert!(copied.success());
    let pids = |dir: &Path| fs::read_to_string(dir.join("run/coordinator.pid")).unwrap();
    let copy = |args: &[&str]| weft(args.iter().chain(&["--cluster", path(&elsewhere)]));
    copy(&["cluster", "up"]).ok();
    assert_ne!(pids(&cluster.dir()), pids(&elsewhere));
    let before = cluster.files();
    copy(&["put", path(&cluster.write("more", &content)), "more", "--code", "rs(3,2)"]).ok();
    assert_eq!(cluster.files(), before, "the copy wrote to the other's disks");
    copy(&["cluster", "down"]).ok();
    assert_eq!(cluster.json(&["ls", "default"]).as_array().unwrap().len(), 1);
    cluster.expect("kept", &content, &[]);
}

#[test]
fn settings_that_lead_out_of_the_directory_are_refused() {
    let cluster = Setup::nodes(1).up();
    cluster.down().ok();
    let file = cluster.dir().join("nodes/node-01/agent.toml");
    let settings = fs::read_to_string(&file).unwrap();
    for outside in ["/srv/elsewhere", "../../../disk-0"] {
        fs::write(&file, settings.replace("\"disk-0\"", &format!("\"{outside}\""))).unwrap();
        cluster.up().refused(2, &["node-01/agent.toml", outside, "relative to the file"]);
        cluster.down().refused(2, &["node-01/agent.toml"]);
    }
    // The older form: absolute paths inside of the directory.
    let inside = cluster.dir().join("nodes/node-01/disk-0");
    fs::write(&file, settings.replace("\"disk-0\"", &format!("\"{}\"", path(&inside)))).unwrap();
    cluster.up().ok();
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing_behind() {
    let scratch = tempfile::TempDir::new().unwrap();
    // Interrupt it a little later each time.
    for reached in ["", "cluster", "cluster/run/coordinator.pid", "cluster/run/node-03.pid", "cluster/run/node-16.pid"] {
        for signal in ["INT", "TERM"] {
            let mut command = weft_command();
            command.args(["demo", "--json"]).env("TMPDIR", scratch.path());
            let mut demo = Running::start(command, Stdio::null());
            let entries = || fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
            wait_for(reached, || entries().iter().any(|dir| dir.join(reached).exists()) || !demo.is_running());
            send_signal(demo.child().id(), signal);
            demo.end().refused(130, &["\"interrupted\""]);
            assert_eq!(entries(), Vec::<std::path::PathBuf>::new(), "{reached}");
            assert_eq!(processes_of(scratch.path()), Vec::<u32>::new(), "{reached}");
        }
    }
}

/// Processes whose command line contains a path in `dir`.
fn processes_of(dir: &Path) -> Vec<u32> {
    let dir = dir.as_os_str().as_encoded_bytes();
    let numbers = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_of = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(dir.len()).any(|part| part == dir) && is_alive(*pid)
    };
    numbers.filter(is_of).collect()
}

#[test]
fn a_first_start_that_was_interrupted_is_taken_up_again() {
    let cluster = Cluster::new(&[]);
    let begin = |reached: &str| {
        let mut up = cluster.start(["cluster", "up", "--nodes", "3", "--json"], Stdio::null());
        wait_for(reached, || cluster.dir().join(reached).exists() || !up.is_running());
        send_signal(up.child().id(), "INT");
        let ended = up.end().refused(130, &["interrupted"]);
        assert!(serde_json::from_str::<serde_json::Value>(&ended.stderr).is_ok(), "{}", ended.stderr);
    };
    begin("run/coordinator.pid");
    begin("run/node-02.pid");
    cluster.weft(["cluster", "up"]).ok();
    assert_eq!(cluster.json(&["bucket", "ls"])[0]["name"], "default");
    let nodes = cluster.json(&["node", "ls"]);
    let names: Vec<String> = nodes.as_array().unwrap().iter().map(|node| format!("{} {}", node["id"], node["name"])).collect();
    assert_eq!(names, ["\"n1\" \"node-01\"", "\"n2\" \"node-02\"", "\"n3\" \"node-03\""]);
    // A bucket that the user removed stays removed.
    cluster.weft(["bucket", "rm", "default"]).ok();
    cluster.down().ok();
    cluster.up().ok();
    assert_eq!(cluster.json(&["bucket", "ls"]), serde_json::json!([]));
}

#[test]
fn a_directory_that_was_half_made_is_made_whole() {
    let cluster = Cluster::new(&[]);
    let (dir, new) = (cluster.dir(), cluster.dir().join(".new"));
    fs::create_dir_all(new.join("certificates")).unwrap();
    fs::write(new.join("certificates/ca.pem"), "half a").unwrap();
    cluster.weft(["cluster", "up", "--nodes", "2"]).ok();
    cluster.down().ok();
    // An earlier attempt was interrupted when some parts were in place already.
    fs::create_dir(&new).unwrap();
    for part in ["nodes", "run", "weft.toml"] {
        fs::rename(dir.join(part), new.join(part)).unwrap();
    }
    cluster.weft(["cluster", "up", "--nodes", "2"]).ok();
    assert!(!new.exists() && dir.join("weft.toml").exists());

    let foreign = cluster.file("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("mine"), "").unwrap();
    weft(["cluster", "up", "--dir", path(&foreign), "--nodes", "2"]).refused(2, &["is not empty"]);
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1, "something was written");
}

#[test]
fn two_that_make_one_cluster_do_not_get_in_each_others_way() {
    let cluster = Cluster::new(&[]);
    let up = || cluster.start(["cluster", "up", "--nodes", "3"], Stdio::null());
    let ended: Vec<Ended> = [up(), up(), up()].into_iter().map(Running::end).collect();
    assert!(ended.iter().any(|ended| ended.status.success()));
    for ended in ended.into_iter().filter(|ended| !ended.status.success()) {
        ended.refused(1, &["another weft process is starting or stopping the cluster"]);
    }
    assert_eq!(cluster.json(&["node", "ls"]).as_array().unwrap().len(), 3);
}

#[test]
fn what_is_stored_is_for_its_owner_only() {
    let cluster = Setup::nodes(1).up();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&cluster.dir()), 0o700);
}

#[test]
fn why_a_cluster_does_not_come_up_is_told_at_once() {
    let cluster = Setup::nodes(1).up();
    cluster.down().ok();
    let certificate = cluster.dir().join("certificates/client.pem");
    let content = fs::read(&certificate).unwrap();
    fs::remove_file(&certificate).unwrap();
    cluster.up().refused(3, &["client.pem"]);
    fs::write(&certificate, content).unwrap();
    cluster.up().ok();
}

#[test]
fn the_environment_is_read_as_it_is_meant() {
    let run = |args: &[&str], environment: &[(&str, &[u8])]| {
        let mut command = weft_command();
        for (name, value) in environment {
            command.env(name, std::ffi::OsString::from_vec(value.to_vec()));
        }
        command.args(args);
        Running::start(command, Stdio::null()).end()
    };
    run(&["agent", "--config", "/no/such/file"], &[("LC_STRANGE", b"\xff")]).refused(3, &["/no/such/file"]);
    run(&["coordinator"], &[("WEFT_COORDINATOR_LISTEN", b"\xff")]).refused(2, &["WEFT_COORDINATOR_LISTEN", "not UTF-8"]);
    for (said, is_said) in [("1", true), ("true", true), ("0", false), ("", false)] {
        let ended = run(&["node", "ls", "--cluster", "127.0.0.1:1"], &[("WEFT_INSECURE", said.as_bytes())]);
        assert_eq!(ended.status.code(), Some(if is_said { 4 } else { 2 }), "{said}: {}", ended.stderr);
    }
    let cluster = Setup::nodes(1).with(&[("WEFT_LOG", "info,weft=loud")]).up();
    assert!(cluster.log("node-01").contains("WEFT_LOG=info,weft=loud: "), "{}", cluster.log("node-01"));
}
