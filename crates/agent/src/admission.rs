//! Who may run: a task is admitted with all that it needs, or not at all, and at once. Nobody waits while holding something,
//! so plans that cross cannot block one another.

use crate::Limits;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use weft_types::{Error, Result, human_bytes};

/// What the tasks of a node use together, held against its limits.
pub(crate) struct Admission {
    limits: Limits,
    used: Mutex<Demand>,
}

/// What one task needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Demand {
    pub(crate) memory_bytes: u64,
    pub(crate) connections: u32,
    /// Blocks that are read or written, for each disk by its number.
    pub(crate) blocks: BTreeMap<usize, u32>,
}

/// What a task was given. Dropped, it is free again.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    demand: Demand,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, used: Mutex::default() })
    }

    /// All of it, or [`Reaction::Retry`](weft_types::Reaction) at once; what can never be had is
    /// [`Reaction::InvalidInput`](weft_types::Reaction).
    pub(crate) fn admit(self: &Arc<Self>, demand: Demand) -> Result<Permit> {
        let budget = self.limits.memory_budget.0;
        if demand.memory_bytes > budget {
            let (needs, has) = (human_bytes(demand.memory_bytes), human_bytes(budget));
            return Err(Error::invalid(format!(
                "the task needs {needs} of memory, and the node has {has} for all tasks together"
            )));
        }
        let mut used = self.lock();
        let memory_bytes = used.memory_bytes.saturating_add(demand.memory_bytes);
        let connections = used.connections.saturating_add(demand.connections);
        if memory_bytes > budget {
            let (used, budget) = (human_bytes(used.memory_bytes), human_bytes(budget));
            return Err(Error::retry(format!("busy: {used} of {budget} of memory are in use")));
        }
        if connections > self.limits.connections_max {
            let (used, max) = (used.connections, self.limits.connections_max);
            return Err(Error::retry(format!("busy: {used} of {max} connections are in use")));
        }
        let max = self.limits.blocks_per_disk_max;
        for (disk, blocks) in &demand.blocks {
            let used = used.blocks.get(disk).copied().unwrap_or(0);
            if used.saturating_add(*blocks) > max {
                return Err(Error::retry(format!("busy: {used} of {max} blocks of one disk are in use")));
            }
        }
        used.memory_bytes = memory_bytes;
        used.connections = connections;
        for (disk, blocks) in &demand.blocks {
            *used.blocks.entry(*disk).or_default() += blocks;
        }
        drop(used);
        Ok(Permit { admission: Arc::clone(self), demand })
    }

    /// What is reserved now, bytes.
    pub(crate) fn memory_used_bytes(&self) -> u64 {
        self.lock().memory_bytes
    }

    /// A panic elsewhere leaves the sums as they were: nothing panics between two of the changes.
    fn lock(&self) -> MutexGuard<'_, Demand> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.demand.memory_bytes
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = self.admission.lock();
        used.memory_bytes -= self.demand.memory_bytes;
        used.connections -= self.demand.connections;
        for (disk, blocks) in &self.demand.blocks {
            if let Some(used) = used.blocks.get_mut(disk) {
                *used -= blocks;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{ByteSize, Reaction};

    fn demand(memory_bytes: u64, connections: u32, blocks: u32) -> Demand {
        Demand { memory_bytes, connections, blocks: BTreeMap::from([(0, blocks)]) }
    }

    #[test]
    fn all_is_given_or_nothing_and_given_back_when_dropped() {
        let limits = Limits { memory_budget: ByteSize(100), connections_max: 10, blocks_per_disk_max: 4, ..Limits::default() };
        let admission = Admission::new(limits);
        let first = admission.admit(demand(60, 6, 2)).ok().unwrap();
        for too_much in [demand(41, 0, 0), demand(0, 5, 0), demand(0, 0, 3)] {
            let refused = admission.admit(too_much).err().unwrap();
            assert_eq!(refused.reaction, Reaction::Retry);
            assert!(refused.message.starts_with("busy"), "{refused}");
        }
        assert_eq!(admission.admit(demand(101, 0, 0)).err().unwrap().reaction, Reaction::InvalidInput);
        assert_eq!(*admission.lock(), demand(60, 6, 2), "a refusal left something behind");
        let second = admission.admit(demand(40, 4, 2)).ok().unwrap();
        drop(first);
        drop(admission.admit(demand(60, 6, 2)).ok().unwrap());
        drop(second);
        assert_eq!(*admission.lock(), demand(0, 0, 0));
    }
}
