//! The limit on all traffic below foreground, as an operator sets it.

use crate::{ByteSize, CLASS_RATE_MIN};
use std::{fmt, str::FromStr};

/// The most that repairs, moves, conversions and scrubs together may use of each disk, uplink and downlink of every node. The text forms
/// are those of the command line and of the metadata: `none`, `100MiB/s`, `50%`, `until 1700000000000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RepairLimit {
    /// No limit.
    #[default]
    None,
    /// Bytes a second, [`CLASS_RATE_MIN`] or more.
    Rate(ByteSize),
    /// A share of the line's measured rate, 1 to 100 percent.
    Percent(u32),
    /// The rate at which the work of now ends at this time, milliseconds since 1970. Later there is no limit.
    Until(u64),
}

/// The accepted forms, for messages.
const FORMS: &str = "write a rate (100MiB/s), a share of each line's measured rate (50%), or none";

impl RepairLimit {
    /// Refuses a rate below [`CLASS_RATE_MIN`] and a share that is not 1 to 100 percent.
    pub fn check(self) -> Result<Self, String> {
        match self {
            Self::Rate(ByteSize(0)) | Self::Percent(0) => Err(format!(
                "a limit of 0 would stop repair: the lowest are {CLASS_RATE_MIN}/s and 1%. `weft repair auto off` stops repair without a \
                 person, and `weft job pause` a job"
            )),
            Self::Rate(rate) if rate < CLASS_RATE_MIN => {
                Err(format!("{rate}/s is too low: below {CLASS_RATE_MIN}/s, a frame would take longer than a second"))
            }
            Self::Percent(percent) if percent > 100 => Err(format!("{percent}% is more than the whole: use 1% to 100%")),
            limit => Ok(limit),
        }
    }
}

impl fmt::Display for RepairLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Rate(rate) => write!(f, "{rate}/s"),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Until(at_ms) => write!(f, "until {at_ms}"),
        }
    }
}

impl FromStr for RepairLimit {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a limit: {FORMS}");
        if text == "none" {
            return Ok(Self::None);
        }
        if let Some(at_ms) = text.strip_prefix("until ") {
            return at_ms.parse().map(Self::Until).map_err(|_| wrong());
        }
        if let Some(percent) = text.strip_suffix('%') {
            return Self::Percent(percent.trim().parse().map_err(|_| wrong())?).check();
        }
        let rate = text.strip_suffix("/s").ok_or_else(wrong)?;
        Self::Rate(rate.trim().parse().map_err(|_| wrong())?).check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_read_and_print() {
        for text in ["none", "100MiB/s", "262144/s", "1%", "100%", "until 1700000000000"] {
            let limit: RepairLimit = text.parse().unwrap();
            assert_eq!(limit.to_string().parse(), Ok(limit), "{text}");
        }
        assert_eq!("1.5GiB/s".parse(), Ok(RepairLimit::Rate(ByteSize(3 << 29))));
        let wrong = [
            ("0", "not a limit"),
            ("0/s", "would stop repair"),
            ("0%", "would stop repair"),
            ("150%", "150% is more than the whole"),
            ("100KiB/s", "100KiB/s is too low"),
            ("100 parsecs/s", "write a rate (100MiB/s)"),
            ("100MiB", "write a rate (100MiB/s)"),
            ("-5%", "not a limit"),
            ("half", "or none"),
            ("", "not a limit"),
            ("until tomorrow", "not a limit"),
        ];
        for (text, says) in wrong {
            let error = text.parse::<RepairLimit>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
