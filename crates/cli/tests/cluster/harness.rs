//! A cluster of real processes in its own directory; both are removed when the test ends, however it ends.

use crate::links::Links;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fmt::Debug,
    fs,
    io::Read,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// A command that takes longer fails the test.
const COMMAND_MAX: Duration = Duration::from_secs(180);
/// A wait that takes longer fails the test.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(120);
/// The pauses between looks at what is waited for.
const LOOK_FIRST: Duration = Duration::from_millis(5);
const LOOK_LAST: Duration = Duration::from_millis(100);

/// A killed process ends within this time.
const KILL_MAX: Duration = Duration::from_secs(5);

/// Settings that make a cluster fast enough for tests.
const QUICK: &[(&str, &str)] = &[
    ("WEFT_COORDINATOR_HEARTBEAT_INTERVAL_MS", "250"),
    ("WEFT_COORDINATOR_DOWN_AFTER_MS", "2500"),
    ("WEFT_COORDINATOR_SUSPECT_MS", "6000"),
    ("WEFT_COORDINATOR_SWEEP_INTERVAL_MS", "500"),
    ("WEFT_COORDINATOR_GARBAGE_GRACE_MS", "500"),
    ("WEFT_COORDINATOR_STALL_MS", "5500"),
    ("WEFT_COORDINATOR_FAILURE_GRACE_MS", "1000"),
    ("WEFT_COORDINATOR_DISK_RESERVE", "1MiB"),
    // Conversions must not depend on the free space of the machine's disk.
    ("WEFT_COORDINATOR_CONVERSION_FREE_PERCENT", "0"),
    ("WEFT_COORDINATOR_CONVERSION_RESTART_MS", "4000"),
    // Most tests are about what people ask for.
    ("WEFT_COORDINATOR_AUTO_REPAIR", "false"),
    ("WEFT_COORDINATOR_SCRUB_PERIOD_MS", "0"),
];

/// How a cluster is made.
pub(crate) struct Setup {
    pub(crate) nodes: u32,
    pub(crate) racks: u32,
    pub(crate) disks_per_node: u32,
    pub(crate) insecure: bool,
    /// Data reaches the agents through a gate: see [`Cluster::links`].
    pub(crate) gated: bool,
    /// Settings of all its daemons, as environment variables.
    pub(crate) settings: Vec<(&'static str, &'static str)>,
}

/// A running cluster.
pub(crate) struct Cluster {
    /// Dropped after the processes and before the directory.
    mounts: Vec<Mount>,
    root: TempDir,
    settings: Vec<(&'static str, &'static str)>,
    /// The gate in front of its agents, if any.
    pub(crate) links: Links,
}

/// The result of a run of `weft`.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// A running `weft`; killed on drop.
pub(crate) struct Running {
    child: Child,
    told: String,
    stdout: Option<thread::JoinHandle<Vec<u8>>>,
    stderr: Option<thread::JoinHandle<Vec<u8>>>,
}

/// A block as `weft stat` shows it.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) stripe: u64,
    pub(crate) index: usize,
    pub(crate) copy: usize,
    pub(crate) generation: u64,
    /// The node's name.
    pub(crate) node: String,
    pub(crate) state: String,
}

impl Setup {
    pub(crate) fn nodes(nodes: u32) -> Self {
        Self { nodes, racks: 4.min(nodes), disks_per_node: 1, insecure: false, gated: false, settings: Vec::new() }
    }

    pub(crate) fn with(mut self, settings: &[(&'static str, &'static str)]) -> Self {
        self.settings.extend(settings);
        self
    }

    /// A cluster whose agents are behind [`Cluster::links`].
    pub(crate) fn gated(self) -> Self {
        Self { gated: true, ..self }
    }

    pub(crate) fn up(self) -> Cluster {
        let cluster = Cluster::new(&self.settings);
        let [nodes, racks, disks] = [self.nodes, self.racks, self.disks_per_node].map(|count| count.to_string());
        let mut args = vec!["cluster", "up", "--nodes", &nodes, "--racks", &racks, "--disks-per-node", &disks];
        if self.insecure {
            args.push("--insecure");
        }
        cluster.weft(args).ok();
        if self.gated {
            cluster.down().ok();
            cluster.nodes().iter().for_each(|node| cluster.gate(node));
            cluster.up().ok();
        }
        cluster
    }
}

impl Cluster {
    /// A cluster that does not exist yet.
    pub(crate) fn new(settings: &[(&'static str, &'static str)]) -> Self {
        let root = TempDir::new().expect("a directory");
        Self { mounts: Vec::new(), root, settings: QUICK.iter().chain(settings).copied().collect(), links: Links::open() }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.root.path().join("weft-cluster")
    }

