//! Dissemination by *mist*: topologies match an independent model, traffic and time match the paper, and every code gets the right
//! bytes.

use crate::world::{World, block, holder, spare};
use proptest::prelude::*;
use rand::Rng;
use serde_json::Value;
use weft_codes::{FAMILIES, parse};
use weft_gf::SparseMatrix;
use weft_plan::{Class, Input, Job, Network, Plan, Rule, Sink, Source, WantKind, cost, predict, verify};
use weft_schemes::disseminate::{Candidate, Load, Mist, Racks, Topology, Upstream, WriteScheme, assign};
use weft_schemes::{AUTO, Kind, Paths, Request, Run, Scheme, Select, by_name, choose, code_view};
use weft_types::{BlockId, Layout, NodeId, Party, PlanId, Seq, StripeLayout};

const CLIENT: Party = Party::Client(9);
const MIST: Scheme<'_> = Scheme::Write(&TOPOLOGIES);
const TOPOLOGIES: Mist = Mist { reserve: None };

fn vectors() -> Value {
    serde_json::from_str(include_str!("data/topo_mist.json")).unwrap()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

/// Units are integers, or fractions `a/b`.
fn units(value: &Value) -> f64 {
    let text = value.as_str().unwrap();
    match text.split_once('/') {
        Some((above, below)) => above.parse::<f64>().unwrap() / below.parse::<f64>().unwrap(),
        None => text.parse().unwrap(),
    }
}

fn topology(spec: &str, reserve: Option<usize>) -> Topology {
    Topology::of_code(parse(spec).unwrap().as_ref(), reserve)
}

/// The number of blocks that all nodes send together.
fn sent(spec: &str, topology: &Topology) -> f64 {
    topology.sub_blocks_sent() as f64 / parse(spec).unwrap().alpha() as f64
}

/// The most blocks that a receiver sends.
fn most_sent(topology: &Topology) -> f64 {
    topology.loads().iter().map(|load| load.blocks_out).fold(0.0, f64::max)
}

fn from_writer(topology: &Topology) -> usize {
    topology.receivers.iter().filter(|receiver| receiver.upstream == Upstream::Writer).count()
}

/// All blocks are new, and each goes to its own node.
fn job(world: &World, writer: Party) -> (Job, Vec<(Party, BlockId)>) {
    let inputs = (0..world.code.k() as u8).map(|index| Input { party: writer, index }).collect();
    let wants = (0..world.n()).map(|index| world.want(WantKind::Store, holder(index), index)).collect();
    (Job { inputs, wants, ..Job::default() }, (0..world.n()).map(|index| (holder(index), block(index, 1))).collect())
}

fn write(world: &World, job: &Job, stores: &[(Party, BlockId)], scheme: Scheme<'_>) -> Plan {
    let slice_len = (world.positions() / 3).max(1);
    let plan = weft_schemes::plan(&world.request(job, stores, &[], slice_len), scheme).unwrap();
    world.prove(&plan, job);
    plan
}

/// The proof of one plan also covers the other.
#[test]
fn writes_to_nodes_of_other_numbers_have_one_shape() {
    for (spec, block_len) in [("rs(4,2)", 64), ("clay(4,2)", 64)] {
        let world = World::whole(spec, block_len);
        for scheme in [by_name(Kind::Write, "direct").unwrap(), MIST] {
            let shape = |number: &dyn Fn(u32) -> u32| {
                let node = |index: u8| Party::Node(NodeId(number(index.into())));
                let (Job { inputs, .. }, _) = job(&world, CLIENT);
                let wants = (0..world.n()).map(|index| world.want(WantKind::Store, node(index), index)).collect();
                let stores: Vec<_> = (0..world.n()).map(|index| (node(index), block(index, 1))).collect();
                write(&world, &Job { inputs, wants, ..Job::default() }, &stores, scheme).shape
            };
            let (ascending, descending) = (shape(&|index| 1 + index), shape(&|index| 50 - index));
            assert_eq!(ascending, descending, "{spec} by {}", scheme.name());
        }
    }
}

/// The traffic of a plan, in blocks; all blocks of the world are full.
fn moved(world: &World, plan: &Plan) -> f64 {
    cost(plan).unwrap().moved_bytes() as f64 / world.stripe.layout.block_len as f64
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

/// Levels, totals, the most that a node sends, and the plans' costs equal those of an independent model.
#[test]
fn topologies_are_those_of_the_model() {
    let vectors = vectors();
    let (mut specs, mut refused) = (Vec::new(), 0);
    for vector in vectors["general"].as_array().unwrap() {
        let (n, k) = (number(&vector["n"]), number(&vector["k"]));
        specs.push((format!("rs({k},{})", n - k), None, vector));
    }
    for vector in vectors["lrc"].as_array().unwrap() {
        let [k, l, g] = ["k", "l", "g"].map(|name| number(&vector[name]));
        specs.push((format!("lrc({k},{l},{g})"), None, vector));
    }
    for vector in vectors["msr"].as_array().unwrap() {
        let [n, k, d, x] = ["n", "k", "d", "x"].map(|name| number(&vector[name]));
        let spec = format!("msr({k},{},d={d})", n - k);
        if vector["buildable"].as_bool().unwrap() {
            specs.push((spec, Some(x), vector));
        } else {
            assert_eq!(topology(&spec, Some(x)).levels(), [4, 4, 4], "{spec}: not the general topology");
            refused += 1;
        }
    }
    assert_eq!((specs.len(), refused), (16, 1));
    for (spec, reserve, vector) in specs {
        let topology = topology(&spec, reserve);
        let levels: Vec<usize> = vector["levels"].as_array().unwrap().iter().map(number).collect();
        assert_eq!(topology.levels(), levels, "{spec}");
        let total = units(&vector["total_units"]);
        assert!(close(sent(&spec, &topology), total), "{spec}: {} blocks", sent(&spec, &topology));
        let most = most_sent(&topology).max(from_writer(&topology) as f64);
        assert!(close(most, units(&vector["max_out_units"])), "{spec}: {most}");
        let most = topology.loads().iter().map(|load| load.blocks_in).fold(0.0, f64::max);
        assert!(close(most, units(&vector["max_in_units"])), "{spec}: {most}");

        let world = World::whole(&spec, 6 * parse(&spec).unwrap().alpha() as u64);
        let (job, stores) = job(&world, CLIENT);
        let plan = write(&world, &job, &stores, Scheme::Write(&Mist { reserve }));
        assert!(close(moved(&world, &plan), total), "{spec}: {} blocks moved", moved(&world, &plan));
        let sends = cost(&plan).unwrap().of(CLIENT).unwrap().up_bytes / world.stripe.layout.block_len;
        assert_eq!(sends as usize, world.code.k(), "{spec}: the writer sends exactly the data");
    }
}

/// Figure 13 of the paper: (12,4) codes.
#[test]
fn twelve_blocks_from_four_move_as_many_bytes_as_in_the_paper() {
    let moved = |spec: &str, scheme: Scheme<'_>| {
        let world = World::whole(spec, 2 * parse(spec).unwrap().alpha() as u64);
        let (job, stores) = job(&world, CLIENT);
        moved(&world, &write(&world, &job, &stores, scheme))
    };
    let direct = by_name(Kind::Write, "direct").unwrap();
    let rs = moved("rs(4,8)", MIST);
    assert_eq!((moved("rs(4,8)", direct), rs), (12.0, 24.0));
    let less = |blocks: f64| (1000.0 * (1.0 - blocks / rs)).round() / 10.0;
    assert_eq!(less(moved("lrc(4,2,6)", MIST)), 4.2);
    let paper = Scheme::Write(&Mist { reserve: Some(2) });
    assert_eq!(["d=6", "d=8", "d=10"].map(|d| less(moved(&format!("msr(4,8,{d})"), paper))), [0.0, 15.0, 21.4]);
    // With x = 3 there is only one node on the second level, which the paper's bounds do not cover. It decodes, and computes
    // the sixth block too, which one block then carries instead of four.
    let with = |d: &str, x| sent(&format!("msr(4,8,{d})"), &topology(&format!("msr(4,8,{d})"), Some(x)));
    assert_eq!((with("d=6", 2), with("d=6", 3)), (24.0, 21.0));
    let [of_8, of_10] = ["d=8", "d=10"].map(|d| [2, 3].map(|x| with(d, x)));
    assert!(close(of_8[0], 20.4) && close(of_10[0], 132.0 / 7.0), "{of_8:?} {of_10:?}");
    assert!(of_8[0] <= of_8[1] && of_10[0] <= of_10[1], "{of_8:?} {of_10:?}");
    assert_eq!(["d=6", "d=8", "d=10"].map(|d| less(moved(&format!("msr(4,8,{d})"), MIST))), [12.5, 15.0, 21.4]);
}

/// Narrow repairs are chosen only if they move less.
#[test]
fn the_cheaper_topology_is_taken() {
    let (spec, general) = ("msr(5,25,d=8)", sent("rs(5,25)", &topology("rs(5,25)", None)));
    let narrow = sent(spec, &topology(spec, Some(2)));
    assert_eq!((100.0 * narrow / general).round(), 128.0);
    assert!(sent(spec, &topology(spec, None)) <= general);
    for spec in ["msr(4,4,d=6)", "butterfly(4)", "clay(4,3)", "clay(6,3,d=7)", "msr(3,5,d=5)"] {
        let code = parse(spec).unwrap();
        let rs = format!("rs({},{})", code.k(), code.m());
        let (own, general) = (sent(spec, &topology(spec, None)), sent(&rs, &topology(&rs, None)));
        assert!(own < general, "{spec}: {own} of {general}");
        for reserve in 1..code.k() {
            assert!(own <= sent(spec, &topology(spec, Some(reserve))) + 1e-9, "{spec}: {reserve} reserved");
        }
    }
    for spec in ["hitchhiker-xor(6,3)", "rotated-rs(6,3)", "replication(5)", "xor(5)", "rs(1,4)"] {
        let code = parse(spec).unwrap();
        let rs = format!("rs({},{})", code.k(), code.m());
        let (own, general) = (topology(spec, None), topology(&rs, None));
        assert_eq!((own.levels(), sent(spec, &own)), (general.levels(), sent(&rs, &general)), "{spec}");
    }
    assert_eq!(topology("replication(5)", None).levels(), [1, 1, 1, 1, 1], "a chain");
}

/// Self-repairing codes: every parity is the sum of two others (§7.2).
#[test]
fn pairs_suffice_for_self_repairing_codes() {
    for (spec, levels) in [("hsrc(7,3)", 3), ("hsrc(15,4)", 3), ("hsrc(31,5)", 4), ("hsrc(40,6)", 4), ("hsrc(20,5)", 4)] {
        let (code, topology) = (parse(spec).unwrap(), topology(spec, None));
        assert!(topology.levels().len() <= levels, "{spec}: {:?}", topology.levels());
        assert_eq!(sent(spec, &topology), (code.k() + 2 * code.m()) as f64, "{spec}");
        assert!(most_sent(&topology) <= code.k() as f64, "{spec}: {}", most_sent(&topology));
        assert_eq!(from_writer(&topology), code.k(), "{spec}");
    }
}

/// 64 MiB in slices of 256 KiB take little longer than the data needs on the writer's line (figure 9).
#[test]
fn a_write_takes_as_long_as_the_data_on_the_writers_line() {
    let (block_len, slice_len) = (16 << 20, 256 << 10);
    for n in 5..=25 {
        let code = parse(&format!("rs(4,{})", n - 4)).unwrap();
        let layout = Layout::new(block_len, block_len, 1).unwrap();
        let world = World::whole(&format!("rs(4,{})", n - 4), 8);
        let (mut job, stores) = job(&world, CLIENT);
        job.wants.iter_mut().for_each(|want| want.span.end = block_len);
        let stripe = StripeLayout { layout, k: 4, m: n - 4, data_len: 4 * block_len };
        let network = Network::uniform(1e9);
        let request = Request {
            code: code.as_ref(),
            stripe,
            seq: &Seq::FIRST,
            job: &job,
            stores: &stores,
            prefer: &[],
            network: &network,
            select: Select::default(),
            paths: Paths::Count(1),
            seed: 0,
            run: Run::new(PlanId(1), 1, Class::Foreground, slice_len),
            patterns: None,
        };
        let bound = (4 * block_len) as f64 / 1e9;
        let time = |scheme: Scheme<'_>| predict(&weft_schemes::plan(&request, scheme).unwrap(), &network).unwrap() / bound;
        let (mist, direct) = (time(MIST), time(by_name(Kind::Write, "direct").unwrap()));
        println!("n = {n}: {mist:.4} of the bound, direct {direct:.4}");
        assert!(mist <= 1.05, "n = {n}: {mist}");
        assert!(close(direct, f64::from(n) / 4.0), "n = {n}: {direct}");

        let (plan, considered) = choose(&request, AUTO).unwrap();
        let names: Vec<&str> = considered.iter().map(|considered| considered.scheme.as_str()).collect();
        assert_eq!(names, ["mist", "direct"], "n = {n}");
        assert_eq!(cost(&plan).unwrap().moved_bytes(), considered[0].moved_bytes);
        assert!(close(considered[0].seconds, mist * bound) && close(considered[1].seconds, direct * bound));
    }
}

/// If the receivers' lines are slow, the writer sends to all; of equally fast ways, the one that moves less is chosen.
#[test]
fn the_faster_scheme_is_chosen_and_of_equal_ones_direct() {
    let mut world = World::whole("rs(4,4)", 4096);
    let (job, stores) = job(&world, CLIENT);
    let scheme = |world: &World, name: &str| {
        let (plan, considered) = choose(&world.request(&job, &stores, &[], 64), name)?;
        world.prove(&plan, &job);
        Ok::<_, weft_types::Error>((considered[0].scheme.clone(), considered.len()))
    };
    assert_eq!(scheme(&world, AUTO), Ok(("mist".into(), 2)));
    assert_eq!(scheme(&world, "direct"), Ok(("direct".into(), 1)));
    assert!(scheme(&world, "rain").unwrap_err().message.contains("use auto, direct, mist"));
    world.network.up_bytes_per_s.extend((0..8).map(|index| (holder(index), 100.0)));
    assert_eq!(scheme(&world, AUTO), Ok(("direct".into(), 2)));
    world.network.link_bytes_per_s = f64::INFINITY;
    world.network.up_bytes_per_s.clear();
    assert_eq!(scheme(&world, AUTO), Ok(("direct".into(), 2)));
}

/// Figure 5 of the paper: (8,2), each data block twice.
#[test]
fn copies_are_received_from_the_blocks_that_they_copy() {
    let world = World::whole("rs(2,6)", 30);
    let (mut job, mut stores) = job(&world, CLIENT);
    for index in 0..2 {
        job.wants.push(world.want(WantKind::Store, spare(index), index));
        stores.push((spare(index), BlockId { copy: 1, ..block(index, 1) }));
    }
    let plan = write(&world, &job, &stores, MIST);
    assert_eq!((moved(&world, &plan), cost(&plan).unwrap().hops), (12.0, 4));
    let up = |party: Party| cost(&plan).unwrap().of(party).unwrap().up_bytes / 30;
    assert_eq!((up(CLIENT), up(spare(0)), up(spare(1)), up(holder(0)), up(holder(1))), (2, 1, 1, 2, 2));
    let code = parse("rs(2,6)").unwrap();
    let blocks: Vec<(u8, u8)> = (0..8).map(|index| (index, 0)).chain([(0, 1), (1, 1)]).collect();
    assert_eq!(Topology::new(code.as_ref(), &blocks, None).levels(), [2, 2, 2, 4]);
    // Blocks with equal copy numbers must differ in their generations.
    stores.last_mut().unwrap().1.copy = 0;
    let spec = world.code.spec();
    let plan = weft_schemes::plan(&world.request(&job, &stores, &[], 8), MIST).unwrap();
    let refusal = verify(&plan, code_view(world.code.as_ref(), &spec), &job).unwrap_err();
    assert!(refusal.to_string().contains("would be stored at two places"), "{refusal}");
}

/// A writer must provide only the data blocks that the plan needs.
#[test]
fn inputs_that_are_not_needed_may_be_absent() {
    let world = World::whole("lrc(4,2,2)", 12);
    let (mut job, stores) = job(&world, CLIENT);
    job.inputs.truncate(2);
    let all = job.wants.clone();
    job.wants.retain(|want| [0, 1, 4].contains(&want.index));
    let plan = write(&world, &job, &stores, MIST);
    let up = |party: Party| cost(&plan).unwrap().of(party).unwrap().up_bytes / 12;
    assert_eq!([CLIENT, holder(0), holder(1), holder(4)].map(up), [2, 1, 1, 0]);
    // If the data is not stored, the writer computes the parity.
    job.wants.retain(|want| want.index == 4);
    let plan = write(&world, &job, &stores, MIST);
    assert_eq!((moved(&world, &plan), plan.binding.parties.len()), (1.0, 2));
    job.wants = all;
    let error = weft_schemes::plan(&world.request(&job, &stores, &[], 8), MIST).unwrap_err();
    assert_eq!(error.message, "data block 2 is needed, but it is not an input");
}

#[test]
fn a_spoiled_plan_is_refused() {
    let world = World::whole("rs(4,8)", 12);
    let (job, stores) = job(&world, CLIENT);
    let good = weft_schemes::plan(&world.request(&job, &stores, &[], 4), MIST).unwrap();
    let spec = world.code.spec();
    let refuse = |spoil: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        spoil(&mut plan);
        verify(&plan, code_view(world.code.as_ref(), &spec), &job).unwrap_err().rule
    };
    let computes = |stage: &&mut weft_plan::Stage| stage.sources.len() == 4 && matches!(stage.sources[0], Source::Link(_));
    let wrong = refuse(&|plan| {
        let stage = plan.shape.lanes[0].stages.iter_mut().find(computes).unwrap();
        let matrix = stage.matrix.as_matrix().unwrap();
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let terms = matrix.terms().iter().enumerate().map(|(at, (r, c, v))| (*r as usize, *c as usize, v ^ u8::from(at == 7)));
        stage.matrix = SparseMatrix::new(rows, cols, terms.collect::<Vec<_>>()).unwrap().into();
    });
    assert_eq!(wrong, Rule::Algebra, "one wrong coefficient in what a receiver computes for another");
    let crossed = refuse(&|plan| plan.shape.lanes[0].stages.iter_mut().find(computes).unwrap().sources.swap(0, 1));
    assert_eq!(crossed, Rule::Algebra, "two swapped links");
    let dropped = refuse(&|plan| {
        let relays = |stage: &&mut weft_plan::Stage| matches!(stage.sinks[..], [Sink::Store { .. }, Sink::Link(_), ..]);
        let stage = plan.shape.lanes[0].stages.iter_mut().find(relays).unwrap();
        stage.sinks.remove(0);
        stage.matrix = stage.matrix.select_rows(&(1..stage.matrix.rows()).collect::<Vec<_>>());
    });
    assert_eq!(dropped, Rule::Tiling, "a block is passed on but not stored");
}

