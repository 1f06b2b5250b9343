//! Measures a link. One agent sends slices of zeros to another, over the same connection pool, Hello, token and frames
//! as a plan's link. The receiver measures the arrival times.
//!
//! ```text
//! 128 × 4 KiB                 6 × 256 KiB                       64 × 4 KiB
//! ├───────────────────────────┼─────────────────────────────────┼──────────────────────────┤
//!  what a token bucket lets    bytes a second                    what is longer than the
//!  through at once                                               bytes' time: each slice's own
//! ```
//! A slow link does not complete this within the probe's time; then the bytes of the second half of that time are the
//! measure.

use crate::{
    admission::Permit,
    line::Passage,
    node::{Node, Registration},
    reception::{Arrival, Expected, Guest},
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::{Instant, timeout, timeout_at},
};
use weft_engine::classes::Demand;
use weft_plan::{Class, Precedence};
use weft_proto::{
    Direction, FrameStream, Hello, LinkReceiver, LinkRights, LinkSender, LinkToken, Peer,
    token::probe_hash,
    v1::{ReceiveProbeReply, ReceiveProbeRequest, SendProbeReply, SendProbeRequest},
};
use weft_types::{Error, NodeId, Party, PlanId, Result, Span};

/// A probe that gave way to other tasks would measure those tasks.
const PRECEDENCE: Precedence = Precedence { class: Class::Foreground, priority: 0 };

const SMALL: u64 = 4 << 10;
const LARGE: u64 = 256 << 10;
/// The lengths and counts of the slices, one train after another.
const TRAINS: [(u64, usize); 3] = [(SMALL, 128), (LARGE, 6), (SMALL, 64)];
const WARM: usize = TRAINS[0].1;
const LOADED: usize = WARM + TRAINS[1].1;

/// A probe ends after this time and
const TIME_MAX: Duration = Duration::from_millis(500);
/// at least this many slices, or after this time whatever has arrived:
const SLICES_MIN: usize = 8;
const SLOWEST: Duration = Duration::from_secs(2);
/// How long the receiver waits for the sender, how long the sender dials, and how long a blocked sender waits.
const MEET_MAX: Duration = Duration::from_secs(3);
/// A probe uses a single link.
const LINK: u32 = 0;

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    bytes_per_s: f64,
    /// The time a slice takes besides its bytes, seconds; `None` for a link on which the last train did not arrive.
    slice_overhead_s: Option<f64>,
}

/// The arrival of a slice, since the start of the probe.
#[derive(Debug, Clone, Copy)]
struct Came {
    at: Duration,
    /// Bytes of this slice and all before it.
    bytes: u64,
}

/// The node's only probe slot, and the resources reserved for the probe.
struct Turn {
    _turn: OwnedSemaphorePermit,
    _permit: Permit,
}

/// Sends a probe. If the receiver closes early, that is no failure: it has measured enough.
pub(crate) async fn send(node: &Arc<Node>, request: SendProbeRequest) -> Result<SendProbeReply> {
    let (_turn, registration) = begin(node, request.epoch, &request.registration, request.only_idle).await?;
    let (address, peer, to) = (&request.address, Peer::Agent(request.name), Party::Node(NodeId(request.to)));
    let hello = Hello {
        cluster: registration.cluster,
        plan: PlanId(request.plan),
        link: LINK,
        from: Party::Node(registration.node),
        to,
        direction: Direction::Push,
        token: LinkToken::from_slice(&request.token)?,
    };
    let late = |_| Err(Error::replan(format!("{peer} at {address}: no connection within {MEET_MAX:?}")));
    let opened = timeout(MEET_MAX, node.pool.open(address, &peer, &hello)).await.unwrap_or_else(late);
    let mut sender = LinkSender::new(opened.map_err(|error| error.party(to))?, LINK, 1, MEET_MAX);
    let uplink = Passage::new(&node.throttles.uplink, PRECEDENCE);
    let zeros = Bytes::from(vec![0; LARGE as usize]);
    for slice in slices() {
        // As plans send slices: small ones together, and no slice waits while others are paid for.
        if uplink.is_bounded() && sender.flush().await.is_ok() {
            uplink.pass(slice.len()).await;
        }
        if sender.feed(slice, &zeros.slice(..slice.len() as usize).into()).await.is_err() {
            require_idle(node, request.only_idle)?;
            return Ok(SendProbeReply {});
        }
    }
    if sender.end().await.is_ok()
        && let Some(frames) = sender.into_frames()
    {
        node.pool.put_back(address, &peer, frames);
    }
    require_idle(node, request.only_idle)?;
    Ok(SendProbeReply {})
}

