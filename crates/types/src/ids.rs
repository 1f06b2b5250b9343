//! Identifiers. All are plain numbers on the wire and on disk, and have one printed form.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A cluster's id, drawn at random when the cluster is created. Prints as 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ClusterId(pub u128);

/// A node, numbered by the coordinator from 1. Prints as `n7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A stripe, numbered by the metadata from 1 and never reused. Prints as `s12`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StripeId(pub u64);

/// One run of a plan. The upper 32 bits are the epoch of the coordinator that made it. Prints as 16 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PlanId(pub u64);

/// What one node holds of one stripe. A rebuilt or wholly overwritten block is a new generation.
/// Prints, and is named on disk, as `s12-b003-c0-g1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockId {
    /// The stripe.
    pub stripe: StripeId,
    /// Its index in the stripe: data 0..k-1, parity k..n-1.
    pub index: u8,
    /// The copy, from 0 (the coded block).
    pub copy: u8,
    /// Counts rebuilds and whole overwrites, from 1.
    pub generation: u32,
}

/// A party of a plan: a node's agent, or a client that reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Party {
    /// The agent of a node.
    Node(NodeId),
    /// A client; the number is drawn by the coordinator for one plan.
    Client(u64),
}

impl Party {
    /// Its node; `None` for a client.
    pub const fn node(self) -> Option<NodeId> {
        match self {
            Self::Node(node) => Some(node),
            Self::Client(_) => None,
        }
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for ClusterId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match u128::from_str_radix(text, 16) {
            Ok(number) if text.len() == 32 && !text.starts_with('+') => Ok(Self(number)),
            _ => Err(format!("'{text}' is not a cluster id: use 32 hex digits")),
        }
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for ClusterId {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl FromStr for NodeId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix('n').unwrap_or(text);
        let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        number.map(Self).ok_or_else(|| format!("'{text}' is not a node: use n1, n2, …"))
    }
}

impl fmt::Display for StripeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}-b{:03}-c{}-g{}", self.stripe.0, self.index, self.copy, self.generation)
    }
}

impl FromStr for BlockId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a block: use a name like s12-b003-c0-g1");
        let mut parts = text.split('-');
        let mut number = |letter: char| -> Result<u64, String> {
            let part = parts.next().ok_or_else(wrong)?;
            part.strip_prefix(letter).and_then(|digits| digits.parse().ok()).ok_or_else(wrong)
        };
        let (stripe, index, copy, generation) = (number('s')?, number('b')?, number('c')?, number('g')?);
        if parts.next().is_some() {
            return Err(wrong());
        }
        let id = Self {
            stripe: StripeId(stripe),
            index: u8::try_from(index).map_err(|_| wrong())?,
            copy: u8::try_from(copy).map_err(|_| wrong())?,
            generation: u32::try_from(generation).map_err(|_| wrong())?,
        };
        // Accepts only the printed form: two names for one block would look like two blocks to an operator.
        if id.to_string() == text { Ok(id) } else { Err(wrong()) }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => node.fmt(f),
            Self::Client(_) => f.write_str("client"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        let block = BlockId { stripe: StripeId(12), index: 3, copy: 0, generation: 7 };
        assert_eq!(block.to_string(), "s12-b003-c0-g7");
        assert_eq!(block.to_string().parse(), Ok(block));
        assert_eq!("n7".parse(), Ok(NodeId(7)));
        let cluster = ClusterId(0xabc);
        assert_eq!(cluster.to_string().parse(), Ok(cluster));
        for wrong in ["", "s1", "s1-b1-c0-g1", "s1-b001-c0-g1-x", "s1-b256-c0-g1", "s-1-b001-c0-g1", "s1-b001-c0-g+1"] {
            assert!(wrong.parse::<BlockId>().is_err(), "{wrong} was accepted as a block");
        }
    }
}
