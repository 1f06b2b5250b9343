//! Of several plans for one job the one to take: that which is predicted to be the quickest.

use weft_plan::{ChosenPath, Considered, Network, Plan, cost, predict};
use weft_types::Result;

/// Plans of which one is predicted to take at most this many times as long as another are equally quick.
pub(crate) const EQUALLY_QUICK: f64 = 1.001;
/// The same where what moves more is in the way of others who write too, which predictions know only in part.
pub(crate) const NOT_WORTH_MORE: f64 = 1.05;

/// What a scheme's plan costs on a network.
pub(crate) fn weigh(plan: &Plan, scheme: &str, paths: Vec<ChosenPath>, network: &Network) -> Result<Considered> {
    let (cost, seconds) = (cost(plan)?, predict(plan, network)?);
    let (moved_bytes, read_bytes) = (cost.moved_bytes(), cost.read_bytes());
    Ok(Considered { scheme: scheme.to_owned(), moved_bytes, read_bytes, seconds, paths })
}

/// The quickest, and of equally quick ones, as `alike` says which are, that which moves least; and what was considered, the chosen first.
pub(crate) fn choose(mut plans: Vec<(Plan, Considered)>, alike: f64) -> Option<(Plan, Vec<Considered>)> {
    let least = plans.iter().map(|(_, considered)| considered.seconds).fold(f64::INFINITY, f64::min);
    let is_slower = |considered: &Considered| considered.seconds > least * alike;
    // Stable: of those that are alike the scheme that is shown first, and the fewest paths.
    plans.sort_by(|(_, a), (_, b)| match (is_slower(a), is_slower(b)) {
        (false, false) => a.moved_bytes.cmp(&b.moved_bytes),
        (false, true) | (true, false) => is_slower(a).cmp(&is_slower(b)),
        (true, true) => a.seconds.total_cmp(&b.seconds).then(a.moved_bytes.cmp(&b.moved_bytes)),
    });
    let considered = plans.iter().map(|(_, considered)| considered.clone()).collect();
    plans.into_iter().next().map(|(plan, _)| (plan, considered))
}
