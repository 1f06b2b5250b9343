//! The file `disk`, the disk's label. It is text, so that an operator can read it; `docs/formats.md` describes the
//! format.

use weft_types::{ClusterId, Error, Result, StripeId, crc32c};

/// The version of new disks. A disk keeps it until it gets a journal.
pub(super) const NEW_VERSION: u32 = 2;
/// The version of disks with blocks that are updated in place. Older programs would take their sidecars for damaged, and do not know the
/// journal, so they must not open them.
pub(super) const UPDATES_VERSION: u32 = 3;
/// The number of directories that blocks are spread over: with ten million blocks on a disk, each holds about 5000
/// files.
const SHARDS: u64 = 4096;
/// Consecutive stripes whose blocks share a directory, since version 2: each new directory costs a sync.
const STRIPES_TOGETHER: u64 = 64;

/// The identity of a new disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewDisk {
    /// A random id, drawn by the caller.
    pub disk_id: u128,
    /// The creation time by the caller's clock, milliseconds since 1970.
    pub created_ms: u64,
}

/// The content of the label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    /// The version of the disk's format.
    pub(crate) version: u32,
    /// The version that determines the directories of blocks: that with which the disk was created.
    pub(crate) directories: u32,
    pub(crate) cluster: ClusterId,
    pub(crate) disk_id: u128,
    pub(crate) created_ms: u64,
}

impl Label {
    pub(crate) fn encode(&self) -> String {
        let Self { version, directories, cluster, disk_id, created_ms } = self;
        let mut body = format!("weft-disk {version}\ncluster {cluster}\ndisk {disk_id:032x}\ncreated-ms {created_ms}\n");
        if *version >= UPDATES_VERSION {
            body += &format!("directories {directories}\n");
        }
        format!("{body}crc32c {:08x}\n", crc32c(body.as_bytes()))
    }

    /// The number of the directory that holds a stripe's blocks.
    pub(crate) fn shard(&self, stripe: StripeId) -> u64 {
        let together = if self.directories == 1 { 1 } else { STRIPES_TOGETHER };
        stripe.0 / together % SHARDS
    }

    pub(crate) fn decode(text: &str) -> Result<Self> {
        let version = text.lines().next().and_then(|line| line.strip_prefix("weft-disk ")).and_then(|it| it.parse::<u32>().ok());
        match version {
            Some(version @ 1..=UPDATES_VERSION) => {
                decode(text, version).ok_or_else(|| Error::corrupt("the disk file is damaged: its checksum is wrong"))
            }
            Some(version) => Err(Error::invalid(format!(
                "the disk has format {version}, but this program reads formats up to {UPDATES_VERSION}: use a newer weft"
            ))),
            None => Err(Error::corrupt("the disk file is damaged: it does not begin with 'weft-disk'")),
        }
    }
}

fn decode(text: &str, version: u32) -> Option<Label> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let directories = if version >= UPDATES_VERSION { value("directories")?.parse().ok()? } else { version };
    let label = Label {
        version,
        directories,
        cluster: value("cluster")?.parse().ok()?,
        disk_id: u128::from_str_radix(value("disk")?, 16).ok()?,
        created_ms: value("created-ms")?.parse().ok()?,
    };
    // A label has exactly one valid encoding, including its checksum.
    (label.encode() == text && matches!(directories, 1 | 2)).then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of `docs/formats.md`, whose checksums come from an independent program.
    #[test]
    fn each_version_is_read_and_determines_the_directories_of_blocks() {
        let text = include_str!("../../../../docs/formats.md");
        for (version, directories, shard) in [(1, 1, 0x1c7), (2, 2, 0x007), (3, 2, 0x007)] {
            let begin = format!("weft-disk {version}\n");
            let example = text.split("```text\n").find(|part| part.starts_with(&begin)).unwrap();
            let example = &example[..example.find("```").unwrap()];
            let label = Label {
                version,
                directories,
                cluster: ClusterId(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f),
                disk_id: 0xf0e0_d0c0_b0a0_9080_7060_5040_3020_1000,
                created_ms: 1_700_000_000_000,
            };
            assert_eq!(Label::decode(example), Ok(label));
            assert_eq!(label.encode(), example);
            assert_eq!(label.shard(StripeId(455)), shard);
        }
        let newer = Label::decode("weft-disk 4\n").unwrap_err();
        assert!(newer.message.contains("format 4"), "{newer}");
    }
}
