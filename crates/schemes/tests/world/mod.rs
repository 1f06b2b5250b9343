//! Stripes to plan for: a code, a layout, blocks with random bytes on nodes, and the blocks that remain.

#![allow(dead_code, reason = "each test file uses some of it")]

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::sync::{Arc, LazyLock};
use weft_codes::{Code, SharedCode, parse, shortened};
use weft_gf::{Combination, Matrix, SparseMatrix, field};
use weft_plan::{Class, Hold, Job, Memory, Network, Plan, Want, WantKind, eval, verify};
use weft_schemes::{Paths, Patterns, Request, Run, Scheme, Select};
use weft_types::{BlockId, Layout, NodeId, Party, PlanId, Span, StripeId, StripeLayout};

/// The patterns that all tests of a program share.
static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| Patterns::new(1 << 20));

/// A written stripe, with the content of its blocks. Node i+1 holds block i.
pub(crate) struct World {
    pub(crate) random: StdRng,
    pub(crate) code: SharedCode,
    pub(crate) stripe: StripeLayout,
    /// The blocks' bytes, each as long as the layout says, with zeros at the end where the block is shorter.
    pub(crate) blocks: Vec<Vec<u8>>,
    pub(crate) network: Network,
    pub(crate) select: Select,
    pub(crate) paths: Paths,
}

