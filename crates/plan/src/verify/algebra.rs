//! Runs the reference executor on blocks whose content is their generator rows.

use super::blame;
use super::structure::Changes;
use crate::executor::{Ends, Executor};
use crate::{CodeView, Lane, Place, Plan, Refusal, Rule, Sink, Source, limits};
use std::collections::BTreeMap;
use weft_gf::{Matrix, SparseMatrix};

/// Runs every lane once and checks that every sink carries exactly what it names.
pub(super) fn check(plan: &Plan, code: &CodeView<'_>, changes: &Changes, key: &ProofKey) -> Result<(), Refusal> {
    check_effort(plan, code, changes)?;
    for (number, changed) in changes.iter().enumerate() {
        let lane = &plan.shape.lanes[number];
        let mut executor = Executor::new(plan, number)?;
        let mut symbols = Symbols::new(code, changed).narrowed(lane, key, number);
        if let Err(wrong) = executor.run(symbols.row_len, &mut symbols) {
            let stages = blame::stages(lane, code, changed, &mut executor);
            return Err(refusal(plan, number, &wrong, &stages));
        }
        check_rows(plan, code, number, &mut executor)?;
    }
    Ok(())
}

fn check_effort(plan: &Plan, code: &CodeView<'_>, changes: &Changes) -> Result<(), Refusal> {
    let mut products = 0u64;
    for (lane, changed) in plan.shape.lanes.iter().zip(changes) {
        let row_len = Symbols::new(code, changed).narrowed_len(lane) as u64;
        let terms: u64 = lane.stages.iter().map(|stage| stage.matrix.steps().terms().len() as u64).sum();
        products = products.saturating_add(terms.saturating_mul(row_len));
        let links: u64 = lane.links.iter().map(|link| u64::from(link.width)).sum();
        let ports: u64 =
            lane.stages.iter().map(|stage| (stage.matrix.steps().rows() + stage.matrix.cols()) as u64).max().unwrap_or(0);
        // Whether a check proves something depends on all sub-blocks of all blocks.
        let checks = lane.stages.iter().flat_map(|stage| &stage.sinks).any(|sink| matches!(sink, Sink::Check { .. }));
        let row_bytes = if checks { row_len.max((code.n * code.alpha) as u64) } else { row_len };
        if (links + ports).saturating_mul(row_bytes) > limits::PROOF_LANE_BYTES_MAX {
            let message = format!("verifying a lane would need more than {} bytes", limits::PROOF_LANE_BYTES_MAX);
            return Err(Refusal::new(Rule::Limits, message));
        }
    }
    if products > limits::PROOF_PRODUCTS_MAX {
        let message = format!("verifying it would take {products} products: at most {} are allowed", limits::PROOF_PRODUCTS_MAX);
        return Err(Refusal::new(Rule::Limits, message));
    }
    Ok(())
}

/// A sink that carries something other than it names.
pub(super) struct Wrong {
    stage: usize,
    sink: Sink,
}

fn refusal(plan: &Plan, number: usize, wrong: &Wrong, stages: &[usize]) -> Refusal {
    let place = Place::stage(plan, number, wrong.stage);
    let what = match &wrong.sink {
        Sink::Link(link) => format!("link {link}"),
        Sink::Store { index, .. } => format!("the data stored as block {index}"),
        Sink::Patch { index, .. } => format!("the data patched into block {index}"),
        Sink::Output { index, .. } => format!("the data delivered as block {index}"),
        Sink::Check { .. } => "the sum checked for zero".into(),
    };
    let message = match stages {
        [] => format!("{what}, at {place}, is wrong"),
        [stage] if *stage == wrong.stage => format!("{what} is wrong: a coefficient of this stage is wrong"),
        [_] => format!("a coefficient of this stage is wrong: {what}, at {place}, is wrong"),
        _ => format!("a coefficient of one of these stages is wrong: {what}, at {place}, is wrong"),
    };
    let mut refusal = Refusal::new(Rule::Algebra, message);
    refusal.places = stages.iter().map(|stage| Place::stage(plan, number, *stage)).collect();
    refusal
}

/// Draws the random columns with which lanes are proved that are too large for a complete proof.
///
/// A wrong lane gives some sink a row that differs from the right one in at least one column. Multiplied by a random
/// column, the two are equal with a probability of 1/256; with 32 independently drawn columns, 256^-32. The columns are
/// drawn from the key by xoshiro256**, which has 256 bits of state and is not a cipher. So a plan that was made without
/// the key, by mistake or by another party, passes only with negligible probability (2^-64 is claimed, no more). A
/// party that knows the key can make a wrong plan that passes. No party of a plan learns the key; but the key is not
/// designed to resist a party that makes many plans and sees the verdicts.
#[derive(Clone, PartialEq, Eq)]
pub struct ProofKey([u64; 4]);

impl ProofKey {
    /// A public key: it protects only against mistakes, those of schemes and of memory, and is the same in every
    /// process.
    pub const PUBLIC: Self = Self([0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 1]);

    /// A key from secret random numbers.
    pub fn new(random: [u64; 4]) -> Self {
        Self(random)
    }

