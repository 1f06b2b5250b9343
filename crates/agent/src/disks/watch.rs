//! Caches the figures of disks. A call to a disk that hangs does not return, so no other part of the node calls a disk for its figures.
//!
//! Each disk is asked for its figures in the background, once at a time. One that does not answer is *silent* after some seconds: no block is
//! looked for on it, so blocks on the other disks are served. After `disk_timeout_ms` it counts as failed, until it answers again.

use super::{Disk, Disks, Standing};
use futures::future::join_all;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};
use tokio::time::{Instant, timeout};
use weft_proto::{DiskMode, v1};
use weft_types::{Error, Result};

/// A disk that takes longer for its figures, which are in memory, hangs.
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// What is known of a disk.
#[derive(Default)]
pub(super) struct Watch(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// Its figures when it last answered.
    last: Option<Figures>,
    /// Since when it has been asked, if it has not answered.
    asked_at: Option<Instant>,
    /// While it is being opened: how far that was, and since when it has been no further.
    progress: Option<(u64, Instant)>,
}

#[derive(Clone)]
pub(super) struct Figures {
    report: v1::Disk,
    fsyncs: u64,
}

impl Disks {
    /// Asks all disks for their figures that do not owe an answer, and waits for this long at most.
    pub(crate) async fn look(self: &Arc<Self>, mode: DiskMode, patience: Duration) {
        let ask = |number: usize| {
            let disks = Arc::clone(self);
            // The task continues after the caller has stopped waiting.
            tokio::spawn(async move {
                let asked = Arc::clone(&disks);
                let figures = mode.run_boxed(move || Ok(asked.0[number].figures())).await;
                disks.0[number].watch.answered(figures.ok());
            })
        };
        let asked: Vec<_> = (0..self.0.len()).filter(|number| self.0[*number].watch.begins()).map(ask).collect();
        let _late = timeout(patience, join_all(asked)).await;
    }

    /// The disks as reported to the coordinator, as of their last answers. A disk that was never opened has no id and is left out. One that
    /// has not answered for `timeout` counts as failed.
    pub(crate) fn report(&self, timeout: Duration) -> Vec<v1::Disk> {
        self.0.iter().filter(|disk| !disk.id().is_empty()).map(|disk| disk.known(timeout)).collect()
    }

    /// The same without disks that are not this node's.
    pub(crate) fn report_own(&self, timeout: Duration) -> Vec<v1::Disk> {
        let own = self.0.iter().filter(|disk| !disk.id().is_empty() && *disk.standing() == Standing::Ours);
        own.map(|disk| disk.known(timeout)).collect()
    }

    /// The number of fsyncs on all disks since they were opened, as of their last answers.
    pub(crate) fn fsyncs(&self) -> u64 {
        self.0.iter().filter_map(|disk| disk.watch.lock().last.as_ref().map(|last| last.fsyncs)).sum()
    }
}

impl Disk {
    /// Asks the disk.
    pub(super) fn figures(&self) -> Figures {
        Figures { report: self.report(), fsyncs: self.store().map_or(0, |store| store.fsyncs()) }
    }

    fn known(&self, timeout: Duration) -> v1::Disk {
        let is_opening = self.open.get().is_none();
        let (last, silent, stuck) = {
            let mut seen = self.watch.lock();
            let silent = seen.silent_for().unwrap_or_default();
            // To open a disk with many blocks takes long, and is no failure while it goes on.
            let stuck = if is_opening { seen.no_further_for(self.progress.load(Ordering::Relaxed)) } else { silent };
            (seen.last.clone(), silent, stuck)
        };
        // One that cannot join for long is no better than a failed one: its blocks are rebuilt.
        let joins_for = match &*self.standing() {
            Standing::Joining(since) => since.elapsed(),
            _ => Duration::ZERO,
        };
        let stuck = stuck.max(joins_for);
        let (id, path) = (self.id().to_owned(), self.path.display().to_string());
        let unknown = v1::Disk { id, path, failed: !is_opening, ..v1::Disk::default() };
        let report = last.map_or(unknown, |last| last.report);
        let silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
        let (failed, bytes_per_s) = (report.failed || stuck >= timeout, self.rate.bytes_per_s());
        let copy = self.is_copy.load(Ordering::Relaxed);
        v1::Disk { failed, silent_ms, bytes_per_s, copy, ..report }
    }

    /// Fails for a disk that does not answer, before it is asked for anything else.
    pub(super) fn require_answers(&self) -> Result<()> {
        match self.watch.lock().silent_for() {
            None => Ok(()),
            Some(silent) => {
                Err(self.named(Error::replan(format!("it has not answered for {} s and may hang", silent.as_secs()))))
            }
        }
    }
}

impl Watch {
    /// Whether the disk is asked now: not while it owes an answer.
    pub(super) fn begins(&self) -> bool {
        let mut seen = self.lock();
        let begins = seen.asked_at.is_none();
        seen.asked_at.get_or_insert_with(Instant::now);
        begins
    }

    /// The disk has answered; `None`: the question was given up.
    pub(super) fn answered(&self, figures: Option<Figures>) {
        let mut seen = self.lock();
        seen.asked_at = None;
        if figures.is_some() {
            seen.last = figures;
        }
    }

    /// A poisoned lock is safe to use: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// How long the opening of the disk has been no further than `progress`.
    fn no_further_for(&mut self, progress: u64) -> Duration {
        let begun = self.asked_at.unwrap_or_else(Instant::now);
        let (before, since) = self.progress.unwrap_or((0, begun));
        let since = if progress > before { Instant::now() } else { since };
        self.progress = Some((progress, since));
        since.elapsed()
    }

    /// How long it has not answered, if that is long.
    fn silent_for(&self) -> Option<Duration> {
        self.asked_at.map(|at| at.elapsed()).filter(|silent| *silent >= SILENT_AFTER)
    }
}