impl World {
    /// A random code and layout.
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let code = random_code(&mut random);
        Self::laid_out(random, code)
    }

    /// A given code, a random layout.
    pub(crate) fn of(spec: &str, seed: u64) -> Self {
        Self::laid_out(StdRng::seed_from_u64(seed), parse(spec).unwrap())
    }

    fn laid_out(mut random: StdRng, code: SharedCode) -> Self {
        let alpha = code.alpha() as u64;
        let cell_len = alpha * random.random_range(1..=9);
        let block_len = cell_len * random.random_range(1..=4);
        let data_len = random.random_range(1..=block_len * code.k() as u64);
        Self::new(random, code, Layout::new(block_len, cell_len, alpha as u32).unwrap(), data_len)
    }

    /// A given code, blocks of one cell, and data in the first `dimension` data blocks only.
    pub(crate) fn shortened(spec: &str, dimension: usize, seed: u64) -> Self {
        let (mut random, code) = (StdRng::seed_from_u64(seed), shortened(&parse(spec).unwrap(), dimension));
        let cell_len = code.alpha() as u64 * random.random_range(1..=9);
        let data_len = random.random_range(cell_len * (dimension as u64 - 1) + 1..=cell_len * dimension as u64);
        Self::new(random, code.clone(), Layout::new(cell_len, cell_len, code.alpha() as u32).unwrap(), data_len)
    }

    /// A given code, one full stripe of blocks of one cell.
    pub(crate) fn whole(spec: &str, block_len: u64) -> Self {
        let code = parse(spec).unwrap();
        let (data_len, alpha) = (block_len * code.k() as u64, code.alpha() as u32);
        Self::new(StdRng::seed_from_u64(7), code, Layout::new(block_len, block_len, alpha).unwrap(), data_len)
    }

    fn new(mut random: StdRng, code: SharedCode, layout: Layout, data_len: u64) -> Self {
        let stripe = StripeLayout { layout, k: code.k() as u32, m: code.m() as u32, data_len };
        let mut blocks = vec![vec![0; layout.block_len as usize]; code.n()];
        for offset in 0..data_len {
            let (index, at) = stripe.locate(offset);
            blocks[index as usize][at as usize] = random.random();
        }
        encode(code.as_ref(), layout, &mut blocks);
        let (network, select, paths) = (Network::uniform(layout.block_len as f64), Select::default(), Paths::Count(1));
        Self { random, code, stripe, blocks, network, select, paths }
    }

    pub(crate) fn n(&self) -> u8 {
        self.code.n() as u8
    }

    pub(crate) fn positions(&self) -> u64 {
        self.stripe.layout.positions()
    }

    pub(crate) fn whole_span(&self) -> Span {
        Span::new(0, self.positions())
    }

    /// A non-empty range of positions.
    pub(crate) fn random_span(&mut self) -> Span {
        let start = self.random.random_range(0..self.positions());
        Span::new(start, self.random.random_range(start + 1..=self.positions()))
    }

    pub(crate) fn all_sub_blocks(&self) -> Vec<u16> {
        (0..self.code.alpha() as u16).collect()
    }

    /// All blocks except the lost ones, in full.
    pub(crate) fn holds_without(&self, lost: &[u8]) -> Vec<Hold> {
        let left = (0..self.n()).filter(|index| !lost.contains(index));
        left.map(|index| Hold { party: holder(index), block: block(index, 1), span: self.whole_span() }).collect()
    }

    pub(crate) fn want(&self, kind: WantKind, party: Party, index: u8) -> Want {
        Want { kind, party, index, sub_blocks: self.all_sub_blocks(), span: self.whole_span() }
    }

    /// The bytes of the job's holds.
    pub(crate) fn memory(&self, job: &Job) -> Memory {
        let mut memory = Memory::default();
        for hold in &job.holds {
            let index = usize::from(hold.block.index);
            let len = self.stripe.block_len(index as u32) as usize;
            memory.blocks.insert((hold.party, hold.block), self.blocks[index][..len].to_vec());
        }
        for input in &job.inputs {
            memory.inputs.insert((input.party, input.index, false), self.blocks[usize::from(input.index)].clone());
        }
        memory
    }

    pub(crate) fn request<'a>(
        &'a self,
        job: &'a Job,
        stores: &'a [(Party, BlockId)],
        prefer: &'a [Party],
        slice_len: u64,
    ) -> Request<'a> {
        let run = Run::new(PlanId(1), 1, Class::Repair, slice_len);
        let (network, select, paths) = (&self.network, self.select, self.paths);
        Request { stores, prefer, network, select, paths, ..Request::new(self.code.as_ref(), self.stripe, job, run) }
    }

    /// Verifies a plan (so it has no unwanted output), runs it, and compares every wanted byte.
    pub(crate) fn prove(&self, plan: &Plan, job: &Job) {
        let spec = self.code.spec();
        verify(plan, weft_schemes::code_view(self.code.as_ref(), &spec), job)
            .unwrap_or_else(|refusal| panic!("{refusal}\n{job:?}\n{plan:?}"));
        let mut memory = self.memory(job);
        eval(plan, &mut memory).unwrap();
        let mut out: Vec<_> = memory.out.into_iter().collect();
        for want in &job.wants {
            let index = usize::from(want.index);
            let key = (want.kind, want.party, want.index);
            let bytes = out.iter_mut().find(|(found, _)| *found == key).map(|(_, bytes)| bytes);
            let stored = want.kind == WantKind::Store;
            let len = if stored { self.stripe.block_len(index as u32) } else { self.stripe.layout.block_len };
            let extents = want.sub_blocks.iter().flat_map(|s| self.stripe.layout.extents(u32::from(*s), want.span));
            let mut bytes = bytes;
            for at in extents.flat_map(|extent| extent.offset..extent.offset + extent.len).filter(|at| *at < len) {
                let at = at as usize;
                let bytes = bytes.as_deref_mut().unwrap_or_else(|| panic!("nothing came out for {want:?}"));
                assert_eq!(bytes.get(at), Some(&self.blocks[index][at]), "byte {at} for {want:?}");
            }
        }
    }

    /// Verifies the plan of an update, runs it on random deltas, and compares every patched byte.
    pub(crate) fn prove_patches(&mut self, plan: &Plan, job: &Job) {
        let spec = self.code.spec();
        verify(plan, weft_schemes::code_view(self.code.as_ref(), &spec), job)
            .unwrap_or_else(|refusal| panic!("{refusal}\n{job:?}\n{plan:?}"));
        let layout = self.stripe.layout;
        let mut deltas = vec![vec![0; layout.block_len as usize]; self.code.n()];
        for change in &job.changed {
            for extent in layout.extents(u32::from(change.sub_block), change.span) {
                let len = self.stripe.block_len(change.index.into());
                for at in (extent.offset..extent.offset + extent.len).filter(|at| *at < len) {
                    deltas[usize::from(change.index)][at as usize] = self.random.random();
                }
            }
        }
        let mut memory = Memory::default();
        for input in &job.inputs {
            memory.inputs.insert((input.party, input.index, true), deltas[usize::from(input.index)].clone());
        }
        encode(self.code.as_ref(), layout, &mut deltas);
        eval(plan, &mut memory).unwrap();
        for want in &job.wants {
            let (index, len) = (usize::from(want.index), self.stripe.block_len(want.index.into()));
            let patch = memory.out.get(&(want.kind, want.party, want.index));
            let extents = want.sub_blocks.iter().flat_map(|s| layout.extents(u32::from(*s), want.span));
            for at in extents.flat_map(|extent| extent.offset..extent.offset + extent.len).filter(|at| *at < len) {
                let at = at as usize;
                assert_eq!(patch.and_then(|patch| patch.get(at)), Some(&deltas[index][at]), "byte {at} for {want:?}");
            }
        }
    }

    /// Plans a repair, verifies the plan, and returns it.
    pub(crate) fn repair(
        &self,
        job: &Job,
        stores: &[(Party, BlockId)],
        prefer: &[Party],
        slice_len: u64,
        scheme: Scheme<'_>,
    ) -> Plan {
        let request = self.request(job, stores, prefer, slice_len);
        let plan = weft_schemes::plan(&request, scheme).unwrap_or_else(|error| panic!("{error}\n{job:?}"));
        assert_eq!(weft_schemes::plan(&request, scheme).as_ref(), Ok(&plan), "the same request gave another plan");
        // The cached plans are for other nodes, orders and positions.
        let known = Request { patterns: Some(&PATTERNS), ..request };
        assert_eq!(weft_schemes::plan(&known, scheme).as_ref(), Ok(&plan), "the cache changed the plan");
        self.prove(&plan, job);
        plan
    }

    pub(crate) fn shuffled(&mut self, mut blocks: Vec<u8>) -> Vec<u8> {
        blocks.shuffle(&mut self.random);
        blocks
    }
}

