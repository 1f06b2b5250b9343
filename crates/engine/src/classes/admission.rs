//! Admission of tasks: a task gets all resources that it needs or is refused at once.

use super::{ByClass, KEPT_PERCENT, LOWER};
use std::collections::BTreeMap;
use weft_plan::{Class, Precedence};
use weft_types::{ClassLimits, Error, Result, human_bytes};

/// A node's resources, and how much of them the tasks of lower classes may use together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Memory of all tasks together, bytes.
    pub memory_bytes: u64,
    /// Connections of all tasks together.
    pub connections: u32,
    /// Blocks of one disk that may be read or written at the same time.
    pub blocks_per_disk: u32,
    /// The share of each resource that repairs may use, percent.
    pub repair_percent: u32,
    /// The share of each resource that scrubs may use, percent.
    pub scrub_percent: u32,
}

/// The resources that one task needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demand {
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Connections.
    pub connections: u32,
    /// Blocks that the task reads or writes, by disk number.
    pub blocks: BTreeMap<usize, u32>,
}

/// The resources that a node's tasks use together, checked against its capacity.
///
/// A class never uses more than its limit. The reserve of a lower class ([`KEPT_PERCENT`], or its limit if that is lower) is used by no
/// other class. Within its class's limit, a task of a later priority leaves a quarter to tasks of the first.
#[derive(Debug)]
pub struct Admission {
    capacity: Capacity,
    used: ByClass<Used>,
}

/// The resources that the tasks of a class use.
#[derive(Debug, Default)]
struct Used {
    memory_bytes: u64,
    connections: u64,
    blocks: BTreeMap<usize, u64>,
}

/// One resource of a node: its size, each class's use of it, and its name in messages.
struct Resource {
    total: u64,
    used: ByClass<u64>,
    what: &'static str,
    in_bytes: bool,
}

impl Capacity {
    /// How much of a resource of `total` units the tasks of this precedence may use together.
    pub fn limit(&self, of: Precedence, total: u64) -> u64 {
        let limit = self.class_limit(of.class, total);
        if of.priority == 0 || of.class == Class::Foreground { limit } else { limit - limit / 4 }
    }

    /// This capacity, lowered to the cluster's limits where those are lower.
    #[must_use]
    pub fn within(self, limits: &ClassLimits) -> Self {
        let lower = |own: u32, cluster: Option<u32>| cluster.map_or(own, |cluster| cluster.min(own));
        Self {
            repair_percent: lower(self.repair_percent, limits.repair_percent),
            scrub_percent: lower(self.scrub_percent, limits.scrub_percent),
            ..self
        }
    }

    /// At least 1, because a percentage of a small total could round down to 0.
    fn class_limit(&self, class: Class, total: u64) -> u64 {
        part(total, self.percent(class)).max(1).min(total - self.kept_for_others(class, total))
    }

    /// The reserve of a class: what no other class may use.
    fn kept(&self, class: Class, total: u64) -> u64 {
        if class == Class::Foreground { 0 } else { part(total, KEPT_PERCENT.min(self.percent(class))) }
    }

    fn kept_for_others(&self, class: Class, total: u64) -> u64 {
        LOWER.into_iter().filter(|lower| *lower != class).map(|lower| self.kept(lower, total)).sum()
    }

    fn percent(&self, class: Class) -> u32 {
        match class {
            Class::Foreground => 100,
            Class::Repair => self.repair_percent,
            Class::Scrub => self.scrub_percent,
        }
    }
}

fn part(total: u64, percent: u32) -> u64 {
    (u128::from(total) * u128::from(percent.min(100)) / 100) as u64
}

impl Admission {
    /// For a node without tasks.
    pub fn new(capacity: Capacity) -> Self {
        Self { capacity, used: ByClass::default() }
    }

    /// The node's capacity.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Changes the capacity. Admitted tasks keep their resources; new ones must fit the new capacity.
    pub fn set_capacity(&mut self, capacity: Capacity) {
        self.capacity = capacity;
    }

    /// Reserves all of `demand`.
    ///
    /// # Errors
    /// [`Reaction::Retry`](weft_types::Reaction) if a resource is in use now;
    /// [`Reaction::InvalidInput`](weft_types::Reaction) if the demand exceeds what such a task can ever have. In both
    /// cases nothing is reserved.
    pub fn admit(&mut self, of: Precedence, demand: &Demand) -> Result<()> {
        self.require(of, demand.memory_bytes, &self.memory())?;
        self.require(of, demand.connections.into(), &self.connections())?;
        for (disk, blocks) in &demand.blocks {
            self.require(of, (*blocks).into(), &self.blocks(*disk))?;
        }
        let used = &mut self.used[of.class];
        used.memory_bytes += demand.memory_bytes;
        used.connections += u64::from(demand.connections);
        for (disk, blocks) in &demand.blocks {
            *used.blocks.entry(*disk).or_default() += u64::from(*blocks);
        }
        Ok(())
    }

