//! Fewer products for matrices that mirror themselves, as the parity rows of a Cauchy matrix 1/(i + j) do.
//!
//! i + j is an XOR, so that for an even row i and an even column j the four coefficients of rows i, i+1 and columns j, j+1
//! are a *pair* `[a b; b a]`, and
//!
//! ```text
//! [a b; b a] · (x, y)  =  a·(x + y)  +  (a + b)·(y, x)
//! ```
//!
//! takes three products instead of four. Pairs A, B of two pairs of rows and two pairs of columns are mirrored again in a
//! *quad* `[A B; B A]`, to which the same identity applies, over pairs: 3·3 products instead of 16. What is a product of the
//! same row by `a` or by `a + b` is summed up first and added once. Products are what limits the kernel as long as the data
//! is in the caches: rs(10,4) takes 24 for its 40 coefficients, rs(12,4) 27 for 48.

#![allow(unsafe_code)]

use super::pass::AFFINE;
use crate::Matrix;

/// How a pass does with fewer products: its sources are first those of the quads, then those of the pairs, then single ones.
#[derive(Clone, Copy)]
pub(super) struct Mirror<'a> {
    /// Four sources each; only with four rows.
    pub(super) quads: usize,
    /// Two sources each.
    pub(super) pairs: usize,
    /// The constants, as in [`AFFINE`], in the order in which the loops take them.
    pub(super) affine: &'a [u64],
}

/// An order of rows and columns in which a matrix is seen to mirror itself.
#[derive(Debug, Clone)]
pub(super) struct Arrangement {
    /// Two rows that mirror each other, then one of its own or two more that do.
    pub(super) rows: Vec<usize>,
    pub(super) sources: Vec<usize>,
    quads: usize,
    pairs: usize,
    affine: Vec<u64>,
}

/// Sums of products fewer than this share of the coefficients pay for the additions that they need.
const WORTH_PERCENT: usize = 90;

impl Arrangement {
    /// The one that takes the fewest products; `None` if it would not pay.
    pub(super) fn of(matrix: &Matrix) -> Option<Self> {
        let orders: &[&[usize]] = match matrix.rows() {
            2 => &[&[0, 1]],
            3 => &[&[0, 1, 2], &[0, 2, 1], &[1, 2, 0]],
            4 => &[&[0, 1, 2, 3], &[0, 1, 3, 2], &[0, 2, 1, 3], &[0, 2, 3, 1], &[0, 3, 1, 2], &[0, 3, 2, 1]],
            _ => return None,
        };
        let found = orders.iter().map(|rows| Self::with_rows(matrix, rows));
        let best = found.min_by_key(|arrangement| arrangement.products())?;
        (best.products() * 100 <= matrix.rows() * matrix.cols() * WORTH_PERCENT).then_some(best)
    }

    pub(super) fn mirror(&self) -> Mirror<'_> {
        Mirror { quads: self.quads, pairs: self.pairs, affine: &self.affine }
    }

    /// Of all vectors of all sources.
    pub(super) fn products(&self) -> usize {
        let rows = self.rows.len();
        let singles = self.sources.len() - 4 * self.quads - 2 * self.pairs;
        self.quads * 9 + self.pairs * pair_products(rows) + singles * rows
    }

    fn with_rows(matrix: &Matrix, rows: &[usize]) -> Self {
        let matrix = matrix.select_rows(rows);
        let columns: Vec<Vec<u8>> =
            (0..matrix.cols()).map(|col| (0..matrix.rows()).map(|row| matrix.get(row, col)).collect()).collect();
        // The third of three rows is on its own.
        let mirrored = rows.len() / 2 * 2;
        let mut left: Vec<usize> = (0..columns.len()).collect();
        let mut found_pairs = Vec::new();
        // The partner of a column is the column with its rows swapped, pair by pair.
        let mut singles = Vec::new();
        while let Some(x) = take_first(&mut left) {
            match take(&mut left, |y| columns[*y][..mirrored] == swapped(&columns[x][..mirrored])) {
                Some(y) => found_pairs.push([x, y]),
                None => singles.push(x),
            }
        }
        let (mut quads, mut pairs) = (Vec::new(), Vec::new());
        while let Some([x, y]) = take_first(&mut found_pairs) {
            let crossed = crossed(&columns[x]);
            match take(&mut found_pairs, |pair| rows.len() == 4 && pair.iter().any(|u| columns[*u] == crossed)) {
                Some([u, v]) if columns[u] == crossed => quads.push([x, y, u, v]),
                Some([u, v]) => quads.push([x, y, v, u]),
                None => pairs.push([x, y]),
            }
        }
        let mut constants = Vec::new();
        for [x, y, _, _] in &quads {
            let (a, b, c, d) = (columns[*x][0], columns[*y][0], columns[*x][2], columns[*y][2]);
            constants.extend([a, a ^ b, a ^ c, a ^ b ^ c ^ d]);
        }
        for [x, y] in &pairs {
            let (x, y) = (&columns[*x], &columns[*y]);
            constants.extend([x[0], x[0] ^ y[0]]);
            match rows.len() {
                3 => constants.extend([x[2], y[2]]),
                4 => constants.extend([x[2], x[2] ^ y[2]]),
                _ => {}
            }
        }
        singles.iter().for_each(|x| constants.extend(&columns[*x]));
        let (quads_len, pairs_len) = (quads.len(), pairs.len());
        let sources = quads.into_iter().flatten().chain(pairs.into_iter().flatten()).chain(singles).collect();
        let affine = constants.iter().map(|constant| AFFINE[usize::from(*constant)]).collect();
        Self { rows: rows.to_vec(), sources, quads: quads_len, pairs: pairs_len, affine }
    }
}

