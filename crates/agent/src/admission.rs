//! Who may run: a task is admitted with all that it needs, or not at all, and at once. Nobody waits while holding something,
//! so plans that cross cannot block one another. What each class may have is decided in [`weft_engine::classes`].

use crate::Limits;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_engine::classes::{Admission as Policy, Capacity, Demand};
use weft_plan::{Class, Precedence};
use weft_types::{ClassLimits, Result};

/// What the tasks of a node use together, held against its limits.
pub(crate) struct Admission(Mutex<Policy>);

/// What a task was given. Dropped, it is free again.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    class: Class,
    demand: Demand,
}

/// What tasks share of a node with these limits.
pub(crate) fn capacity(limits: &Limits) -> Capacity {
    Capacity {
        memory_bytes: limits.memory_budget.0,
        connections: limits.connections_max,
        blocks_per_disk: limits.blocks_per_disk_max,
        repair_percent: limits.repair_percent,
        scrub_percent: limits.scrub_percent,
    }
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Policy::new(capacity(limits)))))
    }

    /// The cluster has these limits from now on.
    pub(crate) fn keep_within(&self, own: &Limits, cluster: &ClassLimits) {
        self.lock().set_capacity(capacity(own).within(cluster));
    }

    /// All of it, or [`Reaction::Retry`](weft_types::Reaction) at once; what can never be had is
    /// [`Reaction::InvalidInput`](weft_types::Reaction).
    pub(crate) fn admit(self: &Arc<Self>, of: Precedence, demand: Demand) -> Result<Permit> {
        self.lock().admit(of, &demand)?;
        Ok(Permit { admission: Arc::clone(self), class: of.class, demand })
    }

    /// What is reserved now, bytes.
    pub(crate) fn memory_used_bytes(&self) -> u64 {
        self.lock().memory_used_bytes()
    }

    /// A panic elsewhere leaves the sums as they were: nothing panics between two of the changes.
    fn lock(&self) -> MutexGuard<'_, Policy> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.demand.memory_bytes
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.lock().release(self.class, &self.demand);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use weft_types::{ByteSize, Reaction};

    fn demand(memory_bytes: u64, connections: u32, blocks: u32) -> Demand {
        Demand { memory_bytes, connections, blocks: BTreeMap::from([(0, blocks)]) }
    }

    #[test]
    fn all_is_given_or_nothing_and_given_back_when_dropped() {
        let limits = Limits { memory_budget: ByteSize(110), connections_max: 10, blocks_per_disk_max: 4, ..Limits::default() };
        let (admission, of) = (Admission::new(&limits), Precedence::of(Class::Foreground));
        let first = admission.admit(of, demand(60, 6, 2)).ok().unwrap();
        for too_much in [demand(41, 0, 0), demand(0, 5, 0), demand(0, 0, 3)] {
            let refused = admission.admit(of, too_much).err().unwrap();
            assert_eq!(refused.reaction, Reaction::Retry);
            assert!(refused.message.starts_with("busy"), "{refused}");
        }
        assert_eq!(admission.admit(of, demand(101, 0, 0)).err().unwrap().reaction, Reaction::InvalidInput);
        assert_eq!(admission.memory_used_bytes(), 60, "a refusal left something behind");
        let second = admission.admit(of, demand(40, 4, 2)).ok().unwrap();
        drop(first);
        drop(admission.admit(of, demand(60, 6, 2)).ok().unwrap());
        drop(second);
        assert!(admission.lock().is_empty());
    }
}
