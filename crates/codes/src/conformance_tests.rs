//! Tests of the suite itself: good codes pass, and each kind of defect is found.

use super::*;
use crate::{NotRecoverable, solve};
use weft_gf::{Matrix, SparseMatrix};

/// A code with one defect, or none.
#[derive(Debug)]
struct Suspect {
    k: usize,
    m: usize,
    alpha: usize,
    tolerance: usize,
    generator: SparseMatrix,
    spoil: Spoil,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Spoil {
    Nothing,
    Coefficient,
    WantedInAscendingOrder,
    RefusesTwo,
    UselessHelper,
    NamesNothing,
    NoRecipe,
    WholeBlocksOnly,
    UselessRead,
    DearestFirst,
    Encoding,
}

impl Suspect {
    /// A dense linear code: Cauchy over all k·α sub-blocks, so any k blocks suffice.
    fn new(k: usize, m: usize, alpha: usize) -> Self {
        let parity = Matrix::from_fn(m * alpha, k * alpha, |r, c| field::inv((k * alpha + r) as u8 ^ c as u8).unwrap());
        let generator = SparseMatrix::from(&Matrix::identity(k * alpha).stack(&parity));
        Self { k, m, alpha, tolerance: m, generator, spoil: Spoil::Nothing }
    }
}

impl Code for Suspect {
    fn spec(&self) -> String {
        "suspect".to_owned()
    }
    fn k(&self) -> usize {
        self.k
    }
    fn m(&self) -> usize {
        self.m
    }
    fn alpha(&self) -> usize {
        self.alpha
    }
    fn generator(&self) -> &SparseMatrix {
        &self.generator
    }
    fn tolerance(&self) -> usize {
        self.tolerance
    }
    fn encode(&self) -> Factored {
        let mut rows: Vec<usize> = (self.k * self.alpha..self.n() * self.alpha).collect();
        if self.spoil == Spoil::Encoding {
            rows.swap(0, 1);
        }
        self.generator.select_rows(&rows).into()
    }
    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable> {
        let mut ask = ask.clone();
        if self.spoil == Spoil::WantedInAscendingOrder {
            ask.wanted.sort();
        }
        let mut recipe = solve::recipe(self, &ask).map_err(|refusal| match self.spoil {
            Spoil::NamesNothing => NotRecoverable { lost: Vec::new(), ..refusal },
            _ => refusal,
        })?;
        match self.spoil {
            Spoil::RefusesTwo if ask.wanted.len() > self.alpha => return Err(solve::not_recoverable(self, &ask)),
            Spoil::NoRecipe => return Ok(Vec::new()),
            Spoil::WholeBlocksOnly if !ask.wanted.len().is_multiple_of(self.alpha) => {
                return Err(solve::not_recoverable(self, &ask));
            }
            Spoil::UselessRead => {
                let helper = &mut recipe.helpers[0];
                if let Some(unread) = (0..self.alpha as u16).find(|s| !helper.reads.contains(s)) {
                    let at = helper.reads.partition_point(|read| *read < unread);
                    helper.reads.insert(at, unread);
                    let kept: Vec<usize> = (0..helper.reads.len()).filter(|col| *col != at).collect();
                    let terms = helper.compute.terms().iter().map(|(r, c, v)| (*r as usize, kept[*c as usize], *v));
                    helper.compute = SparseMatrix::new(helper.compute.rows(), helper.reads.len(), terms).unwrap();
                }
            }
            Spoil::DearestFirst => return Ok(vec![sends_twice(&recipe), recipe]),
            Spoil::Coefficient => {
                let mut combine = recipe.combine.as_matrix().map(SparseMatrix::to_dense).unwrap();
                combine.set(0, 0, combine.get(0, 0) ^ 1);
                recipe.combine = SparseMatrix::from(&combine).into();
            }
            Spoil::UselessHelper => {
                let combine = recipe.combine.as_matrix().map(SparseMatrix::to_dense).unwrap();
                recipe.combine = SparseMatrix::from(&combine.beside(&Matrix::zero(combine.rows(), 1))).into();
                let index = ask.available.iter().find(|index| recipe.helpers.iter().all(|helper| helper.index != **index));
                let Some(index) = index else { return Ok(vec![recipe]) };
                let compute = SparseMatrix::identity(1);
                recipe.helpers.push(crate::HelperShare { index: *index, reads: vec![0], compute });
            }
            _ => {}
        }
        Ok(vec![recipe])
    }
}

/// The same recipe, but each helper's first sub-block is sent again at the end, and each copy is used for a part.
fn sends_twice(recipe: &Recipe) -> Recipe {
    let mut dearer = recipe.clone();
    let (first, sent) = (&mut dearer.helpers[0], recipe.sub_blocks_sent());
    let at = first.compute.rows();
    first.compute = first.compute.stack(&first.compute.select_rows(&[0]));
    let combine = recipe.combine.flatten(usize::MAX).unwrap().to_dense();
    let part = |c: u8| if c == 2 { 3 } else { 2 };
    dearer.combine = SparseMatrix::from(&Matrix::from_fn(combine.rows(), sent + 1, |row, col| {
        let of_first = combine.get(row, 0);
        match col {
            0 => of_first ^ part(of_first),
            col if col == at => part(of_first),
            col => combine.get(row, col - usize::from(col > at)),
        }
    }))
    .into();
    dearer
}

#[test]
fn linear_codes_pass_with_the_generic_recipe() {
    for (k, m, alpha) in [(2, 2, 1), (4, 2, 3), (3, 3, 2), (9, 4, 2)] {
        check_recipes(&Suspect::new(k, m, alpha)).unwrap();
    }
}

#[test]
fn the_suite_finds_wrong_codes() {
    for (spoil, says) in [
        (Spoil::Coefficient, "wrong bytes"),
        (Spoil::WantedInAscendingOrder, "wrong bytes"),
        (Spoil::RefusesTwo, "which can be recovered"),
        (Spoil::UselessHelper, "are not needed"),
        (Spoil::NamesNothing, "does not name it"),
        (Spoil::NoRecipe, "no recipe"),
        (Spoil::WholeBlocksOnly, "which can be recovered"),
        (Spoil::UselessRead, "does not need all"),
        (Spoil::DearestFirst, "moves less than the first"),
        (Spoil::Encoding, "does not encode"),
    ] {
        let problem = check_recipes(&Suspect { spoil, ..Suspect::new(4, 2, 2) }).unwrap_err().problem;
        assert!(problem.contains(says), "{spoil:?}: {problem}");
    }
}

#[test]
fn the_suite_checks_the_properties_that_a_code_declares() {
    let code = Suspect::new(4, 3, 1);
    let without_identity: Vec<usize> = (1..7).chain([0]).collect();
    let generator = code.generator.select_rows(&without_identity);
    let dependent = code.generator.select_rows(&[0, 1, 2, 3, 4, 4, 6]);
    let copies = code.generator.select_rows(&[0, 1, 2, 3, 4, 4, 4]);
    for (suspect, says) in [
        (Suspect { generator, ..Suspect::new(4, 3, 1) }, "not systematic"),
        (Suspect { generator: dependent, ..Suspect::new(4, 3, 1) }, "which can be recovered"),
        (Suspect { generator: copies, tolerance: 2, ..Suspect::new(4, 3, 1) }, "it declares a tolerance of 2, but"),
        (Suspect { tolerance: 2, ..Suspect::new(4, 3, 1) }, "it tolerates more"),
        (Suspect { tolerance: 4, ..Suspect::new(4, 3, 1) }, "it tolerates 4 losses with 3"),
        (Suspect { alpha: 2, ..Suspect::new(4, 3, 1) }, "the generator is 7×4"),
    ] {
        let problem = check_recipes(&suspect).unwrap_err().problem;
        assert!(problem.contains(says), "{problem}");
    }
    assert!(check(&code).unwrap_err().problem.contains("'suspect'"), "the registry does not know it");
}