impl Mirror<'_> {
    /// That there are constants for all sources.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn check(self, sources: usize, rows: usize) {
        let singles = sources.checked_sub(4 * self.quads + 2 * self.pairs);
        let constants = singles.map(|singles| 4 * self.quads + pair_constants(rows) * self.pairs + singles * rows);
        assert!(constants == Some(self.affine.len()), "constants of quads, pairs and single sources");
    }
}

/// Products that a pair of columns takes.
fn pair_products(rows: usize) -> usize {
    match rows {
        2 => 3,
        3 => 5,
        _ => 6,
    }
}

/// Constants that a pair of columns has.
const fn pair_constants(rows: usize) -> usize {
    if rows == 2 { 2 } else { 4 }
}

/// The column with the rows of each two swapped.
fn swapped(column: &[u8]) -> Vec<u8> {
    let mut swapped = column.to_vec();
    swapped.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
    swapped
}

/// The column of four rows with its halves swapped.
fn crossed(column: &[u8]) -> Vec<u8> {
    let mut crossed = column.to_vec();
    crossed.rotate_left(column.len() / 2);
    crossed
}

fn take_first<T>(left: &mut Vec<T>) -> Option<T> {
    if left.is_empty() { None } else { Some(left.remove(0)) }
}

fn take<T>(left: &mut Vec<T>, wanted: impl Fn(&T) -> bool) -> Option<T> {
    let place = left.iter().position(wanted)?;
    Some(left.remove(place))
}

#[cfg(target_arch = "x86_64")]
pub(super) use bodies::{Pairs, Quads};

#[cfg(target_arch = "x86_64")]
mod bodies {
    use super::pair_constants;
    use crate::kernel::lanes::{Body, Lanes, Slices};

    /// Two rows that mirror each other in `P` pairs of columns, and at most one more.
    pub(in crate::kernel) struct Pairs<const P: usize>;

    /// Two times two rows that mirror each other in `Q` quads and `P` pairs of columns.
    pub(in crate::kernel) struct Quads<const Q: usize, const P: usize>;

    /// Sums of products for two rows: what both get, and what each gets beside it.
    struct Sums<L: Lanes> {
        both: L::Vector,
        each: [L::Vector; 2],
    }

