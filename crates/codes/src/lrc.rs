//! Azure's local reconstruction codes: a lost block is repaired within its group, from k/l blocks instead of k.
//!
//! C. Huang, H. Simitci, Y. Xu, A. Ogus, B. Calder, P. Gopalan, J. Li, S. Yekhanin, *Erasure Coding in Windows Azure Storage*, USENIX
//! ATC 2012, section 2. The k data blocks form l groups of k/l, in order. Blocks: the data, one local parity a group (its XOR),
//! and g global parities over all data. m = l + g.
//!
//! **Tolerance** is g + 1, exactly: a group and its local parity, with globals if it is smaller, make a pattern of g + 2 blocks with one
//! unknown more than equations. A code that recovers *every* pattern in which the unknowns are no more than the equations that reach them
//! is called maximally recoverable. The coefficients of the globals depend on the parameters:
//!
//! - **g ≤ 2, 2 ≤ l ≤ 17 and k/l ≤ 15**: global t has `a_c^(2^t)` for data block c, where the a_c of one group and 0 lie in an
//!   additive subgroup of GF(2^8) of 16 elements that shares only 0 with those of the other groups. For l = 2 these are the
//!   elements without high and without low bits, as the paper has them: `a_c = (position + 1) << 4·group`. For more
//!   groups, they are the cosets of GF(16): `a_c = 2^(group + 17·position)`. **Maximally recoverable**: one data block of a group
//!   that has its local parity can be eliminated, which leaves a_i + a_j of its group for each of the others; so, with u and v
//!   two of what is left (one element, or one of a group each), the determinants are 1·u, u², and uv² + u²v = uv(u + v), and none
//!   is zero: distinct elements of a subgroup, or non-zero ones of two of them, have sums that are not.
//! - **l = 1**, where the code is MDS, **and all others**: a Cauchy matrix `1 / (x_t ⊕ y_c)`. **Tolerance g + 1** for any distinct points:
//!   with a data blocks and g + 1 − a globals lost, the local parities that reach the former add up to a row of ones over them (all of
//!   these are available; otherwise at most g losses remain, which the data and globals alone, an MDS code, recover); and a Cauchy matrix
//!   with a row of ones is one in the limit, and regular. With g = 1 this is all that is needed for the code to be maximally recoverable,
//!   as with l = 1. For g ≥ 3 this holds only for some points. No rule is known over a field this small, so points are drawn (`points`
//!   below) until the code is maximally recoverable, if that can be checked quickly (up to 4,096 minors, in up to 64 draws). This succeeds
//!   for (4,2,3), (6,2,3), (6,3,3), (8,2,3) and (9,3,3). For larger codes, or if no draw succeeds, the first draw is used: **only the
//!   tolerance of those codes is known**, and whether a larger pattern is recovered depends on its rank. lrc(4,2,6) has its own points,
//!   from a similar search by the model that made the golden vectors; it is maximally recoverable too.

use crate::{
    Arguments, Ask, Code, Family, NotRecoverable, Recipe, SharedCode, SpecError, SubBlock, choose, mds::combinations,
    random::Random,
};
use std::sync::Arc;
use weft_gf::{Matrix, SparseMatrix, field};

/// The specs of these codes.
pub(crate) const FAMILY: Family = Family {
    name: "lrc",
    usage: "lrc(k,l,g), with l groups of k/l data blocks and a local parity each, and g global parities: k, l and g at least 1, \
            k divisible by l, k+l+g at most 255",
    summary: "Azure's local reconstruction code: a lost block of a group is repaired from its k/l others; tolerates g+1 losses",
    advice: "Choose it for wide stripes. A single lost block is repaired within its small group, at the price of one more parity \
            block per group. It survives fewer losses than it has parity blocks.",
    measured: &["lrc(12,2,2)", "lrc(4,2,6)"],
    build,
};

/// As for all codes over GF(2^8).
const BLOCKS_MAX: usize = 255;

/// The number of additive subgroups of 16 elements that share only 0.
const SUBGROUPS_MAX: usize = 17;
const SUBGROUP_ELEMENTS: usize = 15;

/// The most minors, and draws, in a check for maximal recoverability.
const MINORS_MAX: usize = 4096;
const DRAWS_MAX: u64 = 64;

/// The points of lrc(4,2,6), x and y.
const POINTS_4_2_6: ([u8; 6], [u8; 4]) = ([181, 209, 115, 205, 12, 23], [0, 51, 154, 193]);

/// An Azure local reconstruction code.
#[derive(Debug)]
pub(crate) struct Lrc {
    k: usize,
    l: usize,
    g: usize,
    generator: SparseMatrix,
}

impl Lrc {
    fn new(k: usize, l: usize, g: usize) -> Self {
        let locals = Matrix::from_fn(l, k, |group, data| u8::from(data / (k / l) == group));
        let generator = Matrix::identity(k).stack(&locals).stack(&globals(k, l, g));
        Self { k, l, g, generator: SparseMatrix::from(&generator) }
    }

    /// The other blocks of a block's group; `None` for a global parity.
    fn group(&self, index: usize) -> Option<Vec<SubBlock>> {
        let size = self.k / self.l;
        let group = if index < self.k { index / size } else { index - self.k };
        let members = (group * size..(group + 1) * size).chain([self.k + group]).filter(|other| *other != index);
        (index < self.k + self.l).then(|| members.map(|index| SubBlock { index: index as u8, sub_block: 0 }).collect())
    }
}

