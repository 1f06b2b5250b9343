//! The proof that a plan does what its job wants.
//!
//! Some rules are of the shape alone: that its lanes could run, and the algebra. Others are of the binding and the job: who is who, who
//! holds what and for which positions, tiling, generations, placement and tolerance. Which columns of the generator change in a lane
//! joins the two: the binding and the job say it, and the algebra is done for it.
//!
//! For the algebra the reference executor runs each lane once on blocks whose content is their generator rows, over the messages
//! [m | δ], where m is the stripe before the plan and δ what changes. A stored block is m, a delta is δ, new bytes are m + δ; every
//! sink must carry just that. It does so at one position, and the code is the same at all of them: so it holds for any span.

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
/// Time and memory are bounded for any input (see [`crate::limits`]). Plans too large to be proved whole are proved by random columns
/// that everybody can know: see [`ProofKey::PUBLIC`]. [`Proofs`] has a key, and remembers which shapes are proved.
pub fn verify(plan: &Plan, code: CodeView<'_>, job: &Job) -> Result<(), Refusal> {
    structure::check_shape(plan, &code)?;
    let changes = structure::check_binding(plan, &code, job)?;
    algebra::check(plan, &code, &changes, &ProofKey::PUBLIC)
}