    /// Releases what a task of this class was admitted with.
    pub fn release(&mut self, class: Class, demand: &Demand) {
        let used = &mut self.used[class];
        used.memory_bytes = used.memory_bytes.saturating_sub(demand.memory_bytes);
        used.connections = used.connections.saturating_sub(demand.connections.into());
        for (disk, blocks) in &demand.blocks {
            if let Some(used) = used.blocks.get_mut(disk) {
                *used = used.saturating_sub((*blocks).into());
            }
        }
        used.blocks.retain(|_, blocks| *blocks > 0);
    }

    /// Memory reserved now by all classes, bytes.
    pub fn memory_used_bytes(&self) -> u64 {
        self.used.0.iter().map(|used| used.memory_bytes).sum()
    }

    /// Memory reserved now by a class, bytes.
    pub fn memory_used_bytes_of(&self, class: Class) -> u64 {
        self.used[class].memory_bytes
    }

    /// Whether nothing is reserved.
    pub fn is_empty(&self) -> bool {
        self.used.0.iter().all(|used| used.memory_bytes == 0 && used.connections == 0 && used.blocks.is_empty())
    }

    fn memory(&self) -> Resource {
        self.resource(self.capacity.memory_bytes, "memory", true, |used| used.memory_bytes)
    }

    fn connections(&self) -> Resource {
        self.resource(self.capacity.connections.into(), "connections", false, |used| used.connections)
    }

    fn blocks(&self, disk: usize) -> Resource {
        let blocks = |used: &Used| used.blocks.get(&disk).copied().unwrap_or(0);
        self.resource(self.capacity.blocks_per_disk.into(), "blocks of one disk", false, blocks)
    }

    fn resource(&self, total: u64, what: &'static str, in_bytes: bool, used: impl Fn(&Used) -> u64) -> Resource {
        Resource { total, used: ByClass(self.used.0.each_ref().map(used)), what, in_bytes }
    }

    fn require(&self, of: Precedence, needs: u64, resource: &Resource) -> Result<()> {
        let (capacity, total) = (&self.capacity, resource.total);
        let limit = capacity.limit(of, total);
        let tell = |amount: u64| if resource.in_bytes { human_bytes(amount) } else { amount.to_string() };
        let (what, class) = (resource.what, name(of.class));
        if needs > limit {
            let (needs, limit, total) = (tell(needs), tell(limit), tell(total));
            return Err(Error::invalid(format!(
                "the task needs {needs} {what}, but {class} tasks may use only {limit} of {total} together"
            )));
        }
        let used: u64 = resource.used.0.iter().sum();
        let others = LOWER.into_iter().filter(|class| *class != of.class);
        let kept: u64 = others.map(|class| capacity.kept(class, total).saturating_sub(resource.used[class])).sum();
        if resource.used[of.class].saturating_add(needs) > limit {
            let (used, limit) = (tell(resource.used[of.class]), tell(limit));
            return Err(Error::retry(format!("busy: {class} tasks use {used} of their {limit} {what}")));
        }
        if used.saturating_add(needs).saturating_add(kept) > total {
            let (used, total) = (tell(used), tell(total));
            return Err(Error::retry(format!("busy: {used} of {total} {what} are in use")));
        }
        Ok(())
    }
}

