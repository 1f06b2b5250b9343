//! Runs one party's share of a plan; no sockets, no clock of its own.