pub(crate) fn node(number: u32) -> Party {
    Party::Node(NodeId(number))
}

/// The node that holds a block after the write.
pub(crate) fn holder(index: u8) -> Party {
    node(u32::from(index) + 1)
}

/// A node that holds nothing of the stripe.
pub(crate) fn spare(index: u8) -> Party {
    node(u32::from(index) + 1001)
}

pub(crate) fn block(index: u8, generation: u32) -> BlockId {
    BlockId { stripe: StripeId(1), index, copy: 0, generation }
}

fn random_code(random: &mut StdRng) -> SharedCode {
    let (k, m) = (random.random_range(1..=12), random.random_range(1..=4));
    match random.random_range(0..4) {
        0 => parse(&format!("rs({k},{m},matrix=vandermonde)")).unwrap(),
        1 => Arc::new(Dense::new(random.random_range(1..=5), m, random.random_range(2..=4))),
        _ => parse(&format!("rs({k},{m})")).unwrap(),
    }
}

/// Computes the parity blocks, position by position.
fn encode(code: &dyn Code, layout: Layout, blocks: &mut [Vec<u8>]) {
    let alpha = code.alpha();
    let whole = Span::new(0, layout.positions());
    let rows: Vec<Vec<u8>> = (0..code.k() * alpha)
        .map(|row| {
            let extents = layout.extents((row % alpha) as u32, whole);
            extents.flat_map(|e| blocks[row / alpha][e.offset as usize..(e.offset + e.len) as usize].to_vec()).collect()
        })
        .collect();
    let mut coded = vec![vec![0; whole.len() as usize]; code.n() * alpha];
    let sources: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    Combination::new(code.generator()).apply(&sources, &mut coded.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    for (row, bytes) in coded.iter().enumerate() {
        let mut at = 0;
        for e in layout.extents((row % alpha) as u32, whole) {
            blocks[row / alpha][e.offset as usize..(e.offset + e.len) as usize].copy_from_slice(&bytes[at..at + e.len as usize]);
            at += e.len as usize;
        }
    }
}

/// A linear code of α sub-blocks that mixes all of them: schemes must not assume simpler codes.
#[derive(Debug)]
struct Dense {
    k: usize,
    m: usize,
    alpha: usize,
    generator: SparseMatrix,
}

impl Dense {
    fn new(k: usize, m: usize, alpha: usize) -> Self {
        let parity = Matrix::from_fn(m * alpha, k * alpha, |r, c| field::inv((k * alpha + r) as u8 ^ c as u8).unwrap());
        let generator = SparseMatrix::from(&Matrix::identity(k * alpha).stack(&parity));
        Self { k, m, alpha, generator }
    }
}

impl Code for Dense {
    fn spec(&self) -> String {
        format!("dense({},{},{})", self.k, self.m, self.alpha)
    }
    fn k(&self) -> usize {
        self.k
    }
    fn m(&self) -> usize {
        self.m
    }
    fn alpha(&self) -> usize {
        self.alpha
    }
    fn generator(&self) -> &SparseMatrix {
        &self.generator
    }
    fn tolerance(&self) -> usize {
        self.m
    }
}
