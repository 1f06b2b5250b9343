//! Shared by codes with their own recipes: the possible helpers, and a recipe from a draft.

use crate::{Arguments, Ask, Code, HelperShare, NotRecoverable, Recipe, SpecError, SubBlock, choose::moved, solve};
use weft_gf::{Factored, SparseMatrix};

/// An analysed [`Ask`], for a code of which any k blocks suffice.
#[derive(Debug)]
pub(crate) struct Situation {
    /// The possible helpers, each once: first wanted blocks, then blocks that are read anyway, then by preference.
    pub(crate) order: Vec<u8>,
    /// The wanted blocks that are not available, ascending.
    pub(crate) lost: Vec<u8>,
}

impl Situation {
    /// Fails for questions that no code of these sizes can answer: a block or sub-block that does not exist, or a lost
    /// block from fewer than k.
    pub(crate) fn of<C: Code + ?Sized>(code: &C, ask: &Ask) -> Result<Self, NotRecoverable> {
        let inside = |wanted: &SubBlock| usize::from(wanted.index) < code.n() && usize::from(wanted.sub_block) < code.alpha();
        let wanted = ask.wanted.iter().map(|wanted| wanted.index);
        let mut order: Vec<u8> = Vec::with_capacity(ask.available.len());
        for index in wanted.clone().chain(ask.read_anyway.iter().copied()).chain(ask.available.iter().copied()) {
            if usize::from(index) < code.n() && ask.available.contains(&index) && !order.contains(&index) {
                order.push(index);
            }
        }
        let mut lost: Vec<u8> = wanted.filter(|index| !order.contains(index)).collect();
        lost.sort_unstable();
        lost.dedup();
        if ask.wanted.iter().all(inside) && (lost.is_empty() || order.len() >= code.k()) {
            Ok(Self { order, lost })
        } else {
            Err(solve::not_recoverable(code, ask))
        }
    }

    /// The lost block, if there is only one, and the number of available others.
    pub(crate) fn single(&self) -> Option<(u8, usize)> {
        match self.lost[..] {
            [lost] => Some((lost, self.order.len())),
            _ => None,
        }
    }
}

/// A sum that a helper computes before it sends it.
#[derive(Debug, Clone)]
pub(crate) struct Computed {
    /// The helper's block.
    pub(crate) index: u8,
    /// Its sub-blocks and their coefficients.
    pub(crate) terms: Vec<(u16, u8)>,
}

/// The recipe in which helpers, in the given order, send what `combine` needs and read only what that takes. Column
/// `index·α + s` of `combine` is sub-block s of a block; columns from `n·α` on are the computed sums.
pub(crate) fn recipe(order: &[u8], n: usize, alpha: usize, computed: &[Computed], combine: &Factored) -> Recipe {
    let mut used = vec![false; combine.cols()];
    for (_, col, _) in combine.steps().terms() {
        if let Some(used) = used.get_mut(*col as usize) {
            *used = true;
        }
    }
    let (mut helpers, mut cols) = (Vec::new(), Vec::new());
    for index in order {
        let plain = (0..alpha).map(|s| (usize::from(*index) * alpha + s, vec![(s as u16, 1)]));
        let sums = (n * alpha..).zip(computed).filter(|(_, sum)| sum.index == *index).map(|(col, sum)| (col, sum.terms.clone()));
        let (of_helper, sent): (Vec<usize>, Vec<Vec<(u16, u8)>>) = plain.chain(sums).filter(|(col, _)| used[*col]).unzip();
        if !sent.is_empty() {
            cols.extend(of_helper);
            helpers.push(share(*index, &sent));
        }
    }
    Recipe { helpers, combine: combine.select_cols(&cols) }
}

/// A helper that sends these sums.
fn share(index: u8, sent: &[Vec<(u16, u8)>]) -> HelperShare {
    let mut reads: Vec<u16> = sent.iter().flatten().map(|(s, _)| *s).collect();
    reads.sort_unstable();
    reads.dedup();
    let place = |s: &u16| reads.partition_point(|read| read < s);
    let terms = sent.iter().enumerate().flat_map(|(row, terms)| terms.iter().map(move |(s, c)| (row, place(s), *c)));
    let compute = SparseMatrix::new(sent.len(), reads.len(), terms).unwrap_or_else(|| unreachable!("all terms are inside"));
    HelperShare { index, reads, compute }
}

/// The recipes without duplicates, the one that moves least first: without blocks that are read anyway, then including
/// them. Of equal ones, the one with fewer helpers and then fewer products comes first.
pub(crate) fn cheapest_first(ask: &Ask, mut recipes: Vec<Recipe>) -> Vec<Recipe> {
    recipes.sort_by_cached_key(|recipe| (moved(ask, recipe), recipe.helpers.len(), recipe.combine.steps().terms().len()));
    recipes.dedup();
    recipes
}

/// The number of helpers for a block's repair: `d` of a spec.
pub(crate) fn helpers(arguments: &Arguments<'_>, usage: &str, default: usize) -> Result<usize, SpecError> {
    let digits = |text: &&str| text.bytes().all(|b| b.is_ascii_digit());
    match arguments.value("d") {
        None => Ok(default),
        Some(text) => (Some(text).filter(digits).and_then(|text| text.parse().ok()))
            .ok_or_else(|| arguments.wrong(usage, format!("d = '{text}' is not a number of helpers"))),
    }
}

#[cfg(test)]
pub(crate) mod test_support {
    use super::*;

    /// The sub-blocks of a block.
    pub(crate) fn whole(code: &dyn Code, index: u8) -> impl Iterator<Item = SubBlock> + use<> {
        (0..code.alpha() as u16).map(move |sub_block| SubBlock { index, sub_block })
    }

    /// A request for whole blocks from all others.
    pub(crate) fn ask(code: &dyn Code, lost: &[u8]) -> Ask {
        Ask {
            wanted: lost.iter().flat_map(|index| whole(code, *index)).collect(),
            available: (0..code.n() as u8).filter(|index| !lost.contains(index)).collect(),
            read_anyway: Vec::new(),
        }
    }

    /// Whether a recipe computes the wanted rows of the generator.
    pub(crate) fn is_right(code: &dyn Code, ask: &Ask, recipe: &Recipe) -> bool {
        let row = |index: u8, sub_block: u16| usize::from(index) * code.alpha() + usize::from(sub_block);
        let sent = recipe.helpers.iter().map(|helper| {
            assert!(ask.available.contains(&helper.index));
            let rows: Vec<usize> = helper.reads.iter().map(|s| row(helper.index, *s)).collect();
            helper.compute.times_sparse(&code.generator().select_rows(&rows))
        });
        let sent = sent.reduce(|above, below| above.stack(&below)).unwrap();
        let wanted: Vec<usize> = ask.wanted.iter().map(|wanted| row(wanted.index, wanted.sub_block)).collect();
        let combined = recipe.combine.flatten(usize::MAX).unwrap().times_sparse(&sent);
        combined == code.generator().select_rows(&wanted)
    }
}
