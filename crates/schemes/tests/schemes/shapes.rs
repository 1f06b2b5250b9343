//! Shapes and costs of plans: the closed forms of the papers, and simple cases.

use crate::world::{World, block, holder, spare};
use weft_plan::{Change, Hold, Input, Job, Network, Plan, Sink, Source, Want, WantKind, cost, predict};
use weft_schemes::{Kind, answering, by_name};
use weft_types::{BlockId, Party, Reaction, Span};

const CLIENT: Party = Party::Client(9);
const BLOCK_LEN: u64 = 64;

/// Blocks that a party sends and receives (up, down), of `BLOCK_LEN`.
fn traffic(plan: &Plan, party: Party) -> (f64, f64) {
    let cost = cost(plan).unwrap();
    let share = cost.of(party).unwrap();
    (share.up_bytes as f64 / BLOCK_LEN as f64, share.down_bytes as f64 / BLOCK_LEN as f64)
}

fn worst_traffic(plan: &Plan) -> (f64, f64) {
    let each = plan.binding.parties.iter().map(|party| traffic(plan, *party));
    each.fold((0.0, 0.0), |worst, one| (worst.0.max(one.0), worst.1.max(one.1)))
}

fn hops(plan: &Plan) -> u32 {
    cost(plan).unwrap().hops
}

/// The predicted time, in units of a plain read of a block: every line carries one block a second.
fn reads(plan: &Plan) -> f64 {
    predict(plan, &Network::uniform(BLOCK_LEN as f64)).unwrap()
}

/// The parties of a lane's stages that read blocks, in the order of the stages.
fn readers(plan: &Plan, lane: usize) -> Vec<Party> {
    let stages = plan.shape.lanes[lane].stages.iter();
    let reading = stages.filter(|stage| stage.sources.iter().any(|source| matches!(source, Source::Block { .. })));
    reading.map(|stage| plan.binding.parties[usize::from(stage.vertex)]).collect()
}

fn store_job(world: &World, lost: &[u8]) -> (Job, Vec<(Party, BlockId)>) {
    let wants = lost.iter().map(|index| world.want(WantKind::Store, spare(*index), *index)).collect();
    let stores = lost.iter().map(|index| (spare(*index), block(*index, 2))).collect();
    (Job { holds: world.holds_without(lost), wants, ..Job::default() }, stores)
}

fn repair_one(world: &World, lost: &[u8], scheme: &str) -> Plan {
    let (job, stores) = store_job(world, lost);
    world.repair(&job, &stores, &[], 8, by_name(Kind::Repair, scheme).unwrap())
}

#[test]
fn one_block_costs_what_the_papers_say() {
    for k in 1..=20usize {
        let world = World::whole(&format!("rs({k},3)"), BLOCK_LEN);
        let rounds = (k as u32 + 1).next_power_of_two().ilog2();
        for lost in [0, k as u8] {
            let conventional = repair_one(&world, &[lost], "conventional");
            assert_eq!((hops(&conventional), traffic(&conventional, spare(lost)).1), (1, k as f64));

            let ppr = repair_one(&world, &[lost], "ppr");
            assert_eq!(hops(&ppr), rounds, "k = {k}");
            assert!(worst_traffic(&ppr) <= (1.0, f64::from(rounds)), "a node sends or receives twice in a round");

            let pipeline = repair_one(&world, &[lost], "pipeline");
            assert_eq!((hops(&pipeline), worst_traffic(&pipeline)), (k as u32, (1.0, 1.0)));
            for plan in [conventional, ppr, pipeline] {
                assert_eq!((plan.shape.lanes.len(), plan.shape.lanes[0].links.len()), (1, k));
            }
        }
    }
}

#[test]
fn one_block_takes_as_long_as_the_papers_say() {
    for k in [1, 2, 3, 6, 10, 12] {
        let world = World::whole(&format!("rs({k},2)"), BLOCK_LEN);
        let (job, stores) = store_job(&world, &[1]);
        for slices in [1, 4, 8, 64] {
            let time = |scheme: &str| {
                let plan = world.repair(&job, &stores, &[], BLOCK_LEN / slices, by_name(Kind::Repair, scheme).unwrap());
                reads(&plan)
            };
            let (k, s) = (k as f64, slices as f64);
            let close =
                |time: f64, expected: f64| assert!((time - expected).abs() < 1e-9, "{time}, not {expected}: k {k}, s {s}");
            close(time("conventional"), k);
            close(time("pipeline"), 1.0 + (k - 1.0) / s);
            if slices == 1 {
                close(time("ppr"), (k + 1.0).log2().ceil());
            }
        }
    }
}

