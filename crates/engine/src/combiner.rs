//! Executes a stage's matrix: forwards a source's bytes unchanged where possible, and computes the other rows.

use crate::buffers::{Buffer, Buffers};
use bytes::{Bytes, BytesMut};
use std::{ops::Range, sync::Arc};
use weft_gf::{Combination, Factored};
use weft_types::{Error, Result, Rows, Span};

/// A prepared matrix: one route for each sink, and one kernel pass over everything that must be computed.
#[derive(Debug)]
pub(crate) struct Combiner {
    source_widths: Vec<usize>,
    routes: Vec<Route>,
    /// (source, its sub-block) for each column of the combination: only those that a computed row needs.
    columns: Vec<(usize, usize)>,
    combination: Option<Combination>,
    groups: Vec<Group>,
}

/// Where a sink's rows come from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Route {
    /// Adjacent sub-blocks of one source, unchanged.
    Forward { source: usize, sub_blocks: Range<usize> },
    /// A group of computed rows.
    Computed(usize),
}

/// Rows that are computed into one buffer; sinks with equal rows share it.
#[derive(Debug)]
struct Group {
    rows: Vec<usize>,
    buffers: Arc<Buffers>,
}

/// Memory for computed rows.
enum Room {
    Own(Buffer),
    Given(BytesMut),
}

impl Room {
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(buffer) => buffer.bytes_mut(),
            Self::Given(bytes) => bytes,
        }
    }

    fn freeze(self) -> Bytes {
        match self {
            Self::Own(buffer) => buffer.freeze(),
            Self::Given(bytes) => bytes.freeze(),
        }
    }
}

impl Combiner {
    /// For a matrix whose columns are the sources' sub-blocks and whose rows are the sinks' sub-blocks. `kept_max` is
    /// the number of buffers kept for each group.
    pub(crate) fn new(matrix: &Factored, source_widths: &[usize], sink_widths: &[usize], kept_max: usize) -> Result<Self> {
        let (cols, rows) = (total(source_widths)?, total(sink_widths)?);
        if (matrix.rows(), matrix.cols()) != (rows, cols) {
            let shape = format!("{}×{}", matrix.rows(), matrix.cols());
            return Err(Error::invalid(format!(
                "the stage's matrix is {shape}, but the stage has {cols} incoming and {rows} outgoing sub-blocks"
            )));
        }
        let places: Vec<(usize, usize)> = (source_widths.iter().enumerate())
            .flat_map(|(source, width)| (0..*width).map(move |sub_block| (source, sub_block)))
            .collect();
        let mut groups: Vec<Group> = Vec::new();
        let mut routes = Vec::with_capacity(sink_widths.len());
        let mut first = 0;
        for width in sink_widths {
            let rows: Vec<usize> = (first..first + width).collect();
            first += width;
            let route = forward(matrix, &rows, &places).unwrap_or_else(|| {
                let same = groups.iter().position(|group| equal_rows(matrix, &group.rows, &rows));
                Route::Computed(same.unwrap_or_else(|| {
                    groups.push(Group { rows, buffers: Buffers::new(kept_max) });
                    groups.len() - 1
                }))
            });
            routes.push(route);
        }
        let (combination, columns) = combination(matrix, &groups, &places);
        Ok(Self { source_widths: source_widths.to_vec(), routes, columns, combination, groups })
    }

    /// The rows for each sink. `sources` must have the right lengths ([`check`](Self::check)). `give` gives memory for
    /// computed rows, as [`Ports::room`](crate::Ports::room) does.
    pub(crate) fn apply(&self, sources: &[Rows], slice: Span, give: impl Fn(usize) -> Option<BytesMut>) -> Vec<Rows> {
        let len = slice.len() as usize;
        let computed = self.compute(sources, len, give);
        let route = |route: &Route| match route {
            Route::Forward { source, sub_blocks } => {
                let rows = &sources[*source];
                let range = sub_blocks.start * len..sub_blocks.end * len;
                // A complete source keeps the checksum that it arrived with.
                if range.len() == rows.len() { rows.clone() } else { rows.bytes().slice(range).into() }
            }
            Route::Computed(group) => computed[*group].clone(),
        };
        self.routes.iter().map(route).collect()
    }

    /// Checks the length of the rows from source number `source`.
    pub(crate) fn check(&self, source: usize, bytes: &[u8], slice: Span) -> Result<()> {
        let expected = self.source_widths.get(source).map_or(0, |width| *width as u64 * slice.len());
        if bytes.len() as u64 == expected {
            return Ok(());
        }
        Err(Error::corrupt(format!("a slice has {} bytes instead of {expected}", bytes.len())))
    }

    fn compute(&self, sources: &[Rows], len: usize, give: impl Fn(usize) -> Option<BytesMut>) -> Vec<Rows> {
        let Some(combination) = &self.combination else { return Vec::new() };
        let inputs: Vec<&[u8]> = self.columns.iter().map(|(source, sub)| &sources[*source][sub * len..(sub + 1) * len]).collect();
        let room = |group: &Group| {
            let bytes = group.rows.len() * len;
            give(bytes).map_or_else(|| Room::Own(group.buffers.take(bytes)), Room::Given)
        };
        let mut rooms: Vec<Room> = self.groups.iter().map(room).collect();
        let mut rows: Vec<&mut [u8]> = rooms.iter_mut().flat_map(|room| room.bytes_mut().chunks_exact_mut(len.max(1))).collect();
        combination.apply(&inputs, &mut rows);
        rooms.into_iter().map(|room| room.freeze().into()).collect()
    }
}

