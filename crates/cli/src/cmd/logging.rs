//! Logging of the daemons: one line per event, whatever text peers send.

use std::{
    env::VarError,
    fmt::{self, Write as _},
    io::IsTerminal as _,
};
use tracing::Subscriber;
use tracing_subscriber::{
    field::{MakeExt as _, RecordFields},
    filter::{LevelFilter, Targets},
    fmt::{
        FormatFields, Layer, MakeWriter,
        format::{self, Format, Writer},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

/// The most bytes of one field of an event that are written; the rest is cut.
const FIELD_BYTES_MAX: usize = 4096;

/// Logs to standard error, as `WEFT_LOG` selects.
pub(super) fn start_logging() {
    let (targets, wrong) = match std::env::var("WEFT_LOG") {
        Ok(said) => match parse_log(&said) {
            Ok(targets) => (targets, None),
            Err(error) => (usual_log(), Some(format!("WEFT_LOG={said}: {error}"))),
        },
        Err(VarError::NotPresent) => (usual_log(), None),
        Err(error) => (usual_log(), Some(format!("WEFT_LOG: {error}"))),
    };
    let lines = lines(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry().with(lines).with(targets).init();
    if let Some(wrong) = wrong {
        tracing::warn!("{wrong}: info is logged instead");
    }
}

/// Writes each event as a line to `writer`.
fn lines<S, W>(writer: W) -> Layer<S, Fields, Format, W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    tracing_subscriber::fmt::layer().with_writer(writer).fmt_fields(Fields)
}

/// The default format of fields, made safe for text from peers: a field cannot end the line, move the cursor or fill the disk.
struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let plain = format::debug_fn(|writer, field, value| {
            if field.name() != "message" {
                write!(writer, "{}=", field.name())?;
            }
            write!(Escaped { writer, left: Some(FIELD_BYTES_MAX) }, "{value:?}")
        });
        plain.delimited(" ").format_fields(writer, fields)
    }
}

/// Writes text without control characters, up to a limit.
struct Escaped<'a, W> {
    writer: &'a mut W,
    /// Bytes that may still be written; none: the text was cut.
    left: Option<usize>,
}

impl<W: fmt::Write> fmt::Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            let Some(left) = self.left else { return Ok(()) };
            self.left = left.checked_sub(letter.len_utf8());
            match self.left {
                None => self.writer.write_char('…')?,
                Some(_) if is_harmless(letter) => self.writer.write_char(letter)?,
                Some(_) => write!(self.writer, "{}", letter.escape_default())?,
            }
        }
        Ok(())
    }
}

/// Whether the character is safe: no control character, line break or change of text direction.
fn is_harmless(letter: char) -> bool {
    !letter.is_control() && !matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
}

fn usual_log() -> Targets {
    Targets::new().with_default(LevelFilter::INFO)
}

/// The filter of what is logged: levels, and modules with their levels. An empty text means errors only.
fn parse_log(said: &str) -> Result<Targets, String> {
    let parts: Vec<&str> = said.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if let Some(part) = parts.iter().find(|part| part.contains('[')) {
        return Err(format!("'{part}' names a span: only levels and modules can be chosen, info or weft_coordinator=debug"));
    }
    match parts.is_empty() {
        true => Ok(Targets::new().with_default(LevelFilter::ERROR)),
        false => parts.join(",").parse::<Targets>().map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io,
        sync::{Arc, Mutex},
    };
    use tracing::Level;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(event: impl FnOnce()) -> String {
        let all = Written::default();
        let writer = all.clone();
        let lines = lines(move || writer.clone()).with_ansi(false);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), event);
        String::from_utf8(all.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn an_event_is_one_line_whatever_text_peers_send() {
        let name = "a\nERROR forged\r\u{1b}[2J\u{9b}31m\u{202e}\u{2028}b";
        let line = logged(|| tracing::warn!(node = %name, text = name, count = 7, "said {name}"));
        assert!(line.ends_with('\n') && line.trim_end().chars().all(is_harmless), "{line:?}");
        let escaped = "a\\nERROR forged\\r\\u{1b}[2J\\u{9b}31m\\u{202e}\\u{2028}b";
        assert!(line.contains(&format!("WARN {}: said {escaped} node={escaped} ", module_path!())), "{line}");
        assert!(line.trim_end().ends_with("count=7"), "{line}");
    }

    #[test]
    fn the_length_of_an_event_is_bounded() {
        let long = "ä".repeat(1_000_000);
        let line = logged(|| tracing::warn!(%long, more = 1, "{long}"));
        assert!(
            line.len() < 3 * FIELD_BYTES_MAX && line.contains("ä… ") && line.trim_end().ends_with("more=1"),
            "{}",
            line.len()
        );
        assert!(logged(|| tracing::warn!("Grüße, 東京")).contains("Grüße, 東京"));
    }

    #[test]
    fn levels_and_modules_select_what_is_logged() {
        let logs = |said: &str, target: &str, level: Level| parse_log(said).unwrap().would_enable(target, &level);
        assert!(logs("info", "weft_agent", Level::INFO) && !logs("info", "weft_agent", Level::DEBUG));
        let both = "warn, weft_coordinator=debug,";
        assert!(logs(both, "weft_coordinator::jobs", Level::DEBUG) && !logs(both, "weft_agent", Level::INFO));
        assert!(logs("weft_agent", "weft_agent", Level::TRACE) && !logs("weft_agent", "weft_client", Level::ERROR));
        assert!(logs("", "weft_agent", Level::ERROR) && !logs("", "weft_agent", Level::WARN));
        assert!(!logs("off", "weft_agent", Level::ERROR));
        for wrong in ["weft_agent=loud", "a=b=c", "weft_agent[span]=debug"] {
            let error = parse_log(wrong).unwrap_err();
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
