//! Caches that make planning fast: recipes and lanes of known failure patterns, and shapes that were verified. Plans
//! are the same with and without them.

use weft_codes::{SharedCode, shortened};
use weft_plan::{Cache, Counts, ProofKey, Proofs};
use weft_schemes::Patterns;

/// Coefficients that each cache keeps, about 24 MB: those of recipes, of lanes of repairs, of lanes of writes, of
/// verified shapes, and of shortened codes.
const TERMS_MAX: usize = 2 << 20;

/// The caches.
#[derive(Debug)]
pub struct Known {
    pub(crate) proofs: Proofs,
    pub(crate) patterns: Patterns,
    /// Codes of stripes with few data blocks, by the code's spec.
    shortened: Cache<(String, usize), SharedCode>,
}

impl Known {
    /// Empty caches. Large plans are verified with `key`.
    pub fn new(key: ProofKey) -> Self {
        Self { proofs: Proofs::new(key, TERMS_MAX), patterns: Patterns::new(TERMS_MAX), shortened: Cache::new(TERMS_MAX) }
    }

    /// The code of a stripe in which only this many data blocks have bytes.
    pub(crate) fn shortened(&self, code: &SharedCode, dimension: usize) -> SharedCode {
        if dimension >= code.dimension() {
            return SharedCode::clone(code);
        }
        let key = (code.spec(), dimension);
        self.shortened.get(&key, |_| true).unwrap_or_else(|| {
            let made = shortened(code, dimension);
            self.shortened.put(key, SharedCode::clone(&made), made.generator().terms().len());
            made
        })
    }

    /// The recipes and lanes of known failure patterns.
    pub fn patterns_of_repairs(&self) -> &Patterns {
        &self.patterns
    }

    /// How often a plan's shape was found verified, and how often not.
    pub fn proofs(&self) -> Counts {
        self.proofs.counts()
    }

    /// How often the lanes of a repair or a write were found, and how often not.
    pub fn patterns(&self) -> Counts {
        self.patterns.counts()
    }
}
