//! Butterfly codes: two parity blocks, XOR only; any single block is repaired from half of the remaining data.
//!
//! Pamies-Juarez, Blagojević, Mateescu, Guyot, En Gad and Bandić, *Opening the Chrysalis: On the Real Repair Performance of MSR
//! Codes* (FAST 2016). A block is a column of α = 2^(k−1) sub-blocks; data block j is the paper's `D^j`, block k its horizontal
//! parity H, block k+1 its butterfly parity B.
//!
//! **Encoding** (§3.1). The recursion (2)–(5), in which `P_{k−1}` flips 2^(k−2) rows, has this closed form. Let
//! `g(i) = i ⊕ ⌊i/2⌋` (Gray's code) and `low(L, r) = D^0[r] ⊕ … ⊕ D^L[r]`, the sum of the lowest L+1 columns of a row. Then
//!
//! ```text
//! H[i] = low(k−1, i)
//! B[i] = ⊕ over L = 0..k−1 of  low(L, i ⊕ (2^L − 1))   if L > 0 and bit L−1 of g(i) is set
//!                              D^L[i ⊕ (2^L − 1)]      otherwise
//! ```
//!
//! The sums of a row are intermediate results of its H, and a row of B has k terms. If every sum is kept, both parities together take
//! 2·α·(k−1) XORs, as many as two rows of plain parity: 1,792 for k = 8. But a kept sum is written once and read again, so it is faster to
//! compute sums of few columns twice: only sums of five or more columns are temporaries. That takes 2,176 XORs for k = 8; without
//! temporaries it would be 3,584. `low(L, r)` is needed where bits L−1 and L of r are equal.
//!
//! **Repair** (§3.3). Row i of B gives one sub-block of column j, `D^j[i ⊕ (2^j − 1)]`, once its other terms are known; and `H[α−1−i]`,
//! which is its term for L = k−1, where bit k−2 of i is set.
//!
//! 1. `D^j`, 0 < j: all others send the rows r whose bits j−1 and j are equal. H gives `D^j` in those rows, and B the rest.
//! 2. `D^0`: B sends its odd rows and the others their even ones. H gives `D^0` in the even rows, B in the odd ones.
//! 3. H: all send their lower halves. The data give the lower half of H, and B the upper one.
//! 4. B: `D^{k−1}` sends its upper half a and H its lower one; the other columns send `T^j[i]`, what they contribute to
//!    `B[α−1−i]`, for i < α/2: they read all and send half. Then `B[α−1−i] = a[i] ⊕ low(k−2, i) of T`, and
//!    `B[i] = (row i of the butterfly of the k−1 columns T) ⊕ H[α−1−i]`.
//!
//! Sending half of the rest is optimal, and reading half is optimal except in case 4. If only a part of a block is wanted, or the other
//! data too, `D^j = H ⊕ (the other columns)`, row by row, costs no more, so it is always offered as well.
//!
//! **Decoding** (§3.2, theorem 1). Of two lost blocks, a parity is encoded again. One column is recovered through H row by row; or through
//! B, at each level of the recursion the top half before the bottom, because a bottom row needs the sum of a row of the top. Two columns i
//! < j: at levels above j as before; at level j, D^j being the leftmost column, the bottom half of B comes first: there D^j is part of a
//! whole row, which H knows. It gives the bottom of D^i, H that of D^j, and so the tops. This proves that any k of the n = k+2 blocks
//! suffice.

use crate::{
    Arguments, Ask, Code, Family, NotRecoverable, Recipe, SharedCode, SpecError,
    draft::{self, Computed, Situation},
};
use std::{collections::HashMap, sync::Arc};
use weft_gf::{Factored, FactoredBuilder, SparseMatrix};

