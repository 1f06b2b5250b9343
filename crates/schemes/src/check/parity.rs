//! Which combinations of a stripe's blocks are zero, and which of them a check computes.
//!
//! If a code's generator is [I; P], the rows of its parity check [P | I] are zero for every consistent stripe, and so are all combinations
//! of them. Those that do not contain the absent blocks can be computed without them; each lost block that must be eliminated costs α rows.

use crate::random;
use weft_codes::Code;
use weft_gf::SparseMatrix;
use weft_types::{Error, Result};

/// Combinations are drawn at most this often with one coefficient for each parity block, and as often with one for each coefficient.
///
/// The latter always succeed. If the remaining rows find every wrong block, then in a random combination of them the α × α coefficients of
/// a block are a random matrix, which is singular with a probability of about 1/256, and a stripe has at most 255 blocks.
const DRAWS_MAX: usize = 64;

/// The number of independent combinations of the blocks in `held` that are zero for a consistent stripe: the rows of a full check.
pub fn check_rows(code: &dyn Code, held: &[u8]) -> usize {
    remaining(code, held).rows()
}

/// The combinations that a check of `wanted` rows computes; one column for each sub-block of the code.
///
/// With α rows, it is a routine check: the combination is drawn from the seed such that it finds any single wrong block. With all
/// remaining rows, it is a full check.
pub(super) fn combinations(code: &dyn Code, held: &[u8], wanted: usize, seed: u64) -> Result<SparseMatrix> {
    let (all, alpha, spec) = (remaining(code, held), code.alpha(), code.spec());
    let absent = absent(code, held);
    if all.rows() == 0 {
        let message = format!("nothing can be checked: without blocks {absent:?}, the others of {spec} have no redundancy");
        return Err(Error::unavailable(message + ": rebuild lost blocks first"));
    }
    // Of the whole stripe every block is found, because a code tolerates the loss of any one.
    if let Some(index) = unseen(code, &all, held).filter(|_| !absent.is_empty()) {
        let message = format!("block {index} cannot be checked: without blocks {absent:?}, no parity check of {spec} covers it");
        return Err(Error::unavailable(message + ": leave it out too, or rebuild lost blocks first"));
    }
    if wanted == all.rows() {
        return Ok(all);
    }
    if wanted != alpha {
        let message = format!("a check of these blocks of {spec} must want {alpha} rows or all {}, not {wanted}", all.rows());
        return Err(Error::invalid(message));
    }
    let mut draw = random::draws(seed);
    let mut sums = (0..2 * DRAWS_MAX).map(|at| drawn(&all, alpha, at < DRAWS_MAX, &mut draw));
    let none = || Error::fatal(format!("internal error: no combination of the parity checks of {spec} finds every wrong block"));
    sums.find(|sum| unseen(code, sum, held).is_none()).ok_or_else(none)
}

/// A random sum of rows, α of them at a time; in a sparse one, a row of the sum gets one row of each.
fn drawn(all: &SparseMatrix, alpha: usize, is_sparse: bool, draw: &mut impl FnMut() -> u64) -> SparseMatrix {
    let rows = all.rows();
    let factors = if is_sparse {
        let of_parity: Vec<u8> = (0..rows.div_ceil(alpha)).map(|_| (draw() % 255 + 1) as u8).collect();
        SparseMatrix::new(alpha, rows, (0..rows).map(|row| (row % alpha, row, of_parity[row / alpha])))
    } else {
        let places = (0..alpha).flat_map(|to| (0..rows).map(move |row| (to, row)));
        SparseMatrix::new(alpha, rows, places.map(|(to, row)| (to, row, draw() as u8)))
    };
    factors.unwrap_or_else(|| SparseMatrix::zero(alpha, rows)).times_sparse(all)
}

/// The combinations of the parity check without absent blocks, all of them independent.
fn remaining(code: &dyn Code, held: &[u8]) -> SparseMatrix {
    let parities: Vec<usize> = (code.k() * code.alpha()..code.n() * code.alpha()).collect();
    let check = code.generator().select_rows(&parities).beside(&SparseMatrix::identity(parities.len()));
    let absent = absent(code, held);
    if absent.is_empty() {
        return check;
    }
    let left = check.select_cols(&columns(code, &absent)).to_dense().left_null();
    SparseMatrix::from(&left).times_sparse(&check)
}

fn absent(code: &dyn Code, held: &[u8]) -> Vec<u8> {
    code.stored().into_iter().filter(|index| !held.contains(index)).collect()
}

/// The first block that could be wrong although all these sums are zero.
fn unseen(code: &dyn Code, sums: &SparseMatrix, held: &[u8]) -> Option<u8> {
    let is_seen = |index: u8| sums.select_cols(&columns(code, &[index])).to_dense().rank() == code.alpha();
    held.iter().copied().find(|index| !is_seen(*index))
}

