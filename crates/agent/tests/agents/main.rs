//! Real agents on loopback and real disks, with a coordinator that does only what a test tells it to.

mod classes;
mod cluster;
mod conversions;
mod failures;
mod probes;
mod refusals;
mod tasks;
