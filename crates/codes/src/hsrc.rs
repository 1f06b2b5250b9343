//! Homomorphic self-repairing codes: a lost block is the XOR of two others, in many ways.
//!
//! F. Oggier and A. Datta, *Self-repairing Homomorphic Codes for Distributed Storage Systems*, INFOCOM 2011, section III. The data
//! are the coefficients of a linearised polynomial `p(X) = Σ p_i X^(2^i)`, i < k, and block x is its value at a point x ≠ 0.
//! Such a polynomial is additive, p(x + y) = p(x) + p(y), so that every block is the sum of two others whose points add up to
//! its own: a pair. Of n = 2^d − 1 blocks each has (n−1)/2 pairs, with no block in common.
//!
//! **Systematic form.** The points are 2^0, …, 2^(k−1), whose blocks are the data, and then the other integers from 3 on, n in all: the
//! points of 1..n. (p is given by its values at k points that are independent over GF(2): the Moore matrix `x_j^(2^i)` is regular exactly
//! for those.) In the paper, points are in GF(2^d); here they are d-bit elements of GF(2^8). This does not affect additivity, so d only
//! means that n ≤ 2^d − 1.
//!
//! **Tolerance.** The remaining blocks suffice exactly if their points span k dimensions over GF(2). With n ≥ 2^(k−1), the largest set that
//! does not is the 2^(k−1) − 1 points of 1..2^(k−1) − 1, a subspace of k−1 dimensions without its zero: any u = 2^(k−1) blocks suffice, and
//! n − u losses are tolerated. (The paper names codes by length and dimension, and so does their spec.) For n = u, only one point would be
//! outside that subspace, and the loss of its block would be fatal; so n must be larger.

use crate::{Arguments, Ask, Code, Family, NotRecoverable, Recipe, SharedCode, SpecError, SubBlock, choose};
use std::sync::Arc;
use weft_gf::{Matrix, SparseMatrix, field};

/// The specs of these codes.
pub(crate) const FAMILY: Family = Family {
    name: "hsrc",
    usage: "hsrc(n,k) or hsrc(n,k,d=...), of length n and dimension k, with k from 1 to 8, n more than 2^(k-1) and k, and at most \
            2^d - 1, and d at most 8",
    summary: "Homomorphic self-repairing code: a lost block is the XOR of two others, for many pairs; tolerates n - 2^(k-1) \
            losses",
    advice: "Choose it if nodes come and go all the time. A lost block is the sum of two others, for many pairs, at a high \
            overhead.",
    measured: &["hsrc(7,3)", "hsrc(15,4)"],
    build,
};

/// Points are elements of GF(2^8).
const DIMENSIONS_MAX: usize = 8;

/// A homomorphic self-repairing code.
#[derive(Debug)]
pub(crate) struct Hsrc {
    n: usize,
    k: usize,
    d: usize,
    /// The point of each block.
    points: Vec<u8>,
    generator: SparseMatrix,
}

impl Hsrc {
    fn new(n: usize, k: usize, d: usize) -> Option<Self> {
        let basis = (0..k).map(|bit| 1 << bit);
        let others = (1..=n).filter(|point| !point.is_power_of_two() || *point >= 1 << k);
        let points: Vec<u8> = basis.chain(others).take(n).map(|point: usize| point as u8).collect();
        let moore =
            |points: &[u8]| Matrix::from_fn(points.len(), k, |row, power| (0..power).fold(points[row], |x, _| field::mul(x, x)));
        let generator = moore(&points).times(&moore(&points[..k]).inverse()?);
        Some(Self { n, k, d, points, generator: SparseMatrix::from(&generator) })
    }

    /// All pairs of other blocks whose XOR is this block.
    fn pairs(&self, index: u8) -> Vec<[u8; 2]> {
        let other = |point: u8| self.points.iter().position(|p| *p == point).map(|index| index as u8);
        let partner = |first: u8| other(self.points[usize::from(first)] ^ self.points[usize::from(index)]);
        let blocks = 0..self.n as u8;
        blocks.filter_map(|first| partner(first).filter(|second| first < *second).map(|second| [first, second])).collect()
    }
}

impl Code for Hsrc {
    fn spec(&self) -> String {
        match self.d == dimensions(self.n) {
            true => format!("hsrc({},{})", self.n, self.k),
            false => format!("hsrc({},{},d={})", self.n, self.k, self.d),
        }
    }

    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        self.n - self.k
    }

    fn alpha(&self) -> usize {
        1
    }

    fn generator(&self) -> &SparseMatrix {
        &self.generator
    }

    fn tolerance(&self) -> usize {
        self.n - (1 << (self.k - 1))
    }

    /// A pair for each block, the cheapest ones; or any k sufficient blocks, if there is no pair or these are fewer.
    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable> {
        choose::recipes(self, ask, |wanted| {
            let pairs = self.pairs(wanted.index).into_iter();
            pairs.map(|pair| pair.map(|index| SubBlock { index, sub_block: 0 }).to_vec()).collect()
        })
    }
}

