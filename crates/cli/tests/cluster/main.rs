//! Clusters of real processes, sockets and disks: what commands do with them, and everything that can go wrong.

mod certificates;
mod codes;
mod commands;
mod conversions;
mod coordinator;
mod copies;
mod corruption;
mod departures;
mod disks;
mod garbage;
mod handbook;
mod harness;
mod healing;
mod health;
mod jobs;
mod links;
mod local;
mod losses;
mod many;
mod memory;
mod metrics;
mod puts;
mod repairs;
mod scrub;
mod sizes;
mod strangers;