/// §5: the fastest node gets the most work.
#[test]
fn nodes_are_assigned_as_in_the_model() {
    let unknown = Candidate::UNKNOWN;
    for vector in vectors()["placement"].as_array().unwrap() {
        let (n, k) = (number(&vector["n"]), number(&vector["k"]));
        let speeds = vector["perf"].as_array().unwrap().iter().map(|speed| speed.as_f64().unwrap());
        let candidates: Vec<Candidate> = speeds.map(|products_per_s| Candidate { products_per_s, ..unknown }).collect();
        let code = parse(&format!("rs({k},{})", n - k)).unwrap();
        let work: Vec<f64> = Load::of_all(n, &TOPOLOGIES.edges(code.as_ref())).iter().map(Load::work).collect();
        let of = |name: &str| (1..=n).map(|at| number(&vector[name][at.to_string()])).collect::<Vec<_>>();
        assert_eq!(work, of("complexity").into_iter().map(|work| work as f64).collect::<Vec<_>>());
        let expected: Vec<usize> = of("position_to_server").into_iter().map(|server| server - 1).collect();
        assert_eq!(assign(code.as_ref(), AUTO, &candidates, &Racks::default()).unwrap(), expected);
    }
    // rs(4,2): four receivers send two blocks each; the other two send none and receive four.
    let code = parse("rs(4,2)").unwrap();
    let with = |up: &[f64], down: &[f64]| -> Vec<usize> {
        let both = up.iter().zip(down);
        let candidates = both.map(|(up, down)| Candidate { up_bytes_per_s: *up, down_bytes_per_s: *down, ..unknown });
        assign(code.as_ref(), "mist", &candidates.collect::<Vec<_>>(), &Racks::default()).unwrap()
    };
    let mut narrow_up = with(&[1.0, 9.0, 9.0, 1.0, 9.0, 9.0], &[9.0; 6]).split_off(4);
    narrow_up.sort_unstable();
    assert_eq!(narrow_up, [0, 3], "nodes with slow uplinks send nothing");
    let mut narrow_down = with(&[9.0; 6], &[1.0, 9.0, 1.0, 1.0, 9.0, 1.0]).split_off(4);
    narrow_down.sort_unstable();
    assert_eq!(narrow_down, [1, 4], "nodes with slow downlinks receive one block");
    let few = assign(code.as_ref(), "mist", &[unknown; 5], &Racks::default()).unwrap_err();
    assert_eq!(few.message, "rs(4,2) has 6 blocks, but 5 nodes were given for them");
    let unlike: Vec<Candidate> = (0..6).map(|up| Candidate { up_bytes_per_s: f64::from(up), ..unknown }).collect();
    assert_eq!(assign(code.as_ref(), "direct", &unlike, &Racks::default()).unwrap(), [0, 1, 2, 3, 4, 5], "the placement is kept");
}

