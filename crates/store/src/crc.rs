//! CRC32C, and its linearity.
//!
//! With L(x) = crc(x) XOR crc(0…0) the checksum is linear: L(x XOR y) = L(x) XOR L(y), and z zero bytes behind x multiply L(x)
//! by X^(8z) modulo the polynomial. So the checksum of a page is put together from its pieces in whatever order they
//! come, and the checksum of a MiB from those of its pages, without reading anything again.
//! Polynomials are reflected: the coefficient of X^0 is the highest bit.

use weft_types::PAGE_LEN;
pub use weft_types::crc32c;

/// CRC32C of `len` zero bytes.
pub fn zeros(len: u64) -> u32 {
    !shift(!0, len)
}

/// CRC32C of what `first` is of followed by `second_len` bytes that `second` is of.
pub fn combine(first: u32, second: u32, second_len: u64) -> u32 {
    let shifted = if second_len == PAGE_LEN { shift_by_page(first) } else { shift(first, second_len) };
    shifted ^ second
}

/// What a run of bytes with checksum `crc` adds to the checksum of zeros that it is laid over, when `behind` bytes follow it.
pub fn contribution(crc: u32, len: u64, behind: u64) -> u32 {
    shift(crc ^ zeros(len), behind)
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

/// Times X^(8·bytes).
fn shift(mut crc: u32, bytes: u64) -> u32 {
    let mut left = bytes;
    while left != 0 {
        crc = multiply(crc, POWERS[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    crc
}

/// Each byte of a checksum times X^(8·PAGE_LEN): the sums of a block's pages are put together whenever it is opened.
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

/// Times X^(8·PAGE_LEN), by the linearity of it.
fn shift_by_page(crc: u32) -> u32 {
    let [a, b, c, d] = crc.to_le_bytes().map(usize::from);
    PAGE_SHIFTS[0][a] ^ PAGE_SHIFTS[1][b] ^ PAGE_SHIFTS[2][c] ^ PAGE_SHIFTS[3][d]
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
    use proptest::prelude::*;

    #[test]
    fn the_check_value_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_page_is_shifted_by_as_by_its_length() {
        for crc in (0..32).map(|bit| 1 << bit).chain([0, !0, 0xe306_9283]) {
            assert_eq!(shift_by_page(crc), shift(crc, PAGE_LEN));
        }
    }

    proptest! {
        #[test]
        fn put_together_is_as_if_read_at_once(before in 0usize..5000, bytes: Vec<u8>, behind in 0usize..5000) {
            let mut whole = vec![0; before];
            whole.extend(&bytes);
            whole.resize(whole.len() + behind, 0);
            let len = whole.len() as u64;
            prop_assert_eq!(zeros(len), crc32c(&vec![0; whole.len()]));
            let laid_over = zeros(len) ^ contribution(crc32c(&bytes), bytes.len() as u64, behind as u64);
            prop_assert_eq!(laid_over, crc32c(&whole));
            let (first, second) = whole.split_at(before.min(whole.len()));
            prop_assert_eq!(combine(crc32c(first), crc32c(second), second.len() as u64), crc32c(&whole));
        }
    }
}
