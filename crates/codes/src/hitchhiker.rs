//! Hitchhiker codes: Reed–Solomon codes over two sub-blocks, in which the parities of the second carry sums of the
//! first one's data.
//!
//! K. V. Rashmi, N. B. Shah, D. Gu, H. Kuang, D. Borthakur, K. Ramchandran, *A "Hitchhiker's" Guide to Fast and Efficient Data
//! Reconstruction in Erasure-coded Data Centers*, SIGCOMM 2014, sections 3.1 (XOR) and 3.2 (XOR+). Sub-block 0 of data block i is
//! a_i, sub-block 1 is b_i. With f_p the parities of a Reed–Solomon code, parity p holds
//! - `f_p(a)` and `f_p(b)` for p = 0, and `f_p(a)` and `f_p(b) ⊕ (⊕ a_i over group p)` for p = 1..m−1: each group of data blocks rides on
//!   one parity. **XOR**: the m−1 groups are all k data blocks, cut into parts as equal as may be: group p ends before
//!   ⌊p·k/(m−1)⌋.
//! - **XOR+**: the groups are of the first k−1 data blocks, f_1 is a plain XOR, and parity 1's first sub-block has its second one
//!   added: `⊕ (a_i not in group 1) ⊕ (⊕ b_i)`.
//!
//! f_p(x) is `Σ 2^(e·i) x_i` with e = 1, 0, 2, 3, …: the Vandermonde matrix of `rs(k,m,matrix=vandermonde)` with its first two
//! rows swapped.
//!
//! **Rebuilding block j of group p** reads the other b_i and parity 0's second sub-block: that gives b_j, and f_p(b). With
//! parity p's second sub-block, and the other a_i of the group, a_j follows: k + |group| sub-blocks rather than 2k. XOR+ serves
//! data block k−1, which is in no group, as well: b as before; parity 1's first sub-block less ⊕ b_i and less the other groups' sums
//! (from their parities) is a_(k−1): k + m − 1 sub-blocks. Of (10,4) every data block is rebuilt from 6.5 blocks (with XOR, the
//! four of the last group from 7). A parity block takes all k, and if parity 0 is lost as well, another parity less its
//! group's sum takes its place.
//!
//! **MDS** if and only if the Reed–Solomon code is: once a is known, the added sums can be removed and b decoded. Other
//! parameters are refused.

use crate::{
    Arguments, Ask, Code, Family, NotRecoverable, Recipe, SharedCode, SpecError, SubBlock, choose, mds::Minor,
    rs::vandermonde_witness,
};
use std::{ops::Range, sync::Arc};
use weft_gf::{SparseMatrix, field};

/// The specs of codes with groups of all data blocks.
pub(crate) const FAMILY: Family = Family {
    name: "hitchhiker-xor",
    usage: "hitchhiker-xor(k,m), with k at least 1, m at least 2 and k+m at most 255",
    summary: "Hitchhiker-XOR: any k blocks recover the data; the repair of a data block reads less, with (10,4) 6.5 or 7 blocks",
    advice: "Choose it to save a third of the repair traffic of `rs` for data blocks, with the same overhead and tolerance and \
            only two sub-blocks.",
    measured: &["hitchhiker-xor(10,4)"],
    build: |arguments| build(arguments, Variant::Xor),
};

/// The specs of codes with groups of all but the last data block.
pub(crate) const FAMILY_PLUS: Family = Family {
    name: "hitchhiker-xor+",
    usage: "hitchhiker-xor+(k,m), with k and m at least 2 and k+m at most 255",
    summary: "Hitchhiker-XOR+: any k blocks recover the data; the repair of a data block reads less, with (10,4) 6.5 blocks",
    advice: "Like `hitchhiker-xor`, but every data block is repaired at the lower cost.",
    measured: &["hitchhiker-xor+(10,4)"],
    build: |arguments| build(arguments, Variant::XorPlus),
};

/// GF(2^8) has 255 non-zero elements.
const BLOCKS_MAX: usize = 255;

/// The sub-blocks of the first and of the second code.
const A: u16 = 0;
const B: u16 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Xor,
    XorPlus,
}

/// A Hitchhiker code.
#[derive(Debug)]
pub(crate) struct Hitchhiker {
    k: usize,
    m: usize,
    variant: Variant,
    generator: SparseMatrix,
}

impl Hitchhiker {
    fn new(k: usize, m: usize, variant: Variant) -> Option<Self> {
        let mut code = Self { k, m, variant, generator: SparseMatrix::identity(2 * k) };
        let mut terms = Vec::new();
        for parity in 0..m {
            let own = |first: usize| (0..k).map(move |i| (2 * parity + first, 2 * i + first, field::exp(exponent(parity) * i)));
            let ridden = |first: usize| code.group(parity).map(move |i| (2 * parity + first, 2 * i, 1));
            terms.extend(own(0).chain(own(1)).chain(ridden(1)));
            if variant == Variant::XorPlus && parity == 1 {
                terms.extend((0..k).map(|i| (2 * parity, 2 * i + 1, 1)).chain(ridden(0)));
            }
        }
        code.generator = code.generator.stack(&SparseMatrix::new(2 * m, 2 * k, terms)?);
        Some(code)
    }

    /// The data blocks whose sum a parity carries: none for parity 0.
    fn group(&self, parity: usize) -> Range<usize> {
        let in_groups = if self.variant == Variant::Xor { self.k } else { self.k - 1 };
        let end = |parity: usize| parity * in_groups / (self.m - 1);
        if parity == 0 { 0..0 } else { end(parity - 1)..end(parity) }
    }

