//! Progress of long work: a bar with bytes, rate and time left on a terminal; a plain line now and then when piped.

use crate::output::human_rate;
use indicatif::{ProgressBar, ProgressStyle};
use std::{cell::Cell, io::IsTerminal as _, time::Duration};
use tokio::time::Instant;
use weft_types::human_bytes;

/// Work shorter than this prints no plain line, and plain lines are this far apart.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// Counts bytes towards a total, and shows it on stderr.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    total: u64,
    done: Cell<u64>,
    started: Instant,
    said: Cell<Instant>,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins to show `what`: `encoding`. Says nothing at all when `quiet`.
    pub(crate) fn new(what: &str, total: u64, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(total);
            let template = "{msg:>10} [{bar:32}] {bytes}/{total_bytes} {binary_bytes_per_sec}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_message(what.to_owned());
            bar
        });
        let now = Instant::now();
        // A quiet one is a plain one that is never due.
        let said = if quiet { now + Duration::from_secs(1 << 30) } else { now };
        Self { what: what.to_owned(), total, done: Cell::new(0), started: now, said: Cell::new(said), bar }
    }

    /// So many bytes more are done.
    pub(crate) fn add(&self, bytes: u64) {
        self.done.set(self.done.get() + bytes);
        match &self.bar {
            Some(bar) => bar.inc(bytes),
            None => self.plain(),
        }
    }

    /// Seconds since the start.
    pub(crate) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Takes the bar away; the seconds that it took.
    pub(crate) fn finish(self) -> f64 {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.seconds()
    }

    fn plain(&self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.said.get()) < PLAIN_INTERVAL {
            return;
        }
        self.said.set(now);
        let (done, seconds) = (self.done.get(), self.seconds());
        let left = (self.total.saturating_sub(done)) as f64 * seconds / done.max(1) as f64;
        let (so_far, total, rate) = (human_bytes(done), human_bytes(self.total), human_rate(done, seconds));
        eprintln!("{}: {so_far} of {total}, {rate}, {left:.0} s left", self.what);
    }
}