    /// Random bytes for a lane, by its number.
    fn columns(&self, lane: usize) -> impl FnMut() -> u8 + use<> {
        let [a, b, c, d] = self.0;
        // A state of all zeros would never change.
        let mut state = [a, b, c, d ^ (lane as u64).wrapping_add(1) << 1 | 1];
        let mut next = move || {
            let drawn = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
            let shifted = state[1] << 17;
            state[2] ^= state[0];
            state[3] ^= state[1];
            state[1] ^= state[2];
            state[0] ^= state[3];
            state[2] ^= shifted;
            state[3] = state[3].rotate_left(45);
            drawn
        };
        // Adjacent lanes start in similar states, which diverge quickly.
        for _ in 0..32 {
            next();
        }
        move || (next() >> 32) as u8
    }
}

impl std::fmt::Debug for ProofKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProofKey(secret)")
    }
}

/// Sub-blocks as combinations of [m | δ], one row each; or, if those rows would be too large, the rows times a matrix
/// of a few random columns: see [`ProofKey`].
pub(super) struct Symbols<'a> {
    code: &'a CodeView<'a>,
    /// The columns of m, followed by one for each changing column; or the random columns.
    pub(super) row_len: usize,
    delta_column: BTreeMap<u32, usize>,
    random: Option<Matrix>,
}

/// Rows of all stages' ports are complete up to this many bytes, and products up to this number.
const WHOLE_BYTES_MAX: usize = 64 << 20;
const WHOLE_PRODUCTS_MAX: usize = 1 << 31;
const RANDOM_COLUMNS: usize = 32;

#[derive(Clone, Copy, PartialEq)]
enum When {
    Before,
    After,
    Delta,
}

impl<'a> Symbols<'a> {
    pub(super) fn new(code: &'a CodeView<'a>, changed: &[usize]) -> Self {
        let columns = code.columns();
        let delta_column = changed.iter().enumerate().map(|(at, column)| (*column as u32, columns + at)).collect();
        Self { code, row_len: columns + changed.len(), delta_column, random: None }
    }

    /// Uses random columns if this lane's rows would be too large. They depend only on the key and the lane's number,
    /// so a plan is always proved in the same way.
    fn narrowed(mut self, lane: &Lane, key: &ProofKey, number: usize) -> Self {
        if self.narrowed_len(lane) < self.row_len {
            let mut draw = key.columns(number);
            self.random = Some(Matrix::from_fn(self.row_len, RANDOM_COLUMNS, |_, _| draw()));
            self.row_len = RANDOM_COLUMNS;
        }
        self
    }

    /// The number of columns after that.
    fn narrowed_len(&self, lane: &Lane) -> usize {
        let rows: usize = lane.stages.iter().map(|stage| stage.matrix.steps().rows() + stage.matrix.cols()).sum();
        let terms: usize = lane.stages.iter().map(|stage| stage.matrix.steps().terms().len()).sum();
        let (bytes, products) = (rows.saturating_mul(self.row_len), terms.saturating_mul(self.row_len));
        let is_large = bytes > WHOLE_BYTES_MAX || products > WHOLE_PRODUCTS_MAX;
        if is_large { RANDOM_COLUMNS.min(self.row_len) } else { self.row_len }
    }

    fn fill(&self, index: u8, sub_blocks: &[u16], when: When, rows: &mut [u8]) {
        let terms = sub_blocks.iter().enumerate().flat_map(|(row, sub_block)| {
            self.code.row(index, *sub_block).iter().flat_map(move |(_, column, coefficient)| {
                let before = (when != When::Delta).then_some(*column as usize);
                let delta = if when == When::Before { None } else { self.delta_column.get(column).copied() };
                before.into_iter().chain(delta).map(move |column| (row, column, *coefficient))
            })
        });
        let Some(random) = &self.random else {
            rows.fill(0);
            terms.for_each(|(row, column, coefficient)| rows[row * self.row_len + column] = coefficient);
            return;
        };
        let projected = SparseMatrix::new(sub_blocks.len(), random.rows(), terms).map(|terms| terms.times(random));
        for (at, row) in rows.chunks_exact_mut(self.row_len).enumerate() {
            match &projected {
                Some(projected) => row.copy_from_slice(projected.row(at)),
                None => row.fill(0),
            }
        }
    }

    /// The rows of a source.
    pub(super) fn source(&self, source: &Source, rows: &mut [u8]) {
        match source {
            Source::Link(_) => {}
            Source::Block { index, sub_blocks } => self.fill(*index, sub_blocks, When::Before, rows),
            Source::Input { index, sub_blocks, delta: true } => self.fill(*index, sub_blocks, When::Delta, rows),
            Source::Input { index, sub_blocks, delta: false } => self.fill(*index, sub_blocks, When::After, rows),
        }
    }

    /// The rows that a sink must carry.
    pub(super) fn sink(&self, sink: &Sink, rows: &mut [u8]) {
        match sink {
            Sink::Link(_) => {}
            Sink::Check { .. } => rows.fill(0),
            Sink::Patch { index, sub_blocks } => self.fill(*index, sub_blocks, When::Delta, rows),
            Sink::Store { index, sub_blocks } | Sink::Output { index, sub_blocks } => {
                self.fill(*index, sub_blocks, When::After, rows);
            }
        }
    }
}

