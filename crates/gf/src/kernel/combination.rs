//! A matrix, cut into passes and applied to slices.

use super::{
    Kernel, Usable,
    mirror::Arrangement,
    pass::{AFFINE, Factors, NIBBLES, Nibbles, PASS_ROWS_MAX, PASS_SOURCES_MAX, Pass, Work},
};
use crate::{Matrix, SparseMatrix};
use std::ops::Range;

/// A matrix made ready for a kernel: built once, applied to many slices.
///
/// Rows that have most of their sources in common are computed together, in one pass over those sources; other rows one by
/// one, over their own sources only. Rows of ones are sums without products, rows with a single one are copies. Where there
/// are several passes, they go over the slices in pieces that stay in the cache.
#[derive(Debug, Clone)]
pub struct Combination {
    kernel: Usable,
    rows: usize,
    cols: usize,
    steps: Vec<Step>,
    piece_bytes: usize,
}

/// A pass, as a matrix says it.
#[derive(Debug, Clone)]
struct Step {
    rows: Vec<usize>,
    sources: Vec<usize>,
    work: StepWork,
    /// Whether the rows have been begun by the step before.
    continues: bool,
}

#[derive(Debug, Clone)]
enum StepWork {
    /// The row is zero.
    Clear,
    Xor,
    Products(Products),
}

#[derive(Debug, Clone)]
struct Products {
    coefficients: Vec<u8>,
    affine: Vec<u64>,
    nibbles: Vec<Nibbles>,
    arrangement: Option<Arrangement>,
}

/// What all passes over one piece touch should stay within this: half of a small second-level cache.
const PIECES_TOUCHED_BYTES: usize = 256 << 10;
/// Shorter pieces than this cost more in passes begun than they save.
const PIECE_BYTES_MIN: usize = 2 << 10;

impl Combination {
    /// For the best kernel of this machine.
    pub fn new(matrix: &SparseMatrix) -> Self {
        Self::with_kernel(Kernel::best(), matrix)
    }

    /// For one kernel; if it does not run on this machine, for the scalar one.
    pub fn with_kernel(kernel: Kernel, matrix: &SparseMatrix) -> Self {
        let kernel = Usable::or_scalar(kernel);
        let mut steps = Vec::new();
        for run in runs(matrix) {
            push_steps(&mut steps, matrix, run);
        }
        let touched = steps.iter().map(|step| step.sources.len()).sum::<usize>().min(matrix.cols()) + matrix.rows();
        let piece_bytes = match steps.len() {
            0 | 1 => usize::MAX,
            _ => (PIECES_TOUCHED_BYTES / touched / PIECE_BYTES_MIN).max(1) * PIECE_BYTES_MIN,
        };
        Self { kernel, rows: matrix.rows(), cols: matrix.cols(), steps, piece_bytes }
    }

    /// `out = M × sources`. What is in `out` before does not matter.
    ///
    /// # Panics
    /// Unless there are `cols` sources and `rows` outputs, all slices of the same length.
    pub fn apply(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        self.run(sources, out, Write { add: false, stream: false });
    }

    /// As [`apply`](Self::apply), for outputs that will not be read soon: they are written past the caches where the kernel
    /// can and the outputs are aligned alike to 64 bytes. Faster for what is larger than the caches, else slower.
    pub fn apply_streaming(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        self.run(sources, out, Write { add: false, stream: true });
    }

    /// `out ^= M × sources`, with slices as for [`apply`](Self::apply).
    pub fn accumulate(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        self.run(sources, out, Write { add: true, stream: false });
    }

    fn run(&self, sources: &[&[u8]], out: &mut [&mut [u8]], write: Write) {
        assert_eq!((sources.len(), out.len()), (self.cols, self.rows), "the matrix's shape");
        let Some(len) = out.first().map(|row| row.len()) else { return };
        assert!(sources.iter().all(|source| source.len() == len), "sources as long as the outputs");
        assert!(out.iter().all(|row| row.len() == len), "outputs of one length");
        let mut at = 0;
        while at < len {
            let end = len.min(at.saturating_add(self.piece_bytes));
            for step in &self.steps {
                step.run(self.kernel, sources, out, at..end, write);
            }
            at = end;
        }
    }
}

/// How results are written; see [`Pass`].
#[derive(Clone, Copy)]
struct Write {
    add: bool,
    stream: bool,
}

impl Step {
    fn run(&self, kernel: Usable, sources: &[&[u8]], out: &mut [&mut [u8]], range: Range<usize>, write: Write) {
        match self.rows[..] {
            [row] => self.run_rows(kernel, sources, out, [row], range, write),
            [a, b] => self.run_rows(kernel, sources, out, [a, b], range, write),
            [a, b, c] => self.run_rows(kernel, sources, out, [a, b, c], range, write),
            [a, b, c, d] => self.run_rows(kernel, sources, out, [a, b, c, d], range, write),
            _ => unreachable!("a step of {} rows", self.rows.len()),
        }
    }

    #[inline]
    fn run_rows<const M: usize>(
        &self,
        kernel: Usable,
        sources: &[&[u8]],
        out: &mut [&mut [u8]],
        rows: [usize; M],
        range: Range<usize>,
        write: Write,
    ) {
        let Ok(outs) = out.get_disjoint_mut(rows) else { unreachable!("rows of a step are distinct") };
        let mut outs = outs.map(|row| &mut row[range.clone()]);
        let mut from = [&[][..]; PASS_SOURCES_MAX];
        for (slice, source) in from.iter_mut().zip(&self.sources) {
            *slice = &sources[*source][range.clone()];
        }
        let add = write.add || self.continues;
        let work = match &self.work {
            StepWork::Clear if add => return,
            StepWork::Clear => return outs[0].fill(0),
            StepWork::Xor if self.sources.len() == 1 && !add && !write.stream => return outs[0].copy_from_slice(from[0]),
            StepWork::Xor => Work::Xor,
            StepWork::Products(products) => Work::Products(products.factors()),
        };
        kernel.run(Pass { work, sources: &from[..self.sources.len()], outs: &mut outs, add, stream: write.stream });
    }
}

