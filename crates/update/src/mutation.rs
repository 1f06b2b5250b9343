//! The rules of the protocol that a test can drop, to see that the model finds what they prevent. Outside tests they always hold.

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A participant obeys no term below its own.
    OldTerm,
    /// A participant obeys no life of a leader before the one that it has answered.
    OldIncarnation,
    /// A leader acknowledges when all participants have answered.
    AllAnswer,
    /// Deltas must be equal everywhere.
    EqualDeltas,
    /// Nodes answer once their journal is durable.
    DurableFirst,
    /// A leader reports an abort to the client when every participant refuses the update.
    AllRefuse,
    /// What a participant refuses counts as not held.
    RefusedIsMissing,
    /// A restarted leader decides when all blocks have reported.
    AllReport,
    /// A seal uses the outcomes that an earlier one recorded.
    RecordedStands,
    /// A record whose term is below its node's is the seal's alone to decide.
    SealDecides,
    /// A watermark decides only records of its own term.
    WatermarkOfTerm,
    /// A watermark passes an aborted update only when every participant refuses it.
    WatermarkAfterRefusals,
    /// What is held below a reported watermark is committed.
    BelowWatermark,
    /// A trimmed record is below the watermark.
    TrimBelowWatermark,
    /// A number is not given twice.
    NumbersFollowReports,
    /// A number that is refused is known to be used up only to the node that gave it, or by that node's watermark.
    NumberOfOwner,
    /// What the pages contain says nothing about what others refuse.
    AppliedIsNoWatermark,
    /// The numbers that a batch covers are in use, even before the sidecar names them.
    BatchIsUsed,
    /// A block that joins changes and serves nothing before it is rebuilt.
    JoinersWait,
    /// A block that joins is rebuilt at a vector above which it holds everything, and up to which it knows everything.
    RebuiltWhereKnown,
    /// A record over several blocks is held only with the locks that their nodes still give.
    LockBeforeHold,
    /// Overlapping updates wait for each other.
    RangeLocks,
    /// A restart copies after-images and adds no delta twice.
    RedoCopies,
    /// A node applies and serves only what it knows to be committed.
    KnownBeforeUse,
    /// A block serves a version only if it knows the outcomes of all updates up to it.
    VersionKnown,
    /// A block serves an earlier version only if it has all deltas to take out.
    VersionKept,
    /// A repeated id gets the outcome of the first request.
    RepeatedId,
    /// Forgotten ids are expired.
    Expired,
    /// A node without a lease asks whether its term still holds before it serves a read.
    ConfirmTerm,
    /// A confirmation counts for the life that asked.
    ConfirmLife,
    /// A seal waits for the end of the leases of absent nodes.
    WaitForLease,
    /// A seal waits for all but the absent nodes.
    SealHearsAll,
    /// A seal hears of the numbers that were given to updates of which no record tells.
    SealHearsNumbers,
    /// Blocks that are opened again know how earlier updates ended.
    OutcomesAtOpening,
}

#[cfg(test)]
thread_local! {
    static DROPPED: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Drops a rule for the tests of this thread.
#[cfg(test)]
pub(crate) fn drop_rule(rule: Option<Rule>) {
    DROPPED.set(rule);
}

/// Whether a test has dropped the rule.
#[cfg(test)]
pub(crate) fn dropped(rule: Rule) -> bool {
    DROPPED.get() == Some(rule)
}

/// No rule is dropped outside tests.
#[cfg(not(test))]
pub(crate) const fn dropped(_: Rule) -> bool {
    false
}