    fn parity(&self, parity: usize, sub_block: u16) -> SubBlock {
        SubBlock { index: (self.k + parity) as u8, sub_block }
    }

    /// The inputs for b of data block `lost` from a parity that does not carry its a: the other b, and what was added
    /// to them.
    fn second_by(&self, lost: usize, parity: usize) -> Option<Vec<SubBlock>> {
        let group = self.group(parity);
        let others = (0..self.k).filter(|i| *i != lost).map(|i| data(i, B));
        let reads = others.chain([self.parity(parity, B)]).chain(group.clone().map(|i| data(i, A)));
        (!group.contains(&lost)).then(|| reads.collect())
    }

    /// The inputs for a of data block `lost` if its b comes from parity `by`: the parity that carries it, and the
    /// others of its group.
    fn first_with(&self, lost: usize, by: usize, is_there: &dyn Fn(usize) -> bool) -> Option<Vec<SubBlock>> {
        let mut reads = self.second_by(lost, by)?;
        if let Some(carrier) = (1..self.m).find(|parity| self.group(*parity).contains(&lost)) {
            reads.push(self.parity(carrier, B));
            reads.extend(self.group(carrier).filter(|i| *i != lost).map(|i| data(i, A)));
            return Some(reads);
        }
        // The last block of XOR+: the other groups' sums, each from its parity or, if that is lost, directly.
        reads.push(self.parity(1, A));
        for other in 2..self.m {
            match other != by && is_there(self.k + other) {
                true => reads.push(self.parity(other, B)),
                false => reads.extend(self.group(other).map(|i| data(i, A))),
            }
        }
        Some(reads)
    }

    /// The inputs for a of data block `lost` from a parity of the first code alone.
    fn first_by(&self, lost: usize, parity: usize) -> Vec<SubBlock> {
        let mut reads: Vec<SubBlock> = (0..self.k).filter(|i| *i != lost).map(|i| data(i, A)).collect();
        reads.push(self.parity(parity, A));
        if self.variant == Variant::XorPlus && parity == 1 {
            reads.push(self.parity(parity, B));
        }
        reads
    }

    fn ways(&self, ask: &Ask, wanted: SubBlock) -> Vec<Vec<SubBlock>> {
        let lost = usize::from(wanted.index);
        let is_there = |index: usize| ask.available.contains(&(index as u8));
        let parities = 0..self.m;
        match wanted.sub_block {
            _ if lost >= self.k => {
                let row = self.generator.row(2 * lost + usize::from(wanted.sub_block));
                vec![row.iter().map(|(_, col, _)| data(*col as usize / 2, (*col % 2) as u16)).collect()]
            }
            A => {
                let with_second = parities.clone().filter_map(|by| self.first_with(lost, by, &is_there));
                with_second.chain(parities.map(|parity| self.first_by(lost, parity))).collect()
            }
            _ => parities.filter_map(|parity| self.second_by(lost, parity)).collect(),
        }
    }
}

impl Code for Hitchhiker {
    fn spec(&self) -> String {
        let family = if self.variant == Variant::Xor { FAMILY } else { FAMILY_PLUS };
        format!("{}({},{})", family.name, self.k, self.m)
    }

    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        self.m
    }

    fn alpha(&self) -> usize {
        2
    }

    fn generator(&self) -> &SparseMatrix {
        &self.generator
    }

    fn tolerance(&self) -> usize {
        self.m
    }

    /// Uses the sums on the parities if only one data block is lost; otherwise k blocks.
    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable> {
        choose::recipes(self, ask, |wanted| self.ways(ask, wanted))
    }
}

fn data(index: usize, sub_block: u16) -> SubBlock {
    SubBlock { index: index as u8, sub_block }
}

/// The row of the Vandermonde matrix for a parity: the first two are swapped.
fn exponent(parity: usize) -> usize {
    if parity < 2 { 1 - parity } else { parity }
}

fn build(arguments: &Arguments<'_>, variant: Variant) -> Result<SharedCode, SpecError> {
    let (usage, data_blocks_min) = match variant {
        Variant::Xor => (FAMILY.usage, 1),
        Variant::XorPlus => (FAMILY_PLUS.usage, 2),
    };
    let [k, m] = arguments.numbers(usage, &[])?;
    let wrong = |problem: String| arguments.wrong(usage, problem);
    if k < data_blocks_min {
        return Err(wrong(format!("k is {k}: it must be at least {data_blocks_min}")));
    }
    if m < 2 {
        return Err(wrong(format!("m is {m}: it must be at least 2, because the first parity block carries no sum")));
    }
    if k.saturating_add(m) > BLOCKS_MAX {
        return Err(wrong(format!("k+m is {}: it must be at most {BLOCKS_MAX}", k.saturating_add(m))));
    }
    let code = Hitchhiker::new(k, m, variant).ok_or_else(|| wrong("it is too large".to_owned()))?;
    match vandermonde_witness(k, m) {
        None => Ok(Arc::new(code)),
        Some(minor) => Err(SpecError::NotMds {
            code: code.spec(),
            m,
            lost: Minor { rows: minor.rows.iter().map(|row| exponent(*row)).collect(), ..minor }.lost(k, m),
            remedy: "take m at most 3, or m = 4 and k at most 21".to_owned(),
        }),
    }
}

#[cfg(test)]
#[path = "hitchhiker_tests.rs"]
mod tests;
