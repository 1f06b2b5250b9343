use super::*;
use crate::options::{slice_positions, usual_slice_positions};
use crate::view::{DiskView, NodeView};
use proptest::prelude::*;
use std::time::Duration;
use weft_plan::{Class, ProofKey};
use weft_schemes::{Kind, Paths, answering};
use weft_types::{BlockState, DiskNumber, Home, Layout, Owner, PlacedBlock, PlanId, Reaction, Seq, StripeId, UploadId};

const CLIENT: Party = Party::Client(9);

fn place(node: u32) -> PlacedBlock {
    let home = Home { node: NodeId(node), disk: DiskNumber(node) };
    PlacedBlock { generation: 1, generation_high_water: 1, home, state: BlockState::Ok, copy: 0 }
}

fn stripe(data_len: u64, block_len: u64, cell_len: u64) -> StripeRecord {
    let layout = StripeLayout { layout: Layout::new(block_len, cell_len, 1).unwrap(), k: 4, m: 2, data_len };
    StripeRecord {
        id: StripeId(5),
        owner: Owner::Object(UploadId(3)),
        number: 0,
        ended: true,
        seq: Seq::default(),
        layout,
        blocks: (0..=u8::MAX).zip((1..=6).map(place)).collect(),
        copies: Vec::new(),
        checksums: Vec::new(),
        kept: Default::default(),
        corrupt: Default::default(),
        incomplete: false,
    }
}

fn view() -> View {
    let node = |id: u32| NodeView {
        id: NodeId(id),
        name: format!("node-{id}").into(),
        rack: format!("r{}", id % 3).into(),
        up: true,
        lost: false,
        suspect_for: Duration::ZERO,
        disks: vec![DiskView {
            number: DiskNumber(id),
            id: "".into(),
            path: "/d".into(),
            total_bytes: 1,
            free_bytes: 1,
            file_system: 0,
            failed: false,
            draining: false,
            blocks: 0,
            bytes_per_s: 0,
        }],
    };
    View { nodes: (1..=8).map(|id| (NodeId(id), node(id))).collect(), ..View::default() }
}

fn code() -> SharedCode {
    weft_codes::parse("rs(4,2)").unwrap()
}

fn known() -> Known {
    Known::new(ProofKey::PUBLIC)
}

fn run() -> Run {
    Run::new(PlanId(1), 1, Class::Foreground, PAGE_LEN)
}

fn options(scheme: &str) -> RepairOptions {
    let (slice_len, select, paths) = (weft_types::AutoSize::Auto, Select::default(), Paths::default());
    RepairOptions { scheme: scheme.into(), slice_len, slice_asked: false, select, paths, explained: false }
}

fn sizes() -> impl Strategy<Value = (u64, u64, u64)> {
    (1u64..=3, 1u64..=4).prop_flat_map(|(cells, pages)| {
        let (cell, block) = (pages * PAGE_LEN, cells * pages * PAGE_LEN);
        (1..=4 * block, Just(block), Just(cell))
    })
}

