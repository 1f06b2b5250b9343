//! A conversion rewrites objects in the code and sizes of another policy. This module decides how an object ends, and when it counts as left.
//!
//! | module | what it decides |
//! | --- | --- |
//! | [`stripe`] | which agent writes a stripe, and what happens if it does not |
//! | [`writers`] | who is near a stripe's data, and who has how much to do |
//! | [`room`] | who waits for space, and who makes way |
//! | [`follow`] | when an agent is no farther |
//! | [`same`] | whether what was written says what was there |
//! | [`rate`], [`waits`] | when the next bytes may begin; what the job tells that it waits for |

pub mod follow;
pub mod rate;
pub mod room;
pub mod same;
pub mod stripe;
pub mod waits;
pub mod writers;

use crate::{
    job::{Again, Job},
    view::{Standing, View},
};
use std::time::Duration;
use weft_types::{BlockState, Error, LeftBlock, NodeId, ObjectName, Party, Reaction, StripeRecord};

/// What is said if something is left of which no attempt has told.
pub const LEFT_UNSAID: &str = "objects were written in another code while the others were converted: convert them again";

/// The first pause before those are asked again that could not do it; each next one is twice as long, up to the last.
pub const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// The last.
pub const PAUSE_LAST: Duration = Duration::from_secs(8);

/// The stripe at which an object failed, and why.
pub type Failed = (u64, Error);

/// What became of an object.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its new stripes are in the old ones' place.
    Converted,
    /// There is nothing to do any more: it was removed.
    Gone,
    /// The job was cancelled meanwhile.
    Stopped,
    /// What was written of it was given up, as another one waits for space.
    MadeWay,
    /// It could not be converted.
    Left {
        /// The new stripe at which it failed.
        stripe: u64,
        /// Why.
        error: Error,
    },
}

/// What the metadata have in the place of an object that could not be converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Now {
    /// Nothing: it was removed.
    Nothing,
    /// The same version; or that is not known.
    Same,
    /// Another version, which is as it is to be.
    Fine,
    /// Another version, which is to be converted.
    Another,
}

impl Outcome {
    /// Of an object that could not be converted: what is not there any more need not be.
    pub fn of_failed(object: &ObjectName, now: Now, (stripe, error): Failed) -> Self {
        match now {
            Now::Nothing | Now::Fine => Self::Gone,
            Now::Another => {
                let error = Error::replan("it was overwritten while it was converted").object(object);
                Self::Left { stripe, error }
            }
            Now::Same => Self::Left { stripe, error: error.object(object) },
        }
    }
}

/// Counts what became of an object of so many bytes; tells whether it was left for a reason that may have gone soon.
pub fn take(job: &mut Job, object: &ObjectName, bytes: u64, outcome: Outcome) -> Again {
    match outcome {
        Outcome::Converted => job.done(bytes),
        Outcome::Gone | Outcome::Stopped => {}
        Outcome::MadeWay => return Again::MadeWay,
        Outcome::Left { stripe, error } => {
            let object = object.to_string();
            return job.left(bytes, error, |reason| LeftBlock { object, stripe, index: 0, reason });
        }
    }
    Again::InVain
}

/// Whether a stripe has so many copies of each data block, with the coded one; those that are lost count, as they are rebuilt.
pub fn has_copies(stripe: &StripeRecord, replicas: u8) -> bool {
    let copies = |index: usize| stripe.all().filter(|(at, _)| usize::from(*at) == index).count();
    (0..stripe.dimension()).all(|index| copies(index) == usize::from(replicas))
}

/// Whether another agent, or a moment later the same, may have more luck with a stripe.
pub fn may_help(error: &Error) -> bool {
    !matches!(error.reaction, Reaction::NotFound | Reaction::Unavailable)
}

/// What a new stripe has lost since it ended. That may be days ago, and repairs do not look at stripes that are not visible yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Lost {
    /// The node that had it.
    pub node: NodeId,
    /// Only for as long as the node is down, and it may be back soon.
    pub is_away: bool,
    /// What to say of it.
    pub error: Error,
}

impl Lost {
    /// What a stripe has lost, if anything: only a new one has all its blocks again. What is lost for good comes first.
    pub fn of(stripe: &StripeRecord, view: &View) -> Option<Self> {
        let lost = stripe.all().filter_map(|(index, placed)| {
            let why = match view.standing_of(stripe, index, placed) {
                Standing::Lost(why) => why,
                Standing::Good | Standing::Suspect if placed.state != BlockState::Ok => "corrupt in part",
                Standing::Good | Standing::Suspect => return None,
            };
            let (id, node) = (stripe.id_of(index, placed), placed.home.node);
            let is_away = placed.state == BlockState::Ok && view.node(node).is_some_and(|node| !node.up);
            let error = Error::replan(format!(
                "a new block was lost before all were written; the conversion of the object starts again: {why}"
            ));
            Some(Self { node, is_away, error: error.block(id).party(Party::Node(node)) })
        });
        lost.min_by_key(|lost| lost.is_away)
    }
}

/// What is to be done about new stripes that have lost something.
#[derive(Debug, PartialEq, Eq)]
pub enum Whole {
    /// All of them have all their blocks.
    Yes,
    /// One waits for a node, and says so; look again later.
    WaitsFor(String),
    /// The conversion of the object starts again: the lost node is not expected back.
    No(Failed),
}

/// Whether an object's new stripes can take the place of the old ones. `lost`: what each stripe has lost, by number. A node that is only
/// down is waited for, though no longer than `patience`; so long, `waited`, it was already.
pub fn whole(
    object: &ObjectName,
    lost: impl IntoIterator<Item = (u64, Lost)>,
    view: &View,
    waited: Duration,
    patience: Duration,
) -> Whole {
    let mut away = None;
    for (number, lost) in lost {
        if !lost.is_away {
            return Whole::No((number, lost.error));
        }
        away = away.or(Some((number, lost)));
    }
    match away {
        None => Whole::Yes,
        Some((number, lost)) if waited >= patience => Whole::No((number, lost.error)),
        Some((number, lost)) => {
            let node = view.name(lost.node);
            Whole::WaitsFor(format!("{node}, which is down and has new blocks of {object} (stripe {number})"))
        }
    }
}

#[cfg(test)]
mod tests;
