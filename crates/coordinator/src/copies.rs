//! Copies beside coded data (*Mist*, §3.3): for how long a data block has several. They spread the load of reads, and are gone when
//! the data have cooled down.

mod cool;

pub(crate) use cool::cool;

use crate::{shared::Shared, validate};
use weft_control::placement;
use weft_meta::PolicyRecord;
use weft_types::{Error, Result};

impl Shared {
    /// What there is to say of a new policy: whether the cluster has the nodes that copies take.
    pub(crate) fn policy_warnings(&self, policy: &PolicyRecord) -> Result<Vec<String>> {
        let nodes = self.members.view().nodes.len();
        Ok(placement::too_few_nodes(&self.code(&policy.code)?, policy.replicas, nodes).into_iter().collect())
    }
}

/// How many copies there shall be where somebody asks for them; 0: what the policy says.
pub(crate) fn asked_to_heat(asked: u32, policy: &PolicyRecord) -> Result<u8> {
    let replicas = if asked == 0 { policy.replicas } else { validate::replicas(asked)? };
    if replicas < 2 {
        let name = &policy.name;
        let message = format!("the policy {name} keeps one copy of everything: say how many there shall be, 2 or more");
        return Err(Error::invalid(message));
    }
    Ok(replicas)
}
