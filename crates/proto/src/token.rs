//! The right to use one link of one plan, to request updates that one block's node leads, or to read the block there: a MAC that the coordinator computes and the
//! accepting agent verifies.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use std::fmt;
use weft_types::{BlockId, Error, Party, PlanId, Result};

/// A link's token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LinkToken(pub [u8; TOKEN_LEN]);

/// A token is a credential and must not be logged.
impl std::fmt::Debug for LinkToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinkToken(…)")
    }
}

/// Bytes of a token.
pub const TOKEN_LEN: usize = 32;

/// The key shared by the coordinator and one agent; it is new at each registration.
#[derive(Clone, PartialEq, Eq)]
pub struct LinkKey([u8; 32]);

/// The rights that a token grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRights {
    /// The epoch of the coordinator that made the plan.
    pub epoch: u64,
    /// The plan.
    pub plan: PlanId,
    /// The link's number in the plan.
    pub link: u32,
    /// The sender.
    pub from: Party,
    /// The receiver.
    pub to: Party,
    /// The [`task_hash`] of the accepting end's encoded task, which contains blocks, generations, ranges and rights.
    /// For a probe, [`probe_hash`].
    pub task_hash: [u8; 32],
}

/// The right to request updates that a data block's node leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateRights {
    /// The data block.
    pub block: BlockId,
    /// The term of its stripe. A token of another term is stale: the client asks the coordinator for a new one.
    pub term: u64,
    /// The client's session.
    pub session: u64,
    /// When the session ends, in the coordinator's time. No update of it begins later.
    pub ends_at_ms: u64,
}

/// The right to read a data block of a stripe that is open for updates, at its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRights {
    /// The data block.
    pub block: BlockId,
    /// The term of its stripe. It is read in no other one.
    pub term: u64,
    /// When the right ends, in the coordinator's time.
    pub ends_at_ms: u64,
}

/// The SHA-256 of an encoded task.
pub fn task_hash(task: &[u8]) -> [u8; 32] {
    Sha256::digest(task).into()
}

/// The value in place of a task's hash in the token of a probe, which has no task.
pub fn probe_hash() -> [u8; 32] {
    task_hash(b"weft probe 1")
}

impl LinkKey {
    /// A key from 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A key from its bytes on the wire.
    pub fn from_slice(bytes: &[u8]) -> Result<Self> {
        let wrong = |_| Error::invalid(format!("a link key has {} bytes instead of 32", bytes.len()));
        bytes.try_into().map(Self).map_err(wrong)
    }

    /// The key's bytes, which are sent only to the agent that shares the key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Identifies the registration that the key belongs to, without revealing the key.
    pub fn id(&self) -> [u8; 8] {
        let mut id = [0; 8];
        let mac = self.keyed().chain_update(b"weft registration 1").finalize().into_bytes();
        id.iter_mut().zip(mac).for_each(|(byte, of_mac)| *byte = of_mac);
        id
    }

    /// The token for `rights`.
    pub fn issue(&self, rights: &LinkRights) -> LinkToken {
        LinkToken(self.mac(rights).finalize().into_bytes().into())
    }

    /// Checks `token` for `rights`, in constant time.
    pub fn verify(&self, rights: &LinkRights, token: &LinkToken) -> Result<()> {
        let refused = |_| Error::invalid(format!("the token for link {} of plan {} is not valid", rights.link, rights.plan));
        self.mac(rights).verify_slice(&token.0).map_err(refused)
    }

    /// The token for the updates of a session.
    pub fn issue_update(&self, rights: &UpdateRights) -> LinkToken {
        LinkToken(self.update_mac(rights).finalize().into_bytes().into())
    }

    /// Checks `token` for `rights`, in constant time. Whether the session has ended is checked by the caller.
    pub fn verify_update(&self, rights: &UpdateRights, token: &LinkToken) -> Result<()> {
        let refused = |_| {
            let UpdateRights { block, term, session, .. } = rights;
            Error::retry(format!("the token of session {session} for updates of block {block} in term {term} is not valid"))
        };
        self.update_mac(rights).verify_slice(&token.0).map_err(refused)
    }

