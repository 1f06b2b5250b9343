//! The single entry point from a job to a plan: the kind of the job, the schemes that can answer it, and the choice of
//! a plan.

use crate::{
    Paths, Request, Select, check, considered, disseminate,
    registry::{self, AUTO, Scheme},
    repair::{self, Known},
    update,
};
use weft_plan::{Considered, Job, Plan, WantKind};
use weft_types::{Error, Result, Span};

/// The kind of a job, by which schemes are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Available blocks are delivered to readers.
    Read,
    /// New data is brought to the nodes that store it.
    Write,
    /// Blocks that are missing, at least in part, are computed from others, and stored or delivered.
    Repair,
    /// Stored blocks are patched with a change of the data.
    Update,
    /// Stored blocks are checked for consistency.
    Check,
    /// Available blocks are stored on other nodes.
    Move,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 6] = [Self::Read, Self::Write, Self::Repair, Self::Update, Self::Check, Self::Move];

    /// The kind of a job, which follows from what it wants and what is available.
    pub fn of(job: &Job) -> Self {
        let wants = |kind: WantKind| job.wants.iter().any(|want| want.kind == kind);
        if wants(WantKind::Patch) {
            return Self::Update;
        }
        if wants(WantKind::Check) {
            return Self::Check;
        }
        if !job.inputs.is_empty() {
            return Self::Write;
        }
        let is_there = |index: u8, span: Span| {
            let held = job.holds.iter().filter(|hold| hold.block.index == index).map(|hold| hold.span);
            span.subtract(&Span::normalize(held.collect())).is_empty()
        };
        match job.wants.iter().all(|want| is_there(want.index, want.span)) {
            false => Self::Repair,
            true if wants(WantKind::Store) => Self::Move,
            true => Self::Read,
        }
    }

    /// A verb for the kind.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Repair => "repair",
            Self::Update => "update",
            Self::Check => "check",
            Self::Move => "move",
        }
    }
}

/// The plan of a scheme for a job. For an update whose blocks are in more than [`crate::path::QUICK_MAX`] racks this can
/// take seconds: call it outside of async threads.
///
/// If a repair would need too large a plan because of the holes in its blocks, the block with the most holes counts as
/// lost, and so on.
pub fn plan(request: &Request<'_>, scheme: Scheme<'_>) -> Result<Plan> {
    let kind = Kind::of(request.job);
    if !scheme.is_for(kind) {
        let (name, verb) = (scheme.name(), kind.verb());
        return Err(Error::invalid(format!("the scheme '{name}' cannot {verb} blocks")));
    }
    Ok(match scheme {
        Scheme::Repair(scheme) => repair::plan(request, scheme, &mut Known::new())?.0,
        Scheme::Write(scheme) => disseminate::plan(request, scheme)?,
        Scheme::Update(scheme) => update::plan(request, scheme)?,
        Scheme::Check(scheme) => check::plan(request, scheme)?,
    })
}

/// The plan of [`choose`], without a prediction if the scheme was named and has only one plan; the list of considered plans is then empty.
pub fn choose_quickly(request: &Request<'_>, scheme: &str) -> Result<(Plan, Vec<Considered>)> {
    if scheme != AUTO {
        let named = registry::by_name(Kind::of(request.job), scheme)?;
        let is_choice = request.paths == Paths::Auto && named.has_several_paths();
        if !(is_choice && matches!(request.select, Select::Best | Select::Ordered)) {
            return Ok((plan(request, named)?, Vec::new()));
        }
    }
    choose(request, scheme)
}

/// The plan of the named scheme or, for [`AUTO`], the plan predicted to be fastest on the request's network; of about
/// equally fast ones, the one that moves least. Also returns all plans considered, the chosen one first.
///
/// If the number of paths is open, several paths are used only if they are predicted to be faster by a margin.
/// Predictions ignore computation.
pub fn choose(request: &Request<'_>, scheme: &str) -> Result<(Plan, Vec<Considered>)> {
    let kind = Kind::of(request.job);
    match scheme {
        AUTO => choose_of(request, registry::answering(kind)),
        named => choose_of(request, [registry::by_name(kind, named)?]),
    }
}

/// The same for these schemes.
pub fn choose_of<'a>(request: &Request<'_>, schemes: impl IntoIterator<Item = Scheme<'a>>) -> Result<(Plan, Vec<Considered>)> {
    let kind = Kind::of(request.job);
    let (mut refused, mut known) = (None, Known::new());
    let mut plans: Vec<(Plan, Considered)> = Vec::new();
    for scheme in schemes {
        match consider(request, scheme, &mut known) {
            Ok(considered) => plans.extend(considered),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let alike = match kind {
        Kind::Write => considered::NOT_WORTH_MORE,
        // All schemes for updates move about the same.
        Kind::Update => considered::FASTEST,
        _ => considered::EQUALLY_QUICK,
    };
    let none = || Error::fatal(format!("internal error: no scheme can {} blocks", kind.verb()));
    considered::choose(plans, alike).ok_or_else(|| refused.unwrap_or_else(none))
}

/// The plans of one scheme to choose from.
fn consider(request: &Request<'_>, scheme: Scheme<'_>, known: &mut Known) -> Result<Vec<(Plan, Considered)>> {
    if let Scheme::Repair(scheme) = scheme {
        return repair::consider(request, scheme, known);
    }
    if let Scheme::Update(scheme) = scheme {
        return Ok(vec![update::consider(request, scheme)?]);
    }
    let plan = plan(request, scheme)?;
    let considered = considered::weigh(&plan, scheme.name(), Vec::new(), request.network)?;
    Ok(vec![(plan, considered)])
}
