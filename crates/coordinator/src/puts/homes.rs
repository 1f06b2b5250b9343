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
    let line = |home: &Home, lines: &BTreeMap<Party, f64>| {
        lines.get(&Party::Node(home.node)).copied().unwrap_or(network.link_bytes_per_s)
    };
    let coding = |home: &Home| shared.members.session(home.node).map_or(0, |session| session.coding_bytes_per_s) as f64;
    let coding = about(homes.iter().map(coding).collect());
    let up = about(homes.iter().map(|home| line(home, &network.up_bytes_per_s)).collect());
    let down = about(homes.iter().map(|home| line(home, &network.down_bytes_per_s)).collect());
    let candidate =
        |((products_per_s, up_bytes_per_s), down_bytes_per_s)| Candidate { products_per_s, up_bytes_per_s, down_bytes_per_s };
    let candidates: Vec<Candidate> = coding.into_iter().zip(up).zip(down).map(candidate).collect();
    if candidates.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(homes);
    }
    let assigned = disseminate::assign(code.as_ref(), scheme, &candidates)?;
    Ok(assigned.into_iter().filter_map(|at| homes.get(at).copied()).collect())
}

/// Nodes that differ by no more than this are about as fast.
const ALIKE: f64 = 2.0;

/// What was measured, to a power of two, or as one where all are alike: nodes that are about as fast stay in the order of their lots, so
/// that who gets the data is not always the same. What is not known counts as fast.
fn about(rates: Vec<f64>) -> Vec<f64> {
    let known = || rates.iter().copied().filter(|rate| *rate > 0.0);
    let (least, most) = (known().fold(f64::INFINITY, f64::min), known().fold(0.0, f64::max));
    let power = |rate: f64| if rate > 0.0 { rate.log2().round().exp2() } else { f64::INFINITY };
    // Two that are alike may stand on either side of where one power of two is rounded to the next.
    let class = |rate: f64| power(if most <= ALIKE * least { most } else { rate });
    rates.iter().copied().map(class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_alike_are_of_one_class_wherever_its_edge_is() {
        let classes = |rates: &[f64]| about(rates.to_vec());
        // The square root of two is where one power is rounded to the next.
        for rates in [[1.41, 1.42, 1.4], [2.0, 1.0, 1.5], [90.0, 91.0, 0.0]] {
            assert!(classes(&rates).windows(2).all(|pair| pair[0] == pair[1]), "{rates:?}: {:?}", classes(&rates));
        }
        let far = classes(&[1.0, 2.2, 9.0, 0.0]);
        assert_eq!(far, [1.0, 2.0, 8.0, f64::INFINITY]);
    }
}
