//! The names of the network namespaces of a testbed's processes. They derive from the path of the testbed's directory, so commands of
//! `weft` can start processes there without knowing anything else about the testbed.

use sha2::{Digest as _, Sha256};
use std::path::Path;
use weft_types::{Error, Result};

/// The coordinator's name among the processes.
pub const COORDINATOR: &str = "coordinator";
/// The file that marks a cluster as a testbed; `weft-lab` writes and reads it.
pub const TESTBED_FILE: &str = "testbed.toml";
/// The file that marks a testbed that a benchmark created for itself.
pub const SCRATCH_FILE: &str = "scratch";

/// The namespaces of one testbed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespaces {
    id: String,
}

impl Namespaces {
    /// For the testbed in `dir`, a [real path](crate::files::real_path).
    pub fn of(dir: &Path) -> Self {
        let hash = Sha256::digest(dir.as_os_str().as_encoded_bytes());
        Self { id: hash.iter().take(3).map(|byte| format!("{byte:02x}")).collect() }
    }

    /// The id that distinguishes this testbed from others.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The prefix of all its namespace names.
    pub fn prefix(&self) -> String {
        format!("weft-{}-", self.id)
    }

    /// The namespace of an agent (number from 0).
    pub fn node(&self, number: u32) -> String {
        format!("weft-{}-{:02}", self.id, number + 1)
    }

    /// The namespace of the coordinator and of commands.
    pub fn outside(&self) -> String {
        format!("weft-{}-out", self.id)
    }

    /// The namespace of the switch.
    pub fn hub(&self) -> String {
        format!("weft-{}-hub", self.id)
    }

    /// The namespace of the process of that name.
    pub(super) fn of_process(&self, name: &str) -> Result<String> {
        if name == COORDINATOR {
            return Ok(self.outside());
        }
        let number = node_number(name)
            .ok_or_else(|| Error::invalid(format!("'{name}' is not a node of a testbed: nodes are named node-01, node-02, …")))?;
        Ok(self.node(number))
    }
}

/// The number of a testbed's node, from 0: `node-01` is the first.
pub fn node_number(name: &str) -> Option<u32> {
    name.strip_prefix("node-")?.parse::<u32>().ok()?.checked_sub(1)
}
