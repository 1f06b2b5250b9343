//! From a code and a scheme to the parts of a repair: what each vertex sends and receives, what its disks carry, and which
//! helpers can take each other's places.

use super::repair::{Candidates, Edge, Load, Part, Repair};
use std::collections::{BTreeMap, BTreeSet};
use weft_codes::Code;
use weft_plan::{Class, Hold, Job, Want, WantKind, cost, transfers};
use weft_schemes::{Kind, Paths, Patterns, Request, Run, Select, by_name, plan};
use weft_types::{BlockId, Error, Layout, NodeId, Party, PlanId, Result, Span, StripeId, StripeLayout};

/// The first requestor of the plans from which parts are read; the others follow it. Helpers have their block's index.
const REQUESTOR: NodeId = NodeId(1 << 16);

/// The parts of the repair of one stripe's lost blocks, by the indexes of blocks. The same for all stripes of a code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// The loads of vertices, and the blocks whose nodes can take them.
    helpers: Vec<(Vec<Load>, Vec<u8>)>,
    /// The load of the destination of each lost block.
    roots: Vec<Load>,
    /// What they send to each other: helpers by their place in all parts together, then the destinations.
    edges: Vec<Edge>,
    /// Sets of blocks of which not all can help: one of them is a function of the others.
    dependent: Vec<Vec<u8>>,
}

/// The parts of a scheme's repair of these lost blocks, each at another destination, from these others, ascending. Loads are in
/// sub-blocks. `patterns`: the cache of recipes, if any.
///
/// The parts are read from plans that prefer the helpers in opposite orders. If other blocks help then, any blocks can
/// help. If the same ones help with other loads, they can change places. Otherwise the code ties each vertex to its
/// block.
pub fn parts(code: &dyn Code, scheme: &str, lost: &[u8], available: &[u8], patterns: Option<&Patterns>) -> Result<Parts> {
    let mut backwards = available.to_vec();
    backwards.reverse();
    let Flows { links: forth, moved, disks } = flows(code, scheme, lost, available, patterns)?;
    let Flows { links: back, .. } = flows(code, scheme, lost, &backwards, patterns)?;
    let whole = |node: NodeId| forth.get(&node).map(|load| Load { disk: disks.get(&node).copied().unwrap_or(0), ..*load });
    let roots: Vec<Load> = (0..lost.len()).map(|at| whole(requestor(at)).unwrap_or_default()).collect();
    let in_order = |order: &[u8]| -> Vec<(u8, Load)> {
        order.iter().filter_map(|index| Some((*index, whole(NodeId((*index).into()))?))).collect()
    };
    let (chosen, vertices): (Vec<u8>, Vec<Load>) = in_order(available).into_iter().unzip();
    let place = |node: NodeId| match node.0.checked_sub(REQUESTOR.0) {
        Some(root) => chosen.len() + root as usize,
        None => chosen.iter().position(|index| NodeId((*index).into()) == node).unwrap_or(0),
    };
    let edges = moved.into_iter().map(|((from, to), bytes)| Edge { from: place(from), to: place(to), bytes }).collect();
    let are_given = forth.keys().eq(back.keys());
    let dependent = if are_given { Vec::new() } else { dependent(code, available, vertices.len()) };
    let helpers = match are_given {
        true if forth == back => chosen.into_iter().zip(vertices).map(|(index, load)| (vec![load], vec![index])).collect(),
        true => vec![(vertices, chosen)],
        false => vec![(vertices, available.to_vec())],
    };
    Ok(Parts { helpers, roots, edges, dependent })
}

/// The sets of at most so many available blocks that are a parity block and all data blocks of which it is a function, such as the local
/// groups of an LRC: the last of them adds nothing to the others, so that a repair would take another block in its place.
fn dependent(code: &dyn Code, available: &[u8], helpers: usize) -> Vec<Vec<u8>> {
    let (k, alpha) = (code.k(), code.alpha());
    if code.tolerance() == code.m() {
        // Any k blocks are independent.
        return Vec::new();
    }
    let with_data = |parity: &u8| -> Option<Vec<u8>> {
        let first = usize::from(*parity) * alpha;
        let terms = (first..first + alpha).flat_map(|row| code.generator().row(row));
        let data: BTreeSet<u8> = terms.map(|(_, col, _)| (*col as usize / alpha) as u8).collect();
        let is_whole = data.len() < helpers && data.iter().all(|index| available.contains(index));
        is_whole.then(|| data.into_iter().chain([*parity]).collect())
    };
    available.iter().filter(|index| usize::from(**index) >= k).filter_map(with_data).collect()
}

