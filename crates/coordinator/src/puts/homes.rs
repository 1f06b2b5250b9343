//! Which nodes get the blocks of a new stripe, and which of them gets which.

use crate::options;
use crate::shared::Shared;
use std::collections::BTreeSet;
use weft_codes::SharedCode;
use weft_control::{
    assignment,
    options::WriteOptions,
    placement::{self, Ask, Placed},
};
use weft_meta::NewUpload;
use weft_types::{Home, NodeId, Party, Result, StripeLayout};

/// Homes for the blocks of a stripe, by index. Where its scheme has some of them do more than others, those nodes do that are quicker,
/// and less busy.
pub(super) fn choose(
    shared: &Shared,
    new: &NewUpload,
    code: &SharedCode,
    stripe: &StripeLayout,
    options: &WriteOptions,
    avoid: &BTreeSet<NodeId>,
) -> Result<Placed> {
    let ask = Ask {
        code: &new.code,
        count: code.n(),
        tolerance: code.tolerance(),
        failure_domain: new.failure_domain,
        held: &[],
        avoid,
        named: false,
        load: &placement::NOTHING,
        bytes: stripe.block_len(0).saturating_add(shared.config.disk_reserve.0),
    };
    let view = shared.members.view();
    let placed = placement::place(&view, &ask, &mut *shared.rng());
    let placed = placed.map_err(|error| view.lacking_nodes(error).object(&new.name))?;
    if options.random {
        return Ok(placed);
    }
    Ok(Placed { homes: in_order(shared, code, stripe, options, placed.homes)?, ..placed })
}

/// The same homes in another order.
fn in_order(
    shared: &Shared,
    code: &SharedCode,
    stripe: &StripeLayout,
    options: &WriteOptions,
    homes: Vec<Home>,
) -> Result<Vec<Home>> {
    let writer = shared.draw_client();
    let coding = |home: &Home| shared.members.session(home.node).map_or(0, |session| session.coding_bytes_per_s) as f64;
    let speeds: Vec<(Party, f64)> = homes.iter().map(|home| (Party::Node(home.node), coding(home))).collect();
    let assigned = assignment::assigned(
        code,
        &options.scheme,
        stripe.block_len(0),
        writer,
        &speeds,
        options::write_network(options, shared, writer),
    )?;
    Ok(assigned.into_iter().filter_map(|at| homes.get(at).copied()).collect())
}
