//! Which parts of a block can be written to the disk while the rest of it arrives.

use crate::files::FileHandle;
use std::collections::BTreeMap;
use weft_types::Span;

/// The length of a part: long enough that a call for each costs nothing measurable, and short enough that the commit has little to wait
/// for.
const PART_LEN: u64 = 4 << 20;

/// Begins to write each part of a file of which all bytes have arrived, in any order. Otherwise the disk is idle while a block arrives,
/// and the commit waits for all of it: with six blocks of 64 MiB on one disk, for 126 ms instead of 10. Blocks shorter than a part cost
/// nothing.
///
/// `POSIX_FADV_DONTNEED` begins write-back and does not wait. It also frees pages that are on the disk already, so it is given whole
/// parts, once each: their pages are not on the disk yet, and stay in the page cache. It makes nothing durable: the commit syncs the
/// whole file, and an error of these writes is an error of that sync. An `fdatasync` of each part on another thread shortens the commit
/// as much, and takes more CPU time and more syncs of the disk.
#[derive(Debug, Default)]
pub(super) struct WriteBack {
    /// The bytes that were written of each part that is not complete, by the part's number.
    written: BTreeMap<u64, u64>,
}

impl WriteBack {
    /// Takes note of a write to the file, of bytes that were not written before.
    pub(super) fn wrote(&mut self, file: &dyn FileHandle, write: Span) {
        if let Some(run) = self.add(write) {
            file.begin_write_back(run);
        }
    }

    /// Returns the parts that a write completes; they follow one another.
    fn add(&mut self, write: Span) -> Option<Span> {
        let mut complete: Option<Span> = None;
        for number in write.start / PART_LEN..write.end.div_ceil(PART_LEN) {
            let part = Span::new(number * PART_LEN, number.saturating_add(1).saturating_mul(PART_LEN));
            let written = self.written.remove(&number).unwrap_or(0) + part.intersect(write).len();
            if written < PART_LEN {
                self.written.insert(number, written);
            } else {
                complete = Some(Span::new(complete.map_or(part.start, |run| run.start), part.end));
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_reported_once_and_when_it_is_whole() {
        const MIB: u64 = 1 << 20;
        let runs = |writes: &[(u64, u64)]| {
            let mut write_back = WriteBack::default();
            let runs = writes.iter().map(|(start, end)| write_back.add(Span::new(start * MIB, end * MIB)));
            runs.map(|run| run.map(|run| (run.start / MIB, run.end / MIB))).collect::<Vec<_>>()
        };
        assert_eq!(runs(&[(0, 3), (3, 4), (4, 5), (5, 21)]), [None, Some((0, 4)), None, Some((4, 20))]);
        assert_eq!(runs(&[(2, 3), (1, 2), (3, 6), (0, 1), (7, 8)]), [None, None, None, Some((0, 4)), None]);
        // Places that grow together, and a write that ends two parts.
        assert_eq!(runs(&[(0, 2), (6, 9), (2, 6), (9, 12)]), [None, None, Some((0, 8)), Some((8, 12))]);
        assert_eq!(runs(&[(1, 90), (0, 1), (5, 5)]), [Some((4, 88)), Some((0, 4)), None]);
        let mut write_back = WriteBack::default();
        assert_eq!(write_back.add(Span::new(0, PART_LEN - 1)), None);
    }
}