#[test]
fn blocks_lost_together_share_one_chain() {
    let world = World::whole("rs(6,3)", BLOCK_LEN);
    let plan = repair_one(&world, &[1, 4, 7], "pipeline");
    let [lane] = plan.shape.lanes.as_slice() else { panic!("{} lanes", plan.shape.lanes.len()) };
    let widths: Vec<u32> = lane.links.iter().map(|link| link.width).collect();
    assert_eq!(widths, [3, 3, 3, 3, 3, 1, 1, 1]);
    let plan = repair_one(&world, &[1, 4, 7], "conventional");
    assert_eq!(traffic(&plan, spare(1)), (2.0, 6.0), "the first requestor computes for all");
}

#[test]
fn clients_are_served_separately_because_they_forward_nothing() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let wants = [CLIENT, Party::Client(10)].map(|client| world.want(WantKind::Output, client, 0)).to_vec();
    let job = Job { holds: world.holds_without(&[0]), wants, ..Job::default() };
    for scheme in answering(Kind::Repair) {
        let plan = world.repair(&job, &[], &[], 8, scheme);
        assert_eq!((traffic(&plan, CLIENT).0, traffic(&plan, Party::Client(10)).0), (0.0, 0.0), "{}", scheme.name());
    }
    // Read repair: a node that stores the block passes it on to the reader.
    let mut job = job;
    job.wants = vec![world.want(WantKind::Output, CLIENT, 0), world.want(WantKind::Store, spare(0), 0)];
    for scheme in answering(Kind::Repair) {
        let plan = world.repair(&job, &[(spare(0), block(0, 2))], &[], 8, scheme);
        // Lanes that take turns count as one.
        let turns = plan.shape.lanes.iter().filter(|lane| lane.first == 0).count();
        assert_eq!((turns, traffic(&plan, CLIENT)), (1, (0.0, 1.0)), "{}", scheme.name());
    }
}

#[test]
fn helpers_are_chosen_and_ordered_as_preferred() {
    let world = World::whole("rs(4,3)", BLOCK_LEN);
    let (job, stores) = store_job(&world, &[2]);
    let prefer = [6, 0, 5].map(holder);
    let plan = world.repair(&job, &stores, &prefer, 8, by_name(Kind::Repair, "pipeline").unwrap());
    assert_eq!(readers(&plan, 0), [6, 0, 5, 1].map(holder));
}

#[test]
fn blocks_read_anyway_help_and_keep_their_place_in_the_chain() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let wants = [0, 4].map(|index| world.want(WantKind::Output, CLIENT, index)).to_vec();
    let job = Job { holds: world.holds_without(&[0]), wants, ..Job::default() };
    let prefer = [5, 1, 2, 3, 4].map(holder);
    let plan = world.repair(&job, &[], &prefer, 8, by_name(Kind::Repair, "pipeline").unwrap());
    assert_eq!(readers(&plan, 0), [5, 1, 2, 4].map(holder));
}

#[test]
fn a_requestor_that_holds_a_block_is_also_a_helper() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let reader = holder(1);
    let job = Job { holds: world.holds_without(&[0]), wants: vec![world.want(WantKind::Output, reader, 0)], ..Job::default() };
    for (scheme, hops_expected) in [("conventional", 1), ("ppr", 2), ("pipeline", 3)] {
        let plan = world.repair(&job, &[], &[], 8, by_name(Kind::Repair, scheme).unwrap());
        assert!(readers(&plan, 0).contains(&reader), "{scheme}");
        assert_eq!((plan.shape.lanes[0].links.len(), hops(&plan)), (3, hops_expected), "{scheme}");
    }
}

#[test]
fn two_blocks_of_one_node_are_one_stage() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let (mut job, stores) = store_job(&world, &[0]);
    let (twice, other) = (holder(1), holder(2));
    job.holds.iter_mut().filter(|hold| hold.party == other).for_each(|hold| hold.party = twice);
    for scheme in answering(Kind::Repair) {
        let plan = world.repair(&job, &stores, &[], 8, scheme);
        let mut readers = readers(&plan, 0);
        readers.sort();
        assert_eq!(readers, [1, 3, 4].map(holder), "{}", scheme.name());
    }
}

