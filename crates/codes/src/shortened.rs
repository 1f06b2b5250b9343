//! Shortened codes: a code whose last data blocks are known to be zeros and are neither stored nor read.
//!
//! A stripe with little data has bytes only in its first data blocks. Its plans use the same code with the columns of
//! the other blocks set to zero: parities are sums over the non-empty blocks, and recipes never read an empty block.
//! Blocks keep their indexes. See, e.g., W. E. Ryan and S. Lin, *Channel Codes*, §3.5.1 (shortening).

use crate::{Ask, Code, HelperShare, NotRecoverable, Recipe, SharedCode, SpecError, choose::moved, parse};
use std::sync::{Arc, OnceLock};
use weft_gf::{Factored, SparseMatrix};

/// The name in specs of shortened codes.
const NAME: &str = "shortened";

/// A shortened code.
#[derive(Debug)]
struct Shortened {
    of: SharedCode,
    /// The number of data blocks that may have bytes.
    dimension: usize,
    generator: OnceLock<SparseMatrix>,
}

/// The code of stripes in which only the first `dimension` data blocks have bytes. Returns the code itself if all have.
pub fn shortened(code: &SharedCode, dimension: usize) -> SharedCode {
    match dimension < code.dimension() {
        true => Arc::new(Shortened { of: Arc::clone(code), dimension, generator: OnceLock::new() }),
        false => Arc::clone(code),
    }
}

/// Parses the spec of a plan's code: one of [`parse`], or `shortened(rs(6,3),1)`. No policy may name a shortened code:
/// the code of a stripe is the full one.
pub fn parse_of_plan(spec: &str) -> Result<SharedCode, SpecError> {
    let inner = spec.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('(')?.strip_suffix(')')?.rsplit_once(','));
    let Some((inner, dimension)) = inner else { return parse(spec) };
    let code = parse(inner)?;
    match dimension.parse::<usize>() {
        Ok(dimension) if (1..code.k()).contains(&dimension) => Ok(shortened(&code, dimension)),
        _ => Err(SpecError::WrongArguments {
            spec: spec.to_owned(),
            problem: format!("{inner} has {} data blocks: fewer of them must have bytes", code.k()),
            usage: format!("{NAME}(code,data blocks with bytes)"),
        }),
    }
}

impl Shortened {
    /// The empty data blocks.
    fn zeros(&self) -> impl Iterator<Item = u8> + use<> {
        (self.dimension..self.of.k()).filter_map(|index| u8::try_from(index).ok())
    }

    fn is_zero(&self, index: u8) -> bool {
        (self.dimension..self.of.k()).contains(&index.into())
    }

    /// A map of the data without the terms of empty blocks.
    fn without_zeros(&self, map: &Factored) -> Factored {
        let (alpha, steps) = (self.of.alpha(), map.steps());
        let zeros = self.dimension * alpha..self.of.k() * alpha;
        let terms = steps.terms().iter().map(|(row, col, c)| (*row as usize, *col as usize, *c));
        let kept = SparseMatrix::new(steps.rows(), steps.cols(), terms.filter(|(_, col, _)| !zeros.contains(col)));
        kept.and_then(|kept| Factored::new(map.temporaries(), kept)).map_or_else(|| map.clone(), Factored::pruned)
    }

    /// Removes helpers whose blocks are zero. If no helper is left, the wanted parity block is zero too; a plan still
    /// needs a helper, so the first available block becomes one, with an empty contribution.
    fn without_zero_helpers(&self, recipe: Recipe, available: &[u8]) -> Recipe {
        let (mut first, mut kept) = (0, Vec::with_capacity(recipe.combine.cols()));
        for helper in &recipe.helpers {
            let cols = first..first + helper.compute.rows();
            first = cols.end;
            kept.extend(cols.filter(|_| !self.is_zero(helper.index)));
        }
        if kept.len() == recipe.combine.cols() {
            return recipe;
        }
        // A remaining column may only feed temporaries that cancel without the rest.
        let steps = recipe.combine.steps();
        let of_zero = |col: usize| col < recipe.combine.cols() && kept.binary_search(&col).is_err();
        let terms = steps.terms().iter().map(|(row, col, c)| (*row as usize, *col as usize, *c));
        let terms = SparseMatrix::new(steps.rows(), steps.cols(), terms.filter(|(_, col, _)| !of_zero(*col)));
        let combine = terms.and_then(|steps| Factored::new(recipe.combine.temporaries(), steps));
        let helpers: Vec<HelperShare> = recipe.helpers.into_iter().filter(|helper| !self.is_zero(helper.index)).collect();
        let recipe = Recipe { helpers, combine: combine.unwrap_or(recipe.combine).select_cols(&kept).pruned() };
        match available.iter().find(|index| recipe.helpers.is_empty() && !self.is_zero(**index)) {
            Some(index) => Recipe {
                helpers: vec![HelperShare { index: *index, reads: vec![0], compute: SparseMatrix::identity(1) }],
                combine: SparseMatrix::zero(recipe.combine.rows(), 1).into(),
            },
            None => recipe,
        }
    }
}

