//! A real cluster of processes on this machine: its directory, and its processes.
//!
//! ```text
//! DIR/weft.toml                     where the cluster is, for clients; it comes last: without it there is no cluster
//! DIR/lock                          locked by who starts or stops the cluster
//! DIR/certificates/                 the authority, and a certificate for everybody
//! DIR/coordinator/coordinator.toml  settings; the metadata beside it
//! DIR/nodes/node-01/agent.toml      settings; state and disk-0, disk-1, … beside it
//! DIR/log/node-01.log               what each process printed
//! DIR/run/node-01.pid               which process it is; the process holds a lock on it
//! DIR/run/first-up                  there until the cluster has come up for the first time
//! ```
//!
//! Settings name directories relative to their file, so that a directory that was moved or copied is a cluster of its own.

mod cluster;
mod make;
mod namespaces;
mod process;
mod scratch;

pub use cluster::LocalCluster;
pub use make::{DaemonSettings, Size};
pub use namespaces::{COORDINATOR, Namespaces, SCRATCH_FILE, TESTBED_FILE, node_number};
pub use process::{PidFile, Process, Signal, end};
pub use scratch::ScratchCluster;