#[test]
fn a_hole_is_avoided_only_at_its_positions() {
    let world = World::whole("rs(3,2)", BLOCK_LEN);
    let (mut job, stores) = store_job(&world, &[0]);
    let hold = job.holds.remove(0);
    assert_eq!(hold.party, holder(1));
    let hole = Span::new(16, 24);
    job.holds.splice(0..0, hold.span.subtract(&[hole]).into_iter().map(|span| Hold { span, ..hold.clone() }));
    let plan = world.repair(&job, &stores, &[], 8, by_name(Kind::Repair, "pipeline").unwrap());
    let spans = &plan.binding.spans;
    assert_eq!(*spans, [Span::new(0, 16), hole, Span::new(24, 64)]);
    assert_eq!(readers(&plan, 0), [1, 2, 3].map(holder));
    assert_eq!(readers(&plan, 1), [2, 3, 4].map(holder));

    let prefer = [2, 3, 4].map(holder);
    let plan = world.repair(&job, &stores, &prefer, 8, by_name(Kind::Repair, "pipeline").unwrap());
    assert_eq!(plan.shape.lanes.len(), 1, "a hole in an unused block split the lane");
}

#[test]
fn a_corrupt_block_is_copied_but_for_its_hole() {
    let world = World::whole("rs(3,2)", BLOCK_LEN);
    let (mut job, stores) = store_job(&world, &[0]);
    let hole = Span::new(8, 16);
    let whole = Hold { party: holder(0), block: block(0, 1), span: world.whole_span() };
    job.holds.extend(whole.span.subtract(&[hole]).into_iter().map(|span| Hold { span, ..whole.clone() }));
    let plan = world.repair(&job, &stores, &[], 8, by_name(Kind::Repair, "pipeline").unwrap());
    let links: Vec<(Span, usize)> =
        plan.binding.spans.iter().zip(&plan.shape.lanes).map(|(span, lane)| (*span, lane.links.len())).collect();
    assert_eq!(links, [(Span::new(0, 8), 1), (hole, 3), (Span::new(16, 64), 1)]);
}

#[test]
fn blocks_read_anyway_help() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let wants = (0..4).map(|index| world.want(WantKind::Output, CLIENT, index)).collect();
    let job = Job { holds: world.holds_without(&[1]), wants, ..Job::default() };
    let conventional = world.repair(&job, &[], &[], 8, by_name(Kind::Repair, "conventional").unwrap());
    assert_eq!((conventional.shape.lanes.len(), traffic(&conventional, CLIENT).1), (1, 4.0), "the same links serve both");
    let pipeline = world.repair(&job, &[], &[], 8, by_name(Kind::Repair, "pipeline").unwrap());
    assert_eq!((pipeline.shape.lanes.len(), traffic(&pipeline, CLIENT).1), (4, 4.0));
}

#[test]
fn an_available_block_is_read_or_moved() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let wants = vec![world.want(WantKind::Output, CLIENT, 3), world.want(WantKind::Store, spare(4), 4)];
    let job = Job { holds: world.holds_without(&[]), wants, ..Job::default() };
    for scheme in answering(Kind::Repair) {
        let plan = world.repair(&job, &[(spare(4), block(4, 2))], &[], 8, scheme);
        let links: Vec<usize> = plan.shape.lanes.iter().map(|lane| lane.links.len()).collect();
        assert_eq!((links, worst_traffic(&plan)), (vec![1, 1], (1.0, 1.0)));
        assert_eq!((readers(&plan, 0), readers(&plan, 1)), (vec![holder(3)], vec![holder(4)]));
    }
}

