//! The codes that there are.

use crate::{Arguments, SharedCode, SpecError, butterfly, clay, hitchhiker, hsrc, lrc, msr, replication, rotated_rs, rs, xor};

/// Every family of codes, in the order in which they are shown.
pub const FAMILIES: &[Family] = &[
    rs::FAMILY,
    xor::FAMILY,
    replication::FAMILY,
    lrc::FAMILY,
    rotated_rs::FAMILY,
    hitchhiker::FAMILY,
    hitchhiker::FAMILY_PLUS,
    butterfly::FAMILY,
    msr::FAMILY,
    clay::FAMILY,
    hsrc::FAMILY,
];

/// A family of codes: what its specs look like, and how they become a code.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The name before the bracket, in lower case.
    pub name: &'static str,
    /// How a spec is written.
    pub usage: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// From the arguments in the brackets to the code.
    pub build: fn(&Arguments<'_>) -> Result<SharedCode, SpecError>,
}
