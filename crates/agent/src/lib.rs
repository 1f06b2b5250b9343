//! The daemon on a node: sockets, timers and disks around the engine.
