//! Finds the wrong stage, if possible.
//!
//! Stage j alone can be wrong only if some other matrix in it would correct every sink of the lane. Let S be its
//! inputs, T the dependence of the sinks on its outputs, and E the error of the sinks: then `T·Δ·S = E` must have a
//! solution Δ. It has one exactly if the columns of E are in the span of T's columns and the rows of E are in the span
//! of S's rows.

use super::algebra::Symbols;
use crate::executor::{Ends, Executor};
use crate::{CodeView, Lane, Sink, Source};
use std::convert::Infallible;
use weft_gf::{Matrix, SparseMatrix, field};

/// The most elements of the matrices that are reduced, over all stages; beyond that, only the sink is named.
const REDUCED_ELEMENTS_MAX: usize = 1 << 22;

/// The stages any one of which alone could be wrong, ascending; empty if that cannot be determined.
pub(super) fn stages(lane: &Lane, code: &CodeView<'_>, changed: &[usize], executor: &mut Executor<'_>) -> Vec<usize> {
    // For a check, the cause of a wrong result cannot be determined: zeros are right wherever they come from.
    if lane.stages.iter().flat_map(|stage| &stage.sinks).any(|sink| matches!(sink, Sink::Check { .. })) {
        return Vec::new();
    }
    let symbols = Symbols::new(code, changed);
    let row_len = symbols.row_len;
    let sink_rows: usize = lane.stages.iter().flat_map(|stage| &stage.sinks).map(|sink| emitted(lane, sink)).sum();
    let elements = |stage: &crate::Stage| {
        let (rows, cols) = (stage.matrix.rows(), stage.matrix.cols());
        let of_sinks = sink_rows.saturating_mul(rows + cols + row_len + stage.matrix.steps().terms().len());
        of_sinks.saturating_add(cols.saturating_mul(row_len))
    };
    if lane.stages.iter().map(elements).fold(0, usize::saturating_add) > REDUCED_ELEMENTS_MAX {
        return Vec::new();
    }
    let mut trace = Trace { symbols, sources: vec![Vec::new(); lane.stages.len()], errors: Vec::new() };
    // These ends never fail.
    let Ok(()) = executor.run(row_len, &mut trace);
    trace.errors.sort_unstable_by_key(|(stage, _)| *stage);
    let errors: Vec<u8> = trace.errors.into_iter().flat_map(|(_, rows)| rows).collect();
    let errors = matrix(&errors, row_len);
    let Some(transfers) = transfers(lane, sink_rows, executor.order()) else { return Vec::new() };
    let could = |stage: &usize| {
        let transfer = &transfers[*stage];
        let sources = matrix(&trace.sources[*stage], row_len);
        transfer.beside(&errors).transpose().rank() == transfer.transpose().rank()
            && sources.stack(&errors).rank() == sources.rank()
    };
    (0..lane.stages.len()).filter(could).collect()
}

fn matrix(rows: &[u8], row_len: usize) -> Matrix {
    Matrix::from_fn(rows.len() / row_len, row_len, |r, c| rows[r * row_len + c])
}

/// The rows that leave the lane through a sink.
fn emitted(lane: &Lane, sink: &Sink) -> usize {
    if matches!(sink, Sink::Link(_)) { 0 } else { lane.sink_width(sink) }
}

/// For each stage, how all rows that leave the lane (ordered by stage and sink) depend on the rows that the stage
/// computes.
fn transfers(lane: &Lane, sink_rows: usize, order: &[usize]) -> Option<Vec<Matrix>> {
    let mut start = 0;
    let mut starts = Vec::with_capacity(lane.stages.len());
    for stage in &lane.stages {
        starts.push(start);
        start += stage.sinks.iter().map(|sink| emitted(lane, sink)).sum::<usize>();
    }
    let mut of_links: Vec<Option<Matrix>> = vec![None; lane.links.len()];
    let mut of_stages = vec![Matrix::zero(sink_rows, 0); lane.stages.len()];
    for at in order.iter().rev() {
        let stage = &lane.stages[*at];
        let mut transfer = Matrix::zero(sink_rows, stage.matrix.rows());
        let (mut col, mut row) = (0, starts[*at]);
        for sink in &stage.sinks {
            for offset in 0..lane.sink_width(sink) {
                match sink {
                    Sink::Link(link) => {
                        let Some(onward) = &of_links[usize::from(*link)] else { continue };
                        (0..sink_rows).for_each(|r| transfer.set(r, col + offset, onward.get(r, offset)));
                    }
                    _ => transfer.set(row + offset, col + offset, 1),
                }
            }
            col += lane.sink_width(sink);
            row += emitted(lane, sink);
        }
        let inward = times_sparse(&transfer, &stage.matrix.flatten(REDUCED_ELEMENTS_MAX)?);
        let mut col = 0;
        for source in &stage.sources {
            let width = lane.source_width(source);
            if let Source::Link(link) = source {
                of_links[usize::from(*link)] = Some(inward.select_cols(&(col..col + width).collect::<Vec<_>>()));
            }
            col += width;
        }
        of_stages[*at] = transfer;
    }
    Some(of_stages)
}

/// The product of a small dense matrix and a possibly large sparse one.
fn times_sparse(left: &Matrix, right: &SparseMatrix) -> Matrix {
    let mut product = Matrix::zero(left.rows(), right.cols());
    for (through, col, coefficient) in right.terms() {
        for row in 0..left.rows() {
            let more = field::mul(left.get(row, *through as usize), *coefficient);
            product.set(row, *col as usize, product.get(row, *col as usize) ^ more);
        }
    }
    product
}

/// Runs the lane and records each stage's inputs and the error of each sink.
struct Trace<'a> {
    symbols: Symbols<'a>,
    sources: Vec<Vec<u8>>,
    errors: Vec<(usize, Vec<u8>)>,
}

impl Ends for Trace<'_> {
    type Error = Infallible;

    fn read(&mut self, _: usize, source: &Source, _: usize, rows: &mut [u8]) -> Result<(), Infallible> {
        self.symbols.source(source, rows);
        Ok(())
    }

    fn emit(&mut self, stage: usize, sink: &Sink, _: usize, rows: &[u8]) -> Result<(), Infallible> {
        let mut error = vec![0; rows.len()];
        self.symbols.sink(sink, &mut error);
        error.iter_mut().zip(rows).for_each(|(right, is)| *right ^= is);
        self.errors.push((stage, error));
        Ok(())
    }

    fn observe(&mut self, stage: usize, sources: &[Vec<u8>]) {
        self.sources[stage] = sources.concat();
    }
}
