//! The whole cluster within one thread: agents, coordinator and clients as they are, on a simulated network and on simulated
//! time, so that a seed says all that happens.
//!
//! | module | what it is |
//! | --- | --- |
//! | `net` | the network: hosts that crash, connections that are cut, refused, held up |
//! | `clock` | the wall clock |
//! | `trace` | what happened, in order, with its time: two runs of a seed must leave the same |

mod clock;
mod net;
mod trace;

pub use clock::SimClock;
pub use net::{Network, SimNet};
pub use trace::Trace;
