//! Cuts a matrix into passes and applies them to slices.

use super::{
    Kernel, Usable,
    mirror::{Arrangement, Mirror},
    pass::{AFFINE, Factors, NIBBLES, Nibbles, PASS_ROWS_MAX, PASS_SOURCES_MAX, Pass, Work},
    schedule::Schedule,
};
use crate::{Factored, Matrix, SparseMatrix};
use std::{mem, ops::Range};

/// A matrix prepared for a kernel: built once, applied to many slices.
///
/// Rows that share most of their sources are computed together, in one pass over those sources; other rows are computed
/// one by one, over their own sources. Rows of ones are sums without products; rows with a single one are copies. If
/// there are several passes, they process the slices in pieces that stay in the cache; temporaries live for one piece.
#[derive(Debug, Clone)]
pub struct Combination {
    kernel: Usable,
    rows: usize,
    cols: usize,
    /// The number of slots for temporaries, each as long as a piece.
    slots: usize,
    steps: Vec<Step>,
    piece_bytes: usize,
}

/// A pass over part of a matrix.
#[derive(Debug, Clone)]
struct Step {
    /// Rows of the result, or slots.
    rows: Vec<usize>,
    into_slots: bool,
    /// Sources of the combination, and then slots.
    sources: Vec<usize>,
    work: StepWork,
    /// Whether the previous step has started the rows.
    continues: bool,
}

#[derive(Debug, Clone)]
enum StepWork {
    /// The row is zero.
    Clear,
    Xor,
    Products(Box<Products>),
}

#[derive(Debug, Clone)]
struct Products {
    coefficients: Vec<u8>,
    constants: Constants,
    mirror: Option<(Arrangement, Constants)>,
}

/// Coefficients in the form that the kernel needs; the other form is empty.
#[derive(Debug, Clone, Default)]
struct Constants {
    affine: Vec<u64>,
    nibbles: Vec<Nibbles>,
}

/// How much time building a combination may take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Search an order of rows and sources that needs fewer products.
    Arrange,
    AsItIs,
}

/// The most bytes that all passes over one piece touch: half of a small second-level cache.
const PIECES_TOUCHED_BYTES: usize = 256 << 10;
/// Larger matrices are not searched for mirrors: the search would take longer than a slice.
const ARRANGED_ELEMENTS_MAX: usize = 8 << 10;
/// In shorter pieces, starting a pass costs more than the cache saves.
const PIECE_BYTES_MIN: usize = 4 << 10;
/// Padding between slots: at strides that are powers of two they would contend for the same cache lines.
const SLOT_PAD_BYTES: usize = 64;

impl Combination {
    /// For the best kernel of this machine.
    pub fn new(matrix: &SparseMatrix) -> Self {
        Self::with_kernel(Kernel::best(), matrix)
    }

    /// For one kernel; if it does not run on this machine, for the scalar one.
    pub fn with_kernel(kernel: Kernel, matrix: &SparseMatrix) -> Self {
        let arrange = matrix.rows().saturating_mul(matrix.cols()) <= ARRANGED_ELEMENTS_MAX;
        Self::prepare(kernel, matrix, if arrange { Effort::Arrange } else { Effort::AsItIs })
    }

    /// For the best kernel and a matrix that is applied once: fast to build, slightly slower to apply.
    pub(crate) fn for_once(matrix: &SparseMatrix) -> Self {
        Self::prepare(Kernel::best(), matrix, Effort::AsItIs)
    }

    /// For the best kernel, with temporaries.
    pub fn factored(map: &Factored) -> Self {
        Self::factored_with_kernel(Kernel::best(), map)
    }

