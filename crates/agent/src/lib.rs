//! The agent, the daemon on a storage node: sockets, timers and disks around the engine.
//!
//! The coordinator opens a task ([`weft_plan::Task`]) at every agent that takes part in a plan, then starts them all.
//! An agent answers at once: it reserves all that the task needs, or refuses it as busy.
//!
//! ```text
//! coordinator ──gRPC──► service ─► tasks ─► open ──► admission · disks · partial blocks · reception
//!                                        └► run  ──► engine ─► ports ─┬► block_source   read ahead, every page checked
//! other agents ─frames► reception ────────────────────────────────────┼► link           pumps between socket and queue
//! clients      ─frames►                                               └► store_sink     commits when all has arrived
//! ```
//! The network, clock, random numbers, disks and the converter are passed in ([`Seams`]).

mod admission;
mod agent;
mod block_source;
mod both_ways;
mod config;
mod content;
mod convert;
mod corruption;
mod disks;
mod keep;
mod limit;
mod line;
mod link;
mod membership;
mod meter;
mod metrics;
mod node;
mod open;
mod pages;
mod partial;
mod ports;
mod probe;
mod reception;
mod removal;
mod run;
mod seams;
mod served;
mod service;
mod speed;
mod spool;
mod state;
mod store_sink;
mod tasks;
mod throttle;
mod traffic;
mod update_calls;
mod updates;
mod wire;

pub use agent::{Agent, MemoryGauge, Stopper};
pub use config::{AgentConfig, Limits, Throttle};
pub use metrics::FAMILIES as METRICS;
pub use seams::{KeepJournal, LocalDisks, OpenDisk, OpenedDisk, Seams};
pub use state::node_of;
pub use weft_proto::{DiskDelay, DiskMode};