proptest! {
    #[test]
    fn stripes_of_any_length_are_written_read_and_rebuilt_by_proved_plans(
        (data_len, block_len, cell_len) in sizes(),
        lost in prop::collection::btree_set(0u8..6, 0..=2),
        scheme in 0..answering(Kind::Repair).count(),
        (start, len) in (0u64..1 << 20, 1u64..1 << 20),
        // Empty blocks were stored before they were left out.
        is_old: bool,
    ) {
        let (mut stripe, code) = (stripe(data_len, block_len, cell_len), code());
        let scheme = answering(Kind::Repair).nth(scheme).unwrap().name();
        let has_bytes: BTreeSet<u8> = stripe.layout.blocks().collect();
        let stores: Vec<(Party, BlockId)> = homes(&stripe).filter(|(_, block)| has_bytes.contains(&block.index)).collect();
        stripe.blocks.retain(|index, _| is_old || has_bytes.contains(index));
        let lost: BTreeSet<u8> = lost.into_iter().filter(|index| stripe.blocks.contains_key(index)).collect();
        for scheme in ["direct", "mist", "auto"] {
            let network = &Network::uniform(1e9);
            let writing = Writing { writer: CLIENT, seq: &Seq::FIRST, stores: &stores, whole: true, scheme, network, known: &known() };
            write(&code, &stripe.layout, &writing, run()).unwrap();
            // Only some of the data, sent again.
            write(&code, &stripe.layout, &Writing { stores: &stores[1..3], whole: false, ..writing }, run()).unwrap();
        }

        let available: Vec<u8> = stripe.blocks.keys().copied().filter(|index| !lost.contains(index)).collect();
        let data = Span::new(start % data_len, (start % data_len + len).min(data_len));
        let ranges: Vec<Range> = (0..4)
            .map(|index| Range { index, bytes: stripe.layout.block_range(index.into(), data) })
            .filter(|range| !range.bytes.is_empty())
            .map(|range| widened(&stripe.layout, range, lost.contains(&range.index)))
            .collect();
        let prefer = preference(&stripe, &available, &view(), 4, None);
        let (options, network) = (options(scheme), Network::uniform(1e9));
        let way = Way { options: &options, network: &network, prefer: &prefer, known: &known() };
        read(&code, &stripe, &available, &ranges, CLIENT, &way, run()).unwrap();

        let whole = stripe.layout.coded_span();
        let target = |(node, index): (u32, &u8)| Target {
            node: NodeId(node),
            block: BlockId { stripe: stripe.id, index: *index, copy: 0, generation: 2 },
            missing: whole.subtract(&[Span::new(PAGE_LEN, 2 * PAGE_LEN)]),
        };
        let targets: Vec<Target> = (7..).zip(&lost).map(target).collect();
        if !targets.is_empty() {
            rebuild(&code, &stripe, &available, &targets, &way, run()).unwrap();
        }
    }

    #[test]
    fn a_widened_range_contains_the_request_and_ends_with_the_block(
        (data_len, block_len, cell_len) in sizes(),
        index in 0u8..4,
        (start, end) in (0u64..1 << 15, 0u64..1 << 15),
        rebuilt: bool,
    ) {
        let layout = stripe(data_len, block_len, cell_len).layout;
        let len = layout.block_len(index.into());
        let bytes = Span::new(start.min(len), end.min(len));
        let wide = widened(&layout, Range { index, bytes }, rebuilt).bytes;
        prop_assert!(wide.contains(bytes) && wide.end <= len && wide.is_empty() == bytes.is_empty());
        let unit = if rebuilt { CHECKSUM_UNIT_LEN } else { PAGE_LEN };
        prop_assert!(wide.is_empty() || wide.start.is_multiple_of(unit) && (wide.end.is_multiple_of(unit) || wide.end == len));
    }
}

#[test]
fn an_empty_block_is_no_loss_and_every_parity_block_counts() {
    let (mut stripe, code, network) = (stripe(PAGE_LEN, 1 << 18, 1 << 18), code(), Network::uniform(1e9));
    stripe.blocks.retain(|index, _| ![1, 2, 3].contains(index));
    assert_eq!(stripe.layout.blocks().collect::<Vec<u8>>(), [0, 4, 5]);
    let wanted = [(0, stripe.layout.coded_span())];
    for available in [&[4][..], &[5], &[0]] {
        assert_eq!(unrecoverable(&code, &stripe, available, &wanted), None, "one of them suffices");
    }
    assert_eq!(unrecoverable(&code, &stripe, &[], &wanted), Some(vec![0, 4, 5]), "without any block nothing is recoverable");
    let (options, range) = (options("pipeline"), Range { index: 0, bytes: Span::new(0, PAGE_LEN) });
    let way = Way { options: &options, network: &network, prefer: &[], known: &known() };
    let planned = read(&code, &stripe, &[4, 5], &[range], CLIENT, &way, run()).unwrap();
    assert_eq!(planned.plan.binding.blocks.iter().map(|block| block.id.index).collect::<Vec<u8>>(), [4], "one helper suffices");
    assert_eq!(planned.plan.shape.code, "shortened(rs(4,2),1)");
    // The nearest node helps: of nodes 5 and 6, the one in the reader's rack.
    let view = view();
    for (rack, helper) in [("r2", 4), ("r0", 5)] {
        let prefer = preference(&stripe, &[4, 5], &view, stripe.dimension(), Some(rack));
        let planned = read(&code, &stripe, &[4, 5], &[range], CLIENT, &Way { prefer: &prefer, ..way }, run()).unwrap();
        assert_eq!(planned.plan.binding.blocks[0].id.index, helper, "in {rack}");
    }
    let readable = readable(&stripe, &view);
    assert_eq!((readable.good.as_slice(), readable.lost.len()), (&[0, 4, 5][..], 0));
}

