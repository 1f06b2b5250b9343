//! What the links between nodes carry: measured by probes now and then and when somebody asks, kept with its age, in memory. After
//! a restart of the coordinator it is measured anew.

use crate::{config::CoordinatorConfig, members::Session, options, shared::Shared};
use futures::{StreamExt, stream::FuturesUnordered};
use rand::{Rng, seq::SliceRandom};
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tonic::Status;
use weft_control::view::View;
use weft_plan::Network;
use weft_proto::{LinkRights, from_status, rpc, status::encode_error, token::probe_hash, v1};
use weft_types::{Error, NodeId, Party, Reaction, Result};

/// Two nodes: who sends, and who receives.
pub(crate) type Pair = (NodeId, NodeId);

/// Figures that are kept; the oldest go first.
const FIGURES_MAX: usize = 1 << 16;
/// Links that one round measures: of more, those that were not measured for the longest time.
const PAIRS_PER_ROUND: usize = 1_000;
/// Links that somebody may ask for at once.
const PAIRS_ASKED_MAX: usize = 4_096;
/// Probes between different nodes that run at once.
const PROBES_AT_ONCE: usize = 4;
/// A node that is busy with another probe is asked so often again.
const BUSY_TRIES: u32 = 5;
const BUSY_PAUSE_MS: std::ops::RangeInclusive<u64> = 50..=250;
/// Both agents have answered within this time: they wait for each other for three seconds and measure for two.
const PROBE_MAX: Duration = Duration::from_secs(8);
/// What was sent has been received: the sender has this long to say so.
const SENDER_GRACE: Duration = Duration::from_millis(100);
/// When there is nobody to be measured, it is looked again after this time.
const NOBODY_PAUSE: Duration = Duration::from_secs(5);
/// Events that may wait for a client.
const EVENTS_MAX: usize = 64;

/// What was measured of one link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figure {
    pub(crate) bytes_per_s: f64,
    pub(crate) slice_overhead_s: Option<f64>,
    pub(crate) at: Instant,
}

/// What was measured of all links.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<BTreeMap<Pair, Figure>>);

impl Links {
    pub(crate) fn note(&self, pair: Pair, figure: Figure) {
        let mut figures = self.lock();
        figures.insert(pair, figure);
        while figures.len() > FIGURES_MAX
            && let Some(oldest) = figures.iter().min_by_key(|(_, figure)| figure.at).map(|(pair, _)| *pair)
        {
            figures.remove(&oldest);
        }
    }

    /// All of them.
    pub(crate) fn figures(&self) -> BTreeMap<Pair, Figure> {
        self.lock().clone()
    }

    /// The network as it was measured, by what is no older than `age_max`. A node carries up and down what the best of its links
    /// carries, one of which nothing is known what the median of the others does. Where nothing at all is, all carry `otherwise`,
    /// bytes a second.
    pub(crate) fn network(&self, now: Instant, age_max: Duration, otherwise: f64) -> Network {
        let figures = self.lock();
        let fresh: Vec<(Pair, Figure)> = (figures.iter())
            .filter(|(_, figure)| now.saturating_duration_since(figure.at) <= age_max)
            .map(|(pair, figure)| (*pair, *figure))
            .collect();
        drop(figures);
        let mut network = Network::uniform(otherwise);
        network.slice_overhead_s = slice_overhead_s(fresh.iter().map(|(_, figure)| figure)).unwrap_or(0.0);
        for ((from, to), Figure { bytes_per_s, .. }) in fresh {
            let (from, to) = (Party::Node(from), Party::Node(to));
            network.pair_bytes_per_s.insert((from, to), bytes_per_s);
            let best = |known: &mut f64| *known = known.max(bytes_per_s);
            network.up_bytes_per_s.entry(from).and_modify(best).or_insert(bytes_per_s);
            network.down_bytes_per_s.entry(to).and_modify(best).or_insert(bytes_per_s);
        }
        let known = network.up_bytes_per_s.values().chain(network.down_bytes_per_s.values());
        network.link_bytes_per_s = median(known.copied().collect()).unwrap_or(otherwise);
        network
    }

