//! The metadata against a model, against kills, and record by record.

mod common;
mod crash;
mod model;
mod records;
