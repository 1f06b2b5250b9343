//! Product-matrix MSR codes: a single lost block is repaired from 1/(d−k+1) of each of any d others.
//!
//! Rashmi, Shah and Kumar, *Optimal Exact-Regenerating Codes for Distributed Storage at the MSR and MBR Points via a
//! Product-Matrix Construction* (IEEE Transactions on Information Theory 57(8), 2011), §V (d = 2k−2) and its corollary 8
//! (2k−2 < d, by shortening).
//!
//! **Construction.** α = d−k+1. For d = 2k−2 the message fills two symmetric matrices S₁ and S₂ of α × α, and block i holds
//! the α sub-blocks of
//!
//! ```text
//! φ_i·S₁ + λ_i·φ_i·S₂,   φ_i = (1, x_i, …, x_i^(α−1)),   λ_i = x_i^α
//! ```
//!
//! The points x_i are powers of 2, those with equal x^α left out, so that any α of the φ, any 2α of the (φ, λφ), and any two λ
//! are independent. With the rows of the first k blocks inverted the code is systematic. For a larger d, take the code with
//! s = d−2k+2 more data blocks and as many more helpers, and leave out the first s, which are zeros: block t has point t+s.
//!
//! **Repair** of block f (§V.C). A helper sends the one sub-block `(φ_i·S₁ + λ_i·φ_i·S₂)·φ_fᵗ`, whatever the other helpers are. Those of d
//! helpers, and zeros of the s blocks left out, are the products of d+s = 2α independent rows (φ_i, λ_i·φ_i) with the vector of S₁·φ_fᵗ and
//! S₂·φ_fᵗ. S₁ and S₂ are symmetric, so these are φ_f·S₁ and φ_f·S₂, from which the lost block is computed. Every helper reads its whole
//! block.
//!
//! With more lost blocks, or fewer helpers than d, any k blocks suffice (§V.B): the generic recipe.

use crate::{
    Arguments, Ask, Code, Family, NotRecoverable, Recipe, SharedCode, SpecError, SubBlock,
    draft::{self, Computed, Situation},
    solve,
};
use std::sync::{Arc, OnceLock};
use weft_gf::{FactoredBuilder, Matrix, SparseMatrix, field};

/// The specs of these codes.
pub(crate) const FAMILY: Family = Family {
    name: "msr",
    usage: "msr(k,m) or msr(k,m,d=helpers), with k at least 2, d from 2k-2 to k+m-1 (the default), and d-k+1 at most 32",
    summary: "Product-matrix MSR: one lost block is repaired from 1/(d-k+1) of each of d others, which read and combine whole \
            blocks",
    advice: "Choose it if links are the bottleneck and an overhead of about two or more is acceptable. Helpers send the least \
            possible, but read their whole blocks.",
    measured: &["msr(4,4,d=6)", "msr(4,4)", "msr(6,6,d=10)"],
    build,
};

/// The generator needs the inverse of a matrix of α(α+1) rows; beyond this α, that takes too long.
const ALPHA_MAX: usize = 32;

/// A product-matrix code.
#[derive(Debug)]
pub(crate) struct ProductMatrix {
    k: usize,
    m: usize,
    d: usize,
    /// x of the s omitted blocks, then of the others.
    points: Vec<u8>,
    generator: OnceLock<SparseMatrix>,
}

impl Code for ProductMatrix {
    fn spec(&self) -> String {
        let Self { k, m, d, .. } = self;
        if *d == k + m - 1 { format!("msr({k},{m})") } else { format!("msr({k},{m},d={d})") }
    }

    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        self.m
    }

    fn alpha(&self) -> usize {
        self.d - self.k + 1
    }

    fn generator(&self) -> &SparseMatrix {
        self.generator.get_or_init(|| self.make_generator())
    }

    fn tolerance(&self) -> usize {
        self.m
    }

    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable> {
        let situation = Situation::of(self, ask)?;
        let mut recipes = vec![solve::recipe(self, ask)?];
        if let Some((lost, others)) = situation.single()
            && others >= self.d
        {
            recipes.push(self.repair(ask, lost, &situation.order));
        }
        Ok(draft::cheapest_first(ask, recipes))
    }
}

impl ProductMatrix {
    /// `None` if the field does not have enough points.
    fn new(k: usize, m: usize, d: usize) -> Option<Self> {
        let (alpha, blocks) = (d - k + 1, k + m + d + 2 - 2 * k);
        let mut points: Vec<u8> = Vec::with_capacity(blocks);
        for point in (0..255).map(field::exp) {
            if points.len() < blocks && points.iter().all(|earlier| power(*earlier, alpha) != power(point, alpha)) {
                points.push(point);
            }
        }
        (points.len() == blocks).then(|| Self { k, m, d, points, generator: OnceLock::new() })
    }

    /// s: the number of omitted blocks of zeros.
    fn left_out(&self) -> usize {
        self.points.len() - self.n()
    }

    /// φ of a point.
    fn phi(&self, point: u8) -> Vec<u8> {
        (0..self.alpha()).map(|exponent| power(point, exponent)).collect()
    }

    /// (φ, λφ) of a point.
    fn psi(&self, point: u8) -> Vec<u8> {
        (0..2 * self.alpha()).map(|exponent| power(point, exponent)).collect()
    }