/// The destination of a lost block, by its place among them.
const fn requestor(at: usize) -> NodeId {
    NodeId(REQUESTOR.0 + at as u32)
}

/// What a plan moves.
#[derive(Default)]
struct Flows {
    /// The load of each party's links.
    links: BTreeMap<NodeId, Load>,
    /// What each sends to each other one.
    moved: BTreeMap<(NodeId, NodeId), u64>,
    /// What each reads from blocks and writes to them.
    disks: BTreeMap<NodeId, u64>,
}

/// The flows of the plan that prefers these blocks, best first.
fn flows(code: &dyn Code, scheme: &str, lost: &[u8], blocks: &[u8], patterns: Option<&Patterns>) -> Result<Flows> {
    let alpha = code.alpha() as u64;
    let (k, m, data_len) = (code.k() as u32, code.m() as u32, code.dimension() as u64 * alpha);
    let stripe = StripeLayout { layout: Layout::new(alpha, alpha, code.alpha() as u32)?, k, m, data_len };
    let block = |index| BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 };
    let party = |index: u8| Party::Node(NodeId(index.into()));
    let span = Span::new(0, stripe.layout.positions());
    let holds = blocks.iter().map(|index| Hold { party: party(*index), block: block(*index), span }).collect();
    let sub_blocks: Vec<u16> = (0..code.alpha() as u16).collect();
    let at = |at: usize| Party::Node(requestor(at));
    let want = |(place, index): (usize, &u8)| {
        let (party, index, sub_blocks) = (at(place), *index, sub_blocks.clone());
        Want { kind: WantKind::Store, party, index, sub_blocks, span }
    };
    let job = Job { holds, wants: lost.iter().enumerate().map(want).collect(), ..Job::default() };
    let stores: Vec<(Party, BlockId)> = lost.iter().enumerate().map(|(place, index)| (at(place), block(*index))).collect();
    let prefer: Vec<Party> = blocks.iter().copied().map(party).collect();
    let run = Run::new(PlanId(1), 1, Class::Repair, stripe.layout.positions());
    let request = Request {
        stores: &stores,
        prefer: &prefer,
        select: Select::AsPreferred,
        paths: Paths::Count(1),
        patterns,
        ..Request::new(code, stripe, &job, run)
    };
    let plan = plan(&request, by_name(Kind::Repair, scheme)?)?;
    let internal = |refusal| Error::fatal(format!("internal error: {refusal}"));
    let mut flows = Flows::default();
    for ((from, to), bytes) in transfers(&plan).map_err(internal)? {
        let (Some(from), Some(to)) = (from.node(), to.node()) else { continue };
        flows.links.entry(from).or_default().up += bytes;
        flows.links.entry(to).or_default().down += bytes;
        *flows.moved.entry((from, to)).or_default() += bytes;
    }
    let at_disks = cost(&plan).map_err(internal)?.parties;
    flows.disks = at_disks.iter().filter_map(|of| Some((of.party.node()?, of.disk_bytes()))).collect();
    Ok(flows)
}

impl Parts {
    /// Of copies of these blocks, of `alpha` sub-blocks each, from where they are.
    pub fn of_copies(blocks: &[u8], alpha: u64) -> Self {
        let helpers = blocks.iter().map(|index| (vec![Load { up: alpha, down: 0, disk: alpha }], vec![*index])).collect();
        let edge = |at: usize| Edge { from: at, to: blocks.len() + at, bytes: alpha };
        let root = Load { up: 0, down: alpha, disk: alpha };
        let edges = (0..blocks.len()).map(edge).collect();
        Self { helpers, roots: vec![root; blocks.len()], edges, dependent: Vec::new() }
    }

