//! The limit, and which nodes obey it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::Notify;
use weft_control::{
    Time,
    limit::{self, Bounds, Cost, Ledger, Measured},
    view::View,
};
use weft_plan::Class;
use weft_proto::v1;
use weft_types::{NodeId, RepairLimit};

/// Identifies a node's registration.
pub(super) type Registration = [u8; 8];

/// The limit, and which nodes obey it.
#[derive(Debug)]
pub(crate) struct Limit {
    state: Mutex<State>,
    pub(super) changed: Notify,
    /// Held while a person changes the limit.
    pub(super) changing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) limit: RepairLimit,
    pub(super) ledger: Ledger<Registration, Vec<v1::LimitedLine>>,
    pub(super) cost: Cost,
    /// What the busiest line still has to carry, bytes.
    pub(super) busiest_bytes: u64,
    /// The lowest rate of any line; `None`: there is no limit.
    pub(super) lowest: Option<u64>,
    /// Likewise, where all disks of a node are one line: what a node has to carry is divided among them.
    pub(super) slowest: Option<u64>,
}

/// The measured rates of links and disks.
pub(super) struct Rates {
    pub(super) of: BTreeMap<NodeId, Measured>,
    /// How many disks of each node work.
    disks: BTreeMap<NodeId, u64>,
    usual: f64,
}

impl Limit {
    pub(crate) fn new(limit: RepairLimit) -> Self {
        let (ledger, cost) = (Ledger::default(), Cost::default());
        // Until the first look.
        let lowest = if let RepairLimit::Rate(rate) = limit { Some(rate.0) } else { None };
        let state = Mutex::new(State { limit, ledger, cost, busiest_bytes: 0, lowest, slowest: lowest });
        Self { state, changed: Notify::new(), changing: tokio::sync::Mutex::default() }
    }

    /// A node reports how long its tasks have waited for the limit, milliseconds.
    pub(crate) fn waited(&self, node: NodeId, total_ms: u64, now: Time) {
        self.lock().ledger.waited(node, total_ms, now);
    }

    /// How much longer than without a limit links of a class may stand still.
    pub(crate) fn extra_stall(&self, class: Class) -> Duration {
        limit::extra_stall(self.lock().lowest.filter(|_| class != Class::Foreground))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is safe to use: each change is one assignment or call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn bounds(&self, now_ms: u64, rates: &Rates, node: NodeId) -> Bounds {
        rates.bounds(self.limit, now_ms, self.busiest_bytes, node).among(self.lowest)
    }

    /// Likewise, with one limit for all disks of the node together. Without their number, they do not count.
    pub(super) fn bounds_together(&self, now_ms: u64, rates: &Rates, node: NodeId) -> Bounds {
        self.bounds(now_ms, rates, node).of_all_disks(rates.disks.get(&node).copied().unwrap_or(0))
    }

    /// The message that sets a node's limits.
    pub(super) fn message(&mut self, bounds: Bounds) -> v1::LowerLimit {
        let Bounds { up, down, disk, extra_stall } = bounds;
        let number = self.ledger.next_number();
        let extra_stall_ms = ms(extra_stall);
        v1::LowerLimit { number, up_bytes_per_s: up, down_bytes_per_s: down, disk_bytes_per_s: disk, extra_stall_ms }
    }
}

/// For a message.
pub(crate) fn ms(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

impl Rates {
    /// Of links as they were measured, and of the disks of these nodes.
    pub(super) fn new(mut of: BTreeMap<NodeId, Measured>, view: &View) -> Self {
        let usual = limit::usual(&of);
        for node in view.nodes.values() {
            of.entry(node.id).or_default().disk = node.slowest_disk_bytes_per_s();
        }
        let disks = view.nodes.values().map(|node| (node.id, node.working_disks())).collect();
        Self { of, disks, usual }
    }

    /// For a limit that needs none.
    pub(super) const fn unknown() -> Self {
        Self { of: BTreeMap::new(), disks: BTreeMap::new(), usual: limit::UNMEASURED_BYTES_PER_S }
    }

    /// The limits of a node's lines.
    pub(super) fn bounds(&self, limit: RepairLimit, now_ms: u64, busiest_bytes: u64, node: NodeId) -> Bounds {
        let of = self.of.get(&node).copied().unwrap_or_default();
        limit::bounds(limit, now_ms, busiest_bytes, of, self.usual)
    }
}
