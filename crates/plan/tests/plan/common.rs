//! Codes, stripes and hand-built plans for the tests.

use rand::{Rng, SeedableRng, rngs::StdRng};
use weft_gf::{Factored, Matrix, SparseMatrix, field::inv};
use weft_plan::{
    Binding, BoundBlock, Change, Class, CodeView, Hold, Input, Job, Lane, Link, Memory, Plan, Shape, Sink, Source, Stage, Want,
    WantKind,
};
use weft_types::{BlockId, Layout, NodeId, Party, PlanId, Seq, Span, StripeId};

/// A linear code that the test constructs.
#[derive(Debug)]
pub(crate) struct TestCode {
    pub(crate) spec: String,
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) alpha: usize,
    pub(crate) dense: Matrix,
    pub(crate) sparse: SparseMatrix,
    pub(crate) tolerance: usize,
}

impl TestCode {
    /// Reed-Solomon with a Cauchy matrix.
    pub(crate) fn rs(k: usize, m: usize) -> Self {
        let dense = Matrix::from_fn(k + m, k, |r, c| if r < k { u8::from(r == c) } else { inv(r as u8 ^ c as u8).unwrap() });
        Self::new(format!("rs({k},{m})"), k, m, 1, dense)
    }

    /// Random parities over α sub-blocks: a Cauchy matrix of that size, so any k blocks suffice.
    pub(crate) fn vector(k: usize, m: usize, alpha: usize) -> Self {
        let (rows, cols) = ((k + m) * alpha, k * alpha);
        let dense = Matrix::from_fn(rows, cols, |r, c| if r < cols { u8::from(r == c) } else { inv(r as u8 ^ c as u8).unwrap() });
        Self::new(format!("vector({k},{m},{alpha})"), k, m, alpha, dense)
    }

    fn new(spec: String, k: usize, m: usize, alpha: usize, dense: Matrix) -> Self {
        let sparse = SparseMatrix::from(&dense);
        Self { spec, k, n: k + m, alpha, dense, sparse, tolerance: m }
    }

    pub(crate) fn view(&self) -> CodeView<'_> {
        let Self { spec, k, n, alpha, sparse, tolerance, .. } = self;
        CodeView { spec, k: *k, n: *n, alpha: *alpha, generator: sparse, tolerance: *tolerance }
    }

    pub(crate) fn subs(&self) -> Vec<u16> {
        (0..self.alpha as u16).collect()
    }

    /// The generator's rows for these blocks.
    pub(crate) fn rows(&self, blocks: &[u8]) -> Matrix {
        let rows: Vec<usize> = blocks.iter().flat_map(|b| (0..self.alpha).map(|s| usize::from(*b) * self.alpha + s)).collect();
        self.dense.select_rows(&rows)
    }

    /// Rows that are zero for every stripe.
    pub(crate) fn parity_check(&self) -> Matrix {
        let parity: Vec<u8> = (self.k as u8..self.n as u8).collect();
        self.rows(&parity).beside(&identity(parity.len() * self.alpha))
    }

    /// The columns of blocks in a matrix with one for each sub-block.
    pub(crate) fn columns(&self, blocks: &[u8]) -> Vec<usize> {
        blocks.iter().flat_map(|b| (0..self.alpha).map(|s| usize::from(*b) * self.alpha + s)).collect()
    }

    /// For each helper, the matrix that multiplies its block (all sub-blocks); the sum of the products is the lost blocks.
    pub(crate) fn shares(&self, lost: &[u8], helpers: &[u8]) -> Vec<Matrix> {
        let solution = self.rows(helpers).solve_left(&self.rows(lost)).expect("recoverable");
        let of = |h: usize| solution.select_cols(&(h * self.alpha..(h + 1) * self.alpha).collect::<Vec<_>>());
        (0..helpers.len()).map(of).collect()
    }
}

pub(crate) fn node(number: u32) -> Party {
    Party::Node(NodeId(number))
}

pub(crate) const CLIENT: Party = Party::Client(99);

pub(crate) fn sparse(dense: &Matrix) -> SparseMatrix {
    SparseMatrix::from(dense)
}

pub(crate) fn identity(size: usize) -> Matrix {
    Matrix::identity(size)
}

/// One stripe: block i on node i + 1.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) code: TestCode,
    pub(crate) layout: Layout,
    pub(crate) slice_len: u64,
    /// The bytes of the data; blocks beyond its end are short.
    pub(crate) data: Vec<Vec<u8>>,
    pub(crate) blocks: Vec<Vec<u8>>,
}

