//! Agents as they are, on loopback and real disks, with a coordinator that does by hand what a test tells it to.

mod classes;
mod cluster;
mod conversions;
mod failures;
mod probes;
mod refusals;
mod tasks;
