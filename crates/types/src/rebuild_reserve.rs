//! The operator's setting of the room that puts leave to rebuild the largest node.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// How much of each disk puts leave free, so that the blocks of the largest node can be rebuilt: `auto`, `off` or `15%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum RebuildReserve {
    /// What the sizes of the nodes require.
    #[default]
    Auto,
    /// Nothing.
    Off,
    /// This share of each disk; 1 to 99.
    Percent(u32),
}

impl fmt::Display for RebuildReserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for RebuildReserve {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let percent = || text.strip_suffix('%')?.trim_end().parse().ok().filter(|percent| (1..100).contains(percent));
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => percent().map(Self::Percent).ok_or_else(|| format!("'{text}' is not a share: use auto, off, or 1% to 99%")),
        }
    }
}

impl From<RebuildReserve> for String {
    fn from(reserve: RebuildReserve) -> Self {
        reserve.to_string()
    }
}

impl TryFrom<String> for RebuildReserve {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_and_prints() {
        let known = [("auto", RebuildReserve::Auto), ("off", RebuildReserve::Off), ("15%", RebuildReserve::Percent(15))];
        for (text, reserve) in known {
            assert_eq!((text.parse(), reserve.to_string()), (Ok(reserve), text.to_owned()));
        }
        for wrong in ["", "on", "0%", "100%", "15", "1.5%", "-3%", "%"] {
            let error = wrong.parse::<RebuildReserve>().unwrap_err();
            assert!(error.contains("use auto, off, or 1% to 99%"), "{wrong}: {error}");
        }
    }
}
