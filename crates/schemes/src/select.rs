//! The choice of helpers, their order, and the number of paths, as a user can set it.

use weft_types::{Error, Result};

/// Which helpers help, and in which order a chain goes through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Select {
    /// The first ones of `prefer`, in that order.
    AsPreferred,
    /// The first ones of `prefer`, in the order of the fastest path through them.
    Ordered,
    /// Those on the fastest path, in its order; `prefer` decides between equally fast ones.
    #[default]
    Best,
    /// Random helpers in a random order, like a scheme that knows nothing of the network.
    Random {
        /// The same seed gives the same choice.
        seed: u64,
    },
}

/// Over how many paths a lost block is repaired, each for its share of the positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Paths {
    /// This number, as far as there are helpers.
    Count(u32),
    /// The number predicted to be fastest.
    #[default]
    Auto,
}

impl Select {
    /// The names for users.
    pub const NAMES: [&str; 4] = ["best", "ordered", "preferred", "random"];

    /// Parses a user's name; empty is the default. `seed` is called for a random choice.
    pub fn parse(name: &str, seed: impl FnOnce() -> u64) -> Result<Self> {
        match name {
            "" | "best" => Ok(Self::Best),
            "ordered" => Ok(Self::Ordered),
            "preferred" => Ok(Self::AsPreferred),
            "random" => Ok(Self::Random { seed: seed() }),
            _ => Err(Error::invalid(format!("'{name}' does not select helpers: use one of {}", Self::NAMES.join(", ")))),
        }
    }
}

impl Paths {
    /// The most paths that can be requested: a stripe has no helpers for more.
    pub const MAX: u32 = 16;

    /// From a number; 0 is [`Self::Auto`].
    pub fn of(count: u32) -> Result<Self> {
        match count {
            0 => Ok(Self::Auto),
            count if count <= Self::MAX => Ok(Self::Count(count)),
            count => Err(Error::invalid(format!("{count} paths are too many: at most {} are allowed", Self::MAX))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_are_parsed_and_errors_reported() {
        let parse = |name: &str| Select::parse(name, || 7).map_err(|error| error.message);
        assert_eq!(
            Select::NAMES.map(|name| parse(name).unwrap()),
            [Select::Best, Select::Ordered, Select::AsPreferred, Select::Random { seed: 7 }]
        );
        assert_eq!(parse(""), Ok(Select::default()));
        assert_eq!(parse("worst").unwrap_err(), "'worst' does not select helpers: use one of best, ordered, preferred, random");
        assert_eq!((Paths::of(0), Paths::of(3)), (Ok(Paths::Auto), Ok(Paths::Count(3))));
        assert!(Paths::of(17).unwrap_err().message.contains("17 paths are too many"));
    }
}