    /// A panic elsewhere leaves the map as good as it was: each change to it is one call.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Pair, Figure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A link between racks that carries less than this share of what both its ends do is held up between them.
const HELD_UP: f64 = 0.8;

/// Sets what the racks' lines carry, as far as it is known: where no link that leaves a rack, or none that comes into it, carries
/// what its ends do elsewhere, they are taken to share a line, which is as wide as the best of them. Of a wider one that each of them
/// alone does not fill, nothing is known, and it counts as wide enough.
pub(crate) fn set_rack_lines(network: &mut Network) {
    let mut lines: [BTreeMap<String, Option<f64>>; 2] = Default::default();
    for ((from, to), rate) in &network.pair_bytes_per_s {
        let (Some(leaves), Some(enters)) = network.crosses(*from, *to) else { continue };
        let is_held_up = *rate < HELD_UP * network.up(*from).min(network.down(*to));
        for (known, rack) in lines.iter_mut().zip([leaves, enters]) {
            let line = known.entry(rack.to_owned()).or_insert(Some(0.0));
            *line = line.filter(|_| is_held_up).map(|line| line.max(*rate));
        }
    }
    let [up, down] = lines.map(|known| known.into_iter().filter_map(|(rack, line)| Some((rack, line?))).collect());
    (network.rack_up_bytes_per_s, network.rack_down_bytes_per_s) = (up, down);
}

/// What a slice costs besides its bytes, seconds: the median of all links on which it could be measured.
fn slice_overhead_s<'a>(figures: impl Iterator<Item = &'a Figure>) -> Option<f64> {
    median(figures.filter_map(|figure| figure.slice_overhead_s).collect())
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

/// Measures links for as long as it runs, spread over the interval of the settings.
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
        let pairs = due(pairs, &mut tried, &shared.links.figures());
        if pairs.is_empty() {
            sleep(NOBODY_PAUSE.min(round)).await;
            continue;
        }
        let mut turns = interval(round / pairs.len() as u32);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        turns.tick().await;
        for pair in pairs {
            turns.tick().await;
            tried.insert(pair, Instant::now());
            // Nodes that have better things to do are measured in the next round.
            if let Err(error) = probe(&shared, pair, true).await {
                let name = |node| shared.members.name(node);
                tracing::debug!(from = %name(pair.0), to = %name(pair.1), %error, "a link was not measured");
            }
        }
    }
}

/// The links of a round: of these, those that were neither measured nor tried for the longest time, and in the order in which they
/// are given otherwise. What was tried of others is forgotten.
fn due(mut pairs: Vec<Pair>, tried: &mut BTreeMap<Pair, Instant>, figures: &BTreeMap<Pair, Figure>) -> Vec<Pair> {
    let last: BTreeMap<Pair, Instant> = pairs.iter().filter_map(|pair| Some((*pair, *tried.get(pair)?))).collect();
    // One that cannot be measured waits for its next turn like all others.
    pairs.sort_by_key(|pair| last.get(pair).copied().max(figures.get(pair).map(|figure| figure.at)));
    pairs.truncate(PAIRS_PER_ROUND);
    *tried = last;
    pairs
}

/// What there is to say where so many nodes are up that figures of their links get too old before they are measured again.
fn too_many(config: &CoordinatorConfig, nodes: usize) -> Option<String> {
    let (interval_ms, age_max_ms) = (config.link_probe_interval_ms, config.link_age_max_ms);
    let pairs = nodes.saturating_mul(nodes.saturating_sub(1));
    let all_ms = interval_ms.saturating_mul(pairs.div_ceil(PAIRS_PER_ROUND) as u64);
    (all_ms > age_max_ms).then(|| {
        format!(
            "the {pairs} links between {nodes} nodes are measured once in {} s, {PAIRS_PER_ROUND} in each link_probe_interval_ms \
             ({interval_ms}), and what is older than link_age_max_ms ({age_max_ms}) is not planned with: repairs do not know all \
             links; a longer link_age_max_ms or a shorter link_probe_interval_ms helps",
            all_ms / 1000
        )
    })
}

