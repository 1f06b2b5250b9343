//! Compares every code with an independent model, and asks it arbitrary questions.

mod golden;
mod outside;