#[test]
fn the_writer_sends_every_block_to_its_node() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let inputs = (0..4).map(|index| Input { party: CLIENT, index }).collect();
    let wants = (0..6).map(|index| world.want(WantKind::Store, holder(index), index)).collect();
    let stores: Vec<_> = (0..6).map(|index| (holder(index), block(index, 1))).collect();
    let job = Job { inputs, wants, ..Job::default() };
    let plan = weft_schemes::plan(&world.request(&job, &stores, &[], 8), by_name(Kind::Write, "direct").unwrap()).unwrap();
    world.prove(&plan, &job);
    assert_eq!((plan.shape.lanes.len(), traffic(&plan, CLIENT), worst_traffic(&plan)), (1, (6.0, 0.0), (6.0, 1.0)));
    let sinks: usize = plan.shape.lanes[0]
        .stages
        .iter()
        .flat_map(|stage| &stage.sinks)
        .filter(|sink| matches!(sink, Sink::Store { .. }))
        .count();
    assert_eq!((sinks, plan.binding.stores.len()), (6, 6));

    let one = Job { wants: vec![world.want(WantKind::Store, holder(2), 2)], ..job.clone() };
    let plan = weft_schemes::plan(&world.request(&one, &stores, &[], 8), by_name(Kind::Write, "direct").unwrap()).unwrap();
    assert_eq!(plan.shape.lanes[0].stages[0].sources.len(), 1, "the writer sends data that is not needed");

    let mut part = job.clone();
    part.inputs.remove(3);
    let error = weft_schemes::plan(&world.request(&part, &stores, &[], 8), by_name(Kind::Write, "direct").unwrap()).unwrap_err();
    assert_eq!(
        (error.reaction, error.message.as_str()),
        (Reaction::InvalidInput, "data block 3 is needed, but it is not an input")
    );
    part.inputs.push(Input { party: holder(3), index: 3 });
    let error = weft_schemes::plan(&world.request(&part, &stores, &[], 8), by_name(Kind::Write, "direct").unwrap()).unwrap_err();
    assert!(error.to_string().contains("one writer"), "{error}");
}

#[test]
fn a_lane_ends_where_a_change_does() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let inputs = (0..4).map(|index| Input { party: CLIENT, index }).collect();
    let wants = (0..6).map(|index| world.want(WantKind::Store, holder(index), index)).collect();
    let stores: Vec<_> = (0..6).map(|index| (holder(index), block(index, 1))).collect();
    let changed = vec![Change { index: 1, sub_block: 0, span: Span::new(0, 24) }];
    let job = Job { inputs, wants, changed, ..Job::default() };
    let plan = weft_schemes::plan(&world.request(&job, &stores, &[], 8), by_name(Kind::Write, "direct").unwrap()).unwrap();
    world.prove(&plan, &job);
    let spans = &plan.binding.spans;
    assert_eq!(*spans, [Span::new(0, 24), Span::new(24, 64)]);
}

#[test]
fn unrecoverable_blocks_are_named() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let (job, stores) = store_job(&world, &[0, 3, 5]);
    for scheme in answering(Kind::Repair) {
        let error = weft_schemes::plan(&world.request(&job, &stores, &[], 8), scheme).unwrap_err();
        assert_eq!(error.reaction, Reaction::Unavailable);
        let says = "rs(4,2): blocks [0, 3, 5] cannot be recovered from blocks [1, 2, 4] (positions 0..64)";
        assert_eq!(error.message, says);
    }
}

#[test]
fn invalid_jobs_are_refused() {
    let world = World::whole("rs(4,2)", BLOCK_LEN);
    let (good, stores) = store_job(&world, &[0]);
    let pipeline = by_name(Kind::Repair, "pipeline").unwrap();
    let want = |change: fn(&mut Want)| {
        let mut job = good.clone();
        change(&mut job.wants[0]);
        job
    };
    let pieces = (0..world.positions()).map(|at| Want { span: Span::new(at, at + 1), ..good.wants[0].clone() });
    assert!(
        weft_schemes::plan(&world.request(&Job { wants: pieces.collect(), ..good.clone() }, &stores, &[], 8), pipeline).is_ok()
    );
    for (job, says) in [
        (want(|want| want.index = 6), "has no block 6: its blocks are 0 to 5"),
        (want(|want| want.span.end = 65), "positions 0..65 are wanted, but a block has 64"),
        (want(|want| want.sub_blocks = vec![1]), "sub-blocks [1] are wanted, but a block has 1"),
        (want(|want| want.index = 1), "no block was allocated for the store of block 1"),
        (want(|want| want.kind = WantKind::Check), "cannot check blocks"),
        (want(|want| want.kind = WantKind::Patch), "cannot update blocks"),
    ] {
        let error = weft_schemes::plan(&world.request(&job, &stores, &[], 8), pipeline).unwrap_err();
        assert!(error.reaction == Reaction::InvalidInput && error.message.contains(says), "{error}");
    }
    let mut request = world.request(&good, &stores, &[], 0);
    assert!(weft_schemes::plan(&request, pipeline).unwrap_err().message.contains("greater than zero"));
    request.run.slice_len = 8;
    request.stripe.k = 5;
    assert!(weft_schemes::plan(&request, pipeline).unwrap_err().message.contains("which does not match rs(4,2)"));
}

