//! What the binary does by itself: on plain files, with saved plans, and with the binary beside it.

mod code;
mod common;
mod handover;
mod plan;
