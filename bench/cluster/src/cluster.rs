//! A weft cluster, started and used through its command line, as operators do.

use crate::{Result, Run, cpu};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The coordinator's name among the processes.
const COORDINATOR: &str = "coordinator";
const POLL: Duration = Duration::from_millis(1);
/// The number of polls for each reading of the memory, because a reading costs as much as a poll.
const POLLS_PER_LOOK: usize = 8;
const DOWN_POLL: Duration = Duration::from_millis(200);
const DOWN_POLLS: usize = 100;

/// A running cluster. Dropping it stops it.
pub struct Cluster<'a> {
    run: &'a Run,
    dir: PathBuf,
    pids: BTreeMap<String, u32>,
}

/// The result of a command.
pub struct Done {
    pub output: String,
    pub seconds: f64,
    /// CPU time of the command itself.
    pub cpu_seconds: f64,
    /// Its peak memory, as last read before it ended.
    pub peak_bytes: u64,
}

impl<'a> Cluster<'a> {
    /// Starts a cluster named `name` of `nodes` agents, with these settings of its coordinator.
    pub fn up(run: &'a Run, name: &str, nodes: u32, insecure: bool, settings: &[(&str, String)]) -> Result<Self> {
        let mut cluster = Self { run, dir: run.dir.join(name), pids: BTreeMap::new() };
        let (dir, nodes, racks) = (cluster.dir.display().to_string(), nodes.to_string(), nodes.min(4).to_string());
        let mut command = Command::new(&run.weft);
        command.args(["cluster", "up", "--dir", &dir, "--nodes", &nodes, "--racks", &racks, "--json"]);
        command.args(insecure.then_some("--insecure"));
        // The processes that it starts inherit the environment.
        command.envs(settings.iter().map(|(name, value)| (format!("WEFT_COORDINATOR_{name}"), value)));
        run.finish(command)?;
        for entry in fs::read_dir(cluster.dir.join("run"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "pid") {
                let text = fs::read_to_string(&path)?;
                let pid = text.lines().find_map(|line| line.strip_prefix("pid = ")?.parse().ok());
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                cluster.pids.insert(name, pid.ok_or_else(|| format!("{} names no process", path.display()))?);
            }
        }
        Ok(cluster)
    }

    /// Runs `weft` with `words` on this cluster.
    pub fn weft(&self, words: &[&str]) -> Result<Done> {
        self.run.finish(self.command(words))
    }

