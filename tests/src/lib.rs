//! The whole cluster within one thread: agents, coordinator and clients as they are, on a simulated network and on simulated
//! time, so that a seed says all that happens.
//!
//! | module | what it is |
//! | --- | --- |
//! | `net` | the network: hosts that crash, connections that are cut, refused, held up |
//! | `clock` | the wall clock |
//! | `disks` | real directories of a size that does not change from machine to machine |
//! | `sickness` | disks that go bad |
//! | `cluster` | the hosts, and what can be done to them |
//! | `checks` | what must hold whatever was done |
//! | `trace` | what happened, in order, with its time: two runs of a seed must leave the same |

mod checks;
mod clock;
mod cluster;
mod disks;
mod net;
mod sickness;
mod trace;

pub use checks::{Acknowledged, check_disks, check_readable, check_visible};
pub use clock::SimClock;
pub use cluster::{Cluster, Deed, Failure, Hand, Shape, agent_name, connect};
pub use disks::SimDisks;
pub use net::{Network, SimNet};
pub use sickness::{Ailment, Sickness};
pub use trace::Trace;
