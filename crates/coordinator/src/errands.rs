//! Errands: what agents are sent to do in the coordinator's own name. Whoever is on one may call as a client does, for just what it is
//! about and for as long as the coordinator waits for it: who is late by then is refused, and is in nobody's way.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use weft_meta::{ObjectName, UploadId};
use weft_proto::{Peer, rpc::Caller};
use weft_types::NodeId;

/// The conversion of a stripe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Errand {
    /// Who is on it …
    pub(crate) node: NodeId,
    /// … and what its operator calls it.
    pub(crate) agent: String,
    /// What is read: the object …
    pub(crate) object: ObjectName,
    /// … in this version.
    pub(crate) version: UploadId,
    /// What is written: the put …
    pub(crate) upload: UploadId,
    /// … and the number of its stripe.
    pub(crate) number: u64,
}

/// Who calls.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    pub(crate) caller: Caller,
    /// None: a client, on its own account.
    pub(crate) errand: Option<Errand>,
}

/// The errands on which somebody is.
#[derive(Debug, Default)]
pub(crate) struct Errands(Mutex<BTreeMap<u64, Errand>>);

/// Dropped, the errand is over.
#[derive(Debug)]
pub(crate) struct OnErrand<'a> {
    errands: &'a Errands,
    number: u64,
}

impl Errands {
    /// Sends somebody on an errand, of a number that nobody could guess.
    pub(crate) fn begin(&self, number: u64, errand: Errand) -> OnErrand<'_> {
        self.lock().insert(number, errand);
        OnErrand { errands: self, number }
    }

    /// The errand of a number, if it is not over.
    pub(crate) fn get(&self, number: u64) -> Option<Errand> {
        self.lock().get(&number).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Errand>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OnErrand<'_> {
    fn drop(&mut self) {
        self.errands.lock().remove(&self.number);
    }
}

impl Errand {
    /// Whether this is who was sent.
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
    fn an_errand_is_one_agents_for_one_stripe_until_it_is_over() {
        let errands = Errands::default();
        let errand = Errand {
            node: NodeId(3),
            agent: "node-03".into(),
            object: ObjectName { bucket: "b".into(), key: "k".into() },
            version: UploadId(5),
            upload: UploadId(9),
            number: 2,
        };
        let on_it = errands.begin(77, errand.clone());
        assert_eq!((errands.get(77), errands.get(78)), (Some(errand.clone()), None));
        assert!(errand.is_of(&Peer::Agent("node-03".into())) && errand.is_of(&Peer::Anonymous));
        assert!(!errand.is_of(&Peer::Agent("node-04".into())) && !errand.is_of(&Peer::Client));
        assert!(errand.reads("b", "k") && !errand.reads("b", "other") && !errand.reads("c", "k"));
        assert!(errand.writes(9, 2) && !errand.writes(9, 3) && !errand.writes(8, 2));
        drop(on_it);
        assert_eq!(errands.get(77), None);
    }
}