    /// The settings of its daemons, as environment variables.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.settings.iter().copied()
    }

    /// A file or directory beside the cluster.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Writes a file beside the cluster.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, bytes).expect("a file");
        path
    }

    fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = weft_command();
        command.arg("--cluster").arg(self.dir()).args(args);
        command.envs(self.settings());
        command
    }

    /// Runs `weft` on this cluster.
    pub(crate) fn weft<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ended {
        self.start(args, Stdio::null()).end()
    }

    /// Starts `weft` on this cluster.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, stdin: Stdio) -> Running {
        Running::start(self.command(args), stdin)
    }

    /// Starts the processes that are not running.
    /// Starts `weft` on this cluster, in a directory.
    pub(crate) fn start_in(&self, dir: &Path, args: &[&str], stdin: Stdio) -> Running {
        let mut command = self.command(args);
        command.current_dir(dir);
        Running::start(command, stdin)
    }

    pub(crate) fn up(&self) -> Ended {
        self.weft(["cluster", "up"])
    }

    pub(crate) fn down(&self) -> Ended {
        self.weft(["cluster", "down"])
    }

    /// From its next start on, an agent is behind the gate.
    fn gate(&self, node: &str) {
        let file = self.dir().join("nodes").join(node).join("agent.toml");
        let mut config: toml::Table = fs::read_to_string(&file).expect("its settings").parse().expect("TOML");
        let addresses = self.links.add();
        config.insert("data_listen".into(), addresses.listen.into());
        config.insert("data_advertise".into(), addresses.advertise.into());
        fs::write(file, config.to_string()).expect("it is ours");
    }

    /// Stores bytes as an object of the default bucket.
    pub(crate) fn put(&self, key: &str, bytes: &[u8], coding: &[&str]) -> Ended {
        let file = self.write(&format!("put-{}", key.replace('/', "-")), bytes);
        let ended = self.weft(["put", path(&file), key, "--json"].iter().chain(coding));
        let _unneeded = fs::remove_file(file);
        ended
    }

    /// Runs `weft` with `--json` on this cluster; it must succeed.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        self.weft(args.iter().chain(&["--json"])).ok().json()
    }

    /// Fetches an object and compares it; returns the report of the get.
    pub(crate) fn expect(&self, key: &str, bytes: &[u8], options: &[&str]) -> Value {
        let file = self.file(&format!("got-{}", key.replace('/', "-")));
        let ended = self.weft(["get", key, path(&file), "--json"].iter().chain(options)).ok();
        assert!(fs::read(&file).expect("the file that was fetched") == bytes, "{key} came back changed ({options:?})");
        fs::remove_file(file).expect("it was there");
        ended.json()
    }

    pub(crate) fn stat(&self, key: &str) -> Value {
        self.weft(["stat", key, "--json"]).ok().json()
    }

    /// The first copy of each block of an object.
    pub(crate) fn blocks(&self, key: &str) -> Vec<Block> {
        self.listed(key, "blocks")
    }

    /// The other copies of an object's blocks.
    pub(crate) fn copies(&self, key: &str) -> Vec<Block> {
        self.listed(key, "copies")
    }

    fn listed(&self, key: &str, which: &str) -> Vec<Block> {
        let stat = self.stat(key);
        let mut blocks = Vec::new();
        for stripe in stat["stripes"].as_array().expect("stripes") {
            let id = stripe["id"].as_str().and_then(|id| id.strip_prefix('s')).and_then(|id| id.parse().ok());
            for block in stripe[which].as_array().expect("blocks") {
                blocks.push(Block {
                    stripe: id.expect("a stripe's number"),
                    index: block["index"].as_u64().expect("an index") as usize,
                    copy: block["copy"].as_u64().expect("a copy") as usize,
                    generation: block["generation"].as_u64().expect("a generation"),
                    node: block["name"].as_str().expect("a name").to_owned(),
                    state: block["state"].as_str().expect("a state").to_owned(),
                });
            }
        }
        blocks
    }

    /// Where a block's payload lies.
    pub(crate) fn payload(&self, block: &Block) -> PathBuf {
        let name = block.file_name();
        let found = self.files_of(&block.node).into_iter().find(|path| path.file_name() == Some(OsStr::new(&name)));
        found.unwrap_or_else(|| panic!("{name} is not on {}", block.node))
    }

    /// The names of all agents.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir().join("nodes")).expect("nodes");
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Whether the block that an agent is writing has bytes at this offset.
    pub(crate) fn has_written(&self, node: &str, offset: u64) -> bool {
        let home = self.dir().join("nodes").join(node);
        let disks = fs::read_dir(&home).expect("a node").map(|entry| entry.unwrap().path().join("tmp"));
        let temporary = disks.filter_map(|tmp| fs::read_dir(tmp).ok()).flatten().flatten().map(|entry| entry.path());
        let written = |path: PathBuf| {
            let mut page = [0; 4096];
            let read = fs::File::open(path).and_then(|file| file.read_at(&mut page, offset));
            read.is_ok() && page.iter().any(|byte| *byte != 0)
        };
        temporary.filter(|path| path.extension().is_none()).any(written)
    }

    /// All block files on an agent's disks: payloads, sidecars, and unfinished ones.
    pub(crate) fn files_of(&self, node: &str) -> Vec<PathBuf> {
        let home = self.dir().join("nodes").join(node);
        let disks = fs::read_dir(&home).expect("a node").map(|entry| entry.unwrap().path());
        let mut files = Vec::new();
        for disk in disks.filter(|path| path.join("blocks").is_dir()) {
            collect_files(&disk.join("blocks"), &mut files);
            collect_files(&disk.join("tmp"), &mut files);
        }
        files
    }

    /// All block files on all disks.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.nodes().iter().flat_map(|node| self.files_of(node)).collect()
    }

    /// Whether a block is being written at this agent.
    pub(crate) fn is_writing(&self, node: &str) -> bool {
        let home = self.dir().join("nodes").join(node);
        let mut disks = fs::read_dir(&home).expect("a node").map(|entry| entry.unwrap().path().join("tmp"));
        disks.any(|tmp| fs::read_dir(tmp).is_ok_and(|mut entries| entries.next().is_some()))
    }

    /// The output of a process.
    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.dir().join("log").join(format!("{name}.log"))).unwrap_or_default()
    }

    /// The id of the process of that name.
    pub(crate) fn pid(&self, name: &str) -> u32 {
        self.pids().get(name).copied().unwrap_or_else(|| panic!("{name} is not running"))
    }

    fn pids(&self) -> BTreeMap<String, u32> {
        let Ok(entries) = fs::read_dir(self.dir().join("run")) else { return BTreeMap::new() };
        let pid = |path: &Path| {
            let file: toml::Table = fs::read_to_string(path).ok()?.parse().ok()?;
            let pid = u32::try_from(file.get("pid")?.as_integer()?).ok()?;
            // The process id may have been reused.
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let dir = self.dir().into_os_string().into_encoded_bytes();
            command.windows(dir.len()).any(|part| part == dir).then_some(pid)
        };
        let files = entries.flatten().map(|entry| entry.path()).filter(|path| path.extension() == Some(OsStr::new("pid")));
        files.filter_map(|path| Some((path.file_stem()?.to_str()?.to_owned(), pid(&path)?))).collect()
    }

    /// Sends a signal to the process of that name: KILL, STOP, CONT.
    pub(crate) fn signal(&self, name: &str, signal: &str) {
        send_signal(self.pid(name), signal);
    }

    /// Kills a process with SIGKILL, and waits until it has ended.
    pub(crate) fn kill(&self, name: &str) {
        let pid = self.pid(name);
        send_signal(pid, "KILL");
        wait_for(&format!("{name} to end"), || !is_alive(pid));
    }

    /// Kills an agent and waits until the coordinator knows.
    pub(crate) fn take_down(&self, nodes: &[&str]) {
        nodes.iter().for_each(|node| self.kill(node));
        self.wait_for_state(nodes, "down");
    }

    /// Replaces a directory by a disk of `size` bytes and `files` files with the same content. Needs root; otherwise prints why not and
    /// changes nothing.
    pub(crate) fn mount(&mut self, dir: &Path, size: usize, files: u32) -> Result<(), String> {
        let content = self.file(&format!("before-{}", self.mounts.len()));
        fs::rename(dir, &content).expect("a directory of the cluster");
        fs::create_dir(dir).expect("its place is free");
        let options = format!("size={size},nr_inodes={files},mode=0700");
        let mounted = run("mount", &["-t", "tmpfs", "-o", &options, "weft-test", path(dir)]);
        if mounted.is_err() {
            fs::remove_dir(dir).expect("it is empty");
            fs::rename(&content, dir).expect("its place is free");
            return mounted;
        }
        self.mounts.push(Mount(dir.to_owned()));
        run("cp", &["-a", &format!("{}/.", path(&content)), path(dir)])
    }

    pub(crate) fn wait_for_state(&self, nodes: &[&str], state: &str) {
        wait_for(&format!("{nodes:?} to be {state}"), || {
            let ended = self.weft(["node", "ls", "--json"]);
            let Ok(listed) = serde_json::from_slice::<Value>(&ended.stdout) else { return false };
            let all = listed.as_array().expect("a list of nodes");
            let is = |name: &&&str| all.iter().any(|node| node["name"] == **name && node["state"] == state);
            nodes.iter().filter(is).count() == nodes.len()
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let pids: Vec<u32> = self.pids().into_values().collect();
        pids.iter().for_each(|pid| send_signal(*pid, "KILL"));
        let begin = now();
        while pids.iter().any(|pid| is_alive(*pid)) && begin.elapsed() < KILL_MAX {
            thread::sleep(Duration::from_millis(10));
        }
        // A second panic would end all other tests too.
        if thread::panicking() && self.dir().join("nodes").is_dir() {
            for name in std::iter::once("coordinator".to_owned()).chain(self.nodes()) {
                eprintln!("---- {name}\n{}", last_lines(&self.log(&name), 40));
            }
        }
    }
}

/// A mounted file system; unmounted on drop.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily if necessary: processes that still use it are being killed.
        let dir = path(&self.0);
        if run("umount", &[dir]).is_err()
            && let Err(why) = run("umount", &["-l", dir])
        {
            eprintln!("{dir} is still mounted: {why}");
        }
    }
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    match Command::new(program).args(args).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

