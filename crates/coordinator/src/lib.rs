//! The coordinator: placement, liveness, plans, commits.
//!
//! It keeps the metadata, makes and verifies every plan, opens and starts it at the agents, supervises it, and commits
//! the result. It moves no data itself.
//!
//! | module | content |
//! | --- | --- |
//! | `config`, `coordinator` | settings; start and stop |
//! | `members`, `membership` | sessions and heartbeats of the nodes; the service for agents |
//! | `departures` | removes nodes and disks that are gone for good |
//! | `damage` | which objects lack blocks |
//! | `space` | where space is used and free, and what can still be written |
//! | `disk_health`, `auto_drain` | disks that are slow or failing although they work; drains them without a person |
//! | `drain` | takes nodes and disks out of service, whose blocks then move |
//! | `options`, `in_flight` | the choices of requests; the bytes that running plans still have to move |
//! | `delegations` | work that agents do for the coordinator |
//! | `sign` | from plans to tasks, addresses and tokens |
//! | `supervise` | runs a plan at its agents, and finds the node to blame if it fails |
//! | `links` | the capacity of links between nodes, measured by probes |
//! | `puts`, `read`, `repair`, `rebuild`, `copies` | requests of clients |
//! | `healer` | rebuilds lost blocks without a person |
//! | `claims` | which stripes are being rebuilt |
//! | `completion` | stripes that were acknowledged before all their blocks were durable |
//! | `jobs` | jobs that survive a coordinator |
//! | `pages` | metadata records, read page by page |
//! | `sweep` | expired leases, dropped allocations, garbage |
//! | `orphans` | blocks on nodes' disks that the metadata does not know |
//! | `meter`, `metrics` | what is counted, and what Prometheus reads |
//! | `validate`, `show`, `service` | checks of requests, answers, the service for clients |
//!
//! After a restart the coordinator leads in a new epoch. Puts continue: ended stripes stay, an unfinished one starts
//! again under the same number, and a put without any call is aborted, one lease after the start at the earliest.
//! Running repairs of objects are dropped. Jobs continue with what is not done yet, unless they were paused. Agents
//! register again with their next heartbeat.

mod auto_drain;
mod blocks;
mod came_back;
mod claims;
mod completion;
mod compute;
mod config;
mod coordinator;
mod copies;
mod damage;
mod delegations;
mod departures;
mod disk_health;
mod drain;
mod garbage;
mod healer;
mod health;
mod in_flight;
mod jobs;
mod limit;
mod links;
mod members;
mod membership;
mod meter;
mod metrics;
mod moved;
mod objects;
mod options;
mod orphans;
mod pages;
mod puts;
mod read;
mod rebuild;
mod repair;
mod scrub;
mod service;
mod shared;
mod show;
mod sign;
mod silence;
mod space;
mod started;
mod supervise;
mod sweep;
mod tasks;
mod updates;
mod validate;

pub use config::CoordinatorConfig;
pub use coordinator::{Coordinator, Seams};
pub use metrics::FAMILIES as METRICS;