#[test]
fn helpers_of_the_requestors_rack_come_last_in_the_chain() {
    let stripe = stripe(1 << 20, 1 << 18, 1 << 18);
    let prefer = preference(&stripe, &[1, 2, 3, 4, 5], &view(), 4, Some("r1"));
    // Nodes 2 to 6 are in racks r2, r0, r1, r2, r0. Node 4 is nearest, node 5 is not needed.
    assert_eq!(prefer, [2, 6, 3, 4, 5].map(|node| Party::Node(NodeId(node))));
}

#[test]
fn blocks_are_sorted_by_readability_and_losses_are_named() {
    let (mut stripe, mut view) = (stripe(1 << 20, 1 << 18, 1 << 18), view());
    stripe.blocks.get_mut(&0).unwrap().state = BlockState::Corrupt;
    stripe.blocks.get_mut(&1).unwrap().state = BlockState::Missing;
    view.nodes.get_mut(&NodeId(3)).unwrap().up = false;
    view.nodes.get_mut(&NodeId(4)).unwrap().suspect_for = Duration::from_secs(9);
    view.nodes.get_mut(&NodeId(6)).unwrap().suspect_for = Duration::from_secs(5);
    let suspected = stripe.block_id(4).unwrap();
    view.suspect_blocks = std::sync::Arc::new(BTreeMap::from([(suspected, view.now + Duration::from_secs(1))]));
    let readable = readable(&stripe, &view);
    // Node 6 became suspect before node 4.
    assert_eq!((readable.good, readable.suspect), (vec![], vec![4, 5, 3]));
    assert_eq!(readable.lost, [(0, "corrupt"), (1, "missing"), (2, "its node is down")]);
    let lost = why_absent(&stripe, &[0, 1, 2], &readable.lost, "");
    let error = too_many_lost(&code(), &stripe, &lost, &view);
    for part in ["lost 3 blocks", "rs(4,2) tolerates the loss of 2", "block 0 (s5-b000-c0-g1 on node-1: corrupt)"] {
        assert!(error.message.contains(part), "{part} is not in: {error}");
    }
}

/// A second copy of every data block, on nodes 7 to 10.
fn with_copies(mut stripe: StripeRecord) -> StripeRecord {
    stripe.copies = (0..4).map(|index| (index, PlacedBlock { copy: 1, ..place(7 + u32::from(index)) })).collect();
    stripe
}

fn wider_view() -> View {
    let mut view = view();
    for id in 9..=12 {
        let mut node = view.nodes[&NodeId(1)].clone();
        (node.id, node.name) = (NodeId(id), format!("node-{id}").into());
        node.disks[0].number = DiskNumber(id);
        view.nodes.insert(NodeId(id), node);
    }
    view
}

/// The node that serves each block, by index.
fn serving(view: &View, stripe: &StripeRecord, suspect: &[u32], draw: u32) -> Vec<u32> {
    // The first copy of each block draws an even number.
    let mut drawn = 0..;
    let draws = |_| (drawn.next().unwrap_or(0) / 6) ^ draw;
    let served = view.serving(stripe.clone(), |_, node| suspect.contains(&node.0), draws);
    let ids = |stripe: &StripeRecord| stripe.all().map(|(index, it)| stripe.id_of(index, it)).collect::<BTreeSet<_>>();
    assert_eq!(ids(&served), ids(stripe), "a copy was dropped");
    served.blocks.values().map(|placed| placed.home.node.0).collect()
}