    /// For one kernel, with temporaries; if it does not run on this machine, for the scalar one.
    pub fn factored_with_kernel(kernel: Kernel, map: &Factored) -> Self {
        if let Some(matrix) = map.as_matrix() {
            return Self::with_kernel(kernel, matrix);
        }
        let schedule = Schedule::of(map);
        let mut steps = Vec::new();
        for batch in schedule.batches(map) {
            for mut step in Self::with_kernel(kernel, &batch.matrix).steps {
                step.rows.iter_mut().for_each(|row| *row = batch.rows[*row]);
                step.into_slots = batch.into_slots;
                steps.push(step);
            }
        }
        let (kernel, slots, piece_bytes) = (Usable::or_scalar(kernel), schedule.slots, factored_piece_bytes(map, &schedule));
        Self { kernel, rows: map.rows(), cols: map.cols(), slots, steps, piece_bytes }
    }

    /// The bytes of temporaries in an application to slices of `len` bytes.
    pub fn scratch_bytes(map: &Factored, len: u64) -> u64 {
        let schedule = Schedule::of(map);
        let piece = factored_piece_bytes(map, &schedule) as u64;
        (schedule.slots as u64).saturating_mul(piece.min(len).saturating_add(SLOT_PAD_BYTES as u64))
    }

    fn prepare(kernel: Kernel, matrix: &SparseMatrix, effort: Effort) -> Self {
        let kernel = Usable::or_scalar(kernel);
        let mut builder = Builder { kernel, matrix, effort, steps: Vec::new() };
        runs(matrix).into_iter().for_each(|run| builder.push(run));
        let steps = builder.steps;
        let touched = steps.iter().map(|step| step.sources.len()).sum::<usize>().min(matrix.cols()) + matrix.rows();
        let piece_bytes = if steps.len() > 1 { piece_bytes(touched) } else { usize::MAX };
        Self { kernel, rows: matrix.rows(), cols: matrix.cols(), slots: 0, steps, piece_bytes }
    }

    /// `out = M × sources`. The previous content of `out` does not matter.
    ///
    /// # Panics
    /// If there are not `cols` sources and `rows` outputs, all slices of the same length.
    pub fn apply(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        self.run(sources, out, Write { add: false, stream: false });
    }

    /// Like [`apply`](Self::apply), for outputs that are not read soon: they are written past the caches if the kernel
    /// can and all outputs have the same alignment to 64 bytes. Faster for data larger than the caches, otherwise
    /// slower.
    pub fn apply_streaming(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        self.run(sources, out, Write { add: false, stream: true });
    }

    /// `out ^= M × sources`, with slices as for [`apply`](Self::apply).
    pub fn accumulate(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        self.run(sources, out, Write { add: true, stream: false });
    }

    fn run(&self, sources: &[&[u8]], out: &mut [&mut [u8]], write: Write) {
        assert_eq!(
            (sources.len(), out.len()),
            (self.cols, self.rows),
            "the numbers of sources and outputs must match the matrix"
        );
        let Some(len) = out.first().map(|row| row.len()) else { return };
        assert!(sources.iter().all(|source| source.len() == len), "sources as long as the outputs");
        assert!(out.iter().all(|row| row.len() == len), "outputs must have one length");
        let stride = len.min(self.piece_bytes).saturating_add(SLOT_PAD_BYTES);
        let mut scratch = vec![0; self.slots * stride];
        let mut slots: Vec<&mut [u8]> = scratch.chunks_exact_mut(stride).collect();
        let mut at = 0;
        while at < len {
            let end = len.min(at.saturating_add(self.piece_bytes));
            let mut piece = Piece { kernel: self.kernel, sources, slots: &mut slots, out, range: at..end };
            self.steps.iter().for_each(|step| step.run(&mut piece, write));
            at = end;
        }
    }
}

/// The data that the steps process at once.
struct Piece<'a, 's, 'o> {
    kernel: Usable,
    sources: &'a [&'a [u8]],
    /// At least as long as the range.
    slots: &'a mut [&'s mut [u8]],
    out: &'a mut [&'o mut [u8]],
    /// The range of the sources and outputs.
    range: Range<usize>,
}

fn factored_piece_bytes(map: &Factored, schedule: &Schedule) -> usize {
    piece_bytes(map.rows() + map.cols() + schedule.slots)
}

