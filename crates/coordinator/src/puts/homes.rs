//! Which nodes get the blocks of a new stripe, and which of them gets which.

use crate::{
    placement::{self, Ask, Placed},
    shared::Shared,
};
use std::collections::{BTreeMap, BTreeSet};
use weft_codes::SharedCode;
use weft_meta::{Home, NewUpload};
use weft_schemes::disseminate::{self, Candidate};
use weft_types::{NodeId, Party, Result, StripeLayout};

/// Homes for the blocks of a stripe, by index. Where its scheme has some of them do more than others, the quicker nodes do.
pub(super) fn choose(
    shared: &Shared,
    new: &NewUpload,
    code: &SharedCode,
    stripe: &StripeLayout,
    scheme: &str,
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
    let placed = placement::place(&shared.members.view(), &ask, &mut *shared.rng());
    let placed = placed.map_err(|error| shared.lacking_nodes(error).object(&new.name))?;
    Ok(Placed { homes: by_speed(shared, code, scheme, placed.homes)?, ..placed })
}

/// The same homes in another order.
fn by_speed(shared: &Shared, code: &SharedCode, scheme: &str, homes: Vec<Home>) -> Result<Vec<Home>> {
    let network = shared.network();
    let candidate = |home: &Home| {
        let line = |lines: &BTreeMap<Party, f64>| lines.get(&Party::Node(home.node)).copied().unwrap_or(network.link_bytes_per_s);
        let coding = shared.members.session(home.node).map_or(0, |session| session.coding_bytes_per_s);
        Candidate {
            products_per_s: about(coding as f64),
            up_bytes_per_s: about(line(&network.up_bytes_per_s)),
            down_bytes_per_s: about(line(&network.down_bytes_per_s)),
        }
    };
    let candidates: Vec<Candidate> = homes.iter().map(candidate).collect();
    if candidates.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(homes);
    }
    let assigned = disseminate::assign(code.as_ref(), scheme, &candidates)?;
    Ok(assigned.into_iter().filter_map(|at| homes.get(at).copied()).collect())
}

/// What was measured, to a power of two: nodes that are about as fast stay in the order of their lots, so that who gets the data is
/// not always the same. What is not known counts as fast.
fn about(rate: f64) -> f64 {
    if rate > 0.0 { rate.log2().round().exp2() } else { f64::INFINITY }
}
