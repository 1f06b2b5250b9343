//! What repair still has to move: the rate of a deadline and the remaining times follow from it.

use crate::shared::Shared;
use weft_control::limit::Cost;
use weft_types::RepairLimit;

/// Counts the work and what it costs, if there is a limit.
pub(super) async fn count(shared: &Shared) {
    if shared.limit.lock().limit == RepairLimit::None {
        return;
    }
    let by_code = match shared.meta.totals_by_code().await {
        Ok(by_code) => by_code,
        // The previous figures stand.
        Err(error) => return tracing::debug!(error = %shared.meta_error(error), "cannot count the work of repairs"),
    };
    let code = |spec: &str| shared.code(spec).map_or(0, |code| code.k() as u64);
    let codes: Vec<(u64, u64, u64)> = by_code.iter().map(|(spec, of)| (code(spec), of.stripes, of.data_bytes)).collect();
    let cost = Cost::of(&codes, shared.members.view().up_count() as u64);
    let jobs = shared.jobs.left().into_iter().map(|(converts, bytes)| busiest(&cost, converts, bytes));
    let all = jobs.fold(of_healer(shared, &cost), u64::saturating_add);
    let mut state = shared.limit.lock();
    (state.cost, state.busiest_bytes) = (cost, all);
}

/// Bytes at each line of a job with so many bytes left.
pub(super) fn busiest(cost: &Cost, converts: bool, bytes: u64) -> u64 {
    if converts { cost.of_conversion(bytes) } else { cost.of_rebuild(bytes) }
}

/// Bytes at each line of what is rebuilt without a person.
pub(super) fn of_healer(shared: &Shared, cost: &Cost) -> u64 {
    cost.of_rebuild(shared.healer.left_blocks(&shared.health).saturating_mul(cost.block_bytes))
}
