//! Repair and reads: lost blocks are computed from others, present ones are read.

pub(crate) mod conventional;
pub(crate) mod cyclic;
pub(crate) mod direct;
pub(crate) mod pipeline;
mod planner;
pub(crate) mod ppr;
mod routes;

use crate::{LaneBuilder, Named, Paths, Request, Requestor, Select, considered};
use weft_codes::Recipe;
use weft_gf::{Factored, SparseMatrix};
use weft_plan::{Considered, Plan, Source};
use weft_types::{Error, Result};

pub(crate) use planner::plan;
pub(crate) use routes::Known;

/// Paths that are considered for one lost block where nobody says how many.
const AUTO_PATHS_MAX: u32 = 3;

/// Several paths must be predicted to take less than this share of what one takes.
const SEVERAL_PATHS_GAIN: f64 = 0.98;

/// A way to bring helpers' shares together at the requestors.
pub trait RepairScheme: Named {
    /// By what way the shares go: helpers are selected for it.
    fn walk(&self) -> Walk {
        Walk::Hub
    }

    /// The lanes that bring what the helpers send, weighed, to the requestors; each does all of it, and they take turns, slice by
    /// slice, as far as there are slices. It fails only if it adds up partial sums, and the repair has none, or if it never repairs.
    fn build(&self, repair: &Repair) -> Result<Vec<LaneBuilder>>;

    /// Which of a code's recipes suits it: the one with the fewest helpers, as for sums every helper costs the same however
    /// little it reads, and then the one that reads least.
    fn choose<'a>(&self, recipes: &'a [Recipe]) -> Option<&'a Recipe> {
        recipes.iter().min_by_key(|recipe| (recipe.helpers.len(), recipe.sub_blocks_read()))
    }

    /// Whether it computes what is lost; else it copies only what is there.
    fn rebuilds(&self) -> bool {
        true
    }

    /// Whether helpers send what they read rather than sums: then blocks that are wanted and present come along with the help,
    /// and what is sent serves both.
    fn sends_plain_blocks(&self) -> bool {
        false
    }
}

/// By what way helpers' shares go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// From every helper to the requestor: the quickest links count, and no order.
    Hub,
    /// From helper to helper, and from the last to the requestor.
    Chain,
    /// Pairwise, and from the last to the requestor: selected as for a chain, of which a tree has some links.
    Tree,
    /// Around all helpers, and from nearly each to the requestor.
    Cycle,
}

/// What a scheme is given: who can add what, and who needs the sum.
#[derive(Debug)]
pub struct Repair {
    /// The rows of the sum.
    pub rows: usize,
    /// The helpers in the order of preference, each vertex once.
    pub helpers: Vec<Helper>,
    /// The sum: one row for each of `rows`, one column for each sub-block that is sent, helper after helper.
    pub combine: Factored,
    /// Who needs which rows; at least one. The first can send to the others.
    pub requestors: Vec<Requestor>,
}

/// What one vertex reads and sends.
#[derive(Debug)]
pub struct Helper {
    /// Its vertex.
    pub vertex: u16,
    /// The blocks that it reads.
    pub sources: Vec<Source>,
    /// What it sends, if it sends no sum: one row for each sub-block sent, one column for each read.
    pub compute: SparseMatrix,
}

impl Repair {
    /// The place of the requestor that is at a vertex.
    pub fn asks(&self, vertex: u16) -> Option<usize> {
        self.requestors.iter().position(|requestor| requestor.vertex == vertex)
    }

    /// What each helper adds to the sum, in their order: one row for each of the sum, one column for each sub-block read.
    pub fn shares(&self) -> Result<Vec<SparseMatrix>> {
        let shares = weft_codes::shares(&self.combine, self.helpers.iter().map(|helper| &helper.compute));
        let instead = "choose a scheme in which helpers send their blocks as they are";
        shares.ok_or_else(|| Error::invalid(format!("what this code combines is too large for partial sums: {instead}")))
    }
}

/// The plans of one scheme among which to choose: of one path, and of several where that is quicker.
pub(crate) fn consider(request: &Request<'_>, scheme: &dyn RepairScheme, known: &mut Known) -> Result<Vec<(Plan, Considered)>> {
    let mut weighed = |paths: u32| {
        let (plan, paths) = planner::plan(&Request { paths: Paths::Count(paths), ..*request }, scheme, known)?;
        let considered = considered::weigh(&plan, scheme.name(), paths, request.network)?;
        Ok::<_, Error>((plan, considered))
    };
    if let Paths::Count(paths) = request.paths {
        return Ok(vec![weighed(paths)?]);
    }
    let mut plans = vec![weighed(1)?];
    let single = plans[0].1.clone();
    // Without a path nothing was lost.
    let several = scheme.walk() == Walk::Chain && !single.paths.is_empty();
    if several && matches!(request.select, Select::Best | Select::Ordered) {
        let before = |plans: &[(Plan, Considered)]| plans.last().map_or(f64::INFINITY, |(_, last)| last.seconds);
        for paths in 2..=AUTO_PATHS_MAX {
            match weighed(paths) {
                Ok(plan) if plan.1.seconds < SEVERAL_PATHS_GAIN * before(&plans).min(single.seconds) => plans.push(plan),
                _ => break,
            }
        }
    }
    Ok(plans)
}

/// The two matrices on the diagonal of a larger one.
pub(crate) fn diagonal(a: &SparseMatrix, b: &SparseMatrix) -> SparseMatrix {
    a.beside(&SparseMatrix::zero(a.rows(), b.cols())).stack(&SparseMatrix::zero(b.rows(), a.cols()).beside(b))
}