impl Running {
    pub(crate) fn start(mut command: Command, stdin: Stdio) -> Self {
        let told = format!("{command:?}");
        let mut child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft starts");
        let stdout = child.stdout.take().map(read_all);
        let stderr = child.stderr.take().map(read_all);
        Self { child, told, stdout, stderr }
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Waits until the command has ended.
    pub(crate) fn end(mut self) -> Ended {
        drop(self.child.stdin.take());
        let begin = now();
        let status = loop {
            match self.child.try_wait().expect("it is our child") {
                Some(status) => break status,
                None if begin.elapsed() > COMMAND_MAX => panic!("{} did not end within {COMMAND_MAX:?}", self.told),
                None => thread::sleep(Duration::from_millis(2)),
            }
        };
        let text =
            |reader: Option<thread::JoinHandle<Vec<u8>>>| reader.map(|it| it.join().expect("it reads")).unwrap_or_default();
        let (stdout, stderr) = (text(self.stdout.take()), text(self.stderr.take()));
        Ended { status, stdout, stderr: String::from_utf8(stderr).expect("what weft prints is UTF-8") }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A command that still runs must end.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Ended {
    pub(crate) fn ok(self) -> Self {
        self.code(0)
    }

    pub(crate) fn code(self, code: i32) -> Self {
        let stdout = String::from_utf8_lossy(&self.stdout);
        assert_eq!(self.status.code(), Some(code), "{stdout}{}", self.stderr);
        self
    }

    /// Checks that it failed with this code and a one-line error that contains all of this.
    pub(crate) fn refused(self, code: i32, says: &[&str]) -> Self {
        let ended = self.code(code);
        let lines: Vec<&str> = ended.stderr.lines().collect();
        assert!(
            lines.len() == 1 && (lines[0].starts_with("weft: ") || lines[0].starts_with('{')),
            "not one line: {}",
            ended.stderr
        );
        for said in says {
            assert!(lines[0].contains(said), "'{said}' is missing: {}", ended.stderr);
        }
        ended
    }

    /// Its output.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("what weft prints is UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", String::from_utf8_lossy(&self.stdout), self.stderr))
    }
}

impl Block {
    /// The payload's name on a disk.
    pub(crate) fn file_name(&self) -> String {
        format!("s{}-b{:03}-c{}-g{}", self.stripe, self.index, self.copy, self.generation)
    }
}

/// Runs the real binary.
pub(crate) fn weft<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    let mut command = weft_command();
    command.args(args);
    Running::start(command, Stdio::null()).end()
}

/// The real binary, without the environment of the test run.
pub(crate) fn weft_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WEFT_")) {
        command.env_remove(name);
    }
    command
}