    /// The repair of one stripe, whose blocks have `scale` times as many bytes as a code has sub-blocks: the nodes that hold
    /// its other blocks, and those that may get the lost ones.
    pub fn repair(&self, scale: u64, home: impl Fn(u8) -> u32, destinations: Candidates) -> Repair {
        let scaled = |load: &Load| Load { up: load.up * scale, down: load.down * scale, disk: load.disk * scale };
        let part = |(vertices, blocks): &(Vec<Load>, Vec<u8>)| {
            let mut nodes: Vec<u32> = blocks.iter().map(|index| home(*index)).collect();
            nodes.sort_unstable();
            Part { vertices: vertices.iter().map(scaled).collect(), candidates: Candidates::These(nodes) }
        };
        let roots = Part { vertices: self.roots.iter().map(scaled).collect(), candidates: destinations };
        let edges = self.edges.iter().map(|edge| Edge { bytes: edge.bytes * scale, ..*edge }).collect();
        Repair { parts: self.helpers.iter().map(part).chain([roots]).collect(), edges }
    }

    /// Sets of nodes of which a repair must not choose all as helpers: it would leave one out, and take another one that the assignment does
    /// not count. `home`: the node of a block.
    pub fn dependent(&self, home: impl Fn(u8) -> u32) -> Vec<Vec<u32>> {
        self.dependent.iter().map(|blocks| blocks.iter().map(|index| home(*index)).collect()).collect()
    }

    /// Sub-blocks that all vertices together send.
    pub fn moved(&self) -> u64 {
        self.vertices().map(|load| load.up).sum()
    }

    /// Sub-blocks that all disks together read and write.
    pub fn at_disks(&self) -> u64 {
        self.vertices().map(|load| load.disk).sum()
    }

    /// About how many sub-blocks cross between so many racks: helpers that send to the destination themselves are mostly in another rack;
    /// of others, one in each rack sends to another one.
    pub fn crossing(&self, racks: usize) -> f64 {
        let (root, racks) = (self.helpers.iter().map(|(vertices, _)| vertices.len()).sum::<usize>(), racks.max(1));
        let mut begin = 0;
        let of_part = |(vertices, _): &(Vec<Load>, Vec<u8>)| {
            let own: Vec<&Edge> = self.edges.iter().filter(|edge| (begin..begin + vertices.len()).contains(&edge.from)).collect();
            begin += vertices.len();
            match own.iter().filter(|edge| edge.to == root).count() == vertices.len() {
                true => own.iter().map(|edge| edge.bytes as f64).sum::<f64>() * (racks - 1) as f64 / racks as f64,
                false => (racks - 1).min(vertices.len()) as f64 * own.iter().map(|edge| edge.bytes).min().unwrap_or(0) as f64,
            }
        };
        self.helpers.iter().map(of_part).sum()
    }

    /// Sub-blocks that a destination receives, at most.
    pub fn received(&self) -> u64 {
        self.roots.iter().map(|root| root.down).max().unwrap_or(0)
    }

    /// Sub-blocks that all destinations together receive.
    pub fn received_by_all(&self) -> u64 {
        self.roots.iter().map(|root| root.down).sum()
    }

    /// Sub-blocks on the busiest link: the time of one repair on links that carry nothing else.
    pub fn busiest(&self) -> u64 {
        self.vertices().map(Load::busier).max().unwrap_or(0)
    }

