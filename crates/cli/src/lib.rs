//! What the binaries `weft` and `weft-lab` share: how a command line is read, how a cluster is found, started and connected to, and
//! how results and errors are printed.
//!
//! It has what these two need and changes with them. A program that stores data embeds `weft-client` instead.

pub mod beside;
pub mod exit;
pub mod files;
pub mod interrupt;
pub mod local;
pub mod names;
pub mod output;
pub mod progress;
pub mod seed;
pub mod session;
pub mod settings;
pub mod shell;
pub mod table;
pub mod target;
pub mod up;
