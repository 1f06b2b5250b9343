//! Measures the capacity of links between nodes by probes, at intervals and on request. The figures are in memory:
//! after a restart of the coordinator they are measured again.

use crate::{
    config::CoordinatorConfig,
    members::Session,
    options,
    shared::{Shared, while_read},
    tasks,
};
use futures::{StreamExt, stream::FuturesUnordered};
use rand::{Rng, seq::SliceRandom};
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tonic::Status;
use weft_control::{
    Time,
    links::{Figure, PAIRS_PER_ROUND, Pair, among, due, slice_overhead_s, used},
    view::View,
};
use weft_proto::{LinkRights, from_status, rpc, status::encode_error, token::probe_hash, v1};
use weft_types::{Error, NodeId, Party, Reaction, Result};

/// The most links of one request.
const PAIRS_ASKED_MAX: usize = 4_096;
/// Probes between different nodes that run at the same time.
const PROBES_AT_ONCE: usize = 4;
/// How many times a probe is retried at a node that is busy with another one.
const BUSY_TRIES: u32 = 5;
const BUSY_PAUSE_MS: std::ops::RangeInclusive<u64> = 50..=250;
/// How long both agents may take to answer: they wait for each other for three seconds and measure for two.
const PROBE_MAX: Duration = Duration::from_secs(8);
/// After the receiver's answer, the sender has this long to answer.
const SENDER_GRACE: Duration = Duration::from_millis(100);
/// The pause if there is nothing to measure.
const NOBODY_PAUSE: Duration = Duration::from_secs(5);
/// Events that may wait for a client.
const EVENTS_MAX: usize = 64;

/// Measures links for as long as it runs, spread over the configured interval.
pub(crate) async fn run(shared: Arc<Shared>) {
    let round = Duration::from_millis(shared.config.link_probe_interval_ms);
    if round.is_zero() {
        return;
    }
    let (mut tried, mut warned) = (BTreeMap::new(), false);
    loop {
        let ups = ups(&shared.members.view());
        let warning = too_many(&shared.config, ups.len());
        if let Some(warning) = warning.as_ref().filter(|_| !warned) {
            tracing::warn!("{warning}");
        }
        warned = warning.is_some();
        let mut pairs = among(&ups, &[], &[]);
        pairs.shuffle(&mut *shared.rng());
        let pairs = due(pairs, &mut tried, shared.links().figures());
        if pairs.is_empty() {
            sleep(NOBODY_PAUSE.min(round)).await;
            continue;
        }
        let mut turns = interval(round / pairs.len() as u32);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        turns.tick().await;
        for pair in pairs {
            turns.tick().await;
            tried.insert(pair, shared.started.now());
            // Busy nodes are measured in the next round.
            if let Err(error) = probe(&shared, pair, true).await {
                let name = |node| shared.members.name(node);
                tracing::debug!(from = %name(pair.0), to = %name(pair.1), %error, "a link was not measured");
            }
        }
    }
}

/// A warning if so many nodes are up that their links' figures expire before they are measured again.
fn too_many(config: &CoordinatorConfig, nodes: usize) -> Option<String> {
    let (interval_ms, age_max_ms) = (config.link_probe_interval_ms, config.link_age_max_ms);
    let pairs = nodes.saturating_mul(nodes.saturating_sub(1));
    let all_ms = interval_ms.saturating_mul(pairs.div_ceil(PAIRS_PER_ROUND) as u64);
    (all_ms > age_max_ms).then(|| {
        format!(
            "the {pairs} links between {nodes} nodes are measured once in {} s, {PAIRS_PER_ROUND} in each link_probe_interval_ms \
             ({interval_ms}), but figures older than link_age_max_ms ({age_max_ms}) are not used, so repairs do not know all \
             links: set a longer link_age_max_ms or a shorter link_probe_interval_ms",
            all_ms / 1000
        )
    })
}

fn ups(view: &View) -> Vec<NodeId> {
    view.nodes.values().filter(|node| node.up).map(|node| node.id).collect()
}