#[test]
fn the_best_copy_serves_and_of_equal_ones_a_random_one() {
    let (mut stripe, mut view) = (with_copies(stripe(1 << 20, 1 << 18, 1 << 18)), wider_view());
    assert_eq!(serving(&view, &stripe, &[], 0), [1, 2, 3, 4, 5, 6]);
    assert_eq!(serving(&view, &stripe, &[], 1), [7, 8, 9, 10, 5, 6], "a block without copies serves itself");
    let own_first = |view: &View, stripe: &StripeRecord, own: u32| {
        let served = view.serving(stripe.clone(), |_, _| false, |node| u32::from(node != NodeId(own)));
        served.blocks[&1].home.node.0
    };
    assert_eq!([2, 8, 9].map(|own| own_first(&view, &stripe, own)), [2, 8, 2], "the copy with the lowest draw serves");
    // A copy that is lost, suspect, corrupt in part or avoided does not serve, whatever it drew.
    view.nodes.get_mut(&NodeId(1)).unwrap().up = false;
    view.nodes.get_mut(&NodeId(8)).unwrap().suspect_for = Duration::from_secs(9);
    stripe.blocks.get_mut(&2).unwrap().state = BlockState::Corrupt;
    stripe.copies[3].1.state = BlockState::Missing;
    stripe.corrupt.insert((2, 0), vec![Span::new(0, PAGE_LEN)]);
    for draw in 0..2 {
        assert_eq!(serving(&view, &stripe, &[], draw), [7, 2, 9, 4, 5, 6]);
        // A suspect copy is better than a lost one; a partly corrupt one is better than a suspect one.
        assert_eq!(serving(&view, &stripe, &[7, 9], draw), [7, 2, 3, 4, 5, 6]);
    }
    assert_eq!(own_first(&view, &stripe, 8), 2, "the copy with the lowest draw is suspect");
    let served = view.serving(stripe.clone(), |_, node| node == NodeId(9), |_| 0);
    assert_eq!((served.corrupt_bytes(2).len(), stripe.corrupt_of(2, 1).len()), (1, 0));
    assert_eq!(view.state_text(&stripe, 3, &stripe.copies[3].1), "missing");
}

#[test]
fn a_copy_is_read_and_rebuilt_from_another_by_one_link() {
    let (code, stripe) = (code(), with_copies(stripe(1 << 20, 1 << 18, 1 << 18)));
    let mut view = wider_view();
    view.nodes.get_mut(&NodeId(2)).unwrap().up = false;
    let served = view.serving(stripe, |_, _| false, |_| 0);
    let available = readable(&served, &view).good;
    assert_eq!(available, [0, 1, 2, 3, 4, 5], "nothing is lost");
    let ranges = [Range { index: 1, bytes: Span::new(0, 1 << 18) }];
    assert!(rebuilt(&served, &available, &ranges).is_empty(), "a plain read");
    let (options, network) = (options("auto"), Network::uniform(1e9));
    let way = Way { options: &options, network: &network, prefer: &[], known: &known() };
    let whole = served.layout.coded_span();
    let target = |node: u32, copy: u8| Target {
        node: NodeId(node),
        block: BlockId { stripe: served.id, index: 1, copy, generation: 2 },
        missing: vec![whole],
    };
    let from = |planned: &Planned| planned.plan.binding.blocks.iter().map(|block| block.id.to_string()).collect::<Vec<_>>();
    let read = read(&code, &served, &available, &ranges, CLIENT, &way, run()).unwrap();
    assert_eq!(from(&read), ["s5-b001-c1-g1"]);
    let one = rebuild(&code, &served, &available, &[target(11, 0)], &way, run()).unwrap();
    assert_eq!((from(&one), one.plan.shape.lanes[0].links.len()), (vec!["s5-b001-c1-g1".to_owned()], 1));
    // Several new copies of a block are sent from an existing copy; existing blocks are not decoded.
    let both = rebuild(&code, &served, &available, &[target(11, 0), target(12, 2)], &way, run()).unwrap();
    assert_eq!(from(&both), ["s5-b001-c1-g1"]);
    let decoded = rebuild(&code, &served, &[0, 2, 3, 4], &[target(11, 0), target(12, 1)], &way, run()).unwrap();
    assert_eq!(from(&decoded).len(), 4);
    assert_eq!(decoded.plan.binding.stores.len(), 2);
}

