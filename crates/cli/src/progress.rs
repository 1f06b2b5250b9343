//! Progress of long work: on a terminal, a bar with bytes, rate and remaining time; in a pipe, a plain line now and then.

use crate::output::human_rate;
use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use std::{
    fmt,
    io::IsTerminal as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;
use weft_types::human_bytes;

/// The interval between plain lines; shorter work prints none.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// Counts bytes towards a total and shows the progress on stderr. Clones share the state.
#[derive(Debug, Clone)]
pub struct Progress(Arc<State>);

#[derive(Debug)]
struct State {
    what: String,
    done: AtomicU64,
    /// 0: unknown.
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
    /// Starts to show `what`, for example `encoding`. A total of 0 is unknown. Shows nothing if `quiet`.
    pub fn new(what: &str, total: u64, quiet: bool) -> Self {
        let started = Instant::now();
        let shown = match () {
            () if quiet => Shown::Nothing,
            () if std::io::stderr().is_terminal() => Shown::Bar(bar(what, total)),
            () => Shown::Lines(Mutex::new(started)),
        };
        let (done, total) = (AtomicU64::new(0), AtomicU64::new(total));
        Self(Arc::new(State { what: what.to_owned(), done, total, started, shown }))
    }

    /// Adds bytes that are done.
    pub fn add(&self, bytes: u64) {
        self.show(self.0.done.fetch_add(bytes, Relaxed).saturating_add(bytes));
    }

    /// Sets the bytes that are done, and their total if it is known.
    pub fn set(&self, done: u64, total: Option<u64>) {
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
        let what = &self.0.what;
        let far = match total {
            0 => human_bytes(done).to_string(),
            _ => format!("{} of {}", human_bytes(done), human_bytes(total)),
        };
        // No rate is known yet.
        if done == 0 {
            return format!("{what}: {far}");
        }
        let rate = human_rate(done, seconds);
        if total == 0 {
            return format!("{what}: {far}, {rate}");
        }
        let left = total.saturating_sub(done) as f64 * seconds / done as f64;
        format!("{what}: {far}, {rate}, {left:.0} s left")
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

fn bar(what: &str, total: u64) -> ProgressBar {
    let bar = if total == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(total) };
    bar.set_style(style(total > 0));
    bar.set_message(what.to_owned());
    bar
}

fn style(total_is_known: bool) -> ProgressStyle {
    let template = match total_is_known {
        true => "{msg:>10} [{bar:32}] {binary_bytes}/{binary_total_bytes}{rate}{left}",
        false => "{msg:>10} {spinner} {binary_bytes}{rate}",
    };
    // The templates are constants; if one were wrong, a plain bar would do.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let rate = once_moved(|state| format!(" {}/s", BinaryBytes(state.per_sec() as u64)));
    let left = once_moved(|state| format!(", {:#} left", HumanDuration(state.eta())));
    style.progress_chars("=> ").with_key("rate", rate).with_key("left", left)
}

/// A part of a bar that stays empty until something has moved: before that there is no rate.
fn once_moved(
    say: impl Fn(&ProgressState) -> String + Clone + Send + Sync + 'static,
) -> impl Fn(&ProgressState, &mut dyn fmt::Write) + Clone + Send + Sync + 'static {
    move |state, line| {
        if state.pos() > 0 {
            // Writing to a string cannot fail.
            let _written = line.write_str(&say(state));
        }
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
    fn plain_lines_say_how_far_and_how_long() {
        let progress = Progress::new("sending", 0, true);
        progress.set(2 << 20, None);
        assert_eq!(progress.line(2 << 20, 2.0), "sending: 2.0 MiB, 1.0 MiB/s");
        progress.set(2 << 20, Some(8 << 20));
        assert_eq!(progress.line(2 << 20, 2.0), "sending: 2.0 MiB of 8.0 MiB, 1.0 MiB/s, 6 s left");
        progress.add(6 << 20);
        assert_eq!(progress.line(8 << 20, 4.0), "sending: 8.0 MiB of 8.0 MiB, 2.0 MiB/s, 0 s left");
    }

    #[test]
    fn no_rate_is_shown_before_anything_has_moved() {
        let progress = Progress::new("sending", 0, true);
        assert_eq!(progress.line(0, 7.0), "sending: 0 B");
        progress.set(0, Some(8 << 20));
        assert_eq!(progress.line(0, 7.0), "sending: 0 B of 8.0 MiB");

        for total in [0, 8 << 20] {
            let screen = Screen::default();
            let bar = bar("sending", total);
            bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
            bar.tick();
            let before = screen.0.lock().unwrap().clone();
            assert!(before.contains("sending") && before.ends_with(if total > 0 { "0 B/8.00 MiB" } else { "0 B" }), "{before}");
            bar.set_position(2 << 20);
            bar.tick();
            let moved = screen.0.lock().unwrap().clone();
            assert!(moved.contains("2.00 MiB") && moved.contains("/s"), "{moved}");
            assert_eq!(moved.ends_with(" left"), total > 0, "{moved}");
        }
    }
}
