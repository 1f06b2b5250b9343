//! Copies beside coded data (*Mist*, §3.3). While data is hot, a data block has several copies, which spread the load
//! of reads; they are dropped when the data has cooled down.

mod cool;

pub(crate) use cool::cool;

use crate::{shared::Shared, validate};
use weft_control::placement;
use weft_meta::PolicyRecord;
use weft_types::{Error, Result};

impl Shared {
    /// Warnings for a new policy: whether the cluster has enough nodes for its copies.
    pub(crate) fn policy_warnings(&self, policy: &PolicyRecord) -> Result<Vec<String>> {
        let nodes = self.members.view().nodes.len();
        Ok(placement::too_few_nodes(&self.code(&policy.code)?, policy.replicas, nodes).into_iter().collect())
    }
}

/// The requested number of copies; 0: the policy's.
pub(crate) fn asked_to_heat(asked: u32, policy: &PolicyRecord) -> Result<u8> {
    let replicas = if asked == 0 { policy.replicas } else { validate::replicas(asked)? };
    if replicas < 2 {
        let name = &policy.name;
        let message = format!("the policy {name} keeps only one copy of each block: pass the number of copies, 2 or more");
        return Err(Error::invalid(message));
    }
    Ok(replicas)
}
