//! A cluster across machines as in the README: certificates issued by hand, settings in files, each daemon started on its own.

use crate::harness::{Running, bytes, path, wait_for, weft, weft_command};
use std::{fs, net::TcpListener, process::Stdio};
use tempfile::TempDir;

const NODES: [&str; 5] = ["node-01", "node-02", "node-03", "node-04", "node-05"];

#[test]
fn a_cluster_by_hand_runs_on_certificates_of_its_authority() {
    let scratch = TempDir::new().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let write = |name: &str, text: &str| fs::write(at(name), text).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let made = weft(["certificate", "authority", path(&at("authority")), "--json"]).ok().json();
    let cluster = made["cluster"].as_str().unwrap();
    let names = NODES.map(|node| format!("agent:{node}"));
    let (authority, out) = (at("authority"), at("certificates"));
    let options = ["--authority", path(&authority), "--out", path(&out)];
    let issue = |names: &[&str]| weft([&["certificate", "issue"], names, &options].concat());
    issue(&[&["coordinator", "client"][..], &names.each_ref().map(String::as_str)].concat()).ok();
    assert!(fs::read_dir(&out).unwrap().all(|dir| fs::read_dir(dir.unwrap().path()).unwrap().count() == 3));

    write(
        "coordinator.toml",
        &format!(
            "listen = \"127.0.0.1:{port}\"\ncluster = \"{cluster}\"\ndir = \"coordinator\"\ncertificates = \"certificates/coordinator\"\n"
        ),
    );
    let start = |role: &str, file: &str| {
        let mut command = weft_command();
        command.args([role, "--config", path(&at(file))]);
        Running::start(command, Stdio::null())
    };
    let mut daemons = vec![start("coordinator", "coordinator.toml")];
    for node in NODES {
        write(
            &format!("{node}.toml"),
            &format!(
                "name = \"{node}\"\ncoordinators = [\"127.0.0.1:{port}\"]\ndata_listen = \"127.0.0.1:0\"\n\
                 control_listen = \"127.0.0.1:0\"\nstate_dir = \"{node}/state\"\ndisks = [\"{node}/disk\"]\n\
                 certificates = \"certificates/agent-{node}\"\n"
            ),
        );
        daemons.push(start("agent", &format!("{node}.toml")));
    }
    write(
        "weft.toml",
        &format!("coordinator = \"127.0.0.1:{port}\"\ncluster = \"{cluster}\"\ncertificates = \"certificates/client\"\n"),
    );
    let client = |args: &[&str]| weft(args.iter().chain(&["--cluster", path(&at("weft.toml"))]));
    wait_for("all nodes to be up", || {
        let ended = client(&["cluster", "status"]);
        ended.status.success() && ended.text().contains("5 of 5 nodes are up")
    });
    let content = bytes(300_000, 3);
    fs::write(at("file"), &content).unwrap();
    client(&["bucket", "create", "b"]).ok();
    client(&["put", path(&at("file")), "b/file", "--code", "rs(3,2)"]).ok();
    client(&["get", "b/file", path(&at("back"))]).ok();
    assert!(fs::read(at("back")).unwrap() == content);
    assert!(daemons.iter_mut().all(Running::is_running));

    // With its own certificate, an agent cannot act as a client.
    let (address, theirs) = (format!("127.0.0.1:{port}"), out.join("agent-node-01"));
    assert!(!weft(["--cluster", &address, "--certificates", path(&theirs), "node", "ls"]).status.success());
}

#[test]
fn certificates_are_issued_once_and_for_a_named_owner() {
    let scratch = TempDir::new().unwrap();
    let (authority, out) = (scratch.path().join("authority"), scratch.path().join("out"));
    let issue = |names: &[&str]| {
        weft([&["certificate", "issue"], names, &["--authority", path(&authority), "--out", path(&out)]].concat())
    };
    issue(&["client"]).refused(3, &["authority/ca.pem"]);
    weft(["certificate", "authority", path(&authority)]).ok();
    weft(["certificate", "authority", path(&authority)]).refused(2, &["already has an authority"]);
    let id = "0a1b2c3d4e5f60718293a4b5c6d7e8f9";
    let of_existing = scratch.path().join("of-existing");
    assert_eq!(weft(["certificate", "authority", "--id", id, path(&of_existing), "--json"]).ok().json()["cluster"], id);
    weft(["certificate", "authority", "--id", "cluster", path(&authority)]).refused(2, &["32 hex digits"]);
    for (name, says) in
        [("node-01", "agent:NODE"), ("agent:Node", "node-07"), ("agent:a-key", "-key"), ("agents:a", "agent:NODE")]
    {
        issue(&["client", name]).refused(2, &[says]);
    }
    issue(&["client", "agent:a", "client"]).refused(2, &["out/client", "give each name once"]);
    assert!(!out.exists(), "a directory was created");
    issue(&["client"]).ok();
    issue(&["agent:a", "client"]).refused(2, &["out/client", "exists already"]);
    assert!(!out.join("agent-a").exists());
}