    /// The token for reads of an open block.
    pub fn issue_read(&self, rights: &ReadRights) -> LinkToken {
        LinkToken(self.read_mac(rights).finalize().into_bytes().into())
    }

    /// Checks `token` for `rights`, in constant time. Whether the right has ended is checked by the caller.
    pub fn verify_read(&self, rights: &ReadRights, token: &LinkToken) -> Result<()> {
        let ReadRights { block, term, .. } = rights;
        let refused = |_| Error::retry(format!("the token for reads of block {block} in term {term} is not valid"));
        self.read_mac(rights).verify_slice(&token.0).map_err(refused)
    }

    fn keyed(&self) -> Hmac<Sha256> {
        // The key fits in one block of SHA-256; `new` takes keys of exactly the block's length.
        let mut block = [0u8; 64];
        block[..self.0.len()].copy_from_slice(&self.0);
        <Hmac<Sha256> as hmac::digest::KeyInit>::new(&block.into())
    }

    fn mac(&self, rights: &LinkRights) -> Hmac<Sha256> {
        let mut mac = self.keyed();
        mac.update(b"weft link token 1");
        mac.update(&rights.epoch.to_le_bytes());
        mac.update(&rights.plan.0.to_le_bytes());
        mac.update(&rights.link.to_le_bytes());
        mac.update(&party_bytes(rights.from));
        mac.update(&party_bytes(rights.to));
        mac.update(&rights.task_hash);
        mac
    }

    fn update_mac(&self, rights: &UpdateRights) -> Hmac<Sha256> {
        let UpdateRights { block, term, session, ends_at_ms } = rights;
        let mut mac = self.block_mac(b"weft update token 1", *block, *term);
        mac.update(&session.to_le_bytes());
        mac.update(&ends_at_ms.to_le_bytes());
        mac
    }

    fn read_mac(&self, rights: &ReadRights) -> Hmac<Sha256> {
        let ReadRights { block, term, ends_at_ms } = rights;
        let mut mac = self.block_mac(b"weft read token 1", *block, *term);
        mac.update(&ends_at_ms.to_le_bytes());
        mac
    }

    /// Of a right at a block in a term. No purpose is the beginning of another one.
    fn block_mac(&self, purpose: &[u8], block: BlockId, term: u64) -> Hmac<Sha256> {
        let mut mac = self.keyed();
        mac.update(purpose);
        mac.update(&block.stripe.0.to_le_bytes());
        mac.update(&[block.index, block.copy]);
        mac.update(&block.generation.to_le_bytes());
        mac.update(&term.to_le_bytes());
        mac
    }
}

impl LinkToken {
    /// A token from its bytes on the wire.
    pub fn from_slice(bytes: &[u8]) -> Result<Self> {
        let wrong = |_| Error::invalid(format!("a link token has {} bytes instead of {TOKEN_LEN}", bytes.len()));
        bytes.try_into().map(Self).map_err(wrong)
    }
}

impl fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkKey(secret)")
    }
}

