//! The rules that a test can break, to see that the crash test finds what they prevent. Outside tests they always hold.

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Entries count as durable when the journal is synced.
    SyncFirst,
    /// A block's first entry is durable before the block speaks.
    OpenedFirst,
    /// After-images are durable before pages are written.
    ImagesFirst,
    /// The pages of a batch are written by one patch.
    OnePatch,
    /// A restart copies after-images and adds no delta again.
    RedoCopies,
    /// A record is released only when a restart does not need it.
    ReleaseWhenNeedless,
    /// A delta is computed when its range is locked, and not when the request arrives.
    DeltaUnderLock,
    /// The content from which a delta is computed, and that is read, includes what is not applied.
    Overlay,
    /// A participant reports the CRCs of the deltas that it received, and not those that the message names.
    ReceivedCrcs,
    /// A parity multiplies each delta with its coefficient.
    Coefficients,
    /// A block that is opened knows the outcomes of earlier terms.
    OutcomesAtOpening,
    /// A block is opened only under a term above the one that it contains.
    TermAbove,
    /// A read of several blocks ends when two rounds have found the same.
    #[cfg(test)]
    TwoRounds,
}

#[cfg(test)]
thread_local! {
    static DROPPED: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule for the tests of this thread.
#[cfg(test)]
pub(crate) fn drop_rule(rule: Option<Rule>) {
    DROPPED.set(rule);
}

/// Whether a test has broken the rule.
#[cfg(test)]
pub(crate) fn dropped(rule: Rule) -> bool {
    DROPPED.get() == Some(rule)
}

/// No rule is broken outside tests.
#[cfg(not(test))]
pub(crate) const fn dropped(_: Rule) -> bool {
    false
}
