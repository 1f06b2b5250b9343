//! What planning remembers, to be quick: recipes and lanes of patterns that were met, and shapes that were proved. What is planned is
//! the same with and without it.

use weft_codes::{SharedCode, shortened};
use weft_plan::{Cache, Counts, ProofKey, Proofs};
use weft_schemes::Patterns;

/// Coefficients that each of the caches of recipes, of lanes of repairs and of writes, of proved shapes and of shortened codes keeps:
/// about 24 MB each.
const TERMS_MAX: usize = 2 << 20;

/// What is remembered.
#[derive(Debug)]
pub struct Known {
    pub(crate) proofs: Proofs,
    pub(crate) patterns: Patterns,
    /// Codes of stripes with few data blocks, by the code's spec.
    shortened: Cache<(String, usize), SharedCode>,
}

impl Known {
    /// Nothing yet. Large plans are proved by the key.
    pub fn new(key: ProofKey) -> Self {
        Self { proofs: Proofs::new(key, TERMS_MAX), patterns: Patterns::new(TERMS_MAX), shortened: Cache::new(TERMS_MAX) }
    }

    /// The code of a stripe of which so many data blocks have bytes.
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

    /// How often a plan's shape had been proved, and how often not.
    pub fn proofs(&self) -> Counts {
        self.proofs.counts()
    }

    /// How often the lanes of a repair or a write were known, and how often not.
    pub fn patterns(&self) -> Counts {
        self.patterns.counts()
    }
}
