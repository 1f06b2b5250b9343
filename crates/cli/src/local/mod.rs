//! A real cluster of processes on this machine: its directory, and its processes.
//!
//! ```text
//! DIR/weft.toml                     where the cluster is, for clients; written last: without it there is no cluster
//! DIR/lock                          locked while a process starts or stops the cluster
//! DIR/certificates/                 the authority, and one certificate for each daemon and for clients
//! DIR/coordinator/coordinator.toml  settings; the metadata is beside it
//! DIR/nodes/node-01/agent.toml      settings; state and disk-0, disk-1, … are beside it
//! DIR/log/node-01.log               the output of each process
//! DIR/run/node-01.pid               the id of the process, which holds a lock on the file
//! DIR/run/first-up                  exists until the cluster has come up for the first time
//! ```
//!
//! Paths in settings are relative to their file, so a directory that was moved or copied is a cluster of its own.

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
