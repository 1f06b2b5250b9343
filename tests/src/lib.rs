//! The whole cluster in one thread: real agents, coordinator and clients on a simulated network and simulated time, so
//! that a seed determines everything that happens.
//!
//! | module | content |
//! | --- | --- |
//! | `net` | the network: hosts that crash; connections that are cut, refused, delayed |
//! | `clock` | the wall clocks |
//! | `disks` | real directories with a fixed size on every machine |
//! | `sickness` | failing disks |
//! | `cluster` | the hosts, and the events that can happen to them |
//! | `checks` | the invariants |
//! | `trace` | all events in order, with their times: two runs of a seed must give the same trace |

mod checks;
mod clock;
mod cluster;
mod disks;
mod net;
mod sickness;
mod trace;

pub use checks::{Acknowledged, check_apart, check_disks, check_readable, check_visible};
pub use clock::SimClock;
pub use cluster::{Cluster, Deed, Failure, Hand, Shape, agent_name, connect};
pub use disks::SimDisks;
pub use net::{Network, SimNet};
pub use sickness::{Ailment, Illness, Roles, Sickness};
pub use trace::Trace;
