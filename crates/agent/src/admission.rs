//! Admission of tasks. A task gets all resources that it needs or is refused at once. No task waits while it holds
//! resources, so plans that cross cannot deadlock. [`weft_engine::classes`] decides how much each class may use.

use crate::{Limits, meter::CLASSES};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use weft_engine::classes::{Admission as Policy, Capacity, Demand};
use weft_plan::{Class, Precedence};
use weft_types::{ClassLimits, Reaction, Result};

/// The resources that a node's tasks use together, checked against the node's limits.
pub(crate) struct Admission {
    policy: Mutex<Policy>,
    /// Refusals because of what is in use, by class.
    busy: [AtomicU64; CLASSES.len()],
}

/// The resources of one task. Dropping it releases them.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    class: Class,
    demand: Demand,
}

/// The capacity that these limits give a node's tasks.
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
        Arc::new(Self { policy: Mutex::new(Policy::new(capacity(limits))), busy: Default::default() })
    }

    /// Applies new limits: the lower of the node's own and the cluster's.
    pub(crate) fn keep_within(&self, own: &Limits, cluster: &ClassLimits) {
        self.lock().set_capacity(capacity(own).within(cluster));
    }

    /// Reserves all of `demand`, or fails at once with [`Reaction::Retry`](weft_types::Reaction). A demand that exceeds
    /// the node's capacity fails with [`Reaction::InvalidInput`](weft_types::Reaction).
    pub(crate) fn admit(self: &Arc<Self>, of: Precedence, demand: Demand) -> Result<Permit> {
        let admitted = self.lock().admit(of, &demand);
        admitted.inspect_err(|error| {
            if error.reaction == Reaction::Retry {
                self.was_busy(of.class);
            }
        })?;
        Ok(Permit { admission: Arc::clone(self), class: of.class, demand })
    }

    /// Memory reserved now, in bytes.
    pub(crate) fn memory_used_bytes(&self) -> u64 {
        self.lock().memory_used_bytes()
    }

    /// Memory reserved now by the tasks of a class, in bytes.
    pub(crate) fn memory_used_bytes_of(&self, class: Class) -> u64 {
        self.lock().memory_used_bytes_of(class)
    }

    /// A task of this class was refused because of what is in use.
    pub(crate) fn was_busy(&self, class: Class) {
        self.busy[class as usize].fetch_add(1, Relaxed);
    }

    /// How many tasks of a class were refused because of what was in use.
    pub(crate) fn busy(&self, class: Class) -> u64 {
        self.busy[class as usize].load(Relaxed)
    }

    /// A poisoned lock is safe to use: no code panics between two related changes.
    fn lock(&self) -> MutexGuard<'_, Policy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
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
    use weft_types::ByteSize;

    fn demand(memory_bytes: u64, connections: u32, blocks: u32) -> Demand {
        Demand { memory_bytes, connections, blocks: BTreeMap::from([(0, blocks)]) }
    }

    #[test]
    fn a_task_gets_all_resources_or_none_and_returns_them_when_dropped() {
        let limits = Limits { memory_budget: ByteSize(110), connections_max: 10, blocks_per_disk_max: 4, ..Limits::default() };
        let (admission, of) = (Admission::new(&limits), Precedence::of(Class::Foreground));
        let first = admission.admit(of, demand(60, 6, 2)).ok().unwrap();
        for too_much in [demand(41, 0, 0), demand(0, 5, 0), demand(0, 0, 3)] {
            let refused = admission.admit(of, too_much).err().unwrap();
            assert_eq!(refused.reaction, Reaction::Retry);
            assert!(refused.message.starts_with("busy"), "{refused}");
        }
        assert_eq!(admission.admit(of, demand(101, 0, 0)).err().unwrap().reaction, Reaction::InvalidInput);
        assert_eq!(admission.memory_used_bytes(), 60, "a refused task left a reservation");
        assert_eq!(
            (admission.busy(Class::Foreground), admission.busy(Class::Repair)),
            (3, 0),
            "a demand that never fits is not busy"
        );
        let second = admission.admit(of, demand(40, 4, 2)).ok().unwrap();
        drop(first);
        drop(admission.admit(of, demand(60, 6, 2)).ok().unwrap());
        drop(second);
        assert!(admission.lock().is_empty());
    }
}