/// A fixed length, so that no two lists of fields have the same encoding.
fn party_bytes(party: Party) -> [u8; 9] {
    let (kind, number) = match party {
        Party::Node(node) => (1, u64::from(node.0)),
        Party::Client(number) => (2, number),
    };
    let mut bytes = [kind; 9];
    bytes[1..].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{NodeId, StripeId};

    #[test]
    fn an_update_token_is_valid_only_for_its_own_block_term_and_session() {
        let key = LinkKey::new([7; 32]);
        let block = BlockId { stripe: StripeId(9), index: 2, copy: 0, generation: 3 };
        let rights = UpdateRights { block, term: 4, session: 5, ends_at_ms: 6 };
        let token = key.issue_update(&rights);
        assert_eq!(key.verify_update(&rights, &token), Ok(()));
        let of = |block: BlockId| UpdateRights { block, ..rights };
        let others = [
            of(BlockId { stripe: StripeId(8), ..block }),
            of(BlockId { index: 3, ..block }),
            of(BlockId { copy: 1, ..block }),
            of(BlockId { generation: 2, ..block }),
            UpdateRights { term: 5, ..rights },
            UpdateRights { session: 6, ..rights },
            UpdateRights { ends_at_ms: 7, ..rights },
        ];
        for other in others {
            assert!(key.verify_update(&other, &token).is_err(), "{other:?}");
        }
        assert!(LinkKey::new([8; 32]).verify_update(&rights, &token).is_err(), "another registration's key");
    }

    #[test]
    fn a_read_token_is_valid_only_for_its_own_block_and_term_and_for_no_updates() {
        let key = LinkKey::new([7; 32]);
        let block = BlockId { stripe: StripeId(9), index: 2, copy: 0, generation: 3 };
        let rights = ReadRights { block, term: 4, ends_at_ms: 6 };
        let token = key.issue_read(&rights);
        assert_eq!(key.verify_read(&rights, &token), Ok(()));
        let others = [
            ReadRights { block: BlockId { generation: 2, ..block }, ..rights },
            ReadRights { term: 5, ..rights },
            ReadRights { ends_at_ms: 7, ..rights },
        ];
        for other in others {
            assert!(key.verify_read(&other, &token).is_err(), "{other:?}");
        }
        let update = UpdateRights { block, term: 4, session: 5, ends_at_ms: 6 };
        assert!(key.verify_update(&update, &token).is_err() && key.verify_read(&rights, &key.issue_update(&update)).is_err());
    }

    #[test]
    fn a_token_is_valid_only_for_its_own_link() {
        let key = LinkKey::new([7; 32]);
        let rights = LinkRights {
            epoch: 3,
            plan: PlanId(9),
            link: 65537,
            from: Party::Client(4),
            to: Party::Node(NodeId(4)),
            task_hash: task_hash(b"task"),
        };
        let token = key.issue(&rights);
        assert_eq!(key.verify(&rights, &token), Ok(()));
        assert_eq!(format!("{token:?}"), "LinkToken(…)", "a token was printed");
        let others = [
            LinkRights { epoch: 4, ..rights },
            LinkRights { plan: PlanId(8), ..rights },
            LinkRights { link: 1, ..rights },
            LinkRights { from: Party::Node(NodeId(4)), ..rights },
            LinkRights { to: Party::Node(NodeId(5)), ..rights },
            LinkRights { from: rights.to, to: rights.from, ..rights },
            LinkRights { task_hash: task_hash(b"other"), ..rights },
        ];
        for other in others {
            assert!(key.verify(&other, &token).is_err(), "{other:?}");
        }
        assert!(LinkKey::new([8; 32]).verify(&rights, &token).is_err());
        for bit in 0..256 {
            let mut forged = token;
            forged.0[bit / 8] ^= 1 << (bit % 8);
            assert!(key.verify(&rights, &forged).is_err());
        }
    }

    #[test]
    fn the_mac_is_hmac_sha256_over_the_documented_bytes() {
        let rights = LinkRights {
            epoch: 0,
            plan: PlanId(0),
            link: 0,
            from: Party::Client(0),
            to: Party::Node(NodeId(0)),
            task_hash: [0; 32],
        };
        let key = LinkKey::new([1; 32]);
        let mut message = b"weft link token 1".to_vec();
        message.extend([0; 20]);
        message.extend([2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        message.extend([0; 32]);
        // HMAC by its definition: H(key ⊕ opad ‖ H(key ⊕ ipad ‖ message)).
        let padded = |pad: u8| (0..64).map(|at| if at < 32 { 1 ^ pad } else { pad }).collect::<Vec<u8>>();
        let inner = Sha256::digest([padded(0x36), message].concat());
        let outer: [u8; 32] = Sha256::digest([padded(0x5c), inner.to_vec()].concat()).into();
        assert_eq!(key.issue(&rights), LinkToken(outer));
    }
}
