//! Proved once: the shapes whose rules were found to hold, so that the next plan of such a shape needs its binding checked only.
//!
//! What is remembered of a proof is all that it depends on: the shape, the code (its generator too, not its name alone), and which
//! columns change in each lane. A plan is taken for proved only if all of that is equal; matrices are compared too, which costs nothing
//! where they are the same in memory. The rules of the binding and the job are checked every time.

use super::{algebra, algebra::ProofKey, structure, structure::Changes};
use crate::{Cache, CodeView, Counts, Job, Plan, Refusal, Shape, Sink, Source};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};
use weft_gf::SparseMatrix;

/// The proofs that were made last, up to a number of coefficients.
#[derive(Debug)]
pub struct Proofs {
    key: ProofKey,
    /// By the shapes' digests; of two that have the same one the later stays.
    known: Cache<u64, Arc<Proof>>,
}

/// A shape that keeps its rules, of a code, where these columns change.
#[derive(Debug)]
struct Proof {
    shape: Shape,
    sizes: [usize; 4],
    generator: SparseMatrix,
    changes: Changes,
}

impl Proofs {
    /// Remembers shapes of up to `terms_max` coefficients, all together; each counts as 1024 at least.
    pub fn new(key: ProofKey, terms_max: usize) -> Self {
        Self { key, known: Cache::new(terms_max) }
    }

    /// Proves that `plan` does exactly what `job` wants, as [`crate::verify()`] does, or says why not.
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

    /// How often a shape was known, and how often not.
    pub fn counts(&self) -> Counts {
        self.known.counts()
    }
}

/// What a shape counts as at least: it has ports and links besides its coefficients.
const TERMS_MIN: usize = 1024;

fn sizes(code: &CodeView<'_>) -> [usize; 4] {
    [code.k, code.n, code.alpha, code.tolerance]
}

/// Some of what distinguishes shapes: enough that others seldom have the same, and little work for many sub-blocks.
fn digest(shape: &Shape) -> u64 {
    let mut hasher = DefaultHasher::new();
    shape.code.hash(&mut hasher);
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
