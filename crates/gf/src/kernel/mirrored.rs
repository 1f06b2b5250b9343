//! The loops over matrices with mirror symmetry; see [`mirror`](super::mirror) for why they need fewer products.

#![allow(unsafe_code)]

use super::{
    lanes::{ANY, Body, Lanes, Slices},
    mirror::pair_constants,
};

/// Two rows that mirror each other in `P` pairs of columns, and at most one more row.
pub(super) struct Pairs<const P: usize>;

/// Two pairs of rows that mirror each other in `Q` quads and `P` pairs of columns.
pub(super) struct Quads<const Q: usize, const P: usize>;

/// Sums of products for two rows: the common part, and the part of each.
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

/// Vectors of two adjacent sources.
#[inline(always)]
unsafe fn two_sources<L: Lanes, const M: usize>(slices: &Slices<L, M>, k: usize, at: usize) -> [L::Vector; 2] {
    unsafe { [slices.load(k, at), slices.load(k + 1, at)] }
}

/// Two adjacent constants.
#[inline(always)]
unsafe fn two_factors<L: Lanes, const M: usize>(slices: &Slices<L, M>, index: usize) -> [L::Factor; 2] {
    unsafe { [slices.mirrored(index), slices.mirrored(index + 1)] }
}

/// Repeats the body for each number below a constant, unrolled by hand, because the compiler may not unroll a loop; or
/// below the number in the pass, if the constant is [`ANY`].
macro_rules! for_each_below {
    ($constant:ident, $actual:expr, |$index:ident| $body:expr) => {
        if $constant == ANY {
            for $index in 0..$actual {
                $body
            }
        } else {
            for_each_below!(@ $constant, $index, $body, 0 1 2 3 4 5 6 7);
        }
    };
    (@ $constant:ident, $index:ident, $body:expr, $($literal:literal)*) => {
        $(if $literal < $constant {
            let $index = $literal;
            $body
        })*
    };
}

// SAFETY (all blocks): as for `Slices`; the pass has this many pairs, and constants for all of its sources.
impl<L: Lanes, const P: usize, const M: usize> Body<L, M> for Pairs<P> {
    const DEPTH: usize = 1;

    #[inline(always)]
    fn fits(sources: usize, quads: usize, pairs: usize) -> bool {
        quads == 0 && (P == ANY || P == pairs) && 2 * pairs <= sources
    }

    #[inline(always)]
    unsafe fn step(slices: &Slices<L, M>, at: usize, stream: bool) {
        unsafe {
            let mut sums = Sums::<L>::zero();
            let mut third = L::zero();
            for_each_below!(P, slices.pairs, |pair| {
                let [x, y] = two_sources(slices, 2 * pair, at);
                sums.add_pair([x, y], two_factors(slices, pair * pair_constants(M)));
                if M == 3 {
                    let [for_x, for_y] = two_factors(slices, pair * pair_constants(M) + 2);
                    third = L::add_product(third, L::source(x), for_x);
                    third = L::add_product(third, L::source(y), for_y);
                }
            });
            let pairs = if P == ANY { slices.pairs } else { P };
            for single in 0..slices.count - 2 * pairs {
                let (x, constant) = (slices.load(2 * pairs + single, at), pairs * pair_constants(M) + single * M);
                sums.add_single(x, two_factors(slices, constant));
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

// SAFETY (all blocks): as above, for quads and pairs.
impl<L: Lanes, const Q: usize, const P: usize> Body<L, 4> for Quads<Q, P> {
    const DEPTH: usize = 1;

    #[inline(always)]
    fn fits(sources: usize, quads: usize, pairs: usize) -> bool {
        (Q == ANY || Q == quads) && (P == ANY || P == pairs) && 4 * quads + 2 * pairs <= sources
    }

    #[inline(always)]
    unsafe fn step(slices: &Slices<L, 4>, at: usize, stream: bool) {
        unsafe {
            let (mut shared, mut first, mut second) = (Sums::<L>::zero(), Sums::<L>::zero(), Sums::<L>::zero());
            for_each_below!(Q, slices.quads, |quad| {
                let [x0, x1] = two_sources(slices, 4 * quad, at);
                let [y0, y1] = two_sources(slices, 4 * quad + 2, at);
                // [A B; B A] · (x, y) = A·(x + y) + (A + B)·(y, x)
                shared.add_pair([L::xor(x0, y0), L::xor(x1, y1)], two_factors(slices, 4 * quad));
                let crossed = two_factors(slices, 4 * quad + 2);
                first.add_pair([y0, y1], crossed);
                second.add_pair([x0, x1], crossed);
            });
            let quads = if Q == ANY { slices.quads } else { Q };
            for_each_below!(P, slices.pairs, |pair| {
                let sources = two_sources(slices, 4 * quads + 2 * pair, at);
                first.add_pair(sources, two_factors(slices, 4 * (quads + pair)));
                second.add_pair(sources, two_factors(slices, 4 * (quads + pair) + 2));
            });
            let pairs = if P == ANY { slices.pairs } else { P };
            for single in 0..slices.count - 4 * quads - 2 * pairs {
                let x = slices.load(4 * quads + 2 * pairs + single, at);
                let constant = 4 * (quads + pairs + single);
                first.add_single(x, two_factors(slices, constant));
                second.add_single(x, two_factors(slices, constant + 2));
            }
            first.add(&shared);
            second.add(&shared);
            slices.finish(0, at, first.row(0), stream);
            slices.finish(1, at, first.row(1), stream);
            slices.finish(2, at, second.row(0), stream);
            slices.finish(3, at, second.row(1), stream);
        }
    }
}
