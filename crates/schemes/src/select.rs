//! Who helps, in which order, and over how many paths: what somebody may say of it.

use weft_types::{Error, Result};

/// Who helps, and in which order a chain goes through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Select {
    /// The first ones of `prefer`, in that order.
    AsPreferred,
    /// The first ones of `prefer`, in the order of the quickest path through them.
    Ordered,
    /// Those through which the quickest path leads, in its order; `prefer` decides between equally quick ones.
    #[default]
    Best,
    /// Drawn, in an order that is drawn too: what a scheme without any knowledge of the network would do.
    Random {
        /// The same seed draws the same.
        seed: u64,
    },
}

/// Over how many paths a lost block comes, each for its share of the positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Paths {
    /// So many, as far as there are helpers for them.
    Count(u32),
    /// As many as are predicted to be the quickest.
    #[default]
    Auto,
}

impl Select {
    /// What a user says for each.
    pub const NAMES: [&str; 4] = ["best", "ordered", "preferred", "random"];

    /// From what a user says; empty is the default. `seed` is for who wants to draw.
    pub fn parse(name: &str, seed: impl FnOnce() -> u64) -> Result<Self> {
        match name {
            "" | "best" => Ok(Self::Best),
            "ordered" => Ok(Self::Ordered),
            "preferred" => Ok(Self::AsPreferred),
            "random" => Ok(Self::Random { seed: seed() }),
            _ => Err(Error::invalid(format!("helpers cannot be selected by '{name}'; there are: {}", Self::NAMES.join(", ")))),
        }
    }
}

impl Paths {
    /// More than this many paths are refused: a stripe has no helpers for them.
    pub const MAX: u32 = 16;

    /// From a number, 0 for [`Self::Auto`].
    pub fn of(count: u32) -> Result<Self> {
        match count {
            0 => Ok(Self::Auto),
            count if count <= Self::MAX => Ok(Self::Count(count)),
            count => Err(Error::invalid(format!("{count} paths are too many: at most {} can be asked for", Self::MAX))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_says_is_read_and_mistakes_are_told() {
        let parse = |name: &str| Select::parse(name, || 7).map_err(|error| error.message);
        assert_eq!(
            Select::NAMES.map(|name| parse(name).unwrap()),
            [Select::Best, Select::Ordered, Select::AsPreferred, Select::Random { seed: 7 }]
        );
        assert_eq!(parse(""), Ok(Select::default()));
        assert_eq!(
            parse("worst").unwrap_err(),
            "helpers cannot be selected by 'worst'; there are: best, ordered, preferred, random"
        );
        assert_eq!((Paths::of(0), Paths::of(3)), (Ok(Paths::Auto), Ok(Paths::Count(3))));
        assert!(Paths::of(17).unwrap_err().message.contains("17 paths are too many"));
    }
}
