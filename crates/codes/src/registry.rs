//! The codes that there are.

use crate::{Arguments, SharedCode, SpecError};

/// Every family of codes, in the order in which they are shown.
pub const FAMILIES: &[Family] = &[
    crate::rs::FAMILY,
    crate::xor::FAMILY,
    crate::replication::FAMILY,
    crate::lrc::FAMILY,
    crate::rotated_rs::FAMILY,
    crate::hitchhiker::FAMILY,
    crate::hitchhiker::FAMILY_PLUS,
    crate::butterfly::FAMILY,
    crate::msr::FAMILY,
    crate::clay::FAMILY,
    crate::hsrc::FAMILY,
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
    /// When to choose it: a sentence or two for docs/codes.md.
    pub advice: &'static str,
    /// The specs that `make codes` measures, as the code itself spells them: sizes at which people compare codes, about ten data blocks
    /// and four parity blocks, and small ones.
    pub measured: &'static [&'static str],
    /// From the arguments in the brackets to the code.
    pub build: fn(&Arguments<'_>) -> Result<SharedCode, SpecError>,
}
