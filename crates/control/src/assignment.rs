//! Decides which of a stripe's chosen nodes gets which block. Where a scheme makes some nodes do more than others, the
//! faster and less busy nodes get that work.

use std::collections::{BTreeMap, BTreeSet};
use weft_codes::SharedCode;
use weft_plan::{Moved, Network};
use weft_schemes::disseminate::{self, Candidate, Racks};
use weft_types::{Party, Result};

/// For each block of a stripe, the index of the node that gets it, given the nodes' coding rates.
pub fn assigned(
    code: &SharedCode,
    scheme: &str,
    block_len: u64,
    writer: Party,
    nodes: &[(Party, f64)],
    mut network: Network,
) -> Result<Vec<usize>> {
    let (block_len, line) = (block_len.max(1) as f64, network.line_of(writer));
    // The writer's sends use the line of its own node too.
    network.busy.entry(line).or_default().waited_for.up_bytes += block_len * code.k() as f64;
    let lines: Vec<Party> = nodes.iter().map(|(node, _)| network.line_of(*node)).collect();
    let coding = about(nodes.iter().map(|(_, coding)| *coding).collect());
    let up = about(lines.iter().map(|line| network.up(*line)).collect());
    let down = about(lines.iter().map(|line| network.down(*line)).collect());
    let is_near = |node: Party| network.host_of_both(writer, node).is_some();
    let all_near = nodes.iter().all(|(node, _)| is_near(*node));
    let racks: BTreeSet<&str> =
        lines.iter().chain([&line]).filter_map(|line| network.racks.get(line)).map(String::as_str).collect();
    let rack = |line: &Party| racks.iter().position(|rack| network.racks.get(line).is_some_and(|own| own == rack));
    // No node sends or receives more than all data.
    let most = Moved { up_bytes: block_len * code.k() as f64, down_bytes: block_len * code.k() as f64 };
    let candidate = |at: usize| {
        let busy = network.busy.get(&lines[at]).map(|busy| busy.beside(most)).unwrap_or_default();
        Candidate {
            products_per_s: coding[at],
            up_bytes_per_s: up[at],
            down_bytes_per_s: down[at],
            busy: Moved { up_bytes: busy.up_bytes / block_len, down_bytes: busy.down_bytes / block_len },
            is_near: !all_near && is_near(nodes[at].0),
            rack: rack(&lines[at]),
        }
    };
    let candidates: Vec<Candidate> = (0..nodes.len()).map(candidate).collect();
    if candidates.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok((0..nodes.len()).collect());
    }
    let rate = |rates: &BTreeMap<String, f64>, rack: &str| rates.get(rack).copied().unwrap_or(f64::INFINITY);
    let lines = |rack: &&str| (rate(&network.rack_up_bytes_per_s, rack), rate(&network.rack_down_bytes_per_s, rack));
    let racks = Racks { writer: rack(&line), lines: racks.iter().map(lines).collect() };
    disseminate::assign(code.as_ref(), scheme, &candidates, &racks)
}

/// Nodes whose rates differ by at most this factor count as equally fast.
const ALIKE: f64 = 2.0;

