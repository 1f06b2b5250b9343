//! Recipes for codes with cheap ways to compute a sub-block: chooses the sub-blocks to read; algebra gives the
//! coefficients.

use crate::{Ask, Code, NotRecoverable, Recipe, SubBlock, solve};
use std::collections::{BTreeMap, BTreeSet};
use weft_gf::SparseMatrix;

/// Up to this many combinations of ways are all compared; of more, some are improved step by step.
const COMBINATIONS_MAX: usize = 1024;

/// The number of starts of that search.
const STARTS_MAX: usize = 16;

/// The most sweeps over the wanted sub-blocks, each of which reduces the reads: more than ever needed.
const SWEEPS_MAX: usize = 32;

/// Recipes for `ask`, the one that moves least first; blocks that are read anyway cost nothing.
///
/// `ways` gives the sets of sub-blocks from which a sub-block can be computed; sets with missing sub-blocks are
/// skipped. One way is chosen for each wanted sub-block so that all ways together read least. The better of that recipe
/// and the generic one comes first, and the other follows if it needs fewer helpers; only the generic one is returned
/// if a wanted sub-block has no way.
pub(crate) fn recipes<C: Code + ?Sized>(
    code: &C,
    ask: &Ask,
    ways: impl Fn(SubBlock) -> Vec<Vec<SubBlock>>,
) -> Result<Vec<Recipe>, NotRecoverable> {
    let generic = solve::recipe(code, ask)?;
    if ask.wanted.len() >= code.k() * code.alpha() {
        // As many sub-blocks as all data need k blocks, unless many of them are the same.
        return Ok(vec![generic]);
    }
    let there = |sub_block: &SubBlock| ask.available.contains(&sub_block.index);
    let possible = |wanted: &SubBlock| match there(wanted) {
        true => vec![vec![*wanted]],
        false => ways(*wanted).into_iter().filter(|way| way.iter().all(there)).collect(),
    };
    let choices: Vec<Vec<Vec<SubBlock>>> = ask.wanted.iter().map(possible).collect();
    let chosen = Chooser::new(code, ask).choose(&choices).and_then(|reads| from_reads(code, ask, &reads));
    let Some(chosen) = chosen else { return Ok(vec![generic]) };
    let mut both = [chosen, generic];
    both.sort_by_key(|recipe| moved(ask, recipe));
    let [first, other] = both;
    Ok(if other.helpers.len() < first.helpers.len() { vec![first, other] } else { vec![first] })
}

/// What a recipe moves, in sub-blocks: without blocks that are read anyway, and in total.
pub(crate) fn moved(ask: &Ask, recipe: &Recipe) -> (usize, usize) {
    let extra = recipe.helpers.iter().filter(|helper| !ask.read_anyway.contains(&helper.index));
    (extra.map(|helper| helper.compute.rows()).sum(), recipe.sub_blocks_sent())
}

/// The cost of a read, most important first: sub-blocks that are not read anyway, all sub-blocks, and the blocks'
/// places in the order of preference.
type Price = (usize, usize, usize);

struct Chooser {
    alpha: usize,
    /// The price of one sub-block of each block.
    prices: Vec<Price>,
    /// How many of the chosen ways read a sub-block: `index·α + s`.
    uses: Vec<u16>,
    price: Price,
}

impl Chooser {
    fn new<C: Code + ?Sized>(code: &C, ask: &Ask) -> Self {
        let prices = (0..code.n()).map(|index| price(ask, index as u8)).collect();
        Self { alpha: code.alpha(), prices, uses: vec![0; code.n() * code.alpha()], price: (0, 0, 0) }
    }

    /// The reads if each wanted sub-block uses one of its ways; `None` if one has none.
    fn choose(mut self, choices: &[Vec<Vec<SubBlock>>]) -> Option<Vec<SubBlock>> {
        if choices.iter().any(Vec::is_empty) {
            return None;
        }
        let combinations = choices.iter().try_fold(1usize, |product, ways| product.checked_mul(ways.len()));
        let taken = match combinations {
            Some(count) if count <= COMBINATIONS_MAX => self.compare_all(choices, count),
            _ => self.improve(choices),
        };
        let mut reads: Vec<SubBlock> = choices.iter().zip(taken).flat_map(|(ways, way)| ways[way].iter().copied()).collect();
        reads.sort_unstable();
        reads.dedup();
        Some(reads)
    }

