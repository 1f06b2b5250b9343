//! What a conversion waits for; the job reports each wait while it lasts.

use std::collections::{BTreeMap, BTreeSet};

/// The most waits that are shown.
const WAITS_SHOWN_MAX: usize = 16;

/// All waits, by number.
#[derive(Debug, Default)]
pub struct Waits {
    waits_for: BTreeMap<u64, String>,
    /// The last number.
    last: u64,
}

impl Waits {
    /// A new number, for something that may have to wait.
    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Records what `number` waits for. The text of an error may begin with "waits for".
    pub fn tell(&mut self, number: u64, what: &str) {
        let what = what.strip_prefix("waits for ").unwrap_or(what).to_owned();
        self.waits_for.insert(number, what);
    }

    /// Ends a wait.
    pub fn over(&mut self, number: u64) {
        self.waits_for.remove(&number);
    }

    /// The current waits, each once.
    pub fn shown(&self) -> Vec<String> {
        let distinct: BTreeSet<&String> = self.waits_for.values().collect();
        distinct.into_iter().take(WAITS_SHOWN_MAX).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_shown_while_they_last() {
        let mut waits = Waits::default();
        let [one, other, third] = [(); 3].map(|()| waits.number());
        waits.tell(one, "waits for space: a");
        waits.tell(other, "node-01");
        waits.tell(third, "node-01");
        assert_eq!(waits.shown(), ["node-01", "space: a"]);
        waits.over(one);
        waits.tell(other, "node-02");
        assert_eq!(waits.shown(), ["node-01", "node-02"]);
        waits.over(other);
        waits.over(third);
        waits.over(third);
        assert_eq!(waits.shown(), [""; 0]);
    }

    #[test]
    fn the_number_of_shown_waits_is_bounded() {
        let mut waits = Waits::default();
        for _ in 0..100 {
            let number = waits.number();
            waits.tell(number, &format!("node-{number}"));
        }
        assert_eq!(waits.shown().len(), WAITS_SHOWN_MAX);
    }
}
