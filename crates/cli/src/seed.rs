//! Randomness, from the operating system.

use rand::{TryRngCore as _, rngs::OsRng};
use weft_types::{Error, Result};

/// An unpredictable seed.
pub fn seed() -> Result<u64> {
    OsRng.try_next_u64().map_err(|error| Error::fatal(format!("cannot get random numbers from the system: {error}")))
}