#[test]
fn of_two_holders_the_preferred_one_is_read() {
    let world = World::whole("rs(2,1)", BLOCK_LEN);
    let mut job = Job { holds: world.holds_without(&[]), wants: vec![world.want(WantKind::Output, CLIENT, 0)], ..Job::default() };
    job.holds.push(Hold { party: spare(0), ..job.holds[0].clone() });
    for (prefer, reader) in [(vec![], holder(0)), (vec![spare(0)], spare(0)), (vec![holder(0), spare(0)], holder(0))] {
        let plan = world.repair(&job, &[], &prefer, 8, by_name(Kind::Repair, "pipeline").unwrap());
        assert_eq!(readers(&plan, 0), [reader]);
    }
}

#[test]
fn a_block_full_of_holes_counts_as_lost() {
    let world = World::whole("rs(2,2)", 2000);
    let (mut job, stores) = store_job(&world, &[0]);
    let hold = job.holds.remove(0);
    job.holds.extend((0..1000).map(|at| Hold { span: Span::new(2 * at, 2 * at + 1), ..hold.clone() }));
    let plan = world.repair(&job, &stores, &[holder(1)], 8, by_name(Kind::Repair, "pipeline").unwrap());
    assert_eq!((plan.shape.lanes.len(), readers(&plan, 0)), (1, [2, 3].map(holder).to_vec()));

    job.holds.retain(|hold| hold.party != holder(3));
    let error =
        weft_schemes::plan(&world.request(&job, &stores, &[], 8), by_name(Kind::Repair, "pipeline").unwrap()).unwrap_err();
    assert!(error.message.contains("form 2000 separate pieces: at most 512"), "{error}");
}

#[test]
fn a_block_with_a_hole_helps_beside_one_full_of_holes() {
    let world = World::whole("rs(2,3)", 2000);
    let (mut job, stores) = store_job(&world, &[0]);
    let whole = std::mem::take(&mut job.holds);
    let with_hole = |hold: &Hold, at: u64| [Span::new(0, at), Span::new(at + 1, 2000)].map(|span| Hold { span, ..hold.clone() });
    job.holds.extend((0..1000).map(|at| Hold { span: Span::new(2 * at, 2 * at + 1), ..whole[0].clone() }));
    job.holds.extend(with_hole(&whole[1], 7));
    job.holds.extend(with_hole(&whole[2], 1007));
    job.holds.push(whole[3].clone());
    let plan = world.repair(&job, &stores, &[], 8, by_name(Kind::Repair, "pipeline").unwrap());
    assert_eq!(plan.shape.lanes.len(), 5, "not the same two helpers except around two holes");
}

#[test]
fn more_pieces_than_a_plan_can_have_are_refused() {
    let world = World::whole("rs(1,1)", 2000);
    let pieces = (0..600).map(|at| Want { span: Span::new(2 * at, 2 * at + 1), ..world.want(WantKind::Output, CLIENT, 0) });
    let job = Job { holds: world.holds_without(&[0]), wants: pieces.collect(), ..Job::default() };
    let error = weft_schemes::plan(&world.request(&job, &[], &[], 8), by_name(Kind::Repair, "pipeline").unwrap()).unwrap_err();
    assert!(error.message.contains("form 600 separate pieces: at most 512"), "{error}");
}

/// The extra cost of reading a run of data blocks of which one is lost: the sub-blocks moved to the reader and read from disks, less
/// those of the run's existing blocks.
fn extra(world: &World, run: std::ops::Range<u8>, lost: u8, scheme: &str) -> (usize, usize) {
    let sub_len = world.stripe.layout.sub_len() as usize;
    let there = (run.len() - 1) * world.code.alpha();
    let wants = run.map(|index| world.want(WantKind::Output, CLIENT, index)).collect();
    let job = Job { holds: world.holds_without(&[lost]), wants, ..Job::default() };
    let cost = cost(&world.repair(&job, &[], &[], 8, by_name(Kind::Repair, scheme).unwrap())).unwrap();
    let received = cost.of(CLIENT).unwrap().down_bytes;
    (received as usize / sub_len - there, cost.read_bytes() as usize / sub_len - there)
}

