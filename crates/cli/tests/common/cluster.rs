//! A real cluster for a test: processes on loopback that are gone when the test is.

use super::{Ended, bytes, weft};
use serde_json::Value;
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A cluster of real processes.
pub(crate) struct Cluster {
    scratch: TempDir,
}

impl Cluster {
    /// Starts one with these options of `weft cluster up`.
    pub(crate) fn up(options: &[&str]) -> Self {
        Self::up_with(options, &[])
    }

    /// Starts one whose daemons have these settings over their files.
    pub(crate) fn up_with(options: &[&str], settings: &[(&str, &str)]) -> Self {
        let cluster = Self { scratch: TempDir::new().unwrap() };
        cluster.up_again(options, settings);
        cluster
    }

    /// Starts what does not run of it.
    pub(crate) fn up_again(&self, options: &[&str], settings: &[(&str, &str)]) {
        let mut command = self.command(&[&["cluster", "up"], options].concat());
        let ended = command.envs(settings.iter().copied()).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }

    /// `weft` with these arguments, on this cluster, to be run by the test itself.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(args).arg("--cluster").arg(self.dir());
        command
    }

    /// Six nodes in three racks.
    pub(crate) fn small() -> Self {
        Self::up(&["--nodes", "6", "--racks", "3"])
    }

    /// The cluster's directory.
    pub(crate) fn dir(&self) -> PathBuf {
        self.scratch.path().join("cluster")
    }

    /// A path beside the cluster.
    pub(crate) fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs `weft` with these arguments, on this cluster.
    pub(crate) fn weft<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ended {
        let dir = self.dir();
        let target: [&OsStr; 2] = [OsStr::new("--cluster"), dir.as_os_str()];
        let args: Vec<S> = args.into_iter().collect();
        weft(args.iter().map(AsRef::as_ref).chain(target))
    }

    /// Runs `weft` with these arguments and `--json`; it must end well.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        self.weft([args, &["--json"]].concat()).ok().json()
    }

    /// Writes a file of so many bytes; its path and content.
    pub(crate) fn file(&self, name: &str, len: usize) -> (String, Vec<u8>) {
        let (path, content) = (self.path(name), bytes(len, len as u64));
        std::fs::write(&path, &content).unwrap();
        (path, content)
    }

    /// Fetches an object with these options; it must be this content. What the command told.
    pub(crate) fn fetches(&self, object: &str, content: &[u8], options: &[&str]) -> Value {
        let out = self.path("fetched");
        let told = self.json(&[&["get", object, &out], options].concat());
        assert!(std::fs::read(&out).unwrap() == content, "{object} came back different {options:?}");
        std::fs::remove_file(&out).unwrap();
        told
    }

    /// The name of the node that holds block `index` of an object's first stripe.
    pub(crate) fn holder(&self, object: &str, index: usize) -> String {
        let stat = self.json(&["stat", object]);
        stat["stripes"][0]["blocks"][index]["name"].as_str().unwrap().to_owned()
    }

    /// The states of the blocks of an object's first stripe.
    pub(crate) fn states(&self, object: &str) -> Vec<String> {
        let stat = self.json(&["stat", object]);
        let blocks = stat["stripes"][0]["blocks"].as_array().unwrap();
        blocks.iter().map(|block| block["state"].as_str().unwrap().to_owned()).collect()
    }

    /// The process of that name.
    pub(crate) fn pid(&self, name: &str) -> u32 {
        let text = std::fs::read_to_string(self.dir().join("run").join(format!("{name}.pid"))).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("pid = ")).unwrap();
        line.parse().unwrap()
    }

    /// Sends a signal to the process of that name: `KILL`, `STOP`.
    pub(crate) fn signal(&self, name: &str, signal: &str) {
        let sent = Command::new("/bin/sh").args(["-c", &format!("kill -s {signal} {}", self.pid(name))]).status().unwrap();
        assert!(sent.success());
    }

    /// Ends the process of that name as a power cut would, and waits until the coordinator has noticed.
    pub(crate) fn kill(&self, name: &str) {
        self.signal(name, "KILL");
        self.wait_until("a dead node is noticed", |cluster| cluster.state(name) == "down");
    }

    /// The state of the node of that name.
    pub(crate) fn state(&self, name: &str) -> String {
        let nodes = self.json(&["node", "ls"]);
        let node = nodes.as_array().unwrap().iter().find(|node| node["name"] == name).unwrap();
        node["state"].as_str().unwrap().to_owned()
    }

    /// The payload files of blocks on a node's disks.
    pub(crate) fn payloads(&self, node: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        find_payloads(&self.dir().join("nodes").join(node), &mut found);
        found.sort();
        found
    }

    /// Waits until it is so, for a while.
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        #[expect(clippy::disallowed_methods, reason = "a test of real processes waits in real time")]
        let now = Instant::now;
        let until = now() + Duration::from_secs(30);
        while !is_so(self) {
            assert!(now() < until, "it did not come to this: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Payloads are named as the blocks are: `s12-b003-c0-g1`.
fn find_payloads(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            find_payloads(&path, found);
        } else if name.starts_with('s') && name.contains("-b") && name.contains("-g") && !name.contains('.') {
            found.push(path);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let ended = self.weft(["cluster", "down"]);
        if ended.code != 0 && !std::thread::panicking() {
            panic!("the cluster was not stopped: {}", ended.stderr);
        }
    }
}
