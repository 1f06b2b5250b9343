//! The updates that the blocks of a stripe contain.

use serde::{Deserialize, Serialize};

/// The term under which the metadata names a stripe's blocks, and the number of committed updates of each of its data
/// blocks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "Plain")]
pub struct Seq {
    term: u64,
    counts: Vec<u64>,
}

/// The stored form. It may contain only zeros, which are normalised when it is read.
#[derive(Deserialize)]
struct Plain {
    term: u64,
    counts: Vec<u64>,
}

impl Seq {
    /// The value for a stripe that was never changed.
    pub const FIRST: Self = Self { term: 0, counts: Vec::new() };

    /// One count for each data block. If all are 0, they are stored as an empty list.
    pub fn new(term: u64, counts: Vec<u64>) -> Self {
        let counts = if counts.iter().all(|count| *count == 0) { Vec::new() } else { counts };
        Self { term, counts }
    }

    /// Raised by changes of the blocks' nodes and generations, once blocks can be updated; 0 until then.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The count of each data block; empty if all are 0.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Whether the stripe was never changed.
    pub fn is_first(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it fits a stripe of k data blocks.
    pub fn fits(&self, k: usize) -> bool {
        self.counts.is_empty() || self.counts.len() == k
    }
}

impl From<Plain> for Seq {
    fn from(Plain { term, counts }: Plain) -> Self {
        Self::new(term, counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_counts_are_normalised() {
        assert_eq!(Seq::new(0, vec![0; 10]), Seq::default());
        assert!(Seq::new(0, vec![0; 10]).is_first() && !Seq::new(1, vec![]).is_first() && !Seq::new(0, vec![0, 1]).is_first());
        assert_eq!(Seq::from(Plain { term: 3, counts: vec![0, 0] }), Seq::new(3, vec![]));
        assert_eq!(Seq::new(3, vec![0, 7]).counts(), [0, 7]);
    }

    #[test]
    fn a_seq_has_one_count_per_data_block_or_none() {
        assert!(Seq::default().fits(4) && Seq::new(1, vec![0, 0, 0, 2]).fits(4));
        assert!(!Seq::new(1, vec![0, 2]).fits(4));
    }
}
