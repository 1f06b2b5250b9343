//! CRC32C, the checksum of pages, units, frames and files, and its linearity.
//!
//! With L(x) = crc(x) XOR crc(0…0) the checksum is linear: L(x XOR y) = L(x) XOR L(y), and z zero bytes after x
//! multiply L(x) by X^(8z) modulo the polynomial. So the checksum of a page can be combined from its pieces in any
//! order, and that of a MiB or of a frame from those of its pages, without reading the bytes again. Polynomials are
//! reflected: the coefficient of X^0 is the highest bit.
//!
//! The functions are not inlined into other crates, so they are equally fast in crates without optimisation.

use crate::PAGE_LEN;

/// The CRC32C of `bytes`, as frames, pages and checksum units carry it.
#[inline(never)]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC32C of the bytes with checksum `crc` followed by `bytes`. The checksum of no bytes is 0.
#[inline(never)]
pub fn crc32c_continued(crc: u32, bytes: &[u8]) -> u32 {
    // A finished CRC32C is the register with all bits inverted.
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// The CRC32C of two consecutive runs of bytes, from the CRC32C of each and the length of the second.
#[inline(never)]
pub fn crc32c_joined(first: u32, second: u32, second_len: u64) -> u32 {
    shift(first, second_len) ^ second
}

/// The CRC32C of `len` zero bytes.
#[inline(never)]
pub fn crc32c_zeros(len: u64) -> u32 {
    !shift(!0, len)
}

/// What a run of bytes with checksum `crc` adds to the checksum of the zeros that it replaces, if `behind` bytes follow
/// it.
#[inline(never)]
pub fn crc32c_contribution(crc: u32, len: u64, behind: u64) -> u32 {
    shift(crc ^ crc32c_zeros(len), behind)
}

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// X^(8·2^i).
const POWERS: [u32; 64] = {
    let mut powers = [0; 64];
    powers[0] = 1 << (31 - 8);
    let mut i = 1;
    while i < 64 {
        powers[i] = multiply(powers[i - 1], powers[i - 1]);
        i += 1;
    }
    powers
};

/// Each byte of a checksum times X^(8·PAGE_LEN). Page checksums are combined most often: once for every 4 KiB that is
/// read.
static PAGE_SHIFTS: [[u32; 256]; 4] = {
    let power = POWERS[PAGE_LEN.trailing_zeros() as usize];
    let mut shifts = [[0; 256]; 4];
    let mut at = 0;
    while at < 4 * 256 {
        shifts[at / 256][at % 256] = multiply(((at % 256) as u32) << (8 * (at / 256)), power);
        at += 1;
    }
    shifts
};
const _: () = assert!(PAGE_LEN.is_power_of_two());

/// Times X^(8·bytes).
fn shift(crc: u32, bytes: u64) -> u32 {
    if bytes == PAGE_LEN { shift_by_page(crc) } else { shift_by_powers(crc, bytes) }
}

fn shift_by_page(crc: u32) -> u32 {
    let [a, b, c, d] = crc.to_le_bytes().map(usize::from);
    PAGE_SHIFTS[0][a] ^ PAGE_SHIFTS[1][b] ^ PAGE_SHIFTS[2][c] ^ PAGE_SHIFTS[3][d]
}

fn shift_by_powers(mut crc: u32, bytes: u64) -> u32 {
    let mut left = bytes;
    while left != 0 {
        crc = multiply(crc, POWERS[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    crc
}

const fn multiply(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 32);
    while bit > 0 {
        bit -= 1;
        if (a >> bit) & 1 != 0 {
            product ^= b;
        }
        b = (b >> 1) ^ if b & 1 != 0 { POLYNOMIAL } else { 0 };
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(len: u32) -> Vec<u8> {
        (0..len).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn the_check_value_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_continued(0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_checksum_can_be_continued() {
        let bytes = pattern(100_000);
        for cut in [0, 1, 7, 4095, 4096, 65_536, 95_904, 99_999, 100_000] {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(crc32c_continued(crc32c(first), second), crc32c(&bytes), "cut at {cut}");
            assert_eq!(crc32c_joined(crc32c(first), crc32c(second), second.len() as u64), crc32c(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn a_run_replaces_zeros() {
        for (before, len, behind) in [(0, 0, 0), (0, 1, 4095), (4095, 1, 0), (100, 3000, 996), (7, 4096, 4096), (4096, 5, 8192)] {
            let run = pattern(len);
            let whole = [vec![0; before], run.clone(), vec![0; behind]].concat();
            let zeros = crc32c_zeros(whole.len() as u64);
            assert_eq!(zeros, crc32c(&vec![0; whole.len()]));
            let laid_over = zeros ^ crc32c_contribution(crc32c(&run), u64::from(len), behind as u64);
            assert_eq!(laid_over, crc32c(&whole), "{before}, {len}, {behind}");
        }
    }

    #[test]
    fn the_table_for_page_shifts_matches_the_general_shift() {
        for crc in (0..32).map(|bit| 1 << bit).chain([0, !0, 0xe306_9283]) {
            assert_eq!(shift_by_page(crc), shift_by_powers(crc, PAGE_LEN));
        }
    }
}
