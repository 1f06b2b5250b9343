//! The metadata against a model, and record by record.

mod common;
mod conversions;
mod copies;
mod early;
mod jobs;
mod model;
mod records;