fn total(widths: &[usize]) -> Result<usize> {
    let sum = widths.iter().try_fold(0usize, |sum, width| sum.checked_add(*width));
    sum.ok_or_else(|| Error::invalid("the stage has too many sub-blocks"))
}

/// The route of rows that are adjacent sub-blocks of one source, each once and unchanged.
fn forward(matrix: &Factored, rows: &[usize], places: &[(usize, usize)]) -> Option<Route> {
    let place = |row: &usize| match matrix.row(*row) {
        [(_, column, 1)] => places.get(*column as usize).copied(),
        _ => None,
    };
    let (source, first) = place(rows.first()?)?;
    for (at, row) in rows.iter().enumerate() {
        if place(row)? != (source, first + at) {
            return None;
        }
    }
    Some(Route::Forward { source, sub_blocks: first..first + rows.len() })
}

fn equal_rows(matrix: &Factored, left: &[usize], right: &[usize]) -> bool {
    let terms = |row: &usize| matrix.row(*row).iter().map(|(_, column, coefficient)| (*column, *coefficient));
    left.len() == right.len() && left.iter().zip(right).all(|(l, r)| terms(l).eq(terms(r)))
}

/// Combines all groups' rows over the columns that they need.
fn combination(matrix: &Factored, groups: &[Group], places: &[(usize, usize)]) -> (Option<Combination>, Vec<(usize, usize)>) {
    let rows: Vec<usize> = groups.iter().flat_map(|group| group.rows.iter().copied()).collect();
    if rows.is_empty() {
        return (None, Vec::new());
    }
    let wanted = matrix.select_rows(&rows);
    let columns = wanted.sources_used();
    let combination = Combination::factored(&wanted.select_cols(&columns));
    (Some(combination), columns.iter().map(|column| places[*column]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_gf::{SparseMatrix, field::mul};

    fn matrix(rows: usize, cols: usize, terms: &[(usize, usize, u8)]) -> Factored {
        SparseMatrix::new(rows, cols, terms.iter().copied()).unwrap().into()
    }

    #[test]
    fn plain_rows_are_the_source_itself_and_equal_rows_share_a_buffer() {
        // Sinks: source 0 unchanged; 3·s0 twice; sub-blocks 1 and 2 of source 1; the same two swapped, which must be
        // computed.
        let terms = [(0, 0, 1), (1, 0, 3), (2, 0, 3), (3, 2, 1), (4, 3, 1), (5, 3, 1), (6, 2, 1)];
        let combiner = Combiner::new(&matrix(7, 4, &terms), &[1, 3], &[1, 1, 1, 2, 2], 2).unwrap();
        assert_eq!(combiner.routes[0], Route::Forward { source: 0, sub_blocks: 0..1 });
        assert_eq!(combiner.routes[3], Route::Forward { source: 1, sub_blocks: 1..3 });
        assert_eq!((&combiner.routes[1], &combiner.routes[2]), (&Route::Computed(0), &Route::Computed(0)));
        assert_eq!(combiner.routes[4], Route::Computed(1));

        let sources = [Rows::from(vec![5, 6]), Rows::from(vec![1, 2, 3, 4, 7, 8])];
        let sinks = combiner.apply(&sources, Span::new(7, 9), |_| None);
        assert_eq!(sinks[0].as_ptr(), sources[0].as_ptr(), "a plain row was copied");
        assert_eq!(sinks[3].as_ptr(), sources[1][2..].as_ptr(), "a plain row was copied");
        assert_eq!(sinks[1].as_ptr(), sinks[2].as_ptr(), "equal rows were computed twice");
        assert_eq!(sinks[1], vec![mul(3, 5), mul(3, 6)]);
        assert_eq!((&sinks[3][..], &sinks[4][..]), (&[3, 4, 7, 8][..], &[7, 8, 3, 4][..]));
    }

    #[test]
    fn rows_without_terms_are_zeros_even_in_a_used_buffer() {
        let combiner = Combiner::new(&matrix(3, 1, &[(0, 0, 2)]), &[1], &[1, 2], 1).unwrap();
        for _ in 0..3 {
            let sinks = combiner.apply(&[Rows::from(vec![9; 100])], Span::new(0, 100), |_| None);
            assert_eq!(sinks[0], vec![mul(2, 9); 100]);
            assert_eq!(sinks[1], vec![0; 200]);
        }
        let nothing = Combiner::new(&matrix(1, 0, &[]), &[], &[1], 1).unwrap();
        assert_eq!(nothing.apply(&[], Span::new(0, 5), |_| None)[0], vec![0; 5]);
    }

    #[test]
    fn matrices_that_do_not_fit_are_refused() {
        for (rows, cols) in [(2, 1), (1, 2), (0, 1)] {
            assert!(Combiner::new(&matrix(rows, cols, &[]), &[1], &[1], 1).is_err(), "{rows}×{cols}");
        }
        assert!(Combiner::new(&matrix(1, 1, &[]), &[usize::MAX, 2], &[1], 1).is_err());
    }
}
