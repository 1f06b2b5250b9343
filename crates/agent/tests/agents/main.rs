//! Real agents on loopback and real disks, with a coordinator that acts only on a test's command.

mod classes;
mod cluster;
mod conversions;
mod failures;
mod hung;
mod limits;
mod open_reads;
mod probes;
mod refusals;
mod routes;
mod tasks;
mod updates;
