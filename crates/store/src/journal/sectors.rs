//! The sectors of the ring: each tells by itself whether it is whole, and to which batch it belongs.
//!
//! A disk writes a sector of 512 bytes whole or not at all. So a sector whose checksum is wrong was not torn by a crash: it is
//! damaged. The sectors of a torn batch are whole, and some of them are older than the batch.

use weft_types::{crc32c, crc32c_continued};

/// Bytes of a sector.
pub(super) const SECTOR: usize = 512;
/// Batches begin and end at multiples of this, so that no write has to read first.
pub(super) const PAGE: usize = 4096;
/// The number of its batch, how much higher that is than the number of the batch before, its place in the batch, a checksum.
const TRAILER: usize = 8 + 4 + 4 + 4;
/// Bytes of the batch in a sector.
pub(super) const CONTENT: usize = SECTOR - TRAILER;
const CRC_AT: usize = SECTOR - 4;

/// To which batch a sector belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tag {
    /// The batch's number, from 1; 0: the sector was not written since the ring was created.
    pub(super) number: u64,
    /// The number minus that of the batch before. That batch was durable before this one was written.
    pub(super) behind: u32,
    /// The sector's place in the batch.
    pub(super) index: u32,
}

/// Seals and opens the sectors of one ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sealer {
    /// The checksum of the ring's nonce, with which every sector's checksum begins: sectors of another ring never count.
    seed: u32,
}

impl Sealer {
    pub(super) fn new(nonce: u128) -> Self {
        Self { seed: crc32c(&nonce.to_le_bytes()) }
    }

    /// Writes the trailer of a sector.
    pub(super) fn seal(&self, sector: &mut [u8], tag: Tag) {
        sector[CONTENT..CONTENT + 8].copy_from_slice(&tag.number.to_le_bytes());
        sector[CONTENT + 8..CONTENT + 12].copy_from_slice(&tag.behind.to_le_bytes());
        sector[CONTENT + 12..CRC_AT].copy_from_slice(&tag.index.to_le_bytes());
        let crc = crc32c_continued(self.seed, &sector[..CRC_AT]);
        sector[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }

    /// The tag of a sector; `None` if it is damaged.
    pub(super) fn open(&self, sector: &[u8]) -> Option<Tag> {
        let (body, crc) = sector.split_last_chunk::<4>()?;
        if sector.len() != SECTOR || crc32c_continued(self.seed, body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let (rest, index) = body.split_last_chunk::<4>()?;
        let (rest, behind) = rest.split_last_chunk::<4>()?;
        let (_, number) = rest.split_last_chunk::<8>()?;
        Some(Tag { number: u64::from_le_bytes(*number), behind: u32::from_le_bytes(*behind), index: u32::from_le_bytes(*index) })
    }

    /// The sectors of a batch whose bytes are these parts: whole pages, padded with zeros.
    pub(super) fn pack(&self, parts: &[&[u8]], number: u64, behind: u32) -> Vec<u8> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut sectors = vec![0; pages_of(len) * PAGE];
        let mut at = 0;
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let within = at % CONTENT;
                let (piece, behind) = rest.split_at(rest.len().min(CONTENT - within));
                let start = at / CONTENT * SECTOR + within;
                sectors[start..start + piece.len()].copy_from_slice(piece);
                (at, rest) = (at + piece.len(), behind);
            }
        }
        for (index, sector) in (0..).zip(sectors.chunks_mut(SECTOR)) {
            self.seal(sector, Tag { number, behind, index });
        }
        sectors
    }
}

/// The pages that a batch of this many bytes takes.
pub(super) fn pages_of(stream_len: usize) -> usize {
    stream_len.div_ceil(CONTENT).max(1).div_ceil(PAGE / SECTOR)
}

/// The bytes of a batch without the trailers.
pub(super) fn contents(sectors: &[u8]) -> Vec<u8> {
    let mut stream = Vec::with_capacity(sectors.len() / SECTOR * CONTENT);
    for sector in sectors.chunks(SECTOR) {
        stream.extend_from_slice(&sector[..CONTENT.min(sector.len())]);
    }
    stream
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_batch_has_its_bytes_and_each_changed_bit_is_noticed() {
        let sealer = Sealer::new(7);
        for len in [0, 1, CONTENT, CONTENT + 1, 8 * CONTENT, 8 * CONTENT + 1, 20_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let (one, two) = bytes.split_at(len / 3);
            let packed = sealer.pack(&[one, two], 5, 2);
            assert_eq!(packed.len() % PAGE, 0);
            assert!(contents(&packed).starts_with(&bytes), "{len} bytes");
            for (index, sector) in (0..).zip(packed.chunks(SECTOR)) {
                assert_eq!(sealer.open(sector), Some(Tag { number: 5, behind: 2, index }));
                assert_eq!(Sealer::new(8).open(sector), None, "a sector of another ring");
            }
            let mut sector = packed[..SECTOR].to_vec();
            for bit in 0..SECTOR * 8 {
                sector[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(sealer.open(&sector), None, "bit {bit}");
                sector[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