#[test]
fn several_lost_blocks_are_rebuilt_by_the_cheaper_scheme() {
    // Three lost blocks of rs(2,3): a chain carries one sum for each lost block, while conventional repair moves only
    // two blocks.
    let code = weft_codes::parse("rs(2,3)").unwrap();
    let mut stripe = stripe(2 * 64 * PAGE_LEN, 64 * PAGE_LEN, 64 * PAGE_LEN);
    (stripe.layout.k, stripe.layout.m) = (2, 3);
    stripe.blocks.remove(&5);
    let target = |node: u32, index: u8| Target {
        node: NodeId(node),
        block: BlockId { stripe: stripe.id, index, copy: 0, generation: 2 },
        missing: vec![stripe.layout.coded_span()],
    };
    let links = |targets: &[Target]| {
        let (options, network) = (options("auto"), Network::uniform(1e9));
        let way = Way { options: &options, network: &network, prefer: &[], known: &known() };
        let planned = rebuild(&code, &stripe, &[1, 4], targets, &way, run()).unwrap();
        let hub = planned.plan.shape.lanes[0].links.iter().filter(|link| link.to == planned.plan.shape.lanes[0].links[0].to);
        (planned.plan.shape.lanes[0].links.iter().map(|link| link.width).max(), hub.count())
    };
    assert_eq!(links(&[target(7, 0)]), (Some(1), 1), "one lost block uses a chain");
    assert_eq!(links(&[target(6, 0), target(7, 2), target(8, 3)]), (Some(1), 2), "three lost blocks use no chain");
}

#[test]
fn slices_have_whole_pages_and_no_more_than_a_cell() {
    let layout = |alpha: u32, sub_len: u64| {
        let cell_len = u64::from(alpha) * sub_len;
        Layout::new(2 * cell_len, cell_len, alpha).unwrap()
    };
    let kib = 1 << 10;
    for (alpha, sub_len, bytes, positions) in [
        // One sub-block: the requested length.
        (1, 1 << 20, 64 * kib, 64 * kib),
        (1, 4 * kib, 64 * kib, 64 * kib),
        // Several: 1 MiB of all together, in whole pages of each.
        (3, 384 * kib, 64 * kib, 340 * kib),
        (5, 256 * kib, 64 * kib, 204 * kib),
        (7, 192 * kib, 64 * kib, 144 * kib),
        (8, 128 * kib, 64 * kib, 128 * kib),
        (64, 64 * kib, 64 * kib, 16 * kib),
        // At least a page, and at most the sub-block of a cell.
        (243, 64 * kib, 64 * kib, 4 * kib),
        (512, 64 * kib, 64 * kib, 4 * kib),
        (3, 4 * kib, 64 * kib, 4 * kib),
        (3, 12 * kib, 64 * kib, 12 * kib),
        // More, if requested.
        (3, 2 << 20, 6 << 20, 2 << 20),
        (3, 4 << 20, 6 << 20, 2 << 20),
    ] {
        let usual = usual_slice_positions(&layout(alpha, sub_len), bytes);
        assert_eq!(usual, positions, "{alpha} sub-blocks of {sub_len}, {bytes}");
    }
    // A requested length is used, within the limits of pages and sub-blocks.
    for (alpha, sub_len, bytes, positions) in [
        (1, 1 << 20, 64 * kib, 64 * kib),
        (3, 384 * kib, 64 * kib, 20 * kib),
        (8, 128 * kib, 64 * kib, 8 * kib),
        (64, 64 * kib, 64 * kib, 4 * kib),
        (8, 128 * kib, 2 << 20, 128 * kib),
    ] {
        let asked = slice_positions(&layout(alpha, sub_len), bytes);
        assert_eq!(asked, positions, "{alpha} sub-blocks of {sub_len}, {bytes} requested");
    }
}

