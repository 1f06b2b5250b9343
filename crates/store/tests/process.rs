//! Tests that need a second process: the lock, a kill, and a disk that is really full.
//!
//! Each test starts its own binary as the other process; an environment variable names the directory to work on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weft_store::{BlockStore, LocalStore, NewDisk, conformance};
use weft_types::{ClusterId, Reaction, Result, crc32c};

const CLUSTER: ClusterId = ClusterId(0xc1);
const NEW: NewDisk = NewDisk { disk_id: 0xd15c, created_ms: 1_700_000_000_000 };
const DIR: &str = "WEFT_STORE_TEST_DIR";

fn put(store: &LocalStore, stripe: u64, len: u64) -> Result<()> {
    let mut writer = store.create(&conformance::block(CLUSTER, stripe, len))?;
    for (start, part) in (0..).step_by(1 << 16).zip(conformance::pattern(len).chunks(1 << 16)) {
        writer.write_at(start, part)?;
    }
    writer.finish(None).map(drop)
}

/// `program args… this-test-binary`, running only the named test, on the directory.
fn again(test: &str, dir: &Path, wrapper: &[&str]) -> Command {
    let binary = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().map(Into::into).chain([binary.into_os_string()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--exact", test, "--nocapture", "--test-threads=1"]).env(DIR, dir);
    command
}

#[test]
fn a_killed_writer_leaves_what_it_acknowledged() {
    if let Some(dir) = std::env::var_os(DIR) {
        let store = LocalStore::open(Path::new(&dir), CLUSTER, NEW).unwrap();
        // More stripes than the process has time to write.
        for stripe in 1..100_000 {
            put(&store, stripe, 300_000).unwrap();
            println!("acknowledged {stripe}");
        }
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for round in [1, 2, 5] {
        let dir = root.path().join(round.to_string());
        let mut child = again("a_killed_writer_leaves_what_it_acknowledged", &dir, &[]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(std::io::Result::ok);
        let mut acknowledged = lines.filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<u64>().ok());
        let some = acknowledged.by_ref().take(round).last().unwrap();
        let second = LocalStore::open(&dir, CLUSTER, NEW).expect_err("two processes opened one disk");
        assert_eq!(second.reaction, Reaction::InvalidInput);
        assert!(second.message.contains("in use by another process"), "{second}");
        child.kill().unwrap();
        child.wait().unwrap();
        let last = acknowledged.last().unwrap_or(some);

        let store = LocalStore::open(&dir, CLUSTER, NEW).unwrap();
        assert_eq!(store.recovered().quarantined, []);
        let list = store.list().unwrap();
        assert!((1..=last).all(|stripe| list.contains(&conformance::block(CLUSTER, stripe, 1).id)), "{last}: {list:?}");
        let expected = conformance::pattern(300_000);
        for id in list {
            let mut read = vec![0; expected.len()];
            store.open(id).unwrap().read_at(0, &mut read).unwrap();
            assert!(read == expected, "{id}");
        }
    }
}

/// On a disk that has room for 1 MiB but not for 4 MiB.
fn fill(dir: &Path) {
    let store = LocalStore::open(dir, CLUSTER, NEW).unwrap();
    let error = put(&store, 1, 4 << 20).expect_err("the write must fail");
    assert_eq!(error.reaction, Reaction::Unavailable, "{error}");
    assert!(error.message.contains("the disk is full"), "{error}");
    assert_eq!(fs::read_dir(dir.join("tmp")).unwrap().count(), 0, "temporary files were left");
    assert_eq!(store.list().unwrap(), []);
    assert_eq!(store.failed(), None);
    put(&store, 2, 1 << 20).unwrap();
    assert_eq!(store.unit_checksums(conformance::block(CLUSTER, 2, 1).id).unwrap(), [crc32c(&conformance::pattern(1 << 20))]);
}

#[test]
fn a_full_disk_is_reported_and_survived() {
    if let Some(dir) = std::env::var_os(DIR) {
        return fill(Path::new(&dir));
    }
    let test = "a_full_disk_is_reported_and_survived";
    let dir = tempfile::tempdir().unwrap();
    // A file size limit of about 2 MiB (dash counts in 512 bytes, bash in 1024). It works everywhere.
    let limited = again(test, &dir.path().join("limited"), &["sh", "-c", "trap '' XFSZ; ulimit -f 3000; exec \"$0\" \"$@\""]);
    succeeds(limited);

    // A small file system, where the system allows mounting one.
    let mount_point: PathBuf = dir.path().join("small");
    fs::create_dir(&mount_point).unwrap();
    let namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"];
    let mount = format!("mount -t tmpfs -o size=3m none '{}'", mount_point.display());
    let possible = Command::new(namespace[0]).args(&namespace[1..]).arg(&mount).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped the small file system: this system does not allow mounting one in a new namespace");
        return;
    }
    let script = format!("{mount} && exec \"$0\" \"$@\"");
    succeeds(again(test, &mount_point, &[&namespace[..], &[script.as_str()]].concat()));
}

fn succeeds(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}
