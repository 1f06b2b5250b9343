//! Randomness, from the operating system.

use rand::{TryRngCore as _, rngs::OsRng};
use weft_types::{Error, Result};

/// A seed that nobody can guess.
pub fn seed() -> Result<u64> {
    OsRng.try_next_u64().map_err(|error| Error::fatal(format!("the system gives no random numbers: {error}")))
}