/// The specs of these codes.
pub(crate) const FAMILY: Family = Family {
    name: "butterfly",
    usage: "butterfly(k), with k from 2 to 10",
    summary: "Butterfly: two parity blocks, XOR only, 2^(k-1) sub-blocks; one lost block is repaired from half of each other \
            block",
    advice: "Choose it if two parity blocks are enough. A repair moves half of every other block. More data blocks need longer \
            cells.",
    measured: &["butterfly(4)", "butterfly(8)"],
    build,
};

/// With more, a block would have more than 512 sub-blocks.
const K_MAX: usize = 10;

/// Sums of columns up to this level or higher are kept as temporaries (measured in and beyond the cache, for k from 4
/// to 10).
const KEPT_LEVEL_MIN: usize = 4;

/// A Butterfly code.
#[derive(Debug)]
pub(crate) struct Butterfly {
    k: usize,
    generator: SparseMatrix,
}

impl Code for Butterfly {
    fn spec(&self) -> String {
        format!("butterfly({})", self.k)
    }

    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        2
    }

    fn alpha(&self) -> usize {
        1 << (self.k - 1)
    }

    fn generator(&self) -> &SparseMatrix {
        &self.generator
    }

    fn tolerance(&self) -> usize {
        2
    }

    fn encode(&self) -> Factored {
        let lost = [self.horizontal(), self.butterfly()];
        let mut columns = Columns::new(self.k, self.k * self.alpha(), &lost, 0..self.alpha());
        let parities = columns.parities(&lost).unwrap_or_else(|| unreachable!("all data is known"));
        let results: Vec<_> = parities.into_iter().flat_map(|(_, rows)| rows).map(ones).collect();
        columns.builder.finish(&results).unwrap_or_else(|| unreachable!("temporaries are defined before their use"))
    }

    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable> {
        let situation = Situation::of(self, ask)?;
        let mut drafts = Vec::new();
        if let Some((lost, others)) = situation.single()
            && others == self.n() - 1
        {
            drafts.push(if lost == self.butterfly() { self.butterfly_repair() } else { self.half_repair(lost) });
            if lost != self.butterfly() {
                drafts.push(self.decode(&[lost, self.butterfly()]));
            }
        }
        let helpers = &situation.order[..situation.order.len().min(self.k)];
        let spared = (0..self.n() as u8).filter(|index| !helpers.contains(index));
        drafts.push(if situation.lost.is_empty() { self.decode(&[]) } else { self.decode(&spared.collect::<Vec<_>>()) });
        let recipes = drafts.into_iter().map(|draft| {
            let draft = draft.unwrap_or_else(|| unreachable!("the order of recovery provides each input"));
            self.recipe(ask, &situation.order, draft)
        });
        Ok(draft::cheapest_first(ask, recipes.collect()))
    }
}

/// A draft of a recipe: the sub-blocks of the wanted blocks as sums.
struct Draft {
    builder: FactoredBuilder,
    computed: Vec<Computed>,
    blocks: HashMap<u8, Vec<Sum>>,
}

/// A sum of columns of a [`FactoredBuilder`].
type Sum = Vec<usize>;

fn ones(sum: Sum) -> Vec<(usize, u8)> {
    sum.into_iter().map(|col| (col, 1)).collect()
}

impl Butterfly {
    fn new(k: usize) -> Self {
        Self { k, generator: generator(k) }
    }

    /// H's index.
    fn horizontal(&self) -> u8 {
        self.k as u8
    }

    /// B's index.
    fn butterfly(&self) -> u8 {
        self.k as u8 + 1
    }

    fn recipe(&self, ask: &Ask, order: &[u8], draft: Draft) -> Recipe {
        let Draft { builder, computed, blocks } = draft;
        let sum =
            |index: u8, row: usize| blocks.get(&index).map_or_else(|| vec![source(self.k, index, row)], |rows| rows[row].clone());
        let results: Vec<_> = ask.wanted.iter().map(|wanted| ones(sum(wanted.index, wanted.sub_block.into()))).collect();
        let map = builder.finish(&results).unwrap_or_else(|| unreachable!("temporaries are defined before their use"));
        draft::recipe(order, self.n(), self.alpha(), &computed, &map)
    }