fn ups(view: &View) -> Vec<NodeId> {
    view.nodes.values().filter(|node| node.up).map(|node| node.id).collect()
}

/// The links from some to others; from or to all that are up, where nobody is named.
fn among(ups: &[NodeId], from: &[NodeId], to: &[NodeId]) -> Vec<Pair> {
    let said = |named: &[NodeId]| -> BTreeSet<NodeId> { if named.is_empty() { ups } else { named }.iter().copied().collect() };
    let (from, to) = (said(from), said(to));
    from.iter().flat_map(|from| to.iter().filter(move |to| *to != from).map(move |to| (*from, *to))).collect()
}

/// Measures one link now, and keeps what it carries.
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
        name: from.record.name.clone(),
    };
    let send = v1::SendProbeRequest {
        plan: plan.0,
        epoch,
        registration: from.link_key.id().to_vec(),
        only_idle,
        to: pair.1.0,
        name: to.record.name.clone(),
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
                // A sender that is held up learns now that nobody receives any more; one that has got something else to do says so.
                match timeout(SENDER_GRACE, sent).await {
                    Ok(Err(busy)) if busy.reaction == Reaction::Retry => Err(busy),
                    _ => received,
                }
            }
        }
    };
    let late = |_| Err(Error::replan(format!("{} and {} have not answered in time", from.record.name, to.record.name)));
    let v1::ReceiveProbeReply { bytes_per_s, slice_overhead_s } = timeout(PROBE_MAX, both).await.unwrap_or_else(late)?;
    let known = |figure: &f64| figure.is_finite() && *figure >= 0.0;
    if !known(&bytes_per_s) || bytes_per_s == 0.0 {
        return Err(Error::fatal(format!("{} measured {bytes_per_s} bytes a second", to.record.name)).party(receiver));
    }
    let figure = Figure { bytes_per_s, slice_overhead_s: slice_overhead_s.filter(known), at: Instant::now() };
    shared.links.note(pair, figure);
    Ok(figure)
}

fn session(shared: &Shared, node: NodeId) -> Result<Session> {
    let down = || Error::unavailable(format!("{} is down", shared.members.name(node))).party(Party::Node(node));
    shared.members.session(node).ok_or_else(down)
}

async fn answer<T>(of: &Session, call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T> {
    let place = |status: Status| {
        let error = from_status(&status);
        // An agent says itself what is wrong with whom.
        let message = if status.details().is_empty() {
            format!("{} does not answer: {}", of.record.name, error.message)
        } else {
            format!("{} says: {}", of.record.name, error.message)
        };
        Error { message, ..error }.party(Party::Node(of.record.id))
    };
    call.await.map(tonic::Response::into_inner).map_err(place)
}

/// Measures a link, and asks again while its nodes are busy with other probes.
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

/// Measures the links that a client asks for, and tells of each.
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
        return Err(Error::invalid("there is no link between these nodes: it takes two that are up"));
    }
    if pairs.len() > PAIRS_ASKED_MAX {
        let count = pairs.len();
        return Err(Error::invalid(format!("{count} links, and at most {PAIRS_ASKED_MAX} at once: name the nodes on one side")));
    }
    let (events, told) = mpsc::channel(EVENTS_MAX);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = events.closed() => {}
            () = measure_all(&shared, pairs, &events) => {}
        }
    });
    Ok(told)
}

/// What a probe has for itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Used {
    Node(NodeId),
    RackUp(String),
    RackDown(String),
}

fn used(racks: &BTreeMap<Party, String>, (from, to): Pair) -> Vec<Used> {
    let rack = |node: NodeId| racks.get(&Party::Node(node));
    let crosses = rack(from) != rack(to);
    let lines = [rack(from).cloned().map(Used::RackUp), rack(to).cloned().map(Used::RackDown)];
    [Used::Node(from), Used::Node(to)].into_iter().chain(lines.into_iter().flatten().filter(|_| crosses)).collect()
}

