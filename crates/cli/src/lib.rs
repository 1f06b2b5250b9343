//! Code that the binaries `weft` and `weft-lab` share: parsing command lines, finding, starting and connecting to clusters, and printing
//! results and errors.
//!
//! It changes together with these binaries. A program that stores data embeds `weft-client` instead.

pub mod beside;
pub mod duration;
pub mod exit;
pub mod files;
pub mod interrupt;
pub mod local;
pub mod matrix;
pub mod names;
pub mod output;
pub mod progress;
pub mod rate;
pub mod seed;
pub mod session;
pub mod settings;
pub mod shell;
pub mod table;
pub mod target;
pub mod up;
pub mod utc;
