//! Copies beside coded data (*Mist*, §3.3): for how long a data block has several. They spread the load of reads, and are gone when
//! the data have cooled down.

mod cool;

pub(crate) use cool::cool;

use crate::{shared::Shared, validate};
use weft_control::{placement, rebuild::Lost};
use weft_meta::PolicyRecord;
use weft_types::{Error, REPLICAS_MAX, Result, StripeRecord};

impl Shared {
    /// What there is to say of a new policy: whether the cluster has the nodes that copies take.
    pub(crate) fn policy_warnings(&self, policy: &PolicyRecord) -> Result<Vec<String>> {
        let code = self.code(&policy.code)?;
        let (needed, nodes) = (placement::nodes_needed(code.k(), code.n(), policy.replicas), self.members.view().nodes.len());
        if policy.replicas < 2 || needed <= nodes {
            return Ok(Vec::new());
        }
        let what = placement::described(&policy.code, policy.replicas);
        Ok(vec![format!(
            "{what} puts the blocks of a stripe on {needed} different nodes, and the cluster has {nodes}: add nodes first"
        )])
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

/// Of what a stripe has lost, the data; and the copies that it lacks, so that there are so many of each data block.
pub(crate) fn lacking(stripe: &StripeRecord, mut lost: Vec<Lost>, replicas: u8) -> Vec<Lost> {
    let data = u8::try_from(stripe.dimension()).unwrap_or(u8::MAX);
    lost.retain(|lost| lost.index < data);
    for index in 0..data {
        let has = stripe.all().filter(|(at, _)| *at == index).count();
        let free = (0..REPLICAS_MAX).filter(|copy| stripe.find(index, *copy).is_none());
        lost.extend(free.take(usize::from(replicas).saturating_sub(has)).map(|copy| Lost::of(stripe, index, copy)));
    }
    lost
}
