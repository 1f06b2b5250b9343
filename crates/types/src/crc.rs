//! CRC32C, the checksum of pages, units, frames and files.
//!
//! With L(x) = crc(x) XOR crc(0…0) the checksum is linear: L(x XOR y) = L(x) XOR L(y), and z zero bytes behind x multiply L(x)
//! by X^(8z) modulo the polynomial. Polynomials are reflected: the coefficient of X^0 is the highest bit.
//!
//! Nothing of it is inlined elsewhere, so that it is as fast in a crate that is not optimised.

/// The CRC32C of `bytes`, as frames, pages and checksum units carry it.
#[inline(never)]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC32C of what `crc` is the CRC32C of, followed by `bytes`; that of nothing is 0.
#[inline(never)]
pub fn crc32c_continued(crc: u32, bytes: &[u8]) -> u32 {
    // A finished CRC32C is the register with all its bits flipped.
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// The CRC32C of two runs of bytes, one after the other, from the CRC32C of each and the length of the second.
#[inline(never)]
pub fn crc32c_joined(first: u32, second: u32, second_len: u64) -> u32 {
    crc32c_shifted(first, second_len) ^ second
}

/// `crc` times X^(8·bytes).
#[inline(never)]
pub fn crc32c_shifted(mut crc: u32, bytes: u64) -> u32 {
    let mut left = bytes;
    while left != 0 {
        crc = multiply(crc, POWERS[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    crc
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

    #[test]
    fn a_checksum_goes_on_where_it_stopped() {
        let bytes: Vec<u8> = (0..100_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for cut in [0, 1, 7, 4096, 65_536, 99_999, 100_000] {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(crc32c_continued(crc32c(first), second), crc32c(&bytes), "cut at {cut}");
            assert_eq!(crc32c_joined(crc32c(first), crc32c(second), second.len() as u64), crc32c(&bytes), "cut at {cut}");
        }
        assert_eq!(crc32c_continued(0, b"123456789"), 0xe306_9283);
    }
}