impl World {
    pub(crate) fn new(code: TestCode, cells: u64, sub_len: u64, slice_len: u64, seed: u64) -> Self {
        let cell_len = sub_len * code.alpha as u64;
        let layout = Layout::new(cells * cell_len, cell_len, code.alpha as u32).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let data = (0..code.k).map(|_| (0..layout.block_len).map(|_| rng.random()).collect()).collect();
        let mut world = Self { code, layout, slice_len, data, blocks: Vec::new() };
        world.blocks = world.encode(&world.data);
        world
    }

    pub(crate) fn span(&self) -> Span {
        Span::new(0, self.layout.positions())
    }

    /// The blocks of a stripe, by definition.
    pub(crate) fn encode(&self, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let alpha = self.code.alpha;
        let place = |sub: usize, x: u64| {
            let sub_len = self.layout.sub_len();
            (x / sub_len * self.layout.cell_len + sub as u64 * sub_len + x % sub_len) as usize
        };
        let mut blocks = vec![vec![0u8; self.layout.block_len as usize]; self.code.n];
        for x in 0..self.layout.positions() {
            let symbols = Matrix::from_fn(self.code.k * alpha, 1, |r, _| data[r / alpha][place(r % alpha, x)]);
            let coded = self.code.dense.times(&symbols);
            for r in 0..self.code.n * alpha {
                blocks[r / alpha][place(r % alpha, x)] = coded.get(r, 0);
            }
        }
        blocks
    }

    pub(crate) fn id(&self, index: u8, generation: u32) -> BlockId {
        BlockId { stripe: StripeId(7), index, copy: 0, generation }
    }

    pub(crate) fn at(&self, index: u8) -> Party {
        node(u32::from(index) + 1)
    }

    pub(crate) fn holds(&self, lost: &[u8]) -> Vec<Hold> {
        let held = (0..self.code.n as u8).filter(|index| !lost.contains(index));
        held.map(|index| Hold { party: self.at(index), block: self.id(index, 1), span: self.span() }).collect()
    }

    pub(crate) fn want(&self, kind: WantKind, party: Party, index: u8, span: Span) -> Want {
        Want { kind, party, index, sub_blocks: self.code.subs(), span }
    }

    /// A lost block is wanted at `party`.
    pub(crate) fn repair_job(&self, lost: &[u8], wants: &[(WantKind, Party, u8)]) -> Job {
        let wants = wants.iter().map(|(kind, party, index)| self.want(*kind, *party, *index, self.span())).collect();
        Job { holds: self.holds(lost), inputs: vec![], changed: vec![], wants }
    }

    /// All held blocks, for [`weft_plan::eval()`].
    pub(crate) fn memory(&self, job: &Job) -> Memory {
        let blocks = job.holds.iter().map(|hold| ((hold.party, hold.block), self.blocks[usize::from(hold.block.index)].clone()));
        Memory { blocks: blocks.collect(), ..Memory::default() }
    }

    pub(crate) fn build(&self) -> Build<'_> {
        Build { world: self, parties: Vec::new(), lanes: Vec::new() }
    }
}

/// Builds a plan; parties become vertices in the order of their first use.
pub(crate) struct Build<'a> {
    pub(crate) world: &'a World,
    pub(crate) parties: Vec<Party>,
    pub(crate) lanes: Vec<(Span, Lane)>,
}

/// A lane under construction.
pub(crate) struct LaneBuild {
    pub(crate) span: Span,
    pub(crate) lane: Lane,
}

