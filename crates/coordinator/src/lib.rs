//! The coordinator: placement, liveness, plans, commits.
//!
//! It keeps the metadata, makes and proves every plan, opens and starts it at the agents, watches over it, and commits what came
//! of it. It moves no byte of data itself.
//!
//! | module | what it is |
//! | --- | --- |
//! | `config`, `coordinator` | settings; starting and stopping |
//! | `members`, `membership` | who is there: sessions and heartbeats; the service for agents |
//! | `view`, `placement`, `capacity` | the nodes at one moment; where new blocks go; what conversions leave free |
//! | `options`, `in_flight`, `stragglers` | what requests choose; what plans still have to move; who is slow |
//! | `delegations` | what agents do in the coordinator's name |
//! | `planning`, `sign` | from stripes to proved plans; from plans to tasks, addresses and tokens |
//! | `supervise` | running a plan at its agents, and who is to blame when it fails |
//! | `links` | what the links between nodes carry, measured by probes |
//! | `puts`, `read`, `repair`, `copies` | what clients ask for |
//! | `jobs`, `helpers` | jobs that outlive a coordinator; who helps where more could than are needed |
//! | `pages` | what the metadata have of a kind, looked up page by page |
//! | `sweep` | leases that ended, allocations that were given up, blocks that nobody needs |
//! | `garbage` | what nobody needs and still takes space, told to clients and let go of |
//! | `orphans` | blocks on nodes' disks that the metadata does not know |
//! | `validate`, `show`, `service` | what may be asked, what is answered, the service for clients |
//!
//! After a restart the coordinator leads in a new epoch. Puts go on: stripes that had ended stay, one that was under way is begun
//! anew under the same number, and a put of which nothing is heard is swept, at the earliest one lease after the start. Repairs
//! of objects that were under way are given up; jobs go on with what they had not done yet, unless they were paused. Agents register by themselves with their next heartbeat.

mod completion;
mod compute;
mod config;
mod coordinator;
mod copies;
mod delegations;
mod garbage;
mod in_flight;
mod jobs;
mod links;
mod members;
mod membership;
mod options;
mod orphans;
mod pages;
mod puts;
mod read;
mod rebuild;
mod repair;
mod service;
mod shared;
mod show;
mod sign;
mod started;
mod supervise;
mod sweep;
mod validate;

pub use config::CoordinatorConfig;
pub use coordinator::{Coordinator, Seams};