    /// The best of all combinations; the first of equal ones.
    fn compare_all(&mut self, choices: &[Vec<Vec<SubBlock>>], count: usize) -> Vec<usize> {
        let mut at = vec![0; choices.len()];
        let mut best: Option<(Price, Vec<usize>)> = None;
        for _ in 0..count {
            choices.iter().zip(&at).for_each(|(ways, way)| self.take(&ways[*way]));
            if best.as_ref().is_none_or(|(price, _)| self.price < *price) {
                best = Some((self.price, at.clone()));
            }
            choices.iter().zip(&at).for_each(|(ways, way)| self.give_back(&ways[*way]));
            for (at, ways) in at.iter_mut().zip(choices) {
                *at += 1;
                if *at < ways.len() {
                    break;
                }
                *at = 0;
            }
        }
        best.map(|(_, at)| at).unwrap_or_default()
    }

    /// The best result of several starts: all use their first way, all their second, and so on.
    fn improve(&mut self, choices: &[Vec<Vec<SubBlock>>]) -> Vec<usize> {
        let starts = choices.iter().map(Vec::len).max().unwrap_or(0).min(STARTS_MAX);
        let mut best: Option<(Price, Vec<usize>)> = None;
        for start in 0..starts {
            let mut taken: Vec<usize> = choices.iter().map(|ways| start.min(ways.len() - 1)).collect();
            choices.iter().zip(&taken).for_each(|(ways, way)| self.take(&ways[*way]));
            self.sweep(choices, &mut taken);
            if best.as_ref().is_none_or(|(price, _)| self.price < *price) {
                best = Some((self.price, taken.clone()));
            }
            choices.iter().zip(&taken).for_each(|(ways, way)| self.give_back(&ways[*way]));
        }
        best.map(|(_, taken)| taken).unwrap_or_default()
    }

    /// Lets one after another choose the way that adds least to the others' reads, until nothing improves.
    fn sweep(&mut self, choices: &[Vec<Vec<SubBlock>>], taken: &mut [usize]) {
        for _ in 0..SWEEPS_MAX {
            let before = self.price;
            for (ways, taken) in choices.iter().zip(taken.iter_mut()) {
                self.give_back(&ways[*taken]);
                *taken = self.cheapest(ways);
                self.take(&ways[*taken]);
            }
            if self.price >= before {
                break;
            }
        }
    }

    /// The first of equal ones; 0 if there are none.
    fn cheapest(&mut self, ways: &[Vec<SubBlock>]) -> usize {
        let price_with = |way: &usize| {
            self.take(&ways[*way]);
            let price = self.price;
            self.give_back(&ways[*way]);
            price
        };
        (0..ways.len()).min_by_key(price_with).unwrap_or(0)
    }

    fn take(&mut self, way: &[SubBlock]) {
        for read in way {
            let uses = &mut self.uses[usize::from(read.index) * self.alpha + usize::from(read.sub_block)];
            *uses += 1;
            if *uses == 1 {
                let (extra, all, place) = self.prices[usize::from(read.index)];
                self.price = (self.price.0 + extra, self.price.1 + all, self.price.2 + place);
            }
        }
    }

    fn give_back(&mut self, way: &[SubBlock]) {
        for read in way {
            let uses = &mut self.uses[usize::from(read.index) * self.alpha + usize::from(read.sub_block)];
            *uses -= 1;
            if *uses == 0 {
                let (extra, all, place) = self.prices[usize::from(read.index)];
                self.price = (self.price.0 - extra, self.price.1 - all, self.price.2 - place);
            }
        }
    }
}

/// The price of one sub-block of a block.
fn price(ask: &Ask, index: u8) -> Price {
    let place = ask.available.iter().position(|other| *other == index).unwrap_or(0);
    if ask.read_anyway.contains(&index) { (0, 1, 0) } else { (1, 1, place) }
}

