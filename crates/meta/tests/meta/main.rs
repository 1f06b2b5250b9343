//! The metadata against a model, and record by record.

mod common;
mod copies;
mod jobs;
mod model;
mod records;
