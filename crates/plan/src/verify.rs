//! The proof that a plan does what its job wants.
//!
//! The structure is checked first: links, widths, tiling, who holds what. Then the algebra: the reference executor runs each
//! lane once on blocks whose content is their generator rows, over the messages [m | δ], where m is the stripe before the
//! plan and δ what changes. A stored block is m, a delta is δ, new bytes are m + δ; every sink must carry just that.

mod algebra;
mod blame;
mod structure;
mod tiling;

use crate::{CodeView, Job, Plan, Refusal};

/// Proves that `plan` does exactly what `job` wants, or says why not.
///
/// Time and memory are bounded for any input (see [`crate::limits`]).
pub fn verify(plan: &Plan, code: CodeView<'_>, job: &Job) -> Result<(), Refusal> {
    let changes = structure::check(plan, &code, job)?;
    algebra::check(plan, &code, &changes)
}
