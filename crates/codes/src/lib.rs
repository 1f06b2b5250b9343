//! Erasure codes. A code says which linear combinations of a stripe's sub-blocks are equal; it knows no nodes.
//!
//! Each code has one file; [`parse`] reads a spec such as `rs(10,4)` or HDFS's `RS-10-4-1024k`, and [`FAMILIES`] lists
//! the codes. To add a code: write its file, add its [`Family`] to the list in `registry.rs`, and test it with
//! [`conformance::check`]; see docs/howto/add-a-code.md.

mod butterfly;
mod choose;
mod clay;
mod code;
pub mod conformance;
mod draft;
mod hash;
mod hitchhiker;
mod hsrc;
mod info;
mod losses;
mod lrc;
mod mds;
mod msr;
mod random;
mod registry;
mod replication;
mod rotated_rs;
mod rs;
mod shortened;
pub mod solve;
mod spec;
mod xor;

pub use code::{Ask, Code, HelperShare, NotRecoverable, Recipe, SharedCode, SubBlock, shares};
pub use hash::generator_hash;
pub use info::{BlockInfo, CodeInfo, info};
pub use losses::{Losses, losses};
pub use mds::combinations;
pub use registry::{FAMILIES, Family};
pub use shortened::{parse_of_plan, shortened};
pub use spec::{Arguments, SpecError, parse, parse_policy};
