//! The sidecar: the file beside a payload that describes it completely. `docs/formats.md` describes the format.
//!
//! Versions 1 and 2 are written once, with the block. Version 3 is changed in place, with the block ([`in_place`]).
//!
//! The encoded structures are private to this file. So the types that the rest of weft uses can change, and existing
//! sidecars stay readable. A new version is a new structure and a new arm in [`Sidecar::decode`].

mod in_place;

pub(crate) use in_place::{Loaded, Writes};

use crate::coverage::units_of;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use weft_types::{
    BLOCKS_MAX, BlockId, BlockMeta, ClusterId, Error, Layout, PAGE_LEN, Result, Seq, StripeId, StripeLayout, crc32c,
};

/// The newest version.
pub const SIDECAR_VERSION: u32 = 3;
/// The version for a block without updates, so that older programs can read it.
const FIRST_VERSION: u32 = 1;
/// The version for a block that contains updates since it was written.
const SEQ_VERSION: u32 = 2;

/// The largest possible sidecar: of version 3, the checksums of a block of 1 TiB, and its description. Larger files are not
/// read.
pub const SIDECAR_BYTES_MAX: u64 = (1 << 30) + (1 << 26);

const MAGIC: [u8; 8] = *b"weftmeta";
/// Magic, version, length of the description, number of pages, number of units.
const HEAD_LEN: usize = 8 + 4 * 4;
const CRC_LEN: usize = 4;

/// A block's description and the checksums of its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    meta: BlockMeta,
    pages: Vec<u32>,
    units: Vec<u32>,
}

impl Sidecar {
    /// A sidecar for a payload with these page checksums. The unit checksums follow from them.
    pub fn new(meta: BlockMeta, pages: Vec<u32>) -> Result<Self> {
        check_meta(&meta)?;
        if pages.len() as u64 != meta.len().div_ceil(PAGE_LEN) {
            return Err(Error::invalid(format!("{} page checksums were given for a block of {} bytes", pages.len(), meta.len()))
                .block(meta.id));
        }
        let units = units_of(&pages, meta.len());
        Ok(Self { meta, pages, units })
    }

    /// The block's description.
    pub fn meta(&self) -> &BlockMeta {
        &self.meta
    }

    /// The CRC32C of each page of 4 KiB; the last page may be shorter.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The CRC32C of each MiB; the last unit may be shorter.
    pub fn units(&self) -> &[u32] {
        &self.units
    }

    /// The bytes of the file of a block that was not updated in place.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let first = DescriptionV1::from(&self.meta);
        let (version, description) = match self.meta.seq.is_first() {
            true => (FIRST_VERSION, postcard::to_stdvec(&first)),
            false => (SEQ_VERSION, postcard::to_stdvec(&DescriptionV2 { first, seq: self.meta.seq.clone() })),
        };
        let description = description
            .map_err(|error| Error::fatal(format!("cannot encode the block's description: {error}")).block(self.meta.id))?;
        let mut bytes = Vec::with_capacity(HEAD_LEN + description.len() + 4 * (self.pages.len() + self.units.len()) + CRC_LEN);
        bytes.extend(MAGIC);
        for number in [version as usize, description.len(), self.pages.len(), self.units.len()] {
            let number = u32::try_from(number).map_err(|_| Error::invalid("the block is too large").block(self.meta.id))?;
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(description);
        bytes.extend(self.pages.iter().chain(&self.units).flat_map(|sum| sum.to_le_bytes()));
        bytes.extend(crc32c(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// Decodes a file of this version or an older one. Accepts any bytes and never panics. A sidecar whose update was interrupted is
    /// [`Reaction::Corrupt`](weft_types::Reaction), too.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let loaded = Loaded::decode(bytes)?;
        match loaded.is_interrupted() {
            true => Err(wrong("is incomplete: an update was interrupted")),
            false => Ok(loaded.sidecar),
        }
    }

    /// Decodes a file of version 1 or 2.
    fn decode_whole(bytes: &[u8]) -> Result<Self> {
        let (body, sum) = bytes.split_last_chunk::<CRC_LEN>().ok_or_else(|| wrong("is too short"))?;
        let (magic, rest) = body.split_first_chunk::<8>().ok_or_else(|| wrong("is too short"))?;
        if *magic != MAGIC {
            return Err(wrong("is invalid: it does not begin with 'weftmeta'"));
        }
        // These versions end with this checksum. So a newer version can be distinguished from a flipped bit.
        if crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(wrong("is damaged: its checksum is wrong"));
        }
        let (version, rest) = split_u32(rest).ok_or_else(|| wrong("is too short"))?;
        match version {
            0 => Err(wrong("has version 0, which does not exist")),
            1 => decode_as::<DescriptionV1>(rest).ok_or_else(|| wrong("does not describe a block"))?,
            2 => decode_as::<DescriptionV2>(rest).ok_or_else(|| wrong("does not describe a block"))?,
            _ => Err(newer(version)),
        }
    }
}

fn wrong(what: &str) -> Error {
    Error::corrupt(format!("the sidecar {what}"))
}

fn newer(version: u32) -> Error {
    Error::fatal(format!(
        "the sidecar has version {version}, but this program reads versions up to {SIDECAR_VERSION}: use a newer weft"
    ))
}

/// Refuses an invalid description, so that later arithmetic on it cannot overflow or divide by zero.
pub(crate) fn check_meta(meta: &BlockMeta) -> Result<()> {
    let refuse = |why: String| Err(Error::invalid(why).block(meta.id));
    let stripe = &meta.stripe;
    Layout::new(stripe.layout.block_len, stripe.layout.cell_len, stripe.layout.alpha).map_err(|error| error.block(meta.id))?;
    let n = u64::from(stripe.k) + u64::from(stripe.m);
    if stripe.k == 0 || n > BLOCKS_MAX as u64 {
        return refuse(format!(
            "a stripe of {} + {} blocks is invalid: it needs at least one data block and at most {BLOCKS_MAX} blocks",
            stripe.k, stripe.m
        ));
    }
    if u64::from(meta.id.index) >= n {
        return refuse(format!("the stripe has only {n} blocks"));
    }
    // At most 255 blocks of 2^40 bytes: no overflow.
    let data_len_max = u64::from(stripe.k) * stripe.layout.block_len;
    if stripe.data_len == 0 || stripe.data_len > data_len_max {
        return refuse(format!("a stripe with {} data bytes is invalid: it has 1 to {data_len_max}", stripe.data_len));
    }
    if !meta.seq.fits(stripe.k as usize) {
        let counts = meta.seq.counts().len();
        return refuse(format!("there are update counts of {counts} data blocks, but the stripe has {}", stripe.k));
    }
    if meta.object.len() > TEXT_BYTES_MAX || meta.code.len() > TEXT_BYTES_MAX {
        return refuse(format!("the object's name or the code's spec is longer than {TEXT_BYTES_MAX} bytes"));
    }
    Ok(())
}

/// The most bytes of an object name or a code spec in a sidecar.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// `None` if the lengths do not fit. `Some(Err)` if the description is invalid.
fn decode_as<D: DeserializeOwned + Into<Option<BlockMeta>>>(rest: &[u8]) -> Option<Result<Sidecar>> {
    let (description_len, rest) = split_u32(rest)?;
    let (pages_len, rest) = split_u32(rest)?;
    let (units_len, rest) = split_u32(rest)?;
    let (description, rest) = rest.split_at_checked(description_len as usize)?;
    let (pages, units) = rest.split_at_checked((pages_len as usize).checked_mul(4)?)?;
    if (units_len as usize).checked_mul(4)? != units.len() {
        return None;
    }
    let (description, left) = postcard::take_from_bytes::<D>(description).ok()?;
    if !left.is_empty() {
        return None;
    }
    let meta = description.into()?;
    let sums = |bytes: &[u8]| bytes.chunks_exact(4).map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]])).collect();
    let (pages, units): (Vec<u32>, Vec<u32>) = (sums(pages), sums(units));
    Some(Sidecar::new(meta, pages).map_err(as_corrupt).and_then(|sidecar| {
        if sidecar.units == units { Ok(sidecar) } else { Err(Error::corrupt("the sidecar's checksums contradict each other")) }
    }))
}