/// Rows that follow each other and have most of their sources in common.
pub(super) struct Run {
    pub(super) rows: Range<usize>,
    /// All their sources, ascending.
    pub(super) sources: Vec<usize>,
}

/// The matrix's rows in runs in which at least three of four coefficients are not zero.
pub(super) fn runs(matrix: &SparseMatrix) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut terms = 0;
    let mut in_run = vec![usize::MAX; matrix.cols()];
    for row in 0..matrix.rows() {
        let of_row = matrix.row(row);
        if let Some(run) = runs.last_mut().filter(|run| is_fused(matrix.row(run.rows.start)) && is_fused(of_row)) {
            let added = of_row.iter().filter(|term| in_run[term.1 as usize] != run.rows.start).count();
            if (terms + of_row.len()) * 4 >= (run.sources.len() + added) * (run.rows.len() + 1) * 3 {
                terms += of_row.len();
                for term in of_row {
                    if in_run[term.1 as usize] != run.rows.start {
                        in_run[term.1 as usize] = run.rows.start;
                        run.sources.push(term.1 as usize);
                    }
                }
                run.rows.end = row + 1;
                continue;
            }
        }
        terms = of_row.len();
        of_row.iter().for_each(|term| in_run[term.1 as usize] = row);
        runs.push(Run { rows: row..row + 1, sources: of_row.iter().map(|term| term.1 as usize).collect() });
    }
    runs.iter_mut().for_each(|run| run.sources.sort_unstable());
    runs
}

/// Whether a row may be computed together with others: it is neither zero nor a copy.
fn is_fused(terms: &[(u32, u32, u8)]) -> bool {
    match terms {
        [] => false,
        [(_, _, coefficient)] => *coefficient != 1,
        _ => true,
    }
}

fn push_steps(steps: &mut Vec<Step>, matrix: &SparseMatrix, run: Run) {
    let plain = run.rows.clone().all(|row| matrix.row(row).iter().all(|term| term.2 == 1));
    if plain {
        for row in run.rows {
            let sources: Vec<usize> = matrix.row(row).iter().map(|term| term.1 as usize).collect();
            if sources.is_empty() {
                steps.push(Step { rows: vec![row], sources, work: StepWork::Clear, continues: false });
                continue;
            }
            for (part, sources) in even_parts(&sources, PASS_SOURCES_MAX).enumerate() {
                let sources = sources.to_vec();
                steps.push(Step { rows: vec![row], sources, work: StepWork::Xor, continues: part > 0 });
            }
        }
        return;
    }
    let rows: Vec<usize> = run.rows.collect();
    for rows in even_parts(&rows, PASS_ROWS_MAX) {
        for (part, sources) in even_parts(&run.sources, PASS_SOURCES_MAX).enumerate() {
            steps.push(products(matrix, rows, sources, part > 0));
        }
    }
}

/// The parts of `all`, as few as `len_max` allows and as even as can be.
pub(super) fn even_parts(all: &[usize], len_max: usize) -> impl Iterator<Item = &[usize]> {
    let parts = all.len().div_ceil(len_max);
    (0..parts).map(move |part| &all[all.len() * part / parts..all.len() * (part + 1) / parts])
}

/// The step for some rows and sources, in the order in which they need the fewest products.
fn products(matrix: &SparseMatrix, rows: &[usize], sources: &[usize], continues: bool) -> Step {
    let mut dense = Matrix::zero(rows.len(), sources.len());
    for (m, row) in rows.iter().enumerate() {
        for (_, col, coefficient) in matrix.row(*row) {
            if let Ok(k) = sources.binary_search(&(*col as usize)) {
                dense.set(m, k, *coefficient);
            }
        }
    }
    let arrangement = Arrangement::of(&dense);
    let (mut rows, mut sources) = (rows.to_vec(), sources.to_vec());
    if let Some(arrangement) = &arrangement {
        dense = dense.select_rows(&arrangement.rows).select_cols(&arrangement.sources);
        rows = arrangement.rows.iter().map(|row| rows[*row]).collect();
        sources = arrangement.sources.iter().map(|source| sources[*source]).collect();
    }
    let coefficients: Vec<u8> =
        (0..sources.len()).flat_map(|k| (0..rows.len()).map(move |m| (m, k))).map(|(m, k)| dense.get(m, k)).collect();
    let affine = coefficients.iter().map(|c| AFFINE[usize::from(*c)]).collect();
    let nibbles = coefficients.iter().map(|c| NIBBLES[usize::from(*c)]).collect();
    Step { rows, sources, work: StepWork::Products(Products { coefficients, affine, nibbles, arrangement }), continues }
}

impl Products {
    fn factors(&self) -> Factors<'_> {
        Factors {
            coefficients: &self.coefficients,
            affine: &self.affine,
            nibbles: &self.nibbles,
            mirror: self.arrangement.as_ref().map(Arrangement::mirror),
        }
    }
}

/// `dst ^= factor · src`, over the length of the shorter: the step of Gaussian elimination.
pub(crate) fn add_scaled(dst: &mut [u8], src: &[u8], factor: u8) {
    let len = dst.len().min(src.len());
    if len > 0 && factor != 0 {
        let work = Work::Products(Factors::single(factor));
        Usable::or_scalar(Kernel::best()).run(Pass {
            work,
            sources: &[&src[..len]],
            outs: &mut [&mut dst[..len]],
            add: true,
            stream: false,
        });
    }
}
