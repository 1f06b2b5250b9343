//! The generic recipe, which every linear code has for every recoverable pattern.
//!
//! For an MDS code, the k most preferred available blocks help. If u of them are parity blocks, u data blocks are
//! unknown: the parity rows restricted to those form a regular matrix B of uα × uα, and a row g of the generator is `g
//! = y·(parity rows) + …` with `y·B = g` on the unknown columns; the rest is known data. No matrix larger than B is
//! inverted, however many sub-blocks a block has. Known data is subtracted from the parities first (the syndromes are
//! temporaries) if that needs fewer products.
//!
//! For other codes, the wanted rows are expressed by the rows of all available blocks, X·L = E, by Gauss–Jordan
//! elimination in the order of preference. The pivots are the first rows that are independent of those before them, so
//! helpers are chosen greedily by rank. In both cases a block that does not contribute gets a zero, so no helper reads
//! unneeded data.

use crate::{Ask, Code, HelperShare, NotRecoverable, Recipe, SubBlock};
use std::collections::BTreeMap;
use weft_gf::{Factored, SparseMatrix};

/// Solves for the wanted sub-blocks. A wanted block that is available is read and not computed.
pub fn recipe<C: Code + ?Sized>(code: &C, ask: &Ask) -> Result<Recipe, NotRecoverable> {
    let (n, alpha) = (code.n(), code.alpha());
    let unsolvable = || not_recoverable(code, ask);
    if ask.wanted.iter().any(|wanted| usize::from(wanted.index) >= n || usize::from(wanted.sub_block) >= alpha) {
        return Err(unsolvable());
    }
    let order = preference(ask, n);
    if code.tolerance() == code.m() {
        return mds_recipe(code, ask, &order).ok_or_else(unsolvable);
    }
    let row = |index: u8, sub_block: usize| usize::from(index) * alpha + sub_block;
    let wanted: Vec<usize> = ask.wanted.iter().map(|wanted| row(wanted.index, wanted.sub_block.into())).collect();
    let known: Vec<usize> = order.iter().flat_map(|index| (0..alpha).map(move |s| row(*index, s))).collect();
    let rows = |rows: &[usize]| code.generator().select_rows(rows).to_dense();
    let solution = rows(&known).solve_left(&rows(&wanted)).ok_or_else(unsolvable)?;
    Ok(from_columns(&order, alpha, &SparseMatrix::from(&solution).into()))
}

/// The recipe from the first k blocks of `order`; `None` if there are fewer and a wanted one is not among them.
fn mds_recipe<C: Code + ?Sized>(code: &C, ask: &Ask, order: &[u8]) -> Option<Recipe> {
    let (k, alpha) = (code.k(), code.alpha());
    let helpers = &order[..order.len().min(k)];
    let place = |index: u8| helpers.iter().position(|helper| *helper == index);
    if helpers.len() < k && ask.wanted.iter().any(|wanted| place(wanted.index).is_none()) {
        return None;
    }
    let known = |col: usize| place((col / alpha) as u8).map(|at| at * alpha + col % alpha);
    let unknown: BTreeMap<usize, usize> = (0..k * alpha).filter(|col| known(*col).is_none()).zip(0..).collect();
    // Rows of the generator: their terms over known data, in the recipe's columns, and over unknown data.
    let split = |rows: &[usize]| {
        let generator = code.generator().select_rows(rows);
        let part = |place: &dyn Fn(usize) -> Option<usize>, cols: usize| {
            let terms = generator.terms().iter().filter_map(|(r, col, c)| Some((*r as usize, place(*col as usize)?, *c)));
            SparseMatrix::new(rows.len(), cols, terms)
        };
        Some((part(&known, helpers.len() * alpha)?, part(&|col| unknown.get(&col).copied(), unknown.len())?))
    };
    let rows_of = |index: u8| (0..alpha).map(move |s| usize::from(index) * alpha + s);
    let parities = helpers.iter().copied().filter(|index| usize::from(*index) >= k);
    let (subtracted, equations) = split(&parities.clone().flat_map(rows_of).collect::<Vec<_>>())?;
    let row_of = |wanted: &SubBlock| usize::from(wanted.index) * alpha + usize::from(wanted.sub_block);
    let lost: Vec<usize> = ask.wanted.iter().filter(|wanted| place(wanted.index).is_none()).map(row_of).collect();
    let (given, sought) = split(&lost)?;
    let weights = match lost[..] {
        [] => SparseMatrix::zero(0, equations.rows()),
        _ => SparseMatrix::from(&equations.to_dense().solve_left(&sought.to_dense())?),
    };

    // The temporaries: each parity sub-block minus its known part.
    let (temporaries, cols) = (equations.rows(), helpers.len() * alpha);
    let in_place = |matrix: &SparseMatrix, row: usize, first: usize, to: usize| {
        matrix.row(row).iter().map(|(_, col, c)| (to, first + *col as usize, *c)).collect::<Vec<_>>()
    };
    let mut terms: Vec<(usize, usize, u8)> = Vec::new();
    for (equation, col) in parities.filter_map(place).flat_map(|at| (0..alpha).map(move |s| at * alpha + s)).enumerate() {
        terms.extend(in_place(&subtracted, equation, 0, equation));
        terms.push((equation, col, 1));
    }
    // The results: for a wanted block that helps, its own sub-blocks; for the others, the known part and the weighted
    // syndromes.
    let mut nth_lost = 0..lost.len();
    for (wanted, result) in ask.wanted.iter().zip(temporaries..) {
        if let Some(at) = place(wanted.index) {
            terms.push((result, at * alpha + usize::from(wanted.sub_block), 1));
        } else if let Some(nth) = nth_lost.next() {
            terms.extend(in_place(&given, nth, 0, result));
            terms.extend(in_place(&weights, nth, cols, result));
        }
    }
    let steps = SparseMatrix::new(temporaries + ask.wanted.len(), cols + temporaries, terms)?;
    let combine = Factored::new(temporaries, steps)?.pruned();
    let products = combine.steps().terms().len();
    let flat = combine.flatten(usize::MAX).filter(|flat| flat.terms().len() <= products);
    Some(from_columns(helpers, alpha, &flat.map_or(combine, Factored::from)))
}