/// Receives a probe and returns the measurement.
pub(crate) async fn receive(node: &Arc<Node>, request: ReceiveProbeRequest) -> Result<ReceiveProbeReply> {
    let (_turn, registration) = begin(node, request.epoch, &request.registration, request.only_idle).await?;
    let (plan, from) = (PlanId(request.plan), Party::Node(NodeId(request.from)));
    let (arrived, arrival) = oneshot::channel();
    let rights =
        LinkRights { epoch: request.epoch, plan, link: LINK, from, to: Party::Node(registration.node), task_hash: probe_hash() };
    let (key, peer) = (registration.link_key.clone(), Peer::Agent(request.name));
    let guest = Guest { rights, key, direction: Direction::Push, peer };
    let _guests = node.reception.expect(plan, vec![(LINK, Expected { guest, arrived })]);
    let late = || Error::replan(format!("no probe arrived within {MEET_MAX:?}")).party(from);
    let Arrival { frames, home } = timeout(MEET_MAX, arrival).await.map_err(|_| late())?.map_err(|_| late())?;
    let (came, frames) = watch(frames).await.map_err(|error| error.party(from))?;
    if let Some(frames) = frames {
        // No receiver is left: the agent is stopping.
        drop(home.send(frames));
    }
    // A task that shared the link would distort the measurement.
    require_idle(node, request.only_idle)?;
    let slow = || Error::unavailable(format!("less than {} bytes arrived within {SLOWEST:?}", 2 * SMALL)).party(from);
    let Measured { bytes_per_s, slice_overhead_s } = measure(&came).ok_or_else(slow)?;
    Ok(ReceiveProbeReply { bytes_per_s, slice_overhead_s })
}

/// One probe at a time, in either direction: two would measure each other.
async fn begin(node: &Arc<Node>, epoch: u64, registered: &[u8], only_idle: bool) -> Result<(Turn, Arc<Registration>)> {
    let registration = node.registration()?;
    if registered != registration.link_key.id() {
        return Err(Error::retry("the probe was made for another registration of this node"));
    }
    node.obey(epoch).await?;
    require_idle(node, only_idle)?;
    let turn = Arc::clone(&node.probing).try_acquire_owned().map_err(|_| Error::retry("busy: another probe is running"))?;
    let permit = node.admission.admit(PRECEDENCE, Demand { memory_bytes: 2 * LARGE, connections: 1, ..Demand::default() })?;
    Ok((Turn { _turn: turn, _permit: permit }, registration))
}

fn require_idle(node: &Node, only_idle: bool) -> Result<()> {
    if only_idle && !node.tasks.is_empty() { Err(Error::retry("busy: the node runs tasks")) } else { Ok(()) }
}

fn slices() -> impl Iterator<Item = Span> + Send {
    let lens = TRAINS.into_iter().flat_map(|(len, count)| std::iter::repeat_n(len, count));
    lens.scan(0, |at, len| {
        *at += len;
        Some(Span::new(*at - len, *at))
    })
}

/// Receives slices until all have arrived or the time is over. Returns the connection if it can carry another link.
async fn watch(frames: FrameStream) -> Result<(Vec<Came>, Option<FrameStream>)> {
    let begin = Instant::now();
    let mut receiver = LinkReceiver::new(frames, LINK, 1, MEET_MAX);
    let mut came: Vec<Came> = Vec::with_capacity(LOADED + TRAINS[2].1);
    for slice in slices() {
        let time = if came.len() < SLICES_MIN { SLOWEST } else { TIME_MAX };
        match timeout_at(begin + time, receiver.receive(slice)).await {
            Ok(received) => drop(received?),
            Err(_) => return Ok((came, None)),
        }
        came.push(Came { at: begin.elapsed(), bytes: slice.end });
    }
    receiver.end().await?;
    Ok((came, receiver.into_frames()))
}

fn measure(came: &[Came]) -> Option<Measured> {
    let (first, last) = (came.first()?, came.last()?);
    if let (Some(warm), Some(loaded)) = (came.get(WARM - 1), came.get(LOADED - 1)) {
        let bytes_per_s = rate(warm, loaded)?;
        let due_s = (last.bytes - loaded.bytes) as f64 / bytes_per_s;
        let more_s = (last.at - loaded.at).as_secs_f64() - due_s;
        let overhead_s = (came.len() == LOADED + TRAINS[2].1).then(|| more_s.max(0.0) / TRAINS[2].1 as f64);
        return Some(Measured { bytes_per_s, slice_overhead_s: overhead_s });
    }
    // A token bucket's burst arrived in the first half.
    let half = first.at + (last.at - first.at) / 2;
    let from = came.iter().rfind(|slice| slice.at <= half).unwrap_or(first);
    rate(from, last).map(|bytes_per_s| Measured { bytes_per_s, slice_overhead_s: None })
}

/// Bytes a second between two arrivals; `None` if they are the same.
fn rate(from: &Came, to: &Came) -> Option<f64> {
    // On a simulated network, transfers may take no time.
    let seconds = (to.at - from.at).as_secs_f64().max(1e-6);
    (to.bytes > from.bytes).then(|| (to.bytes - from.bytes) as f64 / seconds)
}

#[cfg(test)]
mod tests;
