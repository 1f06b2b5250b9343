//! Since when plans avoid a node, and why.

use super::{Member, Members};
use crate::Time;
use std::{sync::Arc, time::Duration};

/// The longest reason that is kept, bytes: some reasons come from other nodes.
const WHY_BYTES_MAX: usize = 240;

/// A time for which plans avoid a node because it failed in one.
#[derive(Debug, Clone)]
pub(super) struct Suspicion {
    since: Time,
    pub(super) until: Time,
    why: Arc<str>,
}

/// What is known of a node that plans avoid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// Since when they do, without a break, milliseconds since 1970.
    pub since_ms: u64,
    /// Why, for a person; empty if it is not known.
    pub why: String,
}

impl Suspicion {
    /// A node failed, maybe once more. Without a reason, an earlier one that is still valid stays.
    pub(super) fn after(before: Option<Self>, why: &str, now: Time, lasts: Duration) -> Self {
        let (since, earlier) = match before.filter(|before| before.until > now) {
            Some(before) => (before.since, before.why),
            None => (now, Arc::from("")),
        };
        let end = (0..=why.len().min(WHY_BYTES_MAX)).rev().find(|at| why.is_char_boundary(*at)).unwrap_or(0);
        Self { since, until: now + lasts, why: if why.is_empty() { earlier } else { Arc::from(&why[..end]) } }
    }
}

impl Members {
    /// Why plans avoid a node, if they do.
    pub(super) fn suspect_of(&self, member: &Member, now: Time) -> Option<Suspect> {
        if self.suspect_for(member, now).is_zero() {
            return None;
        }
        let at_fault = self.disputes.at_fault_since(member.record.id);
        let is_part = |it: &&Suspicion| it.until > now || at_fault.is_some_and(|last| it.until >= last);
        let own = member.suspicion.as_ref().filter(is_part);
        let since = own.map(|it| it.since).into_iter().chain(at_fault).min().unwrap_or(now);
        let mut why: Vec<String> = own.map(|it| it.why.to_string()).filter(|why| !why.is_empty()).into_iter().collect();
        if at_fault.is_some() {
            let peers = self.disputes.peers(member.record.id);
            let names: Vec<&str> = peers.iter().filter_map(|peer| self.nodes.get(peer)).map(|it| &*it.record.name).collect();
            why.push(format!("its links with {} failed, and no other node has so many such links", names.join(", ")));
        }
        Some(Suspect { since_ms: self.ms(since), why: why.join("; ") })
    }
}