/// Measures one link now, and stores the figure.
async fn probe(shared: &Shared, pair: Pair, only_idle: bool) -> Result<Figure> {
    let (from, to) = (session(shared, pair.0)?, session(shared, pair.1)?);
    let (plan, epoch) = (shared.next_plan(), shared.epoch.0);
    let (sender, receiver) = (Party::Node(pair.0), Party::Node(pair.1));
    let rights = LinkRights { epoch, plan, link: 0, from: sender, to: receiver, task_hash: probe_hash() };
    let receive = v1::ReceiveProbeRequest {
        plan: plan.0,
        epoch,
        registration: to.link_key.id().to_vec(),
        only_idle,
        from: pair.0.0,
        name: from.record.name.to_string(),
    };
    let send = v1::SendProbeRequest {
        plan: plan.0,
        epoch,
        registration: from.link_key.id().to_vec(),
        only_idle,
        to: pair.1.0,
        name: to.record.name.to_string(),
        address: to.record.data_address.clone(),
        token: to.link_key.issue(&rights).0.to_vec(),
    };
    let (mut receiving, mut sending) = (rpc::agent_client(to.channel.clone()), rpc::agent_client(from.channel.clone()));
    let both = async {
        let mut received = pin!(answer(&to, receiving.receive_probe(rpc::with_deadline(receive, PROBE_MAX))));
        let mut sent = pin!(answer(&from, sending.send_probe(rpc::with_deadline(send, PROBE_MAX))));
        tokio::select! {
            biased;
            sent = &mut sent => {
                sent?;
                received.await
            }
            received = &mut received => {
                // A blocked sender now detects that the receiver has finished; one that refused answers at once.
                match timeout(SENDER_GRACE, sent).await {
                    Ok(Err(busy)) if busy.reaction == Reaction::Retry => Err(busy),
                    _ => received,
                }
            }
        }
    };
    let late = |_| Err(Error::replan(format!("{} and {} did not answer in time", from.record.name, to.record.name)));
    let v1::ReceiveProbeReply { bytes_per_s, slice_overhead_s } = timeout(PROBE_MAX, both).await.unwrap_or_else(late)?;
    let known = |figure: &f64| figure.is_finite() && *figure >= 0.0;
    if !known(&bytes_per_s) || bytes_per_s == 0.0 {
        return Err(Error::fatal(format!("{} measured {bytes_per_s} bytes a second", to.record.name)).party(receiver));
    }
    let figure = Figure { bytes_per_s, slice_overhead_s: slice_overhead_s.filter(known), at: shared.started.now() };
    shared.links().note(pair, figure);
    Ok(figure)
}

fn session(shared: &Shared, node: NodeId) -> Result<Session> {
    let down = || Error::unavailable(format!("{} is down", shared.members.name(node))).party(Party::Node(node));
    shared.members.session(node).ok_or_else(down)
}

