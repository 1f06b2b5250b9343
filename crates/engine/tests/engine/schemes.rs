//! The plans of every repair scheme: the engine must write what the reference executor computes, and what was lost.

use crate::memory::{Faults, Memory, Rows};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::collections::BTreeMap;
use weft_gf::Combination;
use weft_plan::{Class, Hold, Job, Want, WantKind, eval};
use weft_schemes::{Kind, Request, Run, answering};
use weft_types::{BlockId, Layout, NodeId, Party, PlanId, Span, StripeId, StripeLayout};

fn holder(index: u8) -> Party {
    Party::Node(NodeId(u32::from(index) + 1))
}

fn block(index: u8, generation: u32) -> BlockId {
    BlockId { stripe: StripeId(1), index, copy: 0, generation }
}

#[test]
fn plans_of_all_schemes_match_the_reference() {
    for seed in 0..150 {
        let mut random = StdRng::seed_from_u64(seed);
        let code = weft_codes::parse(["rs(2,1)", "rs(3,2)", "rs(4,2)", "rs(6,3)"][random.random_range(0..4)]).unwrap();
        let cell_len = random.random_range(1..40);
        let layout = Layout::new(cell_len * random.random_range(1..5), cell_len, 1).unwrap();
        let positions = layout.positions();
        let data_len = random.random_range(1..=positions * code.k() as u64);
        let stripe = StripeLayout { layout, k: code.k() as u32, m: code.m() as u32, data_len };

        // The whole blocks, with zeros beyond their ends.
        let mut data: Vec<Vec<u8>> = vec![vec![0; positions as usize]; code.k()];
        for offset in 0..data_len {
            let (index, at) = stripe.locate(offset);
            data[index as usize][at as usize] = random.random();
        }
        let mut blocks = vec![vec![0; positions as usize]; code.n()];
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut rows: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
        Combination::new(code.generator()).apply(&sources, &mut rows);

        let mut indices: Vec<u8> = (0..code.n() as u8).collect();
        indices.shuffle(&mut random);
        let (lost, left) = indices.split_at(random.random_range(1..=code.m()));
        let span = Span::new(random.random_range(0..positions), positions);
        let to = |index: u8| holder(index + 100);
        let want = |index: &u8| Want { kind: WantKind::Store, party: to(*index), index: *index, sub_blocks: vec![0], span };
        let hold = |index: &u8| Hold { party: holder(*index), block: block(*index, 1), span: Span::new(0, positions) };
        let job = Job { holds: left.iter().map(hold).collect(), wants: lost.iter().map(want).collect(), ..Job::default() };
        let stores: Vec<_> = lost.iter().map(|index| (to(*index), block(*index, 2))).collect();
        let run = Run {
            window: random.random_range(1..4),
            ..Run::new(PlanId(1), 1, Class::Repair, random.random_range(1..=positions))
        };
        for scheme in answering(Kind::Repair) {
            let request = Request { stores: &stores, ..Request::new(code.as_ref(), stripe, &job, run) };
            let plan = weft_schemes::plan(&request, scheme).unwrap();

            let mut reference = weft_plan::Memory::default();
            let mut held: BTreeMap<(Party, u8), Rows> = BTreeMap::new();
            for index in left {
                let whole = &blocks[usize::from(*index)];
                let len = stripe.block_len(u32::from(*index)) as usize;
                reference.blocks.insert((holder(*index), block(*index, 1)), whole[..len].to_vec());
                held.insert((holder(*index), *index), vec![whole.clone()]);
            }
            eval(&plan, &mut reference).unwrap();
            let ran = Memory::new(&plan, held, Faults::default(), seed).run(&plan);
            for (party, outcome) in &ran.outcomes {
                assert_eq!(outcome.errors, [], "seed {seed}, {}, {party}", scheme.name());
            }
            for index in lost {
                let place = format!("seed {seed}, block {index} of {} by {}", code.spec(), scheme.name());
                let came = &ran.written[&(to(*index), *index, 0)];
                let wanted = &blocks[usize::from(*index)];
                assert_eq!(came.len() as u64, span.len(), "{place}");
                assert!(came.iter().all(|(at, byte)| wanted[*at as usize] == *byte), "{place}: differs from the lost block");
                let len = stripe.block_len(u32::from(*index));
                let stored = reference.out.get(&(WantKind::Store, to(*index), *index)).map_or(&[][..], Vec::as_slice);
                let same = (span.start..len).all(|at| stored.get(at as usize) == came.get(&at));
                assert!(same, "{place}: differs from the reference");
                assert!(ran.finished.contains(&(to(*index), *index)), "{place}");
            }
        }
    }
}
