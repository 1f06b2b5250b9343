use super::*;
use crate::fixtures::{BLOCK_LEN, home, stripe, view};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use weft_plan::{Precedence, ProofKey};
use weft_types::{AutoSize, PlacedBlock, PlanId, StripeId};

fn request(index: u8) -> Request {
    Request {
        code: weft_codes::parse("rs(4,2)").unwrap(),
        stripe: stripe(),
        ranges: vec![Range { index, bytes: Span::new(5, 6000) }],
        options: RepairOptions::new("pipeline".into(), AutoSize::bytes(16 << 10)),
        slice_bytes: 16 << 10,
        delegate: None,
    }
}

fn rng() -> StdRng {
    StdRng::seed_from_u64(1)
}

fn made(ask: &PlanRequest, view: &View) -> Result<PlannedRead> {
    let frame = |ask: &PlanRequest, slice_len| (Run::new(PlanId(1), 1, ask.precedence(), slice_len), Party::Client(9));
    ask.plan(view, &Network::uniform(1e9), &Known::new(ProofKey::PUBLIC), frame)
}

/// The nodes that a plan reads from.
fn read_from(read: &PlannedRead) -> BTreeSet<NodeId> {
    let binding = &read.planned.plan.binding;
    let homes = binding.blocks.iter().filter_map(|block| read.stripe.find(block.id.index, block.id.copy));
    homes.map(|placed| placed.home.node).collect()
}

/// Answers a read's actions; `start` gives the result of each start. Returns the read's result, and the last plan that
/// was started.
fn played(request: Request, view: View, start: impl FnMut(u32, &PlannedRead) -> Result<()>) -> (Result<()>, Option<PlannedRead>) {
    played_while(request, view, &stripe(), start)
}

/// The same for a stripe that is in state `now` when it is looked up.
fn played_while(
    request: Request,
    mut view: View,
    now: &StripeRecord,
    mut start: impl FnMut(u32, &PlannedRead) -> Result<()>,
) -> (Result<()>, Option<PlannedRead>) {
    let (mut read, mut rng, mut event, mut last, mut starts) = (Read::new(request), rng(), Event::Begin, None, 0);
    for _ in 0..100 {
        let mut answer = None;
        for action in read.on(event, &view, &mut rng) {
            assert!(answer.is_none(), "only the last action asks for an answer");
            answer = match action {
                Action::Suspect(node) => {
                    view.nodes.get_mut(&node).unwrap().suspect_for = std::time::Duration::from_secs(9);
                    None
                }
                Action::Plan(ask) => Some(Event::Planned(made(&ask, &view).map(Box::new))),
                Action::Start(planned) => {
                    starts += 1;
                    let started = start(starts, &planned);
                    last = Some(*planned);
                    Some(Event::Started(started))
                }
                Action::LookUp => Some(Event::LookedUp(Ok(now.clone()))),
                Action::End(result) => return (result, last),
            };
        }
        event = answer.expect("an action is pending, or it has ended");
    }
    panic!("it does not end");
}

#[test]
fn available_blocks_are_read_in_pages_and_lost_ones_rebuilt_in_whole_units() {
    let (ended, read) = played(request(0), view(8, &[]), |_, _| Ok(()));
    let read = read.unwrap();
    assert_eq!((ended, read.rebuilt.as_slice()), (Ok(()), &[][..]));
    assert_eq!(read.delivers, [Range { index: 0, bytes: Span::new(0, 8192) }]);
    assert_eq!(read_from(&read), BTreeSet::from([NodeId(1)]));
    assert_eq!(read.planned.plan.class, Class::Foreground);

    let (_, read) = played(request(0), view(8, &[1]), |_, _| Ok(()));
    let read = read.unwrap();
    assert_eq!(read.rebuilt, [0]);
    assert_eq!(read.delivers, [Range { index: 0, bytes: Span::new(0, BLOCK_LEN) }]);
    assert_eq!(read_from(&read).len(), 4);
    assert!(read.is_spare(NodeId(2), &view(8, &[1])) && !read.is_spare(NodeId(2), &view(8, &[1, 6])));
}