/// The length of a piece, if `touched` sources and outputs are processed several times.
fn piece_bytes(touched: usize) -> usize {
    (PIECES_TOUCHED_BYTES / touched.max(1) / PIECE_BYTES_MIN).max(1) * PIECE_BYTES_MIN
}

/// How results are written; see [`Pass`].
#[derive(Clone, Copy)]
struct Write {
    add: bool,
    stream: bool,
}

impl Step {
    fn run(&self, piece: &mut Piece<'_, '_, '_>, write: Write) {
        match self.rows[..] {
            [row] => self.run_rows(piece, [row], write),
            [a, b] => self.run_rows(piece, [a, b], write),
            [a, b, c] => self.run_rows(piece, [a, b, c], write),
            [a, b, c, d] => self.run_rows(piece, [a, b, c, d], write),
            _ => unreachable!("a step of {} rows", self.rows.len()),
        }
    }

    #[inline]
    fn run_rows<const M: usize>(&self, piece: &mut Piece<'_, '_, '_>, rows: [usize; M], write: Write) {
        let Piece { kernel, sources, slots, out, range } = piece;
        // Slots that are written are never read in the same step, so they are taken out for its duration.
        let mut taken = rows.map(|row| if self.into_slots { mem::take(&mut slots[row]) } else { Default::default() });
        let mut from = [&[][..]; PASS_SOURCES_MAX];
        for (slice, source) in from.iter_mut().zip(&self.sources) {
            *slice = match source.checked_sub(sources.len()) {
                None => &sources[*source][range.clone()],
                Some(slot) => &slots[slot][..range.len()],
            };
        }
        let from = &from[..self.sources.len()];
        if self.into_slots {
            let fresh = Write { add: false, stream: false };
            self.pass(*kernel, from, taken.each_mut().map(|slot| &mut slot[..range.len()]), fresh);
            rows.into_iter().zip(taken).for_each(|(row, slot)| slots[row] = slot);
        } else {
            let Ok(outs) = out.get_disjoint_mut(rows) else { unreachable!("rows of a step are distinct") };
            self.pass(*kernel, from, outs.map(|row| &mut row[range.clone()]), write);
        }
    }

    #[inline]
    fn pass<'s, const M: usize>(&self, kernel: Usable, from: &[&'s [u8]], mut outs: [&'s mut [u8]; M], write: Write) {
        let add = write.add || self.continues;
        let work = match &self.work {
            StepWork::Clear if add => return,
            StepWork::Clear => return outs[0].fill(0),
            StepWork::Xor if from.len() == 1 && !add && !write.stream => return outs[0].copy_from_slice(from[0]),
            StepWork::Xor => Work::Xor,
            StepWork::Products(products) => Work::Products(products.factors()),
        };
        kernel.run(Pass { work, sources: from, outs: &mut outs, add, stream: write.stream });
    }
}

/// Consecutive rows that share most of their sources.
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

/// Whether a row can be computed together with others: it is neither zero nor a copy.
fn is_fused(terms: &[(u32, u32, u8)]) -> bool {
    match terms {
        [] => false,
        [(_, _, coefficient)] => *coefficient != 1,
        _ => true,
    }
}

/// Builds steps from runs.
struct Builder<'a> {
    kernel: Usable,
    matrix: &'a SparseMatrix,
    effort: Effort,
    steps: Vec<Step>,
}

