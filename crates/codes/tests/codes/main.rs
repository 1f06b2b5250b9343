//! Every code, held to an independent model, and to questions from outside.

mod golden;
mod outside;
