//! The file `disk`, which says what a directory is. Text, so that an operator can read it; the format is in `docs/formats.md`.

use crate::crc;
use weft_types::{ClusterId, Error, Result};

/// The version that is written.
const VERSION: u32 = 1;

/// The identity of a disk that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewDisk {
    /// Drawn at random by the caller.
    pub disk_id: u128,
    /// Milliseconds since 1970 by the caller's clock.
    pub created_ms: u64,
}

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) cluster: ClusterId,
    pub(crate) disk_id: u128,
    pub(crate) created_ms: u64,
}

impl Label {
    pub(crate) fn encode(&self) -> String {
        let Self { cluster, disk_id, created_ms } = self;
        let body = format!("weft-disk {VERSION}\ncluster {cluster}\ndisk {disk_id:032x}\ncreated-ms {created_ms}\n");
        format!("{body}crc32c {:08x}\n", crc::crc32c(body.as_bytes()))
    }

    pub(crate) fn decode(text: &str) -> Result<Self> {
        let version = text.lines().next().and_then(|line| line.strip_prefix("weft-disk ")).and_then(|it| it.parse::<u32>().ok());
        match version {
            Some(VERSION) => decode_v1(text).ok_or_else(|| Error::corrupt("the disk file is damaged: it fails its checksum")),
            Some(version) => Err(Error::invalid(format!(
                "the disk is of format {version}; this program knows formats up to {VERSION}: use a newer one"
            ))),
            None => Err(Error::corrupt("the disk file is damaged: it does not begin with 'weft-disk'")),
        }
    }
}

fn decode_v1(text: &str) -> Option<Label> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let label = Label {
        cluster: value("cluster")?.parse().ok()?,
        disk_id: u128::from_str_radix(value("disk")?, 16).ok()?,
        created_ms: value("created-ms")?.parse().ok()?,
    };
    // There is one spelling of a label, and its checksum is part of it.
    (label.encode() == text).then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of `docs/formats.md`, whose checksum another program computed.
    #[test]
    fn version_1_is_still_read() {
        let text = include_str!("../../../../docs/formats.md");
        let example = text.split("```text\n").find(|part| part.starts_with("weft-disk 1\n")).unwrap();
        let example = &example[..example.find("```").unwrap()];
        let label = Label {
            cluster: ClusterId(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f),
            disk_id: 0xf0e0_d0c0_b0a0_9080_7060_5040_3020_1000,
            created_ms: 1_700_000_000_000,
        };
        assert_eq!(Label::decode(example), Ok(label));
        assert_eq!(label.encode(), example);
    }
}
