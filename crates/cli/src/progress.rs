//! Progress of long work: a bar with bytes, rate and time left on a terminal; a plain line now and then when piped.

use crate::output::human_rate;
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::IsTerminal as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;
use weft_types::human_bytes;

/// Work shorter than this prints no plain line, and plain lines are this far apart.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// Counts bytes towards a total, and shows it on stderr. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<State>);

#[derive(Debug)]
struct State {
    what: String,
    done: AtomicU64,
    /// 0: not known.
    total: AtomicU64,
    started: Instant,
    shown: Shown,
}

#[derive(Debug)]
enum Shown {
    Bar(ProgressBar),
    /// When the last line was printed.
    Lines(Mutex<Instant>),
    Nothing,
}

impl Progress {
    /// Begins to show `what`: `encoding`. A total of 0 is not known yet. Shows nothing at all when `quiet`.
    pub(crate) fn new(what: &str, total: u64, quiet: bool) -> Self {
        let started = Instant::now();
        let shown = match () {
            () if quiet => Shown::Nothing,
            () if std::io::stderr().is_terminal() => Shown::Bar(bar(what, total)),
            () => Shown::Lines(Mutex::new(started)),
        };
        let (done, total) = (AtomicU64::new(0), AtomicU64::new(total));
        Self(Arc::new(State { what: what.to_owned(), done, total, started, shown }))
    }

    /// So many bytes more are done.
    pub(crate) fn add(&self, bytes: u64) {
        self.show(self.0.done.fetch_add(bytes, Relaxed).saturating_add(bytes));
    }

    /// So many bytes are done, of so many where that is known.
    pub(crate) fn set(&self, done: u64, total: Option<u64>) {
        self.0.done.store(done, Relaxed);
        if let Some(total) = total.filter(|total| self.0.total.swap(*total, Relaxed) != *total)
            && let Shown::Bar(bar) = &self.0.shown
        {
            bar.set_length(total);
            bar.set_style(style(true));
        }
        self.show(done);
    }

    /// Seconds since the start.
    pub(crate) fn seconds(&self) -> f64 {
        self.0.started.elapsed().as_secs_f64()
    }

    /// Takes the bar away; the seconds that it took.
    pub(crate) fn finish(&self) -> f64 {
        if let Shown::Bar(bar) = &self.0.shown {
            bar.finish_and_clear();
        }
        self.seconds()
    }

    fn show(&self, done: u64) {
        match &self.0.shown {
            Shown::Bar(bar) => bar.set_position(done),
            Shown::Lines(said) => {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                if said.elapsed() >= PLAIN_INTERVAL {
                    *said = Instant::now();
                    eprintln!("{}", self.line(done, self.seconds()));
                }
            }
            Shown::Nothing => {}
        }
    }

    fn line(&self, done: u64, seconds: f64) -> String {
        let total = self.0.total.load(Relaxed);
        let (what, rate) = (&self.0.what, human_rate(done, seconds));
        if total == 0 {
            return format!("{what}: {}, {rate}", human_bytes(done));
        }
        let left = total.saturating_sub(done) as f64 * seconds / done.max(1) as f64;
        format!("{what}: {} of {}, {rate}, {left:.0} s left", human_bytes(done), human_bytes(total))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            // Work that failed leaves no bar behind either.
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &str, total: u64) -> ProgressBar {
    let bar = if total == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(total) };
    bar.set_style(style(total > 0));
    bar.set_message(what.to_owned());
    bar
}

fn style(total_is_known: bool) -> ProgressStyle {
    let template = match total_is_known {
        true => "{msg:>10} [{bar:32}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left",
        false => "{msg:>10} {spinner} {binary_bytes} {binary_bytes_per_sec}",
    };
    // The templates are constants; if one were wrong, a bar without it would do.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_say_how_far_and_how_long() {
        let progress = Progress::new("sending", 0, true);
        progress.set(2 << 20, None);
        assert_eq!(progress.line(2 << 20, 2.0), "sending: 2.0 MiB, 1.0 MiB/s");
        progress.set(2 << 20, Some(8 << 20));
        assert_eq!(progress.line(2 << 20, 2.0), "sending: 2.0 MiB of 8.0 MiB, 1.0 MiB/s, 6 s left");
        progress.add(6 << 20);
        assert_eq!(progress.line(8 << 20, 4.0), "sending: 8.0 MiB of 8.0 MiB, 2.0 MiB/s, 0 s left");
    }
}
