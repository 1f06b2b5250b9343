//! The cluster's limits on its lower classes, for every node.

use crate::{ByteSize, Error, Result};
use serde::{Deserialize, Serialize};

/// The lowest rate limit of a node. With less, frames would arrive so late that peers would treat the node as dead.
pub const RATE_MIN: ByteSize = ByteSize(64 << 10);
/// The lowest rate limit of a class, bytes a second: one frame a second. All links of a node share it.
pub const CLASS_RATE_MIN: ByteSize = ByteSize(256 << 10);

/// The most that repairs and scrubs may use of each node. A lower limit of a node takes precedence; an unset field
/// leaves the node's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassLimits {
    /// Share of a node's memory, connections and blocks of each disk that repairs, moves and conversions together may use; 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair_percent: Option<u32>,
    /// Share of the same resources that scrubs may use; 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrub_percent: Option<u32>,
    /// Bytes per second that repairs, moves and conversions of a node together may send, and may receive; 256 KiB or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair_bytes_per_s: Option<ByteSize>,
    /// Bytes per second that scrubs of a node may send, and may receive; 256 KiB or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrub_bytes_per_s: Option<ByteSize>,
}

impl ClassLimits {
    /// Refuses invalid percentages, and rates at which peers would treat a node as dead. A small percentage may be too
    /// little for some tasks: these are refused, and jobs leave their items out.
    pub fn check(&self) -> Result<()> {
        for (name, percent) in [("repair_percent", self.repair_percent), ("scrub_percent", self.scrub_percent)] {
            if let Some(percent) = percent.filter(|percent| !(1..=100).contains(percent)) {
                return Err(Error::invalid(format!("limits.{name} is {percent}: it must be 1 to 100")));
            }
        }
        for (name, rate) in [("repair_bytes_per_s", self.repair_bytes_per_s), ("scrub_bytes_per_s", self.scrub_bytes_per_s)] {
            if let Some(rate) = rate.filter(|rate| *rate < CLASS_RATE_MIN) {
                return Err(Error::invalid(format!(
                    "limits.{name} is {rate}: below {CLASS_RATE_MIN} a second, peers would treat a node as dead"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_valid_percentages_and_usable_rates() {
        assert_eq!(ClassLimits::default().check(), Ok(()));
        let all = ClassLimits {
            repair_percent: Some(1),
            scrub_percent: Some(100),
            repair_bytes_per_s: Some(CLASS_RATE_MIN),
            scrub_bytes_per_s: Some(ByteSize(u64::MAX)),
        };
        assert_eq!(all.check(), Ok(()));
        let wrong = [
            (ClassLimits { repair_percent: Some(0), ..all }, "limits.repair_percent is 0"),
            (ClassLimits { scrub_percent: Some(101), ..all }, "limits.scrub_percent is 101"),
            (ClassLimits { repair_bytes_per_s: Some(ByteSize(1000)), ..all }, "limits.repair_bytes_per_s is 1000"),
            (ClassLimits { scrub_bytes_per_s: Some(ByteSize(0)), ..all }, "limits.scrub_bytes_per_s is 0"),
        ];
        for (limits, says) in wrong {
            assert!(limits.check().unwrap_err().message.contains(says), "{limits:?}");
        }
    }
}