impl Build<'_> {
    pub(crate) fn vertex(&mut self, party: Party) -> u16 {
        let at = self.parties.iter().position(|known| *known == party).unwrap_or_else(|| {
            self.parties.push(party);
            self.parties.len() - 1
        });
        at as u16
    }

    pub(crate) fn lane(&self, span: Span, first: u32, step: u32) -> LaneBuild {
        LaneBuild { span, lane: Lane { first, step, window: 4, stages: vec![].into(), links: vec![].into() } }
    }

    /// Adds a stage. Every second stage computes its rows as temporaries and copies them; the proof must allow this.
    pub(crate) fn stage(&mut self, lane: &mut LaneBuild, party: Party, sources: Vec<Source>, matrix: &Matrix, sinks: Vec<Sink>) {
        let rows = matrix.rows();
        let matrix = match lane.lane.stages.len() % 2 {
            0 => sparse(matrix).into(),
            _ => {
                let copies = Matrix::zero(rows, matrix.cols()).beside(&Matrix::identity(rows));
                let temporaries = matrix.beside(&Matrix::zero(rows, rows));
                Factored::new(rows, sparse(&temporaries.stack(&copies))).unwrap()
            }
        };
        self.factored_stage(lane, party, sources, matrix, sinks);
    }

    pub(crate) fn factored_stage(
        &mut self,
        lane: &mut LaneBuild,
        party: Party,
        sources: Vec<Source>,
        matrix: impl Into<Factored>,
        sinks: Vec<Sink>,
    ) {
        let (at, vertex) = (lane.lane.stages.len() as u16, self.vertex(party));
        for source in &sources {
            if let Source::Link(link) = source {
                lane.lane.links[usize::from(*link)].to = at;
            }
        }
        for sink in &sinks {
            if let Sink::Link(link) = sink {
                lane.lane.links[usize::from(*link)].from = at;
            }
        }
        lane.lane.stages.push(Stage { vertex, sources, matrix: matrix.into(), sinks });
    }

    /// Binds generation 1 of every block that is read or patched, and generation 2 of every block that is stored.
    pub(crate) fn plan(mut self) -> Plan {
        let (mut blocks, mut stores) = (Vec::new(), Vec::new());
        let len = self.world.layout.block_len;
        for stage in self.lanes.iter().flat_map(|(_, lane)| &lane.stages) {
            let read = stage.sources.iter().filter_map(|s| if let Source::Block { index, .. } = s { Some(*index) } else { None });
            let patched = stage.sinks.iter().filter_map(|s| if let Sink::Patch { index, .. } = s { Some(*index) } else { None });
            let stored = stage.sinks.iter().filter_map(|s| if let Sink::Store { index, .. } = s { Some(*index) } else { None });
            let bind = |index: u8, generation| BoundBlock { vertex: stage.vertex, id: self.world.id(index, generation), len };
            let (held, new): (Vec<_>, Vec<_>) =
                (read.chain(patched).map(|i| bind(i, 1)).collect(), stored.map(|i| bind(i, 2)).collect());
            blocks.extend(held);
            stores.extend(new);
        }
        for bound in [&mut blocks, &mut stores] {
            bound.sort_by_key(|block| (block.vertex, block.id));
            bound.dedup();
        }
        let binding = Binding {
            parties: std::mem::take(&mut self.parties),
            spans: self.lanes.iter().map(|(span, _)| *span).collect(),
            blocks,
            stores,
            layout: self.world.layout,
            seq: Seq::default(),
            slice_len: self.world.slice_len,
        };
        let lanes = self.lanes.into_iter().map(|(_, lane)| lane).collect();
        let shape = Shape { code: self.world.code.spec.clone(), lanes, in_turn: false };
        Plan { shape, binding, id: PlanId(0x1_0000_0001), epoch: 1, class: Class::Repair, priority: 0 }
    }

    /// A partial-sum chain over the helpers to one requestor for each lost block.
    pub(crate) fn chain(&mut self, span: Span, first: u32, step: u32, helpers: &[u8], targets: &[(WantKind, Party, u8)]) {
        let code = &self.world.code;
        let lost: Vec<u8> = targets.iter().map(|target| target.2).collect();
        let (shares, width, subs) = (code.shares(&lost, helpers), lost.len() * code.alpha, code.subs());
        let alpha = code.alpha;
        let mut lane = self.lane(span, first, step);
        let mut last = None;
        for (at, (helper, share)) in helpers.iter().zip(&shares).enumerate() {
            let block = Source::Block { index: *helper, sub_blocks: subs.clone() };
            let (sources, matrix) = match last {
                Some(link) => (vec![Source::Link(link), block], identity(width).beside(share)),
                None => (vec![block], share.clone()),
            };
            let links: Vec<u16> =
                if at + 1 < helpers.len() { vec![lane.link(width)] } else { targets.iter().map(|_| lane.link(alpha)).collect() };
            let party = self.world.at(*helper);
            self.stage(&mut lane, party, sources, &matrix, links.iter().map(|link| Sink::Link(*link)).collect());
            last = links.first().copied();
        }
        let first_link = last.unwrap();
        for (offset, (kind, party, index)) in targets.iter().enumerate() {
            let source = Source::Link(first_link + offset as u16);
            self.stage(&mut lane, *party, vec![source], &identity(alpha), vec![sink(*kind, *index, code.subs())]);
        }
        self.lanes.push((lane.span, lane.lane));
    }

    /// Every helper sends its block to the requestor, which combines.
    pub(crate) fn star(&mut self, span: Span, helpers: &[u8], target: (WantKind, Party, u8)) {
        let code = &self.world.code;
        let (alpha, subs) = (code.alpha, code.subs());
        let shares = code.shares(&[target.2], helpers);
        let mut lane = self.lane(span, 0, 1);
        let mut sources = Vec::new();
        for helper in helpers {
            let link = lane.link(alpha);
            let block = Source::Block { index: *helper, sub_blocks: subs.clone() };
            self.stage(&mut lane, self.world.at(*helper), vec![block], &identity(alpha), vec![Sink::Link(link)]);
            sources.push(Source::Link(link));
        }
        let combine = shares.into_iter().reduce(|all, share| all.beside(&share)).unwrap();
        self.stage(&mut lane, target.1, sources, &combine, vec![sink(target.0, target.2, subs)]);
        self.lanes.push((lane.span, lane.lane));
    }

    /// Partial sums in rounds: pairs, then pairs of pairs; the requestor is the last one.
    pub(crate) fn tree(&mut self, span: Span, helpers: &[u8], target: (WantKind, Party, u8)) {
        let code = &self.world.code;
        let (alpha, subs) = (code.alpha, code.subs());
        let shares = code.shares(&[target.2], helpers);
        let mut lane = self.lane(span, 0, 1);
        let block = |index: u8| Source::Block { index, sub_blocks: subs.clone() };
        let mut current: Vec<(Party, Vec<Source>, Matrix)> =
            helpers.iter().zip(shares).map(|(h, share)| (self.world.at(*h), vec![block(*h)], share)).collect();
        current.push((target.1, vec![], Matrix::zero(alpha, 0)));
        while current.len() > 1 {
            let mut next = Vec::new();
            let mut pairs = current.into_iter();
            while let Some((party, sources, matrix)) = pairs.next() {
                let Some((onto, mut more, wider)) = pairs.next() else {
                    next.push((party, sources, matrix));
                    break;
                };
                let link = lane.link(alpha);
                self.stage(&mut lane, party, sources, &matrix, vec![Sink::Link(link)]);
                more.push(Source::Link(link));
                next.push((onto, more, wider.beside(&identity(alpha))));
            }
            current = next;
        }
        let (party, sources, matrix) = current.pop().unwrap();
        self.stage(&mut lane, party, sources, &matrix, vec![sink(target.0, target.2, subs)]);
        self.lanes.push((lane.span, lane.lane));
    }

    /// The writer sends every block to its node.
    pub(crate) fn direct(&mut self, span: Span) {
        let code = &self.world.code;
        let (alpha, n) = (code.alpha, code.n as u8);
        let mut lane = self.lane(span, 0, 1);
        let links: Vec<u16> = (0..n).map(|_| lane.link(alpha)).collect();
        let inputs = (0..code.k as u8).map(|index| Source::Input { index, sub_blocks: code.subs(), delta: false }).collect();
        self.stage(&mut lane, CLIENT, inputs, &code.dense, links.iter().map(|link| Sink::Link(*link)).collect());
        for (index, link) in (0..n).zip(links) {
            let store = sink(WantKind::Store, index, code.subs());
            self.stage(&mut lane, self.world.at(index), vec![Source::Link(link)], &identity(alpha), vec![store]);
        }
        self.lanes.push((lane.span, lane.lane));
    }

    /// New bytes of sub-block 0 of a data block: its node computes the delta, which passes through the parities one by one.
    pub(crate) fn update(&mut self, span: Span, index: u8) {
        let code = &self.world.code;
        let column = usize::from(index) * code.alpha;
        let mut lane = self.lane(span, 0, 1);
        let mut link = lane.link(1);
        let input = Source::Input { index, sub_blocks: vec![0], delta: false };
        self.stage(&mut lane, CLIENT, vec![input], &identity(1), vec![Sink::Link(link)]);
        let parities: Vec<u8> = (code.k as u8..code.n as u8).collect();
        let next = lane.link(1);
        let sources = vec![Source::Link(link), Source::Block { index, sub_blocks: vec![0] }];
        let both = Matrix::from_fn(2, 2, |_, _| 1);
        let sinks = vec![Sink::Patch { index, sub_blocks: vec![0] }, Sink::Link(next)];
        self.stage(&mut lane, self.world.at(index), sources, &both, sinks);
        link = next;
        for parity in &parities {
            let coefficients = code.rows(&[*parity]).select_cols(&[column]);
            let mut sinks = vec![sink(WantKind::Patch, *parity, code.subs())];
            let source = vec![Source::Link(link)];
            let last = Some(parity) == parities.last();
            let matrix = if last { coefficients } else { coefficients.stack(&identity(1)) };
            if !last {
                link = lane.link(1);
                sinks.push(Sink::Link(link));
            }
            self.stage(&mut lane, self.world.at(*parity), source, &matrix, sinks);
        }
        self.lanes.push((lane.span, lane.lane));
    }

    /// A chain over all blocks that sums up the parity check.
    pub(crate) fn scrub(&mut self, span: Span, end: Party) {
        self.scrub_of(span, end, &self.world.code.parity_check());
    }

    /// The same for any sums, over the blocks that they contain.
    pub(crate) fn scrub_of(&mut self, span: Span, end: Party, check: &Matrix) {
        let (code, width) = (&self.world.code, check.rows());
        let mut lane = self.lane(span, 0, 1);
        let mut last = None;
        for index in 0..code.n as u8 {
            let share = check.select_cols(&code.columns(&[index]));
            if share.is_zero() {
                continue;
            }
            let block = Source::Block { index, sub_blocks: code.subs() };
            let (sources, matrix) = match last {
                Some(link) => (vec![Source::Link(link), block], identity(width).beside(&share)),
                None => (vec![block], share),
            };
            let link = lane.link(width);
            self.stage(&mut lane, self.world.at(index), sources, &matrix, vec![Sink::Link(link)]);
            last = Some(link);
        }
        let sinks = vec![Sink::Check { width: width as u32 }];
        self.stage(&mut lane, end, vec![Source::Link(last.unwrap())], &identity(width), sinks);
        self.lanes.push((lane.span, lane.lane));
    }
}

