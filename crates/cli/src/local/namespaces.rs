//! The names of the network namespaces in which a testbed's processes run. They are made from its directory's path: the commands of
//! `weft` start processes there too, and need nothing else of a testbed.

use sha2::{Digest as _, Sha256};
use std::path::Path;
use weft_types::{Error, Result};

/// The coordinator's name among the processes.
pub const COORDINATOR: &str = "coordinator";
/// The file that makes a testbed of a cluster; `weft-lab` writes and reads it.
pub const TESTBED_FILE: &str = "testbed.toml";
/// The file in a testbed's directory that says that a benchmark made it for itself.
pub const SCRATCH_FILE: &str = "scratch";

/// The namespaces of one testbed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespaces {
    id: String,
}

impl Namespaces {
    /// Of the testbed in `dir`, a [real path](crate::files::real_path).
    pub fn of(dir: &Path) -> Self {
        let hash = Sha256::digest(dir.as_os_str().as_encoded_bytes());
        Self { id: hash.iter().take(3).map(|byte| format!("{byte:02x}")).collect() }
    }

    /// What tells this testbed from others.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The prefix of all their names.
    pub fn prefix(&self) -> String {
        format!("weft-{}-", self.id)
    }

    /// In which an agent runs (number from 0).
    pub fn node(&self, number: u32) -> String {
        format!("weft-{}-{:02}", self.id, number + 1)
    }

    /// The namespace of the coordinator and of commands.
    pub fn outside(&self) -> String {
        format!("weft-{}-out", self.id)
    }

    /// In which the switch is.
    pub fn hub(&self) -> String {
        format!("weft-{}-hub", self.id)
    }

    /// In which the process of that name runs.
    pub(super) fn of_process(&self, name: &str) -> Result<String> {
        if name == COORDINATOR {
            return Ok(self.outside());
        }
        let number =
            node_number(name).ok_or_else(|| Error::invalid(format!("'{name}' is no node of a testbed: node-01 is one")))?;
        Ok(self.node(number))
    }
}

/// The number of a node of a testbed, from 0: `node-01` is the first.
pub fn node_number(name: &str) -> Option<u32> {
    name.strip_prefix("node-")?.parse::<u32>().ok()?.checked_sub(1)
}
