//! Delegations: work that agents do for the coordinator. An agent with a delegation may make a client's calls for that work only, while the
//! coordinator waits for it; later calls are refused.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use weft_proto::{Peer, rpc::Caller};
use weft_types::{NodeId, ObjectName, UploadId};

/// The conversion of a stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delegation {
    /// The agent's node.
    pub(crate) node: NodeId,
    /// The agent's name.
    pub(crate) agent: String,
    /// The object to read,
    pub(crate) object: ObjectName,
    /// in this version.
    pub(crate) version: UploadId,
    /// The put that writes it,
    pub(crate) upload: UploadId,
    /// and the number of the stripe.
    pub(crate) number: u64,
}

/// A caller.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    pub(crate) caller: Caller,
    /// `None` for a client that acts for itself.
    pub(crate) delegation: Option<Delegation>,
}

/// The active delegations.
#[derive(Debug, Default)]
pub(crate) struct Delegations(Mutex<BTreeMap<u64, Delegation>>);

/// An active delegation. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Delegated<'a> {
    delegations: &'a Delegations,
    number: u64,
}

impl Delegations {
    /// Begins a delegation under `number`, which must be unguessable.
    pub(crate) fn begin(&self, number: u64, delegation: Delegation) -> Delegated<'_> {
        self.lock().insert(number, delegation);
        Delegated { delegations: self, number }
    }

    /// The delegation with this number, if it is active.
    pub(crate) fn get(&self, number: u64) -> Option<Delegation> {
        self.lock().get(&number).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Delegation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Delegated<'_> {
    fn drop(&mut self) {
        self.delegations.lock().remove(&self.number);
    }
}

impl Delegation {
    /// Whether the caller is the agent of the delegation.
    pub(crate) fn is_of(&self, peer: &Peer) -> bool {
        peer.may_be_agent(&self.agent)
    }

    pub(crate) fn reads(&self, bucket: &str, key: &str) -> bool {
        (self.object.bucket.as_str(), self.object.key.as_str()) == (bucket, key)
    }

    pub(crate) fn writes(&self, upload: u64, number: u64) -> bool {
        (self.upload.0, self.number) == (upload, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delegation_is_valid_for_one_agent_and_one_stripe_until_it_ends() {
        let delegations = Delegations::default();
        let delegation = Delegation {
            node: NodeId(3),
            agent: "node-03".into(),
            object: ObjectName { bucket: "b".into(), key: "k".into() },
            version: UploadId(5),
            upload: UploadId(9),
            number: 2,
        };
        let on_it = delegations.begin(77, delegation.clone());
        assert_eq!((delegations.get(77), delegations.get(78)), (Some(delegation.clone()), None));
        assert!(delegation.is_of(&Peer::Agent("node-03".into())) && delegation.is_of(&Peer::Anonymous));
        assert!(!delegation.is_of(&Peer::Agent("node-04".into())) && !delegation.is_of(&Peer::Client));
        assert!(delegation.reads("b", "k") && !delegation.reads("b", "other") && !delegation.reads("c", "k"));
        assert!(delegation.writes(9, 2) && !delegation.writes(9, 3) && !delegation.writes(8, 2));
        drop(on_it);
        assert_eq!(delegations.get(77), None);
    }
}