/// The least d with n ≤ 2^d − 1.
fn dimensions(n: usize) -> usize {
    (n + 1).next_power_of_two().trailing_zeros() as usize
}

fn build(arguments: &Arguments<'_>) -> Result<SharedCode, SpecError> {
    let [n, k] = arguments.numbers(FAMILY.usage, &["d"])?;
    let wrong = |problem: String| arguments.wrong(FAMILY.usage, problem);
    if !(1..=DIMENSIONS_MAX).contains(&k) {
        return Err(wrong(format!("k is {k}: it must be from 1 to {DIMENSIONS_MAX}")));
    }
    let (least, most) = ((1 << (k - 1)) + 1, (1 << DIMENSIONS_MAX) - 1);
    let least = least.max(k + 1);
    if !(least..=most).contains(&n) {
        return Err(wrong(format!("n is {n}: with k = {k} it must be from {least} to {most}")));
    }
    let d = match arguments.value("d") {
        None => dimensions(n),
        Some(text) => text.parse().map_err(|_| wrong(format!("d is '{text}': it must be a number")))?,
    };
    if !(dimensions(n)..=DIMENSIONS_MAX).contains(&d) {
        return Err(wrong(format!("d is {d}: with n = {n} it must be from {} to {DIMENSIONS_MAX}", dimensions(n))));
    }
    let code = Hsrc::new(n, k, d).ok_or_else(|| wrong("the first k points are dependent".to_owned()))?;
    Ok(Arc::new(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{conformance, info, parse};

    fn code(n: usize, k: usize) -> Hsrc {
        Hsrc::new(n, k, dimensions(n)).unwrap()
    }

    #[test]
    fn it_conforms() {
        for spec in ["hsrc(2,1)", "hsrc(6,1)", "hsrc(3,2)", "hsrc(7,3)", "hsrc(7,3,d=8)", "hsrc(5,3)", "hsrc(10,3)", "hsrc(9,4)"]
        {
            conformance::check(parse(spec).unwrap().as_ref()).unwrap();
        }
        for spec in ["hsrc(15,4)", "hsrc(12,4,d=4)", "hsrc(15,3)", "hsrc(31,5)", "hsrc(255,8)", "hsrc(129,8)", "hsrc(200,2)"] {
            conformance::check(parse(spec).unwrap().as_ref()).unwrap();
        }
    }

    #[test]
    fn a_full_code_moves_two_blocks_for_any_one() {
        for spec in ["hsrc(3,2)", "hsrc(7,3)", "hsrc(15,4)", "hsrc(15,3)", "hsrc(255,8)"] {
            let info = info(parse(spec).unwrap().as_ref()).unwrap();
            assert!(info.blocks.iter().all(|block| (block.blocks_read, block.blocks_moved) == (2.0, 2.0)), "{spec}");
        }
    }

    #[test]
    fn the_pair_is_the_preferred_one_and_reads_nothing_new_if_it_can() {
        let code = code(7, 3);
        assert_eq!(code.points, [1, 2, 4, 3, 5, 6, 7]);
        assert_eq!(code.pairs(0), [[1, 3], [2, 4], [5, 6]]);
        let helpers = |wanted: &[u8], available: &[u8], read_anyway: &[u8]| {
            let wanted = wanted.iter().map(|index| SubBlock { index: *index, sub_block: 0 }).collect();
            let ask = Ask { wanted, available: available.to_vec(), read_anyway: read_anyway.to_vec() };
            let recipe = code.recipes(&ask).unwrap().remove(0);
            recipe.helpers.iter().map(|helper| helper.index).collect::<Vec<_>>()
        };
        assert_eq!(helpers(&[0], &[1, 2, 3, 4, 5, 6], &[]), [1, 3]);
        assert_eq!(helpers(&[0], &[6, 5, 4, 3, 2, 1], &[]), [6, 5]);
        assert_eq!(helpers(&[0], &[1, 2, 3, 4, 5, 6], &[4]), [4, 2]);
        assert_eq!(helpers(&[0], &[1, 2, 6], &[]), [1, 2, 6], "no pair remains");
        assert_eq!(helpers(&[0, 1, 3], &[2, 4, 5, 6], &[]).len(), 3, "k helpers suffice for any number of lost blocks");
    }

    #[test]
    fn values_out_of_range_are_refused_and_the_range_named() {
        for (spec, says) in [
            ("hsrc(7,0)", "from 1 to 8"),
            ("hsrc(300,9)", "from 1 to 8"),
            ("hsrc(4,3)", "with k = 3 it must be from 5 to 255"),
            ("hsrc(256,3)", "from 5 to 255"),
            ("hsrc(2,2)", "from 3 to 255"),
            ("hsrc(7,3,d=2)", "with n = 7 it must be from 3 to 8"),
            ("hsrc(7,3,d=9)", "from 3 to 8"),
            ("hsrc(7,3,d=x)", "it must be a number"),
        ] {
            let error = parse(spec).map(|code| code.spec()).unwrap_err().to_string();
            assert!(error.contains(says), "{spec}: {error}");
        }
    }
}
