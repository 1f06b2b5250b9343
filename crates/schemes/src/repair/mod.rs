//! Repair and reads: lost blocks are computed from others, present ones are read.

mod conventional;
mod cyclic;
mod direct;
mod pipeline;
mod planner;
mod ppr;
mod routes;

use crate::{LaneBuilder, Paths, Request, Requestor, Select, considered};
use weft_codes::Recipe;
use weft_gf::{Factored, SparseMatrix};
use weft_plan::{Considered, Plan, Source};
use weft_types::{Error, Result};

pub use considered::AUTO;
pub use planner::plan_repair;

/// Every scheme that rebuilds what is lost, in the order in which they are shown.
pub const SCHEMES: &[&dyn RepairScheme] = &[&conventional::Conventional, &ppr::Ppr, &pipeline::Pipeline, &cyclic::Cyclic];

/// The name of the scheme that rebuilds nothing: it copies blocks that are there.
pub const DIRECT: &str = "direct";

/// Paths that are considered for one lost block where nobody says how many.
const AUTO_PATHS_MAX: u32 = 3;

/// Several paths must be predicted to take less than this share of what one takes.
const SEVERAL_PATHS_GAIN: f64 = 0.98;

/// A way to bring helpers' shares together at the requestors.
pub trait RepairScheme: std::fmt::Debug + Sync {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// What it does, in a line.
    fn summary(&self) -> &'static str;

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
        shares.ok_or_else(|| {
            Error::invalid("what this code combines is too large for partial sums: choose the scheme 'conventional'")
        })
    }
}

/// The plan for a job of the scheme of that name, or, for [`AUTO`], of that which is predicted to be the quickest on its network,
/// and of equally quick ones of that which moves least; and what was considered, the chosen first.
///
/// Where the number of paths is left open, several are taken only if they are predicted to be quicker by more than a little.
pub fn choose_plan(request: &Request<'_>, scheme: &str) -> Result<(Plan, Vec<Considered>)> {
    let schemes = if scheme == AUTO { SCHEMES.to_vec() } else { vec![by_name(scheme)?] };
    let (mut refused, mut known) = (None, routes::Known::new());
    let mut plans: Vec<(Plan, Considered)> = Vec::with_capacity(schemes.len());
    for scheme in schemes {
        match consider(request, scheme, &mut known) {
            Ok(considered) => plans.extend(considered),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    considered::choose(plans, considered::EQUALLY_QUICK)
        .ok_or_else(|| refused.unwrap_or_else(|| Error::fatal("there is no repair scheme")))
}

/// The plans of one scheme among which to choose: of one path, and of several where that is quicker.
fn consider(request: &Request<'_>, scheme: &dyn RepairScheme, known: &mut routes::Known) -> Result<Vec<(Plan, Considered)>> {
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

/// Whether there is a scheme of that name, or the choice is left open.
pub fn check_name(scheme: &str) -> Result<()> {
    if scheme == AUTO { Ok(()) } else { by_name(scheme).map(drop) }
}

/// The scheme of that name.
pub fn by_name(name: &str) -> Result<&'static dyn RepairScheme> {
    let all = || SCHEMES.iter().copied().chain([&direct::Direct as &dyn RepairScheme]);
    let known = || all().map(|scheme| scheme.name()).collect::<Vec<_>>().join(", ");
    let found = all().find(|scheme| scheme.name() == name);
    found.ok_or_else(|| Error::invalid(format!("there is no repair scheme '{name}'; there are: {AUTO}, {}", known())))
}

/// The two matrices on the diagonal of a larger one.
fn diagonal(a: &SparseMatrix, b: &SparseMatrix) -> SparseMatrix {
    a.beside(&SparseMatrix::zero(a.rows(), b.cols())).stack(&SparseMatrix::zero(b.rows(), a.cols()).beside(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_is_told_which_there_are() {
        assert_eq!(by_name("pipeline").unwrap().name(), "pipeline");
        let message = by_name("pigeon").unwrap_err().to_string();
        assert_eq!(message, "there is no repair scheme 'pigeon'; there are: auto, conventional, ppr, pipeline, cyclic, direct");
    }
}
