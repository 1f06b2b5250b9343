//! `manifest.json`: describes a directory of blocks; version 1.
//!
//! The blocks of all stripes of a file follow one another in `block-000`, `block-001`, …. All stripes except the last are full, so this
//! equals, byte for byte, one long stripe with blocks of `stripes × block_size` and the same cells, and is treated as such.

use serde::{Deserialize, Serialize};
use std::{io::ErrorKind, path::Path};
use weft_codes::SharedCode;
use weft_types::{CHECKSUM_UNIT_LEN, Error, Layout, Result, StripeLayout};

/// The manifest's name in its directory.
pub(crate) const NAME: &str = "manifest.json";
const FORMAT: &str = "weft-blocks";
const VERSION: u32 = 1;
const MANIFEST_BYTES_MAX: u64 = 1 << 28;

/// The description of a directory of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Always `weft-blocks`.
    pub(crate) format: String,
    /// 1.
    pub(crate) version: u32,
    /// The code's canonical spec.
    pub(crate) code: String,
    /// The hash of the code's generator, 16 hex digits.
    pub(crate) generator_hash: String,
    /// Data blocks.
    pub(crate) k: u32,
    /// Parity blocks.
    pub(crate) m: u32,
    /// Sub-blocks of a cell.
    pub(crate) alpha: u32,
    /// The file that was encoded.
    pub(crate) file: FileRecord,
    /// Nominal bytes of a block of one stripe.
    pub(crate) block_size: u64,
    /// Bytes of a cell.
    pub(crate) cell_size: u64,
    /// Number of stripes whose blocks each block file holds.
    pub(crate) stripes: u64,
    /// The block files, by index.
    pub(crate) blocks: Vec<BlockRecord>,
    /// CRC32C of this manifest, serialised without blanks and with 0 in this field.
    pub(crate) manifest_crc32c: u32,
}

/// The file that was encoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) sha256: String,
}

/// One block file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockRecord {
    pub(crate) index: u8,
    pub(crate) file: String,
    pub(crate) size: u64,
    /// CRC32C of each MiB; the last one covers the rest.
    pub(crate) crc32c: Vec<u32>,
}

/// How a file is divided into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) block_size: u64,
    pub(crate) cell_size: u64,
    pub(crate) stripes: u64,
    /// All stripes as one. `data_len` can be 0 here.
    pub(crate) stripe: StripeLayout,
}

impl Geometry {
    /// For a file of `size` bytes: one stripe of just the right size unless a block size is given.
    pub(crate) fn new(code: &SharedCode, size: u64, block_size: Option<u64>, cell_size: Option<u64>) -> Result<Self> {
        let (k, alpha) = (code.k() as u64, code.alpha() as u64);
        let whole = |len: u64, unit: u64| len.max(1).div_ceil(unit.max(1)).checked_mul(unit.max(1));
        let block_size = match block_size {
            Some(block_size) => block_size,
            None => whole(size.div_ceil(k), cell_size.unwrap_or(alpha))
                .ok_or_else(|| Error::invalid(format!("a cell of {} bytes is too large", cell_size.unwrap_or(alpha))))?,
        };
        let cell_size = cell_size.unwrap_or(block_size);
        Layout::new(block_size, cell_size, code.alpha() as u32)?;
        Self::of(code, size, block_size, cell_size)
    }

    fn of(code: &SharedCode, size: u64, block_size: u64, cell_size: u64) -> Result<Self> {
        let too_large =
            || Error::invalid(format!("{size} bytes need too many blocks of {block_size}: choose a larger block size"));
        let of_stripe = block_size.checked_mul(code.k() as u64).ok_or_else(too_large)?;
        let stripes = size.div_ceil(of_stripe).max(1);
        let layout = Layout::new(block_size.checked_mul(stripes).ok_or_else(too_large)?, cell_size, code.alpha() as u32)?;
        let stripe = StripeLayout { layout, k: code.k() as u32, m: code.m() as u32, data_len: size };
        Ok(Self { block_size, cell_size, stripes, stripe })
    }
}

/// The name of a block's file.
pub(crate) fn block_name(index: u8) -> String {
    format!("block-{index:03}")
}

