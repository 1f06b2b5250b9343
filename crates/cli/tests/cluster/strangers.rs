//! Disks and certificates of other clusters, other versions, and bytes that are not TLS: all are refused.

use crate::harness::{Cluster, Running, Setup, bytes, path, weft_command};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use toml::Table;
use weft_proto::{
    PROTOCOL, Peer, Security, TcpNet,
    certs::CertificateFiles,
    from_status, rpc,
    v1::{Disk, ProtocolRange, RegisterRequest},
};
use weft_types::Reaction;

const CODING: [&str; 2] = ["--code", "rs(3,2)"];

#[test]
fn a_disk_of_another_cluster_is_refused() {
    let (ours, theirs) = (Setup::nodes(2).up(), Setup::nodes(2).up());
    ours.kill("node-01");
    theirs.kill("node-01");
    let config = ours.dir().join("nodes/node-01/agent.toml");
    let disk = theirs.dir().join("nodes/node-01/disk-0");
    let label = fs::read(disk.join("disk")).unwrap();
    let mut settings: Table = fs::read_to_string(&config).unwrap().parse().unwrap();
    settings.insert("disks".into(), vec![path(&disk).to_owned()].into());
    // Beside the other file, because the rest of its paths are relative.
    let strange = config.with_file_name("strange.toml");
    fs::write(&strange, settings.to_string()).unwrap();
    let mut command = weft_command();
    command.args(["agent", "--config", path(&strange)]);
    let ended = Running::start(command, Stdio::null()).end().code(2);
    let said = ended.stderr.lines().last().unwrap_or_default();
    let cluster_of = |cluster: &Cluster| setting(cluster, "cluster");
    assert!(said.contains(&cluster_of(&ours)) && said.contains(&cluster_of(&theirs)) && said.contains(path(&disk)), "{said}");
    assert_eq!(fs::read(disk.join("disk")).unwrap(), label, "the disk was written to");
}

