//! Sizes in bytes in readable form: `64MiB`, `4KiB`, `1048576`.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A number of bytes. Parses `64MiB`, `1.5GiB`, `64k` or `4096`; prints in the largest exact unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, unit)| self.0 != 0 && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for ByteSize {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a size: use, for example, 4096, 64KiB, 64MiB or 1.5GiB");
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let unit = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1u64,
            "k" | "kib" | "kb" => 1 << 10,
            "m" | "mib" | "mb" => 1 << 20,
            "g" | "gib" | "gb" => 1 << 30,
            "t" | "tib" | "tb" => 1 << 40,
            _ => return Err(wrong()),
        };
        let too_large = || format!("'{text}' is too large: at most {} bytes are possible", u64::MAX);
        if !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()) {
            let bytes = digits.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit));
            return bytes.map(Self).ok_or_else(too_large);
        }
        let number: f64 = digits.parse().map_err(|_| wrong())?;
        let bytes = number * unit as f64;
        if bytes.fract() != 0.0 || bytes > 2f64.powi(52) {
            return Err(wrong());
        }
        Ok(Self(bytes as u64))
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> Self {
        size.to_string()
    }
}

impl TryFrom<String> for ByteSize {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A size, or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum AutoSize {
    /// Chosen automatically.
    Auto,
    /// This size.
    Bytes(ByteSize),
}

impl AutoSize {
    /// A size of this many bytes.
    pub const fn bytes(bytes: u64) -> Self {
        Self::Bytes(ByteSize(bytes))
    }
}

impl fmt::Display for AutoSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(size) => size.fmt(f),
        }
    }
}

impl FromStr for AutoSize {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Bytes).map_err(|error: String| error + ", or auto") }
    }
}

impl From<AutoSize> for String {
    fn from(size: AutoSize) -> Self {
        size.to_string()
    }
}

impl TryFrom<String> for AutoSize {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A number of bytes for display: `1.4 GiB`, `300 B`.
pub fn human_bytes(bytes: u64) -> String {
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

/// A number of things for display: `1 block`, `2 blocks`. The noun takes an s.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_agree_with_their_numbers() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "block")), ["0 blocks", "1 block", "2 blocks"]);
    }

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in [("64MiB", 64 << 20), ("1024k", 1 << 20), ("1.5GiB", 3 << 29), ("4096", 4096), ("0", 0)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        assert_eq!(ByteSize(64 << 20).to_string(), "64MiB");
        assert_eq!(ByteSize(1000).to_string(), "1000");
        for text in ["auto", "64KiB", "1000"] {
            assert_eq!(text.parse::<AutoSize>().unwrap().to_string(), text);
        }
        assert!("often".parse::<AutoSize>().unwrap_err().ends_with("1.5GiB, or auto"));
        for wrong in ["", "MiB", "-1", "1.3k", "99999999999TiB", "1XB", "1.2.3k"] {
            assert!(wrong.parse::<ByteSize>().is_err(), "{wrong} was accepted as a size");
        }
        for large in ["99999999999TiB", "99999999999999999999"] {
            assert!(large.parse::<ByteSize>().unwrap_err().contains("is too large"), "{large}");
        }
    }
}