/// The traffic between racks for nodes in these racks; the writer is in one of them or in none.
fn crossing(spec: &str, racks: &[usize], writer: Option<usize>, assigned: &[usize]) -> f64 {
    let edges = TOPOLOGIES.edges(parse(spec).unwrap().as_ref());
    let rack = |at: usize| Some(racks[assigned[at]]);
    edges.iter().filter(|edge| edge.from.map_or(writer, rack) != rack(edge.to)).map(|edge| edge.blocks).sum()
}

fn assigned(spec: &str, of: &[usize], racks: &Racks) -> Vec<usize> {
    let candidates: Vec<Candidate> = of.iter().map(|rack| Candidate { rack: Some(*rack), ..Candidate::UNKNOWN }).collect();
    assign(parse(spec).unwrap().as_ref(), "mist", &candidates, racks).unwrap()
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    let shorter = if count == 0 { return vec![Vec::new()] } else { permutations(count - 1) };
    let with = |order: Vec<usize>| (0..count).map(move |at| [&order[..at], &[count - 1], &order[at..]].concat());
    shorter.into_iter().flat_map(with).collect()
}

#[test]
fn traffic_between_racks_is_minimal() {
    let lines = |count: usize| vec![(f64::INFINITY, f64::INFINITY); count];
    let mut random = proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha);
    for spec in ["rs(4,2)", "rs(3,3)", "lrc(4,2,1)", "replication(3)"] {
        let n = parse(spec).unwrap().n();
        let all = permutations(n);
        let (mut worst, mut sum, mut sum_of_all) = (1.0f64, 0.0, 0.0);
        for _ in 0..20 {
            let of: Vec<usize> = (0..n).map(|_| random.random_range(0..3)).collect();
            let writer = Some(random.random_range(0..4)).filter(|rack| *rack < 3);
            let got = crossing(spec, &of, writer, &assigned(spec, &of, &Racks { writer, lines: lines(3) }));
            let each = all.iter().map(|assigned| crossing(spec, &of, writer, assigned));
            let least = each.clone().fold(f64::INFINITY, f64::min);
            let ratio = if least > 0.0 { got / least } else { 1.0 + got };
            (worst, sum, sum_of_all) = (worst.max(ratio), sum + got, sum_of_all + each.sum::<f64>() / all.len() as f64);
        }
        println!("{spec}: at most {worst:.3} of the least, {:.3} of what chance gives", sum / sum_of_all);
        assert!(worst <= 1.15, "{spec}: {worst}");
    }
    // Six nodes in two racks, one of which has a slow uplink: senders are in the other, as far as there is room.
    let of = [0, 1, 0, 1, 0, 1];
    let slow = Racks { writer: Some(1), lines: vec![(1.0, 100.0), (100.0, 100.0)] };
    let got = assigned("rs(3,3)", &of, &slow);
    assert!(got[..3].iter().all(|at| of[*at] == 1), "{got:?}");
    // A slow node gets the least work, whatever its rack.
    let candidates: Vec<Candidate> = (0..6)
        .map(|at| Candidate { rack: Some(at % 2), products_per_s: if at == 1 { 1.0 } else { 9.0 }, ..Candidate::UNKNOWN })
        .collect();
    let code = parse("rs(4,2)").unwrap();
    let work: Vec<f64> = Load::of_all(6, &TOPOLOGIES.edges(code.as_ref())).iter().map(Load::work).collect();
    let got = assign(code.as_ref(), "mist", &candidates, &Racks { writer: None, lines: lines(2) }).unwrap();
    let slow = got.iter().position(|at| *at == 1).unwrap();
    assert_eq!(work[slow], work.iter().copied().fold(f64::INFINITY, f64::min), "{got:?}");
}

