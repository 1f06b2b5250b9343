//! A conversion rewrites objects in the code and sizes of another policy. This module decides how the conversion of an
//! object ends, and when it counts as left out.
//!
//! | module | decides |
//! | --- | --- |
//! | [`stripe`] | which agent writes a stripe, and what happens if it fails |
//! | [`writers`] | which agent is near a stripe's data, and how busy each is |
//! | [`room`] | which object waits for space, and which objects give up theirs |
//! | [`follow`] | when an agent makes no progress |
//! | [`same`] | whether the new stripe has the old content |
//! | [`rate`], [`waits`] | when the next bytes may start; what the job reports that it waits for |

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

/// The reason if objects are left out that no attempt reported.
pub const LEFT_UNSAID: &str = "objects were written in another code during the conversion: convert them again";

/// The first pause before agents that failed are tried again; each next pause is twice as long, up to [`PAUSE_LAST`].
pub const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// The longest such pause.
pub const PAUSE_LAST: Duration = Duration::from_secs(8);

/// The stripe at which an object failed, and why.
pub type Failed = (u64, Error);

/// The outcome for one object.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its new stripes have replaced the old ones.
    Converted,
    /// The object was removed: there is nothing left to do.
    Gone,
    /// The job was cancelled during its conversion.
    Stopped,
    /// Its new stripes were dropped, because another object waits for space.
    MadeWay,
    /// It could not be converted.
    Left {
        /// The new stripe at which it failed.
        stripe: u64,
        /// Why.
        error: Error,
    },
}

/// The current state of an object whose conversion failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Now {
    /// The object was removed.
    Nothing,
    /// The version is unchanged, or its state is unknown.
    Same,
    /// Another version, which needs no conversion.
    Fine,
    /// Another version, which needs a conversion.
    Another,
}

impl Outcome {
    /// The outcome for an object whose conversion failed. An object that was removed or already has the new code is not
    /// left out.
    pub fn of_failed(object: &ObjectName, now: Now, (stripe, error): Failed) -> Self {
        match now {
            Now::Nothing | Now::Fine => Self::Gone,
            Now::Another => {
                let error = Error::replan("the object was overwritten while it was converted").object(object);
                Self::Left { stripe, error }
            }
            Now::Same => Self::Left { stripe, error: error.object(object) },
        }
    }
}

/// Counts the outcome for an object of `bytes` bytes. Returns whether another attempt may succeed.
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

/// Whether a stripe has this many copies of each data block, including the coded one. Lost copies count, because they
/// are rebuilt.
pub fn has_copies(stripe: &StripeRecord, replicas: u8) -> bool {
    let copies = |index: usize| stripe.all().filter(|(at, _)| usize::from(*at) == index).count();
    (0..stripe.dimension()).all(|index| copies(index) == usize::from(replicas))
}

/// Whether another agent, or the same one later, may succeed with a stripe.
pub fn may_help(error: &Error) -> bool {
    !matches!(error.reaction, Reaction::NotFound | Reaction::Unavailable)
}

/// What a new stripe has lost since it ended. That may be days ago, and repairs skip stripes that are not visible yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Lost {
    /// The node that had the block.
    pub node: NodeId,
    /// Whether the block is only on a node that is down and may return soon.
    pub is_away: bool,
    /// The error for it.
    pub error: Error,
}

impl Lost {
    /// What a new stripe has lost, if anything: unlike an old one, it must have all its blocks. Permanent losses come
    /// first.
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
                "a new block was lost before the object was completely written: its conversion starts again: {why}"
            ));
            Some(Self { node, is_away, error: error.block(id).party(Party::Node(node)) })
        });
        lost.min_by_key(|lost| lost.is_away)
    }
}

/// Whether the new stripes of an object are complete.
#[derive(Debug, PartialEq, Eq)]
pub enum Whole {
    /// All of them have all their blocks.
    Yes,
    /// One of them waits for a node; check again later.
    WaitsFor(String),
    /// The conversion of the object starts again: the lost node is not expected to return.
    No(Failed),
}

/// Whether an object's new stripes can replace the old ones. `lost`: what each stripe has lost, by number. The conversion waits for a node
/// that is only down, for at most `patience`; `waited` is the time so far.
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
