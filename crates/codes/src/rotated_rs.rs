//! Rotated Reed–Solomon codes: parities over shifted rows, so that a degraded read of a run of data reads less.
//!
//! O. Khan, R. Burns, J. Plank, W. Pierce, C. Huang, *Rethinking Erasure Codes for Cloud File Systems: Minimizing I/O for Recovery
//! and Degraded Reads*, FAST 2012, section 5. A block has r rows, its sub-blocks. Parity j takes row b of the data blocks from
//! t_j = ⌊k·j/m⌋ on, and row b+1 (mod r) of those before:
//! `P_j[b] = Σ_i (2^j)^i · D_i[(b + [i < t_j]) mod r]`. For r = 1 this is the code `rs(k,m,matrix=vandermonde)`.
//!
//! **MDS** exactly when that code is, if r is a power of two. Shifting rows is multiplication by x in the ring GF(2^8)\[x\] / (x^r − 1),
//! over which the parities are an m × k matrix. The remaining blocks of a stripe suffice if and only if their minor is a unit. With r =
//! 2^e, x^r − 1 = (x − 1)^r: the ring is local, and an element is a unit if and only if its value at x = 1 is not zero; there the shift is
//! 1 and the minor is that of the Vandermonde matrix. (With other r, a minor would have to be regular at all other r-th roots of unity as
//! well: such r are not offered.)
//!
//! **Recipes.** A lost data sub-block can be computed from any parity equation that contains it; two rows from different parities share
//! most of their reads. A search finds the combination that reads least (exactly, for up to 1,024 combinations). Rebuilding a data block of
//! (6,3) with r = 2 reads 4 blocks rather than 6. Of (12,4) it reads 7.5.

use crate::{
    Arguments, Ask, Code, Family, NotRecoverable, Recipe, SharedCode, SpecError, SubBlock, choose, rs::vandermonde_witness,
};
use std::sync::Arc;
use weft_gf::{SparseMatrix, field};

/// The specs of these codes.
pub(crate) const FAMILY: Family = Family {
    name: "rotated-rs",
    usage: "rotated-rs(k,m) or rotated-rs(k,m,r=...), with k and m at least 1, k+m at most 255, and r rows: 2, 4, 8, 16 or 32; \
            2 unless said otherwise",
    summary: "Rotated Reed-Solomon: any k blocks recover the data; degraded reads of consecutive data, and repairs, read less",
    advice: "Choose it if clients often read consecutive data while a node is down. Such a read costs less than with `rs`, and \
            so does a repair.",
    measured: &["rotated-rs(12,4)", "rotated-rs(6,3)"],
    build,
};

/// GF(2^8) has 255 non-zero elements.
const BLOCKS_MAX: usize = 255;

const ROWS_DEFAULT: usize = 2;
const ROWS_MAX: usize = 32;

/// A rotated Reed–Solomon code.
#[derive(Debug)]
pub(crate) struct RotatedRs {
    k: usize,
    m: usize,
    rows: usize,
    generator: SparseMatrix,
}

impl RotatedRs {
    fn new(k: usize, m: usize, rows: usize) -> Option<Self> {
        let mut code = Self { k, m, rows, generator: SparseMatrix::identity(k * rows) };
        let equations = (0..m).flat_map(|parity| (0..rows).map(move |row| (parity, row)));
        let terms = equations.enumerate().flat_map(|(at, (parity, row))| {
            let code = &code;
            (0..k).map(move |index| (at, index * rows + code.row_of(index, parity, row), field::exp(parity * index)))
        });
        let parities = SparseMatrix::new(m * rows, k * rows, terms.collect::<Vec<_>>())?;
        code.generator = code.generator.stack(&parities);
        Some(code)
    }

    /// The row of data block `index` in row `row` of a parity.
    fn row_of(&self, index: usize, parity: usize, row: usize) -> usize {
        if index < self.k * parity / self.m { (row + 1) % self.rows } else { row }
    }

    /// The sub-blocks in row `row` of a parity, and the parity's sub-block itself.
    fn equation(&self, parity: usize, row: usize) -> Vec<SubBlock> {
        let data = (0..self.k).map(|index| (index, self.row_of(index, parity, row)));
        data.chain([(self.k + parity, row)]).map(|(index, row)| SubBlock { index: index as u8, sub_block: row as u16 }).collect()
    }

    /// For each equation with a sub-block, the others in it.
    fn others(&self, of: SubBlock) -> Vec<Vec<SubBlock>> {
        let equations = (0..self.m).flat_map(|parity| (0..self.rows).map(move |row| self.equation(parity, row)));
        let without = |equation: Vec<SubBlock>| equation.into_iter().filter(|other| *other != of).collect();
        equations.filter(|equation| equation.contains(&of)).map(without).collect()
    }
}

impl Code for RotatedRs {
    fn spec(&self) -> String {
        match self.rows {
            ROWS_DEFAULT => format!("rotated-rs({},{})", self.k, self.m),
            rows => format!("rotated-rs({},{},r={rows})", self.k, self.m),
        }
    }

    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        self.m
    }

    fn alpha(&self) -> usize {
        self.rows
    }

    fn generator(&self) -> &SparseMatrix {
        &self.generator
    }

    fn tolerance(&self) -> usize {
        self.m
    }

    /// One equation for each wanted sub-block, those that read least together; k blocks if too much is lost for that.
    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable> {
        choose::recipes(self, ask, |wanted| self.others(wanted))
    }
}

fn build(arguments: &Arguments<'_>) -> Result<SharedCode, SpecError> {
    let [k, m] = arguments.numbers(FAMILY.usage, &["r"])?;
    let wrong = |problem: String| arguments.wrong(FAMILY.usage, problem);
    if k < 1 || m < 1 {
        return Err(wrong(format!("k is {k} and m is {m}: both must be at least 1")));
    }
    if k.saturating_add(m) > BLOCKS_MAX {
        return Err(wrong(format!("k+m is {}: it must be at most {BLOCKS_MAX}", k.saturating_add(m))));
    }
    let rows = match arguments.value("r") {
        None => ROWS_DEFAULT,
        Some(text) => {
            text.parse().ok().filter(|rows: &usize| (2..=ROWS_MAX).contains(rows) && rows.is_power_of_two()).ok_or_else(|| {
                wrong(format!(
                    "r is '{text}': it must be a power of two from 2 to {ROWS_MAX}; other values are not proven to be MDS"
                ))
            })?
        }
    };
    let code = RotatedRs::new(k, m, rows).ok_or_else(|| wrong("it is too large".to_owned()))?;
    match vandermonde_witness(k, m) {
        None => Ok(Arc::new(code)),
        Some(minor) => Err(SpecError::NotMds {
            code: code.spec(),
            m,
            lost: minor.lost(k, m),
            remedy: "take m at most 3, or m = 4 and k at most 21".to_owned(),
        }),
    }
}

#[cfg(test)]
#[path = "rotated_rs_tests.rs"]
mod tests;