fn name(class: Class) -> &'static str {
    match class {
        Class::Foreground => "foreground",
        Class::Repair => "repair",
        Class::Scrub => "scrub",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use weft_types::Reaction;

    const CLASSES: [Class; 3] = [Class::Foreground, Class::Repair, Class::Scrub];

    fn capacity(repair_percent: u32, scrub_percent: u32) -> Capacity {
        Capacity { memory_bytes: 1000, connections: 100, blocks_per_disk: 40, repair_percent, scrub_percent }
    }

    fn memory(memory_bytes: u64) -> Demand {
        Demand { memory_bytes, ..Demand::default() }
    }

    #[test]
    fn each_class_has_its_limit_and_lower_classes_keep_their_reserve() {
        // (repair %, scrub %) → the most that foreground, repair and scrub get alone, and each beside the others at
        // their limits.
        let table = [
            ((70, 20), [900, 700, 200], [100, 50, 50]),
            ((3, 2), [950, 30, 20], [950, 30, 20]),
            ((100, 100), [900, 950, 950], [0, 50, 50]),
        ];
        for ((repair, scrub), alone, beside) in table {
            for (class, (alone, beside)) in CLASSES.into_iter().zip(alone.into_iter().zip(beside)) {
                let most = |others: &[Class]| {
                    let mut admission = Admission::new(capacity(repair, scrub));
                    let mut fill = |class| {
                        let one = |admission: &mut Admission| admission.admit(Precedence::of(class), &memory(1)).is_ok();
                        (0..).take_while(|_| one(&mut admission)).count()
                    };
                    others.iter().for_each(|class| assert!(fill(*class) > 0 || *class == Class::Foreground));
                    fill(class)
                };
                assert_eq!(most(&[]), alone, "{class:?} alone at {repair} % and {scrub} %");
                let others: Vec<Class> = CLASSES.into_iter().filter(|other| *other != class).collect();
                assert!(most(&others) >= beside, "{class:?} beside the others at {repair} % and {scrub} %: {}", most(&others));
            }
        }
    }

    #[test]
    fn a_later_priority_leaves_a_part_of_the_class_to_the_first() {
        let mut admission = Admission::new(capacity(40, 20));
        let later = Precedence { class: Class::Repair, priority: 1 };
        admission.admit(later, &memory(300)).unwrap();
        let refused = admission.admit(later, &memory(1)).unwrap_err();
        assert_eq!(refused.reaction, Reaction::Retry);
        assert!(refused.message.starts_with("busy: repair tasks use 300 B of their 300 B memory"), "{refused}");
        admission.admit(Precedence::of(Class::Repair), &memory(100)).unwrap();
        assert_eq!(admission.admit(later, &memory(301)).unwrap_err().reaction, Reaction::InvalidInput);
    }

    #[test]
    fn the_lower_of_two_limits_applies_and_running_tasks_continue() {
        let own = capacity(70, 20);
        let cluster = ClassLimits { repair_percent: Some(30), scrub_percent: Some(40), ..ClassLimits::default() };
        assert_eq!(own.clone().within(&cluster), capacity(30, 20));
        assert_eq!(own.clone().within(&ClassLimits::default()), own);
        let (mut admission, repair) = (Admission::new(own.clone()), Precedence::of(Class::Repair));
        admission.admit(repair, &memory(600)).unwrap();
        admission.set_capacity(own.clone().within(&cluster));
        let refused = admission.admit(repair, &memory(1)).unwrap_err();
        assert!(refused.message.starts_with("busy: repair tasks use 600 B of their 300 B memory"), "{refused}");
        admission.admit(Precedence::of(Class::Foreground), &memory(350)).unwrap();
        admission.release(Class::Repair, &memory(400));
        admission.admit(repair, &memory(100)).unwrap();
        admission.set_capacity(own);
        admission.admit(repair, &memory(250)).unwrap();
    }

    /// Any order of admissions and releases, also on small nodes.
    #[test]
    fn sums_stay_within_limits_reserves_are_available_and_nothing_leaks() {
        for seed in 0..300 {
            let mut random = StdRng::seed_from_u64(seed);
            let capacity = Capacity {
                memory_bytes: random.random_range(1..200),
                connections: random.random_range(1..50),
                blocks_per_disk: random.random_range(1..50),
                repair_percent: random.random_range(1..=100),
                scrub_percent: random.random_range(1..=100),
            };
            let (mut admission, mut held) = (Admission::new(capacity.clone()), Vec::new());
            for _ in 0..300 {
                if random.random_bool(0.4) && !held.is_empty() {
                    let (class, demand) = held.swap_remove(random.random_range(0..held.len()));
                    admission.release(class, &demand);
                } else {
                    let of = Precedence { class: CLASSES[random.random_range(0..3)], priority: random.random_range(0..3) };
                    let blocks = BTreeMap::from([(random.random_range(0..2), random.random_range(0..10))]);
                    let demand =
                        Demand { memory_bytes: random.random_range(0..60), connections: random.random_range(0..10), blocks };
                    if admission.admit(of, &demand).is_ok() {
                        held.push((of.class, demand));
                    }
                }
                let resources = [admission.memory(), admission.connections(), admission.blocks(0), admission.blocks(1)];
                for resource in resources {
                    let sum: u64 = resource.used.0.iter().sum();
                    assert!(sum <= resource.total, "seed {seed}: {} of {} {}", sum, resource.total, resource.what);
                    for class in CLASSES {
                        let (used, limit) = (resource.used[class], capacity.class_limit(class, resource.total));
                        assert!(used <= limit, "seed {seed}: {class:?} uses {used} of {limit} {}", resource.what);
                        let kept = capacity.kept(class, resource.total);
                        let due = kept.saturating_sub(used);
                        let had = admission.require(Precedence::of(class), due, &resource);
                        assert!(
                            due == 0 || had.is_ok(),
                            "seed {seed}: {class:?} cannot use its reserve of {kept} {}: {had:?}",
                            resource.what
                        );
                    }
                }
            }
            held.iter().for_each(|(class, demand)| admission.release(*class, demand));
            assert!(admission.is_empty(), "seed {seed}");
        }
    }
}
