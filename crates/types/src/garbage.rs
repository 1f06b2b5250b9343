//! Why a block is garbage.

/// Why no object needs a block any more. A listing tells it, so that a person knows which space comes back and why.
///
/// Copies that were dropped count as removed, and what a conversion has taken the place of as replaced: a listing needs no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GarbageReason {
    /// A person has removed its object, or dropped this copy.
    Removed,
    /// A committed put or conversion has taken the place of its object.
    Replaced,
    /// A committed repair has taken its place.
    Repaired,
    /// It was allocated, and what it was for did not come to its end.
    GivenUp,
    /// No reason was written down: it became garbage under an earlier version.
    Unexpected,
}

impl GarbageReason {
    /// All of them: what is meant comes first.
    pub const ALL: [Self; 5] = [Self::Removed, Self::Replaced, Self::Repaired, Self::GivenUp, Self::Unexpected];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Replaced => "replaced",
            Self::Repaired => "repaired",
            Self::GivenUp => "given-up",
            Self::Unexpected => "unexpected",
        }
    }

    /// The reason of that name. A name that is not known, and none, is no reason that anybody could rely on.
    pub fn by_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|reason| reason.name() == name).unwrap_or(Self::Unexpected)
    }

    /// Whether a person or a committed transaction wanted it: such blocks are freed at once. So are allocations that were given up: they
    /// are in no stripe and never were, their generations are never given again, and the transaction that gave them up said so.
    pub const fn is_meant(self) -> bool {
        !matches!(self, Self::Unexpected)
    }
}

#[cfg(test)]
mod tests {
    use super::GarbageReason;

    #[test]
    fn a_reason_has_one_name_and_what_is_not_known_is_unexpected() {
        for reason in GarbageReason::ALL {
            assert_eq!(GarbageReason::by_name(reason.name()), reason);
        }
        assert_eq!(["", "removed ", "Removed", "drained"].map(GarbageReason::by_name), [GarbageReason::Unexpected; 4]);
        assert!(!GarbageReason::by_name("").is_meant());
    }
}
