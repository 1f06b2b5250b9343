//! Resources that processes and files of this machine use: CPU time and disk space.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};
use weft_cli::{
    files::io_error,
    local::{COORDINATOR, LocalCluster, Process},
};
use weft_types::{Error, Result};

/// The unit of a file's blocks in stat(2).
const STAT_BLOCK_BYTES: u64 = 512;

/// CPU seconds; None for processes on other machines.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cpu {
    pub(crate) client: f64,
    pub(crate) agents: Option<f64>,
    pub(crate) coordinator: Option<f64>,
}

/// Files, and the bytes that the file system has allocated to them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Files {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl Cpu {
    /// The CPU time so far of this process and of the cluster's running processes.
    pub(crate) fn now(cluster: Option<&LocalCluster>) -> Result<Self> {
        let client = Process::of(std::process::id()).and_then(|own| own.cpu_seconds());
        let client = client.ok_or_else(|| Error::fatal("/proc has no entry for this process"))?;
        let Some(cluster) = cluster else { return Ok(Self { client, ..Self::default() }) };
        let (mut agents, mut coordinator) = (0.0, 0.0);
        for (name, process) in cluster.processes()? {
            let of = if name == COORDINATOR { &mut coordinator } else { &mut agents };
            *of += process.and_then(|process| process.cpu_seconds()).unwrap_or(0.0);
        }
        Ok(Self { client, agents: Some(agents), coordinator: Some(coordinator) })
    }

    /// The use between two moments.
    pub(crate) fn since(self, before: Self) -> Self {
        let each = |now: Option<f64>, before: Option<f64>| now.zip(before).map(|(now, before)| now - before);
        let (agents, coordinator) = (each(self.agents, before.agents), each(self.coordinator, before.coordinator));
        Self { client: self.client - before.client, agents, coordinator }
    }
}

impl Files {
    /// All files below these directories. Files that disappear meanwhile are not counted.
    pub(crate) fn below<'a>(dirs: impl IntoIterator<Item = &'a Path>) -> Result<Self> {
        let mut all = Self::default();
        for dir in dirs {
            all.add(dir).map_err(|error| io_error(dir, "look through", &error))?;
        }
        Ok(all)
    }

    fn add(&mut self, dir: &Path) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            match entry.metadata() {
                Ok(it) if it.is_dir() => self.add(&entry.path())?,
                Ok(it) => {
                    self.files += 1;
                    self.bytes += it.blocks() * STAT_BLOCK_BYTES;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_below_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        fs::write(dir.path().join("empty"), "").unwrap();
        fs::write(dir.path().join("below/page"), [1; 4096]).unwrap();
        fs::File::open(dir.path().join("below/page")).unwrap().sync_all().unwrap();
        let all = Files::below([dir.path()]).unwrap();
        assert!(all.files == 2 && (4096..16384).contains(&all.bytes), "{all:?}");
    }

    #[test]
    fn this_process_uses_cpu_time() {
        let before = Cpu::now(None).unwrap();
        let begun = tokio::time::Instant::now();
        // On a busy machine the process may wait for a processor.
        let used = loop {
            let used = Cpu::now(None).unwrap().since(before);
            if used.client > 0.0 || begun.elapsed().as_secs() >= 60 {
                break used;
            }
            std::hint::spin_loop();
        };
        assert!(used.client > 0.0 && used.agents.is_none() && used.coordinator.is_none(), "{used:?}");
    }
}
