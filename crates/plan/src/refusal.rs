//! Why a plan is refused, and where it is wrong.

use crate::Plan;
use std::fmt;
use weft_types::{Error, Party};

/// The rule that a plan or a task breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// It exceeds a limit.
    Limits,
    /// The code, the layout, the parties or the blocks do not match.
    Binding,
    /// The job itself is invalid.
    Job,
    /// A lane has no stage, no slice, or positions that do not exist.
    Lane,
    /// A matrix, port or link does not match its neighbours.
    Shape,
    /// A link is not used exactly once at each end.
    Links,
    /// A stage waits for itself.
    Cycle,
    /// A party that sends over one link at a time has no order for its links.
    Turns,
    /// A party lacks what it must read, for those positions and that generation.
    Holds,
    /// Some of a lane's positions change and others do not.
    Straddles,
    /// The wanted results are not produced exactly once.
    Tiling,
    /// A held block would keep its old content.
    Mixed,
    /// A party would hold two blocks of the stripe.
    Placement,
    /// Fewer blocks would have the new data than the code needs.
    Tolerance,
    /// An output is not what it is declared to be.
    Algebra,
    /// A check would prove nothing, or would miss a wrong block.
    Check,
}

/// A stage of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The lane's number.
    pub lane: usize,
    /// The stage's number in the lane, if one is concerned.
    pub stage: Option<usize>,
    /// The party of the stage, if known.
    pub party: Option<Party>,
}

/// Why a plan is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The broken rule.
    pub rule: Rule,
    /// The wrong stage, if there is one. Several, if a change in any one of them would correct the plan. Empty, if the
    /// plan as a whole is wrong or only the sink in the message is known.
    pub places: Vec<Place>,
    /// What is wrong, for an operator.
    pub message: String,
}

impl Refusal {
    /// A refusal without a place.
    pub fn new(rule: Rule, message: impl fmt::Display) -> Self {
        Self { rule, places: Vec::new(), message: message.to_string() }
    }

    /// Adds the stage, unless one is set.
    #[must_use]
    pub(crate) fn at(mut self, place: Place) -> Self {
        if self.places.is_empty() {
            self.places.push(place);
        }
        self
    }
}

impl Place {
    pub(crate) fn lane(lane: usize) -> Self {
        Self { lane, stage: None, party: None }
    }

    pub(crate) fn stage(plan: &Plan, lane: usize, stage: usize) -> Self {
        let vertex = plan.shape.lanes.get(lane).and_then(|lane| lane.stages.get(stage)).map(|stage| usize::from(stage.vertex));
        let party = vertex.and_then(|vertex| plan.binding.parties.get(vertex).copied());
        Self { lane, stage: Some(stage), party }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {}", self.lane)?;
        if let Some(stage) = self.stage {
            write!(f, " stage {stage}")?;
        }
        match self.party {
            Some(party) => write!(f, " ({party})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, place) in self.places.iter().enumerate() {
            write!(f, "{}{place}", if number == 0 { "" } else { " or " })?;
        }
        write!(f, "{}{}", if self.places.is_empty() { "" } else { ": " }, self.message)
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let error = Self::invalid(format!("the plan is refused: {refusal}"));
        match refusal.places.as_slice() {
            [Place { party: Some(party), .. }] => error.party(*party),
            _ => error,
        }
    }
}