const SPECS: &[&str] = &[
    "rs(1,3)",
    "rs(2,23)",
    "rs(3,22)",
    "rs(4,21)",
    "rs(6,3)",
    "rs(10,4,matrix=vandermonde)",
    "xor(5)",
    "replication(6)",
    "lrc(4,2,1)",
    "lrc(4,2,6)",
    "lrc(6,2,2)",
    "lrc(6,3,9)",
    "lrc(4,1,3)",
    "lrc(2,2,12)",
    "rotated-rs(4,2)",
    "rotated-rs(6,3)",
    "hitchhiker-xor(6,3)",
    "hitchhiker-xor+(6,3)",
    "butterfly(3)",
    "butterfly(4)",
    "msr(2,5)",
    "msr(3,8,d=4)",
    "msr(4,8,d=6)",
    "msr(4,8,d=8)",
    "msr(4,8,d=10)",
    "msr(5,12,d=8)",
    "clay(4,2)",
    "clay(4,3,d=5)",
    "clay(6,3)",
    "hsrc(3,2)",
    "hsrc(7,3)",
    "hsrc(25,4)",
    "hsrc(20,5)",
];

/// These, and the smallest code that each family lists for measurement.
fn specs() -> Vec<&'static str> {
    let size = |spec: &&&str| {
        let code = parse(spec).unwrap();
        code.n() * code.alpha()
    };
    let smallest = FAMILIES.iter().filter_map(|family| family.measured.iter().min_by_key(size));
    SPECS.iter().chain(smallest).copied().collect()
}

