//! The engine: whole plans, with all parties in one process.

mod jobs;
mod memory;
mod plans;
mod schemes;
