//! Chooses one of several plans for a job: the one predicted to be fastest.

use weft_plan::{ChosenPath, Considered, Network, Plan, cost, predict};
use weft_types::Result;

/// Plans whose predicted times differ by at most this factor count as equally fast.
pub(crate) const EQUALLY_QUICK: f64 = 1.001;
/// Only equal predictions count as equal.
pub(crate) const FASTEST: f64 = 1.0;
/// The same where extra bytes would delay concurrent writers, which predictions know only in part.
pub(crate) const NOT_WORTH_MORE: f64 = 1.05;

/// The cost of a scheme's plan on a network.
pub(crate) fn weigh(plan: &Plan, scheme: &str, paths: Vec<ChosenPath>, network: &Network) -> Result<Considered> {
    let (cost, seconds) = (cost(plan)?, predict(plan, network)?);
    let (moved_bytes, read_bytes) = (cost.moved_bytes(), cost.read_bytes());
    Ok(Considered { scheme: scheme.to_owned(), moved_bytes, read_bytes, seconds, paths })
}

/// The fastest plan or, of equally fast ones (by the factor `alike`), the one that moves least; and all plans
/// considered, the chosen one first.
pub(crate) fn choose(mut plans: Vec<(Plan, Considered)>, alike: f64) -> Option<(Plan, Vec<Considered>)> {
    let least = plans.iter().map(|(_, considered)| considered.seconds).fold(f64::INFINITY, f64::min);
    let is_slower = |considered: &Considered| considered.seconds > least * alike;
    // Stable: of equal plans, prefers the scheme listed first and the fewest paths.
    plans.sort_by(|(_, a), (_, b)| match (is_slower(a), is_slower(b)) {
        (false, false) => a.moved_bytes.cmp(&b.moved_bytes),
        (false, true) | (true, false) => is_slower(a).cmp(&is_slower(b)),
        (true, true) => a.seconds.total_cmp(&b.seconds).then(a.moved_bytes.cmp(&b.moved_bytes)),
    });
    let considered = plans.iter().map(|(_, considered)| considered.clone()).collect();
    plans.into_iter().next().map(|(plan, _)| (plan, considered))
}
