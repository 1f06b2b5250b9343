//! Repairs and reads: lost blocks are computed from others, available ones are read.

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

/// The most paths that are considered for one lost block if the request sets no number.
const AUTO_PATHS_MAX: u32 = 3;

/// Several paths must be predicted to take less than this fraction of the time of one path.
const SEVERAL_PATHS_GAIN: f64 = 0.98;

/// A scheme that combines helpers' shares at the requestors.
pub trait RepairScheme: Named {
    /// The walk of the shares, for which helpers are selected.
    fn walk(&self) -> Walk {
        Walk::Hub
    }

    /// The lanes that bring the weighted shares of the helpers to the requestors. Each lane does all of it, and they
    /// take turns, slice by slice, as far as there are slices. Fails only if it needs partial sums that the repair does
    /// not have, or if the scheme never repairs.
    fn build(&self, repair: &Repair) -> Result<Vec<LaneBuilder>>;

    /// The recipe that suits the scheme. The default is the one with the fewest helpers, because with partial sums
    /// every helper costs the same however little it reads; of those, the one that reads least.
    fn choose<'a>(&self, recipes: &'a [Recipe]) -> Option<&'a Recipe> {
        recipes.iter().min_by_key(|recipe| (recipe.helpers.len(), recipe.sub_blocks_read()))
    }

    /// Whether it computes lost blocks; otherwise it only copies available ones.
    fn rebuilds(&self) -> bool {
        true
    }

    /// Whether helpers send what they read instead of sums. Then wanted blocks that are available travel together with
    /// the help, and the bytes sent serve both.
    fn sends_plain_blocks(&self) -> bool {
        false
    }
}

/// The route of helpers' shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// From every helper to the requestor: only the fastest links matter, and not the order.
    Hub,
    /// From helper to helper, and from the last to the requestor.
    Chain,
    /// Pairwise, and from the last to the requestor: selected like a chain, whose links a tree uses in part.
    Tree,
    /// Around all helpers, and from all but one to the requestor.
    Cycle,
}

/// The input of a scheme: which helpers can add what, and which requestors need the sum.
#[derive(Debug)]
pub struct Repair {
    /// The number of rows of the sum.
    pub rows: usize,
    /// The helpers in order of preference, each vertex once.
    pub helpers: Vec<Helper>,
    /// The sum: one row for each of `rows`, one column for each sub-block that is sent, helper by helper.
    pub combine: Factored,
    /// The requestors and the rows that they need; at least one. The first can send to the others.
    pub requestors: Vec<Requestor>,
}

/// What one vertex reads and sends.
#[derive(Debug)]
pub struct Helper {
    /// Its vertex.
    pub vertex: u16,
    /// The blocks that it reads.
    pub sources: Vec<Source>,
    /// What it sends if it sends no sum: one row for each sub-block sent, one column for each read.
    pub compute: SparseMatrix,
}

impl Repair {
    /// The index of the requestor at a vertex.
    pub fn asks(&self, vertex: u16) -> Option<usize> {
        self.requestors.iter().position(|requestor| requestor.vertex == vertex)
    }

    /// The part of the sum of each helper, in their order: one row for each row of the sum, one column for each
    /// sub-block read.
    pub fn shares(&self) -> Result<Vec<SparseMatrix>> {
        let shares = weft_codes::shares(&self.combine, self.helpers.iter().map(|helper| &helper.compute));
        let instead = "choose a scheme in which helpers send their blocks unchanged";
        shares.ok_or_else(|| Error::invalid(format!("this code's combinations are too large for partial sums: {instead}")))
    }
}

/// The plans of one scheme to choose from: with one path, and with several if that is faster.
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
    // Without a path, nothing was lost.
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

/// A block-diagonal matrix of the two.
pub(crate) fn diagonal(a: &SparseMatrix, b: &SparseMatrix) -> SparseMatrix {
    a.beside(&SparseMatrix::zero(a.rows(), b.cols())).stack(&SparseMatrix::zero(b.rows(), a.cols()).beside(b))
}
