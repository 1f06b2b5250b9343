//! Progress of long work: on a terminal, a bar with bytes, rate and remaining time; in a pipe, a plain line now and then.

use crate::output::human_rate;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use std::{
    fmt,
    io::IsTerminal as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_control::eta::{Estimate, Work};
use weft_types::{counted, human_bytes};

/// The interval between plain lines; shorter work prints none.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// Counts bytes towards a total and shows the progress on stderr. Clones share the state.
#[derive(Debug, Clone)]
pub struct Progress(Arc<State>);

#[derive(Debug)]
struct State {
    what: String,
    count: Shared,
    started: Instant,
    shown: Shown,
}

/// The finished work; shared with the progress bar.
#[derive(Debug, Clone)]
struct Shared(Arc<Mutex<Count>>);

#[derive(Debug)]
struct Count {
    done: Work,
    total: Work,
    estimate: Estimate,
    /// The least remaining seconds, if a limit is known.
    least_left: f64,
    /// The items are objects, and their number is shown.
    shows_objects: bool,
}

#[derive(Debug)]
enum Shown {
    Bar(ProgressBar),
    /// When the last line was printed.
    Lines(Mutex<Instant>),
    Nothing,
}

impl Progress {
    /// Starts to show `what`, for example `encoding`. A total of 0 bytes is unknown. Shows nothing if `quiet`.
    pub fn new(what: &str, total: u64, quiet: bool) -> Self {
        Self::start(what, Shared::new(Work::default(), Work { items: 0, bytes: total }), quiet)
    }

    /// Starts to show work on objects: their number and bytes. How many there are is unknown until [`set_total`](Self::set_total).
    pub fn of_objects(what: &str, quiet: bool) -> Self {
        let count = Shared::new(Work::default(), Work::default());
        count.lock().shows_objects = true;
        Self::start(what, count, quiet)
    }

    /// Starts to show work of items and bytes, some of which may already be finished.
    pub fn resume(what: &str, done: Work, quiet: bool) -> Self {
        Self::start(what, Shared::new(done, Work::default()), quiet)
    }

    fn start(what: &str, count: Shared, quiet: bool) -> Self {
        let (started, total) = (Instant::now(), count.lock().total);
        let shown = match () {
            () if quiet => Shown::Nothing,
            () if std::io::stderr().is_terminal() => Shown::Bar(bar(what, total.bytes, &count)),
            () => Shown::Lines(Mutex::new(started)),
        };
        Self(Arc::new(State { what: what.to_owned(), count, started, shown }))
    }

    /// Adds bytes that are done.
    pub fn add(&self, bytes: u64) {
        let done = {
            let mut count = self.0.count.lock();
            count.done.bytes = count.done.bytes.saturating_add(bytes);
            count.done
        };
        self.show(done);
    }

    /// Sets the bytes that are done, and their total if it is known.
    pub fn set(&self, done: u64, total: Option<u64>) {
        self.set_work(Work { items: 0, bytes: done }, total.map(|bytes| Work { items: 0, bytes }));
    }

    /// Sets the finished items and bytes, and their totals if known.
    pub fn set_work(&self, done: Work, total: Option<Work>) {
        {
            let mut count = self.0.count.lock();
            count.done = done;
            count.estimate.observe(done, self.seconds());
        }
        if let Some(total) = total {
            self.set_total(total);
        }
        self.show(done);
    }

    /// Sets the least remaining time, which follows from a limit; zero: no limit.
    pub fn set_least_left(&self, left: Duration) {
        self.0.count.lock().least_left = left.as_secs_f64();
    }

    /// Sets the total number of items and bytes; each is unknown if it is 0.
    pub fn set_total(&self, total: Work) {
        let before = std::mem::replace(&mut self.0.count.lock().total, total);
        if before.bytes != total.bytes
            && let Shown::Bar(bar) = &self.0.shown
        {
            bar.set_length(total.bytes);
            bar.set_style(style(total.bytes > 0, &self.0.count));
        }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.0.started.elapsed().as_secs_f64()
    }

    /// Removes the bar; returns the seconds since the start.
    pub fn finish(&self) -> f64 {
        if let Shown::Bar(bar) = &self.0.shown {
            bar.finish_and_clear();
        }
        self.seconds()
    }

    fn show(&self, done: Work) {
        match &self.0.shown {
            Shown::Bar(bar) => bar.set_position(done.bytes),
            Shown::Lines(said) => {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                if said.elapsed() >= PLAIN_INTERVAL {
                    *said = Instant::now();
                    eprintln!("{}", self.line(self.seconds()));
                }
            }
            Shown::Nothing => {}
        }
    }

    fn line(&self, seconds: f64) -> String {
        let (what, count) = (&self.0.what, self.0.count.lock());
        let done = format!("{}{}", count.objects().unwrap_or_default(), human_bytes(count.done.bytes));
        let far = match count.total.bytes {
            0 => done,
            total => format!("{done} of {}", human_bytes(total)),
        };
        let rate = count.rate(seconds).map(|rate| format!(", {rate}")).unwrap_or_default();
        let left = count.left(seconds).map(|left| format!(", {left:.0} s left")).unwrap_or_default();
        format!("{what}: {far}{rate}{left}")
    }
}

impl Shared {
    fn new(done: Work, total: Work) -> Self {
        Self(Arc::new(Mutex::new(Count { done, total, estimate: Estimate::new(done), least_left: 0.0, shows_objects: false })))
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Count {
    /// The number of finished objects, if it is shown.
    fn objects(&self) -> Option<String> {
        let objects = match self.total.items {
            0 => counted(self.done.items, "object"),
            total => format!("{} of {}", self.done.items, counted(total, "object")),
        };
        self.shows_objects.then(|| format!("{objects}, "))
    }

    /// None before any progress.
    fn rate(&self, seconds: f64) -> Option<String> {
        let moved = self.estimate.bytes(self.done);
        (moved > 0).then(|| human_rate(moved, seconds))
    }

    /// The remaining seconds, if the total is known and there has been progress.
    fn left(&self, seconds: f64) -> Option<f64> {
        let left = if self.total.bytes == 0 { None } else { self.estimate.left(self.done, self.total, seconds) };
        left.map(|left| left.max(self.least_left))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            // Failed work leaves no bar behind either.
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &str, total: u64, count: &Shared) -> ProgressBar {
    let bar = if total == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(total) };
    bar.set_style(style(total > 0, count));
    bar.set_message(what.to_owned());
    bar
}

fn style(total_is_known: bool, count: &Shared) -> ProgressStyle {
    let template = match total_is_known {
        true => "{msg:>10} [{bar:32}] {objects}{binary_bytes}/{binary_total_bytes}{rate}{left}",
        false => "{msg:>10} {spinner} {objects}{binary_bytes}{rate}",
    };
    // The templates are constants; if one were wrong, a plain bar would do.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let rate = part(count, |count, seconds| count.rate(seconds).map(|rate| format!(" {rate}")));
    let left = part(count, |count, seconds| {
        // Longer than any work takes.
        let left = Duration::try_from_secs_f64(count.left(seconds)?).unwrap_or(Duration::MAX);
        Some(format!(", {:#} left", HumanDuration(left)))
    });
    let objects = part(count, |count, _| count.objects());
    style.progress_chars("=> ").with_key("objects", objects).with_key("rate", rate).with_key("left", left)
}

/// A part of a bar that stays empty until something has moved: before that there is no rate.
fn part(
    count: &Shared,
    say: impl Fn(&Count, f64) -> Option<String> + Clone + Send + Sync + 'static,
) -> impl Fn(&ProgressState, &mut dyn fmt::Write) + Clone + Send + Sync + 'static {
    let count = count.clone();
    move |state, line| {
        let said = say(&count.lock(), state.elapsed().as_secs_f64());
        // Writing to a string cannot fail.
        let _written = line.write_str(&said.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::{ProgressDrawTarget, TermLike};
    use std::io;

    /// Remembers the last line that a bar drew.
    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            120
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, line: &str) -> io::Result<()> {
            self.write_str(line)
        }
        fn write_str(&self, line: &str) -> io::Result<()> {
            if !line.trim().is_empty() {
                line.trim().clone_into(&mut self.0.lock().unwrap());
            }
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn plain_lines_show_progress_and_remaining_time() {
        let progress = Progress::new("sending", 0, true);
        progress.set(2 << 20, None);
        assert_eq!(progress.line(2.0), "sending: 2.0 MiB, 1.0 MiB/s");
        progress.set(2 << 20, Some(8 << 20));
        assert_eq!(progress.line(2.0), "sending: 2.0 MiB of 8.0 MiB, 1.0 MiB/s, 6 s left");
        progress.add(6 << 20);
        assert_eq!(progress.line(4.0), "sending: 8.0 MiB of 8.0 MiB, 2.0 MiB/s, 0 s left");
    }

    #[test]
    fn objects_are_counted_where_they_are_the_work() {
        let progress = Progress::of_objects("removing", true);
        progress.set_work(Work { items: 1200, bytes: 2 << 20 }, None);
        assert_eq!(progress.line(2.0), "removing: 1200 objects, 2.0 MiB, 1.0 MiB/s");
        progress.set_total(Work { items: 5000, bytes: 0 });
        assert_eq!(progress.line(2.0), "removing: 1200 of 5000 objects, 2.0 MiB, 1.0 MiB/s");
        let progress = Progress::of_objects("storing", true);
        progress.set_total(Work { items: 2, bytes: 8 << 20 });
        progress.set_work(Work { items: 0, bytes: 2 << 20 }, None);
        assert_eq!(progress.line(2.0), "storing: 0 of 2 objects, 2.0 MiB of 8.0 MiB, 1.0 MiB/s, 6 s left");
    }

    #[test]
    fn no_rate_is_shown_before_anything_has_moved() {
        let progress = Progress::new("sending", 0, true);
        assert_eq!(progress.line(7.0), "sending: 0 B");
        progress.set(0, Some(8 << 20));
        assert_eq!(progress.line(7.0), "sending: 0 B of 8.0 MiB");

        for total in [0, 8 << 20] {
            let screen = Screen::default();
            let count = Shared::new(Work::default(), Work { items: 0, bytes: total });
            let bar = bar("sending", total, &count);
            bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
            bar.tick();
            let before = screen.0.lock().unwrap().clone();
            assert!(before.contains("sending") && before.ends_with(if total > 0 { "0 B/8.00 MiB" } else { "0 B" }), "{before}");
            count.lock().done.bytes = 2 << 20;
            bar.set_position(2 << 20);
            bar.tick();
            let moved = screen.0.lock().unwrap().clone();
            assert!(moved.contains("2.00 MiB") && moved.contains("/s"), "{moved}");
            assert_eq!(moved.ends_with(" left"), total > 0, "{moved}");
        }
    }
}