fn as_corrupt(error: Error) -> Error {
    Error::corrupt(format!("the sidecar is invalid: {}", error.message))
}

fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*number), rest))
}

/// Version 1 of the description, in postcard.
#[derive(Serialize, Deserialize)]
struct DescriptionV1 {
    cluster: u128,
    stripe: u64,
    index: u8,
    copy: u8,
    generation: u32,
    object: String,
    version: u64,
    object_offset: u64,
    code: String,
    generator_hash: u64,
    block_len: u64,
    cell_len: u64,
    alpha: u32,
    k: u32,
    m: u32,
    data_len: u64,
    /// Always 0: a count of updates that was never used.
    updates: u64,
}

/// Version 2 of the description: version 1 and the block's updates.
#[derive(Serialize, Deserialize)]
struct DescriptionV2 {
    first: DescriptionV1,
    seq: Seq,
}

impl From<&BlockMeta> for DescriptionV1 {
    fn from(meta: &BlockMeta) -> Self {
        let (id, stripe) = (meta.id, meta.stripe);
        Self {
            cluster: meta.cluster.0,
            stripe: id.stripe.0,
            index: id.index,
            copy: id.copy,
            generation: id.generation,
            object: meta.object.clone(),
            version: meta.version,
            object_offset: meta.object_offset,
            code: meta.code.clone(),
            generator_hash: meta.generator_hash,
            block_len: stripe.layout.block_len,
            cell_len: stripe.layout.cell_len,
            alpha: stripe.layout.alpha,
            k: stripe.k,
            m: stripe.m,
            data_len: stripe.data_len,
            updates: 0,
        }
    }
}

/// `None` if the description is invalid.
impl From<DescriptionV1> for Option<BlockMeta> {
    fn from(it: DescriptionV1) -> Self {
        let layout = Layout { block_len: it.block_len, cell_len: it.cell_len, alpha: it.alpha };
        (it.updates == 0).then_some(BlockMeta {
            cluster: ClusterId(it.cluster),
            id: BlockId { stripe: StripeId(it.stripe), index: it.index, copy: it.copy, generation: it.generation },
            object: it.object,
            version: it.version,
            object_offset: it.object_offset,
            code: it.code,
            generator_hash: it.generator_hash,
            stripe: StripeLayout { layout, k: it.k, m: it.m, data_len: it.data_len },
            seq: Seq::default(),
        })
    }
}

impl From<DescriptionV2> for Option<BlockMeta> {
    fn from(DescriptionV2 { first, seq }: DescriptionV2) -> Self {
        Self::from(first).map(|meta| BlockMeta { seq, ..meta })
    }
}

#[cfg(test)]
mod tests;
