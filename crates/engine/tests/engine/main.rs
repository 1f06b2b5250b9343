//! The engine: whole plans, all their parties in one process.

mod jobs;
mod memory;
mod plans;
mod schemes;