#[test]
fn slices_that_are_left_open_suit_the_links_of_the_path() {
    const BLOCK_LEN: u64 = 4 << 20;
    let (code, stripe) = (code(), stripe(4 * BLOCK_LEN, BLOCK_LEN, BLOCK_LEN));
    let block = BlockId { stripe: stripe.id, index: 0, copy: 0, generation: 2 };
    let targets = [Target { node: NodeId(7), block, missing: vec![stripe.layout.coded_span()] }];
    let mut network = Network::uniform(100e6);
    network.slice_overhead_s = 20e-6;
    let options = options("pipeline");
    let planned = |network: &Network| {
        let slice_len = options.slice_positions(&stripe.layout, network);
        let way = Way { options: &options, network, prefer: &[], known: &known() };
        let planned = rebuild(&code, &stripe, &[1, 2, 3, 4, 5], &targets, &way, Run { slice_len, ..run() }).unwrap();
        assert_eq!(planned.considered.len(), 1);
        let usual = Run::new(PlanId(1), 1, Class::Foreground, planned.plan.binding.slice_len).of_sub_blocks(1);
        assert!(planned.plan.shape.lanes.iter().all(|lane| lane.window == usual.window), "{}", usual.window);
        assert_eq!(Ok(planned.considered[0].seconds), weft_plan::predict(&planned.plan, network));
        (slice_len, planned.plan.binding.slice_len)
    };
    // sqrt(4 MiB · 2000 / 3) bytes, for links that carry 2000 bytes in the time of a slice's overhead.
    assert_eq!(planned(&network), (52 << 10, 52 << 10));
    // One holder is a hundred times slower than most.
    network.up_bytes_per_s = (1..=6).map(|node| (Party::Node(NodeId(node)), 1e6)).collect();
    assert_eq!(planned(&network), (52 << 10, 4 << 10));
}

/// The positions, in the stripe's chain, of the blocks that a check reads; every node but the last sends over one link.
fn chain(planned: &Planned) -> Vec<u8> {
    let lane = &planned.plan.shape.lanes[0];
    assert_eq!((planned.plan.shape.lanes.len(), lane.links.len() + 1), (1, planned.plan.binding.parties.len()));
    planned.plan.binding.blocks.iter().map(|block| block.id.index).collect()
}

#[test]
fn a_check_takes_all_good_blocks_and_the_last_of_their_nodes_checks() {
    let (code, mut stripe, mut view) = (code(), stripe(4 << 18, 1 << 18, 1 << 18), view());
    let (network, known) = (Network::uniform(1e9), known());
    let checking = |depth, left_out| Checking { depth, left_out, network: &network, known: &known };
    let routine = checking(Depth::Routine { seed: 4 }, &[]);
    let run = Run::new(PlanId(1), 1, Class::Scrub, PAGE_LEN);
    let widths = |planned: &Planned| planned.plan.shape.lanes[0].links.iter().map(|link| link.width).collect::<Vec<_>>();
    let sent = |planned: &Planned| {
        planned
            .plan
            .binding
            .parties
            .iter()
            .map(|party| weft_plan::cost(&planned.plan).unwrap().of(*party).unwrap().up_bytes)
            .sum::<u64>()
    };

    let planned = check(&code, &stripe, &view, &routine, run).unwrap();
    assert_eq!((chain(&planned), widths(&planned), planned.plan.class), (vec![0, 1, 2, 3, 4, 5], vec![1; 5], Class::Scrub));
    assert_eq!((planned.job.wants[0].party, sent(&planned)), (Party::Node(NodeId(6)), 5 << 18));
    let full = check(&code, &stripe, &view, &checking(Depth::Full, &[]), run).unwrap();
    assert_eq!((widths(&full), sent(&full)), (vec![2; 5], 10 << 18));
    let without = check(&code, &stripe, &view, &checking(Depth::Full, &[5]), run).unwrap();
    assert_eq!(
        (chain(&without), widths(&without), without.job.wants[0].party),
        (vec![0, 1, 2, 3, 4], vec![1; 4], Party::Node(NodeId(5)))
    );

    // Another stripe of the pass, on other nodes, has the same shape, which is not proved again; another pass has another combination.
    let (proofs, patterns) = (known.proofs(), known.patterns());
    let mut other = stripe.clone();
    (other.id, other.blocks) = (StripeId(8), (0..=u8::MAX).zip([3, 2, 8, 7, 1, 4].map(place)).collect());
    let next = check(&code, &other, &view, &routine, run).unwrap();
    assert_eq!(next.plan.shape, planned.plan.shape);
    assert_eq!((known.proofs().hits, known.patterns().hits), (proofs.hits + 1, patterns.hits + 1));
    let another = check(&code, &stripe, &view, &checking(Depth::Routine { seed: 5 }, &[]), run).unwrap();
    assert_ne!(another.plan.shape, planned.plan.shape);

    // Blocks that cannot be read, and blocks that are corrupt in part, are absent.
    stripe.blocks.get_mut(&4).unwrap().state = BlockState::Corrupt;
    stripe.corrupt.insert((4, 0), vec![Span::new(0, PAGE_LEN)]);
    let planned = check(&code, &stripe, &view, &routine, run).unwrap();
    assert_eq!((chain(&planned), widths(&planned)), (vec![0, 1, 2, 3, 5], vec![1; 4]));
    view.nodes.get_mut(&NodeId(1)).unwrap().up = false;
    for depth in [Depth::Full, routine.depth] {
        let error = check(&code, &stripe, &view, &checking(depth, &[]), run).unwrap_err();
        assert_eq!(error.reaction, Reaction::Unavailable);
        assert!(error.message.contains("without blocks [0, 4], the others of rs(4,2) have no redundancy"), "{error}");
    }
    view.nodes.values_mut().for_each(|node| node.up = false);
    assert_eq!(check(&code, &stripe, &view, &routine, run).unwrap_err().reaction, Reaction::Unavailable);
}

