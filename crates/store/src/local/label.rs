//! The file `disk`, which says what a directory is. Text, so that an operator can read it; the format is in `docs/formats.md`.

use weft_types::{ClusterId, Error, Result, StripeId, crc32c};

/// The version that new disks get. A disk keeps the version that it was made with.
pub(super) const VERSION: u32 = 2;
/// Directories that blocks are spread over: with ten million blocks on a disk, each holds some 5000 files.
const SHARDS: u64 = 4096;
/// Stripes in a row whose blocks lie in the same directory, since version 2: a new directory costs a sync of its own.
const STRIPES_TOGETHER: u64 = 64;

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
    /// Of the disk's format.
    pub(crate) version: u32,
    pub(crate) cluster: ClusterId,
    pub(crate) disk_id: u128,
    pub(crate) created_ms: u64,
}

impl Label {
    pub(crate) fn encode(&self) -> String {
        let Self { version, cluster, disk_id, created_ms } = self;
        let body = format!("weft-disk {version}\ncluster {cluster}\ndisk {disk_id:032x}\ncreated-ms {created_ms}\n");
        format!("{body}crc32c {:08x}\n", crc32c(body.as_bytes()))
    }

    /// The number of the directory in which a stripe's blocks lie.
    pub(crate) fn shard(&self, stripe: StripeId) -> u64 {
        let together = if self.version == 1 { 1 } else { STRIPES_TOGETHER };
        stripe.0 / together % SHARDS
    }

    pub(crate) fn decode(text: &str) -> Result<Self> {
        let version = text.lines().next().and_then(|line| line.strip_prefix("weft-disk ")).and_then(|it| it.parse::<u32>().ok());
        match version {
            Some(version @ 1..=VERSION) => {
                decode(text, version).ok_or_else(|| Error::corrupt("the disk file is damaged: it fails its checksum"))
            }
            Some(version) => Err(Error::invalid(format!(
                "the disk is of format {version}; this program knows formats up to {VERSION}: use a newer one"
            ))),
            None => Err(Error::corrupt("the disk file is damaged: it does not begin with 'weft-disk'")),
        }
    }
}

fn decode(text: &str, version: u32) -> Option<Label> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let label = Label {
        version,
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

    /// The examples of `docs/formats.md`, whose checksums another program computed.
    #[test]
    fn each_version_is_read_and_says_where_blocks_lie() {
        let text = include_str!("../../../../docs/formats.md");
        for (version, shard) in [(1, 0x1c7), (2, 0x007)] {
            let begin = format!("weft-disk {version}\n");
            let example = text.split("```text\n").find(|part| part.starts_with(&begin)).unwrap();
            let example = &example[..example.find("```").unwrap()];
            let label = Label {
                version,
                cluster: ClusterId(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f),
                disk_id: 0xf0e0_d0c0_b0a0_9080_7060_5040_3020_1000,
                created_ms: 1_700_000_000_000,
            };
            assert_eq!(Label::decode(example), Ok(label));
            assert_eq!(label.encode(), example);
            assert_eq!(label.shard(StripeId(455)), shard);
        }
        let newer = Label::decode("weft-disk 3\n").unwrap_err();
        assert!(newer.message.contains("format 3"), "{newer}");
    }
}
