//! Schedules the temporaries and results of a map, with as few temporary slots as possible.
//!
//! Temporaries keep their order, in which they are used soon after they are computed, and a result is computed as early
//! as possible. The slot of a temporary that is no longer needed is reused, the last freed slot first. So the slots
//! stay in the cache, where all temporaries of a code with hundreds of sub-blocks would not fit.

use crate::{Factored, SparseMatrix};

/// Independent rows, as a matrix: its columns are the sources, and then the slots.
pub(super) struct Batch {
    pub(super) matrix: SparseMatrix,
    /// The targets of its rows: slots for temporaries, otherwise rows of the result.
    pub(super) rows: Vec<usize>,
    pub(super) into_slots: bool,
}

/// The order of a map's rows.
pub(super) struct Schedule {
    /// For each temporary the batch that computes it; for each result the batch after which it is computed.
    batch: Vec<usize>,
    /// The slot of each temporary.
    slot: Vec<usize>,
    /// The number of slots.
    pub(super) slots: usize,
}

impl Schedule {
    pub(super) fn of(map: &Factored) -> Self {
        let batch = batches(map);
        let (slot, slots) = slots(map, &batch);
        Self { batch, slot, slots }
    }

    /// The computations, in order.
    pub(super) fn batches(&self, map: &Factored) -> Vec<Batch> {
        let (cols, temporaries) = (map.cols(), map.temporaries());
        let last = self.batch.iter().max().map_or(0, |last| last + 1);
        let (mut of_slots, mut of_results) = (vec![Vec::new(); last], vec![Vec::new(); last]);
        for (row, batch) in self.batch.iter().enumerate() {
            if row < temporaries { of_slots[*batch].push(row) } else { of_results[*batch].push(row) }
        }
        let place = |col: usize| col.checked_sub(cols).map_or(col, |temporary| cols + self.slot[temporary]);
        let matrix = |rows: &[usize]| {
            let of_row =
                |(new, old): (usize, &usize)| map.steps().row(*old).iter().map(move |(_, col, c)| (new, *col as usize, *c));
            let terms = rows.iter().enumerate().flat_map(of_row).map(|(row, col, c)| (row, place(col), c));
            SparseMatrix::new(rows.len(), cols + self.slots, terms).unwrap_or_else(|| unreachable!("all terms are inside"))
        };
        let mut batches = Vec::new();
        for (of_slots, of_results) in of_slots.into_iter().zip(of_results) {
            let (slots, results) = (of_slots.iter().map(|row| self.slot[*row]), of_results.iter().map(|row| row - temporaries));
            batches.push(Batch { matrix: matrix(&of_slots), rows: slots.collect(), into_slots: true });
            batches.push(Batch { matrix: matrix(&of_results), rows: results.collect(), into_slots: false });
        }
        batches.retain(|batch| !batch.rows.is_empty());
        batches
    }
}

/// The temporaries that a row needs.
fn needs(map: &Factored, row: usize) -> impl Iterator<Item = usize> + '_ {
    map.steps().row(row).iter().filter_map(|(_, col, _)| (*col as usize).checked_sub(map.cols()))
}

fn batches(map: &Factored) -> Vec<usize> {
    let mut batch: Vec<usize> = Vec::with_capacity(map.steps().rows());
    let mut at = 0;
    for row in 0..map.steps().rows() {
        let needed = needs(map, row).map(|temporary| batch[temporary]).max();
        if row >= map.temporaries() {
            batch.push(needed.unwrap_or(0));
            continue;
        }
        if needed == Some(at) {
            at += 1;
        }
        batch.push(at);
    }
    batch
}

/// Each temporary's slot, and the number of slots.
fn slots(map: &Factored, batch: &[usize]) -> (Vec<usize>, usize) {
    let temporaries = map.temporaries();
    // The slot of an unused temporary is freed at once.
    let mut last_use: Vec<usize> = batch[..temporaries].to_vec();
    for (row, batch) in batch.iter().enumerate() {
        needs(map, row).for_each(|temporary| last_use[temporary] = last_use[temporary].max(*batch));
    }
    let mut given_back = vec![Vec::new(); last_use.iter().max().map_or(0, |last| last + 1)];
    let (mut slot, mut free, mut slots, mut done) = (Vec::with_capacity(temporaries), Vec::new(), 0, 0);
    for (temporary, batch) in batch[..temporaries].iter().enumerate() {
        while done < *batch {
            free.append(&mut given_back[done]);
            done += 1;
        }
        let own = free.pop().unwrap_or_else(|| {
            slots += 1;
            slots - 1
        });
        slot.push(own);
        given_back[last_use[temporary]].push(own);
    }
    (slot, slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FactoredBuilder;

    #[test]
    fn a_temporary_that_is_no_longer_needed_frees_its_slot() {
        let mut builder = FactoredBuilder::new(2);
        let mut sums = vec![builder.temporary(vec![(0, 1), (1, 1)])];
        for step in 0..20 {
            sums.push(builder.temporary(vec![(sums[step], 2), (step % 2, 1)]));
        }
        let first_and_last = builder.clone().finish(&[vec![(sums[20], 1)], vec![(sums[0], 3)]]).unwrap();
        assert_eq!((Schedule::of(&first_and_last).slots, first_and_last.temporaries()), (2, 21));
        let all: Vec<_> = sums.iter().map(|sum| vec![(*sum, 1), (0, 1)]).collect();
        assert_eq!(Schedule::of(&builder.clone().finish(&all).unwrap()).slots, 2, "results are computed as early as possible");
        let at_the_end = vec![sums.iter().map(|sum| (*sum, 1)).collect()];
        assert_eq!(Schedule::of(&builder.finish(&at_the_end).unwrap()).slots, 21);
    }
}
