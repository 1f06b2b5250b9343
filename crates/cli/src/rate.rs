//! Rates of links as users write them: `200mbit`, `1.5gbit`, `800kbit`.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Bits per second on a link, including headers, as `tc` counts them.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LinkRate(f64);

/// Below this a transfer takes too long; above it the counters of the kernel's shapers overflow.
const BITS_PER_S: std::ops::RangeInclusive<f64> = 8e3..=1e11;
const UNITS: [(&str, f64); 3] = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)];

/// Payload of a full Ethernet frame (1500 bytes and a header of 14) over TCP: 1448 bytes, with timestamps.
const GOODPUT: f64 = 1448.0 / 1514.0;

impl LinkRate {
    /// From bits per second.
    pub fn new(bits_per_s: f64) -> Result<Self, String> {
        match BITS_PER_S.contains(&bits_per_s) {
            true => Ok(Self(bits_per_s)),
            false => Err(format!("{bits_per_s} bit/s is outside the range of link rates, 8kbit to 100gbit")),
        }
    }

    /// Bits per second.
    pub fn bits_per_s(self) -> f64 {
        self.0
    }

    /// Payload bytes per second of a long TCP transfer.
    pub fn goodput_bytes_per_s(self) -> f64 {
        self.0 / 8.0 * GOODPUT
    }

    /// In the notation of `tc`.
    pub fn tc(self) -> String {
        format!("{}bit", self.0.round() as u64)
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = UNITS.iter().find(|(_, unit)| self.0 >= *unit).copied().unwrap_or(("bit", 1.0));
        let number = format!("{:.3}", self.0 / unit);
        write!(f, "{}{name}", number.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl FromStr for LinkRate {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a rate: write a number with a unit, such as 800kbit, 200mbit or 1.5gbit");
        let lower = text.trim().to_ascii_lowercase();
        let lower = lower.strip_suffix("/s").unwrap_or(&lower);
        let (digits, unit) = UNITS.iter().find_map(|(name, unit)| Some((lower.strip_suffix(name)?, *unit))).ok_or_else(wrong)?;
        let number: f64 = digits.trim().parse().map_err(|_| wrong())?;
        Self::new(number * unit)
    }
}

impl From<LinkRate> for String {
    fn from(rate: LinkRate) -> Self {
        rate.to_string()
    }
}

impl TryFrom<String> for LinkRate {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_printed_as_people_write_them() {
        for text in ["200mbit", "1.5gbit", "800kbit", "95.6mbit"] {
            assert_eq!(text.parse::<LinkRate>().unwrap().to_string(), text);
        }
        assert_eq!("0.2gbit/s".parse::<LinkRate>().unwrap().tc(), "200000000bit");
        for wrong in ["", "200", "fast", "-1mbit", "nanmbit", "infgbit", "0mbit", "1e30gbit"] {
            assert!(wrong.parse::<LinkRate>().is_err(), "{wrong}");
        }
    }
}
