//! A cache of recent results, bounded by weight.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Values that are cheap to clone, by key; the least recently used are dropped first. Users of the cache must give the
/// same results with and without it.
#[derive(Debug)]
pub struct Cache<K, V> {
    weight_max: usize,
    known: Mutex<Known<K, V>>,
}

/// Hits and misses of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Lookups that found a value.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
}

#[derive(Debug)]
struct Known<K, V> {
    entries: HashMap<K, Entry<V>>,
    weight: usize,
    /// Counts uses.
    now: u64,
    counts: Counts,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    weight: usize,
    used: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// Keeps values with a total weight of at most `weight_max`.
    pub fn new(weight_max: usize) -> Self {
        let known = Known { entries: HashMap::new(), weight: 0, now: 0, counts: Counts::default() };
        Self { weight_max, known: Mutex::new(known) }
    }

    /// The value for a key, if it is `right`.
    pub fn get(&self, key: &K, right: impl FnOnce(&V) -> bool) -> Option<V> {
        let found = {
            let mut known = self.lock();
            known.now += 1;
            let now = known.now;
            known.entries.get_mut(key).map(|entry| {
                entry.used = now;
                entry.value.clone()
            })
        };
        // Checked without the lock, because it may take long.
        let found = found.filter(right);
        let counts = &mut self.lock().counts;
        *(if found.is_some() { &mut counts.hits } else { &mut counts.misses }) += 1;
        found
    }

    /// Adds a value, unless it is too heavy by itself.
    pub fn put(&self, key: K, value: V, weight: usize) {
        if weight > self.weight_max {
            return;
        }
        let mut known = self.lock();
        known.now += 1;
        let used = known.now;
        known.weight += weight;
        if let Some(before) = known.entries.insert(key, Entry { value, weight, used }) {
            known.weight -= before.weight;
        }
        while known.weight > self.weight_max {
            let oldest = known.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
            let Some(entry) = oldest.and_then(|oldest| known.entries.remove(&oldest)) else { break };
            known.weight -= entry.weight;
        }
    }

    /// The hits and misses so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, Known<K, V>> {
        // A poisoned lock leaves at most a slightly wrong weight.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_value_is_dropped_first_and_a_heavy_one_is_not_kept() {
        let cache = Cache::new(10);
        let has = |key: u32| cache.get(&key, |_| true).is_some();
        (1..=3).for_each(|key| cache.put(key, (), 3));
        assert!(has(1));
        cache.put(4, (), 4);
        assert_eq!([1, 2, 3, 4].map(has), [true, false, true, true]);
        cache.put(5, (), 11);
        cache.put(1, (), 1);
        assert_eq!([1, 3, 4, 5].map(has), [true, true, true, false]);
        assert!(cache.get(&1, |()| false).is_none(), "a rejected value was returned");
        assert_eq!(cache.counts(), Counts { hits: 7, misses: 3 });
    }
}
