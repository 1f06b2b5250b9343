//! Updates, checks and moves: every scheme for them, run by the engine over blocks in memory.

use crate::memory::{Faults, Memory, Rows, Run as Ran};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::collections::BTreeMap;
use weft_codes::SharedCode;
use weft_gf::Combination;
use weft_plan::{Change, Class, Hold, Input, Job, Plan, Want, WantKind, verify};
use weft_schemes::{Kind, Request, Run, Scheme, answering, code_view};
use weft_types::{BlockId, Cause, Layout, NodeId, Party, PlanId, Reaction, Span, StripeId, StripeLayout};

const WRITER: Party = Party::Client(9);
const SEEDS: u64 = 30;

fn holder(index: u8) -> Party {
    Party::Node(NodeId(u32::from(index) + 1))
}

fn block(index: u8, generation: u32) -> BlockId {
    BlockId { stripe: StripeId(1), index, copy: 0, generation }
}

/// A stripe with all its blocks.
struct Stripe {
    random: StdRng,
    code: SharedCode,
    layout: StripeLayout,
    blocks: Vec<Rows>,
}

/// All blocks of data, given by its sub-blocks' rows.
fn encoded(code: &SharedCode, data: &[Vec<u8>]) -> Vec<Rows> {
    let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut rows = vec![vec![0; data[0].len()]; code.n() * code.alpha()];
    Combination::new(code.generator()).apply(&sources, &mut rows.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    rows.chunks(code.alpha()).map(<[Vec<u8>]>::to_vec).collect()
}

impl Stripe {
    fn new(spec: &str, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let code = weft_codes::parse(spec).unwrap();
        let alpha = code.alpha() as u64;
        let cell_len = alpha * random.random_range(1..20);
        let layout = Layout::new(cell_len * random.random_range(1..4), cell_len, alpha as u32).unwrap();
        let (k, m, data_len) = (code.k() as u32, code.m() as u32, layout.block_len * code.k() as u64);
        let mut row = || (0..layout.positions()).map(|_| random.random()).collect();
        let data: Vec<Vec<u8>> = (0..code.k() * code.alpha()).map(|_| row()).collect();
        let blocks = encoded(&code, &data);
        Self { random, code, layout: StripeLayout { layout, k, m, data_len }, blocks }
    }

    fn indices(&self) -> std::ops::Range<u8> {
        0..self.code.n() as u8
    }

    fn positions(&self) -> u64 {
        self.layout.layout.positions()
    }

    fn random_span(&mut self) -> Span {
        let start = self.random.random_range(0..self.positions());
        Span::new(start, self.random.random_range(start + 1..=self.positions()))
    }

    fn holds(&self) -> Vec<Hold> {
        let span = Span::new(0, self.positions());
        self.indices().map(|index| Hold { party: holder(index), block: block(index, 1), span }).collect()
    }

    fn all_sub_blocks(&self) -> Vec<u16> {
        (0..self.code.alpha() as u16).collect()
    }

    /// The scheme's plan, verified.
    fn plan(&mut self, job: &Job, stores: &[(Party, BlockId)], scheme: Scheme<'_>) -> Plan {
        let mut prefer: Vec<Party> = self.indices().map(holder).collect();
        prefer.shuffle(&mut self.random);
        let slice_len = self.random.random_range(1..=self.positions());
        let run = Run { window: self.random.random_range(1..4), ..Run::new(PlanId(1), 1, Class::Repair, slice_len) };
        let request = Request { stores, prefer: &prefer, ..Request::new(self.code.as_ref(), self.layout, job, run) };
        let plan = weft_schemes::plan(&request, scheme).unwrap();
        verify(&plan, code_view(self.code.as_ref(), &self.code.spec()), job).unwrap();
        plan
    }

    fn run(&self, plan: &Plan, inputs: BTreeMap<(Party, u8), Rows>, seed: u64) -> Ran {
        let mut blocks: BTreeMap<(Party, u8), Rows> =
            self.indices().map(|index| ((holder(index), index), self.blocks[usize::from(index)].clone())).collect();
        blocks.extend(inputs);
        Memory::new(plan, blocks, Faults::default(), seed).run(plan)
    }
}

fn each(kind: Kind, mut run: impl FnMut(Stripe, Scheme<'_>, u64, &str)) {
    for (spec, scheme) in ["rs(4,2)", "clay(4,2)"].into_iter().flat_map(|spec| answering(kind).map(move |it| (spec, it))) {
        for seed in 0..SEEDS {
            run(Stripe::new(spec, seed), scheme, seed, &format!("{spec} by {}, seed {seed}", scheme.name()));
        }
    }
}

fn assert_no_errors(ran: &Ran, place: &str) {
    for (party, outcome) in &ran.outcomes {
        assert_eq!(outcome.errors, [], "{place}, {party}");
    }
}

#[test]
fn a_change_is_patched_into_every_dependent_block() {
    each(Kind::Update, |mut stripe, scheme, seed, place| {
        let (k, alpha, positions) = (stripe.code.k(), stripe.code.alpha(), stripe.positions() as usize);
        let span = stripe.random_span();
        let mut changed: Vec<usize> = (0..k * alpha).filter(|_| stripe.random.random_ratio(1, 3)).collect();
        if changed.is_empty() {
            changed.push(stripe.random.random_range(0..k * alpha));
        }
        let mut delta = vec![vec![0; positions]; k * alpha];
        for column in &changed {
            delta[*column][span.start as usize..span.end as usize].fill_with(|| stripe.random.random());
        }
        let change = |column: &usize| Change { index: (column / alpha) as u8, sub_block: (column % alpha) as u16, span };
        let want = |index| Want { kind: WantKind::Patch, party: holder(index), index, sub_blocks: stripe.all_sub_blocks(), span };
        // A block that does not depend on the change stays unchanged.
        let generator = stripe.code.generator();
        let depends = |index: &u8| {
            let rows = usize::from(*index) * alpha..(usize::from(*index) + 1) * alpha;
            rows.into_iter().any(|row| generator.row(row).iter().any(|(_, column, _)| changed.contains(&(*column as usize))))
        };
        let job = Job {
            holds: stripe.holds(),
            inputs: (0..k as u8).map(|index| Input { party: WRITER, index }).collect(),
            changed: changed.iter().map(change).collect(),
            wants: stripe.indices().filter(depends).map(want).collect(),
        };
        let patched: Vec<u8> = job.wants.iter().map(|want| want.index).collect();
        let plan = stripe.plan(&job, &[], scheme);
        let inputs = delta.chunks(alpha).zip(0u8..).map(|(rows, index)| ((WRITER, index), rows.to_vec())).collect();
        let ran = stripe.run(&plan, inputs, seed);
        assert_no_errors(&ran, place);
        let deltas = encoded(&stripe.code, &delta);
        for (index, sub_block) in patched.iter().flat_map(|index| stripe.all_sub_blocks().into_iter().map(move |s| (*index, s))) {
            let came = &ran.written[&(holder(index), index, sub_block)];
            assert_eq!(came.len() as u64, span.len(), "{place}: block {index}");
            let right = &deltas[usize::from(index)][usize::from(sub_block)];
            assert!(came.iter().all(|(at, byte)| right[*at as usize] == *byte), "{place}: block {index} got a wrong delta");
        }
    });
}

#[test]
fn a_check_passes_for_consistent_blocks_and_names_an_inconsistent_position() {
    each(Kind::Check, |mut stripe, scheme, seed, place| {
        let span = stripe.random_span();
        let rows = (0..(stripe.code.m() * stripe.code.alpha()) as u16).collect();
        let checker = if seed % 2 == 0 { holder(seed as u8 % 6) } else { Party::Node(NodeId(100)) };
        let want = Want { kind: WantKind::Check, party: checker, index: 0, sub_blocks: rows, span };
        let job = Job { holds: stripe.holds(), wants: vec![want], ..Job::default() };
        let plan = stripe.plan(&job, &[], scheme);
        assert_no_errors(&stripe.run(&plan, BTreeMap::new(), seed), place);

        // Any byte of any block, inside or outside the sub-block.
        let (index, sub_block) = (stripe.random.random_range(0..6), stripe.random.random_range(0..stripe.code.alpha()));
        let at = stripe.random.random_range(0..stripe.positions());
        stripe.blocks[index][sub_block][at as usize] ^= stripe.random.random_range(1..=255u8);
        let ran = stripe.run(&plan, BTreeMap::new(), seed);
        let found = ran.outcomes[&checker].errors.first();
        assert_eq!(found.is_some(), span.start <= at && at < span.end, "{place}");
        if let Some(error) = found {
            assert_eq!((error.reaction, error.party, error.position), (Reaction::Corrupt, Some(checker), Some(at)), "{place}");
            assert_eq!(error.cause, Some(Cause::Inconsistent), "{place}");
        }
    });
}

#[test]
fn a_block_is_moved_from_its_current_node() {
    each(Kind::Move, |mut stripe, scheme, seed, place| {
        let (index, to) = (stripe.random.random_range(0..6), Party::Node(NodeId(100)));
        let span = Span::new(0, stripe.positions());
        let want = Want { kind: WantKind::Store, party: to, index, sub_blocks: stripe.all_sub_blocks(), span };
        let job = Job { holds: stripe.holds(), wants: vec![want], ..Job::default() };
        assert_eq!(Kind::of(&job), Kind::Move);
        let plan = stripe.plan(&job, &[(to, block(index, 2))], scheme);
        assert_eq!(plan.binding.parties, [holder(index), to], "{place}: another party takes part");
        let ran = stripe.run(&plan, BTreeMap::new(), seed);
        assert_no_errors(&ran, place);
        for (sub_block, row) in (0..).zip(&stripe.blocks[usize::from(index)]) {
            let came: Vec<u8> = ran.written[&(to, index, sub_block)].values().copied().collect();
            assert!(came == *row, "{place}: wrong bytes");
        }
    });
}
