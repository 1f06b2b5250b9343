//! Compares every code with an independent model, and sends it arbitrary requests.

mod golden;
mod outside;
