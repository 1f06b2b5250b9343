//! A fingerprint of what a code computes, stored with everything that it wrote. So a changed construction is never
//! mistaken for the one that wrote the blocks, even under the same spec.

use crate::Code;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a, 64 bits, over k, m, α and the generator's terms, each number as four bytes, the least first.
pub fn generator_hash(code: &dyn Code) -> u64 {
    let sizes = [code.k(), code.m(), code.alpha()].map(|size| size as u32);
    let terms = code.generator().terms().iter().flat_map(|(row, col, coefficient)| [*row, *col, u32::from(*coefficient)]);
    (sizes.into_iter().chain(terms).flat_map(u32::to_le_bytes))
        .fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_generators_have_equal_hashes_and_others_do_not() {
        let hash = |spec: &str| generator_hash(crate::parse(spec).unwrap().as_ref());
        assert_eq!(hash("rs(10,4)"), hash("RS-10-4-1024k"));
        let different = ["rs(10,4)", "rs(10,3)", "rs(9,4)", "rs(10,4,matrix=vandermonde)"];
        for (at, spec) in different.iter().enumerate() {
            for other in &different[at + 1..] {
                assert_ne!(hash(spec), hash(other), "{spec} {other}");
            }
        }
        assert_eq!(hash("rs(10,4)"), 0xdd71_48f5_d6d7_372a, "the hash is stored on disks and must never change");
    }
}