    // SAFETY (all blocks): as for `Slices`.
    impl<L: Lanes> Sums<L> {
        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self { both: L::zero(), each: [L::zero(); 2] } }
        }

        /// `[a b; b a] · (x, y)`, from the factors a and a + b.
        #[inline(always)]
        unsafe fn add_pair(&mut self, [x, y]: [L::Vector; 2], [a, a_b]: [L::Factor; 2]) {
            unsafe {
                self.both = L::add_product(self.both, L::source(L::xor(x, y)), a);
                self.each[0] = L::add_product(self.each[0], L::source(y), a_b);
                self.each[1] = L::add_product(self.each[1], L::source(x), a_b);
            }
        }

        #[inline(always)]
        unsafe fn add_single(&mut self, x: L::Vector, factors: [L::Factor; 2]) {
            unsafe {
                self.each[0] = L::add_product(self.each[0], L::source(x), factors[0]);
                self.each[1] = L::add_product(self.each[1], L::source(x), factors[1]);
            }
        }

        #[inline(always)]
        unsafe fn add(&mut self, other: &Self) {
            unsafe {
                self.both = L::xor(self.both, other.both);
                self.each = [L::xor(self.each[0], other.each[0]), L::xor(self.each[1], other.each[1])];
            }
        }

        #[inline(always)]
        unsafe fn row(&self, index: usize) -> L::Vector {
            unsafe { L::xor(self.each[index], self.both) }
        }
    }

    /// Two vectors of neighbouring sources.
    #[inline(always)]
    unsafe fn load_two<L: Lanes, const M: usize>(slices: &Slices<L, M>, k: usize, at: usize) -> [L::Vector; 2] {
        unsafe { [slices.load(k, at), slices.load(k + 1, at)] }
    }

    /// Two constants that follow each other.
    #[inline(always)]
    unsafe fn factors<L: Lanes, const M: usize>(slices: &Slices<L, M>, index: usize) -> [L::Factor; 2] {
        unsafe { [slices.mirrored(index), slices.mirrored(index + 1)] }
    }

    // SAFETY (all blocks): as for `Slices`; the arrangement has as many quads, pairs and constants.
    impl<L: Lanes, const P: usize, const M: usize> Body<L, M> for Pairs<P> {
        const DEPTH: usize = 1;

        #[inline(always)]
        unsafe fn step(slices: &Slices<L, M>, at: usize, stream: bool) {
            unsafe {
                let mut sums = Sums::<L>::zero();
                let mut third = L::zero();
                macro_rules! pairs {
                    ($($pair:literal)*) => {$(
                        if $pair < P {
                            let [x, y] = load_two(slices, 2 * $pair, at);
                            sums.add_pair([x, y], factors(slices, $pair * pair_constants(M)));
                            if M == 3 {
                                let [for_x, for_y] = factors(slices, $pair * pair_constants(M) + 2);
                                third = L::add_product(third, L::source(x), for_x);
                                third = L::add_product(third, L::source(y), for_y);
                            }
                        }
                    )*};
                }
                pairs!(0 1 2 3 4 5 6 7);
                for single in 0..slices.count - 2 * P {
                    let (x, constant) = (slices.load(2 * P + single, at), P * pair_constants(M) + single * M);
                    sums.add_single(x, factors(slices, constant));
                    if M == 3 {
                        third = L::add_product(third, L::source(x), slices.mirrored(constant + 2));
                    }
                }
                slices.finish(0, at, sums.row(0), stream);
                slices.finish(1, at, sums.row(1), stream);
                if M == 3 {
                    slices.finish(2, at, third, stream);
                }
            }
        }
    }

    // SAFETY (all blocks): as above.
    impl<L: Lanes, const Q: usize, const P: usize> Body<L, 4> for Quads<Q, P> {
        const DEPTH: usize = 1;

        #[inline(always)]
        unsafe fn step(slices: &Slices<L, 4>, at: usize, stream: bool) {
            unsafe {
                let (mut shared, mut first, mut second) = (Sums::<L>::zero(), Sums::<L>::zero(), Sums::<L>::zero());
                macro_rules! quads {
                    ($($quad:literal)*) => {$(
                        if $quad < Q {
                            let [x0, x1] = load_two(slices, 4 * $quad, at);
                            let [y0, y1] = load_two(slices, 4 * $quad + 2, at);
                            // [A B; B A] · (x, y) = A·(x + y) + (A + B)·(y, x)
                            shared.add_pair([L::xor(x0, y0), L::xor(x1, y1)], factors(slices, 4 * $quad));
                            let crossed = factors(slices, 4 * $quad + 2);
                            first.add_pair([y0, y1], crossed);
                            second.add_pair([x0, x1], crossed);
                        }
                    )*};
                }
                quads!(0 1 2 3);
                macro_rules! pairs {
                    ($($pair:literal)*) => {$(
                        if $pair < P {
                            let sources = load_two(slices, 4 * Q + 2 * $pair, at);
                            first.add_pair(sources, factors(slices, 4 * (Q + $pair)));
                            second.add_pair(sources, factors(slices, 4 * (Q + $pair) + 2));
                        }
                    )*};
                }
                pairs!(0 1 2 3 4 5 6 7);
                for single in 4 * Q + 2 * P..slices.count {
                    let x = slices.load(single, at);
                    let constant = 4 * (Q + P) + 4 * (single - 4 * Q - 2 * P);
                    first.add_single(x, factors(slices, constant));
                    second.add_single(x, factors(slices, constant + 2));
                }
                if Q > 0 {
                    first.add(&shared);
                    second.add(&shared);
                }
                slices.finish(0, at, first.row(0), stream);
                slices.finish(1, at, first.row(1), stream);
                slices.finish(2, at, second.row(0), stream);
                slices.finish(3, at, second.row(1), stream);
            }
        }
    }
}