    fn vertices(&self) -> impl Iterator<Item = &Load> {
        self.helpers.iter().flat_map(|(vertices, _)| vertices).chain(&self.roots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spec: &str, scheme: &str, lost: &[u8]) -> Parts {
        let code = weft_codes::parse(spec).unwrap();
        let others: Vec<u8> = (0..code.n() as u8).filter(|index| !lost.contains(index)).collect();
        parts(code.as_ref(), scheme, lost, &others, None).unwrap()
    }

    /// Edges of the same number of sub-blocks each.
    fn links(bytes: u64, all: &[(usize, usize)]) -> Vec<Edge> {
        all.iter().map(|(from, to)| Edge { from: *from, to: *to, bytes }).collect()
    }

    /// Of a vertex that reads or writes one sub-block.
    const fn load(up: u64, down: u64) -> Load {
        at_disk(up, down, 1)
    }

    const fn at_disk(up: u64, down: u64, disk: u64) -> Load {
        Load { up, down, disk }
    }

    #[test]
    fn any_k_blocks_help_a_reed_solomon_block_in_any_order() {
        let others = vec![0, 1, 3, 4, 5];
        let edges = links(1, &[(0, 4), (1, 4), (2, 4), (3, 4)]);
        let of_parts = |vertices: Vec<Load>, roots, edges| Parts {
            helpers: vec![(vertices, others.clone())],
            roots,
            edges,
            dependent: Vec::new(),
        };
        let conventional = of_parts(vec![load(1, 0); 4], vec![load(0, 4)], edges);
        assert_eq!(of("rs(4,2)", "conventional", &[2]), conventional);
        let chain = vec![load(1, 0), load(1, 1), load(1, 1), load(1, 1)];
        let edges = links(1, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
        assert_eq!(of("rs(4,2)", "pipeline", &[2]), of_parts(chain, vec![load(0, 1)], edges));
        let tree = vec![load(1, 0), load(1, 1), load(1, 0), load(1, 2)];
        let edges = links(1, &[(0, 1), (1, 3), (2, 3), (3, 4)]);
        assert_eq!(of("rs(4,2)", "ppr", &[2]), of_parts(tree, vec![load(0, 1)], edges));
    }

    #[test]
    fn the_blocks_of_a_local_group_change_places_only_in_a_chain() {
        // Blocks 0 to 2 and the local parity 6 are a group.
        let chain = vec![load(1, 0), load(1, 1), load(1, 1)];
        let edges = links(1, &[(0, 1), (1, 2), (2, 3)]);
        let roots = vec![load(0, 1)];
        assert_eq!(
            of("lrc(6,2,2)", "pipeline", &[1]),
            Parts { helpers: vec![(chain, vec![0, 2, 6])], roots, edges, dependent: Vec::new() }
        );
        let tied = [0, 2, 6].map(|index| (vec![load(1, 0)], vec![index]));
        let edges = links(1, &[(0, 3), (1, 3), (2, 3)]);
        let roots = vec![load(0, 3)];
        let expected = Parts { helpers: tied.into(), roots, edges, dependent: Vec::new() };
        assert_eq!(of("lrc(6,2,2)", "conventional", &[1]), expected);
    }

    #[test]
    fn no_whole_local_group_rebuilds_a_global_parity() {
        let nodes = |parts: &Parts| parts.dependent(|index| 10 + u32::from(index));
        for scheme in ["conventional", "ppr", "pipeline"] {
            assert_eq!(nodes(&of("lrc(6,2,2)", scheme, &[8])), [[10, 11, 12, 16], [13, 14, 15, 17]], "{scheme}");
            for (spec, lost) in [("lrc(6,2,2)", 1), ("rs(6,3)", 8), ("butterfly(4)", 0)] {
                assert!(nodes(&of(spec, scheme, &[lost])).is_empty(), "{spec} {scheme}");
            }
        }
        // The second group is not whole.
        assert_eq!(nodes(&of("lrc(6,2,2)", "conventional", &[4, 8])), [[10, 11, 12, 16]]);
    }

    #[test]
    fn the_helpers_of_a_regenerating_code_send_parts_of_their_blocks() {
        let halves = of("butterfly(4)", "conventional", &[0]);
        assert_eq!(halves.helpers, [1, 2, 3, 4, 5].map(|index| (vec![at_disk(4, 0, 4)], vec![index])));
        assert_eq!(halves.edges, links(4, &[(0, 5), (1, 5), (2, 5), (3, 5), (4, 5)]));
        assert_eq!(halves.roots, [at_disk(0, 20, 8)], "five halves of blocks of eight sub-blocks");
        // A chain of partial sums sends whole blocks, so it takes four.
        assert_eq!(of("butterfly(4)", "pipeline", &[0]).roots, [at_disk(0, 8, 8)]);
    }

    #[test]
    fn of_several_destinations_one_receives_all_around_a_hub_and_each_its_own_behind_a_chain() {
        let of = |scheme: &str| of("rs(6,3)", scheme, &[0, 1]);
        assert_eq!((of("conventional").received(), of("conventional").received_by_all()), (6, 7));
        assert_eq!((of("pipeline").received(), of("pipeline").received_by_all()), (1, 2));
        assert_eq!((of("conventional").moved(), of("pipeline").moved()), (7, 12));
        // Six blocks are read once, and two are written, also where each helper sends a sum for each of them.
        assert_eq!((of("conventional").at_disks(), of("pipeline").at_disks()), (8, 8));
    }
}