async fn answer<T>(of: &Session, call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T> {
    let place = |status: Status| {
        let error = from_status(&status);
        // An agent's own error names the cause.
        let message = if status.details().is_empty() {
            format!("{} does not answer: {}", of.record.name, error.message)
        } else {
            format!("{} reports: {}", of.record.name, error.message)
        };
        Error { message, ..error }.party(Party::Node(of.record.id))
    };
    call.await.map(tonic::Response::into_inner).map_err(place)
}

/// Measures a link, and tries again while its nodes are busy with other probes.
async fn probe_patiently(shared: &Shared, pair: Pair) -> Result<Figure> {
    let mut tries = 1;
    loop {
        match probe(shared, pair, false).await {
            Err(error) if error.reaction == Reaction::Retry && tries < BUSY_TRIES => tries += 1,
            other => return other,
        }
        let pause_ms = shared.rng().random_range(BUSY_PAUSE_MS);
        sleep(Duration::from_millis(pause_ms)).await;
    }
}

/// Measures the links that a client requests, and reports each.
pub(crate) fn measure(
    shared: &Arc<Shared>,
    asked: &v1::ProbeLinksRequest,
) -> Result<mpsc::Receiver<Result<v1::ProbeEvent, Status>>> {
    let view = shared.members.view();
    let named = |nodes: &[u32]| -> Result<Vec<NodeId>> {
        let known = |node: &u32| {
            let node = view.node(NodeId(*node)).ok_or_else(|| Error::not_found(format!("there is no node {}", NodeId(*node))))?;
            let down = || Error::unavailable(format!("{} is down", node.name)).party(Party::Node(node.id));
            if node.up { Ok(node.id) } else { Err(down()) }
        };
        nodes.iter().map(known).collect()
    };
    let pairs = among(&ups(&view), &named(&asked.from)?, &named(&asked.to)?);
    if pairs.is_empty() {
        return Err(Error::invalid("there is no link between these nodes: name two nodes that are up"));
    }
    if pairs.len() > PAIRS_ASKED_MAX {
        let count = pairs.len();
        return Err(Error::invalid(format!(
            "{count} links are too many for one request, which may have {PAIRS_ASKED_MAX}: name fewer nodes"
        )));
    }
    let (events, told) = mpsc::channel(EVENTS_MAX);
    let shared = Arc::clone(shared);
    tasks::start(async move { while_read(&events, measure_all(&shared, pairs, &events)).await });
    Ok(told)
}

async fn measure_all(shared: &Shared, mut pending: Vec<Pair>, events: &mpsc::Sender<Result<v1::ProbeEvent, Status>>) {
    let total = pending.len() as u32;
    let first = v1::ProbeEvent { total, ..v1::ProbeEvent::default() };
    // The caller notices if the client has disconnected.
    let _gone = events.send(Ok(first)).await;
    let racks = options::racks(&shared.members.view());
    let (mut running, mut busy) = (FuturesUnordered::new(), BTreeSet::new());
    loop {
        while running.len() < PROBES_AT_ONCE
            && let Some(next) = pending.iter().position(|pair| used(&racks, *pair).iter().all(|one| !busy.contains(one)))
        {
            let pair = pending.remove(next);
            busy.extend(used(&racks, pair));
            running.push(async move { (pair, probe_patiently(shared, pair).await) });
        }
        let Some((pair, probed)) = running.next().await else { return };
        let ended = used(&racks, pair);
        busy.retain(|one| !ended.contains(one));
        let event = v1::ProbeEvent { total, from: pair.0.0, to: pair.1.0, ..v1::ProbeEvent::default() };
        let event = match probed {
            Ok(figure) => v1::ProbeEvent { link: Some(shown(pair, &figure, shared.started.now())), ..event },
            Err(error) => v1::ProbeEvent { error: encode_error(&error), ..event },
        };
        let _gone = events.send(Ok(event)).await;
    }
}

/// All known figures.
pub(crate) fn list(shared: &Shared) -> v1::ListLinksReply {
    let figures = shared.links().figures().clone();
    let (network, now) = (shared.network(), shared.started.now());
    let nodes = shared.members.view().up_count();
    let (up, down) = (&network.rack_up_bytes_per_s, &network.rack_down_bytes_per_s);
    let racks: BTreeSet<&String> = up.keys().chain(down.keys()).collect();
    let line = |rack: &String| v1::RackLine {
        rack: rack.clone(),
        up_bytes_per_s: up.get(rack).copied(),
        down_bytes_per_s: down.get(rack).copied(),
    };
    v1::ListLinksReply {
        links: figures.iter().map(|(pair, figure)| shown(*pair, figure, now)).collect(),
        slice_overhead_s: slice_overhead_s(figures.values()),
        age_max_ms: shared.config.link_age_max_ms,
        warnings: too_many(&shared.config, nodes).into_iter().collect(),
        racks: racks.into_iter().map(line).collect(),
    }
}

fn shown((from, to): Pair, figure: &Figure, now: Time) -> v1::LinkFigure {
    let age_ms = now.since(figure.at).as_millis().try_into().unwrap_or(u64::MAX);
    v1::LinkFigure { from: from.0, to: to.0, bytes_per_s: figure.bytes_per_s, age_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_expire_before_the_next_measurement_get_a_warning() {
        let config = |link_probe_interval_ms, link_age_max_ms| CoordinatorConfig {
            link_probe_interval_ms,
            link_age_max_ms,
            ..CoordinatorConfig::default()
        };
        // 40 nodes have 1560 links, 32 have 992.
        let warning = too_many(&config(600_000, 1_000_000), 40).unwrap();
        assert!(warning.contains("1560 links between 40 nodes are measured once in 1200 s"), "{warning}");
        for (config, nodes) in [(config(600_000, 1_000_000), 32), (config(600_000, 1_200_000), 40), (config(0, 1_000), 4000)] {
            assert_eq!(too_many(&config, nodes), None, "{nodes} nodes, {config:?}");
        }
        assert_eq!(too_many(&CoordinatorConfig::default(), 0), None);
    }
}