/// Waits until a condition holds.
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = now();
    // Most looks start a program, so what takes longer is looked at less often.
    let mut pause = LOOK_FIRST;
    while !is_so() {
        assert!(begin.elapsed() < WAIT_MAX, "timed out waiting for {what}");
        thread::sleep(pause);
        pause = (pause * 5 / 4).min(LOOK_LAST);
    }
}

#[expect(clippy::disallowed_methods, reason = "a test of real processes waits in real time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// The elements of a JSON list of texts, joined.
pub(crate) fn texts(list: &Value) -> String {
    let list = list.as_array().expect("a list");
    list.iter().map(|text| text.as_str().expect("a text")).collect::<Vec<_>>().join("\n")
}

/// Bytes without short repetitions, the same for the same seed.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut words = Vec::with_capacity(len + 8);
    while words.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend(state.to_le_bytes());
    }
    words.truncate(len);
    words
}

pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

pub(crate) fn send_signal(pid: u32, signal: &str) {
    let kill = format!("kill -s {signal} {pid}");
    let _gone = Command::new("/bin/sh").args(["-c", &kill]).stderr(Stdio::null()).status();
}

fn collect_files(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() { collect_files(&path, files) } else { files.push(path) }
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        let _cut = from.read_to_end(&mut all);
        all
    })
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
