//! The list of codes.

use crate::{Arguments, SharedCode, SpecError};

/// Every family of codes, in display order.
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

/// A family of codes: the form of its specs, and their parser.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The name before the parentheses, in lower case.
    pub name: &'static str,
    /// The form of a spec.
    pub usage: &'static str,
    /// What it is, in one line.
    pub summary: &'static str,
    /// When to choose it: a sentence or two for docs/codes.md.
    pub advice: &'static str,
    /// The specs that `make codes` measures, in canonical form: sizes at which codes are usually compared, about ten
    /// data blocks and four parity blocks, and small ones.
    pub measured: &'static [&'static str],
    /// Makes the code from the arguments in parentheses.
    pub build: fn(&Arguments<'_>) -> Result<SharedCode, SpecError>,
}