    /// Cases 1 to 3: a data block or H, from half of each of the others.
    fn half_repair(&self, lost: u8) -> Option<Draft> {
        let (k, alpha, j) = (self.k, self.alpha(), usize::from(lost));
        let is_read = |row: &usize| match j {
            0 => row.is_multiple_of(2),
            _ if j == k => *row >= alpha / 2,
            _ => bit(*row, j) == bit(*row, j - 1),
        };
        let mut columns = Columns::new(k, (k + 2) * alpha, &[lost], (0..alpha).filter(is_read));
        let mut rows = vec![Sum::new(); alpha];
        for row in (0..alpha).filter(is_read) {
            rows[row] = if j == k { columns.low(k - 1, row)? } else { vec![columns.through_horizontal(j, row)?] };
        }
        for row in (0..alpha).filter(|row| if j == 0 { !is_read(row) } else { is_read(row) }) {
            if j == k {
                let mut sum = vec![columns.source(self.butterfly(), row)];
                columns.add_butterfly(&mut sum, row, |level| level + 1 < k)?;
                rows[alpha - 1 - row] = sum;
            } else {
                rows[row ^ flip(j)] = vec![columns.through_butterfly(j, row)?];
            }
        }
        Some(Draft { builder: columns.builder, computed: Vec::new(), blocks: HashMap::from([(lost, rows)]) })
    }

    /// Case 4: B, from half of each of the others, most of which must be computed.
    fn butterfly_repair(&self) -> Option<Draft> {
        let (k, alpha) = (self.k, self.alpha());
        let half = alpha / 2;
        // The contribution of column j to B[α−1−i], for j < k−1 and i < α/2.
        let computed = (0..k - 1).flat_map(|j| {
            (0..half).map(move |i| Computed {
                index: j as u8,
                terms: contributions(k, j, alpha - 1 - i).map(|row| (row as u16, 1)).collect(),
            })
        });
        let computed: Vec<Computed> = computed.collect();
        let first = (k + 2) * alpha;
        let mut columns = Columns::new(k - 1, first + computed.len(), &[], 0..0);
        columns.known = (first..first + computed.len()).map(Some).collect();
        let mut rows = vec![Sum::new(); alpha];
        for i in 0..half {
            let mut bottom = columns.low(k - 2, i)?;
            bottom.push(source(k, k as u8 - 1, i));
            rows[alpha - 1 - i] = bottom;
            let mut top = vec![source(k, self.horizontal(), alpha - 1 - i)];
            columns.add_butterfly(&mut top, i, |_| true)?;
            rows[i] = top;
        }
        Some(Draft { builder: columns.builder, computed, blocks: HashMap::from([(self.butterfly(), rows)]) })
    }

    /// Any two blocks, or fewer, from all the others.
    fn decode(&self, lost: &[u8]) -> Option<Draft> {
        let (k, alpha) = (self.k, self.alpha());
        let mut columns = Columns::new(k, (k + 2) * alpha, lost, 0..alpha);
        let mut data: Vec<usize> = lost.iter().map(|index| usize::from(*index)).filter(|index| *index < k).collect();
        data.sort_unstable();
        match data[..] {
            [] => {}
            [j] if !lost.contains(&self.horizontal()) => {
                (0..alpha).try_for_each(|row| columns.through_horizontal(j, row).map(drop))?;
            }
            [j] => order_of_recovery(k, None).into_iter().try_for_each(|row| columns.through_butterfly(j, row).map(drop))?,
            [i, j, ..] => order_of_recovery(k, Some(j)).into_iter().try_for_each(|row| {
                columns.through_butterfly(i, row)?;
                columns.through_horizontal(j, row ^ flip(i)).map(drop)
            })?,
        }
        let mut blocks: HashMap<u8, Vec<Sum>> = columns.parities(lost)?.into_iter().collect();
        for j in data {
            let rows = (0..alpha).map(|row| columns.data(j, row).map(|col| vec![col])).collect::<Option<_>>()?;
            blocks.insert(j as u8, rows);
        }
        Some(Draft { builder: columns.builder, computed: Vec::new(), blocks })
    }
}

