//! The trace: all events in order.

use sha2::{Digest, Sha256};
use std::{
    fmt::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tracing::{Event, Subscriber, field::Field, span};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

/// All events in order: one line each, with the simulation's time and the host. Clones write to the same trace.
#[derive(Clone, Default)]
pub struct Trace {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    lines: Vec<String>,
    /// A digest of the events that are not logged.
    deeds: Sha256,
    now: Duration,
    muted: bool,
    redacted: Option<String>,
}

/// Lines that are shown before and after the first difference.
const CONTEXT_LINES: usize = 12;

impl Trace {
    /// Records an event on a host.
    pub fn event(&self, host: &str, what: impl fmt::Display) {
        self.note(host, what, true);
    }

    fn note(&self, host: &str, what: impl fmt::Display, is_deed: bool) {
        // A host that is being crashed has no time of its own any more.
        let now = tokio::runtime::Handle::try_current().ok().and_then(|_| turmoil::sim_elapsed());
        let mut inner = self.lock();
        if inner.muted {
            return;
        }
        if let Some(now) = now {
            inner.now = now;
        }
        let now = inner.now.as_millis();
        let mut line = format!("{now:>7} {host:<12} {what}");
        if let Some(text) = &inner.redacted {
            line = line.replace(text, "DIR");
        }
        if is_deed {
            inner.deeds.update(&line);
            inner.deeds.update("\n");
        }
        inner.lines.push(line);
    }

    /// Replaces `text` by `DIR` in all later lines: a directory whose name differs between runs.
    pub fn redact(&self, text: String) {
        self.lock().redacted = Some(text);
    }

    /// Runs `work` without recording its events.
    pub fn muted<T>(&self, work: impl FnOnce() -> T) -> T {
        self.lock().muted = true;
        let done = work();
        self.lock().muted = false;
        done
    }

    /// Sets the time of events that happen outside of all hosts.
    pub fn set_now(&self, now: Duration) {
        self.lock().now = now;
    }

    /// Runs `work` and records all that weft logs meanwhile.
    pub fn capture<T>(&self, work: impl FnOnce() -> T) -> T {
        let targets = Targets::new().with_target("turmoil", LevelFilter::INFO).with_targets(
            ["weft_agent", "weft_client", "weft_coordinator", "weft_meta", "weft_proto", "weft_store"]
                .map(|it| (it, LevelFilter::DEBUG)),
        );
        let layer = Logged { trace: self.clone() }.with_filter(targets);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work)
    }

    /// The whole trace as one number, in hex.
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for line in &self.lock().lines {
            hash.update(line);
            hash.update("\n");
        }
        short_hex(hash)
    }

    /// The hash without log lines: it does not change if only the wording of the log changes.
    pub fn hash_without_log(&self) -> String {
        short_hex(self.lock().deeds.clone())
    }

    /// The number of lines.
    pub fn len(&self) -> usize {
        self.lock().lines.len()
    }

    /// Whether no event is recorded yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether some line contains `text`.
    pub fn contains(&self, text: &str) -> bool {
        self.lock().lines.iter().any(|line| line.contains(text))
    }

    /// All lines as text.
    pub fn text(&self) -> String {
        self.lock().lines.join("\n")
    }

    /// The last lines as text.
    pub fn tail(&self, lines_max: usize) -> String {
        let inner = self.lock();
        inner.lines[inner.lines.len().saturating_sub(lines_max)..].join("\n")
    }

    /// The first difference between two traces, as text; `None` if they are equal.
    pub fn difference(&self, other: &Trace) -> Option<String> {
        let (ours, theirs) = (self.lock().lines.clone(), other.lock().lines.clone());
        let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
        let show = |lines: &[String]| {
            let end = (at + CONTEXT_LINES).min(lines.len());
            lines.get(at.saturating_sub(CONTEXT_LINES)..end).unwrap_or_default().join("\n")
        };
        Some(format!("line {} differs; in the first run:\n{}\nin the second:\n{}", at + 1, show(&ours), show(&theirs)))
    }

    /// A poisoned lock is safe to use: a panic elsewhere does not damage the lines.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn short_hex(hash: Sha256) -> String {
    hash.finalize().iter().take(8).fold(String::new(), |mut hex, byte| {
        let _infallible = write!(hex, "{byte:02x}");
        hex
    })
}

/// Records log events. The simulation runs each host in a span, which names the event's host.
struct Logged {
    trace: Trace,
}

struct HostName(String);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Logged {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if attributes.metadata().target() == "turmoil"
            && let Some(span) = context.span(id)
        {
            let mut text = Text::default();
            attributes.record(&mut text);
            span.extensions_mut().insert(HostName(text.of("name")));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        if metadata.target() == "turmoil" {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let host = context
            .event_scope(event)
            .into_iter()
            .flatten()
            .find_map(|span| Some(span.extensions().get::<HostName>()?.0.clone()));
        let (level, message) = (metadata.level(), text.of("message"));
        let fields: String =
            text.0.iter().filter(|(name, _)| *name != "message").map(|(name, value)| format!(" {name}={value}")).collect();
        self.trace.note(host.as_deref().unwrap_or("-"), format_args!("{level} {message}{fields}"), false);
    }
}

/// An event's or span's fields.
#[derive(Default)]
struct Text(Vec<(&'static str, String)>);

impl Text {
    fn of(&self, name: &str) -> String {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }
}

impl tracing::field::Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_string()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}
