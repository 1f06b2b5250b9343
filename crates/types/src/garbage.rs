//! Why a block is garbage.

/// Why no object needs a block any more. Listings show it, so that an operator knows which space is freed and why.
///
/// Dropped copies count as removed, and blocks that a conversion replaced count as replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GarbageReason {
    /// A user has removed its object, or dropped this copy.
    Removed,
    /// A committed put or conversion has replaced its object.
    Replaced,
    /// A committed repair has replaced it.
    Repaired,
    /// It was allocated for a put, repair or conversion that did not complete.
    GivenUp,
    /// No reason is recorded, because it became garbage under an earlier version. Or it was allocated before the coordinator started, and was
    /// given up afterwards: if the metadata is an old copy, an object may need it.
    Unexpected,
}

impl GarbageReason {
    /// All reasons, the intended ones first.
    pub const ALL: [Self; 5] = [Self::Removed, Self::Replaced, Self::Repaired, Self::GivenUp, Self::Unexpected];

    /// The reason's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Replaced => "replaced",
            Self::Repaired => "repaired",
            Self::GivenUp => "given-up",
            Self::Unexpected => "unexpected",
        }
    }

    /// The reason with this name. An unknown or empty name gives `Unexpected`.
    pub fn by_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|reason| reason.name() == name).unwrap_or(Self::Unexpected)
    }

    /// Whether a user or a committed transaction intended the removal: such blocks are freed at once. Allocations that their own
    /// coordinator gave up are included: no stripe has ever contained them.
    pub const fn is_meant(self) -> bool {
        !matches!(self, Self::Unexpected)
    }
}

#[cfg(test)]
mod tests {
    use super::GarbageReason;

    #[test]
    fn a_reason_has_one_name_and_an_unknown_name_means_unexpected() {
        for reason in GarbageReason::ALL {
            assert_eq!(GarbageReason::by_name(reason.name()), reason);
        }
        assert_eq!(["", "removed ", "Removed", "drained"].map(GarbageReason::by_name), [GarbageReason::Unexpected; 4]);
        assert!(!GarbageReason::by_name("").is_meant());
    }
}
