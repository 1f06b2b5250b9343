//! The one door from a job to a plan: which kind of job it is, which schemes can answer it, and which of their plans to take.

use crate::{
    Paths, Request, Select, check, considered, disseminate,
    registry::{self, AUTO, Scheme},
    repair::{self, Known},
    update,
};
use weft_plan::{Considered, Job, Plan, WantKind};
use weft_types::{Error, Result, Span};

/// What kind of job it is: by it schemes are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Blocks that are there are delivered to readers.
    Read,
    /// New data is brought to the nodes that store it.
    Write,
    /// Blocks of which something is not there are computed from others, to be stored or delivered.
    Repair,
    /// Stored blocks are patched by what changed of the data.
    Update,
    /// Stored blocks are seen to fit together.
    Check,
    /// Blocks that are there are stored somewhere else.
    Move,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 6] = [Self::Read, Self::Write, Self::Repair, Self::Update, Self::Check, Self::Move];

    /// The kind of a job: what it wants says it, and what is there.
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

    /// What such a job is to do.
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

/// The plan of a scheme for a job.
///
/// Of a repair, a block with so many holes that a plan around each of them would be too large counts as lost, that with the most first.
pub fn plan(request: &Request<'_>, scheme: Scheme<'_>) -> Result<Plan> {
    let kind = Kind::of(request.job);
    if !scheme.is_for(kind) {
        let (name, verb) = (scheme.name(), kind.verb());
        return Err(Error::invalid(format!("the scheme '{name}' is for other jobs than to {verb} blocks")));
    }
    Ok(match scheme {
        Scheme::Repair(scheme) => repair::plan(request, scheme, &mut Known::new())?.0,
        Scheme::Write(scheme) => disseminate::plan(request, scheme)?,
        Scheme::Update(scheme) => update::plan(request, scheme)?,
        Scheme::Check(scheme) => check::plan(request, scheme)?,
    })
}

/// The plan that [`choose`] takes. It is not weighed where the scheme was named and has one plan: then nothing is considered.
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

/// The plan for a job of the scheme of that name, or, for [`AUTO`], of that which is predicted to be the quickest on its network,
/// and of about equally quick ones of that which moves least; and what was considered, the chosen first.
///
/// Where the number of paths is left open, several are taken only if they are predicted to be quicker by more than a little.
/// Predictions know no arithmetic.
pub fn choose(request: &Request<'_>, scheme: &str) -> Result<(Plan, Vec<Considered>)> {
    let kind = Kind::of(request.job);
    let schemes: Vec<Scheme<'_>> = match scheme {
        AUTO => registry::answering(kind).collect(),
        named => vec![registry::by_name(kind, named)?],
    };
    let (mut refused, mut known) = (None, Known::new());
    let mut plans: Vec<(Plan, Considered)> = Vec::with_capacity(schemes.len());
    for scheme in schemes {
        match consider(request, scheme, &mut known) {
            Ok(considered) => plans.extend(considered),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let alike = if kind == Kind::Write { considered::NOT_WORTH_MORE } else { considered::EQUALLY_QUICK };
    let none = || Error::fatal(format!("there is no scheme for a job to {}", kind.verb()));
    considered::choose(plans, alike).ok_or_else(|| refused.unwrap_or_else(none))
}

/// The plans of one scheme among which to choose.
fn consider(request: &Request<'_>, scheme: Scheme<'_>, known: &mut Known) -> Result<Vec<(Plan, Considered)>> {
    if let Scheme::Repair(scheme) = scheme {
        return repair::consider(request, scheme, known);
    }
    let plan = plan(request, scheme)?;
    let considered = considered::weigh(&plan, scheme.name(), Vec::new(), request.network)?;
    Ok(vec![(plan, considered)])
}