    /// All blocks, including the omitted ones, as sums of the elements of S₁ and then S₂ (upper triangles, row by row);
    /// with the first k+s blocks inverted, and then without the s omitted ones.
    fn make_generator(&self) -> SparseMatrix {
        let (alpha, skip) = (self.alpha(), self.left_out() * self.alpha());
        let triangle = alpha * (alpha + 1) / 2;
        let mut blocks = Matrix::zero(self.points.len() * alpha, 2 * triangle);
        for (block, point) in self.points.iter().enumerate() {
            for (at, coefficient) in self.psi(*point).into_iter().enumerate() {
                let (matrix, row) = (at / alpha, at % alpha);
                for col in 0..alpha {
                    let (low, high) = (row.min(col), row.max(col));
                    let element = low * (2 * alpha - low + 1) / 2 + high - low;
                    blocks.set(block * alpha + col, matrix * triangle + element, coefficient);
                }
            }
        }
        let data: Vec<usize> = (0..2 * triangle).collect();
        let inverse = blocks.select_rows(&data).inverse().unwrap_or_else(|| unreachable!("any k blocks suffice"));
        let parities: Vec<usize> = (2 * triangle..blocks.rows()).collect();
        let parities = blocks.select_rows(&parities).times(&inverse).select_cols(&data[skip..]);
        SparseMatrix::identity(self.k * alpha).stack(&SparseMatrix::from(&parities))
    }

    /// One sub-block from each of the first d blocks of `order`.
    fn repair(&self, ask: &Ask, lost: u8, order: &[u8]) -> Recipe {
        let (alpha, left_out) = (self.alpha(), self.left_out());
        let (helpers, point) = (&order[..self.d], |index: u8| self.points[left_out + usize::from(index)]);
        let phi: Vec<(u16, u8)> = (0..).zip(self.phi(point(lost))).collect();
        // A block that is wanted as a whole is sent in any case.
        let is_sent = |index: u8| (0..alpha as u16).all(|sub_block| ask.wanted.contains(&SubBlock { index, sub_block }));
        let asked: Vec<u8> = helpers.iter().copied().filter(|index| !is_sent(*index)).collect();
        let computed: Vec<Computed> = asked.iter().map(|index| Computed { index: *index, terms: phi.clone() }).collect();
        let plain = |index: u8, sub_block: u16| usize::from(index) * alpha + usize::from(sub_block);
        let mut builder = FactoredBuilder::new(self.n() * alpha + computed.len());
        let products: Vec<usize> = (helpers.iter())
            .map(|index| match asked.iter().position(|asked| asked == index) {
                Some(at) => self.n() * alpha + at,
                None => builder.temporary(phi.iter().map(|(s, c)| (plain(*index, *s), *c)).collect()),
            })
            .collect();
        let combine = self.combine(point(lost), &helpers.iter().map(|index| point(*index)).collect::<Vec<_>>());
        let results: Vec<Vec<(usize, u8)>> = (ask.wanted.iter())
            .map(|wanted| match wanted.index == lost {
                true => products.iter().copied().zip(combine.row(wanted.sub_block.into()).iter().copied()).collect(),
                false => vec![(plain(wanted.index, wanted.sub_block), 1)],
            })
            .collect();
        let map = builder.finish(&results).unwrap_or_else(|| unreachable!("temporaries are defined before their use"));
        draft::recipe(order, self.n(), alpha, &computed, &map)
    }

    /// Combines what helpers send, by their points, to the lost block, by its point: α × d.
    fn combine(&self, lost: u8, helpers: &[u8]) -> Matrix {
        let alpha = self.alpha();
        let points: Vec<u8> = helpers.iter().chain(&self.points[..self.left_out()]).copied().collect();
        let sent = Matrix::from_fn(2 * alpha, 2 * alpha, |r, c| power(points[r], c));
        let inverse = sent.inverse().unwrap_or_else(|| unreachable!("a Vandermonde matrix of distinct points is regular"));
        let lambda = power(lost, alpha);
        Matrix::from_fn(alpha, self.d, |r, c| inverse.get(r, c) ^ field::mul(lambda, inverse.get(alpha + r, c)))
    }
}

fn power(point: u8, exponent: usize) -> u8 {
    (0..exponent).fold(1, |power, _| field::mul(power, point))
}

fn build(arguments: &Arguments<'_>) -> Result<SharedCode, SpecError> {
    let [k, m] = arguments.numbers(FAMILY.usage, &["d"])?;
    let wrong = |problem: String| arguments.wrong(FAMILY.usage, problem);
    if k < 2 || m < 1 || k.saturating_add(m) > 255 {
        return Err(wrong(format!("k = {k} and m = {m} are invalid: k must be at least 2, m at least 1, and k+m at most 255")));
    }
    let d = draft::helpers(arguments, FAMILY.usage, k + m - 1)?;
    if !(2 * k - 2..k + m).contains(&d) {
        return Err(wrong(format!("d = {d} helpers is invalid: d must be from 2k-2 = {} to k+m-1 = {}", 2 * k - 2, k + m - 1)));
    }
    if d - k + 1 > ALPHA_MAX {
        return Err(wrong(format!("d-k+1 = {} sub-blocks are too many: at most {ALPHA_MAX}", d - k + 1)));
    }
    match ProductMatrix::new(k, m, d) {
        Some(code) => Ok(Arc::new(code)),
        None => Err(wrong(format!(
            "GF(2^8) has not enough points with different powers of {} for {} blocks",
            d - k + 1,
            m + d + 2 - k
        ))),
    }
}

#[cfg(test)]
#[path = "msr_tests.rs"]
mod tests;
