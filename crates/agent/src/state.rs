//! The agent's durable state, in the file `agent` of its state directory:
//!
//! ```text
//! weft-agent 3
//! cluster 000102030405060708090a0b0c0d0e0f
//! node 7
//! epoch 12
//! incarnation 3f2a…
//! high-water 4711
//! disk 101112131415161718191a1b1c1d1e1f /srv/weft/a
//! removed 101112131415161718191a1b1c1d1e1f 1700086400000 64
//! freed 101112131415161718191a1b1c1d1e1f 1700003600000 67108864
//! crc32c 89abcdef
//! ```
//! It is text, so that an operator can read it. The last line is the CRC32C of all lines before it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};
use weft_proto::crc32c;
use weft_types::{ClusterId, Error, NodeId, Result};

/// The agent's durable state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Memory {
    /// The cluster that the agent belongs to, once it has joined one.
    pub(crate) cluster: Option<ClusterId>,
    /// The node's number, once it has one.
    pub(crate) node: Option<NodeId>,
    /// The highest coordinator epoch that it has obeyed.
    pub(crate) epoch: u64,
    /// The metadata incarnation that it obeys; empty before the first.
    pub(crate) incarnation: String,
    /// The highest stripe number that it has seen.
    pub(crate) high_water: u64,
    /// The ids of its disks, by path: a disk that no longer opens can still be named.
    pub(crate) disks: BTreeMap<String, String>,
    /// The unexpected removals of blocks within a day, by disk id.
    pub(crate) removed: BTreeMap<String, Used>,
    /// The bytes freed within an hour, by disk id.
    pub(crate) freed: BTreeMap<String, Used>,
}

/// How much of a limit is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    /// The end of the day or hour, milliseconds since 1970.
    pub(crate) until_ms: u64,
    /// Blocks or bytes. May exceed what was removed: the count is recorded ahead.
    pub(crate) amount: u64,
}

/// The file and its content.
pub(crate) struct StateFile {
    path: PathBuf,
    known: Mutex<Known>,
}

struct Known {
    memory: Memory,
    saved: Memory,
}

/// Version 1 has no `removed`, version 2 no `freed`.
const VERSION: u32 = 3;
const STATE_BYTES_MAX: u64 = 1 << 20;
const INCARNATION_BYTES_MAX: usize = 255;

/// The number of the node with this state directory; `None` if it has never joined a cluster. Changes nothing.
pub fn node_of(dir: &Path) -> Result<Option<NodeId>> {
    let path = dir.join("agent");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(decode(&text, &path)?.node),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::unavailable(format!("cannot read {}: {error}", path.display()))),
    }
}

impl StateFile {
    /// Reads the file in `dir`; creates `dir` if it is missing.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let wrong = |error: std::io::Error| Error::fatal(format!("cannot use the state directory {}: {error}", dir.display()));
        // Only the agent's user may read its state.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(wrong)?;
        let path = dir.join("agent");
        let memory = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Memory::default(),
            Err(error) => return Err(wrong(error)),
            Ok(metadata) if metadata.len() > STATE_BYTES_MAX => return Err(damaged(&path)),
            Ok(_) => decode(&fs::read_to_string(&path).map_err(wrong)?, &path)?,
        };
        Ok(Self { path, known: Mutex::new(Known { saved: memory.clone(), memory }) })
    }

    /// The current state.
    pub(crate) fn get(&self) -> Memory {
        self.lock().memory.clone()
    }

    /// Changes the state. The change is durable when this returns.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Memory)) -> Result<()> {
        let mut known = self.lock();
        let mut memory = known.memory.clone();
        change(&mut memory);
        if memory.incarnation.len() > INCARNATION_BYTES_MAX || memory.incarnation.chars().any(char::is_control) {
            return Err(Error::invalid("the metadata incarnation's name is invalid"));
        }
        memory.disks.retain(|path, id| !path.chars().chain(id.chars()).any(char::is_control));
        if memory != known.saved {
            self.write(&memory)?;
            known.saved = memory.clone();
        }
        known.memory = memory;
        Ok(())
    }

    /// Records that stripe number `stripe` exists. The next [`update`](Self::update) makes it durable. After a crash
    /// before that, the blocks on the disks restore it at start.
    pub(crate) fn note_stripe(&self, stripe: u64) {
        let memory = &mut self.lock().memory;
        memory.high_water = memory.high_water.max(stripe);
    }

    fn write(&self, memory: &Memory) -> Result<()> {
        let temporary = self.path.with_extension("new");
        let write = || {
            let mut file = File::create(&temporary)?;
            file.write_all(encode(memory).as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &self.path)?;
            match self.path.parent() {
                Some(dir) => File::open(dir)?.sync_all(),
                None => Ok(()),
            }
        };
        write().map_err(|error| Error::fatal(format!("cannot write {}: {error}", self.path.display())))
    }

    /// A poisoned lock is safe to use: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn encode(memory: &Memory) -> String {
    let mut body = format!("weft-agent {VERSION}\n");
    if let Some(cluster) = memory.cluster {
        body += &format!("cluster {cluster}\n");
    }
    if let Some(node) = memory.node {
        body += &format!("node {}\n", node.0);
    }
    body += &format!("epoch {}\n", memory.epoch);
    if !memory.incarnation.is_empty() {
        body += &format!("incarnation {}\n", memory.incarnation);
    }
    body += &format!("high-water {}\n", memory.high_water);
    for (path, id) in &memory.disks {
        body += &format!("disk {id} {path}\n");
    }
    for (what, used) in [("removed", &memory.removed), ("freed", &memory.freed)] {
        for (disk, Used { until_ms, amount }) in used {
            body += &format!("{what} {disk} {until_ms} {amount}\n");
        }
    }
    format!("{body}crc32c {:08x}\n", crc32c(body.as_bytes()))
}