impl Manifest {
    /// The manifest of a file that was just encoded.
    pub(crate) fn new(code: &SharedCode, geometry: &Geometry, file: FileRecord, units: Vec<Vec<u32>>) -> Self {
        let record = |(index, crc32c): (usize, Vec<u32>)| {
            let size = geometry.stripe.block_len(index as u32);
            BlockRecord { index: index as u8, file: block_name(index as u8), size, crc32c }
        };
        let mut manifest = Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            code: code.spec(),
            generator_hash: generator_hash(code),
            k: code.k() as u32,
            m: code.m() as u32,
            alpha: code.alpha() as u32,
            file,
            block_size: geometry.block_size,
            cell_size: geometry.cell_size,
            stripes: geometry.stripes,
            blocks: units.into_iter().enumerate().map(record).collect(),
            manifest_crc32c: 0,
        };
        manifest.manifest_crc32c = manifest.checksum();
        manifest
    }

    /// Reads and checks `dir/manifest.json`, including everything that later steps rely on.
    pub(crate) fn read(dir: &Path) -> Result<(Self, SharedCode, Geometry)> {
        let path = dir.join(NAME);
        let shown = path.display();
        let size = std::fs::metadata(&path).map_err(|error| {
            const PASS: &str = "pass a directory that `weft code encode` wrote";
            match error.kind() {
                ErrorKind::NotFound if dir.is_dir() => Error::not_found(format!("{shown} does not exist: {PASS}")),
                ErrorKind::NotFound => Error::not_found(format!("{} does not exist: {PASS}", dir.display())),
                ErrorKind::NotADirectory => Error::invalid(format!("{} is not a directory: {PASS}", dir.display())),
                _ => weft_cli::files::io_error(&path, "read", &error),
            }
        })?;
        if size.len() > MANIFEST_BYTES_MAX {
            return Err(Error::invalid(format!("{shown} is too large for a manifest")));
        }
        let text = std::fs::read(&path).map_err(|error| weft_cli::files::io_error(&path, "read", &error))?;
        Self::parse(&text).map_err(|error| Error::new(error.reaction, format!("{shown}: {}", error.message)))
    }

    fn parse(text: &[u8]) -> Result<(Self, SharedCode, Geometry)> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let head: Head = serde_json::from_slice(text).map_err(|error| Error::corrupt(format!("not a manifest: {error}")))?;
        if head.format != FORMAT {
            return Err(Error::invalid(format!("the format is '{}', not '{FORMAT}'", head.format)));
        }
        if head.version != VERSION {
            let version = head.version;
            return Err(Error::invalid(format!("the manifest has version {version}; this weft reads version {VERSION}")));
        }
        let manifest: Self =
            serde_json::from_slice(text).map_err(|error| Error::corrupt(format!("the manifest is corrupt: {error}")))?;
        if manifest.checksum() != manifest.manifest_crc32c {
            return Err(Error::corrupt("the manifest is corrupt or was edited: its checksum (manifest_crc32c) is wrong"));
        }
        let code = weft_codes::parse(&manifest.code).map_err(Error::invalid)?;
        if generator_hash(&code) != manifest.generator_hash {
            let spec = &manifest.code;
            return Err(Error::invalid(format!(
                "the blocks were written with another generator of {spec}: the generator hash differs"
            )));
        }
        let geometry = Geometry::of(&code, manifest.file.size, manifest.block_size, manifest.cell_size)?;
        let sizes_fit = (manifest.blocks.iter().enumerate()).all(|(at, block)| {
            let len = geometry.stripe.block_len(at as u32);
            usize::from(block.index) == at
                && block.file == block_name(block.index)
                && (block.size, block.crc32c.len() as u64) == (len, len.div_ceil(CHECKSUM_UNIT_LEN))
        });
        if manifest.blocks.len() != code.n() || !sizes_fit || geometry.stripes != manifest.stripes {
            return Err(Error::corrupt("the manifest is corrupt: its blocks do not fit its sizes"));
        }
        Ok((manifest, code, geometry))
    }

    /// Its serialised form.
    pub(crate) fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map(|json| json + "\n").map_err(Error::fatal)
    }

    fn checksum(&self) -> u32 {
        let blank = Self { manifest_crc32c: 0, ..self.clone() };
        serde_json::to_vec(&blank).map_or(0, |json| weft_proto::crc32c(&json))
    }
}

fn generator_hash(code: &SharedCode) -> String {
    format!("{:016x}", weft_codes::generator_hash(code.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(spec: &str, size: u64, block: Option<u64>, cell: Option<u64>) -> Result<(u64, u64, u64)> {
        let code = weft_codes::parse(spec).map_err(Error::invalid)?;
        Geometry::new(&code, size, block, cell).map(|it| (it.block_size, it.cell_size, it.stripes))
    }

    #[test]
    fn without_sizes_there_is_one_stripe_that_just_fits() {
        assert_eq!(sizes("rs(10,4)", 1000, None, None), Ok((100, 100, 1)));
        assert_eq!(sizes("rs(10,4)", 1001, None, None), Ok((101, 101, 1)));
        assert_eq!(sizes("rs(10,4)", 1001, None, Some(50)), Ok((150, 50, 1)));
        assert_eq!(sizes("rs(10,4)", 0, None, None), Ok((1, 1, 1)));
        assert_eq!(sizes("rs(3,2)", 1001, Some(100), None), Ok((100, 100, 4)));
        assert_eq!(sizes("rs(3,2)", 10, Some(100), Some(20)), Ok((100, 20, 1)));
    }

    #[test]
    fn invalid_sizes_are_refused() {
        assert!(sizes("rs(3,2)", 10, Some(0), None).is_err());
        assert!(sizes("rs(3,2)", 10, None, Some(0)).is_err());
        assert!(sizes("rs(3,2)", 10, Some(100), Some(30)).is_err());
        assert!(sizes("rs(3,2)", 10, None, Some(u64::MAX)).is_err());
        assert!(sizes("rs(3,2)", u64::MAX, Some(1 << 40), None).is_err());
    }

    #[test]
    fn many_stripes_are_one_long_stripe() {
        for (size, block, cell) in [(1001, 60, 20), (1001, 60, 60), (719, 60, 12), (720, 60, 12), (721, 60, 12), (1, 60, 20)] {
            let code = weft_codes::parse("rs(3,2)").unwrap();
            let geometry = Geometry::new(&code, size, Some(block), Some(cell)).unwrap();
            let mut lens = [0u64; 5];
            for number in 0..geometry.stripes {
                let layout = Layout::new(block, cell, 1).unwrap();
                let data_len = (size - number * 3 * block).min(3 * block);
                let stripe = StripeLayout { layout, k: 3, m: 2, data_len };
                for offset in 0..data_len {
                    let (index, at) = stripe.locate(offset);
                    let there = geometry.stripe.locate(number * 3 * block + offset);
                    assert_eq!(there, (index, number * block + at));
                }
                (0..5).for_each(|index| lens[index as usize] += stripe.block_len(index));
            }
            assert_eq!(lens, [0, 1, 2, 3, 4].map(|index| geometry.stripe.block_len(index)));
        }
    }
}