/// The recipe in which helpers send what they read, at most `reads`; `None` if the wanted sub-blocks cannot be computed
/// from them.
///
/// Data that is read is known directly. Only the parity sub-blocks are solved for, over the data that is not read.
fn from_reads<C: Code + ?Sized>(code: &C, ask: &Ask, reads: &[SubBlock]) -> Option<Recipe> {
    let (data, alpha) = (code.k() * code.alpha(), code.alpha());
    let row = |at: &SubBlock| usize::from(at.index) * alpha + usize::from(at.sub_block);
    let mut reads = reads.to_vec();
    reads.sort_by_key(|read| (price(ask, read.index).2, read.index, read.sub_block));
    let mut order: Vec<u8> = reads.iter().map(|read| read.index).collect();
    order.dedup();
    // The recipe's columns, by rows of the generator.
    let column = |read: &SubBlock| order.iter().position(|index| *index == read.index).map(|at| at * alpha + row(read) % alpha);
    let columns: BTreeMap<usize, usize> = reads.iter().filter_map(|read| Some((row(read), column(read)?))).collect();
    let parity_rows: Vec<usize> = reads.iter().map(row).filter(|row| *row >= data).collect();
    let parities = code.generator().select_rows(&parity_rows);
    let wanted = code.generator().select_rows(&ask.wanted.iter().map(row).collect::<Vec<_>>());
    let all_terms = parities.terms().iter().chain(wanted.terms());
    let unread: BTreeSet<usize> = all_terms.map(|term| term.1 as usize).filter(|col| !columns.contains_key(col)).collect();
    let unread: Vec<usize> = unread.into_iter().collect();
    let weights = parities.select_cols(&unread).to_dense().solve_left(&wanted.select_cols(&unread).to_dense())?;
    let weights = SparseMatrix::from(&weights);
    let of_data = weights.times_sparse(&parities);
    let of_data = of_data.terms().iter().chain(wanted.terms()).map(|(row, col, c)| (*row, *col as usize, *c));
    let of_parities = weights.terms().iter().map(|(row, at, c)| (*row, parity_rows[*at as usize], *c));
    let terms = of_data.chain(of_parities).filter_map(|(row, from, c)| Some((row as usize, *columns.get(&from)?, c)));
    let combine = SparseMatrix::new(ask.wanted.len(), order.len() * alpha, terms)?;
    Some(solve::from_columns(&order, alpha, &combine.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(of: &[&[u8]]) -> Vec<Vec<SubBlock>> {
        of.iter().map(|way| way.iter().map(|index| SubBlock { index: *index, sub_block: 0 }).collect()).collect()
    }

    fn chosen(choices: &[Vec<Vec<SubBlock>>], available: &[u8], read_anyway: &[u8]) -> Option<Vec<u8>> {
        let ask = Ask { wanted: Vec::new(), available: available.to_vec(), read_anyway: read_anyway.to_vec() };
        let code = crate::parse("xor(20)").unwrap();
        let reads = Chooser::new(code.as_ref(), &ask).choose(choices)?;
        Some(reads.iter().map(|read| read.index).collect())
    }

    #[test]
    fn ways_that_share_their_reads_are_cheaper_together() {
        let choices = [ways(&[&[4, 5], &[1, 2, 3]]), ways(&[&[7, 8, 9], &[1, 2, 3, 6]])];
        let all: Vec<u8> = (1..=9).collect();
        assert_eq!(chosen(&choices, &all, &[]).unwrap(), [1, 2, 3, 6]);
        assert_eq!(chosen(&choices, &all, &[7, 8]).unwrap(), [4, 5, 7, 8, 9], "three extra reads are better than four");
        assert_eq!(chosen(&[ways(&[&[1], &[2]])], &[2, 1], &[]).unwrap(), [2], "of equal choices, the preferred one");
        assert_eq!(chosen(&[ways(&[&[1]]), Vec::new()], &all, &[]), None, "one has no way");
    }

    #[test]
    fn many_combinations_are_improved_step_by_step() {
        // Each choice needs two blocks of its own, or the two blocks that all choices share.
        let choices: Vec<_> = (1..=15).map(|own| ways(&[&[own, own + 1], &[0, 19]])).collect();
        let all: Vec<u8> = (0..20).collect();
        assert!(choices.iter().map(Vec::len).product::<usize>() > COMBINATIONS_MAX);
        assert_eq!(chosen(&choices, &all, &[]).unwrap(), [0, 19]);
        assert_eq!(chosen(&[choices.as_slice(), &[Vec::new()]].concat(), &all, &[]), None, "one has no way");
        assert_eq!(chosen(&choices, &all, &(1..19).collect::<Vec<_>>()).unwrap().len(), 16, "not only blocks read anyway");
    }
}