impl Builder<'_> {
    fn push(&mut self, run: Run) {
        if run.rows.clone().all(|row| self.matrix.row(row).iter().all(|term| term.2 == 1)) {
            run.rows.for_each(|row| self.push_plain(row));
            return;
        }
        let rows: Vec<usize> = run.rows.collect();
        for (part, sources) in even_parts(&run.sources, PASS_SOURCES_MAX).enumerate() {
            // All rows read the same sources while these are in the cache.
            for rows in even_parts(&rows, PASS_ROWS_MAX) {
                let step = self.products(rows, sources, part > 0);
                self.steps.push(step);
            }
        }
    }

    /// Adds a row of ones.
    fn push_plain(&mut self, row: usize) {
        let sources: Vec<usize> = self.matrix.row(row).iter().map(|term| term.1 as usize).collect();
        if sources.is_empty() {
            self.steps.push(Step { rows: vec![row], sources, into_slots: false, work: StepWork::Clear, continues: false });
            return;
        }
        for (part, sources) in even_parts(&sources, PASS_SOURCES_MAX).enumerate() {
            let sources = sources.to_vec();
            self.steps.push(Step { rows: vec![row], sources, into_slots: false, work: StepWork::Xor, continues: part > 0 });
        }
    }

    /// The step for some rows and sources, in the order with the fewest products.
    fn products(&self, rows: &[usize], sources: &[usize], continues: bool) -> Step {
        let mut dense = self.part(rows, sources);
        let (mut rows, mut sources) = (rows.to_vec(), sources.to_vec());
        let arrangement = if self.effort == Effort::Arrange { Arrangement::of(&dense) } else { None };
        let mirror = arrangement.map(|arrangement| {
            dense = dense.select_rows(&arrangement.rows).select_cols(&arrangement.sources);
            rows = arrangement.rows.iter().map(|row| rows[*row]).collect();
            sources = arrangement.sources.iter().map(|source| sources[*source]).collect();
            let constants = Constants::of(self.kernel, &arrangement.constants);
            (arrangement, constants)
        });
        let transposed = dense.transpose();
        let coefficients = (0..transposed.rows()).flat_map(|source| transposed.row(source)).copied().collect::<Vec<u8>>();
        let constants = Constants::of(self.kernel, &coefficients);
        Step {
            rows,
            into_slots: false,
            sources,
            work: StepWork::Products(Box::new(Products { coefficients, constants, mirror })),
            continues,
        }
    }

    /// The coefficients of some rows and sources, both ascending.
    fn part(&self, rows: &[usize], sources: &[usize]) -> Matrix {
        let mut part = Matrix::zero(rows.len(), sources.len());
        for (m, row) in rows.iter().enumerate() {
            let terms = self.matrix.row(*row);
            let first = terms.partition_point(|term| sources.first().is_some_and(|source| (term.1 as usize) < *source));
            let within = |term: &&(u32, u32, u8)| sources.last().is_some_and(|source| term.1 as usize <= *source);
            for (_, col, coefficient) in terms[first..].iter().take_while(within) {
                if let Ok(k) = sources.binary_search(&(*col as usize)) {
                    part.set(m, k, *coefficient);
                }
            }
        }
        part
    }
}

/// Splits `all` into as few parts as `len_max` allows, as even as possible.
pub(super) fn even_parts(all: &[usize], len_max: usize) -> impl Iterator<Item = &[usize]> {
    let parts = all.len().div_ceil(len_max);
    (0..parts).map(move |part| &all[all.len() * part / parts..all.len() * (part + 1) / parts])
}

impl Products {
    fn factors(&self) -> Factors<'_> {
        let Constants { affine, nibbles } = &self.constants;
        let mirror = self.mirror.as_ref().map(|(arrangement, Constants { affine, nibbles })| Mirror {
            quads: arrangement.quads,
            pairs: arrangement.pairs,
            affine,
            nibbles,
        });
        Factors { coefficients: &self.coefficients, affine, nibbles, mirror }
    }
}

impl Constants {
    fn of(kernel: Usable, coefficients: &[u8]) -> Self {
        let indices = coefficients.iter().map(|coefficient| usize::from(*coefficient));
        match kernel.0 {
            Kernel::Gfni => Self { affine: indices.map(|index| AFFINE[index]).collect(), nibbles: Vec::new() },
            Kernel::Ssse3 | Kernel::Avx2 | Kernel::Neon => {
                Self { nibbles: indices.map(|index| NIBBLES[index]).collect(), affine: Vec::new() }
            }
            Kernel::Naive | Kernel::Scalar => Self::default(),
        }
    }
}

/// `dst ^= factor · src`, over the length of the shorter: a step of Gaussian elimination.
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