#[test]
fn what_daemons_make_is_nobody_elses_to_read() {
    let cluster = Setup::nodes(3).up();
    cluster.put("data", &bytes(100_000, 1), &["--code", "rs(2,1)"]).ok();
    let disk = cluster.dir().join("nodes/node-01/disk-0");
    let mut look =
        vec![cluster.dir().join("run/node-01.pid"), cluster.dir().join("coordinator/metadata.sqlite"), disk.join("disk")];
    look.extend(fs::read_dir(disk.join("blocks")).unwrap().map(|entry| entry.unwrap().path()));
    look.extend(cluster.files());
    for path in look {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
    }
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let cluster = Setup::nodes(1).up();
    cluster.down().ok();
    let key = cluster.dir().join("certificates/coordinator-key.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = weft_command();
    command.args(["coordinator", "--config", path(&cluster.dir().join("coordinator/coordinator.toml"))]);
    let ended = Running::start(command, Stdio::null()).end().code(2);
    assert!(
        ended.stderr.contains("coordinator-key.pem: users other than its owner can read") && ended.stderr.contains("chmod 600 "),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_full_cluster_says_so_before_anything_is_written() {
    let cluster = Setup::nodes(5).with(&[("WEFT_COORDINATOR_DISK_RESERVE", "1000000TiB")]).up();
    cluster.put("data", &bytes(100_000, 1), &CODING).refused(7, &["free on every disk"]);
    assert!(cluster.files().is_empty());
}

#[test]
fn an_agent_of_another_version_is_told_both() {
    let cluster = Setup { insecure: true, ..Setup::nodes(1) }.up();
    assert!(cluster.log("coordinator").contains("insecure = true: connections are neither encrypted nor authenticated"));
    assert!(cluster.log("node-01").contains("insecure = true: "));
    let request = |oldest| RegisterRequest {
        protocol: Some(ProtocolRange { oldest, newest: oldest + 2 }),
        cluster: setting(&cluster, "cluster"),
        name: "stranger".into(),
        rack: "rack-1".into(),
        zone: "default".into(),
        data_address: "127.0.0.1:1".into(),
        control_address: "127.0.0.1:1".into(),
        disks: vec![Disk { id: "d".into(), path: "/d".into(), total_bytes: 1, free_bytes: 1, ..Disk::default() }],
        ..RegisterRequest::default()
    };
    let address = setting(&cluster, "coordinator");
    let error = on_runtime(async {
        let net = Arc::new(TcpNet::default());
        let channel = rpc::connect(net, &Security::Insecure, &address, &Peer::Coordinator).await.unwrap();
        let refused = rpc::membership_client(channel).register(request(7)).await.unwrap_err();
        from_status(&refused)
    });
    assert_eq!(error.reaction, Reaction::InvalidInput);
    assert!(
        error.message.contains("stranger")
            && error.message.contains("versions 7 to 9")
            && error.message.contains(&PROTOCOL.to_string()),
        "{error}"
    );
    let status = cluster.weft(["node", "ls", "--json"]).ok().json();
    assert_eq!(status.as_array().map(Vec::len), Some(1), "the agent was accepted");
}

#[test]
fn only_certificates_of_the_cluster_are_accepted_and_garbage_is_harmless() {
    let (cluster, other) = (Setup::nodes(5).up(), Setup::nodes(1).up());
    let before: Vec<u32> = cluster.nodes().iter().map(|node| cluster.pid(node)).collect();
    let address = setting(&cluster, "coordinator");
    let client = |options: &[&str]| {
        let mut command = weft_command();
        command.args(["node", "ls", "--cluster", &address]).args(options);
        Running::start(command, Stdio::null()).end()
    };
    // The peer trusts our authority but we do not trust its authority; or neither side trusts the other.
    let mixed = cluster.file("mixed");
    fs::create_dir(&mixed).unwrap();
    let certificates = |cluster: &Cluster| cluster.dir().join("certificates");
    fs::copy(certificates(&cluster).join("ca.pem"), mixed.join("ca.pem")).unwrap();
    for name in ["client.pem", "client-key.pem"] {
        fs::copy(certificates(&other).join(name), mixed.join(name)).unwrap();
    }
    client(&["--certificates", path(&certificates(&cluster))]).ok();
    for options in [&["--insecure"][..], &["--certificates", path(&certificates(&other))], &["--certificates", path(&mixed)]] {
        let ended = client(options);
        assert!(matches!(ended.status.code(), Some(1 | 2 | 4)), "{options:?}: {:?}", ended.status);
        assert!(ended.stdout.is_empty() && ended.stderr.lines().count() == 1, "{options:?}: {}", ended.stderr);
    }

    let nodes = cluster.weft(["node", "ls", "--json"]).ok().json();
    let ports: Vec<String> = nodes
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|node| [node["data_address"].clone(), node["control_address"].clone()])
        .map(|port| port.as_str().unwrap().to_owned())
        .chain([address.clone()])
        .collect();
    for port in &ports {
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[0xff; 100_000], b"\x16\x03\x01\xff\xff", b"x"] {
            plain(port, garbage);
        }
        is_refused(port, &certificates(&cluster).join("ca.pem"), certificates(&other));
    }
    let data = bytes(300_000, 2);
    cluster.put("data", &data, &CODING).ok();
    cluster.expect("data", &data, &[]);
    assert_eq!(before, cluster.nodes().iter().map(|node| cluster.pid(node)).collect::<Vec<_>>(), "an agent died");
}

/// Sends something that is not TLS; only an alert may come back.
fn plain(port: &str, says: &[u8]) {
    let mut stream = TcpStream::connect(port).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The peer may close before it has read everything.
    let _cut = stream.write_all(says);
    let _cut = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _cut = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || (answer[0] == 0x15 && answer.len() < 64), "{port} answered {answer:?}");
}

/// A peer with a certificate of another authority is refused, even if it trusts ours.
fn is_refused(port: &str, authority: &std::path::Path, theirs: PathBuf) {
    let files = CertificateFiles { authority: authority.to_owned(), ..CertificateFiles::in_dir(&theirs, &Peer::Client) };
    let security = Security::load(&files).unwrap();
    on_runtime(async {
        let peers = ["node-01", "node-02", "node-03", "node-04", "node-05"].map(|name| Peer::Agent(name.into()));
        let mut met = false;
        for expected in peers.iter().chain([&Peer::Coordinator]) {
            // Only a peer with that name passes our own check.
            let Ok(mut stream) = security.dial(&TcpNet::default(), port, expected).await else { continue };
            met = true;
            let _cut = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
            let answer = tokio::time::timeout(Duration::from_secs(20), stream.read_u8()).await.expect("an end");
            assert!(answer.is_err(), "{port} accepts a peer of another authority");
        }
        assert!(met, "there was no answer at {port}");
    });
}

/// A line of the file that tells clients where the cluster is.
fn setting(cluster: &Cluster, name: &str) -> String {
    let file: Table = fs::read_to_string(cluster.dir().join("weft.toml")).unwrap().parse().unwrap();
    file[name].as_str().unwrap().to_owned()
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}
