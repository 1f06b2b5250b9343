//! Output of commands: text for users, JSON for programs, both from the same result.

use serde::Serialize;
use std::io::{ErrorKind, Write as _};
use weft_types::{Error, Result};

/// Where a command's result goes.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// `--json`.
    pub json: bool,
}

impl Output {
    /// Prints a result: as JSON, or as the text that `text` makes of it.
    pub fn result<T: Serialize>(self, value: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        if self.json {
            let json = serde_json::to_string_pretty(value).map_err(Error::fatal)?;
            return print(&json);
        }
        print(&text(value))
    }

    /// Prints a result and its warnings: as text, the warnings go to stderr; as JSON, the result contains them as `warnings`.
    pub fn result_with<T: Serialize>(self, value: &T, warnings: &[String], text: impl FnOnce(&T) -> String) -> Result<()> {
        self.result(value, text)?;
        if !self.json {
            self.warn(warnings);
        }
        Ok(())
    }

    /// Prints warnings to stderr, beside a result that cannot contain them.
    pub fn warn(self, warnings: &[String]) {
        match (self.json, warnings) {
            (_, []) => {}
            (true, _) => eprintln!("{}", serde_json::json!({ "warnings": warnings })),
            (false, _) => warnings.iter().for_each(|warning| eprintln!("warning: {warning}")),
        }
    }
}

/// Prints text to stdout with a final line feed. A closed pipe (`weft … | head`) is not an error.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.trim_end_matches('\n').as_bytes()).and_then(|()| stdout.write_all(b"\n"));
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::fatal(format!("cannot write to stdout: {error}"))),
        _ => Ok(()),
    }
}

/// A rate as text: `412.0 MiB/s`.
pub fn human_rate(bytes: u64, seconds: f64) -> String {
    if seconds <= 0.0 {
        return "-".to_owned();
    }
    format!("{}/s", weft_types::human_bytes((bytes as f64 / seconds) as u64))
}
