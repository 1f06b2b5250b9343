//! The generic recipe: every linear code has it, for every pattern that can be recovered at all.
//!
//! The wanted rows of the generator are solved for over the rows of the available blocks, X·L = E, by Gauss–Jordan elimination in
//! the order of preference. The pivots are the first rows that are independent of those before them, so helpers are chosen
//! greedily by rank; what a later pivot does not contribute to, gets a zero, and so nobody reads what is not needed. For an MDS
//! code these are the k available blocks that come first.

use crate::{Ask, Code, HelperShare, NotRecoverable, Recipe};
use weft_gf::{Matrix, SparseMatrix};

/// Solves for what is wanted. A wanted block that is itself available is read, not computed.
pub fn recipe<C: Code + ?Sized>(code: &C, ask: &Ask) -> Result<Recipe, NotRecoverable> {
    let (n, alpha) = (code.n(), code.alpha());
    let unsolvable = || not_recoverable(code, ask);
    if ask.wanted.iter().any(|wanted| usize::from(wanted.index) >= n || usize::from(wanted.sub_block) >= alpha) {
        return Err(unsolvable());
    }
    let order = preference(ask, n);
    let row = |index: u8, sub_block: usize| usize::from(index) * alpha + sub_block;
    let wanted: Vec<usize> = ask.wanted.iter().map(|wanted| row(wanted.index, wanted.sub_block.into())).collect();
    let known: Vec<usize> = order.iter().flat_map(|index| (0..alpha).map(move |s| row(*index, s))).collect();
    let rows = |rows: &[usize]| code.generator().select_rows(rows).to_dense();
    let solution = rows(&known).solve_left(&rows(&wanted)).ok_or_else(unsolvable)?;
    Ok(from_solution(&order, alpha, &solution))
}

/// The error that names the pattern.
pub fn not_recoverable<C: Code + ?Sized>(code: &C, ask: &Ask) -> NotRecoverable {
    let mut available = ask.available.clone();
    available.sort_unstable();
    available.dedup();
    let mut lost: Vec<u8> = ask.wanted.iter().map(|wanted| wanted.index).filter(|index| !available.contains(index)).collect();
    lost.sort_unstable();
    lost.dedup();
    NotRecoverable { code: code.spec(), lost, available }
}

/// Available blocks of the code, each once: first what is wanted itself, then what is read anyway, then by preference.
fn preference(ask: &Ask, n: usize) -> Vec<u8> {
    let wanted = ask.wanted.iter().map(|wanted| wanted.index);
    let mut order: Vec<u8> = Vec::with_capacity(ask.available.len());
    for index in wanted.chain(ask.read_anyway.iter().copied()).chain(ask.available.iter().copied()) {
        if usize::from(index) < n && ask.available.contains(&index) && !order.contains(&index) {
            order.push(index);
        }
    }
    order
}

/// A recipe in which everybody sends what he reads: the columns of `solution` that are not zero. Column `at·α + s` belongs to
/// sub-block s of block `order[at]`.
fn from_solution(order: &[u8], alpha: usize, solution: &Matrix) -> Recipe {
    let used = |col: usize| (0..solution.rows()).any(|row| solution.get(row, col) != 0);
    let (mut helpers, mut cols) = (Vec::new(), Vec::new());
    for (at, index) in order.iter().enumerate() {
        let reads: Vec<usize> = (0..alpha).filter(|s| used(at * alpha + s)).collect();
        if reads.is_empty() {
            continue;
        }
        cols.extend(reads.iter().map(|s| at * alpha + s));
        let compute = SparseMatrix::identity(reads.len());
        helpers.push(HelperShare { index: *index, reads: reads.into_iter().map(|s| s as u16).collect(), compute });
    }
    Recipe { helpers, combine: SparseMatrix::from(&solution.select_cols(&cols)).into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SubBlock, parse};

    fn ask(wanted: &[u8], available: &[u8], read_anyway: &[u8]) -> Ask {
        let wanted = wanted.iter().map(|index| SubBlock { index: *index, sub_block: 0 }).collect();
        Ask { wanted, available: available.to_vec(), read_anyway: read_anyway.to_vec() }
    }

    fn helpers(ask: &Ask) -> Vec<u8> {
        let recipe = recipe(parse("rs(4,3)").unwrap().as_ref(), ask).unwrap();
        recipe.helpers.iter().map(|helper| helper.index).collect()
    }

    #[test]
    fn the_preferred_help_and_those_read_anyway_come_first() {
        assert_eq!(helpers(&ask(&[0], &[6, 5, 4, 3, 2, 1], &[])), [6, 5, 4, 3]);
        assert_eq!(helpers(&ask(&[0, 1], &[6, 5, 4, 3, 2], &[2, 3])), [2, 3, 6, 5]);
        assert_eq!(helpers(&ask(&[0], &[1, 1, 2, 200, 3, 4, 5], &[])), [1, 2, 3, 4], "nobody helps twice, no stranger helps");
    }

    #[test]
    fn what_is_there_is_read_and_not_computed() {
        assert_eq!(helpers(&ask(&[5], &[0, 1, 2, 3, 4, 5], &[])), [5]);
        assert_eq!(helpers(&ask(&[5, 0], &[1, 2, 3, 5, 4], &[])), [5, 1, 2, 3]);
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let code = parse("rs(4,3)").unwrap();
        let error = recipe(code.as_ref(), &ask(&[5, 0, 5, 2], &[6, 1, 2, 3, 1], &[])).map(|_| ());
        assert_eq!(error, Ok(()), "four blocks are enough");
        let error = recipe(code.as_ref(), &ask(&[5, 0, 5, 2], &[6, 1, 2], &[])).unwrap_err();
        assert_eq!((error.lost.as_slice(), error.available.as_slice()), (&[0, 5][..], &[1, 2, 6][..]));
        assert_eq!(error.to_string(), "rs(4,3): blocks [0, 5] cannot be recovered from blocks [1, 2, 6]");
        assert!(recipe(code.as_ref(), &ask(&[7], &[0, 1, 2, 3], &[])).is_err(), "there is no block 7");
        assert!(recipe(code.as_ref(), &ask(&[0], &[], &[])).is_err());
    }
}
