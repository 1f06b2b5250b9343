//! Plans: what is proved right of them, what they cost, and how they are told.

mod bindings;
mod common;
mod formats;
mod forms;
mod large;
mod right;
mod wrong;
