//! What planning remembers, to be quick: recipes and lanes of patterns that were met, and shapes that were proved. What is planned is
//! the same with and without it.

use weft_plan::{Counts, ProofKey, Proofs};
use weft_schemes::Patterns;

/// Coefficients of recipes, of lanes, and of proved shapes that are remembered, each: about 24 MB of each.
const TERMS_MAX: usize = 2 << 20;

/// What is remembered.
#[derive(Debug)]
pub struct Known {
    pub(crate) proofs: Proofs,
    pub(crate) patterns: Patterns,
}

impl Known {
    /// Nothing yet. Large plans are proved by the key.
    pub fn new(key: ProofKey) -> Self {
        Self { proofs: Proofs::new(key, TERMS_MAX), patterns: Patterns::new(TERMS_MAX) }
    }

    /// How often a plan's shape had been proved, and how often not.
    pub fn proofs(&self) -> Counts {
        self.proofs.counts()
    }

    /// How often the lanes of a repair were known, and how often not.
    pub fn patterns(&self) -> Counts {
        self.patterns.counts()
    }
}
