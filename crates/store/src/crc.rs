//! Checksums that are put together from pieces, in whatever order they come, without reading anything again: the checksum of a page, and
//! that of a MiB from those of its pages. The maths is in [`weft_types::crc32c_shifted`].

use weft_types::crc32c_shifted;
pub use weft_types::{crc32c, crc32c_joined as combine};

/// CRC32C of `len` zero bytes.
pub fn zeros(len: u64) -> u32 {
    !crc32c_shifted(!0, len)
}

/// What a run of bytes with checksum `crc` adds to the checksum of zeros that it is laid over, when `behind` bytes follow it.
pub fn contribution(crc: u32, len: u64, behind: u64) -> u32 {
    crc32c_shifted(crc ^ zeros(len), behind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_check_value_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
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
