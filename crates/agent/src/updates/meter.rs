//! What is counted of updates, for metrics and for nothing else.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use weft_proto::{metrics::Histogram, updates::ReadRefusal};
use weft_update::Told;

/// The counts of a node.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    answers: [AtomicU64; Answer::ALL.len()],
    times: OnceLock<Histogram>,
    dropped: AtomicU64,
    reads: [AtomicU64; ReadEnd::ALL.len()],
}

/// What came of a read of an open block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    Served,
    Unchanged,
    Closed,
    /// Its bytes there are damaged.
    Unreadable,
    Undecided,
    /// The agent has too much to do, or the read is not valid.
    Refused,
}

/// What a client was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Committed,
    Aborted,
    Expired,
    Refused,
    /// The block was lost or is fenced.
    Unknown,
}

/// Upper ends of the buckets for the times of updates, seconds.
const BUCKETS: [f64; 14] = [0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0];

impl Answer {
    pub(crate) const ALL: [Self; 5] = [Self::Committed, Self::Aborted, Self::Expired, Self::Refused, Self::Unknown];

    pub(crate) fn of(told: Option<Told>) -> Self {
        match told {
            Some(Told::Committed) => Self::Committed,
            Some(Told::Aborted) => Self::Aborted,
            Some(Told::Expired) => Self::Expired,
            Some(Told::NotRun(_)) => Self::Refused,
            None => Self::Unknown,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Aborted => "aborted",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

impl ReadEnd {
    pub(crate) const ALL: [Self; 6] =
        [Self::Served, Self::Unchanged, Self::Closed, Self::Unreadable, Self::Undecided, Self::Refused];

    pub(crate) fn of(refusal: ReadRefusal) -> Self {
        match refusal {
            ReadRefusal::Closed => Self::Closed,
            ReadRefusal::Unreadable => Self::Unreadable,
            ReadRefusal::Undecided => Self::Undecided,
            ReadRefusal::Busy | ReadRefusal::Invalid => Self::Refused,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Unchanged => "unchanged",
            Self::Closed => "closed",
            Self::Unreadable => "unreadable",
            Self::Undecided => "undecided",
            Self::Refused => "refused",
        }
    }
}

impl Meter {
    /// Counts a read of an open block.
    pub(crate) fn read(&self, end: ReadEnd) {
        self.reads[end as usize].fetch_add(1, Relaxed);
    }

    /// How many reads of open blocks ended like this.
    pub(crate) fn reads(&self, end: ReadEnd) -> u64 {
        self.reads[end as usize].load(Relaxed)
    }

    /// Counts an answer to a client, and the time since its request arrived.
    pub(crate) fn told(&self, told: Option<Told>, time: Duration) {
        let answer = Answer::of(told);
        self.answers[answer as usize].fetch_add(1, Relaxed);
        if answer == Answer::Committed {
            self.times().observe(time);
        }
    }

    /// How often clients were told this.
    pub(crate) fn answers(&self, answer: Answer) -> u64 {
        self.answers[answer as usize].load(Relaxed)
    }

    /// How long committed updates took.
    pub(crate) fn times(&self) -> &Histogram {
        self.times.get_or_init(|| Histogram::new(&BUCKETS))
    }

    /// A message was not delivered.
    pub(crate) fn dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    /// How many messages were not delivered.
    pub(crate) fn dropped_messages(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_bytes_are_counted_apart_from_blocks_that_are_closed() {
        let meter = Meter::default();
        for refusal in [ReadRefusal::Unreadable, ReadRefusal::Closed, ReadRefusal::Unreadable, ReadRefusal::Invalid] {
            meter.read(ReadEnd::of(refusal));
        }
        let counts = ReadEnd::ALL.map(|end| (end.name(), meter.reads(end)));
        let expected = [("served", 0), ("unchanged", 0), ("closed", 1), ("unreadable", 2), ("undecided", 0), ("refused", 1)];
        assert_eq!(counts, expected);
    }
}