/// The error that names the blocks.
pub fn not_recoverable<C: Code + ?Sized>(code: &C, ask: &Ask) -> NotRecoverable {
    let mut available = ask.available.clone();
    available.sort_unstable();
    available.dedup();
    let mut lost: Vec<u8> = ask.wanted.iter().map(|wanted| wanted.index).filter(|index| !available.contains(index)).collect();
    lost.sort_unstable();
    lost.dedup();
    NotRecoverable { code: code.spec(), lost, available }
}

/// Available blocks of the code, each once: first wanted blocks, then blocks that are read anyway, then by preference.
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

/// The recipe in which each helper sends what it reads, and reads only what is needed: column `at·α + s` of `combine`
/// is sub-block s of block `order[at]`.
pub(crate) fn from_columns(order: &[u8], alpha: usize, combine: &Factored) -> Recipe {
    let cols = combine.sources_used();
    let helper = |of_helper: &[usize]| {
        let reads = of_helper.iter().map(|col| (col % alpha) as u16).collect();
        HelperShare { index: order[of_helper[0] / alpha], reads, compute: SparseMatrix::identity(of_helper.len()) }
    };
    let helpers = cols.chunk_by(|a, b| a / alpha == b / alpha).map(helper).collect();
    Recipe { helpers, combine: combine.select_cols(&cols) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn ask(wanted: &[u8], available: &[u8], read_anyway: &[u8]) -> Ask {
        let wanted = wanted.iter().map(|index| SubBlock { index: *index, sub_block: 0 }).collect();
        Ask { wanted, available: available.to_vec(), read_anyway: read_anyway.to_vec() }
    }

    fn helpers(ask: &Ask) -> Vec<u8> {
        let recipe = recipe(parse("rs(4,3)").unwrap().as_ref(), ask).unwrap();
        recipe.helpers.iter().map(|helper| helper.index).collect()
    }

    #[test]
    fn preferred_blocks_help_and_those_read_anyway_come_first() {
        assert_eq!(helpers(&ask(&[0], &[6, 5, 4, 3, 2, 1], &[])), [6, 5, 4, 3]);
        assert_eq!(helpers(&ask(&[0, 1], &[6, 5, 4, 3, 2], &[2, 3])), [2, 3, 6, 5]);
        assert_eq!(helpers(&ask(&[0], &[1, 1, 2, 200, 3, 4, 5], &[])), [1, 2, 3, 4], "each existing block helps once");
    }

    #[test]
    fn available_sub_blocks_are_read_and_not_computed() {
        assert_eq!(helpers(&ask(&[5], &[0, 1, 2, 3, 4, 5], &[])), [5]);
        assert_eq!(helpers(&ask(&[5, 0], &[1, 2, 3, 5, 4], &[])), [5, 1, 2, 3]);
    }

    #[test]
    fn unrecoverable_sub_blocks_are_named() {
        let code = parse("rs(4,3)").unwrap();
        let error = recipe(code.as_ref(), &ask(&[5, 0, 5, 2], &[6, 1, 2, 3, 1], &[])).map(|_| ());
        assert_eq!(error, Ok(()), "four blocks must suffice");
        let error = recipe(code.as_ref(), &ask(&[5, 0, 5, 2], &[6, 1, 2], &[])).unwrap_err();
        assert_eq!((error.lost.as_slice(), error.available.as_slice()), (&[0, 5][..], &[1, 2, 6][..]));
        assert_eq!(error.to_string(), "rs(4,3): blocks [0, 5] cannot be recovered from blocks [1, 2, 6]");
        assert!(recipe(code.as_ref(), &ask(&[7], &[0, 1, 2, 3], &[])).is_err(), "there is no block 7");
        assert!(recipe(code.as_ref(), &ask(&[0], &[], &[])).is_err());
    }
}