/// The columns of blocks.
pub(super) fn columns(code: &dyn Code, blocks: &[u8]) -> Vec<usize> {
    let of = |index: &u8| usize::from(*index) * code.alpha()..(usize::from(*index) + 1) * code.alpha();
    blocks.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_codes::{FAMILIES, SharedCode, parse, shortened};
    use weft_types::Reaction;

    /// The codes that are usually compared, in small sizes, of whole stripes and of stripes with little data.
    fn codes() -> Vec<SharedCode> {
        let measured = FAMILIES.iter().flat_map(|family| family.measured);
        let specs =
            measured.chain(&["rs(1,1)", "rs(200,55)", "xor(1)", "replication(255)", "butterfly(2)", "clay(2,2)", "hsrc(3,2)"]);
        let all = specs.map(|spec| parse(spec).unwrap()).filter(|code| code.alpha() <= 16);
        let short = |code: SharedCode| [code.k(), code.k() / 2 + 1, 1].map(|dimension| shortened(&code, dimension));
        all.flat_map(short).collect()
    }

    fn held(code: &SharedCode, absent: &[u8]) -> Vec<u8> {
        code.stored().into_iter().filter(|index| !absent.contains(index)).collect()
    }

    #[test]
    fn of_every_code_a_routine_check_finds_any_wrong_block_and_a_full_one_has_all_rows() {
        for code in codes() {
            let (spec, alpha, last) = (code.spec(), code.alpha(), code.n() as u8 - 1);
            for absent in [&[][..], &[0], &[last], &[0, code.k() as u8], &[0, code.k() as u8, last]] {
                // All blocks that are left must be found.
                if !absent.is_empty() && absent.len() >= code.tolerance() {
                    continue;
                }
                let held = held(&code, absent);
                let rows = check_rows(code.as_ref(), &held);
                assert!(rows >= alpha && rows <= (held.len() - code.dimension()) * alpha, "{spec} without {absent:?}: {rows}");
                assert!(
                    code.tolerance() < code.m() || rows == (held.len() - code.dimension()) * alpha,
                    "{spec} without {absent:?}"
                );
                let full = combinations(code.as_ref(), &held, rows, 0).unwrap();
                assert_eq!(full.to_dense().rank(), rows, "{spec} without {absent:?}");
                let sums: Vec<SparseMatrix> =
                    (0..5).map(|seed| combinations(code.as_ref(), &held, alpha, seed).unwrap()).collect();
                for sum in sums.iter().chain([&full]) {
                    assert!(sum.times_sparse(code.generator()).terms().is_empty(), "{spec} without {absent:?}: not zero");
                    assert!(sum.select_cols(&columns(code.as_ref(), absent)).terms().is_empty(), "{spec} without {absent:?}");
                    for index in &held {
                        let of_block = sum.select_cols(&columns(code.as_ref(), &[*index]));
                        assert_eq!(of_block.to_dense().rank(), alpha, "{spec} without {absent:?}: block {index} is not covered");
                    }
                }
                assert!(
                    sums.iter().all(|sum| sum.rows() == alpha && sum.terms().len() <= full.terms().len()),
                    "{spec}: not sparse"
                );
                assert!(rows == alpha || sums.windows(2).any(|pair| pair[0] != pair[1]), "{spec}: the seed changes nothing");
                assert_eq!(combinations(code.as_ref(), &held, alpha, 3).unwrap(), sums[3], "{spec}: the same seed");
            }
        }
    }

    #[test]
    fn what_cannot_be_checked_is_refused_and_the_reason_named() {
        let refused = |spec: &str, absent: &[u8], rows: usize| {
            let code = parse(spec).unwrap();
            let error = combinations(code.as_ref(), &held(&code, absent), rows, 0).unwrap_err();
            (error.reaction, error.message)
        };
        let (reaction, message) = refused("rs(4,2)", &[1, 5], 1);
        assert!(reaction == Reaction::Unavailable && message.contains("without blocks [1, 5], the others"), "{message}");
        assert_eq!(refused("rs(4,2)", &[0, 1, 2, 3, 4, 5], 1).0, Reaction::Unavailable);
        // Without the global parities, a check of the other group is left.
        let (reaction, message) = refused("lrc(4,2,2)", &[0, 6, 7], 1);
        assert!(reaction == Reaction::Unavailable && message.contains("block 1 cannot be checked"), "{message}");
        let (reaction, message) = refused("rs(4,4)", &[1], 2);
        assert!(reaction == Reaction::InvalidInput && message.contains("must want 1 rows or all 3, not 2"), "{message}");
    }

    /// Its parity blocks keep half a block of data each, so with one coefficient for each of them no sum finds all of it.
    #[derive(Debug)]
    struct Halves(SparseMatrix);

    impl Code for Halves {
        fn spec(&self) -> String {
            "halves".into()
        }
        fn k(&self) -> usize {
            1
        }
        fn m(&self) -> usize {
            2
        }
        fn alpha(&self) -> usize {
            2
        }
        fn generator(&self) -> &SparseMatrix {
            &self.0
        }
        fn tolerance(&self) -> usize {
            1
        }
    }

    #[test]
    fn a_code_for_which_sparse_sums_find_too_little_gets_dense_ones() {
        let code = Halves(SparseMatrix::new(6, 2, [(0, 0, 1), (1, 1, 1), (2, 0, 1), (4, 1, 1)]).unwrap());
        let (all, mut draw) = (remaining(&code, &[0, 1, 2]), random::draws(0));
        assert!((0..1000).all(|_| unseen(&code, &drawn(&all, 2, true, &mut draw), &[0, 1, 2]) == Some(0)));
        let sum = combinations(&code, &[0, 1, 2], 2, 0).unwrap();
        assert_eq!((sum.rows(), unseen(&code, &sum, &[0, 1, 2])), (2, None));
    }
}
