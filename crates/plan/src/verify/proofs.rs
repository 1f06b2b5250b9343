//! A cache of proofs: the shapes whose rules hold, so that for the next plan of such a shape only the binding is
//! checked.
//!
//! A proof is stored with everything that it depends on: the shape, the code (with its generator, and not just its
//! name), and the columns that change in each lane. A plan counts as proved only if all of these are equal; matrices
//! are compared too, which is free if they are the same in memory. The rules of the binding and the job are checked
//! every time.

use super::{algebra, algebra::ProofKey, structure, structure::Changes};
use crate::{Cache, CodeView, Counts, Job, Plan, Refusal, Shape, Sink, Source};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};
use weft_gf::SparseMatrix;

/// The latest proofs, up to a number of coefficients.
#[derive(Debug)]
pub struct Proofs {
    key: ProofKey,
    /// By the shapes' digests; of two with the same digest the later is kept.
    known: Cache<u64, Arc<Proof>>,
}

/// A verified shape, of a code, with these changing columns.
#[derive(Debug)]
struct Proof {
    shape: Shape,
    sizes: [usize; 4],
    generator: SparseMatrix,
    changes: Changes,
}

impl Proofs {
    /// Stores shapes of up to `terms_max` coefficients in total; each counts as at least 1024.
    pub fn new(key: ProofKey, terms_max: usize) -> Self {
        Self { key, known: Cache::new(terms_max) }
    }

    /// Proves that `plan` does exactly what `job` wants, like [`crate::verify()`], or says why not.
    pub fn verify(&self, plan: &Plan, code: CodeView<'_>, job: &Job) -> Result<(), Refusal> {
        let (digest, shape) = (digest(&plan.shape), &plan.shape);
        let is_of_it = |proof: &Arc<Proof>| {
            let same_code = shape.code == code.spec && proof.sizes == sizes(&code) && proof.generator == *code.generator;
            same_code && proof.shape == *shape
        };
        let proof = self.known.get(&digest, is_of_it);
        if proof.is_none() {
            structure::check_shape(plan, &code)?;
        }
        let changes = structure::check_binding(plan, &code, job)?;
        if proof.is_some_and(|proof| proof.changes == changes) {
            return Ok(());
        }
        algebra::check(plan, &code, &changes, &self.key)?;
        let stages = shape.lanes.iter().flat_map(|lane| &lane.stages);
        let terms = stages.map(|stage| stage.matrix.steps().terms().len()).sum::<usize>();
        let proof = Proof { shape: shape.clone(), sizes: sizes(&code), generator: code.generator.clone(), changes };
        self.known.put(digest, Arc::new(proof), terms.max(TERMS_MIN));
        Ok(())
    }

    /// How often a shape was found, and how often not.
    pub fn counts(&self) -> Counts {
        self.known.counts()
    }
}

/// The least cost of a shape, for its ports and links.
const TERMS_MIN: usize = 1024;

fn sizes(code: &CodeView<'_>) -> [usize; 4] {
    [code.k, code.n, code.alpha, code.tolerance]
}

/// A digest of a shape: enough to distinguish most shapes, and cheap for many sub-blocks.
fn digest(shape: &Shape) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&shape.code, shape.in_turn).hash(&mut hasher);
    let ends = |sub_blocks: &[u16]| (sub_blocks.len(), sub_blocks.first().copied(), sub_blocks.last().copied());
    for lane in &shape.lanes {
        (lane.first, lane.step, lane.window, &lane.links).hash(&mut hasher);
        for stage in &lane.stages {
            (stage.vertex, stage.sources.len(), stage.sinks.len(), stage.matrix.steps().terms().len()).hash(&mut hasher);
            for source in &stage.sources {
                match source {
                    Source::Link(link) => (0u8, link).hash(&mut hasher),
                    Source::Block { index, sub_blocks } => (1u8, index, ends(sub_blocks)).hash(&mut hasher),
                    Source::Input { index, sub_blocks, delta } => (2u8, index, ends(sub_blocks), delta).hash(&mut hasher),
                }
            }
            for sink in &stage.sinks {
                match sink {
                    Sink::Link(link) => (0u8, link).hash(&mut hasher),
                    Sink::Store { index, sub_blocks } => (1u8, index, ends(sub_blocks)).hash(&mut hasher),
                    Sink::Patch { index, sub_blocks } => (2u8, index, ends(sub_blocks)).hash(&mut hasher),
                    Sink::Output { index, sub_blocks } => (3u8, index, ends(sub_blocks)).hash(&mut hasher),
                    Sink::Check { width } => (4u8, width).hash(&mut hasher),
                }
            }
        }
    }
    hasher.finish()
}
