//! What a write has changed so far.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use weft_types::Span;

/// What a write has changed so far. Clones share it, so it tells that also when the write failed or was dropped.
///
/// ```
/// # use weft_client::{WriteLog, WriteOptions};
/// let log = WriteLog::default();
/// let options = WriteOptions { log: log.clone(), ..WriteOptions::default() };
/// assert_eq!(log.to_string(), "nothing was written");
/// ```
#[derive(Clone, Default)]
pub struct WriteLog(Arc<Mutex<Ranges>>);

/// Bytes of the object; each list is in order and without overlaps.
#[derive(Default)]
struct Ranges {
    written: Vec<Span>,
    in_doubt: Vec<Span>,
}

/// The most ranges that are listed.
const SHOWN_MAX: usize = 8;

impl WriteLog {
    /// The bytes of the object that are written durably: ranges in order.
    pub fn written(&self) -> Vec<Span> {
        self.lock().written.clone()
    }

    /// The bytes of the object of which it is not known whether they were written, or will be: ranges in order. Each update among them is
    /// written as a whole or not at all.
    pub fn in_doubt(&self) -> Vec<Span> {
        self.lock().in_doubt.clone()
    }

    /// An update may be run from now on.
    pub(crate) fn begun(&self, bytes: Span) {
        add(&mut self.lock().in_doubt, bytes);
    }

    /// It was not run, and will not be.
    pub(crate) fn not_run(&self, bytes: Span) {
        remove(&mut self.lock().in_doubt, bytes);
    }

    /// It is durable.
    pub(crate) fn done(&self, bytes: Span) {
        let mut ranges = self.lock();
        remove(&mut ranges.in_doubt, bytes);
        add(&mut ranges.written, bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(ranges: &mut Vec<Span>, span: Span) {
    ranges.push(span);
    *ranges = Span::normalize(std::mem::take(ranges));
}

fn remove(ranges: &mut Vec<Span>, span: Span) {
    *ranges = ranges.iter().flat_map(|range| range.subtract(&[span])).collect();
}

/// `bytes 0-99, 200-299`, both ends included, as `weft get --range` takes them.
fn text(ranges: &[Span]) -> String {
    let shown: Vec<String> =
        ranges.iter().take(SHOWN_MAX).map(|range| format!("{}-{}", range.start, range.end.saturating_sub(1))).collect();
    let more = ranges.len().saturating_sub(SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more ranges") } else { String::new() };
    format!("bytes {}{more}", shown.join(", "))
}

impl fmt::Display for WriteLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ranges { written, in_doubt } = &*self.lock();
        match &written[..] {
            [] if in_doubt.is_empty() => return f.write_str("nothing was written"),
            [] => {}
            written => write!(f, "{} are written", text(written))?,
        }
        let and = if written.is_empty() { "" } else { "; " };
        match &in_doubt[..] {
            [] => Ok(()),
            in_doubt => write!(f, "{and}it is unknown whether {} were written", text(in_doubt)),
        }
    }
}

impl fmt::Debug for WriteLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteLog({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_tells_what_is_written_and_what_may_be() {
        let log = WriteLog::default();
        log.begun(Span::new(0, 100));
        log.begun(Span::new(100, 200));
        log.begun(Span::new(200, 300));
        assert_eq!(log.to_string(), "it is unknown whether bytes 0-299 were written");
        log.done(Span::new(0, 100));
        log.not_run(Span::new(100, 200));
        assert_eq!((log.written(), log.in_doubt()), (vec![Span::new(0, 100)], vec![Span::new(200, 300)]));
        assert_eq!(log.to_string(), "bytes 0-99 are written; it is unknown whether bytes 200-299 were written");
        log.done(Span::new(200, 300));
        assert_eq!(log.to_string(), "bytes 0-99, 200-299 are written");
        log.done(Span::new(100, 200));
        assert_eq!(log.to_string(), "bytes 0-299 are written");
    }

    #[test]
    fn a_long_list_is_cut() {
        let log = WriteLog::default();
        (0..10).for_each(|at| log.done(Span::new(at * 10, at * 10 + 5)));
        assert!(log.to_string().ends_with("70-74 and 2 more ranges are written"), "{log}");
    }
}
