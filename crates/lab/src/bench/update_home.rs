//! Where the blocks of a measured stripe are, and which of them are updated.

use super::update_bound::concerned;
use std::collections::BTreeSet;
use weft_types::{Error, NodeId, Result};

/// Where a block is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) node: NodeId,
    pub(super) name: String,
    pub(super) rack: String,
}

/// The nodes that updates of other stripes use.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// With the block that changes, and a client.
    pub(super) clients: BTreeSet<NodeId>,
    /// With a block that depends on it.
    pub(super) parities: BTreeSet<NodeId>,
}

/// The data blocks to update: the first whose racks have no parity that changes with them, each of which must be in a rack of its own. Stripes can
/// share the nodes of their parities. But a node with a client takes no other part: its link would carry more than its own changes.
pub(super) fn choose(code: &str, homes: &[Home], count: usize, used: &Used) -> Result<Vec<u8>> {
    let k = weft_codes::parse(code).map_err(Error::invalid)?.k() as u8;
    let (mut chosen, mut apart): (Vec<u8>, usize) = (Vec::new(), 0);
    for block in 0..k {
        let Some(own) = homes.get(usize::from(block)) else { continue };
        let parities = concerned(code, block)?;
        let parities: Vec<&Home> = parities.iter().filter_map(|index| homes.get(usize::from(*index))).collect();
        let mut racks: Vec<&str> = parities.iter().map(|home| home.rack.as_str()).collect();
        racks.push(&own.rack);
        let blocks = racks.len();
        racks.sort_unstable();
        racks.dedup();
        if racks.len() < blocks {
            continue;
        }
        apart += 1;
        let is_used = used.clients.contains(&own.node) || used.parities.contains(&own.node);
        if !is_used && !parities.iter().any(|home| used.clients.contains(&home.node)) {
            chosen.push(block);
        }
    }
    if apart < count {
        let racks: Vec<String> =
            homes.iter().enumerate().map(|(index, home)| format!("block {index} in {}", home.rack)).collect();
        return Err(Error::invalid(format!(
            "{apart} of the {count} data blocks to update have their parities in racks of their own: {}; use as many racks as nodes",
            racks.join(", ")
        )));
    }
    if chosen.len() < count {
        return Err(Error::invalid(format!(
            "{} of the {count} data blocks to update are on nodes that other stripes do not use: use more nodes, or fewer stripes",
            chosen.len()
        )));
    }
    chosen.truncate(count);
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn homes(racks: &[&str]) -> Vec<Home> {
        let home =
            |(at, rack): (usize, &&str)| Home { node: NodeId(at as u32), name: format!("node-{at}"), rack: (*rack).to_owned() };
        racks.iter().enumerate().map(home).collect()
    }

    #[test]
    fn blocks_are_chosen_whose_parities_are_in_racks_of_their_own() {
        let choose = |code: &str, homes: &[Home], count: usize| choose(code, homes, count, &Used::default());
        let apart = homes(&["a", "b", "c", "d", "e", "f", "g"]);
        assert_eq!(choose("rs(4,3)", &apart, 4).unwrap(), [0, 1, 2, 3]);
        // The nodes of rs(9,3) in four regions in turn.
        let regions: Vec<&str> = ["A", "B", "C", "D"].into_iter().cycle().take(12).collect();
        assert_eq!(choose("rs(9,3)", &homes(&regions), 1).unwrap(), [0]);
        assert_eq!(choose("rs(9,3)", &homes(&regions), 3).unwrap(), [0, 4, 8]);
        let error = choose("rs(4,3)", &homes(&["a", "b", "c", "d", "e", "e", "g"]), 1).unwrap_err();
        assert!(error.message.contains("block 4 in e, block 5 in e"), "{error}");
        assert_eq!(
            choose("lrc(4,2,2)", &homes(&["a", "b", "c", "d", "e", "a", "g", "h"]), 3).unwrap(),
            [0, 1, 2],
            "each group has its own parity"
        );
    }

    #[test]
    fn a_node_with_a_client_takes_no_other_part() {
        let apart = homes(&["a", "b", "c", "d", "e", "f", "g"]);
        let nodes = |nodes: &[u32]| nodes.iter().copied().map(NodeId).collect::<BTreeSet<NodeId>>();
        let chosen = |clients: &[u32], parities: &[u32]| {
            let used = Used { clients: nodes(clients), parities: nodes(parities) };
            choose("rs(4,3)", &apart, 1, &used).map_err(|error| error.message)
        };
        assert_eq!(chosen(&[0], &[1, 4]), Ok(vec![2]), "parities can share a node");
        for none in [chosen(&[5], &[]), chosen(&[0, 1], &[2, 3])] {
            assert!(none.clone().is_err_and(|why| why.contains("use more nodes")), "{none:?}");
        }
    }
}
