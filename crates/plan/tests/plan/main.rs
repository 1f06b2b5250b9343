//! Plans: verification, cost, and their formats.

mod bindings;
mod checks;
mod common;
mod formats;
mod forms;
mod large;
mod patches;
mod right;
mod wrong;
