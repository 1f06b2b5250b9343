//! Connections for updates that others have dialled: agents send messages, clients send requests and reads, and receive answers.

use super::{
    Hub, Request,
    loads::Source,
    outlet::Outlet,
    queue::{Answer, Answered},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, timeout},
};
use weft_proto::{
    FrameError, FrameStream, Peer, UpdatesHello,
    updates::{HeadMax, OPEN_READ_BYTES_MAX, Packet, Part, PartRef, UpdateReader, UpdateWriter, accept},
};
use weft_types::{Error, UPDATE_BYTES_MAX};
use weft_updater::{Piece, Pieces};

/// A connection without a packet for this long is closed. The ends that dial close theirs sooner, or dial again.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// The most bytes of requests and reads of one client that are not answered. Further ones wait in the connection.
const CLIENT_BYTES_MAX: usize = 2 * UPDATE_BYTES_MAX as usize;
/// What a request counts at least.
const REQUEST_BYTES_MIN: usize = 4 << 10;

/// Serves a connection for updates until it ends.
pub(crate) async fn attend(hub: &Hub, mut frames: FrameStream, hello: &UpdatesHello, peer: &Peer) -> Result<(), FrameError> {
    let known = *hub.cluster.borrow();
    let refusal = match (known == Some(hello.cluster), hello.to == hub.name) {
        (false, _) => Some(Error::invalid(format!("this node does not belong to cluster {}", hello.cluster))),
        (true, false) => Some(Error::invalid(format!("this is agent {}, not {}", hub.name, hello.to))),
        (true, true) => None,
    };
    if let Some(error) = refusal {
        frames.refuse_hello(0, &error).await?;
        return Err(FrameError::Unexpected(format!("refused: {error}")));
    }
    let head_max = if hello.from.is_some() { HeadMax::Large } else { HeadMax::Small };
    let (reader, writer) = accept(frames, hello, peer, head_max).await?;
    let ended = match &hello.from {
        Some(name) => {
            let source = Source { name: name.clone(), connection: hub.next_connection() };
            let ended = from_agent(hub, reader, &source).await;
            hub.disconnected(&source);
            ended
        }
        None => {
            let ((to, answers), outlet) = (mpsc::unbounded_channel(), Arc::new(Outlet::default()));
            tokio::select! {
                biased;
                ended = answer_all(writer, answers, &outlet) => ended,
                ended = from_client(hub, reader, (&to, &outlet)) => ended,
            }
        }
    };
    match ended {
        Err(FrameError::Closed) => Ok(()),
        // A process that exits does not send TLS's close_notify.
        Err(FrameError::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(()),
        ended => ended,
    }
}

async fn from_agent(hub: &Hub, mut reader: UpdateReader, source: &Source) -> Result<(), FrameError> {
    let name = &source.name;
    while let Ok(packet) = timeout(IDLE_MAX, reader.next()).await {
        let (packet, parts) = packet?;
        match packet {
            Packet::Message { from, to, message } => hub.received(name, from, to, message, pieces(parts)),
            Packet::Announced { load, from, to, message } => hub.announced(name, (load, from, to), message),
            Packet::Slice { load, to, number, head } => hub.slice(source.clone(), (load, to), number, head, parts),
            Packet::Arrived { load, at } => hub.load_arrived(name, load, at),
            Packet::Stuck { load, at } => hub.load_stuck(name, load, at),
            Packet::TooLong { from, to, id } => hub.too_long(name, from, to, id),
            Packet::Request { .. }
            | Packet::Routed { .. }
            | Packet::Answer { .. }
            | Packet::Read { .. }
            | Packet::Content { .. } => {
                return Err(unexpected("an agent sends messages"));
            }
        }
    }
    Ok(())
}

async fn from_client(
    hub: &Hub,
    mut reader: UpdateReader,
    (to, outlet): (&mpsc::UnboundedSender<Answered>, &Arc<Outlet>),
) -> Result<(), FrameError> {
    let shares = Arc::new(Semaphore::new(CLIENT_BYTES_MAX));
    while let Ok(packet) = timeout(IDLE_MAX, reader.next()).await {
        let (packet, parts) = packet?;
        let (begin, bytes) = (Instant::now(), bytes_of(&packet, &parts));
        let share = u32::try_from(bytes + REQUEST_BYTES_MIN).unwrap_or(u32::MAX);
        let Ok(share) = Arc::clone(&shares).acquire_many_owned(share).await else { return Ok(()) };
        let answer = |number| Answer { number, to: to.clone(), outlet: Arc::clone(outlet), share, room: None, begin };
        match packet {
            Packet::Request { number, block, id, term, token } => {
                hub.request(Request { block, term, id, token, pieces: pieces(parts), route: None }, answer(number));
            }
            Packet::Routed { number, block, id, term, token, route } => {
                hub.request(Request { block, term, id, token, pieces: pieces(parts), route: Some(route) }, answer(number));
            }
            Packet::Read { number, read } => hub.read(read, answer(number)),
            _ => return Err(unexpected("a client sends requests and reads")),
        }
    }
    Ok(())
}

/// Sends answers as they come, those that wait together. While none waits, others send them by the outlet.
async fn answer_all(
    mut writer: UpdateWriter,
    mut answers: mpsc::UnboundedReceiver<Answered>,
    outlet: &Outlet,
) -> Result<(), FrameError> {
    loop {
        let lent = outlet.lend(writer);
        let mut next = tokio::select! {
            biased;
            () = lent.falls_behind() => None,
            first = answers.recv() => match first {
                Some(first) => Some(first),
                None => return Ok(()),
            },
        };
        writer = lent.take()?;
        while let Some(Answered { packet, part, .. }) = next {
            let parts: Vec<PartRef<'_>> = part.iter().map(Part::as_part_ref).collect();
            writer.feed(&packet, &parts).await?;
            next = answers.try_recv().ok();
        }
        writer.flush().await?;
    }
}

/// The bytes of blocks that a packet carries, or that its answer will carry.
fn bytes_of(packet: &Packet, parts: &[Part]) -> usize {
    let asked = if let Packet::Read { read, .. } = packet { read.range.len().min(OPEN_READ_BYTES_MAX) } else { 0 };
    asked as usize + parts.iter().map(|part| part.bytes.len()).sum::<usize>()
}

fn pieces(parts: Vec<Part>) -> Pieces {
    parts.into_iter().map(|Part { stream, start, bytes }| (stream, Arc::new(Piece { start, bytes }))).collect()
}

fn unexpected(what: &str) -> FrameError {
    FrameError::Unexpected(format!("received another packet: {what} on this connection"))
}
