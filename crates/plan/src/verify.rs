//! The proof that a plan does what its job wants.
//!
//! Some rules concern only the shape: that its lanes can run, and the algebra. Others concern the binding and the job:
//! the parties, which of them holds what for which positions, tiling, generations, placement and tolerance. The two are
//! connected by the columns of the generator that change in a lane: the binding and the job determine them, and the
//! algebra is done for them.
//!
//! For the algebra, the reference executor runs each lane once on blocks whose content is their generator rows, over
//! the messages [m | δ], where m is the stripe before the plan and δ is the change. A stored block is m, a delta is δ,
//! new bytes are m + δ; every sink must carry exactly that. One position suffices, because the code is the same at all
//! positions; so the proof holds for any span.

mod algebra;
mod blame;
mod proofs;
mod structure;
mod tiling;

use crate::{CodeView, Job, Plan, Refusal};

pub use algebra::ProofKey;
pub use proofs::Proofs;

/// Proves that `plan` does exactly what `job` wants, or says why not.
///
/// Time and memory are bounded for any input (see [`crate::limits`]). Plans that are too large for a complete proof are
/// proved with public random columns: see [`ProofKey::PUBLIC`]. [`Proofs`] uses a secret key, and caches which shapes
/// are proved.
pub fn verify(plan: &Plan, code: CodeView<'_>, job: &Job) -> Result<(), Refusal> {
    structure::check_shape(plan, &code)?;
    let changes = structure::check_binding(plan, &code, job)?;
    algebra::check(plan, &code, &changes, &ProofKey::PUBLIC)
}
