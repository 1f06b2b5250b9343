//! Compares a converted stripe with the old ones by their checksums for each MiB, so that no node is trusted when the
//! old blocks are dropped.

use std::collections::BTreeMap;
use weft_types::{CHECKSUM_UNIT_LEN, Span, StripeRecord};

/// The first bytes of the object at which the new stripe differs from the old ones; `None` if no comparable bytes
/// differ. Comparable bytes form one checksum unit in both: all bytes if cells are whole MiB.
pub fn differing(old: &[StripeRecord], new: &StripeRecord) -> Option<Span> {
    let known: BTreeMap<(u64, u64), u32> =
        old.iter().flat_map(checksums).map(|(bytes, crc)| ((bytes.start, bytes.end), crc)).collect();
    let differs = |(bytes, crc): &(Span, u32)| known.get(&(bytes.start, bytes.end)).is_some_and(|known| known != crc);
    checksums(new).find(differs).map(|(bytes, _)| bytes)
}

/// The checksum units of a stripe's data that are contiguous in the object: their ranges and checksums.
fn checksums(stripe: &StripeRecord) -> impl Iterator<Item = (Span, u32)> + '_ {
    let layout = &stripe.layout;
    let of_block = move |(index, checksums): (u32, &Vec<u32>)| {
        let (len, checksums) = (layout.block_len(index), checksums.clone());
        let unit = move |(number, crc): (u64, u32)| {
            let (start, end) = (number * CHECKSUM_UNIT_LEN, len.min((number + 1) * CHECKSUM_UNIT_LEN));
            let is_one_piece = start < end && start / layout.layout.cell_len == (end - 1) / layout.layout.cell_len;
            let first = stripe.object_offset() + layout.offset_of(index, start);
            is_one_piece.then(|| (Span::new(first, first + (end - start)), crc))
        };
        (0..).zip(checksums).filter_map(unit)
    };
    (0..layout.k).zip(&stripe.checksums).flat_map(of_block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{Layout, Owner, Seq, StripeId, StripeLayout, UploadId};

    const MIB: u64 = 1 << 20;

    /// A stripe of an object whose MiB number i has the checksum i; the last unit is half a MiB.
    fn stripe(number: u64, k: u32, block_len: u64, cell_len: u64, size: u64) -> StripeRecord {
        let layout = Layout { block_len, cell_len, alpha: 1 };
        let first = number * block_len * u64::from(k);
        let layout = StripeLayout { layout, k, m: 2, data_len: (size - first).min(block_len * u64::from(k)) };
        let unit = |index: u32, unit: u64| ((first + layout.offset_of(index, unit * MIB)) / MIB) as u32;
        let checksums = (0..k).map(|index| (0..layout.checksum_units(index)).map(|at| unit(index, at)).collect());
        let checksums = checksums.chain([vec![77; 9], vec![78; 9]]).collect();
        let owner = Owner::Object(UploadId(1));
        let (blocks, corrupt) = (BTreeMap::new(), BTreeMap::new());
        StripeRecord {
            id: StripeId(number + 1),
            owner,
            number,
            ended: true,
            seq: Seq::default(),
            layout,
            blocks,
            copies: Vec::new(),
            checksums,
            kept: BTreeMap::new(),
            corrupt,
            incomplete: false,
        }
    }

    #[test]
    fn every_unit_of_data_is_compared_if_cells_are_whole_units() {
        let size = 21 * MIB + MIB / 2;
        let old: Vec<StripeRecord> = (0..6).map(|number| stripe(number, 1, 4 * MIB, 4 * MIB, size)).collect();
        let new = |number| stripe(number, 3, 4 * MIB, MIB, size);
        assert_eq!([0, 1].map(|number| differing(&old, &new(number))), [None, None]);
        let mut compared = 0;
        for number in 0..2 {
            for index in 0..3 {
                for unit in 0..new(number).checksums[index].len() {
                    let mut wrong = new(number);
                    wrong.checksums[index][unit] += 1000;
                    let bytes = differing(&old, &wrong).expect("the difference was not found");
                    assert_eq!(bytes.start / MIB, u64::from(wrong.checksums[index][unit] - 1000));
                    compared += bytes.len();
                }
            }
        }
        assert_eq!(compared, size);
        // Parity, and units that are not contiguous in the object, cannot be compared.
        let mut other = new(0);
        other.checksums[3][0] += 1;
        assert_eq!(differing(&old, &other), None);
        let mut pieces = stripe(0, 3, 4 * MIB, MIB / 4, size);
        pieces.checksums[0][0] += 1;
        assert_eq!(differing(&old, &pieces), None);
    }
}