/// For any code, the writer sends k blocks, no node sends more, and the plan moves what the topology says.
#[test]
fn every_plan_moves_what_its_topology_says() {
    for spec in specs() {
        let world = World::whole(spec, 2 * parse(spec).unwrap().alpha() as u64);
        let (job, stores) = job(&world, CLIENT);
        let (k, topology) = (world.code.k(), topology(spec, None));
        assert_eq!((from_writer(&topology), topology.receivers.len()), (k, world.code.n()), "{spec}");
        assert!(most_sent(&topology) <= k as f64, "{spec}: {}", most_sent(&topology));
        let plan = write(&world, &job, &stores, MIST);
        assert!(close(moved(&world, &plan), sent(spec, &topology)), "{spec}: {} blocks", moved(&world, &plan));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any writer, any wanted blocks and any number of copies, every node stores the right bytes, and no party sends more than k
    /// blocks.
    #[test]
    fn every_disseminated_stripe_is_correct(seed: u64, spec in prop::sample::select(specs()), reserve in proptest::option::of(0usize..5)) {
        let mut world = World::of(spec, seed);
        let writer = if world.random.random() { CLIENT } else { holder(world.random.random_range(0..world.n())) };
        let (mut job, mut stores) = job(&world, writer);
        if world.random.random_ratio(1, 3) {
            let kept = world.random.random_range(1..=job.wants.len());
            job.wants = rand::seq::IndexedRandom::choose_multiple(job.wants.as_slice(), &mut world.random, kept).cloned().collect();
        }
        for copy in 1..world.random.random_range(1..4u8) {
            for index in (0..world.n()).filter(|_| seed % 3 == 0) {
                let party = Party::Node(weft_types::NodeId(1001 + 300 * u32::from(copy) + u32::from(index)));
                job.wants.push(world.want(WantKind::Store, party, index));
                stores.push((party, BlockId { copy, ..block(index, 1) }));
            }
        }
        if world.random.random_ratio(1, 4) {
            let span = world.random_span();
            job.wants.iter_mut().for_each(|want| want.span = span);
        }
        let plan = write(&world, &job, &stores, Scheme::Write(&Mist { reserve }));
        let positions = job.wants[0].span.len() * world.code.alpha() as u64;
        for share in cost(&plan).unwrap().parties.iter().filter(|share| share.party != writer) {
            assert!(share.up_bytes <= world.code.k() as u64 * positions, "{spec}: {share:?} of {positions}");
        }
    }
}
