//! The progress of a put or get.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The progress of a put, get or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the object that are done. Can decrease if something has to be done again.
    pub done_bytes: u64,
    /// Total bytes of the object, if known.
    pub total_bytes: Option<u64>,
}

/// Receives progress, often; it must not block.
///
/// ```
/// # use weft_client::{Progress, ProgressFn, PutOptions};
/// let options = PutOptions {
///     progress: ProgressFn::new(|Progress { done_bytes, .. }| eprintln!("{done_bytes} bytes")),
///     ..PutOptions::default()
/// };
/// ```
#[derive(Clone, Default)]
pub struct ProgressFn(Option<Arc<dyn Fn(Progress) + Send + Sync>>);

impl ProgressFn {
    /// Calls `told` at each step.
    pub fn new(told: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(told)))
    }

    pub(crate) fn tell(&self, progress: Progress) {
        if let Some(told) = &self.0 {
            told(progress);
        }
    }
}

impl fmt::Debug for ProgressFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "ProgressFn" } else { "ProgressFn(none)" })
    }
}

/// Counts bytes and reports them.
#[derive(Clone)]
pub(crate) struct Meter {
    whole: Arc<Whole>,
    /// The bytes that this meter and its clones have counted.
    counted: Arc<AtomicU64>,
}

struct Whole {
    done_bytes: AtomicU64,
    total_bytes: Option<u64>,
    told: ProgressFn,
}

impl Meter {
    pub(crate) fn new(total_bytes: Option<u64>, told: &ProgressFn) -> Self {
        let whole = Whole { done_bytes: AtomicU64::new(0), total_bytes, told: told.clone() };
        Self { whole: Arc::new(whole), counted: Arc::default() }
    }

    /// A meter for a part of the same whole.
    pub(crate) fn part(&self) -> Self {
        Self { whole: self.whole.clone(), counted: Arc::default() }
    }

    /// The bytes that this meter has counted.
    pub(crate) fn counted(&self) -> u64 {
        self.counted.load(Relaxed)
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.counted.fetch_add(bytes, Relaxed);
        self.whole.tell(self.whole.done_bytes.fetch_add(bytes, Relaxed).wrapping_add(bytes));
    }

    /// Takes bytes back: they have to be moved again.
    pub(crate) fn take_back(&self, bytes: u64) {
        self.whole.tell(self.whole.done_bytes.fetch_sub(bytes, Relaxed).wrapping_sub(bytes));
    }
}

impl Whole {
    fn tell(&self, done_bytes: u64) {
        self.told.tell(Progress { done_bytes, total_bytes: self.total_bytes });
    }
}

/// What an attempt has added to the meter; it is taken back unless the attempt succeeds.
pub(crate) struct Counted<'a> {
    whole: &'a Meter,
    own: Meter,
    kept: bool,
}

impl<'a> Counted<'a> {
    pub(crate) fn new(whole: &'a Meter) -> Self {
        Self { whole, own: whole.part(), kept: false }
    }

    pub(crate) fn meter(&self) -> Meter {
        self.own.clone()
    }

    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.whole.take_back(self.own.counted());
        }
    }
}
