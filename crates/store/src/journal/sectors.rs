//! The sectors of the ring: each tells by itself whether it is whole, and to which batch it belongs.
//!
//! A disk writes a sector of 512 bytes whole or not at all. So a sector whose checksum is wrong was not torn by a crash: it is
//! damaged. The sectors of a torn batch are whole, and some of them are older than the batch.

use std::io;
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
}

/// Where the pages of a batch go: their offset in the batch, and their bytes.
pub(super) type WritePages<'a> = dyn FnMut(u64, &[u8]) -> io::Result<()> + 'a;

/// Turns the bytes of a batch, in order, into sectors, and hands on whole pages.
#[derive(Debug)]
pub(super) struct Packer {
    sealer: Sealer,
    number: u64,
    behind: u32,
    /// The place in the batch of the first sector that is not handed on.
    first: u32,
    /// Sectors that are not handed on. The last one may be incomplete.
    sectors: Vec<u8>,
}

/// So many bytes of sectors are handed on at a time: they are in a cache of the processor until they are written.
const HANDED_BYTES: usize = 256 << 10;

impl Packer {
    /// For the batch of this number, so much higher than that of the batch before; from this sector on, at the beginning of a page.
    pub(super) fn new(sealer: Sealer, number: u64, behind: u32, first: u32) -> Self {
        Self { sealer, number, behind, first, sectors: Vec::new() }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8], write: &mut WritePages<'_>) -> io::Result<()> {
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min(CONTENT - self.sectors.len() % SECTOR));
            self.sectors.extend_from_slice(piece);
            if self.sectors.len() % SECTOR == CONTENT {
                self.seal();
            }
            if self.sectors.len() == HANDED_BYTES {
                self.hand_on(HANDED_BYTES, write)?;
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Hands on the pages that are complete.
    pub(super) fn flush(&mut self, write: &mut WritePages<'_>) -> io::Result<()> {
        self.hand_on(self.sectors.len() / PAGE * PAGE, write)
    }

    /// Pads the batch with zeros to this many pages, and hands on the rest.
    pub(super) fn finish(mut self, pages: u32, write: &mut WritePages<'_>) -> io::Result<()> {
        let end = pages as usize * (PAGE / SECTOR) * CONTENT;
        let within = (self.first as usize + self.sectors.len() / SECTOR) * CONTENT + self.sectors.len() % SECTOR;
        self.push(&vec![0; end.saturating_sub(within)], write)?;
        self.flush(write)
    }

    fn seal(&mut self) {
        let start = self.sectors.len() - CONTENT;
        self.sectors.resize(start + SECTOR, 0);
        let index = self.first + (start / SECTOR) as u32;
        self.sealer.seal(&mut self.sectors[start..], Tag { number: self.number, behind: self.behind, index });
    }

    fn hand_on(&mut self, len: usize, write: &mut WritePages<'_>) -> io::Result<()> {
        if len > 0 {
            write(u64::from(self.first) * SECTOR as u64, &self.sectors[..len])?;
            self.sectors.drain(..len);
            self.first += (len / SECTOR) as u32;
        }
        Ok(())
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
        for len in [0, 1, CONTENT, CONTENT + 1, 8 * CONTENT, 8 * CONTENT + 1, 20_000, 700_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let (one, two) = bytes.split_at(len / 3);
            // As if the first two pages were written at last.
            for first in [0, 2 * PAGE / SECTOR] {
                let mut packer = Packer::new(sealer, 5, 2, first as u32);
                let mut packed = vec![0; first * SECTOR];
                let mut write = |at: u64, pages: &[u8]| {
                    assert!(at == packed.len() as u64 && pages.len().is_multiple_of(PAGE) && pages.len() <= HANDED_BYTES);
                    packed.extend_from_slice(pages);
                    Ok(())
                };
                packer.push(one, &mut write).unwrap();
                packer.flush(&mut write).unwrap();
                packer.push(two, &mut write).unwrap();
                let pages = pages_of(first * CONTENT + len);
                packer.finish(pages as u32, &mut write).unwrap();
                assert_eq!(packed.len(), pages * PAGE);
                assert!(contents(&packed[first * SECTOR..]).starts_with(&bytes), "{len} bytes");
                for (index, sector) in (0..).zip(packed.chunks(SECTOR)).skip(first) {
                    assert_eq!(sealer.open(sector), Some(Tag { number: 5, behind: 2, index }));
                    assert_eq!(Sealer::new(8).open(sector), None, "a sector of another ring");
                }
                let Some(sector) = packed.get_mut(first * SECTOR..(first + 1) * SECTOR) else { continue };
                for bit in 0..SECTOR * 8 {
                    sector[bit / 8] ^= 1 << (bit % 8);
                    assert_eq!(sealer.open(sector), None, "bit {bit}");
                    sector[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
    }
}