#[test]
fn an_unreachable_node_is_avoided_and_of_a_bad_block_only_the_block() {
    let away = |node| Error::replan("no answer in time").party(Party::Node(NodeId(node)));
    let (ended, read) = played(request(0), view(8, &[]), |start, _| if start == 1 { Err(away(1)) } else { Ok(()) });
    let read = read.unwrap();
    assert_eq!((ended, read.rebuilt.as_slice()), (Ok(()), &[0][..]));
    assert!(!read_from(&read).contains(&NodeId(1)));

    // The block is not yet known to be bad, and its node is not avoided: it is read there again.
    let bad = || away(1).block(stripe().block_id(0).unwrap());
    let mut starts = 0;
    let (ended, _) = played(request(0), view(8, &[]), |_, read| {
        starts += 1;
        assert!(read_from(read).contains(&NodeId(1)));
        Err(bad())
    });
    assert_eq!((ended, starts), (Err(bad()), PLANS_MAX));
    // Once the block is known to be bad, it is rebuilt.
    let mut now = stripe();
    now.blocks.get_mut(&0).unwrap().state = BlockState::Corrupt;
    let (ended, read) = played_while(request(0), view(8, &[]), &now, |start, _| if start == 1 { Err(bad()) } else { Ok(()) });
    assert_eq!((ended, read.unwrap().rebuilt), (Ok(()), vec![0]));
}

#[test]
fn after_a_wrong_result_reads_do_without_each_helper_in_turn() {
    let code = weft_codes::parse("rs(4,2)").unwrap();
    for lies in 1..=5 {
        let mut view = view(8, &[1]);
        let mut plans = 0;
        loop {
            plans += 1;
            let ask = Read::new(request(0)).ask(&view, &mut rng());
            let read = made(&ask, &view).unwrap().read();
            if read.iter().all(|block| block.index != lies) {
                break;
            }
            let wrong = Error::corrupt("unit 0 arrived with a wrong checksum").block(stripe().block_id(0).unwrap());
            let doubted = doubted(&code, &stripe(), &[Error::replan("reset"), wrong], &read, &view);
            assert_eq!(doubted.len(), 1, "one of five can be left out");
            let suspect = std::sync::Arc::make_mut(&mut view.suspect_blocks);
            suspect.extend(doubted.into_iter().map(|block| (block, crate::Time::after(std::time::Duration::from_secs(9)))));
        }
        assert!(plans <= 6, "{plans} plans with block {lies}");
    }
    let (view, block) = (view(8, &[1, 2]), |index| stripe().block_id(index).unwrap());
    let read: Vec<BlockId> = (2..6).map(block).collect();
    let none: &[BlockId] = &[];
    let doubted = |error| doubted(&code, &stripe(), &[error], &read, &view);
    assert_eq!(doubted(Error::corrupt("wrong").block(block(0))), none, "none can be left out");
    assert_eq!(doubted(Error::corrupt("wrong").block(block(2))), none, "it was read, and not rebuilt");
}

#[test]
fn too_many_losses_and_permanent_errors_end_a_read() {
    let (ended, read) = played(request(0), view(8, &[1, 2, 3]), |_, _| Ok(()));
    let error = ended.unwrap_err();
    assert!(read.is_none() && error.message.contains("rs(4,2) tolerates the loss of 2"), "{error}");
    let (ended, _) = played(request(0), view(8, &[]), |_, _| Err(Error::invalid("its budget is too small")));
    assert_eq!(ended, Err(Error::invalid("its budget is too small")));
}

#[test]
fn a_delegate_reads_its_own_copy() {
    let mut stripe = stripe();
    stripe.copies = vec![(0, PlacedBlock { home: home(7), copy: 1, ..stripe.blocks[&0] })];
    for delegate in [1, 7] {
        let request = Request { stripe: stripe.clone(), delegate: Some(NodeId(delegate)), ..request(0) };
        let (_, read) = played(request, view(8, &[]), |_, _| Ok(()));
        let read = read.unwrap();
        assert_eq!((read_from(&read), read.planned.plan.precedence()), (BTreeSet::from([NodeId(delegate)]), Precedence::MOVE));
    }
    let code = weft_codes::parse("replication(6)").unwrap();
    let layout = weft_types::StripeLayout { k: 1, m: 5, data_len: BLOCK_LEN, ..stripe.layout };
    stripe.copies.clear();
    let stripe = StripeRecord { layout, ..stripe };
    let request = Request { code, stripe, delegate: Some(NodeId(3)), ..request(0) };
    let read = made(&Read::new(request).ask(&view(8, &[]), &mut rng()), &view(8, &[])).unwrap();
    assert_eq!(read_from(&read), BTreeSet::from([NodeId(3)]), "with one data block, every block is a copy");
}

