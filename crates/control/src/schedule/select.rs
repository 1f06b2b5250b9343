//! What each way to select nodes means for a job: who assigns the places, and what starts next.

use weft_types::HelperSelect;

/// How places are assigned to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assigning {
    /// By maximum flow, over all repairs of a batch.
    Balanced,
    /// At random.
    Random,
    /// The least recently used, one time for all nodes of a stripe.
    LruByStripe,
    /// Not by the schedule: each rebuild selects its nodes when it starts.
    Alone,
}

/// Which waiting repair starts next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starting {
    /// One that has its share of all its links, those with most left to carry first.
    ByShares,
    /// One that has its share of all its links, those that have carried least first.
    Polling,
    /// The first one whose links have room for its streams, at most as many at a time as the job allows.
    InOrder,
    /// The first one, when no other runs.
    OneByOne,
}

impl Assigning {
    /// Of a way to select.
    pub const fn of(select: HelperSelect) -> Self {
        match select {
            HelperSelect::Boost | HelperSelect::Balance | HelperSelect::Sequential | HelperSelect::Polling => Self::Balanced,
            HelperSelect::Schedule | HelperSelect::Random => Self::Random,
            HelperSelect::LruStripe => Self::LruByStripe,
            HelperSelect::Lru | HelperSelect::Index => Self::Alone,
        }
    }
}

impl Starting {
    /// Of a way to select.
    pub const fn of(select: HelperSelect) -> Self {
        match select {
            HelperSelect::Boost | HelperSelect::Schedule => Self::ByShares,
            HelperSelect::Polling => Self::Polling,
            HelperSelect::Sequential => Self::OneByOne,
            HelperSelect::Balance | HelperSelect::Random | HelperSelect::LruStripe | HelperSelect::Lru | HelperSelect::Index => {
                Self::InOrder
            }
        }
    }

    /// Whether the schedule decides how many repairs run at a time.
    pub const fn by_links(self) -> bool {
        matches!(self, Self::ByShares | Self::Polling)
    }
}
