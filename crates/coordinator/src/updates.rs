//! Updates in place: which stripes are open for them, and how they are settled before anything else reads or changes them.
//!
//! Every part that plans something for a stripe calls [`settle::if_open`] first; short reads of clients need no plan ([`at_nodes`]). The agents are the fence: they refuse tasks for open blocks, and
//! then [`settle::if_refused`] settles the stripe, and the caller plans again. [`weft_control::updates`] makes the decisions.

pub(crate) mod append;
pub(crate) mod at_nodes;
mod calls;
mod crowd;
mod inspect;
pub(crate) mod open;
mod opening;
pub(crate) mod pass;
mod planners;
pub(crate) mod routes;
pub(crate) mod settle;
mod silent;
pub(crate) mod state;
pub(crate) mod tell;