/// Rounds rates to powers of two, or to one value if all are alike. So nodes of about equal speed stay in a random
/// order, and the data blocks do not always go to the same nodes. An unknown rate counts as fast.
fn about(rates: Vec<f64>) -> Vec<f64> {
    let known = || rates.iter().copied().filter(|rate| *rate > 0.0);
    let (least, most) = (known().fold(f64::INFINITY, f64::min), known().fold(0.0, f64::max));
    let power = |rate: f64| if rate > 0.0 { rate.log2().round().exp2() } else { f64::INFINITY };
    // Two similar rates may lie on either side of a rounding boundary.
    let class = |rate: f64| power(if most <= ALIKE * least { most } else { rate });
    rates.iter().copied().map(class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::Known;
    use crate::planning::{self, Planned, Writing};
    use weft_plan::{Busy, Class, ProofKey};
    use weft_schemes::Run;
    use weft_types::{BlockId, Layout, NodeId, PlanId, Seq, StripeId, StripeLayout};

    const BLOCK_LEN: u64 = 1 << 20;

    /// Lets writers on the first of eight nodes, or all on one machine outside, each plan a put of rs(4,4) after all
    /// have been announced. Returns the schemes and the number of blocks on the busiest line.
    fn put_at_once(writers: u32, scheme: &str, outside: bool) -> (Vec<String>, f64) {
        let code = weft_codes::parse("rs(4,4)").unwrap();
        let layout = Layout::new(BLOCK_LEN, BLOCK_LEN, 1).unwrap();
        let stripe = StripeLayout { layout, k: 4, m: 4, data_len: 4 * BLOCK_LEN };
        let nodes: Vec<(Party, f64)> = (0..8).map(|id| (Party::Node(NodeId(id)), 0.0)).collect();
        let hosts: BTreeMap<Party, String> = nodes.iter().map(|(node, _)| (*node, node.to_string())).collect();
        // The writer's host, whose lines the writer uses.
        let host = |number: u32| if outside { "outside".to_owned() } else { nodes[number as usize].0.to_string() };
        let mut all = Network::uniform(1e8);
        all.hosts = hosts.clone();
        all.hosts.extend((0..writers).map(|number| (Party::Client(number.into()), host(number))));
        let on = |number: u32| all.line_of(Party::Client(number.into()));
        let one = |up: f64, down: f64| Moved { up_bytes: up * BLOCK_LEN as f64, down_bytes: down * BLOCK_LEN as f64 };
        let announced = |number: u32| {
            let others = nodes.iter().filter(move |(node, _)| *node != on(number)).map(|(node, _)| (*node, one(0.0, 1.0)));
            others.chain([(on(number), one(if outside { 8.0 } else { 7.0 }, 0.0))]).collect::<Vec<_>>()
        };
        let plan = |number: u32, planned: &[Planned]| {
            let writer = Party::Client(number.into());
            let mut network = Network::uniform(1e8);
            network.hosts = hosts.clone();
            network.hosts.insert(writer, host(number));
            let known = planned.iter().flat_map(|planned| planned.lines.clone());
            for (line, moved) in (number + 1..writers).flat_map(announced).chain(known) {
                network.busy.entry(line).or_default().waited_for += moved;
            }
            let homes = assigned(&code, scheme, BLOCK_LEN, writer, &nodes, network.clone()).unwrap();
            let block = |index| BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 };
            let stores: Vec<(Party, BlockId)> = (0..).zip(homes).map(|(index, at)| (nodes[at].0, block(index))).collect();
            let known = &Known::new(ProofKey::PUBLIC);
            let writing = Writing { writer, seq: &Seq::FIRST, stores: &stores, whole: true, scheme, network: &network, known };
            planning::write(&code, &stripe, &writing, Run::new(PlanId(1), 1, Class::Foreground, 16 << 10)).unwrap()
        };
        let mut planned: Vec<Planned> = Vec::new();
        for number in 0..writers {
            planned.push(plan(number, &planned));
        }
        let mut lines: BTreeMap<Party, Moved> = BTreeMap::new();
        for (line, moved) in planned.iter().flat_map(|planned| planned.lines.clone()) {
            *lines.entry(line).or_default() += moved;
        }
        let busiest = lines.values().map(|moved| moved.up_bytes.max(moved.down_bytes)).fold(0.0, f64::max);
        let schemes = planned.iter().filter_map(|planned| planned.considered.first()).map(|it| it.scheme.clone()).collect();
        (schemes, busiest / BLOCK_LEN as f64)
    }

    #[test]
    fn writers_on_nodes_avoid_each_others_lines() {
        let auto = |writers| put_at_once(writers, "auto", false);
        assert_eq!(
            auto(1),
            (vec!["mist".to_owned()], 4.0),
            "the writer sends only the data: the node on its machine computes the parity"
        );
        let (schemes, busiest) = auto(2);
        assert!(schemes == ["mist", "mist"] && busiest <= 6.0, "{schemes:?} {busiest}");
        for writers in 3..=8 {
            let (schemes, busiest) = auto(writers);
            let direct = put_at_once(writers, "direct", false).1;
            assert!(busiest <= direct, "{writers}: {schemes:?} take {busiest}, direct puts alone take {direct}");
        }
    }

    #[test]
    fn writers_on_one_machine_outside_share_its_line() {
        for writers in [1, 4, 8] {
            let (schemes, busiest) = put_at_once(writers, "auto", true);
            assert!(schemes.iter().all(|scheme| scheme == "mist"), "{writers}: {schemes:?}");
            assert_eq!(busiest, 4.0 * f64::from(writers), "its line carries the data once");
            assert_eq!(put_at_once(writers, "direct", true).1, 8.0 * f64::from(writers));
        }
    }

    #[test]
    fn background_transfers_do_not_keep_puts_from_several_levels() {
        let (code, block_len) = (weft_codes::parse("rs(4,4)").unwrap(), BLOCK_LEN as f64);
        let layout = Layout::new(BLOCK_LEN, BLOCK_LEN, 1).unwrap();
        let stripe = StripeLayout { layout, k: 4, m: 4, data_len: 4 * BLOCK_LEN };
        let block = |index| BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 };
        let nodes: Vec<(Party, f64)> = (0..8).map(|id| (Party::Node(NodeId(id)), 0.0)).collect();
        let repair = Moved { up_bytes: 0.0, down_bytes: 64.0 * block_len };
        let chosen = |busy: Busy| {
            let network = Network { busy: [(Party::Node(NodeId(6)), busy)].into(), ..Network::uniform(1e8) };
            let homes = assigned(&code, "auto", BLOCK_LEN, Party::Client(1), &nodes, network.clone()).unwrap();
            let stores: Vec<(Party, BlockId)> = (0..).zip(homes).map(|(index, at)| (nodes[at].0, block(index))).collect();
            let (known, writer) = (&Known::new(ProofKey::PUBLIC), Party::Client(1));
            let writing =
                Writing { writer, seq: &Seq::FIRST, stores: &stores, whole: true, scheme: "auto", network: &network, known };
            let run = Run::new(PlanId(1), 1, Class::Foreground, 16 << 10);
            planning::write(&code, &stripe, &writing, run).unwrap().considered[0].scheme.clone()
        };
        assert_eq!(chosen(Busy { background: vec![repair], ..Busy::default() }), "mist");
        assert_eq!(chosen(Busy { waited_for: repair, ..Busy::default() }), "direct", "no plan of this put can end sooner");
    }

    #[test]
    fn nodes_of_similar_speed_are_in_one_class_despite_rounding() {
        let classes = |rates: &[f64]| about(rates.to_vec());
        // Powers of two are rounded at multiples of the square root of two.
        for rates in [[1.41, 1.42, 1.4], [2.0, 1.0, 1.5], [90.0, 91.0, 0.0]] {
            assert!(classes(&rates).windows(2).all(|pair| pair[0] == pair[1]), "{rates:?}: {:?}", classes(&rates));
        }
        let far = classes(&[1.0, 2.2, 9.0, 0.0]);
        assert_eq!(far, [1.0, 2.0, 8.0, f64::INFINITY]);
    }
}