/// The rows of B in an order in which each has only one unknown (see the module): top before bottom at each level of
/// the recursion, and bottom before top at level `leftmost`.
fn order_of_recovery(k: usize, leftmost: Option<usize>) -> Vec<usize> {
    let mut order = vec![0];
    for level in 1..k {
        let bottom: Vec<usize> = order.iter().map(|row| row ^ flip(level)).collect();
        order = if leftmost == Some(level) { [bottom, order].concat() } else { [order, bottom].concat() };
    }
    order
}

/// The known columns of a stripe in a [`FactoredBuilder`], and the sums made from them.
struct Columns {
    k: usize,
    alpha: usize,
    builder: FactoredBuilder,
    /// Sub-block r of data block j, at j·α + r.
    known: Vec<Option<usize>>,
    has_horizontal: bool,
    sums: HashMap<(usize, usize), usize>,
}

impl Columns {
    /// Knows these rows of all blocks except `lost`.
    fn new(k: usize, cols: usize, lost: &[u8], rows: impl IntoIterator<Item = usize>) -> Self {
        let alpha = 1 << (k - 1);
        let mut known = vec![None; k * alpha];
        for row in rows {
            for j in (0..k).filter(|j| !lost.contains(&(*j as u8))) {
                known[j * alpha + row] = Some(j * alpha + row);
            }
        }
        let has_horizontal = !lost.contains(&(k as u8));
        Self { k, alpha, builder: FactoredBuilder::new(cols), known, has_horizontal, sums: HashMap::new() }
    }

    fn source(&self, index: u8, row: usize) -> usize {
        source(self.k, index, row)
    }

    fn data(&self, j: usize, row: usize) -> Option<usize> {
        self.known[j * self.alpha + row]
    }

    /// low(top, row): from an earlier sum that B needs too or, if a column is unknown, from H and the higher columns.
    fn low(&mut self, top: usize, row: usize) -> Option<Sum> {
        if (0..=top).any(|j| self.data(j, row).is_none()) {
            let higher = (top + 1..self.k).map(|j| self.data(j, row));
            let horizontal = self.has_horizontal.then(|| self.source(self.k as u8, row));
            return std::iter::once(horizontal).chain(higher).collect();
        }
        let kept = (KEPT_LEVEL_MIN..=top).rev().find(|level| bit(row, *level) == bit(row, level - 1));
        let mut sum = match kept {
            None => Sum::new(),
            Some(level) => vec![match self.sums.get(&(level, row)) {
                Some(col) => *col,
                None => {
                    let mut sum = self.low(level - 1, row)?;
                    sum.push(self.data(level, row)?);
                    let col = self.builder.temporary(ones(sum));
                    self.sums.insert((level, row), col);
                    col
                }
            }],
        };
        for j in kept.map_or(0, |level| level + 1)..=top {
            sum.push(self.data(j, row)?);
        }
        Some(sum)
    }

    /// Adds the terms of B[row] at some levels.
    fn add_butterfly(&mut self, sum: &mut Sum, row: usize, levels: impl Fn(usize) -> bool) -> Option<()> {
        for level in (0..self.k).filter(|level| levels(*level)) {
            let from = row ^ flip(level);
            if is_sum(row, level) { sum.extend(self.low(level, from)?) } else { sum.push(self.data(level, from)?) }
        }
        Some(())
    }