/// The cost that the code promises: the sub-blocks that its recipe sends and reads from blocks outside the run.
fn promised(world: &World, run: std::ops::Range<u8>, lost: u8) -> (usize, usize) {
    let wanted = world.all_sub_blocks().into_iter().map(|sub_block| weft_codes::SubBlock { index: lost, sub_block }).collect();
    let available = (0..world.n()).filter(|index| *index != lost).collect();
    let read_anyway: Vec<u8> = run.filter(|index| *index != lost).collect();
    let ask = weft_codes::Ask { wanted, available, read_anyway: read_anyway.clone() };
    let recipe = world.code.recipes(&ask).unwrap().remove(0);
    let others = || recipe.helpers.iter().filter(|helper| !read_anyway.contains(&helper.index));
    (others().map(|helper| helper.compute.rows()).sum(), others().map(|helper| helper.reads.len()).sum())
}

#[test]
fn a_read_of_a_run_with_one_block_lost_takes_little_more_than_the_run() {
    for spec in [
        "rs(4,2)",
        "lrc(4,2,2)",
        "rotated-rs(4,2)",
        "rotated-rs(6,3)",
        "rotated-rs(6,3,r=4)",
        "hitchhiker-xor(4,2)",
        "butterfly(4)",
        "msr(3,3)",
        "clay(4,2)",
    ] {
        let world = World::whole(spec, 192);
        let (k, alpha) = (world.code.k() as u8, world.code.alpha());
        for lost in 0..k {
            assert_eq!(extra(&world, 0..k, lost, "conventional"), (alpha, alpha), "{spec}: {lost} lost, one more block is read");
            for run in (0..=lost).flat_map(|from| (lost + 1..=k).map(move |to| from..to)) {
                let (moved, read) = extra(&world, run.clone(), lost, "conventional");
                let promised = promised(&world, run.clone(), lost);
                let told = format!("{spec}: of {run:?}, {lost} lost: moved and read {:?}", (moved, read));
                assert!(moved <= promised.0 && read <= promised.1, "{told}; promised were {promised:?}");
                assert!(moved <= extra(&world, lost..lost + 1, lost, "conventional").0, "{told}; more than for this block alone");
                // A chain's sum is as long as the block.
                assert_eq!(extra(&world, run.clone(), lost, "pipeline").0, alpha, "{told} by a chain");
            }
        }
    }
}

/// Rotated Reed-Solomon is made for this: reading two neighbours, one of them lost, reads fewer than k further blocks.
#[test]
fn codes_for_degraded_reads_of_runs_read_as_little_as_declared() {
    for (spec, run, lost, moved) in [
        ("rs(6,3)", 1..3, 1, 5.0),
        ("rotated-rs(6,3)", 1..3, 1, 3.5),
        ("butterfly(4)", 0..1, 0, 2.5),
        ("butterfly(4)", 0..3, 1, 1.5),
        ("butterfly(4)", 0..4, 1, 1.0),
    ] {
        let world = World::whole(spec, 192);
        let (extra, _) = extra(&world, run.clone(), lost, "conventional");
        assert_eq!(extra as f64 / world.code.alpha() as f64, moved, "{spec}: of {run:?}, {lost} lost");
    }
}

/// A chain and a tree send no other wanted blocks. But a block that is read for the reader is in memory, so it helps before a
/// preferred block that is not.
#[test]
fn blocks_read_anyway_help_first() {
    for spec in ["rs(4,2)", "rotated-rs(4,2)", "hitchhiker-xor(4,2)", "butterfly(4)", "msr(3,3)", "clay(4,2)"] {
        let world = World::whole(spec, 192);
        let (k, alpha) = (world.code.k() as u8, world.code.alpha());
        let prefer: Vec<Party> = (0..world.n()).rev().map(holder).collect();
        for (lost, scheme) in (0..k).flat_map(|lost| answering(Kind::Repair).map(move |scheme| (lost, scheme))) {
            let wants = (0..k).map(|index| world.want(WantKind::Output, CLIENT, index)).collect();
            let job = Job { holds: world.holds_without(&[lost]), wants, ..Job::default() };
            let plan = world.repair(&job, &[], &prefer, 8, scheme);
            // All chains that take turns read the same blocks.
            let lanes = plan.shape.lanes.iter().filter(|lane| lane.first == 0);
            let sources = lanes.flat_map(|lane| &lane.stages).flat_map(|stage| &stage.sources);
            let parities = sources.filter_map(|source| match source {
                Source::Block { index, sub_blocks } if *index >= k => Some(sub_blocks.len()),
                _ => None,
            });
            assert_eq!(parities.sum::<usize>(), alpha, "{spec}, {lost} lost, {}: one parity block's worth", scheme.name());
        }
    }
}
