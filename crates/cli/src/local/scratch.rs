//! A temporary local cluster in its own directory; it is removed together with its processes.

use super::{
    cluster::LocalCluster,
    make::{DaemonSettings, Size},
};
use crate::{files::io_error, seed::seed};
use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt as _, path::PathBuf};
use weft_coordinator::CoordinatorConfig;
use weft_types::Result;

/// A cluster below the system's directory for temporary files. Dropping it stops and removes it.
#[derive(Debug)]
pub struct ScratchCluster {
    cluster: LocalCluster,
    // Dropped after the processes have stopped.
    _dir: ScratchDir,
}

#[derive(Debug)]
struct ScratchDir(PathBuf);

impl ScratchCluster {
    /// Milliseconds between two heartbeats of its agents.
    pub const HEARTBEAT_INTERVAL_MS: u32 = 200;

    /// Creates one in a directory whose name begins with `name`; nothing runs yet. A dead node is noticed within a second or two. Lost
    /// blocks are rebuilt only on request, so that a degraded read stays one, and nothing is checked in the background.
    pub fn make(name: &str, size: Size) -> Result<Self> {
        Self::make_with(name, size, |config| (config.auto_repair, config.scrub_period_ms) = (false, 0))
    }

    /// The same, with other settings of the coordinator.
    pub fn make_with(name: &str, size: Size, adjust: impl Fn(&mut CoordinatorConfig)) -> Result<Self> {
        let dir = ScratchDir(std::env::temp_dir().join(format!("{name}-{:016x}", seed()?)));
        // Other users must not read stored data.
        DirBuilder::new().mode(0o700).create(&dir.0).map_err(|error| io_error(&dir.0, "create", &error))?;
        let place = dir.0.join("cluster");
        let _lock = LocalCluster::lock(&place)?;
        let cluster = LocalCluster::make(&place, size, seed()?, |it| {
            if let DaemonSettings::Coordinator(config) = it {
                (config.heartbeat_interval_ms, config.down_after_ms) = (Self::HEARTBEAT_INTERVAL_MS, 1000);
                adjust(config);
            }
        })?;
        Ok(Self { cluster, _dir: dir })
    }

    /// The cluster.
    pub fn cluster(&self) -> &LocalCluster {
        &self.cluster
    }
}

impl Drop for ScratchCluster {
    fn drop(&mut self) {
        if let Err(error) = self.cluster.stop() {
            eprintln!("weft: {error}");
        }
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("weft: cannot remove {}: {error}", self.0.display());
        }
    }
}
