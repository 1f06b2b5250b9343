//! What people see of the limit.

use super::{state::Rates, work};
use crate::shared::Shared;
use std::{collections::BTreeMap, time::Duration};
use weft_control::{
    busiest::{Busiest, busiest, most_at_a_node},
    limit::{self, Bounds, deadline_rate, least_time},
    members::MemberStatus,
    schedule::{Load, Place},
};
use weft_plan::Network;
use weft_proto::v1;
use weft_types::{NodeId, RepairLimit, human_bytes};

/// The state of a node that must still confirm.
pub(super) const PENDING: &str = "pending";

/// The limit, and where it is in force.
pub(crate) fn reply(shared: &Shared) -> v1::RepairLimitReply {
    let (statuses, rates, now_ms) = (shared.members.statuses(), all_rates(shared), shared.now_ms());
    let sessions: Vec<_> = statuses.iter().map(|status| shared.members.session(status.record.id).filter(|_| status.up)).collect();
    let holds_back = holds_back(shared);
    let state = shared.limit.lock();
    let node = |(status, session): (&MemberStatus, &Option<crate::members::Session>)| {
        let (id, name) = (status.record.id, status.record.name.to_string());
        let answer = session
            .as_ref()
            .and_then(|session| state.ledger.answer(id, &session.link_key.id(), &state.bounds(now_ms, &rates, id)));
        let (is, why, lines) = match (session, answer) {
            (None, _) => ("down", String::new(), Vec::new()),
            (Some(_), None) => (PENDING, "it is being told".into(), Vec::new()),
            (Some(_), Some(Err(refusal))) if refusal.is_final => ("refused", refusal.why.clone(), Vec::new()),
            (Some(_), Some(Err(refusal))) => (PENDING, refusal.why.clone(), Vec::new()),
            (Some(_), Some(Ok(lines))) => ("confirmed", String::new(), measured(lines, &rates, status)),
        };
        v1::LimitedNode { node: id.0, name, state: is.to_owned(), why, lines }
    };
    v1::RepairLimitReply {
        limit: Some(message(state.limit, now_ms)),
        nodes: statuses.iter().zip(&sessions).map(node).collect(),
        holds_back,
        deadline_bytes_per_s: deadline(state.limit, state.busiest_bytes, now_ms),
        remaining_ms: state.slowest.filter(|_| state.busiest_bytes > 0).map(|rate| ms(least_time(state.busiest_bytes, rate))),
    }
}

/// With the measured rates.
fn measured(lines: &[v1::LimitedLine], rates: &Rates, status: &MemberStatus) -> Vec<v1::LimitedLine> {
    let of = rates.of.get(&status.record.id).copied().unwrap_or_default();
    let of_disk = |path: &str| {
        let disk = status.record.disks.iter().find(|disk| &*disk.path == path)?;
        status.disks.get(&disk.number).map(|state| state.bytes_per_s).filter(|rate| *rate > 0)
    };
    let measured = |line: &str| match line {
        "uplink" => of.up.map(|rate| rate as u64),
        "downlink" => of.down.map(|rate| rate as u64),
        path => of_disk(path),
    };
    let with = |line: &v1::LimitedLine| v1::LimitedLine { measured_bytes_per_s: measured(&line.line), ..line.clone() };
    lines.iter().map(with).collect()
}

fn message(limit: RepairLimit, now_ms: u64) -> v1::RepairLimit {
    match limit {
        RepairLimit::None => v1::RepairLimit::default(),
        RepairLimit::Rate(rate) => v1::RepairLimit { bytes_per_s: Some(rate.0), ..v1::RepairLimit::default() },
        RepairLimit::Percent(percent) => v1::RepairLimit { percent: Some(percent), ..v1::RepairLimit::default() },
        RepairLimit::Until(at_ms) => {
            v1::RepairLimit { deadline_in_ms: Some(at_ms.saturating_sub(now_ms)), ..v1::RepairLimit::default() }
        }
    }
}

fn deadline(limit: RepairLimit, busiest_bytes: u64, now_ms: u64) -> Option<u64> {
    let RepairLimit::Until(at_ms) = limit else { return None };
    deadline_rate(busiest_bytes, at_ms, now_ms)
}

/// Whether tasks have waited for the limit a moment ago.
fn holds_back(shared: &Shared) -> bool {
    let state = shared.limit.lock();
    let heartbeat = Duration::from_millis(shared.config.heartbeat_interval_ms.into());
    state.lowest.is_some() && state.ledger.holds_back(heartbeat, shared.started.now())
}