fn decode(text: &str, path: &Path) -> Result<Memory> {
    let version = text.lines().next().and_then(|line| line.strip_prefix("weft-agent ")).and_then(|it| it.parse::<u32>().ok());
    match version {
        Some(1..=VERSION) => decode_lines(text).ok_or_else(|| damaged(path)),
        Some(version) => Err(Error::invalid(format!(
            "{} has format {version}, but this program reads formats up to {VERSION}: use a newer weft",
            path.display()
        ))),
        None => Err(damaged(path)),
    }
}

fn decode_lines(text: &str) -> Option<Memory> {
    let (body, checksum) = text.split_at(text.rfind("crc32c ")?);
    if checksum != format!("crc32c {:08x}\n", crc32c(body.as_bytes())) {
        return None;
    }
    let mut memory = Memory::default();
    for line in body.lines().skip(1) {
        let (key, value) = line.split_once(' ')?;
        match key {
            "cluster" => memory.cluster = Some(value.parse().ok()?),
            "node" => memory.node = Some(value.parse().ok()?),
            "epoch" => memory.epoch = value.parse().ok()?,
            "incarnation" => memory.incarnation = value.to_string(),
            "high-water" => memory.high_water = value.parse().ok()?,
            "disk" => {
                let (id, path) = value.split_once(' ')?;
                memory.disks.insert(path.to_string(), id.to_string());
            }
            "removed" => decode_used(value, &mut memory.removed)?,
            "freed" => decode_used(value, &mut memory.freed)?,
            _ => return None,
        }
    }
    Some(memory)
}

fn decode_used(value: &str, all: &mut BTreeMap<String, Used>) -> Option<()> {
    let (disk, counted) = value.split_once(' ')?;
    let (until_ms, amount) = counted.split_once(' ')?;
    all.insert(disk.to_string(), Used { until_ms: until_ms.parse().ok()?, amount: amount.parse().ok()? });
    Some(())
}

/// Without its state, the agent could obey a coordinator that was replaced.
fn damaged(path: &Path) -> Error {
    Error::fatal(format!("{} is damaged: restore a copy, or remove the file and let the agent register again", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn saved_state_survives_a_restart_and_damage_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::open(dir.path()).unwrap();
        assert_eq!(file.get(), Memory::default());
        let memory = Memory {
            cluster: Some(ClusterId(7)),
            node: Some(NodeId(3)),
            epoch: 9,
            incarnation: "crc32 c-ish".into(),
            high_water: 0,
            disks: BTreeMap::from([("/srv/a b".into(), "1f".into())]),
            removed: BTreeMap::from([("1f".into(), Used { until_ms: 1_700_000_000_000, amount: 64 })]),
            freed: BTreeMap::from([("1f".into(), Used { until_ms: 1_600_000_000_000, amount: 1 << 40 })]),
        };
        file.update(|known| *known = memory.clone()).unwrap();
        assert_eq!(StateFile::open(dir.path()).unwrap().get(), memory);
        assert_eq!(node_of(dir.path()), Ok(Some(NodeId(3))));
        assert_eq!(node_of(&dir.path().join("none")), Ok(None));

        file.note_stripe(40);
        file.note_stripe(12);
        assert_eq!(StateFile::open(dir.path()).unwrap().get().high_water, 0, "a recorded stripe was saved too early");
        file.update(|_| ()).unwrap();
        assert_eq!(StateFile::open(dir.path()).unwrap().get().high_water, 40);
        assert!(file.update(|known| known.incarnation = "a\nepoch 0".into()).is_err());

        let own = dir.path().join("own");
        StateFile::open(&own).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);

        let path = dir.path().join("agent");
        let text = fs::read_to_string(&path).unwrap();
        for spoiled in [text.replace("epoch 9", "epoch 8"), text[..20].to_string(), String::new(), "x".repeat(2 << 20)] {
            fs::write(&path, spoiled).unwrap();
            assert!(StateFile::open(dir.path()).is_err());
        }
        fs::write(&path, text.replace("weft-agent 3", "weft-agent 4")).unwrap();
        let error = StateFile::open(dir.path()).err().unwrap();
        assert!(error.message.contains("format 4"), "{error}");

        let body = "weft-agent 1\nepoch 4\nhigh-water 2\n";
        fs::write(&path, format!("{body}crc32c {:08x}\n", crc32c(body.as_bytes()))).unwrap();
        let old = Memory { epoch: 4, high_water: 2, ..Memory::default() };
        assert_eq!(StateFile::open(dir.path()).unwrap().get(), old);
        let body = "weft-agent 2\nepoch 4\nhigh-water 2\nremoved 1f 1700086400000 64\n";
        fs::write(&path, format!("{body}crc32c {:08x}\n", crc32c(body.as_bytes()))).unwrap();
        let removed = BTreeMap::from([("1f".into(), Used { until_ms: 1_700_086_400_000, amount: 64 })]);
        assert_eq!(StateFile::open(dir.path()).unwrap().get(), Memory { removed, ..old });
    }
}