async fn measure_all(shared: &Shared, mut pending: Vec<Pair>, events: &mpsc::Sender<Result<v1::ProbeEvent, Status>>) {
    let total = pending.len() as u32;
    let first = v1::ProbeEvent { total, ..v1::ProbeEvent::default() };
    // Whoever went away is noticed by the caller.
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
            Ok(figure) => v1::ProbeEvent { link: Some(shown(pair, &figure, Instant::now())), ..event },
            Err(error) => v1::ProbeEvent { error: encode_error(&error), ..event },
        };
        let _gone = events.send(Ok(event)).await;
    }
}

/// All that is known.
pub(crate) fn list(shared: &Shared) -> v1::ListLinksReply {
    let (figures, network, now) = (shared.links.figures(), shared.network(), Instant::now());
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

fn shown((from, to): Pair, figure: &Figure, now: Instant) -> v1::LinkFigure {
    let age_ms = now.saturating_duration_since(figure.at).as_millis().try_into().unwrap_or(u64::MAX);
    v1::LinkFigure { from: from.0, to: to.0, bytes_per_s: figure.bytes_per_s, age_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(bytes_per_s: f64, slice_overhead_s: Option<f64>, at: Instant) -> Figure {
        Figure { bytes_per_s, slice_overhead_s, at }
    }

    #[tokio::test]
    async fn a_network_is_made_of_what_is_fresh() {
        let (links, begin) = (Links::default(), Instant::now());
        let age_max = Duration::from_secs(60);
        let [a, b, c] = [NodeId(1), NodeId(2), NodeId(3)];
        assert_eq!(links.network(begin, age_max, 7.0), Network::uniform(7.0));
        links.note((c, a), figure(1.0, Some(9.0), begin));
        let now = begin + age_max + Duration::from_secs(1);
        assert_eq!(links.network(now, age_max, 7.0), Network::uniform(7.0), "what is too old counts as not measured");
        for (pair, bytes_per_s, overhead_s) in
            [((a, b), 10.0, Some(1e-5)), ((a, c), 40.0, Some(3e-5)), ((b, a), 20.0, None), ((b, c), 30.0, Some(2e-5))]
        {
            links.note(pair, figure(bytes_per_s, overhead_s, now));
        }
        let network = links.network(now, age_max, 7.0);
        let party = Party::Node;
        assert_eq!((network.link_bytes_per_s, network.slice_overhead_s), (30.0, 2e-5), "the medians");
        assert_eq!(network.up_bytes_per_s, BTreeMap::from([(party(a), 40.0), (party(b), 30.0)]));
        assert_eq!(network.down_bytes_per_s, BTreeMap::from([(party(a), 20.0), (party(b), 10.0), (party(c), 40.0)]));
        assert_eq!(network.pair_bytes_per_s[&(party(a), party(b))], 10.0);
        assert!(!network.pair_bytes_per_s.contains_key(&(party(c), party(a))));
        assert_eq!(links.figures().len(), 5, "what is old is shown still");
    }

    #[test]
    fn what_no_link_out_of_a_rack_gets_through_is_its_line() {
        // Racks a and b of two nodes, c of one. 10 within; between a and b and out of b 4, into c 10.
        let rack = |node: u32| ["a", "a", "b", "b", "c"][node as usize];
        let mut network = Network::uniform(1.0);
        let party = |node: u32| Party::Node(NodeId(node));
        network.racks = (0..5).map(|node| (party(node), rack(node).to_owned())).collect();
        for (from, to) in (0..5).flat_map(|from| (0..5).map(move |to| (from, to))).filter(|(from, to)| from != to) {
            let rate = match (rack(from), rack(to)) {
                (one, other) if one == other => 10.0,
                ("a", "c") => 10.0,
                ("a", "b") => 4.0,
                _ => {
                    if from == 2 {
                        3.5
                    } else {
                        3.0
                    }
                }
            };
            network.pair_bytes_per_s.insert((party(from), party(to)), rate);
            network.up_bytes_per_s.insert(party(from), 10.0);
            network.down_bytes_per_s.insert(party(to), 10.0);
        }
        set_rack_lines(&mut network);
        let lines = |of: &[(&str, f64)]| of.iter().map(|(rack, rate)| ((*rack).to_owned(), *rate)).collect::<BTreeMap<_, _>>();
        // Out of a something goes in full, and into c; so what comes into b is what is held up.
        assert_eq!(network.rack_up_bytes_per_s, lines(&[("b", 3.5), ("c", 3.0)]));
        assert_eq!(network.rack_down_bytes_per_s, lines(&[("a", 3.5), ("b", 4.0)]));
        // Slower nodes than others are no slow racks.
        for ((from, to), rate) in &mut network.pair_bytes_per_s {
            *rate = if *from == party(0) || *to == party(0) { 2.0 } else { 10.0 };
        }
        (network.up_bytes_per_s, network.down_bytes_per_s) = ([(party(0), 2.0)].into(), [(party(0), 2.0)].into());
        network.link_bytes_per_s = 10.0;
        set_rack_lines(&mut network);
        assert_eq!((network.rack_up_bytes_per_s, network.rack_down_bytes_per_s), (BTreeMap::new(), BTreeMap::new()));
    }

    #[test]
    fn a_probe_has_its_nodes_and_its_racks_lines_for_itself() {
        let racks: BTreeMap<Party, String> = (0..4).map(|node| (Party::Node(NodeId(node)), format!("r{}", node / 2))).collect();
        let shares = |one: (u32, u32), other: (u32, u32)| {
            let of = |(from, to)| used(&racks, (NodeId(from), NodeId(to)));
            of(one).iter().any(|it| of(other).contains(it))
        };
        assert!(shares((0, 2), (1, 3)) && shares((0, 2), (2, 3)), "a line between racks; a node");
        assert!(!shares((0, 2), (3, 1)) && !shares((0, 1), (2, 3)));
    }

    #[tokio::test]
    async fn links_that_cannot_be_measured_hold_up_no_others() {
        let begin = Instant::now();
        let nodes: Vec<NodeId> = (1..=40).map(NodeId).collect();
        let pairs = || among(&nodes, &[], &[]);
        // Nobody can measure the links from the first nodes: more than one round takes.
        let fails = |pair: &Pair| pair.0.0 <= 30;
        let (links, mut tried) = (Links::default(), BTreeMap::from([((NodeId(1), NodeId(99)), begin)]));
        for round in 0..2 {
            let at = begin + Duration::from_secs(round);
            for pair in due(pairs(), &mut tried, &links.figures()) {
                tried.insert(pair, at);
                if !fails(&pair) {
                    links.note(pair, figure(1.0, None, at));
                }
            }
        }
        assert_eq!((pairs().len(), links.figures().len()), (1560, 390), "all others have had their turn");
        assert!(!tried.contains_key(&(NodeId(1), NodeId(99))), "who is gone is forgotten");
        // What was measured because somebody asked need not be measured at once again.
        let next = due(pairs(), &mut tried, &links.figures())[0];
        links.note(next, figure(1.0, None, begin + Duration::from_secs(9)));
        assert!(!due(pairs(), &mut tried, &links.figures()).contains(&next));
    }

    #[test]
    fn figures_that_get_too_old_are_warned_of() {
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

    #[test]
    fn links_are_between_different_nodes_and_as_they_were_named() {
        let [a, b, c] = [NodeId(1), NodeId(2), NodeId(3)];
        assert_eq!(among(&[a, b, c], &[], &[]).len(), 6);
        assert_eq!(among(&[a, b, c], &[b, b], &[]), [(b, a), (b, c)]);
        assert_eq!(among(&[a, b, c], &[], &[c]), [(a, c), (b, c)]);
        assert_eq!(among(&[a, b, c], &[a], &[a]), []);
    }
}