    /// Recovers `D^j[row]` from H.
    fn through_horizontal(&mut self, j: usize, row: usize) -> Option<usize> {
        let mut sum = vec![self.source(self.k as u8, row)];
        if j > 0 {
            sum.extend(self.low(j - 1, row)?);
        }
        for higher in j + 1..self.k {
            sum.push(self.data(higher, row)?);
        }
        Some(self.recovered(j, row, sum))
    }

    /// Recovers `D^j[row ⊕ (2^j − 1)]` from B[row].
    fn through_butterfly(&mut self, j: usize, row: usize) -> Option<usize> {
        let mut sum = vec![self.source(self.k as u8 + 1, row)];
        self.add_butterfly(&mut sum, row, |level| level != j)?;
        if is_sum(row, j) {
            sum.extend(self.low(j - 1, row ^ flip(j))?);
        }
        Some(self.recovered(j, row ^ flip(j), sum))
    }

    fn recovered(&mut self, j: usize, row: usize, sum: Sum) -> usize {
        let col = self.builder.temporary(ones(sum));
        self.known[j * self.alpha + row] = Some(col);
        col
    }

    /// The parity blocks among `lost`, from all data.
    fn parities(&mut self, lost: &[u8]) -> Option<Vec<(u8, Vec<Sum>)>> {
        let mut parities = Vec::new();
        let (alpha, horizontal, butterfly) = (self.alpha, self.k as u8, self.k as u8 + 1);
        if lost.contains(&horizontal) {
            let rows = (0..alpha).map(|row| self.low(self.k - 1, row)).collect::<Option<_>>()?;
            parities.push((horizontal, rows));
        }
        if lost.contains(&butterfly) {
            let row = |row: usize| {
                let mut sum = Sum::new();
                self.add_butterfly(&mut sum, row, |_| true).map(|()| sum)
            };
            parities.push((butterfly, (0..alpha).map(row).collect::<Option<_>>()?));
        }
        Some(parities)
    }
}

/// The column of a sub-block that is sent unchanged.
fn source(k: usize, index: u8, row: usize) -> usize {
    (usize::from(index) << (k - 1)) + row
}

fn bit(of: usize, at: usize) -> bool {
    of >> at & 1 == 1
}

/// The mask that maps a row to the opposite one among 2^level.
fn flip(level: usize) -> usize {
    (1 << level) - 1
}

/// Whether B[row] contains the sum of the columns up to `level` there, and not only that column.
fn is_sum(row: usize, level: usize) -> bool {
    level > 0 && bit(row ^ row >> 1, level - 1)
}

/// The rows of column j that are part of B[row]: its own term, and the larger sums that contain it.
fn contributions(k: usize, j: usize, row: usize) -> impl Iterator<Item = usize> {
    (j..k).filter(move |level| *level == j || is_sum(row, *level)).map(move |level| row ^ flip(level))
}

fn generator(k: usize) -> SparseMatrix {
    let alpha = 1 << (k - 1);
    let data = (0..k * alpha).map(|at| (at, at, 1));
    let of_row = |i: usize| {
        let horizontal = (0..k).map(move |j| (k * alpha + i, j * alpha + i, 1));
        let butterfly =
            (0..k).flat_map(move |j| contributions(k, j, i).map(move |row| ((k + 1) * alpha + i, j * alpha + row, 1)));
        horizontal.chain(butterfly)
    };
    SparseMatrix::new((k + 2) * alpha, k * alpha, data.chain((0..alpha).flat_map(of_row)))
        .unwrap_or_else(|| unreachable!("all terms are inside"))
}

fn build(arguments: &Arguments<'_>) -> Result<SharedCode, SpecError> {
    let [k] = arguments.numbers(FAMILY.usage, &[])?;
    if !(2..=K_MAX).contains(&k) {
        return Err(arguments.wrong(FAMILY.usage, format!("{k} data blocks are not between 2 and {K_MAX}")));
    }
    Ok(Arc::new(Butterfly::new(k)))
}

#[cfg(test)]
#[path = "butterfly_tests.rs"]
mod tests;
