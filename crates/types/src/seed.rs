//! Seeds of random numbers.

/// The seed of a process's random numbers, which include secret keys: as long as such a key, so that it is no easier to guess.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl Seed {
    /// A seed for other numbers, so that none of them can be computed from numbers that this one gives.
    pub fn with_label(mut self, label: [u8; 8]) -> Self {
        self.0.iter_mut().zip(label).for_each(|(byte, label)| *byte ^= label);
        self
    }
}

/// A seed that can be guessed, for tests and simulations.
impl From<u64> for Seed {
    fn from(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Self(bytes)
    }
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
    }
}
