//! The protocol versions that a process speaks.

use crate::v1;
use weft_types::{Error, Result};

/// The versions that this build speaks. Version 2 introduced tasks of version 2 (temporaries); version 3 those of
/// version 3 (class and priority, and the stripe's updates); version 4 routes of updates in place; version 5 reads of open blocks, and
/// blocks that grow.
pub const PROTOCOL: ProtocolRange = ProtocolRange { oldest: 3, newest: 5 };

/// The version from which on agents pass the deltas of updates in place on.
pub const ROUTES_SINCE: u16 = 4;

/// The version from which on agents serve reads of data blocks that are open for updates.
pub const OPEN_READS_SINCE: u16 = 5;
/// The version from which on agents let blocks grow when they open them for updates.
pub const GROWTH_SINCE: u16 = 5;

/// A range of protocol versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolRange {
    /// The oldest version.
    pub oldest: u16,
    /// The newest version.
    pub newest: u16,
}

impl ProtocolRange {
    /// The newest version that both sides speak; the error names both ranges.
    pub fn agree(self, theirs: Self) -> Result<u16> {
        let version = self.newest.min(theirs.newest);
        if version == 0 || version < self.oldest.max(theirs.oldest) {
            return Err(Error::invalid(format!(
                "the peer speaks protocol {theirs}, but this side {self}: upgrade the older one"
            )));
        }
        Ok(version)
    }
}

impl std::fmt::Display for ProtocolRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "version {}", self.newest),
            false => write!(f, "versions {} to {}", self.oldest, self.newest),
        }
    }
}

impl From<ProtocolRange> for v1::ProtocolRange {
    fn from(range: ProtocolRange) -> Self {
        Self { oldest: u32::from(range.oldest), newest: u32::from(range.newest) }
    }
}

impl From<v1::ProtocolRange> for ProtocolRange {
    /// A number that does not fit becomes the highest version, which matches no range.
    fn from(range: v1::ProtocolRange) -> Self {
        let clamp = |version| u16::try_from(version).unwrap_or(u16::MAX);
        Self { oldest: clamp(range.oldest), newest: clamp(range.newest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_agree_on_the_newest_that_both_speak() {
        let range = |oldest, newest| ProtocolRange { oldest, newest };
        assert_eq!(range(1, 3).agree(range(2, 5)), Ok(3));
        assert_eq!(range(1, 1).agree(range(1, 1)), Ok(1));
        let error = range(1, 1).agree(range(2, 4)).unwrap_err();
        assert!(error.message.contains("versions 2 to 4") && error.message.contains("version 1"), "{error}");
        assert!(range(0, 0).agree(range(0, 0)).is_err());
    }
}