    /// `weft` with `words` on this cluster.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.run.weft);
        command.arg("--cluster").arg(&self.dir).args(words);
        command
    }

    /// The agent that holds data of most stripes of an object, the number of these stripes, and that of all stripes.
    pub fn agent_with_most_data(&self, bucket: &str, key: &str, k: usize) -> Result<(String, usize, usize)> {
        let object = self.ask(&["stat", &format!("{bucket}/{key}")])?;
        let stripes = object["stripes"].as_array().ok_or("`stat` lists no stripes")?;
        let mut held: BTreeMap<&str, usize> = BTreeMap::new();
        for block in stripes.iter().filter_map(|stripe| stripe["blocks"].as_array()).flatten() {
            let is_data = block["index"].as_u64().is_some_and(|index| index < k as u64) && block["size"].as_u64() > Some(0);
            if let (true, Some(name)) = (is_data, block["name"].as_str()) {
                *held.entry(name).or_default() += 1;
            }
        }
        let (name, count) = held.into_iter().max_by_key(|(_, count)| *count).ok_or("no agent holds data")?;
        Ok((name.to_owned(), count, stripes.len()))
    }

    /// The number of blocks that agents which are up still have to remove.
    pub fn garbage_blocks(&self) -> Result<u64> {
        let nodes = self.nodes()?;
        Ok(nodes.iter().filter(|node| node["state"] == "up").filter_map(|node| node["garbage_blocks"].as_u64()).sum())
    }

    /// Kills an agent, and waits until the coordinator has noticed.
    pub fn lose_agent(&mut self, name: &str) -> Result<()> {
        let pid = self.pids.remove(name).ok_or_else(|| format!("{name} does not run"))?;
        let mut kill = Command::new("kill");
        kill.args(["-KILL", &pid.to_string()]);
        self.run.finish(kill)?;
        for _ in 0..DOWN_POLLS {
            thread::sleep(DOWN_POLL);
            if self.nodes()?.iter().any(|node| node["name"] == name && node["state"] == "down") {
                return Ok(());
            }
        }
        Err(format!("{name} was killed, and the coordinator does not notice").into())
    }

    fn nodes(&self) -> Result<Vec<Value>> {
        let nodes = self.ask(&["node", "ls"])?;
        Ok(nodes.get("nodes").unwrap_or(&nodes).as_array().ok_or("`node ls` lists no nodes")?.clone())
    }

    /// Like [`weft`](Self::weft), with JSON output.
    pub fn ask(&self, words: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.weft(&[words, &["--json"]].concat())?.output)?)
    }

    /// CPU seconds that one of its processes has used so far.
    pub fn cpu_of(&self, name: &str) -> Result<f64> {
        cpu::of(*self.pids.get(name).ok_or_else(|| format!("{name} does not run"))?)
    }

    /// CPU seconds that its agents and its coordinator have used so far.
    pub fn cpu(&self) -> Result<f64> {
        self.pids.keys().map(|name| self.cpu_of(name)).sum()
    }

    /// The names of its agents by their numbers in plans.
    pub fn agents(&self) -> Result<BTreeMap<u64, String>> {
        let named = |node: &Value| Some((number(node.get("id")?)?, node.get("name")?.as_str()?.to_owned()));
        Ok(self.nodes()?.iter().filter_map(named).filter(|(_, name)| name != COORDINATOR).collect())
    }
}

/// The number in a value: a number, or text that ends with one.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.trim_start_matches(|it: char| !it.is_ascii_digit()).parse().ok())
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        let mut command = Command::new(&self.run.weft);
        command.args(["cluster", "down", "--dir"]).arg(&self.dir).stdout(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => drop(fs::remove_dir_all(&self.dir)),
            _ => eprintln!("weft-measure: the cluster in {} was not stopped", self.dir.display()),
        }
    }
}

impl Run {
    /// Runs a command, which must succeed within the time limit.
    pub fn finish(&self, mut command: Command) -> Result<Done> {
        let cpu_before = cpu::of_children()?;
        let begin = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut stdout = child.stdout.take();
        // A full pipe must not block it.
        let reading = thread::spawn(move || {
            let mut output = String::new();
            stdout.as_mut().map_or(Ok(0), |pipe| pipe.read_to_string(&mut output)).map(|_| output)
        });
        let peak_bytes = self.wait(&mut child, &command)?;
        let seconds = begin.elapsed().as_secs_f64();
        let output = reading.join().map_err(|_| "reading has panicked")??;
        Ok(Done { output, seconds, cpu_seconds: cpu::of_children()? - cpu_before, peak_bytes })
    }

    /// Also returns the most memory that the child was seen to use.
    fn wait(&self, child: &mut Child, command: &Command) -> Result<u64> {
        let mut peak_bytes = 0;
        for poll in 0_usize.. {
            if poll.is_multiple_of(POLLS_PER_LOOK) {
                peak_bytes = cpu::peak_bytes(child.id()).unwrap_or(peak_bytes);
            }
            match child.try_wait()? {
                Some(status) if status.success() => break,
                Some(status) => return Err(format!("{command:?} ended with {status}").into()),
                None if Instant::now() > self.deadline => {
                    child.kill()?;
                    child.wait()?;
                    return Err(format!("{command:?} took too long").into());
                }
                None => thread::sleep(POLL),
            }
        }
        Ok(peak_bytes)
    }
}