/// The limit in a few words, if it holds repair back; otherwise empty.
pub(crate) fn text(shared: &Shared) -> String {
    if !holds_back(shared) {
        return String::new();
    }
    let state = shared.limit.lock();
    words(state.limit, deadline(state.limit, state.busiest_bytes, shared.now_ms()))
}

fn words(limit: RepairLimit, deadline: Option<u64>) -> String {
    match (limit, deadline) {
        (RepairLimit::Percent(percent), _) => format!("{percent}% of the measured rate of each link and disk"),
        (_, Some(rate)) => format!("{}/s, to meet the deadline", human_bytes(rate)),
        (limit, None) => limit.to_string(),
    }
}

/// The measured rates of all lines, if `limit` needs them.
pub(super) fn rates(shared: &Shared, limit: RepairLimit) -> Rates {
    if matches!(limit, RepairLimit::Percent(_)) { all_rates(shared) } else { Rates::unknown() }
}

fn all_rates(shared: &Shared) -> Rates {
    let of_links = limit::measured(shared.links().figures());
    Rates::new(of_links, &shared.members.view())
}

/// How long work takes at least: the line that needs longest for it, at the measured rates and under the limit on repair.
pub(crate) struct Longest {
    /// At the measured rates.
    pub(crate) free: Option<Busiest>,
    /// What limits repair, in a few words; empty: nothing.
    pub(crate) limit: String,
    /// Under that limit.
    pub(crate) limited: Option<Busiest>,
}

impl Longest {
    /// Of the lines that have these loads.
    pub(crate) fn of(shared: &Shared, loads: &BTreeMap<Place, Load>, network: &Network) -> Self {
        let free = busiest(loads, network, |_| Bounds::default());
        let (limit, bounds) = in_force(shared, most_at_a_node(loads));
        let view = shared.members.view();
        // The limit is that of each disk, and loads are those of all disks of a node.
        let of_node = |node: NodeId| bounds(node).of_all_disks(view.nodes.get(&node).map_or(0, |node| node.working_disks()));
        let limited = busiest(loads, network, of_node).filter(|_| !limit.is_empty());
        Self { free, limit, limited }
    }
}

/// What limits repair at the lines of nodes, in a few words, and each node's limits: that of a person, and that of the settings.
/// `further_bytes`: what the busiest line would have to carry besides, for a deadline.
fn in_force(shared: &Shared, further_bytes: u64) -> (String, impl Fn(NodeId) -> Bounds) {
    let (limit, busiest_bytes) = {
        let state = shared.limit.lock();
        (state.limit, state.busiest_bytes.saturating_add(further_bytes))
    };
    let (rates, now_ms, setting) = (rates(shared, limit), shared.now_ms(), shared.config.limits.repair_bytes_per_s);
    let deadline = deadline(limit, busiest_bytes, now_ms);
    let is_none = limit == RepairLimit::None || matches!(limit, RepairLimit::Until(_)) && deadline.is_none();
    let of_person = (!is_none).then(|| words(limit, deadline));
    let text = match (of_person, setting) {
        (Some(limit), Some(rate)) => format!("{limit}, and {rate}/s by the coordinator's settings"),
        (Some(limit), None) => limit,
        (None, Some(rate)) => format!("{rate}/s by the coordinator's settings"),
        (None, None) => String::new(),
    };
    let least = move |rate: Option<u64>| rate.into_iter().chain(setting.map(|rate| rate.0)).min();
    let bounds = move |node| {
        let of = rates.bounds(limit, now_ms, busiest_bytes, node);
        Bounds { up: least(of.up), down: least(of.down), ..of }
    };
    (text, bounds)
}

/// The lowest rate of any line, bytes a second; `None` without a limit.
pub(crate) fn lowest(shared: &Shared) -> Option<u64> {
    shared.limit.lock().lowest
}

/// The least time that work takes at the limit, milliseconds; `None` without a limit. `work`: whether it is a conversion, and its bytes; or
/// what is rebuilt without a person.
pub(crate) fn least_ms(shared: &Shared, work: Option<(bool, u64)>) -> Option<u64> {
    let (cost, slowest) = {
        let state = shared.limit.lock();
        (state.cost, state.slowest?)
    };
    let busiest = match work {
        Some((converts, bytes)) => work::busiest(&cost, converts, bytes),
        None => work::of_healer(shared, &cost),
    };
    Some(ms(least_time(busiest, slowest)))
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
