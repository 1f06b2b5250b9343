//! Randomness, from the operating system.

use rand::{TryRngCore as _, rngs::OsRng};
use weft_types::{Error, Result, Seed};

/// An unpredictable number, for what need not be secret.
pub fn seed() -> Result<u64> {
    OsRng.try_next_u64().map_err(failed)
}

/// The seed of a server, which draws secret keys from it.
pub fn secret_seed() -> Result<Seed> {
    let mut seed = [0; 32];
    OsRng.try_fill_bytes(&mut seed).map_err(failed)?;
    Ok(Seed(seed))
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::fatal(format!("cannot get random numbers from the system: {error}"))
}
