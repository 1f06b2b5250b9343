//! Clusters of real processes, sockets and disks, and everything that can go wrong with them.

mod coordinator;
mod corruption;
mod disks;
mod harness;
mod losses;
mod memory;
mod puts;
mod repairs;
mod sizes;
mod strangers;