impl Ends for Symbols<'_> {
    type Error = Wrong;

    fn read(&mut self, _: usize, source: &Source, _: usize, rows: &mut [u8]) -> Result<(), Wrong> {
        self.source(source, rows);
        Ok(())
    }

    fn emit(&mut self, stage: usize, sink: &Sink, _: usize, rows: &[u8]) -> Result<(), Wrong> {
        let mut right = vec![0; rows.len()];
        self.sink(sink, &mut right);
        if right == rows { Ok(()) } else { Err(Wrong { stage, sink: sink.clone() }) }
    }
}

/// Zeros prove nothing by themselves: with the sub-blocks that are read as free variables, the rows of the lane's checks
/// must be independent, and if any one block that is read is wrong, however wrong, they must not all stay zero. The
/// binding's rules see to it that every held block is read.
fn check_rows(plan: &Plan, code: &CodeView<'_>, number: usize, executor: &mut Executor<'_>) -> Result<(), Refusal> {
    let lane = &plan.shape.lanes[number];
    let Some(at) = lane.stages.iter().position(|stage| stage.sinks.iter().any(|sink| matches!(sink, Sink::Check { .. }))) else {
        return Ok(());
    };
    let refuse = |message: String| Err(Refusal::new(Rule::Check, message).at(Place::stage(plan, number, at)));
    let Some(mut free) = Free::new(lane) else {
        return refuse("a check of new data proves nothing about the stored blocks".into());
    };
    let row_len = free.variables.len();
    // The executor cannot fail here, because these ends never do.
    let Ok(()) = executor.run(row_len, &mut free);
    let rows = free.checks.chunks_exact(row_len.max(1)).collect::<Vec<_>>();
    // More rows than variables are always dependent.
    let checks = Matrix::from_fn(rows.len().min(row_len + 1), row_len, |r, c| rows[r][c]);
    let (mut rank, mut unseen) = (0, None);
    let variables: Vec<((u8, u16), usize)> = free.variables.into_iter().collect();
    for block in variables.chunk_by(|a, b| a.0.0 == b.0.0) {
        let columns: Vec<usize> = block.iter().map(|(_, column)| *column).collect();
        let of_block = checks.select_cols(&columns).rank();
        rank = rank.max(of_block);
        if of_block < code.alpha {
            unseen = unseen.or(Some(block[0].0.0));
        }
    }
    // A block with as many independent columns as there are rows proves that these are independent too.
    if rank < rows.len() && checks.rank() < rows.len() {
        return refuse("the check's rows depend on each other, so it proves less than it declares".into());
    }
    match unseen {
        Some(index) => refuse(format!("the check does not cover all of block {index}, which could be wrong undetected")),
        None => Ok(()),
    }
}

/// The sub-blocks that a lane reads, as free variables.
struct Free {
    variables: BTreeMap<(u8, u16), usize>,
    checks: Vec<u8>,
}

impl Free {
    /// `None` if an input is not a stored block.
    fn new(lane: &Lane) -> Option<Self> {
        let mut variables = BTreeMap::new();
        for source in lane.stages.iter().flat_map(|stage| &stage.sources) {
            match source {
                Source::Link(_) => {}
                Source::Input { .. } => return None,
                Source::Block { index, sub_blocks } => {
                    for sub_block in sub_blocks {
                        let next = variables.len();
                        variables.entry((*index, *sub_block)).or_insert(next);
                    }
                }
            }
        }
        Some(Self { variables, checks: Vec::new() })
    }
}

impl Ends for Free {
    type Error = std::convert::Infallible;

    fn read(&mut self, _: usize, source: &Source, row_len: usize, rows: &mut [u8]) -> Result<(), Self::Error> {
        if let Source::Block { index, sub_blocks } = source {
            for (sub_block, row) in sub_blocks.iter().zip(rows.chunks_exact_mut(row_len)) {
                if let Some(column) = self.variables.get(&(*index, *sub_block)) {
                    row[*column] = 1;
                }
            }
        }
        Ok(())
    }

    fn emit(&mut self, _: usize, sink: &Sink, _: usize, rows: &[u8]) -> Result<(), Self::Error> {
        if matches!(sink, Sink::Check { .. }) {
            self.checks.extend_from_slice(rows);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_follow_the_generator() {
        let generator = weft_gf::SparseMatrix::new(3, 2, [(0, 0, 1), (1, 1, 1), (2, 0, 7), (2, 1, 9)]).unwrap();
        let code = CodeView { spec: "xy", k: 2, n: 3, alpha: 1, generator: &generator, tolerance: 1 };
        let symbols = Symbols::new(&code, &[1]);
        let mut row = [0; 3];
        for (when, expected) in [(When::Before, [7, 9, 0]), (When::After, [7, 9, 9]), (When::Delta, [0, 0, 9])] {
            symbols.fill(2, &[0], when, &mut row);
            assert_eq!(row, expected);
        }
    }
}