impl Code for Lrc {
    fn spec(&self) -> String {
        format!("lrc({},{},{})", self.k, self.l, self.g)
    }

    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        self.l + self.g
    }

    fn alpha(&self) -> usize {
        1
    }

    fn generator(&self) -> &SparseMatrix {
        &self.generator
    }

    fn tolerance(&self) -> usize {
        self.g + 1
    }

    /// Uses each block's own group if it is complete; otherwise k blocks, or fewer with blocks that are read anyway.
    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable> {
        choose::recipes(self, ask, |wanted| self.group(wanted.index.into()).into_iter().collect())
    }
}

/// The global parities' rows: g × k.
fn globals(k: usize, l: usize, g: usize) -> Matrix {
    let size = k / l;
    if g <= 2 && (2..=SUBGROUPS_MAX).contains(&l) && size <= SUBGROUP_ELEMENTS {
        return Matrix::from_fn(g, k, |power, data| {
            let (group, position) = (data / size, data % size);
            let element = if l == 2 { ((position + 1) << (4 * group)) as u8 } else { field::exp(group + 17 * position) };
            (0..power).fold(element, |x, _| field::mul(x, x))
        });
    }
    if (k, l, g) == (4, 2, 6) {
        return cauchy(&POINTS_4_2_6.0, &POINTS_4_2_6.1);
    }
    let draw = |seed: u64| {
        let (x, y) = points(seed, k, g);
        cauchy(&x, &y)
    };
    let minors = if g >= 2 && l >= 2 { minors(k, l, g) } else { None };
    let recoverable =
        |globals: &Matrix| minors.as_ref().is_some_and(|minors| minors.iter().all(|minor| minor.is_regular(globals, size)));
    (0..DRAWS_MAX).filter(|_| minors.is_some()).map(draw).find(recoverable).unwrap_or_else(|| draw(0))
}

fn cauchy(x: &[u8], y: &[u8]) -> Matrix {
    // All points are distinct, so the inverses exist.
    Matrix::from_fn(x.len(), y.len(), |row, col| field::inv(x[row] ^ y[col]).unwrap_or(0))
}

/// The points of g globals and k data blocks: the first g, and the k that follow, of a shuffle of the field.
fn points(seed: u64, k: usize, g: usize) -> (Vec<u8>, Vec<u8>) {
    let mut elements: Vec<u8> = (0..=255).collect();
    Random(seed).shuffle(&mut elements);
    (elements[..g].to_vec(), elements[g..g + k].to_vec())
}

/// A square system: as many equations (globals, and local parities of the data blocks' groups) as data blocks. A code
/// is maximally recoverable if and only if every such matrix is regular.
struct Minor {
    data: Vec<usize>,
    groups: Vec<usize>,
    globals: Vec<usize>,
}

impl Minor {
    fn is_regular(&self, globals: &Matrix, size: usize) -> bool {
        let local = |row: usize, col: usize| u8::from(self.data[col] / size == self.groups[row]);
        let element = |row: usize, col: usize| match row.checked_sub(self.groups.len()) {
            None => local(row, col),
            Some(at) => globals.get(self.globals[at], self.data[col]),
        };
        Matrix::from_fn(self.data.len(), self.data.len(), element).rank() == self.data.len()
    }
}

/// All minors except those that are always regular (of a Cauchy matrix alone, or of local parities alone); `None` if
/// there are too many.
fn minors(k: usize, l: usize, g: usize) -> Option<Vec<Minor>> {
    let size = k / l;
    let mut minors = Vec::new();
    for lost in 1..=k.min(l + g) {
        for data in combinations(k, lost) {
            let mut touched: Vec<usize> = data.iter().map(|index| index / size).collect();
            touched.dedup();
            for locals in lost.saturating_sub(g).max(1)..=touched.len().min(lost - 1) {
                for groups in combinations(touched.len(), locals) {
                    let groups: Vec<usize> = groups.into_iter().map(|at| touched[at]).collect();
                    let with = |globals| Minor { data: data.clone(), groups: groups.clone(), globals };
                    minors.extend(combinations(g, lost - locals).map(with));
                    if minors.len() > MINORS_MAX {
                        return None;
                    }
                }
            }
        }
    }
    Some(minors)
}

fn build(arguments: &Arguments<'_>) -> Result<SharedCode, SpecError> {
    let [k, l, g] = arguments.numbers(FAMILY.usage, &[])?;
    let wrong = |problem: String| Err(arguments.wrong(FAMILY.usage, problem));
    if k < 1 || l < 1 || g < 1 {
        return wrong(format!("k is {k}, l is {l} and g is {g}: each must be at least 1"));
    }
    let n = k.saturating_add(l).saturating_add(g);
    if n > BLOCKS_MAX {
        return wrong(format!("k+l+g is {n}: it must be at most {BLOCKS_MAX}"));
    }
    if k % l != 0 {
        let near = [k / l * l, k.next_multiple_of(l)].into_iter().filter(|k| *k > 0).map(|k| format!("lrc({k},{l},{g})"));
        let near = near.collect::<Vec<_>>().join(" or ");
        return wrong(format!("{k} data blocks do not form {l} groups of equal size: use {near}"));
    }
    Ok(Arc::new(Lrc::new(k, l, g)))
}

#[cfg(test)]
#[path = "lrc_tests.rs"]
mod tests;