impl LaneBuild {
    pub(crate) fn link(&mut self, width: usize) -> u16 {
        self.lane.links.push(Link { from: u16::MAX, to: u16::MAX, width: width as u32, rank: 0 });
        (self.lane.links.len() - 1) as u16
    }
}

pub(crate) fn sink(kind: WantKind, index: u8, sub_blocks: Vec<u16>) -> Sink {
    match kind {
        WantKind::Store => Sink::Store { index, sub_blocks },
        WantKind::Patch => Sink::Patch { index, sub_blocks },
        WantKind::Output => Sink::Output { index, sub_blocks },
        WantKind::Check => unreachable!("a check has no block"),
    }
}

/// The job of [`Build::update`].
pub(crate) fn update_job(world: &World, span: Span, index: u8) -> Job {
    let code = &world.code;
    let mut wants = vec![Want { kind: WantKind::Patch, party: world.at(index), index, sub_blocks: vec![0], span }];
    wants.extend((code.k as u8..code.n as u8).map(|parity| world.want(WantKind::Patch, world.at(parity), parity, span)));
    Job {
        holds: world.holds(&[]),
        inputs: vec![Input { party: CLIENT, index }],
        changed: vec![Change { index, sub_block: 0, span }],
        wants,
    }
}

/// The job of [`Build::scrub`].
pub(crate) fn scrub_job(world: &World, end: Party) -> Job {
    scrub_job_of(world, end, world.span(), world.code.parity_check().rows())
}

/// The job of [`Build::scrub_of`], if all blocks are held.
pub(crate) fn scrub_job_of(world: &World, end: Party, span: Span, rows: usize) -> Job {
    let want = Want { kind: WantKind::Check, party: end, index: 0, sub_blocks: (0..rows as u16).collect(), span };
    Job { holds: world.holds(&[]), wants: vec![want], ..Job::default() }
}

/// The job of [`Build::direct`].
pub(crate) fn direct_job(world: &World) -> Job {
    let inputs = (0..world.code.k as u8).map(|index| Input { party: CLIENT, index }).collect();
    let wants = (0..world.code.n as u8).map(|index| world.want(WantKind::Store, world.at(index), index, world.span())).collect();
    let change = |index| (0..world.code.alpha as u16).map(move |sub_block| Change { index, sub_block, span: world.span() });
    Job { inputs, wants, changed: (0..world.code.k as u8).flat_map(change).collect(), ..Job::default() }
}
