//! The metadata against a model, and record by record.

mod common;
mod model;
mod records;