#[test]
fn a_delegate_may_report_errors_only_about_its_own_stripe() {
    let stripe = stripe();
    let block = |id| BlockId { stripe: StripeId(id), ..stripe.block_id(0).unwrap() };
    let (own, other) = (Party::Node(NodeId(2)), Party::Node(NodeId(8)));
    let error = || Error::replan("the link failed");
    let about = [error(), error().party(own), error().block(block(7)), error().block(block(7)).party(own)];
    assert!(about.iter().all(|error| is_about(error, &stripe)));
    let not = [error().party(other), error().block(block(8)), error().block(block(8)).party(own)];
    assert!(!not.iter().any(|error| is_about(error, &stripe)));
}

#[test]
fn a_clients_complaint_avoids_as_little_as_possible() {
    let mut stripe = stripe();
    let (block, node) = (stripe.block_id(1).unwrap(), NodeId(2));
    let party = Party::Node(node);
    let lost = Error::replan("reset").party(party);
    let corrupt = Error::corrupt("page 3").party(party).block(block);
    assert_eq!(avoided(&lost, &stripe, false), (Some(node), None));
    assert_eq!(avoided(&lost, &stripe, true), (None, None), "the agents' reports take precedence");
    assert_eq!(avoided(&corrupt, &stripe, false), (None, Some(block)));
    assert_eq!(avoided(&Error::retry("busy").party(party), &stripe, false), (None, None));
    assert_eq!(avoided(&Error::replan("reset").party(Party::Client(3)), &stripe, false), (None, None));
    stripe.blocks.get_mut(&1).unwrap().state = BlockState::Corrupt;
    assert_eq!(avoided(&corrupt, &stripe, false), (None, None), "its readable parts are known");
}

#[test]
fn the_first_part_of_a_range_lies_in_the_stripe_where_it_begins() {
    let mut stripe = stripe();
    stripe.number = 1;
    let (offset, len) = (stripe.object_offset(), stripe.layout.data_len);
    assert!(offset > 0 && len > 9000, "an unsuitable stripe");
    let part = |start, end, bytes_max| {
        let ranges = first_part(&stripe, Span::new(start, end), bytes_max)?;
        Some(ranges.iter().map(|range| range.bytes.len()).sum::<u64>())
    };
    for (start, end, bytes) in [(0, 1, 1), (4000, 9000, 5000), (len - 7, len, 7), (len - 7, u64::MAX - offset, 7), (0, len, len)]
    {
        let (start, end) = (offset + start, offset + end);
        assert_eq!((part(start, end, bytes), part(start, end, bytes - 1)), (Some(bytes), None), "{start}..{end}");
    }
    for (start, end) in
        [(0, offset), (offset - 1, offset + 1), (offset + len, offset + len + 1), (offset + 5, offset + 5), (offset + 5, offset)]
    {
        assert_eq!(part(start, end, u64::MAX), None, "{start}..{end}");
    }
}

proptest! {
    #[test]
    fn a_read_ends_for_any_answers_and_ignores_unrequested_ones(
        kinds in proptest::collection::vec((0..6u8, 1..=8u32), 0..60),
    ) {
        let (view, mut rng) = (view(8, &[1]), rng());
        let mut read = Read::new(request(0));
        let mut asked = read.on(Event::Begin, &view, &mut rng).pop();
        for (kind, node) in kinds.into_iter().chain([(0, 1); 40]) {
            let Some(action) = asked.take() else { break };
            let error = Error::replan("no answer").party(Party::Node(NodeId(node)));
            let event = match (kind, &action) {
                (0..=2, Action::Plan(ask)) => Event::Planned(made(ask, &view).map(Box::new)),
                (0, Action::Start(_)) => Event::Started(Ok(())),
                (1..=3, Action::Start(_)) => Event::Started(Err(error)),
                (0..=3, Action::LookUp) => Event::LookedUp(Ok(stripe())),
                (3, Action::Plan(_)) => Event::Planned(Err(Error::unavailable("too few"))),
                (_, Action::Plan(_) | Action::LookUp) => Event::Started(Ok(())),
                _ => Event::Begin,
            };
            let is_answer = matches!(
                (&event, &action),
                (Event::Planned(_), Action::Plan(_)) | (Event::Started(_), Action::Start(_)) | (Event::LookedUp(_), Action::LookUp)
            );
            let mut actions = read.on(event, &view, &mut rng);
            prop_assert_eq!(actions.is_empty(), !is_answer);
            asked = if is_answer { actions.pop() } else { Some(action) };
            if matches!(asked, Some(Action::End(_))) {
                asked = None;
            }
        }
        prop_assert!(asked.is_none(), "{asked:?} is still pending");
    }
}
