//! Erasure codes. A code says which linear combinations of a stripe's sub-blocks are equal; it knows no node.
//!
//! One file a code; [`parse`] reads a spec such as `rs(10,4)` or HDFS's `RS-10-4-1024k`.

mod code;

pub use code::{Ask, Code, HelperShare, NotRecoverable, Recipe, SubBlock};
