//! CRC32C, the checksum of pages, units, frames and files.
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
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    crc_fast::checksum_combine(algorithm, u64::from(first), u64::from(second), second_len) as u32
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