#[test]
fn a_check_of_a_stripe_with_little_data_takes_the_blocks_that_are_stored() {
    let (code, mut stripe, view) = (code(), stripe(PAGE_LEN, 1 << 18, 1 << 18), view());
    stripe.blocks.retain(|index, _| ![1, 2, 3].contains(index));
    let (network, known) = (Network::uniform(1e9), known());
    for (depth, left_out, blocks, width) in [
        (Depth::Routine { seed: 0 }, &[][..], vec![0, 4, 5], 1),
        (Depth::Full, &[], vec![0, 4, 5], 2),
        (Depth::Full, &[0], vec![4, 5], 1),
        (Depth::Full, &[4], vec![0, 5], 1),
    ] {
        let checking = Checking { depth, left_out, network: &network, known: &known };
        let planned = check(&code, &stripe, &view, &checking, run()).unwrap();
        assert_eq!((chain(&planned), planned.plan.shape.lanes[0].links[0].width), (blocks, width));
        assert_eq!(planned.plan.span(0), Span::new(0, PAGE_LEN));
    }
}

/// The matrices of a code with very many sub-blocks are too large for a proof.
#[test]
fn that_a_check_cannot_be_proved_is_found_out_once() {
    let code = weft_codes::parse("clay(16,4)").unwrap();
    let (alpha, n) = (code.alpha() as u32, code.n() as u32);
    let len = u64::from(alpha) * PAGE_LEN;
    let layout = StripeLayout {
        layout: Layout::new(len, len, alpha).unwrap(),
        k: code.k() as u32,
        m: code.m() as u32,
        data_len: code.k() as u64 * len,
    };
    let stripe =
        StripeRecord { layout, blocks: (0..=u8::MAX).zip((1..=n).map(place)).collect(), ..stripe(1, PAGE_LEN, PAGE_LEN) };
    let mut view = view();
    let one = view.nodes[&NodeId(1)].clone();
    for id in 1..=n {
        let disks = vec![DiskView { number: DiskNumber(id), ..one.disks[0].clone() }];
        view.nodes.insert(NodeId(id), NodeView { id: NodeId(id), disks, ..one.clone() });
    }
    let (network, known) = (Network::uniform(1e9), known());
    let checking = Checking { depth: Depth::Routine { seed: 4 }, left_out: &[], network: &network, known: &known };
    let found = || check(&code, &stripe, &view, &checking, run()).unwrap_err();
    let first = found();
    assert!(first.reaction == Reaction::Unavailable && first.message.contains("of clay(16,4) can be proved"), "{first}");
    let (proofs, patterns) = (known.proofs(), known.patterns());
    assert_eq!((found(), known.proofs(), known.patterns()), (first, proofs, patterns), "nothing is planned again");
}