impl Code for Shortened {
    fn spec(&self) -> String {
        format!("{NAME}({},{})", self.of.spec(), self.dimension)
    }

    fn k(&self) -> usize {
        self.of.k()
    }

    fn m(&self) -> usize {
        self.of.m()
    }

    fn alpha(&self) -> usize {
        self.of.alpha()
    }

    fn dimension(&self) -> usize {
        self.dimension
    }

    fn generator(&self) -> &SparseMatrix {
        self.generator.get_or_init(|| {
            let generator = Factored::from(self.of.generator().clone());
            self.without_zeros(&generator).steps().clone()
        })
    }

    /// The tolerance of the full code: at least as many non-empty blocks can be lost.
    fn tolerance(&self) -> usize {
        self.of.tolerance()
    }

    fn encode(&self) -> Factored {
        self.without_zeros(&self.of.encode())
    }

    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable> {
        let zeros = || self.zeros().filter(|index| !ask.available.contains(index));
        let with_zeros = |blocks: &[u8]| blocks.iter().copied().chain(zeros()).collect();
        let (available, read_anyway) = (with_zeros(&ask.available), with_zeros(&ask.read_anyway));
        let asked = Ask { wanted: ask.wanted.clone(), available, read_anyway };
        let refused = |refusal: NotRecoverable| {
            let mut available = ask.available.clone();
            available.sort_unstable();
            NotRecoverable { code: self.spec(), available, ..refusal }
        };
        let recipes = self.of.recipes(&asked).map_err(refused)?;
        let mut recipes: Vec<Recipe> =
            recipes.into_iter().map(|recipe| self.without_zero_helpers(recipe, &ask.available)).collect();
        recipes.sort_by_key(|recipe| moved(ask, recipe));
        Ok(recipes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{conformance, generator_hash};

    #[test]
    fn shortened_codes_conform_for_any_amount_of_data() {
        for (spec, dimensions) in [
            ("rs(4,2)", 1..=3),
            ("rs(10,4)", 1..=9),
            ("xor(4)", 1..=3),
            ("lrc(4,2,2)", 1..=3),
            ("rotated-rs(6,3)", 1..=5),
            ("hitchhiker-xor(4,2)", 1..=3),
            ("butterfly(4)", 1..=3),
            ("msr(4,4,d=6)", 1..=3),
            ("clay(4,2)", 1..=3),
            ("hsrc(7,3)", 1..=2),
        ] {
            for dimension in dimensions {
                let code = shortened(&parse(spec).unwrap(), dimension);
                conformance::check_recipes(code.as_ref()).unwrap();
                let read = parse_of_plan(&code.spec()).unwrap();
                assert_eq!((read.spec(), read.generator()), (code.spec(), code.generator()));
            }
        }
    }

    #[test]
    fn a_parity_block_of_one_data_block_is_enough_and_no_other_block_is_read() {
        let code = shortened(&parse("rs(6,3)").unwrap(), 1);
        let wanted = vec![crate::SubBlock { index: 0, sub_block: 0 }];
        let ask = Ask { wanted, available: vec![8, 7, 6], read_anyway: Vec::new() };
        let recipe = code.recipes(&ask).unwrap().remove(0);
        assert_eq!(recipe.helpers.iter().map(|helper| helper.index).collect::<Vec<_>>(), [8], "the preferred");
        assert_eq!(code.encode().sources_used(), [0]);
    }

    #[test]
    fn a_code_with_all_data_blocks_is_unchanged_and_other_specs_are_refused() {
        let code = parse("rs(6,3)").unwrap();
        assert!(Arc::ptr_eq(&code, &shortened(&code, 6)));
        assert_ne!(generator_hash(code.as_ref()), generator_hash(shortened(&code, 5).as_ref()));
        for spec in ["shortened(rs(6,3),6)", "shortened(rs(6,3),0)", "shortened(rs(6,3),-1)", "shortened(rs(6,3),x)"] {
            let error = parse_of_plan(spec).map(|code| code.spec()).unwrap_err().to_string();
            assert!(error.contains("has 6 data blocks"), "{error}");
        }
        for spec in ["shortened(rs(6,3)", "shortened(shortened(rs(6,3),4),2)", "shortened(rs(6),1)", "shortened()"] {
            assert!(parse_of_plan(spec).is_err(), "{spec}");
        }
        assert!(parse("shortened(rs(6,3),2)").is_err(), "a policy could use a shortened code");
        assert_eq!(parse_of_plan("rs(6,3)").unwrap().spec(), "rs(6,3)");
    }
}
