//! Random numbers that a seed determines.

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number from 0 to `bound - 1`; 0 if there is none.
    pub(super) fn up_to(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(super) fn at<'a, T>(&mut self, values: &'a [T]) -> &'a T {
        &values[self.up_to(values.len() as u64) as usize]
    }

    /// Whether something happens that happens in so many of a hundred cases.
    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.up_to(100) < chance
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
