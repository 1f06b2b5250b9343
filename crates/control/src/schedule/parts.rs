//! From a code and a scheme to the parts of a repair: what each vertex sends and receives, and which helpers can take
//! each other's places.

use super::{Candidates, Load, Part, Repair};
use std::collections::BTreeMap;
use weft_codes::Code;
use weft_plan::{Class, Hold, Job, Want, WantKind, cost};
use weft_schemes::{Kind, Paths, Request, Run, Select, by_name, plan};
use weft_types::{BlockId, Error, NodeId, Party, PlanId, Result, Span, StripeId, StripeLayout};

/// The requestor of the plans from which parts are read. Helpers have their block's index.
const REQUESTOR: NodeId = NodeId(1 << 16);

/// The parts of the repair of one block, by the indexes of blocks. The same for all stripes of a code and a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// The loads of vertices, and the blocks whose nodes can take them.
    helpers: Vec<(Vec<Load>, Vec<u8>)>,
    /// The load of the destination.
    root: Load,
}

/// The parts of a scheme's repair of one block if all others are available.
///
/// The parts are read from plans that prefer the helpers in opposite orders. If other blocks help then, any blocks can
/// help. If the same ones help with other loads, they can change places. Otherwise the code ties each vertex to its
/// block.
pub fn parts(code: &dyn Code, stripe: StripeLayout, scheme: &str, lost: u8) -> Result<Parts> {
    let blocks: Vec<u8> = code.stored().into_iter().filter(|index| *index != lost).collect();
    let mut backwards = blocks.clone();
    backwards.reverse();
    let forth = helpers(code, stripe, scheme, lost, &blocks)?;
    let back = helpers(code, stripe, scheme, lost, &backwards)?;
    let root = forth.get(&REQUESTOR).copied().unwrap_or_default();
    let in_order = |order: &[u8]| -> Vec<(u8, Load)> {
        order.iter().filter_map(|index| forth.get(&NodeId((*index).into())).map(|load| (*index, *load))).collect()
    };
    let (chosen, vertices): (Vec<u8>, Vec<Load>) = in_order(&blocks).into_iter().unzip();
    let helpers = match forth.keys().eq(back.keys()) {
        true if forth == back => chosen.into_iter().zip(vertices).map(|(index, load)| (vec![load], vec![index])).collect(),
        true => vec![(vertices, chosen)],
        false => vec![(vertices, blocks)],
    };
    Ok(Parts { helpers, root })
}

/// The load of each party of the plan that prefers these blocks, best first.
fn helpers(code: &dyn Code, stripe: StripeLayout, scheme: &str, lost: u8, blocks: &[u8]) -> Result<BTreeMap<NodeId, Load>> {
    let block = |index| BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 };
    let party = |index: u8| Party::Node(NodeId(index.into()));
    let span = Span::new(0, stripe.layout.positions());
    let holds = blocks.iter().map(|index| Hold { party: party(*index), block: block(*index), span }).collect();
    let (requestor, sub_blocks) = (Party::Node(REQUESTOR), (0..code.alpha() as u16).collect());
    let want = Want { kind: WantKind::Store, party: requestor, index: lost, sub_blocks, span };
    let job = Job { holds, wants: vec![want], ..Job::default() };
    let prefer: Vec<Party> = blocks.iter().copied().map(party).collect();
    let run = Run::new(PlanId(1), 1, Class::Repair, stripe.layout.positions());
    let request = Request {
        stores: &[(requestor, block(lost))],
        prefer: &prefer,
        select: Select::AsPreferred,
        paths: Paths::Count(1),
        ..Request::new(code, stripe, &job, run)
    };
    let plan = plan(&request, by_name(Kind::Repair, scheme)?)?;
    let cost = cost(&plan).map_err(|refusal| Error::fatal(format!("internal error: {refusal}")))?;
    let load = |share: &weft_plan::PartyCost| Load { up: share.up_bytes, down: share.down_bytes };
    let parties = cost.parties.iter().filter_map(|share| match share.party {
        Party::Node(node) => Some((node, load(share))),
        _ => None,
    });
    Ok(parties.filter(|(_, load)| *load != Load::default()).collect())
}

impl Parts {
    /// The repair of a block of one stripe: the nodes that hold its other blocks, and those that may get the lost one.
    pub fn repair(&self, home: impl Fn(u8) -> u32, destinations: Candidates) -> Repair {
        let part = |(vertices, blocks): &(Vec<Load>, Vec<u8>)| {
            let mut nodes: Vec<u32> = blocks.iter().map(|index| home(*index)).collect();
            nodes.sort_unstable();
            Part { vertices: vertices.clone(), candidates: Candidates::These(nodes) }
        };
        let root = Part { vertices: vec![self.root], candidates: destinations };
        Repair { parts: self.helpers.iter().map(part).chain([root]).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::Layout;

    fn of(spec: &str, scheme: &str, lost: u8) -> Parts {
        let code = weft_codes::parse(spec).unwrap();
        let alpha = code.alpha() as u64;
        let layout = Layout::new(alpha, alpha, code.alpha() as u32).unwrap();
        let (k, m) = (code.k() as u32, code.m() as u32);
        let stripe = StripeLayout { layout, k, m, data_len: u64::from(k) * alpha };
        parts(code.as_ref(), stripe, scheme, lost).unwrap()
    }

    const fn load(up: u64, down: u64) -> Load {
        Load { up, down }
    }

    #[test]
    fn any_k_blocks_help_a_reed_solomon_block_in_any_order() {
        let others = vec![0, 1, 3, 4, 5];
        let conventional = Parts { helpers: vec![(vec![load(1, 0); 4], others.clone())], root: load(0, 4) };
        assert_eq!(of("rs(4,2)", "conventional", 2), conventional);
        let chain = vec![load(1, 0), load(1, 1), load(1, 1), load(1, 1)];
        assert_eq!(of("rs(4,2)", "pipeline", 2), Parts { helpers: vec![(chain, others.clone())], root: load(0, 1) });
        let tree = vec![load(1, 0), load(1, 1), load(1, 0), load(1, 2)];
        assert_eq!(of("rs(4,2)", "ppr", 2), Parts { helpers: vec![(tree, others)], root: load(0, 1) });
    }

    #[test]
    fn the_blocks_of_a_local_group_change_places_only_in_a_chain() {
        // Blocks 0 to 2 and the local parity 6 are a group.
        let chain = vec![load(1, 0), load(1, 1), load(1, 1)];
        assert_eq!(of("lrc(6,2,2)", "pipeline", 1), Parts { helpers: vec![(chain, vec![0, 2, 6])], root: load(0, 1) });
        let tied = [0, 2, 6].map(|index| (vec![load(1, 0)], vec![index]));
        assert_eq!(of("lrc(6,2,2)", "conventional", 1), Parts { helpers: tied.into(), root: load(0, 3) });
    }

    #[test]
    fn the_helpers_of_a_regenerating_code_send_parts_of_their_blocks() {
        let halves = of("butterfly(4)", "conventional", 0);
        assert_eq!(halves.helpers, [1, 2, 3, 4, 5].map(|index| (vec![load(4, 0)], vec![index])));
        assert_eq!(halves.root, load(0, 20), "five halves of blocks of eight sub-blocks");
        // A chain of partial sums sends whole blocks, so it takes four.
        assert_eq!(of("butterfly(4)", "pipeline", 0).root, load(0, 8));
    }
}
