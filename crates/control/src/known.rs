//! Caches that make planning fast: recipes and lanes of known failure patterns, shapes that were verified, and routes of updates. Plans
//! are the same with and without them.

use crate::planning::{Drawn, RouteKey};
use std::sync::Arc;
use weft_codes::{SharedCode, shortened};
use weft_plan::{Cache, Counts, ProofKey, Proofs};
use weft_schemes::Patterns;
use weft_types::Span;

/// Coefficients that each cache keeps, about 24 MB: those of recipes, of lanes of repairs, of lanes of writes, of
/// verified shapes, and of shortened codes.
const TERMS_MAX: usize = 2 << 20;

/// The most kinds of checks of which it is remembered that they cannot be proved.
const UNPROVABLE_MAX: usize = 4_096;

/// Rates between nodes and hops of routes that are kept, about 8 MB.
const ROUTES_MAX: usize = 1 << 20;

/// The caches.
#[derive(Debug)]
pub struct Known {
    pub(crate) proofs: Proofs,
    pub(crate) patterns: Patterns,
    /// Codes of stripes with few data blocks, by the code's spec.
    shortened: Cache<(String, usize), SharedCode>,
    /// Checks that cannot be proved, and why.
    pub(crate) unprovable: Cache<Provable, Arc<str>>,
    /// The routes of updates in place.
    pub(crate) routes: Cache<RouteKey, Arc<[Drawn]>>,
}

/// All that determines whether a check of blocks of a stripe can be proved.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Provable {
    /// The code's spec.
    pub(crate) code: String,
    /// The data blocks that have bytes.
    pub(crate) dimension: usize,
    /// The blocks that are checked.
    pub(crate) checked: Vec<u8>,
    /// Of a routine check; `None`: a full one.
    pub(crate) seed: Option<u64>,
    /// The positions.
    pub(crate) span: Span,
    /// Positions in a slice.
    pub(crate) slice_len: u64,
    /// Slices that may wait at each end of a link.
    pub(crate) window: u32,
}

impl Known {
    /// Empty caches. Large plans are verified with `key`.
    pub fn new(key: ProofKey) -> Self {
        let (proofs, patterns) = (Proofs::new(key, TERMS_MAX), Patterns::new(TERMS_MAX));
        let (shortened, unprovable) = (Cache::new(TERMS_MAX), Cache::new(UNPROVABLE_MAX));
        Self { proofs, patterns, shortened, unprovable, routes: Cache::new(ROUTES_MAX) }
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

    /// How often the routes of a stripe's updates were found, and how often not.
    pub fn routes(&self) -> Counts {
        self.routes.counts()
    }

    /// How often the lanes of a repair or a write were found, and how often not.
    pub fn patterns(&self) -> Counts {
        self.patterns.counts()
    }
}
